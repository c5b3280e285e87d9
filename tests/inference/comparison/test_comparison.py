"""Laws of the comparison, on posteriors that are known because they are made up here; small real
runs at the end.
"""

import functools
import itertools
import json
import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import arviz
import jax
import jsonschema
import numpy as np
import pytest
import xarray

import inference
import pp_models
from inference.calibration import files
from inference.comparison import agreement, compare, loop, marginal_likelihood, record, results
from inference.core import align, registry
from inference.core.posteriors import Draws
from inference.core.registry import default_engines
from inference.evaluation import heldout
from inference.evaluation.scores import Measure
from inference.io import arviz as arviz_bridge
from inference.report import page
from inference.run import fit as fitting
from pp_models.errors import InputError, TooLarge

LDA = pp_models.load("lda")
NUM_TOPICS, NUM_COLUMNS, NUM_ROWS = 3, 10, 30
TOPICS = np.random.default_rng(0).dirichlet(np.full(NUM_COLUMNS, 0.3), NUM_TOPICS)
WEIGHTS = np.random.default_rng(1).dirichlet(np.ones(NUM_TOPICS), NUM_ROWS)


RECIPE = {"model": "lda", "hyper": {"num_topics": 3, "alpha": 0.1}, "data": "a1", "seed": 0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hyper": {"num_topics": 5, "alpha": 0.1}}, "made with num_topics 3 (now 5): "),
        ({"hyper": {"num_topics": 3}}, "made with alpha 0.1 (now None): "),
        ({"model": "ctm", "hyper": {"rank": 2}}, "made with model lda (now ctm): "),
        (
            {"data": "b2", "seed": 3},
            "made with other data (another file, or other rows of it), seed 0 (now 3): ",
        ),
    ],
)
def test_a_folder_of_another_comparison_is_refused(tmp_path, changes, words):
    """The sentence names what differs and what to do; the same recipe is accepted."""
    results.open_folder(tmp_path, RECIPE)
    results.open_folder(tmp_path, RECIPE)
    with pytest.raises(InputError) as caught:
        results.open_folder(tmp_path, RECIPE | changes)
    assert words in str(caught.value) and "--overwrite" in str(caught.value)


def corpus(names=None):
    rng = np.random.default_rng(2)
    return pp_models.data.counts(
        np.array([rng.multinomial(40, p) for p in WEIGHTS @ TOPICS]), column_names=names
    )


def gaussian_draws(num_draws, seed, width=1.0, shift=0.0, rows=27):
    """Independent Gaussians around well separated topics: sd 0.004 x width, moved by shift sds.
    Small enough to stay positive.
    """
    rng = np.random.default_rng(seed)
    beta = 0.1 + TOPICS + 0.004 * (shift + width * rng.normal(size=(num_draws, *TOPICS.shape)))
    theta = (
        1
        + WEIGHTS[:rows]
        + 0.004 * (shift + width * rng.normal(size=(num_draws, rows, NUM_TOPICS)))
    )
    return {"theta": theta, "beta": beta}


def relabelled(draws, seed=5):
    orders = np.random.default_rng(seed).permuted(
        np.tile(np.arange(NUM_TOPICS), (len(draws["beta"]), 1)), axis=1
    )
    return align.permute(LDA, draws, orders)


class FakePosterior:
    """A posterior that hands out what it was given."""

    def __init__(self, kind, draws, width=1.0):
        self.kind, self._draws, self._width, self.options = kind, draws, width, {}
        self.sites = ["theta", "beta"]
        self.has_density, self.has_chains = kind == "variational", kind == "draws"
        self.draws = (
            {site: value.reshape(2, -1, *value.shape[1:]) for site, value in draws.items()}
            if kind == "draws"
            else None
        )
        number = len(draws["beta"]) // 2
        self.sample_stats = {
            "diverging": np.zeros((2, number), bool),
            "energy": np.random.default_rng(0).normal(size=(2, number)),
        }

    def mean(self, site):
        return self._draws[site].mean(0)

    def sd(self, site):
        return self._draws[site].std(0)

    def sample(self, key, num_draws):
        return {site: value[:num_draws] for site, value in self._draws.items()}

    def log_density(self, draws):
        return log_density(draws, self._width)

    def chains(self, key, num_draws):
        if self.kind == "point":
            return {site: self.mean(site)[None, None] for site in self.sites}
        return self.draws or {site: x[None, :num_draws] for site, x in self._draws.items()}


def log_density(draws, width=1.0):
    """Of the topics' Gaussians above in their best order, up to a constant: with width 1 the log
    joint of the fakes.
    """
    orders = [list(order) for order in itertools.permutations(range(NUM_TOPICS))]
    shifts = [(draws["beta"][:, order] - 0.1 - TOPICS) / (0.004 * width) for order in orders]
    return np.max([-0.5 * np.sum(shift**2, (1, 2)) for shift in shifts], 0)


class Tree:
    """What `to_arviz` returns, as far as the report needs it."""

    def __init__(self, **asked):
        pass

    def __getitem__(self, group):
        return SimpleNamespace(attrs={"note": ""})

    def to_netcdf(self, path):
        with open(path, "wb") as file:
            file.write(b"CDF")


def fake_fit(engine, posterior, data, bound=-100.0):
    steps = np.arange(1, 6)
    history = {
        "step": steps,
        "seconds": 0.1 * steps,
        "bound": bound - 50.0 / steps**4 if posterior.kind == "variational" else np.full(5, np.nan),
    }
    problem = fitting.make_problem("lda", data, {"num_topics": NUM_TOPICS})
    posterior.problem = problem
    named = {
        "bound": history["bound"][-1],
        "model": LDA,
        "hyper": problem.hyper,
        "data": data,
        "engine": engine,
        "seconds": 0.5,
        "history": history,
    }
    named |= {
        "posterior": posterior,
        "problem": problem,
        "options": posterior.options,
        "stopped": None,
    }
    return SimpleNamespace(**named, log_joint=log_density, to_arviz=lambda *_, **__: Tree())


def posteriors():
    """Engine -> posterior. The reference's 4,000 draws leave a Monte-Carlo error of 0.016 sd in its
    means and 1.1% in its sds.
    """
    exact = gaussian_draws(4000, seed=10)
    return {
        "gibbs": FakePosterior("draws", relabelled(exact)),
        "nuts": FakePosterior("draws", relabelled(exact, seed=6)),
        "cavi": FakePosterior("variational", gaussian_draws(4000, seed=11)),
        "svi": FakePosterior("variational", gaussian_draws(4000, seed=12, width=0.5), width=0.5),
        "map": FakePosterior("point", gaussian_draws(4000, seed=13, shift=1.0)),
        "numpyro_svi": None,  # fails
    }


def constant_score(fit, data, folds):
    return SimpleNamespace(value=-2.5, standard_error=0.1)


def no_evidence(*_, **__):
    raise InputError("made up")


def start(patch, found, data=None, evidence=no_evidence, **arguments):
    """`compare` with made-up engines. A function in place of a posterior is called."""

    def fit(model, data, engine, **rest):
        if found[engine] is None:
            raise FloatingPointError("The bound became inf at step 3.")
        if callable(found[engine]):
            found[engine]()
        if engine == "map":
            warnings.warn("There is no mode.", stacklevel=1)
        return fake_fit(engine, found[engine], data)

    patch.setattr(loop, "fit", fit)
    patch.setattr(loop, "polish", lambda *_, **__: None)
    patch.setattr(loop, "within", lambda found, *_: record.Within(verdict="made up", rule="none"))
    patch.setattr(heldout, "document_completion", constant_score)
    patch.setattr(marginal_likelihood, "log_evidence", evidence)
    given = {
        "engines": [name for name in found if name != "gibbs"],
        "num_draws": 4000,
        "reference": "gibbs",
        "hyper": {"num_topics": NUM_TOPICS},
    }
    return compare.compare("lda", corpus() if data is None else data, **given | arguments)


def few(*engines, num_draws=400):
    """A reference and the named engines, with fewer draws, where no figure is looked at."""
    draws = gaussian_draws(num_draws, seed=20)
    kinds = {
        "gibbs": "draws",
        "nuts": "draws",
        "cavi": "variational",
        "svi": "variational",
        "map": "point",
    }
    return {
        name: FakePosterior(kinds[name], {site: value.copy() for site, value in draws.items()})
        for name in ("gibbs", *engines)
    }


@pytest.fixture
def run(monkeypatch):
    return functools.partial(start, monkeypatch)


@pytest.fixture(scope="module")
def compared():
    """All the made-up engines, compared once."""
    with pytest.MonkeyPatch.context() as patch:
        return start(patch, posteriors())


def test_a_relabelled_copy_is_at_distance_zero(compared):
    """nuts holds the reference's draws with every draw's topics in another order."""
    row = compared.summary["engines"]["nuts"]
    assert row["mean_error_sd"] == 0
    assert row["wasserstein_sd"] == 0
    assert row["sd_ratio"] == 1
    assert row["sites"]["theta"]["wasserstein_sd"] == 0
    assert (
        row["invariant"]["expected data"]["mean_error_sd"] < 1e-3
    )  # sums over topics in another order
    np.testing.assert_array_equal(compared.draws["nuts"]["beta"], compared.draws["gibbs"]["beta"])


def test_an_exact_posterior_agrees(compared):
    """Other draws of the same distribution. Means of 4,000 differ by 0.8 sqrt(2/4000) = 0.018 sd on
    average.
    """
    row = compared.summary["engines"]["cavi"]
    assert row["mean_error_sd"] < 0.05
    assert row["sd_ratio"] == pytest.approx(1, abs=0.02)
    assert row["coverage90"] == pytest.approx(0.9, abs=0.02)
    assert row["invariant"]["expected data"]["coverage90"] == pytest.approx(0.9, abs=0.02)
    assert row["verdict"] == "means agree; right width"


def test_half_the_sd_is_reported_as_half(compared):
    """2%: the median over 30 ratios of sds, each with a relative error of sqrt(1/2n + 1/2n) = 1.6%
    for n = 4,000.
    """
    row = compared.summary["engines"]["svi"]
    assert row["sd_ratio"] == pytest.approx(0.5, rel=0.02)
    assert row["sites"]["theta"]["sd_ratio"] == pytest.approx(0.5, rel=0.02)
    assert row["invariant"]["expected data"]["sd_ratio"] == pytest.approx(0.5, rel=0.02)
    assert row["coverage90"] == pytest.approx(0.589, abs=0.02)  # P(|z| < 1.645 / 2)
    assert row["wasserstein_sd"] == pytest.approx(0.5 * np.sqrt(2 / np.pi), abs=0.02)
    assert "narrow" in row["verdict"]


def test_a_point_has_a_place_but_no_spread(compared):
    row = compared.summary["engines"]["map"]
    assert row["mean_error_sd"] == pytest.approx(1, abs=0.05)
    assert row["sd_ratio"] is row["coverage90"] is row["khat"] is row["bound"] is None
    assert "point" in row["verdict"]


def test_one_failing_engine_stops_nobody(compared):
    rows = compared.summary["engines"]
    assert "The bound became inf" in rows["numpyro_svi"]["error"]
    assert rows["numpyro_svi"]["seconds"] is None
    assert [name for name, row in rows.items() if row["error"]] == ["numpyro_svi"]
    assert set(compared.fits) == set(rows) - {"numpyro_svi"}


def test_what_an_engine_warns_of_is_kept(compared):
    assert compared.summary["engines"]["map"]["notes"] == ["There is no mode."]
    assert compared.summary["engines"]["cavi"]["notes"] == []


def test_engines_are_ordered_by_agreement(compared):
    assert list(compared.summary["engines"]) == [
        "gibbs",
        "nuts",
        "cavi",
        "svi",
        "map",
        "numpyro_svi",
    ]


def test_the_table_of_quantities_is_the_summary_in_full(compared):
    """Averages of its columns are the figures of the summary, and every quantity has a name."""
    table = compared.quantities.sel(engine="svi").to_dataframe()
    beta = table[table["site"] == "beta"]
    assert (
        len(beta) == NUM_TOPICS * NUM_COLUMNS
        and "beta[3, 10]" in set(beta["label"])
        and beta["label"].is_unique
    )
    row = compared.summary["engines"]["svi"]["sites"]["beta"]
    noise = (1 + 0.5**2) / 4000  # of a mean's shift, in squared sds: half as wide, as many draws
    squares = (beta["mean_shift_sd"] ** 2).mean() - noise
    assert max(squares, 0) == pytest.approx(row["mean_error_sd"] ** 2, abs=0.1 * noise)
    assert np.exp(np.log(beta["sd_ratio"]).mean()) == pytest.approx(row["sd_ratio"])
    assert beta["wasserstein_sd"].mean() == pytest.approx(row["wasserstein_sd"])


def test_bounds_say_when_they_were_reached(compared):
    """-100 - 50 / t^4 ends at -100.08; -100.62 after the third of five steps of 0.1 s is the first
    within 1 % of it.
    """
    row = compared.summary["engines"]["cavi"]
    assert row["bound"] == pytest.approx(-100.08) and row["seconds_to_1pct"] == pytest.approx(0.3)


def test_the_divergence_of_q_is_from_the_evidence(run):
    """The fakes' q equals the joint density up to a constant, so their ELBO is 0 exactly, and log
    p(data) = 5 lies 5 nats above it. A quick comparison does not look for it, and one that is
    refused says why.
    """
    known = {"evidence": lambda *_, **__: marginal_likelihood.Evidence(5.0, 0.1, "bridge sampling")}
    told = run(few("cavi"), **known).summary
    assert told["evidence"] == {"log_evidence": 5.0, "error": 0.1, "method": "bridge sampling"}
    row = told["engines"]["cavi"]
    assert row["kl"] == pytest.approx(5.0) and row["kl_se"] == pytest.approx(0.1)
    assert run(few("cavi"), **known, quick=True).summary["evidence"] is None
    refused = run(few("cavi")).summary
    assert (
        refused["engines"]["cavi"]["kl"] is None
        and "No log evidence: made up" in refused["engines"]["gibbs"]["notes"]
    )


def test_a_bound_above_the_evidence_demotes_the_reference(run):
    """The ELBO of 0 cannot exceed the log evidence: chains that claim -277 have missed a mode.
    They judge nobody then, engines are judged within their own modes, and the page says why.
    """
    known = {"evidence": lambda *_, **__: marginal_likelihood.Evidence(-277.0, 0.1, "bridge")}
    found = run(few("cavi", "map"), **known)
    told, rows = found.summary, found.summary["engines"]
    assert told["converged"] is False and "277.0 nats above" in rows["gibbs"]["missed"]
    assert told["evidence"] is None and rows["cavi"]["kl"] is None  # both disproved
    assert rows["cavi"]["verdict"] == "within its mode: made up"
    assert "missed a mode" in page.table(found) and "missed a mode" in page.render(found)


def test_heldout_rows_are_scored_by_their_mean_density():
    """Of rows without sites of their own: log of the mean over draws, not the mean of logs,
    averaged over rows. All 50 draws are used.
    """
    rng = np.random.default_rng(0)
    rows, beta = (rng.random((12, 4)) < 0.6).astype(int), rng.beta(3, 2, (50, 4))
    problem = fitting.make_problem(
        "bernoulli_mixture", pp_models.data.dense(rows[:8]), {"num_components": 1}
    )
    draws = Draws(problem, {"pi": np.ones((1, 50, 1)), "beta": beta[None, :, None]})
    fit = fitting.Fit(problem, "gibbs", {}, draws, {}, 0.0)
    likelihood = np.prod(np.where(rows[None, 8:] == 1, beta[:, None], 1 - beta[:, None]), -1)
    score, error = heldout.heldout_score(fit, pp_models.data.dense(rows[8:]))
    assert score == pytest.approx(np.log(likelihood.mean(0)).mean(), rel=1e-6)
    assert error == pytest.approx(np.log(likelihood.mean(0)).std(ddof=1) / 2, rel=1e-6)


def test_heldout_scores_of_votes_and_ratings_are_larger_for_better_fits(monkeypatch):
    """A loss counts with the other sign, a density as it is."""
    loss, density = (Measure(value, 0.1, np.array([value])) for value in (0.6, -1.2))
    monkeypatch.setattr(heldout, "score_votes", lambda *_: SimpleNamespace(log_loss=loss))
    monkeypatch.setattr(
        heldout, "score_ratings", lambda *_: SimpleNamespace(measures={"log_density": density})
    )
    assert heldout.heldout_score(
        None, pp_models.data.text_and_votes(np.ones((2, 3)), np.ones((2, 4)))
    ) == (-0.6, 0.1)
    assert heldout.heldout_score(
        None, pp_models.data.ratings([0, 1], [1, 0], [3.0, 4.0], shape=(2, 2))
    ) == (-1.2, 0.1)
    assert heldout.heldout_score(None, None) == (None, None)


def test_results_are_reported_as_they_come(run):
    seen = []
    names = (name for name in ("map", "cavi", "map"))  # any iterable, each once
    run(
        few("map", "cavi"),
        engines=names,
        on_result=lambda engine, row: seen.append((engine, json.dumps(row, allow_nan=False))),
    )
    assert [engine for engine, _ in seen] == ["gibbs", "map", "cavi"]


def test_summary_is_plain_json_that_fits_its_schema(run, compared):
    found = few("cavi", "svi")
    found["svi"]._draws["theta"][:] = np.nan
    told = run(found).summary
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert {"python", "jax", "numpyro", "arviz", "numpy", "pp_models"} <= set(told["versions"])
    assert told["data_hash"] == corpus().hash
    assert told["seed"] == 0
    assert told["engines"]["svi"]["sites"]["theta"]["mean_error_sd"] is None
    assert told["engines"]["cavi"]["heldout"] == -2.5
    for one in (told, compared.summary):
        jsonschema.Draft202012Validator(record.schema()).validate(one)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(record.schema()).validate({**told, "engines": {"cavi": {}}})


def test_seed_is_recorded(run):
    assert run(few("cavi"), key=jax.random.key(17)).summary["seed"] == 17


# The reference ------------------------------------------------------------------------------------


def test_chains_in_different_modes_are_called_not_converged(run):
    """Half of the reference's draws sit 8 sds away: no relabelling explains that, it is said, and
    no engine is judged by it.
    """
    found = few("cavi")
    for value in found["gibbs"].draws.values():
        value[1] += 0.032
    told = run(found).summary
    assert told["converged"] is False
    assert told["engines"]["gibbs"]["rhat"] > 1.05
    assert told["engines"]["gibbs"]["modes"]["groups"] == [[0], [1]]
    assert any("has not converged" in note for note in told["engines"]["gibbs"]["notes"])
    assert told["engines"]["cavi"]["verdict"] == "within its mode: made up"


def test_the_sampler_with_more_effective_draws_is_the_reference(run):
    """Without a word from the user: gibbs' draws creep (every draw kept 20 times), nuts' are
    independent.
    """
    found = few("nuts", "cavi", num_draws=800)
    for value in found["gibbs"].draws.values():
        value[:] = np.repeat(value[:, ::20], 20, axis=1)
    told = run(found, reference=None).summary
    assert told["reference"] == "nuts" and next(iter(told["engines"])) == "nuts"
    assert told["engines"]["gibbs"]["mean_error_sd"] is not None
    assert run(found, reference="gibbs").summary["reference"] == "gibbs"


def test_a_sampler_that_diverges_is_no_reference_where_another_converged(run):
    """gibbs has half of nuts' effective draws, but of nuts' transitions one in ten diverged: by
    nuts nobody could be judged.
    """
    found = few("nuts", "cavi", num_draws=800)
    for value in found["gibbs"].draws.values():
        value[:] = np.repeat(value[:, ::2], 2, axis=1)
    found["nuts"].sample_stats["diverging"][:, ::10] = True
    told = run(found, reference=None).summary
    assert told["reference"] == "gibbs" and told["converged"] is True
    assert told["engines"]["cavi"]["verdict"].startswith("means agree")


def too_large():
    raise TooLarge("lda by gibbs would take about 900 seconds.")


def test_without_a_reference_nobody_is_judged(run):
    """Asked for, or because the sampler failed: bounds and held-out scores are still compared, and
    in the second case engines are judged within their modes. Where it was too large, fewer rows are
    offered.
    """
    for found, asked in (
        (few("cavi", "map"), "none"),
        *((few("cavi", "map") | {"gibbs": gibbs}, "gibbs") for gibbs in (None, too_large)),
    ):
        told = run(found, reference=asked).summary
        assert told["reference"] is None and told["converged"] is None
        said = "not judged" if asked == "none" else "within its mode: made up"
        assert told["engines"]["cavi"]["verdict"].startswith(said)
        assert told["engines"]["cavi"]["heldout"] == -2.5
        assert told["engines"]["cavi"]["mean_error_sd"] is None
        jsonschema.validate(told, record.schema())
        if asked == "gibbs":
            assert ("add --rows 10" in told["engines"]["gibbs"]["error"]) == (
                found["gibbs"] is too_large
            )


def test_a_reference_that_was_cut_short_asks_for_time_or_fewer_rows(run):
    """Of 2,000 draws asked for there are 40: longer chains are no advice to somebody whose time was
    over.
    """
    found = few("cavi", num_draws=40)
    found["gibbs"].options = {"num_samples": 1000, "num_chains": 2}
    told = run(found).summary
    (said,) = told["engines"]["gibbs"]["notes"]
    assert (
        told["converged"] is False
        and "raise --budget" in said
        and "add --rows 10" in said
        and "num_samples" not in said
    )
    found["gibbs"].options = {"num_samples": 20, "num_chains": 2}
    assert "num_samples" in run(found).summary["engines"]["gibbs"]["notes"][0]


def test_nothing_could_be_fitted(run):
    with pytest.raises(InputError, match="No engine could be fitted"):
        run({"gibbs": None, "cavi": None})


def test_mcmc_diagnostics(compared):
    row = compared.summary["engines"]["gibbs"]
    assert compared.summary["converged"] is True
    assert row["rhat"] < 1.02
    assert (
        1500 < row["ess_bulk"] < 8000
    )  # 4,000 independent draws; the smallest of some hundred estimates
    assert row["ess_tail"] > 1000
    assert row["divergences"] == 0 and row["modes"] is None
    assert row["ebfmi"] == pytest.approx(2, abs=0.2)  # of independent energies: var(a - b) / var(a)


def test_khat_finds_the_pareto_shape():
    """exp(0.8 e) with e exponential is Pareto with shape k = 0.8; the opposite sign has a bounded
    tail, k = -0.8 in the limit.
    """
    e = np.random.default_rng(1).exponential(size=4000)
    assert arviz_bridge.smoothed_weights(0.8 * e)[1] == pytest.approx(0.8, abs=0.25)
    weights, khat = arviz_bridge.smoothed_weights(-0.8 * e)
    assert khat < 0 and weights.sum() == pytest.approx(1)
    assert arviz_bridge.smoothed_weights(np.array([0.0, np.nan, 1.0])) == (None, None)


def test_khat_of_a_posterior_that_is_too_narrow(compared):
    """Half the sd in 30 dimensions: the ratios have no variance. Chains and points have no density,
    hence no k-hat.
    """
    rows = compared.summary["engines"]
    assert rows["svi"]["khat"] > 0.7 and rows["svi"]["psis"] is None
    assert rows["gibbs"]["khat"] is rows["map"]["khat"] is None


def test_weighting_is_reported_where_it_works(compared):
    """cavi's density is the joint's up to a constant: all weights are alike, and weighted moments
    are those of the draws.
    """
    row = compared.summary["engines"]["cavi"]
    assert row["khat"] < 0.7
    assert row["psis"]["mean_error_sd"] == pytest.approx(row["mean_error_sd"], abs=1e-6)
    assert row["psis"]["sd_ratio"] == pytest.approx(
        row["sd_ratio"], abs=1e-3
    )  # divided by n, not by n - 1


# Interrupted, resumed, refused --------------------------------------------------------------------


def interrupt():
    raise KeyboardInterrupt


def test_ctrl_c_keeps_what_is_finished(run):
    """And says what is missing; before anything is finished it is an interruption like any
    other.
    """
    found = run(few("cavi") | {"svi": interrupt, "map": None}, engines=["cavi", "svi", "map"])
    assert (
        found.summary["partial"]
        == "Interrupted: svi and map were not run. Run the same command again to go on."
    )
    assert list(found.fits) == ["gibbs", "cavi"] and found.summary["engines"]["cavi"]["verdict"]
    with pytest.raises(KeyboardInterrupt):
        run({"gibbs": interrupt, "cavi": None})


def test_ctrl_c_while_the_reference_is_measured(run, monkeypatch):
    """It is measured once more, and the engines that come after it are missing."""
    whole, calls = loop.measure.measure, []

    def interrupted_once(*arguments):
        calls.append(arguments)
        return interrupt() if len(calls) == 1 else whole(*arguments)

    monkeypatch.setattr(loop.measure, "measure", interrupted_once)
    found = run(few("map"), engines=["map"])
    assert found.summary["partial"].startswith("Interrupted: map was not run.")
    assert set(found.fits) == {"gibbs"} and len(calls) == 2


def test_a_budget_is_dealt_out(run, monkeypatch):
    """Each engine gets its share of what is left of three quarters when it starts, the reference
    three; where nothing is left, a fifth of its share of the whole. Its place says what is left.

    Of 120 seconds 10 are gone when gibbs starts, 70 when cavi does, and all when svi does.
    """
    clock = itertools.chain([0.0, 10.0, 10.0, 70.0, 70.0], itertools.repeat(200.0))
    shares, told, fit = [], [], loop.Task.fit
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(
        loop.Task, "fit", lambda *arguments: (shares.append(arguments[-1]), fit(*arguments))[1]
    )
    given = {"budget": 120.0, "on_begin": lambda engine, place: told.append((engine, place))}
    rows = run(few("cavi", "svi"), **given).summary["engines"]
    assert shares == pytest.approx([80 * 3 / 5, 20 / 2, 0.2 * 90 / 5])
    assert told[:2] == [("gibbs", "1/3, 110 s left"), ("cavi", "2/3, 50 s left")]
    assert all(row["error"] is None for row in rows.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"engines": ["cavy"]}, "cavi"),
        ({"engines": []}, "at least one"),
        ({"reference": "gibs"}, "gibbs"),
        ({"engines": ["cavi"], "options": {"svi": {}}}, "svi"),
        ({"engines": ["cavi"], "options": {"cavi": {"num_epoch": 3}}}, "num_epochs"),
        ({"engines": ["gibbs"]}, "at least one other"),
        ({"engines": ["cavi"], "reference": "map"}, "no sampler"),
        ({"data": np.full((3, 3), 0.5)}, "whole numbers"),
        ({"hyper": {"num_topic": 3}}, "num_topics"),
        ({"budget": 0}, "budget"),
        ({"rows": 0}, "rows"),
        ({"num_draws": 0}, "num_draws"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(run, monkeypatch, arguments, words):
    monkeypatch.setattr(loop.Task, "fit", lambda *_: pytest.fail("an engine was started"))
    with pytest.raises(InputError, match=words):
        run(few("cavi"), **arguments)


def test_every_model_has_engines_to_compare():
    """Where there is a posterior, a sampler to judge by; where there is none, two ways to a
    point.
    """
    for name in pp_models.available():
        model = pp_models.load(name)
        hyper, _ = model.example(jax.random.key(0))
        engines = default_engines(model, hyper)
        assert len(engines) >= 2, name
        assert ("nuts" in engines) == model.proper(hyper), name


# For real -----------------------------------------------------------------------------------------

QUICK = {
    "gibbs": {"num_samples": 300, "num_warmup": 100, "num_chains": 2},
    "cavi": {"num_epochs": 50},
    "map": {"num_epochs": 30},
}


def small(folder=None, engines=("cavi",), **more):
    hyper, data = LDA.example(jax.random.key(0))
    options = {name: QUICK[name] for name in ("gibbs", *engines)}
    return compare.compare(
        "lda",
        data,
        "gibbs",
        engines,
        hyper,
        options=options,
        progress=False,
        num_draws=400,
        folder=folder,
        **more,
    )


def test_a_real_comparison_end_to_end_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """Two engines on the model's example: figures where they should be, and files that ArviZ opens.
    A second call fits only what is missing, and says the same of the rest; a damaged fit is made
    again; another seed is refused. What the figures say is tested elsewhere.
    """
    result = small(tmp_path)
    row = result.summary["engines"]["cavi"]
    assert row["notes"] == []
    for name in (
        "seconds",
        "bound",
        "mean_error_sd",
        "sd_ratio",
        "coverage90",
        "wasserstein_sd",
        "khat",
        "heldout",
    ):
        assert np.isfinite(row[name]), name
    assert row["heldout_curve"][0][1] < 0 and row["heldout_curve"][-1][0] <= row["seconds"]
    assert result.summary["engines"]["gibbs"]["rhat"] > 0.99
    assert row["sd_ratio"] < 1  # mean-field topics are too narrow
    page.write(result, tmp_path)
    tree = (
        xarray.open_datatree(tmp_path / "cavi.nc", engine="h5netcdf")
        if arviz_bridge.MODERN
        else arviz.from_netcdf(tmp_path / "cavi.nc")
    )
    assert (
        tree["posterior"]["beta"].shape[-2:] == (3, 9)
        and len(arviz.summary(tree, var_names=["beta"], kind="stats")) == 27
    )
    tree.close()

    (tmp_path / "fits" / "cavi.npz").write_bytes(b"PK broken")
    fitted, fit = [], fitting.fit
    monkeypatch.setattr(
        loop,
        "fit",
        lambda *a, engine, **k: (fitted.append(engine), fit(*a, engine=engine, **k))[1],
    )
    again = small(tmp_path, ("cavi", "map"))
    assert fitted == ["cavi", "map"]
    same = ("mean_error_sd", "sd_ratio", "khat", "heldout", "bound")
    assert {name: again.summary["engines"]["cavi"][name] for name in same} == {
        name: row[name] for name in same
    }
    assert again.summary["engines"]["gibbs"]["rhat"] == result.summary["engines"]["gibbs"]["rhat"]
    with pytest.raises(InputError, match=r"seed 0 \(now 1\)"):
        small(tmp_path, key=jax.random.key(1))
    results.clear(tmp_path)
    assert not os.listdir(tmp_path / "fits")


@pytest.mark.parametrize("quick", [False, True])
def test_what_was_warned_of_before_an_interruption_is_told(tmp_path, monkeypatch, quick):
    """The engine warns in its second step and is killed in its fourth: the comparison that goes on
    makes no second step, and tells of it.
    """

    class Killed(BaseException):
        pass

    steps, fit, load = [], fitting.fit, registry.load_engine

    def build(problem, options):
        algorithm = load("cavi").build(problem, options)

        def step(*arguments):
            steps.append(len(steps))
            if len(steps) == 2:
                warnings.warn("Slippery.", stacklevel=1)
            if len(steps) == 4:
                raise Killed
            return algorithm.step(*arguments)

        return algorithm._replace(step=step)

    monkeypatch.setattr(
        registry,
        "load_engine",
        lambda name: load(name)._replace(build=build) if name == "cavi" else load(name),
    )
    monkeypatch.setattr(loop, "fit", functools.partial(fit, checkpoint_steps=1))
    with pytest.raises(Killed):
        small(tmp_path, quick=quick)
    assert small(tmp_path, quick=quick).summary["engines"]["cavi"]["notes"] == ["Slippery."]


# What is known of the truth -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def conjugate():
    """LDA with one topic is conjugate: beta ~ Dirichlet(eta + word counts), and mean field is
    exact. Two samplers and cavi, 4,000 draws each.
    """
    counts = np.random.default_rng(3).multinomial(
        60, np.random.default_rng(4).dirichlet(np.full(6, 2.0)), size=8
    )
    options = {
        "gibbs": {"num_samples": 2000, "num_warmup": 50},
        "nuts": {"num_samples": 2000, "num_warmup": 500},
    }
    hyper = {"num_topics": 1, "alpha": 1.0, "eta": 0.7}
    data = pp_models.data.counts(counts)
    return counts, compare.compare(
        "lda",
        data,
        "gibbs",
        ["cavi", "nuts"],
        hyper,
        options=options,
        progress=False,
        num_draws=4000,
        quick=True,
    )


@pytest.mark.slow
def test_exact_engines_on_a_conjugate_model(conjugate):
    """Means within 0.05 sd and widths within 3 %: of 4,000 draws each, means differ by 0.018 sd and
    widths by 1.6 % on average (nuts has fewer effective ones), and all three are the closed
    form.
    """
    counts, result = conjugate
    concentration = 0.7 + counts.sum(0)
    mean = concentration / concentration.sum()
    sd = np.sqrt(mean * (1 - mean) / (concentration.sum() + 1))
    for engine in ("cavi", "nuts"):
        row = result.summary["engines"][engine]
        assert row["mean_error_sd"] < 0.05 and 0.97 < row["sd_ratio"] < 1.03, engine
        assert row["verdict"] == "means agree; right width", engine
    for engine in ("gibbs", "cavi", "nuts"):
        found = result.draws[engine]["beta"][:, 0]
        assert np.abs((found.mean(0) - mean) / sd).max() < 0.08, (
            engine
        )  # the largest of six, of which each has 0.016 or, of nuts, a little more
        np.testing.assert_allclose(found.std(0) / sd, 1, atol=0.06, err_msg=engine)
    assert result.summary["engines"]["cavi"]["khat"] < 0.7  # q is the posterior
    evidence = marginal_likelihood.log_evidence(result.fits["gibbs"])  # and its bound the evidence
    assert (
        evidence.error < 0.05
        and abs(evidence.value - result.summary["engines"]["cavi"]["bound"]) < 4 * evidence.error
    )


@pytest.mark.slow
def test_mean_field_is_too_narrow_where_it_is_known_to_be():
    """Held to the stored reference posteriors of two samplers: topics of LDA and factors of PMF
    come out narrower by mean field, and k-hat is large.

    That is how far q is from the posterior, not how it was fitted: both run to their fixed point.
    """
    for name, site in (("lda", "beta"), ("pmf", "v")):
        known = files.stored(name, Path(__file__).parents[2] / "references")
        fit = inference.fit(name, known.data, "cavi", known.hyper, progress=False, num_epochs=300)
        draws = fit.posterior.sample(jax.random.key(0), 1000)
        aligned = align.align_draws(fit.model, draws, known.pivot)
        exact = known.draws[site].reshape(-1, *known.draws[site].shape[2:])
        found = agreement.agreement(
            agreement.quantities(exact), agreement.quantities(aligned[site])
        )
        assert found.sd_ratio < 0.95, (name, found)
        khat = arviz_bridge.smoothed_weights(
            fit.log_joint(draws) - fit.posterior.log_density(draws)
        )[1]
        assert khat > 0.7, (name, khat)
