r"""Draws with the covariance of linear response.

If $w$ has the covariance $V$ of the statistics under q, then $(I - V F'')^{-1/2} w$ has the
covariance $(I - V F'')^{-1} V = \Sigma$ of linear response. The root is a Chebyshev polynomial in
$V F''$ on an interval that holds its spectrum, found by Lanczos' method. $w$ is a scaled sum of
draws of q's statistics.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from inference.core import gauge
from inference.core import linear_response as lr
from inference.core.linear_response import Place
from pp_models import families as fam
from pp_models.model import Model, Sites

TOGETHER = 4  # draws of q in a sum
LANCZOS = 60  # steps at most
ERROR = 1e-2  # of the root, relative
MOST_TERMS = 400
FLATTEST = 1e-4  # eigenvalues below this are taken for it: their directions are drawn too narrow
ROUNDING = 1e-20  # relative size of a residual that is nothing but rounding
WIDER = 0.8, 1.05  # the interval's ends relative to the extreme eigenvalues found


class Spectrum(NamedTuple):
    """Extreme eigenvalues of I - V F''. least: 0 if a direction of negative curvature was met."""

    least: float
    most: float

    @property
    def is_maximum(self) -> bool:
        return self.least > 0


@partial(jax.jit, static_argnames=("model",))
def _coefficients(model, place, flat, right):
    """Of each step of conjugate gradients from one right-hand side: its length, the ratio of the
    sizes after and before, and the least curvature met.
    """

    def step(now, _):
        after = lr.improve(model, place, flat, 0.0, now)
        return after, (after.length, after.size / now.size, after.least)

    return jax.lax.scan(step, lr.begin(model, place, flat, right), None, length=LANCZOS)[1]


def spectrum(model: Model, place: Place, key: jax.Array) -> Spectrum:
    """Ritz values of Lanczos' tridiagonal matrix, which the coefficients make up."""
    noise = deviations(model, place, key, 1)
    right = _bend(model, place, noise)  # all of the range of F'', outside which eigenvalues are 1
    right = jax.tree.map(lambda x: x[0], gauge.without_turns(model, place.mean, right))
    flat = gauge.flat_inverse(model, place.mean, place.natural)
    if not any(bool(jnp.any(x != 0)) for x in jax.tree.leaves(right)):
        return Spectrum(1.0, 1.0)  # F'' is zero
    lengths, ratios, least = (np.asarray(x) for x in _coefficients(model, place, flat, right))
    good = (lengths > 0) & np.isfinite(ratios) & (np.cumprod(ratios) > ROUNDING)
    number = len(good) if good.all() else int(np.argmin(good))
    if number < len(good) and not least[number] > 0:
        return Spectrum(0.0, 1.0)
    number = max(number, 1)
    steps, shrink = lengths[:number], ratios[: number - 1]
    diagonal = 1 / steps
    diagonal[1:] += shrink / steps[:-1]
    beside = np.sqrt(shrink) / steps[:-1]
    found = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    return Spectrum(min(float(found[0]), 1.0), max(float(found[-1]), 1.0))


@partial(jax.jit, static_argnames=("model", "number"))
def deviations(model: Model, place: Place, key: jax.Array, number: int) -> Sites:
    """(number, ...) changes of the statistics with covariance V: sums of TOGETHER draws of q."""

    def one(key):
        keys = dict(zip(model.families, jax.random.split(key, len(model.families)), strict=True))
        return {
            site: jax.tree.map(jnp.subtract, family.sample(keys[site], place.natural[site]), mean)
            for site, family in model.families.items()
            for mean in [place.mean[site]]
        }

    def several(key):
        found = jax.lax.map(one, jax.random.split(key, TOGETHER))
        return jax.tree.map(lambda x: jnp.sum(x, 0) / TOGETHER**0.5, found)

    return jax.lax.map(several, jax.random.split(key, number))


@partial(jax.jit, static_argnames=("model",))
def _bend(model, place, changes):
    return jax.vmap(partial(lr.curvature, model, place))(changes)


def polynomial(of: Spectrum) -> tuple[np.ndarray, int, float, float]:
    """Chebyshev coefficients of x^(-1/2) on an interval that holds the spectrum, zeros after them,
    their number, and the interval's ends."""
    low, high = WIDER[0] * max(of.least, FLATTEST), WIDER[1] * of.most

    def root(x):
        return 1 / np.sqrt(0.5 * (high - low) * x + 0.5 * (high + low))

    wanted = 0.5 * np.sqrt(high / low) * np.log(2 / ERROR)
    degree = int(np.clip(16 * np.ceil(wanted / 16), 16, MOST_TERMS))
    found = np.polynomial.chebyshev.chebinterpolate(root, degree)
    return np.pad(found, (0, MOST_TERMS + 1 - len(found))), len(found), low, high


@partial(jax.jit, static_argnames=("model",))
def spread_out(model, place, changes, coefficients, number, low, high):
    """(I - V F'')^(-1/2) of stacked changes, by the recurrence of Chebyshev's polynomials.

    number: of the coefficients that are not zero: an argument, so that one program does for all
    """

    def scaled(change):
        bent = lr.fisher(model, place, lr.curvature(model, place, change))
        return jax.tree.map(
            lambda x, y: (2 * (x - y) - (high + low) * x) / (high - low), change, bent
        )

    def one(change):
        def term(i, carry):
            before, now, total = carry
            after = jax.tree.map(lambda a, b: 2 * a - b, scaled(now), before)
            return now, after, jax.tree.map(lambda t, x: t + coefficients[i] * x, total, after)

        now = scaled(change)
        total = jax.tree.map(lambda a, b: coefficients[0] * a + coefficients[1] * b, change, now)
        return jax.lax.fori_loop(2, number, term, (change, now, total))[2]

    return jax.vmap(one)(changes)


@partial(jax.jit, static_argnames=("model",))
def values(model: Model, place: Place, changes: Sites) -> Sites:
    """What stacked changes of the statistics say of the values: their linear regression."""

    def of_site(site: str) -> jax.Array:
        family, natural = model.families[site], place.natural[site]
        shape = jax.eval_shape(family.value, place.mean[site])
        back = jax.linear_transpose(lambda c: fam.regression(family, natural, c), shape)
        return jax.vmap(lambda change: back(change)[0])(changes[site])

    return {site: of_site(site) for site in model.families}


def normal_scores(
    deviations: np.ndarray, variance: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Standard normal quantiles of the ranks of every number over the draws.

    The part of the variance that the deviations lack is added as independent noise.
    """
    rest = np.sqrt(np.maximum(variance - deviations.var(0), 0.0))
    noisy = deviations + rest * rng.normal(size=deviations.shape)
    ranks = np.argsort(np.argsort(noisy, axis=0), axis=0)
    return np.asarray(ndtri((ranks + 0.5) / len(noisy)))
