"""Squared errors of a factorisation over the observed entries of a matrix, in sufficient statistics.

For rows x_i, columns y_j and entries r_ij of which only those in Omega were observed (C17),

    squared_error = sum_(i,j) in Omega  r_ij^2 - 2 r_ij x_i'y_j + <x_i x_i', y_j y_j'>

is linear in the statistics (x, x x') of either side: its gradient for a row is

    (-2 sum_j r_ij y_j,   sum_j y_j y_j'),

what a ridge regression on that row needs, and for a column the same with rows and columns exchanged. With E[y y'] in place of y y' it is the
expected squared error.

Rows are visited one at a time; a row gathers the other side's vectors once, into cache. Where the other side is a point, y y' is never read: the sum
of outer products is one small matrix product, and where both are points, the error alone is a sum of squared residuals. Where it is a distribution,
its second moments are added up, lower triangles only. Columns are served by the same loop over the entries stored column by column
(`Batch.by_column`). Nothing of size (entries x K) ever exists.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from pp_models.batches import Entries
from pp_models.families import Pair
from pp_models.passes import sums_of_rows

LANES = 16  # vectors are padded to a multiple of this: whole vector registers
STEP = 32  # widths of the products of matrices differ by this
SMALL = 16  # vectors up to this size have their outer products added up like any second moments: products of so small matrices are slower
LONGEST = 256  # of them: beyond, more of them are added up, each in cache


def _pad(x: jax.Array) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % LANES)))


def _windows(entries: Entries, visit, carry):
    """Fold `visit(row, columns, values, inside, carry)` over all rows that have entries."""
    for window, width in enumerate(entries.widths):

        def body(i, carry, window=window, width=width):
            row = entries.order[window, i]
            columns, values = (lax.dynamic_slice(x, (entries.starts[row],), (width,)) for x in (entries.columns, entries.values))
            return visit(row, columns, values, jnp.arange(width, dtype=jnp.int32) < entries.lengths[row], carry)

        carry = lax.fori_loop(0, entries.sizes[window], body, carry)
    return carry


def _of_points(entries: Entries, other: jax.Array) -> Pair:
    """(sum_j r_ij y_j, sum_j y_j y_j') for every row i: some entries at a time by one product of matrices, whose size is the next of a few.

    Rows' lengths differ by much, and the windows that all kernels read through pad them by a third; blocks of LONGEST entries and a rest rounded up
    to a multiple of STEP pad them by a tenth.
    """
    size, padded = other.shape[1], _pad(other)
    num_rows = entries.starts.shape[0]
    longest = min(LONGEST, max(entries.widths))  # as far as one may read past the last entry
    widths = [min(width, longest) for width in range(STEP, longest + STEP, STEP)]

    def part(width, start, length):
        columns, values = (lax.dynamic_slice(x, (start,), (width,)) for x in (entries.columns, entries.values))
        inside = jnp.arange(width, dtype=jnp.int32) < length
        gathered = jnp.where(inside[:, None], padded[columns], 0)
        return Pair(jnp.where(inside, values, 0) @ gathered, gathered.T @ gathered)

    def visit(row, sums):
        start, length = entries.starts[row], entries.lengths[row]
        blocks = jnp.maximum(length - 1, 0) // longest  # whole ones, the last entries left out

        def block(i, total):
            return jax.tree.map(jnp.add, total, part(longest, start + i * longest, longest))

        rest = length - blocks * longest
        choices = [lambda start, rest, width=width: part(width, start, rest) for width in widths]
        total = lax.switch((rest - 1) // STEP, choices, start + blocks * longest, rest)
        total = lax.cond(blocks > 0, lambda total: lax.fori_loop(0, blocks, block, total), lambda total: total, total)
        return Pair(sums.first.at[row].set(total.first[:size]), sums.second.at[row].set(total.second[:size, :size]))

    zero = Pair(jnp.zeros((num_rows, size), other.dtype), jnp.zeros((num_rows, size, size), other.dtype))
    return lax.fori_loop(0, num_rows, visit, zero)


def _of_distributions(entries: Entries, other: Pair) -> Pair:
    """(sum_j r_ij E[y_j], sum_j E[y_j y_j']) for every row i, of the second moments the lower triangles only."""
    size = other.first.shape[1]
    lower = np.tril_indices(size)
    second = sums_of_rows(entries, other.second[:, lower[0], lower[1]], weighted=False)
    return Pair(sums_of_rows(entries, other.first), _whole(second, size))


def _whole(packed: jax.Array, size: int) -> jax.Array:
    """Symmetric matrices, (rows, size, size), of their lower triangles, line after line: by slices, which are far faster than a gather."""
    lines = [packed[:, i * (i + 1) // 2 : (i + 1) * (i + 2) // 2] for i in range(size)]
    lower = jnp.stack([jnp.pad(line, ((0, 0), (0, size - line.shape[1]))) for line in lines], 1)
    return jnp.where(np.tri(size, dtype=bool), lower, jnp.swapaxes(lower, 1, 2))


def regression(entries: Entries, other: Pair) -> Pair:
    """(sum_j r_ij y_j, sum_j y_j y_j') for every row i: the two sides of its normal equations."""
    if other.first.shape[1] <= SMALL:
        return _of_distributions(entries, other)
    return lax.cond(_is_point(other), lambda: _of_points(entries, other.first), lambda: _of_distributions(entries, other))


def _is_point(side: Pair) -> jax.Array:
    """No variance, so no covariance."""
    return jnp.all(jnp.diagonal(side.second, axis1=1, axis2=2) == side.first**2)


def _squares(entries: Entries) -> jax.Array:
    observed = jnp.arange(entries.values.shape[0]) < jnp.sum(entries.lengths)
    return jnp.sum(jnp.where(observed, entries.values, 0) ** 2)


class _Sides(NamedTuple):
    rows: Pair | None
    columns: Pair | None


def _value(entries: Entries, side: Pair, sums: Pair) -> jax.Array:
    """The squared error, from one side and the sums it meets."""
    return _squares(entries) - 2 * jnp.sum(side.first * sums.first) + jnp.sum(side.second * sums.second)


def _value_of_points(entries: Entries, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """The squared error where both sides are points: residual by residual, without outer products."""
    padded_rows, padded = _pad(rows), _pad(columns)

    def visit(row, columns, values, inside, total):
        residual = values - padded[columns] @ padded_rows[row]
        return total.at[row].set(jnp.sum(jnp.where(inside, residual, 0) ** 2))

    return jnp.sum(_windows(entries, visit, jnp.zeros(entries.starts.shape, rows.dtype)))


def _evaluate(rows: Pair, columns: Pair, entries: Entries, by_column: Entries, row_side: bool, column_side: bool):
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
    return value, _Sides(of_rows, of_columns)


@jax.custom_vjp
def _squared_error(rows, columns, entries, by_column):
    return _evaluate(rows, columns, entries, by_column, False, False)[0]


def _forward(rows, columns, entries, by_column):
    def is_primal(x):
        return isinstance(x, CustomVJPPrimal)

    def perturbed(tree):
        return any(x.perturbed for x in jax.tree.leaves(tree, is_leaf=is_primal))

    plain = jax.tree.map(lambda x: x.value, (rows, columns, entries, by_column), is_leaf=is_primal)
    return _evaluate(*plain, perturbed(rows), perturbed(columns))


def _backward(sides, cotangent):
    if isinstance(cotangent, SymbolicZero):
        return None, None, None, None
    gradients = [None if side is None else Pair(-2 * cotangent * side.first, cotangent * side.second) for side in sides]
    return (*gradients, None, None)


_squared_error.defvjp(_forward, _backward, symbolic_zeros=True)


def squared_error(rows: Pair, columns: Pair, entries: Entries, by_column: Entries) -> jax.Array:
    """The sum over observed entries of E (r_ij - x_i'y_j)^2, differentiable in the statistics (x, x x') of both sides.

    The gradient computes only the sides it is asked for. Ratings are data and have no gradient. A value known already (`entries.solved`) is used.
    """
    if entries.solved is not None:
        return entries.solved.value
    return _squared_error(rows, columns, entries, by_column)
