"""Streaming variational Bayes: yesterday's posterior is today's prior (T 3.2, T 19-20, after Broderick et al. 2013).

    natural_{n+1} <- argmin KL(q || p(x_n | .) q_n),    by coordinate ascent on the batch alone:  natural <- natural_n + sum of its rows' statistics

Nothing is scaled to the size of the data set, which need not be known. The first prior is the model's own. (T 19 prints q(theta): q(beta) is meant.)
With all rows in one batch this is CAVI.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference import minibatch as mb
from inference import objective as obj
from inference.empirical_bayes import learn
from inference.engine import Algorithm, Engine
from pp_models.base import Sites
from pp_models.errors import InputError
from pp_models.rows import RowOptions


class Options(NamedTuple):
    """num_epochs: passes over the data; more than one count rows more than once. batch_size: rows per step (0: an eighth of them, at most 1,000).

    num_inner: sweeps of coordinate ascent on each batch. num_local, local_tolerance: the rows' fixed point in each, from where the last left it.
    tau, kappa: the rate (tau + t)^-kappa at which hyper-parameters are learned; the posterior has none. Only those of the rows can be learned: the
    global sites' prior is used once, in the first step.
    """

    num_epochs: int = 1
    batch_size: int = 0
    num_inner: int = 20
    num_local: int = 10
    local_tolerance: float = 1e-3
    tau: float = 1.0
    kappa: float = 0.5


class State(NamedTuple):
    """Natural parameters of the global sites, those that stand for the prior (None: the model's own), hyper-parameters, and steps taken."""

    shared: Sites
    prior: Sites | None
    values: dict[str, jax.Array]
    step: int


class Info(NamedTuple):
    """bound: estimate from this batch, scaled to all rows, before its step, as terms to be added up. local_iterations: of the last sweep."""

    bound: Any
    local_iterations: Any


def settle(options: Options, data: Any) -> Options:
    return options._replace(batch_size=min(options.batch_size or min(1000, -(-data.num_rows // 8)), data.num_rows))


def absorb(problem: obj.Problem, options: Any, key: Any, state: State, batches: Any, present: int, arrived: int = 0) -> tuple[State, Info]:
    """The posterior after one more batch."""
    rows = RowOptions(options.num_local, options.local_tolerance)
    shared, local, bound = state.shared, None, None
    for inner in range(options.num_inner):
        shares = mb.solve(problem, state.values, shared, batches, rows, start=local, bound=inner == 0)
        totals = mb.total(problem, shares, present)
        if inner == 0:
            bound = mb.bound_terms(problem, state.values, shared, totals)
        shared = mb.ascend(problem, state.values, shared, mb.gradients(problem, shares), 1.0, prior=state.prior)
        local = [share.natural for share in shares]
    values = learn(problem, state.values, shared, shares, batches, totals.scale, mb.learning_rate(options.tau, options.kappa, state.step))
    return State(shared, shared, values, state.step + 1), Info(bound, totals.iterations)


def check_learned(problem: obj.Problem) -> None:
    """Hyper-parameters of the global sites' prior would be fitted to a posterior they had no part in (T 4.3): refuse them."""

    def prior(values):
        stats = obj.summarise(problem.model, mb.first_natural(problem, jax.random.key(0), {}))
        return problem.model.log_global(obj.make(problem.model, problem.structure, values), stats)

    slopes = jax.grad(prior)(problem.values)
    vain = [name for name in problem.learn if bool(jnp.any(slopes[name] != 0))]
    if vain:
        raise InputError(f"svb uses the prior of the global sites only once, so it cannot learn {', '.join(vain)}: give a value, or use streaming.")


def build(problem: obj.Problem, options: Options) -> Algorithm:
    check_learned(problem)

    def step(key, state, batches):
        return absorb(problem, options, key, state, batches, problem.data.num_rows)

    return mb.algorithm(problem, step, lambda shared: State(shared, None, problem.values, 0))


ENGINE = Engine(
    "svb",
    Options,
    build,
    kind="variational",
    rows="batch",
    check=mb.check_schedule,
    init="natural",
    settle=settle,
    stream=absorb,
    State=State,
    order="next",
    learns=True,
)
