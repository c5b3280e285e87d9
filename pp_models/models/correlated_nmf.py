"""Correlated nonnegative matrix factorisation (Poisson, log-normal weights of low rank).

Topics and documents have locations in one space, and a document uses the topics that lie in its direction (P 11.13):

    X_dv    ~ Poisson(sum_k beta_kv s_d exp(ell_k' u_d))
    beta_kv ~ Gamma(c0 / V, c0)                   topics, as in `bayesian_nmf`
    ell_k   ~ Normal(0, sigma2 I_m)               topics' locations: log weights of topics i and j have covariance ell_i' ell_j (P 11.10-11.11)
    u_d     ~ Normal(0, I_m)                      documents' locations
    s_d     ~ Gamma(a0, b0)                       documents' scales, exp(alpha_d) in P

With t(x) = (log x, x) for s, (log x, sum_v x) for beta and (x, x x') for u and ell; S = E[u u'] - E[u] E[u]', R = E[ell ell'] - ell ell';

    F  = priors + sum_dv n_dv log sum_k exp(log s_d + ell_k' u_d + log beta_kv) - sum_dk s_d beta_k e_dk - sum_dv log n_dv!
    e  = exp(ell' u + tr(S E[ell ell']) / 2 + (u + S ell)' R (u + S ell) / 2)

ell is a point (P Table 11.2), so R = 0 and e = E exp(ell' u) exactly, and F is the log joint density where S = 0 too. R is there for its derivative,
minus half the Hessian of ell, which makes dF/dmu the natural parameter (G^-1 ell + gradient, -G^-1 / 2) of a Newton step, P(11.30) and (11.35). In
the same way that of q(u) is a Newton step by P(11.31) with the precision I + sum_k w_k ell_k ell_k', w_k = s beta_k e_k: for q(u) normal, the exact
natural gradient of the bound. Both sites are `damped`: F is not linear in their statistics, so steps are at most 1 long and backtracked.

Where this differs from P:

- q(u_d) is normal with a full covariance. P's point estimates (point_u=True) inflate ell, since nothing holds them back but the prior.
- exp(alpha_d) has a prior, worth a0 tokens, and a gamma posterior: there is then a joint density to sample from. As a0, b0 -> 0 its mean is P(11.32).
- u and s are solved together: s is eliminated in closed form, and a row's step in u is Newton's for what is left, with the Hessian
  I + sum_k w_k (ell_k - mean)(ell_k - mean)', the mean taken with weights w. Alternating as P does, a document about one topic needs about as many
  steps as it has words.
- Topics begin at short fits with free weights (`starts`), not at the prior with noise: with few dimensions most random starts keep topics apart that
  belong together.
- Stochastic steps blend natural parameters, so ell moves by rho (mean curvature)^-1 gradient: P(11.35), the curvature averaged over past batches too.

| here       | P                     | here     | P                          |
|------------|-----------------------|----------|----------------------------|
| beta       | B'                    | q(beta)  | Gamma(g, h), h by P(11.27) |
| ell, u     | L', U'                | rank     | m                          |
| s          | exp(alpha)            | sigma2   | sigma^2                    |

Defaults are those of P 11.6: c0 = 0.05 V, m = 50 but at most K, sigma2 = 1/m. a0 = 1 and b0 = 0.01 are ours. Locations are known up to a common
rotation.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination import starts
from pp_models.elimination.allocate import allocate
from pp_models.families import Pair
from pp_models.model import (
    Count,
    Flag,
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
from pp_models.models._log_normal import exponents, isotropic


class Hyper(NamedTuple):
    """num_topics: K. rank: m, the dimension of locations (0: 50, or K if that is less). sigma2: variance of the topics' locations.

    c0: the topics' total shape and rate. a0, b0: shape and rate of the documents' scales. point_u: documents' locations as points (P Table 11.2).
    """

    num_topics: Count = 10
    rank: int = 0
    sigma2: Positive | None = None
    c0: Positive | None = None
    a0: Positive = 1.0
    b0: Positive = 0.01
    point_u: Flag = False


def resolve(hyper, data):
    hyper = hyper._replace(rank=log_normal.check_rank(hyper.rank, hyper.num_topics))
    return fill_in(hyper, {"sigma2": 1 / hyper.rank, "c0": 0.05 * data.num_columns})


def generate(hyper, data):
    with (
        numpyro.plate("topics", hyper.num_topics, dim=-2),
        numpyro.plate("words", data.num_columns),
    ):
        beta = numpyro.sample("beta", dist.Gamma(hyper.c0 / data.num_columns, hyper.c0))
    with numpyro.plate("locations", hyper.num_topics):
        ell = numpyro.sample(
            "ell", dist.Normal(0, jnp.sqrt(hyper.sigma2)).expand([hyper.rank]).to_event(1)
        )
    with documents(data):
        s = numpyro.sample("s", dist.Gamma(hyper.a0, hyper.b0))
        u = numpyro.sample("u", dist.Normal(0, 1).expand([hyper.rank]).to_event(1))
        words = dist.Poisson((s[:, None] * jnp.exp(u @ ell.T)) @ beta).to_event(1)
        numpyro.sample("counts", words, obs=data.entries.dense(data.num_columns))


def guide(hyper, data):
    g = numpyro.param(
        "g", lambda key: init(key, hyper, data)["beta"].first, constraint=constraints.positive
    )
    h = numpyro.param(
        "h", lambda key: -init(key, hyper, data)["beta"].second, constraint=constraints.positive
    )
    places = numpyro.param(
        "ell_at", lambda key: fam.point.mean(init(key, hyper, data)["ell"]).first
    )
    size, length = data.num_data_rows, data.total / data.num_rows
    a = numpyro.param("a", jnp.full(size, hyper.a0 + length), constraint=constraints.positive)
    b = numpyro.param(
        "b", jnp.full(size, hyper.b0 + hyper.num_topics), constraint=constraints.positive
    )
    loc = numpyro.param("loc", jnp.zeros((size, hyper.rank)))
    with (
        numpyro.plate("topics", hyper.num_topics, dim=-2),
        numpyro.plate("words", data.num_columns),
    ):
        numpyro.sample("beta", dist.Gamma(g, h))
    with numpyro.plate("locations", hyper.num_topics):
        numpyro.sample("ell", dist.Delta(places, event_dim=1))
    if not hyper.point_u:
        spread = jnp.broadcast_to(
            jnp.eye(hyper.rank) / jnp.sqrt(1 + length * hyper.sigma2),
            (size, hyper.rank, hyper.rank),
        )
        scale_tril = numpyro.param("scale_tril", spread, constraint=constraints.lower_cholesky)
    with documents(data):
        numpyro.sample("s", dist.Gamma(a[data.positions], b[data.positions]))
        here = loc[data.positions]
        numpyro.sample(
            "u",
            dist.Delta(here, event_dim=1)
            if hyper.point_u
            else dist.MultivariateNormal(here, scale_tril=scale_tril[data.positions]),
        )


def log_global(hyper, t):
    prior = Pair(
        jnp.reshape(hyper.c0 / t["beta"].first.shape[1], (1, 1)), jnp.reshape(-hyper.c0, (1, 1))
    )
    return jnp.sum(fam.log_prior(fam.gamma_tied, prior, t["beta"])) + jnp.sum(
        isotropic(hyper.sigma2, t["ell"])
    )


def log_local(hyper, t, batch, key=None):
    s, u, beta, ell = t["s"], t["u"], t["beta"], t["ell"]
    prior = fam.log_prior(
        fam.gamma, Pair(jnp.reshape(hyper.a0, (1,)), jnp.reshape(-hyper.b0, (1,))), s
    ) + isotropic(1.0, u)
    rates = s.second * (jnp.exp(exponents(u, ell)) @ beta.second)[:, 0]
    logits = s.first[:, None] + u.first @ ell.first.T
    return batch.sum(prior - rates - batch.log_factorials) + allocate(
        logits, beta.first, batch.entries, key
    )


def init(key, hyper, data):
    """Topics and their locations from short fits with free weights (`starts`), with the weight of the corpus. Documents: in the middle."""
    num_topics, rank, size = hyper.num_topics, hyper.rank, data.num_columns
    share, totals = data.total / num_topics, jnp.asarray(data.totals, float)
    topics, places = starts.topics_and_places(key, data, num_topics, rank)
    return {
        "s": Pair(hyper.a0 + totals, jnp.full_like(totals, -(hyper.b0 + num_topics))),
        "u": Pair(
            jnp.zeros((data.num_rows, rank)),
            -0.5 * (1 + totals * hyper.sigma2)[:, None, None] * jnp.eye(rank),
        ),
        "beta": Pair(
            hyper.c0 / size + share * topics, -(hyper.c0 + share) * jnp.ones((num_topics, 1))
        ),
        "ell": log_normal.natural_at(
            places,
            jnp.broadcast_to((1 / hyper.sigma2 + share) * jnp.eye(rank), (num_topics, rank, rank)),
        ),
    }


def solve_local(hyper, t, batch, start, options, summary):
    """Each document's location, its scale eliminated in closed form (P 11.32), and that scale."""
    ell, size = t["ell"].first, jnp.log(t["beta"].second[:, 0])
    shape = hyper.a0 + batch.totals
    tokens = (
        jnp.maximum(shape - 1, 1e-6) if summary == "mode" else shape
    )  # what s times its rate is
    factors = log_normal.Factors(
        ell, size, jnp.log(hyper.b0), jnp.eye(ell.shape[1], dtype=ell.dtype)
    )
    found = log_normal.solve(
        factors,
        t["beta"].first,
        batch,
        start["u"],
        tokens,
        options,
        hyper.point_u or summary != "mean",
    )
    return {"s": Pair(shape, -jnp.exp(found.log_rate)), "u": found.natural}, found.info, batch


def predict(hyper, values):
    """Expected counts."""
    return weights(hyper, values) @ values["beta"]


def weights(hyper, values):
    """s_d exp(ell_k' u_d): what Bayesian NMF calls theta."""
    return values["s"][..., None] * jnp.exp(values["u"] @ jnp.swapaxes(values["ell"], -1, -2))


def example(key):
    hyper = Hyper(num_topics=3, rank=2, sigma2=0.6, a0=2.0, b0=0.2, c0=9.0)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    topics, places = (
        rng.dirichlet(np.full(8, 0.4), 3),
        np.array([[1.2, 0.0], [-0.6, 1.0], [-0.6, -1.0]]),
    )
    weights = rng.gamma(4.0, 3.0, (13, 1)) * np.exp(rng.normal(size=(13, 2)) @ places.T)
    return hyper, data_.counts(rng.poisson(weights @ topics))


def _variant(hyper, kind):
    return POINT_U if hyper.point_u else MODEL


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    guide=guide,
    families={"s": fam.gamma, "u": fam.normal, "beta": fam.gamma_tied, "ell": fam.point},
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=predict,
    symmetry="permutation",
    example=example,
    resolve=resolve,
    solve_local=solve_local,
    learning=Learning(
        lambda hyper: {name: getattr(hyper, name) for name in ("c0", "a0", "b0")}
    ),  # sigma2 and a point ell shrink together
    rotation=Rotation(("ell", "u")),
    topics=Topics(weights, lambda hyper, values: values["beta"]),
    variant=_variant,
)
POINT_U = dataclasses.replace(
    MODEL, families={**MODEL.families, "u": fam.point}, example=otherwise(example, point_u=True)
)
