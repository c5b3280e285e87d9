"""Laws of positive normals: moments, draws, densities and settled rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

from pp_models.families import positive_normal as pos
from pp_models.families.positive_normal import PositiveNormal


def exact_moments(b, p):
    """By numerical integration, scaled by the density's largest value."""
    top = max(b / p, 0.0)
    width = 1 / np.sqrt(p) if b > 0 else 1 / (abs(b) + np.sqrt(p))
    low, high = max(top - 40 * width, 0.0), top + 40 * width

    def density(x):
        return np.exp(b * (x - top) - 0.5 * p * (x**2 - top**2))

    parts = [
        scipy.integrate.quad(
            lambda x, k=k: x**k * density(x),
            low,
            high,
            points=[top] if top > low else None,
            epsabs=0,
            epsrel=1e-12,
        )[0]
        for k in range(3)
    ]
    return np.log(parts[0]) + b * top - 0.5 * p * top**2, parts[1] / parts[0], parts[2] / parts[0]


@pytest.mark.parametrize("z", [-300.0, -40.0, -8.0, -3.01, -2.99, -0.5, 0.0, 2.0, 30.0])
@pytest.mark.parametrize("p", [0.01, 7.0])
def test_moments_of_positive_normals(z, p):
    """Against integration, on both sides of the change to the continued fraction; in single
    precision to some roundings: just above it 1 + z (z + r) leaves a tenth of 1, and r is ten times
    as large as z + r."""
    exact = exact_moments(z * np.sqrt(p), p)
    found = pos.moments(jnp.asarray(z * np.sqrt(p)), jnp.asarray(p))
    np.testing.assert_allclose(found[:3], exact, rtol=1e-9)
    with jax.enable_x64(False):
        single = pos.moments(jnp.asarray(z * np.sqrt(p), jnp.float32), jnp.asarray(p, jnp.float32))
    np.testing.assert_allclose(single[:3], exact, rtol=2e-5)
    np.testing.assert_allclose(single.variance, found.variance, rtol=2e-5)
    np.testing.assert_allclose(
        found.variance, found.second - found.first**2, rtol=1e-4 + 1e-15 * z**2
    )  # as far as the difference is known


def test_moments_stay_finite_in_single_precision():
    with jax.enable_x64(False):
        found = pos.moments(
            jnp.asarray([-1e15, -1e6, 0.0, 1e6], jnp.float32),
            jnp.asarray([1e-3, 1e5, 1e-6, 1e3], jnp.float32),
        )
        assert all(np.all(np.isfinite(part)) for part in found) and np.all(found.first > 0)


@pytest.mark.parametrize("z", [-30.0, -3.1, -2.9, 0.0, 4.0])
def test_draws_of_positive_normals(z):
    """Kolmogorov-Smirnov on 20,000 draws, p > 1e-4 with a fixed seed, against scipy's truncated
    normal."""
    draws = np.asarray(pos.draw(jax.random.key(0), jnp.full(20_000, 2 * z), jnp.full(20_000, 4.0)))
    assert np.all(draws > 0)
    assert scipy.stats.kstest(draws * 2, scipy.stats.truncnorm(-z, np.inf, loc=z).cdf).pvalue > 1e-4


@pytest.mark.parametrize("z", [-30.0, -1.0, 2.0])
def test_draws_move_with_their_parameters(z):
    """The derivative of a draw is that of its quantile: of scipy's inverse distribution function,
    by central differences."""
    b, p = 2 * z, 4.0
    x, (by_b, by_p) = jax.value_and_grad(lambda bp: pos.draw(jax.random.key(0), *bp))(
        (jnp.asarray(b), jnp.asarray(p))
    )

    def quantile(b, p):
        return scipy.stats.truncnorm(-b / np.sqrt(p), np.inf, loc=b / p, scale=1 / np.sqrt(p))

    rest = quantile(b, p).sf(float(x))
    steps = [
        (quantile(b + e, p).isf(rest) - quantile(b - e, p).isf(rest)) / (2 * e) for e in (1e-4,)
    ]
    steps += [
        (quantile(b, p + e).isf(rest) - quantile(b, p - e).isf(rest)) / (2 * e) for e in (1e-4,)
    ]
    np.testing.assert_allclose([by_b, by_p], steps, rtol=1e-3)


def test_positive_normal_is_numpyros():
    """Density, mean and variance, against NumPyro's own truncated normal where that is right."""
    ours = PositiveNormal(jnp.asarray([-1.0, 0.0, 2.0]), jnp.asarray([0.5, 1.0, 3.0]))
    theirs = scipy.stats.truncnorm(
        [2.0, 0.0, -2 / 3], np.inf, loc=[-1.0, 0.0, 2.0], scale=[0.5, 1.0, 3.0]
    )
    x = np.array([0.3, 1.0, 4.0])
    np.testing.assert_allclose(ours.log_prob(x), theirs.logpdf(x), rtol=1e-9)
    np.testing.assert_allclose(ours.mean, theirs.mean(), rtol=1e-9)
    np.testing.assert_allclose(ours.variance, theirs.var(), rtol=1e-8)


@pytest.mark.parametrize("tied", [True, False])
def test_settled_rows_are_optimal(tied):
    """NNLS: nonnegative with no slope left but downhill at zero; in log space no slope at all. The
    same from any start, in blocks or not."""
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(1 if tied else 700, 4, 9))
    P = jnp.asarray(factor @ np.swapaxes(factor, 1, 2))
    h = jnp.asarray(rng.normal(size=(700, 4)) * 5)
    start = jnp.asarray(rng.gamma(1.0, 1.0, (700, 4)))
    for begin in (None, start):
        x = pos.settle(h, P, pos.mode, begin)
        slope = h - jnp.einsum("nkl,nl->nk", jnp.broadcast_to(P, (700, 4, 4)), x)
        assert (
            np.all(x >= 0) and np.all(np.abs(slope[x > 0]) < 1e-7) and np.all(slope[x == 0] <= 1e-9)
        )
        y = pos.settle(h, P, pos.log_mode, begin)
        slope = h - jnp.einsum("nkl,nl->nk", jnp.broadcast_to(P, (700, 4, 4)), y) + 1 / y
        np.testing.assert_allclose(slope * y, 0, atol=1e-7)
