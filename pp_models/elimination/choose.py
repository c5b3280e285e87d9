"""`choose`: the component of every row of a mixture, summed out."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pp_models.elimination.primitive import UNIFORM


def choose(logits: jax.Array, weights: jax.Array, key: Any = None) -> jax.Array:
    """sum_n weights_n log sum_k exp(logits_nk): each row belongs to one of K components (T 4.1).

    The gradient is the responsibilities (the optimal phi of T 9); with a key, one component per
    row drawn with those odds; with `UNIFORM`, 1/K for each. `weights` are 0 for padding.
    """
    logits = jnp.where(weights[:, None] > 0, logits, 0)
    if key is None:
        return jnp.sum(weights * jax.nn.logsumexp(logits, 1))
    if key is UNIFORM:
        return jnp.sum(weights * (jnp.mean(logits, 1) + math.log(logits.shape[1])))
    component = jax.random.categorical(key, lax.stop_gradient(logits))
    return jnp.sum(weights * jnp.take_along_axis(logits, component[:, None], 1)[:, 0])
