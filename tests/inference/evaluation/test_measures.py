"""Rankings, coherence and information criteria against scikit-learn, ArviZ and formulas written out
again.
"""

import arviz
import numpy as np
import pytest
from sklearn import metrics

import inference
import pp_models
from inference.core.posteriors import Draws, Point
from inference.evaluation import measures, ranking, splits
from inference.io import arviz as arviz_bridge
from inference.run import fit as fitting
from pp_models.errors import InputError


@pytest.fixture(scope="module")
def corpus():
    """Topics with words of their own, and documents drawn from them."""
    rng = np.random.default_rng(5)
    topics = rng.dirichlet(np.full(30, 0.1), 4)
    proportions = rng.dirichlet(np.full(4, 0.2), 60)
    return topics, pp_models.data.counts(
        np.stack([rng.multinomial(40, p) for p in proportions @ topics])
    )


def point(topics, data, alpha=0.2):
    """A point estimate that is not fitted but set."""
    problem = fitting.make_problem("lda", data, {"num_topics": len(topics), "alpha": alpha})
    posterior = Point(problem, {})
    posterior.values = {
        "beta": np.asarray(topics),
        "theta": np.full((data.num_rows, len(topics)), 1 / len(topics)),
    }
    return fitting.Fit(problem, "map", {}, posterior, {}, 0.0)


def wrong(topics):
    """The same topics with every one's words shuffled."""
    return np.random.default_rng(1).permuted(topics, axis=1)


# Rankings -----------------------------------------------------------------------------------------


def by_hand(topics, alpha, observed, held, M, num_local=50):
    """T(24)-(25) one row at a time."""
    from scipy.special import digamma

    precision, recall = [], []
    for seen, hidden in zip(observed, held, strict=True):
        gamma = np.full(len(topics), alpha)
        for _ in range(num_local):
            phi = np.exp(digamma(gamma))[:, None] * topics
            gamma = alpha + (seen * phi / phi.sum(0)).sum(1)
        height = gamma / gamma.sum() @ topics
        ranked = [v for v in np.argsort(-height, kind="stable") if seen[v] == 0][:M]
        liked = set(np.flatnonzero(hidden))
        hits = len(liked & set(ranked))
        precision.append(hits / min(len(liked), len(ranked)) if liked else np.nan)
        recall.append(hits / len(liked) if liked else np.nan)
    return np.array(precision), np.array(recall)


@pytest.mark.parametrize("M", [1, 5, 100])
def test_precision_and_recall_by_hand(corpus, M):
    """Every row's terms equal the formulas'; M may exceed the number of columns; rows with nothing
    held out are left out of the mean.
    """
    topics, data = corpus
    counts = data.matrix.toarray()
    counts[7] = 0
    counts[8] = np.eye(30)[3]
    data = pp_models.data.counts(counts)
    observed, held = splits.split_columns(data)
    found = inference.precision_recall_at(point(topics, data), data, M)
    wanted = by_hand(topics, 0.2, observed.matrix.toarray(), held.matrix.toarray(), M)
    for measure, terms in zip(found, wanted, strict=True):
        np.testing.assert_allclose(measure.terms, terms, rtol=1e-12)
        assert np.isnan(measure.terms[[7, 8]]).all() and measure.value == pytest.approx(
            np.nanmean(terms)
        )


def test_rankings_agree_with_scikit_learn(corpus):
    """Recall is scikit-learn's over samples; so is precision times M / min(|L|, M); with one column
    held out recall is top-k accuracy.
    """
    topics, data = corpus
    observed, held = splits.split_columns(data)
    fit, M = point(topics, data), 5
    found = inference.precision_recall_at(fit, held, M, observed=observed)
    problem = fit.problem
    draws = {"beta": topics[None]}
    best, _ = ranking._best(
        problem.model, problem.hyper, draws, observed.pack(), ranking.RowOptions(50, 0.0), M
    )
    predicted = np.zeros(data.matrix.shape, int)
    np.put_along_axis(predicted, np.asarray(best), 1, axis=1)
    liked = (held.matrix.toarray() > 0).astype(int)
    assert found.recall.value == pytest.approx(
        metrics.recall_score(liked, predicted, average="samples", zero_division=0)
    )
    size = liked.sum(1)
    plain = [
        metrics.precision_score(a, b, zero_division=0)
        for a, b in zip(liked, predicted, strict=True)
    ]
    np.testing.assert_allclose(
        found.precision.terms, plain * np.asarray(M / np.minimum(size, M)), rtol=1e-12
    )
    one = liked * (np.cumsum(liked, 1) == 1)
    single = inference.precision_recall_at(fit, pp_models.data.counts(one), M, observed=observed)
    assert single.recall.value == pytest.approx(
        metrics.top_k_accuracy_score(one.argmax(1), predicted, k=M, labels=np.arange(30))
    )


def test_rankings_do_not_depend_on_order_or_batches(corpus, monkeypatch):
    """Rows in another order, in smaller batches, have the same terms."""
    topics, data = corpus
    order = np.random.default_rng(0).permutation(60)
    fit = point(topics, data)
    straight = inference.precision_recall_at(fit, data, 5)
    monkeypatch.setattr(ranking, "MOST_CELLS", 30 * 7)
    np.testing.assert_array_equal(
        inference.precision_recall_at(fit, data.select(order), 5).recall.terms,
        straight.recall.terms[order],
    )


# Topics -------------------------------------------------------------------------------------------


def npmi_by_hand(words, counts):
    found = np.ones((len(words), len(words)))
    for i, v in enumerate(words):
        for j, w in enumerate(words):
            both = np.mean((counts[:, v] > 0) & (counts[:, w] > 0))
            if i != j:
                found[i, j] = (
                    -1
                    if both == 0
                    else 0
                    if both == 1
                    else np.log(both / (counts[:, v] > 0).mean() / (counts[:, w] > 0).mean())
                    / -np.log(both)
                )
    return found


def test_coherence_by_hand(corpus):
    """Both measures equal a second implementation, topic by topic, words that never meet and words
    in every document among them.
    """
    topics, data = corpus
    counts = data.matrix.toarray()
    counts[:, 3], counts[:, 4] = 1, 0
    reference = pp_models.data.counts(counts)
    weights = topics.copy()
    weights[0, [3, 4]] = 1
    found = {
        measure: inference.coherence(weights, reference, measure, 6) for measure in ("npmi", "c_v")
    }
    for k, topic in enumerate(weights):
        table = npmi_by_hand(np.argsort(-topic, kind="stable")[:6], counts)
        assert found["npmi"].terms[k] == pytest.approx(
            table[np.triu_indices(6, 1)].mean(), rel=1e-10
        )
        total = table.sum(0)
        cosines = [row @ total / np.linalg.norm(row) / np.linalg.norm(total) for row in table]
        assert found["c_v"].terms[k] == pytest.approx(np.mean(cosines), rel=1e-10)
    assert found["npmi"].value == pytest.approx(found["npmi"].terms.mean())


def test_diversity_by_hand():
    """Three topics of two top words, one word in two topics and one in all: terms add up to the
    distinct words.
    """
    topics = np.array([[3, 2, 0, 0, 0], [3, 0, 2, 0, 0], [3, 0, 2, 0, 0]])
    found = inference.diversity(topics, 2)
    np.testing.assert_allclose(
        found.terms, [(1 / 3 + 1) / 2, (1 / 3 + 1 / 2) / 2, (1 / 3 + 1 / 2) / 2]
    )
    assert found.value == pytest.approx(3 / 6)
    assert inference.diversity(np.eye(5), 1).value == 1


def test_reuters():
    """Rankings and coherence on a real corpus equal those written out above, to 1e-4 and better,
    document by document and topic by topic.
    """
    pytest.importorskip("lda")
    data = pp_models.datasets.load("reuters")
    counts = data.matrix.toarray()
    topics = np.stack([counts[k::8].sum(0) + 0.1 for k in range(8)])  # any will do
    topics /= topics.sum(1, keepdims=True)
    fit, some = point(topics, data), data.select(np.arange(0, data.num_rows, 8))
    observed, held = splits.split_columns(some)
    found = inference.precision_recall_at(fit, some, 20)
    for measure, terms in zip(
        found,
        by_hand(topics, 0.2, observed.matrix.toarray(), held.matrix.toarray(), 20),
        strict=True,
    ):
        np.testing.assert_allclose(measure.terms, terms, atol=1e-4)
    best = [np.argsort(-topic, kind="stable")[:10] for topic in topics]
    pairs = [npmi_by_hand(words, counts)[np.triu_indices(10, 1)].mean() for words in best]
    np.testing.assert_allclose(inference.coherence(fit, data, "npmi", 10).terms, pairs, atol=1e-4)
    assert inference.diversity(fit, 10).value == pytest.approx(
        len({int(word) for words in best for word in words}) / 80
    )


def test_coherence_of_chains_relabels_draws(corpus):
    """Of a chain whose draws switch labels, the topics are the same as without."""
    topics, data = corpus
    fit = point(topics, data)
    rng = np.random.default_rng(2)
    theta = rng.dirichlet(np.ones(4), 60)
    orders = [rng.permutation(4) for _ in range(5)]
    draws = {
        "theta": np.stack([theta[:, o] for o in orders])[None],
        "beta": np.stack([topics[o] for o in orders])[None],
    }
    chain = fitting.Fit(
        fit.problem, "gibbs", {}, Draws(fit.problem, draws, {"lp": np.zeros((1, 5))}), {}, 0.0
    )
    assert inference.coherence(chain, data, num_words=5).value == pytest.approx(
        inference.coherence(fit, data, num_words=5).value
    )


def test_true_topics_are_better_on_every_measure(corpus):
    """The topics that made the documents score above the same with words shuffled, and are more
    diverse than topics blurred into their mean.
    """
    topics, data = corpus
    true, false = point(topics, data), point(wrong(topics), data)
    for M in (1, 5):
        good, bad = (inference.precision_recall_at(fit, data, M) for fit in (true, false))
        assert (
            good.precision.value > bad.precision.value + 0.1
            and good.recall.value > bad.recall.value + 0.02
        )
    for measure in ("npmi", "c_v"):
        assert (
            inference.coherence(true, data, measure, 5).value
            > inference.coherence(false, data, measure, 5).value + 0.1
        )
    assert (
        inference.document_completion(true, data).value
        > inference.document_completion(false, data).value + 0.5
    )
    assert inference.perplexity(true, data).value < inference.perplexity(false, data).value
    blurred = point(0.1 * topics + 0.9 * topics.mean(0), data)
    assert inference.diversity(true, 5).value > inference.diversity(blurred, 5).value + 0.1


# Information criteria -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain(corpus):
    _, data = corpus
    some = data.select(np.arange(15))
    return inference.fit(
        "lda",
        some,
        "gibbs",
        {"num_topics": 2, "alpha": 1.0, "eta": 1.0},
        num_samples=60,
        num_warmup=30,
        num_chains=2,
    )


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
@pytest.mark.filterwarnings("ignore:For one or more samples the posterior variance")
def test_information_criteria_are_arvizs(chain):
    """PSIS-LOO is ArviZ's, term by term; WAIC, by its formula, is what ArviZ 0.x computes.

    Units are nats per token.
    """
    found, other, tree = inference.loo(chain), inference.waic(chain), chain.to_arviz(by_row=True)
    wanted = arviz.loo(tree, pointwise=True)
    np.testing.assert_allclose(
        found.per_document, wanted.elpd_i if arviz_bridge.MODERN else wanted.loo_i, rtol=1e-10
    )
    assert found.value == pytest.approx(
        found.per_document.sum() / chain.data.total
    ) and found.khat.shape == (15,)
    if not arviz_bridge.MODERN:
        wanted = arviz.waic(tree, pointwise=True, scale="log")
        np.testing.assert_allclose(other.per_document, wanted.waic_i, rtol=1e-10)
        assert other.value == pytest.approx(wanted.elpd_waic / chain.data.total)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_information_criteria_prefer_the_better_model():
    """Documents of two topics that share no word are explained better by two topics than by one, by
    more than three errors of the rows' differences.

    Topics as clear as these are found by every chain: where chains disagree, WAIC's variance is
    theirs.
    """
    rng = np.random.default_rng(4)
    data = pp_models.data.counts(
        np.stack(
            [rng.multinomial(40, np.repeat([p, 1 - p], 5) / 5) for p in rng.beta(0.5, 0.5, 15)]
        )
    )
    two, one = (
        inference.fit(
            "lda",
            data,
            "gibbs",
            {"num_topics": k, "alpha": 1.0, "eta": 1.0},
            num_samples=60,
            num_warmup=100,
            num_chains=2,
        )
        for k in (2, 1)
    )
    for criterion in (inference.loo, inference.waic):
        gain = criterion(two).per_document - criterion(one).per_document
        assert gain.sum() > 3 * gain.std(ddof=1) * np.sqrt(len(gain)), criterion.__name__


def test_measures_that_cannot_be_computed_are_refused_first(corpus, monkeypatch):
    """A measure that does not suit the model is refused before any other is computed."""
    _, data = corpus
    problem = fitting.make_problem("bayesian_nmf", data, {"num_topics": 2})
    fit = fitting.Fit(problem, "map", {}, Point(problem, {}), {}, 0.0)
    monkeypatch.setattr(measures, "document_completion", lambda *_: pytest.fail("computed"))
    with pytest.raises(InputError, match="use document_completion"):
        measures.measure(fit, data, ["completion", "chib"])


# Bad input ----------------------------------------------------------------------------------------


BAD = {
    "no words": (lambda fit, data: inference.coherence(fit, data, num_words=31), "only 30 words"),
    "one word": (lambda fit, data: inference.coherence(fit, data, num_words=1), "pairs of words"),
    "other vocabulary": (
        lambda fit, data: inference.coherence(np.ones((2, 3)), data, num_words=2),
        "same vocabulary",
    ),
    "unknown measure": (
        lambda fit, data: inference.coherence(fit, data, "nmpi"),
        "Did you mean 'npmi'",
    ),
    "no corpus": (lambda fit, data: inference.coherence(fit, np.ones((3, 30))), "reference corpus"),
    "not topics": (lambda fit, data: inference.diversity(np.ones(3)), "array"),
    "M": (lambda fit, data: inference.precision_recall_at(fit, data, 0), "M must be"),
    "share": (lambda fit, data: inference.precision_recall_at(fit, data, share=1.0), "share"),
    "seen": (
        lambda fit, data: inference.precision_recall_at(fit, data, observed=data),
        "also observed",
    ),
    "other rows": (
        lambda fit, data: inference.precision_recall_at(
            fit, data, observed=data.select(np.arange(2))
        ),
        "same rows",
    ),
    "probabilities": (
        lambda fit, data: inference.score_probabilities([1.2], [1.0]),
        "between 0 and 1",
    ),
    "lengths": (lambda fit, data: inference.score_probabilities([0.2], [1.0, 0.0]), "equal length"),
    "not votes": (lambda fit, data: inference.score_votes(fit, data), "held-out votes"),
    "a point": (lambda fit, data: inference.loo(fit), "gives a point"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(corpus, name):
    """Refused in one sentence."""
    topics, data = corpus
    call, message = BAD[name]
    with pytest.raises(InputError, match=message) as caught:
        call(point(topics, data), data)
    assert str(caught.value).count(". ") <= 1
