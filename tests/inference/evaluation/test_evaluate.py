"""Held-out scores against values worked out by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma

import inference
import pp_models
from inference.core import completion as by_batch
from inference.core.completion import has_topics
from inference.core.tokens import split_tokens
from inference.evaluation import completion, splits
from inference.run import fit as fitting
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
    value = (
        sum(by_hand(topics, 0.1, o.toarray(), h.toarray(), 50) for o, h in split_tokens(data, 3))
        / data.total
    )
    score = inference.document_completion(fit, data, folds=3)
    np.testing.assert_allclose(score.value, value, rtol=1e-6)
    np.testing.assert_allclose(
        score.per_document.sum() / score.num_tokens.sum(), score.value, rtol=1e-12
    )
    assert score.num_tokens.sum() == data.total and score.perplexity == pytest.approx(
        np.exp(-score.value)
    )


def test_splits_partition_the_tokens(data):
    """Every token is held out once, and observed otherwise."""
    parts = split_tokens(data, 4)
    np.testing.assert_array_equal(sum(held.toarray() for _, held in parts), data.matrix.toarray())
    for observed, held in parts:
        np.testing.assert_array_equal(observed.toarray() + held.toarray(), data.matrix.toarray())


def test_splits_are_even(data):
    """The parts of a document differ by one token at most, and every token is as likely in each:
    over documents and seeds a chi-squared test passes.

    40 documents x 20 seeds: 800 draws of the part of a document's first word. Above 13.8 a right
    split comes once in a thousand; the seeds are fixed.
    """
    sizes = np.stack([held.sum(1) for _, held in split_tokens(data, 3)], 1)
    assert np.all(sizes.max(1) - sizes.min(1) <= 1)
    first = data.matrix.indptr[:-1]
    tokens = np.zeros(3)
    for seed in range(20):
        for fold, (_, held) in enumerate(split_tokens(data, 3, seed)):
            tokens[fold] += sum(
                held[[d], [data.matrix.indices[i]]].item() for d, i in enumerate(first)
            )
    expected = tokens.sum() / 3
    assert np.sum((tokens - expected) ** 2) / expected < 13.8


def test_a_document_alone_decides_its_split(data):
    """Among other documents, in another order, with another matrix type, a document is split the
    same way; with another seed, differently.
    """
    order = np.random.default_rng(2).permutation(40)[:17]
    for (observed, _), (again, _) in zip(
        split_tokens(data, 3),
        split_tokens(data.select(order), 3),
        strict=True,
    ):
        np.testing.assert_array_equal(observed.toarray()[order], again.toarray())
    assert np.any(
        split_tokens(data, 3)[0][0].toarray() != split_tokens(data, 3, seed=1)[0][0].toarray()
    )


def test_batches_and_padding_change_nothing(data, fit, monkeypatch):
    """The score does not depend on how many documents are scored at a time, nor on what pads them;
    1e-9 is rounding.
    """
    whole = inference.document_completion(fit, data)
    monkeypatch.setattr(completion, "MOST_ROWS", 7)
    monkeypatch.setattr(by_batch, "ENTRIES", 16)
    np.testing.assert_allclose(
        inference.document_completion(fit, data).per_document, whole.per_document, rtol=1e-9
    )


COUNT_MODELS = ("lda", "bayesian_nmf", "hpf", "correlated_nmf", "ctm", "lg_nmf", "lg_op")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "lda" else pytest.mark.slow) for name in COUNT_MODELS],
)
def test_order_of_documents_changes_nothing(name, data):
    """Documents in another order, in batches of another size, have the same scores, each its own,
    in every model of counts.

    lg_op has no topics, and is scored through all cells. 1e-7: sums of 50 iterations in another
    order.
    """
    fit = inference.fit(name, data, "cavi", {"num_topics": 2}, num_epochs=3)
    order = np.random.default_rng(1).permutation(40)
    straight, turned = (
        inference.document_completion(fit, some, num_local=10)
        for some in (data, data.select(order))
    )
    np.testing.assert_allclose(turned.per_document, straight.per_document[order], rtol=1e-7)
    np.testing.assert_allclose(turned.value, straight.value, rtol=1e-9)


def test_weights_times_topics_is_what_is_predicted(model_name):
    """What scores at single entries rest on: wherever a model of counts has weights and topics,
    `predict` is their product.
    """
    model = pp_models.load(model_name)
    hyper, example = model.example(jax.random.key(0))
    if model.kind != "counts" or not has_topics(model):
        pytest.skip("the model has no weights and topics whose product predicts counts")
    natural = model.init(jax.random.key(1), hyper, example)
    values = {
        site: jnp.asarray(family.value(family.mean(natural[site])))
        for site, family in model.families.items()
    }
    weights = values["theta"] if model.topics is None else model.topics.weights(hyper, values)
    topics = values["beta"] if model.topics is None else model.topics.topics(hyper, values)
    np.testing.assert_allclose(model.predict(hyper, values), weights @ topics, rtol=1e-12)


def test_short_documents(fit):
    """Empty documents count nothing; a document of one token is predicted from the prior alone,
    whose mean proportions are equal.
    """
    topics = fit.posterior.mean("beta")
    score = inference.document_completion(
        fit, pp_models.data.counts(np.eye(12)[[3, 0, 3]] * [[1], [0], [1]])
    )
    np.testing.assert_allclose(
        score.per_document, np.array([1, 0, 1]) * np.log(topics[:, 3].mean()), rtol=1e-10
    )
    np.testing.assert_array_equal(score.num_tokens, [1, 0, 1])


def test_one_topic(data):
    """With one topic nothing is to be inferred: the score is the words' cross-entropy with it,
    whatever the folds.
    """
    fit = inference.fit("lda", data, "cavi", {"num_topics": 1}, num_epochs=5)
    expected = (
        np.asarray(data.matrix.sum(0)).ravel() @ np.log(fit.posterior.mean("beta")[0]) / data.total
    )
    for folds in (2, 5):
        np.testing.assert_allclose(
            inference.document_completion(fit, data, folds=folds).value, expected, rtol=1e-10
        )


def test_a_word_ruled_out(data):
    """A word that a point estimate gives no weight at all counts as one of probability 1e-38, in
    either precision.
    """
    counts = data.matrix.toarray()
    counts[:, 5] = 0
    fit = inference.fit(
        "nmf", pp_models.data.counts(counts), "map", {"num_topics": 2}, num_epochs=20
    )
    heldout = np.zeros((1, 12))
    heldout[0, [4, 5]] = [2, 1]
    score = inference.document_completion(fit, pp_models.data.counts(heldout))
    assert -90 < score.per_document[0] < -87


def test_perplexity(data, fit):
    """H(17): exp of minus the mean log probability of a token; its error is the delta method's."""
    score, found = inference.document_completion(fit, data), inference.perplexity(fit, data)
    assert (
        found.value
        == pytest.approx(np.exp(-score.per_document.sum() / data.total))
        == score.perplexity
    )
    assert found.standard_error == pytest.approx(score.standard_error * score.perplexity)


def test_standard_error(data, fit):
    """The error over documents is that of the bootstrap, within 15 %: 400 resamples leave 4 %, the
    linearisation the rest.
    """
    score = inference.document_completion(fit, data)
    pick = np.random.default_rng(0).integers(0, 40, (400, 40))
    spread = (score.per_document[pick].sum(1) / score.num_tokens[pick].sum(1)).std()
    assert abs(score.standard_error / spread - 1) < 0.15


def test_one_document_does_not_tell_its_error(data, fit):
    """A single document leaves the error over documents unknown, not zero, and so does one among
    empty ones, which change no error.
    """
    alone, among = (pp_models.data.counts(data.matrix.toarray()[:2] * [[1], [k]]) for k in (0, 1))
    more = pp_models.data.counts(np.concatenate([among.matrix.toarray(), np.zeros((5, 12))]))
    for some in (data.select(np.arange(1)), alone):
        assert np.isnan(inference.document_completion(fit, some).standard_error) and np.isnan(
            inference.perplexity(fit, some).standard_error
        )
    errors = [inference.document_completion(fit, some).standard_error for some in (among, more)]
    assert errors[0] == pytest.approx(errors[1]) and errors[0] > 0


@pytest.mark.slow
def test_reuters():
    """On Reuters, too, the score is the formula's, computed apart in NumPy: 1e-4, from single
    precision.
    """
    pytest.importorskip("lda")
    train, heldout, _ = splits.hold_out(pp_models.datasets.load("reuters"), 0.05)
    with jax.enable_x64(False):
        fit = inference.fit("lda", train, "svi", {"num_topics": 20}, num_epochs=3, batch_size=64)
        topics, found = (
            fit.posterior.mean("beta").astype(np.float64),
            inference.document_completion(fit, heldout).value,
        )
    value = (
        sum(by_hand(topics, 0.1, o.toarray(), h.toarray(), 50) for o, h in split_tokens(heldout, 3))
        / heldout.total
    )
    assert abs(found - value) < 1e-4


def test_true_topics_score_above_wrong_ones(data, fit):
    """A better model scores higher."""
    wrong = inference.fit("lda", data.select(np.arange(2)), "cavi", {"num_topics": 3}, num_epochs=5)
    assert (
        inference.document_completion(fit, data).value
        > inference.document_completion(wrong, data).value + 0.1
    )


@pytest.mark.slow
def test_chains_average_predictions_not_topics(data):
    """Relabelling the topics of single draws leaves a chain's score as it was."""
    chain = inference.fit(
        "lda", data, "gibbs", {"num_topics": 3}, num_samples=30, num_warmup=100, num_chains=1
    )
    before = inference.document_completion(chain, data, num_draws=10).value
    rng = np.random.default_rng(1)
    for i in range(30):
        order = rng.permutation(3)
        chain.posterior.draws["beta"][0, i] = chain.posterior.draws["beta"][0, i][order]
        chain.posterior.draws["theta"][0, i] = chain.posterior.draws["theta"][0, i][:, order]
    np.testing.assert_allclose(
        inference.document_completion(chain, data, num_draws=10).value, before, rtol=1e-9
    )


def test_draws_that_are_alike_predict_as_one(data, fit):
    """Probabilities are averaged over draws, not added up."""
    one = fit.posterior.global_values()
    alike = {site: jnp.repeat(x, 2, 0) for site, x in one.items()}
    rows = np.arange(4)
    logs = [
        by_batch.complete_rows(fit.problem, sites, data, rows, by_batch.Plan(4, data.layout(4)))
        for sites in (one, alike)
    ]
    np.testing.assert_allclose(logs[1], logs[0], rtol=1e-10)


def test_normalisation_of_rates(data):
    """Bayesian NMF's rates are normalised over words: with one topic the score is the cross-entropy
    of that topic.
    """
    fit = inference.fit("bayesian_nmf", data, "cavi", {"num_topics": 1}, num_epochs=20)
    topic = fit.posterior.mean("beta")[0]
    expected = np.asarray(data.matrix.sum(0)).ravel() @ np.log(topic / topic.sum()) / data.total
    np.testing.assert_allclose(inference.document_completion(fit, data).value, expected, rtol=1e-10)


def test_hold_out(data):
    """Held-out and training rows are a partition, the same for the same seed."""
    training, heldout, kept = splits.hold_out(data, 0.25, seed=3)
    assert (training.num_rows, heldout.num_rows) == (
        30,
        10,
    ) and training.total + heldout.total == data.total
    np.testing.assert_array_equal(training.matrix.toarray(), data.matrix.toarray()[kept])
    assert splits.hold_out(data, 0.25, seed=3).training.hash == training.hash


def test_bad_input(data, fit):
    """Another vocabulary, other data kinds, too few folds and too few rows are refused in a
    sentence.
    """
    with pytest.raises(InputError, match="same vocabulary"):
        inference.document_completion(fit, pp_models.data.counts(np.ones((3, 5))))
    with pytest.raises(InputError, match="scores counts"):
        inference.document_completion(fit, pp_models.data.dense(np.ones((3, 12))))
    with pytest.raises(InputError, match="at least 2"):
        inference.document_completion(fit, data, folds=1)
    with pytest.raises(InputError, match="models of counts"):
        dense = inference.fit(
            "bernoulli_mixture",
            pp_models.data.dense(np.eye(12)),
            "cavi",
            {"num_components": 2},
            num_epochs=1,
        )
        inference.document_completion(dense, data)
    with pytest.raises(InputError, match="empty: there is nothing to score"):
        inference.document_completion(fit, dataclasses.replace(data, matrix=data.matrix * 0))
    with pytest.raises(InputError, match="Did you mean 'chib'"):
        inference.perplexity(fit, data, "chip")
    with pytest.raises(InputError, match="num_local must be"):
        inference.document_completion(fit, data, num_local=0)
    with pytest.raises(InputError, match="two of them"):
        splits.hold_out(data.select(np.arange(1)))


def test_vocabularies_with_names(data):
    """Words in another order, or other words, are refused, also by a fit that was stored; words
    without names are taken on trust.
    """
    words = [f"w{v}" for v in range(12)]
    named = dataclasses.replace(data, column_names=tuple(words))
    fit = inference.fit("lda", named, "cavi", {"num_topics": 2}, num_epochs=1)
    score = inference.document_completion(fit, data).value
    assert inference.document_completion(fit, named).value == score
    with pytest.raises(InputError, match="in another order"):
        inference.document_completion(
            fit, dataclasses.replace(data, column_names=tuple(words[::-1]))
        )


def test_single_precision(data, fit):
    """Scored in the default precision, the same topics get the same score within 1e-4 nats."""
    exact = inference.document_completion(fit, data).value
    start = np.asarray(fit.posterior.natural("beta"), np.float32)
    with jax.enable_x64(False):
        again = inference.fit(
            "lda", data, "cavi", {"num_topics": 3}, num_epochs=1, init={"beta": jnp.asarray(start)}
        )
        again.posterior._shared["beta"] = jnp.asarray(start)
        single = inference.document_completion(again, data).value
    assert abs(single - exact) < 1e-4


# While learning -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "engine",
    [
        "svi",
        pytest.param("trust_region", marks=pytest.mark.slow),
        pytest.param("stochastic_map", marks=pytest.mark.slow),
    ],
)
def test_batches_are_scored_before_they_are_learned_from(data, engine):
    """Every third batch's score is that of a fit which stopped just before it, on documents that it
    has not seen; the fit itself stays the same.

    Bit for bit: the same draws, the same steps. The batches of a pass over the data are a
    partition, so with one epoch each is new.
    """
    options = {
        "num_epochs": 1,
        "batch_size": 4,
        **({"basis": "log"} if engine == "stochastic_map" else {}),
    }
    plain, scored = (
        inference.fit("lda", data, engine, {"num_topics": 3}, evaluate_every=every, **options)
        for every in (0, 3)
    )
    np.testing.assert_array_equal(plain.posterior.mean("beta"), scored.posterior.mean("beta"))
    np.testing.assert_array_equal(plain.history["bound"], scored.history["bound"])
    assert "heldout" not in plain.history and scored.history["heldout"].shape == (10,)
    np.testing.assert_array_equal(
        np.isfinite(scored.history["heldout"]), (np.arange(10) + 1) % 3 == 0
    )

    chosen = fitting.load_engine(engine)
    checked = chosen.settle(fitting.make_options(chosen, options), data)
    problem = fitting.make_problem("lda", data, {"num_topics": 3})
    algorithm = chosen.build(problem, checked)
    init_key, batch_key, step_key = jax.random.split(jax.random.key(0), 3)
    state, seen = algorithm.init(init_key, {}), set()
    for step, batches in enumerate(fitting.feed(chosen, checked, problem, batch_key, 10)):
        rows = {
            int(i)
            for batch in batches
            for i, real in zip(batch.positions, batch.mask, strict=True)
            if real
        }
        assert not rows & seen
        if (step + 1) % 3 == 0:
            now = fitting.Fit(problem, engine, {}, algorithm.posterior(state), {}, 0.0)
            wanted = inference.document_completion(now, data.select(np.array(sorted(rows)))).value
            assert scored.history["heldout"][step] == pytest.approx(wanted, rel=1e-8)
        seen |= rows
        state, _ = algorithm.step(jax.random.fold_in(step_key, step), state, batches)
    assert len(seen) == 40


def test_scoring_while_learning_refused():
    """Engines without batches, data that are no documents, and numbers that are none are refused in
    a sentence.
    """
    counts, dense = pp_models.data.counts(np.ones((4, 3))), pp_models.data.dense(np.eye(4))
    for arguments, every, message in (
        (("lda", counts, "cavi"), 10, "use one of .*svi"),
        (("bernoulli_mixture", dense, "svi"), 10, "scores documents"),
        (("lda", counts, "svi"), -1, "whole number"),
    ):
        with pytest.raises(InputError, match=message):
            inference.fit(*arguments, evaluate_every=every)
