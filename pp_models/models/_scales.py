"""Moves along lines on which a factorisation's likelihood does not change.

The data know x_k and y_k of a component k by their products alone: x_k -> c x_k, y_k -> y_k / c leaves those as they are, and only the priors and the
change of volume say how probable a c is. Gibbs blocks creep along such a line, by about the width of one side's conditional in a sweep; a move along
it goes anywhere at once, and costs nothing next to a sweep (`Model.moves`).
"""

import jax
import jax.numpy as jnp

TRIES = 4  # Metropolis steps along each component's line


def along(key: jax.Array, volume: jax.Array | float, a: jax.Array, b: jax.Array) -> jax.Array:
    """y of every component, after steps from y = 0 that leave exp((volume y - a exp(y) - b exp(-y)) / 2) dy as it is.

    Of normals, y is log c^2, a and b are the priors' squares, sum precision x^2 of what is multiplied by c and of what is divided by it, and volume
    counts the former's numbers less the latter's, the Jacobian. Of gammas, y is log c, a and b are twice the sums of rate x, volume of shapes.
    """
    root = jnp.sqrt(volume**2 + 4.0 * a * b)
    spread = 2.4 / jnp.sqrt(0.5 * root)  # -d^2/dy^2 of the log density at its top is root / 2

    def height(y):
        return 0.5 * (volume * y - a * jnp.exp(y) - b * jnp.exp(-y))

    def attempt(i, y):
        move_key, accept_key = jax.random.split(jax.random.fold_in(key, i))
        new = y + spread * jax.random.normal(move_key, y.shape, y.dtype)
        return jnp.where(
            -jax.random.exponential(accept_key, y.shape, y.dtype) < height(new) - height(y), new, y
        )

    return jax.lax.fori_loop(0, TRIES, attempt, jnp.zeros_like(a))
