"""Rows whose weights on factors are log-normal: what correlated NMF and the correlated topic model share.

A row d has a location u_d ~ Normal(0, P^-1) and uses factor k in proportion to b_k exp(ell_k' u_d). With q(u_d) normal with mean m and covariance S,

    e_dk = E exp(ell_k' u_d) = exp(ell_k' m + ell_k' S ell_k / 2)

and what a row adds to the bound, its expected counts c_dk of the factors given, is

    sum_k c_dk ell_k' m - tokens_d log(rest + sum_k b_k e_dk) - (m' P m + tr P S) / 2 + log det S / 2.

It is concave in m; `solve` maximises it by Newton steps, with the Hessian P + sum_k w_k (ell_k - mean)(ell_k - mean)', where w_k are the tokens
shared out in proportion to b_k e_k and the mean is taken with those weights, and by the fixed point S^-1 = P + sum_k w_k ell_k ell_k'. Steps are
at most 1 long, and a row goes only as far along each as its share of the bound does not fall.
"""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pp_models import families as fam
from pp_models.data.batches import Batch
from pp_models.elimination.allocate import allocate
from pp_models.elimination.row_solver import RowInfo, RowOptions
from pp_models.families import Pair
from pp_models.model import check_count


class Factors(NamedTuple):
    """Everything but the row: what it sees of the factors and of its prior.

    places:    ell, (K, m); None for the unit vectors, m = K, where a location is the log weights themselves
    log_sizes: log b, (K,)
    log_rest:  logarithm of what is added to the sum of weights, -inf for nothing
    precision: P, (m, m)
    """

    places: Any
    log_sizes: jax.Array
    log_rest: Any
    precision: jax.Array


class Rows(NamedTuple):
    """q(u): location (rows, m), covariance and precision (rows, m, m), and half the log determinant of the covariance."""

    location: jax.Array
    covariance: jax.Array
    precision: jax.Array
    half_log_det: jax.Array


def exponents(u: Pair, ell: Pair) -> jax.Array:
    """log e_dk, (rows, K), from the statistics of u and of places that are points.

    With S = E[u u'] - m m' and R = E[ell ell'] - ell ell' it is ell' m + tr(S E[ell ell']) / 2 + (m + S ell)' R (m + S ell) / 2. Of points R is zero;
    it is there for its derivative, half of (m + S ell)(m + S ell)' + S, so that dF/d(second) of ell is minus half the curvature: a Newton step.
    """
    spread = u.second - u.first[:, :, None] * u.first[:, None, :]
    rest = ell.second - ell.first[:, :, None] * ell.first[:, None, :]
    moved = u.first[:, None] + jnp.einsum("dij,kj->dki", spread, ell.first)
    curved = jnp.einsum("dki,kij,dkj->dk", moved, rest, moved)
    return u.first @ ell.first.T + 0.5 * (jnp.einsum("dij,kij->dk", spread, ell.second) + curved)


def check_rank(rank: int, num_topics: int, used: bool = True) -> int:
    """The dimension of locations: as given, or for 0 P's 50, or K if that is less. More than K are redundant, which a warning says (P 11.3.2)."""
    if rank == 0 and not isinstance(rank, bool):
        return min(50, num_topics)
    check_count("rank", rank)
    if used and rank > num_topics:
        text = f"rank {rank} is above the number of topics, {num_topics}: {rank - num_topics} dimensions are redundant."
        warnings.warn(text, stacklevel=3)
    return rank


def isotropic(variance: Any, t: Pair) -> jax.Array:
    """log Normal(0, variance I) per row."""
    return -0.5 * (
        jnp.trace(t.second, axis1=-2, axis2=-1) / variance
        + t.first.shape[-1] * jnp.log(2 * jnp.pi * variance)
    )


def natural_at(location: jax.Array, precision: jax.Array) -> Pair:
    """The natural parameter of a normal (or a point) with this mean and precision (or curvature)."""
    return Pair((precision @ location[..., None])[..., 0], -0.5 * precision)


def logits(f: Factors, location: jax.Array) -> jax.Array:
    """ell_k' u_d, (rows, K)."""
    return location if f.places is None else location @ f.places.T


def _half_variances(f, covariance):
    """ell_k' S ell_k / 2, (rows, K)."""
    if f.places is None:
        return 0.5 * jnp.diagonal(covariance, axis1=1, axis2=2)
    size = f.places.shape[1] ** 2
    return (
        0.5
        * covariance.reshape(-1, size)
        @ (f.places[:, :, None] * f.places[:, None, :]).reshape(-1, size).T
    )


def log_weights(f: Factors, q: Rows) -> jax.Array:
    """log b_k e_dk, (rows, K)."""
    return logits(f, q.location) + _half_variances(f, q.covariance) + f.log_sizes


def log_rate(f: Factors, weights: jax.Array) -> jax.Array:
    """log(rest + sum_k b_k e_dk), (rows,), from `log_weights`."""
    return jnp.logaddexp(f.log_rest, jax.nn.logsumexp(weights, 1))


def _make(location, precision, is_point):
    """q(u) from a precision; a point has no covariance."""
    if is_point:
        return Rows(
            location, jnp.zeros_like(precision), precision, jnp.zeros(len(location), location.dtype)
        )
    _, covariance, factor = fam.normal_moments(Pair(location, -0.5 * precision))
    return Rows(
        location,
        covariance,
        precision,
        -jnp.sum(jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)), 1),
    )


def _shared_out(f, q, tokens):
    """w_dk: the tokens in proportion to the weights, (rows, K)."""
    weights = log_weights(f, q)
    return tokens[:, None] * jnp.exp(weights - log_rate(f, weights)[:, None])


def _curvature(f, weights, tokens=None):
    """P + sum_k w_dk ell_k ell_k', (rows, m, m); with the tokens given, the places taken from their weighted mean."""
    if f.places is None:
        second, first = (
            weights[:, :, None] * jnp.eye(weights.shape[1], dtype=weights.dtype),
            weights,
        )
    else:
        size = f.places.shape[1]
        outer = (f.places[:, :, None] * f.places[:, None, :]).reshape(len(f.places), -1)
        second, first = (weights @ outer).reshape(-1, size, size), weights @ f.places
    if tokens is None:
        return f.precision + second
    size, limits = second.shape[-1], jnp.finfo(second.dtype)
    rounding = (
        2 * size * limits.eps * jnp.max(jnp.diagonal(second, axis1=1, axis2=2), 1)
    )  # what is left of large counts must stay positive
    mean = first[:, :, None] * first[:, None, :] / jnp.maximum(tokens, limits.tiny)[:, None, None]
    return (
        f.precision + (second - mean) + rounding[:, None, None] * jnp.eye(size, dtype=second.dtype)
    )


SHORTEST = 6  # halvings of a row's step before it stands still
FRACTIONS = (
    1.0,
    0.3,
)  # of the way to the precision asked for; a row that neither raises keeps its own


def _total(terms):
    """Terms of each row's share of the bound added up, and what of the sum may be rounding."""
    value = sum(terms)
    return value, 4 * jnp.finfo(value.dtype).eps * sum(jnp.abs(term) for term in terms)


def _move(f, q, counts, tokens):
    """A Newton step of every row's location, halved until the row's share of the bound does not fall: the new locations, and how far they moved."""
    weights = _shared_out(f, q, tokens)
    residual = counts - weights
    gradient = (residual if f.places is None else residual @ f.places) - q.location @ f.precision
    step = fam.cut(fam.normal_mean(Pair(gradient, -0.5 * _curvature(f, weights, tokens))))
    step = jnp.where(jnp.all(jnp.isfinite(step), 1, keepdims=True), step, 0)
    fixed = _half_variances(f, q.covariance) + f.log_sizes

    def height(location):
        at_factors = logits(f, location)
        prior = -0.5 * jnp.sum(location * (location @ f.precision), 1)
        return _total(
            (jnp.sum(counts * at_factors, 1), -tokens * log_rate(f, at_factors + fixed), prior)
        )

    before, rounding = height(q.location)

    def rises(fraction):
        return (height(q.location + fraction[:, None] * step)[0] >= before - rounding) | (
            fraction == 0
        )

    def halve(state):
        fraction, rising, halvings = state
        fraction = jnp.where(
            rising, fraction, jnp.where(halvings == SHORTEST - 1, 0, 0.5 * fraction)
        )
        return fraction, rises(fraction), halvings + 1

    everyone = jnp.ones(len(before), before.dtype)
    fraction, _, _ = lax.while_loop(
        lambda state: (state[2] < SHORTEST) & ~jnp.all(state[1]),
        halve,
        (everyone, rises(everyone), 0),
    )
    return q.location + fraction[:, None] * step, jnp.max(jnp.abs(fraction[:, None] * step), 1)


def _spread(f, q, tokens):
    """Every row's covariance towards the one its weights ask for, as far as its share of the bound does not fall."""
    wanted, mean = _curvature(f, _shared_out(f, q, tokens)), logits(f, q.location) + f.log_sizes

    def height(rows):
        trace = -0.5 * jnp.einsum("dij,ij->d", rows.covariance, f.precision)
        return _total(
            (
                -tokens * log_rate(f, mean + _half_variances(f, rows.covariance)),
                trace,
                rows.half_log_det,
            )
        )

    before, rounding = height(q)

    def attempt(state):
        tried, best, settled = state
        fraction = jnp.asarray(FRACTIONS, wanted.dtype)[tried]
        new = _make(q.location, q.precision + fraction * (wanted - q.precision), False)
        good = ~settled & (height(new)[0] >= before - rounding)
        return tried + 1, _where(good, new, best), settled | good

    state = attempt((0, q, jnp.zeros(len(before), bool)))
    return lax.while_loop(
        lambda state: (state[0] < len(FRACTIONS)) & ~jnp.all(state[2]), attempt, state
    )[1]


def _where(chosen, new, old):
    """Rows of `new` where chosen, of `old` elsewhere."""
    return jax.tree.map(
        lambda a, b: jnp.where(jnp.reshape(chosen, (-1,) + (1,) * (a.ndim - 1)), a, b), new, old
    )


class Solution(NamedTuple):
    """natural: of q(u) at its optimum. log_rate: log(rest + sum of weights) there, (rows,)."""

    natural: Pair
    log_rate: jax.Array
    info: RowInfo


def solve(
    f: Factors,
    columns: jax.Array,
    batch: Batch,
    start: Pair,
    tokens: jax.Array,
    options: RowOptions,
    is_point: bool,
) -> Solution:
    """Each row's location to its optimum: in turn the expected counts of P(11.24), and a Newton step given them.

    columns: (K, columns) logits of the factors. start: statistics of u. is_point: no covariance, P's estimate and `map`. A row rests when its
    location moves by less than the tolerance, and its precision by less than that share of itself.
    """
    q = _begin(f, start, tokens, is_point)

    def improve(state):
        iterations, q, change = state
        counts = jax.grad(lambda rows: allocate(rows, columns, batch.entries))(
            logits(f, q.location)
        )
        location, moved = _move(f, q, counts, tokens)
        new = q._replace(location=location)
        if not is_point:
            new = _spread(f, new, tokens)
            now, before = (jnp.diagonal(rows.precision, axis1=1, axis2=2) for rows in (new, q))
            moved = jnp.maximum(moved, jnp.max(jnp.abs(now - before) / before, 1))
        active = change > options.tolerance
        return iterations + active, _where(active, new, q), jnp.where(active, moved, change)

    def unfinished(state):
        return (jnp.max(state[0]) < options.num_local) & jnp.any(state[2] > options.tolerance)

    begin = (
        jnp.zeros(batch.num_rows, jnp.int32),
        q,
        jnp.full(batch.num_rows, jnp.inf, q.location.dtype),
    )
    iterations, q, change = lax.while_loop(unfinished, improve, begin)
    precision = _curvature(f, _shared_out(f, q, tokens)) if is_point else q.precision
    return Solution(
        natural_at(q.location, precision),
        log_rate(f, log_weights(f, q)),
        RowInfo(iterations, change),
    )


def _begin(f, u, tokens, is_point):
    """q(u) from the statistics to start with. A covariance that rounding has spoilt is replaced by the one the weights ask for."""
    covariance = u.second - u.first[:, :, None] * u.first[:, None, :]
    given = Rows(u.first, jnp.zeros_like(covariance) if is_point else covariance, None, None)
    wanted = _curvature(f, _shared_out(f, given, tokens))
    if is_point:
        return _make(u.first, wanted, True)
    inverse = fam.normal_moments(Pair(u.first, -0.5 * covariance))[1]
    good = jnp.all(jnp.isfinite(inverse), (1, 2), keepdims=True)
    return _make(u.first, jnp.where(good, inverse, wanted), False)
