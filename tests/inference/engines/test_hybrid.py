"""Laws of `hybrid`: its sweeps are those of other engines, and a failed trial is undone."""

import jax
import numpy as np
import pytest

import inference
import pp_models
from inference.core import completion
from inference.engines import hybrid
from inference.run import fit as fitting
from pp_models.elimination import starts
from pp_models.errors import InputError

HYPER = {"num_topics": 3, "alpha": 0.2, "eta": 0.1}


def corpus(num_rows=60, num_columns=25, seed=3):
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(num_columns, 0.1), 3)
    return pp_models.data.counts(
        np.array(
            [rng.multinomial(40, p) for p in rng.dirichlet(np.full(3, 0.2), num_rows) @ topics]
        )
    ), topics


def start_of(data):
    return np.asarray(
        pp_models.load("lda").init(jax.random.key(5), pp_models.load("lda").Hyper(**HYPER), data)[
            "beta"
        ]
    )


def test_sweeps_with_means_are_those_of_map_in_logarithms():
    """Without batches and with the means of rows, a sweep is one of map with basis="log"."""
    data, _ = corpus()
    begin = start_of(data)
    named = {"num_epochs": 5, "num_local": 3, "progress": False, "tolerance": 0.0}
    found = inference.fit(
        "lda", data, "hybrid", HYPER, init={"beta": begin}, num_passes=0, rows="mean", **named
    )
    point = inference.fit(
        "lda",
        data,
        "map",
        HYPER,
        init={"beta": begin / begin.sum(1, keepdims=True)},
        basis="log",
        **named,
    )
    np.testing.assert_allclose(
        found.posterior.mean("beta"), point.posterior.mean("beta"), rtol=1e-9
    )


def test_the_first_sweep_with_geometric_means_is_a_step_of_svi():
    """Rows solved to their end: a step of svi with weights="mean" on all rows at rate 1.

    Later sweeps begin where their rows were, which svi's do not, so that rows may rest elsewhere.
    """
    data, _ = corpus()
    begin, named = start_of(data), {"num_epochs": 1, "num_local": 2000, "progress": False}
    found = inference.fit(
        "lda", data, "hybrid", HYPER, init={"beta": begin}, num_passes=0, rows="geometric", **named
    )
    all_rows = {
        "batch_size": data.num_rows,
        "local_tolerance": 1e-13,
        "kappa": 0.0,
        "weights": "mean",
    }
    same = inference.fit("lda", data, "svi", HYPER, init={"beta": begin}, **all_rows, **named)
    np.testing.assert_allclose(found.posterior.mean("beta"), same.posterior.mean("beta"), rtol=1e-9)


@pytest.mark.parametrize("helps", [True, False])
def test_a_trial_that_does_not_help_leaves_no_trace(helps, monkeypatch):
    """Rows set aside are scored before and after the trial, which is undone if they are worse."""
    data, _ = corpus(num_rows=420)
    problem = fitting.make_problem("lda", data, HYPER, devices=jax.local_devices()[:1])
    options = hybrid.settle(hybrid.Options(tolerance=0.0), data)
    scores = iter([-1.0, -0.5 if helps else -2.0])
    monkeypatch.setattr(
        completion,
        "complete_rows",
        lambda problem, shared, data, rows, plan: np.full(
            len(rows), next(scores) * data.totals[rows].mean()
        ),
    )
    algorithm = hybrid.build(problem, options)
    state = algorithm.init(jax.random.key(0), {})
    seen, told = [], []
    for step in range(hybrid.batches_of(options, data) + hybrid.FIRST + hybrid.TRIAL):
        state, info = algorithm.step(jax.random.key(step), state, None)
        seen.append(np.asarray(state.shared["beta"]))
        told.append(info.score)
    assert [round(score, 9) for score in told if score is not None] == [
        -1.0,
        -0.5 if helps else -2.0,
    ]
    assert state.weights == (hybrid.Weights.MEAN if helps else hybrid.Weights.GEOMETRIC)
    assert np.array_equal(seen[-1], seen[-1 - hybrid.TRIAL]) != helps
    before = state
    state, _ = algorithm.step(
        jax.random.key(99), state, None
    )  # and goes on, without another trial, with all rows
    np.testing.assert_allclose(
        np.asarray(state.shared["beta"]).sum(), data.total + HYPER["eta"] * 75, rtol=1e-9
    )
    assert state.weights == before.weights and not np.array_equal(
        state.shared["beta"], before.shared["beta"]
    )


@pytest.mark.slow
def test_planted_topics_are_found():
    """From documents, with nothing but the number of topics."""
    data, topics = corpus(num_rows=500)
    fit = inference.fit("lda", data, "hybrid", {"num_topics": 3, "alpha": "learn"}, progress=False)
    assert (
        max(np.abs(fit.posterior.mean("beta") - topic).sum(1).min() for topic in topics) < 0.15
    )  # of 2
    assert np.isfinite(fit.history["score"]).sum() == 2 and np.all(np.asarray(fit.hyper.alpha) < 1)


def test_starts_are_distributions_that_differ():
    data, _ = corpus()
    found = np.asarray(starts.from_rows(jax.random.key(0), data, 4))
    assert found.shape == (4, 25) and found.min() > 0
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    assert np.abs(found[:1] - found[1:]).max(1).min() > 1e-3
    np.testing.assert_array_equal(found, starts.from_rows(jax.random.key(0), data, 4))
    empty = pp_models.data.counts(np.array([[0, 0, 0], [0, 1, 0]]))
    np.testing.assert_allclose(
        np.asarray(starts.from_rows(jax.random.key(1), empty, 2)).sum(1), 1, rtol=1e-6
    )


def test_refusals():
    data, _ = corpus()
    with pytest.raises(InputError, match="geometric"):
        inference.fit("lda", data, "hybrid", HYPER, rows="median")
    with pytest.raises(InputError, match="cavi or svi"):
        inference.fit("gaussian_mixture", pp_models.data.dense(np.ones((5, 2))), "hybrid")
