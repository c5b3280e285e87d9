"""Extreme priors and counts in single precision, the default: priors of 1e-6, counts of a million,
a thousand topics. No number is lost or wrong.

Draws and shapes underflow there: a gamma variable of shape 1e-6 is below what single precision can
hold nearly always.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import inference
import pp_models
from inference.core.registry import engines, load_engine
from pp_models.errors import Diverged, InputError

SMALL = np.random.default_rng(0).poisson(1.0, (12, 8))
TINY = 8e-6  # c0: with 8 columns, c0 / V = 1e-6
CASES = {
    "lda": {
        "tiny": {"alpha": 1e-6, "eta": 1e-6},
        "many counts": {},
        "many topics": {"num_topics": 1000},
    },
    "bayesian_nmf": {
        "tiny": {"a0": 1e-6, "c0": TINY},
        "many counts": {},
        "many topics": {"num_topics": 1000},
    },
    "correlated_nmf": {"tiny": {"c0": TINY}},
    "ctm": {"tiny": {"eta": 1e-6}, "many counts": {}},
    "hpf": {"many counts": {}, "many topics": {"num_topics": 1000}},
}
FAST = {
    ("lda", "tiny", "cavi"),
    ("bayesian_nmf", "tiny", "gibbs"),
    ("lda", "many counts", "cavi"),
}
UNTRIED = {"nuts", "numpyro_svi"}  # with a thousand topics they compile for minutes


def pairs():
    for model, cases in CASES.items():
        for case in cases:
            for engine in engines():
                many = case == "many topics" and engine in UNTRIED
                counted = (
                    case == "many counts" and "gibbs" in engine
                )  # which refuse them, tested with them
                said = (model, case, engine) == ("ctm", "many counts", "numpyro_svi")  # below
                if (
                    not load_engine(engine).suits(pp_models.load(model))
                    and not many
                    and not counted
                    and not said
                ):
                    yield pytest.param(
                        model,
                        case,
                        engine,
                        marks=() if (model, case, engine) in FAST else pytest.mark.slow,
                    )


def problem(model, case):
    counts = SMALL * 10**6 if case == "many counts" else SMALL
    return pp_models.data.counts(counts), {"num_topics": 3, **CASES[model][case]}


@pytest.mark.parametrize(("model", "case", "engine"), list(pairs()))
def test_every_number_is_finite(model, case, engine, quick):
    """Means, standard deviations, draws, and the log joint density of draws."""
    data, hyper = problem(model, case)
    with jax.enable_x64(False):
        fit = inference.fit(
            model, data, engine, hyper, jax.random.key(0), progress=False, **quick[engine]
        )
        draws = fit.posterior.sample(jax.random.key(1), 20)
        for site in fit.model.families:
            for found in (fit.posterior.mean(site), fit.posterior.sd(site), draws[site]):
                assert np.all(np.isfinite(found)), site
        assert np.all(np.isfinite(fit.log_joint(draws)))


@pytest.mark.parametrize(
    ("model", "case"),
    [
        pytest.param(model, case, marks=() if (model, case, "cavi") in FAST else pytest.mark.slow)
        for model in ("lda", "bayesian_nmf")
        for case in CASES[model]
    ],
)
def test_the_bound_is_that_of_double_precision(model, case):
    """From one starting point, four sweeps.

    1e-4 of the bound: 1e-7 times the hundreds of terms, some larger than itself, that it is a sum
    of.
    """
    data, hyper = problem(model, case)
    bounds, start = [], {}
    for double in (False, True):
        with jax.enable_x64(double):
            if not start:
                begun = inference.fit(
                    model, data, "cavi", hyper, jax.random.key(0), progress=False, num_epochs=3
                )
                start = {
                    site: jax.tree.map(np.asarray, begun.posterior.natural(site))
                    for site in begun.model.shared
                }
            init = jax.tree.map(lambda x: jnp.asarray(x, float), start)
            fit = inference.fit(
                model,
                data,
                "cavi",
                hyper,
                jax.random.key(0),
                progress=False,
                init=init,
                num_epochs=4,
                tolerance=0.0,
                num_local=50,
            )
            bounds.append(fit.history["bound"])
    np.testing.assert_allclose(bounds[0], bounds[1], rtol=1e-4)


@pytest.mark.slow
def test_what_single_precision_cannot_hold_is_said():
    """Rows of ten million tokens put log-normal locations where precisions differ by 1e8: the run
    is stopped. Double precision holds it.
    """
    data = pp_models.data.counts(SMALL * 10**6)
    options = {"num_epochs": 8, "tolerance": 0.0, "progress": False}
    with (
        jax.enable_x64(False),
        pytest.raises(
            Diverged,
            match=r"seven digits, and single precision may not hold it: try .*jax_enable_x64",
        ),
    ):
        inference.fit(
            "correlated_nmf", data, "cavi", {"num_topics": 3}, jax.random.key(0), **options
        )
    assert np.all(
        np.diff(
            inference.fit(
                "correlated_nmf", data, "cavi", {"num_topics": 3}, jax.random.key(0), **options
            ).history["bound"]
        )
        > 0
    )


@pytest.mark.slow
def test_scales_that_single_precision_cannot_hold_are_said():
    """Adam, on a million tokens in every cell, leaves standard deviations of 1e-8 beside those of
    0.1.
    """
    data, hyper = problem("ctm", "many counts")
    with (
        jax.enable_x64(False),
        pytest.raises(
            Diverged,
            match=r"ctm by numpyro_svi went wrong in y: its parameters belong to no distribution",
        ),
    ):
        inference.fit(
            "ctm", data, "numpyro_svi", hyper, jax.random.key(0), progress=False, num_epochs=20
        )


def test_hyper_parameters_that_would_become_zero_or_infinite_are_refused():
    with jax.enable_x64(False):
        for value in (1e-39, 1e39):
            with pytest.raises(InputError, match=r"eta must be from 1e-38 to 3e\+38"):
                inference.fit(
                    "lda", pp_models.data.counts(SMALL), "cavi", {"num_topics": 3, "eta": value}
                )
    with pytest.raises(InputError, match="as a shape, rate, variance or concentration is"):
        inference.fit("lda", pp_models.data.counts(SMALL), "cavi", {"num_topics": 3, "eta": 0.0})
