"""Data into files: `write(data, path)` writes every format that `readers` and `tables` read, chosen by the file's name in the same way.

    counts           all formats of `readers`: .npz .npy .mtx .ldac .lda-c .dat .txt (LDA-C), docword*.txt (UCI), .csv .tsv
    ratings          .npz .npy .csv .tsv
    dense            .npy .csv .tsv
    text_and_votes   the counts, and the votes beside them as `<stem>.votes.csv`; votes alone as `<stem>.votes.csv`

Text is gzipped where the name ends in .gz. Column names go beside the file as its vocabulary (`<stem>.vocab`, UCI's `vocab.<name>.txt`), row names as
`<stem>.rows`. What is read back is what was written: where a format does not hold the shape, an entry of 0 in the last row or column does. All
files appear whole or not at all, names before the data that they name, and what is there already stays unless it is to be overwritten: a failure
leaves it as it was, and only a process that is killed between the names and the data may leave new names beside old data.
"""

import gzip
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from pp_models import readers
from pp_models.data import Data
from pp_models.errors import InputError
from pp_models.files import write_all
from pp_models.scanning import usable

ROWS_TOGETHER = 1 << 12
TABLES = {"ratings": (".npz", ".npy", ".csv", ".tsv"), "dense": (".npy", ".csv", ".tsv")}
_FROM_ONE = np.array([1, 1, 0])
LARGEST_ARRAY = 1 << 31  # cells that are written as a dense array


def write(data: Data, path: str | Path, overwrite: bool = False, on_rows: Callable[[int], Any] | None = None) -> Path:
    """Write data and its names. on_rows: called with the number of rows of each block written, where it is written in blocks."""
    path = usable(path)
    files = plan(data, path, on_rows)

    def check() -> None:
        there = next((file for file in reversed(files) if file.exists()), None)
        if there is not None and not overwrite:
            raise InputError(f"{there} is there already: choose another name, or have it overwritten (--overwrite).")
        _refuse_other_names(data, path)

    check()
    try:
        write_all(files, check)  # again: another process may have written there meanwhile
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error}): check the folder's permissions and the disk.") from error
    return path


def plan(data: Data, path: Path, on_rows: Callable[[int], Any] | None = None) -> dict[Path, Callable[[Path], Any]]:
    """The files to write, the data's own last, each with what writes it. Whatever cannot be written is refused here."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file.")
    files: dict[Path, Callable[[Path], Any]] = {}
    columns, rows = _name_files(data, path)
    for file, names in ((columns[0], data.column_names), (rows[0], data.row_names)):
        if names is not None:
            raw = readers.encode_names(names)
            if not (file.is_file() and file.read_bytes() == raw):  # another file's names, and the same
                files[file] = partial(_write_bytes, raw)
    if data.votes is not None:
        _check_votes(data, path)
        alone = data.num_columns == 0
        beside = path if alone else readers.votes_file(path)
        files[beside] = partial(_write_text, beside, _vote_lines(data.votes))
        if alone:
            return files
    files[path] = _writer(data, path, on_rows)
    return files


def _writer(data: Data, path: Path, on_rows: Callable[[int], Any] | None) -> Callable[[Path], Any]:
    told = on_rows or (lambda number: None)
    suffix = readers.format_of(path)
    if data.kind in TABLES and suffix not in TABLES[data.kind]:
        raise InputError(f"{path}: {data.kind} data are written to {', '.join(TABLES[data.kind])}: choose such a name.")
    if suffix == ".npz":
        return partial(_write_npz, data)
    if suffix == ".npy":
        if data.num_rows * data.num_columns > LARGEST_ARRAY:
            raise InputError(f"{path}: {data.num_rows} x {data.num_columns} are too many cells for a dense array: write .npz instead.")
        return partial(_write_npy, data)
    if data.kind == "dense":
        return partial(_write_text, path, _dense_lines(data, _mark(suffix)))
    if data.kind == "ratings":
        _check_complete(data, path)
        return partial(_write_text, path, _rating_lines(data, _mark(suffix)))
    return partial(_write_text, path, _LINES.get(suffix, _ldac_lines)(data, suffix, told))


def _name_files(data: Data, path: Path) -> tuple[list[Path], list[Path]]:
    return readers.name_files(path, own=data.kind in TABLES or data.num_columns == 0)


def _refuse_other_names(data: Data, path: Path) -> None:
    """Names that lie where this file's would, and would be taken for them."""
    for files, names, what in zip(_name_files(data, path), (data.column_names, data.row_names), ("columns", "rows"), strict=True):
        other = next((file for file in files if file.is_file() and file != path), None)
        if names is None and other is not None:
            raise InputError(f"{other} would be taken for the names of the {what}, which have none: write to another folder, or move it away.")


# The formats --------------------------------------------------------------------------------------------------------------------


def _write_bytes(raw: bytes, file: Path) -> None:
    file.write_bytes(raw)


def _write_text(path: Path, lines: Iterator[bytes], file: Path) -> None:
    """`path` tells by its name whether to compress; `file` is where to write."""
    with file.open("wb") as raw:
        stream: Any = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) if path.name.lower().endswith(".gz") else raw
        with stream:
            for part in lines:
                stream.write(part)


def _write_npz(data: Data, file: Path) -> None:
    matrix = _in_memory(data).matrix
    whole = matrix if data.kind == "ratings" else scipy.sparse.csr_array((matrix.data.astype(np.int32), matrix.indices, matrix.indptr), matrix.shape)
    with file.open("wb") as stream:
        scipy.sparse.save_npz(stream, whole)


def _write_npy(data: Data, file: Path) -> None:
    with file.open("wb") as stream:
        np.save(stream, _array(_in_memory(data)))


def _array(data: Data) -> np.ndarray:
    if data.values is not None:
        return data.values
    if data.kind != "ratings":
        return data.matrix.toarray().astype(np.int32)
    entries = data.matrix.tocoo()
    table = np.full(data.matrix.shape, np.nan, np.float32)
    table[entries.row, entries.col] = entries.data
    return table


def _in_memory(data: Data) -> Data:
    return data if data.matrix is None or scipy.sparse.issparse(data.matrix) else data.select(np.arange(data.num_rows))


def _mark(suffix: str) -> str:
    return "\t" if suffix == ".tsv" else ","


def _triples(data: Data, told: Callable[[int], Any]) -> Iterator[np.ndarray]:
    """Row, column and count of all entries, row by row, some at a time."""
    for first in range(0, data.num_rows, ROWS_TOGETHER):
        part = data.matrix[first : min(first + ROWS_TOGETHER, data.num_rows)].tocoo()
        yield np.stack([part.row.astype(np.int64) + first, part.col.astype(np.int64), part.data.astype(np.int64)], axis=1)
        told(part.shape[0])


def _lines(triples: np.ndarray, form: str) -> bytes:
    """Much faster than numpy.savetxt."""
    return (form * len(triples) % tuple(triples.ravel().tolist())).encode()


def _csv_lines(data: Data, suffix: str, told: Callable[[int], Any]) -> Iterator[bytes]:
    form, largest = _mark(suffix).join(["%d"] * 3) + "\n", np.full(2, -1)
    for triples in _triples(data, told):
        yield _lines(triples, form)
        largest = np.maximum(largest, triples[:, :2].max(axis=0, initial=-1))
    size = np.array([data.num_rows, data.num_columns])
    told_by_names = np.array([data.row_names is not None, data.column_names is not None])
    if np.any((largest + 1 < size) & ~told_by_names):
        yield _lines(np.array([[*(size - 1), 0]]), form)


def _uci_lines(data: Data, suffix: str, told: Callable[[int], Any]) -> Iterator[bytes]:
    yield f"{data.num_rows}\n{data.num_columns}\n{data.num_entries}\n".encode()
    for triples in _triples(data, told):
        yield _lines(triples + _FROM_ONE, "%d %d %d\n")


def _market_lines(data: Data, suffix: str, told: Callable[[int], Any]) -> Iterator[bytes]:
    yield f"%%MatrixMarket matrix coordinate integer general\n{data.num_rows} {data.num_columns} {data.num_entries}\n".encode()
    for triples in _triples(data, told):
        yield _lines(triples + _FROM_ONE, "%d %d %d\n")


def _ldac_lines(data: Data, suffix: str, told: Callable[[int], Any]) -> Iterator[bytes]:
    largest, row = -1, 0
    for triples in _triples(data, told):
        largest = max(largest, int(triples[:, 1].max(initial=-1)))
        number = min(ROWS_TOGETHER, data.num_rows - row)
        lengths = np.bincount(triples[:, 0] - row, minlength=number)
        row += number
        pairs = (" %d:%d" * len(triples) % tuple(triples[:, 1:].ravel().tolist())).split(" ")[1:]
        if row == data.num_rows and largest + 1 < data.num_columns and data.column_names is None:
            pairs.append(f"{data.num_columns - 1}:0")
            lengths[-1] += 1
        heads = ("\n%d " * number % tuple(lengths.tolist())).split(" ")[:-1]  # of documents, each before its pairs
        words = np.insert(np.array(pairs, object), np.cumsum(lengths) - lengths, heads)
        yield (" ".join(words.tolist()).replace(" \n", "\n")[1:] + "\n").encode()


_LINES: dict[str, Callable[[Data, str, Callable[[int], Any]], Iterator[bytes]]] = {
    ".csv": _csv_lines,
    ".tsv": _csv_lines,
    "uci": _uci_lines,
    ".mtx": _market_lines,
}


def _dense_lines(data: Data, mark: str) -> Iterator[bytes]:
    """Numbers with the digits that give them back exactly."""
    assert data.values is not None
    for first in range(0, data.num_rows, ROWS_TOGETHER):
        part = data.values[first : first + ROWS_TOGETHER]
        file = io.BytesIO()
        np.savetxt(file, part, fmt="%.9g", delimiter=mark)
        yield file.getvalue()


def _rating_lines(data: Data, mark: str) -> Iterator[bytes]:
    entries, form = data.matrix.tocoo(), mark.join(("%d", "%d", "%.9g")) + "\n"
    for first in range(0, len(entries.data), 1 << 16):
        part = slice(first, first + (1 << 16))
        yield _lines(np.stack([entries.row[part], entries.col[part], entries.data[part].astype(np.float64)], axis=1), form)


def _check_complete(data: Data, path: Path) -> None:
    """A text of ratings holds no users or items without any."""
    for what, numbers, size in (
        ("user", np.repeat(np.arange(data.num_rows), data.lengths), data.num_rows),
        ("item", data.matrix.indices, data.num_columns),
    ):
        silent = np.flatnonzero(np.bincount(numbers, minlength=size) == 0)
        if len(silent):
            raise InputError(f"{path}: {what} {silent[0]} has no ratings, which a text cannot hold: write .npz instead, or drop the {what}.")


def _vote_lines(votes: Any) -> Iterator[bytes]:
    entries = votes.tocoo()
    yield b"bill,member,vote\n"
    yield _lines(np.stack([entries.row, entries.col, entries.data.astype(np.int64)], axis=1), "%d,%d,%d\n")


def _check_votes(data: Data, path: Path) -> None:
    named = readers.is_votes(path)
    if named != (data.num_columns == 0):
        fix = f"end the name in {readers.VOTES_SUFFIX}" if not named else "name the file of the text; that of the votes follows from it"
        raise InputError(f"{path}: {'votes alone' if not named else 'text and votes'} cannot be written to a file of this name: {fix}.")
    seen = np.bincount(data.votes.indices, minlength=data.num_members)
    if data.num_members == 0 or seen[-1] == 0:
        raise InputError(f"{path}: the last member, {data.num_members - 1}, has no votes, which the file cannot hold: drop those columns.")
    if data.num_columns == 0 and data.votes.indptr[-1] == data.votes.indptr[-2]:
        raise InputError(f"{path}: the last bill has no votes, which the file cannot hold: drop it.")
