"""Ratings and dense observations from files.

    ratings   .csv .tsv    `user,item,rating`, users and items counted from 0, with or without a header line (no number in it); further columns
                           are ignored
              .npz         scipy.sparse.save_npz: what is stored is observed, zeros too
              .npy         users x items, nan where there is no rating
    dense     .npy         rows x columns
              .csv .tsv    one row a line, with or without a header line

Text may be gzipped. Names of columns and rows may lie beside the file, one a line, as `<stem>.vocab` and `<stem>.rows`. Whatever is wrong with a
file becomes an `InputError` that names it. Counts are read by `readers`.
"""

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pp_models import binary, readers
from pp_models.data import Data, dense, ratings
from pp_models.errors import InputError
from pp_models.scanning import LINE_BYTES, check_shape, existing, explained, fail, open_text


def read_ratings(path: Path, complete: bool = True) -> Data:
    """Ratings of users x items; what is not listed is missing. `complete`: refuse a text in which some number below the largest has no rating."""
    with _explained(path):
        suffix = _suffix(path)
        if suffix == ".npz":
            matrix = binary.load_sparse(path)
            check_shape(path, matrix.shape, matrix.nnz)
            return ratings(matrix.row, matrix.col, matrix.data, shape=matrix.shape, **_names(path))
        if suffix == ".npy":
            table = _array(path)
            users, items = np.nonzero(~np.isnan(table))
            return ratings(users, items, table[users, items], shape=table.shape, **_names(path))
        table = _text(path, suffix, 3)
        index = table[:, :2]
        bad = ~np.all((index >= 0) & (index == np.floor(index)) & (index < 2**31 - 1), 1)  # nan is bad, too
        if bad.any():
            raise InputError(f"entry {int(np.argmax(bad)) + 1} names user {index[bad][0, 0]:g} and item {index[bad][0, 1]:g}: count both from 0.")
        users, items = index.T.astype(np.int64)
        check_shape(path, (int(users.max()) + 1, int(items.max()) + 1), len(index))
        for what, numbers in (("user", users), ("item", items)) if complete else ():
            silent = np.flatnonzero(np.bincount(numbers) == 0)
            if len(silent):
                raise InputError(f"{what} {silent[0]} has no ratings: number {what}s consecutively from 0, or use .npz, which holds the shape.")
        return ratings(users, items, table[:, 2], **_names(path))


def read_dense(path: Path) -> Data:
    """Rows of real observations."""
    with _explained(path):
        suffix = _suffix(path)
        if suffix == ".npz":
            raise InputError("dense observations are read from .npy, .csv or .tsv: save the array with numpy.save.")
        return dense(_array(path) if suffix == ".npy" else _text(path, suffix), **_names(path))


def _names(path: Path) -> dict[str, Any]:
    beside = readers.names(path, own=True)
    return {"column_names": beside.columns, "row_names": beside.rows}


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside is an InputError that names the file."""
    existing(path)
    try:
        with explained(path):
            yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error


def _suffix(path: Path) -> str:
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix not in (".csv", ".tsv", ".npz", ".npy"):
        raise InputError("the file's name must end in .csv, .tsv, .npz or .npy, which tells its format: rename it.")
    if suffix in (".npz", ".npy") and path.name.lower().endswith(".gz"):
        raise InputError("only text may be gzipped: unpack the file.")
    return suffix


def _array(path: Path) -> np.ndarray:
    array = binary.mapped_array(path)
    if array.dtype.kind not in "biuf":
        raise InputError(f"an array of numbers is needed, but this one is {array.dtype}: convert it.")
    return np.asarray(array, np.float64)


def _text(path: Path, suffix: str, num_columns: int | None = None) -> np.ndarray:
    """The numbers of a delimited text, all of a line or the first few; a first line without any number is a header."""
    delimiter = "\t" if suffix == ".tsv" else ","
    try:
        with open_text(path) as file:
            lines = _lines(path, file)
            first = next(lines, "")
            fields = first.strip().split(delimiter)
            if any(map(_is_number, fields)):
                lines = itertools.chain([first], lines)
            if num_columns and len(fields) < num_columns:
                raise InputError(f"there are {len(fields)} column(s) where {num_columns} are needed: write lines of `user,item,rating`.")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # an empty file is found below
                table = np.loadtxt(lines, delimiter=delimiter, comments=None, ndmin=2, usecols=range(num_columns) if num_columns else None)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError("the file is not text in UTF-8: check what it is.") from error
    except ValueError as error:
        raise InputError(f"a line does not hold the numbers it should ({str(error).splitlines()[0]}): correct or delete it.") from error
    if table.size == 0:
        raise InputError("there are no entries in it.")
    return table


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    for number in itertools.count(1):
        line = file.readline(LINE_BYTES)
        if len(line) == LINE_BYTES:
            fail(path, f"the line is longer than {LINE_BYTES >> 20} MB: this is not a table of numbers", number)
        if not line:
            return
        yield line.decode("utf-8")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
