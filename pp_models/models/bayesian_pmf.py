"""Bayesian probabilistic matrix factorisation (Salakhutdinov & Mnih 2008).

`pmf` (C17) with the locations' means and precisions, and the noise, given priors instead of numbers:

    M_ij           ~ N(offset + u_i'v_j, 1 / tau)                (i, j) in Omega
    u_i            ~ N(mu_U, Lambda_U^-1)
    v_j            ~ N(mu_V, Lambda_V^-1)
    mu, Lambda     ~ NormalWishart(0, kappa, W, nu), W^-1 = scale I, independently for users and items
    tau            ~ Gamma(a, b)

With the statistics (Lambda mu, mu'Lambda mu, Lambda, log det Lambda) of a normal-Wishart variable, the prior of one user is

    log p(u) = <Lambda mu, u> - 1/2 <Lambda, u u'> - 1/2 mu'Lambda mu + 1/2 log det Lambda - d/2 log 2 pi,

linear in either's, so every block is conjugate: the published Gibbs sampler is dF/dt, and mean-field VB is dF/dmu.

| here                 | Salakhutdinov & Mnih   |
|----------------------|------------------------|
| u, v                 | U_i, V_j               |
| users, items         | Theta_U, Theta_V: mean and precision, packed as in `normal_wishart` |
| tau                  | alpha, there fixed at 2 |
| kappa, nu, scale     | beta_0, nu_0, W_0^-1 = scale I |

Defaults are theirs, kappa = 2, nu = rank and W the identity, but for the noise, Gamma(1, var/2) with the ratings' variance, and for nu,
which is rank + 1: the mode of the mean and precision then exists.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from pp_models import families as fam
from pp_models.errors import InputError
from pp_models.families import MeanPrecision, NormalWishart, Pair, unpack
from pp_models.model import (
    Count,
    Finite,
    Flag,
    Learning,
    Model,
    Positive,
    Ratings,
    Rotation,
    documents,
    fill_in,
)
from pp_models.models import pmf


class Hyper(NamedTuple):
    """rank: d. kappa, nu, scale: of the normal-Wishart prior. a, b: shape and rate of the noise precision. center, offset: as in `pmf`."""

    rank: Count = 10
    kappa: Positive = 2.0
    nu: Positive | None = None
    scale: Positive = 1.0
    a: Positive = 1.0
    b: Positive | None = None
    center: Flag = True
    offset: Finite | None = None


def resolve(hyper, data):
    hyper = fill_in(hyper, {"nu": hyper.rank + 1.0, "b": lambda: pmf.variance(data) / 2})
    if hyper.nu <= hyper.rank - 1:
        raise InputError(f"nu must be above rank - 1 = {hyper.rank - 1}, not {hyper.nu}.")
    return hyper._replace(offset=pmf.resolve_offset(hyper, data))


def _hyper_prior(hyper):
    one = jnp.ones(1)
    tril = jnp.sqrt(jnp.asarray(hyper.scale)) * jnp.eye(hyper.rank)[None]
    return NormalWishart(jnp.zeros((1, hyper.rank)), hyper.kappa * one, hyper.nu * one, tril)


def _locations(packed):
    mean, precision = unpack(packed[0])
    return dist.MultivariateNormal(mean, precision_matrix=precision)


def generate(hyper, data):
    users = numpyro.sample("users", _hyper_prior(hyper).to_event(1))
    items = numpyro.sample("items", _hyper_prior(hyper).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(hyper.a, hyper.b).expand([1]).to_event(1))
    with numpyro.plate("objects", data.num_columns):
        v = numpyro.sample("v", _locations(items))
    with documents(data):
        u = numpyro.sample("u", _locations(users))
        pmf.observe(hyper.offset + u @ v.T, 1 / jnp.sqrt(tau[0]), data)


def _log_locations(x: Pair, prior: MeanPrecision):
    """E log N(x | mu, Lambda^-1) per row."""
    linear = x.first @ prior.weighted[0] - 0.5 * jnp.einsum(
        "nij,ij->n", x.second, prior.precision[0]
    )
    return linear + 0.5 * (
        prior.log_det[0] - prior.quadratic[0] - x.first.shape[1] * jnp.log(2 * jnp.pi)
    )


def log_global(hyper, t):
    prior = fam.normal_wishart.natural(_hyper_prior(hyper))
    hyper_priors = sum(
        jnp.sum(fam.log_prior(fam.normal_wishart, prior, t[site])) for site in ("users", "items")
    )
    noise = fam.log_prior(
        fam.gamma, Pair(jnp.reshape(hyper.a, (1,)), jnp.reshape(-hyper.b, (1,))), t["tau"]
    )
    return hyper_priors + jnp.sum(noise) + jnp.sum(_log_locations(t["v"], t["items"]))


def log_local(hyper, t, batch, key=None):
    size = jnp.sum(batch.entries.lengths)
    noise = size * (t["tau"].first[0] - jnp.log(2 * jnp.pi)) - t["tau"].second[0] * pmf.error(
        hyper, t, batch
    )
    return batch.sum(_log_locations(t["u"], t["users"])) + 0.5 * noise


def init(key, hyper, data):
    """Locations of about unit size, known well; the precisions' beliefs are those of ten locations."""
    natural = fam.normal_wishart.natural
    eye = jnp.eye(hyper.rank)[None]
    belief = natural(
        NormalWishart(
            jnp.zeros((1, hyper.rank)),
            10.0 * jnp.ones(1),
            jnp.full(1, hyper.nu + 10.0),
            jnp.sqrt(hyper.nu + 10.0) * eye,
        )
    )
    start = jax.random.normal(key, (data.num_columns, hyper.rank))
    noise = Pair(jnp.full(1, hyper.a + 10.0), -jnp.full(1, hyper.b * (hyper.a + 10.0)))
    return {
        "u": pmf.at(jnp.zeros((data.num_rows, hyper.rank)), 1.0),
        "v": pmf.at(start, 100.0),
        "users": belief,
        "items": belief,
        "tau": noise,
    }


def solve_local(hyper, t, batch, start, options, summary):
    return pmf.solve_users(log_local, hyper, t, batch, start)


def example(key):
    _, data = pmf.example(key)
    return Hyper(rank=2, kappa=3.0, nu=6.0, scale=4.0, a=5.0, b=2.0), data


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    families={
        "u": fam.normal,
        "v": fam.normal,
        "users": fam.normal_wishart,
        "items": fam.normal_wishart,
        "tau": fam.gamma,
    },
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=pmf.predict,
    symmetry="rotation",
    rotation=Rotation(("v", "u", "users", "items")),
    example=example,
    resolve=resolve,
    solve_local=solve_local,
    ratings=Ratings(lambda hyper, values: 1 / values["tau"][0]),
    learning=Learning(
        lambda hyper: {name: getattr(hyper, name) for name in ("kappa", "scale", "a", "b")},
        pmf.fix_rows,
    ),
)
