"""Nonnegative matrix factorisation.

X is approximated by theta beta with nonnegative theta (rows, K) and beta (K, columns), by one of two objectives (C18), without any prior:

    objective="divergence"      D(X || theta beta) = sum_dv [(theta beta)_dv - X_dv log (theta beta)_dv]        a Poisson likelihood
    objective="squared_error"   ||X - theta beta||^2 / 2                                                        a Gaussian one, unit variance

Both are minimised by Lee and Seung's multiplicative updates (2001), which the engine `map` performs on F, rows first:

    divergence       theta_dk <- theta_dk sum_v beta_kv X_dv / (theta beta)_dv / sum_v beta_kv             and the same for beta
    squared error    theta_dk <- theta_dk (X beta')_dk / (theta beta beta')_dk                             and the same for beta

Neither objective ever rises, and what is zero stays zero. There is no prior, hence no posterior: only points apply (`map`, `stochastic_map`).

Divergence. This is `bayesian_nmf` with a flat prior, and its likelihood and its solver are used. Without a prior the natural parameters need no base
measure: they are (tokens, -rate), whose mode tokens / rate can be exactly zero.

Squared error. Given shares p_dvk of each entry, with sum_k p_dvk = 1, Lee and Seung's auxiliary function is

    -1/2 sum_dvk p_dvk (X_dv - theta_dk beta_kv / p_dvk)^2,

a function of t(x) = (x, x^2). Its maximum over the shares, p_dvk proportional to theta_dk beta_kv, eliminates them in closed form:

    F = -1/2 sum_dv X_dv^2 + sum_dv X_dv sum_k t1(theta_dk) t1(beta_kv) - 1/2 sum_dv (sum_k sqrt(t2(theta_dk) t2(beta_kv)))^2

is the exact objective at a point, convex in the statistics of one block, and its gradient is the auxiliary function's: natural parameters
((X beta')_dk, -(theta beta beta')_dk / (2 theta_dk)), whose mode is the printed update. Nothing dense is formed for sparse X: the last term is
<S'S, B B'> with S = sqrt(t2(theta)) and B = sqrt(t2(beta)), the one before it a sum over the entries.

| here   | C18 (whose documents are columns) |
|--------|-----------------------------------|
| X      | X'                                |
| theta  | H'                                |
| beta   | W'                                |

Step 3 of C18, topics that sum to one, is `inference.topics`. X is counts, or nonnegative real rows (`data.dense`), such as images of faces.
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from pp_models.data import types as data_
from pp_models.elimination.inner import inner
from pp_models.elimination.row_solver import converge_rows
from pp_models.errors import InputError
from pp_models.families import Family, Pair
from pp_models.model import Count, Learning, Model, documents, otherwise
from pp_models.models import bayesian_nmf


class Hyper(NamedTuple):
    """num_topics: K. objective: "divergence" or "squared_error"."""

    num_topics: Count = 10
    objective: Literal["divergence", "squared_error"] = "divergence"


def check_rows(data):
    values = getattr(data, "values", None)  # a fit that was stored knows only the shape of its data
    if values is not None and np.any(values < 0):
        raise InputError(
            f"nmf explains nonnegative observations, but one is {values.min():g}: shift or clip them first."
        )


# Nonnegative points in two sets of statistics --------------------------------------------------------------------------------


def _ratio(numerator, denominator):
    """Where there is nothing to divide by, zero."""
    return jnp.where(denominator > 0, numerator / jnp.where(denominator > 0, denominator, 1), 0)


def _logarithmic(x):
    return Pair(jnp.log(x), x)


def _summed(t):
    return Pair(t.first, jnp.sum(t.second, -1, keepdims=True))


def _squared(x):
    return Pair(x, x * x)


def _point(name, stats, mode, value, natural) -> Family:
    """A family of which only the mode is ever used: a point, whatever is asked for."""
    return Family(
        name=name,
        log_normalizer=lambda n: jnp.zeros(n.first.shape[:1], n.first.dtype),
        stats=stats,
        value=value,
        mean=mode,
        mode=mode,
        sample=lambda key, n: mode(n),
        distribution=lambda n: dist.Delta(value(mode(n))),
        natural=lambda d: natural(d.v),
        base=Pair(0.0, 0.0),
    )


# t(x) = (log x, x), natural (tokens, -rate); of beta, whose rate is one per topic, (log x, sum_v x)
counted = _point(
    "counted",
    stats=_logarithmic,
    mode=lambda n: _logarithmic(_ratio(n.first, -n.second)),
    value=lambda t: t.second,
    natural=lambda x: Pair(x, -jnp.ones_like(x)),
)
counted_tied = _point(
    "counted_tied",
    stats=lambda x: _summed(_logarithmic(x)),
    mode=lambda n: _summed(_logarithmic(_ratio(n.first, -n.second))),
    value=lambda t: jnp.exp(t.first),
    natural=lambda x: Pair(x, -jnp.ones_like(x[..., :1])),
)
# t(x) = (x, x^2), natural (b, -h / 2)
nonnegative = _point(
    "nonnegative",
    stats=_squared,
    mode=lambda n: _squared(_ratio(n.first, -2 * n.second)),
    value=lambda t: t.first,
    natural=lambda x: Pair(x, jnp.full_like(x, -0.5)),
)

# The generative process and the start ---------------------------------------------------------------------------------------


def _factors(hyper, data, draw):
    """theta and beta, each from `draw(site, shape)`."""
    beta = numpyro.sample("beta", draw("beta", (hyper.num_topics, data.num_columns)))
    with documents(data):
        theta = numpyro.sample("theta", draw("theta", (hyper.num_topics,)))
    return theta @ beta


def generate(hyper, data):
    rates = _factors(
        hyper, data, lambda site, shape: dist.ImproperUniform(constraints.nonnegative, (), shape)
    )
    observed = data.entries.dense(data.num_columns) if data.dense is None else data.dense
    with documents(data):
        if hyper.objective == "squared_error":
            numpyro.sample("counts", dist.Normal(rates, 1.0).to_event(1), obs=observed)
        elif data.dense is None:
            numpyro.sample("counts", dist.Poisson(rates).to_event(1), obs=observed)
        else:  # the same for real numbers, of which it is no density
            numpyro.factor(
                "counts", jnp.sum(jnp.where(observed > 0, observed * jnp.log(rates), 0) - rates, 1)
            )


def _start(key, hyper, data):
    """Topics at random, their sums near one; rows with equal weights that add up to their totals."""
    beta = 2 * jax.random.uniform(key, (hyper.num_topics, data.num_columns)) / data.num_columns
    return jnp.tile(
        jnp.asarray(data.totals, float)[:, None] / hyper.num_topics, hyper.num_topics
    ), beta


def init(key, hyper, data):
    chosen = SQUARED.families if hyper.objective == "squared_error" else MODEL.families
    return {
        site: chosen[site].natural(dist.Delta(x))
        for site, x in zip(("theta", "beta"), _start(key, hyper, data), strict=True)
    }


def log_global(hyper, t):
    """No prior."""
    return jnp.zeros((), t["beta"].first.dtype)


def predict(hyper, values):
    """The approximation of X."""
    return values["theta"] @ values["beta"]


# Divergence -------------------------------------------------------------------------------------------------------------------


def _finite(t):
    """Logarithms of zeros made finite, and their gradient zero: what is zero gets no tokens, and stays zero."""
    low = math.log(jnp.finfo(t.first.dtype).tiny)
    return t._replace(first=jnp.where(t.first > low, t.first, low))


def log_divergence(hyper, t, batch, key=None):
    theta, beta = t["theta"], t["beta"]
    if batch.dense is None:
        return bayesian_nmf.log_likelihood(_finite(theta), _finite(beta), batch, key)
    rates = jnp.exp(theta.first) @ jnp.exp(beta.first)
    fits = batch.dense * jnp.log(jnp.where(batch.dense > 0, rates, 1))
    return batch.sum(jnp.sum(fits, 1) - (theta.second @ beta.second)[:, 0])


def solve_divergence(hyper, t, batch, start, options, summary):
    """The multiplicative update of theta, `num_local` times, in one pass over the rows. Shapes of one and the mode make the weights the tokens."""
    theta, beta = _finite(start["theta"]), _finite(t["beta"])
    rate = beta.second.T
    log_scale = -jnp.log(jnp.where(rate > 0, rate, 1))
    counts, info, entries = converge_rows(
        jnp.ones_like(rate), log_scale, beta.first, batch.entries, theta.first, options, "mode"
    )
    tokens = jnp.where(start["theta"].second > 0, counts, 0)
    return (
        {"theta": Pair(tokens, -jnp.broadcast_to(rate, counts.shape))},
        info,
        batch.replace(entries=entries),
    )


# Squared error ----------------------------------------------------------------------------------------------------------------


def _root(x):
    """sqrt, with a gradient of zero at zero: that component then has no curvature, and its mode is zero."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)


def log_squared_error(hyper, t, batch, key=None):
    theta, beta = t["theta"], t["beta"]
    if batch.dense is None:
        squares, product = (
            jnp.sum(batch.entries.values**2),
            inner(theta.first, beta.first, batch.entries),
        )
    else:
        squares, product = (
            jnp.sum(batch.dense**2),
            jnp.sum((batch.dense @ beta.first.T) * theta.first),
        )
    rows, columns = jnp.where(batch.mask[:, None] > 0, _root(theta.second), 0), _root(beta.second)
    constant = batch.sum(jnp.ones_like(batch.mask)) * batch.num_columns * math.log(2 * math.pi)
    return product - 0.5 * (squares + jnp.sum((rows.T @ rows) * (columns @ columns.T)) + constant)


def example(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    topics, weights = rng.dirichlet(np.full(8, 0.4), 3), rng.gamma(0.6, 12, (13, 3))
    return Hyper(num_topics=3), data_.counts(rng.poisson(weights @ topics))


def _dense(example):
    """The example as rows of real numbers."""

    def changed(key):
        hyper, data = example(key)
        return hyper, data_.dense(data.matrix.toarray())

    return changed


def variant(hyper, kind):
    """The statistics belong to the objective, and the fused solver to sparse rows."""
    squared = hyper.objective == "squared_error"
    if kind == "dense":
        return SQUARED_DENSE if squared else DENSE
    return SQUARED if squared else MODEL


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    families={"theta": counted, "beta": counted_tied},
    log_global=log_global,
    log_local=log_divergence,
    init=init,
    predict=predict,
    symmetry="scale",
    example=example,
    solve_local=solve_divergence,
    proper=lambda hyper: False,
    check_rows=check_rows,
    variant=variant,
    curved=frozenset({"theta", "beta"}),
    learning=Learning(lambda hyper: {}),
)
SQUARED = dataclasses.replace(
    MODEL,
    families={"theta": nonnegative, "beta": nonnegative},
    log_local=log_squared_error,
    solve_local=None,
    example=otherwise(example, objective="squared_error"),
)
DENSE = dataclasses.replace(MODEL, solve_local=None, example=_dense(MODEL.example))
SQUARED_DENSE = dataclasses.replace(SQUARED, example=_dense(SQUARED.example))
