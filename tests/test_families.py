"""Exponential families: each is what it says, checked against autodiff, NumPyro and draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from pp_models import families as fam
from pp_models.families import Pair
from pp_models.special import digamma, digamma_parts


def natural(name, seed=0):
    rng = np.random.default_rng(seed)
    positive = lambda *shape: jnp.asarray(rng.gamma(2.0, 1.0, shape) + 0.3)  # noqa: E731
    if name == "dirichlet":
        return positive(4, 3)
    if name == "gamma":
        return Pair(positive(4, 3), -positive(4, 3))
    if name == "gamma_tied":
        return Pair(positive(4, 3), -positive(4, 1))
    if name == "beta":
        return Pair(positive(4, 3), positive(4, 3))
    factor = rng.normal(size=(4, 3, 3))
    precision = jnp.asarray(factor @ np.swapaxes(factor, 1, 2) + np.eye(3))
    return Pair(jnp.asarray(rng.normal(size=(4, 3))), -0.5 * precision)


families = pytest.mark.parametrize("name", sorted(fam.FAMILIES))


@families
def test_mean_is_the_gradient_of_the_log_normalizer(name):
    """E[t] = dA/dnatural."""
    family, eta = fam.FAMILIES[name], natural(name)
    gradient = jax.grad(lambda n: jnp.sum(family.log_normalizer(n)))(eta)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(family.mean(eta)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@families
def test_density_is_numpyros(name):
    """The family's log density at a draw is that of its NumPyro distribution, row by row."""
    family, eta = fam.FAMILIES[name], natural(name)
    x = family.value(family.sample(jax.random.key(0), eta))
    theirs = np.asarray(family.distribution(eta).log_prob(x)).reshape(4, -1).sum(1)
    np.testing.assert_allclose(fam.log_density(family, eta, family.stats(x)), theirs, rtol=1e-10)


@families
def test_natural_inverts_distribution(name):
    """A guide's distribution gives its natural parameter back."""
    family, eta = fam.FAMILIES[name], natural(name)
    for a, b in zip(jax.tree.leaves(family.natural(family.distribution(eta))), jax.tree.leaves(eta), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@families
def test_draws_have_the_mean_statistics(name):
    """The average statistic of 20,000 draws is E[t], within five standard errors."""
    family, eta = fam.FAMILIES[name], natural(name)
    draws = jax.vmap(lambda key: family.sample(key, eta))(jax.random.split(jax.random.key(1), 20_000))
    for sample, mean in zip(jax.tree.leaves(draws), jax.tree.leaves(family.mean(eta)), strict=True):
        error = np.asarray(sample).std(0) / np.sqrt(20_000)
        assert np.all(np.abs(np.asarray(sample).mean(0) - mean) < 5 * error)


@families
def test_modes_maximise(name):
    """`mode` maximises <natural, t(x)>, and summarise(..., "mode") the Lebesgue density: no nearby point is better."""
    family, eta = fam.FAMILIES[name], jax.tree.map(lambda x: x, natural(name))
    eta = jax.tree.map(lambda n, b: n - b, eta, family.base)  # concentrations above one, so that both modes exist
    for summary, objective in (("log_mode", lambda t: fam.dot(eta, t)), ("mode", lambda t: fam.log_density(family, eta, t))):
        best = fam.summarise(family, eta, summary)
        x = family.value(best)
        for a, b in zip(jax.tree.leaves(best), jax.tree.leaves(family.stats(x)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        for seed in range(20):
            nearby = x * np.exp(0.01 * np.random.default_rng(seed).normal(size=x.shape))
            if name == "dirichlet":
                nearby = nearby / nearby.sum(-1, keepdims=True)
            assert np.all(np.asarray(objective(family.stats(jnp.asarray(nearby)))) <= np.asarray(objective(best)) + 1e-12)


@families
def test_entropy_is_the_mean_of_minus_log_density(name):
    """Relative to the base measure, as F is."""
    family, eta = fam.FAMILIES[name], natural(name)
    draws = jax.vmap(lambda key: fam.log_prior(family, eta, family.sample(key, eta)))(jax.random.split(jax.random.key(2), 20_000))
    error = np.asarray(draws).std(0) / np.sqrt(20_000)
    assert np.all(np.abs(-np.asarray(draws).mean(0) - fam.entropy(family, eta)) < 5 * error)


@pytest.mark.parametrize("shape", [0.02, 0.3, 0.999, 1.0, 2.5, 40.0, 3000.0])
def test_gamma_draws(shape):
    """The logarithm of the draws is log-gamma distributed: Kolmogorov-Smirnov on 20,000 draws, p > 1e-4 with a fixed seed."""
    draws = np.asarray(fam.log_gamma_draw(jax.random.key(3), jnp.full(20_000, shape)))
    assert scipy.stats.kstest(draws, scipy.stats.loggamma(shape).cdf).pvalue > 1e-4


def test_gamma_draws_in_single_precision():
    """Large shapes do not lose their acceptance test to rounding: standardised draws at shape 1e6 are normal."""
    with jax.enable_x64(False):
        draws = np.asarray(fam.log_gamma_draw(jax.random.key(4), jnp.full(20_000, 1e6)), np.float64)
    assert scipy.stats.kstest((draws - np.log(1e6)) * 1e3, "norm").pvalue > 1e-4


def test_tiny_concentrations_in_single_precision():
    """A concentration of 1e-6 gives finite draws, means and normalisers in float32."""
    with jax.enable_x64(False):
        eta = jnp.full((5, 7), 1e-6)
        for family, n in ((fam.dirichlet, eta), (fam.gamma, Pair(eta, -jnp.ones_like(eta)))):
            for tree in (family.sample(jax.random.key(0), n), family.mean(n), family.log_normalizer(n), fam.summarise(family, n, "mode")):
                assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree))
            assert np.all(family.value(family.sample(jax.random.key(0), n)) > 0)


def test_fast_digamma():
    """The single-precision digamma is as good as single precision allows, from 1e-6 to 1e6."""
    x = np.geomspace(1e-6, 1e6, 2001)
    exact = np.asarray(digamma(jnp.asarray(x)))
    with jax.enable_x64(False):
        single = jnp.asarray(x, jnp.float32)
        fast = np.asarray(digamma(single))
        mantissa, exponent = digamma_parts(single)
        assert np.all(np.isfinite(mantissa)) and np.all(np.isfinite(exponent))
    assert fast.dtype == np.float32
    np.testing.assert_allclose(fast, exact, rtol=2e-6, atol=2e-6)
