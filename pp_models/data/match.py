"""New rows for a fit: their columns matched to those that were fitted, by name.

Words and items that were not fitted are left out and counted. Words that the new rows do not use
are columns of zeros; columns of dense rows must all be there. Without names on both sides the
columns are taken to be the same, in the same order. Items without names are whole numbers: see
`ids.match_ids`.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from pp_models.data.coerce import Converted, check_distinct, convert, count_known
from pp_models.data.ids import match_ids
from pp_models.data.rows import Data
from pp_models.data.types import count_matrix
from pp_models.errors import InputError

UNITS = {  # kind of data -> what is counted, and what its columns are
    "counts": ("token", "word"),
    "text_and_votes": ("token", "word"),
    "ratings": ("rating", "item"),
    "dense": ("value", "column"),
}
SHOWN = 3  # names of each side in an error


class Fitted(NamedTuple):
    """What is known of the data that were fitted. members: voters of text and votes."""

    kind: str
    num_columns: int
    column_names: tuple[str, ...] | None = None
    members: int = 0


class Matched(NamedTuple):
    """Rows with the fitted columns, and a sentence about what was left out, or ""."""

    data: Data
    note: str = ""


def match(value: Any, fitted: Fitted) -> Matched:
    """New rows in whatever form `as_data` takes, with the columns of a fit."""
    if fitted.kind in ("counts", "text_and_votes"):
        value = list(value) if isinstance(value, Iterator) else value
        if (documents := texts_of(value)) is not None:
            found = count_texts(documents, fitted, _index_of(value))
            return found._replace(data=_with_members(found.data, fitted))
        value = _counted(value)
    pair = isinstance(value, tuple) and len(value) == 2  # of text and votes
    kind = "counts" if fitted.kind == "text_and_votes" and not pair else fitted.kind
    made = convert(value, kind, fitted.column_names)
    if made.data.kind not in {kind, fitted.kind}:
        raise InputError(
            f"The fit is of {fitted.kind} data, but the new rows are {made.data.kind}: make them "
            f"with pp_models.data.{fitted.kind}."
        )
    found = _by_name(_widened(made, fitted), fitted)
    return Matched(_with_members(found.data, fitted), found.note or _note_of_words(made))


def _widened(made: Converted, fitted: Fitted) -> Data:
    """Words that are numbers: the last fitted ones need not occur."""
    data = made.data
    if not made.numbered or fitted.column_names or data.num_columns >= fitted.num_columns:
        return data
    matrix = data.matrix.copy()
    matrix.resize(data.num_rows, fitted.num_columns)
    return dataclasses.replace(data, matrix=matrix)


def _note_of_words(made: Converted) -> str:
    """What was lost where only the fitted words were counted."""
    if not made.tokens:
        return ""
    note = _note("counts", made.tokens, made.data.total, made.words)
    return f"{note}, stop words aside" if made.of_texts else note


def _counted(value: Any) -> Any:
    """Matrices of counts as `Data`: here, unlike in a corpus to fit, all rows may be empty."""
    if scipy.sparse.issparse(value) or (type(value) is np.ndarray and value.ndim == 2):
        return Data("counts", matrix=count_matrix(value))
    return value


def _with_members(data: Data, fitted: Fitted) -> Data:
    """Rows of text and votes: text alone has no votes yet."""
    if fitted.kind != "text_and_votes":
        return data
    if data.votes is None:
        votes = scipy.sparse.csr_array((data.num_rows, fitted.members), dtype=np.float32)
        return dataclasses.replace(data, kind="text_and_votes", votes=votes)
    if data.num_members != fitted.members:
        raise InputError(
            f"The fit has {fitted.members} members, but the new votes are of {data.num_members}: "
            "give a column for each, nan where there is no vote."
        )
    return data


# Texts ----------------------------------------------------------------------------------------


def texts_of(value: Any) -> list[Any] | None:
    """The documents of a list, array or series of texts; None for anything else."""
    if not isinstance(value, list | tuple) and len(getattr(value, "shape", ())) != 1:
        return None
    documents = list(value)
    return documents if any(isinstance(one, str) for one in documents) else None


def _index_of(value: Any) -> Any:
    """The names of a series, unless they are only numbers."""
    index: Any = getattr(value, "index", None)
    plain = index is None or callable(index) or type(index).__name__ == "RangeIndex"
    return None if plain else list(index)


def count_texts(documents: Sequence[Any], fitted: Fitted, row_names: Any = None) -> Matched:
    """Counts of exactly the fitted words. English stop words that were not fitted are no loss."""
    if fitted.column_names is None:
        raise InputError(
            "The fit does not know the names of its words, by which texts are counted: pass "
            f"counts of its {fitted.num_columns} words."
        )
    made = count_known(documents, fitted.column_names, row_names)
    return Matched(made.data, _note_of_words(made))


# Columns by name ------------------------------------------------------------------------------


def _by_name(data: Data, fitted: Fitted) -> Matched:
    old, new = fitted.column_names, data.column_names
    if old == new and data.num_columns == fitted.num_columns:
        return Matched(data)
    if data.kind != "ratings" and (old is None or new is None):
        _check_size(data, fitted)
        return Matched(data)
    if old is not None and new is not None:
        check_distinct(old)
    target = match_ids(new, old, data.num_columns, fitted.num_columns)
    known = target >= 0
    if len(known) and fitted.num_columns and not known[_used(data)].any():
        numbers = f"the numbers 0 to {fitted.num_columns - 1}"
        theirs = _shown(new or [str(i) for i in np.flatnonzero(_used(data))])
        raise InputError(
            f"No {UNITS[fitted.kind][1]} of the new rows was fitted: theirs are {theirs}, those "
            f"fitted {_shown(old) if old else numbers}."
        )
    repeated = collections.Counter(n for n, kept in zip(new or (), known, strict=False) if kept)
    twice = [name for name, number in repeated.items() if number > 1]
    if data.kind in ("ratings", "dense") and twice:
        raise InputError(f"The new rows have {twice[0]!r} more than once: keep one of them.")
    if data.kind == "dense":
        return _dense_columns(data, old or (), target)
    shape = data.num_rows, fitted.num_columns
    coordinates = data.matrix[:].tocoo()
    kept = known[coordinates.coords[1]]
    cells = coordinates.coords[0][kept], target[coordinates.coords[1][kept]]
    matrix = scipy.sparse.csr_array((coordinates.data[kept], cells), shape=shape)
    matrix.sort_indices()
    values, lost = coordinates.data, ~kept
    if data.kind == "ratings":
        values = np.ones_like(values)
    total, missing = (float(x.sum(dtype=np.float64)) for x in (values, values[lost]))
    columns = len(np.unique(coordinates.coords[1][lost]))
    reindexed = Data(data.kind, _canonical(matrix), data.votes, None, old, data.row_names)
    return Matched(reindexed, _note(fitted.kind, missing, total - missing, columns))


def _used(data: Data) -> np.ndarray:
    """Whether each column counts where it is asked if any is known: items, if they are rated."""
    used = np.full(data.num_columns, data.kind != "ratings")
    if data.kind == "ratings":
        used[data.matrix[:].tocoo().coords[1]] = True
    return used


def _canonical(matrix: Any) -> Any:
    """Row starts and columns in the types of `Data`."""
    parts = matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int64)
    return scipy.sparse.csr_array(parts, shape=matrix.shape)


def _dense_columns(data: Data, old: tuple[str, ...], target: np.ndarray) -> Matched:
    """Dense rows with their columns in the fitted order. A missing one cannot be filled in."""
    source = np.full(len(old), -1)
    source[target[target >= 0]] = np.flatnonzero(target >= 0)
    if len(absent := np.flatnonzero(source < 0)):
        told = f"The new rows lack {len(absent)} of the {len(old)} fitted columns"
        raise InputError(f"{told}, {_shown([old[i] for i in absent])}: give them all.")
    values: Any = data.values
    lost = int((target < 0).sum())
    note = _note("dense", lost * data.num_rows, len(old) * data.num_rows, lost)
    found = dataclasses.replace(data, values=values[:, source], column_names=old)
    return Matched(found, note)


def _check_size(data: Data, fitted: Fitted) -> None:
    if data.num_columns == fitted.num_columns:
        return
    what = UNITS[fitted.kind][1]
    raise InputError(
        f"The fit has {fitted.num_columns} {what}s, but the new rows have {data.num_columns}, and "
        f"without names on both sides none can be told: give the same {what}s in the same order, "
        "or column names."
    )


def _shown(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more


def _note(kind: str, lost: float, kept: float, columns: int) -> str:
    """How much is of columns that were not fitted, in words."""
    if not lost:
        return ""
    unit, what = UNITS[kind]
    total = lost + kept
    units = unit if total == 1 else f"{unit}s"
    verb = "is" if lost == 1 else "are"
    were = f"{what} that was" if columns == 1 else f"{what}s that were"
    share = f"{lost:,.0f} of {total:,.0f} {units} ({100 * lost / total:.1f} %)"
    return f"{share} {verb} of {columns:,} {were} not fitted"
