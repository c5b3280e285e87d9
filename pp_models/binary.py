"""Matrices in NumPy's and SciPy's own files, as a whole or some rows at a time. Nothing is unpickled."""

import contextlib
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from pp_models.scanning import LARGEST_COUNT, MOST_TIMES, check_shape, fail, reason

BLOCK_ENTRIES = 1 << 21  # read together
MOST_MEMBERS = 1000  # arrays of an archive
SOME_BYTES = 1 << 27  # that an archive may unpack to, whatever its length


def load_sparse(path: Path) -> Any:
    """The entries of a sparse matrix, whatever they are, in coordinates."""
    try:
        check_archive(path)
        with path.open("rb") as file:  # not by its name: NumPy leaves a file that is no archive open
            matrix = scipy.sparse.load_npz(file)  # never unpickles
        if matrix.format in ("csr", "csc"):
            _check_starts(matrix)
            matrix.check_format(full_check=True)
        supported = matrix.format in ("csr", "csc", "coo") and matrix.ndim == 2
        entries = matrix.tocoo() if supported else None
    except Exception as error:  # foreign bytes make NumPy, zipfile and SciPy raise a dozen unrelated types
        fail(path, f"not a complete sparse matrix ({reason(error)}): write it again with scipy.sparse.save_npz")
    if entries is None:
        fail(path, f"a {matrix.ndim}-dimensional {matrix.format} matrix is not supported: convert it with .tocsr() and save it again")
    return entries


def _check_starts(matrix: Any) -> None:
    """Where rows, or columns, start must ascend from 0. SciPy looks at nothing where the last one is negative, and then writes past its arrays."""
    starts = matrix.indptr.astype(np.int64)
    if starts[0] != 0 or np.any(np.diff(starts) < 0):
        raise ValueError("where its rows start does not ascend from 0")


def check_archive(path: Path) -> None:
    """Refuse an archive of arrays that unpacks to far more than it should, or to something else than it says, before memory is asked for."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        unpacked, most = sum(member.file_size for member in members), max(SOME_BYTES, MOST_TIMES * os.fstat(file.fileno()).st_size)
        if len(members) > MOST_MEMBERS or len({member.filename for member in members}) < len(members):
            raise ValueError("it holds too many arrays, or two of one name")
        if unpacked > most:
            raise ValueError(f"it would unpack to more than {MOST_TIMES} times its length")
        for member in members:
            with archive.open(member) as stream:
                dims, kind = _member_header(stream)
                if kind.hasobject or min(dims, default=0) < 0 or math.prod(dims) * kind.itemsize != member.file_size - stream.tell():
                    raise ValueError(f"{member.filename} is not as long as it says")


def read_npz(path: Path) -> Any:
    """Counts."""
    entries = load_sparse(path)
    return _from_entries(path, entries.row, entries.col, entries.data, entries.shape)


def npz_blocks(path: Path) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Of a csr matrix, its entries are unpacked a block at a time, and its row starts alone are held."""
    try:
        check_archive(path)
        found = _csr_members(path)
    except Exception:  # see load_sparse, which says what is wrong
        found = None
    if found is None:
        matrix = read_npz(path)
        yield matrix, matrix.shape
        return
    shape, indptr = found
    check_shape(path, shape, int(indptr[-1]))
    with contextlib.ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        members = [stack.enter_context(archive.open(name)) for name in ("indices.npy", "data.npy")]
        kinds = [_member_header(member)[1] for member in members]
        first = 0
        while first < shape[0]:
            last = max(first + 1, int(np.searchsorted(indptr, indptr[first] + BLOCK_ENTRIES, side="right")) - 1)
            columns, values = (_member_values(path, m, kind, int(indptr[last] - indptr[first])) for m, kind in zip(members, kinds, strict=True))
            lengths = np.diff(indptr[first : last + 1])
            if columns.min(initial=0) < 0 or columns.max(initial=-1) >= shape[1]:
                fail(path, "not a complete sparse matrix (an index is outside its shape): write it again with scipy.sparse.save_npz")
            yield _from_entries(path, np.repeat(np.arange(first, last), lengths), columns, values, (last, shape[1]), first), shape
            first = last
        for member in members:
            _member_values(path, member, np.dtype(np.uint8), 0, last=True)


def _csr_members(path: Path) -> tuple[tuple[int, int], np.ndarray] | None:
    """Shape and row starts of a csr matrix whose arrays fit together; None of anything else."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        file.seek(0)
        if file.read(4) != b"PK\x03\x04":  # an archive after other bytes, which NumPy does not read
            return None

        def read(name: str, values: bool = True) -> np.ndarray | int | None:
            with archive.open(f"{name}.npy") as member:
                dims, kind = _member_header(member)
                size = int(np.prod(dims, dtype=np.int64))
                if kind.hasobject or archive.getinfo(f"{name}.npy").file_size - member.tell() != size * kind.itemsize:
                    return None
                return _member_values(path, member, kind, size).reshape(dims) if values else size

        form, shape, starts = read("format"), read("shape"), read("indptr")
        if not (isinstance(form, np.ndarray) and isinstance(shape, np.ndarray) and isinstance(starts, np.ndarray)):
            return None
        good = form.item() in (b"csr", "csr") and shape.shape == (2,) and starts.shape == (shape[0] + 1,) and starts.dtype.kind in "iu"
        if not good or starts[0] != 0 or np.any(np.diff(starts.astype(np.int64)) < 0):
            return None
        if read("indices", values=False) != starts[-1] or read("data", values=False) != starts[-1]:
            return None
        return (int(shape[0]), int(shape[1])), starts.astype(np.int64)


def _member_header(member: Any) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    dims, fortran, kind = read(member)
    return (dims[::-1] if fortran else dims), kind


def _member_values(path: Path, member: Any, kind: np.dtype, size: int, last: bool = False) -> np.ndarray:
    """The next so many values; the checksum is looked at where they are the last."""
    try:
        raw = member.read(size * kind.itemsize)
        whole = len(raw) == size * kind.itemsize and not (last and member.read(1))
    except (zipfile.BadZipFile, zlib.error, EOFError):
        whole = False
    if not whole:
        fail(path, "not a complete sparse matrix (it is cut short or damaged): write it again with scipy.sparse.save_npz")
    return np.frombuffer(raw, kind)


def npy_blocks(path: Path) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Of a dense array, the counts that are not zero, some rows at a time."""
    array = mapped_array(path)
    step = max(1, BLOCK_ENTRIES // max(array.shape[1], 1))
    for first in range(0, array.shape[0], step):
        part = array[first : first + step]
        rows, columns = np.nonzero(part)
        yield _from_entries(path, rows + first, columns, part[rows, columns], (first + len(part), array.shape[1]), first), array.shape


def read_npy(path: Path) -> Any:
    """Counts."""
    array = mapped_array(path)
    rows, columns = np.nonzero(array)
    return _from_entries(path, rows, columns, array[rows, columns], array.shape)


def mapped_array(path: Path) -> np.ndarray:
    """Rows by columns, read where it is looked at."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # never unpickles, and a header cannot ask for memory that the file does not fill
    except Exception as error:  # see load_sparse
        fail(path, f"not a complete array ({reason(error)}): write it again with numpy.save")
    if array.ndim != 2:
        fail(path, f"a two-dimensional array is needed, rows by columns, but this one has shape {array.shape}: reshape it")
    if array.dtype.kind not in "biuf":
        fail(path, f"the entries are {array.dtype} instead of numbers: convert them before saving")
    return array


def _from_entries(path: Path, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, ...], first: int = 0) -> Any:
    """The matrix, or of it the rows from `first` on, if every entry is a count."""
    if values.dtype.kind not in "biuf":
        fail(path, f"the entries are {values.dtype} instead of numbers: convert them before saving")
    values = values.astype(np.float64)
    bad = ~((values >= 0) & (values <= LARGEST_COUNT) & (values == np.floor(values)))  # nan is bad, too
    if bad.any():
        wrong = int(np.argmax(bad))
        place = f"row {rows[wrong]}, column {columns[wrong]} (counted from 0)"
        fail(path, f"{place} holds {values[wrong]:g}: counts must be whole numbers from 0 to {LARGEST_COUNT}, none missing")
    if first == 0:
        check_shape(path, shape, len(values))
    return scipy.sparse.coo_array((values, (rows - first, columns)), shape=(shape[0] - first, shape[1])).tocsr()
