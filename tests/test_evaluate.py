"""Held-out scores against values worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma

import inference
import pp_models
from inference import evaluate
from pp_models.errors import InputError


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    topics, proportions = rng.dirichlet(np.full(12, 0.2), 3), rng.dirichlet(np.full(3, 0.3), 40)
    return pp_models.data.counts(np.stack([rng.multinomial(50, p) for p in proportions @ topics]))


@pytest.fixture(scope="module")
def fit(data):
    return inference.fit("lda", data, "cavi", {"num_topics": 3}, num_epochs=60)


def by_hand(topics, alpha, observed, held, num_local):
    """Document completion for LDA in NumPy, one document at a time, straight from the formulas."""
    total = 0.0
    log_beta = np.log(topics)
    for seen, hidden in zip(observed, held, strict=True):
        gamma = np.full(len(topics), alpha)
        for _ in range(num_local):
            phi = np.exp(digamma(gamma)[:, None] + log_beta)
            gamma = alpha + (seen * phi / phi.sum(0)).sum(1)
        total += hidden @ np.log(gamma / gamma.sum() @ topics)
    return total


def test_lda_completion_by_hand(data, fit):
    """The threefold score equals a second implementation that shares no code."""
    topics = fit.posterior.mean("beta")
    value = sum(by_hand(topics, 0.1, o.toarray(), h.toarray(), 50) for o, h in evaluate.split_tokens(data, 3)) / data.total
    score = inference.document_completion(fit, data, folds=3)
    np.testing.assert_allclose(score.value, value, rtol=1e-6)
    np.testing.assert_allclose(score.per_document.sum() / score.num_tokens.sum(), score.value, rtol=1e-12)
    assert score.num_tokens.sum() == data.total and score.perplexity == pytest.approx(np.exp(-score.value))


def test_splits_partition_the_tokens(data):
    """Every token is held out once, and observed otherwise."""
    parts = evaluate.split_tokens(data, 4)
    np.testing.assert_array_equal(sum(held.toarray() for _, held in parts), data.matrix.toarray())
    for observed, held in parts:
        np.testing.assert_array_equal(observed.toarray() + held.toarray(), data.matrix.toarray())


def test_batching_changes_nothing(data, fit, monkeypatch):
    """The score does not depend on how many documents are scored at a time."""
    whole = inference.document_completion(fit, data)
    monkeypatch.setattr(evaluate, "MOST_CELLS", 12 * 7)
    np.testing.assert_allclose(inference.document_completion(fit, data).per_document, whole.per_document, rtol=1e-9)


def test_true_topics_score_above_wrong_ones(data, fit):
    """A better model scores higher."""
    wrong = inference.fit("lda", data.select(np.arange(2)), "cavi", {"num_topics": 3}, num_epochs=5)
    assert inference.document_completion(fit, data).value > inference.document_completion(wrong, data).value + 0.1


@pytest.mark.slow
def test_chains_average_predictions_not_topics(data):
    """Relabelling the topics of single draws leaves a chain's score as it was."""
    chain = inference.fit("lda", data, "gibbs", {"num_topics": 3}, num_samples=30, num_warmup=100, num_chains=1)
    before = inference.document_completion(chain, data, num_draws=10).value
    rng = np.random.default_rng(1)
    for i in range(30):
        order = rng.permutation(3)
        chain.posterior.draws["beta"][0, i] = chain.posterior.draws["beta"][0, i][order]
        chain.posterior.draws["theta"][0, i] = chain.posterior.draws["theta"][0, i][:, order]
    np.testing.assert_allclose(inference.document_completion(chain, data, num_draws=10).value, before, rtol=1e-9)


def test_normalisation_of_rates(data):
    """Bayesian NMF's rates are normalised over words: with one topic the score is the cross-entropy of that topic."""
    fit = inference.fit("bayesian_nmf", data, "cavi", {"num_topics": 1}, num_epochs=20)
    topic = fit.posterior.mean("beta")[0]
    expected = np.asarray(data.matrix.sum(0)).ravel() @ np.log(topic / topic.sum()) / data.total
    np.testing.assert_allclose(inference.document_completion(fit, data).value, expected, rtol=1e-10)


def test_hold_out(data):
    """Held-out and training rows are a partition, the same for the same seed."""
    training, heldout, kept = evaluate.hold_out(data, 0.25, seed=3)
    assert (training.num_rows, heldout.num_rows) == (30, 10) and training.total + heldout.total == data.total
    np.testing.assert_array_equal(training.matrix.toarray(), data.matrix.toarray()[kept])
    assert evaluate.hold_out(data, 0.25, seed=3).training.hash == training.hash


def test_bad_input(data, fit):
    """Another vocabulary, other data kinds, too few folds and too few rows are refused in a sentence."""
    with pytest.raises(InputError, match="same vocabulary"):
        inference.document_completion(fit, pp_models.data.counts(np.ones((3, 5))))
    with pytest.raises(InputError, match="scores counts"):
        inference.document_completion(fit, pp_models.data.dense(np.ones((3, 12))))
    with pytest.raises(InputError, match="at least 2"):
        inference.document_completion(fit, data, folds=1)
    with pytest.raises(InputError, match="two of them"):
        evaluate.hold_out(data.select(np.arange(1)))


def test_single_precision(data, fit):
    """Scored in the default precision, the same topics get the same score within 1e-4 nats."""
    exact = inference.document_completion(fit, data).value
    start = np.asarray(fit.posterior.natural("beta"), np.float32)
    with jax.enable_x64(False):
        again = inference.fit("lda", data, "cavi", {"num_topics": 3}, num_epochs=1, init={"beta": jnp.asarray(start)})
        again.posterior._shared["beta"] = jnp.asarray(start)
        single = inference.document_completion(again, data).value
    assert abs(single - exact) < 1e-4
