"""One pass over the rows of a batch and the columns they touch: what `eliminate` and `rows` are made of, and the hot loop of the project.

Rows are visited one at a time; a row gathers its columns' factor weights once, into cache, and everything about it happens there: the fixed point of
the row's own posterior, the value, and the statistics, which are added into the columns' table at once. Nothing of size (entries x K) ever exists.
Weights are kept as exponentials scaled to a maximum of one, on the row's and on the column's side, and clipped from below so that no product of two
underflows.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pp_models.batches import Entries

BLOCK = 256  # columns whose weights are laid out at a time
LANES = 16  # factors are padded to a multiple of this: whole vector registers


class Solved(NamedTuple):
    """What `allocate` would return at the point where its entries were solved: the value and its two gradients."""

    value: jax.Array
    row_statistics: jax.Array  # (rows, K)
    column_statistics: jax.Array  # (K, columns)


class Table(NamedTuple):
    """The columns' side, laid out for gathering: weights exp(logit - shift), and the shift, per column.

    A weight that would be clipped is stored as its logit - shift itself, a negative number, so that nothing is lost and the logits need not be kept.
    """

    weights: jax.Array  # (columns, padded K); zero in the padding
    shift: jax.Array  # (columns,)


def lowest(dtype: Any) -> float:
    """Scaled logits below this are raised to it, so that a product of two weights stays a normal number."""
    return 0.49 * math.log(jnp.finfo(dtype).tiny)


def lay_out(column_logits: jax.Array) -> Table:
    """Built some columns at a time: the transposition stays in cache, and nothing else as large as the table is ever alive."""
    num_factors, num_columns = column_logits.shape
    size = min(BLOCK, num_columns)

    def fill(i, table):
        first = jnp.minimum(i * size, num_columns - size)  # the last block may overlap: the same numbers again
        logits = lax.dynamic_slice_in_dim(column_logits, first, size, axis=1)
        shift = jnp.max(logits, 0)
        scaled = logits - shift
        weights = jnp.where(scaled < lowest(scaled.dtype), scaled, jnp.exp(scaled)).T
        weights = jnp.pad(weights, ((0, 0), (0, -num_factors % LANES)))
        return Table(lax.dynamic_update_slice_in_dim(table.weights, weights, first, 0), lax.dynamic_update_slice_in_dim(table.shift, shift, first, 0))

    width = num_factors + -num_factors % LANES
    empty = Table(jnp.zeros((num_columns, width), column_logits.dtype), jnp.zeros(num_columns, column_logits.dtype))
    return lax.fori_loop(0, -(-num_columns // size), fill, empty)


def clipped(stored: jax.Array) -> jax.Array:
    """Weights as the fast path uses them."""
    return jnp.where(stored < 0, jnp.asarray(math.exp(lowest(stored.dtype)), stored.dtype), stored)


def row_weights(row_logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(rows, padded K) weights and (rows,) shifts of the rows' side."""
    num_factors = row_logits.shape[1]
    shift = jnp.max(row_logits, 1)
    weights = jnp.exp(jnp.maximum(row_logits - shift[:, None], lowest(row_logits.dtype)))
    return jnp.pad(weights, ((0, 0), (0, -num_factors % LANES))), shift


class Row(NamedTuple):
    """One row read through its window."""

    index: jax.Array
    columns: jax.Array  # (width,)
    values: jax.Array  # (width,) zero beyond the row's end
    gathered: jax.Array  # (width, padded K) the columns' weights


def read_row(entries: Entries, table: Table, index: jax.Array, width: int) -> Row:
    """A row's entries and the weights of their columns, as the fast path uses them."""
    start = entries.starts[index]
    columns = lax.dynamic_slice(entries.columns, (start,), (width,))
    values = lax.dynamic_slice(entries.values, (start,), (width,))
    inside = jnp.arange(width, dtype=jnp.int32) < entries.lengths[index]
    return Row(index, columns, jnp.where(inside, values, 0), clipped(table.weights[columns]))


def each_row(entries: Entries, table: Table, visit: Callable[[Row, Any], Any], carry: Any) -> Any:
    """Fold `visit` over all rows that have entries."""
    for window, width in enumerate(entries.widths):

        def body(i, carry, window=window, width=width):
            return visit(read_row(entries, table, entries.order[window, i], width), carry)

        carry = lax.fori_loop(0, entries.sizes[window], body, carry)
    return carry


class Sums(NamedTuple):
    """What one pass over the rows collects. A side that nobody asked for is None."""

    values: jax.Array  # (rows,)
    rows: jax.Array | None  # (rows, padded K)
    columns: jax.Array | None  # (columns, padded K), still to be multiplied by the table's weights
    missed: jax.Array  # (rows,) left out because the clipping of weights would show


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
    """Add one row's value and expected statistics at the given row weights, unless they must be done exactly."""
    rate = row.gathered @ weights
    visible = weights.shape[0] * 1e5 * jnp.exp(jnp.asarray(lowest(rate.dtype), rate.dtype))
    missed = jnp.any((rate < visible) & (row.values > 0))
    values = jnp.where(missed, 0, row.values)
    ratio = values / rate
    value = jnp.sum(values * (jnp.log(rate) + table.shift[row.columns] + row_shift))
    return Sums(
        sums.values.at[row.index].set(value),
        None if sums.rows is None else sums.rows.at[row.index].set(weights * (ratio @ row.gathered)),
        None if sums.columns is None else sums.columns.at[row.columns].add(ratio[:, None] * weights[None, :]),
        sums.missed.at[row.index].set(missed),
    )


def finish(sums: Sums, entries: Entries, table: Table, num_factors: int, row_logits: Callable[[], jax.Array]) -> Solved:
    """The pass's result. Rows it missed (with next to no factor in common with one of their columns) are done from the logits, slowly and exactly."""

    def exact(all_logits, index, sums):
        row = read_row(entries, table, index, entries.widths[-1])
        stored = table.weights[row.columns, :num_factors]
        column_logits = jnp.where(stored < 0, stored, jnp.log(jnp.where(stored < 0, 1, stored))) + table.shift[row.columns, None]
        logits = all_logits[index] + column_logits
        total = jax.nn.logsumexp(logits, axis=1, keepdims=True)
        counts = jnp.pad(row.values[:, None] * jnp.exp(logits - total), ((0, 0), (0, -num_factors % LANES)))
        return sums._replace(
            values=sums.values.at[index].set(jnp.sum(row.values * total[:, 0])),
            rows=None if sums.rows is None else sums.rows.at[index].set(jnp.sum(counts, 0)),
            columns=None if sums.columns is None else sums.columns.at[row.columns].add(counts / jnp.where(row.gathered > 0, row.gathered, 1)),
        )

    def mend(sums):
        redo = partial(exact, row_logits())
        return lax.fori_loop(0, sums.missed.shape[0], lambda i, s: lax.cond(s.missed[i], redo, lambda i, s: s, i, s), sums)

    sums = lax.cond(jnp.any(sums.missed), mend, lambda s: s, sums)
    rows = None if sums.rows is None else sums.rows[:, :num_factors]
    columns = None if sums.columns is None else (sums.columns * clipped(table.weights))[:, :num_factors].T
    return Solved(jnp.sum(sums.values), rows, columns)


# Sums over entries ---------------------------------------------------------------------------------------------------------------

# Lines of so many numbers XLA reads, multiplies and adds in a loop that it compiles as a whole, at 8 to 12 ns an entry whatever is in them.
# Shorter ones it spells out number by number (13 to 27 ns), and longer ones it handles one operation at a time (100 ns).
LINE = 64


def _blocks(table: jax.Array) -> list[jax.Array]:
    """The table's columns in blocks of LINE, the last filled up with zeros."""
    padded = jnp.pad(table, ((0, 0), (0, -table.shape[1] % LINE)))
    padded = lax.optimization_barrier(padded)  # or the loop over entries would fill up every line anew
    return [padded[:, first : first + LINE] for first in range(0, padded.shape[1], LINE)]


def _each_entry(entries: Entries, visit: Callable[..., jax.Array], sums: jax.Array) -> jax.Array:
    """Fold `visit(row, column, value, sums)` over all entries: one loop, for of one over rows with another inside it only the inner is compiled."""

    def step(i, sums):
        return visit(_line(entries.rows, i), _line(entries.columns, i), _line(entries.values, i), sums)

    return lax.fori_loop(0, jnp.sum(entries.lengths), step, sums)


def _line(table: jax.Array, index: jax.Array) -> jax.Array:
    """table[index], for an index that is known to be inside."""
    return lax.dynamic_index_in_dim(table, index, keepdims=False)


def _add_line(table: jax.Array, index: jax.Array, more: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(table, _line(table, index) + more, index, 0)


def sums_of_rows(entries: Entries, table: jax.Array, weighted: bool = True) -> jax.Array:
    """(rows, size) sum_j r_ij table_j over each row's entries, of a table (columns, size); not weighted: sum_j table_j."""
    found = []
    for block in _blocks(table):

        def visit(row, column, value, sums, block=block):
            return _add_line(sums, row, value * _line(block, column) if weighted else _line(block, column))

        found.append(_each_entry(entries, visit, jnp.zeros((entries.starts.shape[0], block.shape[1]), table.dtype)))
    return jnp.concatenate(found, 1)[:, : table.shape[1]]


def sums_of_columns(entries: Entries, table: jax.Array, num_columns: int) -> jax.Array:
    """(num_columns, size) sum_i r_ij table_i over each column's entries, of a table (rows, size)."""
    found = []
    for block in _blocks(table):

        def visit(row, column, value, sums, block=block):
            return _add_line(sums, column, value * _line(block, row))

        found.append(_each_entry(entries, visit, jnp.zeros((num_columns, block.shape[1]), table.dtype)))
    return jnp.concatenate(found, 1)[:, : table.shape[1]]
