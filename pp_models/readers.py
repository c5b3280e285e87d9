"""Count matrices from files: `read(path)` chooses the format by the file's name and, for .txt, by its first lines.

`blocks(path)` reads the same files some rows at a time, in little memory, and `names(path)` what lies beside them.

    .npz                            scipy.sparse.save_npz: csr, csc or coo
    .npy                            a two-dimensional array
    .mtx                            Matrix Market, coordinate or array
    .ldac .lda-c .dat .txt          LDA-C: one document a line, `M term:count term:count ...`, terms counted from 0
    docword*.txt                    UCI: lines D, W and NNZ, then `document word count`, counted from 1
    .csv .tsv                       `row,column,value`, counted from 0, with or without a header line
    <stem>.votes.csv                `bill,member,vote`, counted from 0, votes 1 or 0: beside a file of counts, or alone (`read_text_and_votes`)

The text formats may be gzipped. A vocabulary beside the file (`<stem>.vocab`, UCI's `vocab.<name>.txt`, or `vocab.txt`), one word a line,
becomes the column names, and `<stem>.rows`, one name a line, the row names. A csv or tsv file is as large as its largest indices, or as the names
beside it, and an LDA-C file as wide: an entry of 0 in the last row or column holds a larger shape. Entries listed more than once are added up.
Whatever is wrong with a file becomes an `InputError` that says where.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import scipy.sparse

from pp_models import binary
from pp_models.data import Data, count_matrix, counts, observed, with_votes
from pp_models.errors import InputError
from pp_models.scanning import (
    LINE_BYTES,
    NUMBER,
    Numbers,
    check,
    check_counts,
    check_indices,
    check_range,
    check_shape,
    existing,
    explained,
    fail,
    gather,
    open_text,
    rows_of,
    scan_numbers,
    whole_number,
)

ROWS_TOGETHER = 1 << 20  # empty ones
VOTES_SUFFIX = ".votes.csv"


class Names(NamedTuple):
    """What lies beside a file: the names of its columns and of its rows, or None."""

    columns: tuple[str, ...] | None
    rows: tuple[str, ...] | None


class _Part(NamedTuple):
    """Some entries of a text, in the order in which they stand there.

    triples:  (entries, 3) row, column and count, rows and columns counted from 0
    lines:    (entries,) their line numbers
    num_rows: rows that are complete with this part, if the text is sorted by row; with the last part, all there are
    shape:    what the file says of its shape: None where it leaves the number of rows or columns open
    """

    triples: np.ndarray
    lines: np.ndarray
    num_rows: int
    shape: tuple[int | None, int | None]


def read(path: str | Path) -> Data:
    """The counts stored in a file, with the names that lie beside it."""
    path = existing(path)
    with explained(path):
        matrix, stated = _whole_matrix(path)
        beside = names(path)
        shape = fitted_shape(path, matrix.shape, stated, beside)
        check_shape(path, shape, matrix.nnz)
        matrix.resize(shape)
        return _of(path, lambda: counts(matrix, column_names=beside.columns, row_names=beside.rows))


def blocks(path: str | Path) -> Iterator[Any]:
    """The rows of a file in order, some at a time, as CSR matrices of counts; what `read` gives, in little memory.

    The matrices may have fewer columns than the file: the widest, or the vocabulary, tells how many there are. Triples must be sorted by row.
    Of .npz, csr matrices are read so; csc and coo ones, and symmetric or dense Matrix Market files, are read as a whole first.
    """
    path = existing(path)
    with explained(path):
        beside, size = names(path), (0, 0)
        stated: tuple[int | None, int | None] = (None, None)
        for matrix, said in _matrices(path):
            size, stated = (size[0] + matrix.shape[0], max(size[1], matrix.shape[1])), said
            if matrix.shape[0]:
                yield _of(path, functools.partial(count_matrix, matrix))
        shape = fitted_shape(path, size, stated, beside)
        for start in range(size[0], shape[0], ROWS_TOGETHER):  # rows that only the names tell of
            yield count_matrix(scipy.sparse.csr_array((min(ROWS_TOGETHER, shape[0] - start), max(size[1], 1)), dtype=np.int64))


def _of(path: Path, make: Callable[[], Any]) -> Any:
    """What only the finished matrix shows, such as an empty corpus, with the file's name."""
    try:
        return make()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def format_of(path: Path) -> str:
    """The format that a file's name tells: "uci" or the suffix."""
    name = path.name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    if is_votes(path):
        raise InputError(f"{path}: a name that ends in {VOTES_SUFFIX} is that of votes (kind text_and_votes): choose that kind, or rename it.")
    if name.startswith("docword") and (suffix == ".txt" or suffix not in KNOWN_SUFFIXES):
        return "uci"
    if suffix not in KNOWN_SUFFIXES or (name != path.name.lower() and suffix in (".npz", ".npy")):
        raise InputError(f"{path}: the name ends in none of the known {', '.join(KNOWN_SUFFIXES)} (text also with .gz): rename or convert the file.")
    return suffix


def _whole_matrix(path: Path) -> tuple[Any, tuple[int | None, int | None]]:
    """The matrix in any order of its entries, and what the file says of its shape."""
    suffix = format_of(path)
    if suffix in _BINARY:
        matrix = _BINARY[suffix](path)
        return matrix, matrix.shape
    parts = list(_TEXT[suffix](path))
    triples, stated = gather([part.triples for part in parts], 3), parts[-1].shape
    num_columns = int(triples[:, 1].max(initial=-1)) + 1 if stated[1] is None else stated[1]
    return _from_triples(path, triples, (parts[-1].num_rows, num_columns)), stated


def _matrices(path: Path) -> Iterator[tuple[Any, tuple[int | None, int | None]]]:
    """Blocks of consecutive rows, each with what the file says of its shape."""
    suffix = format_of(path)
    if suffix == ".npz":
        yield from binary.npz_blocks(path)
    elif suffix == ".npy":
        yield from binary.npy_blocks(path)
    else:
        yield from _in_rows(path, _TEXT[suffix](path))


def _in_rows(path: Path, parts: Iterator[_Part]) -> Iterator[tuple[Any, tuple[int | None, int | None]]]:
    """Whole rows from entries that are sorted by row."""
    rest, first, before, num_entries = np.zeros((0, 3), np.int64), 0, 0, 0
    for triples, lines, num_rows, stated in parts:
        rows = triples[:, 0]
        previous = np.concatenate([[before], rows[:-1]])[: len(rows)]
        problem = "row {} follows row {}: sort the lines by row (sort -n), or convert the file to .npz first, which reads it as a whole"
        check(path, rows < previous, lines, problem, rows, previous)
        before, num_entries = int(rows[-1]) if len(rows) else before, num_entries + len(rows)
        check_shape(path, (max(num_rows, before + 1), max(int(triples[:, 1].max(initial=0)) + 1, stated[1] or 0)), num_entries)
        triples = np.concatenate([rest, triples])
        cut = int(np.searchsorted(triples[:, 0], num_rows))
        done, rest = triples[:cut], triples[cut:]
        num_columns = max(int(done[:, 1].max(initial=0)) + 1, stated[1] or 0)
        yield scipy.sparse.coo_array((done[:, 2], (done[:, 0] - first, done[:, 1])), shape=(num_rows - first, num_columns)).tocsr(), stated
        first = num_rows


def _from_triples(path: Path, triples: np.ndarray, shape: tuple[int, ...]) -> Any:
    check_shape(path, shape, len(triples))
    return scipy.sparse.coo_array((triples[:, 2], (triples[:, 0], triples[:, 1])), shape=shape).tocsr()


# The text formats ---------------------------------------------------------------------------------------------------------------


def _csv_parts(path: Path) -> Iterator[_Part]:
    name = path.name.lower().removesuffix(".gz")
    delimiters = b"\t" if name.endswith(".tsv") else b",;"
    pattern = "row<tab>column<tab>value" if name.endswith(".tsv") else "row,column,value"
    num_rows = 0
    with open_text(path) as stream:
        for triples, lines in _delimited(path, stream, delimiters, pattern):
            check_counts(path, triples[:, 2], lines)
            num_rows = max(num_rows, int(triples[:, 0].max(initial=-1)) + 1)
            yield _Part(triples, lines, max(num_rows - 1, 0), (None, None))
    if num_rows == 0:
        fail(path, f"there are no entries: write lines of `{pattern}`")
    yield _Part(*_NOTHING, num_rows, (None, None))


def _delimited(path: Path, stream: BinaryIO, delimiters: bytes, pattern: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of lines of three numbers, the first two of them indices, with their line numbers; a first line without numbers is a header."""
    start = stream.readline(LINE_BYTES)
    fields = [field.strip() for field in re.split(rb"[" + delimiters + rb"]", start)]
    header = len(fields) == 3 and all(fields) and not any(NUMBER.fullmatch(field) for field in fields)
    for block in scan_numbers(path, stream, delimiters, b"" if header else start, 1 + header):
        triples, lines = rows_of(path, block, 3, pattern, delimited=True)
        check_indices(path, triples[:, :2].max(axis=1, initial=0), lines)
        yield triples, lines


def _uci_parts(path: Path) -> Iterator[_Part]:
    header, found, last = [], 0, 0
    with open_text(path) as stream:
        for line, what in enumerate(("documents D", "words W", "entries NNZ"), start=1):
            tokens = stream.readline(LINE_BYTES).split()
            if len(tokens) != 1:
                fail(path, f"the line must hold one number, that of {what}: restore the three header lines D, W and NNZ", line)
            header.append(whole_number(path, line, tokens[0]))
        shape, num_entries = (header[0], header[1]), header[2]
        for block in scan_numbers(path, stream, first=4):
            triples, lines = rows_of(path, block, 3, "document word count")
            check_range(path, triples, lines, shape)
            check_counts(path, triples[:, 2], lines)
            found, last = found + len(triples), max(last, int(triples[:, 0].max(initial=1)) - 1)
            yield _Part(triples - [1, 1, 0], lines, last, shape)
    if found != num_entries:
        fail(path, f"the header announces {num_entries} entries but {found} follow: fetch the file again or correct the number", 3)
    yield _Part(*_NOTHING, shape[0], shape)


def _text_parts(path: Path) -> Iterator[_Part]:
    """UCI if the first three lines hold one positive number each (LDA-C cannot), else LDA-C."""
    with open_text(path) as stream:
        heads = [stream.readline(LINE_BYTES).split() for _ in range(3)]
    uci = all(len(head) == 1 and head[0].isdigit() and int(head[0][:20]) > 0 for head in heads)
    yield from _uci_parts(path) if uci else _ldac_parts(path)


def _ldac_parts(path: Path) -> Iterator[_Part]:
    num_rows = 0
    with open_text(path) as stream:
        for block in scan_numbers(path, stream, b":"):
            filled = np.flatnonzero((block.per_line > 0) | (block.marks_per_line > 0))  # blank lines at the end of the file are harmless
            expected = num_rows + 1 + np.arange(len(filled))
            check(path, block.first + filled != expected, expected, "a blank line stands between documents: write 0 for an empty document")
            _check_documents(path, block, len(filled))
            is_term = block.place % 2 == 1
            term, value = block.values[is_term], block.values[~is_term & (block.place > 0)]
            row = num_rows + block.line[is_term]
            check_counts(path, value, row + 1)
            check_indices(path, term, row + 1)
            num_rows += len(filled)
            yield _Part(np.stack([row, term, value], axis=1), row + 1, num_rows, (num_rows, None))
    if num_rows == 0:
        fail(path, "there are no documents: write lines of `M term:count term:count ...`")


def _check_documents(path: Path, block: Numbers, num_lines: int) -> None:
    """Each line holds M and M pairs `term:count`."""
    announced, pairs = np.zeros(num_lines, np.int64), block.marks_per_line[:num_lines]
    announced[block.line[block.place == 0]] = block.values[block.place == 0]
    broken = block.per_line[:num_lines] != 1 + 2 * pairs
    broken[block.line[block.marks != block.place // 2]] = True
    lines = block.first + np.arange(num_lines)
    check(path, broken, lines, "the line does not read as `M term:count term:count ...` (LDA-C): correct it")
    check(
        path, announced != pairs, lines, "the line announces {} terms but holds {}: it is cut short or begins wrongly, restore it", announced, pairs
    )


_MARKET_BANNER = (
    (b"%%matrixmarket",),
    (b"matrix",),
    (b"coordinate", b"array"),
    (b"integer", b"unsigned-integer", b"real", b"double", b"pattern"),
    (b"general", b"symmetric"),
)


def _market_parts(path: Path) -> Iterator[_Part]:
    with open_text(path) as stream:
        banner, line = stream.readline(LINE_BYTES).lower().split(), 2
        if len(banner) != 5 or any(word not in known for word, known in zip(banner, _MARKET_BANNER, strict=True)):
            fail(path, "not a Matrix Market file of counts: it must start with `%%MatrixMarket matrix coordinate integer general` or the like", 1)
        layout, field, symmetric = banner[2], banner[3], banner[4] == b"symmetric"
        while (size := stream.readline(LINE_BYTES)).startswith(b"%") or size.isspace():
            line += 1
        numbers = [whole_number(path, line, token) for token in size.split()]
        if len(numbers) != (3 if layout == b"coordinate" else 2) or (layout == b"array" and field == b"pattern"):
            fail(path, "the line must hold the numbers of rows and columns and, in coordinate files, of entries: restore it", line)
        shape = (numbers[0], numbers[1])
        if symmetric and shape[0] != shape[1]:
            fail(path, f"a symmetric matrix cannot have {shape[0]} rows and {shape[1]} columns: correct the size", line)
        if layout == b"array":
            yield _market_array(path, stream, line + 1, shape, symmetric)
            return
        parts = _market_coordinates(path, stream, line + 1, shape, numbers[2], field == b"pattern")
        yield from [_mirrored(list(parts))] if symmetric else parts


def _market_coordinates(path: Path, stream: BinaryIO, first: int, shape: tuple[int, int], num_entries: int, pattern: bool) -> Iterator[_Part]:
    found, last = 0, 0
    for block in scan_numbers(path, stream, first=first):
        triples, lines = rows_of(path, block, 2 if pattern else 3, "row column" if pattern else "row column value")
        if pattern:
            triples = np.insert(triples, 2, 1, axis=1)
        check_range(path, triples, lines, shape)
        check_counts(path, triples[:, 2], lines)
        found, last = found + len(triples), max(last, int(triples[:, 0].max(initial=1)) - 1)
        yield _Part(triples - [1, 1, 0], lines, last, shape)
    if found != num_entries:
        fail(path, f"the size line announces {num_entries} entries but {found} follow: write the file again or correct the number", first - 1)
    yield _Part(*_NOTHING, shape[0], shape)


def _by_row(triples: np.ndarray, shape: tuple[int, int]) -> _Part:
    """All entries of a matrix that was not written row by row."""
    triples = triples[np.argsort(triples[:, 0], kind="stable")]
    return _Part(triples, np.zeros(len(triples), np.int64), shape[0], shape)


def _mirrored(parts: list[_Part]) -> _Part:
    """A symmetric matrix from what is on and below its diagonal."""
    triples, shape = gather([part.triples for part in parts], 3), parts[-1].shape
    return _by_row(np.concatenate([triples, triples[triples[:, 0] != triples[:, 1]][:, [1, 0, 2]]]), cast(tuple[int, int], shape))


def _market_array(path: Path, stream: BinaryIO, first: int, shape: tuple[int, int], symmetric: bool) -> _Part:
    """Column after column; of a symmetric matrix only what is on and below the diagonal."""
    parts = []
    for block in scan_numbers(path, stream, first=first):
        values, lines = rows_of(path, block, 1, "value")
        check_counts(path, values[:, 0], lines)
        parts.append(values)
    values = gather(parts, 1)[:, 0]
    expected = shape[0] * (shape[0] + 1) // 2 if symmetric else shape[0] * shape[1]
    if len(values) != expected:
        fail(path, f"the size line announces {expected} values but {len(values)} follow: write the file again or correct the size", first - 1)
    check_shape(path, shape, len(values))
    if not symmetric:
        columns, rows = np.divmod(np.arange(len(values)), max(shape[0], 1))
    else:
        columns, rows = np.triu_indices(shape[0])
    part = _by_row(np.stack([rows, columns, values], axis=1), shape)
    return _mirrored([part]) if symmetric else part


# Votes --------------------------------------------------------------------------------------------------------------------------


def votes_file(path: Path) -> Path:
    """Where the votes on the bills of a file of counts lie."""
    return path.with_name(_stem(path) + VOTES_SUFFIX)


def is_votes(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(VOTES_SUFFIX)


def read_text_and_votes(path: str | Path) -> Data:
    """Counts of bills x words with the votes beside them: lines of `bill,member,vote` in `<stem>.votes.csv`, or such votes alone."""
    path = existing(path)
    if is_votes(path):
        with explained(path):
            votes, rows = _read_votes(path, None), names(path, own=True).rows
            return _of(path, lambda: with_votes(None, votes, rows))
    text, file = read(path), votes_file(path)
    if not file.is_file():
        fail(path, f"the votes are missing: write them beside it as {file.name}, lines of `bill,member,vote`, votes 1 or 0")
    with explained(file):
        votes = _read_votes(file, text.num_rows)
        return _of(file, lambda: with_votes(text, votes))


def _read_votes(path: Path, num_bills: int | None) -> Any:
    parts, places = [], []
    with open_text(path) as stream:
        for triples, lines in _delimited(path, stream, b",;", "bill,member,vote"):
            check(
                path, triples[:, 2] > 1, lines, "the vote {} is neither 1 (yea) nor 0 (nay): correct it, and leave missing votes out", triples[:, 2]
            )
            if num_bills is not None:
                problem = f"bill {{}} is outside 0 to {num_bills - 1}, the bills of the text: correct it, or add the text"
                check(path, triples[:, 0] >= num_bills, lines, problem, triples[:, 0])
            parts.append(triples)
            places.append(lines)
    triples = gather(parts, 3)
    if len(triples) == 0:
        fail(path, "there are no votes: write lines of `bill,member,vote`")
    order = np.lexsort((triples[:, 1], triples[:, 0]))
    triples, lines = triples[order], np.concatenate(places)[order]
    again = np.concatenate([[False], np.all(triples[1:, :2] == triples[:-1, :2], axis=1)])
    check(path, again, lines, "member {} has voted on bill {} before: keep one of the votes", triples[:, 1], triples[:, 0])
    shape = int(triples[:, 0].max()) + 1 if num_bills is None else num_bills, int(triples[:, 1].max()) + 1
    check_shape(path, shape, len(triples))
    return observed(triples[:, 0], triples[:, 1], triples[:, 2], shape)


# Names beside the file ----------------------------------------------------------------------------------------------------------


def names(path: str | Path, own: bool = False) -> Names:
    """The names that lie beside a file. own: those in files of its own only, not in `vocab.txt`."""
    columns, rows = (next((file for file in files if file.is_file() and file != Path(path)), None) for files in name_files(Path(path), own))
    return Names(None if columns is None else read_names(columns), None if rows is None else read_names(rows))


def name_files(path: Path, own: bool = False) -> tuple[list[Path], list[Path]]:
    """Where the names of a file's columns may lie, the first that is there being taken, and those of its rows."""
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
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        fail(file, "the names are not UTF-8: save the file again in that encoding", 1 + raw.count(b"\n", 0, error.start))
    lines = text.split("\n")  # not splitlines(), which also splits at rarer separators that may occur within a word
    return tuple(line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines))


def encode_names(found: Sequence[str]) -> bytes:
    """The bytes that `read_names` gives back as these names."""
    try:
        raw = "".join(f"{name}\n" for name in found).encode("utf-8")
        back = parse_names(Path(), raw)
    except UnicodeEncodeError as error:
        raise InputError(f"The name {error.object[max(error.start - 10, 0) : error.end]!r} cannot be written as UTF-8: change it.") from error
    if back != tuple(found):
        wrong = next((name for name, read in zip(found, back, strict=False) if name != read), found[-1])
        raise InputError(f"The name {wrong!r} cannot stand on a line of its own: remove line breaks and byte-order marks from names.")
    return raw


def fitted_shape(path: Path, shape: tuple[int, int], stated: tuple[int | None, int | None], beside: Names) -> tuple[int, int]:
    """The shape with the rows and columns that only the names tell of; names that do not fit are refused."""
    fitted, files = list(shape), name_files(path)
    for axis, (what, found) in enumerate((("rows", beside.rows), ("columns", beside.columns))):
        if found is None:
            continue
        if stated[axis] is None:
            fitted[axis] = max(shape[axis], len(found))
        if len(found) != fitted[axis]:
            file = next(file for file in files[1 - axis] if file.is_file())
            fail(path, f"there are {shape[axis]} {what} but {file.name} beside it has {len(found)} lines: give it one name a line, or move it away")
    return fitted[0], fitted[1]


_NOTHING = np.zeros((0, 3), np.int64), np.zeros(0, np.int64)
_BINARY: dict[str, Callable[[Path], Any]] = {".npz": binary.read_npz, ".npy": binary.read_npy}
_TEXT: dict[str, Callable[[Path], Iterator[_Part]]] = {
    ".mtx": _market_parts,
    ".ldac": _ldac_parts,
    ".lda-c": _ldac_parts,
    ".dat": _ldac_parts,
    ".txt": _text_parts,
    ".csv": _csv_parts,
    ".tsv": _csv_parts,
    "uci": _uci_parts,
}
KNOWN_SUFFIXES = (".npz", ".npy", ".mtx", ".ldac", ".lda-c", ".dat", ".txt", ".csv", ".tsv")
