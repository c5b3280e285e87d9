"""Data into files: `write(data, path)` writes the formats that `readers` and `tables` read.

    counts           .npz .npy .mtx .ldac .lda-c .dat .txt (LDA-C), docword*.txt (UCI), .csv .tsv
    ratings          .npz .npy .csv .tsv
    dense            .npy .csv .tsv
    text_and_votes   the counts, and the votes beside them as `<stem>.votes.csv`, or votes alone

Text is gzipped where the name ends in .gz. Names go beside the file as `readers` finds them. What
is read back is what was written: where a format does not hold the shape, an entry of 0 in the last
row or column does. Files appear whole or not at all, names before the data that they name, and
what is there already stays unless it is to be overwritten. Only a process that is killed, or a
disk that fails, between the names and the data may leave new names beside old data.
"""

import gzip
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from pp_models.data.files import Files, write_new
from pp_models.data.formats import arrow, readers
from pp_models.data.formats.opening import fail, usable
from pp_models.data.types import Data
from pp_models.errors import InputError

ROWS_TOGETHER = 1 << 12
TABLES = {"ratings": (".npz", ".npy", ".csv", ".tsv"), "dense": (".npy", ".csv", ".tsv")}
LARGEST_ARRAY = 1 << 31  # cells that are written as a dense array

Write = Callable[[Path], Any]
OnRows = Callable[[int], Any]


def write(data: Data, path: str | Path, overwrite: bool = False, on_rows: OnRows = id) -> Path:
    """Write data and its names. on_rows: called with the number of rows of each block written."""
    path = usable(path)
    files = plan(data, path, on_rows)
    return write_new(path, files, overwrite, partial(_refuse_other_names, data, path))


def plan(data: Data, path: Path, on_rows: OnRows) -> Files:
    """The files to write, the data's own last. Whatever cannot be written is refused here."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file.")
    files: Files = {}
    named = data.column_names, data.row_names
    for places, names in zip(_name_files(data, path), named, strict=True):
        raw = b"" if names is None else readers.encode_names(names)
        file = places[0]
        if names is not None and not (file.is_file() and file.read_bytes() == raw):
            files[file] = partial(Path.write_bytes, data=raw)
    if data.votes is not None:
        _check_votes(data, path)
        beside = readers.votes_file(path) if data.num_columns else path
        files[beside] = partial(_write_text, beside, _vote_lines(data.votes))
    if data.votes is None or data.num_columns:
        files[path] = _writer(data, path, on_rows)
    return files


def _name_files(data: Data, path: Path) -> tuple[list[Path], list[Path]]:
    return readers.name_files(path, own=data.kind in TABLES or data.num_columns == 0)


def _refuse_other_names(data: Data, path: Path) -> None:
    """Names that lie where this file's would, and would be taken for them."""
    named = ("columns", data.column_names), ("rows", data.row_names)
    for files, (what, names) in zip(_name_files(data, path), named, strict=True):
        other = next((file for file in files if file.is_file() and file != path), None)
        if names is None and other is not None:
            what = f"would be taken for the names of the {what}, which have none"
            raise InputError(f"{other} {what}: write to another folder, or move it away.")


def _writer(data: Data, path: Path, on_rows: OnRows) -> Write:
    suffix = readers.format_of(path)
    if suffix in arrow.SUFFIXES or suffix not in TABLES.get(data.kind, (suffix,)):
        known = TABLES.get(data.kind, (".h5ad", ".npz", ".mtx", ".csv"))
        fail(path, f"{data.kind} data are written to {', '.join(known)}: choose such a name")
    if suffix == ".npz":
        return partial(_write_npz, data)
    if suffix == ".npy":
        if data.num_rows * data.num_columns > LARGEST_ARRAY:
            cells = f"{data.num_rows} x {data.num_columns} are too many cells for a dense array"
            fail(path, f"{cells}: write .npz instead")
        return partial(_write_npy, data)
    mark = "\t" if suffix == ".tsv" else ","
    if data.kind == "dense":
        return partial(_write_text, path, _dense_lines(data, mark))
    if data.kind == "ratings":
        _check_complete(data, path)
        return partial(_write_text, path, _rating_lines(data, mark))
    if suffix in (".csv", ".tsv"):
        return partial(_write_text, path, _csv_lines(data, mark, on_rows))
    sizes = data.num_rows, data.num_columns, data.num_entries
    if suffix == "uci":
        return partial(
            _write_text, path, _listed("".join(f"{size}\n" for size in sizes), data, on_rows)
        )
    if suffix == ".mtx":
        head = "%%MatrixMarket matrix coordinate integer general\n"
        head += "{} {} {}\n".format(*sizes)
        return partial(_write_text, path, _listed(head, data, on_rows))
    return partial(_write_text, path, _ldac_lines(data, on_rows))


# The formats ------------------------------------------------------------------------------------


def _write_text(path: Path, parts: Iterator[bytes], file: Path) -> None:
    """`path` tells by its name whether to compress; `file` is where to write."""
    with file.open("wb") as raw:
        zipped = path.name.lower().endswith(".gz")
        with gzip.GzipFile("", "wb", 6, raw, mtime=0) if zipped else raw as stream:
            stream.writelines(parts)


def _write_npz(data: Data, file: Path) -> None:
    matrix = _in_memory(data).matrix
    if data.kind != "ratings":
        matrix = matrix.astype(np.int32)
    with file.open("wb") as stream:
        scipy.sparse.save_npz(stream, matrix)


def _write_npy(data: Data, file: Path) -> None:
    data = _in_memory(data)
    if data.values is not None:
        array = data.values
    elif data.kind != "ratings":
        array = data.matrix.toarray().astype(np.int32)
    else:
        entries = data.matrix.tocoo()
        array = np.full(entries.shape, np.nan, np.float32)
        array[entries.row, entries.col] = entries.data
    with file.open("wb") as stream:
        np.save(stream, array)


def _in_memory(data: Data) -> Data:
    there = data.matrix is None or scipy.sparse.issparse(data.matrix)
    return data if there else data.select(np.arange(data.num_rows))


def _triples(data: Data, on_rows: OnRows) -> Iterator[np.ndarray]:
    """Row, column and count of all entries, row by row, some at a time."""
    for first in range(0, data.num_rows, ROWS_TOGETHER):
        part = data.matrix[first : min(first + ROWS_TOGETHER, data.num_rows)].tocoo()
        yield np.stack([part.row + np.int64(first), part.col, part.data], axis=1).astype(np.int64)
        on_rows(part.shape[0])


def _lines(table: np.ndarray, form: str) -> bytes:
    """Much faster than numpy.savetxt."""
    return (form * len(table) % tuple(table.ravel().tolist())).encode()


def _csv_lines(data: Data, mark: str, on_rows: OnRows) -> Iterator[bytes]:
    form, largest = mark.join(["%d"] * 3) + "\n", np.full(2, -1)
    for triples in _triples(data, on_rows):
        yield _lines(triples, form)
        largest = np.maximum(largest, triples[:, :2].max(axis=0, initial=-1))
    last = np.array([data.num_rows, data.num_columns]) - 1
    told = np.array([data.row_names is not None, data.column_names is not None])
    if np.any((largest < last) & ~told):
        yield _lines(np.array([[*last, 0]]), form)


def _listed(head: str, data: Data, on_rows: OnRows) -> Iterator[bytes]:
    """UCI and Matrix Market count from 1."""
    yield head.encode()
    for triples in _triples(data, on_rows):
        yield _lines(triples + np.array([1, 1, 0]), "%d %d %d\n")


def _ldac_lines(data: Data, on_rows: OnRows) -> Iterator[bytes]:
    largest, row = -1, 0
    for triples in _triples(data, on_rows):
        largest = max(largest, int(triples[:, 1].max(initial=-1)))
        number = min(ROWS_TOGETHER, data.num_rows - row)
        lengths = np.bincount(triples[:, 0] - row, minlength=number)
        row += number
        pairs = _lines(triples[:, 1:], "%d:%d ").decode().split()
        if row == data.num_rows and largest + 1 < data.num_columns and data.column_names is None:
            pairs.append(f"{data.num_columns - 1}:0")
            lengths[-1] += 1
        ends = np.cumsum(lengths).tolist()
        for length, end in zip(lengths.tolist(), ends, strict=True):
            yield " ".join([str(length), *pairs[end - length : end]]).encode() + b"\n"


def _dense_lines(data: Data, mark: str) -> Iterator[bytes]:
    """Numbers with the digits that give them back exactly."""
    assert data.values is not None
    for first in range(0, data.num_rows, ROWS_TOGETHER):
        file = io.BytesIO()
        np.savetxt(file, data.values[first : first + ROWS_TOGETHER], "%.9g", mark)
        yield file.getvalue()


def _rating_lines(data: Data, mark: str) -> Iterator[bytes]:
    entries, form = data.matrix.tocoo(), mark.join(("%d", "%d", "%.9g")) + "\n"
    yield _lines(np.stack([entries.row, entries.col, entries.data.astype(float)], axis=1), form)


def _vote_lines(votes: Any) -> Iterator[bytes]:
    entries = votes.tocoo()
    yield b"bill,member,vote\n"
    yield _lines(np.stack([entries.row, entries.col, entries.data], axis=1), "%d,%d,%d\n")


def _check_complete(data: Data, path: Path) -> None:
    """A text of ratings holds no users or items without any."""
    users = np.repeat(np.arange(data.num_rows), data.lengths)
    parts = ("user", users, data.num_rows), ("item", data.matrix.indices, data.num_columns)
    for what, numbers, size in parts:
        for silent in np.flatnonzero(np.bincount(numbers, minlength=size) == 0)[:1]:
            why = f"{what} {silent} has no ratings, which a text cannot hold"
            fail(path, f"{why}: write .npz instead, or drop the {what}")


def _check_votes(data: Data, path: Path) -> None:
    alone = data.num_columns == 0
    if readers.is_votes(path) != alone:
        what = "votes alone" if alone else "text and votes"
        fix = f"end the name in {readers.VOTES_SUFFIX}" if alone else "name the file of the text"
        fail(path, f"{what} cannot be written to a file of this name: {fix}")
    seen = np.bincount(data.votes.indices, minlength=data.num_members)
    if data.num_members == 0 or seen[-1] == 0:
        what = f"the last member, {data.num_members - 1}, has no votes"
        fail(path, f"{what}, which the file cannot hold: drop those columns")
    if alone and data.votes.indptr[-1] == data.votes.indptr[-2]:
        fail(path, "the last bill has no votes, which the file cannot hold: drop it")
