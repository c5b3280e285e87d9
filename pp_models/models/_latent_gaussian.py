"""What the latent Gaussian models (Hu et al. 2014, H) share: priors with a precision of their own, and text as a Gaussian matrix.

H(6), its squared error halved as unit variance has it, in sufficient statistics of d1_i and s_j:

    sum_ij log N(C_ij | d1_i's_j, 1) = -1/2 (n p log 2 pi + sum C_ij^2) + sum_(C_ij > 0) C_ij d1_i's_j - 1/2 <sum_i d1_i d1_i', sum_j s_j s_j'>

so zeros of C cost nothing: they are in the two K x K matrices. A precision alpha is either a number, or has a gamma prior and is a site of its own.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from pp_models import families as fam
from pp_models.elimination.inner import inner
from pp_models.families import Pair
from pp_models.families.positive_normal import PositiveNormal
from pp_models.model import otherwise
from pp_models.models._scales import along

WEAK = 1e-6  # H 2.1: alpha ~ Ga(1e-6, 1e-6)
SMALLEST = 1e-3  # mean count of a row to begin with, for empty ones
PRECISIONS = ("alpha1", "alpha2")


def given(hyper):
    """The precisions that are numbers."""
    return {
        name: getattr(hyper, name) for name in PRECISIONS if getattr(hyper, name, None) is not None
    }


def with_given(model, **precisions):
    """The model with these precisions given and not sites; their values are those of its example."""
    families = {site: family for site, family in model.families.items() if site not in precisions}
    return dataclasses.replace(
        model, families=families, example=otherwise(model.example, **precisions)
    )


def latent(hyper):
    """The precisions that are sites."""
    return tuple(
        name for name in PRECISIONS if name in hyper._fields and getattr(hyper, name) is None
    )


# The generative process ----------------------------------------------------------------------------------------------------------


def sample_precision(hyper, name):
    """A precision: given, or drawn from its prior."""
    if getattr(hyper, name) is not None:
        return jnp.asarray(getattr(hyper, name))
    return numpyro.sample(name, dist.Gamma(hyper.a0, hyper.b0).expand([1]).to_event(1))[0]


def locations(precision, size, positive):
    """A row of `size` centred normals, or of their positive halves."""
    scale = 1 / jnp.sqrt(precision)
    return (
        (dist.HalfNormal(scale) if positive else dist.Normal(0, scale)).expand([size]).to_event(1)
    )


def sample_rows(name, distribution, size, num_topics):
    """A site with a row for each of `size` words or members; an empty one says nothing."""
    if size == 0:
        return numpyro.deterministic(name, jnp.zeros((0, num_topics)))
    with numpyro.plate(f"{name}_rows", size):
        return numpyro.sample(name, distribution)


def guide_precisions(hyper):
    for name in latent(hyper):
        shape = numpyro.param(f"{name}_shape", 5.0 * jnp.ones(1), constraint=constraints.positive)
        rate = numpyro.param(f"{name}_rate", 5.0 * jnp.ones(1), constraint=constraints.positive)
        numpyro.sample(name, dist.Gamma(shape, rate).to_event(1))


def guide_positive(name, size, num_topics):
    """Parameters of independent positive normals."""
    loc = numpyro.param(
        f"{name}_loc", lambda key: 0.5 + 0.5 * jax.random.uniform(key, (size, num_topics))
    )
    scale = numpyro.param(
        f"{name}_scale", 0.3 * jnp.ones((size, num_topics)), constraint=constraints.positive
    )
    return lambda rows=slice(None): PositiveNormal(loc[rows], scale[rows]).to_event(1)


# F -------------------------------------------------------------------------------------------------------------------------------


def precision(hyper, t, name) -> Pair:
    """E log alpha and E alpha."""
    if name in t:
        return Pair(t[name].first[0], t[name].second[0])
    value = jnp.asarray(getattr(hyper, name))
    return Pair(jnp.log(value), value)


def log_rows(x: Pair, alpha: Pair, positive: bool) -> jax.Array:
    """E log N(x_j | 0, I / alpha) of every row, or of the positive half, of statistics (x_j, x_j x_j')."""
    size = x.first.shape[1]
    traces = jnp.sum(
        x.second * jnp.eye(size, dtype=x.second.dtype), (1, 2)
    )  # of outer products a sum of squares to the compiler, as `trace` is not
    return 0.5 * size * _per_element(alpha, positive) - 0.5 * alpha.second * traces


def log_table(x: Pair, alpha: Pair, positive: bool) -> jax.Array:
    """The same of all rows together, the second statistic added up or not."""
    num_rows, size = x.first.shape
    return 0.5 * num_rows * size * _per_element(alpha, positive) - 0.5 * alpha.second * jnp.sum(
        jnp.trace(x.second, axis1=1, axis2=2)
    )


def log_batch(x: Pair, alpha: Pair, positive: bool, batch) -> jax.Array:
    """The same of the batch's rows, which may have their second statistic added up."""
    if len(x.second) == len(x.first):
        return batch.sum(log_rows(x, alpha, positive))
    size = x.first.shape[1]
    return 0.5 * jnp.sum(batch.mask) * size * _per_element(
        alpha, positive
    ) - 0.5 * alpha.second * jnp.trace(x.second[0])


def _per_element(alpha: Pair, positive: bool):
    return alpha.first - jnp.log(2 * jnp.pi) + (2 * jnp.log(2.0) if positive else 0.0)


def log_precisions(hyper, t) -> jax.Array:
    """The hyper-priors of the precisions that are sites."""
    prior = Pair(
        jnp.reshape(jnp.asarray(hyper.a0), (1,)), -jnp.reshape(jnp.asarray(hyper.b0), (1,))
    )
    return sum(
        (jnp.sum(fam.log_prior(fam.gamma, prior, t[name])) for name in latent(hyper)), jnp.zeros(())
    )


def products(rows: Pair, columns: Pair, batch) -> jax.Array:
    """sum_ij E (rows_j'columns_i)^2 over the batch's rows and all columns."""
    real = (
        jnp.where(batch.mask[:, None, None] > 0, rows.second, 0)
        if len(rows.second) == len(rows.first)
        else rows.second
    )
    return jnp.sum(jnp.sum(columns.second, 0) * jnp.sum(real, 0))


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


# Starting points -------------------------------------------------------------------------------------------------------------------


def start(key, hyper, data) -> dict[str, Any]:
    """d1 about its prior's size, at random; s so that the row's mean count comes out, whatever other rows there are; precisions one."""
    num_topics = hyper.num_topics
    mean = jnp.asarray(data.totals, float)[:, None] / max(data.num_columns, 1)
    size = 1 / jnp.sqrt(num_topics)
    words = size * (0.2 + jax.random.uniform(key, (data.num_columns, num_topics)))
    weight = jnp.maximum(mean, SMALLEST) / (num_topics * 0.7 * size)
    return {
        "d1": words,
        "s": weight * jnp.ones((data.num_rows, num_topics)),
        **{name: jnp.ones(1) for name in latent(hyper)},
    }


def around(value, spread, tied: bool) -> Pair:
    """Natural parameters of rows near `value`, with this sd in every coordinate."""
    num_rows, size = value.shape
    held = 1 / jnp.asarray(spread) ** 2  # a number, or one for each row: (rows, 1)
    return Pair(
        held * value,
        -0.5
        * held[..., None]
        * jnp.broadcast_to(jnp.eye(size), (1 if tied else num_rows, size, size)),
    )


# Moves along the scales' lines -------------------------------------------------------------------------------------------------------


def precisions_at(hyper, values):
    """Both precisions as numbers: given, or of the sites; None where the model has none."""
    return {
        name: values[name][0] if name in values else getattr(hyper, name, None)
        for name in PRECISIONS
    }


def rows_of_text(d1: Pair, alpha1, batch) -> Pair:
    """Natural parameters of the normals that the prior and the text make of s, before it is cut off at zero: one precision for all rows."""
    words, size = d1.first, d1.first.shape[1]
    first = jnp.zeros((batch.num_rows, size), words.dtype)
    if batch.num_columns:  # else votes alone
        first = jax.grad(lambda rows: inner(rows, words.T, batch.entries))(first)
    return Pair(
        first, -0.5 * (alpha1 * jnp.eye(size, dtype=words.dtype) + jnp.sum(d1.second, 0))[None]
    )


def scale_moves(hyper, key, values, batch):
    """A transition that leaves the posterior as it is and goes far where Gibbs blocks creep: every component's factors scaled against each other,
    then all of them together with alpha1. The data's likelihood does not change on the way.

    d_k -> c d_k, s_k -> s_k / c has density exp(-(A c^2 + B / c^2) / 2) c^lambda dc / c, lambda = p + m - n counting the Jacobian, A and B the
    priors' squares. s -> s / sqrt(v), d -> d sqrt(v), alpha1 -> v alpha1 leaves s's prior as it is: v is gamma distributed.
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
        v = jnp.exp(fam.log_gamma_draw(joint_key, jnp.asarray(shape, a.dtype))) / (
            0.5 * jnp.sum(squares()) + hyper.b0 * known["alpha1"]
        )
        values |= {site: values[site] * jnp.sqrt(v) for site in up}
        values |= {"s": values["s"] / jnp.sqrt(v), "alpha1": values["alpha1"] * v}
    return values
