"""A natural-gradient step on a batch of rows (X 27-29, T 10), and the adaptive rate.

The step of `svi`, also taken by `streaming` and `hybrid`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.core import objective as obj
from inference.engines import _minibatch as mb
from inference.engines._empirical_bayes import learn
from inference.engines._minibatch import State
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites


class Adaptive(NamedTuple):
    """Running averages behind the adaptive rate."""

    gradient: Sites
    square: jax.Array
    window: jax.Array


class Info(NamedTuple):
    """bound: estimate from this batch before its step, as terms to be added up. rate: rho. local_iterations: mean over rows."""

    bound: Any
    rate: Any
    local_iterations: Any


PROBE_STEPS = 5  # the adaptive rate first averages this many gradients without moving


@jax.jit
def _adapt(old: Adaptive, shared: Sites, target: Sites, step: Any) -> tuple[jax.Array, Adaptive]:
    """Ranganath et al. (2013), Algorithm 1, with one rate for all global parameters."""
    gradient = jax.tree.map(jnp.subtract, target, shared)
    share = jnp.where(step < PROBE_STEPS, 1 / (step + 1.0), 1 / old.window)
    average = jax.tree.map(lambda a, g: (1 - share) * a + share * g, old.gradient, gradient)
    square = (1 - share) * old.square + share * _square(gradient)
    rate = jnp.where(
        step + 1 < PROBE_STEPS,
        0.0,
        _square(average) / jnp.maximum(square, jnp.finfo(square.dtype).tiny),
    )
    window = jnp.where(step + 1 < PROBE_STEPS, float(PROBE_STEPS), old.window * (1 - rate) + 1)
    return rate, Adaptive(average, square, window)


def _square(gradient: Sites) -> jax.Array:
    return sum((jnp.sum(g * g) for g in jax.tree.leaves(gradient)), jnp.zeros(()))


def natural_step(
    problem: obj.Problem,
    rows: RowOptions,
    state: State,
    batches: Any,
    present: int,
    rate: float | None,
    evaluate: bool,
    weights: str = "geometric",
) -> Any:
    """One step on the batches of a data set of `present` rows, at the given rate or, with None, the adaptive one."""
    shares = mb.solve(
        problem, state.hyper, state.shared, batches, rows, bound=evaluate, weights=weights
    )
    totals = mb.total(problem, shares, present)
    bound = None
    if evaluate:
        judged = totals
        if weights != "geometric":
            judged = mb.total(
                problem,
                mb.solve(problem, state.hyper, state.shared, batches, rows, bound=True),
                present,
            )
        bound = mb.bound_terms(problem, state.hyper, state.shared, judged)
    gradients, adaptive = mb.gradients(problem, shares), state.adaptive
    if adaptive is not None:
        target = mb.target(problem, state.hyper, state.shared, gradients, totals.scale)
        rate, adaptive = _adapt(adaptive, state.shared, target, float(state.step))
    shared = mb.ascend(
        problem, state.hyper, state.shared, gradients, totals.scale, rate, state.shared
    )
    hyper = learn(problem, state.hyper, shared, shares, batches, totals.scale, rate)
    return State(shared, hyper, state.step + 1, adaptive), Info(bound, rate, totals.iterations)
