r"""Probit links, with their utilities eliminated in closed form (Albert & Chib 1993).

An outcome says in which interval a utility $u \sim N(x, 1)$ fell, where $x$ is the product of a row
and a column. With $m = E x$ the best bound over $q(u)$ is

$$\log(\Phi(\text{upper} - m) - \Phi(\text{lower} - m)) + \tfrac12 m^2 - \tfrac12 E x^2.$$

The first two terms are here. The last is quadratic in the factors, does not depend on the outcome
and is in the models. At a point this is the exact log likelihood. The derivative with respect to
$m$ is $E[u]$, a truncated normal's mean; with a key, a draw of $u$: the Gibbs step.

Votes are 0 or 1 (Hu et al., H 2.2). A count $h$ is an ordinal outcome, $u \in [h - 1, h)$, and
$u < 0$ for $h = 0$ (H 2). Zeros are informative: all cells are visited, some rows at a time.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import log_ndtr, ndtr, ndtri

from pp_models.data.batches import Entries
from pp_models.elimination.passes import Solved
from pp_models.elimination.primitive import UNIFORM, two_sided
from pp_models.families.base import until_accepted
from pp_models.families.positive_normal import TAIL, draw

ROWS = 16  # rows whose cells are visited at a time


def votes(
    mean: jax.Array, outcome: jax.Array, seen: jax.Array, key: Any = None, offset: Any = 0.0
) -> jax.Array:
    """The sum over `seen` of log Phi(+-(m + offset)) + m^2 / 2. With a key, the sum of (u - offset)
    m, with utilities u ~ N(m + offset, 1) drawn."""
    sign = jnp.where(outcome > 0, 1.0, -1.0).astype(mean.dtype)
    m = jnp.where(seen, mean, 0)
    if key is None or key is UNIFORM:
        return jnp.sum(jnp.where(seen, log_ndtr(sign * (m + offset)) + 0.5 * m**2, 0))
    utility = sign * draw(key, lax.stop_gradient(sign * (m + offset)), jnp.ones_like(m))
    return jnp.sum(jnp.where(seen, (utility - offset) * m, 0))


def logit(mean: jax.Array) -> jax.Array:
    """log Phi(m) / (1 - Phi(m)), accurate however far out."""
    return log_ndtr(mean) - log_ndtr(-mean)


# Counts as ordinal outcomes ----------------------------------------------------------------------


def _bounds(m: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The interval of u - m, and whether it was mirrored. Intervals above zero are mirrored, so
    that both ends are in the lower tail, which is accurate."""
    low = jnp.where(count > 0, count - 1 - m, -jnp.inf)
    high = jnp.where(count > 0, count - m, -m)
    mirrored = low > 0
    return jnp.where(mirrored, -high, low), jnp.where(mirrored, -low, high), mirrored


def _log_mass(low: jax.Array, high: jax.Array) -> jax.Array:
    """log (Phi(high) - Phi(low))."""
    upper = log_ndtr(high)
    finite = jnp.where(jnp.isinf(low), -1.0, low)
    gap = log_ndtr(finite) - upper
    return upper + jnp.where(jnp.isinf(low), 0, jnp.log1p(-jnp.exp(jnp.minimum(gap, -1e-7))))


def _interval(m: jax.Array, count: jax.Array, key: Any) -> tuple[jax.Array, jax.Array]:
    """The log probability of the count and the mean, or a draw, of its utility."""
    low, high, mirrored = _bounds(m, count)
    log_mass = _log_mass(low, high)

    def density(x):
        finite = jnp.where(jnp.isinf(x), 0, x)
        log_density = -0.5 * finite**2 - 0.5 * jnp.log(2 * jnp.pi) - log_mass
        return jnp.where(jnp.isinf(x), 0, jnp.exp(log_density))

    shift = density(low) - density(high) if key is None else _draw_between(key, low, high)
    return log_mass, m + jnp.where(mirrored, -shift, shift)


def log_probability(mean: jax.Array, count: jax.Array) -> jax.Array:
    """log P(C = count) given the mean utility (H 2)."""
    low, high, _ = _bounds(mean, count)
    return _log_mass(low, high)


def expected_count(mean: jax.Array) -> jax.Array:
    """E C = sum_(h >= 0) P(C > h) = sum_h Phi(m - h). Beyond 4 it is m + 1/2: by Poisson summation,
    to 1e-8."""
    terms = sum(ndtr(jnp.minimum(mean, 4.0) - h) for h in range(11))
    return terms + jnp.maximum(mean - 4.0, 0)


def _draw_between(key: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """A standard normal between two numbers, of which the lower is not above zero. By inversion. If
    `high` is far below zero, by `draw` from the tail, rejected below `low`."""
    uniform_key, tail_key = jax.random.split(key)
    tiny = jnp.finfo(high.dtype).tiny
    below, above = ndtr(low), ndtr(high)
    uniform = jax.random.uniform(uniform_key, high.shape, high.dtype, minval=tiny)
    inverted = ndtri(jnp.maximum(below + uniform * (above - below), tiny))
    tail = high < TAIL

    def propose(key):
        step = high - draw(key, jnp.minimum(high, TAIL), jnp.ones_like(high))
        return step, step >= low

    from_tail = until_accepted(tail_key, 1, propose, jnp.zeros_like(high), ~tail)
    return jnp.clip(jnp.where(tail, from_tail, inverted), low, high)


def _cells(entries: Entries, first: jax.Array, num_rows: int, num_columns: int) -> jax.Array:
    """(num_rows, num_columns) counts of the rows from `first` on. Rows are stored end to end, so
    that their entries are contiguous."""
    rows = first + jnp.arange(num_rows)
    size = min(num_rows * entries.widths[-1], entries.values.shape[0])
    place = entries.starts[first] + jnp.arange(size)
    ends = entries.starts[rows] + entries.lengths[rows]
    row = jnp.searchsorted(ends, place, side="right")  # num_rows past the last entry
    inside = (row < num_rows) & (place < jnp.max(ends))
    row = jnp.where(inside, row, num_rows)
    place = jnp.minimum(place, entries.values.shape[0] - 1)
    empty = jnp.zeros((num_rows, num_columns), entries.values.dtype)
    return empty.at[row, entries.columns[place]].add(entries.values[place], mode="drop")


def _ordinal(rows, columns, observed, key, row_side, column_side) -> Solved:
    entries, mask = observed
    size, table = min(ROWS, len(rows)), columns.T  # (columns, K)

    def visit(i, carry):
        value, row_sums, column_sums = carry
        wanted = i * size
        first = jnp.minimum(wanted, len(rows) - size)
        fresh = first + jnp.arange(size) >= wanted  # the last block may repeat some rows
        fresh = (fresh & (lax.dynamic_slice_in_dim(mask, first, size) > 0))[:, None]
        here = lax.dynamic_slice_in_dim(rows, first, size)
        m = here @ table.T
        count = _cells(entries, first, size, table.shape[0])
        block_key = None if key is None else jax.random.fold_in(key, i)
        log_mass, utility = _interval(m, count, block_key)
        utility = jnp.where(fresh, utility, 0)
        terms = log_mass + 0.5 * m**2 if key is None else utility * m
        value += jnp.sum(jnp.where(fresh, terms, 0))
        if row_sums is not None:
            old = lax.dynamic_slice_in_dim(row_sums, first, size)
            new = jnp.where(fresh, utility @ table, old)
            row_sums = lax.dynamic_update_slice_in_dim(row_sums, new, first, 0)
        if column_sums is not None:
            column_sums = column_sums + utility.T @ here
        return value, row_sums, column_sums

    row_sums = jnp.zeros_like(rows) if row_side else None
    column_sums = jnp.zeros_like(table) if column_side else None
    begin = (jnp.zeros((), rows.dtype), row_sums, column_sums)
    value, row_sums, column_sums = lax.fori_loop(0, -(-len(rows) // size), visit, begin)
    return Solved(value, row_sums, None if column_sums is None else column_sums.T)


_ordinal_sum = two_sided(_ordinal, "ordinal")


def ordinal(
    rows: jax.Array, columns: jax.Array, entries: Entries, mask: jax.Array, key: Any = None
) -> jax.Array:
    """The sum over all cells of real rows of log P(count) + m^2 / 2; with a key, of u m.

    rows: (rows, K); columns: (K, columns). The gradient is the utilities' means, or draws, times
    the other side.
    """
    return _ordinal_sum(rows, columns, (entries, mask), None if key is UNIFORM else key)
