"""Bayesian NMF against P 11.24-11.29 and, with a flat prior, against Lee and Seung's update
(C18)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import digamma, gammaln
from jax.scipy.stats import gamma

import inference
import pp_models
from inference.core import objective as obj
from inference.run import fit as fitting
from pp_models import families as fam
from pp_models import model
from pp_models.errors import InputError
from pp_models.families import Pair


@pytest.fixture(scope="module")
def problem():
    hyper, data = pp_models.load("bayesian_nmf").example(jax.random.key(0))
    return fitting.make_problem("bayesian_nmf", data, hyper, devices=jax.local_devices()[:1])


def test_updates_are_p_11_25_to_11_29(problem):
    """dF/dmu gives (g, h) and (a, b) as printed, with the allocation probabilities P(11.24)."""
    rng = np.random.default_rng(0)
    X = problem.data.matrix.toarray()
    (D, V), K, hyper = X.shape, 3, problem.hyper
    a, b, g, h = (
        jnp.asarray(rng.gamma(2, 1, shape) + 0.1) for shape in ((D, K), (D, K), (K, V), (K, 1))
    )
    q = {"theta": Pair(a, -b), "beta": Pair(g, -h)}
    gradient = jax.grad(lambda t: model.joint(problem.model, hyper, t, problem.data.pack()))(
        obj.summarise(problem.model, q)
    )
    logits = (digamma(a) - jnp.log(b))[:, None, :] + (digamma(g) - jnp.log(h)).T[None]
    p = jax.nn.softmax(logits, axis=-1)
    np.testing.assert_allclose(
        gradient["beta"].first, hyper.c0 / V + jnp.einsum("dv,dvk->kv", X, p), rtol=1e-10
    )
    np.testing.assert_allclose(
        -gradient["beta"].second, hyper.c0 + (a / b).sum(0)[:, None], rtol=1e-10
    )
    np.testing.assert_allclose(
        gradient["theta"].first, hyper.a0 + jnp.einsum("dv,dvk->dk", X, p), rtol=1e-10
    )
    np.testing.assert_allclose(
        -gradient["theta"].second, hyper.b0 + jnp.broadcast_to((g / h).sum(1), (D, K)), rtol=1e-10
    )


def lee_and_seung(X, W, H):
    """C18, the divergence objective: documents' weights first, then the topics'."""
    W = W * ((X / (W @ H)) @ H.T) / H.sum(1)
    return W, H * (W.T @ (X / (W @ H))) / W.sum(0)[:, None]


def test_map_with_a_flat_prior_is_lee_and_seung():
    """Ten sweeps from the same start agree with the printed multiplicative update."""
    rng = np.random.default_rng(2)
    X = rng.poisson(3.0, (20, 15)).astype(float)
    W, H = rng.gamma(2, 1, (20, 4)), rng.gamma(2, 1, (4, 15))
    fit = inference.fit(
        "bayesian_nmf",
        pp_models.data.counts(X),
        "map",
        {"num_topics": 4, "flat": True},
        init={"theta": W, "beta": H},
        num_epochs=10,
        tolerance=0.0,
    )
    for _ in range(10):
        W, H = lee_and_seung(X, W, H)
    np.testing.assert_allclose(fit.posterior.mean("theta"), W, rtol=1e-8)
    np.testing.assert_allclose(fit.posterior.mean("beta"), H, rtol=1e-8)


def test_flat_map_matches_scikit_learn():
    """The same trajectory of the divergence as NMF(solver='mu') from the same start."""
    decomposition = pytest.importorskip("sklearn.decomposition")
    rng = np.random.default_rng(3)
    X = rng.poisson(2.0, (25, 12)).astype(float)
    W, H = rng.gamma(2, 1, (25, 3)), rng.gamma(2, 1, (3, 12))
    nmf = decomposition.NMF(
        3, init="custom", solver="mu", beta_loss="kullback-leibler", max_iter=20, tol=0
    )
    Ws = nmf.fit_transform(X, W=W.copy(), H=H.copy())
    fit = inference.fit(
        "bayesian_nmf",
        pp_models.data.counts(X),
        "map",
        {"num_topics": 3, "flat": True},
        init={"theta": W, "beta": H},
        num_epochs=20,
        tolerance=0.0,
    )
    np.testing.assert_allclose(
        fit.posterior.mean("theta") @ fit.posterior.mean("beta"), Ws @ nmf.components_, rtol=1e-5
    )


@pytest.mark.parametrize("engine", ["cavi", "svi", "gibbs", "nuts", "numpyro_svi"])
def test_flat_prior_needs_a_point_estimate(engine):
    """Without a prior the scale of the factors is free and no posterior exists: refused in a
    sentence."""
    with pytest.raises(InputError, match="proper prior"):
        inference.fit(
            "bayesian_nmf", pp_models.data.counts(np.ones((4, 5))), engine, {"flat": True}
        )


def test_bound_is_its_definition(problem):
    """F(mu) + entropy equals E_q[log p(X, allocations, theta, beta)] - E_q[log q], by Monte Carlo
    over theta and beta and exactly over allocations.

    Ten thousand draws; five standard errors.
    """
    rng = np.random.default_rng(5)
    X, hyper, families = problem.data.matrix.toarray(), problem.hyper, problem.model.families
    (D, V), K = X.shape, 3
    a, b, g, h = (
        jnp.asarray(rng.gamma(2, 1, shape) + 0.3) for shape in ((D, K), (D, K), (K, V), (K, 1))
    )
    q = {"theta": Pair(a, -b), "beta": Pair(g, -h)}
    p = jax.nn.softmax(
        (digamma(a) - jnp.log(b))[:, None, :] + (digamma(g) - jnp.log(h)).T[None], axis=-1
    )

    def one(key):
        keys = jax.random.split(key)
        theta, beta = (
            families["theta"].value(families["theta"].sample(keys[0], q["theta"])),
            families["beta"].value(families["beta"].sample(keys[1], q["beta"])),
        )
        allocated = X[:, :, None] * p
        log_p = jnp.sum(allocated * (jnp.log(theta)[:, None, :] + jnp.log(beta).T[None])) - jnp.sum(
            theta @ beta
        )
        log_p += jnp.sum(gamma.logpdf(theta * hyper.b0, hyper.a0) + jnp.log(hyper.b0)) + jnp.sum(
            gamma.logpdf(beta * hyper.c0, hyper.c0 / V) + jnp.log(hyper.c0)
        )
        return (
            log_p
            - jnp.sum(gamma.logpdf(theta * b, a) + jnp.log(b))
            - jnp.sum(gamma.logpdf(beta * h, g) + jnp.log(h))
        )

    terms = np.asarray(
        jax.lax.map(one, jax.random.split(jax.random.key(0), 10_000), batch_size=500)
    )
    exact = (
        terms.mean()
        - float(jnp.sum(X[:, :, None] * p * jnp.log(p)))
        - float(gammaln(X + 1.0).sum())
    )
    stats = obj.summarise(problem.model, q)
    ours = model.joint(problem.model, hyper, stats, problem.data.pack()) + sum(
        jnp.sum(fam.entropy(families[s], q[s])) for s in q
    )
    assert abs(ours - exact) < 5 * terms.std() / np.sqrt(len(terms))


def test_defaults_are_the_papers(problem):
    """a0 = b0 = 1/K and c0 = 0.05 V (P 11.6)."""
    hyper = fitting.make_problem("bayesian_nmf", problem.data, {"num_topics": 5}).hyper
    np.testing.assert_allclose(
        [hyper.a0, hyper.b0, hyper.c0], [0.2, 0.2, 0.05 * problem.data.num_columns]
    )


def test_one_factor_posterior():
    """With K = 1 and the document weights known, the topic's posterior is gamma: CAVI's fixed point
    satisfies P(11.25)-(11.29) by hand."""
    X = np.random.default_rng(0).poisson(2.0, (10, 5))
    fit = inference.fit(
        "bayesian_nmf",
        pp_models.data.counts(X),
        "cavi",
        {"num_topics": 1, "a0": 1.0, "b0": 1.0, "c0": 2.0},
        num_epochs=500,
        tolerance=1e-14,
    )
    theta, beta = fit.posterior.natural("theta"), fit.posterior.natural("beta")
    np.testing.assert_allclose(beta.first[0], 2.0 / 5 + X.sum(0), rtol=1e-10)
    np.testing.assert_allclose(np.asarray(theta.first)[:, 0], 1.0 + X.sum(1), rtol=1e-10)
    np.testing.assert_allclose(
        -np.asarray(beta.second)[0, 0], 2.0 + (theta.first / -theta.second).sum(), rtol=1e-5
    )
