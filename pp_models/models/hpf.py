"""Hierarchical Poisson factorisation.

Poisson factorisation in which every user has an activity and every item a popularity (Gopalan, Hofman and Blei 2015, section 2):

    xi_d     ~ Gamma(a', b')                      theta_dk ~ Gamma(a, xi_d)        users (documents): rates and weights
    eta_v    ~ Gamma(c', d')                      beta_kv  ~ Gamma(c, eta_v)       items (words): rates and loadings
    X_dv     ~ Poisson(sum_k theta_dk beta_kv)

This file is the worked example of a variant. It is `bayesian_nmf` with the rates of both gamma priors made random, and F differs there only:

                      bayesian_nmf                                        here
    theta's prior     a0 log b0 + a0 log theta - b0 theta                 a log xi + a log theta - xi theta         `log_local`
    beta's prior      (c0/V) log c0 + (c0/V) log beta - c0 beta           c log eta + c log beta - eta beta         `log_global`
    two new priors    -                                                   those of xi and of eta                    both
    likelihood        allocate(theta, beta) - theta sum_v beta_v          the same

less log Gamma(shape) of each. What was a constant rate is now a statistic of another site: t(xi) = (log xi, xi) and t(eta) = (log eta, eta). The
engines ask for nothing else. Two declarations follow from it: the rate of q(beta) now depends on the word, so its family is `gamma` and not
`gamma_tied`; and beta meets eta, both global, in `log_global`: coupled="prior". The gradients of F are the paper's coordinate updates, with
phi_dv = softmax_k(E log theta_dk + E log beta_kv):

    q(theta_dk) = Gamma(a + sum_v X_dv phi_dvk, E xi_d + sum_v E beta_kv)         q(xi_d)  = Gamma(a' + K a, b' + sum_k E theta_dk)
    q(beta_kv)  = Gamma(c + sum_d X_dv phi_dvk, E eta_v + sum_d E theta_dk)       q(eta_v) = Gamma(c' + K c, d' + sum_k E beta_kv)

| here             | paper                                                     |
|------------------|-----------------------------------------------------------|
| theta, beta      | theta_uk, beta_ik                                         |
| xi, eta          | xi_u (activity), eta_i (popularity)                       |
| a, a_prime, c, c_prime | a, a', c, c'                                        |
| b_prime, d_prime | a' / b' and c' / d': the paper's b' and d' are prior means |
| q(theta), q(xi)  | gamma_uk, kappa_u                                         |
| q(beta), q(eta)  | lambda_ik, tau_i                                          |

Defaults are the paper's: shapes of 0.3, which favour sparse weights, and hyper-priors of mean one, that is rates of 0.3.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination.allocate import allocate
from pp_models.elimination.row_solver import Odds
from pp_models.families import Pair
from pp_models.model import Count, Model, Positive, Tokens, documents


class Hyper(NamedTuple):
    """num_topics: K. a, c: shapes of theta and beta. a_prime, b_prime: shape and rate of xi. c_prime, d_prime: shape and rate of eta."""

    num_topics: Count = 10
    a: Positive = 0.3
    a_prime: Positive = 0.3
    b_prime: Positive = 0.3
    c: Positive = 0.3
    c_prime: Positive = 0.3
    d_prime: Positive = 0.3


def generate(hyper, data):
    with numpyro.plate("words", data.num_columns):
        eta = numpyro.sample("eta", dist.Gamma(hyper.c_prime, hyper.d_prime))
    with (
        numpyro.plate("topics", hyper.num_topics, dim=-2),
        numpyro.plate("words", data.num_columns),
    ):
        beta = numpyro.sample("beta", dist.Gamma(hyper.c, eta))
    with documents(data):
        xi = numpyro.sample("xi", dist.Gamma(hyper.a_prime, hyper.b_prime))
        theta = numpyro.sample(
            "theta", dist.Gamma(hyper.a, jnp.tile(xi[:, None], hyper.num_topics)).to_event(1)
        )
        numpyro.sample(
            "counts",
            dist.Poisson(theta @ beta).to_event(1),
            obs=data.entries.dense(data.num_columns),
        )


def _rates_prior(shape, rate):
    """xi's or eta's: a gamma prior of a vector."""
    return Pair(jnp.reshape(shape, (1,)), jnp.reshape(-rate, (1,)))


def _given_rates(shape, x, rate):
    """log Gamma(x | shape, rate), relative to dx/x, in the statistics of x and of its random rate, element by element."""
    return shape * (rate.first + x.first) - rate.second * x.second - gammaln(shape)


def log_global(hyper, t):
    prior = fam.log_prior(fam.gamma, _rates_prior(hyper.c_prime, hyper.d_prime), t["eta"])
    return jnp.sum(prior) + jnp.sum(
        _given_rates(hyper.c, t["beta"], jax.tree.map(lambda x: x[None], t["eta"]))
    )


def log_local(hyper, t, batch, key=None):
    theta, beta = t["theta"], t["beta"]
    prior = fam.log_prior(fam.gamma, _rates_prior(hyper.a_prime, hyper.b_prime), t["xi"])
    weights = jnp.sum(_given_rates(hyper.a, theta, jax.tree.map(lambda x: x[:, None], t["xi"])), 1)
    rates = theta.second @ jnp.sum(beta.second, 1)
    return batch.sum(prior + weights - rates - batch.log_factorials) + allocate(
        theta.first, beta.first, batch.entries, key
    )


def init(key, hyper, data):
    """One update of each site from the others' prior means, tokens spread evenly over the topics; noise tells the topics apart."""
    size, num_topics = data.num_columns, hyper.num_topics
    spread = data.total / (num_topics * size)
    noise = jax.random.uniform(key, (num_topics, size))
    totals = jnp.asarray(data.totals, float)
    shape = jnp.tile(hyper.a + totals[:, None] / num_topics, num_topics)
    rate = hyper.a_prime / hyper.b_prime + size * hyper.c * hyper.d_prime / hyper.c_prime
    topic_rate = hyper.c_prime / hyper.d_prime + jnp.sum(shape[:, 0]) / rate
    beta = Pair(hyper.c + 2 * spread * noise, jnp.full((num_topics, size), -topic_rate))
    return {
        "theta": Pair(shape, jnp.full_like(shape, -rate)),
        "xi": Pair(
            jnp.full(totals.shape, hyper.a_prime + num_topics * hyper.a),
            -hyper.b_prime - jnp.sum(shape, 1) / rate,
        ),
        "beta": beta,
        "eta": Pair(
            jnp.full(size, hyper.c_prime + num_topics * hyper.c),
            -hyper.d_prime - jnp.sum(beta.first, 0) / topic_rate,
        ),
    }


def odds(hyper, t, batch, summary="collapsed"):
    """A token's factor with theta integrated out: (a + N_dk) / (xi_d + sum_v beta_kv) beta_kv, N without the token itself."""
    rate = t["xi"].second[:, None] + jnp.sum(t["beta"].second, 1)
    return Odds(jnp.full((1, rate.shape[1]), hyper.a), -jnp.log(rate), t["beta"].first)


def predict(hyper, values):
    """Expected counts."""
    return values["theta"] @ values["beta"]


def example(key):
    hyper = Hyper(num_topics=3, a=1.3, a_prime=10.0, b_prime=12.0, c=1.2, c_prime=10.0, d_prime=5.0)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    loadings, weights = rng.dirichlet(np.full(8, 0.4), 3), rng.gamma(0.6, 12, (13, 3))
    return hyper, data_.counts(rng.poisson(weights @ loadings))


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    families={"theta": fam.gamma, "xi": fam.gamma, "beta": fam.gamma, "eta": fam.gamma},
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=predict,
    symmetry="permutation",
    example=example,
    tokens=Tokens(odds),
)
