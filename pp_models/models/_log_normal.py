r"""Rows with log-normal weights on factors: shared by `correlated_nmf` and `ctm`.

A row $d$ has a location $u_d \sim \operatorname{Normal}(0, P^{-1})$ and uses factor $k$ in
proportion to $b_k \exp(\ell_k^\top u_d)$. For $q(u_d)$ normal with mean $m$ and covariance $S$,

$$e_{dk} = E \exp(\ell_k^\top u_d) = \exp(\ell_k^\top m + \ell_k^\top S \ell_k / 2),$$

and a row's part of the bound, given its expected counts $c_{dk}$ of the factors, is

$$\sum_k c_{dk} \ell_k^\top m - \text{tokens}_d \log\Bigl(\text{rest} + \sum_k b_k e_{dk}\Bigr)
- \frac12 (m^\top P m + \operatorname{tr} P S) + \frac12 \log \det S.$$

It is concave in $m$. `solve` maximises it by Newton steps with the Hessian
$P + \sum_k w_k (\ell_k - \bar\ell)(\ell_k - \bar\ell)^\top$, where $w_k$ are the tokens shared out
in proportion to $b_k e_k$ and $\bar\ell$ is the mean with these weights, and by the fixed point
$S^{-1} = P + \sum_k w_k \ell_k \ell_k^\top$. Steps are at most 1 long, and a row goes only so far
along each that its part of the bound does not fall.
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
from pp_models.families.linalg import apply, outer
from pp_models.model import check_count


class Factors(NamedTuple):
    """What all rows have in common: the factors and the prior."""

    places: Any  # ell, (K, m); None for unit vectors, m = K: a location is then the log weights
    log_sizes: jax.Array  # log b, (K,)
    log_rest: Any  # log of the number added to the sum of weights, -inf for nothing
    precision: jax.Array  # P, (m, m)


class Rows(NamedTuple):
    """q(u) of every row."""

    location: jax.Array  # (rows, m)
    covariance: jax.Array  # (rows, m, m)
    precision: jax.Array  # (rows, m, m)
    half_log_det: jax.Array  # (rows,) of the covariance


def exponents(u: Pair, ell: Pair) -> jax.Array:
    r"""$\log e_{dk}$, (rows, K), from the statistics of u and of places that are points.

    With $S$ and $R$ as in `correlated_nmf`, $R = 0$ for points has a derivative only, half of
    $(m + S \ell)(m + S \ell)^\top + S$. It makes dF/d(second) of ell minus half the curvature: the
    target is then a Newton step.
    """
    spread, rest = (x.second - outer(x.first) for x in (u, ell))
    moved = u.first[:, None] + jnp.einsum("dij,kj->dki", spread, ell.first)
    curved = jnp.einsum("dki,kij,dkj->dk", moved, rest, moved)
    return u.first @ ell.first.T + 0.5 * (jnp.einsum("dij,kij->dk", spread, ell.second) + curved)


def check_rank(rank: int, num_topics: int, used: bool = True) -> int:
    """The dimension of locations; 0 stands for P's 50, or K if that is less. More than K dimensions
    are redundant, which a warning says (P 11.3.2)."""
    if rank == 0 and not isinstance(rank, bool):
        return min(50, num_topics)
    check_count("rank", rank)
    if used and rank > num_topics:
        warnings.warn(
            f"rank {rank} is above the number of topics, {num_topics}: "
            f"{rank - num_topics} dimensions are redundant.",
            stacklevel=3,
        )
    return rank


def isotropic(variance: Any, t: Pair) -> jax.Array:
    """log Normal(0, variance I) per row."""
    squares = jnp.trace(t.second, axis1=-2, axis2=-1) / variance
    return -0.5 * (squares + t.first.shape[-1] * jnp.log(2 * jnp.pi * variance))


def natural_at(location: jax.Array, precision: jax.Array) -> Pair:
    """The natural parameter of a normal or point with this mean and this precision or curvature."""
    return Pair(apply(precision, location), -0.5 * precision)


def at_zero(precision: jax.Array, rank: int) -> Pair:
    """Natural parameters of normal rows about zero, one precision for all coordinates of a row."""
    return Pair(jnp.zeros((len(precision), rank)), -0.5 * precision[:, None, None] * jnp.eye(rank))


def start_places(places: jax.Array, share: Any, variance: Any) -> Pair:
    """ell at the given places, with the curvature of an equal share of the tokens each."""
    number, rank = places.shape
    held = (1 / variance + share) * jnp.eye(rank)
    return natural_at(places, jnp.broadcast_to(held, (number, rank, rank)))


def logits(f: Factors, location: jax.Array) -> jax.Array:
    r"""$\ell_k^\top u_d$, (rows, K)."""
    return location if f.places is None else location @ f.places.T


def _diagonals(matrices):
    return jnp.diagonal(matrices, axis1=1, axis2=2)


def _squares(f):
    """(K, m * m) outer products of the places."""
    return outer(f.places).reshape(len(f.places), -1)


def _half_variances(f, covariance):
    r"""$\ell_k^\top S \ell_k / 2$, (rows, K)."""
    if f.places is None:
        return 0.5 * _diagonals(covariance)
    return 0.5 * covariance.reshape(len(covariance), -1) @ _squares(f).T


def log_rate(f: Factors, weights: jax.Array) -> jax.Array:
    """log(rest + sum_k b_k e_dk), (rows,), from the log weights."""
    return jnp.logaddexp(f.log_rest, jax.nn.logsumexp(weights, 1))


def _log_weights(f, q):
    """log b_k e_dk, (rows, K)."""
    return logits(f, q.location) + _half_variances(f, q.covariance) + f.log_sizes


def _shared_out(f, q, tokens):
    """w_dk: the tokens in proportion to the weights, (rows, K)."""
    weights = _log_weights(f, q)
    return tokens[:, None] * jnp.exp(weights - log_rate(f, weights)[:, None])


def _make(location, precision, is_point):
    """q(u) from its precision; a point has no covariance."""
    if is_point:
        nothing = jnp.zeros(len(location), location.dtype)
        return Rows(location, jnp.zeros_like(precision), precision, nothing)
    _, covariance, factor = fam.normal_moments(Pair(location, -0.5 * precision))
    return Rows(location, covariance, precision, -jnp.sum(jnp.log(_diagonals(factor)), 1))


def _curvature(f, weights, tokens=None):
    r"""$P + \sum_k w_k \ell_k \ell_k^\top$, (rows, m, m); given the tokens, with the places taken
    from their weighted mean."""
    if f.places is None:
        first, second = (
            weights,
            weights[:, :, None] * jnp.eye(weights.shape[1], dtype=weights.dtype),
        )
    else:
        size = f.places.shape[1]
        first, second = weights @ f.places, (weights @ _squares(f)).reshape(-1, size, size)
    if tokens is None:
        return f.precision + second
    size, limits = second.shape[-1], jnp.finfo(second.dtype)
    mean = outer(first) / jnp.maximum(tokens, limits.tiny)[:, None, None]
    # The difference of large counts must stay positive definite.
    rounding = 2 * size * limits.eps * jnp.max(_diagonals(second), 1)[:, None, None]
    return f.precision + (second - mean) + rounding * jnp.eye(size, dtype=second.dtype)


SHORTEST = 6  # halvings of a row's step before the row stays where it is
FRACTIONS = (1.0, 0.3)  # of the way to the new precision; if both lower the bound, the old is kept


def _total(*terms):
    """The terms of each row's part of the bound added up, and the rounding error of the sum."""
    value = sum(terms)
    return value, 4 * jnp.finfo(value.dtype).eps * sum(jnp.abs(term) for term in terms)


def _move(f, q, counts, tokens):
    """A Newton step of every row's location, halved until the row's part of the bound does not
    fall: the new locations, and how far they moved."""
    weights = _shared_out(f, q, tokens)
    residual = counts - weights
    gradient = (residual if f.places is None else residual @ f.places) - q.location @ f.precision
    step = fam.cut(fam.normal_mean(Pair(gradient, -0.5 * _curvature(f, weights, tokens))))
    step = jnp.where(jnp.all(jnp.isfinite(step), 1, keepdims=True), step, 0)
    fixed = _half_variances(f, q.covariance) + f.log_sizes

    def height(location):
        at_factors = logits(f, location)
        prior = -0.5 * jnp.sum(location * (location @ f.precision), 1)
        rate = -tokens * log_rate(f, at_factors + fixed)
        return _total(jnp.sum(counts * at_factors, 1), rate, prior)

    before, rounding = height(q.location)

    def rises(fraction):
        now, _ = height(q.location + fraction[:, None] * step)
        return (now >= before - rounding) | (fraction == 0)

    def halve(state):
        fraction, rising, halvings = state
        shorter = jnp.where(halvings == SHORTEST - 1, 0, 0.5 * fraction)
        fraction = jnp.where(rising, fraction, shorter)
        return fraction, rises(fraction), halvings + 1

    def falling(state):
        return (state[2] < SHORTEST) & ~jnp.all(state[1])

    whole = jnp.ones(len(before), before.dtype)
    fraction, _, _ = lax.while_loop(falling, halve, (whole, rises(whole), 0))
    return q.location + fraction[:, None] * step, jnp.max(jnp.abs(fraction[:, None] * step), 1)


def _spread(f, q, tokens):
    """Every row's covariance towards that of its weights, as far as its bound does not fall."""
    wanted, mean = _curvature(f, _shared_out(f, q, tokens)), logits(f, q.location) + f.log_sizes

    def height(rows):
        rate = -tokens * log_rate(f, mean + _half_variances(f, rows.covariance))
        trace = -0.5 * jnp.einsum("dij,ij->d", rows.covariance, f.precision)
        return _total(rate, trace, rows.half_log_det)

    before, rounding = height(q)

    def attempt(state):
        tried, best, done = state
        fraction = jnp.asarray(FRACTIONS, wanted.dtype)[tried]
        new = _make(q.location, q.precision + fraction * (wanted - q.precision), False)
        good = ~done & (height(new)[0] >= before - rounding)
        return tried + 1, _where(good, new, best), done | good

    def unfinished(state):
        return (state[0] < len(FRACTIONS)) & ~jnp.all(state[2])

    first = attempt((0, q, jnp.zeros(len(before), bool)))
    return lax.while_loop(unfinished, attempt, first)[1]


def _where(chosen, new, old):
    """Rows of `new` where chosen, of `old` elsewhere."""

    def pick(a, b):
        return jnp.where(jnp.reshape(chosen, (-1,) + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, new, old)


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
    """Each row's location to its optimum: expected counts by P(11.24) and a Newton step in turn.

    columns: (K, columns) logits of the factors. start: statistics of u. is_point: no covariance, as
    in P's estimate and `map`. A row stops when its location moves by less than the tolerance, and
    its precision by less than that share of itself.
    """

    def improve(state):
        iterations, q, change = state
        counted = jax.grad(lambda rows: allocate(rows, columns, batch.entries))
        location, moved = _move(f, q, counted(logits(f, q.location)), tokens)
        new = q._replace(location=location)
        if not is_point:
            new = _spread(f, new, tokens)
            now, before = _diagonals(new.precision), _diagonals(q.precision)
            moved = jnp.maximum(moved, jnp.max(jnp.abs(now - before) / before, 1))
        active = change > options.tolerance
        return iterations + active, _where(active, new, q), jnp.where(active, moved, change)

    def unfinished(state):
        return (jnp.max(state[0]) < options.num_local) & jnp.any(state[2] > options.tolerance)

    q, num_rows = _begin(f, start, tokens, is_point), batch.num_rows
    change = jnp.full(num_rows, jnp.inf, q.location.dtype)
    first = (jnp.zeros(num_rows, jnp.int32), q, change)
    iterations, q, change = lax.while_loop(unfinished, improve, first)
    precision = _curvature(f, _shared_out(f, q, tokens)) if is_point else q.precision
    rate, info = log_rate(f, _log_weights(f, q)), RowInfo(iterations, change)
    return Solution(natural_at(q.location, precision), rate, info)


def _begin(f, u, tokens, is_point):
    """q(u) from its statistics; the weights replace a covariance spoilt by rounding."""
    covariance = u.second - outer(u.first)
    given = Rows(u.first, jnp.zeros_like(covariance) if is_point else covariance, None, None)
    wanted = _curvature(f, _shared_out(f, given, tokens))
    if is_point:
        return _make(u.first, wanted, True)
    inverse = fam.normal_moments(Pair(u.first, -0.5 * covariance))[1]
    good = jnp.all(jnp.isfinite(inverse), (1, 2), keepdims=True)
    return _make(u.first, jnp.where(good, inverse, wanted), False)
