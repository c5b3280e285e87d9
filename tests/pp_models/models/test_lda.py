"""LDA against its papers' printed equations, written out densely."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import digamma, gammaln

import inference
import pp_models
from inference.core import objective as obj
from inference.run import fit as fitting
from pp_models import model
from pp_models.errors import InputError


@pytest.fixture(scope="module")
def problem():
    hyper, data = pp_models.load("lda").example(jax.random.key(0))
    return fitting.make_problem(
        "lda", data, hyper._replace(alpha=(0.3, 0.7, 1.9)), devices=jax.local_devices()[:1]
    )


@pytest.fixture(scope="module")
def q(problem):
    rng = np.random.default_rng(0)
    return {
        "theta": jnp.asarray(rng.gamma(1, 2, (problem.data.num_rows, 3)) + 0.1),
        "beta": jnp.asarray(rng.gamma(1, 2, (3, problem.data.num_columns)) + 0.1),
    }


def responsibilities(q):
    """X 12: phi_dvk, densely."""
    e_theta = digamma(q["theta"]) - digamma(q["theta"].sum(1, keepdims=True))
    e_beta = digamma(q["beta"]) - digamma(q["beta"].sum(1, keepdims=True))
    return e_theta, e_beta, jax.nn.softmax(e_theta[:, None, :] + e_beta.T[None], axis=-1)


def test_updates_are_x_12_and_13(problem, q):
    """dF/dmu gives gamma_d = alpha + sum_n phi and lambda_k = eta + sum_dn w phi, with the
    asymmetric alpha."""
    counts = problem.data.matrix.toarray()
    gradient = jax.grad(
        lambda t: model.joint(problem.model, problem.hyper, t, problem.data.pack())
    )(obj.summarise(problem.model, q))
    _, _, phi = responsibilities(q)
    np.testing.assert_allclose(
        gradient["theta"],
        jnp.asarray([0.3, 0.7, 1.9]) + jnp.einsum("dv,dvk->dk", counts, phi),
        rtol=1e-10,
    )
    np.testing.assert_allclose(
        gradient["beta"], 1.2 + jnp.einsum("dv,dvk->kv", counts, phi), rtol=1e-10
    )


def test_bound_is_its_definition(problem, q):
    """F(mu) + entropy equals E_q[log p(n, z, theta, beta)] - E_q[log q(z, theta, beta)], by Monte
    Carlo over theta and beta and exactly over z.

    Ten thousand draws; five standard errors.
    """
    counts = problem.data.matrix.toarray()
    _, _, phi = responsibilities(q)
    families = problem.model.families
    hyper = problem.hyper

    def one(key):
        keys = jax.random.split(key)
        log_theta, log_beta = (
            families["theta"].sample(keys[0], q["theta"]),
            families["beta"].sample(keys[1], q["beta"]),
        )
        log_p = (
            _log_dirichlet(hyper.alpha, log_theta)
            + _log_dirichlet(jnp.full(counts.shape[1], hyper.eta), log_beta)
            + jnp.einsum("dv,dvk,dvk->", counts, phi, log_theta[:, None, :] + log_beta.T[None])
        )  # fmt: skip
        return log_p - _log_dirichlet(q["theta"], log_theta) - _log_dirichlet(q["beta"], log_beta)

    terms = np.asarray(
        jax.lax.map(one, jax.random.split(jax.random.key(0), 10_000), batch_size=500)
    )
    entropy = -jnp.einsum("dv,dvk->", counts, phi * jnp.log(phi))
    coefficient = gammaln(counts.sum(1) + 1.0).sum() - gammaln(counts + 1.0).sum()
    stats = obj.summarise(problem.model, q)
    ours = model.joint(problem.model, hyper, stats, problem.data.pack())
    ours += sum(jnp.sum(_entropy_part(families[s], q[s], stats[s])) for s in families)
    assert abs(ours - (terms.mean() + entropy + coefficient)) < 5 * terms.std() / np.sqrt(
        len(terms)
    )


def _entropy_part(family, natural, stats):
    return family.log_normalizer(natural) - jnp.sum(natural * stats, -1)


def _log_dirichlet(concentration, log_x):
    concentration = jnp.broadcast_to(concentration, log_x.shape)
    constant = gammaln(concentration.sum(-1)) - gammaln(concentration).sum(-1)
    return jnp.sum(constant + jnp.sum((concentration - 1) * log_x, -1))


def test_recovers_planted_topics():
    """Topics with separate vocabularies are found, up to their order, by the best of five starts:
    coordinate ascent has local optima. Total variation within 0.1 of the truth: the prior on
    proportions is not the one that drew them."""
    rng = np.random.default_rng(1)
    topics = np.kron(np.eye(4), np.full(5, 0.2))
    proportions = rng.dirichlet(np.full(4, 0.2), 200)
    data = pp_models.data.counts(np.stack([rng.multinomial(60, p) for p in proportions @ topics]))
    fits = [
        inference.fit("lda", data, "cavi", {"num_topics": 4}, jax.random.key(seed), num_epochs=100)
        for seed in range(5)
    ]
    fit = max(fits, key=lambda one: one.bound)
    best = np.abs(fit.posterior.mean("beta")[:, None] - topics[None]).sum(-1)
    assert sorted(best.argmin(1)) == [0, 1, 2, 3] and best.min(1).max() < 0.2


@pytest.mark.slow
def test_collapsed_posterior_of_one_topic():
    """With K = 1 the posterior is conjugate: Dirichlet(eta + column totals), found exactly by CAVI
    and by Gibbs (0.05 sd of 4,000 draws)."""
    data = pp_models.data.counts(np.random.default_rng(0).poisson(2.0, (10, 5)))
    exact = np.asarray(data.matrix.sum(0)).ravel() + 0.5
    fit = inference.fit("lda", data, "cavi", {"num_topics": 1, "eta": 0.5}, num_epochs=3)
    np.testing.assert_allclose(fit.posterior.natural("beta")[0], exact, rtol=1e-12)
    chain = inference.fit(
        "lda", data, "gibbs", {"num_topics": 1, "eta": 0.5}, num_samples=2000, num_warmup=0
    )
    sd = fit.posterior.sd("beta")
    assert np.abs(chain.posterior.mean("beta") - fit.posterior.mean("beta")).max() < 0.08 * sd.max()


BAD_HYPER = [
    ({"num_topics": 0}, "num_topics"),
    ({"num_topics": 2.5}, "num_topics"),
    ({"alpha": -1}, "alpha"),
    ({"alpha": [1, 2]}, "alpha"),
    ({"eta": float("nan")}, "eta"),
    ({"eta": "x"}, "eta"),
    ({"num_topcs": 3}, "num_topics"),
]


@pytest.mark.parametrize(("hyper", "word"), BAD_HYPER)
def test_bad_hyper_parameters(hyper, word):
    """Each is refused with a sentence that names it."""
    data = pp_models.data.counts(np.ones((3, 4)))
    with pytest.raises(InputError, match=word):
        inference.fit("lda", data, "cavi", hyper)


def test_map_says_when_the_prior_has_no_mode():
    """Below a concentration of one the density is unbounded: map changes the basis and says so."""
    data = pp_models.data.counts(np.random.default_rng(0).poisson(2.0, (6, 5)))
    with pytest.warns(UserWarning, match="no interior mode"):
        fit = inference.fit("lda", data, "map", {"num_topics": 2, "alpha": 0.1}, num_epochs=5)
    assert np.all(np.isfinite(fit.history["bound"]))
