"""Numbers in text: csv triples, UCI and LDA-C. NumPy parses some lines at a time."""

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pp_models.data.formats.opening import LARGEST_INDEX, check_shape, fail, lines, reason

LINES_TOGETHER = 1 << 17

Line = tuple[int, bytes]  # with its number
Shape = tuple[int | None, int | None]  # None where the file does not say


class Part(NamedTuple):
    """Entries of a matrix: (entries, 3) row, column and count; the shape that the file states."""

    triples: np.ndarray = np.zeros((0, 3), np.int64)
    shape: Shape = (None, None)


class Whole(NamedTuple):
    """A column of whole numbers within bounds."""

    name: str
    least: int
    most: int


INDEX = Whole("row", 0, LARGEST_INDEX), Whole("column", 0, LARGEST_INDEX)
COUNT = Whole("count", 0, 2**24 - 1)  # exact in single precision


def tables(path: Path, source: Iterable[Line], form: str, **options: Any) -> Iterator[Any]:
    """Arrays of numbers, and the lines they come from. options: those of `numpy.loadtxt`.

    form: the expected contents of a line, for the message.
    """
    left = iter(source)
    while found := list(itertools.islice(left, LINES_TOGETHER)):
        places, raw = zip(*found, strict=True)
        given = iter(raw)
        try:
            table = np.loadtxt(given, comments=None, ndmin=2, **options)
        except ValueError as error:
            why = reason(error).split(" at row")[0]
            line = places[-1 - operator.length_hint(given)]  # the last line that NumPy read
            fail(path, f"the line does not read as `{form}` ({why}): correct it", error, line)
        yield table, np.array(places)


def whole_tables(
    path: Path, source: Iterable[Line], whole: Sequence[Whole], delimiter: str | None
) -> Iterator[Any]:
    """The same for lines of whole numbers, one for each column."""
    form = (delimiter or " ").join(column.name for column in whole)
    for table, places in tables(path, source, form, delimiter=delimiter):
        if table.shape[1] != len(whole):
            what = f"{table.shape[1]} number(s) do not read as `{form}`"
            fail(path, f"{what}: complete, correct or delete the line", line=int(places[0]))
        yield check_whole(path, table, places, whole), places


def check_whole(path: Path, table: Any, places: Any, whole: Sequence[Whole]) -> np.ndarray:
    """The table as integers, refused where one is not within its bounds."""
    _, least, most = (np.array(bounds) for bounds in zip(*whole, strict=True))
    bad = ~((table >= least) & (table <= most) & (table == np.floor(table)))  # nan is bad, too
    if bad.any():
        row, column = np.argwhere(bad)[0]
        name, smallest, largest = whole[column]
        what = f"the {name} {table[row, column]:.12g} is not a whole number"
        fail(path, f"{what} from {smallest} to {largest}: correct it", line=int(places[row]))
    return table.astype(np.int64)


def delimited(path: Path) -> tuple[Iterator[Line], str]:
    """The lines of a csv or tsv file, without blank ones and a header, and the delimiter."""
    source = _filled(enumerate(lines(path), 1))
    number, start = next(source, (0, b""))
    tab = Path(path.name.lower().removesuffix(".gz")).suffix == ".tsv"
    delimiter = "\t" if tab else ";" if b";" in start and b"," not in start else ","
    header = not any(map(_is_number, start.split(delimiter.encode())))
    return source if header else itertools.chain([(number, start)], source), delimiter


def _filled(source: Iterable[Line]) -> Iterator[Line]:
    return (line for line in source if not line[1].isspace())


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def csv(path: Path, whole: Sequence[Whole] = (*INDEX, COUNT)) -> Iterator[Part]:
    """Lines of `row,column,count` from 0."""
    source, delimiter = delimited(path)
    found = None
    for found, _ in whole_tables(path, source, whole, delimiter):
        yield Part(found)
    if found is None:
        form = ",".join(column.name for column in whole)
        fail(path, f"there are no entries: write lines of `{form}`")


def uci(path: Path) -> Iterator[Part]:
    """Lines D, W and NNZ, then `document word count` from 1."""
    source: Iterator[Line] = enumerate(lines(path), 1)
    sizes: list[int] = []
    for what in ("documents D", "words W", "entries NNZ"):
        number, line = next(source, (len(sizes) + 1, b""))
        if not (line := line.strip()).isdigit() or len(line) > 18:
            fail(path, f"the line must hold a number, that of {what}: restore it", line=number)
        sizes.append(int(line))
    num_rows, num_columns, announced = sizes
    check_shape(path, (num_rows, num_columns), announced)
    whole = Whole("document", 1, num_rows), Whole("word", 1, num_columns), COUNT
    yield Part(shape=(num_rows, num_columns))
    num_entries = 0
    for found, _ in whole_tables(path, _filled(source), whole, None):
        num_entries += len(found)
        yield Part(found - [1, 1, 0], (num_rows, num_columns))
    if num_entries != announced:
        what = f"the header announces {announced} entries but {num_entries} follow"
        fail(path, f"{what}: fetch the file again or correct the number", line=3)


def ldac(path: Path) -> Iterator[Part]:
    """A document a line: `M term:count ...`, terms from 0."""
    num_rows = 0

    def pairs() -> Iterator[Line]:
        nonlocal num_rows
        for number, line in enumerate(lines(path), 1):
            said, *found = line.split() or [b""]
            if not said:
                continue  # at the end of the file, or the next document is refused
            if number > num_rows + 1:
                fail(path, "a blank line comes before: write 0 for an empty document", line=number)
            if said != b"%d" % len(found):
                what = f"it begins with {said[:20].decode('ascii', 'backslashreplace')!r}"
                fix = f"but holds {len(found)} terms: write `M term:count term:count ...`"
                fail(path, f"{what} {fix}", line=number)
            num_rows = number
            yield from zip(itertools.repeat(number), found, strict=False)

    whole = Whole("term", 0, LARGEST_INDEX), COUNT
    for found, places in whole_tables(path, pairs(), whole, ":"):
        yield Part(np.insert(found, 0, places - 1, axis=1))
    if num_rows == 0:
        fail(path, "there are no documents: write lines of `M term:count term:count ...`")
    yield Part(shape=(num_rows, None))


def text(path: Path) -> Iterator[Part]:
    """UCI if the first three lines hold one positive number each (LDA-C cannot), else LDA-C."""
    heads = [line.strip() for line in itertools.islice(lines(path), 3)]
    numbers = len(heads) == 3 and all(head.isdigit() and head.strip(b"0") for head in heads)
    return uci(path) if numbers else ldac(path)
