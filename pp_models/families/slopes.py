r"""Natural gradients of expectations, estimated from one draw.

For $f(t(x))$ with the gradient $w = \partial f / \partial t$ at a draw $x$ of q,

$$ \frac{\partial}{\partial \mu} \mathbb{E}_q[f]
= V^{-1}\, \mathbb{E}\Big[\Big(\frac{\partial t}{\partial \eta}\Big)^{\!\top} w \Big],
\qquad V = \operatorname{Cov}_q(t). $$

The draw moves with the natural parameter $\eta$ while its random numbers stay. For gamma variables
that is implicit differentiation (Figurnov et al. 2018); a Dirichlet draw is one of gammas,
normalised. For normal variables, Stein's identity gives the derivative in the covariance.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import polygamma

from pp_models.families import linalg
from pp_models.families.base import Pair
from pp_models.families.special import digamma

TINY_DRAW = -20.0  # log x below which the first term of the series of the distribution is exact
LARGE_SHAPE = 100.0  # above it, (x / shape)^(1/3) is normal to 2e-4 of the slope at three sd


def log_gamma_slope(shape, log_x):
    """d log x / d shape of a Gamma(shape, 1) draw x at its place in the distribution.

    Of large shapes by Wilson and Hilferty's normal approximation: JAX's own function loses its
    digits there in single precision, and is slow.
    """
    large, small = shape > LARGE_SHAPE, log_x < TINY_DRAW
    a = jnp.where(large, shape, LARGE_SHAPE)
    root = jnp.exp((jnp.where(large, log_x, jnp.log(a)) - jnp.log(a)) / 3)
    normal = 3 * jnp.sqrt(a) * (root - 1 + 1 / (9 * a))
    by_root = 1 / a + (1 / (3 * a**2) - normal / (2 * a**1.5)) / root
    series = (digamma(shape + 1) - log_x) / shape
    x = jnp.exp(jnp.where(small | large, 0.0, log_x))
    implicit = jax.lax.random_gamma_grad(jnp.where(small | large, 1.0, shape), x) / x
    return jnp.where(large, by_root, jnp.where(small, series, implicit))


def _excess(shape, own):
    """shape - 1 / psi'(shape), which is 1/2 for large shapes, without cancellation."""
    y = 1 / jnp.maximum(shape, 20.0)
    above = y * (0.5 + y * (1 / 6 - y * y / 30))  # shape psi'(shape) - 1
    return jnp.where(shape > 20, shape * above / (1 + above), shape - 1 / own)


def _total(x):
    return jnp.sum(x, -1, keepdims=True)


def of_dirichlet(key, natural, log_x, weights):
    """The sum of the gammas is independent of the shares, and drawn again."""
    total, dtype = _total(natural), natural.dtype
    log_sum = jnp.log(jax.random.gamma(key, total, dtype=dtype))
    moved = log_gamma_slope(natural, log_x + log_sum)
    moved = moved * (weights - jnp.exp(log_x) * _total(weights))
    if natural.shape[-1] == 1:  # x is 1
        return jnp.zeros_like(natural)
    own, common = polygamma(1, natural), polygamma(1, total)
    shift = _total(moved / own) / (_total(_excess(natural, own)) - _excess(total, common))
    return (moved + shift) / own


def of_beta(key, natural, stats, weights):
    def both(pair):
        return jnp.stack(jnp.broadcast_arrays(*pair), -1)

    found = of_dirichlet(key, both(natural), both(stats), both(weights))
    return Pair(found[..., 0], found[..., 1])


def _gamma_parts(natural, stats, weights):
    """The derivatives in log x, moved by the shape and by the rate, of each number."""
    rate = -natural.second
    slope = log_gamma_slope(natural.first, stats.first + jnp.log(rate))
    in_log = weights.first + weights.second * jnp.exp(stats.first)
    return slope * in_log, in_log / rate


def of_gamma(key, natural, stats, weights):
    """V of (log x, x) has the diagonal psi'(a), a / r^2, and 1 / r beside it."""
    first, second = _gamma_parts(natural, stats, weights)
    shape, rate = natural.first, -natural.second
    own = polygamma(1, shape)
    det = own * _excess(shape, own)
    return Pair((shape * first - rate * second) / det, rate * (rate * own * second - first) / det)


def of_gamma_tied(key, natural, stats, weights):
    """As `of_gamma`, the logarithms eliminated."""
    first, second = _gamma_parts(natural, stats, weights)
    shape, rate = natural.first, -natural.second
    own = polygamma(1, shape)
    of_sum = rate * _total(rate * second - first / own) / _total(_excess(shape, own))
    return Pair((first - of_sum / rate) / own, of_sum)


def _by_stein(natural, mean, x, weights):
    """Of rows: the gradient in x, and the derivative in their covariances."""
    second = weights.second + linalg.transpose(weights.second)
    gradient = weights.first + linalg.apply(second, x)
    away = linalg.apply(-2 * natural.second, x - mean)
    product = away[..., :, None] * gradient[..., None, :]
    return gradient, 0.25 * (product + linalg.transpose(product))


def of_normal(mean):
    """mean: (natural) -> the mean of every row."""

    def slope(key, natural, stats, weights):
        center = mean(natural)
        gradient, second = _by_stein(natural, center, stats.first, weights)
        if len(natural.second) < len(second):  # one precision for all rows
            second = jnp.mean(second, 0, keepdims=True)
        return Pair(gradient - 2 * linalg.apply(second, center), second)

    return slope


# A noisy step must not leave the family -----------------------------------------------------------


def half_at_least(old, new):
    """The new numbers, of which none is brought nearer to zero than half the old one."""

    def keep(a, b):
        return jnp.where(a > 0, jnp.maximum(b, a / 2), jnp.minimum(b, a / 2))

    return jax.tree.map(keep, old, new)


def half_precision_at_least(old, new):
    """The new rows; the old one where a precision would fall below half along some direction."""
    gap = linalg.cholesky(-2 * new.second + old.second)
    fine = jnp.all(jnp.isfinite(gap), axis=(1, 2))
    fine = fine & jnp.all(jnp.isfinite(new.second), axis=(1, 2))

    def keep(a, b):
        return jnp.where(fine.reshape(-1, *(1,) * (a.ndim - 1)), b, a)

    return jax.tree.map(keep, old, new)
