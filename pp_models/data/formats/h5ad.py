"""AnnData's layout, in HDF5 (.h5ad) or zarr (.zarr): names, and blocks of rows of any such file."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse

from pp_models.data.formats.opening import check_shape, check_unpacked, fail, reading
from pp_models.data.types import count_matrix
from pp_models.errors import InputError

BLOCK_ENTRIES = 1 << 20  # read together
UNNAMED = "pp_models_unnamed"
WHAT = "a complete AnnData file"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The root group of a file or zarr folder, and the open file, or None."""
    with reading(path, WHAT):
        if path.suffix.lower() == ".zarr":
            yield _open_zarr(path), None
        else:
            with path.open("rb") as stream, h5py.File(stream, "r") as file:
                yield file, stream


def _open_zarr(path: Path) -> Any:
    if not path.is_dir():
        fail(path, "there is no such folder: check the path")
    try:
        import zarr
    except ImportError as error:
        fail(path, "this format needs zarr: pip install 'pp-models[zarr]'", error)
    for name in (".zarray", ".zmetadata", "zarr.json"):
        for file in path.rglob(name):  # a codec may ask for pickles
            if "pickle" in json.dumps(json.loads(file.read_bytes())).lower():
                raise ValueError(f"{file.name} asks for pickles to be loaded")
    return zarr.open_group(str(path), mode="r")


def names(file: Any) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """The names of the columns (`var`) and of the rows (`obs`)."""
    return _index(file.get("var")), _index(file.get("obs"))


def _index(frame: Any) -> tuple[str, ...] | None:
    if not hasattr(frame, "keys") or UNNAMED in frame.attrs:
        return None
    index = frame[frame.attrs["_index"]]
    if hasattr(index, "keys"):  # strings that may be missing
        index = index["values"]
    return tuple(map(str, index.asstr()[:] if hasattr(index, "asstr") else index[:]))


def blocks(path: Path, file: Any) -> Iterator[Any]:
    """The counts of some rows at a time: `layers/counts` if it is there, else `X`."""
    X = file["layers/counts" if "layers/counts" in file else "X"]
    sparse = hasattr(X, "keys")
    arrays = [X[name] for name in ("indptr", "indices", "data")] if sparse else [X]
    shape = tuple(int(size) for size in (X.attrs["shape"] if sparse else X.shape))
    if any(getattr(a, "is_virtual", False) or getattr(a, "external", None) for a in arrays):
        raise ValueError("its arrays lie in other files")
    check_unpacked(path, sum(array.size * array.dtype.itemsize for array in arrays))
    check_shape(path, shape, arrays[-1].size)
    if not sparse:
        step = max(1, BLOCK_ENTRIES // max(shape[1], 1))
        return (count_matrix(X[i : i + step]) for i in range(0, shape[0], step))
    return _sparse_blocks(X, arrays, shape)


def _sparse_blocks(X: Any, arrays: list[Any], shape: tuple[int, ...]) -> Iterator[Any]:
    form = X.attrs.get("encoding-type", X.attrs.get("h5sparse_format", "csr"))[:3]
    starts = arrays[0][:].astype(np.int64)
    major, minor = shape if form == "csr" else shape[::-1]
    if len(starts) != major + 1 or starts[0] != 0 or np.any(np.diff(starts) < 0):
        raise ValueError("where its rows start does not ascend from 0")
    if any(array.shape != (starts[-1],) for array in arrays[1:]):
        raise ValueError("its arrays do not fit together")
    step = BLOCK_ENTRIES if form == "csr" else max(int(starts[-1]), 1)  # csc: all at once
    first = 0
    while first < major:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + step, "right")) - 1)
        part = slice(int(starts[first]), int(starts[last]))
        columns, values = arrays[1][part].astype(np.int64), arrays[2][part].astype(np.float64)
        if columns.min(initial=0) < 0 or columns.max(initial=-1) >= minor:
            raise ValueError("an index is outside its shape")
        rows = np.repeat(np.arange(last - first), np.diff(starts[first : last + 1]))
        block = scipy.sparse.coo_array((values, (rows, columns)), shape=(last - first, minor))
        yield count_matrix(block if form == "csr" else block.T)
        first = last


def encode(group: Any, kind: str, version: str, **more: Any) -> None:
    """Set the attributes by which AnnData recognises a group or data set."""
    group.attrs.update({"encoding-type": kind, "encoding-version": version} | more)


def write_names(out: Any, axis: str, found: tuple[str, ...] | None, size: int) -> None:
    """Write the index of a data frame without columns: the names, or numbers."""
    frame = out.create_group(axis)
    none = np.zeros(0, h5py.string_dtype())
    encode(frame, "dataframe", "0.2.0", **{"_index": "_index", "column-order": none})
    if found is None:
        frame.attrs[UNNAMED] = True
        frame["_index"] = np.arange(size).astype("S")
    else:
        try:
            frame.create_dataset("_index", data=list(found), dtype=h5py.string_dtype())
        except (UnicodeEncodeError, ValueError) as error:
            fix = "remove null bytes and halves of characters"
            raise InputError(f"A name cannot be written as UTF-8 ({error}): {fix}.") from error
    encode(frame["_index"], "string-array", "0.2.0")
