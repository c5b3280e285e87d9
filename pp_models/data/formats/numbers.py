"""Numbers in text: NumPy parses them, some lines at a time; a line that is wrong is named."""

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pp_models.data.formats.opening import fail, lines, reason

LINES_TOGETHER = 1 << 17

Line = tuple[int, bytes]  # with its number


class Whole(NamedTuple):
    """A column of whole numbers within bounds."""

    name: str
    least: int
    most: int


def tables(path: Path, source: Iterable[Line], form: str, **options: Any) -> Iterator[Any]:
    """The numbers of some lines at a time, and the lines they stand on.

    form: what a line should hold, for the message. options: those of `numpy.loadtxt`.
    """
    left = iter(source)
    while found := list(itertools.islice(left, LINES_TOGETHER)):
        places, raw = zip(*found, strict=True)
        given = iter(raw)
        try:
            table = np.loadtxt(given, comments=None, ndmin=2, **options)
        except ValueError as error:
            why = reason(error).split(" at row")[0]
            line = places[-1 - operator.length_hint(given)]  # the one that NumPy has read last
            fail(path, f"the line does not read as `{form}` ({why}): correct it", error, line)
        yield table, np.array(places)


def triples(
    path: Path,
    source: Iterable[Line],
    whole: Sequence[Whole],
    delimiter: str | None = None,
) -> Iterator[Any]:
    """Lines of three whole numbers within these bounds, with their line numbers."""
    form = (delimiter or " ").join(column.name for column in whole)
    for table, places in tables(path, source, form, delimiter=delimiter):
        if table.shape[1] != 3:
            what = f"{table.shape[1]} number(s) do not read as `{form}`"
            fail(path, f"{what}: complete, correct or delete the line", line=int(places[0]))
        yield check_whole(path, table, places, whole), places


def check_whole(path: Path, table: Any, places: Any, whole: Sequence[Whole]) -> np.ndarray:
    """The same as integers, where all are within their bounds."""
    _, least, most = (np.array(bounds) for bounds in zip(*whole, strict=True))
    bad = ~((table >= least) & (table <= most) & (table == np.floor(table)))  # nan is bad, too
    if bad.any():
        row, column = np.argwhere(bad)[0]
        name, smallest, largest = whole[column]
        what = f"the {name} {table[row, column]:.12g} is not a whole number"
        fail(path, f"{what} from {smallest} to {largest}: correct it", line=int(places[row]))
    return table.astype(np.int64)


def filled(path: Path, stream: BinaryIO, first: int = 1) -> Iterator[Line]:
    """The lines that are not blank."""
    return (line for line in enumerate(lines(path, stream), first) if not line[1].isspace())


def delimited(path: Path, stream: BinaryIO) -> tuple[Iterator[Line], str]:
    """The lines of a csv or tsv file, without a header line, and the delimiter."""
    source = filled(path, stream)
    number, start = next(source, (0, b""))
    tab = Path(path.name.lower().removesuffix(".gz")).suffix == ".tsv"
    delimiter = "\t" if tab else ";" if b";" in start and b"," not in start else ","
    header = not any(map(_is_number, start.split(delimiter.encode())))
    return source if header else itertools.chain([(number, start)], source), delimiter


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
