"""Matrices in files of NumPy, SciPy, Matrix Market and Arrow. Nothing is unpickled."""

import contextlib
import io
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse

from pp_models.data.formats.numbers import COUNT, INDEX, Part, check_whole
from pp_models.data.formats.opening import check_shape, check_unpacked, fail, lines, reading

BLOCK_CELLS = 1 << 21  # of a dense array, read together
ARROW = (".parquet", ".arrow", ".feather")
MOST_MEMBERS = 1000  # arrays of an archive


def npz(path: Path) -> Any:
    """A sparse matrix of real numbers, as `scipy.sparse.save_npz` writes it, in COO."""
    what = "a complete sparse matrix of scipy.sparse.save_npz"
    with reading(path, what), path.open("rb") as file:  # NumPy would leave the file open
        check_archive(path)
        matrix = scipy.sparse.load_npz(file)  # never unpickles
        if matrix.format not in ("csr", "csc", "coo") or matrix.ndim != 2:
            what = f"a {matrix.ndim}-dimensional {matrix.format} matrix is not supported"
            fail(path, f"{what}: convert it with .tocsr() and save it again")
        if matrix.format != "coo":
            starts = matrix.indptr.astype(np.int64)
            if starts[0] != 0 or np.any(np.diff(starts) < 0):  # SciPy would write past its arrays
                raise ValueError("where its rows start does not ascend from 0")
            matrix.check_format(full_check=True)
        check_shape(path, matrix.shape, matrix.nnz)
        return check_numbers(path, matrix.tocoo())


def check_archive(path: Path) -> None:
    """Refuse an archive whose arrays are not as long as they say, before memory is allocated."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_unpacked(path, sum(member.file_size for member in members))
        if len({member.filename for member in members[: MOST_MEMBERS + 1]}) < len(members):
            raise ValueError("it holds too many arrays, or two of one name")
        for member in members:
            with archive.open(member) as stream:
                first = np.lib.format.read_magic(stream) == (1, 0)
                read = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
                shape, _, kind = read[not first](stream)
                size = math.prod(shape) * kind.itemsize
                if kind.hasobject or min(shape, default=0) < 0:
                    raise ValueError(f"{member.filename} holds objects")
                if size != member.file_size - stream.tell():
                    raise ValueError(f"{member.filename} is not as long as it says")


def npy(path: Path) -> np.ndarray:
    """A two-dimensional array, memory-mapped."""
    with reading(path, "a complete array of numpy.save"):
        array = np.lib.format.open_memmap(path, mode="r")  # neither unpickles nor allocates
    if array.ndim != 2:
        what = f"rows by columns are needed, but this array has shape {array.shape}"
        fail(path, f"a two-dimensional array, {what}: reshape it")
    return check_numbers(path, array)


def npy_blocks(path: Path) -> Iterator[Any]:
    """The same as sparse blocks of rows."""
    array = npy(path)
    step = max(1, BLOCK_CELLS // max(array.shape[1], 1))
    for first in range(0, max(len(array), 1), step):
        yield scipy.sparse.csr_array(array[first : first + step].astype(np.float64))


def market(path: Path) -> Any:
    """A Matrix Market file, sparse or dense."""
    with reading(path, "a complete Matrix Market file of counts"):
        raw = b"".join(lines(path)).rstrip() + b"\n"  # without it, SciPy may read past the end
        if b"\0" in raw:  # and also here
            raise ValueError("it holds null bytes")
        found = scipy.io.mminfo(io.BytesIO(raw))
        num_rows, num_columns, num_entries, form, _, symmetry = found
        check_shape(path, (num_rows, num_columns), num_entries)
        if symmetry != "general" and num_rows != num_columns:  # SciPy would write past its array
            raise ValueError(f"{num_rows} x {num_columns} is not symmetric")
        if num_entries * (4 if form == "coordinate" else 1) > len(raw) + 4:
            raise ValueError(f"it announces {num_entries} entries in {len(raw)} bytes")
        return scipy.sparse.csr_array(check_numbers(path, scipy.io.mmread(io.BytesIO(raw))))


def check_numbers(path: Path, array: Any) -> Any:
    """The array, refused unless its entries are real numbers."""
    if array.dtype.kind not in "biuf":
        fail(path, f"the entries are {array.dtype} instead of numbers: convert them before saving")
    return array


# Arrow --------------------------------------------------------------------------------------------


def arrow(path: Path) -> Iterator[Part]:
    """Counts in a Parquet, Arrow or Feather table."""
    yield Part()
    for table, num_rows in arrow_tables(path):
        places = np.arange(1, len(table) + 1) if num_rows is None else table[:, 0].astype(int) + 1
        yield Part(check_whole(path, table, places, (*INDEX, COUNT)), (num_rows, None))


def arrow_tables(path: Path) -> Iterator[tuple[np.ndarray, int | None]]:
    """(entries, 3) row, column and value of some rows at a time.

    A row of the table is a document, with a list of columns and a list of counts, or an entry,
    with row, column and value. With lists, the number of documents so far comes with them.
    """
    num_rows = num_entries = 0
    with reading(path, "a complete table"), _batches(path) as batches:
        for batch in batches:
            lists, parts = _columns(path, batch)
            if lists:
                lengths = [np.diff(np.asarray(part.offsets)) for part in parts]
                if not np.array_equal(lengths[0], lengths[1]):
                    fail(path, "a document has more columns than counts, or fewer: write it again")
                rows = num_rows + np.repeat(np.arange(len(batch)), lengths[0])
                parts = [rows, *(part.flatten() for part in parts)]
                num_rows += len(batch)
            table = np.stack([np.asarray(part, np.float64) for part in parts], axis=1)
            num_entries += len(table)
            check_unpacked(path, 24 * num_entries)
            yield table, num_rows if lists else None


def arrow_batches(path: Path) -> Iterator[Any]:
    """The rows of a Parquet, Arrow or Feather table, some at a time."""
    with _batches(path) as batches:
        yield from batches


def _columns(path: Path, batch: Any) -> tuple[bool, list[Any]]:
    """Whether there are lists, and the two columns of lists or the three of numbers."""
    from pyarrow import types

    def is_number(kind: Any) -> bool:
        return bool(types.is_integer(kind) or types.is_floating(kind))

    lists = [c for c in batch.columns if types.is_list(c.type) or types.is_large_list(c.type)]
    numbers = [c for c in batch.columns if is_number(c.type)]
    found = lists[:2] if len(lists) > 1 else numbers[:3]
    good = all(is_number(part.type.value_type) for part in found) if len(lists) > 1 else True
    if len(found) != (2 if len(lists) > 1 else 3) or not good:
        has = ", ".join(f"{field.name} ({field.type})" for field in batch.schema)
        what = "a list of column numbers and one of counts, or row, column and value as numbers"
        fix = "number rows and columns from 0, with their names in files beside the table"
        fail(path, f"its columns {has} are not {what}: {fix}")
    if any(part.null_count for part in found):
        fail(path, "a value is missing: leave such entries out")
    return len(lists) > 1, found


@contextlib.contextmanager
def _batches(path: Path) -> Iterator[Any]:
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        fail(path, "this format needs pyarrow: pip install 'pp-models[arrow]'", error)
    if path.suffix.lower() == ".parquet":
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            check_unpacked(path, sum(group.total_byte_size for group in groups))
            yield file.iter_batches(1 << 16)
    else:
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_file(source) as file:
            yield (file.get_batch(i) for i in range(file.num_record_batches))
