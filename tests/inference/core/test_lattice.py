"""Draws between the points of a grid have the density that the grid's weights tell of."""

import jax
import numpy as np
import pytest
from scipy.stats import kstest, loggamma, norm

import inference
import pp_models
from inference.core import lattice

UNIFORM = np.random.default_rng(0).random((20_000, 2))
FAR = 1.63 / np.sqrt(len(UNIFORM))  # Kolmogorov's distance that one sample in a hundred exceeds


def on_line(density, low, high):
    """Points one standard deviation apart, and their weights."""
    cells = np.arange(low, high + 1)
    weights = density(cells * density.std() + density.mean())
    theta = (cells * density.std() + density.mean())[:, None]
    return theta, weights / weights.sum(), np.array([[density.std()]])


class Density:
    """A distribution of scipy.stats called as its density."""

    def __init__(self, of):
        self.of = of

    def __call__(self, x):
        return self.of.pdf(x)

    def __getattr__(self, name):
        return getattr(self.of, name)


@pytest.mark.parametrize("of", [norm(2, 0.3), loggamma(8)], ids=["normal", "skewed"])
def test_draws_on_a_line_have_the_density(of):
    """Draws are the distribution whose density the weights are. Bare grid points are at a distance
    of 0.2 from it; the interpolation adds 0.005 to the distance of a sample."""
    theta, weights, axes = on_line(Density(of), -4, 4)
    picked, found = lattice.draw(theta, weights, axes, UNIFORM[:, :1])
    assert kstest(found[:, 0], of.cdf).statistic < FAR + 0.005
    np.testing.assert_allclose(
        np.bincount(picked, minlength=len(weights)) / len(picked),
        weights,
        atol=5 * np.sqrt(0.25 / len(picked)),
    )
    assert np.max(np.abs(found - theta[picked])) < 1.5 * of.std()


def test_draws_in_a_plane_have_the_covariance():
    """A normal in two dimensions, on its principal axes: 3 % of the sds, as five standard errors
    of 20,000 draws."""
    covariance = np.array([[0.5, 0.3], [0.3, 0.4]])
    values, vectors = np.linalg.eigh(covariance)
    axes = vectors * np.sqrt(values)
    cells = np.array([(i, j) for i in range(-4, 5) for j in range(-4, 5) if i * i + j * j <= 16])
    weights = np.exp(-0.5 * np.sum(cells**2, 1))
    theta = np.array([1.0, -2.0]) + cells @ axes.T
    _, found = lattice.draw(theta, weights / weights.sum(), axes, UNIFORM)
    np.testing.assert_allclose(found.mean(0), [1.0, -2.0], atol=0.03)
    np.testing.assert_allclose(np.cov(found.T), covariance, atol=0.03 * 0.5)


def test_lines_of_one_and_two_points():
    """An even cell about one point; between two, the density that joins them."""
    for cells in ([3], [3, 4]):
        size = len(cells)
        picked, found = lattice.along_line(np.array(cells), np.full(size, 1 / size), UNIFORM[:, 0])
        assert set(picked) == set(range(size)) and np.all(np.isfinite(found))
        np.testing.assert_allclose(found.mean(), np.mean(cells), atol=0.05)


def test_moments_and_draws_of_a_grid_agree(tmp_path):
    """Mean and sd of a hyper-parameter, from the points' weights, against 20,000 draws between
    them: five standard errors of each, 0.035 sd and 3 %. A stored fit gives the same draws."""
    hyper, data = pp_models.load("lg_nmf").example(jax.random.key(0))
    options = {"weights": "laplace", "progress": False}
    fit = inference.fit("lg_nmf", data, "inla", hyper._replace(alpha1=None), **options)
    draws = fit.posterior.sample(jax.random.key(1), 20_000, ["alpha1"])["alpha1"]
    assert len(np.unique(draws)) > 10_000
    mean, sd = float(fit.posterior.mean("alpha1")[0]), float(fit.posterior.sd("alpha1")[0])
    np.testing.assert_allclose(draws.mean(), mean, atol=0.035 * sd)
    np.testing.assert_allclose(draws.std(), sd, rtol=0.03)
    again = inference.load(fit.save(tmp_path / "fit"))
    few = [one.posterior.sample(jax.random.key(2), 50)["alpha1"] for one in (fit, again)]
    np.testing.assert_array_equal(*few)


@pytest.mark.parametrize("engine", ["laplace", "inla"])
def test_states_on_the_way_warn_of_nothing(engine):
    """A watcher that asks for the posterior after each step hears nothing about a search that goes
    on. Warnings are errors here."""
    hyper, data = pp_models.load("lg_nmf").example(jax.random.key(1))
    options = {"weights": "laplace"} if engine == "inla" else {}
    seen = []
    inference.fit(
        "lg_nmf",
        data,
        engine,
        hyper._replace(alpha1=None),
        jax.random.key(1),
        progress=False,
        watch=lambda step, seconds, posterior: seen.append(posterior()),
        **options,
    )
    assert len(seen) > 1
