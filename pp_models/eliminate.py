"""Auxiliary variables, eliminated in closed form.

A token of column v in row d belongs to one of K factors. Instead of storing that choice, F holds its optimal bound,

    allocate = sum_dv n_dv log sum_k exp(row_dk + column_kv)                       (P 11.23 with the optimum P 11.24; X 12)

whose gradient is the expected number of tokens per factor (the envelope theorem), or, given a key, a sampled number: the
Gibbs step. Evaluated at log theta and log beta it is the exact log likelihood, the tokens summed out.

The loop over rows that it runs in is in `passes`; the rows' own fixed point on it in `rows`.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from pp_models.batches import Entries
from pp_models.passes import (
    LANES,
    Solved,
    Table,
    clipped,
    collect,
    each_row,
    empty_sums,
    finish,
    lay_out,
    row_weights,
    sums_of_columns,
    sums_of_rows,
)

UNIFORM = "uniform"  # given in place of a key: every auxiliary variable spread evenly over its choices, phi = 1/K (T 2.4)
TOKENS, WEIGHTS = 128, 2**14  # tokens allocated at a time when sampling; more where there are many, while they have no more weights than this


def _expect(row_logits, column_logits, entries, row_side, column_side) -> Solved:
    table = lay_out(column_logits)
    weights, shift = row_weights(row_logits)

    def visit(row, sums):
        return collect(row, weights[row.index], shift[row.index], table, sums)

    sums = each_row(entries, table, visit, empty_sums(entries, table, row_side, column_side))
    return finish(sums, entries, table, row_logits.shape[1], lambda: row_logits)


# Sampling: the auxiliary variables drawn instead of averaged -------------------------------------------------------------------


def pick(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """For each row of (tokens, padded K) weights, a factor drawn with those odds: first a block of LANES, then a factor in it.

    Two short running sums are several times faster here than one `cumsum` over all factors.
    """
    num_tokens, blocks = weights.shape[0], weights.shape[1] // LANES
    by_block = weights.reshape(num_tokens, blocks, LANES)
    masses = jnp.sum(by_block, 2)
    height = uniform * sum(masses[:, b] for b in range(blocks))
    block, below, running = jnp.zeros(num_tokens, jnp.int32), jnp.zeros_like(height), jnp.zeros_like(height)
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
    lane = jnp.where(found > 0, lane, jnp.argmax(inside, 1).astype(jnp.int32))  # rounding must not reach an empty factor
    return block * LANES + lane


def tokens_up_to(entries: Entries) -> jax.Array:
    """(entries,) how many tokens there are up to each entry, it included."""
    inside = jnp.arange(entries.values.shape[0]) < jnp.sum(entries.lengths)
    return jnp.cumsum(jnp.where(inside, entries.values, 0).astype(jnp.int32))


def _draw(row_logits, column_logits, entries, key, row_side, column_side) -> Solved:
    """Give each token to a factor, some at a time whichever rows they are in, and count them on the sides asked for."""
    table, up_to = lay_out(column_logits), tokens_up_to(entries)
    weights, _ = row_weights(row_logits)
    num_tokens, size = up_to[-1], max(TOKENS, min(WEIGHTS // weights.shape[1], len(up_to) // TOKENS * TOKENS))

    def some(i, sums):
        token = i * size + jnp.arange(size, dtype=jnp.int32)
        entry = jnp.minimum(jnp.searchsorted(up_to, token, side="right"), up_to.shape[0] - 1)
        row, column = entries.rows[entry], entries.columns[entry]
        uniform = jax.random.uniform(jax.random.fold_in(key, i), (size,), weights.dtype)
        factor = pick(clipped(table.weights[column]) * weights[row], uniform)
        one = (token < num_tokens).astype(weights.dtype)
        return sums._replace(
            rows=None if sums.rows is None else sums.rows.at[row, factor].add(one),
            columns=None if sums.columns is None else sums.columns.at[column, factor].add(one),
        )

    sums = lax.fori_loop(0, (num_tokens + size - 1) // size, some, empty_sums(entries, table, row_side, column_side))
    rows = None if sums.rows is None else sums.rows[:, : row_logits.shape[1]]
    columns = None if sums.columns is None else sums.columns[:, : row_logits.shape[1]].T
    value = sum(jnp.sum(logits * counts) for logits, counts in ((row_logits, rows), (column_logits, columns)) if counts is not None)
    return Solved(jnp.asarray(value, row_logits.dtype), rows, columns)


# Beliefs spread evenly: where a trust-region step begins ----------------------------------------------------------------------


def _even(row_logits: jax.Array, column_logits: jax.Array, entries: Entries) -> jax.Array:
    """The bound with phi = 1/K for every token, sum n (mean_k (row_k + column_k) + log K): linear in the logits."""
    nothing = Table(jnp.zeros((column_logits.shape[1], 1), column_logits.dtype), jnp.zeros(column_logits.shape[1], column_logits.dtype))
    per_row = each_row(
        entries, nothing, lambda row, totals: totals.at[row.index].set(jnp.sum(row.values)), jnp.zeros(len(row_logits), entries.values.dtype)
    )
    per_column = jnp.zeros(column_logits.shape[1], entries.values.dtype).at[entries.columns].add(entries.values)
    value = jnp.sum(per_row * jnp.mean(row_logits, 1)) + jnp.sum(per_column * jnp.mean(column_logits, 0))
    return value + jnp.sum(per_row) * math.log(row_logits.shape[1])


# The primitive -----------------------------------------------------------------------------------------------------------------


def _evaluate(row_logits, column_logits, entries, key, row_side, column_side) -> Solved:
    if entries.solved is not None:
        return entries.solved
    if key is not None:
        return _draw(row_logits, column_logits, entries, key, row_side, column_side)
    return _expect(row_logits, column_logits, entries, row_side, column_side)


def two_sided(name: str, evaluate: Callable[..., Solved]) -> Callable[..., jax.Array]:
    """(rows' side, columns' side, entries, key) -> value, whose gradient is the statistics, only of the sides that are differentiated."""

    @jax.custom_vjp
    def function(rows, columns, entries, key):
        return evaluate(rows, columns, entries, key, False, False).value

    def forward(rows: CustomVJPPrimal, columns: CustomVJPPrimal, entries, key):
        def is_primal(x):
            return isinstance(x, CustomVJPPrimal)

        if any(x.perturbed for x in jax.tree.leaves(entries, is_leaf=is_primal)):
            raise TypeError(f"{name} has no gradient with respect to the counts: they are data.")
        plain, plain_key = jax.tree.map(lambda x: x.value, (entries, key), is_leaf=is_primal)
        sides = rows.perturbed, columns.perturbed
        solved = evaluate(rows.value, columns.value, plain, plain_key, sides[0], sides[1])
        residual = (solved.row_statistics if sides[0] else None, solved.column_statistics if sides[1] else None)
        return solved.value, residual

    def backward(residual, cotangent):
        if isinstance(cotangent, SymbolicZero):
            return None, None, None, None
        rows, columns = residual
        return None if rows is None else cotangent * rows, None if columns is None else cotangent * columns, None, None

    function.defvjp(forward, backward, symbolic_zeros=True)
    return function


_allocate = two_sided("allocate", _evaluate)


def allocate(row_logits: jax.Array, column_logits: jax.Array, entries: Entries, key: Any = None) -> jax.Array:
    """sum_dv n_dv log sum_k exp(row_logits_dk + column_logits_kv) over the entries, differentiable in both logits.

    row_logits: (rows, K); column_logits: (K, columns). The gradient computes only the sides it is asked for. With a key the tokens'
    factors are sampled: the gradient is then a draw of the allocated counts, and the value their complete-data log likelihood
    on the differentiated sides. With `UNIFORM` for a key every token is spread evenly. The entries' counts have no gradient.
    """
    if key is UNIFORM:
        return _even(row_logits, column_logits, entries)
    return _allocate(row_logits, column_logits, entries, key)


def _multiply(row_values, column_values, entries, key, row_side, column_side) -> Solved:
    """A pass that gathers the columns for the rows' side, and one that scatters the rows for the columns': either has the value in it."""
    rows = sums_of_rows(entries, column_values.T) if row_side or not column_side else None
    columns = sums_of_columns(entries, row_values, column_values.shape[1]) if column_side else None
    value = jnp.sum(columns * column_values.T) if rows is None else jnp.sum(rows * row_values)
    return Solved(value, rows, None if columns is None else columns.T)


_inner = two_sided("inner", _multiply)


def inner(row_values: jax.Array, column_values: jax.Array, entries: Entries) -> jax.Array:
    """sum_dv n_dv <row_d, column_v> over the entries, of (rows, K) and (K, columns): X times a matrix from either side is its gradient.

    Nothing is eliminated here, but the rows are read as `allocate` reads them: nothing dense, nothing of size (entries x K).
    """
    return _inner(row_values, column_values, entries, None)


def choose(logits: jax.Array, weights: jax.Array, key: Any = None) -> jax.Array:
    """sum_n weights_n log sum_k exp(logits_nk): each row belongs to one of K components, summed out (T 4.1).

    The gradient is the responsibilities (the optimal phi of T 9); with a key, one component per row drawn with those odds; with `UNIFORM`,
    1/K for each. `weights` are 0 for padding.
    """
    logits = jnp.where(weights[:, None] > 0, logits, 0)
    if key is None:
        return jnp.sum(weights * jax.nn.logsumexp(logits, 1))
    if key is UNIFORM:
        return jnp.sum(weights * (jnp.mean(logits, 1) + math.log(logits.shape[1])))
    component = jax.random.categorical(key, lax.stop_gradient(logits))
    return jnp.sum(weights * jnp.take_along_axis(logits, component[:, None], 1)[:, 0])
