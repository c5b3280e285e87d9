r"""Squared errors of a factorisation over the observed entries of a matrix.

For rows $x_i$, columns $y_j$ and entries $r_{ij}$ observed for $(i, j) \in \Omega$ (Columbia
lectures, C17), the squared error

$$\sum_\Omega r_{ij}^2 - 2 r_{ij} x_i^\top y_j + \langle x_i x_i^\top, y_j y_j^\top \rangle$$

is linear in the statistics $(x, x x^\top)$ of either side. Its gradient for a row,
$(-2 \sum_j r_{ij} y_j, \sum_j y_j y_j^\top)$, holds the two sides of the normal equations of a
ridge regression on that row. With $E[y y^\top]$ in place of $y y^\top$ it is the expected squared
error.

Rows are visited one at a time; a row gathers the other side's vectors once, into cache. If the
other side is a point, the sum of outer products is one small matrix product. If both are points,
the error alone is a sum of squared residuals. If it is a distribution, its second moments are added
up, lower triangles only. Columns use the same loop over the entries stored column by column
(`Batch.by_column`). Nothing of size (entries x K) is stored.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pp_models.data.batches import Entries
from pp_models.elimination.inner import sums_of_rows
from pp_models.elimination.passes import LANES, Solved, each_window, read_entries, read_row_entries
from pp_models.elimination.primitive import two_sided
from pp_models.families import Pair

STEP = 32  # matrix products have widths that are multiples of this
LONGEST = 256  # width of the largest matrix product; longer rows are added up block by block
SMALL = 16  # up to this rank outer products are added up like second moments, which is faster


def _pad(x: jax.Array) -> jax.Array:
    """x with whole vector registers per row."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % LANES)))


def _of_points(entries: Entries, other: jax.Array) -> Pair:
    """(sum_j r_ij y_j, sum_j y_j y_j') for every row i, by matrix products of a few widths.

    Rows differ much in length, and the windows that all kernels read through pad them by a third.
    Blocks of LONGEST entries and a rest rounded up to a multiple of STEP pad them by a tenth.
    """
    size, padded = other.shape[1], _pad(other)
    num_rows = entries.starts.shape[0]
    longest = min(LONGEST, max(entries.widths))  # no read may go further past the last entry
    widths = [min(width, longest) for width in range(STEP, longest + STEP, STEP)]

    def part(width, start, length):
        columns, values, inside = read_entries(entries, start, length, width)
        gathered = jnp.where(inside[:, None], padded[columns], 0)
        return Pair(jnp.where(inside, values, 0) @ gathered, gathered.T @ gathered)

    choices = [lambda start, rest, width=width: part(width, start, rest) for width in widths]

    def visit(row, sums):
        start, length = entries.starts[row], entries.lengths[row]
        blocks = jnp.maximum(length - 1, 0) // longest  # whole ones, before the rest

        def add_block(i, total):
            return jax.tree.map(jnp.add, total, part(longest, start + i * longest, longest))

        def add_blocks(total):
            return lax.fori_loop(0, blocks, add_block, total)

        rest = length - blocks * longest
        total = lax.switch((rest - 1) // STEP, choices, start + blocks * longest, rest)
        total = lax.cond(blocks > 0, add_blocks, lambda total: total, total)
        first = sums.first.at[row].set(total.first[:size])
        return Pair(first, sums.second.at[row].set(total.second[:size, :size]))

    first = jnp.zeros((num_rows, size), other.dtype)
    second = jnp.zeros((num_rows, size, size), other.dtype)
    return lax.fori_loop(0, num_rows, visit, Pair(first, second))


def _of_distributions(entries: Entries, other: Pair) -> Pair:
    """(sum_j r_ij E[y_j], sum_j E[y_j y_j']) for every row i, from the lower triangles."""
    size = other.first.shape[1]
    lower = np.tril_indices(size)
    second = sums_of_rows(entries, other.second[:, lower[0], lower[1]], weighted=False)
    return Pair(sums_of_rows(entries, other.first), _symmetric(second, size))


def _symmetric(packed: jax.Array, size: int) -> jax.Array:
    """(rows, size, size) symmetric matrices from their lower triangles, stored line after line. By
    slices, which are far faster than a gather."""
    lines = [packed[:, i * (i + 1) // 2 : (i + 1) * (i + 2) // 2] for i in range(size)]
    padded = [jnp.pad(line, ((0, 0), (0, size - line.shape[1]))) for line in lines]
    lower = jnp.stack(padded, 1)
    return jnp.where(np.tri(size, dtype=bool), lower, jnp.swapaxes(lower, 1, 2))


def regression(entries: Entries, other: Pair) -> Pair:
    """(sum_j r_ij y_j, sum_j y_j y_j') for every row i: the two sides of its normal equations."""
    if other.first.shape[1] <= SMALL:
        return _of_distributions(entries, other)
    return lax.cond(
        _is_point(other),
        lambda: _of_points(entries, other.first),
        lambda: _of_distributions(entries, other),
    )


def _is_point(side: Pair) -> jax.Array:
    """Whether all variances, and so all covariances, are zero."""
    return jnp.all(jnp.diagonal(side.second, axis1=1, axis2=2) == side.first**2)


def _value(entries: Entries, side: Pair, sums: Pair) -> jax.Array:
    """The squared error, from one side and the sums that belong to it."""
    observed = jnp.arange(entries.values.shape[0]) < jnp.sum(entries.lengths)
    squares = jnp.sum(jnp.where(observed, entries.values, 0) ** 2)
    cross = 2 * jnp.sum(side.first * sums.first)
    return squares - cross + jnp.sum(side.second * sums.second)


def _value_of_points(entries: Entries, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """The squared error where both sides are points: from residuals, without outer products."""
    padded_rows, padded_columns = _pad(rows), _pad(columns)

    def visit(row, width, total):
        columns, values, inside = read_row_entries(entries, row, width)
        residual = values - padded_columns[columns] @ padded_rows[row]
        return total.at[row].set(jnp.sum(jnp.where(inside, residual, 0) ** 2))

    return jnp.sum(each_window(entries, visit, jnp.zeros(entries.starts.shape, rows.dtype)))


def _evaluate(rows: Pair, columns: Pair, observed, key, row_side, column_side) -> Solved:
    entries, by_column = observed
    of_rows = regression(entries, columns) if row_side else None
    of_columns = regression(by_column, rows) if column_side else None
    if of_rows is not None:
        value = _value(entries, rows, of_rows)
    elif of_columns is not None:
        value = _value(entries, columns, of_columns)
    else:
        value = lax.cond(
            _is_point(rows) & _is_point(columns),
            lambda: _value_of_points(entries, rows.first, columns.first),
            lambda: _value(entries, rows, regression(entries, columns)),
        )
    return Solved(value, _gradient(of_rows), _gradient(of_columns))


def _gradient(sums: Pair | None) -> Pair | None:
    return None if sums is None else Pair(-2 * sums.first, sums.second)


_squared_error = two_sided(_evaluate)


def squared_error(rows: Pair, columns: Pair, entries: Entries, by_column: Entries) -> jax.Array:
    """The sum over observed entries of E (r_ij - x_i'y_j)^2.

    Differentiable in the statistics (x, x x') of both sides; the gradient computes only the sides
    it is asked for. Ratings are data and have no gradient. `entries.solved` is used if it is set.
    """
    if entries.solved is not None:
        return entries.solved.value
    return _squared_error(rows, columns, (entries, by_column), None)
