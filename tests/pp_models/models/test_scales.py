"""Moves along scales: each leaves the data's likelihood alone, is told the right density, and keeps
it. Geweke's test has them in its sweeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import gamma, kstest

import pp_models
from inference.run import fit
from pp_models import model as base
from pp_models.models import _latent_gaussian as lg
from pp_models.models import _scales as scales
from pp_models.models import lg_nmf_votes

MOVED = {
    "pmf": ("u", "v", 0),
    "bayesian_pmf": ("u", "v", 0),  # volumes of both means and precisions cancel
    "bayesian_nmf": ("theta", "beta", 1),
}  # what is multiplied, what is divided, and along which axis of it numbers lie


@pytest.mark.parametrize("few", [False, True], ids=["all rows", "three rows"])
@pytest.mark.parametrize("name", MOVED)
def test_a_move_is_told_the_joint_density(name, few, monkeypatch):
    """A move by a known y in one component: predictions stay, and the density that `along` is told
    of is, exactly, the model's log joint density with the change of volume, N log c of what is
    multiplied less V log c of what is divided."""
    model = pp_models.load(name)
    hyper, data = model.example(jax.random.key(0))
    data = data.select(np.arange(3)) if few else data
    hyper, batch = base.make_hyper(model, hyper._asdict(), data), data.pack()
    drawn = base.simulate(model, hyper, batch, jax.random.key(1))
    values, told = {site: drawn[site] for site in model.families}, []

    def moved(y):
        monkeypatch.setattr(
            f"pp_models.models.{name}.along",
            lambda key, *line: told.append(line) or jnp.zeros_like(line[1]).at[0].set(y),
        )
        return model.moves(hyper, jax.random.key(2), values, batch)

    y, at_rest, there = 0.7, moved(0.0), moved(0.7)
    np.testing.assert_allclose(model.predict(hyper, there), model.predict(hyper, values), rtol=1e-9)
    up, down, axis = MOVED[name]
    log_c = y if name == "bayesian_nmf" else 0.5 * y
    numbers = values[up].shape[0] - values[down].shape[axis]
    gain = (
        base.log_joint(model, hyper, there, batch)
        - base.log_joint(model, hyper, at_rest, batch)
        + numbers * log_c
    )
    volume, a, b = told[0]
    np.testing.assert_allclose(
        0.5 * (volume * y - a[0] * np.expm1(y) - b[0] * np.expm1(-y)), gain, rtol=1e-8
    )


LATENT = {
    "lg_nmf": ("d1",),
    "lg_nmf_votes": ("d1", "d2"),
    "lg_op": ("d1",),
}  # what is multiplied; s is divided


def latent(name, **given):
    """A latent Gaussian model with these precisions given, its hyper-parameters, rows, and values
    from its prior."""
    hyper, data = pp_models.load(name).example(jax.random.key(0))
    given = {field: x for field, x in given.items() if field in hyper._fields}
    problem = fit.make_problem(name, data, hyper._replace(**given), devices=jax.local_devices()[:1])
    batch = data.pack()
    drawn = base.simulate(problem.model, problem.hyper, batch, jax.random.key(1))
    return (
        problem.model,
        problem.hyper,
        batch,
        {site: drawn[site] for site in problem.model.families},
    )


@pytest.mark.parametrize("name", LATENT)
def test_factors_of_latent_gaussians_move_by_their_joint_density(name, monkeypatch):
    """As above, of d and s: c^(p + m - n) counts every word and member that is multiplied, and
    every document that is divided."""
    model, hyper, batch, values = latent(name, alpha1=0.7, alpha2=1.3)
    told, y = [], 0.7

    def moved(y):
        monkeypatch.setattr(
            lg,
            "along",
            lambda key, *line: told.append(line) or jnp.zeros_like(line[1]).at[0].set(y),
        )
        return lg.scale_moves(hyper, jax.random.key(2), values, batch)

    there = moved(y)
    for site in LATENT[name]:
        np.testing.assert_allclose(
            there["s"] @ there[site].T, values["s"] @ values[site].T, rtol=1e-9
        )
    numbers = sum(len(values[site]) for site in LATENT[name]) - len(values["s"])
    gain = (
        base.log_joint(model, hyper, there, batch)
        - base.log_joint(model, hyper, values, batch)
        + numbers * 0.5 * y
    )
    volume, a, b = told[0]
    np.testing.assert_allclose(
        0.5 * (volume * y - a[0] * np.expm1(y) - b[0] * np.expm1(-y)), gain, rtol=1e-8
    )


@pytest.mark.parametrize("name", LATENT)
def test_all_factors_move_with_their_precision_by_the_joint_density(name, monkeypatch):
    """d sqrt(v), s / sqrt(v), v alpha1: the density of v, d log v = dv / v, with the change of
    volume v^((D - S) / 2 + 1) of D and S numbers, is the gamma density that v is drawn from."""
    model, hyper, batch, values = latent(name, alpha2=1.3)
    shapes = []
    monkeypatch.setattr(lg, "along", lambda key, volume, a, b: jnp.zeros_like(a))
    monkeypatch.setattr(
        lg.fam, "log_gamma_draw", lambda key, shape: shapes.append(shape) or jnp.log(shape) + 0.4
    )
    there = lg.scale_moves(hyper, jax.random.key(2), values, batch)
    v = float(there["alpha1"][0] / values["alpha1"][0])
    shape = float(shapes[0])
    rate = shape * np.exp(0.4) / v  # of the draw, which was shape exp(0.4) of a unit rate
    numbers = sum(values[site].size for site in LATENT[name]) - values["s"].size
    gain = (
        base.log_joint(model, hyper, there, batch)
        - base.log_joint(model, hyper, values, batch)
        + (numbers / 2 + 1) * np.log(v)
    )
    np.testing.assert_allclose(shape * np.log(v) - rate * (v - 1), gain, rtol=1e-8)


def test_members_move_with_their_precision_as_their_prior_says(monkeypatch):
    """c d2 and alpha2 / c^2: of members who never voted, alpha2 drawn from its prior and moved has
    it still. Kolmogorov-Smirnov of 4,000 draws, level 0.001."""
    _, hyper, batch, values = latent("lg_nmf_votes")
    monkeypatch.setattr(lg, "scale_moves", lambda hyper, key, values, batch: values)
    monkeypatch.setattr(lg_nmf_votes, "elliptical", lambda key, x, *rest: x)
    batch = batch.replace(votes=batch.votes.emptied())
    before = np.random.default_rng(0).gamma(hyper.a0, 1 / hyper.b0, 4000)

    def moved(key, alpha2):
        there = lg_nmf_votes.moves(hyper, key, {**values, "alpha2": alpha2[None]}, batch)
        return there["alpha2"][0], there["d2"] / values["d2"]

    after, scale = jax.jit(jax.vmap(moved))(
        jax.random.split(jax.random.key(3), 4000), jnp.asarray(before)
    )
    np.testing.assert_allclose(
        scale, np.broadcast_to(np.sqrt(before / after)[:, None, None], scale.shape), rtol=1e-9
    )
    assert np.mean(np.asarray(after) != before) > 0.5
    assert kstest(after, gamma(hyper.a0, scale=1 / hyper.b0).cdf).pvalue > 0.001


def along_backwards(key, volume, a, b):
    return scales.along(key, -volume, a, b)


@pytest.mark.parametrize(
    "move, kept", [(scales.along, True), (along_backwards, False)], ids=["as it is", "broken"]
)
def test_a_move_keeps_its_density(move, kept):
    """y drawn from its density by inversion and moved once has that density still:
    Kolmogorov-Smirnov of 20,000 lines, level 0.001.

    The Jacobian's sign turned round is noticed.
    """
    volume, a, b = 5.0, 3.0, 8.0
    grid = np.linspace(-8, 8, 20001)
    log_density = 0.5 * (volume * grid - a * np.exp(grid) - b * np.exp(-grid))
    cumulated = np.cumsum(np.exp(log_density - log_density.max()))
    cumulated /= cumulated[-1]
    before = np.interp(np.random.default_rng(0).random(20000), cumulated, grid)
    after = before + np.asarray(
        move(
            jax.random.key(0),
            volume,
            jnp.asarray(a * np.exp(before)),
            jnp.asarray(b * np.exp(-before)),
        )
    )
    assert np.mean(after != before) > 0.5
    assert (kstest(after, lambda y: np.interp(y, grid, cumulated)).pvalue > 0.001) == kept
