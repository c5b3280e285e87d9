"""Trust-region stochastic variational inference (T, Algorithm 1).

On each batch, instead of one natural-gradient step, find

    natural <- argmax  L_n(natural) - xi KL(natural, natural_t),        rho = 1 / (1 + xi)                        (T 11, 14)

by coordinate ascent: natural <- (1 - rho) natural_t + rho target(natural), with the rows solved again, from where they were, after each. Every
step starts anew from beliefs spread evenly over the factors (phi = 1/K, T 2.4), which pulls all factors towards the batch before they compete for
it and so frees those that natural-gradient steps leave dead. This start is not counted among the m inner steps, each of which solves the rows once.
Starting from the current parameters instead, one inner step is a natural-gradient step.
"""

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference import devices
from inference import minibatch as mb
from inference import objective as obj
from inference.empirical_bayes import learn
from inference.engine import Algorithm, Engine
from inference.minibatch import State
from pp_models import families as fam
from pp_models.base import Sites
from pp_models.eliminate import UNIFORM
from pp_models.errors import InputError, unknown
from pp_models.rows import RowOptions


class Options(NamedTuple):
    """num_epochs: passes over the data (0: three, or as many as make 200 steps). batch_size: rows per step (0: an eighth of them, at most 256).

    weights: what stands for global sites while rows are solved, "geometric" means or (Dirichlet, gamma, beta) "mean", as of `svi`.

    tau, kappa: the rate rho = (tau + t)^-kappa. num_inner: inner steps m. inner_tolerance: stop them when the inner objective rises by less than
    this, relatively (0: always m). start: "uniform" (phi = 1/K) or "current" parameters. num_local (M), local_tolerance: the rows' fixed point in
    each inner step. bound_every: steps between estimates of the bound, each of which costs one more solution of the rows (0: never).
    tolerance: stop when an epoch's mean bound improves by less than this, relatively (0: run all epochs).
    """

    num_epochs: int = 0
    batch_size: int = 0
    tau: float = 10.0
    kappa: float = 0.5
    num_inner: int = 5
    inner_tolerance: float = 0.0
    start: str = "uniform"
    weights: str = "geometric"
    num_local: int = 10
    local_tolerance: float = 1e-3
    bound_every: int = 5
    tolerance: float = 0.0


class Info(NamedTuple):
    """bound: estimate from this batch before its step, as terms to be added up. rate: rho. inner: inner steps taken.

    objective: of T(11) at the last inner step, where it was evaluated (inner_tolerance > 0). local_iterations: of the last inner step.
    """

    bound: Any
    rate: Any
    inner: Any
    objective: Any
    local_iterations: Any


@partial(jax.jit, static_argnames=("model",))
def _divergence(model: Any, shared: Sites, anchor: Sites) -> jax.Array:
    """KL(shared, anchor), summed over the global sites (T 13)."""
    return sum((jnp.sum(fam.divergence(model.families[site], shared[site], anchor[site])) for site in model.shared), jnp.zeros(()))


def inner_objective(problem: obj.Problem, values: Any, shared: Sites, totals: mb.Totals, anchor: Sites, rate: float) -> float:
    """L_n(shared) - xi KL(shared, anchor) (T 11), the rows solved given `shared`."""
    bound = devices.total(mb.bound_terms(problem, values, shared, totals))
    return bound - (1 / rate - 1) * float(_divergence(problem.model, shared, anchor))


def trust_step(problem: obj.Problem, options: Any, state: State, batches: Any, present: int, rate: float, evaluate: bool) -> tuple[State, Info]:
    """One trust-region step on the batches of a data set of `present` rows."""
    rows = RowOptions(options.num_local, options.local_tolerance)
    values, anchor, bound, weights = state.values, state.shared, None, options.weights
    if evaluate:
        before = mb.solve(problem, values, anchor, batches, rows, bound=True)
        bound = mb.bound_terms(problem, values, anchor, mb.total(problem, before, present))
    shared, local, scale = anchor, None, None
    if options.start == "uniform":
        shares = mb.solve(problem, values, anchor, batches, rows, even=True)
        scale = mb.total(problem, shares, present).scale
        shared = mb.ascend(problem, values, anchor, mb.gradients(problem, shares), scale, rate, anchor)
        local = [share.natural for share in shares]
    height, inner, rising = -float("inf"), 0, True
    while inner < options.num_inner and rising:
        shares = mb.solve(problem, values, shared, batches, rows, start=local, bound=options.inner_tolerance > 0, weights=weights)
        totals = mb.total(problem, shares, present)
        if options.inner_tolerance:
            below, height = height, inner_objective(problem, values, shared, totals, anchor, rate)
            rising = height - below > options.inner_tolerance * abs(height)
        shared = mb.ascend(problem, values, shared, mb.gradients(problem, shares), totals.scale, rate, anchor)
        local, scale, inner = [share.natural for share in shares], totals.scale, inner + 1
    values = learn(problem, values, shared, shares, batches, scale, rate)
    objective = height if options.inner_tolerance else None
    return State(shared, values, state.step + 1), Info(bound, rate, float(inner), objective, totals.iterations)


def check(options: Any) -> None:
    if options.start not in ("uniform", "current"):
        raise unknown("start", options.start, ("uniform", "current"))
    if options.inner_tolerance and options.weights == "mean":
        raise InputError('inner_tolerance stops by the bound, which weights="mean" does not ascend: leave one of the two out.')
    mb.check_schedule(options)


def warn_of_copies(problem: obj.Problem, options: Any) -> None:
    """At a rate of one nothing but the batch is left, and from even beliefs (phi = 1/K) all factors get the same of it, for good."""
    model, hyper, data = problem.model, problem.hyper, problem.data
    if options.start != "uniform" or mb.learning_rate(options.tau, options.kappa, 0) < 1 or model.damped:
        return
    few = data.select(np.arange(min(8, data.num_rows)))
    stats, batch = obj.summarise(model, model.init(jax.random.key(0), hyper, few)), few.pack()
    if not np.isclose(model.log_local(hyper, stats, batch, UNIFORM), model.log_local(hyper, stats, batch), rtol=1e-5):  # there are beliefs to spread
        warnings.warn(
            f"The first rate, (tau + t)^-kappa with tau={options.tau:g} and kappa={options.kappa:g}, is 1: from even beliefs, all factors become "
            "copies of each other and stay so. Set tau above 1 and kappa above 0, or start='current'.",
            stacklevel=4,
        )


def build(problem: obj.Problem, options: Options) -> Algorithm:
    mb.check_weights(problem, options.weights)
    warn_of_copies(problem, options)

    def step(key, state, batches):
        evaluate = bool(options.bound_every) and state.step % options.bound_every == 0
        rate = mb.learning_rate(options.tau, options.kappa, state.step)
        return trust_step(problem, options, state, batches, problem.data.num_rows, rate, evaluate)

    return mb.algorithm(problem, step)


ENGINE = Engine(
    "trust_region",
    Options,
    build,
    kind="variational",
    rows="batch",
    check=check,
    init="natural",
    settle=partial(mb.settle_batches, num_updates=200),
    learns=True,
)
