"""Calibration: exact posteriors have uniform ranks, broken and narrow ones are found out, and no
data set is compiled for anew.
"""

import jax
import numpy as np
import pytest
import scipy.stats

import inference
import pp_models
from inference.calibration import sbc, tables
from inference.calibration.sbc import (
    Envelope,
    calibrate,
    chi_square,
    coverage,
    effective_sizes,
    symmetry,
)
from inference.core.registry import load_engine
from pp_models.errors import InputError


def uniform_ranks(num_datasets=200, num_draws=49, columns=200, seed=0):
    return np.random.default_rng(seed).integers(0, num_draws + 1, (num_datasets, columns))


# The tests of ranks -------------------------------------------------------------------------------


@pytest.mark.slow
def test_tests_of_uniformity_hold_their_level():
    """Of ranks that are uniform, about 5 % have p < 0.05: of 200, a binomial of mean 10 and sd 3,
    so between 1 and 22.
    """
    ranks, rng = uniform_ranks(), np.random.default_rng(1)
    envelope = Envelope(200, 49, rng)
    for p in (
        np.array([envelope.p_value(x) for x in ranks.T]),
        chi_square(ranks, 49),
        symmetry((ranks + 0.5) / 50, rng),
    ):
        assert 1 <= np.sum(p < 0.05) <= 22


@pytest.mark.parametrize(
    ("spread", "shift", "uniform", "symmetric"),
    [(2.0, 0, False, True), (0.5, 0, False, True), (1.0, 1.0, False, False)],
)
def test_wrong_width_and_bias_are_told_apart(spread, shift, uniform, symmetric):
    """True values from a normal wider or narrower than the posterior leave p symmetric, and not
    uniform; shifted ones leave neither.
    """
    rng = np.random.default_rng(2)
    truth = spread * rng.normal(size=200) + shift
    ranks = rng.binomial(49, scipy.stats.norm.cdf(truth))[:, None]
    p = Envelope(200, 49, rng).p_value(ranks[:, 0])
    assert (p > 0.01) == uniform
    assert (chi_square(ranks, 49)[0] > 0.01) == uniform
    assert (symmetry((ranks + 0.5) / 50, rng)[0] > 0.01) == symmetric


def test_coverage_and_widening_of_a_known_case():
    """True values twice as far out as the posterior says: its 90 % intervals hold 58.9 % and must
    be widened by 2, up to the error of 1,000.
    """
    rng = np.random.default_rng(3)
    truth = 2 * rng.normal(size=1000)
    ranks = rng.binomial(199, scipy.stats.norm.cdf(truth))[:, None]
    found = {
        name: x[0] for name, x in sbc.read(ranks, truth[:, None], 199, jax.random.key(0)).items()
    }
    assert abs(found["coverage90"] - (2 * scipy.stats.norm.cdf(1.645 / 2) - 1)) < 0.05
    assert abs(found["coverage50"] - (2 * scipy.stats.norm.cdf(0.6745 / 2) - 1)) < 0.05
    assert abs(found["widen"] - 2) < 0.2
    assert found["uniform"] < 0.01 < found["symmetric"]
    assert abs(found["shift"]) < 0.05


@pytest.mark.parametrize("num_draws", [1, 7, 49, 100, 199])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage_of_uniform_ranks_is_the_level(num_draws, level):
    """Every rank once: exactly the level, whatever the number of draws; and all or nothing for
    ranks in the middle and at the ends of many draws.
    """
    assert coverage(np.arange(num_draws + 1)[:, None], num_draws, level)[0] == pytest.approx(level)
    np.testing.assert_array_equal(coverage(np.array([[50, 0, 100]]), 100, level), [1, 0, 0])


def test_few_draws_have_few_bins():
    """Of 4 draws there are five ranks: a bin for each, and p-values that are numbers."""
    p = chi_square(uniform_ranks(num_draws=4), 4)
    assert np.all((p > 0) & (p <= 1)) and 1 <= np.sum(p < 0.05) <= 22


def test_effective_size_of_an_autoregression():
    """n (1 - r) / (1 + r) of a chain with autocorrelation r; independent draws count in full."""
    rng = np.random.default_rng(4)
    noise = rng.normal(size=(4000, 2))
    chain = np.zeros((4000, 2))
    for t in range(1, 4000):
        chain[t] = np.array([0.0, 0.6]) * chain[t - 1] + noise[t]
    sizes = effective_sizes(chain)
    np.testing.assert_allclose(sizes, [4000, 1000], rtol=0.25)


# A model with a known posterior: everything from the prior to the tables --------------------------


def repeated(data, hyper, key, times):
    """The posterior given each row so many times, of a mixture of one component: its weight is 1,
    and each column's probability a beta.
    """
    ones, rng = (
        np.asarray(data.values).sum(0),
        np.random.default_rng(np.asarray(jax.random.key_data(key))),
    )
    beta = rng.beta(
        hyper.a + times * ones, hyper.b + times * (len(data.values) - ones), (199, 1, len(ones))
    )
    return {"pi": np.ones((199, 1)), "beta": beta}


def exact(data, hyper, key):
    return repeated(data, hyper, key, 1)


def narrow(data, hyper, key):
    return repeated(data, hyper, key, 3)


def low(data, hyper, key):
    return {site: 0.6 * x for site, x in exact(data, hyper, key).items()}


@pytest.mark.slow
def test_exact_posterior_is_calibrated_and_a_narrow_one_is_not():
    """Exact draws: p-values that survive Bonferroni, 90 % coverage. Rows counted three times:
    intervals shorter by sqrt(3), found out. Draws that are too low: true values lie above, p is
    not symmetric, and the shift is positive.
    """
    shared = {
        "num_datasets": 200,
        "key": jax.random.key(1),
        "hyper": {"num_components": 1},
        "progress": False,
    }
    right = calibrate("bernoulli_mixture", "exact", draw=exact, **shared)
    assert "pi" not in right.names  # it is 1 in any case: a rank among ties is no rank
    assert right.p_value > 0.01
    assert abs(right.coverage90.mean() - 0.9) < 0.03 and abs(right.coverage50.mean() - 0.5) < 0.05
    wrong = calibrate("bernoulli_mixture", "narrow", draw=narrow, **shared)
    entries = [i for i, group in enumerate(wrong.groups) if group == "expected data"]
    assert wrong.uniform[entries].max() < 0.01
    assert abs(np.median(wrong.widen[entries]) - np.sqrt(3)) < 0.2
    assert (
        wrong.symmetric[entries].min() > 0.001 and np.abs(wrong.shift[entries]).max() < 0.1
    )  # no bias; 4 errors of a mean over 200
    biased = calibrate("bernoulli_mixture", "low", draw=low, **shared)
    assert biased.shift[entries].min() > 0.1 and biased.symmetric[entries].max() < 0.01


@pytest.mark.slow
def test_cavi_is_calibrated_where_it_is_exact(compiled):
    """With one component the mean-field posterior is the posterior, so the engine's own draws are
    as good as exact ones. All is compiled once.
    """
    shared = {"hyper": {"num_components": 1}, "progress": False}
    calibrate("bernoulli_mixture", "cavi", 2, jax.random.key(0), **shared)
    before = len(compiled)
    found = calibrate("bernoulli_mixture", "cavi", 60, jax.random.key(2), **shared)
    assert len(compiled) == before > 0
    assert found.p_value > 0.01
    table = tables.document([found, found._replace(is_chain=True)], "command")
    assert (
        "a point" in tables.coverage_table([found._replace(widen=np.full_like(found.widen, 1e9))])
        and "a point" not in table
    )
    assert all(
        title in table
        for title in (
            "## Simulation-based calibration",
            "## Coverage of approximate posteriors",
            "## VSBC",
            "`command`",
        )
    )


# Data sets ----------------------------------------------------------------------------------------


QUICK = ("pmf",)  # and the rest in `make calibrate`


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=[] if x in QUICK else pytest.mark.slow)
        for x in pp_models.available()
        if x != "nmf"
    ],
)
def test_data_sets_have_one_shape(name):
    """Whatever is drawn, batches have the same layout, hold what was drawn, and truths are values
    of the sites.
    """
    prior = sbc.make_prior(name, 6)
    (one, truth), (other, _) = (prior.simulate(jax.random.key(seed)) for seed in (0, 1))
    assert jax.tree.structure(one.pack()) == jax.tree.structure(other.pack())
    assert [x.shape for x in jax.tree.leaves(one.pack())] == [
        x.shape for x in jax.tree.leaves(other.pack())
    ]
    assert one.hash != other.hash and one.num_rows == 6
    assert set(truth) == set(prior.model.families)
    found = prior.functionals({site: np.asarray(x)[None] for site, x in truth.items()}, one)
    assert found.shape == (1, len(prior.names)) and np.all(np.isfinite(found))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["cavi", "gibbs", "nuts", "numpyro_svi"])
def test_nothing_is_compiled_for_the_second_data_set(engine, compiled):
    """Of counts whose totals are drawn too."""
    short = {"num_samples": 20, "num_warmup": 20}
    options = {
        "gibbs": short | {"thin": 1},
        "cavi": {},
        "nuts": short,
        "numpyro_svi": {"num_epochs": 10},
    }[engine]
    shared = {"options": options, "progress": False, "num_rows": 5}
    calibrate("bayesian_nmf", engine, 2, jax.random.key(0), **shared)
    before = len(compiled)
    calibrate("bayesian_nmf", engine, 3, jax.random.key(1), **shared)
    assert len(compiled) == before > 0


def test_bad_requests_are_refused_in_a_sentence(capsys):
    with pytest.raises(InputError, match="num_datasets must be a whole number"):
        calibrate("lda", "cavi", 0)
    with pytest.raises(InputError, match="finds a point"):
        calibrate("bernoulli_mixture", "map", 1, progress=False)
    with pytest.raises(InputError, match="cannot be drawn from"):
        calibrate("nmf", "gibbs", 1, progress=False)
    with pytest.raises(InputError, match="None of the engines"):
        tables.main(["--models", "nmf", "--engines", "gibbs"])
    with pytest.raises(SystemExit):
        tables.main(["--models", "lda", "--rows", "20,many"])
    assert "argument --rows: invalid whole_numbers value: '20,many'" in capsys.readouterr().err


# Slow: samplers -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lda", "pmf", "lg_nmf"])
def test_gibbs_is_calibrated(name):
    """Ranks of 60 data sets are uniform at level 0.01 over all functionals; the least p that the
    envelope's simulations can give is 0.003.
    """
    assert calibrate(name, "gibbs", 60, jax.random.key(3), progress=False).p_value > 0.01


@pytest.mark.slow
def test_a_broken_gibbs_sampler_is_found_out():
    """Ratings that are given a third of their noise's variance: posteriors too sure of
    themselves.
    """

    def broken(data, hyper, key):
        return sbc.draw_by(
            pp_models.load("pmf"),
            "gibbs",
            load_engine("gibbs").calibrated,
            49,
            data,
            hyper._replace(sigma2=hyper.sigma2 / 3),
            key,
        )

    assert (
        calibrate("pmf", "gibbs", 60, jax.random.key(3), draw=broken, progress=False).p_value < 0.01
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "group"), [("lda", "expected data"), ("pmf", "sites")])
def test_mean_field_intervals_are_too_narrow(name, group):
    """90 % intervals of LDA's word probabilities, and of the size of PMF's factors, hold fewer than
    80 % of the true values.
    """
    found = calibrate(name, "cavi", 60, jax.random.key(4), progress=False)
    assert found.coverage90[[x == group for x in found.groups]].mean() < 0.8


def test_engines_without_a_posterior_are_left_out():
    assert (
        not sbc.applies("lda", "map")
        and not sbc.applies("nmf", "gibbs")
        and not sbc.applies("ctm", "gibbs")
    )
    assert sbc.applies("lda", "gibbs") and sbc.applies("ctm", "nuts") and inference.engines()


# Corrected widths ---------------------------------------------------------------------------------


def test_corrections_have_rows_of_their_own(compiled):
    """With one component there is nothing to correct: means and widths of the expected data are
    those of q, up to its 199 draws. Nothing is compiled for the second data set. The engine's own
    options go to its fit.
    """
    shared = {"hyper": {"num_components": 1}, "num_rows": 6, "progress": False}
    shared["options"] = {"num_epochs": 5}
    calibrate("bernoulli_mixture", "cavi+lr", 1, jax.random.key(0), **shared)
    before = len(compiled)
    found = calibrate("bernoulli_mixture", "cavi+lr", 2, jax.random.key(1), **shared)
    assert len(compiled) == before > 0
    assert found.engine == "cavi+lr" and not found.is_chain and found.num_draws == 199
    own = calibrate("bernoulli_mixture", "cavi", 2, jax.random.key(1), **shared)
    data = [group == "expected data" for group in own.groups]
    np.testing.assert_allclose(found.scores[:, data], own.scores[:, data], atol=0.5)
    assert "| cavi+lr |" in tables.coverage_table([found])


def test_only_variational_fits_are_corrected():
    assert sbc.applies("lda", "svi+lr") and not sbc.applies("nmf", "cavi+lr")
    with pytest.raises(InputError, match="corrects variational fits"):
        sbc.applies("lda", "gibbs+lr")
    with pytest.raises(InputError, match="engine"):
        calibrate("lda", "nothing+lr", 1, progress=False)


@pytest.mark.slow
def test_corrected_intervals_hold_more():
    """LDA's word probabilities: 90 % intervals of mean field hold about 66 %, corrected ones about
    88 %. 60 data sets: a standard error of 4 %.
    """
    shared = {"key": jax.random.key(4), "progress": False}
    plain, wide = (calibrate("lda", name, 60, **shared) for name in ("cavi", "cavi+lr"))
    entries = [name.startswith("expected (") for name in plain.names]
    assert plain.coverage90[entries].mean() < 0.75
    assert 0.82 < wide.coverage90[entries].mean() < 0.94
