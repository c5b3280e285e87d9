"""Ratings in whatever form people have them: see `coerce`."""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse

from pp_models.data import frames
from pp_models.data.formats.tables import ITEMS, TIMES, USERS, VALUES, places_of, plain
from pp_models.data.frames import Table
from pp_models.data.ids import match_ids, number_ids
from pp_models.data.types import Data, counts, named, ratings
from pp_models.errors import InputError


def as_ratings(value: Any) -> Data:
    """Ratings from triples, a table, or a matrix of users x items."""
    if scipy.sparse.issparse(value):
        matrix = scipy.sparse.coo_array(value)
        users, items = matrix.coords
        return ratings(users, items, matrix.data, shape=matrix.shape)
    if isinstance(value, tuple) and len(value) == 3 and all(map(np.ndim, value)):
        users, items, values = value
        return of_ids(users, items, values)
    if isinstance(value, list) and value and isinstance(value[0], Mapping | tuple):
        return _of_table(frames.records(value), isinstance(value[0], tuple))
    table = value if isinstance(value, Table) else frames.table_of(value)
    if table is not None:
        return _of_table(table)
    array = np.asarray(value)
    if array.ndim == 2 and array.dtype.kind in "OUS":
        return _of_table(frames.records([tuple(row) for row in array.tolist()]), True)
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        told = f"Ratings are not made from a {type(value).__name__}"
        fix = "pass (users, items, values), a table with these columns, or a matrix, users x items"
        raise InputError(f"{told}: {fix}, nan where there is none.")
    if array.shape[1] == 3 and not np.isnan(array).any() and _are_indices(array[:, :2]):
        told = "An array of three columns can be ratings of three items, or user, item and rating"
        fix = "for these pass (users, items, values), for those scipy.sparse.csr_array(X)"
        raise InputError(f"{told}: {fix}.")
    return _of_array(array.astype(np.float64), None, None)


def _are_indices(array: np.ndarray) -> bool:
    return bool(np.all(array == np.floor(array)) and array.min(initial=0) >= 0)


def _of_array(array: np.ndarray, columns: Any, rows: Any) -> Data:
    """Users x items, nan where there is no rating."""
    seen = ~np.isnan(array)
    if seen.all() and np.mean(array == 0) > 0.5:
        told = "The matrix has no nan, and most ratings are 0"
        fix = "np.where(X == 0, np.nan, X) if 0 stands for missing"
        raise InputError(f"{told}: pass {fix}, or scipy.sparse.coo_array if they are observed.")
    users, items = np.nonzero(seen)
    found = ratings(users, items, array[seen], shape=array.shape)
    return dataclasses.replace(found, **named(array.shape, columns, rows))


def of_ids(users: Any, items: Any, values: Any) -> Data:
    """Ratings by ids of any type."""
    rows, columns = number_ids(users, "user"), number_ids(items, "item")
    if len(rows.indices) != len(columns.indices):
        told = f"There are {len(rows.indices)} users and {len(columns.indices)} items"
        raise InputError(f"{told}: give one of each for every rating.")
    indices, names = (rows.indices, columns.indices), (rows.names, columns.names)
    return ratings(*indices, np.asarray(values), None, *names)


def of_entries(table: Table, places: Any, kind: str) -> Data:
    """A long table: a line for each entry."""
    users, items, values = (table.column(place) for place in places)
    if table.kinds[places[2]] != frames.NUMBER:
        name = table.names[places[2]]
        raise InputError(f"The values must be numbers, but the column {name!r} holds others.")
    if kind == "ratings":
        return of_ids(users, items, frames.numbers(values))
    rows, columns = number_ids(users, "row"), number_ids(items, "column")
    counted = frames.numbers(values), (rows.indices, columns.indices)
    return counts(scipy.sparse.coo_array(counted), columns.names, rows.names)


def _of_table(table: Table, long: bool = False) -> Data:
    """A table of users, items and ratings, found by name or position; or users x items.

    long: it is known to have a line for each rating
    """
    places = places_of(table.names, USERS, ITEMS, VALUES)
    if places is None and _is_long(table, long):
        places = (0, 1, 2)
    if places is not None:
        others = [i for i in range(len(table.names)) if i not in places]
        if others:
            told = "Ratings are user, item and rating"
            what = table.listed(others)
            warnings.warn(f"{told}: the column(s) {what} are ignored.", stacklevel=4)
        return of_entries(table, places, "ratings")
    return of_matrix(table)


def _is_long(table: Table, long: bool) -> bool:
    """Whether the first three columns are user, item and rating, and a fourth at most a time."""
    if len(table.names) < 3 or table.kinds[2] != frames.NUMBER:
        return False
    if len(table.names) > 3 and not (long and len(table.names) == 4):
        timed = plain(table.names[3]) in TIMES or table.kinds[3] == frames.TIME
        if len(table.names) > 4 or not (timed or not table.labelled):
            return False
    if long or frames.NUMBER not in table.kinds[:2] or frames.TEXT in table.kinds[:2]:
        return True
    ids = np.column_stack([frames.numbers(table.column(place)) for place in range(3)])
    whole = table.rows is None and not np.isnan(ids).any() and _are_indices(ids[:, :2])
    if whole and table.labelled:
        told = f"The columns {table.listed()} can be items, or user, item and rating"
        what = ", ".join(map(repr, table.names[:3]))
        fix = f"for these pass pp_models.data.from_table(table, 'ratings', entries=({what}))"
        items = "for those pp_models.data.from_table(table, 'ratings')"
        raise InputError(f"{told}: {fix}, {items}.")
    return whole


def of_matrix(table: Table) -> Data:
    """A table of users x items, nan where there is no rating."""
    if other := [place for place, kind in enumerate(table.kinds) if kind != frames.NUMBER]:
        told = f"The columns {table.listed()} are not understood as ratings"
        name = repr(table.names[other[0]])
        fix = "pp_models.data.from_table(table, 'ratings', entries=(user, item, rating))"
        wide = f"from_table(table, 'ratings', id={name}) for a column of ratings for each item"
        raise InputError(f"{told}: name them, as in {fix}, or {wide}.")
    matrix = table.matrix()
    if scipy.sparse.issparse(matrix):
        found = as_ratings(matrix)
        names = named(matrix.shape, table.names if table.labelled else None, table.rows)
        return dataclasses.replace(found, **names)
    columns = table.names if table.labelled else None
    return _of_array(np.asarray(matrix, np.float64), columns, table.rows)


# Of users and items that are known ----------------------------------------------------------------


def match_ratings(
    data: Data,
    row_names: tuple[str, ...] | None,
    column_names: tuple[str, ...] | None,
    shape: tuple[int, int],
) -> tuple[Data, int]:
    """Ratings with the indices that these users and items have, and how many are of others.

    shape: how many users and items are known. Names are None where they are whole numbers from 0
    """
    same = data.row_names == row_names and data.column_names == column_names
    if same and (data.num_rows, data.num_columns) == tuple(shape):
        return data, 0
    rows = match_ids(data.row_names, row_names, data.num_rows, shape[0])
    columns = match_ids(data.column_names, column_names, data.num_columns, shape[1])
    entries = data.matrix.tocoo()
    users, items = rows[entries.row], columns[entries.col]
    kept = (users >= 0) & (items >= 0)
    if not kept.any():
        of = [one for one in (data.row_names, data.column_names) if one]
        such = f", such as {of[0][0]!r}," if of else ""
        told = f"None of the {len(kept)} ratings is of a user{such} and an item that were fitted"
        raise InputError(f"{told}: use the ids of the data that were fitted.")
    found = ratings(users[kept], items[kept], entries.data[kept], shape, row_names, column_names)
    return found, int(np.sum(~kept))
