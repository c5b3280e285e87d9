"""A trust-region step on a batch of rows (T, Algorithm 1).

The step of `trust_region`, also taken by `streaming`.
"""

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import devices
from inference.core import objective as obj
from inference.engines import _minibatch as mb
from inference.engines._empirical_bayes import learn
from inference.engines._minibatch import State
from pp_models import families as fam
from pp_models.elimination.primitive import UNIFORM
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.model import Sites


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
    return sum(
        (
            jnp.sum(fam.divergence(model.families[site], shared[site], anchor[site]))
            for site in model.shared
        ),
        jnp.zeros(()),
    )


def inner_objective(
    problem: obj.Problem, hyper: Any, shared: Sites, totals: mb.Totals, anchor: Sites, rate: float
) -> float:
    """L_n(shared) - xi KL(shared, anchor) (T 11), the rows solved given `shared`."""
    bound = devices.total(mb.bound_terms(problem, hyper, shared, totals))
    return bound - (1 / rate - 1) * float(_divergence(problem.model, shared, anchor))


def trust_step(
    problem: obj.Problem,
    options: Any,
    state: State,
    batches: Any,
    present: int,
    rate: float,
    evaluate: bool,
) -> tuple[State, Info]:
    """One trust-region step on the batches of a data set of `present` rows."""
    rows = RowOptions(options.num_local, options.local_tolerance)
    hyper, anchor, bound, weights = state.hyper, state.shared, None, options.weights
    if evaluate:
        before = mb.solve(problem, hyper, anchor, batches, rows, bound=True)
        bound = mb.bound_terms(problem, hyper, anchor, mb.total(problem, before, present))
    shared, local, scale = anchor, None, None
    if options.start == "uniform":
        shares = mb.solve(problem, hyper, anchor, batches, rows, even=True)
        scale = mb.total(problem, shares, present).scale
        shared = mb.ascend(
            problem, hyper, anchor, mb.gradients(problem, shares), scale, rate, anchor
        )
        local = [share.natural for share in shares]
    height, inner, rising = -float("inf"), 0, True
    while inner < options.num_inner and rising:
        shares = mb.solve(
            problem,
            hyper,
            shared,
            batches,
            rows,
            start=local,
            bound=options.inner_tolerance > 0,
            weights=weights,
        )
        totals = mb.total(problem, shares, present)
        if options.inner_tolerance:
            below, height = height, inner_objective(problem, hyper, shared, totals, anchor, rate)
            rising = height - below > options.inner_tolerance * abs(height)
        shared = mb.ascend(
            problem, hyper, shared, mb.gradients(problem, shares), totals.scale, rate, anchor
        )
        local, scale, inner = [share.natural for share in shares], totals.scale, inner + 1
    hyper = learn(problem, hyper, shared, shares, batches, scale, rate)
    objective = height if options.inner_tolerance else None
    return State(shared, hyper, state.step + 1), Info(
        bound, rate, float(inner), objective, totals.iterations
    )


def check_trust(options: Any) -> None:
    if options.inner_tolerance and options.weights == "mean":
        raise InputError(
            'inner_tolerance stops by the bound, which weights="mean" does not ascend: leave one of the two out.'
        )
    mb.check_schedule(options)


def warn_of_copies(problem: obj.Problem, options: Any) -> None:
    """At a rate of one nothing but the batch is left, and from even beliefs (phi = 1/K) all factors get the same of it, for good."""
    model, hyper, data = problem.model, problem.hyper, problem.data
    if (
        options.start != "uniform"
        or mb.learning_rate(options.tau, options.kappa, 0) < 1
        or model.damped
    ):
        return
    few = data.select(np.arange(min(8, data.num_rows)))
    stats, batch = obj.summarise(model, model.init(jax.random.key(0), hyper, few)), few.pack()
    if not np.isclose(
        model.log_local(hyper, stats, batch, UNIFORM),
        model.log_local(hyper, stats, batch),
        rtol=1e-5,
    ):  # there are beliefs to spread
        warnings.warn(
            f"The first rate, (tau + t)^-kappa with tau={options.tau:g} and kappa={options.kappa:g}, is 1: from even beliefs, all factors become "
            "copies of each other and stay so. Set tau above 1 and kappa above 0, or start='current'.",
            stacklevel=4,
        )
