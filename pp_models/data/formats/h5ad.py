"""AnnData's layout of an HDF5 file: names, and the blocks of files that others wrote."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse

from pp_models.data.formats.opening import check_shape, check_unpacked
from pp_models.data.types import count_matrix
from pp_models.errors import InputError

BLOCK_ENTRIES = 1 << 20  # read together
UNNAMED = "pp_models_unnamed"


def names(file: Any) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Of the columns (`var`) and of the rows (`obs`)."""
    return _index(file.get("var")), _index(file.get("obs"))


def _index(frame: Any) -> tuple[str, ...] | None:
    if not isinstance(frame, h5py.Group) or UNNAMED in frame.attrs:
        return None
    index = frame[frame.attrs["_index"]]
    if isinstance(index, h5py.Group):  # strings that may be missing
        index = index["values"]
    return tuple(index.asstr()[:])


def blocks(path: Path, file: Any) -> Iterator[Any]:
    """The counts of anybody's file, some rows at a time."""
    where = "layers/counts" if "layers/counts" in file else "X"
    X = file[where]
    sparse = isinstance(X, h5py.Group)
    arrays = [X[name] for name in ("indptr", "indices", "data")] if sparse else [X]
    shape = tuple(int(size) for size in (X.attrs["shape"] if sparse else X.shape))
    if any(array.is_virtual or array.external for array in arrays):
        raise ValueError("its arrays lie in other files")
    check_unpacked(path, sum(array.size * array.dtype.itemsize for array in arrays))
    check_shape(path, shape, arrays[-1].size)
    return _blocks(X, arrays, shape)


def _blocks(X: Any, arrays: list[Any], shape: tuple[int, ...]) -> Iterator[Any]:
    if len(arrays) == 1:
        step = max(1, BLOCK_ENTRIES // max(shape[1], 1))
        for first in range(0, shape[0], step):
            yield count_matrix(X[first : first + step])
        return
    form = X.attrs.get("encoding-type", X.attrs.get("h5sparse_format", "csr"))[:3]
    starts = arrays[0][:].astype(np.int64)
    major, minor = shape if form == "csr" else shape[::-1]
    if len(starts) != major + 1 or starts[0] != 0 or np.any(np.diff(starts) < 0):
        raise ValueError("where its rows start does not ascend from 0")
    if any(array.shape != (starts[-1],) for array in arrays[1:]):
        raise ValueError("its arrays do not fit together")
    step = BLOCK_ENTRIES if form == "csr" else max(int(starts[-1]), 1)  # columns: all at once
    first = 0
    while first < major:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + step, "right")) - 1)
        part = slice(starts[first], starts[last])
        columns, values = arrays[1][part].astype(np.int64), arrays[2][part].astype(np.float64)
        if columns.min(initial=0) < 0 or columns.max(initial=-1) >= minor:
            raise ValueError("an index is outside its shape")
        rows = np.repeat(np.arange(last - first), np.diff(starts[first : last + 1]))
        block = scipy.sparse.coo_array((values, (rows, columns)), shape=(last - first, minor))
        yield count_matrix(block if form == "csr" else block.T)
        first = last


def encode(group: Any, kind: str, version: str, **more: Any) -> None:
    """AnnData tells by these attributes what a group or data set is."""
    for name, value in ({"encoding-type": kind, "encoding-version": version} | more).items():
        group.attrs[name] = value


def write_names(out: Any, axis: str, names: tuple[str, ...] | None, size: int) -> None:
    """As the index of a data frame without columns; numbers where there are no names."""
    frame = out.create_group(axis)
    none = np.zeros(0, h5py.string_dtype())
    encode(frame, "dataframe", "0.2.0", **{"_index": "_index", "column-order": none})
    if names is None:
        frame.attrs[UNNAMED] = True
        frame["_index"] = np.arange(size).astype("S")
    else:
        try:
            frame.create_dataset("_index", data=list(names), dtype=h5py.string_dtype())
        except (UnicodeEncodeError, ValueError) as error:
            fix = "remove null bytes and halves of characters"
            raise InputError(f"A name cannot be written as UTF-8 ({error}): {fix}.") from error
    encode(frame["_index"], "string-array", "0.2.0")
