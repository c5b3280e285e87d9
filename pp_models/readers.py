"""Count matrices from files: `read(path)` chooses the format by the file's name and, for .txt, by its first lines.

    .npz                            scipy.sparse.save_npz: csr, csc or coo
    .npy                            a two-dimensional array
    .mtx                            Matrix Market, coordinate or array
    .ldac .lda-c .dat .txt          LDA-C: one document a line, `M term:count term:count ...`, terms counted from 0
    docword*.txt                    UCI: lines D, W and NNZ, then `document word count`, counted from 1
    .csv .tsv                       `row,column,value`, counted from 0, with or without a header line

The text formats may be gzipped. A vocabulary beside the file (`<stem>.vocab`, UCI's `vocab.<name>.txt`, or `vocab.txt`), one word a line,
becomes the column names. Entries listed more than once are added up. Whatever is wrong with a file becomes an `InputError` that says where.

Text is read in blocks of whole lines, and a block's numbers are found and converted together by array operations.
"""

import contextlib
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

import numpy as np
import scipy.sparse

from pp_models.data import Data, counts
from pp_models.errors import InputError

BLOCK_BYTES = 1 << 23
LINE_BYTES = 1 << 26  # a longer line is not a text format's
LARGEST_COUNT = 2**24 - 1  # whole numbers up to here are exact in single precision
LARGEST_INDEX = 2**31 - 2  # columns are stored as 32-bit integers

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_TOKEN, _SPACE, _NEWLINE, _DELIMITER = range(4)


class _Table(NamedTuple):
    """What a file holds. `growing`: the file does not say how many columns there are, so a vocabulary may add some."""

    matrix: Any
    growing: bool = False


def read(path: str | Path) -> Data:
    """The counts stored in a file, with its vocabulary if one lies beside it."""
    path = _existing(path)
    try:
        matrix, names = _with_vocabulary(path, _format(path)(path))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the compressed file is cut short or damaged: fetch or write it again.") from error
    except OSError as error:
        raise InputError(f"{path}: the file cannot be read ({error.strerror or error}): check its permissions and the disk.") from error
    except MemoryError as error:
        raise InputError(f"{path}: the matrix does not fit into memory: split the file into parts.") from error
    try:
        return counts(matrix, column_names=names)
    except InputError as error:  # what only the whole matrix shows, such as an empty corpus
        raise InputError(f"{path}: {error}") from error


def _existing(path: str | Path) -> Path:
    try:
        found = Path(path).expanduser()
        if found.is_file():
            return found
        folder, exists = found.is_dir(), found.exists()
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, with a null byte, in an unknown user's home
        raise InputError(f"{str(path)!r} is not a usable path ({error}): check it.") from error
    if folder:
        raise InputError(f"{path} is a folder: name one file in it.")
    raise InputError(f"{path} is not a regular file: copy its contents to one." if exists else f"{path} does not exist: check the path.")


def _format(path: Path) -> Callable[[Path], _Table]:
    name = path.name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    if name.startswith("docword") and (suffix == ".txt" or suffix not in _BY_SUFFIX):
        return _read_uci
    if suffix not in _BY_SUFFIX or (name != path.name.lower() and suffix in (".npz", ".npy")):
        raise InputError(f"{path}: the name ends in none of the known {', '.join(KNOWN_SUFFIXES)} (text also with .gz): rename or convert the file.")
    return _BY_SUFFIX[suffix]


def _fail(path: Path, problem: str, line: int | None = None) -> NoReturn:
    raise InputError(f"{path}: {problem}." if line is None else f"{path}, line {line}: {problem}.")


# Text: blocks of lines, and the whole numbers on them ---------------------------------------------------------------------------


class _Numbers(NamedTuple):
    """The whole numbers on some consecutive lines."""

    values: np.ndarray  # (numbers,)
    line: np.ndarray  # (numbers,) line of each, counted from the first line of the block
    place: np.ndarray  # (numbers,) position of each within its line
    marks: np.ndarray  # (numbers,) delimiters before it within its line
    per_line: np.ndarray  # (lines,) numbers
    marks_per_line: np.ndarray  # (lines,) delimiters
    first: int  # line number, in the file, of the first line


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, uncompressed, without a byte-order mark."""
    with path.open("rb") as file:
        zipped = file.peek(2)[:2] == b"\x1f\x8b"
        if path.name.lower().endswith(".gz") and not zipped:
            _fail(path, "the name ends in .gz but the contents are not gzip: remove .gz from the name or fetch the file again")
        with gzip.GzipFile(fileobj=file) if zipped else file as stream:
            mark = stream.peek(3)[:3]
            if mark[:2] in (b"\xff\xfe", b"\xfe\xff"):
                _fail(path, "the text is UTF-16: save it again as UTF-8", 1)
            if mark == b"\xef\xbb\xbf":
                stream.read(3)
            yield cast(BinaryIO, stream)


def _blocks(path: Path, stream: BinaryIO, start: bytes = b"", first: int = 1) -> Iterator[tuple[int, bytes]]:
    """(line number, whole lines) until the end of the stream. `start`: what was read already of it."""
    rest = start
    while chunk := stream.read(BLOCK_BYTES):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            text = rest + chunk[:cut]
            yield first, text
            first, rest = first + text.count(b"\n"), chunk[cut:]
        else:
            rest += chunk
        if len(rest) > LINE_BYTES:
            _fail(path, f"the line is longer than {LINE_BYTES >> 20} MB: this is not a text file of counts", first + rest.count(b"\n"))
    if rest:
        yield first, rest if rest.endswith(b"\n") else rest + b"\n"


def _numbers(path: Path, stream: BinaryIO, delimiters: bytes = b"", start: bytes = b"", first: int = 1) -> Iterator[_Numbers]:
    kinds = np.full(256, _TOKEN, np.uint8)
    kinds[list(b" \t\r")] = _SPACE
    kinds[list(delimiters)] = _DELIMITER
    kinds[ord("\n")] = _NEWLINE
    for line, text in _blocks(path, stream, start, first):
        yield _scan(path, line, text, kinds)


def _scan(path: Path, first: int, text: bytes, kinds: np.ndarray) -> _Numbers:
    raw = np.frombuffer(text, np.uint8)
    kind = kinds[raw]
    inside = (kind == _TOKEN).view(np.int8)
    edges = np.diff(inside, prepend=np.int8(0), append=np.int8(0))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    breaks, delimiters = np.flatnonzero(kind == _NEWLINE), np.flatnonzero(kind == _DELIMITER)
    line = np.searchsorted(breaks, starts)
    per_line = np.bincount(line, minlength=len(breaks))
    marks_per_line = np.bincount(np.searchsorted(breaks, delimiters), minlength=len(breaks))
    place = np.arange(len(starts)) - (np.cumsum(per_line) - per_line)[line]
    marks = np.searchsorted(delimiters, starts) - (np.cumsum(marks_per_line) - marks_per_line)[line]

    widths = ends - starts
    values = np.zeros(len(starts), np.int64)
    for digit in range(min(int(widths.max(initial=0)), 15)):
        some = np.flatnonzero(widths > digit)
        values[some] = 10 * values[some] + (raw[starts[some] + digit] - ord("0"))
    other = np.flatnonzero(inside.astype(bool) & ((raw < ord("0")) | (raw > ord("9"))))
    written_otherwise = np.searchsorted(starts, other, side="right") - 1  # signs, points, exponents, and what is no number at all
    for token in np.union1d(written_otherwise, np.flatnonzero(widths > 15)):
        values[token] = _whole(path, first + int(line[token]), text[starts[token] : ends[token]])
    return _Numbers(values, line, place, marks, per_line, marks_per_line, first)


def _whole(path: Path, line: int, token: bytes) -> int:
    shown = repr(token[:30].decode("ascii", "backslashreplace"))
    if not _NUMBER.fullmatch(token):
        _fail(path, f"{shown} is not a number: counts and indices are written as whole numbers", line)
    number = float(token)
    if number < 0:
        _fail(path, f"{shown} is negative: counts and indices must be 0 or more", line)
    if not number.is_integer():
        _fail(path, f"{shown} is not a whole number: store raw counts, and leave out missing ones", line)
    return int(min(number, 2.0**53))  # far above what any count or index may be


def _check(path: Path, bad: np.ndarray, lines: np.ndarray, problem: str, *shown: np.ndarray) -> None:
    """Fail at the first place that is bad. `lines`: the line number of each place; `shown`: what to put into the message's braces."""
    if bad.any():
        first = int(np.argmax(bad))
        _fail(path, problem.format(*(values[first] for values in shown)), int(lines[first]))


def _check_counts(path: Path, values: np.ndarray, lines: np.ndarray) -> None:
    _check(path, values > LARGEST_COUNT, lines, f"the count {{}} is above {LARGEST_COUNT}, the largest that can be used: rescale it", values)


def _check_indices(path: Path, index: np.ndarray, lines: np.ndarray) -> None:
    _check(path, index > LARGEST_INDEX, lines, "the index {} is too large: number rows and columns consecutively from 0", index)


def _check_range(path: Path, triples: np.ndarray, lines: np.ndarray, shape: tuple[int, ...]) -> None:
    """Indices counted from 1 must lie within the shape in the header."""
    for axis, (what, size) in enumerate(zip(("row", "column"), shape, strict=True)):
        index = triples[:, axis]
        _check(path, (index < 1) | (index > size), lines, f"{what} {{}} is outside 1 to {size}: correct the index or the header", index)


def _rows_of(path: Path, block: _Numbers, width: int, pattern: str, delimited: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(lines, width) numbers of a block whose lines hold `width` numbers each or are blank, and their line numbers in the file."""
    blank = (block.per_line == 0) & (block.marks_per_line == 0)
    bad = ~blank & ((block.per_line != width) | (block.marks_per_line != delimited * (width - 1)))
    if delimited:
        bad[block.line[block.marks != block.place]] = True
    lines = block.first + np.arange(len(bad))
    _check(path, bad, lines, f"{{}} number(s) do not read as `{pattern}`: complete, correct or delete the line", block.per_line)
    return block.values.reshape(-1, width), lines[~blank]


def _gather(parts: list[np.ndarray], width: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, width), np.int64)


def _check_shape(path: Path, shape: tuple[int, ...], num_entries: int) -> None:
    """One wrong index must not ask for a matrix of billions of rows."""
    for size, what in zip(shape, ("rows", "columns"), strict=True):
        if size > LARGEST_INDEX + 1 or size > 10_000_000 + 1000 * num_entries:
            _fail(path, f"{size} {what} for {num_entries} entries are too many: number the {what} consecutively instead of by identifiers")


def _from_triples(path: Path, triples: np.ndarray, shape: tuple[int, ...]) -> Any:
    _check_shape(path, shape, len(triples))
    return scipy.sparse.coo_array((triples[:, 2], (triples[:, 0], triples[:, 1])), shape=shape).tocsr()


# The text formats ---------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> _Table:
    name = path.name.lower().removesuffix(".gz")
    delimiters = b"\t" if name.endswith(".tsv") else b",;"
    pattern = "row<tab>column<tab>value" if name.endswith(".tsv") else "row,column,value"
    parts = []
    with _open(path) as stream:
        start = stream.readline(LINE_BYTES)
        fields = [field.strip() for field in re.split(rb"[" + delimiters + rb"]", start)]
        header = len(fields) == 3 and all(fields) and not any(_NUMBER.fullmatch(field) for field in fields)
        for block in _numbers(path, stream, delimiters, b"" if header else start, 1 + header):
            triples, lines = _rows_of(path, block, 3, pattern, delimited=True)
            _check_counts(path, triples[:, 2], lines)
            _check_indices(path, triples[:, :2].max(axis=1, initial=0), lines)
            parts.append(triples)
    triples = _gather(parts, 3)
    if len(triples) == 0:
        _fail(path, f"there are no entries: write lines of `{pattern}`")
    shape = tuple(int(size) + 1 for size in triples[:, :2].max(axis=0))
    return _Table(_from_triples(path, triples, shape), growing=True)


def _read_uci(path: Path) -> _Table:
    header, parts = [], []
    with _open(path) as stream:
        for line, what in enumerate(("documents D", "words W", "entries NNZ"), start=1):
            tokens = stream.readline(LINE_BYTES).split()
            if len(tokens) != 1:
                _fail(path, f"the line must hold one number, that of {what}: restore the three header lines D, W and NNZ", line)
            header.append(_whole(path, line, tokens[0]))
        num_rows, num_columns, num_entries = header
        for block in _numbers(path, stream, first=4):
            triples, lines = _rows_of(path, block, 3, "document word count")
            _check_range(path, triples, lines, (num_rows, num_columns))
            _check_counts(path, triples[:, 2], lines)
            parts.append(triples)
    triples = _gather(parts, 3)
    if len(triples) != num_entries:
        _fail(path, f"the header announces {num_entries} entries but {len(triples)} follow: fetch the file again or correct the number", 3)
    return _Table(_from_triples(path, triples - [1, 1, 0], (num_rows, num_columns)))


def _read_text(path: Path) -> _Table:
    """UCI if the first three lines hold one positive number each (LDA-C cannot), else LDA-C."""
    with _open(path) as stream:
        heads = [stream.readline(LINE_BYTES).split() for _ in range(3)]
    uci = all(len(head) == 1 and head[0].isdigit() and int(head[0][:20]) > 0 for head in heads)
    return _read_uci(path) if uci else _read_ldac(path)


def _read_ldac(path: Path) -> _Table:
    parts, num_rows = [], 0
    with _open(path) as stream:
        for block in _numbers(path, stream, b":"):
            filled = np.flatnonzero((block.per_line > 0) | (block.marks_per_line > 0))  # blank lines at the end of the file are harmless
            expected = num_rows + 1 + np.arange(len(filled))
            _check(path, block.first + filled != expected, expected, "a blank line stands between documents: write 0 for an empty document")
            _check_documents(path, block, len(filled))
            is_term = block.place % 2 == 1
            term, value = block.values[is_term], block.values[~is_term & (block.place > 0)]
            row = num_rows + block.line[is_term]
            _check_counts(path, value, row + 1)
            _check_indices(path, term, row + 1)
            parts.append(np.stack([row, term, value], axis=1))
            num_rows += len(filled)
    if num_rows == 0:
        _fail(path, "there are no documents: write lines of `M term:count term:count ...`")
    triples = np.concatenate(parts)
    return _Table(_from_triples(path, triples, (num_rows, int(triples[:, 1].max(initial=-1)) + 1)), growing=True)


def _check_documents(path: Path, block: _Numbers, num_lines: int) -> None:
    """Each line holds M and M pairs `term:count`."""
    announced, pairs = np.zeros(num_lines, np.int64), block.marks_per_line[:num_lines]
    announced[block.line[block.place == 0]] = block.values[block.place == 0]
    broken = block.per_line[:num_lines] != 1 + 2 * pairs
    broken[block.line[block.marks != block.place // 2]] = True
    lines = block.first + np.arange(num_lines)
    _check(path, broken, lines, "the line does not read as `M term:count term:count ...` (LDA-C): correct it")
    _check(
        path, announced != pairs, lines, "the line announces {} terms but holds {}: it is cut short or begins wrongly, restore it", announced, pairs
    )


_MARKET_BANNER = (
    (b"%%matrixmarket",),
    (b"matrix",),
    (b"coordinate", b"array"),
    (b"integer", b"unsigned-integer", b"real", b"double", b"pattern"),
    (b"general", b"symmetric"),
)


def _read_matrix_market(path: Path) -> _Table:
    with _open(path) as stream:
        banner, line = stream.readline(LINE_BYTES).lower().split(), 2
        if len(banner) != 5 or any(word not in known for word, known in zip(banner, _MARKET_BANNER, strict=True)):
            _fail(path, "not a Matrix Market file of counts: it must start with `%%MatrixMarket matrix coordinate integer general` or the like", 1)
        layout, field, symmetric = banner[2], banner[3], banner[4] == b"symmetric"
        while (size := stream.readline(LINE_BYTES)).startswith(b"%") or size.isspace():
            line += 1
        numbers = [_whole(path, line, token) for token in size.split()]
        if len(numbers) != (3 if layout == b"coordinate" else 2) or (layout == b"array" and field == b"pattern"):
            _fail(path, "the line must hold the numbers of rows and columns and, in coordinate files, of entries: restore it", line)
        shape = (numbers[0], numbers[1])
        if symmetric and shape[0] != shape[1]:
            _fail(path, f"a symmetric matrix cannot have {shape[0]} rows and {shape[1]} columns: correct the size", line)
        if layout == b"array":
            return _Table(_market_array(path, stream, line + 1, shape, symmetric))
        return _Table(_market_coordinates(path, stream, line + 1, shape, numbers[2], field == b"pattern", symmetric))


def _market_coordinates(path: Path, stream: BinaryIO, first: int, shape: tuple[int, int], num_entries: int, pattern: bool, symmetric: bool) -> Any:
    parts = []
    for block in _numbers(path, stream, first=first):
        triples, lines = _rows_of(path, block, 2 if pattern else 3, "row column" if pattern else "row column value")
        if pattern:
            triples = np.insert(triples, 2, 1, axis=1)
        _check_range(path, triples, lines, shape)
        _check_counts(path, triples[:, 2], lines)
        parts.append(triples)
    triples = _gather(parts, 3)
    if len(triples) != num_entries:
        _fail(path, f"the size line announces {num_entries} entries but {len(triples)} follow: write the file again or correct the number", first - 1)
    triples = triples - [1, 1, 0]
    if symmetric:
        mirrored = triples[triples[:, 0] != triples[:, 1]][:, [1, 0, 2]]
        triples = np.concatenate([triples, mirrored])
    return _from_triples(path, triples, shape)


def _market_array(path: Path, stream: BinaryIO, first: int, shape: tuple[int, int], symmetric: bool) -> Any:
    """Column after column; of a symmetric matrix only what is on and below the diagonal."""
    parts = []
    for block in _numbers(path, stream, first=first):
        values, lines = _rows_of(path, block, 1, "value")
        _check_counts(path, values[:, 0], lines)
        parts.append(values)
    values = _gather(parts, 1)[:, 0]
    expected = shape[0] * (shape[0] + 1) // 2 if symmetric else shape[0] * shape[1]
    if len(values) != expected:
        _fail(path, f"the size line announces {expected} values but {len(values)} follow: write the file again or correct the size", first - 1)
    _check_shape(path, shape, len(values))
    if not symmetric:
        return scipy.sparse.csr_array(values.reshape(shape[1], shape[0]).T)
    matrix = np.zeros(shape, np.int64)
    matrix[np.triu_indices(shape[0])] = values
    return scipy.sparse.csr_array(np.maximum(matrix, matrix.T))


# The binary formats -------------------------------------------------------------------------------------------------------------


def _read_npz(path: Path) -> _Table:
    try:
        with path.open("rb") as file:  # not by its name: NumPy leaves a file that is no archive open
            matrix = scipy.sparse.load_npz(file)  # never unpickles
        if matrix.format in ("csr", "csc"):
            matrix.check_format(full_check=True)
        supported = matrix.format in ("csr", "csc", "coo") and matrix.ndim == 2
        entries = matrix.tocoo() if supported else None
    except Exception as error:  # foreign bytes make NumPy, zipfile and SciPy raise a dozen unrelated types
        _fail(path, f"not a complete sparse matrix ({_reason(error)}): write it again with scipy.sparse.save_npz")
    if entries is None:
        _fail(path, f"a {matrix.ndim}-dimensional {matrix.format} matrix is not supported: convert it with .tocsr() and save it again")
    return _Table(_from_entries(path, entries.row, entries.col, entries.data, entries.shape))


def _read_npy(path: Path) -> _Table:
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # never unpickles, and a header cannot ask for memory that the file does not fill
    except Exception as error:  # see _read_npz
        _fail(path, f"not a complete array ({_reason(error)}): write it again with numpy.save")
    if array.ndim != 2:
        _fail(path, f"a two-dimensional array is needed, rows by columns, but this one has shape {array.shape}: reshape it")
    rows, columns = np.nonzero(array)
    return _Table(_from_entries(path, rows, columns, array[rows, columns], array.shape))


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _from_entries(path: Path, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, ...]) -> Any:
    """The matrix, if every entry is a count."""
    if values.dtype.kind not in "biuf":
        _fail(path, f"the entries are {values.dtype} instead of numbers: convert them before saving")
    values = values.astype(np.float64)
    bad = ~((values >= 0) & (values <= LARGEST_COUNT) & (values == np.floor(values)))  # nan is bad, too
    if bad.any():
        first = int(np.argmax(bad))
        place = f"row {rows[first]}, column {columns[first]} (counted from 0)"
        _fail(path, f"{place} holds {values[first]:g}: counts must be whole numbers from 0 to {LARGEST_COUNT}, none missing")
    _check_shape(path, shape, len(values))
    return scipy.sparse.coo_array((values, (rows, columns)), shape=shape).tocsr()


# Vocabularies -------------------------------------------------------------------------------------------------------------------


def _with_vocabulary(path: Path, table: _Table) -> tuple[Any, list[str] | None]:
    matrix = table.matrix
    file = _vocabulary_file(path)
    if file is None:
        return matrix, None
    names = _words(file)
    if table.growing and len(names) > matrix.shape[1]:
        _check_shape(path, (matrix.shape[0], len(names)), matrix.nnz)
        matrix.resize(matrix.shape[0], len(names))
    if len(names) != matrix.shape[1]:
        _fail(path, f"there are {matrix.shape[1]} columns but {file.name} beside it has {len(names)} lines: give it one word a line, or move it away")
    return matrix, names


def _vocabulary_file(path: Path) -> Path | None:
    name = re.sub(r"\.gz$", "", path.name, flags=re.IGNORECASE)
    candidates = [Path(name).stem + ".vocab", "vocab.txt"]
    if name.lower().startswith("docword."):
        candidates.insert(0, "vocab" + name[len("docword") :])
    return next((file for file in map(path.with_name, candidates) if file.is_file() and file != path), None)


def _words(file: Path) -> list[str]:
    raw = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        _fail(file, "the vocabulary is not UTF-8: save it again in that encoding", 1 + raw.count(b"\n", 0, error.start))
    lines = text.split("\n")  # not splitlines(), which also splits at rarer separators that may occur within a word
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


_BY_SUFFIX: dict[str, Callable[[Path], _Table]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".mtx": _read_matrix_market,
    ".ldac": _read_ldac,
    ".lda-c": _read_ldac,
    ".dat": _read_ldac,
    ".txt": _read_text,
    ".csv": _read_csv,
    ".tsv": _read_csv,
}
KNOWN_SUFFIXES = tuple(_BY_SUFFIX)
