"""Mixture of Gaussians with full covariances.

Rows of real numbers, each from one of K components (T 4.2, there for 8 x 8 patches of natural images; Bishop 2006, 10.2):

    pi              ~ Dirichlet(concentration 1_K)         weights of the components
    Lambda_k        ~ Wishart(nu, W),   W^-1 = diag(scale)
    mu_k | Lambda_k ~ Normal(mean, (kappa Lambda_k)^-1)    k = 1..K
    z_n             ~ Discrete(pi),     x_n ~ Normal(mu_{z_n}, Lambda_{z_n}^-1)

One site, `components`, holds mu_k in row 0 and Lambda_k in the rows below it (see `normal_wishart.py`); `means` and `covariances` take it apart.
The component z of a row is summed out. With t(pi) = log pi and t(mu, Lambda) = (Lambda mu, mu' Lambda mu, Lambda, log det Lambda),

    F = log Dir(pi) + sum_k log NW(mu_k, Lambda_k)
        + sum_n log sum_k exp(log pi_k + (log det Lambda_k - D log 2 pi - x_n' Lambda_k x_n + 2 x_n' Lambda_k mu_k - mu_k' Lambda_k mu_k) / 2).

At E_q[t] the exponents are Bishop's 10.46, and the gradients are his updates 10.58 and 10.60-10.63, in natural parameters: sums of r_nk times
x_n, -1/2, -x_n x_n' / 2 and 1/2.

| here                    | Bishop             | T                         |
|-------------------------|--------------------|---------------------------|
| pi; mu, Lambda          | pi; mu, Lambda     | pi; beta                  |
| concentration           | alpha_0            | -                         |
| kappa, nu, mean, W^-1   | beta_0, nu_0, m_0, W_0^-1 | a normal-inverse-Wishart prior, its numbers not printed |

Defaults: kappa = 0.01, nu = D + 2, the least whole number with an expected covariance, mean that of the data, and scale such that the expected
covariance is diagonal with the data's variances divided by K^(2/D): K balls of that size fill the data's own ellipsoid.

Precision. Natural parameters hold second moments about the origin. In single precision a component keeps its smallest variances only if its mean
is within a few hundred of their standard deviations from there: centre the data, and divide columns of very different spread by it. Ratios of the
largest to the smallest variance of a component up to 1e6 (image patches without their mean) are fine; beyond that, whiten.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.data.batches import Batch
from pp_models.elimination.choose import choose
from pp_models.errors import InputError
from pp_models.families import NormalWishart, unpack
from pp_models.model import Count, Learning, Model, Positive, Positives, documents, fill_in


class Hyper(NamedTuple):
    """num_components: K. concentration: of the weights' Dirichlet prior. kappa: the rows that a mean's prior is worth.

    nu: degrees of freedom of the precisions, above D. mean: of the means, one number or one per column. scale: diagonal of
    W^-1, likewise; the expected covariance is scale / (nu - D - 1).
    """

    num_components: Count = 10
    concentration: Positive = 1.0
    kappa: Positive = 0.01
    nu: Positive | None = None
    mean: Any = None
    scale: Positives = None


def resolve(hyper, data):
    size = data.num_columns
    hyper = fill_in(hyper, {"nu": size + 2.0})
    if not hyper.nu > size:
        raise InputError(
            f"nu must be above the number of columns, {size}, or the precisions' prior has no mode, but it is {hyper.nu:g}."
        )
    if hyper.mean is None:
        hyper = hyper._replace(mean=np.mean(data.values, 0, dtype=np.float64))
    if hyper.scale is None:
        hyper = hyper._replace(
            scale=_spread(data.values)
            / hyper.num_components ** (2 / size)
            * max(hyper.nu - size - 1, 1)
        )
    for name in ("mean", "scale"):
        given = np.asarray(getattr(hyper, name), float)
        if given.size not in (1, size) or not np.all(np.isfinite(given)):
            raise InputError(
                f"{name} must be one finite number, or one for each of the {size} columns."
            )
        hyper = hyper._replace(
            **{name: tuple(float(x) for x in np.broadcast_to(given.ravel(), (size,)))}
        )
    return hyper


def _spread(values):
    """The columns' variances. A constant column has none to go by, and counts a ten-thousandth of the average."""
    variances = np.var(values, 0, dtype=np.float64)
    average = variances.mean()
    return np.maximum(variances, 1e-4 * average) if average > 0 else np.ones_like(variances)


def _prior(hyper):
    return NormalWishart(
        jnp.asarray(hyper.mean), hyper.kappa, hyper.nu, jnp.diag(jnp.sqrt(jnp.asarray(hyper.scale)))
    )


def generate(hyper, data):
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.full(hyper.num_components, hyper.concentration)))
    with numpyro.plate("mixture", hyper.num_components):
        components = numpyro.sample("components", _prior(hyper))
    mu, precision = unpack(components)
    with documents(data):
        rows = dist.MixtureSameFamily(
            dist.Categorical(probs=pi), dist.MultivariateNormal(mu, precision_matrix=precision)
        )
        numpyro.sample("observations", rows, obs=data.dense)


def log_global(hyper, t):
    weights = fam.log_prior(fam.dirichlet, jnp.reshape(hyper.concentration, (1,)), t["pi"])
    natural = jax.tree.map(lambda x: x[None], fam.normal_wishart.natural(_prior(hyper)))
    return jnp.sum(weights) + jnp.sum(fam.log_prior(fam.normal_wishart, natural, t["components"]))


@jax.custom_vjp
def _distances(x, t):
    """x' Lambda x - 2 x' Lambda mu + mu' Lambda mu of every row and component, (rows, K).

    Linear in t, with the derivative written out below. The value is computed as |L' (x - m)|^2 + rest with L L' = Lambda and
    m = Lambda^-1 (Lambda mu): the printed terms cancel, and with precisions of 1e5 they would leave little of single precision.
    """

    def distance(one):
        factor = jnp.linalg.cholesky(one.precision)
        mean = jax.scipy.linalg.cho_solve((factor, True), one.weighted)
        rest = one.quadratic - mean @ one.weighted  # D / kappa at the mean of q, 0 at a point
        return jnp.sum(((x - mean) @ factor) ** 2, 1) + rest

    return lax.map(
        distance, t
    ).T  # a component at a time: nothing larger than (rows, D), and see families._each


def _distances_forward(x, t):
    return _distances(x, t), x


def _distances_backward(x, cotangent):
    second = lax.map(lambda weights: (x * weights[:, None]).T @ x, cotangent.T)
    total = jnp.sum(cotangent, 0)
    return jnp.zeros_like(x), fam.MeanPrecision(
        -2 * cotangent.T @ x, total, second, jnp.zeros_like(total)
    )


_distances.defvjp(_distances_forward, _distances_backward)


def log_local(hyper, t, batch, key=None):
    components = t["components"]
    distances = _distances(lax.stop_gradient(batch.dense), components)
    logits = t["pi"] + 0.5 * (
        components.log_det - batch.num_columns * jnp.log(2 * jnp.pi) - distances
    )
    return choose(logits, batch.mask, key)


def _rows(data):
    """The observations, and which of the rows are real."""
    if isinstance(data, Batch):
        return data.dense, data.mask
    return jnp.asarray(data.values, float), jnp.ones(data.num_rows)


@partial(jax.jit, static_argnames=("number",))
def _scattered(key, x, mask, number):
    """Rows far from each other: each is drawn with odds proportional to its squared distance from the nearest one before it (k-means++)."""

    def pick(k, state):
        centres, nearest = state
        log_odds = jnp.where(mask > 0, jnp.log(nearest + jnp.finfo(x.dtype).tiny), -jnp.inf)
        centre = x[jax.random.categorical(jax.random.fold_in(key, k), log_odds)]
        return centres.at[k].set(centre), jnp.minimum(nearest, jnp.sum((x - centre) ** 2, 1))

    return lax.fori_loop(
        0,
        number,
        pick,
        (jnp.zeros((number, x.shape[1]), x.dtype), jnp.full(x.shape[0], jnp.finfo(x.dtype).max)),
    )[0]


def _start(key, hyper, data):
    """Components around rows far from each other, each as if it had seen an equal share of the rows at the spread that K components leave."""
    x, mask = _rows(data)
    share = jnp.sum(mask) / hyper.num_components
    centre = mask @ x / jnp.sum(mask)
    variance = mask @ (x - centre) ** 2 / jnp.sum(mask)
    unit = jnp.sqrt(jnp.where(variance > 0, variance, 1))
    means = unit * _scattered(key, x / unit, mask, hyper.num_components)
    scatter = jnp.asarray(hyper.scale) + share * variance / hyper.num_components ** (2 / x.shape[1])
    everyone = jnp.ones(hyper.num_components)
    return NormalWishart(
        means,
        (hyper.kappa + share) * everyone,
        (hyper.nu + share) * everyone,
        jnp.diag(jnp.sqrt(scatter)),
    )


def init(key, hyper, data):
    """T 4.2 prints no start. Here: rows far from each other, with an equal share of the rows each."""
    share = data.num_rows / hyper.num_components
    return {
        "pi": jnp.full(hyper.num_components, hyper.concentration + share),
        "components": fam.normal_wishart.natural(_start(key, hyper, data)),
    }


def means(values):
    """(..., K, D) from site values, or from a posterior's means of them."""
    return unpack(values["components"])[0]


def covariances(values):
    """(..., K, D, D): the inverse precisions."""
    return jnp.linalg.inv(unpack(values["components"])[1])


def predict(hyper, values):
    """The mixture's mean, the same for all rows: (1, columns)."""
    return values["pi"][None] @ means(values)


def example(key):
    hyper = Hyper(
        num_components=2, concentration=1.5, kappa=0.5, nu=7.0, mean=(0.2, -0.1), scale=(2.0, 3.0)
    )
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    centres = np.array([[-2.0, 1.0], [2.0, 0.0]])
    return hyper, data_.dense(
        centres[np.arange(12) % 3 % 2]
        + rng.normal(size=(12, 2)) @ np.array([[0.8, 0.3], [0.0, 0.6]])
    )


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    families={"pi": fam.dirichlet, "components": fam.normal_wishart},
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=predict,
    symmetry="permutation",
    example=example,
    resolve=resolve,
    learning=Learning(
        lambda hyper: {name: getattr(hyper, name) for name in ("concentration", "kappa", "scale")}
    ),  # mean has no sign
)
