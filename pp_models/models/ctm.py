r"""Correlated topic model: documents' proportions are logistic normal, and topics may go together.

With topics $\beta$ as in `lda`, the proportions of a document are (Paisley, Blei & Jordan, P 11.3)

$$\begin{align*}
\beta_k &\sim \operatorname{Dirichlet}(\eta 1_V) && \text{topics} \\
\theta_d &= \operatorname{softmax}(y_d) && \text{proportions} \\
z_{dn} &\sim \operatorname{Discrete}(\theta_d) && \text{topic of a word} \\
w_{dn} &\sim \operatorname{Discrete}(\beta_{z_{dn}}) && \text{word}
\end{align*}$$

and `prior` chooses one of two priors of $y$. `"inverse_wishart"` is P(11.3)-(11.4):

$$y_d \sim \operatorname{Normal}(0, C), \qquad C \sim \operatorname{invWishart}(A, m), \qquad
A = \text{scale} \cdot I, \quad m = \text{degrees}.$$

`"locations"` is P(11.10)-(11.12):

$$y_{dk} = \ell_k^\top u_d, \qquad \ell_k \sim \operatorname{Normal}(0, \sigma^2 I_m), \qquad
u_d \sim \operatorname{Normal}(0, I_m), \quad m = \text{rank}.$$

The first is declared by the site `precision`, $L = C^{-1} \sim \operatorname{Wishart}(A^{-1}, m)$.
The second has $C = \ell \ell^\top \sim \operatorname{Wishart}(\sigma^2 I, m)$ of rank $m$, which
may be less than $K$. With $t(\beta) = \log \beta$, $t(x) = (x, x x^\top)$ for $y$, $u$ and $\ell$,
$t(L) = (\log \det L, L)$ and $S$ the covariance of $y_d$,

$$F = \text{priors} + \sum_{dv} n_{dv} \log \sum_k e^{y_{dk} + \log \beta_{kv}}
- \sum_d N_d \log \sum_k E e^{y_{dk}} + \sum_d \log \frac{N_d!}{\prod_v n_{dv}!}, \qquad
E e^{y_k} = e^{y_k + S_{kk} / 2}.$$

For points ($S = 0$) this is the log joint density. For a normal $q$ the expected log of the sum is
bounded by the log of the expected sum (Blei & Lafferty 2007), so that the bound remains a bound.
$y$, $u$ and $\ell$ are `damped` as in `correlated_nmf`, and rows are solved by the same steps
(`_log_normal`): the scale of a document there, eliminated, is the normaliser here.

| here | P | here | P |
|---|---|---|---|
| `beta` | $\beta$ | `precision` | $C^{-1}$ |
| `y` | $y$ | `degrees`, `scale` | $m$, $A = \text{scale} \cdot I$ |
| `ell`, `u` | $L', u$ | `rank`, `sigma2` | $m, \sigma^2$ |

As in P, $y$ has no mean. `eta` is P's $c_0 / V$. Defaults: degrees $K + 2$, so that $E[C] = A$;
rank and sigma2 as in `correlated_nmf`. $\ell$ is a point.
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
from pp_models.model import Learning, Model, Rotation, Topics, documents, with_hyper
from pp_models.model.hyper import Count, Positive, fill_in
from pp_models.models import _log_normal as log_normal
from pp_models.models._examples import generator


class Hyper(NamedTuple):
    """num_topics: K. eta: concentration of the topics. prior: "inverse_wishart" or "locations".
    degrees, scale: of the inverse Wishart prior, m (default K + 2) and A = scale I. rank, sigma2:
    of the locations, their dimension (0: 50, or K if that is less) and the variance of the topics'
    (default 1 / rank). Either prior ignores the parameters of the other."""

    num_topics: Count = 10
    eta: Positive = 0.05
    prior: Literal["inverse_wishart", "locations"] = "inverse_wishart"
    degrees: Positive | None = None
    scale: Positive = 1.0
    rank: int = 0
    sigma2: Positive | None = None


def resolve(hyper, data):
    rank = log_normal.check_rank(hyper.rank, hyper.num_topics, hyper.prior == "locations")
    defaults = {"degrees": hyper.num_topics + 2.0, "sigma2": 1 / rank}
    hyper = fill_in(hyper._replace(rank=rank), defaults)
    if hyper.degrees <= hyper.num_topics - 1:
        raise InputError(
            f"degrees must be above num_topics - 1, here {hyper.num_topics - 1}, for a covariance "
            f"to have a density, not {hyper.degrees:g}."
        )
    return hyper


def _sample_topics(hyper, data):
    with numpyro.plate("topics", hyper.num_topics):
        return numpyro.sample("beta", dist.Dirichlet(jnp.full(data.num_columns, hyper.eta)))


def _sample_words(beta, y, data):
    """Documents' words given topics and log weights."""
    probabilities, totals = jax.nn.softmax(y, -1) @ beta, data.totals.astype(int)
    words = dist.MultinomialProbs(probabilities, totals, total_count_max=data.max_total)
    numpyro.sample("counts", words, obs=data.entries.dense(data.num_columns))


def _log_topics(hyper, t):
    return jnp.sum(fam.log_prior(fam.dirichlet, hyper.eta, t["beta"]))


def _log_words(prior, logits, log_sum, beta, batch, key):
    """The rows' priors and their words, from log weights and the log of their expected sum."""
    coefficient = gammaln(batch.totals + 1) - batch.log_factorials
    rows = prior - batch.totals * log_sum + coefficient
    return batch.sum(rows) + allocate(logits, beta, batch.entries, key)


def _solve(site, places, precision, t, batch, start, options, summary):
    """Each row's location to its optimum."""
    zeros = jnp.zeros(len(t["beta"]), batch.totals.dtype)
    factors = log_normal.Factors(places, zeros, -jnp.inf, precision)
    given = (factors, t["beta"], batch, start[site], batch.totals, options)
    found = log_normal.solve(*given, summary != "mean")
    return {site: found.natural}, found.info, batch


# Inverse Wishart ------------------------------------------------------------------------------


def _prior(hyper, dtype=float):
    """The natural parameter of the precision's prior."""
    first = 0.5 * (jnp.asarray(hyper.degrees, dtype) - hyper.num_topics - 1)
    return Pair(first, -0.5 * hyper.scale * jnp.eye(hyper.num_topics, dtype=dtype))


def generate(hyper, data):
    beta, size = _sample_topics(hyper, data), hyper.num_topics
    wishart = dist.Wishart(hyper.degrees, rate_matrix=hyper.scale * jnp.eye(size))
    precision = numpyro.sample("precision", wishart)
    with documents(data):
        normal = dist.MultivariateNormal(jnp.zeros(size), precision_matrix=precision)
        _sample_words(beta, numpyro.sample("y", normal), data)


def log_global(hyper, t):
    prior = _prior(hyper, t["precision"].second.dtype)
    return _log_topics(hyper, t) + jnp.sum(fam.log_prior(fam.wishart, prior, t["precision"]))


def log_local(hyper, t, batch, key=None):
    y, precision = t["y"], t["precision"]
    squares = jnp.einsum("ij,dij->d", precision.second, y.second)
    prior = 0.5 * (precision.first - squares - y.first.shape[1] * jnp.log(2 * jnp.pi))
    spread = jnp.diagonal(y.second, axis1=1, axis2=2) - y.first**2
    log_sum = jax.nn.logsumexp(y.first + 0.5 * spread, 1)
    return _log_words(prior, y.first, log_sum, t["beta"], batch, key)


def init(key, hyper, data):
    """Topics from short fits with free proportions (`starts`), as if each had an equal share of the
    tokens. Documents: all topics alike, C = I."""
    K, prior = hyper.num_topics, _prior(hyper)
    topics, _ = starts.topics_and_places(key, data, K, 1)
    half = 0.5 * data.num_rows
    return {
        "y": log_normal.at_zero(1 + jnp.asarray(data.totals, float) / K, K),
        "beta": hyper.eta + data.total / K * topics,
        "precision": Pair(prior.first + half, prior.second - half * jnp.eye(K)),
    }


def solve_local(hyper, t, batch, start, options, summary):
    """Each document's y to its optimum: the places of topics are the unit vectors."""
    return _solve("y", None, t["precision"].second, t, batch, start, options, summary)


def predict(hyper, values):
    """Word probabilities of each document."""
    return weights(hyper, values) @ values["beta"]


def weights(hyper, values):
    """theta, the documents' proportions."""
    if "y" in values:
        return jax.nn.softmax(values["y"], -1)
    return jax.nn.softmax(values["u"] @ jnp.swapaxes(values["ell"], -1, -2), -1)


# Locations ------------------------------------------------------------------------------------


def generate_locations(hyper, data):
    beta = _sample_topics(hyper, data)
    places = dist.Normal(0, jnp.sqrt(hyper.sigma2)).expand([hyper.num_topics, hyper.rank])
    ell = numpyro.sample("ell", places.to_event(2))
    with documents(data):
        u = numpyro.sample("u", dist.Normal(0, 1).expand([hyper.rank]).to_event(1))
        _sample_words(beta, u @ ell.T, data)


def log_global_locations(hyper, t):
    return _log_topics(hyper, t) + jnp.sum(log_normal.isotropic(hyper.sigma2, t["ell"]))


def log_local_locations(hyper, t, batch, key=None):
    u, ell = t["u"], t["ell"]
    log_sum = jax.nn.logsumexp(log_normal.exponents(u, ell), 1)
    prior, logits = log_normal.isotropic(1.0, u), u.first @ ell.first.T
    return _log_words(prior, logits, log_sum, t["beta"], batch, key)


def init_locations(key, hyper, data):
    """Topics and their locations from short fits with free proportions (`starts`). Documents: at
    zero."""
    topics, places = starts.topics_and_places(key, data, hyper.num_topics, hyper.rank)
    share, totals = data.total / hyper.num_topics, jnp.asarray(data.totals, float)
    return {
        "u": log_normal.at_zero(1 + totals * hyper.sigma2, hyper.rank),
        "beta": hyper.eta + share * topics,
        "ell": log_normal.start_places(places, share, hyper.sigma2),
    }


def solve_local_locations(hyper, t, batch, start, options, summary):
    ell = t["ell"].first
    eye = jnp.eye(ell.shape[1], dtype=ell.dtype)
    return _solve("u", ell, eye, t, batch, start, options, summary)


def example(key):
    rng = generator(key)
    places = np.array([[1.2, 0.0], [-0.6, 1.0], [-0.6, -1.0]])
    topics, weights = rng.dirichlet(np.full(9, 0.3), 3), np.exp(rng.normal(size=(13, 2)) @ places.T)
    proportions = weights / weights.sum(1, keepdims=True)
    counts = rng.multinomial(rng.integers(5, 40, 13), proportions @ topics)
    hyper = Hyper(num_topics=3, eta=1.2, degrees=6.0, scale=2.0, rank=2, sigma2=0.6)
    return hyper, data_.counts(counts)


def variant(hyper, kind):
    return MODEL if hyper.prior == "inverse_wishart" else LOCATIONS


MODEL = Model.of(
    globals(),
    families={"y": fam.normal, "beta": fam.dirichlet, "precision": fam.wishart},
    symmetry="permutation",
    learning=Learning(("eta", "scale")),
    topics=Topics(weights, lambda hyper, values: values["beta"]),
)
LOCATIONS = dataclasses.replace(
    MODEL,
    generate=generate_locations,
    families={"u": fam.normal, "beta": fam.dirichlet, "ell": fam.point},
    log_global=log_global_locations,
    log_local=log_local_locations,
    init=init_locations,
    solve_local=solve_local_locations,
    learning=Learning(("eta",)),  # sigma2 and a point ell would shrink together
    rotation=Rotation(("ell", "u")),
    example=with_hyper(example, prior="locations"),
)
