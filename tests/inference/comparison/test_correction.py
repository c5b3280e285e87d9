"""Rows of a comparison with the widths of linear response, and sensitivity to the prior."""

import math

import jax
import jsonschema
import numpy as np
import pytest

import inference
import pp_models
from inference.comparison import compare, correction, record, results
from inference.comparison.record import Row
from inference.core import registry
from inference.core.corrected import Corrected
from inference.io import fits
from inference.report import page
from pp_models.errors import InputError, TooLarge

LDA = pp_models.load("lda")
SHORT = {"gibbs": {"num_samples": 600, "num_warmup": 100, "num_chains": 2}}


def small(folder, engines=("cavi+lr",), **more):
    hyper, data = LDA.example(jax.random.key(0))
    given = {"options": SHORT, "num_draws": 400, "progress": False, "quick": True, **more}
    return compare.compare("lda", data, "gibbs", engines, hyper, folder=folder, **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def compared(folder):
    found = small(folder)
    page.write(found, folder)
    return found


def rows_of(comparison):
    return comparison.summary["engines"]


def test_corrected_widths_are_nearer_the_reference(compared):
    """The fit itself is compared too. Its topics have 0.6 of the reference's width, corrected ones
    more than 0.75; their means are the same. The time contains that of the fit.
    """
    assert set(compared.fits) == {"gibbs", "cavi", "cavi+lr"}
    cavi, corrected = rows_of(compared)["cavi"], rows_of(compared)["cavi+lr"]
    assert cavi["sd_ratio"] < 0.7 and 0.75 < corrected["sd_ratio"] < 1.1
    assert corrected["coverage90"] > cavi["coverage90"]
    assert abs(corrected["mean_error_sd"] - cavi["mean_error_sd"]) < 0.15
    assert corrected["seconds"] > cavi["seconds"]
    assert corrected["kind"] == "corrected" and corrected["error"] is None


def test_the_row_fits_the_schema_and_claims_no_density(compared):
    jsonschema.validate(compared.summary, record.schema())
    row = rows_of(compared)["cavi+lr"]
    assert [row[name] for name in ("khat", "elbo", "bound", "climb")] == [None] * 4
    assert np.isfinite(row["heldout"]) and row["sites"].keys() == {"theta", "beta"}


def test_what_doubling_moves_is_the_slope_in_the_logarithm(compared):
    """Shares sum to one, so what moves one moves the others back; their numbers are those of the
    aligned draws, to the error of 400 of them: 0.05 sd, four times that allowed.
    """
    table = rows_of(compared)["cavi+lr"]["sensitivity"]
    assert {one["hyper"] for one in table} == {"alpha", "eta"} and len(table) == 6
    theta = compared.draws["cavi+lr"]["theta"].mean((0, 1))
    slopes = compared.fits["cavi+lr"].posterior.sensitivity(lambda x: x["theta"].mean(0))
    for hyper, value in (("alpha", 1.1), ("eta", 1.2)):
        own = [one for one in table if one["hyper"] == hyper]
        assert sum(one["shift"] for one in own) == pytest.approx(0, abs=1e-5)
        expected = math.log(2) * value * slopes[hyper]
        np.testing.assert_allclose(
            sorted(one["shift"] for one in own), np.sort(np.ravel(expected)), rtol=1e-3
        )
        for one in own:
            topic = int(one["functional"].removeprefix("share of topic ")) - 1
            assert abs(one["mean"] - theta[topic]) < 0.2 * one["sd"]
            assert one["shift_sd"] == pytest.approx(one["shift"] / one["sd"])


def test_models_without_shares_have_their_expected_data():
    """Factors of `pmf` turn: only the mean rating is left. Topics of `bayesian_nmf` have sizes, and
    of `gaussian_mixture` weights.
    """
    wanted = {"pmf": "mean expected data", "bayesian_nmf": "share of topic"}
    for name, functional in (wanted | {"gaussian_mixture": "share of component"}).items():
        hyper, data = pp_models.load(name).example(jax.random.key(0))
        fit = inference.fit(name, data, "cavi", hyper, progress=False, num_epochs=5)
        pivot = {site: fit.posterior.mean(site) for site in fit.model.families}
        names, function = correction.sensitivity.functionals(fit, pivot)
        assert names[0].startswith(functional)
        values = np.asarray(function(pivot))
        assert len(values) == len(names) and np.all(np.isfinite(values))
        if len(names) > 1:
            assert values[:-1].sum() == pytest.approx(1, rel=1e-4)


def test_a_second_call_takes_the_correction_from_the_folder(compared, folder, monkeypatch):
    """And makes it again if the fit has become another one."""
    monkeypatch.setattr(correction, "correct", lambda *_: pytest.fail("it was made again"))
    same = ("sd_ratio", "mean_error_sd", "coverage90", "heldout", "verdict", "seconds")
    found = small(folder)
    for name in same:
        assert rows_of(found)["cavi+lr"][name] == rows_of(compared)["cavi+lr"][name]

    def made_again(*_):
        raise InputError("it was made again")

    monkeypatch.setattr(correction, "correct", made_again)
    other = small(folder, options=SHORT | {"cavi": {"num_epochs": 2}})
    assert rows_of(other)["cavi+lr"]["error"] == "it was made again"
    assert rows_of(other)["cavi"]["error"] is None


def test_the_page_shows_both(compared, folder):
    """Widths, the table of sensitivities, and draws with attributes that say what they are."""
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "Sensitivity to the prior" in text and text.count(": share of topic") >= 6
    widths = text[text.index('<figure class="widths"') :]
    assert all(f">{name}</text>" in widths for name in ("cavi", "cavi+lr"))
    tree = compared.fits["cavi+lr"].to_arviz(pivot=compared.pivot)
    attributes = tree["posterior"].attrs
    assert attributes["engine"] == "cavi+lr" and "linear response" in attributes["description"]
    assert (folder / "cavi+lr.nc").stat().st_size > 0


def test_a_stored_correction_is_the_same(compared, tmp_path):
    """Widths, draws and slopes, without the search for the maximum."""
    fit = compared.fits["cavi+lr"]
    loaded = fits.load(fit.save(tmp_path / "fit"), fit.data)
    assert isinstance(loaded.posterior, Corrected)
    for site in ("theta", "beta"):
        np.testing.assert_array_equal(loaded.posterior.sd(site), fit.posterior.sd(site))
    key = jax.random.key(5)
    one, other = (x.posterior.chains(key, 100)["beta"] for x in (loaded, fit))
    np.testing.assert_array_equal(one, other)
    total = [
        x.posterior.sensitivity(lambda x: x["theta"][:, 0].mean())["eta"] for x in (loaded, fit)
    ]
    np.testing.assert_allclose(*total, rtol=1e-6)
    assert loaded.posterior.ascent.distance == fit.posterior.ascent.distance


def test_results_of_corrections_are_removed(tmp_path):
    (tmp_path / "fits").mkdir()
    for name in ("cavi+lr.nc", "fits/cavi+lr.npz", "fits/cavi+lr.json"):
        (tmp_path / name).write_text("")
    results.clear(tmp_path)
    assert [x.name for x in tmp_path.rglob("*")] == ["fits"]


def test_what_takes_too_long_or_too_much_is_said(compared, monkeypatch):
    found = compared.fits["cavi"]
    with pytest.raises(TooLarge, match="larger budget"):
        correction.correct(found, "cavi+lr", 100, jax.random.key(0), 0.0)
    monkeypatch.setattr(correction, "MOST_NUMBERS", 10)
    with pytest.raises(TooLarge, match=r"q has 66 parameters"):
        correction.correct(found, "cavi+lr", 100, jax.random.key(0))


def test_a_fit_that_failed_is_not_corrected():
    with pytest.raises(InputError, match="cavi has no result"):
        correction.finished(None, "cavi+lr", None, jax.random.key(0), None)


def test_widths_about_the_wrong_place_are_not_to_be_trusted(compared):
    """If the reference says that the means are off by more than an sd."""
    fit = compared.fits["cavi+lr"]
    for error, converged, number in ((1.4, True, 1), (0.8, True, 0), (1.4, False, 0)):
        row = Row(engine="cavi+lr", mean_error_sd=error)
        correction.complete(row, fit, compared.pivot, converged)
        assert len(row.notes) == number and row.sensitivity
        assert all("not to be trusted" in note for note in row.notes)


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["cavi", "cavi+lr"], ["cavi", "cavi+lr"]),
        (["cavi+lr"], ["cavi", "cavi+lr"]),
        (["cavi+lr", "svi", "cavi"], ["cavi", "cavi+lr", "svi"]),
    ],
)
def test_a_correction_comes_after_its_fit(names, taken):
    assert registry.with_corrected(names) == taken


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("svi+nonsense", r"Unknown engine 'svi\+nonsense'"),
        ("svj+lr", "Did you mean 'svi'"),
        ("gibbs+lr", "gibbs makes none"),
        ("+lr", "Unknown engine"),
        ("map+lr", "variational"),
    ],
)
def test_other_names_are_refused_before_anything_runs(name, words):
    with pytest.raises(InputError, match=words):
        compare.compare("lda", engines=[name], quick=True)


def test_corrections_have_no_options_and_no_fit_of_their_own():
    _, data = LDA.example(jax.random.key(0))
    with pytest.raises(InputError, match=r"\.corrected\(\)"):
        inference.fit("lda", data, "cavi+lr")
    with pytest.raises(InputError, match="num_epochs"):
        compare.compare("lda", data, engines=["cavi+lr"], options={"cavi+lr": {"num_epochs": 3}})


ENGINE = """
from inference.engines import cavi

ENGINE = cavi.ENGINE._replace(name="mine", look=None)
"""


def test_a_new_engine_gets_its_row_by_its_trait(tmp_path, monkeypatch):
    """A comparison that names no engines corrects those that ask for it, unless it is quick."""
    (tmp_path / "mine.py").write_text(ENGINE)
    monkeypatch.setenv("PP_MODELS_PATH", str(tmp_path))
    rows = registry.default_rows(LDA, None)
    assert rows.index("mine+lr") == rows.index("mine") + 1
    assert "svi+lr" not in rows
    assert not any(map(registry.corrects, registry.default_rows(LDA, None, quick=True)))
