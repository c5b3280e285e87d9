"""Laws of the comparison, on posteriors that are known because they are made up here; one small real run at the end."""

import functools
import json
import re
import warnings
from types import SimpleNamespace
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
import xarray

import inference
import pp_models
from inference import align, arviz_bridge, comparison, report
from pp_models import files
from pp_models.errors import InputError

LDA = pp_models.load("lda")
NUM_TOPICS, NUM_COLUMNS, NUM_ROWS = 3, 10, 30
TOPICS = np.random.default_rng(0).dirichlet(np.full(NUM_COLUMNS, 0.3), NUM_TOPICS)
WEIGHTS = np.random.default_rng(1).dirichlet(np.ones(NUM_TOPICS), NUM_ROWS)


def corpus(names=None):
    rng = np.random.default_rng(2)
    return pp_models.data.counts(np.array([rng.multinomial(40, p) for p in WEIGHTS @ TOPICS]), column_names=names)


def gaussian_draws(num_draws, seed, width=1.0, shift=0.0, rows=27):
    """Independent Gaussians around well separated topics: sd 0.004 x width, moved by shift sds. Small enough to stay positive."""
    rng = np.random.default_rng(seed)
    beta = 0.1 + TOPICS + 0.004 * (shift + width * rng.normal(size=(num_draws, *TOPICS.shape)))
    theta = 1 + WEIGHTS[:rows] + 0.004 * (shift + width * rng.normal(size=(num_draws, rows, NUM_TOPICS)))
    return {"theta": theta, "beta": beta}


def relabelled(draws, seed=5):
    orders = np.random.default_rng(seed).permuted(np.tile(np.arange(NUM_TOPICS), (len(draws["beta"]), 1)), axis=1)
    return align.permute(LDA, draws, orders)


class FakePosterior:
    """A posterior that hands out what it was given."""

    def __init__(self, kind, draws, width=1.0):
        self.kind, self._draws, self._width = kind, draws, width
        self.sites = ["theta", "beta"]
        self.draws = {site: value.reshape(2, -1, *value.shape[1:]) for site, value in draws.items()} if kind == "draws" else None
        self.sample_stats = {"diverging": np.zeros((2, len(draws["beta"]) // 2), bool)}

    def mean(self, site):
        return self._draws[site].mean(0)

    def sd(self, site):
        return self._draws[site].std(0)

    def sample(self, key, num_draws):
        return {site: value[:num_draws] for site, value in self._draws.items()}

    def log_density(self, draws):
        return log_density(draws, self._width)


def log_density(draws, width=1.0):
    """Of the topics' Gaussians above, up to a constant: with width 1 the log joint of the fakes."""
    distance = (draws["beta"] - 0.1 - TOPICS) / (0.004 * width)
    return -0.5 * np.sum(distance**2, (1, 2))


class Tree:
    """What `to_arviz` returns, as far as the report needs it."""

    def to_netcdf(self, path):
        with open(path, "wb") as file:
            file.write(b"CDF")


def fake_fit(engine, posterior, data, bound=-100.0):
    steps = np.arange(1, 6)
    history = {"step": steps, "seconds": 0.1 * steps, "bound": bound - 50.0 / steps if posterior.kind == "variational" else np.full(5, np.nan)}
    hyper = LDA.Hyper(NUM_TOPICS)
    return SimpleNamespace(
        model=LDA, hyper=hyper, data=data, engine=engine, seconds=0.5, history=history, posterior=posterior, log_joint=log_density, to_arviz=Tree
    )


def posteriors():
    """Engine -> posterior. The reference's 4,000 draws leave a Monte-Carlo error of 0.016 sd in its means and 1.1% in its sds."""
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
    return SimpleNamespace(value=-2.5)


def start(patch, found, data=None, score=constant_score, **arguments):
    """`compare` with made-up engines."""

    def fit(model, data, engine, **rest):
        if found[engine] is None:
            raise FloatingPointError("The bound became inf at step 3.")
        if engine == "map":
            warnings.warn("There is no mode.", stacklevel=1)
        return fake_fit(engine, found[engine], data)

    patch.setattr(inference, "fit", fit, raising=False)
    patch.setattr(inference, "document_completion", score, raising=False)
    arguments = {"engines": [name for name in found if name != "gibbs"], "num_draws": 4000} | arguments
    return comparison.compare("lda", corpus() if data is None else data, **arguments)


def few(*engines, num_draws=400):
    """A reference and the named engines, with fewer draws, where no figure is looked at."""
    draws = gaussian_draws(num_draws, seed=20)
    kinds = {"gibbs": "draws", "cavi": "variational", "svi": "variational", "map": "point"}
    return {name: FakePosterior(kinds[name], {site: value.copy() for site, value in draws.items()}) for name in ("gibbs", *engines)}


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
    assert row["invariant"]["mean_error_sd"] < 1e-3  # sums over topics in another order, in single precision
    np.testing.assert_array_equal(compared.draws["nuts"]["beta"], compared.draws["gibbs"]["beta"])


def test_an_exact_posterior_agrees(compared):
    """Other draws of the same distribution. Means of 4,000 differ by 0.8 sqrt(2/4000) = 0.018 sd on average."""
    row = compared.summary["engines"]["cavi"]
    assert row["mean_error_sd"] < 0.05
    assert row["sd_ratio"] == pytest.approx(1, abs=0.02)
    assert row["coverage90"] == pytest.approx(0.9, abs=0.02)
    assert row["invariant"]["coverage90"] == pytest.approx(0.9, abs=0.02)
    assert row["verdict"] == "means agree; right width"


def test_half_the_sd_is_reported_as_half(compared):
    """2%: the median over 30 ratios of sds, each with a relative error of sqrt(1/2n + 1/2n) = 1.6% for n = 4,000."""
    row = compared.summary["engines"]["svi"]
    assert row["sd_ratio"] == pytest.approx(0.5, rel=0.02)
    assert row["sites"]["theta"]["sd_ratio"] == pytest.approx(0.5, rel=0.02)
    assert row["invariant"]["sd_ratio"] == pytest.approx(0.5, rel=0.02)
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
    assert list(compared.summary["engines"]) == ["gibbs", "nuts", "cavi", "svi", "map", "numpyro_svi"]


def test_results_are_reported_as_they_come(run):
    seen = []
    run(few("map", "cavi"), on_result=lambda engine, row: seen.append((engine, json.dumps(row, allow_nan=False))))
    assert [engine for engine, _ in seen] == ["gibbs", "map", "cavi"]


def test_summary_is_plain_json(run):
    found = few("cavi", "svi")
    found["svi"]._draws["theta"][:] = np.nan
    summary = run(found).summary
    again = json.loads(json.dumps(summary, allow_nan=False))
    assert again == summary
    assert {"python", "jax", "numpyro", "arviz", "numpy", "pp_models"} <= set(summary["versions"])
    assert summary["data_hash"] == corpus().hash
    assert summary["seed"] == 0
    assert summary["engines"]["svi"]["sites"]["theta"]["mean_error_sd"] is None
    assert summary["engines"]["cavi"]["heldout"] == -2.5


def test_seed_is_recorded(run):
    assert run(few("cavi"), key=jax.random.key(17)).summary["seed"] == 17


def test_chains_in_different_modes_are_called_not_converged(run):
    """Half of the reference's draws sit 8 sds away: no relabelling explains that, and no engine is judged by it."""
    found = few("cavi")
    for value in found["gibbs"].draws.values():
        value[1] += 0.032
    summary = run(found).summary
    assert summary["converged"] is False
    assert summary["engines"]["gibbs"]["rhat"] > 1.05
    assert summary["engines"]["cavi"]["verdict"].startswith("not judged")


def test_mcmc_diagnostics(compared):
    row = compared.summary["engines"]["gibbs"]
    assert compared.summary["converged"] is True
    assert row["rhat"] < 1.02
    assert 1500 < row["ess_bulk"] < 8000  # 4,000 independent draws; the smallest of 201 estimates
    assert row["ess_tail"] > 1000
    assert row["divergences"] == 0


def test_khat_finds_the_pareto_shape():
    """exp(0.8 e) with e exponential is Pareto with shape k = 0.8; the opposite sign has a bounded tail, k = -0.8 in the limit."""
    e = np.random.default_rng(1).exponential(size=4000)
    assert arviz_bridge.pareto_khat(0.8 * e) == pytest.approx(0.8, abs=0.25)
    assert arviz_bridge.pareto_khat(-0.8 * e) < 0
    assert arviz_bridge.pareto_khat(np.array([0.0, np.nan, 1.0])) is None


def test_khat_of_a_posterior_that_is_too_narrow(compared):
    """Half the sd in 30 dimensions: the ratios have no variance. Chains and points have no density, hence no k-hat."""
    rows = compared.summary["engines"]
    assert rows["svi"]["khat"] > 0.7
    assert rows["gibbs"]["khat"] is rows["map"]["khat"] is None


def test_constant_quantities_are_left_out():
    one = np.ones((100, 2))
    one[:, 0] = np.random.default_rng(0).normal(size=100)
    result = comparison.agreement(comparison.quantities(one), comparison.quantities(one))
    assert result["quantities"] == 1
    assert result["mean_error_sd"] == 0
    empty = comparison.agreement(comparison.quantities(np.ones((9, 2))), comparison.quantities(np.ones((9, 2))))
    assert empty["mean_error_sd"] is None


def test_wasserstein_of_a_shift_is_the_shift():
    x = np.random.default_rng(0).normal(size=(500, 1))
    moved = comparison.agreement(comparison.quantities(x), comparison.quantities(x + 0.7 * x.std(ddof=1)))
    assert moved["wasserstein_sd"] == pytest.approx(0.7, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"engines": ["cavy"]}, "cavi"),
        ({"reference": "gibs"}, "gibbs"),
        ({"engines": ["cavi"], "options": {"svi": {}}}, "svi"),
        ({"engines": ["cavi"], "options": {"cavi": {"num_epoch": 3}}}, "num_epochs"),
        ({"engines": ["gibbs"]}, "at least one other"),
        ({"engines": ["cavi"], "reference": "map"}, "no sampler"),
        ({"data": np.ones((3, 3))}, "pp_models.data.counts"),
        ({"hyper": {"num_topic": 3}}, "num_topics"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(run, monkeypatch, arguments, words):
    monkeypatch.setattr(comparison.Task, "fit", lambda *_: pytest.fail("an engine was started"))
    with pytest.raises(InputError, match=words):
        run(few("cavi"), **arguments)


# The report -------------------------------------------------------------------------------------------------------------------


def test_report_is_one_page_with_every_engine(compared, tmp_path):
    report.write(compared, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page) < 2_000_000
    assert not re.search(r"https?:|src=[\"'](?!data:)|@import|<script|<link", page)
    for engine in compared.summary["engines"]:
        assert engine in page
    assert page.count("<svg") >= 6
    assert page.count("<svg") == page.count('role="img"') == page.count("aria-label=")
    for figure in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(figure)  # well formed
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    assert "mathdefault" not in page
    assert "There is no mode." in page
    assert compared.summary["data_hash"] in page
    assert "has not converged" not in page
    assert json.loads((tmp_path / "summary.json").read_text()) == compared.summary
    assert {file.name for file in tmp_path.iterdir()} == {"report.html", "summary.json", *(f"{name}.nc" for name in compared.fits)}


def test_report_warns_in_red_when_the_reference_has_not_converged(run, tmp_path):
    found = few("cavi")
    for value in found["gibbs"].draws.values():
        value[1] += 0.032
    report.write(run(found), tmp_path)
    assert 'class="warning"' in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_words_are_escaped(run, tmp_path):
    """A vocabulary may hold anything, dollar signs and angle brackets included."""
    names = ["<b>bold</b>", "$x_1$", "a&b", "$", "\\alpha", *(f"word{i}" for i in range(NUM_COLUMNS - 5))]
    report.write(run(few("cavi"), data=corpus(names)), tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<b>bold</b>" not in page
    assert "&lt;b&gt;bold" in page


def test_table_has_a_line_per_engine(compared):
    lines = report.table(compared).splitlines()
    for engine in compared.summary["engines"]:
        assert sum(line.split()[0] == engine for line in lines if line.strip()) == 1
    assert max(map(len, lines)) <= 140


def test_an_interrupted_write_keeps_the_old_page(compared, tmp_path, monkeypatch):
    report.write(compared, tmp_path)
    before = (tmp_path / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr(files.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        report.write(compared, tmp_path)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before
    assert not [file for file in tmp_path.iterdir() if "tmp" in file.name]


# For real ---------------------------------------------------------------------------------------------------------------------


def test_a_real_comparison_end_to_end(tmp_path):
    """Two engines on the model's example: figures where they should be, and files that ArviZ opens. What they say is tested elsewhere."""
    hyper, data = LDA.example(jax.random.key(0))
    options = {"gibbs": {"num_samples": 300, "num_warmup": 100, "num_chains": 2}, "cavi": {"num_epochs": 50}}
    result = comparison.compare("lda", data, engines=["cavi"], hyper=hyper, options=options, progress=False)
    row = result.summary["engines"]["cavi"]
    assert row["notes"] == []
    for name in ("seconds", "bound", "mean_error_sd", "sd_ratio", "coverage90", "wasserstein_sd", "khat", "heldout"):
        assert np.isfinite(row[name]), name
    assert result.summary["engines"]["gibbs"]["rhat"] > 0.99
    assert row["sd_ratio"] < 1  # mean-field topics are too narrow
    assert row["heldout"] < 0
    report.write(result, tmp_path)
    with xarray.open_dataset(tmp_path / "cavi.nc", group="posterior") as posterior:
        assert posterior["beta"].shape[-2:] == (3, 9)
