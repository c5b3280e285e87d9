"""Reference posteriors: every stored file meets its criteria, belongs to the model it names, and
judges engines as theory says it should.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import inference
import pp_models
from inference.calibration import files, reference, runs
from inference.calibration.recipes import RECIPES, Recipe
from inference.core import align
from inference.io import arviz
from inference.run.fit import Fit
from pp_models import errors

FOLDER = Path(__file__).parents[2] / "references"
OWN = {
    file.stem for file in (Path(pp_models.__file__).parent / "models").glob("*.py")
}  # models from outside need no reference here
MODELS = [name for name in pp_models.available() if name in OWN]
STORED = [name for name in MODELS if name in RECIPES]


@pytest.fixture(scope="module", params=STORED)
def stored(request):
    return files.stored(request.param, FOLDER)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_reference_or_a_reason(name):
    """A new model of this repository needs a recipe and a file, or a sentence that says why there
    can be none.
    """
    if name not in RECIPES:
        with pytest.raises(errors.InputError, match="no proper prior"):
            reference.find_recipe(name)
    assert (FOLDER / f"{name}.npz").is_file() == (name in RECIPES)


def test_no_file_without_a_model():
    assert {file.stem for file in FOLDER.glob("*.npz")} == set(RECIPES)


def test_criteria_are_met(stored):
    """All of them, computed from what is stored, and as the file itself records them."""
    found = reference.check(stored)
    assert [one for one in found if not one.met] == []
    path = FOLDER / f"{stored.model}.npz"
    assert path.stat().st_size <= files.MOST_BYTES
    header = json.loads(bytes(np.load(path, allow_pickle=False)["header"]).decode())
    assert all(one["met"] for one in header["criteria"])
    assert [one["name"] for one in header["criteria"]] == [one.name for one in found]
    np.testing.assert_allclose(
        [one["figure"] for one in header["criteria"][:-1]],
        [one.figure for one in found[:-1]],
        rtol=1e-4,
    )


def test_recipe_makes_the_data(stored):
    """The data and hyper-parameters of the file are those of its recipe, and the samplers those
    that the recipe names.
    """
    recipe = RECIPES[stored.model]
    hyper, data = recipe.problem(np.random.default_rng(recipe.seed))
    assert data.hash == stored.data.hash == stored.recipe["data_hash"]
    assert {name: np.asarray(x).tolist() for name, x in hyper.items()} == stored.hyper
    assert {one["sampler"]: one["options"] for one in stored.recipe["samplers"]} == recipe.samplers
    assert {"python", "jax", "numpyro", "numpy"} <= set(stored.recipe["versions"])


def test_density_is_the_models(stored):
    """F at stored draws, from the file's own data and hyper-parameters, is the stored log joint
    density; another draw's is not.

    Draws are stored in single precision, and the density is that of the draws as stored: 1e-6 is
    ample.
    """
    fit = Fit(stored.problem, "reference", {}, None, {}, 0.0)
    again = fit.log_joint(
        {site: np.asarray(x, np.float64) for site, x in runs.flatten(stored.draws).items()}
    )
    np.testing.assert_allclose(again, stored.log_joint.ravel(), rtol=1e-6)
    assert np.abs(again - np.roll(stored.log_joint.ravel(), 1)).max() > 1


def test_stored_draws_are_a_fair_sample(stored):
    """Means of the thinned draws are the whole run's to 4.5 of their standard errors, chains agree,
    and alignment leaves draws where they are.

    Some 1,500 nearly independent draws, up to 205 correlated quantities: 4.5 is exceeded by chance
    in one of 700 such tests. R-hat of so few draws has a sampling error of some 0.005, so it is
    held to 1.03.
    """
    found = runs.quantities(stored.problem, stored.draws, stored.log_joint)
    assert found.labels == stored.labels
    np.testing.assert_array_equal(found.invariant, stored.invariant)
    n = stored.log_joint.size
    z = (found.values.mean((0, 1)) - stored.first["mean"]) / (
        stored.first["sd"] * np.sqrt(1 / min(n, 1000))
    )
    assert np.abs(z).max() < 4.5
    assert arviz.chain_diagnostics(found.values[..., ::4])["rhat"] < 1.03
    again = align.align_draws(stored.problem.model, stored.draws, stored.pivot)
    moved = [np.abs(again[site] - x).max() for site, x in stored.draws.items()]
    assert max(moved) < 1e-3 * max(np.abs(x).max() for x in stored.draws.values())


def test_quantiles_and_labels(stored):
    """One row of figures per quantity, the quantiles in order, and labels that index the sites."""
    for summary in (stored.first, stored.second):
        assert all(len(x) == len(stored.labels) for x in summary.values())
        assert np.all(summary["q05"] <= summary["q50"]) and np.all(summary["q50"] <= summary["q95"])
        assert all(np.all(np.isfinite(x)) for x in summary.values())
    sizes = {site: int(np.prod(x.shape[2:])) for site, x in stored.draws.items()}
    assert all(
        sum(label.split("[")[0] == site for label in stored.labels) == size
        for site, size in sizes.items()
    )


def test_monte_carlo_errors():
    """Of normal draws, the mean has error sd / sqrt(n) and the sd one of sd / sqrt(2 n), n the
    effective size: of an autoregression with r = 0.6 a quarter of the draws for the mean, and,
    as squares have autocorrelation r^2, (1 - r^2) / (1 + r^2) = 0.47 of them for the sd.

    15 %: effective sample sizes of 4,000 draws have an error of some 10 %, their square roots half
    of that.
    """
    rng = np.random.default_rng(0)
    noise, r = rng.normal(size=(4, 1000, 2)), np.array([0.0, 0.6])
    noise[:, 1:] *= np.sqrt(1 - r**2)
    for t in range(1, 1000):
        noise[:, t] += r * noise[:, t - 1]
    found = runs.summarise(5 + 3 * noise)
    np.testing.assert_allclose(found["mcse_mean"], 3 / np.sqrt(4000 * (1 - r) / (1 + r)), rtol=0.15)
    np.testing.assert_allclose(
        found["mcse_sd"], 3 / np.sqrt(8000 * (1 - r**2) / (1 + r**2)), rtol=0.15
    )
    other = found | {
        "mean": found["mean"] + 2 * found["mcse_mean"],
        "sd": found["sd"] - found["mcse_sd"],
    }
    np.testing.assert_allclose(runs.differences(other, found, "mean"), np.sqrt(2), rtol=1e-6)
    np.testing.assert_allclose(runs.differences(other, found, "sd"), -np.sqrt(0.5), rtol=1e-6)


# Files --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pmf():
    return files.stored("pmf", FOLDER)


def test_files_keep_everything(pmf, tmp_path):
    again = files.load(files.save(pmf, tmp_path / "pmf.npz"))
    assert (
        again.data.hash == pmf.data.hash
        and again.recipe == pmf.recipe
        and again.labels == pmf.labels
    )
    for name in ("draws", "pivot", "first", "second"):
        for key, x in getattr(pmf, name).items():
            np.testing.assert_array_equal(getattr(again, name)[key], x)
    assert "met" in reference.describe(again) and "NOT MET" not in reference.describe(again)


@pytest.mark.parametrize("damage", ["truncated", "foreign", "missing", "altered"])
def test_bad_files_are_refused_in_a_sentence(pmf, tmp_path, damage):
    path = tmp_path / "bad.npz"
    whole = (FOLDER / "pmf.npz").read_bytes()
    if damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "foreign":
        np.savez(
            path, header=np.frombuffer(json.dumps({"format": files.FORMAT}).encode(), np.uint8)
        )
    elif damage == "altered":
        with np.load(path.with_name("bad.npz") if path.exists() else FOLDER / "pmf.npz") as file:
            arrays = {name: file[name] for name in file.files}
        np.savez(path, **arrays | {"data/values": arrays["data/values"] + 1})
    with pytest.raises(errors.InputError, match=r"bad\.npz") as caught:
        files.load(path)
    assert "\n" not in str(caught.value)


def test_no_reference_without_a_posterior():
    with pytest.raises(errors.InputError, match="nmf has no proper prior"):
        reference.make("nmf")
    with pytest.raises(errors.InputError, match="nmf has no proper prior"):
        files.stored("nmf", FOLDER)


def test_check_finds_what_is_wrong(pmf):
    """A run that stopped early, one that disagrees, and draws of another density each fail the
    criterion that is about it, and no other.
    """

    def failed(changed):
        return {one.name for one in reference.check(changed) if not one.met}

    assert failed(pmf) == set()
    assert failed(pmf._replace(first=pmf.first | {"ess_tail": pmf.first["ess_tail"] / 4})) == {
        "gibbs: tail ESS, invariant",
        "gibbs: tail ESS, aligned",
    }
    assert len(failed(pmf._replace(second=pmf.second | {"sd": 1.3 * pmf.second["sd"]}))) == 1
    assert (
        len(
            failed(
                pmf._replace(
                    second=pmf.second | {"mean": pmf.second["mean"] + 0.3 * pmf.second["sd"]}
                )
            )
        )
        == 1
    )
    other = pmf.draws | {"u": pmf.draws["u"] * 1.01}
    assert failed(pmf._replace(draws=other)) == {
        "log joint density, computed anew: relative difference"
    }


# Slow: made anew ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_make_with_a_short_recipe(tmp_path):
    """The whole way, with runs too short to meet the criteria: a file comes out, and says which are
    not met.
    """
    short = {"num_samples": 100, "num_warmup": 100, "num_chains": 4}
    recipe = Recipe(RECIPES["pmf"].problem, {"gibbs": short, "nuts": short})
    made = files.load(
        files.save(reference.make("pmf", recipe=recipe, progress=False), tmp_path / "short.npz")
    )
    assert "NOT MET" in reference.describe(made)
    assert {one.name for one in reference.check(made) if not one.met} >= {
        "gibbs: bulk ESS, aligned",
        "nuts: bulk ESS, aligned",
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", STORED)
def test_samplers_run_anew_agree(name):
    """Both samplers from another seed, with a third of the draws: means and sds within Monte-Carlo
    error of the stored ones.

    A right sampler fails with probability 0.01 over the four comparisons of all models together;
    limits are then 4.5 to 4.9 standard errors.
    """
    found = reference.check_again(
        files.stored(name, FOLDER),
        seed=7,
        progress=False,
        shorter=3,
        false_alarm=0.01 / (4 * len(STORED)),
    )
    assert [one for one in found if not one.met] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "site"), [("lda", "beta"), ("pmf", "v"), ("pmf", "u")])
def test_mean_field_is_too_narrow(name, site):
    """Known facts: mean-field sds of topics and of factors of ratings lie below the posterior's,
    and means of the expected data near it.
    """
    kept = files.stored(name, FOLDER)
    fit = inference.fit(name, kept.data, "cavi", kept.hyper, jax.random.key(0), progress=False)
    draws = align.align_draws(
        kept.problem.model, fit.posterior.sample(jax.random.key(1), 2000), kept.pivot
    )
    here = np.array([label.startswith(f"{site}[") for label in kept.labels])
    ratio = draws[site].reshape(2000, -1).std(0) / kept.first["sd"][here]
    assert np.median(ratio) < 0.95
    rates = runs.expected(kept.problem, draws).reshape(2000, -1).mean(0)
    entries = np.array([label.startswith(f"{runs.EXPECTED}[") for label in kept.labels])
    assert np.median(np.abs(rates - kept.first["mean"][entries]) / kept.first["sd"][entries]) < 0.5
