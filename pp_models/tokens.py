"""Tokens with a memory: which factor each belongs to, drawn one after the other within a row with the row's weights integrated out.

A token of column v in row d belongs to factor k, given the columns' side and all other tokens, with odds

    (a_dk + N_dk) exp(log_scale_dk + column_logits_kv),         N_dk: the row's other tokens of factor k          (`rows.Odds`)

Rows know of each other only through the columns' side, so that any number of them may be visited at once, and no row's result depends on which.
Here TOGETHER rows are visited in lock-step, each at its own next token, and the cost of a step of XLA's, about that of the arithmetic for one token,
is shared by all of them; rows of about the same number of tokens go together, so that few wait for others to end. Tokens are laid out in the order
of the visits, (steps, TOGETHER), which makes every read and write one contiguous line: nothing is gathered but the columns' weights.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pp_models.batches import Entries
from pp_models.passes import LANES, Solved, clipped, lay_out, lowest, row_weights
from pp_models.rows import Odds

TOGETHER = 32  # rows in lock-step: with fewer the steps' overhead shows, with more the waiting for the longest


class Tokens(NamedTuple):
    """The tokens of a batch's rows in the order they are visited. Padding has a column past the last, and a row past the last."""

    columns: jax.Array  # (steps, TOGETHER)
    groups: jax.Array  # (steps,) which group of rows a step belongs to
    rows: jax.Array  # (groups, TOGETHER)
    ends: jax.Array  # (groups + 1,) the first step of each group, and the end of the last


def num_steps(totals: np.ndarray) -> int:
    """Steps that rows of these numbers of tokens take: as many for each group as its longest row has."""
    return max(1, int(np.sort(totals)[::-1][::TOGETHER].sum()))


def arrange(entries: Entries, num_columns: int, steps: int) -> Tokens:
    """Lay out the tokens of all rows, the longest first, in so many steps (see `num_steps`; more do no harm)."""
    num_rows = entries.starts.shape[0]
    before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(entries.values.astype(jnp.int32), dtype=jnp.int32)])  # tokens before each entry
    first = before[entries.starts]
    totals = before[entries.starts + entries.lengths] - first
    padding = -num_rows % TOGETHER
    rows = jnp.pad(jnp.argsort(-totals), (0, padding), constant_values=num_rows).astype(jnp.int32).reshape(-1, TOGETHER)
    first, totals = (jnp.pad(x, (0, 1)).astype(jnp.int32) for x in (first, totals))
    ends = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(totals[rows[:, 0]], dtype=jnp.int32)])
    step = jnp.arange(steps, dtype=jnp.int32)
    groups = jnp.clip(jnp.searchsorted(ends, step, side="right").astype(jnp.int32) - 1, 0, len(rows) - 1)
    place, mine = (step - ends[groups])[:, None], rows[groups]
    entry = jnp.searchsorted(before, first[mine] + place, side="right") - 1
    columns = jnp.where(place < totals[mine], entries.columns[jnp.clip(entry, 0, entries.columns.shape[0] - 1)], num_columns)
    return Tokens(columns.astype(jnp.int32), groups, rows, ends)


def unallocated(tokens: Tokens, num_factors: int) -> jax.Array:
    """Every token without a factor: the largest number of the smallest integers that have one to spare."""
    dtype = next(kind for kind in (jnp.uint8, jnp.uint16, jnp.int32) if num_factors <= jnp.iinfo(kind).max)
    return jnp.full(tokens.columns.shape, jnp.iinfo(dtype).max, dtype)


def pick_lane(weights: jax.Array, uniform: jax.Array, num_factors: int) -> jax.Array:
    """For each row of (tokens, padded K) weights, a factor drawn with those odds: first a lane, factors k, k + LANES, ..., then one of them.

    Sums over a lane are sums of whole vectors, and the running sum over the LANES lanes is a product with a small triangle: 1.4 times as fast as
    `eliminate.pick`, which adds up blocks of neighbours.
    """
    blocks = weights.reshape(weights.shape[0], -1, LANES)
    token, num_blocks = jnp.arange(blocks.shape[0]), blocks.shape[1]
    lanes = sum(blocks[:, b] for b in range(num_blocks))
    upper = jnp.asarray(np.triu(np.ones((LANES, LANES))), weights.dtype)
    running = jnp.dot(lanes, upper, precision=lax.Precision.HIGHEST)
    height = uniform * running[:, -1]
    lane = jnp.minimum(jnp.sum(running <= height[:, None], 1), min(LANES, num_factors) - 1).astype(jnp.int32)
    inside = blocks[token, :, lane]
    below = jnp.where(lane > 0, running[token, jnp.maximum(lane - 1, 0)], 0)
    block = jnp.zeros_like(lane)
    for b in range(num_blocks - 1):
        below += inside[:, b]
        block += below <= height
    found = jnp.take_along_axis(inside, block[:, None], 1)[:, 0]
    return jnp.where(found > 0, block, jnp.argmax(inside, 1).astype(jnp.int32)) * LANES + lane  # rounding must not reach padding


def without(counts: jax.Array, own: jax.Array) -> jax.Array:
    """The rows' counts without the token that is about to be drawn in each: a token is no reason for its own factor."""
    return counts - own


def row_counts(tokens: Tokens, allocations: jax.Array, width: int, dtype: Any) -> jax.Array:
    """(groups, TOGETHER, width) tokens of each factor; those without one are left out."""
    lanes = jnp.arange(TOGETHER)[None, :]
    empty = jnp.zeros((*tokens.rows.shape, width), dtype)
    return empty.at[tokens.groups[:, None], lanes, allocations.astype(jnp.int32)].add(1, mode="drop")


def reallocate(key: jax.Array, tokens: Tokens, allocations: jax.Array, odds: Odds) -> jax.Array:
    """Draw the factor of every token given those of its row's others, one token of a row after the other. Tokens without a factor get their first."""
    num_factors, num_columns = odds.column_logits.shape
    weights = clipped(lay_out(odds.column_logits).weights)
    dtype, width = weights.dtype, weights.shape[1]
    nobody = jnp.iinfo(allocations.dtype).max
    prior = jnp.pad(odds.concentration.astype(dtype), ((0, 0), (0, width - num_factors)))
    scale, _ = row_weights(jnp.broadcast_to(odds.log_scale.astype(dtype), (odds.log_scale.shape[0], num_factors)))
    floor = jnp.exp(jnp.asarray(lowest(dtype), dtype))
    uniforms = jax.random.uniform(key, allocations.shape, dtype)
    counts = row_counts(tokens, allocations, width, dtype)
    factors = jnp.arange(width, dtype=jnp.int32)

    def one_each(factor):
        return jnp.where(factor.astype(jnp.int32)[:, None] == factors, jnp.ones((), dtype), jnp.zeros((), dtype))

    def of(array, rows):
        return array if array.shape[0] == 1 else jnp.take(array, rows, 0, mode="clip")

    def visit(group, drawn):
        prior_here, scale_here = (of(array, tokens.rows[group]) for array in (prior, scale))

        def step(i, carry):
            drawn, counts = carry
            column, own = tokens.columns[i], one_each(allocations[i])
            here = jnp.maximum((prior_here + without(counts, own)) * scale_here, floor) * jnp.take(weights, column, 0, mode="clip")
            new = jnp.where(column < num_columns, pick_lane(here, uniforms[i], num_factors), nobody)
            return lax.dynamic_update_index_in_dim(drawn, new.astype(drawn.dtype), i, 0), counts - own + one_each(new)

        return lax.fori_loop(tokens.ends[group], tokens.ends[group + 1], step, (drawn, counts[group]))[0]

    # written to an array of its own: one that is read and written in the same loop would be copied at every step
    return lax.fori_loop(0, tokens.rows.shape[0], visit, jnp.full_like(allocations, nobody))


def tally(tokens: Tokens, allocations: jax.Array, num_rows: int, num_factors: int, num_columns: int, dtype: Any) -> Solved:
    """What `allocate` would count if it had drawn these allocations: its gradients. There is no value, which nobody asks for."""
    by_group = row_counts(tokens, allocations, num_factors, dtype)
    rows = jnp.zeros((num_rows, num_factors), dtype).at[tokens.rows].set(by_group, mode="drop")
    columns = jnp.zeros((num_columns, num_factors), dtype).at[tokens.columns, allocations.astype(jnp.int32)].add(1, mode="drop")
    return Solved(jnp.zeros((), dtype), rows, columns.T)
