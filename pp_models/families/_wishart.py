"""The Wishart family of a precision matrix, and the normal-Wishart of a mean and a precision.

nu are the degrees of freedom, W is the scale matrix, D the dimension, L the Cholesky factor of
W^-1. The normal-Wishart value packs mean and precision into one array (`_mean_and_precision`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from pp_models.families import linalg
from pp_models.families._gamma import log_gamma_draw
from pp_models.families._mean_and_precision import NormalWishart, pack, unpack
from pp_models.families.base import Family, Pair, tiny, unwrap
from pp_models.families.linalg import apply, cholesky, inverse, log_det, outer, transpose
from pp_models.families.special import digamma


def _halves(nu, dimension):
    """(nu - j) / 2 for j = 0..D-1, the arguments of the multivariate gamma function's factors."""
    return (nu[..., None] - jnp.arange(dimension, dtype=nu.dtype)) / 2


def _log_normalizer(nu, factor):
    size = factor.shape[-1]
    constant = size * (size - 1) / 4 * jnp.log(jnp.pi)
    log_gamma = jnp.sum(gammaln(_halves(nu, size)), -1) + constant
    return 0.5 * nu * (size * jnp.log(2.0) - log_det(factor)) + log_gamma


def _mean_log_det(nu, factor):
    """E log det Lambda."""
    size = factor.shape[-1]
    return jnp.sum(digamma(_halves(nu, size)), -1) + size * jnp.log(2.0) - log_det(factor)


def _bartlett(key, nu, factor):
    """A lower triangular matrix A and log det(A A'). A_jj^2 is chi-square with nu - j degrees of
    freedom; entries below the diagonal are normal."""
    gamma_key, normal_key = jax.random.split(key)
    log_square = log_gamma_draw(gamma_key, _halves(nu, factor.shape[-1])) + jnp.log(2.0)
    below = jnp.tril(jax.random.normal(normal_key, factor.shape, factor.dtype), -1)
    identity = jnp.eye(factor.shape[-1], dtype=factor.dtype)
    return below + jnp.exp(0.5 * log_square)[..., None] * identity, jnp.sum(log_square, -1)


# Wishart -----------------------------------------------------------------------------------------


def _parameters(n):
    """nu and L."""
    return 2 * n.first + n.second.shape[-1] + 1, cholesky(-2 * n.second)


def _mean(n):
    nu, factor = _parameters(n)
    return Pair(_mean_log_det(nu, factor), nu[..., None, None] * inverse(factor))


def _mode(n):
    nu, factor = _parameters(n)
    size = factor.shape[-1]
    scale = jnp.maximum(nu - size - 1, tiny(nu))
    mode_log_det = size * jnp.log(scale) - log_det(factor)
    return Pair(mode_log_det, scale[..., None, None] * inverse(factor))


def _sample(key, n):
    """Lambda = R A A' R' with R R' = W (Bartlett)."""
    nu, factor = _parameters(n)
    bartlett, bartlett_log_det = _bartlett(key, nu, factor)
    root = linalg.solve_transposed(factor, bartlett)
    return Pair(bartlett_log_det - log_det(factor), root @ transpose(root))


def _natural(d):
    d = unwrap(d)
    root = linalg.inverse_factor(d.scale_tril)
    first = 0.5 * (d.concentration - d.scale_tril.shape[-1] - 1)
    return Pair(first, -0.5 * transpose(root) @ root)


wishart = Family(
    name="wishart",
    log_normalizer=lambda n: _log_normalizer(*_parameters(n)),
    stats=lambda x: Pair(log_det(cholesky(x)), x),
    value=lambda t: t.second,
    mean=_mean,
    mode=_mode,
    sample=_sample,
    distribution=lambda n: dist.Wishart(_parameters(n)[0], rate_matrix=-2 * n.second),
    natural=_natural,
    base=Pair(0.0, 0.0),
    rows=lambda t: jax.tree.map(lambda x: x[None], t) if jnp.ndim(t.second) == 2 else t,
    turning=Pair(0, 2),
)

# Normal-Wishart ----------------------------------------------------------------------------------


class MeanPrecision(NamedTuple):
    """The statistics (or natural parameters) of a mean mu and a precision Lambda."""

    weighted: jax.Array  # (..., D)     Lambda mu
    quadratic: jax.Array  # (...)       mu' Lambda mu
    precision: jax.Array  # (..., D, D) Lambda
    log_det: jax.Array  # (...)         log det Lambda


def _joint_parameters(n):
    """m, kappa, nu and L."""
    kappa = -2 * n.quadratic
    mean = n.weighted / kappa[..., None]
    factor = cholesky(-2 * n.precision - outer(n.weighted) / kappa[..., None, None])
    return mean, kappa, 2 * n.log_det + mean.shape[-1], factor


def _joint_log_normalizer(n):
    mean, kappa, nu, factor = _joint_parameters(n)
    of_mean = 0.5 * mean.shape[-1] * (jnp.log(2 * jnp.pi) - jnp.log(kappa))
    return of_mean + _log_normalizer(nu, factor)


def _stats_at(mean, precision, precision_log_det):
    """t at a given mean and precision."""
    weighted = apply(precision, mean)
    return MeanPrecision(weighted, jnp.sum(mean * weighted, -1), precision, precision_log_det)


def _joint_mean(n):
    mean, kappa, nu, factor = _joint_parameters(n)
    precision = nu[..., None, None] * inverse(factor)
    centre = _stats_at(mean, precision, _mean_log_det(nu, factor))
    return centre._replace(quadratic=centre.quadratic + mean.shape[-1] / kappa)


def _joint_mode(n):
    """mu = m and Lambda = (nu - D) W: the joint mode."""
    mean, _, nu, factor = _joint_parameters(n)
    size = mean.shape[-1]
    precision = (nu - size)[..., None, None] * inverse(factor)
    return _stats_at(mean, precision, size * jnp.log(nu - size) - log_det(factor))


def _joint_sample(key, n):
    """Lambda as in `_sample`. With R = L^-T, mu = m + L A^-T z / sqrt(kappa) needs no inverse."""
    mean, kappa, nu, factor = _joint_parameters(n)
    precision_key, mean_key = jax.random.split(key)
    bartlett, bartlett_log_det = _bartlett(precision_key, nu, factor)
    noise = jax.random.normal(mean_key, (*mean.shape, 1), mean.dtype)
    noise = noise / jnp.sqrt(kappa)[..., None, None]
    mu = mean + (factor @ linalg.solve_transposed(bartlett, noise))[..., 0]
    root = linalg.solve_transposed(factor, bartlett)
    return _stats_at(mu, root @ transpose(root), bartlett_log_det - log_det(factor))


def _joint_stats(x):
    mean, precision = unpack(x)
    return _stats_at(mean, precision, log_det(cholesky(precision)))


def _joint_value(t):
    factor = cholesky(t.precision)
    mean = linalg.solve_transposed(factor, linalg.solve(factor, t.weighted[..., None]))[..., 0]
    return pack(mean, t.precision)


def _joint_natural(d):
    d = unwrap(d)
    scatter = d.scatter_tril @ transpose(d.scatter_tril)
    scatter = scatter + d.strength[..., None, None] * outer(d.loc)
    return MeanPrecision(
        weighted=d.strength[..., None] * d.loc,
        quadratic=-0.5 * d.strength,
        precision=-0.5 * scatter,
        log_det=0.5 * (d.df - d.loc.shape[-1]),
    )


def _joint_spread(n, weights):
    """Of the mean W^-1 / (kappa (nu - D - 1)), infinite for nu <= D + 1; of the precision the
    covariance nu W (C + C') W. They are uncorrelated."""
    _, kappa, nu, factor = _joint_parameters(n)
    of_mean, of_precision = unpack(weights)
    rest = kappa * (nu - factor.shape[-1] - 1)
    scattered = apply(factor @ transpose(factor), of_mean) / jnp.where(rest > 0, rest, 1)[..., None]
    infinite = (rest <= 0)[..., None] & (of_mean != 0)
    scale = inverse(factor)
    symmetric = of_precision + transpose(of_precision)
    return pack(
        jnp.where(infinite, jnp.inf * of_mean, scattered),
        nu[..., None, None] * scale @ symmetric @ scale,
    )


normal_wishart = Family(
    name="normal_wishart",
    log_normalizer=_joint_log_normalizer,
    stats=_joint_stats,
    value=_joint_value,
    mean=_joint_mean,
    mode=_joint_mode,
    sample=_joint_sample,
    distribution=lambda n: NormalWishart(*_joint_parameters(n)),
    natural=_joint_natural,
    base=MeanPrecision(0.0, 0.0, 0.0, 0.0),
    spread=_joint_spread,
    turning=MeanPrecision(1, 0, 2, 0),
)
