"""Exports: ArviZ's own functions run on the files, and what they hold is true."""

import json

import arviz
import jax
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.special import gammaln

import inference
import pp_models
from inference.cli import main
from inference.io import arviz as bridge
from inference.io import observations
from inference.io.arviz import MODERN

matplotlib.use("Agg")


def fitted(name, engine="cavi", **options):
    hyper, data = pp_models.load(name).example(jax.random.key(0))
    return inference.fit(name, data, engine, hyper, progress=False, **options)


def chains(name="lda", **more):
    return fitted(name, "gibbs", num_samples=30, num_warmup=10, num_chains=2, **more)


def reread(tree, path):
    """The tree from the disk."""
    tree.to_netcdf(str(path))
    return arviz.from_netcdf(str(path))


def plot_ppc(tree, name):
    if MODERN:
        arviz.plot_ppc_dist(tree, num_samples=5, backend="matplotlib")
    else:
        arviz.plot_ppc(tree, num_pp_samples=5)


def plot_loo_pit(tree, name):
    if MODERN:
        arviz.plot_loo_pit(tree, backend="matplotlib")
    else:
        arviz.plot_loo_pit(tree, y=name)


@pytest.mark.filterwarnings("ignore")  # of ArviZ: few draws, large k-hat
def test_arvizs_functions_run_on_every_model(model_name, tmp_path):
    """`summary`, `loo`, `compare`, posterior predictive checks and LOO-PIT, from the disk. A PIT is
    defined for numbers: rows of mixtures, which are observed as vectors, have none.
    """
    observed = pp_models.load(model_name).observed
    fits = {"once": fitted(model_name, num_epochs=1), "more": fitted(model_name, num_epochs=4)}
    trees = {n: reread(f.to_arviz(40), tmp_path / f"{n}.nc") for n, f in fits.items()}
    tree = trees["more"]
    groups = {"posterior", "observed_data", "log_likelihood", "posterior_predictive"}
    assert all(bridge.has_group(tree, name) for name in groups | {"sample_stats"})
    assert len(arviz.summary(tree)) == sum(
        np.prod(x.shape[2:], dtype=int) for x in tree["posterior"].data_vars.values()
    )
    assert np.isfinite(arviz.loo(tree).elpd if MODERN else arviz.loo(tree).elpd_loo)
    assert set(arviz.compare(trees).index) == set(trees)
    plot_ppc(tree, observed)
    values = tree["observed_data"][observed]
    logs = tree["log_likelihood"][observed]
    assert np.isfinite(logs).all()
    if values.shape == logs.shape[2:]:
        plot_loo_pit(tree, observed)
    else:
        assert pp_models.load(model_name).kind == "dense"
    plt.close("all")


@pytest.mark.parametrize(
    "name", ["lda", "bayesian_nmf", "pmf", "lg_nmf_votes", "bernoulli_mixture"]
)
def test_log_likelihoods_of_observations_add_up_to_those_of_rows(name):
    """Entries of a row sum to its log likelihood; of a multinomial, but for the coefficient."""
    fit = fitted(name, num_epochs=2)
    tree, rows = fit.to_arviz(5), fit.to_arviz(5, by_row=True)
    logs, wanted = (np.asarray(x["log_likelihood"][fit.model.observed])[0] for x in (tree, rows))
    if not bridge.has_group(tree, "constant_data"):
        np.testing.assert_allclose(logs, wanted)
        return
    owners = np.asarray(tree["constant_data"]["entry_row"])
    found = np.zeros_like(wanted)
    np.add.at(found, (slice(None), owners), logs)
    if name == "lda":
        matrix = fit.data.matrix.toarray().astype(float)
        found += gammaln(matrix.sum(1) + 1) - gammaln(matrix + 1).sum(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_observations_are_the_data():
    """Ratings and word counts, with their places; zero counts where a zero is an observation."""
    for name in ("pmf", "lda", "bayesian_nmf"):
        fit = fitted(name, num_epochs=1)
        tree, matrix = fit.to_arviz(3), fit.data.matrix
        rows, columns = (
            np.asarray(tree["constant_data"][f"entry_{axis}"]) for axis in ("row", "column")
        )
        values = np.asarray(tree["observed_data"][fit.model.observed])
        np.testing.assert_allclose(values, matrix.toarray()[rows, columns])
        every = fit.data.num_rows * fit.data.num_columns
        assert len(values) == (every if name == "bayesian_nmf" else matrix.nnz)
        assert values.dtype.kind == ("f" if name == "pmf" else "i")


def test_predictions_have_the_mean_of_the_model():
    """Predicted ratings average to `predict` at the posterior (five standard errors)."""
    fit = fitted("pmf", num_epochs=3)
    flat = fit.posterior.sample(jax.random.key(0), 2000)
    seen = observations.observations_of(fit, {site: x[0] for site, x in flat.items()})
    new = observations.predictions(fit, flat, seen)
    expected = np.stack(
        [
            np.asarray(fit.model.predict(fit.hyper, {s: x[i] for s, x in flat.items()})).ravel()
            for i in range(0, 2000, 10)
        ]
    )[:, seen.entries]
    error = new.std(0) / np.sqrt(len(new)) + expected.std(0) / np.sqrt(len(expected))
    assert np.all(np.abs(new.mean(0) - expected.mean(0)) < 5 * error)
    assert np.all(new.std(0) >= 0.9 * np.sqrt(float(fit.hyper.sigma2)))


def test_chains_with_other_signs_and_labels_are_aligned():
    """A chain whose factors are swapped and flipped is the same posterior: R-hat does not see it in
    the export, as on the page, and log densities stay those of the draws.
    """
    fit = chains("pmf")
    for site in ("u", "v"):
        draws = np.array(fit.posterior.draws[site])
        draws[1] = np.stack([-draws[0][..., 1], draws[0][..., 0]], -1)  # the same chain, relabelled
        fit.posterior.draws[site] = draws
    tree = fit.to_arviz()
    for site in ("u", "v"):
        first, second = np.asarray(tree["posterior"][site])
        np.testing.assert_allclose(first, second, atol=1e-6)
    pivot = {site: -fit.posterior.draws[site][0].mean(0) for site in ("u", "v")}
    flipped = fit.to_arviz(pivot=pivot)["posterior"]
    inner = np.sum(np.asarray(flipped["v"]).mean((0, 1)) * pivot["v"])
    assert inner > 0  # the labels are the pivot's


def test_densities_of_draws_are_there_for_importance_sampling():
    """log_prob is the log joint density of the draws and log_q that of q (arviz issue 498)."""
    fit = fitted("lda", num_epochs=3)
    tree = fit.to_arviz(30)
    stats, draws = tree["sample_stats"], tree["posterior"]
    flat = {site: np.asarray(draws[site])[0] for site in fit.model.families}
    np.testing.assert_allclose(np.asarray(stats["log_prob"])[0], fit.log_joint(flat), rtol=1e-9)
    np.testing.assert_allclose(
        np.asarray(stats["log_q"])[0], fit.posterior.log_density(flat), rtol=1e-9
    )


def test_attributes_say_what_the_draws_are_of(tmp_path):
    """Model, engine, hyper-parameters, options, data, seed and versions survive the disk."""
    fit = fitted("lda", num_epochs=1)
    told = reread(fit.to_arviz(5, attributes={"seed": 3}), tmp_path / "a.nc")["posterior"].attrs
    assert (told["model"], told["engine"], told["seed"]) == ("lda", "cavi", "3")
    assert json.loads(told["hyper"])["num_topics"] == 3
    assert json.loads(told["versions"])["arviz"] == arviz.__version__
    assert json.loads(told["data"])["hash"] == fit.data.hash
    assert told["note"] == ""


def test_large_exports_are_thinned_and_say_so(monkeypatch, tmp_path, capsys):
    """Chains are thinned evenly, their statistics with them; below `LEAST` draws log likelihoods
    are given up instead.
    """
    fit = chains()
    size = sum(np.prod(x.shape[2:]) for x in fit.posterior.draws.values())
    table = fit.data.num_rows * fit.data.num_columns
    monkeypatch.setattr(bridge, "LEAST", 10)
    monkeypatch.setattr(bridge, "MOST_NUMBERS", 20 * int(size + 2 * table))
    tree = fit.to_arviz()
    assert tree["posterior"]["beta"].shape[:2] == (2, 10)
    assert bridge.has_group(tree, "log_likelihood")
    note = tree["posterior"].attrs["note"]
    assert note.startswith("Of 60 draws 20 were kept, evenly spaced.")
    flat = {s: np.asarray(tree["posterior"][s]).reshape(20, *x.shape[2:])
            for s, x in fit.posterior.draws.items()}  # fmt: skip
    lp = np.asarray(tree["sample_stats"]["lp"]).ravel()
    np.testing.assert_allclose(lp, fit.log_joint(flat), rtol=1e-6)
    monkeypatch.setattr(bridge, "LEAST", 30)
    tree = fit.to_arviz()
    assert not bridge.has_group(tree, "log_likelihood")
    assert "are left out" in tree["posterior"].attrs["note"]
    arguments = ["fit", "lda", "--engine", "gibbs", "--out", str(tmp_path / "out"), "--quiet"]
    arguments += ["--draws", "40"]
    assert main([*arguments, "--set", "num_samples=20", "num_warmup=5", "num_chains=2"]) == 0
    assert "posterior.nc: " in capsys.readouterr().out


def test_new_counts_have_the_means_of_their_rows():
    """n_d times the topics' mixture, under one draw that is repeated: five standard errors of a
    binomial's mean over 2,000 replicates, and every entry must hold. A row and a column swapped, or
    totals of another row, are far outside.
    """
    fit = fitted("lda", num_epochs=3)
    one = {site: fit.posterior.mean(site) for site in fit.posterior.sites}
    flat = {site: np.repeat(x[None], 2000, 0) for site, x in one.items()}
    seen = observations.observations_of(fit, one)
    found = observations.predictions(fit, flat, seen)
    totals = np.asarray(fit.data.matrix.sum(1)).reshape(-1, 1)
    share = (one["theta"] @ one["beta"]).reshape(-1)[seen.entries]
    number = np.broadcast_to(totals, (fit.data.num_rows, fit.data.num_columns)).reshape(-1)
    number = number[seen.entries]
    error = np.sqrt(number * share * (1 - share) / 2000)
    np.testing.assert_array_less(np.abs(found.mean(0) - number * share), 5 * error)
