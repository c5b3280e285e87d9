"""Probabilistic matrix factorisation (C17; Salakhutdinov & Mnih 2007).

Users and items have locations, and a rating is their inner product with noise. Of the N_1 x N_2 ratings only those in Omega are observed; the
others are missing, not zero:

    u_i  ~ N(0, I / lam)
    v_j  ~ N(0, I / lam)
    M_ij ~ N(offset + u_i'v_j, sigma2)        (i, j) in Omega

With t(u) = (u, u u') and t(v) alike,

    F = priors - 1/(2 sigma2) sum_Omega (M_ij - offset)^2 - 2 (M_ij - offset) u_i'v_j + <u_i u_i', v_j v_j'> - |Omega|/2 log(2 pi sigma2)

and its gradient for a user is the precision lam I + sum_j v_j v_j' / sigma2 with the right-hand side sum_j M_ij v_j / sigma2: the engine `map` is
C17's coordinate ascent, N_1 + N_2 coupled ridge regressions

    u_i = (lam sigma2 I + sum_j v_j v_j')^-1 sum_j M_ij v_j,

`cavi` the mean-field version with covariances, `gibbs` draws from the same normals. A user without ratings has the prior; one with fewer ratings
than the rank is no trouble, for the prior makes the equations solvable.

| here   | C17          |
|--------|--------------|
| u, v   | u_i, v_j     |
| lam    | lambda       |
| sigma2 | sigma^2      |
| rank   | d            |
| offset | - (0; or the mean rating, with center=True) |

Defaults: half of the ratings' variance is noise, sigma2 = var/2, and the rest of their square about the offset is u'v's under the prior: centred,
lam = sqrt(2 rank / var). The stochastic engines can learn lam and sigma2 (`{"sigma2": "learn"}`). Given priors of their own, they are the model
`bayesian_pmf`.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination.passes import Solved
from pp_models.elimination.residuals import squared_error
from pp_models.elimination.row_solver import RowInfo
from pp_models.families import Pair
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
from pp_models.models._scales import along


class Hyper(NamedTuple):
    """rank: d. lam: precision of the locations. sigma2: variance of the noise. center: subtract the mean rating. offset: what is subtracted."""

    rank: Count = 10
    lam: Positive | None = None
    sigma2: Positive | None = None
    center: Flag = True
    offset: Finite | None = None


def variance(data):
    """Of the observed ratings; of ratings that are all alike, one."""
    spread = float(np.var(data.matrix.data, dtype=np.float64))
    return spread if spread > 0 else 1.0


def resolve_offset(hyper, data):
    """The number taken off every rating: as given, the mean rating, or zero."""
    if hyper.offset is not None:
        return hyper.offset
    return float(np.mean(data.matrix.data, dtype=np.float64)) if hyper.center else 0.0


def resolve(hyper, data):
    hyper = hyper._replace(offset=resolve_offset(hyper, data))

    def precision():
        square = (
            variance(data)
            + (float(np.mean(data.matrix.data, dtype=np.float64)) - hyper.offset) ** 2
        )
        return float(np.sqrt(hyper.rank / (square - variance(data) / 2)))

    return fill_in(hyper, {"sigma2": lambda: variance(data) / 2, "lam": precision})


def observe(mean, noise, data):
    """The observed ratings; what is missing says nothing."""
    table = data.entries.dense(data.num_columns, fill=jnp.nan)
    seen = ~jnp.isnan(table)
    numpyro.sample(
        "ratings", dist.Normal(mean, noise).mask(seen).to_event(1), obs=jnp.where(seen, table, 0)
    )


def generate(hyper, data):
    locations = dist.Normal(0, 1 / jnp.sqrt(hyper.lam)).expand([hyper.rank]).to_event(1)
    with numpyro.plate("objects", data.num_columns):
        v = numpyro.sample("v", locations)
    with documents(data):
        u = numpyro.sample("u", locations)
        observe(hyper.offset + u @ v.T, jnp.sqrt(hyper.sigma2), data)


def guide_locations(name, size, rank, start=None):
    """Parameters of a normal for each user or item: means and Cholesky factors of the covariance."""
    mean = numpyro.param(f"{name}_mean", start or jnp.zeros((size, rank)))
    tril = numpyro.param(
        f"{name}_tril",
        jnp.broadcast_to(0.3 * jnp.eye(rank), (size, rank, rank)),
        constraint=constraints.lower_cholesky,
    )
    return mean, tril


def guide(hyper, data):
    v = guide_locations(
        "v", data.num_columns, hyper.rank, lambda key: _start(key, hyper, data.num_columns)
    )
    u = guide_locations("u", data.num_data_rows, hyper.rank)
    with numpyro.plate("objects", data.num_columns):
        numpyro.sample("v", dist.MultivariateNormal(v[0], scale_tril=v[1]))
    with documents(data):
        numpyro.sample(
            "u", dist.MultivariateNormal(u[0][data.positions], scale_tril=u[1][data.positions])
        )


def _prior(hyper):
    precision = jnp.asarray(hyper.lam) * jnp.eye(hyper.rank)
    return Pair(jnp.zeros((1, hyper.rank)), -0.5 * precision[None])


def log_global(hyper, t):
    return jnp.sum(fam.log_prior(fam.normal, _prior(hyper), t["v"]))


def centred(batch, offset):
    """The batch with the offset taken off its ratings."""
    return batch.replace(
        entries=dataclasses.replace(batch.entries, values=batch.entries.values - offset),
        by_column=dataclasses.replace(batch.by_column, values=batch.by_column.values - offset),
    )


def error(hyper, t, batch):
    """The expected squared error of the batch's ratings."""
    rows = centred(batch, hyper.offset)
    return squared_error(t["u"], t["v"], rows.entries, rows.by_column)


def log_local(hyper, t, batch, key=None):
    prior = fam.log_prior(fam.normal, _prior(hyper), t["u"])
    size = jnp.sum(batch.entries.lengths)
    return batch.sum(prior) - 0.5 * (
        error(hyper, t, batch) / hyper.sigma2 + size * jnp.log(2 * jnp.pi * hyper.sigma2)
    )


def _start(key, hyper, size):
    """C17: each location from its prior; from a narrower one where that is so wide that u'v would be far beyond the noise."""
    widest = (2 * jnp.asarray(hyper.sigma2) / hyper.rank) ** 0.25
    return jnp.minimum(widest, 1 / jnp.sqrt(hyper.lam)) * jax.random.normal(key, (size, hyper.rank))


def at(mean, precision):
    """Natural parameters of normals with these means and one precision for all coordinates."""
    size, rank = mean.shape
    return Pair(
        precision * mean, -0.5 * precision * jnp.broadcast_to(jnp.eye(rank), (size, rank, rank))
    )


def init(key, hyper, data):
    """Items: C17's random locations, known ten times better than the prior knows them. Users: the prior, which the first step replaces."""
    return {
        "u": at(jnp.zeros((data.num_rows, hyper.rank)), hyper.lam),
        "v": at(_start(key, hyper, data.num_columns), 100 * hyper.lam),
    }


def solve_users(log_local, hyper, t, batch, start):
    """Users do not meet in F: one regression each, and no iteration. Padding, which has no gradient, gets a unit normal."""
    gradient = jax.grad(lambda u: log_local(hyper, {**t, "u": u}, batch))(start["u"])
    idle = at(jnp.zeros_like(start["u"].first), 1.0)
    real = batch.mask > 0
    natural = Pair(
        jnp.where(real[:, None], gradient.first, idle.first),
        jnp.where(real[:, None, None], gradient.second, idle.second),
    )
    return {"u": natural}, RowInfo(jnp.ones(batch.num_rows, int), jnp.zeros(batch.num_rows)), batch


def solve_local(hyper, t, batch, start, options, summary):
    return solve_users(log_local, hyper, t, batch, start)


def moves(hyper, key, values, batch):
    """Components of a random direction, u -> u Q diag(c) Q' and v -> v Q diag(1/c) Q': inner products stay, and so does everything but the priors.

    The priors do not know Q, which is drawn anew every time: in some sweeps all of the linear maps that the ratings cannot see are gone through.
    """
    turn_key, line_key = jax.random.split(key)
    turn, _ = jnp.linalg.qr(
        jax.random.normal(turn_key, (hyper.rank, hyper.rank), values["u"].dtype)
    )
    u, v = values["u"] @ turn, values["v"] @ turn
    half = 0.5 * along(
        line_key, len(u) - len(v), hyper.lam * jnp.sum(u**2, 0), hyper.lam * jnp.sum(v**2, 0)
    )
    return {**values, "u": (u * jnp.exp(half)) @ turn.T, "v": (v * jnp.exp(-half)) @ turn.T}


def fix_rows(hyper, t, batch):
    """The batch with its squared error, which the prior and the noise do not change, known."""
    return batch.replace(
        entries=dataclasses.replace(
            batch.entries, solved=Solved(error(hyper, t, batch), None, None)
        )
    )


def predict(hyper, values):
    """Expected ratings."""
    return hyper.offset + values["u"] @ values["v"].T


def example(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    u, v = rng.normal(size=(9, 2)), rng.normal(size=(6, 2))
    user, item = np.nonzero(rng.random((9, 6)) < 0.7)
    values = 3 + np.sum(u[user] * v[item], 1) + 0.5 * rng.normal(size=len(user))
    return Hyper(rank=2, lam=1.2, sigma2=0.4), data_.ratings(user, item, values, shape=(9, 6))


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    guide=guide,
    families={"u": fam.normal, "v": fam.normal},
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=predict,
    symmetry="rotation",
    rotation=Rotation(("v", "u")),
    example=example,
    resolve=resolve,
    solve_local=solve_local,
    moves=moves,
    ratings=Ratings(lambda hyper, values: hyper.sigma2),
    learning=Learning(lambda hyper: {"lam": hyper.lam, "sigma2": hyper.sigma2}, fix_rows),
)
