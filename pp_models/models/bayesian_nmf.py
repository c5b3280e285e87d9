"""Bayesian nonnegative matrix factorisation (Poisson-gamma).

The KL objective of Lee and Seung as a likelihood, with gamma priors (P 11.6-11.7, after Cemgil 2009):

    X_dv     ~ Poisson(sum_k theta_dk beta_kv)
    beta_kv  ~ Gamma(c0 / V, c0)                  topics, not normalised: their sums are Gamma(c0, c0), close to one
    theta_dk ~ Gamma(a0, b0)                      document weights

With t(beta) = (log beta, sum_v beta) and t(theta) = (log theta, theta),

    F = priors + sum_dv n_dv log sum_k exp(log theta_dk + log beta_kv) - sum_dk theta_dk sum_v beta_kv - sum_dv log n_dv!

and its gradients are P(11.25)-(11.26) for q(beta) and P(11.28)-(11.29) for q(theta). P(11.26) does not depend on the word: one rate per
topic is stored, not one per entry. With a flat prior (`flat=True`) the engine `map` is Lee and Seung's multiplicative update for the divergence
objective (C18): theta <- theta * sum_v beta_v X_v / rate_v / sum_v beta_v, then the same for beta.

| here        | P                | C18 |
|-------------|------------------|-----|
| beta, theta | B', Theta'       | W, H (or H', W': documents are rows here) |
| q(beta)     | Gamma(g, h)      | -   |
| q(theta)    | Gamma(a, b)      | -   |
| a0, b0, c0  | a_0, b_0, c_0    | -   |

Defaults are those of P 11.6: a0 = b0 = 1/K and c0 = 0.05 V.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination.allocate import allocate
from pp_models.elimination.row_solver import Odds, converge_rows
from pp_models.families import Pair
from pp_models.model import Count, Flag, Learning, Model, Positive, Tokens, documents, fill_in
from pp_models.models._scales import along


class Hyper(NamedTuple):
    """num_topics: K. a0, b0: shape and rate of the documents' weights. c0: the topics' total shape and rate. flat: no prior at all."""

    num_topics: Count = 10
    a0: Positive | None = None
    b0: Positive | None = None
    c0: Positive | None = None
    flat: Flag = False


def resolve(hyper, data):
    defaults = {
        "a0": 1 / hyper.num_topics,
        "b0": 1 / hyper.num_topics,
        "c0": 0.05 * data.num_columns,
    }
    return fill_in(hyper, defaults)


def generate(hyper, data):
    with (
        numpyro.plate("topics", hyper.num_topics, dim=-2),
        numpyro.plate("words", data.num_columns),
    ):
        beta = numpyro.sample("beta", dist.Gamma(hyper.c0 / data.num_columns, hyper.c0))
    with documents(data):
        theta = numpyro.sample(
            "theta", dist.Gamma(hyper.a0, hyper.b0).expand([hyper.num_topics]).to_event(1)
        )
        words = dist.Poisson(theta @ beta).to_event(1)
        numpyro.sample("counts", words, obs=data.entries.dense(data.num_columns))


def guide(hyper, data):
    g = numpyro.param(
        "g", lambda key: init(key, hyper, data)["beta"].first, constraint=constraints.positive
    )
    h = numpyro.param(
        "h", lambda key: -init(key, hyper, data)["beta"].second, constraint=constraints.positive
    )
    everyone = jnp.full((data.num_data_rows, hyper.num_topics), 1 + hyper.a0)
    a = numpyro.param("a", everyone, constraint=constraints.positive)
    b = numpyro.param("b", everyone, constraint=constraints.positive)
    with (
        numpyro.plate("topics", hyper.num_topics, dim=-2),
        numpyro.plate("words", data.num_columns),
    ):
        numpyro.sample("beta", dist.Gamma(g, h))
    with documents(data):
        numpyro.sample("theta", dist.Gamma(a[data.positions], b[data.positions]).to_event(1))


def _beta_prior(hyper, num_columns):
    if hyper.flat:
        return Pair(jnp.ones((1, 1)), jnp.zeros((1, 1)))
    return Pair(jnp.reshape(hyper.c0 / num_columns, (1, 1)), jnp.reshape(-hyper.c0, (1, 1)))


def _theta_prior(hyper):
    if hyper.flat:
        return Pair(jnp.ones((1, 1)), jnp.zeros((1, 1)))
    return Pair(jnp.reshape(hyper.a0, (1, 1)), jnp.reshape(-hyper.b0, (1, 1)))


def log_global(hyper, t):
    return jnp.sum(
        fam.log_prior(fam.gamma_tied, _beta_prior(hyper, t["beta"].first.shape[1]), t["beta"])
    )


def log_local(hyper, t, batch, key=None):
    return batch.sum(fam.log_prior(fam.gamma, _theta_prior(hyper), t["theta"])) + log_likelihood(
        t["theta"], t["beta"], batch, key
    )


def log_likelihood(theta, beta, batch, key=None):
    """The Poisson part of F: minus the divergence D(X || theta beta) of C18, less the log factorials."""
    rates = (theta.second @ beta.second)[:, 0]
    return batch.sum(-rates - batch.log_factorials) + allocate(
        theta.first, beta.first, batch.entries, key
    )


def init(key, hyper, data):
    """Topics: the prior plus uniform noise, each topic's sum near one. Documents: the weights that give their length."""
    size = data.num_columns
    spread = data.total / (hyper.num_topics * size)
    noise = jax.random.uniform(key, (hyper.num_topics, size))
    length = data.total / data.num_rows
    shape = (
        jnp.full((data.num_rows, hyper.num_topics), 1.0 if hyper.flat else hyper.a0)
        + length / hyper.num_topics
    )
    prior = _beta_prior(hyper, size)
    return {
        "theta": Pair(shape, -jnp.ones_like(shape)),
        "beta": Pair(
            prior.first + 2 * spread * noise,
            jnp.broadcast_to(prior.second, (hyper.num_topics, 1)) - spread * size,
        ),
    }


def begin(hyper, data, topics):
    """As many tokens of each topic as there would be if all were of one size, the topics' sums near one."""
    tokens, prior = data.total / hyper.num_topics, _beta_prior(hyper, data.num_columns)
    return {
        "beta": Pair(
            prior.first + tokens * topics,
            jnp.broadcast_to(prior.second, (hyper.num_topics, 1)) - tokens,
        )
    }


def odds(hyper, t, batch, summary="collapsed"):
    """A word's topic: P(11.24), or with theta integrated out (a0 + N_dk) / (b0 + sum_v beta_kv) beta_kv, N without the word itself."""
    prior, beta = _theta_prior(hyper), t["beta"]
    rate = -prior.second + beta.second.T  # (1, K), the same for all documents
    return Odds(jnp.broadcast_to(prior.first, rate.shape), -jnp.log(rate), beta.first)


def solve_local(hyper, t, batch, start, options, summary):
    """P(11.24), (11.28) and (11.29) for every document of the batch, in turn until a rests."""
    given = odds(hyper, t, batch, summary)
    counts, info, entries = converge_rows(
        *given, batch.entries, start["theta"].first, options, summary
    )
    rate = jnp.broadcast_to(jnp.exp(-given.log_scale), counts.shape)
    return (
        {"theta": Pair(given.concentration + counts, -rate)},
        info,
        batch.replace(entries=entries),
    )


def moves(hyper, key, values, batch):
    """Weights of a topic times c, the topic divided by it: rates stay, and c has density

    c^(N a0 - c0) exp(-b0 c sum_d theta_dk - c0 sum_v beta_kv / c) dc / c.
    """
    if hyper.flat:
        return values  # no prior: c may be anything
    theta, beta = values["theta"], values["beta"]
    weights, words = 2 * hyper.b0 * jnp.sum(theta, 0), 2 * hyper.c0 * jnp.sum(beta, 1)
    log_c = along(key, 2 * (len(theta) * hyper.a0 - hyper.c0), weights, words)
    return {**values, "theta": theta * jnp.exp(log_c), "beta": beta * jnp.exp(-log_c)[:, None]}


def predict(hyper, values):
    """Expected counts."""
    return values["theta"] @ values["beta"]


def example(key):
    hyper = Hyper(num_topics=3, a0=1.3, b0=0.15, c0=9.0)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    topics, weights = rng.dirichlet(np.full(8, 0.4), 3), rng.gamma(0.6, 12, (13, 3))
    return hyper, data_.counts(rng.poisson(weights @ topics))


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    guide=guide,
    families={"theta": fam.gamma, "beta": fam.gamma_tied},
    log_global=log_global,
    log_local=log_local,
    init=init,
    moves=moves,
    predict=predict,
    symmetry="permutation",
    example=example,
    resolve=resolve,
    solve_local=solve_local,
    tokens=Tokens(odds, begin),
    proper=lambda hyper: not hyper.flat,
    learning=Learning(
        lambda hyper: {} if hyper.flat else {"a0": hyper.a0, "b0": hyper.b0, "c0": hyper.c0}
    ),
)
