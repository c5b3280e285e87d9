"""A natural-gradient step on a batch of rows (X 27–29, T 10): the step of `svi`.

X is Fox's slides, T is Theis & Hoffman. `streaming` and `hybrid` take the same step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.engines import _minibatch as mb
from inference.engines._empirical_bayes import learn
from inference.engines._minibatch import State
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

PROBE_STEPS = 5  # the adaptive rate first averages this many gradients without moving


class Adaptive(NamedTuple):
    """Running averages of the natural gradient and of its squared norm, and their window."""

    gradient: Sites
    square: jax.Array
    window: jax.Array


def first_adaptive(shared: Sites) -> Adaptive:
    zeros = jax.tree.map(jnp.zeros_like, shared)
    return Adaptive(zeros, jnp.zeros(()), jnp.asarray(float(PROBE_STEPS)))


def learning_rate(options: Any, time: float) -> float:
    """(tau + t)^-kappa."""
    return (options.tau + time) ** -options.kappa


def bound_is_due(options: Any, step: int) -> bool:
    """Whether this step estimates the bound."""
    return bool(options.bound_every) and step % options.bound_every == 0


class Info(NamedTuple):
    """bound: terms of its estimate before the step. local_iterations: mean over rows."""

    bound: Any
    rate: Any
    local_iterations: Any


@jax.jit
def _adapt(old: Adaptive, shared: Sites, target: Sites, step: Any) -> tuple[jax.Array, Adaptive]:
    """Algorithm 1 of Ranganath et al. (2013), with one rate for all global parameters."""
    probing = step + 1 < PROBE_STEPS
    gradient = jax.tree.map(jnp.subtract, target, shared)
    share = jnp.where(step < PROBE_STEPS, 1 / (step + 1.0), 1 / old.window)
    average = jax.tree.map(lambda a, g: (1 - share) * a + share * g, old.gradient, gradient)
    square = (1 - share) * old.square + share * _square(gradient)
    ratio = _square(average) / jnp.maximum(square, jnp.finfo(square.dtype).tiny)
    rate = jnp.where(probing, 0.0, ratio)
    window = jnp.where(probing, float(PROBE_STEPS), old.window * (1 - rate) + 1)
    return rate, Adaptive(average, square, window)


def _square(gradient: Sites) -> jax.Array:
    return sum((jnp.sum(g * g) for g in jax.tree.leaves(gradient)), jnp.zeros(()))


def natural_step(problem, options, state: State, batches, present, time) -> tuple[State, Info]:
    """One step on the batches of a data set of `present` rows. time: t of the learning rate."""
    rate, evaluate = learning_rate(options, time), bound_is_due(options, state.step)
    rows, shared = RowOptions(options.num_local, options.local_tolerance), state.shared
    given, bound, adaptive = (problem, state.hyper, shared, batches, rows, present), None, None
    solved = mb.solve(*given, bound=evaluate, weights=options.weights)
    if evaluate:
        judged = solved if options.weights == "geometric" else mb.solve(*given, bound=True)
        bound = judged.bound
    if state.adaptive is not None:
        target = mb.target(solved, shared)
        rate, adaptive = _adapt(state.adaptive, shared, target, float(state.step))
    new = mb.ascend(solved, shared, rate, shared)
    hyper = learn(solved, new, rate) if problem.learn else state.hyper
    return State(new, hyper, state.step + 1, adaptive), Info(bound, rate, solved.iterations)
