"""Warnings about a finished fit: copies of factors, and nothing about factors that are apart."""

import jax
import numpy as np
import pytest

import inference
import pp_models
from inference.core.posteriors import Point
from inference.run import end_checks

COPIED = "2 of the 3 factors of lda are copies of another (1, 3)"


def lda_at(topics, weights):
    """A point of LDA with these topics and weights of documents."""
    rng = np.random.default_rng(0)
    data = pp_models.data.counts(rng.poisson(2.0, (len(weights), len(topics[0]))))
    fit = inference.fit(
        "lda",
        data,
        "map",
        {"num_topics": 3, "alpha": 1.5, "eta": 1.5},
        num_epochs=1,
        progress=False,
    )
    point = Point(fit.problem, {})
    point.values = {"beta": np.array(topics), "theta": np.array(weights)}
    return point


def test_copies_are_named_and_unused_factors_are_not():
    """Two topics alike; two alike of which one has no weight; two as flat as the prior."""
    one, other = [0.6, 0.2, 0.1, 0.1], [0.1, 0.1, 0.2, 0.6]
    even = np.full((6, 3), 1 / 3)
    assert COPIED in next(end_checks.copies(lda_at([one, other, one], even)))
    light = np.tile([0.6, 0.39, 0.01], (6, 1))
    flat = [0.25] * 4
    for topics, weights in (([one, other, one], light), ([flat, other, flat], even)):
        assert not list(end_checks.copies(lda_at(topics, weights)))
    assert "All factors of lda are flat" in next(end_checks.copies(lda_at([flat] * 3, even)))


@pytest.mark.parametrize("engine", ["cavi", "svi", "gibbs"])
def test_topics_that_are_apart_are_no_copies(engine):
    """Warnings are errors here. More topics than there are: those left over are not in use."""
    rng = np.random.default_rng(1)
    topics = rng.dirichlet(np.full(30, 0.1), 3)
    rows = [rng.multinomial(80, p) for p in rng.dirichlet(np.full(3, 0.3), 60) @ topics]
    options = {"num_samples": 100, "num_warmup": 100} if engine == "gibbs" else {"num_epochs": 40}
    hyper = {"num_topics": 6}
    counts = pp_models.data.counts(rows)
    inference.fit("lda", counts, engine, hyper, jax.random.key(0), progress=False, **options)
