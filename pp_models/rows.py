"""The rows' own fixed point given the columns, fused with the pass that reads them (X 12, P 11.25)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pp_models.batches import Entries
from pp_models.passes import LANES, collect, each_row, empty_sums, finish, lay_out, lowest, row_weights
from pp_models.special import digamma_parts


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


class Odds(NamedTuple):
    """How a row's tokens choose among factors: as weight(concentration + counts) exp(log_scale + column_logits), see `converge_rows`."""

    concentration: jax.Array
    log_scale: jax.Array
    column_logits: jax.Array


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
    table = lay_out(column_logits)
    dtype = table.weights.dtype
    pad = [(0, 0), (0, -num_factors % LANES)]  # whole lanes are a third faster
    real = (jnp.arange(num_factors + pad[1][1]) < num_factors).astype(dtype)
    prior = jnp.pad(concentration.astype(dtype), pad, constant_values=1)
    log_scale = jnp.broadcast_to(log_scale, (log_scale.shape[0], num_factors))
    scale, scale_shift = row_weights(log_scale)
    first, _ = row_weights(start)
    floor = jnp.exp(jnp.asarray(lowest(dtype), dtype))

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
        sums = collect(row, weights, shift + at(scale_shift, row.index), table, sums)
        info = RowInfo(info.iterations.at[row.index].set(step), info.change.at[row.index].set(change))
        return counts.at[row.index].set(allocated), info, sums

    counts = jnp.zeros((num_rows, prior.shape[1]), dtype)
    info = RowInfo(jnp.zeros(num_rows, jnp.int32), jnp.zeros(num_rows, dtype))
    chosen = visit_collapsed if summary == "collapsed" else visit
    counts, info, sums = each_row(entries, table, chosen, (counts, info, empty_sums(entries, table, True, True)))
    counts = counts[:, :num_factors]

    def final_logits():
        mantissa, exponent = WEIGHTS[summary](concentration.astype(dtype) + counts)
        return jnp.log(mantissa) + exponent + log_scale

    solved = finish(sums, entries, table, num_factors, final_logits)
    return counts, info, dataclasses.replace(entries, solved=solved)
