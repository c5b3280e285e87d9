"""Topic tools: laws of the normalisation (C18, step 3), and answers that do not depend on the
labels of topics.
"""

import jax
import numpy as np
import pytest

import inference
import pp_models
from inference.core import topics as core
from inference.core.completion import has_topics
from inference.core.posteriors import Draws, Point
from inference.evaluation import topics
from inference.run.fit import Fit, make_problem
from pp_models.errors import InputError

WORDS = tuple(f"word{i}" for i in range(7))
TITLES = tuple(f"title{i}" for i in range(12))


def planted(seed=0, num_rows=12, named=True):
    """Weights and topics of arbitrary sizes, and counts near their product."""
    rng = np.random.default_rng(seed)
    beta = rng.gamma(0.5, 1, (3, len(WORDS))) * np.array([[0.01], [1.0], [30.0]])
    theta = rng.gamma(0.5, 1, (num_rows, 3)) / np.array([0.01, 1.0, 30.0]) * 20
    counts = rng.poisson(theta @ beta)
    counts[0] = 0  # an empty document
    return theta, beta, pp_models.data.counts(counts, *((WORDS, TITLES) if named else ()))


def point(theta, beta, data):
    """A fit at these values."""
    problem = make_problem("bayesian_nmf", data, {"num_topics": len(beta)})
    posterior = Point(problem, {})
    posterior.values = {"theta": theta, "beta": beta}
    return Fit(
        problem,
        "map",
        {},
        posterior,
        {name: np.zeros(0) for name in ("step", "seconds", "bound")},
        0.0,
    )


def sampled(thetas, betas, data, lp):
    """A fit with these draws, (chains, draws, ...)."""
    problem = make_problem("bayesian_nmf", data, {"num_topics": betas.shape[-2]})
    return Fit(
        problem,
        "gibbs",
        {},
        Draws(problem, {"theta": thetas, "beta": betas}, {"lp": lp}),
        {"step": np.zeros(0), "bound": np.zeros(0)},
        0.0,
    )


def test_normalisation_leaves_the_product_alone():
    """Topics, proportions and prevalence are distributions, and weights @ topics is theta @ beta,
    to rounding.
    """
    theta, beta, data = planted()
    found = inference.topics(point(theta, beta, data))
    np.testing.assert_allclose(found.weights @ found.topics, theta @ beta, rtol=1e-12)
    for part in found.topics, found.proportions, found.prevalence[None]:
        np.testing.assert_allclose(part.sum(-1), 1, rtol=1e-12)
        assert np.all(part >= 0)
    np.testing.assert_allclose(
        found.proportions * found.weights.sum(1, keepdims=True), found.weights, rtol=1e-12
    )


def test_sizes_of_topics_mean_nothing():
    """beta_k times c_k and theta_k over c_k: the same product, the same answers."""
    theta, beta, data = planted()
    sizes = np.array([7.0, 0.2, 3.0])
    first, second = (
        inference.topics(point(*values, data))
        for values in ((theta, beta), (theta / sizes, beta * sizes[:, None]))
    )
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_prevalence_is_the_share_of_tokens():
    """Topics that share no word: a topic's share of the tokens can be counted.

    Documents of one topic each, so the proportions are exact.
    """
    rng = np.random.default_rng(1)
    topic = np.repeat([0, 1, 2], [6, 3, 3])
    beta = np.kron(np.eye(3), [1.0, 2.0])
    counts = rng.poisson(rng.gamma(5, 4, 12)[:, None] * beta[topic]) + (beta[topic] > 0)
    fit = point(np.eye(3)[topic] * 5, beta, pp_models.data.counts(counts))
    share = np.array([counts[topic == k].sum() for k in range(3)]) / counts.sum()
    np.testing.assert_allclose(inference.prevalence(fit), share, rtol=1e-12)


def test_planted_topics_are_recovered():
    """LDA on documents of one topic each, topics of separate words: CAVI's top words are the
    topics, its prevalence their share of tokens (3 %).
    """
    rng = np.random.default_rng(2)
    topic = rng.integers(0, 3, 60)
    words = np.kron(np.eye(3), rng.dirichlet(np.full(5, 3.0)))
    counts = np.array([rng.multinomial(80, words[k]) for k in topic])
    data = pp_models.data.counts(counts, [f"t{k}w{v}" for k in range(3) for v in range(5)])
    fits = [
        inference.fit("lda", data, "cavi", {"num_topics": 3}, jax.random.key(seed), progress=False)
        for seed in range(3)
    ]
    fit = max(fits, key=lambda one: one.bound)
    groups = [{word[:2] for word, _ in topic} for topic in inference.top_words(fit, 5)]
    assert all(len(group) == 1 for group in groups) and set().union(*groups) == {"t0", "t1", "t2"}
    order = [int(next(iter(group))[1]) for group in groups]
    np.testing.assert_allclose(
        inference.prevalence(fit), np.bincount(topic, minlength=3)[order] / 60, atol=0.03
    )
    for k in range(3):
        assert all(topic[d] == order[k] for d, _ in inference.representative_documents(fit, k))


def test_permuting_topics_permutes_the_answers():
    theta, beta, data = planted()
    order = np.array([2, 0, 1])
    first, second = point(theta, beta, data), point(theta[:, order], beta[order], data)
    assert [inference.top_words(first)[k] for k in order] == inference.top_words(second)
    np.testing.assert_allclose(
        inference.prevalence(first)[order], inference.prevalence(second), rtol=1e-12
    )
    for k in range(3):
        before, after = (
            inference.representative_documents(first, int(order[k])),
            inference.representative_documents(second, k),
        )
        assert [title for title, _ in before] == [title for title, _ in after]
        np.testing.assert_allclose(
            [share for _, share in before], [share for _, share in after], rtol=1e-12
        )  # sums in another order


def test_draws_are_relabelled_before_they_are_averaged():
    """Draws of one posterior with labels exchanged at random give the answer of draws that never
    switched, and not a mixture of topics.
    """
    theta, beta, data = planted()
    rng = np.random.default_rng(3)
    betas = beta * rng.gamma(400, 1 / 400, (2, 30, *beta.shape))
    thetas = theta * rng.gamma(400, 1 / 400, (2, 30, *theta.shape))
    orders = rng.permuted(np.tile(np.arange(3), (2, 30, 1)), axis=-1)
    switched = (
        np.take_along_axis(thetas, orders[:, :, None, :], -1),
        np.take_along_axis(betas, orders[..., None], -2),
    )
    lp = rng.normal(size=(2, 30))
    lp[0, 0] = 10
    orders[0, 0] = np.arange(3)
    switched[0][0, 0], switched[1][0, 0] = (
        thetas[0, 0],
        betas[0, 0],
    )  # the most probable draw has the labels that all are given
    straight, mixed = (
        inference.topics(sampled(*draws, data, lp)) for draws in ((thetas, betas), switched)
    )
    for a, b in zip(straight, mixed, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    np.testing.assert_allclose(
        straight.topics, beta / beta.sum(1, keepdims=True), atol=0.02
    )  # noise of 5 %, averaged over 60 draws
    assert (
        np.abs(
            switched[1].mean((0, 1)) / switched[1].mean((0, 1)).sum(1, keepdims=True)
            - straight.topics
        ).max()
        > 0.1
    )


def test_words_have_their_names_or_their_indices():
    theta, beta, data = planted()
    named, plain = point(theta, beta, data), point(*planted(named=False))
    for with_names, without in zip(
        inference.top_words(named, 4), inference.top_words(plain, 4), strict=True
    ):
        assert [word for word, _ in with_names] == [WORDS[v] for v, _ in without]
        assert (
            [p for _, p in with_names]
            == [p for _, p in without]
            == sorted((p for _, p in without), reverse=True)
        )
    documents = inference.representative_documents(named, 1, 3)
    assert [title for title, _ in documents] == [
        TITLES[d] for d, _ in inference.representative_documents(plain, 1, 3)
    ]
    assert "title0" not in [
        title for title, _ in inference.representative_documents(named, 1, 50)
    ], "empty"
    assert len(inference.representative_documents(named, 1, 50)) == int((data.totals > 0).sum())


def test_table_for_terminals():
    """One line per topic, the most prevalent first, its share and its words in order."""
    fit = point(*planted())
    head, *lines = inference.format_topics(fit, 3).splitlines()
    assert head.split() == ["topic", "share", "words"] and len(lines) == 3
    shares = inference.prevalence(fit)
    assert [int(line.split()[0]) for line in lines] == list(np.argsort(-shares))
    for line in lines:
        number, share, *words = line.split()
        assert share == f"{shares[int(number)]:.1%}" and words == [
            word for word, _ in inference.top_words(fit, 3)[int(number)]
        ]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "lda" else pytest.mark.slow)
        for name in pp_models.available()
        if has_topics(pp_models.load(name))
    ],
)
def test_every_model_with_theta_and_beta_has_topics(name):
    model = pp_models.load(name)
    hyper, data = model.example(jax.random.key(0))
    found = inference.topics(
        inference.fit(name, data, "map", hyper, basis="log", num_epochs=3, progress=False)
    )
    assert found.topics.shape == (
        hyper.num_topics,
        data.num_columns,
    ) and found.proportions.shape == (data.num_rows, hyper.num_topics)
    np.testing.assert_allclose(
        [found.prevalence.sum(), *found.topics.sum(1), *found.proportions.sum(1)], 1, rtol=1e-6
    )


def test_what_cannot_be_answered_is_refused_in_a_sentence(tmp_path):
    fit = point(*planted())
    forgetful = inference.load(fit.save(tmp_path / "fit"))
    forgetful._totals = None  # as files of older versions are
    for call, words in (
        (lambda: inference.representative_documents(fit, 3), "from 0 to 2"),
        (lambda: inference.representative_documents(fit, 0, 0), "num must be"),
        (lambda: inference.top_words(fit, 0), "num_words must be"),
        (lambda: inference.format_topics(fit, rank="best"), "Unknown ranking of words 'best'"),
        (lambda: inference.topics(forgetful), "pass data= to pp_models.load_fit"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    model = pp_models.load("bernoulli_mixture")
    hyper, data = model.example(jax.random.key(0))
    with pytest.raises(InputError, match="bernoulli_mixture' has no topics"):
        inference.topics(
            inference.fit("bernoulli_mixture", data, "cavi", hyper, num_epochs=1, progress=False)
        )


def test_empty_topics_and_rows_are_spread_evenly():
    """Nothing to normalise: no division by zero, and still distributions."""
    theta, beta, data = planted()
    theta[3], beta[1] = 0, 0
    found = topics.normalise(theta, beta, data.totals)
    np.testing.assert_allclose(found.topics[1], 1 / 7)
    np.testing.assert_allclose(found.proportions[3], 1 / 3)


def test_relevance_puts_common_words_behind():
    """Sievert and Shirley's formula, computed here by hand; lambda of one is the probability, of
    zero the lift. A word that all topics use alike leads by probability and not by lift.
    """
    shares = np.array([0.5, 0.3, 0.2])
    beta = np.array([[5.0, 4, 0.1, 0.1, 0.1], [5, 0.1, 4, 0.1, 0.1], [5, 0.1, 0.1, 3, 1]])
    beta /= beta.sum(1, keepdims=True)
    parts = core.Parts("topic", beta, shares)
    assert np.all(core.ranked(parts, 1) == 0)
    assert core.ranked(parts, 1, "lift").ravel().tolist()[:2] == [1, 2]
    for weight in (0.0, 0.3, 0.6, 1.0):
        value = weight * np.log(beta) + (1 - weight) * np.log(beta / (shares @ beta))
        wanted = np.argsort(-value, axis=1, kind="stable")
        np.testing.assert_array_equal(core.ranked(parts, 5, "relevance", weight), wanted)
    lift, zero = core.ranked(parts, 5, "lift"), core.ranked(parts, 5, "relevance", 0.0)
    np.testing.assert_array_equal(lift, zero)
    empty = core.Parts("topic", np.where(beta == beta[0, 2], 0, beta), shares)
    assert set(core.ranked(empty, 5, "lift")[0, :2].tolist()) == {0, 1}, "words of no use are last"


def test_the_table_for_terminals_takes_the_ranking():
    fit = point(*planted())
    parts = fit.parts()
    for rank in core.RANKS:
        best = core.ranked(parts, 3, rank)
        lines = inference.format_topics(fit, 3, rank).splitlines()[1:]
        for line in lines:
            number, _, *words = line.split()
            assert words == [WORDS[v] for v in best[int(number)]]
