"""`Data`: rows of observations on the host, which make batches of fixed shape."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence
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
    pack_entries,
    part_widths,
    window_widths,
)

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
        size = f"{self.num_rows} rows x {self.num_columns} columns{members}"
        return f"Data({self.kind}, {size}, {self.num_entries} entries)"

    @functools.cached_property
    def num_rows(self) -> int:
        return self._main.shape[0]

    @functools.cached_property
    def num_columns(self) -> int:
        return self._main.shape[1]

    @functools.cached_property
    def num_entries(self) -> int:
        return int(self._main.size if self.matrix is None else self.matrix.nnz)

    @property
    def _main(self) -> Any:
        return self.values if self.matrix is None else self.matrix

    @property
    def num_members(self) -> int:
        """Voters of text and votes."""
        return 0 if self.votes is None else self.votes.shape[1]

    @functools.cached_property
    def total(self) -> float:
        """Sum of all entries: the number of tokens of a corpus."""
        entries = self._main if self.matrix is None else self.matrix.data
        return float(entries.sum(dtype=np.float64))

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Entries per row."""
        if self.matrix is None:
            return np.full(self.num_rows, self.num_columns)
        return np.diff(self.matrix.indptr)

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
        """SHA-256 of the contents in single precision, recorded with every result."""
        digest = hashlib.sha256(f"{self.kind} {self.num_rows} {self.num_columns}".encode())
        for matrix in (self.matrix, self.votes):
            if matrix is not None:
                for part in (matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)):
                    digest.update(part.tobytes())
                digest.update(matrix.data.astype(np.float32, copy=False).tobytes())
        if self.values is not None:
            digest.update(np.ascontiguousarray(self.values, np.float32).tobytes())
        return digest.hexdigest()

    def select(self, rows: np.ndarray) -> "Data":
        """The same data with only these rows."""
        rows = np.arange(self.num_rows)[rows]  # a mask or a slice will do as well
        names = None if self.row_names is None else tuple(self.row_names[i] for i in rows)
        parts = self.matrix, self.votes, self.values
        matrix, votes, values = (None if part is None else part[rows] for part in parts)
        return Data(self.kind, matrix, votes, values, self.column_names, names)

    # Batches ------------------------------------------------------------------------------------

    @functools.cached_property
    def _entry_lengths(self) -> dict[str, np.ndarray]:
        """Entries per row of each sparse part."""
        votes = {} if self.votes is None else {"votes": np.diff(self.votes.indptr)}
        return votes if self.matrix is None else {"matrix": self.lengths} | votes

    @functools.cached_property
    def _largest_total(self) -> int:
        return int(self.totals.max())

    @functools.cached_property
    def _layouts(self) -> dict[int, Layout]:
        return {}

    def layout(self, num_rows: int) -> Layout:
        """The static sizes of this data set's batches of `num_rows` rows."""
        if num_rows not in self._layouts:
            parts = self._entry_lengths.items()
            widths = {name: window_widths(lengths) for name, lengths in parts}
            capacity = {name: batch_capacity(lengths, num_rows) for name, lengths in parts}
            if self.kind == "ratings":
                lengths = np.bincount(self.matrix.indices, minlength=self.num_columns)
                widths["by_column"] = part_widths(lengths, num_rows / self.num_rows, num_rows)
                capacity["by_column"] = capacity["matrix"]
            sizes = self.num_rows, self._largest_total
            self._layouts[num_rows] = Layout(widths, capacity, *sizes)
        return self._layouts[num_rows]

    def pack(
        self,
        rows: np.ndarray | None = None,
        num_rows: int | None = None,
        device: Any = None,
        layout: Layout | None = None,
        observed: bool = True,
    ) -> Batch:
        """The given rows (default: all) as a batch padded to `num_rows`, on one device.

        observed: False for `numpyro.infer.Predictive`: a model's `generate` then samples the
                  observations in place of conditioning on them. Which entries of ratings and votes
                  are missing, and the totals of multinomial counts, stay those of the data.
        """
        rows = np.arange(self.num_rows) if rows is None else np.asarray(rows)
        num_rows = len(rows) if num_rows is None else num_rows
        layout = self.layout(num_rows) if layout is None else layout
        dtype = jnp.result_type(float)

        def entries(name: str, matrix: Any, rows: np.ndarray, size: int) -> Entries | None:
            if matrix is None:
                return None
            if not scipy.sparse.issparse(matrix):  # on disk: read once
                matrix, rows = matrix[rows], np.arange(len(rows))
            static = layout.widths[name], layout.capacity[name]
            return pack_entries(matrix, rows, size, *static, dtype)

        # Ratings, too, as a CSR matrix with one row for each column.
        turned = self.matrix[rows].tocsc().T if self.kind == "ratings" else None
        every = np.arange(self.num_columns)

        def padded(values: np.ndarray) -> np.ndarray:
            out = np.zeros((num_rows, *values.shape[1:]), dtype)
            out[: len(rows)] = values[rows]
            return out

        positions = np.full(num_rows, self.num_rows, np.int32)
        positions[: len(rows)] = rows
        batch = Batch(
            positions=positions,
            mask=(np.arange(num_rows) < len(rows)).astype(dtype),
            entries=entries("matrix", self.matrix, rows, num_rows),
            by_column=entries("by_column", turned, every, self.num_columns),
            votes=entries("votes", self.votes, rows, num_rows),
            dense=None if self.values is None else padded(self.values),
            totals=padded(self.totals),
            log_factorials=padded(self._log_factorials),
            num_data_rows=layout.num_data_rows,
            num_columns=self.num_columns,
            num_members=self.num_members,
            max_total=layout.max_total,
            observed=observed,
        )
        return jax.device_put(batch, device)

    def shards(
        self, rows: np.ndarray, num_rows: int, devices: Sequence[Any], layout: Layout | None = None
    ) -> tuple[Batch, ...]:
        """Rows dealt out to the devices, one batch each, of the same shapes.

        Each process gets the batches of its own devices and reads only their rows.

        num_rows: rows of all batches together, padding included
        """
        per_device = -(-num_rows // len(devices))
        parts = deal(rows, self.lengths, len(devices))
        layout = self.layout(per_device) if layout is None else layout
        capacity = dict(layout.capacity)  # with room for the fullest part
        for name in capacity:
            lengths = self._entry_lengths.get(name, self.lengths)
            capacity[name] = max(capacity[name], *(int(lengths[part].sum()) for part in parts))
        layout = layout._replace(capacity=capacity)
        here = jax.process_index()
        pairs = zip(parts, devices, strict=True)
        mine = ((part, device) for part, device in pairs if device.process_index == here)
        return tuple(self.pack(part, per_device, device, layout) for part, device in mine)

    def batches(
        self,
        key: jax.Array,
        batch_size: int,
        devices: Sequence[Any],
        drop_last: bool = False,
        skip: int = 0,
    ) -> Iterator[tuple[Batch, ...]]:
        """One pass in random order, without the first `skip` batches: one batch per device."""
        for rows in shuffled(key, self.num_rows, batch_size, drop_last)[skip:]:
            yield self.shards(rows, batch_size, devices)


def shuffled(
    key: jax.Array, num_rows: int, batch_size: int, drop_last: bool = False
) -> list[np.ndarray]:
    """Row indices of the batches of one pass over the data in random order."""
    seed = np.asarray(jax.random.key_data(key)).ravel()
    order = np.random.default_rng(seed).permutation(num_rows)
    end = num_rows - num_rows % batch_size if drop_last else num_rows
    return [order[start : start + batch_size] for start in range(0, end, batch_size)]


def row_sums(matrix: Any) -> np.ndarray:
    """Sums in double precision; SciPy's `sum` ignores its dtype."""
    return np.asarray(matrix @ np.ones(matrix.shape[1]))


def deal(rows: np.ndarray, lengths: np.ndarray, num_shards: int) -> Sequence[np.ndarray]:
    """Split rows among devices so that each gets nearly the same number of rows and entries."""
    if num_shards == 1:
        return [rows]
    by_length = rows[np.argsort(lengths[rows], kind="stable")]
    return [np.sort(by_length[shard::num_shards]) for shard in range(num_shards)]
