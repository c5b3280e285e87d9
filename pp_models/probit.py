"""Probit links, their utilities eliminated in closed form (Albert & Chib 1993).

An outcome says in which interval a utility u ~ N(x, 1) fell, x = row'column. With second moments x2 = E x^2 the best bound over q(u) is

    log (Phi(upper - m) - Phi(lower - m)) + m^2 / 2 - x2 / 2,        m = E x,

the first two terms here, the last, which is quadratic in the factors and does not see the outcome, in the models. At a point, x2 = m^2, it is the
exact log likelihood. The derivative with respect to m is E[u], a truncated normal's mean; given a key, a draw of u: the Gibbs step.

Votes are 0 or 1 (H 2.2). A count h is an ordinal outcome, u in [h - 1, h), and u < 0 for h = 0 (H 2): zeros tell too, so all cells of the matrix are
visited, some rows at a time.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import log_ndtr, ndtr, ndtri

from pp_models.batches import Entries
from pp_models.eliminate import UNIFORM, two_sided
from pp_models.passes import Solved
from pp_models.positive_normal import TAIL, draw

ROWS = 16  # whose cells are visited at a time


def votes(mean: jax.Array, outcome: jax.Array, seen: jax.Array, key: Any = None, offset: Any = 0.0) -> jax.Array:
    """The sum over `seen` of log Phi(+-(m + offset)) + m^2 / 2; with a key, of (u - offset) m, the utilities u ~ N(m + offset, 1) drawn."""
    sign = jnp.where(outcome > 0, 1.0, -1.0).astype(mean.dtype)
    m = jnp.where(seen, mean, 0)
    if key is None or key is UNIFORM:
        return jnp.sum(jnp.where(seen, log_ndtr(sign * (m + offset)) + 0.5 * m**2, 0))
    utility = sign * draw(key, lax.stop_gradient(sign * (m + offset)), jnp.ones_like(m))
    return jnp.sum(jnp.where(seen, (utility - offset) * m, 0))


def logit(mean: jax.Array) -> jax.Array:
    """log Phi(m) / (1 - Phi(m)), however far out."""
    return log_ndtr(mean) - log_ndtr(-mean)


def _bounds(m: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The interval of u - m, turned over where it is above zero, and whether it was: both ends are then in the well-known tail."""
    low = jnp.where(count > 0, count - 1 - m, -jnp.inf)
    high = jnp.where(count > 0, count - m, -m)
    flipped = low > 0
    return jnp.where(flipped, -high, low), jnp.where(flipped, -low, high), flipped


def _log_mass(low: jax.Array, high: jax.Array) -> jax.Array:
    """log (Phi(high) - Phi(low))."""
    upper = log_ndtr(high)
    finite = jnp.where(jnp.isinf(low), -1.0, low)
    gap = log_ndtr(finite) - upper
    return upper + jnp.where(jnp.isinf(low), 0, jnp.log1p(-jnp.exp(jnp.minimum(gap, -1e-7))))


def _interval(m: jax.Array, count: jax.Array, key: Any) -> tuple[jax.Array, jax.Array]:
    """log probability of the count and the mean, or a draw, of its utility."""
    low, high, flipped = _bounds(m, count)
    log_mass = _log_mass(low, high)
    if key is None:

        def density(x):
            return jnp.where(jnp.isinf(x), 0, jnp.exp(-0.5 * jnp.where(jnp.isinf(x), 0, x) ** 2 - 0.5 * jnp.log(2 * jnp.pi) - log_mass))

        shift = density(low) - density(high)
    else:
        shift = _draw_between(key, low, high)
    return log_mass, m + jnp.where(flipped, -shift, shift)


def log_probability(mean: jax.Array, count: jax.Array) -> jax.Array:
    """log P(C = count) given the mean utility (H 2)."""
    low, high, _ = _bounds(mean, count)
    return _log_mass(low, high)


def expected_count(mean: jax.Array) -> jax.Array:
    """E C = sum_(h >= 0) P(C > h) = sum_h Phi(m - h). Beyond 4 it is m + 1/2: integers average out to 1e-8 (Poisson summation)."""
    terms = sum(ndtr(jnp.minimum(mean, 4.0) - h) for h in range(11))
    return terms + jnp.maximum(mean - 4.0, 0)


def _draw_between(key: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """A standard normal between two numbers, the lower not above zero: by inversion; far below zero its tail by `draw`, kept if above `low`."""
    uniform_key, tail_key = jax.random.split(key)
    tiny = jnp.finfo(high.dtype).tiny
    below, above = ndtr(low), ndtr(high)
    inverted = ndtri(jnp.maximum(below + jax.random.uniform(uniform_key, high.shape, high.dtype, minval=tiny) * (above - below), tiny))
    tail = high < TAIL

    def propose(carry):
        key, value, accepted = carry
        key, use = jax.random.split(key)
        step = high - draw(use, jnp.minimum(high, TAIL), jnp.ones_like(high))
        fits = step >= low
        return key, jnp.where(fits & ~accepted, step, value), accepted | fits

    _, drawn, _ = lax.while_loop(lambda carry: ~jnp.all(carry[2]), propose, (tail_key, jnp.zeros_like(high), ~tail))
    return jnp.clip(jnp.where(tail, drawn, inverted), low, high)


def _cells(entries: Entries, first: jax.Array, num_rows: int, num_columns: int) -> jax.Array:
    """(num_rows, num_columns) counts of the rows from `first` on. Rows lie end to end, so their entries are one stretch."""
    rows = first + jnp.arange(num_rows)
    size = min(num_rows * entries.widths[-1], entries.values.shape[0])
    place = entries.starts[first] + jnp.arange(size)
    ends = entries.starts[rows] + entries.lengths[rows]
    row = jnp.searchsorted(ends, place, side="right")  # the row each place belongs to; num_rows past the last
    inside = (row < num_rows) & (place < jnp.max(ends))
    place = jnp.minimum(place, entries.values.shape[0] - 1)
    empty = jnp.zeros((num_rows, num_columns), entries.values.dtype)
    return empty.at[jnp.where(inside, row, num_rows), entries.columns[place]].add(entries.values[place], mode="drop")


def _ordinal(rows, columns, observed, key, row_side, column_side) -> Solved:
    entries, mask = observed
    size, table = min(ROWS, len(rows)), columns.T  # (columns, K)
    num_blocks = -(-len(rows) // size)

    def visit(i, carry):
        value, row_sums, column_sums = carry
        wanted = i * size
        first = jnp.minimum(wanted, len(rows) - size)  # the last block overlaps: what was done already counts nothing
        fresh = (first + jnp.arange(size) >= wanted) & (lax.dynamic_slice_in_dim(mask, first, size) > 0)
        here = lax.dynamic_slice_in_dim(rows, first, size)
        m = here @ table.T
        count = _cells(entries, first, size, table.shape[0])
        log_mass, utility = _interval(m, count, None if key is None else jax.random.fold_in(key, i))
        utility = jnp.where(fresh[:, None], utility, 0)
        value += jnp.sum(jnp.where(fresh[:, None], log_mass + 0.5 * m**2 if key is None else utility * m, 0))
        if row_sums is not None:
            old = lax.dynamic_slice_in_dim(row_sums, first, size)
            row_sums = lax.dynamic_update_slice_in_dim(row_sums, jnp.where(fresh[:, None], utility @ table, old), first, 0)
        return value, row_sums, None if column_sums is None else column_sums + utility.T @ here

    begin = jnp.zeros((), rows.dtype), jnp.zeros_like(rows) if row_side else None, jnp.zeros_like(table) if column_side else None
    value, row_sums, column_sums = lax.fori_loop(0, num_blocks, visit, begin)
    return Solved(value, row_sums, None if column_sums is None else column_sums.T)


_ordinal_sum = two_sided("ordinal", _ordinal)


def ordinal(rows: jax.Array, columns: jax.Array, entries: Entries, mask: jax.Array, key: Any = None) -> jax.Array:
    """The sum over all cells of real rows of log P(count) + m^2 / 2, of rows (rows, K) and columns (K, columns); with a key, of u m.

    Its gradient is the utilities' means, or draws, times the other side.
    """
    return _ordinal_sum(rows, columns, (entries, mask), None if key is UNIFORM else key)
