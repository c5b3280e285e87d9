"""`generate` as NumPyro users call it, and models in words (users.md 15)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.infer.util import log_density

import pp_models
from pp_models.errors import InputError
from pp_models.model import guide_of, simulate


def problem(name):
    model = pp_models.load(name)
    hyper, data = model.example(jax.random.key(0))
    return model, model.make_hyper(hyper, data), data


def traced(program, *arguments):
    return handlers.trace(handlers.seed(program, jax.random.key(3))).get_trace(*arguments)


@pytest.mark.parametrize("name", ["lda", "pmf", "lg_nmf_votes", "gaussian_mixture"])
def test_data_are_as_good_as_a_batch(name):
    """`generate` and the guide of `Data`, with hyper-parameters as `fit` takes them, are those of
    the packed batch with all of them filled in."""
    model, hyper, data = problem(name)
    given = model.example(jax.random.key(0))[0]._asdict()
    for program in (model.generate, guide_of(model)):
        plain, packed = traced(program, given, data), traced(program, hyper, data.pack())
        assert plain.keys() == packed.keys()
        for site in plain:
            np.testing.assert_array_equal(plain[site].get("value"), packed[site].get("value"))


def test_defaults_are_filled_in():
    """None stands for the defaults: those of PMF come from the ratings."""
    model, _, data = problem("pmf")
    sites = traced(model.generate, None, data)
    assert sites["u"]["fn"].event_shape == (model.Hyper().rank,)


def test_a_batch_without_all_hyper_parameters_is_refused():
    """A batch does not hold what defaults are made from; the sentence says what to do."""
    model, _, data = problem("pmf")
    for given in (None, {"rank": 2}):
        with pytest.raises(InputError, match=r"model\.make_hyper\(hyper, data\)"):
            traced(model.generate, given, data.pack())
    with pytest.raises(InputError, match="Did you mean 'rank'"):
        traced(model.generate, {"rnk": 2}, data)


def test_hyper_parameters_may_be_traced():
    """The log density's gradient with respect to a hyper-parameter, through `Data`."""
    model, hyper, data = problem("lda")
    values = simulate(model, hyper, data.pack(), jax.random.key(1))
    del values["counts"]

    def density(eta):
        return log_density(model.generate, (hyper._replace(eta=eta), data), {}, values)[0]

    slope = jax.jit(jax.grad(density))(jnp.asarray(0.7))
    step = 1e-2
    wanted = (density(0.7 + step) - density(0.7 - step)) / (2 * step)
    np.testing.assert_allclose(slope, wanted, rtol=1e-3)


@pytest.mark.parametrize("name", ["lda", "pmf", "lg_nmf_votes"])
def test_predictive_draws_observations(name):
    """`pack(observed=False)`: draws from the prior differ from the data and from each other, and
    are those of `simulate`. Observed batches give the data back."""
    model, hyper, data = problem(name)
    batch = data.pack(observed=False)
    drawn = Predictive(model.generate, num_samples=3)(jax.random.key(1), hyper, batch)
    kept = Predictive(model.generate, num_samples=3)(jax.random.key(1), hyper, data.pack())
    assert np.ptp(drawn[model.observed], axis=0).max() > 0
    assert np.ptp(kept[model.observed], axis=0).max() == 0
    ours = simulate(model, hyper, data.pack(), jax.random.key(3))
    for site, x in traced(model.generate, hyper, batch).items():
        if x["type"] == "sample":
            assert not x["is_observed"]
            np.testing.assert_array_equal(x["value"], ours[site])


def test_posterior_predictive_is_at_the_draws():
    """Given values are kept, and new counts follow from them: all mass on one word of one topic."""
    model, hyper, data = problem("lda")
    k, size = hyper.num_topics, data.num_columns
    beta = np.eye(size)[[2] * k] * (1 - 1e-6 * size) + 1e-6
    theta = np.full((data.num_rows, k), 1 / k)
    draws = {"beta": np.tile(beta, (4, 1, 1)), "theta": np.tile(theta, (4, 1, 1))}
    batch = data.pack(observed=False)
    counts = Predictive(model.generate, draws)(jax.random.key(0), hyper, batch)["counts"]
    np.testing.assert_array_equal(counts[0].sum(1), data.totals)
    assert np.all(counts[..., 2] >= 0.95 * data.totals)


def test_a_changed_model_keeps_its_own_program():
    """`dataclasses.replace` starts from the file's function: hyper-parameters are checked against
    the new model."""
    model, hyper, data = problem("lda")
    other = dataclasses.replace(model, resolve=lambda hyper, data: hyper._replace(num_topics=4))
    assert traced(other.generate, hyper, data)["beta"]["value"].shape[0] == 4
    assert traced(model.generate, hyper, data)["beta"]["value"].shape[0] == hyper.num_topics
    assert other.generate.declared is model.generate.declared and other.name == "lda"


def test_models_in_words():
    """`repr`: name, title, kind of data, every site with its family, defaults, in short lines."""
    assert repr(pp_models.load("lda")) == (
        "Model lda: Latent Dirichlet allocation\n"
        "  data      counts (pp_models.data.counts)\n"
        "  sites     theta (Dirichlet, one per row), beta (Dirichlet)\n"
        "  observed  counts\n"
        "  hyper     num_topics=10, alpha=0.1, eta=0.05"
    )
    for name in pp_models.available():
        model = pp_models.load(name)
        told = repr(model)
        assert all(f" {site} (" in " ".join(told.split()) for site in model.families)
        assert all(f"{field}=" in told for field in model.Hyper._fields)
        assert ("None" in told) == (None in model.Hyper())
        assert max(map(len, told.splitlines()[1:])) <= 100
