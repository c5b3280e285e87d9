r"""Probabilistic matrix factorisation (Salakhutdinov & Mnih 2007).

Users and items have locations, and a rating is their inner product plus noise. Only the ratings in
$\Omega$ are observed; the others are missing, not zero (Columbia lectures, C17):

$$\begin{align*}
u_i &\sim \operatorname{N}(0, \lambda^{-1} I) && \text{users} \\
v_j &\sim \operatorname{N}(0, \lambda^{-1} I) && \text{items} \\
M_{ij} &\sim \operatorname{N}(\text{offset} + u_i^\top v_j, \sigma^2) && (i, j) \in \Omega
\end{align*}$$

With $t(u) = (u, u u^\top)$, $t(v)$ alike and $r_{ij} = M_{ij} - \text{offset}$,

$$F = \text{priors} - \frac{1}{2 \sigma^2} \sum_\Omega \bigl(r_{ij}^2 - 2 r_{ij} u_i^\top v_j
+ \langle u_i u_i^\top, v_j v_j^\top \rangle\bigr)
- \frac{|\Omega|}{2} \log(2 \pi \sigma^2).$$

Its gradient for a user is the precision $\lambda I + \sum_j v_j v_j^\top / \sigma^2$ and the right
side $\sum_j r_{ij} v_j / \sigma^2$. The engine `map` is C17's coordinate ascent, coupled ridge
regressions

$$u_i = \Bigl(\lambda \sigma^2 I + \sum_j v_j v_j^\top\Bigr)^{-1} \sum_j r_{ij} v_j,$$

`cavi` is the mean-field version with covariances, and `gibbs` draws from the same normals. A user
without ratings has the prior; the prior also makes the equations solvable for a user with fewer
ratings than the rank.

| here | C17 |
|---|---|
| `u`, `v` | $u_i, v_j$ |
| `lam`, `sigma2` | $\lambda, \sigma^2$ |
| `rank` | $d$ |
| `offset` | – (0; the mean rating with `center=True`) |

Defaults: half of the ratings' variance is noise, $\sigma^2 = \mathrm{var} / 2$, and the rest of
their square about the offset is that of $u^\top v$ under the prior; centred,
$\lambda = \sqrt{2 \, \text{rank} / \mathrm{var}}$. The stochastic engines can learn `lam` and
`sigma2` (`{"sigma2": "learn"}`). The model `bayesian_pmf` gives them priors.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.constraints import lower_cholesky

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination.passes import Solved
from pp_models.elimination.residuals import squared_error
from pp_models.elimination.row_solver import RowInfo
from pp_models.families import Pair
from pp_models.model import Learning, Model, Ratings, Rotation, documents
from pp_models.model.hyper import Count, Finite, Flag, Positive, fill_in
from pp_models.models import _spectral
from pp_models.models._examples import generator
from pp_models.models._scales import along


class Hyper(NamedTuple):
    """rank: d. lam: precision of the locations. sigma2: variance of the noise. center: subtract the
    mean rating. offset: the number to subtract."""

    rank: Count = 10
    lam: Positive | None = None
    sigma2: Positive | None = None
    center: Flag = True
    offset: Finite | None = None


def variance(data):
    """The variance of the ratings; one if all are equal."""
    return float(np.var(data.matrix.data, dtype=np.float64)) or 1.0


def resolve_offset(hyper, data):
    """The number subtracted from every rating: as given, the mean rating, or zero."""
    if hyper.offset is not None:
        return hyper.offset
    return float(np.mean(data.matrix.data, dtype=np.float64)) if hyper.center else 0.0


def resolve(hyper, data):
    hyper = hyper._replace(offset=resolve_offset(hyper, data))

    def precision():
        mean = float(np.mean(data.matrix.data, dtype=np.float64))
        square = variance(data) + (mean - hyper.offset) ** 2
        return float(np.sqrt(hyper.rank / (square - variance(data) / 2)))

    return fill_in(hyper, {"sigma2": lambda: variance(data) / 2, "lam": precision})


def observe(mean, noise, data):
    """The observed ratings; missing ones are masked."""
    table = data.entries.dense(data.num_columns, fill=jnp.nan)
    seen = ~jnp.isnan(table)
    ratings = dist.Normal(mean, noise).mask(seen).to_event(1)
    numpyro.sample("ratings", ratings, obs=jnp.where(seen, table, 0))


def generate(hyper, data):
    locations = dist.Normal(0, 1 / jnp.sqrt(hyper.lam)).expand([hyper.rank]).to_event(1)
    with numpyro.plate("objects", data.num_columns):
        v = numpyro.sample("v", locations)
    with documents(data):
        u = numpyro.sample("u", locations)
        observe(hyper.offset + u @ v.T, jnp.sqrt(hyper.sigma2), data)


def guide(hyper, data):
    def locations(name, size, start):
        mean = numpyro.param(f"{name}_mean", start)
        narrow = jnp.tile(0.3 * jnp.eye(hyper.rank), (size, 1, 1))
        return mean, numpyro.param(f"{name}_tril", narrow, constraint=lower_cholesky)

    size = data.num_columns
    v, v_tril = locations("v", size, lambda key: _start(key, hyper, size))
    users = jnp.zeros((data.num_data_rows, hyper.rank))
    u, u_tril = (x[data.positions] for x in locations("u", len(users), users))
    with numpyro.plate("objects", size):
        numpyro.sample("v", dist.MultivariateNormal(v, scale_tril=v_tril))
    with documents(data):
        numpyro.sample("u", dist.MultivariateNormal(u, scale_tril=u_tril))


def _prior(hyper):
    precision = jnp.asarray(hyper.lam) * jnp.eye(hyper.rank)
    return Pair(jnp.zeros((1, hyper.rank)), -0.5 * precision[None])


def log_global(hyper, t):
    return jnp.sum(fam.log_prior(fam.normal, _prior(hyper), t["v"]))


def error(hyper, t, batch):
    """The expected squared error of the batch's ratings, the offset subtracted."""
    rows, columns = (
        dataclasses.replace(entries, values=entries.values - hyper.offset)
        for entries in (batch.entries, batch.by_column)
    )
    return squared_error(t["u"], t["v"], rows, columns)


def log_local(hyper, t, batch, key=None):
    prior = fam.log_prior(fam.normal, _prior(hyper), t["u"])
    constant = jnp.sum(batch.entries.lengths) * jnp.log(2 * jnp.pi * hyper.sigma2)
    return batch.sum(prior) - 0.5 * (error(hyper, t, batch) / hyper.sigma2 + constant)


def _start(key, hyper, size):
    r"""C17: locations from their prior, or from a narrower one if the prior is so wide that
    $u^\top v$ would be far beyond the noise."""
    widest = (2 * jnp.asarray(hyper.sigma2) / hyper.rank) ** 0.25
    return jnp.minimum(widest, 1 / jnp.sqrt(hyper.lam)) * jax.random.normal(key, (size, hyper.rank))


def at(mean, precision):
    """Natural parameters of normals with these means and one precision for all coordinates."""
    size, rank = mean.shape
    eye = jnp.broadcast_to(jnp.eye(rank), (size, rank, rank))
    return Pair(precision * mean, -0.5 * precision * eye)


def init(key, hyper, data):
    """Items: leading singular vectors, with a tenth of the prior's sd. Users: the prior, which the
    first step replaces."""
    noise_key, vector_key = jax.random.split(key)
    noise = _start(noise_key, hyper, data.num_columns)
    return {
        "u": at(jnp.zeros((data.num_rows, hyper.rank)), hyper.lam),
        "v": at(_spectral.locations(vector_key, hyper, data, noise), 100 * hyper.lam),
    }


def predict(hyper, values):
    """Expected ratings."""
    return hyper.offset + values["u"] @ values["v"].T


def example(key):
    rng = generator(key)
    u, v = rng.normal(size=(9, 2)), rng.normal(size=(6, 2))
    user, item = np.nonzero(rng.random((9, 6)) < 0.7)
    values = 3 + np.sum(u[user] * v[item], 1) + 0.5 * rng.normal(size=len(user))
    return Hyper(rank=2, lam=1.2, sigma2=0.4), data_.ratings(user, item, values, shape=(9, 6))


def solve_users(log_local, hyper, t, batch, start):
    """Users do not meet in F: one regression each, without iteration. Padding has no gradient and
    gets a unit normal."""
    gradient = jax.grad(lambda u: log_local(hyper, {**t, "u": u}, batch))(start["u"])
    idle = at(jnp.zeros_like(start["u"].first), 1.0)

    def keep(x, y):
        return jnp.where(jnp.reshape(batch.mask > 0, (-1,) + (1,) * (x.ndim - 1)), x, y)

    info = RowInfo(jnp.ones(batch.num_rows, int), jnp.zeros(batch.num_rows))
    return {"u": jax.tree.map(keep, gradient, idle)}, info, batch


def solve_local(hyper, t, batch, start, options, summary):
    return solve_users(log_local, hyper, t, batch, start)


def random_turn(key, rank):
    """A random orthogonal matrix."""
    return jnp.linalg.qr(jax.random.normal(key, (rank, rank)))[0]


def moves(hyper, key, values, batch):
    r"""Scale components of a random direction, $u \to u Q \operatorname{diag}(c) Q^\top$ and
    $v \to v Q \operatorname{diag}(1/c) Q^\top$. Inner products do not change; the priors do.

    The priors do not depend on $Q$, which is drawn anew for every move, so that some sweeps reach
    all linear maps that the ratings do not determine.
    """
    turn_key, line_key = jax.random.split(key)
    turn = random_turn(turn_key, hyper.rank)
    u, v = values["u"] @ turn, values["v"] @ turn
    squares = hyper.lam * jnp.sum(u**2, 0), hyper.lam * jnp.sum(v**2, 0)
    half = 0.5 * along(line_key, len(u) - len(v), *squares)
    return {**values, "u": (u * jnp.exp(half)) @ turn.T, "v": (v * jnp.exp(-half)) @ turn.T}


def fix_rows(hyper, t, batch):
    """The batch with its squared error known, which the prior and the noise do not change."""
    solved = Solved(error(hyper, t, batch), None, None)
    return batch.replace(entries=dataclasses.replace(batch.entries, solved=solved))


MODEL = Model.of(
    globals(),
    families={"u": fam.normal, "v": fam.normal},
    symmetry="rotation",
    rotation=Rotation(("v", "u")),
    ratings=Ratings(lambda hyper, values: hyper.sigma2),
    learning=Learning(("lam", "sigma2"), fix_rows),
)
