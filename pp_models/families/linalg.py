"""Cholesky factors, triangular solves and small helpers for stacks of matrices.

L is always a lower Cholesky factor. Matrices are the last two axes, unless a docstring says that
the rows come last: then every step is one operation on all rows.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular


def outer(x: jax.Array) -> jax.Array:
    """x x'."""
    return x[..., :, None] * x[..., None, :]


def transpose(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, -1, -2)


def apply(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    return (matrix @ vector[..., None])[..., 0]


def diagonal_matrix(x: jax.Array) -> jax.Array:
    return x[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)


def log_det(factor: jax.Array) -> jax.Array:
    """log det(L L')."""
    return 2 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), -1)


def _one_by_one(function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """A function of matrices, applied to one after the other.

    jaxlib's batched LAPACK calls split their batch over the thread pool that they wait in, so that
    two batches at once (parallel chains) deadlock. Calls for single matrices run in place, and are
    as fast.
    """
    flat = [x.reshape(-1, *x.shape[-2:]) for x in arrays]
    found = lax.map(lambda one: function(*one), flat)
    return found.reshape(*arrays[0].shape[:-2], *arrays[-1].shape[-2:])


def cholesky(x: jax.Array) -> jax.Array:
    return _one_by_one(jnp.linalg.cholesky, x)


def solve(factor: jax.Array, x: jax.Array) -> jax.Array:
    """L^-1 x."""
    return _one_by_one(lambda a, b: solve_triangular(a, b, lower=True), factor, x)


def solve_transposed(factor: jax.Array, x: jax.Array) -> jax.Array:
    """L^-T x."""
    return _one_by_one(lambda a, b: solve_triangular(a, b, lower=True, trans=1), factor, x)


def inverse_factor(factor: jax.Array) -> jax.Array:
    """L^-1. The inverse of L L', L^-T L^-1, is then symmetric and never indefinite by rounding.

    By halves, [[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]: products of whole batches,
    ten times faster than a solve for each matrix.
    """
    size = factor.shape[-1]
    if size == 1:
        return 1 / factor
    half = size // 2
    first = inverse_factor(factor[..., :half, :half])
    last = inverse_factor(factor[..., half:, half:])
    below = -last @ (factor[..., half:, :half] @ first)
    above = jnp.zeros((*factor.shape[:-2], half, size - half), factor.dtype)
    upper, lower = jnp.concatenate([first, above], -1), jnp.concatenate([below, last], -1)
    return jnp.concatenate([upper, lower], -2)


def inverse(factor: jax.Array) -> jax.Array:
    """(L L')^-1."""
    root = inverse_factor(factor)
    return transpose(root) @ root


def regularised(precision: jax.Array) -> jax.Array:
    """The precision plus its own rounding error on the diagonal. It then has a Cholesky factor
    however badly conditioned it is."""
    largest = jnp.max(jnp.diagonal(precision, axis1=-2, axis2=-1), -1)
    rounding = precision.shape[-1] * jnp.finfo(precision.dtype).eps * largest
    identity = jnp.eye(precision.shape[-1], dtype=precision.dtype)
    return precision + rounding[..., None, None] * identity


def cholesky_rows_last(matrices: jax.Array) -> jax.Array:
    """Cholesky factors of matrices (K, K, rows), column by column."""
    place = jnp.arange(len(matrices))[:, None]

    def column(k, carry):
        left, factors = carry
        here = lax.dynamic_index_in_dim(left, k, 1, keepdims=False)  # (K, rows)
        here = jnp.where(place >= k, here, 0) / jnp.sqrt(lax.dynamic_index_in_dim(here, k))
        left = left - here[:, None] * here[None]
        return left, lax.dynamic_update_index_in_dim(factors, here, k, 1)

    return lax.fori_loop(0, len(matrices), column, (matrices, jnp.zeros_like(matrices)))[1]


def solve_rows_last(factor: jax.Array, x: jax.Array, noise: Any) -> jax.Array:
    """L^-T (L^-1 x + noise) for factors (K, K, rows) and vectors (K, rows)."""
    size = len(x)
    reciprocal = 1 / jnp.diagonal(factor).T
    place = jnp.arange(size)[:, None]

    def forwards(k, x):
        here = lax.dynamic_index_in_dim(x, k) * lax.dynamic_index_in_dim(reciprocal, k)
        below = x - lax.dynamic_index_in_dim(factor, k, 1, keepdims=False) * here
        return jnp.where(place == k, here, jnp.where(place > k, below, x))

    def backwards(step, x):
        k = size - 1 - step
        here = lax.dynamic_index_in_dim(x, k) * lax.dynamic_index_in_dim(reciprocal, k)
        above = x - lax.dynamic_index_in_dim(factor, k, 0, keepdims=False) * here
        return jnp.where(place == k, here, jnp.where(place < k, above, x))

    half = lax.fori_loop(0, size, forwards, x)
    return lax.fori_loop(0, size, backwards, half if noise is None else half + noise)
