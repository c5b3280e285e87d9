"""Fixed-shape batches of rows, on which models and engines work.

Sparse rows are stored end to end, as in CSR, and not padded. A kernel reads a row through a window
of one of a few static widths that starts at the row's first entry, and masks the entries beyond its
length. The list of rows of a window has a dynamic length, so all batches of a fit have the same
shapes and share one compiled program.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


def _static() -> Any:
    return dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Entries:
    """The observed entries of the rows of a batch.

    columns, values: (capacity,) column index and value of each entry, row after row
    rows:            (capacity,) the row of each entry; past the last entry, one past the last row
    starts, lengths: (rows,) where each row begins, and how many entries it has
    order, sizes:    (windows, rows) and (windows,) the rows of each window, and their number
    widths:          the static window widths
    solved:          statistics already known for these entries (see `eliminate`), or None
    """

    columns: jax.Array
    values: jax.Array
    rows: jax.Array
    starts: jax.Array
    lengths: jax.Array
    order: jax.Array
    sizes: jax.Array
    solved: Any
    widths: tuple[int, ...] = _static()

    def emptied(self) -> "Entries":
        """The same shapes without entries."""
        rows = jnp.full_like(self.rows, self.starts.shape[0])
        lengths, sizes = jnp.zeros_like(self.lengths), jnp.zeros_like(self.sizes)
        return dataclasses.replace(self, rows=rows, lengths=lengths, sizes=sizes)

    def dense(self, num_columns: int, fill: float = 0.0) -> jax.Array:
        """(rows, num_columns) array, `fill` where nothing was observed. For small problems."""
        empty = jnp.full((self.starts.shape[0], num_columns), fill, self.values.dtype)
        return empty.at[self.rows, self.columns].set(self.values, mode="drop")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """A set of rows with fixed shapes. Rows beyond the real ones are padding: `mask` is 0 there.

    positions:   (rows,) index of each row in the data set; one past the last for padding
    mask:        (rows,) 1 for real rows, 0 for padding
    entries:     counts or ratings, or None
    by_column:   the same ratings column by column, `entries.columns` being the rows, or None
    votes:       the 0/1 votes of `text_and_votes`, or None
    dense:       (rows, columns) observations, or None
    totals:      (rows,) sum of the entries
    log_factorials: (rows,) sum of log n! over the entries (0 unless they are counts)
    num_data_rows, num_columns, num_members, max_total: rows, columns, voters and largest row total
                 of the whole data set
    observed:    whether `generate` conditions on the observations; if not, it samples them
    """

    positions: jax.Array
    mask: jax.Array
    entries: Any
    by_column: Any
    votes: Any
    dense: Any
    totals: jax.Array
    log_factorials: jax.Array
    num_data_rows: int = _static()
    num_columns: int = _static()
    num_members: int = _static()
    max_total: int = _static()
    observed: bool = dataclasses.field(default=True, metadata={"static": True})

    @property
    def num_rows(self) -> int:
        """Rows in the batch, padding included."""
        return self.mask.shape[0]

    @property
    def total(self) -> jax.Array:
        """Sum of the batch's entries."""
        return jnp.sum(self.totals)

    def sum(self, values: jax.Array) -> jax.Array:
        """The sum over real rows of one number per row."""
        return jnp.sum(jnp.where(self.mask > 0, values, 0))

    def replace(self, **changes: Any) -> "Batch":
        return dataclasses.replace(self, **changes)


class Layout(NamedTuple):
    """The static sizes of a batch: batches of one layout run through one compiled program.

    widths, capacity:         of the windows and of all entries, for "matrix" (counts or ratings),
                              ratings "by_column", and "votes"
    num_data_rows, max_total: rows and largest row total of the whole data set
    """

    widths: Mapping[str, tuple[int, ...]]
    capacity: Mapping[str, int]
    num_data_rows: int
    max_total: int


def growing_layout(sizes: np.ndarray, batch_size: int) -> Layout:
    """A layout for batches of growing data, rounded up to powers of two so that it rarely changes.

    It depends on the present rows only, so a resumed stream goes on with the same layout.

    sizes: (2, ...) numbers of entries that rows have, in order, and how many rows have each
    """
    lengths, rows = sizes
    longest = power_of_two(max(16, int(lengths.max(initial=1))))
    widths = tuple(16 << i for i in range((longest // 16).bit_length()))
    capacity = power_of_two(max(1024, _capacity(lengths, rows, batch_size)))
    return Layout({"matrix": widths}, {"matrix": capacity}, batch_size, 1)


def power_of_two(size: int) -> int:
    """The smallest one that is not below `size`."""
    return 1 << (size - 1).bit_length()


LANES = 16  # window widths are multiples of this
CANDIDATES = 256  # widths considered at most


def window_widths(lengths: np.ndarray, most: int = 8) -> tuple[int, ...]:
    """At most `most` window widths that pad rows of these lengths the least.

    A row is read through the narrowest window that holds it. Dynamic programming over the widest
    window: rows up to some width use the windows before it, the others this one.
    """
    lengths = lengths[lengths > 0]
    if len(lengths) == 0:
        return (LANES,)
    widths, rows = np.unique(-(-lengths // LANES), return_counts=True)
    if len(widths) > CANDIDATES:  # in a geometric series; rows in between use the next width
        levels = np.unique(np.searchsorted(widths, np.geomspace(1, widths[-1], CANDIDATES)))
        rows = np.bincount(np.searchsorted(levels, np.arange(len(widths))), rows)
        widths = widths[levels]
    up_to = np.concatenate([[0], np.cumsum(rows)]).astype(float)
    ends = np.arange(len(widths) + 1)
    cost = widths * (up_to[None, 1:] - up_to[:-1, None])  # rows after i and up to j, in width j
    pairs = np.where(ends[:-1, None] < ends[None, 1:], cost, np.inf)
    least, choices = pairs[0], [np.zeros(len(widths), int)]
    for _ in range(most - 1):
        options = np.concatenate([[0.0], least])[:-1, None] + pairs
        choices.append(np.argmin(options, 0))
        least = np.min(options, 0)
    chosen, end = [], len(widths)
    for choice in reversed(choices):
        if end == 0:
            break
        chosen.append(int(widths[end - 1]) * LANES)
        end = int(choice[end - 1])
    return tuple(reversed(chosen))


def part_widths(lengths: np.ndarray, share: float, most: int) -> tuple[int, ...]:
    """Window widths for columns of which a batch holds a `share` of the entries, at most `most`."""
    if share >= 1:
        return window_widths(lengths)
    usual = np.ceil(share * lengths + np.sqrt(share * (1 - share) * lengths))
    usual = np.minimum(usual, most).astype(int)
    longest = -(-min(int(lengths.max()), most) // LANES) * LANES
    return tuple(sorted({*window_widths(usual), longest}))


def batch_capacity(lengths: np.ndarray, batch_size: int) -> int:
    """Entries of a batch of random rows: 8 standard deviations above the mean, or the maximum."""
    return _capacity(*np.unique(lengths, return_counts=True), batch_size)


def _capacity(lengths: np.ndarray, rows: np.ndarray, batch_size: int) -> int:
    """The same from the lengths, in order, and the number of rows of each."""
    total = int(rows.sum())
    if batch_size >= total:
        return int(lengths @ rows)
    left = batch_size - np.minimum(np.cumsum(rows[::-1]), batch_size)[::-1]
    taken = np.diff(left, append=batch_size)  # rows of each length among the longest
    mean = lengths @ rows / total
    deviation = np.sqrt((lengths - mean) ** 2 @ rows / total)
    likely = int(mean * batch_size + 8 * deviation * np.sqrt(batch_size)) + int(lengths.max())
    return min(int(taken @ lengths), likely)


def pack_entries(
    matrix: Any, rows: np.ndarray, num_rows: int, widths: tuple[int, ...], capacity: int, dtype: Any
) -> Entries:
    """The entries of `rows` of a CSR matrix as host arrays of fixed shape."""
    lengths = np.zeros(num_rows, np.int32)
    first = matrix.indptr[rows]
    lengths[: len(rows)] = matrix.indptr[rows + 1] - first
    starts = np.zeros(num_rows, np.int64)
    starts[1:] = np.cumsum(lengths)[:-1]
    used = int(lengths.sum())
    capacity = max(capacity, used) + max(widths)  # windows may read past the last entry
    columns = np.zeros(capacity, np.int32)
    owners = np.full(capacity, num_rows, np.int32)
    owners[:used] = np.repeat(np.arange(num_rows, dtype=np.int32), lengths)
    values = np.zeros(capacity, dtype)
    if len(rows) == matrix.shape[0] and np.array_equal(rows, np.arange(len(rows))):
        columns[:used], values[:used] = matrix.indices, matrix.data
    else:
        source = np.repeat(first - starts[: len(rows)], lengths[: len(rows)]) + np.arange(used)
        columns[:used], values[:used] = matrix.indices[source], matrix.data[source]
    window = np.searchsorted(widths, lengths[: len(rows)])
    order = np.zeros((len(widths), num_rows), np.int32)
    filled = lengths[: len(rows)] > 0
    sizes = np.bincount(window[filled], minlength=len(widths)).astype(np.int32)
    for w in range(len(widths)):
        order[w, : sizes[w]] = np.flatnonzero((window == w) & filled)
    starts = starts.astype(np.int32)
    return Entries(columns, values, owners, starts, lengths, order, sizes, None, widths)
