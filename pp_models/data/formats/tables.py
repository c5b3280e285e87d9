"""Tables with named columns in files: texts and ids of csv, tsv, Parquet and Arrow files.

The first line of a csv file names its columns, unless one of its fields is a number. Fields may be
quoted and hold line breaks. Rows are read as they are needed, not all at once.
"""

import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pp_models.data.formats import opening
from pp_models.data.formats.matrices import ARROW, arrow_batches
from pp_models.errors import InputError, unknown

TEXTS = (".csv", ".tsv")
ROWS_TOGETHER = 1 << 14


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What columns are called, as `plain` has it.
USERS = _words("user users userid username uid u customer customerid reader member")
ITEMS = _words(
    "item items itemid iid i movie movieid film book bookid product productid isbn title"
)
STARS = _words("rating ratings stars star score")
VALUES = STARS | _words("value values r count counts n freq frequency")
TIMES = _words("timestamp time date datetime unixtime ts at when")
ROWS = USERS | _words("row rows doc document docs documents docid documentid d bill")
COLUMNS = ITEMS | _words("column col word words term token wordid termid w")


class Head(NamedTuple):
    """How a text table begins: the names of its columns or None, and its first row and its line."""

    names: tuple[str, ...] | None
    first: tuple[str, ...]
    line: int
    delimiter: str


def is_table(path: Path) -> bool:
    """Whether the file's name is that of a table whose columns may hold texts."""
    name = path.name.lower()
    return name.removesuffix(".gz").endswith(TEXTS) or name.endswith(ARROW)


def head(path: Path) -> Head:
    """The first lines of a csv or tsv file."""
    delimiter = _delimiter(path)
    found = list(itertools.islice(_parsed(path, delimiter), 2))
    line, first = found[0] if found else (1, [])
    if any(map(is_number, first)):
        return Head(None, tuple(first), line, delimiter)
    names = tuple(name.strip() for name in first)
    line, second = found[1] if len(found) > 1 else (line + 1, [])
    return Head(names, tuple(second), line, delimiter)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def plain(name: str) -> str:
    """A column's name without case, marks and type: `User_ID:token` is `userid`."""
    return re.sub(r"[^a-z0-9]", "", name.lower().partition(":")[0])


def places_of(names: Sequence[str], *meant: frozenset[str]) -> tuple[int, ...] | None:
    """The one column that each set of names means, in their order; None if one is not there."""
    found = [[i for i, name in enumerate(names) if plain(name) in one] for one in meant]
    if any(len(one) != 1 for one in found):
        return None
    places = tuple(one[0] for one in found)
    return places if len(set(places)) == len(places) else None


def _delimiter(path: Path) -> str:
    if path.name.lower().removesuffix(".gz").endswith(".tsv"):
        return "\t"
    start = next((line for line in opening.lines(path) if line.strip()), b"")
    return ";" if b";" in start and b"," not in start else ","


def _parsed(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a text table as strings, each with the number of its last line."""
    csv.field_size_limit(max(csv.field_size_limit(), opening.LINE_BYTES))  # a long document
    place = 0

    def decoded() -> Iterator[str]:
        nonlocal place
        for place, line in enumerate(opening.lines(path), 1):
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                what = f"byte {line[error.start]:#04x} is not UTF-8"
                opening.fail(path, f"{what}: save the file again in that encoding", error, place)

    try:
        for row in csv.reader(decoded(), delimiter=delimiter, skipinitialspace=True, strict=True):
            if any(field.strip() for field in row):
                yield place, row
    except csv.Error as error:
        what = f"the line is no row of a table ({opening.reason(error)})"
        opening.fail(path, f"{what}: quote fields with commas, quotes or line breaks", error, place)


def rows(path: Path, places: Sequence[int], top: Head) -> Iterator[tuple[int, list[str]]]:
    """The chosen fields of each row below the names, with the number of its line."""
    width = len(top.names or top.first)
    skipped = 0 if top.names is None else 1
    for line, row in itertools.islice(_parsed(path, top.delimiter), skipped, None):
        if len(row) != width:
            what = f"there are {len(row)} fields, but {width} in the first line"
            opening.fail(path, f"{what}: quote texts that hold {top.delimiter!r}", line=line)
        yield line, [row[place].strip() for place in places]


# Texts --------------------------------------------------------------------------------------------


def texts(path: Path, column: str) -> Iterator[Any]:
    """The values of one column, by name, from the first row on."""
    if path.name.lower().endswith(ARROW):
        with opening.reading(path, "a complete table"):
            for batch in arrow_batches(path):
                if column not in batch.schema.names:
                    raise unknown(f"column of {path}", column, batch.schema.names)
                yield from batch.column(batch.schema.names.index(column)).to_pylist()
        return
    with opening.reading(path):
        top = head(path)
        if top.names is None:
            what = f"its first line must name the columns, but holds {', '.join(top.first)[:60]}"
            opening.fail(path, f"{what}: write the names there", line=1)
        if top.names.count(column) != 1:
            raise unknown(f"column of {path}", column, set(top.names))
        for _, (text,) in rows(path, [top.names.index(column)], top):
            yield text


def refuse_text(path: Path) -> None:
    """Refuse a table in which a column holds words where numbers are expected, with the fix."""
    try:
        top = head(path)
    except InputError:
        return  # the reader of numbers says what is wrong
    names, first = top.names, top.first
    if names is None or len(names) != len(first):
        return
    found = [i for i, field in enumerate(first) if field.strip() and not is_number(field)]
    if not found:
        return
    if entry_places(top) is not None:
        fix = "convert it to .npz first, which reads it at once"
        opening.fail(path, f"its ids are no row and column numbers: {fix}", line=top.line)
    text = max(found, key=lambda i: (plain(names[i]) == "text", len(first[i])))
    ids = [i for i, name in enumerate(names) if plain(name) in ("id", "docid", "name", "title")]
    more = f" --id-column {names[ids[0]]!r}" if ids and ids[0] != text else ""
    told = f"the column {names[text]!r} holds text, such as {first[text][:40]!r}, not numbers"
    fix = f"to count its words, add --text-column {names[text]!r}{more}"
    python = f"in Python, datasets.load(path, text_column={names[text]!r})"
    opening.fail(path, f"{told}: {fix} ({python})", line=top.line)


# Entries with ids ---------------------------------------------------------------------------------


class Entries(NamedTuple):
    """Ids of rows and of columns as strings, and the values."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


def entry_places(top: Head) -> tuple[int, ...] | None:
    """Where row, column and value are by name, if the ids of the first entry are no numbers."""
    places = None if top.names is None else places_of(top.names, ROWS, COLUMNS, VALUES)
    if places is None or max(places) >= len(top.first) or not is_number(top.first[places[2]]):
        return None
    return None if all(is_number(top.first[place]) for place in places[:2]) else places


def looks_rated(path: Path) -> bool:
    """Whether a text table calls its columns user, item and rating, or itself ratings."""
    if not path.name.lower().removesuffix(".gz").endswith(TEXTS):
        return False
    try:
        names = head(path).names or ()
    except InputError:
        return False
    return "rating" in plain(path.name) or places_of(names, USERS, ITEMS, STARS) is not None


def entries(path: Path, places: Sequence[int], top: Head, form: str) -> Entries:
    """Triples of two ids of any type and a number. form: of a line, for the message."""
    firsts: list[str] = []
    seconds: list[str] = []
    values: list[np.ndarray] = []
    left = rows(path, places, top)
    while found := list(itertools.islice(left, ROWS_TOGETHER)):
        lines, fields = zip(*found, strict=True)
        one, two, three = zip(*fields, strict=True)
        firsts += one
        seconds += two
        for line, field in zip(lines, fields, strict=True):
            if not (field[0] and field[1] and is_number(field[2])):
                what = f"`{','.join(field)[:80]}` does not read as `{form}`, two ids and a number"
                opening.fail(path, f"{what}: correct the line", line=line)
        values.append(np.array(three, np.float64))
    if not values:
        opening.fail(path, f"there are no entries in it: write lines of `{form}`")
    return Entries(np.array(firsts, object), np.array(seconds, object), np.concatenate(values))
