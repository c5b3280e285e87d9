"""Sweeps of coordinate ascent from a fit's answer."""

import jax
import numpy as np
import pytest

import inference
from inference.comparison.loop import climb
from inference.run.polish import polish
from pp_models import datasets
from pp_models import models as discovery


@pytest.fixture(scope="module")
def problem():
    hyper, data, _ = datasets.synthetic(
        discovery.load("lda"), jax.random.key(1), num_rows=40, num_columns=15
    )
    return hyper, data


def fitted(problem, engine, **options):
    hyper, data = problem
    return inference.fit("lda", data, engine, hyper, progress=False, **options)


def test_sweeps_raise_the_bound_of_a_fit_that_was_cut_short_and_not_of_a_converged_one(problem):
    """Two sweeps are far from the end. After two thousand nothing is left but rounding: 0.01 nats,
    as the bound of -1,200 nats is a sum of single-precision terms.
    """
    short = fitted(problem, "cavi", num_epochs=2)
    better = polish(short)
    assert better.bound > short.bound + 10
    rest = polish(fitted(problem, "cavi", num_epochs=2000, tolerance=1e-9))
    again = polish(rest)
    assert again.bound == pytest.approx(rest.bound, abs=0.01)


def test_the_climb_of_a_fit_is_at_most_that_of_its_bound(problem):
    """With an ELBO far above, as of an engine that maximises that, sweeps raise nothing."""
    short, key = fitted(problem, "cavi", num_epochs=2), jax.random.key(0)
    rise = polish(short).bound - short.bound
    assert climb(short, None, None, key, 100) == pytest.approx(rise)
    assert climb(short, 1e6, 0.1, key, 100) == 0
    assert 0 < climb(short, -1e6, 0.1, key, 100) <= rise + 1e-9


def test_points_have_no_bound_to_raise(problem):
    assert polish(fitted(problem, "map", num_epochs=3)) is None
    assert np.isnan(fitted(problem, "gibbs", num_samples=4, num_warmup=1).bound)
