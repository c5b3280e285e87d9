"""Rows of positive numbers with density exp(h'x - x'P x/2) on the positive orthant.

The density has no closed form. q is the nearest product of independent positive normals
(`positive_normal`). A is the maximum of <natural, mu> + entropy over such products, and its
gradient the statistics of the best one. Updates are then those of coordinate ascent over single
coordinates, whatever the coupling P. Gibbs samples the exact conditional by a sweep over the
coordinates (`refresh`).
"""

import jax
import jax.numpy as jnp

from pp_models.families import positive_normal as pos
from pp_models.families._normal import gram, squared
from pp_models.families.base import Family, Pair, unwrap
from pp_models.families.linalg import diagonal_matrix, outer, transpose

# Sweeps over the coordinates from a nearby point. Each sweep raises the objective, and the next
# update starts where this one ended.
SOME_SWEEPS = 2


def _coefficients(n, start=None):
    """(rows, K) b and p of the independent positive normals nearest to the row's density."""
    precision = -2 * n.second
    begin = pos.alike(n.first, precision) if start is None else start.first
    b = pos.independent(n.first, precision, jax.lax.stop_gradient(begin))
    return b, jnp.broadcast_to(jnp.diagonal(precision, axis1=1, axis2=2), b.shape)


def _moments(n, start=None):
    return pos.moments(*_coefficients(n, start))


def _log_normalizer(n):
    """Per row. With m the means and R the coupling: sum log Z + m'R m / 2, where h - b = R m."""
    b, p = _coefficients(n)
    found = pos.moments(b, p)
    return jnp.sum(found.log_z + 0.5 * (n.first - b) * found.first, -1)


def _mean(n, start=None):
    found = _moments(n, start)
    return Pair(found.first, outer(found.first) + diagonal_matrix(found.variance))


def _point_by(stats, update):
    """The statistics of the point that `update` leads to, coordinate by coordinate.

    Rows with one precision need only the sum of their second statistics: one matrix product.
    """

    def summary(n, start=None, most=SOME_SWEEPS):
        begin = () if start is None else (start.first, most)
        x = pos.settle(n.first, -2 * n.second, update, *begin)
        return gram(x) if len(n.second) == 1 else stats(x)

    return summary


def _sample_by(stats):
    return lambda key, n: stats(pos.draw(key, *_coefficients(n)))


def _refresh_by(stats):
    return lambda key, n, t: stats(pos.refresh(key, n.first, -2 * n.second, t.first))


def _distribution(n):
    b, p = _coefficients(n)
    return pos.PositiveNormal(b / p, 1 / jnp.sqrt(p)).to_event(1)


def _natural(d):
    d = unwrap(d)
    p = 1 / d.scale**2
    return Pair(d.loc * p, -0.5 * diagonal_matrix(p))


def _uncoupled(n):
    b, p = _coefficients(n)
    return Pair(b, -0.5 * diagonal_matrix(p))


positive = Family(
    name="positive",
    log_normalizer=_log_normalizer,
    stats=squared,
    value=lambda t: t.first,
    mean=_mean,
    mode=_point_by(squared, pos.mode),
    sample=_sample_by(squared),
    distribution=_distribution,
    natural=_natural,
    base=Pair(0.0, 0.0),
    uncoupled=_uncoupled,
    refresh=_refresh_by(squared),
    log_mode=_point_by(squared, pos.log_mode),
    separate=True,
)

# One precision for all rows ----------------------------------------------------------------------


def _tied_mean(n, start=None):
    found = _moments(n, start)
    variance = diagonal_matrix(jnp.sum(found.variance, 0))
    return Pair(found.first, (transpose(found.first) @ found.first + variance)[None])


def _tied_natural(d):
    n = _natural(d)
    return Pair(n.first, n.second[:1])


def _tied_uncoupled(n):
    identity = jnp.eye(n.second.shape[-1], dtype=n.second.dtype)
    return Pair(_coefficients(n)[0], n.second * identity)


positive_tied = positive._replace(
    name="positive_tied",
    stats=gram,
    mean=_tied_mean,
    mode=_point_by(gram, pos.mode),
    sample=_sample_by(gram),
    natural=_tied_natural,
    uncoupled=_tied_uncoupled,
    refresh=_refresh_by(gram),
    log_mode=_point_by(gram, pos.log_mode),
)
