"""Laws of `cvb0` and of `weights="mean"`, both written out here in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma

import inference
import pp_models
from inference.engines import _minibatch as mb
from inference.run import fit as fitting
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError

ALPHA, ETA, NUM_TOPICS = 0.3, 0.2, 3


def corpus(num_rows=9, num_columns=7):
    rng = np.random.default_rng(0)
    X = rng.poisson(rng.gamma(0.5, 2.0, (num_rows, num_columns)))
    X[2] = 0  # a document without words
    X[0, 0] = 40
    return X


def topics(num_columns=7):
    return np.random.default_rng(1).gamma(2.0, 3.0, (NUM_TOPICS, num_columns))


def problem_of(X, **hyper):
    given = {"num_topics": NUM_TOPICS, "alpha": ALPHA, "eta": ETA, **hyper}
    return fitting.make_problem(
        "lda", pp_models.data.counts(X), given, devices=jax.local_devices()[:1]
    )


def collapsed(X, natural, alpha, sweeps=3000):
    """Allocations (documents, words, topics) of CVB0 given the topics."""
    beta = natural / natural.sum(1, keepdims=True)
    share = np.full((*X.shape, len(beta)), 1 / len(beta))
    for _ in range(sweeps):
        counts = np.einsum("dv,dvk->dk", X, share)
        share = (alpha + counts[:, None, :] - share) * beta.T
        share /= share.sum(2, keepdims=True)
    return share


def half_collapsed(X, natural, alpha, sweeps=3000):
    """Shares of documents with geometric means and topics with means."""
    beta = natural / natural.sum(1, keepdims=True)
    gamma = np.full((len(X), len(beta)), 1.0)
    for _ in range(sweeps):
        share = np.exp(digamma(gamma))[:, None, :] * beta.T
        share /= share.sum(2, keepdims=True)
        gamma = alpha + np.einsum("dv,dvk->dk", X, share)
    return share


@pytest.mark.parametrize(
    ("summary", "written_out"), [("collapsed", collapsed), ("mean", half_collapsed)]
)
def test_rows_end_at_the_fixed_point(summary, written_out):
    """Expected counts given topics are those of the equation iterated in NumPy."""
    X, natural = corpus(), topics()
    problem = problem_of(X)
    solved = mb.solve(
        problem,
        problem.hyper,
        {"beta": jnp.asarray(natural)},
        (problem.data.pack(),),
        RowOptions(3000, 1e-13),
        summary=summary,
        weights="mean",
    )
    (share,), expected = solved.shares, written_out(X, natural, ALPHA)
    np.testing.assert_allclose(
        share.local["theta"], ALPHA + np.einsum("dv,dvk->dk", X, expected), rtol=1e-8
    )
    np.testing.assert_allclose(
        share.gradient["beta"], np.einsum("dv,dvk->kv", X, expected), rtol=1e-8, atol=1e-10
    )
    other = {"collapsed": half_collapsed, "mean": collapsed}[summary](X, natural, ALPHA)
    assert np.abs(other - expected).max() > 0.01


def test_cvb0_rests_where_all_its_equations_hold():
    """Shares given topics, and topics given shares, both at once."""
    X = corpus()
    hyper = {"num_topics": NUM_TOPICS, "alpha": ALPHA, "eta": ETA}
    exact = {"num_epochs": 3000, "tolerance": 1e-12, "num_local": 20, "local_tolerance": 1e-13}
    fit = inference.fit("lda", pp_models.data.counts(X), "cvb0", hyper, progress=False, **exact)
    natural = np.asarray(fit.posterior.natural("beta"))
    counts = np.asarray(fit.posterior.natural("theta")) - ALPHA
    beta = natural / natural.sum(1, keepdims=True)
    share = np.full((*X.shape, NUM_TOPICS), 1 / NUM_TOPICS)
    for _ in range(3000):
        share = (ALPHA + counts[:, None, :] - share) * beta.T
        share /= share.sum(2, keepdims=True)
    np.testing.assert_allclose(np.einsum("dv,dvk->dk", X, share), counts, atol=1e-7)
    np.testing.assert_allclose(ETA + np.einsum("dv,dvk->kv", X, share), natural, atol=1e-6)
    assert fit.history["change"][-1] < 1e-12 and np.all(np.isnan(fit.history["bound"]))


def test_one_word_documents_leave_themselves_out():
    """The allocation of a single word is the prior times the topics."""
    natural = topics()
    problem = problem_of(np.eye(7, dtype=int), alpha=np.array([0.1, 0.5, 2.0]))
    solved = mb.solve(
        problem,
        problem.hyper,
        {"beta": jnp.asarray(natural)},
        (problem.data.pack(),),
        RowOptions(5, 0.0),
        summary="collapsed",
        weights="mean",
    )
    (share,) = solved.shares
    expected = np.array([0.1, 0.5, 2.0]) * (natural / natural.sum(1, keepdims=True)).T
    np.testing.assert_allclose(
        share.local["theta"] - np.array([0.1, 0.5, 2.0]),
        expected / expected.sum(1, keepdims=True),
        rtol=1e-10,
    )


def test_batches_of_all_rows_are_the_batch_form():
    """cvb0 on all rows does not depend on how they are dealt out; small batches end near it."""
    rng = np.random.default_rng(3)
    true = rng.dirichlet(np.full(30, 0.1), 3)
    X = np.array([rng.multinomial(60, p) for p in rng.dirichlet(np.full(3, 0.2), 80) @ true])
    data, hyper = pp_models.data.counts(X), {"num_topics": 3, "alpha": 0.2, "eta": 0.1}
    whole = inference.fit(
        "lda", data, "cvb0", hyper, progress=False, tolerance=1e-6, num_epochs=300
    )
    parts = inference.fit("lda", data, "cvb0", hyper, progress=False, batch_size=20, num_epochs=60)
    start = {"beta": np.asarray(whole.posterior.natural("beta"))}
    again = inference.fit(
        "lda",
        data,
        "cvb0",
        hyper,
        progress=False,
        init=start,
        num_epochs=1,
        num_local=100,
        local_tolerance=1e-8,
    )
    np.testing.assert_allclose(
        again.posterior.mean("beta"), whole.posterior.mean("beta"), atol=1e-4
    )
    nearest = [np.abs(parts.posterior.mean("beta") - topic).sum(1).min() for topic in true]
    assert max(nearest) < 0.3  # of 2: each planted topic is found


@pytest.mark.parametrize("engine", ["svi", "trust_region", "streaming"])
def test_means_are_used_and_the_bound_stays_one(engine):
    """weights="mean" gives another posterior, and the history holds the bound of that q."""
    data = pp_models.data.counts(corpus())
    hyper = {"num_topics": NUM_TOPICS, "alpha": ALPHA, "eta": ETA}
    more = {"batch_size": 9, "bound_every": 1, "num_local": 200, "local_tolerance": 1e-10}
    more |= {"num_steps": 3} if engine == "streaming" else {"num_epochs": 3}
    plain, mean = (
        inference.fit("lda", data, engine, hyper, progress=False, weights=weights, **more)
        for weights in ("geometric", "mean")
    )
    assert np.abs(plain.posterior.mean("beta") - mean.posterior.mean("beta")).max() > 1e-3
    assert plain.history["bound"][0] == pytest.approx(
        mean.history["bound"][0], rel=1e-9
    )  # the same start
    assert not np.allclose(plain.history["bound"][1:], mean.history["bound"][1:])


def test_refusals():
    ratings = pp_models.data.ratings([0, 1, 1], [0, 0, 1], [1.0, 2.0, 3.0], shape=(2, 2))
    counts = pp_models.data.counts(corpus())
    with pytest.raises(InputError, match="leave weights out"):
        inference.fit("pmf", ratings, "svi", weights="mean")
    with pytest.raises(InputError, match="geometric"):
        inference.fit("lda", counts, "svi", weights="arithmetic")
    with pytest.raises(InputError, match="inner_tolerance"):
        inference.fit("lda", counts, "trust_region", weights="mean", inner_tolerance=1e-3)
    with pytest.raises(InputError, match="cvb0"):
        inference.fit("pmf", ratings, "cvb0")
    with pytest.raises(InputError, match="cvb0"):
        inference.fit("hpf", counts, "cvb0")
