"""Ratings and dense observations from files.

    ratings   .csv .tsv    `user,item,rating`, users and items from 0; further columns are ignored
              .npz         scipy.sparse.save_npz: what is stored is observed, zeros too
              .npy         users x items, nan where there is no rating
              .parquet .arrow .feather    user, item and rating
    dense     .npy         rows x columns
              .csv .tsv    one row a line

Text may be gzipped and begin with a header line, in which no number stands. Names of columns and
rows may lie beside the file, one a line, as `<stem>.vocab` and `<stem>.rows`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from pp_models.data.formats import arrow, binary, numbers, readers
from pp_models.data.formats.opening import check_shape, existing, explained, fail, open_text
from pp_models.data.types import Data, dense, ratings


def read_ratings(path: Path, complete: bool = True) -> Data:
    """Ratings of users x items; what is not listed is missing.

    complete: refuse a table in which some number below the largest has no rating.
    """
    with explained(existing(path)):
        suffix = _suffix(path, (".csv", ".tsv", ".npz", ".npy", *arrow.SUFFIXES))
        if suffix == ".npz":
            matrix = binary.load_sparse(path)
            check_shape(path, matrix.shape, matrix.nnz)
            entries = matrix.row, matrix.col, matrix.data
            return ratings(*entries, shape=matrix.shape, **_names(path))
        if suffix == ".npy":
            array = np.asarray(binary.mapped_array(path), np.float64)
            users, items = np.nonzero(~np.isnan(array))
            return ratings(users, items, array[users, items], shape=array.shape, **_names(path))
        if suffix in arrow.SUFFIXES:
            table = np.concatenate([np.zeros((0, 3)), *(part for part, _ in arrow.tables(path))])
        else:
            table = _text(path, usecols=(0, 1, 2))
        lines = np.arange(1, len(table) + 1)
        users, items = numbers.check_whole(path, table[:, :2], lines, readers.INDEX).T
        shape = int(users.max(initial=0)) + 1, int(items.max(initial=0)) + 1
        check_shape(path, shape, len(table))
        for what, index in (("user", users), ("item", items)) if complete else ():
            for silent in np.flatnonzero(np.bincount(index) == 0)[:1]:
                fix = f"number {what}s consecutively from 0, or use .npz, which holds the shape"
                fail(path, f"{what} {silent} has no ratings: {fix}")
        return ratings(users, items, table[:, 2], **_names(path))


def read_dense(path: Path) -> Data:
    """Rows of real observations."""
    with explained(existing(path)):
        array = _suffix(path, (".npy", ".csv", ".tsv")) == ".npy"
        return dense(binary.mapped_array(path) if array else _text(path), **_names(path))


def _names(path: Path) -> dict[str, Any]:
    beside = readers.names(path, own=True)
    return {"column_names": beside.columns, "row_names": beside.rows}


def _suffix(path: Path, known: tuple[str, ...]) -> str:
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    if suffix not in known:
        fail(path, f"the file's name must end in {', '.join(known)}: rename or convert it")
    if name.endswith(".gz") and suffix not in (".csv", ".tsv"):
        fail(path, "only text may be gzipped: unpack the file")
    return suffix


def _text(path: Path, **options: Any) -> np.ndarray:
    """The numbers of a delimited text."""
    form = "user,item,rating" if options else "number,number,..."
    with open_text(path) as stream:
        source, delimiter = numbers.delimited(path, stream)
        found = numbers.tables(path, source, form, delimiter=delimiter, **options)
        parts = [table for table, _ in found]
    if not parts:
        fail(path, "there are no entries in it")
    if len({part.shape[1] for part in parts}) > 1:
        fail(path, "its lines hold different numbers of columns: complete them")
    return np.concatenate(parts)
