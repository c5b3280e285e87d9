"""Counts from files: `read(path)` chooses the format by the file's name; for .txt by its lines.

`blocks(path)` reads the same files some rows at a time, and `names(path)` what lies beside them.

    .npz                      scipy.sparse.save_npz: csr, csc or coo
    .npy                      a two-dimensional array
    .mtx                      Matrix Market, coordinate or array
    .ldac .lda-c .dat .txt    LDA-C: a document a line, `M term:count ...`, terms from 0
    docword*.txt              UCI: lines D, W and NNZ, then `document word count`, from 1
    .csv .tsv                 `row,column,value` from 0, with or without a header line
    .parquet .arrow .feather  a list of columns and one of counts, or row, column and value
    <stem>.votes.csv          `bill,member,vote` from 0, votes 1 or 0: beside counts, or alone

Text may be gzipped. A vocabulary beside the file (`<stem>.vocab`, UCI's `vocab.<name>.txt`, or
`vocab.txt`), one word a line, becomes the column names, and `<stem>.rows` the row names. A csv
file is as large as its largest indices or the names beside it, an LDA-C file as wide: an entry of
0 in the last row or column holds a larger shape. Entries listed more than once are added up.
"""

import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.io
import scipy.sparse

from pp_models.data.formats import arrow, binary, numbers, opening
from pp_models.data.formats.numbers import Whole
from pp_models.data.formats.opening import LARGEST_INDEX, check_shape, existing, explained, fail
from pp_models.data.types import Data, count_matrix, counts, observed, with_votes
from pp_models.errors import InputError

BLOCK_CELLS = 1 << 21  # of a dense array, looked at together
ROWS_TOGETHER = 1 << 14
VOTES_SUFFIX = ".votes.csv"
KNOWN_SUFFIXES = (
    *(".npz", ".npy", ".mtx", ".ldac", ".lda-c", ".dat", ".txt", ".csv", ".tsv"),
    *arrow.SUFFIXES,
)
INDEX = Whole("row", 0, LARGEST_INDEX), Whole("column", 0, LARGEST_INDEX)
COUNT = Whole("count", 0, 2**24 - 1)  # whole numbers up to here are exact in single precision

_NOTHING = np.zeros((0, 3), np.int64), np.zeros(0, np.int64)

Shape = tuple[int | None, int | None]  # what a file says of it: None where it says nothing
Part = tuple[np.ndarray, np.ndarray, Shape]  # row, column, count; their lines; shape so far


class Names(NamedTuple):
    """The names that lie beside a file, or None."""

    columns: tuple[str, ...] | None
    rows: tuple[str, ...] | None


def read(path: str | Path) -> Data:
    """The counts in a file, with the names that lie beside it."""
    path = existing(path)
    with explained(path):
        form, beside = format_of(path), names(path)
        if form in _TRIPLES:
            parts = list(_TRIPLES[form](path))
            triples, stated = np.concatenate([part[0] for part in parts]), parts[-1][2]
            sizes = zip(stated, triples[:, :2].max(axis=0, initial=-1) + 1, strict=True)
            shape = tuple(int(size) if said is None else said for said, size in sizes)
            check_shape(path, shape, len(triples))
            matrix = _of_triples(triples, shape)
        else:
            matrix = scipy.sparse.vstack(list(_MATRICES[form](path)), format="csr")
            stated = matrix.shape
        shape = fitted_shape(path, matrix.shape, stated, beside)
        check_shape(path, shape, matrix.nnz)
        matrix.resize(shape)
        return counts(matrix, column_names=beside.columns, row_names=beside.rows)


def blocks(path: str | Path) -> Iterator[Any]:
    """The rows in order, some at a time, as CSR matrices of counts: what `read` gives.

    A matrix may have fewer columns than the file: the widest one, or the vocabulary, tells. Text
    is read as it goes and must be sorted by row; .npz and .mtx files are held in memory.
    """
    path = existing(path)
    with explained(path):
        form, beside, size = format_of(path), names(path), (0, 0)
        stated: Shape = (None, None)
        for matrix, said in _rows(path, form):
            size = size[0] + matrix.shape[0], max(size[1], matrix.shape[1])
            stated = said or size
            if matrix.shape[0]:
                yield count_matrix(matrix)
        shape = fitted_shape(path, size, stated, beside)
        for first in range(size[0], shape[0], ROWS_TOGETHER):  # rows that only the names tell of
            number = min(ROWS_TOGETHER, shape[0] - first)
            yield count_matrix(scipy.sparse.csr_array((number, max(size[1], 1)), dtype=np.int64))


def _rows(path: Path, form: str) -> Iterator[tuple[Any, Shape | None]]:
    """Blocks of whole rows, and what the file says of its shape."""
    if form not in _TRIPLES:
        for matrix in _MATRICES[form](path):
            for start in range(0, matrix.shape[0], ROWS_TOGETHER):
                yield matrix[start : start + ROWS_TOGETHER], None
        return
    (rest, places), first, num_entries = _NOTHING, 0, 0
    shape: Shape = (None, None)
    for found, lines, stated in itertools.chain(_TRIPLES[form](path), [(*_NOTHING, None)]):
        shape = shape if stated is None else stated
        rest, places = np.concatenate([rest, found]), np.concatenate([places, lines])
        rows, num_entries = rest[:, 0], num_entries + len(found)
        for i in np.flatnonzero(np.diff(rows) < 0)[:1]:
            what = f"row {rows[i + 1]} follows row {rows[i]}: sort the lines by row (sort -n), or"
            fail(path, f"{what} convert the file to .npz first", line=int(places[i + 1]))
        last = int(rows[-1]) if len(rows) else first  # may go on in the next part
        end = last + (len(rows) > 0) if shape[0] is None else shape[0]
        last = end if stated is None else last
        width = max(int(rest[:, 1].max(initial=0)) + 1, shape[1] or 0)
        check_shape(path, (end, width), num_entries)
        cut = int(np.searchsorted(rows, last))
        yield _of_triples(rest[:cut] - [first, 0, 0], (last - first, width)), shape
        first, rest, places = last, rest[cut:], places[cut:]


def _of_triples(triples: np.ndarray, shape: tuple[int, ...]) -> Any:
    rows, columns, values = triples.T
    return scipy.sparse.coo_array((values, (rows, columns)), shape=shape).tocsr()


def format_of(path: Path) -> str:
    """The format that a file's name tells: "uci" or the suffix."""
    name = path.name.lower().removesuffix(".gz")
    suffix, zipped = Path(name).suffix, name != path.name.lower()
    if is_votes(path):
        what = f"a name that ends in {VOTES_SUFFIX} is that of votes (kind text_and_votes)"
        raise InputError(f"{path}: {what}: choose that kind, or rename it.")
    if name.startswith("docword") and (suffix == ".txt" or suffix not in KNOWN_SUFFIXES):
        return "uci"
    if suffix not in KNOWN_SUFFIXES or (zipped and suffix in (".npz", ".npy", *arrow.SUFFIXES)):
        known = f"{', '.join(KNOWN_SUFFIXES)} (text also with .gz) or .h5ad"
        fail(path, f"the name ends in none of the known {known}: rename or convert the file")
    return suffix


# Formats ----------------------------------------------------------------------------------------


def _npz(path: Path) -> Iterator[Any]:
    entries = binary.load_sparse(path)
    check_shape(path, entries.shape, entries.nnz)
    yield entries.tocsr()


def _npy(path: Path) -> Iterator[Any]:
    array = binary.mapped_array(path)
    step = max(1, BLOCK_CELLS // max(array.shape[1], 1))
    for first in range(0, max(len(array), 1), step):
        yield scipy.sparse.csr_array(array[first : first + step].astype(np.float64))


def _market(path: Path) -> Iterator[Any]:
    with opening.open_text(path) as stream:
        raw = stream.read()
    problem = "not a complete Matrix Market file of counts ({}): write it again"
    with opening.parsed(path, problem):
        num_rows, num_columns, num_entries, form, _, _ = scipy.io.mminfo(io.BytesIO(raw))
        check_shape(path, (num_rows, num_columns), num_entries)
        if num_entries * (4 if form == "coordinate" else 1) > len(raw) + 4:
            raise ValueError(f"it announces {num_entries} entries in {len(raw)} bytes")
        matrix = scipy.io.mmread(io.BytesIO(raw))
    binary.check_numbers(path, matrix.dtype)
    yield scipy.sparse.csr_array(matrix)


def _csv(path: Path) -> Iterator[Part]:
    num_entries = 0
    with opening.open_text(path) as stream:
        source, delimiter = numbers.delimited(path, stream)
        for found, places in numbers.triples(path, source, (*INDEX, COUNT), delimiter=delimiter):
            num_entries += len(found)
            yield found, places, (None, None)
    if num_entries == 0:
        fail(path, "there are no entries: write lines of `row,column,value`")


def _uci(path: Path) -> Iterator[Part]:
    sizes: list[int] = []
    num_entries = 0
    with opening.open_text(path) as stream:
        source: Iterator[numbers.Line] = enumerate(opening.lines(path, stream), 1)
        for what in ("documents D", "words W", "entries NNZ"):
            number, line = next(source, (len(sizes) + 1, b""))
            if not (line := line.strip()).isdigit() or len(line) > 18:
                fail(path, f"the line must hold a number, that of {what}: restore it", line=number)
            sizes.append(int(line))
        whole = Whole("document", 1, sizes[0]), Whole("word", 1, sizes[1]), COUNT
        source = (line for line in source if not line[1].isspace())
        check_shape(path, (sizes[0], sizes[1]), sizes[2])
        yield *_NOTHING, (sizes[0], sizes[1])
        for found, places in numbers.triples(path, source, whole):
            num_entries += len(found)
            yield found - [1, 1, 0], places, (sizes[0], sizes[1])
    if num_entries != sizes[2]:
        what = f"the header announces {sizes[2]} entries but {num_entries} follow"
        fail(path, f"{what}: fetch the file again or correct the number", line=3)


def _ldac(path: Path) -> Iterator[Part]:
    num_rows = 0

    def pairs(source: Iterator[bytes]) -> Iterator[numbers.Line]:
        nonlocal num_rows
        for number, line in enumerate(source, 1):
            said, *found = line.split() or [b""]
            if not said:
                continue  # at the end of the file, or the next document will tell
            if number > num_rows + 1:
                fail(path, "a blank line comes before: write 0 for an empty document", line=number)
            if said != b"%d" % len(found):
                what = f"it begins with {said[:20].decode('ascii', 'backslashreplace')!r}"
                fix = f"but holds {len(found)} terms: write `M term:count term:count ...`"
                fail(path, f"{what} {fix}", line=number)
            num_rows = number
            yield from zip(itertools.repeat(number), found, strict=False)

    with opening.open_text(path) as stream:
        source = pairs(opening.lines(path, stream))
        whole = Whole("term", 0, LARGEST_INDEX), COUNT
        for table, places in numbers.tables(path, source, "term:count", delimiter=":"):
            if table.shape[1] != 2:
                fail(path, "a term has no count: write `term:count`", line=int(places[0]))
            found = numbers.check_whole(path, table, places, whole)
            yield np.insert(found, 0, places - 1, axis=1), places, (None, None)
    if num_rows == 0:
        fail(path, "there are no documents: write lines of `M term:count term:count ...`")
    yield *_NOTHING, (num_rows, None)


def _text(path: Path) -> Iterator[Part]:
    """UCI if the first three lines hold one positive number each (LDA-C cannot), else LDA-C."""
    with opening.open_text(path) as stream:
        heads = [line.strip() for line in itertools.islice(opening.lines(path, stream), 3)]
    uci = len(heads) == 3 and all(head.isdigit() and head.strip(b"0") for head in heads)
    return _uci(path) if uci else _ldac(path)


def _arrow(path: Path) -> Iterator[Part]:
    yield *_NOTHING, (None, None)
    for table, num_rows in arrow.tables(path):
        places = np.arange(1, len(table) + 1) if num_rows is None else table[:, 0].astype(int) + 1
        yield numbers.check_whole(path, table, places, (*INDEX, COUNT)), places, (num_rows, None)


_MATRICES: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".mtx": _market,
}
_TRIPLES: dict[str, Callable[[Path], Iterator[Part]]] = {
    **dict.fromkeys((".csv", ".tsv"), _csv),
    **dict.fromkeys((".ldac", ".lda-c", ".dat"), _ldac),
    **dict.fromkeys(arrow.SUFFIXES, _arrow),
    ".txt": _text,
    "uci": _uci,
}


# Votes ------------------------------------------------------------------------------------------


def votes_file(path: Path) -> Path:
    """Where the votes on the bills of a file of counts lie."""
    return path.with_name(_stem(path) + VOTES_SUFFIX)


def is_votes(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(VOTES_SUFFIX)


def read_text_and_votes(path: str | Path) -> Data:
    """Bills x words counts with the votes beside them in `<stem>.votes.csv`, or votes alone."""
    path = existing(path)
    alone = is_votes(path)
    text, file = (None, path) if alone else (read(path), votes_file(path))
    if not file.is_file():
        where = f"write them beside it as {file.name}, lines of `bill,member,vote`, votes 1 or 0"
        fail(path, f"the votes are missing: {where}")
    with explained(file):
        votes = _read_votes(file, None if text is None else text.num_rows)
        return with_votes(text, votes, names(path, own=True).rows if alone else None)


def _read_votes(path: Path, num_bills: int | None) -> Any:
    most = LARGEST_INDEX if num_bills is None else num_bills - 1
    whole = Whole("bill", 0, most), Whole("member", 0, LARGEST_INDEX), Whole("vote", 0, 1)
    with opening.open_text(path) as stream:
        source, delimiter = numbers.delimited(path, stream)
        parts = list(numbers.triples(path, source, whole, delimiter=delimiter))
    if not parts:
        fail(path, "there are no votes: write lines of `bill,member,vote`")
    triples = np.concatenate([part[0] for part in parts])
    unique, place = np.unique(triples[:, :2], axis=0, return_index=True)
    for again in np.setdiff1d(np.arange(len(triples)), place)[:1]:
        bill, member, _ = triples[again]
        line = int(np.concatenate([part[1] for part in parts])[again])
        fail(path, f"member {member} has voted on bill {bill} before: keep one vote", line=line)
    size = triples[:, :2].max(axis=0) + 1
    shape = int(size[0]) if num_bills is None else num_bills, int(size[1])
    check_shape(path, shape, len(triples))
    return observed(unique[:, 0], unique[:, 1], triples[place, 2], shape)


# Names beside the file --------------------------------------------------------------------------


def names(path: str | Path, own: bool = False) -> Names:
    """The names that lie beside a file. own: only those of this file, not `vocab.txt`."""
    places = name_files(Path(path), own)
    found = [next((f for f in files if f.is_file() and f != Path(path)), None) for files in places]
    return Names(*(None if file is None else read_names(file) for file in found))


def name_files(path: Path, own: bool = False) -> tuple[list[Path], list[Path]]:
    """Where the names of a file's columns may lie, the first taken, and those of its rows."""
    name = re.sub(r"\.gz$", "", path.name, flags=re.IGNORECASE)
    columns = [_stem(path) + ".vocab"] if own else [_stem(path) + ".vocab", "vocab.txt"]
    if name.lower().startswith("docword."):
        columns.insert(0, "vocab" + name[len("docword") :])
    return [path.with_name(file) for file in columns], [path.with_name(_stem(path) + ".rows")]


def _stem(path: Path) -> str:
    return Path(re.sub(r"\.gz$", "", path.name, flags=re.IGNORECASE)).stem


def read_names(file: Path) -> tuple[str, ...]:
    """One name a line, in UTF-8."""
    return parse_names(file, file.read_bytes())


def parse_names(file: Path, raw: bytes) -> tuple[str, ...]:
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        found = raw.decode("utf-8").split("\n")  # splitlines() also splits within a word
    except UnicodeDecodeError as error:
        problem = "the names are not UTF-8: save the file again in that encoding"
        fail(file, problem, error, 1 + raw.count(b"\n", 0, error.start))
    return tuple(name.removesuffix("\r") for name in (found[:-1] if found[-1] == "" else found))


def encode_names(found: Sequence[str]) -> bytes:
    """The bytes that `read_names` gives back as these names."""
    try:
        raw = "".join(f"{name}\n" for name in found).encode("utf-8")
        back = parse_names(Path(), raw)
    except UnicodeEncodeError as error:
        name = error.object[max(error.start - 10, 0) : error.end]
        raise InputError(f"The name {name!r} cannot be written as UTF-8: change it.") from error
    if back != tuple(found):
        wrong = next((one for one, got in zip(found, back, strict=False) if one != got), found[-1])
        fix = "remove line breaks and byte-order marks from names"
        raise InputError(f"The name {wrong!r} cannot stand on a line of its own: {fix}.")
    return raw


def fitted_shape(path: Path, shape: Any, stated: Shape, beside: Names) -> tuple[int, int]:
    """The shape with the rows and columns that only names tell of; other names are refused."""
    fitted, files = list(shape), name_files(path)
    for axis, (what, found) in enumerate((("rows", beside.rows), ("columns", beside.columns))):
        if found is None:
            continue
        if stated[axis] is None:
            fitted[axis] = max(shape[axis], len(found))
        if len(found) != fitted[axis]:
            file = next(file for file in files[1 - axis] if file.is_file())
            what = f"there are {shape[axis]} {what} but {file.name} beside it has {len(found)}"
            fail(path, f"{what} lines: give it one name a line, or move it away")
    return fitted[0], fitted[1]
