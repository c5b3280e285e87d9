"""Auxiliary variables, eliminated in closed form.

A token of column v in row d belongs to one of K factors. Instead of storing that choice, F holds its optimal bound,

    allocate = sum_dv n_dv log sum_k exp(row_dk + column_kv)                       (P 11.23 with the optimum P 11.24; X 12)

whose gradient is the expected number of tokens per factor (the envelope theorem), or, given a key, a sampled number: the
Gibbs step. Evaluated at log theta and log beta it is the exact log likelihood, the tokens summed out.

This is the hot loop of the project. Rows are visited one at a time; a row gathers its columns' factor weights once, into cache, and everything
about it happens there: the fixed point of the row's own posterior, the value, and the statistics, which are added into the columns'
table at once. Nothing of size (entries x K) ever exists. Weights are kept as exponentials scaled to a maximum of one, on the row's and on the
column's side, and clipped from below so that no product of two underflows.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from pp_models.batches import Entries
from pp_models.special import digamma_parts

UNIFORM = "uniform"  # given in place of a key: every auxiliary variable spread evenly over its choices, phi = 1/K (T 2.4)
BLOCK = 256  # columns whose weights are laid out at a time
LANES = 16  # factors are padded to a multiple of this: whole vector registers
TOKENS = 32  # tokens allocated at a time when sampling


class Solved(NamedTuple):
    """What `allocate` would return at the point where its entries were solved: the value and its two gradients."""

    value: jax.Array
    row_statistics: jax.Array  # (rows, K)
    column_statistics: jax.Array  # (K, columns)


class _Table(NamedTuple):
    """The columns' side, laid out for gathering: weights exp(logit - shift), and the shift, per column.

    A weight that would be clipped is stored as its logit - shift itself, a negative number, so that nothing is lost and the logits need not be kept.
    """

    weights: jax.Array  # (columns, padded K); zero in the padding
    shift: jax.Array  # (columns,)


def _clip(dtype: Any) -> float:
    """Scaled logits below this are raised to it, so that a product of two weights stays a normal number."""
    return 0.49 * math.log(jnp.finfo(dtype).tiny)


def _table(column_logits: jax.Array) -> _Table:
    """Built some columns at a time: the transposition stays in cache, and nothing else as large as the table is ever alive."""
    num_factors, num_columns = column_logits.shape
    size = min(BLOCK, num_columns)

    def fill(i, table):
        first = jnp.minimum(i * size, num_columns - size)  # the last block may overlap: the same numbers again
        logits = lax.dynamic_slice_in_dim(column_logits, first, size, axis=1)
        shift = jnp.max(logits, 0)
        scaled = logits - shift
        weights = jnp.where(scaled < _clip(scaled.dtype), scaled, jnp.exp(scaled)).T
        weights = jnp.pad(weights, ((0, 0), (0, -num_factors % LANES)))
        return _Table(
            lax.dynamic_update_slice_in_dim(table.weights, weights, first, 0), lax.dynamic_update_slice_in_dim(table.shift, shift, first, 0)
        )

    width = num_factors + -num_factors % LANES
    empty = _Table(jnp.zeros((num_columns, width), column_logits.dtype), jnp.zeros(num_columns, column_logits.dtype))
    return lax.fori_loop(0, -(-num_columns // size), fill, empty)


def _clipped(stored: jax.Array) -> jax.Array:
    """Weights as the fast path uses them."""
    return jnp.where(stored < 0, jnp.asarray(math.exp(_clip(stored.dtype)), stored.dtype), stored)


def _row_weights(row_logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(rows, padded K) weights and (rows,) shifts of the rows' side."""
    num_factors = row_logits.shape[1]
    shift = jnp.max(row_logits, 1)
    weights = jnp.exp(jnp.maximum(row_logits - shift[:, None], _clip(row_logits.dtype)))
    return jnp.pad(weights, ((0, 0), (0, -num_factors % LANES))), shift


class _Row(NamedTuple):
    """One row read through its window."""

    index: jax.Array
    columns: jax.Array  # (width,)
    values: jax.Array  # (width,) zero beyond the row's end
    gathered: jax.Array  # (width, padded K) the columns' weights


def _read(entries: Entries, table: _Table, index: jax.Array, width: int) -> _Row:
    """A row's entries and the weights of their columns, as the fast path uses them."""
    start = entries.starts[index]
    columns = lax.dynamic_slice(entries.columns, (start,), (width,))
    values = lax.dynamic_slice(entries.values, (start,), (width,))
    inside = jnp.arange(width, dtype=jnp.int32) < entries.lengths[index]
    return _Row(index, columns, jnp.where(inside, values, 0), _clipped(table.weights[columns]))


def _each_row(entries: Entries, table: _Table, visit: Callable[[_Row, Any], Any], carry: Any) -> Any:
    """Fold `visit` over all rows that have entries."""
    for window, width in enumerate(entries.widths):

        def body(i, carry, window=window, width=width):
            return visit(_read(entries, table, entries.order[window, i], width), carry)

        carry = lax.fori_loop(0, entries.sizes[window], body, carry)
    return carry


class _Sums(NamedTuple):
    """What one pass over the rows collects. A side that nobody asked for is None."""

    values: jax.Array  # (rows,)
    rows: jax.Array | None  # (rows, padded K)
    columns: jax.Array | None  # (columns, padded K), still to be multiplied by the table's weights
    missed: jax.Array  # (rows,) left out because the clipping of weights would show


def _empty_sums(entries: Entries, table: _Table, row_side: bool, column_side: bool) -> _Sums:
    num_rows, width = entries.starts.shape[0], table.weights.shape[1]
    dtype = table.weights.dtype
    return _Sums(
        jnp.zeros(num_rows, dtype),
        jnp.zeros((num_rows, width), dtype) if row_side else None,
        jnp.zeros_like(table.weights) if column_side else None,
        jnp.zeros(num_rows, bool),
    )


def _collect(row: _Row, weights: jax.Array, row_shift: Any, table: _Table, sums: _Sums) -> _Sums:
    """Add one row's value and expected statistics at the given row weights, unless they must be done exactly."""
    rate = row.gathered @ weights
    visible = weights.shape[0] * 1e5 * jnp.exp(jnp.asarray(_clip(rate.dtype), rate.dtype))
    missed = jnp.any((rate < visible) & (row.values > 0))
    values = jnp.where(missed, 0, row.values)
    ratio = values / rate
    value = jnp.sum(values * (jnp.log(rate) + table.shift[row.columns] + row_shift))
    return _Sums(
        sums.values.at[row.index].set(value),
        None if sums.rows is None else sums.rows.at[row.index].set(weights * (ratio @ row.gathered)),
        None if sums.columns is None else sums.columns.at[row.columns].add(ratio[:, None] * weights[None, :]),
        sums.missed.at[row.index].set(missed),
    )


def _finish(sums: _Sums, entries: Entries, table: _Table, num_factors: int, row_logits: Callable[[], jax.Array]) -> Solved:
    """The pass's result. Rows it missed (with next to no factor in common with one of their columns) are done from the logits, slowly and exactly."""

    def exact(all_logits, index, sums):
        row = _read(entries, table, index, entries.widths[-1])
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
    columns = None if sums.columns is None else (sums.columns * _clipped(table.weights))[:, :num_factors].T
    return Solved(jnp.sum(sums.values), rows, columns)


def _expect(row_logits, column_logits, entries, row_side, column_side) -> Solved:
    table = _table(column_logits)
    weights, shift = _row_weights(row_logits)

    def visit(row, sums):
        return _collect(row, weights[row.index], shift[row.index], table, sums)

    sums = _each_row(entries, table, visit, _empty_sums(entries, table, row_side, column_side))
    return _finish(sums, entries, table, row_logits.shape[1], lambda: row_logits)


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


def _draw_row(key, row: _Row, weights: jax.Array, sums: _Sums) -> _Sums:
    """Give each of the row's tokens to a factor, TOKENS at a time, and count them on the sides asked for."""
    cumulative = jnp.cumsum(row.values.astype(jnp.int32))
    num_tokens = cumulative[-1]

    def some(i, sums):
        token = i * TOKENS + jnp.arange(TOKENS, dtype=jnp.int32)
        entry = jnp.minimum(jnp.searchsorted(cumulative, token, side="right", method="compare_all"), cumulative.shape[0] - 1)
        uniform = jax.random.uniform(jax.random.fold_in(key, i), (TOKENS,), weights.dtype)
        factor = pick(row.gathered[entry] * weights, uniform)
        one = (token < num_tokens).astype(weights.dtype)
        return sums._replace(
            rows=None if sums.rows is None else sums.rows.at[row.index, factor].add(one),
            columns=None if sums.columns is None else sums.columns.at[row.columns[entry], factor].add(one),
        )

    return lax.fori_loop(0, (num_tokens + TOKENS - 1) // TOKENS, some, sums)


def _draw(row_logits, column_logits, entries, key, row_side, column_side) -> Solved:
    table = _table(column_logits)
    weights, _ = _row_weights(row_logits)

    def visit(row, sums):
        return _draw_row(jax.random.fold_in(key, row.index), row, weights[row.index], sums)

    sums = _each_row(entries, table, visit, _empty_sums(entries, table, row_side, column_side))
    rows = None if sums.rows is None else sums.rows[:, : row_logits.shape[1]]
    columns = None if sums.columns is None else sums.columns[:, : row_logits.shape[1]].T
    value = sum(jnp.sum(logits * counts) for logits, counts in ((row_logits, rows), (column_logits, columns)) if counts is not None)
    return Solved(jnp.asarray(value, row_logits.dtype), rows, columns)


# Beliefs spread evenly: where a trust-region step begins ----------------------------------------------------------------------


def _even(row_logits: jax.Array, column_logits: jax.Array, entries: Entries) -> jax.Array:
    """The bound with phi = 1/K for every token, sum n (mean_k (row_k + column_k) + log K): linear in the logits."""
    nothing = _Table(jnp.zeros((column_logits.shape[1], 1), column_logits.dtype), jnp.zeros(column_logits.shape[1], column_logits.dtype))
    per_row = _each_row(
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
    """A pass that gathers the columns for the rows' side, and one that scatters the rows for the columns': either has the value in it.

    Entry by entry: a loop that reads one line of the table and adds it to another is two to three times as fast here as a gather of all of a row's.
    """
    num_factors = row_values.shape[1]
    pad = [(0, 0), (0, -num_factors % LANES)]  # whole lanes are a little faster
    mine, table = jnp.pad(row_values, pad), jnp.pad(column_values.T, pad)

    def each_entry(index, visit, carry):
        start = entries.starts[index]
        return lax.fori_loop(0, entries.lengths[index], lambda i, c: visit(entries.columns[start + i], entries.values[start + i], c), carry)

    def gather(index, rows):
        def add(column, value, total):
            return total + value * lax.dynamic_index_in_dim(table, column, keepdims=False)

        return rows.at[index].set(each_entry(index, add, jnp.zeros_like(mine[0])))

    def scatter(index, columns):
        here = lax.dynamic_slice_in_dim(mine, index, 1)

        def add(column, value, columns):
            return lax.dynamic_update_slice_in_dim(columns, lax.dynamic_slice_in_dim(columns, column, 1) + value * here, column, 0)

        return each_entry(index, add, columns)

    rows = columns = None
    if row_side or not column_side:
        rows = lax.fori_loop(0, len(mine), gather, jnp.zeros_like(mine))
    if column_side:
        columns = lax.fori_loop(0, len(mine), scatter, jnp.zeros_like(table))
    value = jnp.sum(columns * table) if rows is None else jnp.sum(rows * mine)
    return Solved(value, None if rows is None else rows[:, :num_factors], None if columns is None else columns.T[:num_factors])


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


# The rows' own fixed point, fused ----------------------------------------------------------------------------------------------


def _mode_weight(c: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.maximum(c - 1, jnp.finfo(c.dtype).tiny ** 0.75), jnp.zeros_like(c)


def _log_mode_weight(c: jax.Array) -> tuple[jax.Array, jax.Array]:
    return c, jnp.zeros_like(c)


# the weight, per unit of `scale`, that a concentration or gamma shape gives its factor, by summary of q
WEIGHTS = {"mean": digamma_parts, "mode": _mode_weight, "log_mode": _log_mode_weight, "collapsed": _log_mode_weight}


class RowOptions(NamedTuple):
    """How far the rows' fixed point is run: at most `num_local` iterations, until the mean change falls below `tolerance`."""

    num_local: int = 100
    tolerance: float = 1e-3


class RowInfo(NamedTuple):
    """How the rows' fixed point ended: iterations taken and last mean change, per row."""

    iterations: jax.Array
    change: jax.Array


def converge_rows(
    concentration: jax.Array,
    log_scale: jax.Array,
    column_logits: jax.Array,
    entries: Entries,
    start: jax.Array,
    options: RowOptions,
    summary: str = "mean",
) -> tuple[jax.Array, RowInfo, Entries]:
    """Iterate c <- concentration + d allocate / d row_logits at row_logits = log weight(c) + log_scale, each row to its own convergence.

    concentration: (rows or 1, K) prior concentrations or shapes; log_scale: (rows or 1, K or 1), what else the row logits hold: minus the
    log rate of a gamma, minus digamma of the total of a Dirichlet; start: (rows, K) row logits to begin with.

    Returns the allocated counts (concentration + counts is the new parameter) and the entries with `solved` set: value and gradients of
    `allocate` at the new logits, without a second pass over the rows.

    summary "collapsed" is CVB0's (Asuncion et al. 2009): the weight of a factor for a token is concentration + counts without that token's own share,
    so that it differs from column to column. A row's shares live in cache while it is visited, and nowhere else.
    """
    num_rows, num_factors = start.shape
    table = _table(column_logits)
    dtype = table.weights.dtype
    pad = [(0, 0), (0, -num_factors % LANES)]  # whole lanes are a third faster
    real = (jnp.arange(num_factors + pad[1][1]) < num_factors).astype(dtype)
    prior = jnp.pad(concentration.astype(dtype), pad, constant_values=1)
    log_scale = jnp.broadcast_to(log_scale, (log_scale.shape[0], num_factors))
    scale, scale_shift = _row_weights(log_scale)
    first, _ = _row_weights(start)
    floor = jnp.exp(jnp.asarray(_clip(dtype), dtype))

    def at(array, index):
        return array[0] if array.shape[0] == 1 else array[index]

    def visit_collapsed(row, carry):
        counts, info, sums = carry
        prior_row, scale_row = at(prior, row.index), at(scale, row.index)

        def shared_out(weights):
            rate = jnp.sum(weights * row.gathered, 1)
            return weights * row.gathered / rate[:, None], rate

        def others(allocated, shares):
            return jnp.maximum((prior_row + allocated - shares) * scale_row, floor) * real

        def improve(state):
            step, shares, allocated, _ = state
            shares, _ = shared_out(others(allocated, shares))
            new = row.values @ shares
            return step + 1, shares, new, jnp.sum(jnp.abs(new - allocated)) / num_factors

        shares, _ = shared_out(first[row.index][None, :])
        begin = (0, shares, row.values @ shares, jnp.asarray(jnp.inf, dtype))
        step, shares, allocated, change = lax.while_loop(lambda s: (s[0] < options.num_local) & (s[3] > options.tolerance), improve, begin)
        weights = others(allocated, shares)
        shares, rate = shared_out(weights)
        value = jnp.sum(row.values * (jnp.log(rate) + table.shift[row.columns] + at(scale_shift, row.index)))
        ratio = row.values / rate
        sums = sums._replace(
            values=sums.values.at[row.index].set(value),
            rows=sums.rows.at[row.index].set(row.values @ shares),
            columns=sums.columns.at[row.columns].add(ratio[:, None] * weights),
        )
        info = RowInfo(info.iterations.at[row.index].set(step), info.change.at[row.index].set(change))
        return counts.at[row.index].set(row.values @ shares), info, sums

    def visit(row, carry):
        counts, info, sums = carry
        prior_row, scale_row = at(prior, row.index), at(scale, row.index)

        def improve(state):
            step, weights, _, allocated, _ = state
            rate = row.gathered @ weights
            new = weights * ((row.values / rate) @ row.gathered)
            change = jnp.sum(jnp.abs(new - allocated)) / num_factors
            mantissa, exponent = WEIGHTS[summary](prior_row + new)
            shift = jnp.max(exponent)
            weights = jnp.maximum(mantissa * jnp.exp(exponent - shift) * scale_row, floor) * real
            return step + 1, weights, shift, new, change

        def unfinished(state):
            return (state[0] < options.num_local) & (state[4] > options.tolerance)

        begin = (0, first[row.index], jnp.zeros((), dtype), jnp.zeros_like(prior_row), jnp.asarray(jnp.inf, dtype))
        step, weights, shift, allocated, change = lax.while_loop(unfinished, improve, begin)
        sums = _collect(row, weights, shift + at(scale_shift, row.index), table, sums)
        info = RowInfo(info.iterations.at[row.index].set(step), info.change.at[row.index].set(change))
        return counts.at[row.index].set(allocated), info, sums

    counts = jnp.zeros((num_rows, prior.shape[1]), dtype)
    info = RowInfo(jnp.zeros(num_rows, jnp.int32), jnp.zeros(num_rows, dtype))
    chosen = visit_collapsed if summary == "collapsed" else visit
    counts, info, sums = _each_row(entries, table, chosen, (counts, info, _empty_sums(entries, table, True, True)))
    counts = counts[:, :num_factors]

    def final_logits():
        mantissa, exponent = WEIGHTS[summary](concentration.astype(dtype) + counts)
        return jnp.log(mantissa) + exponent + log_scale

    solved = _finish(sums, entries, table, num_factors, final_logits)
    return counts, info, dataclasses.replace(entries, solved=solved)
