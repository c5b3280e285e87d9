"""Mixture of multivariate Bernoulli distributions.

Rows of zeros and ones, each from one of K components (T 4.1, there for binarised MNIST digits):

    pi      ~ Dirichlet(concentration 1_K)         weights of the components
    beta_ki ~ Beta(a, b)                           k = 1..K, i = 1..D   probability of a one
    z_n     ~ Discrete(pi),   x_ni ~ Bernoulli(beta_{z_n i})

The component z of a row is summed out. With t(pi) = log pi and t(beta) = (log beta, log(1 - beta)),

    F = log Dir(pi) + sum_ki log Beta(beta_ki)
        + sum_n log sum_k exp(log pi_k + sum_i x_ni (log beta_ki - log(1 - beta_ki)) + sum_i log(1 - beta_ki)).

Its gradients are the updates of q(pi) and q(beta) as T 4.1 parametrises them, given the responsibilities phi that T 9 calls optimal:
gamma_k = concentration + sum_n phi_nk, a_ki = a + sum_n phi_nk x_ni, b_ki = b + sum_n phi_nk (1 - x_ni).

| here            | T            |
|-----------------|--------------|
| pi, beta        | pi, beta     |
| q(pi), q(beta)  | gamma; a, b  |
| concentration = a = b = 1 | uniform priors, T's choice and the defaults |

No site belongs to a row, so all rows have the same expectation, pi beta.
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


class Hyper(NamedTuple):
    """num_components: K. concentration: of the weights' Dirichlet prior. a, b: of the probabilities' beta prior. All one: uniform priors."""

    num_components: Count = 10
    concentration: Positive = 1.0
    a: Positive = 1.0
    b: Positive = 1.0


def check_rows(data):
    values = getattr(data, "values", None)  # a fit that was stored knows only the shape of its data
    if values is not None and not np.all((values == 0) | (values == 1)):
        other = values[(values != 0) & (values != 1)][0]
        raise InputError(
            f"bernoulli_mixture explains observations that are 0 or 1, but one is {other:g}: binarise them first."
        )


def generate(hyper, data):
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.full(hyper.num_components, hyper.concentration)))
    with (
        numpyro.plate("components", hyper.num_components, dim=-2),
        numpyro.plate("columns", data.num_columns),
    ):
        beta = numpyro.sample("beta", dist.Beta(hyper.a, hyper.b))
    with documents(data):
        rows = dist.MixtureSameFamily(
            dist.Categorical(probs=pi), dist.Bernoulli(probs=beta).to_event(1)
        )
        numpyro.sample("observations", rows, obs=data.dense)


def log_global(hyper, t):
    weights = fam.log_prior(fam.dirichlet, jnp.reshape(hyper.concentration, (1,)), t["pi"])
    probabilities = fam.log_prior(
        fam.beta, Pair(jnp.reshape(hyper.a, (1, 1)), jnp.reshape(hyper.b, (1, 1))), t["beta"]
    )
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
    hyper = Hyper(num_components=2, concentration=1.5, a=1.2, b=1.3)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    probabilities = np.array([[0.9, 0.85, 0.8, 0.1, 0.15], [0.1, 0.2, 0.1, 0.9, 0.8]])
    return hyper, data_.dense(rng.random((14, 5)) < probabilities[np.arange(14) % 3 % 2])


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    families={"pi": fam.dirichlet, "beta": fam.beta},
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=predict,
    symmetry="permutation",
    example=example,
    check_rows=check_rows,
)
