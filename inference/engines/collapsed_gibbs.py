r"""Partially collapsed Gibbs sampling of counts (Magnusson et al. 2018 for LDA). It draws tokens in
turn with the rows' weights integrated out, then all blocks as `gibbs` does.

$$ p(z_{dn} = k \mid z_{d,-n}, \beta) \propto (a_k + N_{dk}^{-n}) \, c_{dk} \, \beta_{kv}, \qquad
\theta \sim p(\theta \mid z, \beta), \qquad \beta \sim p(\beta \mid z, \theta) $$

$c_{dk}$ is a scale of the model (`Tokens.odds`). Each line leaves the joint posterior of
$(z, \theta, \beta)$ invariant, because $\theta$ is drawn right after the tokens (van Dyk & Park
2008). So it samples the same posterior as `gibbs`, exactly, whatever runs in parallel: given
$\beta$, rows are independent. Full collapsing (Griffiths & Steyvers 2004) makes tokens of different
rows depend on each other, and drawing them in parallel, as AD-LDA does, is an approximation.

Use it in place of `gibbs` for counts with Dirichlet or gamma weights, above all for short
documents, in which tokens and weights hold each other fast. `init` may not hold the rows' weights.

Chains run one on each device, and the rows of a chain in lock-step on one core, so give at least as
many chains as devices. Draws depend on the key, the chain's number and the size of the chunks.
"""

import dataclasses
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import jax

from inference.core import objective as obj
from inference.core.engine import DASHED, Algorithm, Look
from inference.engines import _gibbs_sweep as gibbs
from inference.engines._chains import Rounds, check_size
from pp_models.elimination import tokens as tk
from pp_models.errors import InputError
from pp_models.model import Model, Sites, number_of_factors


class Chain(NamedTuple):
    """t(x) of every site, and the factor of every token, laid out as `tokens.Tokens`."""

    stats: Sites
    allocations: jax.Array


def sweep(
    model: Any, hyper: Any, key: jax.Array, chain: Chain, batch: Any, tokens: tk.Tokens
) -> Chain:
    """Draw the tokens' factors, then every block given them."""
    token_key, block_key = jax.random.split(key)
    odds = model.tokens.odds(hyper, chain.stats, batch)
    allocations = tk.reallocate(token_key, tokens, chain.allocations, odds)
    (num_factors, num_columns), dtype = odds.column_logits.shape, odds.column_logits.dtype
    known = tk.tally(tokens, allocations, batch.num_rows, num_factors, num_columns, dtype)
    batch = batch.replace(entries=dataclasses.replace(batch.entries, solved=known))
    return Chain(gibbs.sweep(model, hyper, block_key, chain.stats, batch), allocations)


def suits(model: Model) -> str:
    if model.tokens is not None:
        return ""
    return (
        "collapsed_gibbs integrates out rows' weights on factors of counts, and "
        f"{model.name} declares no odds to do so by: use {'nuts' if model.damped else 'gibbs'}."
    )


def _check_tokens(data: Any) -> None:
    gibbs.check_counts("collapsed_gibbs", data)
    if data.total >= 2**31:
        raise InputError(
            f"collapsed_gibbs numbers tokens, up to {2**31 - 1}, but there are {data.total:.0f}: "
            "use fewer rows, or svi."
        )


_stats = attrgetter("stats")
_arrange = partial(jax.jit, static_argnames=("num_columns", "steps"))(tk.arrange)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    check_size(problem, options)
    _check_tokens(problem.data)
    model, rounds = problem.model, Rounds(problem, options.num_chains)
    steps = tk.num_steps(problem.data.totals)
    tokens = _arrange(rounds.shared[1].entries, problem.data.num_columns, steps)
    weights = next(iter(model.families))
    num_factors = getattr(problem.hyper, number_of_factors(model))

    def first(key, start):
        if weights in start:
            raise InputError(
                f"collapsed_gibbs integrates {weights} out and cannot begin at one: give init for "
                f"{' or '.join(model.shared)} alone."
            )
        return Chain(gibbs.begin(problem, key, start), tk.unallocated(tokens, num_factors))

    extra = (rounds.everywhere(tokens),)
    return gibbs.run_chains(problem, options, rounds, first, sweep, _stats, extra)


look = Look("blue", DASHED, "up", True)
ENGINE = gibbs.engine("collapsed_gibbs", gibbs.Options, build, suits=suits, look=look)
