"""Laws of alignment: relabelling changes nothing that is compared, and alignment undoes any relabelling."""

import dataclasses

import numpy as np
import pytest

import pp_models
from inference import align
from pp_models.base import factor_axes
from pp_models.errors import InputError

LDA = pp_models.load("lda")


def separated_topics(num_topics=4, num_columns=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(num_columns, 0.2), num_topics)


def draws_around(topics, shape, seed=1, num_rows=7):
    """Draws of both sites whose topics scatter around the given ones."""
    rng = np.random.default_rng(seed)
    beta = rng.gamma(200 * topics + 0.5, size=(*shape, *topics.shape))
    return {"theta": rng.dirichlet(np.ones(len(topics)), (*shape, num_rows)), "beta": beta / beta.sum(-1, keepdims=True)}


def shuffled_labels(draws, shape, num_topics, seed=2):
    orders = np.random.default_rng(seed).permuted(np.broadcast_to(np.arange(num_topics), (*shape, num_topics)), axis=-1)
    return align.permute(LDA, draws, orders), orders


def test_topic_order_undoes_a_permutation():
    topics = separated_topics()
    order = np.array([2, 0, 3, 1])
    found = align.topic_order(topics, topics[order])
    np.testing.assert_array_equal(topics[order][found], topics)


def test_topic_order_does_not_depend_on_the_scale_of_topics():
    """Bayesian NMF's topics are not normalised: only their shapes may matter."""
    topics = separated_topics()
    scaled = topics[::-1] * np.array([1e-3, 5.0, 40.0, 0.2])[:, None]
    np.testing.assert_array_equal(align.topic_order(topics, scaled), [3, 2, 1, 0])


def test_permuting_leaves_the_rates_alone():
    """theta @ beta is what the data see: a relabelling that moved it would not be one."""
    draws = draws_around(separated_topics(), (3, 5))
    moved, _ = shuffled_labels(draws, (3, 5), 4)
    assert not np.array_equal(moved["beta"], draws["beta"])
    np.testing.assert_allclose(moved["theta"] @ moved["beta"], draws["theta"] @ draws["beta"], rtol=1e-12)


@pytest.mark.parametrize("shape", [(), (6,), (3, 5)])
def test_aligned_draws_do_not_depend_on_their_labels(shape):
    """Every draw relabelled on its own, within and between chains: after alignment both sets are the same, bit for bit."""
    topics = separated_topics()
    draws = draws_around(topics, shape)
    pivot = {"theta": np.full((7, 4), 0.25), "beta": topics}
    moved, _ = shuffled_labels(draws, shape, 4)
    first, second = align.align_draws(LDA, draws, pivot), align.align_draws(LDA, moved, pivot)
    for site in draws:
        np.testing.assert_array_equal(first[site], second[site])
    np.testing.assert_array_equal(first["beta"], draws["beta"])  # they scattered around the pivot's labels to begin with


def test_vectorised_alignment_is_that_of_single_draws():
    topics = separated_topics()
    draws, _ = shuffled_labels(draws_around(topics, (2, 3)), (2, 3), 4)
    pivot = {"theta": np.full((7, 4), 0.25), "beta": topics}
    together = align.align_draws(LDA, draws, pivot)
    alone = align.align_draws(LDA, {site: value[1, 2] for site, value in draws.items()}, pivot)
    for site in draws:
        np.testing.assert_array_equal(together[site][1, 2], alone[site])


def test_axis_of_factors():
    """Sites that one more factor makes larger, along the axis that grew: whatever the sizes, nothing else is relabelled."""
    assert factor_axes(LDA) == {"theta": (-1,), "beta": (-2,)}
    assert factor_axes(pp_models.load("bernoulli_mixture")) == {"pi": (-1,), "beta": (-2,)}
    hpf = pp_models.load("hpf")
    assert factor_axes(hpf) == {"theta": (-1,), "xi": (), "beta": (-2,), "eta": ()}
    values = {"theta": np.arange(9.0).reshape(3, 3), "xi": np.arange(3.0), "beta": np.arange(9.0).reshape(3, 3), "eta": np.arange(3.0)}
    moved = align.permute(hpf, values, np.array([2, 0, 1]))
    assert moved["xi"] is values["xi"] and moved["eta"] is values["eta"]
    np.testing.assert_array_equal(moved["theta"], values["theta"][:, [2, 0, 1]])
    np.testing.assert_array_equal(moved["beta"], values["beta"][[2, 0, 1]])


def test_factors_in_columns_are_aligned_too():
    def init(key, hyper, data):
        natural = LDA.init(key, hyper, data)
        return {"s": natural["theta"], "d1": natural["beta"].T}

    model = dataclasses.replace(LDA, families={"s": LDA.families["theta"], "d1": LDA.families["beta"]}, local=frozenset({"s"}), init=init)
    topics = separated_topics().T
    pivot = {"s": np.ones((5, 4)), "d1": topics}
    moved = align.permute(model, pivot, np.array([3, 1, 0, 2]))
    np.testing.assert_array_equal(align.align_draws(model, moved, pivot)["d1"], topics)


def test_different_modes_are_not_aligned_away():
    topics, others = separated_topics(), separated_topics(seed=9)
    order = align.topic_order(topics, others)
    assert np.diagonal(align.hellinger(topics, others[order])).mean() > 0.2


def test_other_symmetries_are_refused_in_words():
    model = dataclasses.replace(LDA, symmetry="scale")
    with pytest.raises(InputError, match="scale"):
        align.align_draws(model, {"theta": np.ones((2, 3)), "beta": np.ones((3, 4))}, {"theta": np.ones((2, 3)), "beta": np.ones((3, 4))})


def test_an_empty_topic_is_no_division_by_zero():
    topics = separated_topics()
    topics[2] = 0
    np.testing.assert_array_equal(align.topic_order(topics, topics), np.arange(4))
