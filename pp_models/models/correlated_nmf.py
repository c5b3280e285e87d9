r"""Correlated nonnegative matrix factorisation (Poisson, log-normal weights of low rank).

Topics and documents have locations in one space, and a document uses the topics that lie in its
direction (Paisley, Blei & Jordan, P 11.13):

$$\begin{align*}
\beta_{kv} &\sim \operatorname{Gamma}(c_0 / V, c_0) && \text{topics, as in Bayesian NMF} \\
\ell_k &\sim \operatorname{Normal}(0, \sigma^2 I_m) && \text{locations of topics} \\
u_d &\sim \operatorname{Normal}(0, I_m) && \text{locations of documents} \\
s_d &\sim \operatorname{Gamma}(a_0, b_0) && \text{scales of documents; P: } e^{\alpha_d} \\
X_{dv} &\sim \operatorname{Poisson}(\sum_k \beta_{kv} s_d e^{\ell_k^\top u_d}) && \text{counts}
\end{align*}$$

The log weights of topics $i$ and $j$ have covariance $\ell_i^\top \ell_j$ (P 11.10-11.11). With
$t(s) = (\log s, s)$, $t(\beta) = (\log \beta, \sum_v \beta)$ and $t(x) = (x, x x^\top)$ for $u$ and
$\ell$, $S = E[u u^\top] - E[u] E[u]^\top$ and $R = E[\ell \ell^\top] - \ell \ell^\top$,

$$\begin{align*}
F &= \text{priors} + \sum_{dv} X_{dv} \log \sum_k e^{\log s_d + \ell_k^\top u_d + \log \beta_{kv}}
- \sum_{dkv} s_d \beta_{kv} e_{dk} - \sum_{dv} \log X_{dv}! \\
e &= \exp\bigl(\ell^\top u + \operatorname{tr}(S E[\ell \ell^\top]) / 2
+ (u + S \ell)^\top R (u + S \ell) / 2\bigr)
\end{align*}$$

$\ell$ is a point (P Table 11.2), so that $R = 0$ and $e = E \exp(\ell^\top u)$ exactly; F is the
log joint density where $S = 0$ too. The derivative with respect to $R$ is minus half the Hessian of
$\ell$, which makes $\partial F / \partial \mu$ the natural parameter
$(G^{-1} \ell + \text{gradient}, -G^{-1} / 2)$ of a Newton step, P(11.30) and (11.35). Likewise
$q(u)$ takes a Newton step by P(11.31) with the precision $I + \sum_k w_k \ell_k \ell_k^\top$,
$w_k = s \beta_k e_k$: the natural gradient of the bound. Both sites are `damped`: F is not linear
in their statistics, and steps are at most 1 long and backtracked.

Differences from P:

- $q(u_d)$ is normal with a full covariance. P's point estimates (`point_u=True`) inflate $\ell$,
  which only the prior then holds back.
- $e^{\alpha_d}$ has a prior worth $a_0$ tokens and a gamma posterior, so that there is a joint
  density to sample from. As $a_0, b_0 \to 0$ its mean is P(11.32).
- $u$ and $s$ are solved together: $s$ is eliminated in closed form, and $u$ takes Newton steps for
  the rest (`_log_normal`). Alternating as P does, a document about one topic needs about as many
  steps as it has words.
- Topics start from short fits with free weights (`starts`), not from the prior with noise: in few
  dimensions most random starts keep topics apart that belong together.
- Stochastic steps blend natural parameters, so that $\ell$ moves by $\rho$ (mean curvature)$^{-1}$
  gradient: P(11.35) with the curvature averaged over past batches too.

| here | P | here | P |
|---|---|---|---|
| `beta` | $B'$ | $q(\beta)$ | $\operatorname{Gamma}(g, h)$, $h$ by P(11.27) |
| `ell`, `u` | $L', U'$ | `rank` | $m$ |
| `s` | $e^\alpha$ | `sigma2` | $\sigma^2$ |

Defaults are those of P 11.6: $c_0 = 0.05 V$, $m = 50$ but at most $K$, $\sigma^2 = 1/m$. Ours are
$a_0 = 1$ and $b_0 = 0.01$. Locations are known up to a common rotation.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.constraints import lower_cholesky, positive

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination import starts
from pp_models.elimination.allocate import allocate
from pp_models.families import Pair
from pp_models.model import Learning, Model, Rotation, Topics, documents, with_hyper
from pp_models.model.hyper import Count, Flag, Positive, fill_in
from pp_models.models import _log_normal as log_normal
from pp_models.models._examples import generator
from pp_models.models._log_normal import isotropic


class Hyper(NamedTuple):
    """num_topics: K. rank: m, the dimension of locations (0: 50, or K if that is less). sigma2:
    variance of the topics' locations. c0: total shape and rate of a topic. a0, b0: shape and rate
    of the documents' scales. point_u: documents' locations as points (P Table 11.2)."""

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
    num_topics, rank, size = hyper.num_topics, hyper.rank, data.num_columns
    topics = dist.Gamma(hyper.c0 / size, hyper.c0).expand([num_topics, size])
    places = dist.Normal(0, jnp.sqrt(hyper.sigma2)).expand([num_topics, rank])
    beta = numpyro.sample("beta", topics.to_event(2))
    ell = numpyro.sample("ell", places.to_event(2))
    with documents(data):
        s = numpyro.sample("s", dist.Gamma(hyper.a0, hyper.b0))
        u = numpyro.sample("u", dist.Normal(0, 1).expand([rank]).to_event(1))
        words = dist.Poisson((s[:, None] * jnp.exp(u @ ell.T)) @ beta).to_event(1)
        numpyro.sample("counts", words, obs=data.entries.dense(size))


def guide(hyper, data):
    def begin(site):
        return lambda key: init(key, hyper, data)[site]

    rank, size, length = hyper.rank, data.num_data_rows, data.total / data.num_rows
    g = numpyro.param("g", lambda key: begin("beta")(key).first, constraint=positive)
    h = numpyro.param("h", lambda key: -begin("beta")(key).second, constraint=positive)
    ell = numpyro.param("ell_at", lambda key: fam.point.mean(begin("ell")(key)).first)
    a = numpyro.param("a", jnp.full(size, hyper.a0 + length), constraint=positive)
    b = numpyro.param("b", jnp.full(size, hyper.b0 + hyper.num_topics), constraint=positive)
    u = numpyro.param("loc", jnp.zeros((size, rank)))[data.positions]
    places = dist.Delta(u, event_dim=1)
    if not hyper.point_u:
        spread = jnp.tile(jnp.eye(rank) / jnp.sqrt(1 + length * hyper.sigma2), (size, 1, 1))
        tril = numpyro.param("scale_tril", spread, constraint=lower_cholesky)
        places = dist.MultivariateNormal(u, scale_tril=tril[data.positions])
    numpyro.sample("beta", dist.Gamma(g, h).to_event(2))
    numpyro.sample("ell", dist.Delta(ell, event_dim=2))
    with documents(data):
        numpyro.sample("s", dist.Gamma(a[data.positions], b[data.positions]))
        numpyro.sample("u", places)


def log_global(hyper, t):
    prior = Pair(hyper.c0 / t["beta"].first.shape[1], -hyper.c0)
    topics = fam.log_prior(fam.gamma_tied, prior, t["beta"])
    return jnp.sum(topics) + jnp.sum(isotropic(hyper.sigma2, t["ell"]))


def log_local(hyper, t, batch, key=None):
    s, u, beta, ell = t["s"], t["u"], t["beta"], t["ell"]
    prior = fam.log_prior(fam.gamma, Pair(hyper.a0, -hyper.b0), s) + isotropic(1.0, u)
    rates = s.second * (jnp.exp(log_normal.exponents(u, ell)) @ beta.second)[:, 0]
    logits = s.first[:, None] + u.first @ ell.first.T
    tokens = allocate(logits, beta.first, batch.entries, key)
    return batch.sum(prior - rates - batch.log_factorials) + tokens


def init(key, hyper, data):
    """Topics and their locations from short fits with free weights (`starts`), as if each had an
    equal share of the tokens. Documents: at zero."""
    num_topics, rank = hyper.num_topics, hyper.rank
    share, totals = data.total / num_topics, jnp.asarray(data.totals, float)
    topics, places = starts.topics_and_places(key, data, num_topics, rank)
    rate = -(hyper.c0 + share) * jnp.ones((num_topics, 1))
    return {
        "s": Pair(hyper.a0 + totals, jnp.full_like(totals, -(hyper.b0 + num_topics))),
        "u": log_normal.at_zero(1 + totals * hyper.sigma2, rank),
        "beta": Pair(hyper.c0 / data.num_columns + share * topics, rate),
        "ell": log_normal.start_places(places, share, hyper.sigma2),
    }


def solve_local(hyper, t, batch, start, options, summary):
    """Each document's location, with the scale eliminated (P 11.32), and then the scale."""
    ell, size = t["ell"].first, jnp.log(t["beta"].second[:, 0])
    eye, shape = jnp.eye(ell.shape[1], dtype=ell.dtype), hyper.a0 + batch.totals
    factors = log_normal.Factors(ell, size, jnp.log(hyper.b0), eye)
    tokens = jnp.maximum(shape - 1, 1e-6) if summary == "mode" else shape  # s times its rate
    given = (factors, t["beta"].first, batch, start["u"], tokens, options)
    found = log_normal.solve(*given, hyper.point_u or summary != "mean")
    return {"s": Pair(shape, -jnp.exp(found.log_rate)), "u": found.natural}, found.info, batch


def predict(hyper, values):
    """Expected counts."""
    return weights(hyper, values) @ values["beta"]


def weights(hyper, values):
    """s_d exp(ell_k' u_d), the theta of Bayesian NMF."""
    return values["s"][..., None] * jnp.exp(values["u"] @ jnp.swapaxes(values["ell"], -1, -2))


def example(key):
    rng = generator(key)
    places = np.array([[1.2, 0.0], [-0.6, 1.0], [-0.6, -1.0]])
    topics, scales = rng.dirichlet(np.full(8, 0.4), 3), rng.gamma(4.0, 3.0, (13, 1))
    weights = scales * np.exp(rng.normal(size=(13, 2)) @ places.T)
    hyper = Hyper(num_topics=3, rank=2, sigma2=0.6, a0=2.0, b0=0.2, c0=9.0)
    return hyper, data_.counts(rng.poisson(weights @ topics))


def variant(hyper, kind):
    return POINT_U if hyper.point_u else MODEL


MODEL = Model.of(
    globals(),
    families={"s": fam.gamma, "u": fam.normal, "beta": fam.gamma_tied, "ell": fam.point},
    symmetry="permutation",
    learning=Learning(("c0", "a0", "b0")),  # sigma2 and a point ell would shrink together
    rotation=Rotation(("ell", "u")),
    topics=Topics(weights, lambda hyper, values: values["beta"]),
)
POINT_U = dataclasses.replace(
    MODEL, families={**MODEL.families, "u": fam.point}, example=with_hyper(example, point_u=True)
)
