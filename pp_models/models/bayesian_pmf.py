r"""Bayesian probabilistic matrix factorisation (Salakhutdinov & Mnih 2008).

`pmf` (Columbia lectures, C17) with priors on the means and precisions of the locations and on the
noise:

$$\begin{align*}
\mu, \Lambda &\sim \operatorname{NormalWishart}(0, \kappa, W, \nu) && \text{for users, for items} \\
\tau &\sim \operatorname{Gamma}(a, b) && \text{precision of the noise} \\
u_i &\sim \operatorname{N}(\mu_U, \Lambda_U^{-1}) && \text{users} \\
v_j &\sim \operatorname{N}(\mu_V, \Lambda_V^{-1}) && \text{items} \\
M_{ij} &\sim \operatorname{N}(\text{offset} + u_i^\top v_j, 1 / \tau) && (i, j) \in \Omega
\end{align*}$$

F is that of `pmf` with $1/\sigma^2 = \tau$, the priors of $\tau$, $(\mu, \Lambda)$ and, in their
statistics $(\Lambda \mu, \mu^\top \Lambda \mu, \Lambda, \log \det \Lambda)$, the prior of a user

$$\log p(u) = \langle \Lambda \mu, u \rangle - \frac12 \langle \Lambda, u u^\top \rangle
- \frac12 \mu^\top \Lambda \mu + \frac12 \log \det \Lambda - \frac{d}{2} \log 2 \pi.$$

It is linear in the statistics of either, so that every block is conjugate: the published Gibbs
sampler is $\partial F / \partial t$, and mean-field VB is $\partial F / \partial \mu$.

| here | Salakhutdinov & Mnih |
|---|---|
| `u`, `v` | $U_i, V_j$ |
| `users`, `items` | $\Theta_U, \Theta_V$: mean and precision, packed as in `normal_wishart` |
| `tau` | $\alpha$, fixed at 2 |
| `kappa`, `nu`, `scale` | $\beta_0, \nu_0, W_0^{-1} = \text{scale} \cdot I$ |

Defaults are theirs, $\kappa = 2$ and $W = I$, except for the noise,
$\operatorname{Gamma}(1, \mathrm{var}/2)$ with the ratings' variance, and for
$\nu = \text{rank} + 1$ in place of the rank, so that the mode of mean and precision exists.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from pp_models import families as fam
from pp_models.errors import InputError
from pp_models.families import MeanPrecision, NormalWishart, Pair, pack, unpack
from pp_models.model import Learning, Model, Ratings, Rotation, documents
from pp_models.model.hyper import Count, Finite, Flag, Positive, fill_in
from pp_models.models import _spectral, pmf
from pp_models.models._scales import along


class Hyper(NamedTuple):
    """rank: d. kappa, nu, scale: of the normal-Wishart prior. a, b: shape and rate of the noise
    precision. center, offset: as in `pmf`."""

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


def _normal_wishart(kappa, nu, tril):
    """A normal-Wishart about zero. tril: the Cholesky factor of W^-1."""
    one, rank = jnp.ones(1), len(tril)
    return NormalWishart(jnp.zeros((1, rank)), kappa * one, nu * one, tril[None])


def _hyper_prior(hyper):
    root = jnp.sqrt(jnp.asarray(hyper.scale)) * jnp.eye(hyper.rank)
    return _normal_wishart(hyper.kappa, hyper.nu, root)


def generate(hyper, data):
    def locations(name):
        mean, precision = unpack(numpyro.sample(name, _hyper_prior(hyper).to_event(1))[0])
        return dist.MultivariateNormal(mean, precision_matrix=precision)

    users, items = locations("users"), locations("items")
    tau = numpyro.sample("tau", dist.Gamma(hyper.a, hyper.b).expand([1]).to_event(1))
    with numpyro.plate("objects", data.num_columns):
        v = numpyro.sample("v", items)
    with documents(data):
        u = numpyro.sample("u", users)
        pmf.observe(hyper.offset + u @ v.T, 1 / jnp.sqrt(tau[0]), data)


def _log_locations(x: Pair, prior: MeanPrecision):
    """E log N(x | mu, Lambda^-1) per row."""
    squares = jnp.einsum("nij,ij->n", x.second, prior.precision[0])
    constant = x.first.shape[1] * jnp.log(2 * jnp.pi)
    rest = prior.log_det[0] - prior.quadratic[0] - constant
    return x.first @ prior.weighted[0] - 0.5 * squares + 0.5 * rest


def log_global(hyper, t):
    prior = fam.normal_wishart.natural(_hyper_prior(hyper))
    users, items = (fam.log_prior(fam.normal_wishart, prior, t[s]) for s in ("users", "items"))
    noise = fam.log_prior(fam.gamma, Pair(hyper.a, -hyper.b), t["tau"])
    locations = _log_locations(t["v"], t["items"])
    return jnp.sum(users) + jnp.sum(items) + jnp.sum(noise) + jnp.sum(locations)


def log_local(hyper, t, batch, key=None):
    tau, size = t["tau"], jnp.sum(batch.entries.lengths)
    noise = size * (tau.first[0] - jnp.log(2 * jnp.pi))
    noise = noise - tau.second[0] * pmf.error(hyper, t, batch)
    return batch.sum(_log_locations(t["u"], t["users"])) + 0.5 * noise


def init(key, hyper, data):
    """Items: leading singular vectors with small variances. Precisions and noise: as known from ten
    observations."""
    noise_key, vector_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, (data.num_columns, hyper.rank))
    nu, shape = hyper.nu + 10.0, hyper.a + 10.0
    known = _normal_wishart(10.0, nu, jnp.sqrt(nu) * jnp.eye(hyper.rank))
    belief = fam.normal_wishart.natural(known)
    return {
        "u": pmf.at(jnp.zeros((data.num_rows, hyper.rank)), 1.0),
        "v": pmf.at(_spectral.locations(vector_key, hyper, data, noise), 100.0),
        "users": belief,
        "items": belief,
        "tau": Pair(jnp.full(1, shape), -jnp.full(1, hyper.b * shape)),
    }


def solve_local(hyper, t, batch, start, options, summary):
    return pmf.solve_users(log_local, hyper, t, batch, start)


def moves(hyper, key, values, batch):
    r"""Scale components of a random direction, as in `pmf`, together with their means and
    precisions: $\mu_U \to C \mu_U$, $\Lambda_U \to C^{-1} \Lambda_U C^{-1}$ with
    $C = Q \operatorname{diag}(c) Q^\top$, and the items by $C^{-1}$.

    The prior of the locations then changes as their volume does, and $\mu^\top \Lambda \mu$ not at
    all. What is left depends on the traces of both precisions alone:
    $$ \log p(c) = -\frac{\text{scale}}{2} \sum_k \bigl(c_k^2 (Q^\top \Lambda_V Q)_{kk}
    + c_k^{-2} (Q^\top \Lambda_U Q)_{kk}\bigr) + \text{constant}. $$
    Gibbs alone moves slowly: many locations hold their precision, and it holds them.
    """
    turn_key, line_key = jax.random.split(key)
    turn = pmf.random_turn(turn_key, hyper.rank)
    (user_mean, users), (item_mean, items) = (unpack(values[s][0]) for s in ("users", "items"))
    of_users, of_items = (jnp.diagonal(turn.T @ x @ turn) for x in (users, items))
    half = 0.5 * along(line_key, 0.0, hyper.scale * of_items, hyper.scale * of_users)
    up, down = ((turn * jnp.exp(x)) @ turn.T for x in (half, -half))
    return {
        **values,
        "u": values["u"] @ up,
        "v": values["v"] @ down,
        "users": pack(up @ user_mean, down @ users @ down)[None],
        "items": pack(down @ item_mean, up @ items @ up)[None],
    }


def example(key):
    hyper = Hyper(rank=2, kappa=3.0, nu=6.0, scale=4.0, a=5.0, b=2.0)
    return hyper, pmf.example(key)[1]


WISHARTS = {"users": fam.normal_wishart, "items": fam.normal_wishart}

MODEL = Model.of(
    globals(),
    families={"u": fam.normal, "v": fam.normal, **WISHARTS, "tau": fam.gamma},
    predict=pmf.predict,
    symmetry="rotation",
    rotation=Rotation(("v", "u", "users", "items")),
    ratings=Ratings(lambda hyper, values: 1 / values["tau"][0]),
    learning=Learning(("kappa", "scale", "a", "b"), pmf.fix_rows),
)
