"""`inner`: products of the sparse data matrix with dense ones, from either side.

The sums run over entries in one loop, because XLA compiles only the inner one of two nested loops.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pp_models.data.batches import Entries
from pp_models.elimination.passes import Solved
from pp_models.elimination.primitive import two_sided

# Numbers in a line. XLA compiles a loop over lines of this length as a whole (8 to 12 ns an entry),
# unrolls shorter ones (13 to 27 ns) and takes longer ones one operation at a time (100 ns).
LINE = 64


def _blocks(table: jax.Array) -> list[jax.Array]:
    """The table's columns in blocks of LINE, the last padded with zeros."""
    padded = jnp.pad(table, ((0, 0), (0, -table.shape[1] % LINE)))
    padded = lax.optimization_barrier(padded)  # or the loop over entries would pad every line again
    return [padded[:, first : first + LINE] for first in range(0, padded.shape[1], LINE)]


def _line(table: jax.Array, index: jax.Array) -> jax.Array:
    """table[index], without a check that the index is inside."""
    return lax.dynamic_index_in_dim(table, index, keepdims=False)


def _sums(entries: Entries, table: jax.Array, num_sums: int, term: Callable[..., Any]) -> jax.Array:
    """(num_sums, size) sums over all entries of term(block, row, column, value) -> index, line."""
    found = []
    for block in _blocks(table):

        def add(i, sums, block=block):
            at = (_line(x, i) for x in (entries.rows, entries.columns, entries.values))
            index, line = term(block, *at)
            return lax.dynamic_update_index_in_dim(sums, _line(sums, index) + line, index, 0)

        empty = jnp.zeros((num_sums, block.shape[1]), table.dtype)
        found.append(lax.fori_loop(0, jnp.sum(entries.lengths), add, empty))
    return jnp.concatenate(found, 1)[:, : table.shape[1]]


def sums_of_rows(entries: Entries, table: jax.Array, weighted: bool = True) -> jax.Array:
    """(rows, size) sum_j r_ij table_j over each row's entries; not weighted: sum_j table_j.

    table: (columns, size)
    """

    def term(block, row, column, value):
        line = _line(block, column)
        return row, value * line if weighted else line

    return _sums(entries, table, entries.starts.shape[0], term)


def sums_of_columns(entries: Entries, table: jax.Array, num_columns: int) -> jax.Array:
    """(num_columns, size) sum_i r_ij table_i over each column's entries; table: (rows, size)."""

    def term(block, row, column, value):
        return column, value * _line(block, row)

    return _sums(entries, table, num_columns, term)


def _multiply(row_values, column_values, entries, key, row_side, column_side) -> Solved:
    """One pass for the rows' statistics and one for the columns'; either also gives the value."""
    rows = sums_of_rows(entries, column_values.T) if row_side or not column_side else None
    num_columns = column_values.shape[1]
    columns = sums_of_columns(entries, row_values, num_columns) if column_side else None
    value = jnp.sum(columns * column_values.T) if rows is None else jnp.sum(rows * row_values)
    return Solved(value, rows, None if columns is None else columns.T)


_inner = two_sided(_multiply, "inner")


def inner(row_values: jax.Array, column_values: jax.Array, entries: Entries) -> jax.Array:
    """sum_dv n_dv <row_d, column_v> over the entries, for (rows, K) and (K, columns). Its gradients
    are X columns' and rows' X. Nothing dense, and nothing of size (entries x K), is ever stored."""
    return _inner(row_values, column_values, entries, None)
