"""Latent Dirichlet allocation.

Topics and documents (P 11.1-11.2, T 21-22, X 9):

    beta_k  ~ Dirichlet(eta 1_V)                 k = 1..K   topics over V words
    theta_d ~ Dirichlet(alpha)                   d = 1..D   topic proportions, alpha symmetric or one number per topic
    z_dn    ~ Discrete(theta_d),  w_dn ~ Discrete(beta_{z_dn})

The words of a document enter as counts n_dv, the topics z summed out: n_d ~ Multinomial(N_d, theta_d B), with the multinomial coefficient that
turns a sequence of words into counts. With t(beta) = log beta and t(theta) = log theta,

    F = sum_k log Dir(beta_k) + sum_d log Dir(theta_d) + sum_dv n_dv log sum_k exp(log theta_dk + log beta_kv) + coefficients.

Its gradients are the coordinate updates X 12-13: gamma_d = alpha + sum_n phi_dn and lambda_k = eta + sum_dn w_dn phi_dnk.

| here           | P          | T        | X         |
|----------------|------------|----------|-----------|
| beta, theta    | beta,theta | beta,theta | beta, pi |
| alpha          | a_0 1_K    | alpha_k  | alpha     |
| eta            | c_0 / V    | eta      | lambda    |
| q(beta), q(theta) | -       | lambda, gamma | eta, gamma (alpha on X 9) |

X 23 prints the data terms of the bound with a minus and without the factor N; they enter with a plus, scaled by N / |batch|.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.distributions import constraints

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination.allocate import allocate
from pp_models.elimination.row_solver import Odds, converge_rows
from pp_models.errors import InputError
from pp_models.families.special import digamma
from pp_models.model import Count, Learning, Model, Positive, Positives, Tokens, documents


class Hyper(NamedTuple):
    """num_topics: K. alpha: concentration of the documents' proportions, one number or K. eta: concentration of the topics."""

    num_topics: Count = 10
    alpha: Positives = 0.1
    eta: Positive = 0.05


def resolve(hyper, data):
    if np.size(hyper.alpha) not in (1, hyper.num_topics):
        raise InputError(
            f"alpha has {np.size(hyper.alpha)} numbers for {hyper.num_topics} topics: give one, or one per topic."
        )
    return hyper


def _alpha(hyper, num_topics):
    return jnp.broadcast_to(jnp.asarray(hyper.alpha, float), (num_topics,))


def generate(hyper, data):
    with numpyro.plate("topics", hyper.num_topics):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.full(data.num_columns, hyper.eta)))
    with documents(data):
        theta = numpyro.sample("theta", dist.Dirichlet(_alpha(hyper, hyper.num_topics)))
        words = dist.MultinomialProbs(
            theta @ beta, data.totals.astype(int), total_count_max=data.max_total
        )
        numpyro.sample("counts", words, obs=data.entries.dense(data.num_columns))


def guide(hyper, data):
    topics = numpyro.param(
        "lambda", lambda key: init(key, hyper, data)["beta"], constraint=constraints.positive
    )
    everyone = jnp.ones((data.num_data_rows, hyper.num_topics)) + _alpha(hyper, hyper.num_topics)
    proportions = numpyro.param("gamma", everyone, constraint=constraints.positive)
    with numpyro.plate("topics", hyper.num_topics):
        numpyro.sample("beta", dist.Dirichlet(topics))
    with documents(data):
        numpyro.sample("theta", dist.Dirichlet(proportions[data.positions]))


def log_global(hyper, t):
    return jnp.sum(fam.log_prior(fam.dirichlet, jnp.reshape(hyper.eta, (1, 1)), t["beta"]))


def log_local(hyper, t, batch, key=None):
    prior = fam.log_prior(fam.dirichlet, _alpha(hyper, t["theta"].shape[1])[None], t["theta"])
    coefficient = gammaln(batch.totals + 1) - batch.log_factorials
    return batch.sum(prior + coefficient) + allocate(t["theta"], t["beta"], batch.entries, key)


def init(key, hyper, data):
    """Topics: the prior plus uniform noise scaled to the corpus (P 11.6). Documents: the words spread evenly over the topics.

    Started at the prior instead, a topic of small alpha would begin with a weight of exp(digamma(alpha)), from which it does not recover.
    """
    scale = data.total / (hyper.num_topics * data.num_columns)
    noise = jax.random.uniform(key, (hyper.num_topics, data.num_columns))
    return {
        "theta": _alpha(hyper, hyper.num_topics)
        + jnp.asarray(data.totals, float)[:, None] / hyper.num_topics,
        "beta": hyper.eta + 2 * scale * noise,
    }


def begin(hyper, data, topics):
    """As many tokens of each topic as there would be if all were of one size."""
    return {"beta": hyper.eta + data.total / hyper.num_topics * topics}


_LOG_TOTAL = {"mean": digamma, "mode": jnp.log, "log_mode": jnp.log, "collapsed": jnp.log}
_TAKEN = {
    "mode": lambda num_topics: num_topics,
    "collapsed": lambda num_topics: 1,
}  # from the total: one per topic at a mode, the token itself


def odds(hyper, t, batch, summary="collapsed"):
    """A word's topic: phi of X 12, or with theta integrated out (alpha_k + N_dk) / (sum_k alpha_k + N_d) beta_kv, N without the word itself."""
    alpha = _alpha(hyper, t["beta"].shape[0])[None]
    total = (
        jnp.sum(alpha) + batch.totals - _TAKEN.get(summary, lambda num_topics: 0)(alpha.shape[1])
    )
    return Odds(
        alpha,
        -_LOG_TOTAL[summary](jnp.maximum(total, jnp.finfo(total.dtype).tiny))[:, None],
        t["beta"],
    )


def solve_local(hyper, t, batch, start, options, summary):
    """X 12 for every document of the batch: phi and gamma in turn, until gamma rests."""
    given = odds(hyper, t, batch, summary)
    counts, info, entries = converge_rows(*given, batch.entries, start["theta"], options, summary)
    return {"theta": given.concentration + counts}, info, batch.replace(entries=entries)


def predict(hyper, values):
    """Word probabilities of each document."""
    return values["theta"] @ values["beta"]


def example(key):
    hyper = Hyper(num_topics=3, alpha=1.1, eta=1.2)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    topics, proportions = rng.dirichlet(np.full(9, 0.3), 3), rng.dirichlet(np.full(3, 0.5), 14)
    return hyper, data_.counts(
        [
            rng.multinomial(n, p)
            for n, p in zip(rng.integers(5, 40, 14), proportions @ topics, strict=True)
        ]
    )


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    guide=guide,
    families={"theta": fam.dirichlet, "beta": fam.dirichlet},
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=predict,
    symmetry="permutation",
    example=example,
    resolve=resolve,
    solve_local=solve_local,
    tokens=Tokens(odds, begin),
    learning=Learning(lambda hyper: {"alpha": _alpha(hyper, hyper.num_topics), "eta": hyper.eta}),
)
