"""Normal rows with a full covariance, one precision matrix each or one for all (tied); points."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from jax.scipy.linalg import solve_triangular

from pp_models.families import linalg, slopes
from pp_models.families.base import Family, Pair, unwrap
from pp_models.families.linalg import apply, log_det, outer, transpose
from pp_models.families.margins import Margin, normal_quantile

CACHED = 2**17  # numbers in the matrices that are solved together
TOGETHER = 128  # at most this many rows are solved together
SMALL = 6  # LAPACK is slow for matrices up to this size


def squared(x):
    """t(x) = (x, x x')."""
    return Pair(x, outer(x))


def tie(n):
    """The natural parameter of rows that share a precision."""
    return Pair(n.first, n.second[:1])


def gram(x):
    """t(x) of rows that share a precision: (x, sum of x x' over rows)."""
    return Pair(x, (transpose(x) @ x)[None])


def _factor(n):
    """The Cholesky factor of the precision."""
    return linalg.cholesky(linalg.regularised(-2 * n.second))


def normal_mean(n, noise=None):
    """The mean P^-1 (P m); given noise z of unit variance, a draw: the mean + L^-T z.

    Rows are solved in blocks that fit in the cache: LAPACK calls for single vectors would cost more
    than the factors. Small matrices are also factored together, large ones one at a time (see
    `linalg._one_by_one`).
    """
    size = n.first.shape[-1]
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[n.first.ndim - 1 :]), (n, noise))
    num_rows = len(flat[0].first)
    if num_rows == 0:
        return n.first
    block = max(1, min(TOGETHER, CACHED // size**2, num_rows))

    def factor(second):
        return lax.linalg.cholesky(linalg.regularised(-2 * second), symmetrize_input=False)

    def solve_block(i, out):
        first = jnp.minimum(i * block, num_rows - block)  # the last block may repeat some rows
        here, noise = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, first, block), flat)
        if size <= SMALL:
            precision = linalg.regularised(-2 * here.second)
            factors = linalg.cholesky_rows_last(jnp.moveaxis(precision, 0, 2))
        else:
            factors = jnp.moveaxis(lax.map(factor, here.second), 0, 2)
        noise = None if noise is None else noise.T
        found = linalg.solve_rows_last(factors, here.first.T, noise)
        return lax.dynamic_update_slice_in_dim(out, found.T, first, 0)

    num_blocks = -(-num_rows // block)
    found = lax.fori_loop(0, num_blocks, solve_block, jnp.zeros_like(flat[0].first))
    return found.reshape(n.first.shape)


def normal_moments(n):
    """Mean, covariance and the Cholesky factor of the precision."""
    factor = _factor(n)
    root = linalg.inverse_factor(factor)
    return apply(transpose(root), apply(root, n.first)), transpose(root) @ root, factor


def whitened(n):
    """L^-1 (P m), the mean in units of its standard deviation, and the Cholesky factor L of P."""
    factor = _factor(n)
    return linalg.solve(factor, n.first[..., None])[..., 0], factor


def _log_normalizer(n):
    half, factor = whitened(n)
    constant = half.shape[-1] * jnp.log(2 * jnp.pi)
    return 0.5 * (jnp.sum(half**2, -1) + constant - log_det(factor))


def _mean(n):
    mean, covariance, _ = normal_moments(n)
    return Pair(mean, covariance + outer(mean))


def _natural(d):
    d = unwrap(d)
    precision = d.precision_matrix
    return Pair(jnp.squeeze(precision @ d.loc[..., None], -1), -0.5 * precision)


def _noise(key, n):
    return jax.random.normal(key, n.first.shape, n.first.dtype)


normal = Family(
    name="normal",
    log_normalizer=_log_normalizer,
    stats=squared,
    value=lambda t: t.first,
    mean=_mean,
    mode=lambda n: squared(normal_mean(n)),
    sample=lambda key, n: squared(normal_mean(n, _noise(key, n))),
    distribution=lambda n: dist.MultivariateNormal(normal_mean(n), precision_matrix=-2 * n.second),
    natural=_natural,
    base=Pair(0.0, 0.0),
    separate=True,
    margin=Margin(normal_quantile),
    turning=Pair(1, 2),
    slope=slopes.of_normal(normal_mean),
    inside=slopes.half_precision_at_least,
)


# One precision for all rows: K x K numbers instead of rows x K x K -------------------------------


def _tied_location(n, noise=None):
    """The mean of every row, or a draw; the Cholesky factor L of their precision; L^-1 (P m)."""
    factor = _factor(n)[0]
    half = solve_triangular(factor, n.first.T, lower=True)
    moved = half if noise is None else half + noise.T
    return solve_triangular(factor, moved, lower=True, trans=1).T, factor, half


def _tied_log_normalizer(n):
    _, factor, half = _tied_location(n)
    constant = n.first.shape[1] * jnp.log(2 * jnp.pi)
    return 0.5 * (jnp.sum(half**2, 0) + constant - log_det(factor))


def _tied_mean(n):
    mean, factor, _ = _tied_location(n)
    root = linalg.inverse_factor(factor)
    return Pair(mean, (len(mean) * transpose(root) @ root + transpose(mean) @ mean)[None])


def _tied_distribution(n):
    mean, _, _ = _tied_location(n)
    precision = jnp.broadcast_to(-2 * n.second, (len(mean), *n.second.shape[1:]))
    return dist.MultivariateNormal(mean, precision_matrix=precision)


normal_tied = normal._replace(
    name="normal_tied",
    log_normalizer=_tied_log_normalizer,
    stats=gram,
    mean=_tied_mean,
    mode=lambda n: gram(_tied_location(n)[0]),
    sample=lambda key, n: gram(_tied_location(n, _noise(key, n))[0]),
    distribution=_tied_distribution,
    natural=lambda d: tie(_natural(d)),
    separate=False,
    slope=slopes.of_normal(lambda n: _tied_location(n)[0]),
)

# A point with a curvature, and Newton steps ------------------------------------------------------
# A point is the limit of a normal with no variance: A = max_x <natural, t(x)>, whose gradient is t
# at the maximum. Its entropy is 0. A target dF/dmu whose second part is minus half the curvature is
# a Newton step (P 11.35), and a convex combination of natural parameters averages curvatures.


def _point_natural(d):
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
    natural=_point_natural,
    has_density=False,
    slope=None,
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
