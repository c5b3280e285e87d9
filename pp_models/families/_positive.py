r"""Rows of positive numbers with density $\exp(h^\top x - x^\top P x / 2)$ on the positive orthant.

The density has no closed form. q is the nearest product of independent positive normals
(`positive_normal`). A is the maximum of $\langle \text{natural}, \mu \rangle$ + entropy over such
products, and its gradient the statistics of the best one, so that updates are those of coordinate
ascent over single coordinates. Gibbs samples the exact conditional by a sweep over the coordinates.
"""

import jax
import jax.numpy as jnp

from pp_models.families import positive_normal as pos
from pp_models.families._normal import gram, squared, tie
from pp_models.families.base import Family, Pair, unwrap
from pp_models.families.linalg import diagonal_matrix, outer, transpose
from pp_models.families.margins import Margin, gamma_quantile

# Sweeps over the coordinates from a nearby point. Each raises the objective, and the next update
# starts where this one ended.
SOME_SWEEPS = 2


def _coefficients(n, start=None):
    """(rows, K) b and p of the independent positive normals nearest to the row's density."""
    precision = -2 * n.second
    begin = pos.alike(n.first, precision) if start is None else start.first
    b = pos.independent(n.first, precision, jax.lax.stop_gradient(begin))
    return b, pos.diagonal(precision, b.shape)


def _log_normalizer(n):
    """Per row: sum log Z + m'R m / 2 with the means m and the coupling R, where h - b = R m."""
    b, p = _coefficients(n)
    found = pos.moments(b, p)
    return jnp.sum(found.log_z + 0.5 * (n.first - b) * found.first, -1)


def _mean(n, start=None):
    found = pos.moments(*_coefficients(n, start))
    return Pair(found.first, outer(found.first) + diagonal_matrix(found.variance))


def _tied_mean(n, start=None):
    found = pos.moments(*_coefficients(n, start))
    variance = diagonal_matrix(jnp.sum(found.variance, 0))
    return Pair(found.first, (transpose(found.first) @ found.first + variance)[None])


def _natural(d):
    d = unwrap(d)
    p = 1 / d.scale**2
    return Pair(d.loc * p, -0.5 * diagonal_matrix(p))


def _distribution(n):
    b, p = _coefficients(n)
    return pos.PositiveNormal(b / p, 1 / jnp.sqrt(p)).to_event(1)


def _uncoupled(n):
    identity = jnp.eye(n.second.shape[-1], dtype=n.second.dtype)
    return Pair(_coefficients(n)[0], n.second * identity)


def _by(stats):
    """The functions that end in the statistics of a point x."""

    def point(update):
        """The point that `update` leads to, coordinate by coordinate. Rows with one precision need
        only the sum of their second statistics."""

        def summary(n, start=None, most=SOME_SWEEPS):
            begin = () if start is None else (start.first, most)
            x = pos.settle(n.first, -2 * n.second, update, *begin)
            return gram(x) if len(n.second) == 1 else stats(x)

        return summary

    return {
        "stats": stats,
        "mode": point(pos.mode),
        "log_mode": point(pos.log_mode),
        "sample": lambda key, n: stats(pos.draw(key, *_coefficients(n))),
        "refresh": lambda key, n, t: stats(pos.refresh(key, n.first, -2 * n.second, t.first)),
    }


positive = Family(
    name="positive",
    log_normalizer=_log_normalizer,
    value=lambda t: t.first,
    mean=_mean,
    distribution=_distribution,
    natural=_natural,
    base=Pair(0.0, 0.0),
    uncoupled=_uncoupled,
    separate=True,
    margin=Margin(gamma_quantile),
    **_by(squared),
)
# One precision for all rows.
positive_tied = positive._replace(
    name="positive_tied", mean=_tied_mean, natural=lambda d: tie(_natural(d)), **_by(gram)
)
