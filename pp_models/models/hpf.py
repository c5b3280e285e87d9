r"""Hierarchical Poisson factorisation.

Poisson factorisation in which every user has an activity and every item a popularity (Gopalan,
Hofman & Blei 2015, section 2):

$$\begin{align*}
\xi_d &\sim \operatorname{Gamma}(a', b') && \text{activity of a user (document)} \\
\theta_{dk} &\sim \operatorname{Gamma}(a, \xi_d) && \text{weights} \\
\eta_v &\sim \operatorname{Gamma}(c', d') && \text{popularity of an item (word)} \\
\beta_{kv} &\sim \operatorname{Gamma}(c, \eta_v) && \text{loadings} \\
X_{dv} &\sim \operatorname{Poisson}\Bigl(\sum_k \theta_{dk} \beta_{kv}\Bigr) && \text{counts}
\end{align*}$$

This file is the worked example of a variant: it is `bayesian_nmf` with random rates of both gamma
priors. Only these terms of F differ (less $\log \Gamma$ of each shape):

| | `bayesian_nmf` | here |
|---|---|---|
| prior of $\theta$ | $a_0 \log (b_0 \theta) - b_0 \theta$ | $a \log (\xi \theta) - \xi \theta$ |
| prior of $\beta$ | $(c_0 / V) \log (c_0 \beta) - c_0 \beta$ | $c \log (\eta \beta) - \eta \beta$ |
| new priors | – | $\xi$ in `log_local`, $\eta$ in `log_global` |

A constant rate became a statistic of another site, $t(\xi) = (\log \xi, \xi)$, and likewise for
$\eta$. The rate of $q(\beta)$ now depends on the word, so its family is `gamma`, not `gamma_tied`.
The gradients of F are the paper's coordinate updates, with
$\phi_{dvk} \propto \exp(E \log \theta_{dk} + E \log \beta_{kv})$:

$$\begin{align*}
q(\theta_{dk}) &= \operatorname{Gamma}\Bigl(a + \sum_v X_{dv} \phi_{dvk},
E \xi_d + \sum_v E \beta_{kv}\Bigr) &
q(\xi_d) &= \operatorname{Gamma}\Bigl(a' + K a, b' + \sum_k E \theta_{dk}\Bigr) \\
q(\beta_{kv}) &= \operatorname{Gamma}\Bigl(c + \sum_d X_{dv} \phi_{dvk},
E \eta_v + \sum_d E \theta_{dk}\Bigr) &
q(\eta_v) &= \operatorname{Gamma}\Bigl(c' + K c, d' + \sum_k E \beta_{kv}\Bigr)
\end{align*}$$

| here | paper |
|---|---|
| `theta`, `beta` | $\theta_{uk}, \beta_{ik}$ |
| `xi`, `eta` | $\xi_u$ (activity), $\eta_i$ (popularity) |
| `a`, `a_prime`, `c`, `c_prime` | $a, a', c, c'$ |
| `b_prime`, `d_prime` | $a' / b'$ and $c' / d'$: the paper's $b'$ and $d'$ are prior means |
| $q(\theta), q(\xi), q(\beta), q(\eta)$ | $\gamma_{uk}, \kappa_u, \lambda_{ik}, \tau_i$ |

Defaults are the paper's: shapes of 0.3, which favour sparse weights, and hyper-priors of mean one,
that is rates of 0.3.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from pp_models import families as fam
from pp_models.elimination.allocate import allocate
from pp_models.elimination.row_solver import Odds
from pp_models.families import Pair
from pp_models.model import Count, Model, Positive, Tokens, documents
from pp_models.models._examples import poisson_counts


class Hyper(NamedTuple):
    """num_topics: K. a, c: shapes of theta and beta. a_prime, b_prime: shape and rate of xi.
    c_prime, d_prime: shape and rate of eta."""

    num_topics: Count = 10
    a: Positive = 0.3
    a_prime: Positive = 0.3
    b_prime: Positive = 0.3
    c: Positive = 0.3
    c_prime: Positive = 0.3
    d_prime: Positive = 0.3


def generate(hyper, data):
    size, num_topics = data.num_columns, hyper.num_topics
    popularity = dist.Gamma(hyper.c_prime, hyper.d_prime).expand([size])
    eta = numpyro.sample("eta", popularity.to_event(1))
    loadings = dist.Gamma(hyper.c, eta).expand([num_topics, size])
    beta = numpyro.sample("beta", loadings.to_event(2))
    with documents(data):
        xi = numpyro.sample("xi", dist.Gamma(hyper.a_prime, hyper.b_prime))
        weights = dist.Gamma(hyper.a, jnp.tile(xi[:, None], num_topics))
        theta = numpyro.sample("theta", weights.to_event(1))
        words = dist.Poisson(theta @ beta).to_event(1)
        numpyro.sample("counts", words, obs=data.entries.dense(size))


def _given_rates(shape, x, rate):
    """log Gamma(x | shape, rate) relative to dx/x, in the statistics of x and its random rate."""
    return shape * (rate.first + x.first) - rate.second * x.second - gammaln(shape)


def log_global(hyper, t):
    prior = fam.log_prior(fam.gamma, Pair(hyper.c_prime, -hyper.d_prime), t["eta"])
    rates = jax.tree.map(lambda x: x[None], t["eta"])
    return jnp.sum(prior) + jnp.sum(_given_rates(hyper.c, t["beta"], rates))


def log_local(hyper, t, batch, key=None):
    theta, beta = t["theta"], t["beta"]
    prior = fam.log_prior(fam.gamma, Pair(hyper.a_prime, -hyper.b_prime), t["xi"])
    weights = _given_rates(hyper.a, theta, jax.tree.map(lambda x: x[:, None], t["xi"]))
    rates = theta.second @ jnp.sum(beta.second, 1)
    rows = batch.sum(prior + jnp.sum(weights, 1) - rates - batch.log_factorials)
    return rows + allocate(theta.first, beta.first, batch.entries, key)


def init(key, hyper, data):
    """One update of each site from the others' prior means, with tokens spread evenly over the
    topics and noise that tells the topics apart."""
    size, num_topics = data.num_columns, hyper.num_topics
    spread = data.total / (num_topics * size)
    noise = jax.random.uniform(key, (num_topics, size))
    totals = jnp.asarray(data.totals, float)
    shape = jnp.tile(hyper.a + totals[:, None] / num_topics, num_topics)
    rate = hyper.a_prime / hyper.b_prime + size * hyper.c * hyper.d_prime / hyper.c_prime
    topic_rate = hyper.c_prime / hyper.d_prime + jnp.sum(shape[:, 0]) / rate
    beta = Pair(hyper.c + 2 * spread * noise, jnp.full((num_topics, size), -topic_rate))
    xi_rate = hyper.b_prime + jnp.sum(shape, 1) / rate
    eta_rate = hyper.d_prime + jnp.sum(beta.first, 0) / topic_rate
    return {
        "theta": Pair(shape, jnp.full_like(shape, -rate)),
        "xi": Pair(jnp.full_like(totals, hyper.a_prime + num_topics * hyper.a), -xi_rate),
        "beta": beta,
        "eta": Pair(jnp.full_like(eta_rate, hyper.c_prime + num_topics * hyper.c), -eta_rate),
    }


def odds(hyper, t, batch, summary="collapsed"):
    r"""The odds of a token's factor with $\theta$ integrated out:
    $(a + N_{dk}) / (\xi_d + \sum_v \beta_{kv}) \, \beta_{kv}$, $N$ without the token itself."""
    rate = t["xi"].second[:, None] + jnp.sum(t["beta"].second, 1)
    return Odds(jnp.full((1, rate.shape[1]), hyper.a), -jnp.log(rate), t["beta"].first)


def predict(hyper, values):
    """Expected counts."""
    return values["theta"] @ values["beta"]


def example(key):
    shapes = {"a": 1.3, "a_prime": 10.0, "c": 1.2, "c_prime": 10.0}
    return Hyper(num_topics=3, b_prime=12.0, d_prime=5.0, **shapes), poisson_counts(key)


MODEL = Model.of(
    globals(),
    families={"theta": fam.gamma, "xi": fam.gamma, "beta": fam.gamma, "eta": fam.gamma},
    symmetry="permutation",
    tokens=Tokens(odds),
)
