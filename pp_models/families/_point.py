"""A point with a curvature, and Newton steps.

A point is the limit of a normal that is certain of its location: A = max_x <natural, t(x)>, whose
gradient is t at the maximum. The entropy is 0 and the divergence is the loss
(x - y)' P (x - y) / 2. A target dF/dmu whose second part is minus half the curvature is a Newton
step (P 11.35), and a convex combination of natural parameters averages the curvatures. A point has
no density.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from pp_models.families._normal import normal, normal_mean, squared, whitened
from pp_models.families.base import Pair, unwrap
from pp_models.families.linalg import apply


def _natural(d):
    """The distribution has no curvature; the identity is used."""
    x = unwrap(d).v
    curvature = -0.5 * jnp.eye(x.shape[-1], dtype=x.dtype)
    return Pair(x, jnp.broadcast_to(curvature, (*x.shape, x.shape[-1])))


point = normal._replace(
    name="point",
    log_normalizer=lambda n: 0.5 * jnp.sum(whitened(n)[0] ** 2, -1),
    mean=lambda n: squared(normal_mean(n)),
    sample=lambda key, n: squared(normal_mean(n)),
    distribution=lambda n: dist.Delta(normal_mean(n), event_dim=1),
    natural=_natural,
    has_density=False,
)

# The longest move of a location in one Newton step. Exponentials are far from quadratic, so that
# longer steps overshoot.
LONGEST_STEP = 1.0


def cut(step: jax.Array) -> jax.Array:
    """A step of a location, shortened to LONGEST_STEP if it is longer."""
    length = jnp.sqrt(jnp.sum(step**2, -1, keepdims=True))
    return step * (LONGEST_STEP / jnp.maximum(length, LONGEST_STEP))


def newton_step(stats: Pair, target: Pair, fraction: Any = 1.0) -> Pair:
    """A natural parameter between a normal's or point's current location and its target.

    The step from the location in `stats` to that of `target` is cut, and the given fraction of it
    is taken. The curvature is the target's.
    """
    location = stats.first + fraction * cut(normal_mean(target) - stats.first)
    return Pair(apply(-2 * target.second, location), target.second)
