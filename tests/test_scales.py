"""Moves along scales: each leaves the data's likelihood alone, is told the right density, and keeps it. Geweke's test has them in its sweeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

import pp_models
from pp_models import base, scales

MOVED = {"pmf": ("u", "v", 0), "bayesian_nmf": ("theta", "beta", 1)}  # what is multiplied, what is divided, and along which axis of it numbers lie


@pytest.mark.parametrize("few", [False, True], ids=["all rows", "three rows"])
@pytest.mark.parametrize("name", MOVED)
def test_a_move_is_told_the_joint_density(name, few, monkeypatch):
    """A move by a known y in one component: predictions stay, and the density that `along` is told of is, exactly, the model's log joint density with
    the change of volume, N log c of what is multiplied less V log c of what is divided."""
    model = pp_models.load(name)
    hyper, data = model.example(jax.random.key(0))
    data = data.select(np.arange(3)) if few else data
    hyper, batch = base.make_hyper(model, hyper._asdict(), data), data.pack()
    drawn = base.simulate(model, hyper, batch, jax.random.key(1))
    values, told = {site: drawn[site] for site in model.families}, []

    def moved(y):
        monkeypatch.setattr(f"pp_models.{name}.along", lambda key, *line: told.append(line) or jnp.zeros_like(line[1]).at[0].set(y))
        return model.moves(hyper, jax.random.key(2), values, batch)

    y, at_rest, there = 0.7, moved(0.0), moved(0.7)
    np.testing.assert_allclose(model.predict(hyper, there), model.predict(hyper, values), rtol=1e-9)
    up, down, axis = MOVED[name]
    log_c = {"pmf": 0.5 * y, "bayesian_nmf": y}[name]
    numbers = values[up].shape[0] - values[down].shape[axis]
    gain = base.log_joint(model, hyper, there, batch) - base.log_joint(model, hyper, at_rest, batch) + numbers * log_c
    volume, a, b = told[0]
    np.testing.assert_allclose(0.5 * (volume * y - a[0] * np.expm1(y) - b[0] * np.expm1(-y)), gain, rtol=1e-8)


def along_backwards(key, volume, a, b):
    return scales.along(key, -volume, a, b)


@pytest.mark.parametrize("move, kept", [(scales.along, True), (along_backwards, False)], ids=["as it is", "broken"])
def test_a_move_keeps_its_density(move, kept):
    """y drawn from its density by inversion and moved once has that density still: Kolmogorov-Smirnov of 20,000 lines, level 0.001.

    The Jacobian's sign turned round is noticed.
    """
    volume, a, b = 5.0, 3.0, 8.0
    grid = np.linspace(-8, 8, 20001)
    log_density = 0.5 * (volume * grid - a * np.exp(grid) - b * np.exp(-grid))
    cumulated = np.cumsum(np.exp(log_density - log_density.max()))
    cumulated /= cumulated[-1]
    before = np.interp(np.random.default_rng(0).random(20000), cumulated, grid)
    after = before + np.asarray(move(jax.random.key(0), volume, jnp.asarray(a * np.exp(before)), jnp.asarray(b * np.exp(-before))))
    assert np.mean(after != before) > 0.5
    assert (kstest(after, lambda y: np.interp(y, grid, cumulated)).pvalue > 0.001) == kept
