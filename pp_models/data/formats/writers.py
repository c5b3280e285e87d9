"""Data into files.

    counts    .npz .npy .mtx .csv
    ratings   .npz .npy .csv
    dense     .npy

Names go beside the file, where `readers` finds them. What is read back is what was written: an
entry of 0 in the last row or column holds the shape of a csv file. Files appear whole, names
before the data, and existing ones stay unless they are to be overwritten. Counts of any size go
into .h5ad files: see `corpus`.
"""

from functools import partial
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse

from pp_models.data.files import Files, write_new
from pp_models.data.formats.names import encode_names, name_files
from pp_models.data.formats.opening import fail, usable
from pp_models.data.formats.readers import is_votes
from pp_models.data.types import Data
from pp_models.errors import InputError

FORMATS = {
    "counts": (".npz", ".npy", ".mtx", ".csv"),
    "ratings": (".npz", ".npy", ".csv"),
    "dense": (".npy",),
}
LARGEST_ARRAY = 1 << 31  # cells of a dense array
ROWS_TOGETHER = 1 << 16


def write(data: Data, path: str | Path, overwrite: bool = False) -> Path:
    """Write data and its names."""
    path = usable(path)
    known = FORMATS.get(data.kind, ())
    if path.suffix.lower() not in known or is_votes(path):
        fix = f"end the name in {', '.join((*known, '.h5ad') if data.kind == 'counts' else known)}"
        fix = fix if known else "add --kind counts to write the counts without the votes"
        fail(path, f"{data.kind} data are not written to a file of this name: {fix}")
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file.")
    _check(data, path)
    files: Files = {}
    for places, found in zip(_name_files(data, path), _names(data), strict=True):
        raw = b"" if found is None else encode_names(found)
        if found is not None and not (places[0].is_file() and places[0].read_bytes() == raw):
            files[places[0]] = partial(Path.write_bytes, data=raw)
    files[path] = partial(_write, data, path.suffix.lower())
    return write_new(path, files, overwrite, partial(_refuse_other_names, data, path))


def _names(data: Data) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    return data.column_names, data.row_names


def _name_files(data: Data, path: Path) -> tuple[list[Path], list[Path]]:
    return name_files(path, own=data.kind != "counts")


def _refuse_other_names(data: Data, path: Path) -> None:
    """Refuse if names beside the file would be read as those of data without names."""
    for files, found in zip(_name_files(data, path), _names(data), strict=True):
        other = next((file for file in files if file.is_file()), None)
        if found is None and other is not None:
            what = "would be taken for names of the data, which have none"
            raise InputError(f"{other} {what}: write to another folder, or move it away.")


def _check(data: Data, path: Path) -> None:
    """Refuse what the format cannot hold."""
    if path.suffix.lower() == ".npy" and data.num_rows * data.num_columns > LARGEST_ARRAY:
        cells = f"{data.num_rows} x {data.num_columns} are too many cells for a dense array"
        fail(path, f"{cells}: write .npz instead")
    if path.suffix.lower() == ".csv" and data.kind == "ratings":
        for what, matrix in (("user", data.matrix), ("item", data.matrix.tocsc())):
            for silent in np.flatnonzero(np.diff(matrix.indptr) == 0)[:1]:
                why = f"{what} {silent} has no ratings, which a text cannot hold"
                fail(path, f"{why}: write .npz instead, or drop the {what}")


def _write(data: Data, suffix: str, file: Path) -> None:
    with file.open("wb") as stream:
        if data.kind == "dense":
            np.save(stream, np.asarray(data.values))
            return
        matrix, rated = data.matrix.tocsr(), data.kind == "ratings"
        matrix = matrix if rated else matrix.astype(np.int32)
        entries = matrix.tocoo()
        if suffix == ".npz":
            scipy.sparse.save_npz(stream, matrix)
        elif suffix == ".mtx":
            scipy.io.mmwrite(stream, entries, symmetry="general")
        elif suffix == ".npy":
            array = np.full(matrix.shape, np.nan if rated else 0, matrix.dtype)
            array[entries.row, entries.col] = entries.data
            np.save(stream, array)
        else:
            table = np.stack([entries.row, entries.col, entries.data], axis=1, dtype=np.float64)
            last = np.array(matrix.shape) - 1
            if not rated and np.any(table[:, :2].max(axis=0) < last):
                table = np.append(table, [[*last, 0]], axis=0)
            for first in range(0, len(table), ROWS_TOGETHER):  # much faster than numpy.savetxt
                part = table[first : first + ROWS_TOGETHER]
                lines = "%d,%d,%.9g\n" * len(part) % tuple(part.ravel().tolist())
                stream.write(lines.encode())
