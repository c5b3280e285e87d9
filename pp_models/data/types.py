"""The data that models are fitted to, checked once when they are made.

    counts(X)                             documents x words, nonnegative integers
    ratings(users, items, values, shape)  observed entries of a users x items matrix
    text_and_votes(C, B)                  bills x words and bills x members, 1/0, nan = missing
    dense(Y)                              rows = observations

All are `Data`, which makes batches of fixed shape (`batches.Batch`).
"""

import dataclasses
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse

from pp_models.data import bags, frames
from pp_models.data.ids import number_ids
from pp_models.data.rows import KINDS, Data
from pp_models.errors import InputError

__all__ = ["KINDS", "Data", "counts", "dense", "ratings", "text_and_votes"]


def _names(names: Any, size: int, what: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Iterable):
        told = f"{what.capitalize()} names must be a list with one name for each {what}"
        raise InputError(f"{told}, not {names!r}.")
    names = tuple(str(n) for n in names)
    if len(names) != size:
        told = f"There are {len(names)} {what} names for {size} {what}s"
        raise InputError(f"{told}: give one name for each.")
    return names


def named(shape: Any, columns: Any, rows: Any) -> dict[str, Any]:
    """Names, their number checked, as fields of `Data`."""
    names = {"column_names": _names(columns, shape[1], "column")}
    return names | {"row_names": _names(rows, shape[0], "row")}


def _numeric(array: Any, what: str) -> Any:
    if array.dtype == bool:
        array = array.astype(np.int8)
    if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        told = f"{what} must be real numbers, not {array.dtype}"
        raise InputError(f"{told}: convert the array first.")
    return array


def _rectangular(values: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} must be rows of equal length: {error}.") from error


def _array(values: Any, what: str) -> np.ndarray:
    """Lists and arrays as an array of real numbers."""
    if scipy.sparse.issparse(values):
        told = f"{what} must be a dense array, where nan can stand for missing"
        raise InputError(f"{told}: convert the sparse matrix first.")
    return _numeric(_rectangular(values, what), what)


def _real(values: np.ndarray, what: str) -> np.ndarray:
    """Real numbers: float32 if that holds them exactly, else float64. Refused if not finite."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if not np.all(np.isfinite(single)):
        told = f"{what} hold values that are NaN, infinite or beyond single precision"
        raise InputError(f"{told}: drop them, or rescale.")
    return single if np.array_equal(single, values) else values.astype(np.float64)


def _sparse_matrix(X: Any, what: str) -> Any:
    """Any two-dimensional input as CSR, with repeated entries added in a type that holds sums."""
    X = X if scipy.sparse.issparse(X) else _rectangular(X, what)
    if X.ndim != 2:
        told = f"{what} must be a two-dimensional matrix, rows by columns"
        raise InputError(f"{told}, but the array has {X.ndim} dimension(s).")
    _numeric(X, what)
    wide = np.float64 if np.issubdtype(X.dtype, np.floating) else np.int64
    matrix = scipy.sparse.csr_array(X.astype(wide))  # widened first: this adds repeated entries
    if 0 in matrix.shape:
        size = f"{matrix.shape[0]} rows x {matrix.shape[1]} columns"
        raise InputError(f"{what} are empty ({size}): there is nothing to fit.")
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def count_matrix(X: Any) -> Any:
    """Counts as canonical CSR, checked: float32 counts of int32 columns. All may be zero."""
    matrix = _sparse_matrix(X, "Counts")
    values = matrix.data
    if not np.all(np.isfinite(values)):
        fix = "replace them by 0 or drop those rows"
        raise InputError(f"Counts hold NaN or infinite values: {fix}.")
    if np.any(values < 0):
        told = f"Counts must not be negative, but the smallest is {values.min():g}"
        raise InputError(f"{told}: check how the matrix was made.")
    if np.any(broken := values != np.floor(values)):
        told = f"Counts must be whole numbers, but one is {values[broken][0]:g}"
        raise InputError(f"{told}: pass raw counts, not tf-idf weights.")
    if values.max(initial=0) >= 2**24:
        told = f"Counts above {2**24 - 1} cannot be held exactly in single precision"
        raise InputError(f"{told}, but the largest is {values.max():g}: rescale that column.")
    columns, starts = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int64)  # copies
    parts = values.astype(np.float32), columns, starts
    matrix = scipy.sparse.csr_array(parts, shape=matrix.shape)
    matrix.eliminate_zeros()
    return matrix


def counts(X: Any, column_names: Any = None, row_names: Any = None) -> Data:
    """A corpus, sparse or dense: rows are documents, columns words, entries their counts.

    A table of counts brings its names: DataFrames, Arrow, dicts of columns. So do bags of words,
    such as gensim's. `pp_models.data.from_table` takes tables that hold other columns too.

    >>> data = counts([[4, 3, 0], [0, 0, 6]], column_names=["cat", "dog", "tax"])
    >>> data.num_rows, data.num_columns, data.total
    (2, 3, 13.0)
    """
    X, columns, rows = frames.of_numbers(X, "Counts")
    X, words = bags.of_pairs(X)
    columns = words if columns is None else columns
    matrix = count_matrix(X)
    if matrix.nnz == 0:
        raise InputError("The corpus is empty: every count is zero.")
    column_names = columns if column_names is None else column_names
    row_names = rows if row_names is None else row_names
    return Data("counts", matrix=matrix, **named(matrix.shape, column_names, row_names))


def ratings(
    users: Any,
    items: Any,
    values: Any,
    shape: tuple[int, int] | None = None,
    row_names: Any = None,
    column_names: Any = None,
) -> Data:
    """Observed entries of a users x items matrix. Entries that are not listed are missing.

    Whole numbers are indices from 0. Ids of another type become names, in increasing order.

    >>> data = ratings(users=[0, 0, 1], items=[0, 2, 1], values=[4.0, 1.0, 5.0])
    >>> data.num_rows, data.num_columns, data.num_entries
    (2, 3, 3)
    >>> ratings(["ann", "bob", "bob"], ["Alien", "Heat", "Alien"], [4.0, 1.0, 5.0]).row_names
    ('ann', 'bob')
    """
    values = _array(values, "Ratings")
    users, row_names = _indices(users, row_names, "user")
    items, column_names = _indices(items, column_names, "item")
    if values.ndim != 1 or not users.shape == items.shape == values.shape:
        told = "users, items and values must be one-dimensional and of the same length"
        raise InputError(f"{told}: one entry per rating.")
    if len(values) == 0:
        raise InputError("There are no ratings: there is nothing to fit.")
    for name, index in (("users", users), ("items", items)):
        if not np.issubdtype(index.dtype, np.integer):
            raise InputError(f"{name} must be integer indices counted from 0, not {index.dtype}.")
        if index.min() < 0:
            raise InputError(f"{name} must be counted from 0, but one index is {index.min()}.")
    if not np.all(np.isfinite(values)):
        raise InputError("Ratings hold NaN or infinite values: leave missing ratings out instead.")
    largest, stated = (int(users.max()), int(items.max())), shape is not None
    shape = (largest[0] + 1, largest[1] + 1) if shape is None else shape
    whole = [size for size in shape if isinstance(size, int | np.integer) and size > 0]
    if len(shape) != 2 or len(whole) != 2:
        raise InputError(f"shape must be (number of users, number of items), not {shape!r}.")
    if largest[0] >= shape[0] or largest[1] >= shape[1]:
        told = f"The largest indices {largest} do not fit into shape {shape}"
        raise InputError(f"{told}: enlarge shape or check the indices.")
    pairs = users.astype(np.int64) * shape[1] + items
    unique, first = np.unique(pairs, return_index=True)
    if len(unique) < len(pairs):
        i = np.setdiff1d(np.arange(len(pairs)), first)[0]
        user = users[i] if row_names is None else row_names[users[i]]
        item = items[i] if column_names is None else column_names[items[i]]
        told = f"User {user} rated item {item} more than once"
        raise InputError(f"{told}: keep one rating per pair.")
    if not stated and row_names is None is column_names:
        _warn_of_start(users, items)
    real = _real(values, "Ratings")[first]  # in row-major order
    matrix = observed(users[first], items[first], real, (int(shape[0]), int(shape[1])))
    return Data("ratings", matrix=matrix, **named(shape, column_names, row_names))


def _warn_of_start(users: np.ndarray, items: np.ndarray) -> None:
    """Say so if users and items both seem to be counted from 1, which adds one without ratings."""
    if users.min() > 0 < items.min():
        told = f"Users begin at {users.min()} and items at {items.min()}, not at 0"
        fix = "subtract these numbers, or state the shape if those below have no ratings"
        warnings.warn(f"{told}: {fix}.", stacklevel=3)


def _indices(ids: Any, names: Any, what: str) -> tuple[np.ndarray, Any]:
    """Indices with the names given, or ids that are no numbers as indices with names."""
    array = _rectangular(ids, f"{what.capitalize()}s")
    if array.dtype.kind in "biuf" or array.ndim != 1:
        return array, names
    if names is not None:
        told = f"The ids of {what}s are their names already"
        raise InputError(f"{told}: leave the names out, or pass indices from 0.")
    found = number_ids(ids, what)
    return found.indices, found.names


def of_equal_length(C: Any, length: float = 300.0) -> Any:
    """Counts scaled so that every row has this Euclidean length, rounded to whole numbers.

    For models with Gaussian noise, in which long documents would dominate the fit.
    """
    return _scaled(counts(C).matrix, length)


def tf_idf(C: Any, length: float = 50.0, reference: Any = None) -> Any:
    r"""Weighted counts, scaled to this Euclidean length and rounded, for Gaussian noise.

    A count $n$ of a word becomes $\log(1 + n)\,(\log\frac{1 + D}{1 + d} + 1)$, where $d$ of the $D$
    rows of the reference contain the word.

    reference: the rows that were fitted, to weigh new rows C in the same way; by default C itself
    """
    matrix = counts(C).matrix
    known = matrix if reference is None else counts(reference).matrix
    if known.shape[1] != matrix.shape[1]:
        told = f"The reference has {known.shape[1]} words, but the rows have {matrix.shape[1]}"
        raise InputError(f"{told}: use the same vocabulary.")
    using = np.bincount(known.indices[known.data > 0], minlength=known.shape[1])
    rarity = np.log((1 + known.shape[0]) / (1 + using)) + 1
    values = np.log1p(matrix.data) * rarity[matrix.indices]
    weighed = scipy.sparse.csr_array((values, matrix.indices, matrix.indptr), matrix.shape)
    return _scaled(weighed, length)


def _scaled(matrix: Any, length: Any) -> Any:
    """Rows of this Euclidean length, rounded to whole numbers."""
    if isinstance(length, bool) or not isinstance(length, int | float) or not 0 < length < 2**24:
        raise InputError(f"length must be a positive number below {2**24}, not {length!r}.")
    sizes = np.sqrt(np.asarray((matrix**2).sum(axis=1), np.float64)).ravel()
    factors = np.repeat(length / np.maximum(sizes, 1e-9), np.diff(matrix.indptr))
    values = np.round(factors * matrix.data)
    scaled = scipy.sparse.csr_array((values, matrix.indices, matrix.indptr), matrix.shape)
    scaled.eliminate_zeros()
    return scaled


def text_and_votes(C: Any, B: Any, column_names: Any = None, row_names: Any = None) -> Data:
    """Bills x words counts C and bills x members votes B: 1 yea, 0 nay, nan missing.

    C may be None: votes alone. Both may be tables; rows are in the same order.
    """
    B, _, bills = frames.of_numbers(B, "Votes")
    row_names = bills if C is None and row_names is None else row_names
    votes = _array(B, "Votes").astype(float)
    if votes.ndim != 2 or (C is None and votes.size == 0):
        told = "Votes must be a two-dimensional array, bills by members and one row per bill"
        raise InputError(f"{told}, but have shape {votes.shape}.")
    seen = ~np.isnan(votes)
    if len(bad := votes[seen & (votes != 0) & (votes != 1)]):
        raise InputError(f"Votes must be 1 (yea), 0 (nay) or nan (missing), but one is {bad[0]:g}.")
    row, member = np.nonzero(seen)
    matrix = observed(row, member, votes[seen].astype(np.float32), votes.shape)
    return with_votes(None if C is None else counts(C, column_names, row_names), matrix, row_names)


def observed(rows: Any, columns: Any, values: Any, shape: tuple[int, ...]) -> Any:
    """Entries in row-major order as CSR, zeros included."""
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    parts = values, columns.astype(np.int32), indptr
    return scipy.sparse.csr_array(parts, shape=shape)


def with_votes(text: Data | None, votes: Any, row_names: Any = None) -> Data:
    """Counts of bills x words, or None, with the observed votes of bills x members."""
    if text is None:
        silence = scipy.sparse.csr_array((votes.shape[0], 0), dtype=np.float32)
        text = Data("counts", matrix=silence, row_names=_names(row_names, votes.shape[0], "row"))
    if votes.shape[0] != text.num_rows:
        told = f"Text has {text.num_rows} bills but votes have shape {votes.shape}"
        raise InputError(f"{told}: both need one row per bill.")
    silent = np.flatnonzero((np.diff(votes.indptr) == 0) & (text.lengths == 0))
    if len(silent):
        raise InputError(f"Bill {silent[0]} has neither words nor votes: drop it.")
    return dataclasses.replace(text, kind="text_and_votes", votes=votes)


def dense(Y: Any, column_names: Any = None, row_names: Any = None) -> Data:
    """Real observations, one row each: images, patches."""
    Y, columns, rows = frames.of_numbers(Y, "Observations")
    column_names = columns if column_names is None else column_names
    row_names = rows if row_names is None else row_names
    values = _array(Y, "Observations")
    if values.ndim != 2:
        told = "Observations must be a two-dimensional array, rows by columns"
        raise InputError(f"{told}, but there are {values.ndim} dimension(s): flatten each image.")
    if values.size == 0:
        raise InputError("There are no observations: there is nothing to fit.")
    if not np.all(np.isfinite(values)):
        raise InputError("Observations hold NaN or infinite values: drop or impute those rows.")
    real = _real(values, "Observations")
    return Data("dense", values=real, **named(values.shape, column_names, row_names))
