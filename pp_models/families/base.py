"""The record that describes an exponential family, and the functions that need nothing else.

Every function reduces all axes but the first, which counts rows (documents, topics, ...), so that
padded rows can be masked. A single Dirichlet vector or Wishart matrix, without an axis of rows,
counts as one row.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

Stats = Any  # a pytree of arrays: sufficient statistics, their means, or natural parameters


class Family(NamedTuple):
    """An exponential family, as mean-field inference uses it.

    log_normalizer: A(natural), one number per row
    stats:          t(x)
    value:          x from t(x)
    mean:           E[t(x)] = dA/dnatural
    mode:           t(argmax_x <natural, t(x)>)
    sample:         (key, natural) -> t of one draw; in logarithms, so that tiny draws survive
    distribution:   the NumPyro distribution with this natural parameter
    natural:        the inverse of `distribution`
    base:           coefficients of the log base measure, broadcast against t
    rows:           t or natural with an axis of rows, for families where it may be left out
    has_density:    False for a point
    uncoupled:      natural parameter of q itself, for families whose `natural` describes coupled
                    coordinates but whose q has independent ones
    refresh:        (key, natural, t) -> t, a Gibbs transition that leaves exp<natural, t>
                    invariant, for families whose `sample` draws from an approximation of it
    log_mode:       t at the mode of the density of log x, for positive variables whose base measure
                    is Lebesgue. It, `mean` and `mode` are then found by iteration, and accept
                    statistics to start from
    separate:       statistics of a row are slow to compute and depend on no other row, so that rows
                    are worth spreading over devices
    """

    name: str
    log_normalizer: Callable[[Stats], jax.Array]
    stats: Callable[[jax.Array], Stats]
    value: Callable[[Stats], jax.Array]
    mean: Callable[..., Stats]
    mode: Callable[..., Stats]
    sample: Callable[[jax.Array, Stats], Stats]
    distribution: Callable[[Stats], dist.Distribution]
    natural: Callable[[dist.Distribution], Stats]
    base: Stats
    rows: Callable[[Stats], Stats] = lambda t: t
    has_density: bool = True
    uncoupled: Callable[[Stats], Stats] = lambda natural: natural
    refresh: Callable[[jax.Array, Stats, Stats], Stats] | None = None
    log_mode: Callable[..., Stats] | None = None
    separate: bool = False

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
    """<natural, stats> per row; scalars and row-free shapes broadcast.

    A statistic that is tied over rows is known only in total. Each row gets an equal share of it.
    """
    terms = jax.tree.leaves(jax.tree.map(lambda n, t: row_sum(n * t), natural, stats))
    num_rows = max(len(term) for term in terms)
    return sum(term if len(term) == num_rows else term / num_rows for term in terms)


def log_base(family: Family, stats: Stats) -> jax.Array:
    """The log base measure per row: added to F, it gives a density for the Lebesgue measure.

    Statistics with coefficient zero are skipped, because they may be infinite.
    """

    def term(b, t):
        return row_sum(b * t) if b else jnp.zeros(t.shape[:1], t.dtype)

    return sum(jax.tree.leaves(jax.tree.map(term, family.base, family.rows(stats))))


def log_prior(family: Family, natural: Stats, stats: Stats) -> jax.Array:
    """The log density per row relative to the base measure: the form in which priors enter F.

    `natural` has the rank of `stats`; numbers and axes of length one broadcast.
    """

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


def summarise(
    family: Family,
    natural: Stats,
    summary: str = "mean",
    start: Stats | None = None,
    sweeps: Any = None,
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
