r"""Latent Dirichlet allocation.

The generative process of Paisley, Blei & Jordan (P 11.1-11.2), Theis & Hoffman (T 21-22) and Fox's
slides (X 9):

$$\begin{align*}
\beta_k &\sim \operatorname{Dirichlet}(\eta 1_V) && \text{topic over } V \text{ words, }
k = 1, \dots, K \\
\theta_d &\sim \operatorname{Dirichlet}(\alpha) && \text{topic proportions, } d = 1, \dots, D \\
z_{dn} &\sim \operatorname{Discrete}(\theta_d) && \text{topic of a word} \\
w_{dn} &\sim \operatorname{Discrete}(\beta_{z_{dn}}) && \text{word}
\end{align*}$$

The topics $z$ are summed out and the words of a document enter as counts,
$n_d \sim \operatorname{Multinomial}(N_d, \theta_d \beta)$. With $t(\beta) = \log \beta$ and
$t(\theta) = \log \theta$,

$$F = \sum_k \log \operatorname{Dir}(\beta_k) + \sum_d \log \operatorname{Dir}(\theta_d)
+ \sum_{dv} n_{dv} \log \sum_k e^{\log \theta_{dk} + \log \beta_{kv}}
+ \sum_d \log \frac{N_d!}{\prod_v n_{dv}!}.$$

Its gradients are the coordinate updates X 12-13:

$$\gamma_d = \alpha + \sum_n \phi_{dn}, \qquad \lambda_k = \eta + \sum_{dn} w_{dn} \phi_{dnk}.$$

| here | P | T | X |
|---|---|---|---|
| `beta`, `theta` | $\beta, \theta$ | $\beta, \theta$ | $\beta, \pi$ |
| `alpha` | $a_0 1_K$ | $\alpha_k$ | $\alpha$ |
| `eta` | $c_0 / V$ | $\eta$ | $\lambda$ |
| $q(\beta), q(\theta)$ | – | $\lambda, \gamma$ | $\eta, \gamma$ ($\alpha$ on X 9) |

X 23 prints the data terms of the bound with a minus and without the factor $N$. They enter with a
plus, scaled by $N / |B|$ for a batch $B$.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.distributions.constraints import positive

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination.allocate import allocate
from pp_models.elimination.row_solver import Odds, converge_rows
from pp_models.errors import InputError
from pp_models.families.special import digamma
from pp_models.model import Count, Learning, Model, Positive, Positives, Tokens, documents


class Hyper(NamedTuple):
    """num_topics: K. alpha: concentration of the topic proportions, one number or one per topic.
    eta: concentration of the topics."""

    num_topics: Count = 10
    alpha: Positives = 0.1
    eta: Positive = 0.05


def resolve(hyper, data):
    if (size := np.size(hyper.alpha)) not in (1, hyper.num_topics):
        raise InputError(
            f"alpha has {size} numbers for {hyper.num_topics} topics: give one, or one per topic."
        )
    return hyper


def _alpha(hyper):
    return jnp.broadcast_to(jnp.asarray(hyper.alpha, float), (hyper.num_topics,))


def generate(hyper, data):
    with numpyro.plate("topics", hyper.num_topics):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.full(data.num_columns, hyper.eta)))
    with documents(data):
        theta = numpyro.sample("theta", dist.Dirichlet(_alpha(hyper)))
        totals = data.totals.astype(int)
        words = dist.MultinomialProbs(theta @ beta, totals, total_count_max=data.max_total)
        numpyro.sample("counts", words, obs=data.entries.dense(data.num_columns))


def guide(hyper, data):
    lam = numpyro.param("lambda", lambda key: init(key, hyper, data)["beta"], constraint=positive)
    everyone = 1 + jnp.tile(_alpha(hyper), (data.num_data_rows, 1))
    gamma = numpyro.param("gamma", everyone, constraint=positive)
    with numpyro.plate("topics", hyper.num_topics):
        numpyro.sample("beta", dist.Dirichlet(lam))
    with documents(data):
        numpyro.sample("theta", dist.Dirichlet(gamma[data.positions]))


def log_global(hyper, t):
    return jnp.sum(fam.log_prior(fam.dirichlet, hyper.eta, t["beta"]))


def log_local(hyper, t, batch, key=None):
    prior = fam.log_prior(fam.dirichlet, _alpha(hyper), t["theta"])
    coefficient = gammaln(batch.totals + 1) - batch.log_factorials
    return batch.sum(prior + coefficient) + allocate(t["theta"], t["beta"], batch.entries, key)


def init(key, hyper, data):
    """Topics: the prior plus uniform noise scaled to the corpus (P 11.6). Documents: the words
    spread evenly over the topics.

    A document that started at the prior would give a topic of small alpha the weight
    exp(digamma(alpha)), from which it does not recover.
    """
    share = jnp.asarray(data.totals, float)[:, None] / hyper.num_topics
    scale = 2 * data.total / (hyper.num_topics * data.num_columns)
    noise = jax.random.uniform(key, (hyper.num_topics, data.num_columns))
    return {"theta": _alpha(hyper) + share, "beta": hyper.eta + scale * noise}


def predict(hyper, values):
    """Word probabilities of each document."""
    return values["theta"] @ values["beta"]


def example(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    topics, proportions = rng.dirichlet(np.full(9, 0.3), 3), rng.dirichlet(np.full(3, 0.5), 14)
    counts = rng.multinomial(rng.integers(5, 40, 14), proportions @ topics)
    return Hyper(num_topics=3, alpha=1.1, eta=1.2), data_.counts(counts)


# Optional: the documents' fixed point in one pass, and topics of single words -----------------

LOG_TOTAL = {"mean": digamma, "mode": jnp.log, "log_mode": jnp.log, "collapsed": jnp.log}


def odds(hyper, t, batch, summary="collapsed"):
    r"""The odds of a word's topic: $\phi$ of X 12 or, with $\theta$ integrated out,
    $(\alpha_k + N_{dk}) / (\sum_k \alpha_k + N_d) \, \beta_{kv}$, $N$ without the word itself."""
    alpha = _alpha(hyper)[None]
    taken = {"mode": hyper.num_topics, "collapsed": 1}.get(summary, 0)
    total = jnp.sum(alpha) + batch.totals - taken
    log_total = LOG_TOTAL[summary](jnp.maximum(total, jnp.finfo(total.dtype).tiny))
    return Odds(alpha, -log_total[:, None], t["beta"])


def solve_local(hyper, t, batch, start, options, summary):
    r"""X 12 for every document of the batch: $\phi$ and $\gamma$ in turn, to convergence."""
    given = odds(hyper, t, batch, summary)
    counts, info, entries = converge_rows(*given, batch.entries, start["theta"], options, summary)
    return {"theta": given.concentration + counts}, info, batch.replace(entries=entries)


def begin(hyper, data, topics):
    """q(beta) at the given topics, with an equal share of the tokens each."""
    return {"beta": hyper.eta + data.total / hyper.num_topics * topics}


MODEL = Model.of(
    globals(),  # Hyper, generate, guide, log_global, ...: the functions above, by their names
    families={"theta": fam.dirichlet, "beta": fam.dirichlet},
    symmetry="permutation",
    tokens=Tokens(odds, begin),
    learning=Learning(lambda hyper: {"alpha": _alpha(hyper), "eta": hyper.eta}),
)
