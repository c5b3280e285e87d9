r"""Gibbs moves along lines on which the likelihood of a factorisation does not change.

The data determine only the products of $x_k$ and $y_k$ of a component $k$. The likelihood is the
same for $c x_k$ and $y_k / c$; only the priors and the change of volume depend on $c$. Blockwise
Gibbs moves slowly along such a line, by about the width of one side's conditional in a sweep. A
move along it mixes faster and costs little next to a sweep (`Model.moves`).
"""

import jax
import jax.numpy as jnp

TRIES = 4  # Metropolis steps along each component's line


def along(key: jax.Array, volume: jax.Array | float, a: jax.Array, b: jax.Array) -> jax.Array:
    r"""y of every component after Metropolis steps from y = 0 that leave the density
    $\exp((\text{volume} \, y - a e^y - b e^{-y}) / 2) \, dy$ invariant.

    For normals, $y = \log c^2$; a and b are the sums of precision $x^2$ over what is multiplied by
    c and what is divided by it; volume is the difference of their sizes (the Jacobian). For gammas,
    $y = \log c$; a and b are twice the sums of rate $x$; volume is twice the difference of shapes.
    """
    root = jnp.sqrt(volume**2 + 4.0 * a * b)
    spread = 2.4 / jnp.sqrt(0.5 * root)  # the curvature of the log density at its mode is root / 2

    def height(y):
        return 0.5 * (volume * y - a * jnp.exp(y) - b * jnp.exp(-y))

    def attempt(i, y):
        move_key, accept_key = jax.random.split(jax.random.fold_in(key, i))
        new = y + spread * jax.random.normal(move_key, y.shape, y.dtype)
        log_uniform = -jax.random.exponential(accept_key, y.shape, y.dtype)
        return jnp.where(log_uniform < height(new) - height(y), new, y)

    return jax.lax.fori_loop(0, TRIES, attempt, jnp.zeros_like(a))
