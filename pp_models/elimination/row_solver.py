"""The rows' fixed point given the columns, fused with the pass that reads them (X 12, P 11.25)."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pp_models.data.batches import Entries
from pp_models.elimination import passes
from pp_models.elimination.passes import Row, Table
from pp_models.families.special import digamma_parts


def _mode_weight(c: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.maximum(c - 1, jnp.finfo(c.dtype).tiny ** 0.75), jnp.zeros_like(c)


def _log_mode_weight(c: jax.Array) -> tuple[jax.Array, jax.Array]:
    return c, jnp.zeros_like(c)


# Summary of q -> the weight, per unit of scale, of a factor with this concentration or gamma shape,
# as (mantissa, exponent): mantissa * exp(exponent).
WEIGHTS = {
    "mean": digamma_parts,
    "mode": _mode_weight,
    "log_mode": _log_mode_weight,
    "collapsed": _log_mode_weight,
}


class RowOptions(NamedTuple):
    """A row's fixed-point iteration stops after `num_local` iterations, or once the mean
    change of its counts is at most `tolerance`."""

    num_local: int = 100
    tolerance: float = 1e-3


class Odds(NamedTuple):
    """The odds with which a row's tokens choose among factors: weight(concentration + counts)
    exp(log_scale + column_logits); see `converge_rows`."""

    concentration: jax.Array
    log_scale: jax.Array
    column_logits: jax.Array


class RowInfo(NamedTuple):
    """How the rows' iterations ended: their number and the last mean change, per row."""

    iterations: jax.Array
    change: jax.Array


class _Setting(NamedTuple):
    """What the iteration of every row uses. Arrays of rows may have one row for all."""

    table: Table
    prior: jax.Array  # (rows or 1, padded K) concentrations, 1 in the padding
    scale: jax.Array  # (rows or 1, padded K) exp(log_scale - scale_shift)
    scale_shift: jax.Array  # (rows or 1,)
    start: jax.Array  # (rows, padded K) weights to begin with
    real: jax.Array  # (padded K,) 0 in the padding, else 1
    floor: jax.Array  # the least weight
    num_factors: int
    options: RowOptions
    summary: str

    def unfinished(self, state: tuple[Any, ...]) -> jax.Array:
        """Whether to go on from a state that begins with the step and ends with the change."""
        return (state[0] < self.options.num_local) & (state[-1] > self.options.tolerance)


def _of_row(array: jax.Array, index: jax.Array) -> jax.Array:
    return array[0] if array.shape[0] == 1 else array[index]


def _record(info: RowInfo, index: jax.Array, step: jax.Array, change: jax.Array) -> RowInfo:
    return RowInfo(info.iterations.at[index].set(step), info.change.at[index].set(change))


def _solve(setting: _Setting, row: Row, carry: Any) -> Any:
    """Iterate one row to convergence and add its value and statistics."""
    counts, info, sums = carry
    prior, scale = _of_row(setting.prior, row.index), _of_row(setting.scale, row.index)
    dtype = prior.dtype

    def improve(state):
        step, weights, _, allocated, _ = state
        rate = row.gathered @ weights
        new = weights * ((row.values / rate) @ row.gathered)
        change = jnp.sum(jnp.abs(new - allocated)) / setting.num_factors
        mantissa, exponent = WEIGHTS[setting.summary](prior + new)
        shift = jnp.max(exponent)
        weights = mantissa * jnp.exp(exponent - shift) * scale
        weights = jnp.maximum(weights, setting.floor) * setting.real
        return step + 1, weights, shift, new, change

    zero, infinite = jnp.zeros((), dtype), jnp.asarray(jnp.inf, dtype)
    begin = (0, setting.start[row.index], zero, jnp.zeros_like(prior), infinite)
    step, weights, shift, allocated, change = lax.while_loop(setting.unfinished, improve, begin)
    row_shift = shift + _of_row(setting.scale_shift, row.index)
    sums = passes.collect(row, weights, row_shift, setting.table, sums)
    info = _record(info, row.index, step, change)
    return counts.at[row.index].set(allocated), info, sums


def _solve_collapsed(setting: _Setting, row: Row, carry: Any) -> Any:
    """The same for CVB0. The responsibilities of a row's tokens exist only while it is visited."""
    counts, info, sums = carry
    prior, scale = _of_row(setting.prior, row.index), _of_row(setting.scale, row.index)
    table = setting.table

    def responsibilities(weights):
        rate = jnp.sum(weights * row.gathered, 1)
        return weights * row.gathered / rate[:, None], rate

    def weights_without_own(allocated, shares):
        return jnp.maximum((prior + allocated - shares) * scale, setting.floor) * setting.real

    def improve(state):
        step, shares, allocated, _ = state
        shares, _ = responsibilities(weights_without_own(allocated, shares))
        new = row.values @ shares
        return step + 1, shares, new, jnp.sum(jnp.abs(new - allocated)) / setting.num_factors

    shares, _ = responsibilities(setting.start[row.index][None, :])
    begin = (0, shares, row.values @ shares, jnp.asarray(jnp.inf, prior.dtype))
    step, shares, allocated, change = lax.while_loop(setting.unfinished, improve, begin)
    weights = weights_without_own(allocated, shares)
    shares, rate = responsibilities(weights)
    scale_shift = _of_row(setting.scale_shift, row.index)
    value = jnp.sum(row.values * (jnp.log(rate) + table.shift[row.columns] + scale_shift))
    ratio = row.values / rate
    sums = sums._replace(
        values=sums.values.at[row.index].set(value),
        rows=sums.rows.at[row.index].set(row.values @ shares),
        columns=sums.columns.at[row.columns].add(ratio[:, None] * weights),
    )
    info = _record(info, row.index, step, change)
    return counts.at[row.index].set(row.values @ shares), info, sums


def converge_rows(
    concentration: jax.Array,
    log_scale: jax.Array,
    column_logits: jax.Array,
    entries: Entries,
    start: jax.Array,
    options: RowOptions,
    summary: str = "mean",
) -> tuple[jax.Array, RowInfo, Entries]:
    """Iterate every row to its own convergence,

        c <- concentration + d allocate / d row_logits  at  row_logits = log weight(c) + log_scale

    concentration: (rows or 1, K) prior concentrations or shapes. log_scale: (rows or 1, K or 1) the
    other terms of the row logits: minus the log rate of a gamma, minus digamma of the total of a
    Dirichlet. start: (rows, K) row logits to begin with.

    Returns the allocated counts (concentration + counts is the new parameter) and the entries with
    `solved` set: value and gradients of `allocate` at the new logits, without a second pass.

    summary "collapsed" is CVB0 (Asuncion et al. 2009): the weight of a factor for a token is
    concentration + counts without that token's own share, so that it differs between columns.
    """
    num_rows, num_factors = start.shape
    table = passes.lay_out(column_logits)
    dtype = table.weights.dtype
    padding = -num_factors % passes.LANES  # whole lanes are a third faster
    real = (jnp.arange(num_factors + padding) < num_factors).astype(dtype)
    prior = jnp.pad(concentration.astype(dtype), ((0, 0), (0, padding)), constant_values=1)
    log_scale = jnp.broadcast_to(log_scale, (log_scale.shape[0], num_factors))
    scale, scale_shift = passes.row_weights(log_scale)
    first, _ = passes.row_weights(start)
    floor = jnp.exp(jnp.asarray(passes.lowest(dtype), dtype))
    rows = (prior, scale, scale_shift, first)
    setting = _Setting(table, *rows, real, floor, num_factors, options, summary)
    counts = jnp.zeros((num_rows, prior.shape[1]), dtype)
    info = RowInfo(jnp.zeros(num_rows, jnp.int32), jnp.zeros(num_rows, dtype))
    visit = partial(_solve_collapsed if summary == "collapsed" else _solve, setting)
    begin = (counts, info, passes.empty_sums(entries, table, True, True))
    counts, info, sums = passes.each_row(entries, table, visit, begin)
    counts = counts[:, :num_factors]

    def final_logits():
        mantissa, exponent = WEIGHTS[summary](concentration.astype(dtype) + counts)
        return jnp.log(mantissa) + exponent + log_scale

    solved = passes.finish(sums, entries, table, num_factors, final_logits)
    return counts, info, dataclasses.replace(entries, solved=solved)
