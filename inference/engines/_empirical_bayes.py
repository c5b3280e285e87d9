r"""Empirical Bayes: learn hyper-parameters by raising the bound (T 17 of Theis & Hoffman, T).

With $q$ fixed, the bound depends on the hyper-parameters $h$ only through $F$ at fixed statistics.
Autodiff gives its gradient and Hessian in $\log h$. The step is Newton's with the Hessian's
eigenvalues made negative, an ascent direction everywhere. It changes no $h$ by more than a factor
$e$ and is shortened until $F$ rises. Stochastic engines damp it by the learning rate, as T(17)
damps its step, which it calls a natural gradient but prints as the plain one.

Terms that do not depend on hyper-parameters are evaluated once (`Model.learning.fix_rows`).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from inference.core import devices
from inference.core import objective as obj
from inference.engines._minibatch import Solved
from pp_models.model import Sites

STEPS = (1.0, 0.5, 0.25, 0.125, 0.03, 0.0)  # fractions of the Newton step
LARGEST = 1.0  # change of any log hyper-parameter in one step
RANGE = 14.0  # log h stays within this distance of its start: a factor of a million


def _logs(hyper, names):
    return {name: jnp.log(getattr(hyper, name)) for name in names}


def _part(setting, hyper, shared, own):
    """log h as a vector, and F as its function: of one device's rows, or without rows."""
    (model, names), (natural, batch) = setting, own or ({}, None)
    flat, unravel = ravel_pytree(_logs(hyper, names))
    stats = jax.lax.stop_gradient(obj.summarise(model, {**shared, **natural}))
    rows = None if batch is None else model.learning.fix_rows(hyper, stats, batch)

    def evaluate(x):
        new = hyper._replace(**jax.tree.map(jnp.exp, unravel(x)))
        return model.log_global(new, stats) if rows is None else model.log_local(new, stats, rows)

    return flat, evaluate


def _slope(setting, common, own):
    """Gradient and Hessian in log h."""
    flat, evaluate = _part(setting, *common, own)
    return jax.grad(evaluate)(flat), jax.hessian(evaluate)(flat)


def _gains(setting, common, own):
    """Gain of F at each of STEPS: differences, because the constant likelihood would swamp them."""
    *given, direction = common
    flat, evaluate = _part(setting, *given, own)
    heights = jax.lax.map(lambda step: evaluate(flat + step * direction), jnp.asarray(STEPS))
    return heights - evaluate(flat)


@partial(jax.jit, static_argnames=("names",))
def _direction(hyper, first, prior, rows, scale, names):
    flat, _ = ravel_pytree(_logs(hyper, names))
    begin, _ = ravel_pytree(_logs(first, names))
    gradient = prior[0] + scale * sum(g for g, _ in rows)
    curvature = prior[1] + scale * sum(h for _, h in rows)
    tiny = jnp.finfo(flat.dtype).tiny
    sizes, axes = jnp.linalg.eigh(0.5 * (curvature + curvature.T))
    sizes = jnp.maximum(jnp.abs(sizes), 1e-6 * jnp.max(jnp.abs(sizes)) + tiny)
    newton = axes @ ((axes.T @ gradient) / sizes)
    cut = newton * jnp.minimum(1, LARGEST / jnp.maximum(jnp.max(jnp.abs(newton)), tiny))
    return jnp.clip(flat + cut, begin - RANGE, begin + RANGE) - flat


@partial(jax.jit, static_argnames=("names",))
def _move(hyper, direction, prior, rows, scale, rate, names):
    """The longest of STEPS that raises F, damped by the rate."""
    flat, unravel = ravel_pytree(_logs(hyper, names))
    gains = (prior + scale * sum(rows)).at[-1].set(0)
    step = jnp.asarray(STEPS)[jnp.argmax(gains >= 0)]
    return hyper._replace(**jax.tree.map(jnp.exp, unravel(flat + rate * step * direction)))


def learn(solved: Solved, shared: Sites, rate: Any) -> Any:
    """The hyper-parameters after one step on solved rows. Those not learned stay as they are."""
    problem, hyper, scale, names = solved.problem, solved.hyper, solved.scale, solved.problem.learn
    if not names:
        return hyper
    setting, places = (problem.model, names), problem.devices
    own = list(zip(solved.local, solved.batches, strict=True))

    def both(function: Any, *common: Any) -> tuple[Any, tuple[Any, ...]]:
        """Results without rows, and those of the devices' rows."""
        _, rows = devices.run_and_gather(function, setting, places, common, own)
        alone = devices.run(function, setting, devices.mine(places)[:1], common, [None])
        return alone[0], tuple(rows)

    direction = _direction(
        hyper, problem.hyper, *both(_slope, hyper, shared), scale=scale, names=names
    )
    return _move(hyper, direction, *both(_gains, hyper, shared, direction), scale, rate, names)
