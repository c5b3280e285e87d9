"""Stochastic variational inference: natural-gradient steps on batches of rows (X 27-29, P 11.33-11.35, T 10).

    locals of the batch to their fixed point, then    natural <- (1 - rho) natural + rho target,    target = dF/dmu with the batch scaled by N/|B|

The rate is rho_t = (tau + t)^-kappa, or, with rate="adaptive", the one of Ranganath et al. (2013), which keeps running averages of the
natural gradient g and of its squared norm, rho = |mean g|^2 / mean |g|^2, over a window that shrinks when steps are large.

With weights="mean" rows are solved given the means of the global sites instead of their geometric means: half way to collapsed inference (`cvb0`).
That is no step on the bound. The bound in the history is still that of the q reached, from a second solution of the rows.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference import minibatch as mb
from inference import objective as obj
from inference.empirical_bayes import learn
from inference.engine import Algorithm, Engine
from inference.minibatch import State
from pp_models.base import Sites
from pp_models.errors import unknown
from pp_models.rows import RowOptions


class Options(NamedTuple):
    """num_epochs: passes over the data (0: three, or as many as make 500 steps). batch_size: rows per step (0: an eighth of them, at most 256).

    rate: "schedule" for (tau + t)^-kappa, t counting steps, or "adaptive" for the one of Ranganath et al.
    tau: holds the first steps back. kappa: how soon later ones count less, above 0.5 and up to 1.

    weights: what stands for global sites while rows are solved, "geometric" means or (Dirichlet, gamma, beta) "mean"; see the engine's page.

    num_local, local_tolerance: the rows' fixed point. bound_every: steps between evaluations of the bound (0: never).
    tolerance: stop when an epoch's mean bound improves by less than this, relatively (0: run all epochs).
    """

    num_epochs: int = 0
    batch_size: int = 0
    tau: float = 10.0
    kappa: float = 0.7
    rate: str = "schedule"
    weights: str = "geometric"
    num_local: int = 100
    local_tolerance: float = 1e-3
    bound_every: int = 1
    tolerance: float = 0.0


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
    rate = jnp.where(step + 1 < PROBE_STEPS, 0.0, _square(average) / jnp.maximum(square, jnp.finfo(square.dtype).tiny))
    window = jnp.where(step + 1 < PROBE_STEPS, float(PROBE_STEPS), old.window * (1 - rate) + 1)
    return rate, Adaptive(average, square, window)


def _square(gradient: Sites) -> jax.Array:
    return sum((jnp.sum(g * g) for g in jax.tree.leaves(gradient)), jnp.zeros(()))


def check(options: Options) -> None:
    if options.rate not in ("schedule", "adaptive"):
        raise unknown("rate", options.rate, ("schedule", "adaptive"))
    mb.check_schedule(options)


def natural_step(
    problem: obj.Problem, rows: RowOptions, state: State, batches: Any, present: int, rate: float | None, evaluate: bool, weights: str = "geometric"
) -> Any:
    """One step on the batches of a data set of `present` rows, at the given rate or, with None, the adaptive one."""
    shares = mb.solve(problem, state.values, state.shared, batches, rows, bound=evaluate, weights=weights)
    totals = mb.total(problem, shares, present)
    bound = None
    if evaluate:
        judged = totals
        if weights != "geometric":
            judged = mb.total(problem, mb.solve(problem, state.values, state.shared, batches, rows, bound=True), present)
        bound = mb.bound_terms(problem, state.values, state.shared, judged)
    gradients, adaptive = mb.gradients(problem, shares), state.adaptive
    if adaptive is not None:
        target = mb.target(problem, state.values, state.shared, gradients, totals.scale)
        rate, adaptive = _adapt(adaptive, state.shared, target, float(state.step))
    shared = mb.ascend(problem, state.values, state.shared, gradients, totals.scale, rate, state.shared)
    values = learn(problem, state.values, shared, shares, batches, totals.scale, rate)
    return State(shared, values, state.step + 1, adaptive), Info(bound, rate, totals.iterations)


def build(problem: obj.Problem, options: Options) -> Algorithm:
    mb.check_weights(problem, options.weights)
    rows = RowOptions(options.num_local, options.local_tolerance)

    def first(shared):
        adaptive = None
        if options.rate == "adaptive":
            adaptive = Adaptive(jax.tree.map(jnp.zeros_like, shared), jnp.zeros(()), jnp.asarray(float(PROBE_STEPS)))
        return State(shared, problem.values, 0, adaptive)

    def step(key, state, batches):
        evaluate = bool(options.bound_every) and state.step % options.bound_every == 0
        rate = mb.learning_rate(options.tau, options.kappa, state.step) if options.rate == "schedule" else None
        return natural_step(problem, rows, state, batches, problem.data.num_rows, rate, evaluate, options.weights)

    return mb.algorithm(problem, step, first)


ENGINE = Engine("svi", Options, build, kind="variational", rows="batch", check=check, init="natural", settle=mb.settle_batches, learns=True)
