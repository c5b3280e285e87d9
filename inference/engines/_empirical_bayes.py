"""Hyper-parameters learned by raising the bound (T 17): any of them, of any model, from F alone.

With q held fixed, the bound depends on the hyper-parameters only through F at fixed statistics. Its gradient and curvature in log h come from
autodiff; a Newton step with the curvature's eigenvalues made negative is an ascent direction everywhere. It is cut to at most a factor e, and
shortened until F rises. In a stochastic engine it is then damped by the learning rate, as T(17) damps its natural-gradient step.

What hyper-parameters do not change (`Model.fix_rows`) is worked out once, or left out.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from inference.core import devices
from inference.core import objective as obj
from inference.engines._minibatch import Share
from pp_models.data.batches import Batch
from pp_models.model import Sites

STEPS = (1.0, 0.5, 0.25, 0.125, 0.03, 0.0)  # of the Newton step, the last one standing still
LARGEST = 1.0  # change of any log hyper-parameter in one step
RANGE = 14.0  # of log h on either side of where it started: a factor of a million, beyond which a prior is a point or nothing


def _logs(hyper, names):
    return {name: jnp.log(getattr(hyper, name)) for name in names}


def _part(setting, hyper, shared, own):
    """log h as a vector, and F as a function of it: one device's rows, or, without any, the part without data."""
    (model, names), (natural, batch) = setting, own or ({}, None)
    flat, unravel = ravel_pytree(_logs(hyper, names))
    stats = jax.lax.stop_gradient(obj.summarise(model, {**shared, **natural}))
    rows = None if batch is None else model.learning.fix_rows(hyper, stats, batch)

    def evaluate(x):
        new = hyper._replace(**jax.tree.map(jnp.exp, unravel(x)))
        return model.log_global(new, stats) if rows is None else model.log_local(new, stats, rows)

    return flat, evaluate


def _slope(setting, common, own):
    """Gradient and curvature in log h."""
    flat, evaluate = _part(setting, *common, own)
    return jax.grad(evaluate)(flat), jax.hessian(evaluate)(flat)


def _along(setting, common, own):
    """How much F gains at each of STEPS along the direction. As differences: the likelihood, which does not move, would drown them when scaled up."""
    *given, direction = common
    flat, evaluate = _part(setting, *given, own)
    return jax.lax.map(
        lambda step: evaluate(flat + step * direction), jnp.asarray(STEPS)
    ) - evaluate(flat)


@partial(jax.jit, static_argnames=("names",))
def _direction(hyper, first, prior, rows, scale, names):
    flat, _ = ravel_pytree(_logs(hyper, names))
    begin, _ = ravel_pytree(_logs(first, names))
    gradient = prior[0] + scale * sum(g for g, _ in rows)
    curvature = prior[1] + scale * sum(h for _, h in rows)
    sizes, axes = jnp.linalg.eigh(0.5 * (curvature + curvature.T))
    sizes = jnp.maximum(jnp.abs(sizes), 1e-6 * jnp.max(jnp.abs(sizes)) + jnp.finfo(flat.dtype).tiny)
    newton = axes @ ((axes.T @ gradient) / sizes)
    cut = newton * jnp.minimum(
        1, LARGEST / jnp.maximum(jnp.max(jnp.abs(newton)), jnp.finfo(flat.dtype).tiny)
    )
    return jnp.clip(flat + cut, begin - RANGE, begin + RANGE) - flat


@partial(jax.jit, static_argnames=("names",))
def _move(hyper, direction, prior, rows, scale, rate, names):
    """The longest of STEPS that raises F, damped by the rate."""
    flat, unravel = ravel_pytree(_logs(hyper, names))
    heights = (prior + scale * sum(rows)).at[-1].set(0)
    rising = heights >= 0
    step = jnp.asarray(STEPS)[jnp.argmax(rising)]
    return hyper._replace(**jax.tree.map(jnp.exp, unravel(flat + rate * step * direction)))


def learn(
    problem: obj.Problem,
    hyper: Any,
    shared: Sites,
    shares: Sequence[Share],
    batches: Sequence[Batch],
    scale: Any,
    rate: Any,
) -> Any:
    """The hyper-parameters after one step on this batch; those that are not learned stay as they are."""
    names = problem.learn
    if not names:
        return hyper
    setting, own = (
        (problem.model, names),
        [(share.natural, batch) for share, batch in zip(shares, batches, strict=True)],
    )

    def both(function: Any, *common: Any) -> tuple[Any, tuple[Any, ...]]:
        """Of the part without data, and of the rows."""
        rows = devices.run(function, setting, problem.devices, common, own)
        alone = devices.run(function, setting, devices.mine(problem.devices)[:1], common, [None])
        return alone[0], tuple(devices.gather(problem.devices, rows))

    prior, rows = both(_slope, hyper, shared)
    direction = _direction(hyper, problem.hyper, prior, rows, scale, names)
    return _move(hyper, direction, *both(_along, hyper, shared, direction), scale, rate, names)
