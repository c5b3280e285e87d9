r"""Bayesian nonnegative matrix factorisation (Poisson-gamma).

The Kullback-Leibler objective of Lee and Seung as a likelihood, with gamma priors (Paisley, Blei &
Jordan, P 11.6-11.7, after Cemgil 2009):

$$\begin{align*}
\beta_{kv} &\sim \operatorname{Gamma}(c_0 / V, c_0) && \text{topics, with sums close to one} \\
\theta_{dk} &\sim \operatorname{Gamma}(a_0, b_0) && \text{weights of the documents} \\
X_{dv} &\sim \operatorname{Poisson}\Bigl(\sum_k \theta_{dk} \beta_{kv}\Bigr) && \text{counts}
\end{align*}$$

With $t(\beta) = (\log \beta, \sum_v \beta)$ and $t(\theta) = (\log \theta, \theta)$,

$$F = \text{priors} + \sum_{dv} X_{dv} \log \sum_k e^{\log \theta_{dk} + \log \beta_{kv}}
- \sum_{dk} \theta_{dk} \sum_v \beta_{kv} - \sum_{dv} \log X_{dv}!.$$

Its gradients are P(11.25)-(11.26) for $q(\beta)$ and P(11.28)-(11.29) for $q(\theta)$. P(11.26)
does not depend on the word: one rate per topic is stored. With a flat prior (`flat=True`) the
engine `map` is Lee and Seung's multiplicative update for the divergence (C18), then the same for
$\beta$:

$$\theta_{dk} \leftarrow \theta_{dk} \,
\frac{\sum_v \beta_{kv} X_{dv} / (\theta \beta)_{dv}}{\sum_v \beta_{kv}}.$$

| here | P | C18 |
|---|---|---|
| `beta`, `theta` | $B', \Theta'$ | $W, H$ (or $H', W'$: documents are rows here) |
| $q(\beta), q(\theta)$ | $\operatorname{Gamma}(g, h), \operatorname{Gamma}(a, b)$ | – |
| `a0`, `b0`, `c0` | $a_0, b_0, c_0$ | – |

Defaults are those of P 11.6: $a_0 = b_0 = 1/K$ and $c_0 = 0.05 V$.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.constraints import positive

from pp_models import families as fam
from pp_models.elimination.allocate import allocate
from pp_models.elimination.row_solver import Odds, converge_rows
from pp_models.families import Pair
from pp_models.model import Count, Flag, Learning, Model, Positive, Tokens, documents, fill_in
from pp_models.models._examples import poisson_counts
from pp_models.models._scales import along


class Hyper(NamedTuple):
    """num_topics: K. a0, b0: shape and rate of the documents' weights. c0: total shape and rate of
    a topic. flat: no prior at all."""

    num_topics: Count = 10
    a0: Positive | None = None
    b0: Positive | None = None
    c0: Positive | None = None
    flat: Flag = False


def resolve(hyper, data):
    even = 1 / hyper.num_topics
    return fill_in(hyper, {"a0": even, "b0": even, "c0": 0.05 * data.num_columns})


def proper(hyper):
    return not hyper.flat


def generate(hyper, data):
    shape = hyper.num_topics, data.num_columns
    topics = dist.Gamma(hyper.c0 / data.num_columns, hyper.c0).expand(shape)
    weights = dist.Gamma(hyper.a0, hyper.b0).expand([hyper.num_topics])
    beta = numpyro.sample("beta", topics.to_event(2))
    with documents(data):
        theta = numpyro.sample("theta", weights.to_event(1))
        words = dist.Poisson(theta @ beta).to_event(1)
        numpyro.sample("counts", words, obs=data.entries.dense(data.num_columns))


def guide(hyper, data):
    def begin(key):
        return init(key, hyper, data)["beta"]

    g = numpyro.param("g", lambda key: begin(key).first, constraint=positive)
    h = numpyro.param("h", lambda key: -begin(key).second, constraint=positive)
    everyone = jnp.full((data.num_data_rows, hyper.num_topics), 1 + hyper.a0)
    a = numpyro.param("a", everyone, constraint=positive)
    b = numpyro.param("b", everyone, constraint=positive)
    numpyro.sample("beta", dist.Gamma(g, h).to_event(2))
    with documents(data):
        numpyro.sample("theta", dist.Gamma(a[data.positions], b[data.positions]).to_event(1))


def _beta_prior(hyper, num_columns):
    return Pair(1.0, 0.0) if hyper.flat else Pair(hyper.c0 / num_columns, -hyper.c0)


def _theta_prior(hyper):
    return Pair(1.0, 0.0) if hyper.flat else Pair(hyper.a0, -hyper.b0)


def log_global(hyper, t):
    prior = _beta_prior(hyper, t["beta"].first.shape[1])
    return jnp.sum(fam.log_prior(fam.gamma_tied, prior, t["beta"]))


def log_local(hyper, t, batch, key=None):
    prior = fam.log_prior(fam.gamma, _theta_prior(hyper), t["theta"])
    return batch.sum(prior) + log_likelihood(t["theta"], t["beta"], batch, key)


def log_likelihood(theta, beta, batch, key=None):
    """The Poisson part of F: minus the divergence D(X || theta beta) of C18 and log factorials."""
    rates = (theta.second @ beta.second)[:, 0]
    tokens = allocate(theta.first, beta.first, batch.entries, key)
    return batch.sum(-rates - batch.log_factorials) + tokens


def init(key, hyper, data):
    """Topics: the prior plus uniform noise, their sums near one. Documents: the weights that give
    the mean length."""
    size, num_topics = data.num_columns, hyper.num_topics
    spread, prior = data.total / (num_topics * size), _beta_prior(hyper, size)
    noise = jax.random.uniform(key, (num_topics, size))
    shape = _theta_prior(hyper).first + data.total / data.num_rows / num_topics
    theta = jnp.full((data.num_rows, num_topics), shape)
    rate = jnp.full((num_topics, 1), prior.second - spread * size)
    return {
        "theta": Pair(theta, -jnp.ones_like(theta)),
        "beta": Pair(prior.first + 2 * spread * noise, rate),
    }


def predict(hyper, values):
    """Expected counts."""
    return values["theta"] @ values["beta"]


def example(key):
    return Hyper(num_topics=3, a0=1.3, b0=0.15, c0=9.0), poisson_counts(key)


def begin(hyper, data, topics):
    """q(beta) at the given topics, with an equal share of the tokens each and sums near one."""
    tokens, prior = data.total / hyper.num_topics, _beta_prior(hyper, data.num_columns)
    rate = jnp.full((hyper.num_topics, 1), prior.second - tokens)
    return {"beta": Pair(prior.first + tokens * topics, rate)}


def odds(hyper, t, batch, summary="collapsed"):
    r"""The odds of a word's topic: P(11.24) or, with $\theta$ integrated out,
    $(a_0 + N_{dk}) / (b_0 + \sum_v \beta_{kv}) \, \beta_{kv}$, $N$ without the word itself."""
    prior, beta = _theta_prior(hyper), t["beta"]
    rate = -prior.second + beta.second.T  # (1, K), the same for all documents
    return Odds(jnp.full_like(rate, prior.first), -jnp.log(rate), beta.first)


def solve_local(hyper, t, batch, start, options, summary):
    """P(11.24), (11.28) and (11.29) in turn for every document of the batch, to convergence."""
    given, first = odds(hyper, t, batch, summary), start["theta"].first
    counts, info, entries = converge_rows(*given, batch.entries, first, options, summary)
    rate = jnp.broadcast_to(jnp.exp(-given.log_scale), counts.shape)
    theta = Pair(given.concentration + counts, -rate)
    return {"theta": theta}, info, batch.replace(entries=entries)


def moves(hyper, key, values, batch):
    r"""Divide a topic by $c$ and multiply its weights. Rates do not change; $c$ has density
    $c^{N a_0 - c_0} \exp(-b_0 c \sum_d \theta_{dk} - c_0 \sum_v \beta_{kv} / c) \, dc / c$."""
    if hyper.flat:
        return values  # without a prior, c may be anything
    theta, beta = values["theta"], values["beta"]
    weights, words = 2 * hyper.b0 * jnp.sum(theta, 0), 2 * hyper.c0 * jnp.sum(beta, 1)
    log_c = along(key, 2 * (len(theta) * hyper.a0 - hyper.c0), weights, words)
    return {**values, "theta": theta * jnp.exp(log_c), "beta": beta * jnp.exp(-log_c)[:, None]}


def _learnable(hyper):
    return {} if hyper.flat else {"a0": hyper.a0, "b0": hyper.b0, "c0": hyper.c0}


MODEL = Model.of(
    globals(),
    families={"theta": fam.gamma, "beta": fam.gamma_tied},
    symmetry="permutation",
    tokens=Tokens(odds, begin),
    learning=Learning(_learnable),
)
