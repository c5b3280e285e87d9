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

from inference import objective as obj
from inference.minibatch import Share
from pp_models.base import Sites
from pp_models.batches import Batch

STEPS = (1.0, 0.5, 0.25, 0.125, 0.03, 0.0)  # of the Newton step, the last one standing still
LARGEST = 1.0  # change of any log hyper-parameter in one step
RANGE = 14.0  # of log h on either side of where it started: a factor of a million, beyond which a prior is a point or nothing


def _split(values, names):
    return {name: x for name, x in values.items() if name not in names}, {name: jnp.log(values[name]) for name in names}


def _part(model, structure, values, shared, natural, batch, names):
    """log h as a vector, and F as a function of it: one device's rows, or, without a batch, the part without data."""
    fixed, logs = _split(values, names)
    flat, unravel = ravel_pytree(logs)
    stats = jax.lax.stop_gradient(obj.summarise(model, {**shared, **natural}))
    rows = None if batch is None else model.fix_rows(obj.make(model, structure, values), stats, batch)

    def evaluate(x):
        hyper = obj.make(model, structure, {**fixed, **jax.tree.map(jnp.exp, unravel(x))})
        return model.log_global(hyper, stats) if rows is None else model.log_local(hyper, stats, rows)

    return flat, evaluate


@partial(jax.jit, static_argnames=("model", "structure", "names"))
def _slope(model, structure, values, shared, natural, batch, names):
    """Gradient and curvature in log h."""
    flat, evaluate = _part(model, structure, values, shared, natural, batch, names)
    return jax.grad(evaluate)(flat), jax.hessian(evaluate)(flat)


@partial(jax.jit, static_argnames=("model", "structure", "names"))
def _along(model, structure, values, shared, natural, batch, names, direction):
    """How much F gains at each of STEPS along the direction. As differences: the likelihood, which does not move, would drown them when scaled up."""
    flat, evaluate = _part(model, structure, values, shared, natural, batch, names)
    return jax.lax.map(lambda step: evaluate(flat + step * direction), jnp.asarray(STEPS)) - evaluate(flat)


@partial(jax.jit, static_argnames=("names",))
def _direction(values, first, prior, rows, scale, names):
    flat, _ = ravel_pytree(_split(values, names)[1])
    begin, _ = ravel_pytree(_split(first, names)[1])
    gradient = prior[0] + scale * sum(g for g, _ in rows)
    curvature = prior[1] + scale * sum(h for _, h in rows)
    sizes, axes = jnp.linalg.eigh(0.5 * (curvature + curvature.T))
    sizes = jnp.maximum(jnp.abs(sizes), 1e-6 * jnp.max(jnp.abs(sizes)) + jnp.finfo(flat.dtype).tiny)
    newton = axes @ ((axes.T @ gradient) / sizes)
    cut = newton * jnp.minimum(1, LARGEST / jnp.maximum(jnp.max(jnp.abs(newton)), jnp.finfo(flat.dtype).tiny))
    return jnp.clip(flat + cut, begin - RANGE, begin + RANGE) - flat


@partial(jax.jit, static_argnames=("names",))
def _move(values, direction, prior, rows, scale, rate, names):
    """The longest of STEPS that raises F, damped by the rate."""
    flat, unravel = ravel_pytree(_split(values, names)[1])
    heights = (prior + scale * sum(rows)).at[-1].set(0)
    rising = heights >= 0
    step = jnp.asarray(STEPS)[jnp.argmax(rising)]
    return {**values, **jax.tree.map(jnp.exp, unravel(flat + rate * step * direction))}


def learn(
    problem: obj.Problem, values: dict[str, jax.Array], shared: Sites, shares: Sequence[Share], batches: Sequence[Batch], scale: Any, rate: Any
) -> dict[str, jax.Array]:
    """The hyper-parameters after one step on this batch; those that are not learned stay as they are."""
    names = problem.learn
    if not names:
        return values
    fixed = problem.model, problem.structure
    everywhere = [jax.device_put((values, shared), device) for device in problem.devices]
    rows = [_slope(*fixed, *here, share.natural, batch, names) for here, share, batch in zip(everywhere, shares, batches, strict=True)]
    direction = _direction(values, problem.values, _slope(*fixed, values, shared, {}, None, names), tuple(obj.gather(problem, rows)), scale, names)
    there = [jax.device_put(direction, device) for device in problem.devices]
    rows = [_along(*fixed, *h, s.natural, b, names, d) for h, s, b, d in zip(everywhere, shares, batches, there, strict=True)]
    prior = _along(*fixed, values, shared, {}, None, names, direction)
    return _move(values, direction, prior, tuple(obj.gather(problem, rows)), scale, rate, names)
