"""Streaming variational Bayes: yesterday's posterior is today's prior (T 3.2, T 19-20, after Broderick et al. 2013).

    natural_{n+1} <- argmin KL(q || p(x_n | .) q_n),    by coordinate ascent on the batch alone:  natural <- natural_n + sum of its rows' statistics

Nothing is scaled to the size of the data set, which need not be known. The first prior is the model's own. (T 19 prints q(theta): q(beta) is meant.)
With all rows in one batch this is CAVI.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import MIXED, Algorithm, Engine, Look
from inference.engines import _minibatch as mb
from inference.engines._empirical_bayes import learn
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.model import Sites

Options = opt.compose(
    opt.rows(10, 1e-3),
    opt.rate(1.0, 0.5),  # of learned hyper-parameters; the posterior has none
    num_epochs=opt.Option(1, "passes over the data; more than one count rows more than once"),
    batch_size=opt.Option(0, "rows per step (0: an eighth of them, at most 1,000)"),
    num_inner=opt.Option(20, "sweeps of coordinate ascent on each batch"),
)


class State(NamedTuple):
    """Natural parameters of the global sites, those that stand for the prior (None: the model's own), hyper-parameters, and steps taken."""

    shared: Sites
    prior: Sites | None
    hyper: Any
    step: int


class Info(NamedTuple):
    """bound: estimate from this batch, scaled to all rows, before its step, as terms to be added up. local_iterations: of the last sweep."""

    bound: Any
    local_iterations: Any


def settle(options: Any, data: Any) -> Any:
    return options._replace(
        batch_size=min(options.batch_size or min(1000, -(-data.num_rows // 8)), data.num_rows)
    )


def absorb(
    problem: obj.Problem,
    options: Any,
    key: Any,
    state: State,
    batches: Any,
    present: int,
    arrived: int = 0,
) -> tuple[State, Info]:
    """The posterior after one more batch."""
    rows = RowOptions(options.num_local, options.local_tolerance)
    shared, local, bound = state.shared, None, None
    for inner in range(options.num_inner):
        shares = mb.solve(
            problem, state.hyper, shared, batches, rows, start=local, bound=inner == 0
        )
        totals = mb.total(problem, shares, present)
        if inner == 0:
            bound = mb.bound_terms(problem, state.hyper, shared, totals)
        shared = mb.ascend(
            problem, state.hyper, shared, mb.gradients(problem, shares), 1.0, prior=state.prior
        )
        local = [share.natural for share in shares]
    hyper = learn(
        problem,
        state.hyper,
        shared,
        shares,
        batches,
        totals.scale,
        mb.learning_rate(options.tau, options.kappa, state.step),
    )
    return State(shared, shared, hyper, state.step + 1), Info(bound, totals.iterations)


def check_learned(problem: obj.Problem) -> None:
    """Hyper-parameters of the global sites' prior would be fitted to a posterior they had no part in (T 4.3): refuse them."""

    def prior(hyper):
        stats = obj.summarise(problem.model, mb.first_natural(problem, jax.random.key(0), {}))
        return problem.model.log_global(hyper, stats)

    slopes = jax.grad(prior)(problem.hyper)
    vain = [name for name in problem.learn if bool(jnp.any(getattr(slopes, name) != 0))]
    if vain:
        raise InputError(
            f"svb uses the prior of the global sites only once, so it cannot learn {', '.join(vain)}: give a value, or use streaming."
        )


def build(problem: obj.Problem, options: Any) -> Algorithm:
    check_learned(problem)

    def step(key, state, batches):
        return absorb(problem, options, key, state, batches, problem.data.num_rows)

    return mb.algorithm(problem, step, lambda shared: State(shared, None, problem.hyper, 0))


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
    tiny={"batch_size": 4, "num_inner": 5},
    look=Look("amber", MIXED, "hourglass", True),
)
