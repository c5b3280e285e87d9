r"""Factors of individual tokens, drawn one after the other with the rows' weights integrated out.

Given the columns' side and all other tokens, a token of column $v$ in row $d$ belongs to factor $k$
with odds $(a_{dk} + N_{dk}) \exp(s_{dk} + c_{kv})$, where $N_{dk}$ are the other tokens of the row
in factor $k$, and $a$, $s$ and $c$ are the fields of `row_solver.Odds`.

Rows depend on each other only through the columns' side. TOGETHER rows are visited in lock-step,
each at its next token: they share the overhead of an XLA step, about as large as the arithmetic for
one token. Rows with similar numbers of tokens go together, so that few wait for others. Tokens are
laid out in the order of the visits, (steps, TOGETHER), which makes every read and write contiguous;
only the columns' weights are gathered.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pp_models.data.batches import Entries
from pp_models.elimination.passes import LANES, Solved, clipped, lay_out, lowest, row_weights
from pp_models.elimination.row_solver import Odds

TOGETHER = 32  # rows in lock-step: fewer show the overhead of steps, more wait for the longest row


class Tokens(NamedTuple):
    """The tokens of a batch's rows in the order of the visits. Padding has a column past the last,
    and a row past the last."""

    columns: jax.Array  # (steps, TOGETHER)
    groups: jax.Array  # (steps,) the group of rows that a step belongs to
    rows: jax.Array  # (groups, TOGETHER)
    ends: jax.Array  # (groups + 1,) the first step of each group, and the end of the last


def num_steps(totals: np.ndarray) -> int:
    """Steps for rows with these numbers of tokens: each group takes as many as its longest row."""
    return max(1, int(np.sort(totals)[::-1][::TOGETHER].sum()))


def arrange(entries: Entries, num_columns: int, steps: int) -> Tokens:
    """Lay out the tokens of all rows, the longest first, in `steps` >= num_steps(totals) steps."""
    num_rows = entries.starts.shape[0]
    up_to = jnp.cumsum(entries.values.astype(jnp.int32), dtype=jnp.int32)
    before = jnp.concatenate([jnp.zeros(1, jnp.int32), up_to])  # tokens before each entry
    first = before[entries.starts]
    totals = before[entries.starts + entries.lengths] - first
    rows = jnp.pad(jnp.argsort(-totals), (0, -num_rows % TOGETHER), constant_values=num_rows)
    rows = rows.astype(jnp.int32).reshape(-1, TOGETHER)
    first, totals = (jnp.pad(x, (0, 1)).astype(jnp.int32) for x in (first, totals))
    group_ends = jnp.cumsum(totals[rows[:, 0]], dtype=jnp.int32)
    ends = jnp.concatenate([jnp.zeros(1, jnp.int32), group_ends])
    step = jnp.arange(steps, dtype=jnp.int32)
    groups = jnp.searchsorted(ends, step, side="right").astype(jnp.int32) - 1
    groups = jnp.clip(groups, 0, len(rows) - 1)
    place, mine = (step - ends[groups])[:, None], rows[groups]
    entry = jnp.searchsorted(before, first[mine] + place, side="right") - 1
    entry = jnp.clip(entry, 0, entries.columns.shape[0] - 1)
    columns = jnp.where(place < totals[mine], entries.columns[entry], num_columns)
    return Tokens(columns.astype(jnp.int32), groups, rows, ends)


def unallocated(tokens: Tokens, num_factors: int) -> jax.Array:
    """Allocations for tokens without a factor: the largest value of the smallest fitting type."""
    kinds = (jnp.uint8, jnp.uint16, jnp.int32)
    dtype = next(kind for kind in kinds if num_factors <= jnp.iinfo(kind).max)
    return jnp.full(tokens.columns.shape, jnp.iinfo(dtype).max, dtype)


def pick_lane(weights: jax.Array, uniform: jax.Array, num_factors: int) -> jax.Array:
    """For each row of (tokens, padded K) weights, a factor drawn with those odds.

    First a lane is drawn, the factors k, k + LANES, ..., then one of its factors. Sums over a lane
    are sums of whole vectors, and the running sum over the lanes is a product with a small
    triangle: 1.4 times as fast as `allocate.pick`, which adds up blocks of neighbours.
    """
    blocks = weights.reshape(weights.shape[0], -1, LANES)
    token, num_blocks = jnp.arange(blocks.shape[0]), blocks.shape[1]
    lanes = sum(blocks[:, b] for b in range(num_blocks))
    upper = jnp.asarray(np.triu(np.ones((LANES, LANES))), weights.dtype)
    running = jnp.dot(lanes, upper, precision=lax.Precision.HIGHEST)
    height = uniform * running[:, -1]
    lane = jnp.sum(running <= height[:, None], 1)
    lane = jnp.minimum(lane, min(LANES, num_factors) - 1).astype(jnp.int32)
    inside = blocks[token, :, lane]
    below = jnp.where(lane > 0, running[token, jnp.maximum(lane - 1, 0)], 0)
    block = jnp.zeros_like(lane)
    for b in range(num_blocks - 1):
        below += inside[:, b]
        block += below <= height
    found = jnp.take_along_axis(inside, block[:, None], 1)[:, 0]
    heaviest = jnp.argmax(inside, 1).astype(jnp.int32)
    return jnp.where(found > 0, block, heaviest) * LANES + lane  # rounding never picks padding


def row_counts(tokens: Tokens, allocations: jax.Array, width: int, dtype: Any) -> jax.Array:
    """(groups, TOGETHER, width) tokens of each factor, leaving out tokens without one."""
    lanes = jnp.arange(TOGETHER)[None, :]
    factors = allocations.astype(jnp.int32)
    empty = jnp.zeros((*tokens.rows.shape, width), dtype)
    return empty.at[tokens.groups[:, None], lanes, factors].add(1, mode="drop")


def reallocate(key: jax.Array, tokens: Tokens, allocations: jax.Array, odds: Odds) -> jax.Array:
    """Draw the factor of every token given those of its row's others, in turn within a row. Tokens
    without a factor get their first."""
    num_factors, num_columns = odds.column_logits.shape
    weights = clipped(lay_out(odds.column_logits).weights)
    dtype, width = weights.dtype, weights.shape[1]
    no_factor = jnp.iinfo(allocations.dtype).max
    prior = jnp.pad(odds.concentration.astype(dtype), ((0, 0), (0, width - num_factors)))
    log_scale = odds.log_scale.astype(dtype)
    scale, _ = row_weights(jnp.broadcast_to(log_scale, (log_scale.shape[0], num_factors)))
    floor = jnp.exp(jnp.asarray(lowest(dtype), dtype))
    uniforms = jax.random.uniform(key, allocations.shape, dtype)
    counts = row_counts(tokens, allocations, width, dtype)
    factors = jnp.arange(width, dtype=jnp.int32)

    def one_hot(factor):
        same = factor.astype(jnp.int32)[:, None] == factors
        return jnp.where(same, jnp.ones((), dtype), jnp.zeros((), dtype))

    def of_rows(array, rows):
        return array if array.shape[0] == 1 else jnp.take(array, rows, 0, mode="clip")

    def visit(group, drawn):
        prior_here, scale_here = (of_rows(array, tokens.rows[group]) for array in (prior, scale))

        def step(i, carry):
            drawn, counts = carry
            column, own = tokens.columns[i], one_hot(allocations[i])
            here = jnp.maximum((prior_here + (counts - own)) * scale_here, floor)
            here = here * jnp.take(weights, column, 0, mode="clip")
            new = pick_lane(here, uniforms[i], num_factors)
            new = jnp.where(column < num_columns, new, no_factor)
            drawn = lax.dynamic_update_index_in_dim(drawn, new.astype(drawn.dtype), i, 0)
            return drawn, counts - own + one_hot(new)

        begin = (drawn, counts[group])
        return lax.fori_loop(tokens.ends[group], tokens.ends[group + 1], step, begin)[0]

    # A second array: XLA would copy one that is read and written in the same loop at every step.
    drawn = jnp.full_like(allocations, no_factor)
    return lax.fori_loop(0, tokens.rows.shape[0], visit, drawn)


def tally(
    tokens: Tokens, allocations: jax.Array, num_rows: int, num_factors: int, num_columns: int, dtype
) -> Solved:
    """The gradients of `allocate` if it had drawn these allocations. The value is not computed."""
    by_group = row_counts(tokens, allocations, num_factors, dtype)
    rows = jnp.zeros((num_rows, num_factors), dtype).at[tokens.rows].set(by_group, mode="drop")
    columns = jnp.zeros((num_columns, num_factors), dtype)
    columns = columns.at[tokens.columns, allocations.astype(jnp.int32)].add(1, mode="drop")
    return Solved(jnp.zeros((), dtype), rows, columns.T)
