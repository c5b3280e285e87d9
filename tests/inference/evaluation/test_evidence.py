"""The probability of whole documents against sums over all topic assignments, and how it
behaves.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma, gammaln, roots_jacobi

import inference
import pp_models
from inference.core.posteriors import Draws, Point, Variational
from inference.core.tokens import split_tokens
from inference.evaluation import document_likelihood
from inference.run import fit as fitting
from pp_models.errors import InputError

TOPICS = np.array([[0.7, 0.2, 0.1], [0.1, 0.15, 0.75]])
ALPHA = np.array([0.3, 0.8])
DOCUMENTS = np.array([[2, 1, 1], [4, 0, 0], [0, 0, 0], [1, 0, 0], [0, 2, 2], [1, 1, 2], [2, 0, 2]])


def exact(document, topics, alpha):
    """log p(w) = log sum_z prod_n beta_{z_n w_n} Gamma(A)/Gamma(A + N) prod_k Gamma(n_k +
    alpha_k)/Gamma(alpha_k), over all K^N assignments.
    """
    words = np.repeat(np.arange(len(document)), document)
    total = 0.0
    for z in itertools.product(range(len(topics)), repeat=len(words)):
        counts = np.bincount(np.array(z, int), minlength=len(topics))
        prior = (
            gammaln(alpha.sum())
            - gammaln(alpha.sum() + len(words))
            + np.sum(gammaln(counts + alpha) - gammaln(alpha))
        )
        total += np.exp(prior) * np.prod(topics[list(z), words])
    return np.log(total)


def point(topics, alpha, data):
    """A point estimate that is not fitted but set."""
    problem = fitting.make_problem("lda", data, {"num_topics": len(topics), "alpha": tuple(alpha)})
    posterior = Point(problem, {})
    posterior.values = {"beta": np.asarray(topics)}
    return fitting.Fit(problem, "map", {}, posterior, {}, 0.0)


@pytest.fixture(scope="module")
def small():
    data = pp_models.data.counts(DOCUMENTS)
    return point(TOPICS, ALPHA, data), data


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("chib", {"num_sweeps": 5}),
        ("left_to_right", {"num_particles": 3}),
        ("left_to_right", {"num_particles": 1}),
    ],
)
def test_exact_probabilities(small, method, options):
    """400 repeats of either estimator agree with the sum over all assignments within 4 of their
    standard errors, document by document.

    Both are unbiased; among 7 documents a right estimator is further off less than once in 2,000
    runs, and the seed is fixed. The errors must be small for this to mean something, and empty
    documents have probability one.
    """
    fit, data = small
    found = inference.log_evidence(fit, data, method, num_repeats=400, **options)
    wanted = np.array([exact(document, TOPICS, ALPHA) for document in DOCUMENTS])
    assert found.per_document_error.max() < 0.04
    assert np.all(np.abs(found.per_document - wanted) <= 4 * found.per_document_error + 1e-9)
    assert found.per_document[2] == 0
    np.testing.assert_allclose(found.value, found.per_document.sum() / DOCUMENTS.sum(), rtol=1e-12)
    assert abs(found.value - wanted.sum() / DOCUMENTS.sum()) < 4 * found.monte_carlo_error


@pytest.mark.parametrize("method", ["chib", "left_to_right"])
def test_words_and_no_choice(small, method):
    """A document of one word, and one topic, leave nothing to chance: every repeat is exact, to
    rounding.
    """
    fit, data = small
    found = inference.log_evidence(fit, data, method, num_repeats=4, num_sweeps=2)
    np.testing.assert_allclose(
        found.per_document[3], np.log(ALPHA / ALPHA.sum() @ TOPICS[:, 0]), rtol=1e-9
    )
    one = point(TOPICS[:1], ALPHA[:1], data)
    np.testing.assert_allclose(
        inference.log_evidence(one, data, method, num_repeats=2).per_document,
        DOCUMENTS @ np.log(TOPICS[0]),
        rtol=1e-9,
    )


@pytest.mark.parametrize("method", ["chib", "left_to_right"])
def test_longer_documents(method):
    """Of 30 words, with two topics, p(w) is an integral over one proportion, done by Gauss-Jacobi
    quadrature: 4 standard errors, which are small.

    100 nodes integrate a polynomial of degree 30 exactly. The documents' words are of all three
    kinds, some of them many times.
    """
    documents = np.array([[12, 8, 10], [18, 2, 8]])
    found = inference.log_evidence(
        point(TOPICS, ALPHA, pp_models.data.counts(documents)),
        pp_models.data.counts(documents),
        method,
        num_repeats=40,
    )
    x, weight = roots_jacobi(100, ALPHA[1] - 1, ALPHA[0] - 1)
    theta = np.stack([(1 + x) / 2, (1 - x) / 2], 1)
    wanted = np.log(np.exp(documents @ np.log(theta @ TOPICS).T) @ weight / weight.sum())
    assert found.per_document_error.max() < 0.2
    assert np.all(np.abs(found.per_document - wanted) < 4 * found.per_document_error)


@pytest.fixture(scope="module")
def corpus():
    """Documents drawn from known topics."""
    rng = np.random.default_rng(3)
    topics = rng.dirichlet(np.full(20, 0.2), 3)
    counts = [
        rng.multinomial(n, p)
        for n, p in zip(
            rng.integers(0, 17, 24), rng.dirichlet(np.full(3, 0.3), 24) @ topics, strict=True
        )
    ]
    return topics, pp_models.data.counts(counts)


@pytest.mark.parametrize("method", ["chib", pytest.param("left_to_right", marks=pytest.mark.slow)])
def test_order_and_batches_change_nothing(corpus, method, monkeypatch):
    """A document has the same estimate among others in another order, in blocks of another size:
    its random numbers are its own. 1e-9 is rounding.
    """
    topics, data = corpus
    fit, order = point(topics, [0.3] * 3, data), np.random.default_rng(0).permutation(24)[:19]
    options = {"num_repeats": 2, "num_sweeps": 4, "num_particles": 2}
    straight = inference.log_evidence(fit, data, method, **options)
    monkeypatch.setattr(document_likelihood, "CELLS", 16 * 2 * 8)
    turned = inference.log_evidence(fit, data.select(order), method, **options)
    np.testing.assert_allclose(turned.per_document, straight.per_document[order], rtol=1e-9)
    np.testing.assert_allclose(
        turned.per_document_error, straight.per_document_error[order], rtol=1e-6, atol=1e-9
    )
    assert np.any(
        inference.log_evidence(fit, data, method, **options, seed=1).per_document
        != straight.per_document
    )


@pytest.mark.parametrize("method", ["chib", "left_to_right"])
def test_true_topics_score_above_wrong_ones(corpus, method):
    """The topics that made the documents have more evidence than the same with their words
    shuffled, by more than three errors of either kind.
    """
    topics, data = corpus
    wrong = np.random.default_rng(1).permuted(topics, axis=1)
    true, false = (
        inference.log_evidence(point(x, [0.3] * 3, data), data, method, num_repeats=4)
        for x in (topics, wrong)
    )
    assert true.value - false.value > 3 * max(
        true.standard_error + false.standard_error, true.monte_carlo_error + false.monte_carlo_error
    )
    assert inference.perplexity(
        point(topics, [0.3] * 3, data), data, method, num_repeats=4
    ).value == pytest.approx(true.perplexity)


def test_draws_are_averaged_as_probabilities(small):
    """Of a chain whose every draw is one of two sets of topics, the probability is the mean of
    theirs, whatever the labels.

    Chains are drawn from without repetition, so that both sets count equally; 5 standard errors.
    """
    fit, data = small
    other = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
    both = np.stack([TOPICS, other] * 5)[None]
    chain = fitting.Fit(
        fit.problem,
        "gibbs",
        {},
        Draws(fit.problem, {"theta": np.zeros((1, 10, 7, 2)), "beta": both}),
        {},
        0.0,
    )
    found = inference.log_evidence(chain, data, num_repeats=40, num_draws=10)
    wanted = np.array(
        [
            np.logaddexp(exact(x, TOPICS, ALPHA), exact(x, other, ALPHA)) - np.log(2)
            for x in DOCUMENTS
        ]
    )
    assert np.all(np.abs(found.per_document - wanted) <= 5 * found.per_document_error + 1e-9)


def test_errors_over_repeats(small):
    """Documents of one word leave nothing to chance given topics, though draws of topics differ;
    one repeat does not tell its error.

    A document that comes nine times has the same random numbers each time, and the mean over all
    nine the error of one.
    """
    fit, _ = small
    words, same = (
        pp_models.data.counts(np.eye(3, dtype=int)),
        pp_models.data.counts(DOCUMENTS[[0] * 9]),
    )
    draws = {
        "theta": np.zeros((1, 2, 7, 2)),
        "beta": np.stack([TOPICS, TOPICS[::-1] ** 2 / np.sum(TOPICS[::-1] ** 2, 1, keepdims=True)])[
            None
        ],
    }
    chain = fitting.Fit(fit.problem, "gibbs", {}, Draws(fit.problem, draws), {}, 0.0)
    np.testing.assert_allclose(
        inference.log_evidence(chain, words, num_repeats=3, num_draws=2).per_document_error,
        0,
        atol=1e-9,
    )
    assert np.isnan(
        inference.log_evidence(chain, words, num_repeats=1, num_draws=2).monte_carlo_error
    )
    found = inference.log_evidence(fit, same, num_repeats=4, num_sweeps=2)
    assert (
        found.monte_carlo_error == pytest.approx(found.per_document_error[0] / DOCUMENTS[0].sum())
        and found.monte_carlo_error > 0
    )


@pytest.mark.slow
def test_distribution_at_its_mean_or_drawn_from(corpus):
    """A distribution is taken at its mean unless draws are asked for; a narrow one then gives
    nearly the same, a wide one not.
    """
    topics, data = corpus
    problem = fitting.make_problem("lda", data, {"num_topics": 3, "alpha": 0.3})
    values = []
    for width in (1e6, 3.0):
        fit = fitting.Fit(
            problem,
            "cavi",
            {},
            Variational(
                problem, {"beta": jnp.asarray(width * topics + 1e-3)}, {"theta": jnp.ones((24, 3))}
            ),
            {},
            0.0,
        )
        mean, drawn = (
            inference.log_evidence(fit, data, num_repeats=4, num_draws=draws).value
            for draws in (None, 5)
        )
        values.append(abs(mean - drawn))
    assert values[0] < 0.01 < 0.05 < values[1]


@pytest.mark.slow
def test_single_precision(corpus):
    """In the default precision both estimators agree with double precision within their errors,
    though not draw by draw.
    """
    topics, data = corpus
    exact_ = inference.log_evidence(point(topics, [0.3] * 3, data), data, num_repeats=4)
    with jax.enable_x64(False):
        single = inference.log_evidence(point(topics, [0.3] * 3, data), data, num_repeats=4)
    assert abs(single.value - exact_.value) < 5 * (
        single.monte_carlo_error + exact_.monte_carlo_error
    )


def test_a_word_in_no_topic(small):
    """A word that no topic has counts as one of probability 1e-38, and leaves the rest as
    it was.
    """
    _, data = small
    topics = np.concatenate(
        [TOPICS[:, :2] / TOPICS[:, :2].sum(1, keepdims=True), np.zeros((2, 1))], 1
    )
    fit = point(topics, ALPHA, data)
    with_it, without = (
        inference.log_evidence(fit, pp_models.data.counts([x]), num_repeats=4)
        for x in ([0, 0, 1], [1, 0, 0])
    )
    assert with_it.per_document[0] == pytest.approx(
        np.log(document_likelihood.FLOOR)
    ) and np.isfinite(without.value)


@pytest.mark.parametrize("double", [True, False])
def test_words_in_no_topic_are_not_spread_evenly(double):
    """Held out, such a word counts as one of probability 1e-38; observed, as one that all topics
    have alike, here with probability 1e-30.

    In documents of two words either is predicted from the other. 1e-5: single precision.
    """
    topics = np.concatenate(
        [TOPICS[:, :2] / TOPICS[:, :2].sum(1, keepdims=True), np.zeros((2, 2))], 1
    )
    seen, wanted = pp_models.data.counts([[0, 0, 1, 0]]), pp_models.data.counts([[1, 0, 0, 0]])
    with jax.enable_x64(double):
        heldout = pp_models.data.counts([[1, 0, 1, 0], [0, 0, 1, 1]])
        none, rare = (point(np.maximum(topics, least), ALPHA, heldout) for least in (0, 1e-30))
        found, other = (
            inference.document_completion(fit, heldout).per_document for fit in (none, rare)
        )
        ranked = [
            inference.precision_recall_at(fit, wanted, 1, observed=seen).recall.value
            for fit in (none, rare)
        ]
    np.testing.assert_allclose(
        found,
        other + np.array([1, 2]) * (np.log(document_likelihood.FLOOR) - np.log(1e-30)),
        rtol=1e-5,
    )
    assert ranked[0] == ranked[1]


def test_bad_input(small):
    """Models without Dirichlet proportions, unknown methods, other vocabularies and other numbers
    are refused in a sentence.
    """
    fit, data = small
    for name in ("bayesian_nmf", "ctm"):
        problem = fitting.make_problem(name, data, {"num_topics": 2})
        with pytest.raises(InputError, match="use document_completion"):
            inference.log_evidence(
                fitting.Fit(problem, "map", {}, Point(problem, {}), {}, 0.0), data
            )
    with pytest.raises(InputError, match="Did you mean 'chib'"):
        inference.log_evidence(fit, data, "chip")
    with pytest.raises(InputError, match="same vocabulary"):
        inference.log_evidence(fit, pp_models.data.counts(np.ones((2, 4))))
    with pytest.raises(InputError, match="num_sweeps"):
        inference.log_evidence(fit, data, num_sweeps=0)
    with pytest.raises(InputError, match="scores counts"):
        inference.log_evidence(fit, DOCUMENTS)


def test_document_completion_by_hand(small):
    """On the documents whose assignments can be counted, completion equals the formula written out,
    to 1e-6 of a nat in each document.

    gamma_k = alpha_k + sum_v o_v phi_vk, phi_vk ~ exp(digamma(gamma_k)) beta_kv, 50 times; the
    held-out words have probability E[theta]' beta.
    """
    fit, data = small
    found, total = inference.document_completion(fit, data), np.zeros(7)
    for observed, held in split_tokens(data, 3):
        for d, (seen, hidden) in enumerate(zip(observed.toarray(), held.toarray(), strict=True)):
            gamma = ALPHA.copy()
            for _ in range(50):
                phi = np.exp(digamma(gamma))[:, None] * TOPICS
                gamma = ALPHA + (phi / phi.sum(0)) @ seen
            total[d] += hidden @ np.log(gamma / gamma.sum() @ TOPICS)
    np.testing.assert_allclose(found.per_document, total, atol=1e-6)
