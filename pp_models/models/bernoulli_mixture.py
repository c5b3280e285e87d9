r"""Mixture of multivariate Bernoulli distributions.

Rows of zeros and ones, each from one of K components (Theis & Hoffman, T 4.1, for binarised MNIST
digits):

$$\begin{align*}
\pi &\sim \operatorname{Dirichlet}(\text{concentration} \cdot 1_K) && \text{weights} \\
\beta_{ki} &\sim \operatorname{Beta}(a, b) && \text{probability of a one} \\
z_n &\sim \operatorname{Discrete}(\pi) && \text{component of a row} \\
x_{ni} &\sim \operatorname{Bernoulli}(\beta_{z_n i}) && i = 1, \dots, D
\end{align*}$$

The component $z$ of a row is summed out. With $t(\pi) = \log \pi$ and
$t(\beta) = (\log \beta, \log(1 - \beta))$,

$$F = \log \operatorname{Dir}(\pi) + \sum_{ki} \log \operatorname{Beta}(\beta_{ki})
+ \sum_n \log \sum_k \exp\Bigl(\log \pi_k
+ \sum_i x_{ni} \log \frac{\beta_{ki}}{1 - \beta_{ki}} + \sum_i \log(1 - \beta_{ki})\Bigr).$$

Its gradients are the updates of $q(\pi)$ and $q(\beta)$ in T's parameters, given the optimal
responsibilities $\phi$ of T 9:

$$\gamma_k = \text{concentration} + \sum_n \phi_{nk}, \qquad
a_{ki} = a + \sum_n \phi_{nk} x_{ni}, \qquad b_{ki} = b + \sum_n \phi_{nk} (1 - x_{ni}).$$

| here | T |
|---|---|
| `pi`, `beta` | $\pi, \beta$ |
| $q(\pi), q(\beta)$ | $\gamma$; $a, b$ |
| `concentration`, `a`, `b` | 1: uniform priors, T's choice and the defaults |

No site belongs to a row, so all rows have the same expectation, $\pi \beta$.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination.choose import choose
from pp_models.errors import InputError
from pp_models.families import Pair
from pp_models.model import Count, Model, Positive, documents
from pp_models.models._examples import generator


class Hyper(NamedTuple):
    """num_components: K. concentration: of the weights' Dirichlet prior. a, b: of the
    probabilities' beta prior. All one: uniform priors."""

    num_components: Count = 10
    concentration: Positive = 1.0
    a: Positive = 1.0
    b: Positive = 1.0


def check_rows(data):
    values = getattr(data, "values", None)  # a stored fit knows only the shape of its data
    if values is not None and not np.all((values == 0) | (values == 1)):
        other = values[(values != 0) & (values != 1)][0]
        raise InputError(
            "bernoulli_mixture explains observations that are 0 or 1, "
            f"but one is {other:g}: binarise them first."
        )


def generate(hyper, data):
    shape = hyper.num_components, data.num_columns
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.full(hyper.num_components, hyper.concentration)))
    beta = numpyro.sample("beta", dist.Beta(hyper.a, hyper.b).expand(shape).to_event(2))
    with documents(data):
        components = dist.Bernoulli(probs=beta).to_event(1)
        rows = dist.MixtureSameFamily(dist.Categorical(probs=pi), components)
        numpyro.sample("observations", rows, obs=data.dense)


def log_global(hyper, t):
    weights = fam.log_prior(fam.dirichlet, hyper.concentration, t["pi"])
    probabilities = fam.log_prior(fam.beta, Pair(hyper.a, hyper.b), t["beta"])
    return jnp.sum(weights) + jnp.sum(probabilities)


def log_local(hyper, t, batch, key=None):
    log_one, log_zero = t["beta"]
    logits = t["pi"] + batch.dense @ (log_one - log_zero).T + jnp.sum(log_zero, 1)
    return choose(logits, batch.mask, key)


def init(key, hyper, data):
    """T 4.1: a and b from a gamma distribution of shape 100 and scale 0.01, gamma_k = 1."""
    a, b = 0.01 * jax.random.gamma(key, 100.0, (2, hyper.num_components, data.num_columns))
    return {"pi": jnp.ones(hyper.num_components), "beta": Pair(a, b)}


def predict(hyper, values):
    """Probability of a one in each column, the same for all rows: (1, columns)."""
    return values["pi"][None] @ values["beta"]


def example(key):
    probabilities = np.array([[0.9, 0.85, 0.8, 0.1, 0.15], [0.1, 0.2, 0.1, 0.9, 0.8]])
    ones = generator(key).random((14, 5)) < probabilities[np.arange(14) % 3 % 2]
    return Hyper(num_components=2, concentration=1.5, a=1.2, b=1.3), data_.dense(ones)


MODEL = Model.of(
    globals(), families={"pi": fam.dirichlet, "beta": fam.beta}, symmetry="permutation"
)
