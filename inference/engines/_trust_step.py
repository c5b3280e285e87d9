"""A trust-region step on a batch of rows (T, Algorithm 1): the step of `trust_region`.

T is Theis & Hoffman. `streaming` takes the same step.
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
from inference.engines._natural_step import bound_is_due, learning_rate
from pp_models import families as fam
from pp_models.elimination.primitive import UNIFORM
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.model import Sites


class Info(NamedTuple):
    """bound: terms of its estimate before the step. inner: number of inner steps.

    objective: T(11) at the last inner step, if `inner_tolerance` asks for it
    local_iterations: mean over rows at the last inner step
    """

    bound: Any
    rate: Any
    inner: Any
    objective: Any
    local_iterations: Any


@partial(jax.jit, static_argnames=("model",))
def _divergence(model: Any, shared: Sites, anchor: Sites) -> jax.Array:
    """KL(shared, anchor), summed over the global sites (T 13)."""
    parts = (fam.divergence(model.families[s], shared[s], anchor[s]) for s in model.shared)
    return sum(map(jnp.sum, parts), jnp.zeros(()))


def inner_objective(solved: mb.Solved, shared: Sites, anchor: Sites, rate: float) -> float:
    """L_n(shared) - xi KL(shared, anchor) (T 11), the rows solved given `shared`."""
    bound = devices.total(solved.bound)
    return bound - (1 / rate - 1) * float(_divergence(solved.problem.model, shared, anchor))


def trust_step(problem, options, state: State, batches, present, time) -> tuple[State, Info]:
    """One step on the batches of a data set of `present` rows. time: t of the learning rate."""
    rate, evaluate = learning_rate(options, time), bound_is_due(options, state.step)
    rows = RowOptions(options.num_local, options.local_tolerance)
    anchor, bound, local = state.shared, None, None

    def solve(shared, **setting):
        return mb.solve(problem, state.hyper, shared, batches, rows, present, **setting)

    if evaluate:
        bound = solve(anchor, bound=True).bound
    shared = anchor
    if options.start == "uniform":
        solved = solve(anchor, even=True)
        shared, local = mb.ascend(solved, anchor, rate, anchor), solved.local
    height, inner, rising, judged = -float("inf"), 0, True, options.inner_tolerance > 0
    while inner < options.num_inner and rising:
        solved = solve(shared, start=local, bound=judged, weights=options.weights)
        if judged:
            below, height = height, inner_objective(solved, shared, anchor, rate)
            rising = height - below > options.inner_tolerance * abs(height)
        shared, local = mb.ascend(solved, shared, rate, anchor), solved.local
        inner += 1
    hyper = learn(solved, shared, rate)
    info = Info(bound, rate, float(inner), height if judged else None, solved.iterations)
    return State(shared, hyper, state.step + 1), info


def check_trust(options: Any) -> None:
    if options.inner_tolerance and options.weights == "mean":
        raise InputError(
            'inner_tolerance stops by the bound, which weights="mean" does not ascend: leave one '
            "of the two out."
        )
    mb.check_schedule(options)


def warn_of_copies(problem: obj.Problem, options: Any) -> None:
    """Warn of a first rate of 1: a uniform start then makes all factors equal for good."""
    model, hyper, data = problem.model, problem.hyper, problem.data
    if options.start != "uniform" or learning_rate(options, 0) < 1 or model.damped:
        return
    few = data.select(np.arange(min(8, data.num_rows)))
    stats, batch = obj.summarise(model, model.init(jax.random.key(0), hyper, few)), few.pack()
    uniform, optimal = (model.log_local(hyper, stats, batch, key) for key in (UNIFORM, None))
    if not np.isclose(uniform, optimal, rtol=1e-5):  # the model has auxiliaries
        warnings.warn(
            f"The first rate, (tau + t)^-kappa with tau={options.tau:g} and "
            f"kappa={options.kappa:g}, is 1: from even beliefs, all factors become copies of each "
            "other and stay so. Set tau above 1 and kappa above 0, or start='current'.",
            stacklevel=4,
        )
