"""The data types models are fitted to, checked once when they are made.

    counts(X)                             documents x words, nonnegative integers
    ratings(users, items, values, shape)  observed entries of a users x items matrix; the rest is missing, not zero
    text_and_votes(C, B)                  bills x words and bills x members, 1/0, nan = missing
    dense(Y)                              rows = observations

All are `Data`: rows in, fixed-shape batches (`batches.Batch`) out.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from scipy.special import gammaln

from pp_models.data.batches import (
    Batch,
    Entries,
    Layout,
    batch_capacity,
    deal,
    pack_entries,
    part_widths,
    shuffled,
    window_widths,
)
from pp_models.errors import InputError

KINDS = ("counts", "ratings", "text_and_votes", "dense")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Rows of observations on the host.

    kind:          one of `KINDS`
    matrix:        CSR matrix of counts or ratings, or None
    votes:         CSR matrix of observed votes, or None
    values:        (rows, columns) array of dense observations, or None
    column_names:  the vocabulary, item names, ... or None
    row_names:     document titles, user names, ... or None
    """

    kind: str
    matrix: Any = None
    votes: Any = None
    values: np.ndarray | None = None
    column_names: tuple[str, ...] | None = None
    row_names: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        members = f" x {self.num_members} members" if self.votes is not None else ""
        return f"Data({self.kind}, {self.num_rows} rows x {self.num_columns} columns{members}, {self.num_entries} entries)"

    @property
    def num_rows(self) -> int:
        return self._main.shape[0]

    @property
    def num_columns(self) -> int:
        return self._main.shape[1]

    @property
    def num_entries(self) -> int:
        return int(self._main.size if self.matrix is None else self.matrix.nnz)

    @property
    def _main(self) -> Any:
        return self.values if self.matrix is None else self.matrix

    @property
    def num_members(self) -> int:
        """Voters, of text and votes."""
        return 0 if self.votes is None else self.votes.shape[1]

    @functools.cached_property
    def total(self) -> float:
        """Sum of all entries: the number of tokens of a corpus."""
        entries = (
            np.asarray(self.values) if self.matrix is None else self.matrix.data
        )  # SciPy 1.14 sums a matrix in the type of its entries
        return float(entries.sum(dtype=np.float64))

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Entries per row."""
        return (
            np.diff(self.matrix.indptr)
            if self.matrix is not None
            else np.full(self.num_rows, self.num_columns)
        )

    @functools.cached_property
    def _vote_lengths(self) -> np.ndarray:
        return np.diff(self.votes.indptr)

    @functools.cached_property
    def totals(self) -> np.ndarray:
        """The sum of each row's entries."""
        return row_sums(self._main)

    @functools.cached_property
    def _log_factorials(self) -> np.ndarray:
        if self.kind not in ("counts", "text_and_votes"):
            return np.zeros(self.num_rows)
        terms = gammaln(self.matrix.data.astype(np.float64) + 1)
        return np.add.reduceat(np.append(terms, 0.0), self.matrix.indptr[:-1]) * (self.lengths > 0)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the contents, recorded with every result."""
        digest = hashlib.sha256(f"{self.kind} {self.num_rows} {self.num_columns}".encode())
        for matrix in (self.matrix, self.votes):
            if matrix is not None:
                for part, kind in (
                    (matrix.indptr, np.int64),
                    (matrix.indices, np.int64),
                    (matrix.data, matrix.data.dtype),
                ):
                    digest.update(np.ascontiguousarray(part, kind).tobytes())
        if self.values is not None:
            digest.update(np.ascontiguousarray(self.values).tobytes())
        return digest.hexdigest()

    def select(self, rows: np.ndarray) -> "Data":
        """The same data with only these rows."""
        rows = np.arange(self.num_rows)[rows]  # a mask or a slice will do as well
        names = None if self.row_names is None else tuple(self.row_names[i] for i in rows)
        parts: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[rows]
            for name in ("matrix", "votes", "values")
        }
        return dataclasses.replace(self, **parts, row_names=names)

    # Batches ------------------------------------------------------------------------------------------------------------------

    def layout(self, num_rows: int) -> Layout:
        """The static sizes of this data set's batches of `num_rows` rows."""
        widths, capacity = (
            dict(self._widths),
            {name: self._capacity(name, num_rows) for name in self._widths},
        )
        if self.kind == "ratings":
            widths["by_column"], capacity["by_column"] = (
                part_widths(self._column_lengths, num_rows / self.num_rows, num_rows),
                capacity["matrix"],
            )
        return Layout(widths, capacity, self.num_rows, self._largest_total)

    @functools.cached_property
    def _largest_total(self) -> int:
        return int(self.totals.max())

    @functools.cached_property
    def _column_lengths(self) -> np.ndarray:
        return np.bincount(self.matrix.indices, minlength=self.num_columns)

    @functools.cached_property
    def _widths(self) -> dict[str, tuple[int, ...]]:
        return {
            name: window_widths(np.diff(getattr(self, name).indptr))
            for name in ("matrix", "votes")
            if getattr(self, name) is not None
        }

    @functools.cached_property
    def _capacities(self) -> dict[tuple[str, int], int]:
        return {}

    def _capacity(self, name: str, num_rows: int) -> int:
        if (name, num_rows) not in self._capacities:
            self._capacities[name, num_rows] = batch_capacity(
                np.diff(getattr(self, name).indptr), num_rows
            )
        return self._capacities[name, num_rows]

    def pack(
        self,
        rows: np.ndarray | None = None,
        num_rows: int | None = None,
        device: Any = None,
        layout: Layout | None = None,
    ) -> Batch:
        """The given rows (default: all) as a batch padded to `num_rows`, on one device."""
        rows = np.arange(self.num_rows) if rows is None else np.asarray(rows)
        num_rows = len(rows) if num_rows is None else num_rows
        layout = self.layout(num_rows) if layout is None else layout
        dtype = jnp.result_type(float)

        def entries(name: str) -> Entries | None:
            matrix = getattr(self, name)
            if matrix is None:
                return None
            chosen, places = (
                (matrix, rows)
                if scipy.sparse.issparse(matrix)
                else (matrix[rows], np.arange(len(rows)))
            )  # on disk: read once
            return pack_entries(
                chosen, places, num_rows, layout.widths[name], layout.capacity[name], dtype
            )

        def by_column() -> Entries | None:
            if self.kind != "ratings":
                return None
            turned = self.matrix[rows].tocsc().T  # a CSR matrix with one row for each column
            return pack_entries(
                turned,
                np.arange(self.num_columns),
                self.num_columns,
                layout.widths["by_column"],
                layout.capacity["by_column"],
                dtype,
            )

        def padded(values: np.ndarray, kind: Any = dtype) -> np.ndarray:
            out = np.zeros((num_rows, *values.shape[1:]), kind)
            out[: len(rows)] = values[rows]
            return out

        batch = Batch(
            positions=np.append(rows, np.full(num_rows - len(rows), self.num_rows)).astype(
                np.int32
            ),
            mask=(np.arange(num_rows) < len(rows)).astype(dtype),
            entries=entries("matrix"),
            by_column=by_column(),
            votes=entries("votes"),
            dense=None if self.values is None else padded(self.values),
            totals=padded(self.totals),
            log_factorials=padded(self._log_factorials),
            num_data_rows=layout.num_data_rows,
            num_columns=self.num_columns,
            num_members=self.num_members,
            max_total=layout.max_total,
        )
        return jax.device_put(batch, device)

    def shards(
        self, rows: np.ndarray, num_rows: int, devices: Sequence[Any], layout: Layout | None = None
    ) -> tuple[Batch, ...]:
        """Rows dealt out to the devices, one batch of the same shapes each, of `num_rows` rows in all (padding included).

        Of devices that belong to several processes, each process gets its own ones' batches and reads no more than their rows.
        """
        per_device = -(-num_rows // len(devices))
        parts = deal(rows, self.lengths, len(devices))
        layout = self._with_room(self.layout(per_device) if layout is None else layout, parts)
        here = jax.process_index()
        return tuple(
            self.pack(part, per_device, device, layout)
            for part, device in zip(parts, devices, strict=True)
            if device.process_index == here
        )

    def _with_room(self, layout: Layout, parts: Sequence[np.ndarray]) -> Layout:
        """The layout, with room for the fullest of the parts where, against the odds, it has none."""
        capacity = dict(layout.capacity)
        for name in capacity:
            lengths = self._vote_lengths if name == "votes" else self.lengths
            capacity[name] = max(capacity[name], *(int(lengths[part].sum()) for part in parts))
        return layout._replace(capacity=capacity)

    def batches(
        self,
        key: jax.Array,
        batch_size: int,
        devices: Sequence[Any],
        drop_last: bool = False,
        skip: int = 0,
    ) -> Iterator[tuple[Batch, ...]]:
        """One pass in random order, the first `skip` batches of it left out: for each step, one batch per device."""
        for rows in itertools.islice(
            shuffled(key, self.num_rows, batch_size, drop_last), skip, None
        ):
            yield self.shards(rows, batch_size, devices)


# Constructors -----------------------------------------------------------------------------------------------------------------


def _names(names: Any, size: int, what: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(
            f"{what.capitalize()} names must be a list with one name for each {what}, not {names!r}."
        )
    names = tuple(str(n) for n in names)
    if len(names) != size:
        raise InputError(
            f"There are {len(names)} {what} names for {size} {what}s: give one name for each."
        )
    return names


def _numeric(array: Any, what: str) -> Any:
    if array.dtype == bool:
        array = array.astype(np.int8)
    if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise InputError(
            f"{what} must be real numbers, not {array.dtype}: convert the array first."
        )
    return array


def _rectangular(values: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} must be rows of equal length: {error}.") from error


def _array(values: Any, what: str) -> np.ndarray:
    """Lists and arrays as an array of real numbers."""
    if scipy.sparse.issparse(values):
        raise InputError(
            f"{what} must be a dense array, where nan can stand for missing: convert the sparse matrix first."
        )
    return _numeric(_rectangular(values, what), what)


def _single(values: np.ndarray, what: str) -> np.ndarray:
    """Real numbers as float32, refused when they are not finite there."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if not np.all(np.isfinite(single)):
        raise InputError(
            f"{what} hold values that are NaN, infinite or beyond single precision: drop them, or rescale."
        )
    return single


def _sparse_matrix(X: Any, what: str) -> Any:
    """Any two-dimensional input as CSR with repeated entries added, in a type that holds their sums."""
    X = X if scipy.sparse.issparse(X) else _rectangular(X, what)
    if X.ndim != 2:
        raise InputError(
            f"{what} must be a two-dimensional matrix, rows by columns, but the array has {X.ndim} dimension(s)."
        )
    _numeric(X, what)
    wide = np.float64 if np.issubdtype(X.dtype, np.floating) else np.int64
    matrix = scipy.sparse.csr_array(
        X.astype(wide)
    )  # widened first: repeated entries are added on the way
    if matrix.shape[0] == 0 or matrix.shape[1] == 0:
        raise InputError(
            f"{what} are empty ({matrix.shape[0]} rows x {matrix.shape[1]} columns): there is nothing to fit."
        )
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def count_matrix(X: Any) -> Any:
    """Counts as CSR in canonical format, checked: float32 counts of int32 columns. All may be zero."""
    matrix = _sparse_matrix(X, "Counts")
    values = matrix.data
    if not np.all(np.isfinite(values)):
        raise InputError(
            "Counts hold NaN or infinite values: replace them by 0 or drop those rows."
        )
    if np.any(values < 0):
        raise InputError(
            f"Counts must not be negative, but the smallest is {values.min():g}: check how the matrix was made."
        )
    if np.any(values != np.floor(values)):
        raise InputError(
            f"Counts must be whole numbers, but one is {values[values != np.floor(values)][0]:g}: pass raw counts, not tf-idf weights."
        )
    if values.max(initial=0) >= 2**24:
        raise InputError(
            f"Counts above {2**24 - 1} cannot be held exactly in single precision, but the largest is {values.max():g}: rescale that column."
        )
    parts = (
        values.astype(np.float32),
        matrix.indices.astype(np.int32),
        matrix.indptr.astype(np.int64),
    )  # the caller's matrix stays as it is
    matrix = scipy.sparse.csr_array(parts, shape=matrix.shape)
    matrix.eliminate_zeros()
    return matrix


def counts(X: Any, column_names: Any = None, row_names: Any = None) -> Data:
    """A corpus: rows are documents, columns words, entries how often. Sparse or dense.

    >>> data = counts([[4, 3, 0], [0, 0, 6]], column_names=["cat", "dog", "tax"])
    >>> data.num_rows, data.num_columns, data.total
    (2, 3, 13.0)
    """
    matrix = count_matrix(X)
    if matrix.nnz == 0:
        raise InputError("The corpus is empty: every count is zero.")
    names = (
        _names(column_names, matrix.shape[1], "column"),
        _names(row_names, matrix.shape[0], "row"),
    )
    return Data("counts", matrix=matrix, column_names=names[0], row_names=names[1])


def ratings(
    users: Any,
    items: Any,
    values: Any,
    shape: tuple[int, int] | None = None,
    row_names: Any = None,
    column_names: Any = None,
) -> Data:
    """Observed entries of a users x items matrix. What is not listed is missing.

    >>> data = ratings(users=[0, 0, 1], items=[0, 2, 1], values=[4.0, 1.0, 5.0])
    >>> data.num_rows, data.num_columns, data.num_entries
    (2, 3, 3)
    """
    users, items, values = (
        _rectangular(users, "Users"),
        _rectangular(items, "Items"),
        _array(values, "Ratings"),
    )
    if not (
        users.ndim == items.ndim == values.ndim == 1 and len(users) == len(items) == len(values)
    ):
        raise InputError(
            "users, items and values must be one-dimensional and of the same length: one entry per rating."
        )
    if len(values) == 0:
        raise InputError("There are no ratings: there is nothing to fit.")
    for name, index in (("users", users), ("items", items)):
        if not np.issubdtype(index.dtype, np.integer):
            raise InputError(f"{name} must be integer indices counted from 0, not {index.dtype}.")
        if index.min() < 0:
            raise InputError(f"{name} must be counted from 0, but one index is {index.min()}.")
    if not np.all(np.isfinite(values)):
        raise InputError("Ratings hold NaN or infinite values: leave missing ratings out instead.")
    values = _single(values, "Ratings")
    if shape is not None and (
        len(shape) != 2
        or not all(isinstance(size, int | np.integer) and size > 0 for size in shape)
    ):
        raise InputError(f"shape must be (number of users, number of items), not {shape!r}.")
    shape = (
        (int(users.max()) + 1, int(items.max()) + 1)
        if shape is None
        else (int(shape[0]), int(shape[1]))
    )
    if users.max() >= shape[0] or items.max() >= shape[1]:
        raise InputError(
            f"The largest indices ({users.max()}, {items.max()}) do not fit into shape {shape}: enlarge shape or check the indices."
        )
    pairs = users.astype(np.int64) * shape[1] + items
    unique, first = np.unique(pairs, return_index=True)
    if len(unique) < len(pairs):
        repeated = np.setdiff1d(np.arange(len(pairs)), first)[0]
        raise InputError(
            f"User {users[repeated]} rated item {items[repeated]} more than once: keep one rating per pair."
        )
    matrix = observed(
        users[first], items[first], values[first], shape
    )  # unique pairs, in row-major order
    names = _names(column_names, shape[1], "column"), _names(row_names, shape[0], "row")
    return Data("ratings", matrix=matrix, column_names=names[0], row_names=names[1])


def of_equal_length(C: Any, length: float = 300.0) -> Any:
    """Counts scaled so that every row has this Euclidean length, rounded: for models in which long documents would weigh more than short ones."""
    _check_length(length)
    return _scaled(counts(C).matrix, length)


def tf_idf(C: Any, length: float = 50.0, reference: Any = None) -> Any:
    """log(1 + count) times log((1 + rows) / (1 + rows with the word)) + 1, scaled so that every row has this Euclidean length, and rounded.

    For models of counts with Gaussian noise, whose fit long documents and frequent words would decide. reference: rows in which words are counted, so
    that new rows are weighed as those that were fitted; by default C itself.
    """
    _check_length(length)
    matrix = counts(C).matrix
    known = matrix if reference is None else counts(reference).matrix
    if known.shape[1] != matrix.shape[1]:
        raise InputError(
            f"The reference has {known.shape[1]} words, but the rows have {matrix.shape[1]}: use the same vocabulary."
        )
    rarity = (
        np.log(
            (1 + known.shape[0])
            / (1 + np.bincount(known.indices[known.data > 0], minlength=known.shape[1]))
        )
        + 1
    )
    weighed = scipy.sparse.csr_array(
        (np.log1p(matrix.data) * rarity[matrix.indices], matrix.indices, matrix.indptr),
        matrix.shape,
    )
    return _scaled(weighed, length)


def _check_length(length: Any) -> None:
    if isinstance(length, bool) or not isinstance(length, int | float) or not 0 < length < 2**24:
        raise InputError(f"length must be a positive number below {2**24}, not {length!r}.")


def row_sums(matrix: Any) -> np.ndarray:
    """In double precision, as the `sum` of a sparse matrix of single precision is not, whatever `dtype` it is told."""
    return np.asarray(matrix @ np.ones(matrix.shape[1]))


def _scaled(matrix: Any, length: float) -> Any:
    """Rows of this Euclidean length, rounded to whole numbers."""
    sizes = np.sqrt(np.asarray((matrix**2).sum(axis=1), np.float64)).ravel()
    scaled = scipy.sparse.csr_array(
        (
            np.repeat(length / np.maximum(sizes, 1e-9), np.diff(matrix.indptr)) * matrix.data,
            matrix.indices,
            matrix.indptr,
        ),
        matrix.shape,
    )
    scaled.data = np.round(scaled.data)
    scaled.eliminate_zeros()
    return scaled


def text_and_votes(C: Any, B: Any, column_names: Any = None, row_names: Any = None) -> Data:
    """Bills x words counts C with bills x members votes B: 1 yea, 0 nay, nan missing. C may be None: votes alone."""
    votes = _array(B, "Votes").astype(float)
    if votes.ndim != 2 or (C is None and votes.size == 0):
        raise InputError(
            f"Votes must be a two-dimensional array, bills by members and one row per bill, but have shape {votes.shape}."
        )
    seen = ~np.isnan(votes)
    if not np.all(np.isin(votes[seen], (0.0, 1.0))):
        raise InputError(
            f"Votes must be 1 (yea), 0 (nay) or nan (missing), but one is {votes[seen & (votes != 0) & (votes != 1)][0]:g}."
        )
    row, member = np.nonzero(seen)
    matrix = observed(row, member, votes[seen], votes.shape)
    return with_votes(None if C is None else counts(C, column_names, row_names), matrix, row_names)


def observed(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]
) -> Any:
    """Entries in row-major order as CSR, zeros included."""
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    return scipy.sparse.csr_array(
        (values.astype(np.float32), columns.astype(np.int32), indptr), shape=shape
    )


def with_votes(text: Data | None, votes: Any, row_names: Any = None) -> Data:
    """Counts of bills x words, or None, with the observed votes of bills x members."""
    if text is None:
        silence = scipy.sparse.csr_array((votes.shape[0], 0), dtype=np.float32)
        text = Data("counts", matrix=silence, row_names=_names(row_names, votes.shape[0], "row"))
    if votes.shape[0] != text.num_rows:
        raise InputError(
            f"Text has {text.num_rows} bills but votes have shape {votes.shape}: both need one row per bill."
        )
    silent = np.flatnonzero((np.diff(votes.indptr) == 0) & (text.lengths == 0))
    if len(silent):
        raise InputError(f"Bill {silent[0]} has neither words nor votes: drop it.")
    return dataclasses.replace(text, kind="text_and_votes", votes=votes)


def dense(Y: Any, column_names: Any = None, row_names: Any = None) -> Data:
    """Real observations, one row each: images, patches."""
    values = _array(Y, "Observations")
    if values.ndim != 2:
        raise InputError(
            f"Observations must be a two-dimensional array, rows by columns, but there are {values.ndim} dimension(s): flatten each image."
        )
    if values.size == 0:
        raise InputError("There are no observations: there is nothing to fit.")
    if not np.all(np.isfinite(values)):
        raise InputError("Observations hold NaN or infinite values: drop or impute those rows.")
    names = (
        _names(column_names, values.shape[1], "column"),
        _names(row_names, values.shape[0], "row"),
    )
    return Data(
        "dense", values=_single(values, "Observations"), column_names=names[0], row_names=names[1]
    )
