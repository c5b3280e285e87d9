r"""Shared by the latent Gaussian models (Hu et al. 2014, H): priors with an unknown precision, and
text as a Gaussian matrix.

H(6), with the factor 1/2 of the squared error that unit variance requires, in sufficient statistics
of $d_{1i}$ and $s_j$:

$$\sum_{ij} \log \operatorname{N}(C_{ij} \mid d_{1i}^\top s_j, 1)
= -\frac12 \Bigl(n p \log 2 \pi + \sum_{ij} C_{ij}^2\Bigr)
+ \sum_{C_{ij} > 0} C_{ij} \, d_{1i}^\top s_j
- \frac12 \langle \sum_i d_{1i} d_{1i}^\top, \sum_j s_j s_j^\top \rangle,$$

so that zeros of $C$ cost nothing: they are in the two $K \times K$ matrices. A precision alpha is
either a given number, or a site with a gamma prior.
"""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from pp_models import families as fam
from pp_models.elimination.inner import inner
from pp_models.families import Pair
from pp_models.models._scales import along

WEAK = 1e-6  # H 2.1: alpha ~ Ga(1e-6, 1e-6)
PRECISIONS = ("alpha1", "alpha2")


def latent(hyper):
    """The precisions that are sites."""
    known = hyper._asdict()
    return tuple(name for name in PRECISIONS if name in known and known[name] is None)


def held(hyper):
    """The precisions that points hold fixed: those with a weak prior. Their joint density with the
    locations has a spike at locations of zero. Of many rows the spike wins against stronger priors
    as well; the limit of 0.1 is a choice."""
    return latent(hyper) if hyper.b0 < 0.1 else ()


# The generative process -----------------------------------------------------------------------


def sample_precision(hyper, name):
    """A precision: given, or drawn from its prior."""
    if getattr(hyper, name) is not None:
        return jnp.asarray(getattr(hyper, name))
    return numpyro.sample(name, dist.Gamma(hyper.a0, hyper.b0).expand([1]).to_event(1))[0]


def locations(precision, size, positive):
    """A row of `size` centred normals, or of their positive halves."""
    scale = 1 / jnp.sqrt(precision)
    one = dist.HalfNormal(scale) if positive else dist.Normal(0, scale)
    return one.expand([size]).to_event(1)


def sample_rows(name, distribution, size):
    """A site with a row for each of `size` words or members; without any, it is not sampled."""
    if size == 0:
        return numpyro.deterministic(name, jnp.zeros((0, *distribution.event_shape)))
    with numpyro.plate(f"{name}_rows", size):
        return numpyro.sample(name, distribution)


def sample_words(hyper, data, positive):
    """d1, with precision K."""
    words = locations(hyper.num_topics, hyper.num_topics, positive)
    return sample_rows("d1", words, data.num_columns)


def sample_text(s, d1, data):
    words = dist.Normal(s @ d1.T, 1.0).to_event(1)
    numpyro.sample("counts", words, obs=data.entries.dense(data.num_columns))


# F --------------------------------------------------------------------------------------------


def precision(hyper, t, name) -> Pair:
    """E log alpha and E alpha."""
    if name in t:
        return Pair(t[name].first[0], t[name].second[0])
    value = jnp.asarray(getattr(hyper, name))
    return Pair(jnp.log(value), value)


def _per_element(alpha: Pair, positive: bool):
    return alpha.first - jnp.log(2 * jnp.pi) + (2 * jnp.log(2.0) if positive else 0.0)


def log_rows(x: Pair, alpha: Pair, positive: bool) -> jax.Array:
    """E log N(x_j | 0, I / alpha) of every row, or of the positive half."""
    size = x.first.shape[1]
    # The compiler turns this trace of outer products into a sum of squares, unlike `jnp.trace`.
    traces = jnp.sum(x.second * jnp.eye(size, dtype=x.second.dtype), (1, 2))
    return 0.5 * size * _per_element(alpha, positive) - 0.5 * alpha.second * traces


def log_table(x: Pair, alpha: Pair, positive: bool, num_rows=None) -> jax.Array:
    """The same of all rows together; the second statistic may be summed over them."""
    size = (len(x.first) if num_rows is None else num_rows) * x.first.shape[1]
    squares = jnp.sum(jnp.trace(x.second, axis1=1, axis2=2))
    return 0.5 * size * _per_element(alpha, positive) - 0.5 * alpha.second * squares


def log_batch(x: Pair, alpha: Pair, positive: bool, batch) -> jax.Array:
    """The same of the batch's rows; the second statistic may be summed over them."""
    if len(x.second) == len(x.first):
        return batch.sum(log_rows(x, alpha, positive))
    return log_table(x, alpha, positive, jnp.sum(batch.mask))


def log_words(hyper, d1: Pair, positive: bool) -> jax.Array:
    """The prior of d1, whose precision is K."""
    size = float(hyper.num_topics)
    return log_table(d1, Pair(jnp.log(size), size), positive)


def log_precisions(hyper, t) -> jax.Array:
    """The hyper-priors of the precisions that are sites."""
    prior = Pair(jnp.asarray(hyper.a0), -jnp.asarray(hyper.b0))
    found = (jnp.sum(fam.log_prior(fam.gamma, prior, t[name])) for name in latent(hyper))
    return sum(found, jnp.zeros(()))


def products(rows: Pair, columns: Pair, batch) -> jax.Array:
    r"""$\sum_{ij} E (\text{row}_j^\top \text{column}_i)^2$ over the batch's rows."""
    second = rows.second
    if len(second) == len(rows.first):  # not summed over the rows
        second = jnp.where(batch.mask[:, None, None] > 0, second, 0)
    return jnp.sum(jnp.sum(columns.second, 0) * jnp.sum(second, 0))


def log_text(rows: Pair, columns: Pair, batch) -> jax.Array:
    """E log N(C_ij | d1_i's_j, 1) over the batch's rows and all columns, zeros included."""
    if batch.num_columns == 0:
        return jnp.zeros((), rows.first.dtype)  # votes alone
    entries = batch.entries
    observed = jnp.arange(entries.values.shape[0]) < jnp.sum(entries.lengths)
    squares = jnp.sum(jnp.where(observed, entries.values, 0) ** 2)
    cells = jnp.sum(batch.mask) * batch.num_columns
    crossed = inner(rows.first, columns.first.T, entries)
    return crossed - 0.5 * (cells * jnp.log(2 * jnp.pi) + squares + products(rows, columns, batch))


# Starting points ------------------------------------------------------------------------------


def around(value, spread, tied: bool) -> Pair:
    """Natural parameters of rows near `value`, with this sd, a number or (rows, 1)."""
    num_rows, size = value.shape
    held = 1 / jnp.asarray(spread) ** 2
    eye = jnp.broadcast_to(jnp.eye(size), (1 if tied else num_rows, size, size))
    return Pair(held * value, -0.5 * held[..., None] * eye)


def start_precisions(hyper) -> dict[str, Pair]:
    """Precisions near one."""
    return {name: Pair(jnp.full(1, 10.0), jnp.full(1, -10.0)) for name in latent(hyper)}


# Moves along the lines of constant likelihood -------------------------------------------------


def precisions_at(hyper, values):
    """Both precisions as numbers: of the sites, or given; None if the model has none."""
    given = {name: getattr(hyper, name, None) for name in PRECISIONS}
    return given | {name: values[name][0] for name in PRECISIONS if name in values}


def rows_of_text(d1: Pair, alpha1, batch) -> Pair:
    """Natural parameters of s given text and prior, before truncation; rows share a precision."""
    words, size = d1.first, d1.first.shape[1]
    first = jnp.zeros((batch.num_rows, size), words.dtype)
    if batch.num_columns:  # else votes alone
        first = jax.grad(lambda rows: inner(rows, words.T, batch.entries))(first)
    held = alpha1 * jnp.eye(size, dtype=words.dtype) + jnp.sum(d1.second, 0)
    return Pair(first, -0.5 * held[None])


def scale_moves(hyper, key, values, batch):
    r"""Scale the factors of every component against each other, then all of them with alpha1. The
    likelihood does not change.

    $d_k \to c d_k$, $s_k \to s_k / c$ has density
    $\exp(-(A c^2 + B / c^2) / 2) \, c^\lambda \, dc / c$, where $\lambda = p + m - n$ is the
    Jacobian and $A$ and $B$ are the priors' squares. $s \to s / \sqrt{v}$, $d \to d \sqrt{v}$,
    $\alpha_1 \to v \alpha_1$ leaves the prior of $s$ as it is: $v$ is gamma distributed.
    """
    line_key, joint_key = jax.random.split(key)
    known = precisions_at(hyper, values)
    precisions = {"d1": float(hyper.num_topics), "d2": known["alpha2"]}
    up = [site for site in ("d1", "d2") if site in values]
    values = dict(values)

    def squares():
        return sum(precisions[site] * jnp.sum(values[site] ** 2, 0) for site in up)

    a, b = squares(), known["alpha1"] * jnp.sum(values["s"] ** 2, 0)
    size = sum(len(values[site]) for site in up)
    volume = size - len(values["s"])
    half = 0.5 * along(line_key, volume, a, b)
    values |= {site: values[site] * jnp.exp(half) for site in up}
    values["s"] = values["s"] * jnp.exp(-half)
    if "alpha1" in values:
        shape = 0.5 * size * hyper.num_topics + hyper.a0
        draw = jnp.exp(fam.log_gamma_draw(joint_key, jnp.asarray(shape, a.dtype)))
        v = draw / (0.5 * jnp.sum(squares()) + hyper.b0 * known["alpha1"])
        values |= {site: values[site] * jnp.sqrt(v) for site in up}
        values |= {"s": values["s"] / jnp.sqrt(v), "alpha1": values["alpha1"] * v}
    return values
