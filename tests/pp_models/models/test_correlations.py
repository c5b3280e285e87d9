"""Laws of what correlated NMF shows: planted correlations, near documents, and figures."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_rgba

import inference
import pp_models
from inference.core import align
from inference.evaluation import locations
from pp_models.errors import InputError

PLACES = 1.5 * np.array(
    [[1, 0], [0.9, 0.44], [-1, 0], [0, 1], [-0.44, 0.9], [0, -1]]
)  # six topics: neighbours, and opposites


def planted(seed, num_rows=300, num_words=60):
    """Topics with words of their own and a little in common, documents of 60 words on average."""
    rng = np.random.default_rng(seed)
    own = np.kron(np.eye(6), np.ones((1, num_words // 6))) * rng.gamma(1.0, 1.0, (6, num_words))
    topics = 0.9 * own / own.sum(1, keepdims=True) + 0.1 / num_words
    u = rng.normal(size=(num_rows, 2))
    weights = np.exp(u @ PLACES.T)
    return (
        pp_models.data.counts(
            rng.poisson(
                rng.gamma(4.0, 15.0, (num_rows, 1))
                * weights
                / weights.sum(1, keepdims=True)
                @ topics
            )
        ),
        topics,
        u,
    )


@pytest.fixture(scope="module")
def planted_fit():
    data, topics, u = planted(0)
    runs = [
        inference.fit(
            "correlated_nmf",
            data,
            "cavi",
            {"num_topics": 6, "rank": 2},
            jax.random.key(seed),
            num_epochs=60,
            progress=False,
        )
        for seed in range(3)
    ]
    return max(runs, key=lambda fit: fit.bound), topics, u


@pytest.mark.slow
def test_planted_correlations_are_found(planted_fit):
    """The best of three starts by bound finds every planted sign with |correlation| above 0.4, and
    |ell| within a third of the planted ones."""
    fit, topics, _ = planted_fit
    order = align.topic_order(topics, fit.posterior.mean("beta"))
    found, true = (
        locations.topic_correlations(fit)[np.ix_(order, order)],
        locations.topic_correlations(PLACES),
    )
    clear = np.abs(true) > 0.4
    assert np.all(np.sign(found[clear]) == np.sign(true[clear]))
    assert abs(np.linalg.norm(fit.posterior.mean("ell"), axis=1).mean() / 1.5 - 1) < 1 / 3


@pytest.mark.slow
def test_near_documents_share_their_topic(planted_fit):
    """Labelled by the topic they use most, the ten documents nearest by u_d share the query's label
    more often than chance."""
    fit, _, u = planted_fit
    labels = (u @ PLACES.T).argmax(1)
    hits = [
        np.mean(labels[locations.nearest_documents(fit, row, 10)] == labels[row])
        for row in range(100)
    ]
    chance = np.mean((np.bincount(labels, minlength=6) / len(labels))[labels[:100]])
    assert np.mean(hits) > 2 * chance


class Placed:
    """What `inference.evaluation.locations` needs of a fit: here with locations chosen by hand."""

    def __init__(self, has_chains=False, **values):
        self.posterior, self.engine, self.model, self.has_chains, self.values = (
            self,
            "cavi",
            pp_models.load("correlated_nmf"),
            has_chains,
            values,
        )
        self.problem = SimpleNamespace(hyper=None, model=self.model)
        self.data = SimpleNamespace(totals=np.ones(4))
        self.row_totals, self.sites = self.data.totals, list(values)

    def mean(self, site):
        return self.values[site]


def test_correlations_are_p_11_36():
    """Cosines: of a topic with itself 1, unchanged by lengths and by a rotation of all."""
    ell = np.random.default_rng(0).normal(size=(5, 3))
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    found = locations.topic_correlations(Placed(ell=ell))
    np.testing.assert_allclose(np.diag(found), 1)
    np.testing.assert_allclose(
        found[1, 3], ell[1] @ ell[3] / np.sqrt(ell[1] @ ell[1] * (ell[3] @ ell[3]))
    )
    np.testing.assert_allclose(
        locations.topic_correlations(np.arange(1, 6)[:, None] * ell @ turn), found, atol=1e-12
    )


def test_nearest_documents_by_hand():
    """By direction, nearest first, never the query itself, at most all the others; bad rows and
    draws are refused in a sentence."""
    fit = Placed(u=np.array([[1.0, 0.0], [5.0, 1.0], [-1.0, 0.0], [0.1, 0.1]]))
    assert locations.nearest_documents(fit, 0, 2).tolist() == [1, 3]
    assert locations.nearest_documents(fit, 0, 99).tolist() == [1, 3, 2]
    for bad in ((4, 1), (-1, 1), (1.0, 1), (0, 0)):
        with pytest.raises(InputError, match="must be"):
            locations.nearest_documents(fit, *bad)
    with pytest.raises(InputError, match="rotation"):
        locations.nearest_documents(Placed(True, u=np.ones((3, 2))), 0)


def test_correlation_figure_shows_signs_and_sizes():
    """As P Fig. 11.4: most prevalent topics first, green for positive and red for negative blocks,
    a block's area the correlation."""
    ell = np.array([[1.0, 0.0], [-0.5, 0.5], [0.0, 2.0]])
    beta = np.array([[0.1, 0.1], [1.0, 2.0], [1.0, 1.0]])
    fit = Placed(
        ell=ell, u=np.zeros((4, 2)), s=np.ones(4), beta=beta
    )  # with u = 0 a topic's share is the size of its beta
    np.testing.assert_allclose(inference.prevalence(fit), np.array([0.2, 3.0, 2.0]) / 5.2)
    axes = locations.correlation_figure(fit, 2).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2"]
    areas = np.array([patch.get_width() * patch.get_height() for patch in axes.patches]).reshape(
        2, 2
    )
    np.testing.assert_allclose(areas, np.abs(locations.topic_correlations(ell))[1:, 1:])
    signs = locations.topic_correlations(ell)[np.ix_([1, 2, 0], [1, 2, 0])].ravel()
    for patch, sign in zip(
        locations.correlation_figure(fit, 3).axes[0].patches, signs, strict=True
    ):
        if abs(sign) > 1e-9:
            assert patch.get_facecolor() == to_rgba("tab:green" if sign > 0 else "tab:red")


def test_alignment_undoes_permutations_and_rotations():
    """Draws relabelled and turned, with as many dimensions as topics so that shapes tell nothing:
    aligned they are the pivot's (1e-9: rounding)."""
    rng = np.random.default_rng(0)
    model, pivot = (
        pp_models.load("correlated_nmf"),
        {"beta": rng.dirichlet(np.full(9, 0.3), 4), "s": rng.gamma(2, 1, 4)},
    )
    pivot |= {"ell": rng.normal(size=(4, 4)), "u": rng.normal(size=(4, 4))}
    orders, turns = (
        np.stack([rng.permutation(4) for _ in range(6)]),
        np.linalg.qr(rng.normal(size=(6, 4, 4)))[0],
    )
    draws = {
        "beta": pivot["beta"][orders],
        "ell": pivot["ell"][orders] @ turns,
        "u": pivot["u"] @ turns,
        "s": np.stack([pivot["s"]] * 6),
    }
    aligned = align.align_draws(model, draws, pivot)
    for site, value in pivot.items():
        np.testing.assert_allclose(
            aligned[site], np.broadcast_to(value, aligned[site].shape), atol=1e-9
        )
    rates = jax.vmap(lambda values: model.predict(None, values))
    np.testing.assert_allclose(
        rates(jax.tree.map(jnp.asarray, aligned)),
        rates(jax.tree.map(jnp.asarray, draws)),
        rtol=1e-9,
    )
