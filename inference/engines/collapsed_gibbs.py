"""Partially collapsed Gibbs sampling of counts: rows' weights integrated out, tokens drawn one after the other (Magnusson et al. 2018 for LDA).

A sweep (`beta` the global sites, `theta` the rows' weights, z the tokens' factors):

    z_dn   given beta and the row's other tokens       odds (a_k + N_dk) scale_dk beta_kv, N_dk without the token itself         (`Model.odds`)
    theta  given z and beta                            its complete conditional, as are
    beta   given z and theta                           all other sites, in order

Each line leaves the joint posterior of (z, theta, beta) as it is: the first is a Gibbs step for z with theta integrated out, and theta is drawn anew
right after it, before anything looks at it again (van Dyk and Park 2008). So this samples the same posterior as `gibbs`, exactly, whatever runs in
parallel: given beta, rows know nothing of each other. Full collapsing (Griffiths and Steyvers 2004) also integrates beta out; tokens of different
rows then depend on each other, and drawing them at the same time, as AD-LDA does, is an approximation. Here there is none to measure.

`gibbs` draws z given theta, and theta given z; in short rows the two hold each other. A token here sees the other tokens alone.

In parallel: chains, one on each device (`chains.Rounds`); within a chain rows, `tokens.TOGETHER` at a time in lock-step on one core. With fewer
chains than devices, devices are idle. A chain's draws depend on the key, its number, and the size of the chunks, as those of `gibbs` do.
"""

import dataclasses
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import jax

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DASHED, Algorithm, Engine, Look
from inference.engines import _gibbs_sweep as gibbs
from inference.engines._chains import Rounds, Setting, check_size, chunk_size, num_steps, run_chains
from pp_models.elimination import tokens as tk
from pp_models.errors import InputError
from pp_models.model import Model, Sites, number_of_factors

Options = opt.compose(
    opt.chains(2000, 500), thin=opt.Option(1, "sweeps between draws that are kept")
)


class Chain(NamedTuple):
    """t(x) of every site, and the factor of every token, one small integer each, laid out as `tokens.Tokens` are."""

    stats: Sites
    allocations: jax.Array


def sweep(
    model: Any, hyper: Any, key: jax.Array, chain: Chain, batch: Any, tokens: tk.Tokens
) -> Chain:
    """The tokens' factors, then every block given them: with allocations known, F's gradients are the complete conditionals."""
    token_key, block_key = jax.random.split(key)
    odds = model.tokens.odds(hyper, chain.stats, batch)
    allocations = tk.reallocate(token_key, tokens, chain.allocations, odds)
    num_factors, num_columns = odds.column_logits.shape
    known = tk.tally(
        tokens, allocations, batch.num_rows, num_factors, num_columns, odds.column_logits.dtype
    )
    batch = batch.replace(entries=dataclasses.replace(batch.entries, solved=known))
    return Chain(gibbs.sweep(model, hyper, block_key, chain.stats, batch), allocations)


def suits(model: Model) -> str:
    if model.tokens is None:
        instead = "nuts" if gibbs.suits(model) else "gibbs"
        return f"collapsed_gibbs integrates out rows' weights on factors of counts, and {model.name} declares no odds to do so by: use {instead}."
    return ""


def _check_tokens(data: Any) -> None:
    gibbs.check_counts("collapsed_gibbs", data)
    if data.total >= 2**31:
        raise InputError(
            f"collapsed_gibbs numbers tokens, up to {2**31 - 1}, but there are {data.total:.0f}: use fewer rows, or svi."
        )


_stats = attrgetter("stats")
_arrange = partial(jax.jit, static_argnames=("num_columns", "steps"))(tk.arrange)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    check_size(problem, options)
    _check_tokens(problem.data)
    model, rounds = problem.model, Rounds(problem, options.num_chains)
    tokens = _arrange(
        rounds.shared[1].entries, problem.data.num_columns, tk.num_steps(problem.data.totals)
    )
    weights, num_factors = (
        next(iter(model.families)),
        getattr(problem.hyper, number_of_factors(model)),
    )

    def first(key, start):
        if weights in start:
            raise InputError(
                f"collapsed_gibbs integrates {weights} out and cannot begin at one: give init for {' or '.join(model.shared)} alone."
            )
        return Chain(gibbs.begin(problem, key, start), tk.unallocated(tokens, num_factors))

    setting = Setting(model, chunk_size(options, problem), sweep, _stats)
    return run_chains(problem, options, rounds, setting, first, (rounds.everywhere(tokens),))


ENGINE = Engine(
    "collapsed_gibbs",
    Options,
    build,
    kind="draws",
    rows="none",
    init="values",
    suits=suits,
    num_steps=num_steps,
    quick={"num_samples": 1000, "num_warmup": 300},
    calibrated={"num_samples": 49, "num_warmup": 400, "num_chains": 1, "thin": 40},
    tiny={"num_samples": 50, "num_warmup": 20},
    budget=3.0,
    look=Look("blue", DASHED, "up", True),
)
