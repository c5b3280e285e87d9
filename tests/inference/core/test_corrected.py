"""Posteriors with the widths of linear response."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import inference
import pp_models
from inference.core import align, climb, response_draws
from inference.core import linear_response as lr
from inference.core.corrected import MOST_EXACT
from inference.core.corrected import corrected as corrected_of
from inference.core.posteriors import Variational
from pp_models import families as fam
from pp_models.errors import InputError
from pp_models.families import Pair
from pp_models.model.capabilities import Rotation


class Sum:
    """y ~ N(a + b, 1) with standard normal a and b: mean field is narrow, the posterior known."""

    families = {"a": fam.normal, "b": fam.normal}  # noqa: RUF012
    shared, local, rotation = ("a", "b"), frozenset(), Rotation()
    y = jnp.array([0.7, -1.2, 2.0])

    def log_global(self, hyper, t):
        prior = Pair(jnp.zeros((1, 1)), -0.5 * jnp.ones((1, 1, 1)))
        return sum(jnp.sum(fam.log_prior(fam.normal, prior, t[site])) for site in "ab")

    def log_local(self, hyper, t, batch, key=None):
        a, b = t["a"], t["b"]
        squares = a.second[:, 0, 0] + b.second[:, 0, 0] + 2 * a.first[:, 0] * b.first[:, 0]
        cross = self.y * (a.first[:, 0] + b.first[:, 0])
        return -0.5 * jnp.sum(self.y**2 - 2 * cross + squares)


def test_a_gaussian_posterior_is_exact():
    """Where the posterior is normal, linear response has its covariance: here the inverse of
    [[2, 1], [1, 2]], while q has variances 1/2. To rounding, 1e-8.
    """
    model, y = Sum(), Sum.y[:, None]
    eye = jnp.ones((3, 1, 1))
    natural = {site: Pair(2 / 3 * y, -eye) for site in "ab"}  # precision 2, mean y / 3
    place = lr.place_at(model, None, natural, None)
    slope = jax.tree.map(jnp.subtract, lr.gradient(model, place, place.mean), natural)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(slope)) < 1e-12
    rights = jax.tree.map(lambda x: jnp.zeros((2, *x.shape)), place.mean)
    rights["a"] = rights["a"]._replace(first=rights["a"].first.at[0, 1, 0].set(1.0))
    rights["b"] = rights["b"]._replace(first=rights["b"].first.at[1, 1, 0].set(1.0))
    shift = lr.respond(model, place, rights, 1e-12).shift
    found = [[float(shift[site].first[i, 1, 0]) for site in "ab"] for i in range(2)]
    np.testing.assert_allclose(found, np.linalg.inv([[2.0, 1.0], [1.0, 2.0]]), atol=1e-8)


@pytest.fixture(scope="module")
def planted():
    """LDA on 60 documents, and draws of a long Gibbs chain aligned to the fit."""
    rng = np.random.default_rng(0)
    topics, weights = rng.dirichlet(np.full(12, 0.3), 3), rng.dirichlet(np.full(3, 0.4), 60)
    data = pp_models.data.counts(np.array([rng.multinomial(50, p) for p in weights @ topics]))
    given = {"hyper": {"num_topics": 3, "alpha": 0.5, "eta": 0.5}, "progress": False}
    fit = inference.fit("lda", data, "cavi", key=jax.random.key(0), **given)
    chain = inference.fit(
        "lda", data, "gibbs", key=jax.random.key(1), num_samples=4000, num_chains=1, **given
    )
    corrected = fit.corrected()
    flat = {site: x[0] for site, x in chain.posterior.draws.items()}
    pivot = {site: corrected.mean(site) for site in fit.model.families}
    return fit, corrected, align.align_draws(fit.model, flat, pivot)


def covered(draws, low, high):
    return np.mean((low < draws) & (draws < high))


def test_topics_get_their_width(planted):
    """q's topics have two thirds of the posterior's width; corrected ones are within 7 %. Their
    90 % intervals contain 20 % more of the posterior's draws than q's do. Not all of 90 %: words
    that a topic hardly has are too rare under q, and linear response keeps q's means.
    """
    fit, corrected, draws = planted
    sd = draws["beta"].std(0)
    assert np.median(fit.posterior.sd("beta") / sd) < 0.75
    assert 0.93 < np.median(corrected.sd("beta") / sd) < 1.07
    q = fit.posterior.sample(jax.random.key(3), 4000)["beta"]
    before = covered(draws["beta"], *np.quantile(q, [0.05, 0.95], axis=0))
    assert before < 0.62
    assert covered(draws["beta"], *corrected.interval("beta")) > before + 0.2
    assert corrected.notes == []


def test_draws_have_the_corrected_widths_and_correlations(planted):
    """Draws of the expected data are as wide as the posterior's, and their 90 % intervals contain
    86 to 93 % of its draws; q's contain less than 75 %.
    """
    fit, corrected, draws = planted
    found = corrected.sample(jax.random.key(2), 2000)
    np.testing.assert_allclose(found["beta"].sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(found["beta"].mean(0), corrected.mean("beta"), atol=0.02)
    plain = fit.posterior.sample(jax.random.key(3), 2000)
    expected, mine, narrow = (
        np.einsum("ndk,nkv->ndv", x["theta"], x["beta"]) for x in (draws, found, plain)
    )
    assert 0.93 < np.median(mine.std(0) / expected.std(0)) < 1.07
    assert 0.86 < covered(expected, *np.quantile(mine, [0.05, 0.95], axis=0)) < 0.93
    assert np.median(narrow.std(0) / expected.std(0)) < 0.8
    assert covered(expected, *np.quantile(narrow, [0.05, 0.95], axis=0)) < 0.75


def test_widths_from_draws_agree_with_solved_ones(planted, monkeypatch):
    """Sites that are too large to solve for one by one. Half of the numbers are within one of the
    standard errors that are given; three of them are far beyond that for the median of 36.
    """
    fit, corrected, _ = planted
    exact, again = corrected.sd("beta"), fit.corrected()
    monkeypatch.setattr("inference.core.corrected.MOST_EXACT", 10)
    assert 0 < again.sd_error("beta") < 0.1
    assert np.median(np.abs(again.sd("beta") / exact - 1)) < 3 * again.sd_error("beta")
    assert exact.size < MOST_EXACT


def test_without_coupling_the_widths_are_those_of_q():
    """With one topic the posterior is q: linear response changes no width, of rare words neither,
    and draws have these widths. An empty document and float32 are no trouble.
    """
    rng = np.random.default_rng(1)
    counts = rng.poisson(rng.gamma(0.3, 5.0, 40), (12, 40))
    counts[3] = 0
    with jax.enable_x64(False):
        data = pp_models.data.counts(counts)
        fit = inference.fit("lda", data, "cavi", {"num_topics": 1}, progress=False)
        corrected = fit.corrected()
        np.testing.assert_allclose(corrected.sd("beta"), fit.posterior.sd("beta"), rtol=1e-3)
        np.testing.assert_allclose(corrected.sd("theta"), 0, atol=1e-6)
        np.testing.assert_allclose(corrected.interval("theta"), 1, atol=1e-6)
        drawn = corrected.sample(jax.random.key(0), 2000)["beta"]
    common = corrected.mean("beta")[0] > 1e-3
    ratio = drawn.std(0)[0] / corrected.sd("beta")[0]
    np.testing.assert_allclose(ratio[common], 1, atol=0.1)
    total = corrected.covariance(lambda values: jnp.sum(values["beta"]))
    np.testing.assert_allclose(total, 0, atol=1e-9)


def test_a_normal_wishart_keeps_its_width_without_coupling():
    """With one component the posterior is q, a normal-Wishart, of which the mean is no statistic:
    its covariance W^-1 / (kappa (nu - D - 1)) is more than its regression on them explains.
    """
    rows = np.random.default_rng(2).normal(size=(9, 2)) @ [[1.0, 0.4], [0.0, 0.7]]
    data = pp_models.data.dense(rows)
    fit = inference.fit("gaussian_mixture", data, "cavi", {"num_components": 1}, progress=False)
    corrected = fit.corrected()
    np.testing.assert_allclose(
        corrected.sd("components"), fit.posterior.sd("components"), rtol=1e-3
    )
    np.testing.assert_allclose(corrected.sample(jax.random.key(0), 5)["pi"], 1, atol=1e-6)


class Saddle(Sum):
    """F whose bound has a saddle at zero: with the correlation -2 of a and b it is not concave."""

    def log_local(self, hyper, t, batch, key=None):
        return -2.0 * jnp.sum(t["a"].first[:, 0] * t["b"].first[:, 0])


def test_a_saddle_has_no_draws():
    """The slope is zero there, so only directions other than the slope's tell it from a maximum."""
    model, eye = Saddle(), jnp.ones((3, 1, 1))
    natural = {site: Pair(jnp.zeros((3, 1)), -0.5 * eye) for site in "ab"}
    place = lr.place_at(model, None, natural, None)
    assert not response_draws.spectrum(model, place, jax.random.key(0)).is_maximum


def test_a_fit_that_is_not_finite_is_refused(planted):
    """A fit of nan has no bound to expand."""
    broken = planted[0]
    beta = np.array(broken.posterior.natural("beta"))
    beta[0, 0] = np.nan
    shared = {"beta": jnp.asarray(beta)}
    local = {"theta": jnp.asarray(broken.posterior.natural("theta"))}
    with pytest.raises(InputError, match="finite bound"):
        corrected_of(Variational(broken.problem, shared, local))


@pytest.mark.slow
def test_a_site_without_numbers():
    """Texts without members have no votes' factors to correct."""
    C = np.random.default_rng(3).poisson(2.0, (6, 5))
    data = pp_models.data.text_and_votes(C, np.zeros((6, 0)))
    hyper = {"num_topics": 2, "alpha1": 1.0, "alpha2": 1.0}
    fit = inference.fit("lg_nmf_votes", data, "cavi", hyper, progress=False, num_epochs=3)
    assert fit.posterior.mean("d2").size == 0
    assert fit.corrected().sd("d2").size == 0


def test_draws_are_as_wide_as_the_widths(planted):
    """Every number's draws have its sd, to 6 % of 2,000 draws, the copula and renormalising."""
    _, corrected, _ = planted
    found = corrected.sample(jax.random.key(4), 2000)
    for site in ("beta", "theta"):
        sd = corrected.sd(site)
        ratio = (found[site].std(0) / sd)[sd > 1e-3]
        assert 0.9 < np.median(ratio) < 1.1
        assert np.all((ratio > 0.6) & (ratio < 1.4))
    few = corrected.sample(jax.random.key(4), 3, ["beta"])["beta"]
    assert few.shape == (3, 3, 12)
    covariance = corrected.covariance(lambda values: values["beta"].ravel())
    np.testing.assert_allclose(
        np.sqrt(np.diag(covariance)), corrected.sd("beta").ravel(), rtol=0.01
    )


def test_sensitivity_is_what_new_fits_show(planted):
    """The slope of a topic's share in eta and alpha, against fits with both changed by 1 % to
    either side, to 2 %.
    """
    fit, _, _ = planted
    corrected = fit.corrected(settled=1e-6)

    def share(values):
        return jnp.mean(values["theta"][:, 0])

    found = corrected.sensitivity(share)
    for name in ("eta", "alpha"):
        shares = []
        for value in (0.505, 0.495):
            hyper = {"num_topics": 3, "alpha": 0.5, "eta": 0.5} | {name: value}
            start = {"beta": corrected.natural("beta")}
            moved = inference.fit(
                "lda", fit.data, "cavi", hyper, init=start, progress=False, num_epochs=50
            ).corrected(settled=1e-6)
            shares.append(float(share({"theta": moved.mean("theta")})))
        slope = (shares[0] - shares[1]) / 0.01
        assert float(found[name][0]) == pytest.approx(slope, rel=0.02)


def test_an_unfinished_fit_is_moved_to_its_maximum(planted):
    """Two sweeps leave a fit far from the maximum; its corrected widths are those at the maximum,
    and the bound does not fall on the way.
    """
    fit, _, _ = planted
    given = {"hyper": fit.hyper, "key": jax.random.key(0), "progress": False}
    early = inference.fit("lda", fit.data, "cavi", num_epochs=2, **given)
    moved = early.corrected()
    assert moved.ascent.gain > 1
    assert moved.ascent.steps > 0
    assert moved.ascent.distance < climb.SETTLED
    assert len(moved.notes) == 1
    assert "means differ" in moved.notes[0]


def test_other_posteriors_are_refused(planted):
    fit, _, _ = planted
    point = inference.fit(
        "lda", fit.data, "map", fit.hyper, progress=False, num_epochs=2, basis="log"
    )
    with pytest.raises(InputError, match="variational"):
        point.corrected()
    with pytest.raises(InputError, match="between 0 and 1"):
        fit.corrected().interval("beta", 90)


def test_a_climb_that_ends_early_is_told_from_a_saddle(monkeypatch):
    """A fit of one sweep: one Newton step does not lead to the maximum, which is there."""
    X = np.random.default_rng(0).poisson(1.0, (20, 6))
    few = {"num_topics": 2}, jax.random.key(0)
    fit = inference.fit("lda", pp_models.data.counts(X), "cavi", *few, num_epochs=1, progress=False)
    monkeypatch.setattr(climb, "STEPS", 1)
    short = fit.corrected()
    assert not short.ascent.is_maximum
    assert any("did not reach a maximum" in note for note in short.notes)
