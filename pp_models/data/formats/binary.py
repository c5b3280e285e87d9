"""Matrices in NumPy's and SciPy's own files. Nothing is unpickled."""

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from pp_models.data.formats.opening import check_unpacked, fail, parsed

MOST_MEMBERS = 1000  # arrays of an archive
_SPARSE = "not a complete sparse matrix ({}): write it again with scipy.sparse.save_npz"


def load_sparse(path: Path) -> Any:
    """A sparse matrix of any numbers, in coordinates."""
    with parsed(path, _SPARSE), path.open("rb") as file:  # NumPy leaves a file open that it opened
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
        entries = matrix.tocoo()
        check_numbers(path, entries.dtype)
        return entries


def check_archive(path: Path) -> None:
    """Refuse an archive that unpacks to far more than it holds, before memory is asked for."""
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


def mapped_array(path: Path) -> np.ndarray:
    """Rows by columns, read where it is looked at."""
    with parsed(path, "not a complete array ({}): write it again with numpy.save"):
        array = np.lib.format.open_memmap(path, mode="r")  # never unpickles, nor asks for memory
    if array.ndim != 2:
        what = f"rows by columns are needed, but this array has shape {array.shape}"
        fail(path, f"a two-dimensional array, {what}: reshape it")
    check_numbers(path, array.dtype)
    return array


def check_numbers(path: Path, kind: np.dtype) -> None:
    """Entries must be real numbers."""
    if kind.kind not in "biuf":
        fail(path, f"the entries are {kind} instead of numbers: convert them before saving")
