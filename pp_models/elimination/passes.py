"""One pass over the rows of a batch and the columns they touch: the hot loop of the project.

Rows are visited one at a time. A row gathers its columns' factor weights once, into cache, and
everything about it happens there: the fixed point of the row's posterior, the value, and the
statistics, which are added to the columns' table at once. Nothing of size (entries x K) is stored.

Weights are exponentials scaled to a maximum of one, per row and per column. They are clipped from
below so that no product of two underflows.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pp_models.data.batches import Entries

BLOCK = 256  # columns whose weights are laid out at a time
LANES = 16  # factors are padded to a multiple of this: whole vector registers


class Solved(NamedTuple):
    """The value of a primitive and its gradients: the statistics of the rows and of the columns."""

    value: jax.Array
    row_statistics: Any  # (rows, K); for squared errors a Pair
    column_statistics: Any  # (K, columns); for squared errors a Pair


class Table(NamedTuple):
    """The columns' side, laid out for gathering: weights exp(logit - shift), and the shift.

    Instead of a weight that would be clipped, its logit - shift is stored, a negative number. The
    logits can then be recovered exactly and need not be kept.
    """

    weights: jax.Array  # (columns, padded K); zero in the padding
    shift: jax.Array  # (columns,)


def lowest(dtype: Any) -> float:
    """Scaled logits are clipped at this, so that a product of two weights is a normal number."""
    return 0.49 * math.log(jnp.finfo(dtype).tiny)


def lay_out(column_logits: jax.Array) -> Table:
    """The table of the column logits, built in blocks of columns. The transposition stays in cache,
    and no second array of the table's size is ever alive."""
    num_factors, num_columns = column_logits.shape
    size = min(BLOCK, num_columns)

    def fill(i, table):
        first = jnp.minimum(i * size, num_columns - size)  # the last block may repeat some columns
        logits = lax.dynamic_slice_in_dim(column_logits, first, size, axis=1)
        shift = jnp.max(logits, 0)
        scaled = logits - shift
        weights = jnp.where(scaled < lowest(scaled.dtype), scaled, jnp.exp(scaled)).T
        weights = jnp.pad(weights, ((0, 0), (0, -num_factors % LANES)))
        return Table(
            lax.dynamic_update_slice_in_dim(table.weights, weights, first, 0),
            lax.dynamic_update_slice_in_dim(table.shift, shift, first, 0),
        )

    dtype, width = column_logits.dtype, num_factors + -num_factors % LANES
    empty = Table(jnp.zeros((num_columns, width), dtype), jnp.zeros(num_columns, dtype))
    return lax.fori_loop(0, -(-num_columns // size), fill, empty)


def clipped(stored: jax.Array) -> jax.Array:
    """The table's weights as the fast path uses them."""
    floor = jnp.asarray(math.exp(lowest(stored.dtype)), stored.dtype)
    return jnp.where(stored < 0, floor, stored)


def row_weights(row_logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(rows, padded K) weights and (rows,) shifts of the rows' side."""
    num_factors = row_logits.shape[1]
    shift = jnp.max(row_logits, 1)
    weights = jnp.exp(jnp.maximum(row_logits - shift[:, None], lowest(row_logits.dtype)))
    return jnp.pad(weights, ((0, 0), (0, -num_factors % LANES))), shift


# The loop over rows ------------------------------------------------------------------------------


def read_entries(entries: Entries, start: jax.Array, length: jax.Array, width: int):
    """(width,) columns and values from `start` on, and which are among the first `length`."""
    columns = lax.dynamic_slice(entries.columns, (start,), (width,))
    values = lax.dynamic_slice(entries.values, (start,), (width,))
    return columns, values, jnp.arange(width, dtype=jnp.int32) < length


def read_row_entries(entries: Entries, row: jax.Array, width: int):
    """Columns and values of a row, read through a window of this width, and which are its own."""
    return read_entries(entries, entries.starts[row], entries.lengths[row], width)


def each_window(entries: Entries, visit: Callable[..., Any], carry: Any) -> Any:
    """Fold `visit(row, width, carry)` over all rows that have entries, with their window widths."""
    for window, width in enumerate(entries.widths):

        def body(i, carry, window=window, width=width):
            return visit(entries.order[window, i], width, carry)

        carry = lax.fori_loop(0, entries.sizes[window], body, carry)
    return carry


class Row(NamedTuple):
    """One row, read through its window."""

    index: jax.Array
    columns: jax.Array  # (width,)
    values: jax.Array  # (width,) zero beyond the row's end
    gathered: jax.Array  # (width, padded K) the columns' weights


def read_row(entries: Entries, table: Table, index: jax.Array, width: int) -> Row:
    """A row's entries and the weights of their columns, as the fast path uses them."""
    columns, values, inside = read_row_entries(entries, index, width)
    return Row(index, columns, jnp.where(inside, values, 0), clipped(table.weights[columns]))


def each_row(entries: Entries, table: Table, visit: Callable[..., Any], carry: Any) -> Any:
    """Fold `visit(row, carry)` over all rows that have entries."""

    def read_and_visit(index, width, carry):
        return visit(read_row(entries, table, index, width), carry)

    return each_window(entries, read_and_visit, carry)


# What a pass collects ----------------------------------------------------------------------------


class Sums(NamedTuple):
    """The results of one pass over the rows. A side that was not asked for is None."""

    values: jax.Array  # (rows,)
    rows: jax.Array | None  # (rows, padded K)
    columns: jax.Array | None  # (columns, padded K), still to be multiplied by the table's weights
    missed: jax.Array  # (rows,) left out, because the clipping of weights would matter


def empty_sums(entries: Entries, table: Table, row_side: bool, column_side: bool) -> Sums:
    num_rows, width = entries.starts.shape[0], table.weights.shape[1]
    dtype = table.weights.dtype
    return Sums(
        jnp.zeros(num_rows, dtype),
        jnp.zeros((num_rows, width), dtype) if row_side else None,
        jnp.zeros_like(table.weights) if column_side else None,
        jnp.zeros(num_rows, bool),
    )


def collect(row: Row, weights: jax.Array, row_shift: Any, table: Table, sums: Sums) -> Sums:
    """Add one row's value and expected statistics at the given row weights. A row for which the
    clipping of weights would matter is marked as missed instead."""
    rate = row.gathered @ weights
    visible = weights.shape[0] * 1e5 * jnp.exp(jnp.asarray(lowest(rate.dtype), rate.dtype))
    missed = jnp.any((rate < visible) & (row.values > 0))
    values = jnp.where(missed, 0, row.values)
    ratio = values / rate
    value = jnp.sum(values * (jnp.log(rate) + table.shift[row.columns] + row_shift))
    rows, columns = sums.rows, sums.columns
    if rows is not None:
        rows = rows.at[row.index].set(weights * (ratio @ row.gathered))
    if columns is not None:
        columns = columns.at[row.columns].add(ratio[:, None] * weights[None, :])
    values, missed = sums.values.at[row.index].set(value), sums.missed.at[row.index].set(missed)
    return Sums(values, rows, columns, missed)


def _add_exactly(entries, table, num_factors, row_logits, index, sums: Sums) -> Sums:
    """Add a missed row, computed from the logits: slow, and exact."""
    row = read_row(entries, table, index, entries.widths[-1])
    stored = table.weights[row.columns, :num_factors]
    scaled = jnp.where(stored < 0, stored, jnp.log(jnp.where(stored < 0, 1, stored)))
    logits = row_logits[index] + (scaled + table.shift[row.columns, None])
    total = jax.nn.logsumexp(logits, axis=1, keepdims=True)
    counts = row.values[:, None] * jnp.exp(logits - total)
    counts = jnp.pad(counts, ((0, 0), (0, -num_factors % LANES)))
    rows, columns = sums.rows, sums.columns
    if rows is not None:
        rows = rows.at[index].set(jnp.sum(counts, 0))
    if columns is not None:
        weights = jnp.where(row.gathered > 0, row.gathered, 1)
        columns = columns.at[row.columns].add(counts / weights)
    values = sums.values.at[index].set(jnp.sum(row.values * total[:, 0]))
    return sums._replace(values=values, rows=rows, columns=columns)


def finish(
    sums: Sums, entries: Entries, table: Table, num_factors: int, row_logits: Callable[[], Any]
) -> Solved:
    """The result of a pass. Missed rows, which have almost no factor in common with one of their
    columns, are added from the logits."""

    def mend(sums):
        add = partial(_add_exactly, entries, table, num_factors, row_logits())

        def one(i, sums):
            return lax.cond(sums.missed[i], add, lambda i, sums: sums, i, sums)

        return lax.fori_loop(0, sums.missed.shape[0], one, sums)

    sums = lax.cond(jnp.any(sums.missed), mend, lambda s: s, sums)
    rows, columns = sums.rows, sums.columns
    if rows is not None:
        rows = rows[:, :num_factors]
    if columns is not None:
        columns = (columns * clipped(table.weights))[:, :num_factors].T
    return Solved(jnp.sum(sums.values), rows, columns)
