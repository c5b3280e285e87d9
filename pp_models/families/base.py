"""The record of an exponential family, and functions of any family.

Every function reduces all axes but the first, which counts rows (documents, topics, ...), so that
padded rows can be masked. A single Dirichlet vector or Wishart matrix counts as one row.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from pp_models.families.margins import Margin

Stats = Any  # a pytree of arrays: sufficient statistics, their means, or natural parameters


class Family(NamedTuple):
    """An exponential family, as mean-field inference uses it."""

    name: str
    log_normalizer: Callable[[Stats], jax.Array]  # A(natural), one number per row
    stats: Callable[[jax.Array], Stats]  # t(x)
    value: Callable[[Stats], jax.Array]  # x from t(x)
    mean: Callable[..., Stats]  # E[t(x)] = dA/dnatural
    mode: Callable[..., Stats]  # t(argmax_x <natural, t(x)>)
    sample: Callable[[jax.Array, Stats], Stats]  # t of a draw, in logarithms: tiny draws survive
    distribution: Callable[[Stats], dist.Distribution]  # NumPyro's, with this natural parameter
    natural: Callable[[dist.Distribution], Stats]  # the inverse of `distribution`
    base: Stats  # coefficients of the log base measure, broadcast against t
    rows: Callable[[Stats], Stats] = lambda t: t  # adds an axis of rows if it was left out
    has_density: bool = True  # False for a point
    # The natural parameter of q itself, if `natural` describes coupled coordinates but those of q
    # are independent.
    uncoupled: Callable[[Stats], Stats] = lambda natural: natural
    # (key, natural, t) -> t: a Gibbs transition that leaves exp<natural, t> invariant, if `sample`
    # draws from an approximation of it.
    refresh: Callable[[jax.Array, Stats, Stats], Stats] | None = None
    # t at the mode of the density of log x, for positive variables with the Lebesgue measure. This,
    # `mean` and `mode` are then found by iteration and accept statistics to start from.
    log_mode: Callable[..., Stats] | None = None
    # Statistics of a row are slow to compute and depend on no other row: spread over devices.
    separate: bool = False
    # (natural, c) -> b: the linear regression of <c, x> on t(x) under q, Cov(t) b = Cov(t, <c, x>).
    # None if E[x] is `value(E[t])`.
    regress: Callable[[Stats, jax.Array], Stats] | None = None
    # (natural, c) -> Cov(x) c under q. None if x is linear in t, as every statistic is.
    spread: Callable[[Stats, jax.Array], jax.Array] | None = None
    # (key, natural, t, w) -> an estimate of the natural gradient of E f under q, from one draw t
    # and the gradient w of f there (`slopes`). None if there is no formula.
    slope: Callable[[jax.Array, Stats, Stats, Stats], Stats] | None = None
    # (old, new) -> new natural parameters after a noisy step, kept inside the family.
    inside: Callable[[Stats, Stats], Stats] = lambda old, new: new
    # How single numbers are drawn with another spread than q's. None: of the whole value only.
    margin: Margin | None = None
    # How many trailing axes of each statistic turn with the value, x -> x Q; None if none can.
    turning: Stats | None = None

    @property
    def settles(self) -> bool:
        """Whether mean, mode and log_mode are found by iteration from given statistics."""
        return self.log_mode is not None


class Pair(NamedTuple):
    """The two statistics (or natural parameters) of a gamma, beta or normal variable."""

    first: jax.Array
    second: jax.Array


def row_sum(x: jax.Array) -> jax.Array:
    """Sum over all axes but the first."""
    return jnp.sum(x, axis=tuple(range(1, x.ndim)))


def dot(natural: Stats, stats: Stats) -> jax.Array:
    """<natural, stats> per row; scalars and row-free shapes broadcast. A statistic that is tied
    over rows is known only in total. Each row gets an equal share of it."""
    terms = jax.tree.leaves(jax.tree.map(lambda n, t: row_sum(n * t), natural, stats))
    num_rows = max(len(term) for term in terms)
    return sum(term if len(term) == num_rows else term / num_rows for term in terms)


def log_base(family: Family, stats: Stats) -> jax.Array:
    """The log base measure per row: added to F, it gives a density for the Lebesgue measure.
    Statistics with coefficient zero are skipped, because they may be infinite."""

    def term(b, t):
        return row_sum(b * t) if b else jnp.zeros(t.shape[:1], t.dtype)

    return sum(jax.tree.leaves(jax.tree.map(term, family.base, family.rows(stats))))


def log_prior(family: Family, natural: Stats, stats: Stats) -> jax.Array:
    """The log density per row relative to the base measure: the form in which priors enter F.
    `natural` has the rank of `stats`; numbers and axes of length one broadcast."""

    def rank(n, t):
        return jnp.reshape(n, (1,) * jnp.ndim(t)) if jnp.ndim(n) == 0 else n

    def broadcast(n, t):
        return jnp.broadcast_to(n, jnp.shape(n)[:1] + jnp.shape(t)[1:])

    stats = family.rows(stats)
    natural = jax.tree.map(rank, family.rows(natural), stats)
    full = jax.tree.map(broadcast, natural, stats)
    return dot(natural, stats) - family.log_normalizer(full)


def log_density(family: Family, natural: Stats, stats: Stats) -> jax.Array:
    """The log density per row with respect to the Lebesgue measure, as NumPyro reports it."""
    return log_prior(family, family.uncoupled(natural), stats) + log_base(family, stats)


def entropy(family: Family, natural: Stats) -> jax.Array:
    """-E[log q] per row relative to the base measure, as F is: F(mu) + entropy is the ELBO."""
    return -log_prior(family, natural, family.mean(natural))


def divergence(family: Family, natural: Stats, other: Stats) -> jax.Array:
    """The Kullback-Leibler divergence from q_natural to q_other per row (T 13)."""
    natural, other = family.rows(natural), family.rows(other)
    gap = jax.tree.map(lambda a, b: jnp.broadcast_to(a - b, jnp.shape(a)), natural, other)
    inner = dot(gap, family.mean(natural))
    return inner - family.log_normalizer(natural) + family.log_normalizer(other)


def regression(family: Family, natural: Stats, weights: jax.Array) -> Stats:
    """b of the linear regression of <weights, x> on <b, t(x)> under q.

    The gradient of E<weights, x> with respect to E[t], as Cov(t) is that of E[t] with respect to
    the natural parameter.
    """
    if family.regress is not None:
        return family.regress(natural, weights)
    return jax.vjp(family.value, family.mean(natural))[1](weights)[0]


def unexplained(family: Family, natural: Stats, weights: jax.Array) -> jax.Array:
    """The variance of <weights, x> under q that its regression on the statistics leaves."""
    if family.spread is None:
        return jnp.zeros(())
    b = regression(family, natural, weights)
    _, moved = jax.jvp(family.mean, (natural,), (b,))
    explained = sum(jnp.vdot(x, y) for x, y in zip(*map(jax.tree.leaves, (b, moved)), strict=True))
    return jnp.maximum(jnp.vdot(weights, family.spread(natural, weights)) - explained, 0)


def summarise(
    family: Family, natural: Stats, summary: str = "mean", start: Any = None, sweeps: Any = None
) -> Stats:
    """The statistics that represent q: its mean (variational inference) or those of a point.

    `mode` maximises the Lebesgue density. `log_mode` maximises the density of log x of positive
    variables, which always has an interior maximum; where the base measure is dx/x, that is the
    density relative to it.

    start: statistics near the result, for families that search for it. sweeps: over the
    coordinates, in a search for a point from there (None: `_positive.SOME_SWEEPS`).
    """
    begin: tuple[Any, ...] = () if start is None or not family.settles else (start,)
    if summary == "mean":
        return family.mean(natural, *begin)
    begin += (sweeps,) if begin and sweeps is not None else ()
    if summary == "mode":
        natural = jax.tree.map(lambda n, b: n + b, natural, family.base)
    elif family.log_mode is not None:
        return family.log_mode(natural, *begin)
    return family.mode(natural, *begin)


def log_measure(family: Family, stats: Stats, summary: str) -> jax.Array:
    """Per row, log density minus F: the density of x for "mode", of log x for "log_mode"."""
    if summary == "mode":
        return log_base(family, stats)
    value = family.value(stats)
    if family.log_mode is None:
        return jnp.zeros(value.shape[:1], value.dtype)
    return row_sum(jnp.log(value))


def until_accepted(
    key: jax.Array, num_keys: int, propose: Callable[..., Any], value: jax.Array, done: jax.Array
) -> jax.Array:
    """Rejection sampling: propose(*keys) -> (proposal, accept) until every element is done."""

    def again(carry):
        key, value, done = carry
        key, *keys = jax.random.split(key, 1 + num_keys)
        proposal, accept = propose(*keys)
        return key, jnp.where(accept & ~done, proposal, value), done | accept

    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), again, (key, value, done))[1]


def tiny(x: jax.Array) -> jax.Array:
    """A positive floor that represents zero and has a finite logarithm."""
    return jnp.asarray(jnp.finfo(x.dtype).tiny ** 0.75, x.dtype)


def from_log(log_x: jax.Array) -> jax.Array:
    """exp, but never zero: its density may be evaluated later and needs a finite logarithm."""
    return jnp.maximum(jnp.exp(log_x), jnp.finfo(log_x.dtype).tiny)


def unwrap(distribution: dist.Distribution) -> dist.Distribution:
    """The distribution without `.to_event`, `.expand` and `.mask` around it."""
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return distribution
