r"""Nonnegative matrix factorisation.

$X$ is approximated by $\theta \beta$ with nonnegative $\theta$ (rows, K) and $\beta$ (K, columns),
without any prior, by one of two objectives (Columbia lectures, C18):

$$\begin{align*}
\text{divergence} & \quad D(X \| \theta \beta) = \sum_{dv} \bigl((\theta \beta)_{dv}
- X_{dv} \log (\theta \beta)_{dv}\bigr) && \text{a Poisson likelihood} \\
\text{squared error} & \quad \frac12 \sum_{dv} (X_{dv} - (\theta \beta)_{dv})^2 &&
\text{a Gaussian likelihood, unit variance}
\end{align*}$$

Both are minimised by the multiplicative updates of Lee and Seung (2001), which the engine `map`
performs on F, rows first and then $\beta$ likewise:

$$\begin{align*}
\text{divergence} & \quad \theta_{dk} \leftarrow \theta_{dk}
\frac{\sum_v \beta_{kv} X_{dv} / (\theta \beta)_{dv}}{\sum_v \beta_{kv}} \\
\text{squared error} & \quad \theta_{dk} \leftarrow \theta_{dk}
\frac{(X \beta^\top)_{dk}}{(\theta \beta \beta^\top)_{dk}}
\end{align*}$$

Neither objective ever rises, and a zero stays zero. Without a prior there is no posterior: only the
engines of points apply (`map`, `stochastic_map`).

Divergence: F is the likelihood of `bayesian_nmf`. Without a prior the natural parameters need no
base measure: they are (tokens, -rate), whose mode tokens / rate can be exactly zero.

Squared error: given shares $p_{dvk}$ of each entry, $\sum_k p_{dvk} = 1$, Lee and Seung's auxiliary
function is $-\frac12 \sum_{dvk} p_{dvk} (X_{dv} - \theta_{dk} \beta_{kv} / p_{dvk})^2$, a function
of $t(x) = (x, x^2)$. Its maximum over the shares, at $p_{dvk} \propto \theta_{dk} \beta_{kv}$,
eliminates them in closed form:

$$F = -\frac12 \sum_{dv} X_{dv}^2 + \sum_{dv} X_{dv} \sum_k t_1(\theta_{dk}) t_1(\beta_{kv})
- \frac12 \sum_{dv} \Bigl(\sum_k \sqrt{t_2(\theta_{dk}) t_2(\beta_{kv})}\Bigr)^2$$

is the exact objective at a point and convex in the statistics of one block. Its gradient is that of
the auxiliary function, with natural parameters
$((X \beta^\top)_{dk}, -(\theta \beta \beta^\top)_{dk} / (2 \theta_{dk}))$, whose mode is the
printed update. Nothing dense is formed for sparse $X$: the last term is
$\langle S^\top S, B B^\top \rangle$ with $S = \sqrt{t_2(\theta)}$ and $B = \sqrt{t_2(\beta)}$, the
one before it a sum over the entries.

| here | C18 (whose documents are columns) |
|---|---|
| $X$ | $X'$ |
| `theta` | $H'$ |
| `beta` | $W'$ |

Step 3 of C18, topics that sum to one, is `inference.topics`. $X$ is counts, or nonnegative real
rows (`data.dense`) such as images of faces.
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.constraints import nonnegative as not_below_zero

from pp_models.data import types as data_
from pp_models.elimination.inner import inner
from pp_models.elimination.row_solver import converge_rows
from pp_models.errors import InputError
from pp_models.families import Family, Pair
from pp_models.model import Count, Model, documents, with_hyper
from pp_models.models import bayesian_nmf
from pp_models.models._examples import poisson_counts


class Hyper(NamedTuple):
    """num_topics: K. objective: "divergence" or "squared_error"."""

    num_topics: Count = 10
    objective: Literal["divergence", "squared_error"] = "divergence"


def check_rows(data):
    values = getattr(data, "values", None)  # a stored fit knows only the shape of its data
    if values is not None and np.any(values < 0):
        raise InputError(
            f"nmf explains nonnegative observations, but one is {values.min():g}: "
            "shift or clip them first."
        )


def proper(hyper):
    return False


# Nonnegative points in two sets of statistics -------------------------------------------------


def _point(name, stats, value, natural, factor=1) -> Family:
    """A family of which only the mode is used: first / (-factor second), or 0 if second is 0."""

    def mode(n):
        denominator = -factor * n.second
        ratio = n.first / jnp.where(denominator > 0, denominator, 1)
        return stats(jnp.where(denominator > 0, ratio, 0))

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


# t(x) = (log x, x), natural (tokens, -rate)
counted = _point(
    "counted",
    stats=lambda x: Pair(jnp.log(x), x),
    value=lambda t: t.second,
    natural=lambda x: Pair(x, -jnp.ones_like(x)),
)
# the same with one rate per topic: t(x) = (log x, sum x)
counted_tied = _point(
    "counted_tied",
    stats=lambda x: Pair(jnp.log(x), jnp.sum(x, -1, keepdims=True)),
    value=lambda t: jnp.exp(t.first),
    natural=lambda x: Pair(x, -jnp.ones_like(x[..., :1])),
)
# t(x) = (x, x^2), natural (b, -h / 2)
nonnegative = _point(
    "nonnegative",
    stats=lambda x: Pair(x, x * x),
    value=lambda t: t.first,
    natural=lambda x: Pair(x, jnp.full_like(x, -0.5)),
    factor=2,
)

# The generative process and the start ---------------------------------------------------------


def generate(hyper, data):
    def flat(*shape):
        return dist.ImproperUniform(not_below_zero, (), shape)

    beta = numpyro.sample("beta", flat(hyper.num_topics, data.num_columns))
    observed = data.entries.dense(data.num_columns) if data.dense is None else data.dense
    with documents(data):
        rates = numpyro.sample("theta", flat(hyper.num_topics)) @ beta
        if hyper.objective == "squared_error":
            numpyro.sample("counts", dist.Normal(rates, 1.0).to_event(1), obs=observed)
        elif data.dense is None:
            numpyro.sample("counts", dist.Poisson(rates).to_event(1), obs=observed)
        else:  # the same function of real numbers, for which it is no density
            fits = jnp.where(observed > 0, observed * jnp.log(rates), 0)
            numpyro.factor("counts", jnp.sum(fits - rates, 1))


def init(key, hyper, data):
    """Topics at random, their sums near one; rows with equal weights that add up to their
    totals."""
    chosen = SQUARED.families if hyper.objective == "squared_error" else MODEL.families
    size, num_topics = data.num_columns, hyper.num_topics
    beta = 2 * jax.random.uniform(key, (num_topics, size)) / size
    theta = jnp.tile(jnp.asarray(data.totals, float)[:, None] / num_topics, num_topics)
    start = {"theta": theta, "beta": beta}
    return {site: chosen[site].natural(dist.Delta(x)) for site, x in start.items()}


def log_global(hyper, t):
    """No prior."""
    return jnp.zeros((), t["beta"].first.dtype)


def predict(hyper, values):
    """The approximation of X."""
    return values["theta"] @ values["beta"]


def example(key):
    return Hyper(num_topics=3), poisson_counts(key)


# Divergence -----------------------------------------------------------------------------------


def _finite(t):
    """t with finite logarithms of zeros, whose gradient is zero: a zero gets no tokens and stays
    zero."""
    low = math.log(jnp.finfo(t.first.dtype).tiny)
    return t._replace(first=jnp.where(t.first > low, t.first, low))


def log_local(hyper, t, batch, key=None):
    theta, beta = t["theta"], t["beta"]
    if batch.dense is None:
        return bayesian_nmf.log_likelihood(_finite(theta), _finite(beta), batch, key)
    rates = jnp.exp(theta.first) @ jnp.exp(beta.first)
    fits = batch.dense * jnp.log(jnp.where(batch.dense > 0, rates, 1))
    return batch.sum(jnp.sum(fits, 1) - (theta.second @ beta.second)[:, 0])


def solve_local(hyper, t, batch, start, options, summary):
    """The multiplicative update of theta, `num_local` times, in one pass over the rows. Shapes of
    one and the mode make the tokens the weights."""
    theta, beta = _finite(start["theta"]), _finite(t["beta"])
    rate = beta.second.T
    log_scale = -jnp.log(jnp.where(rate > 0, rate, 1))
    given = (jnp.ones_like(rate), log_scale, beta.first, batch.entries, theta.first, options)
    counts, info, entries = converge_rows(*given, "mode")
    tokens = jnp.where(start["theta"].second > 0, counts, 0)
    found = Pair(tokens, -jnp.broadcast_to(rate, counts.shape))
    return {"theta": found}, info, batch.replace(entries=entries)


# Squared error --------------------------------------------------------------------------------


def _root(x):
    """sqrt with a gradient of zero at zero: that component has no curvature, and mode zero."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)


def log_squared_error(hyper, t, batch, key=None):
    theta, beta = t["theta"], t["beta"]
    if batch.dense is None:
        squares = jnp.sum(batch.entries.values**2)
        product = inner(theta.first, beta.first, batch.entries)
    else:
        squares = jnp.sum(batch.dense**2)
        product = jnp.sum((batch.dense @ beta.first.T) * theta.first)
    rows = jnp.where(batch.mask[:, None] > 0, _root(theta.second), 0)
    columns = _root(beta.second)
    constant = batch.sum(jnp.ones_like(batch.mask)) * batch.num_columns * math.log(2 * math.pi)
    return product - 0.5 * (squares + jnp.sum((rows.T @ rows) * (columns @ columns.T)) + constant)


def _dense(example):
    """The example as rows of real numbers."""

    def changed(key):
        hyper, data = example(key)
        return hyper, data_.dense(data.matrix.toarray())

    return changed


def variant(hyper, kind):
    """The objective decides on the statistics; the fused solver needs sparse rows."""
    squared = hyper.objective == "squared_error"
    if kind == "dense":
        return SQUARED_DENSE if squared else DENSE
    return SQUARED if squared else MODEL


MODEL = Model.of(
    globals(),
    families={"theta": counted, "beta": counted_tied},
    symmetry="scale",
    curved=frozenset({"theta", "beta"}),
)
SQUARED = dataclasses.replace(
    MODEL,
    families={"theta": nonnegative, "beta": nonnegative},
    log_local=log_squared_error,
    solve_local=None,
    example=with_hyper(example, objective="squared_error"),
)
DENSE = dataclasses.replace(MODEL, solve_local=None, example=_dense(MODEL.example))
SQUARED_DENSE = dataclasses.replace(SQUARED, example=_dense(SQUARED.example))
