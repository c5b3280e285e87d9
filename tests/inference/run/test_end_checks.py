"""Warnings about a finished fit: copies of factors, and nothing about factors that are apart; a
bound that still rose, and nothing about one that only scattered."""

import warnings

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


# A bound that still rises ---------------------------------------------------------------------


def rising(means, seed=0, per_pass=8, size=10, last=3, sd=50.0, rate=0.2):
    """What is said of passes with these mean bounds per row, whose rows differ by `sd`."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(0.0, sd, (per_pass - 1) * size + last)
    sizes = end_checks.batch_sizes(len(means) * per_pass, len(rows), size)
    bounds = []
    for mean in means:
        batches = np.split(rng.permutation(rows), np.arange(size, len(rows), size))
        bounds += [mean + batch.mean() + rng.normal(0, 0.01) for batch in batches]
    rates = np.full(len(bounds), rate)
    return end_checks.still_rising("lda by svi", bounds, rates, sizes, per_pass)


def test_a_bound_at_rest_is_not_said_to_rise():
    """200 flat runs with the noise of rows and steps: none is said to rise. A pass weights all rows
    alike, its short last batch included, and the rise must be four standard errors."""
    for passes in (3, 8, 25, 63):
        means = np.concatenate([[-300.0], np.full(passes - 1, -200.0)])
        assert not any(rising(means, seed) for seed in range(40))


@pytest.mark.parametrize("passes", [8, 25, 63])
def test_a_bound_that_rises_is_said_to_rise(passes):
    """Evenly by a tenth of its rise in the last eighth: 20 runs of 20, although rows differ by much
    more; the figure is the rise of so many passes, to the noise of the passes (1 %)."""
    means = -300 + 100 * np.arange(passes) / passes
    length = max(3, passes // 8)
    for seed in range(20):
        said = rising(means, seed)
        assert f"Set num_epochs above {passes}." in said and f"last {length} passes" in said
        figure = float(said.split("about ")[1].split(" nats")[0])
        np.testing.assert_allclose(figure, 100 * length / passes, rtol=0.01)


def test_short_steps_count_for_more():
    """A bound that creeps because steps have become short has not come to rest: lower kappa."""
    means = -200 - 100 * np.exp(-np.arange(25.0)) + 0.05 * np.arange(25)
    assert not rising(means, rate=0.2)
    assert "lower kappa" in rising(means, rate=0.01)


@pytest.mark.parametrize("engine", ["svi", "trust_region"])
def test_fits_that_end_early_say_so(engine):
    """A rate that falls fast; the default settings say nothing, and without estimates of the bound
    nothing can be said."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(30, 0.1), 3)
    rows = [rng.multinomial(80, p) for p in rng.dirichlet(np.full(3, 0.3), 60) @ topics]
    given = "lda", pp_models.data.counts(rows), engine, {"num_topics": 3}, jax.random.key(0)
    slow = {"kappa": 0.9, "tau": 10.0, "num_epochs": 25}
    with pytest.warns(UserWarning, match=f"lda by {engine} had not converged"):
        inference.fit(*given, progress=False, **slow)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*had not converged")
        inference.fit(*given, progress=False, bound_every=0, **slow)
        inference.fit(*given, progress=False, tolerance=0.5, **slow)  # ends at its tolerance
        inference.fit(*given, progress=False)
