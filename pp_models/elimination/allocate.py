r"""`allocate`: the factor of every token, eliminated in closed form.

A token of column $v$ in row $d$ belongs to one of K factors. F holds the optimal bound over that
choice (Paisley, Blei & Jordan, P 11.23 at the optimum P 11.24; Fox's slides, X 12),

$$\sum_{dv} n_{dv} \log \sum_k e^{\text{row}_{dk} + \text{column}_{kv}}.$$

Its gradient is the expected number of tokens per factor (the envelope theorem) or, with a key, a
sampled number: the Gibbs step. At $\log \theta$ and $\log \beta$ it is the exact log likelihood
with the tokens summed out. `passes` has its loop over rows, `row_solver` the rows' fixed point on
it.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pp_models.data.batches import Entries
from pp_models.elimination import passes
from pp_models.elimination.passes import LANES, Solved
from pp_models.elimination.primitive import UNIFORM, two_sided

TOKENS = 128  # tokens sampled at a time; more of them while they have at most WEIGHTS weights
WEIGHTS = 2**14


def _expect(row_logits, column_logits, entries, row_side, column_side) -> Solved:
    table = passes.lay_out(column_logits)
    weights, shift = passes.row_weights(row_logits)

    def visit(row, sums):
        return passes.collect(row, weights[row.index], shift[row.index], table, sums)

    empty = passes.empty_sums(entries, table, row_side, column_side)
    sums = passes.each_row(entries, table, visit, empty)
    return passes.finish(sums, entries, table, row_logits.shape[1], lambda: row_logits)


# Sampled factors ---------------------------------------------------------------------------------


def pick(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """For each row of (tokens, padded K) weights, a factor drawn with those odds.

    First a block of LANES factors is drawn, then a factor in it: two short running sums are several
    times faster here than one `cumsum` over all factors.
    """
    num_tokens, blocks = weights.shape[0], weights.shape[1] // LANES
    by_block = weights.reshape(num_tokens, blocks, LANES)
    masses = jnp.sum(by_block, 2)
    height = uniform * sum(masses[:, b] for b in range(blocks))
    block = jnp.zeros(num_tokens, jnp.int32)
    below, running = jnp.zeros_like(height), jnp.zeros_like(height)
    for b in range(blocks - 1):
        running += masses[:, b]
        beyond = running <= height
        block, below = block + beyond, jnp.where(beyond, running, below)
    inside = by_block[jnp.arange(num_tokens), block]
    lane, running = jnp.zeros(num_tokens, jnp.int32), below
    for k in range(LANES - 1):
        running += inside[:, k]
        lane += running <= height
    found = jnp.take_along_axis(inside, lane[:, None], 1)[:, 0]
    heaviest = jnp.argmax(inside, 1).astype(jnp.int32)
    return block * LANES + jnp.where(found > 0, lane, heaviest)  # rounding never picks weight 0


def tokens_up_to(entries: Entries) -> jax.Array:
    """(entries,) the number of tokens up to and including each entry."""
    inside = jnp.arange(entries.values.shape[0]) < jnp.sum(entries.lengths)
    return jnp.cumsum(jnp.where(inside, entries.values, 0).astype(jnp.int32))


def _draw(row_logits, column_logits, entries, key, row_side, column_side) -> Solved:
    """Draw the factors of all tokens, some at a time, and count them on the sides asked for."""
    table, up_to = passes.lay_out(column_logits), tokens_up_to(entries)
    weights, _ = passes.row_weights(row_logits)
    num_tokens, num_factors = up_to[-1], row_logits.shape[1]
    size = max(TOKENS, min(WEIGHTS // weights.shape[1], len(up_to) // TOKENS * TOKENS))

    def some(i, sums):
        token = i * size + jnp.arange(size, dtype=jnp.int32)
        entry = jnp.minimum(jnp.searchsorted(up_to, token, side="right"), up_to.shape[0] - 1)
        row, column = entries.rows[entry], entries.columns[entry]
        uniform = jax.random.uniform(jax.random.fold_in(key, i), (size,), weights.dtype)
        factor = pick(passes.clipped(table.weights[column]) * weights[row], uniform)
        one = (token < num_tokens).astype(weights.dtype)
        return sums._replace(
            rows=None if sums.rows is None else sums.rows.at[row, factor].add(one),
            columns=None if sums.columns is None else sums.columns.at[column, factor].add(one),
        )

    empty = passes.empty_sums(entries, table, row_side, column_side)
    sums = lax.fori_loop(0, (num_tokens + size - 1) // size, some, empty)
    rows = None if sums.rows is None else sums.rows[:, :num_factors]
    columns = None if sums.columns is None else sums.columns[:, :num_factors].T
    sides = (row_logits, rows), (column_logits, columns)
    value = sum(jnp.sum(logits * counts) for logits, counts in sides if counts is not None)
    return Solved(jnp.asarray(value, row_logits.dtype), rows, columns)


# Uniform responsibilities: the start of a trust-region step --------------------------------------


def _even(row_logits: jax.Array, column_logits: jax.Array, entries: Entries) -> jax.Array:
    """The bound with phi = 1/K for every token: sum n (mean_k (row_k + column_k) + log K)."""
    dtype = entries.values.dtype

    def visit(row, width, totals):
        _, values, inside = passes.read_row_entries(entries, row, width)
        return totals.at[row].set(jnp.sum(jnp.where(inside, values, 0)))

    per_row = passes.each_window(entries, visit, jnp.zeros(len(row_logits), dtype))
    per_column = jnp.zeros(column_logits.shape[1], dtype).at[entries.columns].add(entries.values)
    of_rows = jnp.sum(per_row * jnp.mean(row_logits, 1))
    value = of_rows + jnp.sum(per_column * jnp.mean(column_logits, 0))
    return value + jnp.sum(per_row) * math.log(row_logits.shape[1])


# The primitive -----------------------------------------------------------------------------------


def _evaluate(row_logits, column_logits, entries, key, row_side, column_side) -> Solved:
    if entries.solved is not None:
        return entries.solved
    if key is not None:
        return _draw(row_logits, column_logits, entries, key, row_side, column_side)
    return _expect(row_logits, column_logits, entries, row_side, column_side)


_allocate = two_sided(_evaluate, "allocate")


def allocate(
    row_logits: jax.Array, column_logits: jax.Array, entries: Entries, key: Any = None
) -> jax.Array:
    """sum_dv n_dv log sum_k exp(row_logits_dk + column_logits_kv) over the entries.

    row_logits: (rows, K); column_logits: (K, columns). Differentiable in both; the gradient
    computes only the sides it is asked for. The counts have no gradient.

    With a key the tokens' factors are sampled: the gradient is a draw of the allocated counts, and
    the value their complete-data log likelihood on the differentiated sides. With `UNIFORM` in
    place of a key every token is spread evenly over the factors.
    """
    if key is UNIFORM:
        return _even(row_logits, column_logits, entries)
    return _allocate(row_logits, column_logits, entries, key)
