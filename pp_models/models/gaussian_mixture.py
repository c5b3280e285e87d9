r"""Mixture of Gaussians with full covariances.

Rows of real numbers, each from one of K components (Theis & Hoffman, T 4.2, for patches of natural
images; Bishop 2006, 10.2):

$$\begin{align*}
\pi &\sim \operatorname{Dirichlet}(\text{concentration} \cdot 1_K) && \text{weights} \\
\Lambda_k &\sim \operatorname{Wishart}(\nu, W) && W^{-1} = \operatorname{diag}(\text{scale}) \\
\mu_k &\sim \operatorname{Normal}(\text{mean}, (\kappa \Lambda_k)^{-1}) && k = 1, \dots, K \\
z_n &\sim \operatorname{Discrete}(\pi) && \text{component of a row} \\
x_n &\sim \operatorname{Normal}(\mu_{z_n}, \Lambda_{z_n}^{-1}) && n = 1, \dots, N
\end{align*}$$

The site `components` holds $\mu_k$ in row 0 and $\Lambda_k$ below it (`families.unpack`); `means`
and `covariances` take it apart. The component $z$ of a row is summed out. With $t(\pi) = \log \pi$
and $t(\mu, \Lambda) = (\Lambda \mu, \mu^\top \Lambda \mu, \Lambda, \log \det \Lambda)$,

$$\begin{align*}
F &= \log \operatorname{Dir}(\pi) + \sum_k \log \operatorname{NW}(\mu_k, \Lambda_k)
+ \sum_n \log \sum_k e^{\rho_{nk}} \\
\rho_{nk} &= \log \pi_k + \frac12 \bigl(\log \det \Lambda_k - D \log 2 \pi - x_n^\top \Lambda_k x_n
+ 2 x_n^\top \Lambda_k \mu_k - \mu_k^\top \Lambda_k \mu_k\bigr)
\end{align*}$$

At $E_q[t]$ the exponents are Bishop's 10.46. The gradients are his updates 10.58 and 10.60-10.63 in
natural parameters: sums of $r_{nk}$ times $x_n$, $-1/2$, $-x_n x_n^\top / 2$ and $1/2$.

| here | Bishop | T |
|---|---|---|
| `pi`, `components` | $\pi$; $\mu, \Lambda$ | $\pi$; $\beta$ |
| `concentration` | $\alpha_0$ | – |
| `kappa`, `nu`, `mean`, `scale` | $\beta_0, \nu_0, m_0$, diagonal of $W_0^{-1}$ | not printed |

Defaults: $\kappa = 0.01$; $\nu = D + 2$, the least whole number with an expected covariance; the
mean of the data; and a scale such that the expected covariance is diagonal with the data's
variances divided by $K^{2/D}$: K balls of that size fill the data's ellipsoid.

Natural parameters hold second moments about the origin. In single precision a component keeps its
smallest variances only if its mean is within a few hundred of their standard deviations from zero:
centre the data, and divide columns of very different spread by it. Variances within a component may
differ by a factor of up to 1e6 (image patches without their mean); beyond that, whiten the data.
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
from pp_models.models._examples import generator


class Hyper(NamedTuple):
    """num_components: K. concentration: of the weights' Dirichlet prior. kappa: number of rows that
    a mean's prior is worth. nu: degrees of freedom of the precisions, above D. mean: of the means,
    one number or one per column. scale: diagonal of W^-1, likewise; the expected covariance is
    scale / (nu - D - 1)."""

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
            f"nu must be above the number of columns, {size}, or the precisions' prior has no "
            f"mode, but it is {hyper.nu:g}."
        )

    def scale():
        spread = _variances(data.values) / hyper.num_components ** (2 / size)
        return spread * max(hyper.nu - size - 1, 1)

    means = partial(np.mean, getattr(data, "values", None), 0, dtype=np.float64)
    hyper = fill_in(hyper, {"mean": means, "scale": scale})
    for name in ("mean", "scale"):
        given = np.asarray(getattr(hyper, name), float).ravel()
        if given.size not in (1, size) or not np.all(np.isfinite(given)):
            raise InputError(
                f"{name} must be one finite number, or one for each of the {size} columns."
            )
        hyper = hyper._replace(**{name: tuple(np.broadcast_to(given, (size,)).tolist())})
    return hyper


def _variances(values):
    """The variances of the columns; a constant column counts a ten-thousandth of the average."""
    variances = np.var(values, 0, dtype=np.float64)
    average = variances.mean()
    return np.maximum(variances, 1e-4 * average) if average > 0 else np.ones_like(variances)


def _prior(hyper):
    root = jnp.diag(jnp.sqrt(jnp.asarray(hyper.scale)))
    return NormalWishart(jnp.asarray(hyper.mean), hyper.kappa, hyper.nu, root)


def generate(hyper, data):
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.full(hyper.num_components, hyper.concentration)))
    with numpyro.plate("mixture", hyper.num_components):
        components = numpyro.sample("components", _prior(hyper))
    mu, precision = unpack(components)
    with documents(data):
        normals = dist.MultivariateNormal(mu, precision_matrix=precision)
        rows = dist.MixtureSameFamily(dist.Categorical(probs=pi), normals)
        numpyro.sample("observations", rows, obs=data.dense)


def log_global(hyper, t):
    weights = fam.log_prior(fam.dirichlet, hyper.concentration, t["pi"])
    natural = jax.tree.map(lambda x: x[None], fam.normal_wishart.natural(_prior(hyper)))
    return jnp.sum(weights) + jnp.sum(fam.log_prior(fam.normal_wishart, natural, t["components"]))


def _evaluate_distances(x, t):
    r"""$x^\top \Lambda x - 2 x^\top \Lambda \mu + \mu^\top \Lambda \mu$, (rows, K).

    Linear in t, with its derivative written out below. The value is computed as
    $|L^\top (x - m)|^2$ plus a rest, $L L^\top = \Lambda$ and $m = \Lambda^{-1} (\Lambda \mu)$: the
    terms above cancel, and precisions of 1e5 would leave few digits in single precision.
    """

    def distance(one):
        factor = jnp.linalg.cholesky(one.precision)
        mean = jax.scipy.linalg.cho_solve((factor, True), one.weighted)
        rest = one.quadratic - mean @ one.weighted  # D / kappa at the mean of q, 0 at a point
        return jnp.sum(((x - mean) @ factor) ** 2, 1) + rest

    return lax.map(distance, t).T  # one component at a time: nothing larger than (rows, D)


_distances = jax.custom_vjp(_evaluate_distances)


def _distances_backward(x, cotangent):
    second = lax.map(lambda weights: (x * weights[:, None]).T @ x, cotangent.T)
    total = jnp.sum(cotangent, 0)
    gradient = fam.MeanPrecision(-2 * cotangent.T @ x, total, second, jnp.zeros_like(total))
    return jnp.zeros_like(x), gradient


# Not `_distances` again: the gradient is differentiated once more by linear response.
_distances.defvjp(lambda x, t: (_evaluate_distances(x, t), x), _distances_backward)


def log_local(hyper, t, batch, key=None):
    components = t["components"]
    distances = _distances(lax.stop_gradient(batch.dense), components)
    constant = batch.num_columns * jnp.log(2 * jnp.pi)
    logits = t["pi"] + 0.5 * (components.log_det - constant - distances)
    return choose(logits, batch.mask, key)


@partial(jax.jit, static_argnames=("number",))
def _scattered(key, x, mask, number):
    """Rows far from each other: each is drawn with odds proportional to its squared distance from
    the nearest one before it (k-means++)."""
    limits = jnp.finfo(x.dtype)

    def pick(k, state):
        centres, nearest = state
        log_odds = jnp.where(mask > 0, jnp.log(nearest + limits.tiny), -jnp.inf)
        centre = x[jax.random.categorical(jax.random.fold_in(key, k), log_odds)]
        return centres.at[k].set(centre), jnp.minimum(nearest, jnp.sum((x - centre) ** 2, 1))

    begin = (jnp.zeros((number, x.shape[1]), x.dtype), jnp.full(x.shape[0], limits.max))
    return lax.fori_loop(0, number, pick, begin)[0]


def init(key, hyper, data):
    """T 4.2 prints no start. Here: components around rows far from each other, each as if it had
    seen an equal share of the rows with the variance that K components leave."""
    number = hyper.num_components
    if isinstance(data, Batch):
        x, mask = data.dense, data.mask
    else:
        x, mask = jnp.asarray(data.values, float), jnp.ones(data.num_rows)
    share, centre = jnp.sum(mask) / number, mask @ x / jnp.sum(mask)
    variance = mask @ (x - centre) ** 2 / jnp.sum(mask)
    unit = jnp.sqrt(jnp.where(variance > 0, variance, 1))
    means = unit * _scattered(key, x / unit, mask, number)
    scatter = jnp.asarray(hyper.scale) + share * variance / number ** (2 / x.shape[1])
    kappa, nu = (jnp.full(number, prior + share) for prior in (hyper.kappa, hyper.nu))
    start = NormalWishart(means, kappa, nu, jnp.diag(jnp.sqrt(scatter)))
    weights = jnp.full(number, hyper.concentration + data.num_rows / number)
    return {"pi": weights, "components": fam.normal_wishart.natural(start)}


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
    prior = {"concentration": 1.5, "kappa": 0.5, "mean": (0.2, -0.1), "scale": (2.0, 3.0)}
    centres = np.array([[-2.0, 1.0], [2.0, 0.0]])[np.arange(12) % 3 % 2]
    noise = generator(key).normal(size=(12, 2)) @ np.array([[0.8, 0.3], [0.0, 0.6]])
    return Hyper(num_components=2, nu=7.0, **prior), data_.dense(centres + noise)


MODEL = Model.of(
    globals(),
    families={"pi": fam.dirichlet, "components": fam.normal_wishart},
    symmetry="permutation",
    learning=Learning(("concentration", "kappa", "scale")),  # mean has no sign
)
