"""Stochastic variational inference: natural-gradient steps on batches of rows (X 27-29, P 11.33-11.35, T 10).

    locals of the batch to their fixed point, then    natural <- (1 - rho) natural + rho target,    target = dF/dmu with the batch scaled by N/|B|

The rate is rho_t = (tau + t)^-kappa, or, with rate="adaptive", the one of Ranganath et al. (2013), which keeps running averages of the
natural gradient g and of its squared norm, rho = |mean g|^2 / mean |g|^2, over a window that shrinks when steps are large.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference import objective as obj
from inference.engine import Algorithm, Engine
from inference.posterior import Variational
from pp_models.base import Sites
from pp_models.eliminate import RowOptions
from pp_models.errors import InputError, unknown


class Options(NamedTuple):
    """num_epochs: passes over the data (0: three, or as many as make 500 steps). batch_size: rows per step (0: an eighth of them, at most 256).

    rate: "schedule" for (tau + t)^-kappa, or "adaptive" for the one of Ranganath et al.

    num_local, local_tolerance: the rows' fixed point. bound_every: steps between evaluations of the bound (0: never).
    tolerance: stop when an epoch's mean bound improves by less than this, relatively (0: run all epochs).
    """

    num_epochs: int = 0
    batch_size: int = 0
    tau: float = 10.0
    kappa: float = 0.7
    rate: str = "schedule"
    num_local: int = 100
    local_tolerance: float = 1e-3
    bound_every: int = 1
    tolerance: float = 0.0


class Adaptive(NamedTuple):
    """Running averages behind the adaptive rate."""

    gradient: Sites
    square: jax.Array
    window: jax.Array


class State(NamedTuple):
    """Natural parameters of the global sites, steps taken, and the averages of the adaptive rate (None with a schedule)."""

    shared: Sites
    step: jax.Array
    adaptive: Adaptive | None


class Info(NamedTuple):
    """bound: estimate from this batch before its step, as terms to be added up. rate: rho. local_iterations: mean over rows."""

    bound: Any
    rate: Any
    local_iterations: Any


PROBE_STEPS = 5  # the adaptive rate first averages this many gradients without moving


@partial(jax.jit, static_argnames=("model", "structure", "options", "bound"))
def _local(model, structure, values, shared, batch, options, bound):
    hyper = obj.make(model, structure, values)
    start = obj.start_local(model, hyper, batch)
    part = obj.local_part(model, hyper, obj.summarise(model, shared), batch, start, options)
    value = (part.value, part.entropy) if bound else ()
    return part.gradient, value, jnp.sum(part.info.iterations * batch.mask), jnp.sum(batch.mask)


@partial(jax.jit, static_argnames=("model", "structure", "schedule"))
def _move(model, structure, values, state, parts, num_rows, schedule):
    """One natural-gradient step from the devices' shares."""
    hyper = obj.make(model, structure, values)
    scale = num_rows / sum(rows for _, _, _, rows in parts)
    data = jax.tree.map(lambda g: scale * g, obj.add(*(gradient for gradient, _, _, _ in parts)))
    target = obj.add(obj.prior_gradient(model, hyper, obj.summarise(model, state.shared)), data)
    if schedule is None:
        rate, adaptive = _adapt(state, jax.tree.map(jnp.subtract, target, state.shared))
    else:
        rate, adaptive = (schedule[0] + state.step) ** -schedule[1], None
    shared = jax.tree.map(lambda old, new: (1 - rate) * old + rate * new, state.shared, target)
    rows = sum(rows for _, _, _, rows in parts)
    iterations = sum(count for _, _, count, _ in parts) / rows
    local = [scale * term for _, value, _, _ in parts for term in value]
    return State(shared, state.step + 1, adaptive), rate, iterations, local


def _adapt(state: State, gradient: Sites) -> tuple[jax.Array, Adaptive]:
    """Ranganath et al. (2013), Algorithm 1, with one rate for all global parameters."""
    old = state.adaptive
    assert old is not None
    share = jnp.where(state.step < PROBE_STEPS, 1 / (state.step + 1.0), 1 / old.window)
    average = jax.tree.map(lambda a, g: (1 - share) * a + share * g, old.gradient, gradient)
    square = (1 - share) * old.square + share * _square(gradient)
    rate = jnp.where(state.step + 1 < PROBE_STEPS, 0.0, _square(average) / jnp.maximum(square, jnp.finfo(square.dtype).tiny))
    window = jnp.where(state.step + 1 < PROBE_STEPS, float(PROBE_STEPS), old.window * (1 - rate) + 1)
    return rate, Adaptive(average, square, window)


def _square(gradient: Sites) -> jax.Array:
    return sum((jnp.sum(g * g) for g in jax.tree.leaves(gradient)), jnp.zeros(()))


def check(options: Options) -> None:
    if options.rate not in ("schedule", "adaptive"):
        raise unknown("rate", options.rate, ("schedule", "adaptive"))
    if options.kappa > 1 or (options.tau < 1 and options.kappa > 0):
        raise InputError(f"The rate (tau + t)^-kappa needs tau >= 1 and 0 <= kappa <= 1, not tau={options.tau}, kappa={options.kappa}.")
    if options.tolerance > 0 and options.bound_every == 0:
        raise InputError("tolerance stops by the bound, but bound_every=0 never evaluates it: set bound_every to at least 1.")


def settle(options: Options, data: Any) -> Options:
    """Batches and passes that suit the number of rows, where the user left them open."""
    size = min(options.batch_size or min(256, -(-data.num_rows // 8)), data.num_rows)
    steps_per_epoch = -(-data.num_rows // size)
    return options._replace(batch_size=size, num_epochs=options.num_epochs or max(3, -(-500 // steps_per_epoch)))


def build(problem: obj.Problem, options: Options) -> Algorithm:
    model, structure, values = problem.model, problem.structure, problem.values
    schedule = (options.tau, options.kappa) if options.rate == "schedule" else None
    rows = RowOptions(options.num_local, options.local_tolerance)
    seen = 0  # steps dispatched: which of them evaluate the bound

    def init(key, start):
        first = model.init(key, problem.hyper, problem.data)
        shared = {site: start.get(site, first[site]) for site in model.shared}
        adaptive = None
        if schedule is None:
            adaptive = Adaptive(jax.tree.map(jnp.zeros_like, shared), jnp.zeros(()), jnp.asarray(float(PROBE_STEPS)))
        return State(shared, jnp.zeros(()), adaptive)

    def step(key, state, batches):
        nonlocal seen
        evaluate = bool(options.bound_every) and seen % options.bound_every == 0
        seen += 1
        parts = [
            _local(model, structure, values, jax.device_put(state.shared, device), batch, rows, evaluate)
            for device, batch in zip(problem.devices, batches, strict=True)
        ]
        shared_bound = obj.shared_bound(model, structure, values, state.shared) if evaluate else None
        state, rate, iterations, local = _move(model, structure, values, state, tuple(obj.gather(problem, parts)), problem.data.num_rows, schedule)
        return state, Info((shared_bound, local) if evaluate else None, rate, iterations)

    def posterior(state):
        return Variational(problem, state.shared)

    return Algorithm(init, step, posterior)


ENGINE = Engine("svi", Options, build, kind="variational", rows="batch", check=check, init="natural", settle=settle)
