"""Correlated topic model: documents' proportions are logistic normal, so that topics may go together.

With topics beta as in `lda`, a document's proportions are (P 11.3)

    theta_d = softmax(y_d),   z_dn ~ Discrete(theta_d),   w_dn ~ Discrete(beta_{z_dn})

and there are two priors of y, of which `prior` chooses one:

    "inverse_wishart"   y_d ~ Normal(0, C),  C ~ invWishart(A, m)                               P(11.3), (11.4); A = scale I, m = degrees
    "locations"         y_dk = ell_k' u_d,  ell_k ~ Normal(0, sigma2 I_m),  u_d ~ Normal(0, I_m)        P(11.10)-(11.12); m = rank

The first is declared by the precision L = C^-1 ~ Wishart(A^-1, m), whose site is `precision`. The second has C = ell ell' ~ Wishart(sigma2 I, m), of
rank m, which may be less than K. Given C the two agree: y = ell u has the density of u, divided by |det ell| where that is not zero.

With t(beta) = log beta, t(x) = (x, x x') for y, u and ell, t(L) = (log det L, L); y_d = ell u_d in the second form, S its covariance:

    F = priors + sum_dv n_dv log sum_k exp(y_dk + log beta_kv) - sum_d N_d log sum_k E exp(y_dk) + coefficients,   E exp(y_k) = exp(y_k + S_kk / 2)

Of points (S = 0) that is the log joint density. Of a normal q the expectation of the log of a sum is bounded by the log of the expected sum (Blei and
Lafferty 2007), so the bound is a bound still. y, u and ell are `damped`, as in `correlated_nmf`, whose rows are solved by the same steps
(`log_normal`): a document's scale there, eliminated, is the normaliser here.

| here           | P            | here          | P           |
|----------------|--------------|---------------|-------------|
| beta           | beta         | precision     | C^-1        |
| y              | y            | degrees, scale | m, A = scale I |
| ell, u         | L', u        | rank, sigma2  | m, sigma^2  |

y has no mean in P, and none here. `eta` is P's c_0 / V. Defaults: degrees K + 2, so that E[C] = A; rank and sigma2 as in `correlated_nmf`. ell is
a point.
"""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination import starts
from pp_models.elimination.allocate import allocate
from pp_models.errors import InputError
from pp_models.families import Pair
from pp_models.model import (
    Count,
    Learning,
    Model,
    Positive,
    Rotation,
    Topics,
    documents,
    fill_in,
    otherwise,
)
from pp_models.models import _log_normal as log_normal


class Hyper(NamedTuple):
    """num_topics: K. eta: concentration of the topics. prior: "inverse_wishart" or "locations".

    degrees, scale: of the inverse Wishart prior, m (default K + 2) and A = scale I. rank, sigma2: of the locations, their dimension (0: 50, or K if
    that is less) and the variance of the topics' (default 1 / rank). Either prior leaves the other's unused.
    """

    num_topics: Count = 10
    eta: Positive = 0.05
    prior: Literal["inverse_wishart", "locations"] = "inverse_wishart"
    degrees: Positive | None = None
    scale: Positive = 1.0
    rank: int = 0
    sigma2: Positive | None = None


def resolve(hyper, data):
    hyper = hyper._replace(
        rank=log_normal.check_rank(hyper.rank, hyper.num_topics, hyper.prior == "locations")
    )
    hyper = fill_in(hyper, {"degrees": hyper.num_topics + 2.0, "sigma2": 1 / hyper.rank})
    if hyper.degrees <= hyper.num_topics - 1:
        least = hyper.num_topics - 1
        raise InputError(
            f"degrees must be above num_topics - 1, here {least}, for a covariance to have a density, not {hyper.degrees:g}."
        )
    return hyper


def _words(beta, y, data):
    """Documents' words given topics and log weights."""
    words = dist.MultinomialProbs(
        jax.nn.softmax(y, -1) @ beta, data.totals.astype(int), total_count_max=data.max_total
    )
    numpyro.sample("counts", words, obs=data.entries.dense(data.num_columns))


def _topics(concentration, num_topics):
    with numpyro.plate("topics", num_topics):
        return numpyro.sample("beta", dist.Dirichlet(concentration))


def _coefficient(batch):
    return gammaln(batch.totals + 1) - batch.log_factorials


def _log_topics(hyper, t):
    return jnp.sum(fam.log_prior(fam.dirichlet, jnp.reshape(hyper.eta, (1, 1)), t["beta"]))


# Inverse Wishart ---------------------------------------------------------------------------------------------------------------


def _prior(hyper, dtype=float):
    """The natural parameter of the precision's prior."""
    return Pair(
        0.5 * (jnp.asarray(hyper.degrees, dtype) - hyper.num_topics - 1),
        -0.5 * hyper.scale * jnp.eye(hyper.num_topics, dtype=dtype),
    )


def generate(hyper, data):
    beta = _topics(jnp.full(data.num_columns, hyper.eta), hyper.num_topics)
    precision = numpyro.sample(
        "precision",
        dist.Wishart(hyper.degrees, rate_matrix=hyper.scale * jnp.eye(hyper.num_topics)),
    )
    with documents(data):
        y = numpyro.sample(
            "y", dist.MultivariateNormal(jnp.zeros(hyper.num_topics), precision_matrix=precision)
        )
        _words(beta, y, data)


def log_global(hyper, t):
    return _log_topics(hyper, t) + jnp.sum(
        fam.log_prior(fam.wishart, _prior(hyper, t["precision"].second.dtype), t["precision"])
    )


def log_local(hyper, t, batch, key=None):
    y, precision = t["y"], t["precision"]
    prior = 0.5 * (
        precision.first
        - jnp.einsum("ij,dij->d", precision.second, y.second)
        - y.first.shape[1] * jnp.log(2 * jnp.pi)
    )
    spread = jnp.diagonal(y.second, axis1=1, axis2=2) - y.first**2
    log_sum = jax.nn.logsumexp(y.first + 0.5 * spread, 1)
    return batch.sum(prior - batch.totals * log_sum + _coefficient(batch)) + allocate(
        y.first, t["beta"], batch.entries, key
    )


def init(key, hyper, data):
    """Topics from short fits with free proportions (`starts`), with the weight of the corpus. Documents: all topics alike, C = I."""
    K, totals = hyper.num_topics, jnp.asarray(data.totals, float)
    topics, _ = starts.topics_and_places(key, data, K, 1)
    prior = _prior(hyper)
    return {
        "y": Pair(
            jnp.zeros((data.num_rows, K)), -0.5 * (1 + totals / K)[:, None, None] * jnp.eye(K)
        ),
        "beta": hyper.eta + data.total / K * topics,
        "precision": Pair(
            prior.first + 0.5 * data.num_rows, prior.second - 0.5 * data.num_rows * jnp.eye(K)
        ),
    }


def solve_local(hyper, t, batch, start, options, summary):
    """Each document's y to its optimum (`log_normal`), the places of topics being the unit vectors."""
    factors = log_normal.Factors(
        None, jnp.zeros(hyper.num_topics, batch.totals.dtype), -jnp.inf, t["precision"].second
    )
    found = log_normal.solve(
        factors, t["beta"], batch, start["y"], batch.totals, options, summary != "mean"
    )
    return {"y": found.natural}, found.info, batch


def predict(hyper, values):
    """Word probabilities of each document."""
    return weights(hyper, values) @ values["beta"]


def weights(hyper, values):
    """theta, the documents' proportions."""
    return jax.nn.softmax(_logits(values), -1)


def _logits(values):
    return values["y"] if "y" in values else values["u"] @ jnp.swapaxes(values["ell"], -1, -2)


# Locations ---------------------------------------------------------------------------------------------------------------------


def generate_locations(hyper, data):
    beta = _topics(jnp.full(data.num_columns, hyper.eta), hyper.num_topics)
    with numpyro.plate("locations", hyper.num_topics):
        ell = numpyro.sample(
            "ell", dist.Normal(0, jnp.sqrt(hyper.sigma2)).expand([hyper.rank]).to_event(1)
        )
    with documents(data):
        u = numpyro.sample("u", dist.Normal(0, 1).expand([hyper.rank]).to_event(1))
        _words(beta, u @ ell.T, data)


def log_global_locations(hyper, t):
    return _log_topics(hyper, t) + jnp.sum(log_normal.isotropic(hyper.sigma2, t["ell"]))


def log_local_locations(hyper, t, batch, key=None):
    u, ell = t["u"], t["ell"]
    log_sum = jax.nn.logsumexp(log_normal.exponents(u, ell), 1)
    rows = log_normal.isotropic(1.0, u) - batch.totals * log_sum + _coefficient(batch)
    return batch.sum(rows) + allocate(u.first @ ell.first.T, t["beta"], batch.entries, key)


def init_locations(key, hyper, data):
    """Topics and their locations from short fits with free proportions (`starts`). Documents: in the middle."""
    K, totals = hyper.num_topics, jnp.asarray(data.totals, float)
    topics, places = starts.topics_and_places(key, data, K, hyper.rank)
    share = data.total / K
    return {
        "u": Pair(
            jnp.zeros((data.num_rows, hyper.rank)),
            -0.5 * (1 + totals * hyper.sigma2)[:, None, None] * jnp.eye(hyper.rank),
        ),
        "beta": hyper.eta + share * topics,
        "ell": log_normal.natural_at(
            places,
            jnp.broadcast_to(
                (1 / hyper.sigma2 + share) * jnp.eye(hyper.rank), (K, hyper.rank, hyper.rank)
            ),
        ),
    }


def solve_local_locations(hyper, t, batch, start, options, summary):
    """Each document's location to its optimum (`log_normal`)."""
    ell = t["ell"].first
    factors = log_normal.Factors(
        ell, jnp.zeros(len(ell), ell.dtype), -jnp.inf, jnp.eye(ell.shape[1], dtype=ell.dtype)
    )
    found = log_normal.solve(
        factors, t["beta"], batch, start["u"], batch.totals, options, summary != "mean"
    )
    return {"u": found.natural}, found.info, batch


def example(key):
    hyper = Hyper(num_topics=3, eta=1.2, degrees=6.0, scale=2.0, rank=2, sigma2=0.6)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    topics, places = (
        rng.dirichlet(np.full(9, 0.3), 3),
        np.array([[1.2, 0.0], [-0.6, 1.0], [-0.6, -1.0]]),
    )
    weights = np.exp(rng.normal(size=(13, 2)) @ places.T)
    proportions = weights / weights.sum(1, keepdims=True)
    return hyper, data_.counts(
        [
            rng.multinomial(n, p)
            for n, p in zip(rng.integers(5, 40, 13), proportions @ topics, strict=True)
        ]
    )


def _variant(hyper, kind):
    return MODEL if hyper.prior == "inverse_wishart" else LOCATIONS


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    families={"y": fam.normal, "beta": fam.dirichlet, "precision": fam.wishart},
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=predict,
    symmetry="permutation",
    example=example,
    resolve=resolve,
    solve_local=solve_local,
    learning=Learning(lambda hyper: {"eta": hyper.eta, "scale": hyper.scale}),
    topics=Topics(weights, lambda hyper, values: values["beta"]),
    variant=_variant,
)
LOCATIONS = dataclasses.replace(
    MODEL,
    generate=generate_locations,
    families={"u": fam.normal, "beta": fam.dirichlet, "ell": fam.point},
    log_global=log_global_locations,
    log_local=log_local_locations,
    init=init_locations,
    solve_local=solve_local_locations,
    learning=Learning(
        lambda hyper: {"eta": hyper.eta}
    ),  # with ell a point, sigma2 and ell would shrink together
    rotation=Rotation(("ell", "u")),
    example=otherwise(example, prior="locations"),
)
