"""Exponential families, the building blocks of every mean-field posterior.

A family is written as

    log q(x) = <natural, t(x)> + <base, t(x)> - A(natural),

so that a conjugate update is `natural = dF/dmu` with nothing to add or subtract. The base measure of the Dirichlet,
gamma and beta families is the product of dx/x, which makes their natural parameters the concentrations themselves: with the
Lebesgue measure they would be `concentration - 1`, and a concentration of 1e-6 would not survive float32.

All functions reduce every axis but the first, which counts rows (documents, topics, ...), so that padded rows can be masked. A single Dirichlet
vector or Wishart matrix, without an axis of rows, is one row.

| family         | t(x)                             | natural                                             | base    |
|----------------|----------------------------------|-----------------------------------------------------|---------|
| dirichlet      | log x                            | concentration                                       | -1      |
| gamma          | (log x, x)                       | (shape, -rate)                                      | (-1, 0) |
| gamma_tied     | (log x, sum_v x)                 | (shape, -rate)                                      | (-1, 0) |
| beta           | (log x, log(1 - x))              | (a, b)                                              | (-1,-1) |
| normal         | (x, x x')                        | (P m, -P/2)                                         | 0       |
| normal_tied    | (x, sum of x x' over rows)       | (P m, -P/2), one P for all rows                     | 0       |
| positive       | (x, x x')                        | (h, -P/2)                                           | 0       |
| positive_tied  | (x, sum of x x' over rows)       | (h, -P/2), one P for all rows                       | 0       |
| point          | (x, x x')                        | (P x, -P/2)                                         | 0       |
| wishart        | (log det L, L)                   | ((nu - D - 1)/2, -W^-1/2)                           | 0       |
| normal_wishart | (L mu, mu' L mu, L, log det L)   | (kappa m, -kappa/2, -(W^-1 + kappa m m')/2, (nu - D)/2) | 0   |

A point is what a normal becomes when it is certain of its location: A = max_x <natural, t(x)>, whose gradient is t at the maximum, so that the
entropy is 0 and the divergence the loss (x - y)' P (x - y) / 2. A target dF/dmu whose second part is minus half the curvature is a Newton step
(P 11.35), and blending natural parameters averages curvatures. It has no density.

Positive rows have density exp(h'x - x'P x/2) on the positive orthant, which has no closed form. q is the product of independent positive normals
nearest to it (`positive_normal.py`): A is the largest <natural, mu> + entropy over such products, its gradient the statistics of the best, so that
updates are those of coordinate ascent with one coordinate at a time, whatever the coupling P. The conditional itself is sampled by a Gibbs sweep
(`refresh`).

Of normal_wishart, mu is a mean and L (Lambda) a precision, packed into one value (see `normal_wishart.py`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import betaln, gammaln

from pp_models import positive_normal as pos
from pp_models.normal_wishart import NormalWishart, pack, unpack
from pp_models.positive_normal import PositiveNormal
from pp_models.special import digamma

Stats = Any  # a pytree of arrays: sufficient statistics, their means, or natural parameters


class Family(NamedTuple):
    """What mean-field inference needs to know of an exponential family."""

    name: str
    log_normalizer: Callable[[Stats], jax.Array]  # A(natural), one number per row
    stats: Callable[[jax.Array], Stats]  # t(x)
    value: Callable[[Stats], jax.Array]  # x from t(x)
    mean: Callable[[Stats], Stats]  # E[t(x)] = dA/dnatural
    mode: Callable[[Stats], Stats]  # t(argmax_x <natural, t(x)>)
    sample: Callable[[jax.Array, Stats], Stats]  # t of one draw; in logarithms, so that tiny draws survive
    distribution: Callable[[Stats], dist.Distribution]
    natural: Callable[[dist.Distribution], Stats]  # the inverse of `distribution`
    base: Stats  # coefficients of the log base measure, broadcast against t
    rows: Callable[[Stats], Stats] = lambda t: t  # t or natural with an axis of rows, where it may be left out
    has_density: bool = True  # False of a point
    uncoupled: Callable[[Stats], Stats] = lambda n: n  # natural of q itself, where coordinates are coupled in `natural` and independent in q
    refresh: Callable[[jax.Array, Stats, Stats], Stats] | None = None  # a transition that leaves exp<natural, t> as it is, where `sample` cannot
    log_mode: Callable[..., Stats] | None = None  # of the density of log x, where that of x has the Lebesgue base measure though x is positive
    settles: bool = False  # mean, mode and log_mode are found by iteration and take statistics to begin with
    separate: bool = False  # rows' statistics take long and do not depend on each other's: worth sharing out


class Pair(NamedTuple):
    """The two statistics (or natural parameters) of a gamma, beta or normal variable."""

    first: jax.Array
    second: jax.Array


def _row_sum(x: jax.Array) -> jax.Array:
    return jnp.sum(x, axis=tuple(range(1, x.ndim)))


def dot(natural: Stats, stats: Stats) -> jax.Array:
    """<natural, stats> per row; scalars and row-free shapes broadcast. What is tied over rows, and known for all together, is shared out evenly."""
    terms = jax.tree.leaves(jax.tree.map(lambda n, t: _row_sum(n * t), natural, stats))
    num_rows = max(len(term) for term in terms)
    return sum(term if len(term) == num_rows else term / num_rows for term in terms)


def log_base(family: Family, stats: Stats) -> jax.Array:
    """The log base measure per row: what turns F into a density with respect to the Lebesgue measure. A statistic it leaves out may be infinite."""
    terms = jax.tree.map(lambda b, t: _row_sum(b * t) if b else jnp.zeros(t.shape[:1], t.dtype), family.base, family.rows(stats))
    return sum(jax.tree.leaves(terms))


def log_prior(family: Family, natural: Stats, stats: Stats) -> jax.Array:
    """The family's log density per row relative to its base measure: the form in which priors enter F.

    `natural` has the rank of `stats`; axes of length one broadcast.
    """
    natural, stats = family.rows(natural), family.rows(stats)
    full = jax.tree.map(lambda n, t: jnp.broadcast_to(n, jnp.shape(n)[:1] + jnp.shape(t)[1:]), natural, stats)
    return dot(natural, stats) - family.log_normalizer(full)


def log_density(family: Family, natural: Stats, stats: Stats) -> jax.Array:
    """The log density per row with respect to the Lebesgue measure, as NumPyro reports it."""
    return log_prior(family, family.uncoupled(natural), stats) + log_base(family, stats)


def entropy(family: Family, natural: Stats) -> jax.Array:
    """-E[log q] per row, relative to the base measure like F: F(mu) + entropy is then the bound."""
    return -log_prior(family, natural, family.mean(natural))


def divergence(family: Family, natural: Stats, other: Stats) -> jax.Array:
    """The Kullback-Leibler divergence from q_natural to q_other per row (T 13)."""
    natural, other = family.rows(natural), family.rows(other)
    gap = jax.tree.map(lambda a, b: jnp.broadcast_to(a - b, jnp.shape(a)), natural, other)
    return dot(gap, family.mean(natural)) - family.log_normalizer(natural) + family.log_normalizer(other)


def summarise(family: Family, natural: Stats, summary: str = "mean", start: Stats | None = None, sweeps: Any = None) -> Stats:
    """The statistics that stand for q: its mean (variational inference) or those of a point.

    `mode` maximises the Lebesgue density, `log_mode` the density of log x of positive variables, which always has an interior maximum; it is the
    density relative to the base measure where that is dx/x. start: statistics near the result, for families that search for it. sweeps: over the
    coordinates, of a search for a point from there (None: SOME_SWEEPS).
    """
    begin: tuple[Any, ...] = () if start is None or not family.settles else (start,)
    if summary == "mean":
        return family.mean(natural, *begin)
    begin += (sweeps,) if begin and sweeps is not None else ()
    if summary == "mode":
        natural = jax.tree.map(lambda n, b: n + b, natural, family.base)
    return (family.mode if summary == "mode" or family.log_mode is None else family.log_mode)(natural, *begin)


def log_measure(family: Family, stats: Stats, summary: str) -> jax.Array:
    """Per row, what F lacks of the log density whose maximum the summary is: of x for "mode", of log x for "log_mode"."""
    if summary == "mode":
        return log_base(family, stats)
    value = family.value(stats)
    return jnp.zeros(value.shape[:1], value.dtype) if family.log_mode is None else _row_sum(jnp.log(value))


def _tiny(x: jax.Array) -> jax.Array:
    """A positive floor that stands for zero and whose logarithm is finite."""
    return jnp.asarray(jnp.finfo(x.dtype).tiny ** 0.75, x.dtype)


def _from_log(log_x: jax.Array) -> jax.Array:
    """exp, but never zero: a value whose density is evaluated later must have a finite logarithm."""
    return jnp.maximum(jnp.exp(log_x), jnp.finfo(log_x.dtype).tiny)


FEW_DRAWS = 1024  # gamma draws that are proposed anew all together until the last is accepted
MANY_DRAWS = 65536  # that are made at a time: what they take stays in cache, which is up to twice as fast
REJECTED = 16  # one in so many proposals, at most about, is rejected


def _propose_gamma(normal_key: jax.Array, uniform_key: jax.Array, d: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Marsaglia and Tsang's proposal for Gamma(d + 1/3): its logarithm, and whether to accept it."""
    c = 1 / jnp.sqrt(9 * d)
    x = jax.random.normal(normal_key, d.shape, d.dtype)
    log_u = -jax.random.exponential(uniform_key, d.shape, d.dtype)
    log_v = 3 * jnp.log1p(jnp.maximum(c * x, -1 + 1e-6))
    accept = (c * x > -1) & (log_u < 0.5 * x * x + d * (log_v - jnp.expm1(log_v)))
    return jnp.log(d) + log_v, accept


def _gamma_until_accepted(key: jax.Array, d: jax.Array) -> jax.Array:
    def again(carry):
        key, draw, accepted = carry
        key, normal_key, uniform_key = jax.random.split(key, 3)
        proposal, accept = _propose_gamma(normal_key, uniform_key, d)
        return key, jnp.where(accept & ~accepted, proposal, draw), accepted | accept

    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), again, (key, jnp.zeros_like(d), jnp.zeros(d.shape, bool)))[1]


def _many_gammas(key: jax.Array, d: jax.Array) -> jax.Array:
    """One proposal for all; those rejected, some one in twenty, are put together and proposed again among themselves: half the time of the above."""
    key, normal_key, uniform_key = jax.random.split(key, 3)

    def mend(carry):
        key, draw, accepted = carry
        key, draw_key = jax.random.split(key)
        some = jnp.nonzero(~accepted, size=d.size // REJECTED, fill_value=d.size)[0]
        found = _gamma_until_accepted(draw_key, jnp.take(d, some, mode="clip"))
        return key, draw.at[some].set(found, mode="drop"), accepted.at[some].set(True, mode="drop")

    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), mend, (key, *_propose_gamma(normal_key, uniform_key, d)))[1]


def _standard_gammas(key: jax.Array, d: jax.Array) -> jax.Array:
    """The logarithm of Gamma(d + 1/3) draws of any number."""
    if d.size <= FEW_DRAWS:
        return _gamma_until_accepted(key, d)
    if d.size <= MANY_DRAWS:
        return _many_gammas(key, d.ravel()).reshape(d.shape)
    blocks = jnp.pad(d.ravel(), (0, -d.size % MANY_DRAWS), constant_values=1).reshape(-1, MANY_DRAWS)
    draws = jax.lax.map(lambda one: _many_gammas(*one), (jax.random.split(key, len(blocks)), blocks))
    return draws.ravel()[: d.size].reshape(d.shape)


def log_gamma_draw(key: jax.Array, shape: jax.Array) -> jax.Array:
    """The logarithm of Gamma(shape, 1) draws, by Marsaglia and Tsang's method on the whole array at once.

    `jax.random.gamma` runs one rejection loop per element, about twenty times slower on a CPU. Shapes below one are
    boosted, log G(a) = log G(a + 1) + log(U) / a, which keeps draws whose value would underflow.
    """
    boost_key, draw_key = jax.random.split(key)
    d = jnp.where(shape < 1, shape + 1, shape) - 1 / 3
    draw = _standard_gammas(draw_key, d)
    boost = -jax.random.exponential(boost_key, shape.shape, shape.dtype) / shape
    return draw + jnp.where(shape < 1, boost, 0)


def unwrap(distribution: dist.Distribution) -> dist.Distribution:
    """The distribution without `.to_event`, `.expand` and `.mask` around it."""
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return distribution


# Dirichlet --------------------------------------------------------------------------------------------------------------------


def _dirichlet_mode(natural):
    weights = jnp.maximum(natural, _tiny(natural))
    return jnp.log(weights) - jnp.log(jnp.sum(weights, -1, keepdims=True))


def _dirichlet_sample(key, natural):
    log_gamma = log_gamma_draw(key, natural)
    return log_gamma - jax.nn.logsumexp(log_gamma, -1, keepdims=True)


dirichlet = Family(
    name="dirichlet",
    log_normalizer=lambda c: _row_sum(jnp.sum(gammaln(c), -1, keepdims=True) - gammaln(jnp.sum(c, -1, keepdims=True))),
    stats=jnp.log,
    value=_from_log,
    mean=lambda c: digamma(c) - digamma(jnp.sum(c, -1, keepdims=True)),
    mode=_dirichlet_mode,
    sample=_dirichlet_sample,
    distribution=dist.Dirichlet,
    natural=lambda d: unwrap(d).concentration,
    base=-1.0,
    rows=jnp.atleast_2d,
)

# Gamma ------------------------------------------------------------------------------------------------------------------------


def _rate_terms(natural):
    """log(rate) where the prior is proper. A rate of zero declares an improper prior, left unnormalised."""
    rate = -natural.second
    return jnp.where(rate > 0, jnp.log(jnp.where(rate > 0, rate, 1)), 0)


def _gamma_log_normalizer(natural):
    return _row_sum(gammaln(natural.first) - natural.first * _rate_terms(natural))


def _gamma_mode(natural):
    x = jnp.maximum(natural.first / -natural.second, _tiny(natural.first))
    return Pair(jnp.log(x), x)


def _gamma_sample(key, natural):
    log_x = log_gamma_draw(key, natural.first) - jnp.log(-natural.second)
    return Pair(log_x, jnp.exp(log_x))


def _gamma_natural(d):
    gamma_ = unwrap(d)
    return Pair(gamma_.concentration, -jnp.broadcast_to(gamma_.rate, jnp.shape(gamma_.concentration)))


gamma = Family(
    name="gamma",
    log_normalizer=_gamma_log_normalizer,
    stats=lambda x: Pair(jnp.log(x), x),
    value=lambda t: _from_log(t.first),
    mean=lambda n: Pair(digamma(n.first) - jnp.log(-n.second), n.first / -n.second),
    mode=_gamma_mode,
    sample=_gamma_sample,
    distribution=lambda n: dist.Gamma(n.first, -n.second),
    natural=_gamma_natural,
    base=Pair(-1.0, 0.0),
)


def _tie(t):
    return Pair(t.first, jnp.sum(t.second, -1, keepdims=True))


# One rate for a whole row, as P(11.26) gives it: K numbers instead of K x V.
gamma_tied = gamma._replace(
    name="gamma_tied",
    stats=lambda x: _tie(gamma.stats(x)),
    mean=lambda n: _tie(gamma.mean(n)),
    mode=lambda n: _tie(_gamma_mode(n)),
    sample=lambda key, n: _tie(_gamma_sample(key, n)),
    natural=lambda d: Pair(unwrap(d).concentration, -jnp.broadcast_to(unwrap(d).rate, jnp.shape(unwrap(d).concentration))[..., :1]),
)

# Beta -------------------------------------------------------------------------------------------------------------------------


def _inside(x):
    """Away from 0 and 1, where a logarithm would be infinite: single precision rounds draws onto both."""
    return jnp.clip(x, jnp.finfo(x.dtype).tiny, 1 - jnp.finfo(x.dtype).epsneg)


def _beta_mean(n):
    total = digamma(n.first + n.second)
    return Pair(digamma(n.first) - total, digamma(n.second) - total)


def _beta_mode(n):
    a, b = jnp.maximum(n.first, _tiny(n.first)), jnp.maximum(n.second, _tiny(n.second))
    return Pair(jnp.log(a) - jnp.log(a + b), jnp.log(b) - jnp.log(a + b))


def _beta_sample(key, n):
    key_a, key_b = jax.random.split(key)
    log_a, log_b = log_gamma_draw(key_a, n.first), log_gamma_draw(key_b, n.second)
    total = jnp.logaddexp(log_a, log_b)
    return Pair(log_a - total, log_b - total)


beta = Family(
    name="beta",
    log_normalizer=lambda n: _row_sum(betaln(n.first, n.second)),
    stats=lambda x: Pair(jnp.log(_inside(x)), jnp.log1p(-_inside(x))),
    value=lambda t: _inside(jnp.exp(t.first)),
    mean=_beta_mean,
    mode=_beta_mode,
    sample=_beta_sample,
    distribution=lambda n: dist.Beta(n.first, n.second),
    natural=lambda d: Pair(unwrap(d).concentration1, unwrap(d).concentration0),
    base=Pair(-1.0, -1.0),
)

# Matrices, one after the other ------------------------------------------------------------------------------------------------


def _outer(x):
    return x[..., :, None] * x[..., None, :]


def _log_det(factor):
    """Of the matrix with this Cholesky factor."""
    return 2 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), -1)


def _transpose(x):
    return jnp.swapaxes(x, -1, -2)


def _each(function, *arrays):
    """A function of matrices, one after the other.

    jaxlib's LAPACK calls share a batch among the threads of the pool that they wait in: two batches at once, of parallel chains, lock it up for good.
    Single matrices are done in place, and as fast.
    """
    flat = [x.reshape(-1, *x.shape[-2:]) for x in arrays]
    return jax.lax.map(lambda one: function(*one), flat).reshape(*arrays[0].shape[:-2], *arrays[-1].shape[-2:])


def _cholesky(x):
    return _each(jnp.linalg.cholesky, x)


def _solve(factor, x):
    """L^-1 x."""
    return _each(lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True), factor, x)


def _solve_transposed(factor, x):
    """L^-T x."""
    return _each(lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True, trans=1), factor, x)


def _inverse_factor(factor):
    """The inverse of a lower triangular matrix L; W = L^-T L^-1 is then symmetric, and never indefinite by rounding of a solve.

    By halves, [[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]: products of whole batches, ten times faster than a solve for each matrix.
    """
    size = factor.shape[-1]
    if size == 1:
        return 1 / factor
    half = size // 2
    first, last = _inverse_factor(factor[..., :half, :half]), _inverse_factor(factor[..., half:, half:])
    below = -last @ (factor[..., half:, :half] @ first)
    above = jnp.zeros((*factor.shape[:-2], half, size - half), factor.dtype)
    return jnp.concatenate([jnp.concatenate([first, above], -1), jnp.concatenate([below, last], -1)], -2)


def _apply(matrix, vector):
    return (matrix @ vector[..., None])[..., 0]


# Normal with a full covariance per row ----------------------------------------------------------------------------------------


def _raised(precision):
    """A precision, raised by its own rounding so that it has a Cholesky factor however badly conditioned it is."""
    largest = jnp.max(jnp.diagonal(precision, axis1=-2, axis2=-1), -1)
    rounding = precision.shape[-1] * jnp.finfo(precision.dtype).eps * largest
    return precision + rounding[..., None, None] * jnp.eye(precision.shape[-1], dtype=precision.dtype)


def _normal_factor(n):
    """The Cholesky factor of the precision."""
    return _cholesky(_raised(-2 * n.second))


CACHED = 2**17  # numbers of the matrices that are solved together
TOGETHER = 128  # rows, at most
SMALL = 6  # matrices up to this size LAPACK is slow for


def _substitute(factor, x, noise):
    """L^-T (L^-1 x + noise) of matrices L (K, K, rows) and vectors (K, rows): every step is one operation on all rows."""
    size = len(x)
    inverse = 1 / jnp.diagonal(factor).T
    place = jnp.arange(size)[:, None]

    def forwards(k, x):
        here = jax.lax.dynamic_index_in_dim(x, k) * jax.lax.dynamic_index_in_dim(inverse, k)
        below = x - jax.lax.dynamic_index_in_dim(factor, k, 1, keepdims=False) * here
        return jnp.where(place == k, here, jnp.where(place > k, below, x))

    def backwards(step, x):
        k = size - 1 - step
        here = jax.lax.dynamic_index_in_dim(x, k) * jax.lax.dynamic_index_in_dim(inverse, k)
        above = x - jax.lax.dynamic_index_in_dim(factor, k, 0, keepdims=False) * here
        return jnp.where(place == k, here, jnp.where(place < k, above, x))

    half = jax.lax.fori_loop(0, size, forwards, x)
    return jax.lax.fori_loop(0, size, backwards, half if noise is None else half + noise)


def _factor_together(matrices):
    """Cholesky factors of matrices (K, K, rows), column by column: every step is one operation on all rows."""
    place = jnp.arange(len(matrices))[:, None]

    def column(k, carry):
        left, factors = carry
        here = jax.lax.dynamic_index_in_dim(left, k, 1, keepdims=False)  # (K, rows)
        here = jnp.where(place >= k, here, 0) / jnp.sqrt(jax.lax.dynamic_index_in_dim(here, k))
        return left - here[:, None] * here[None], jax.lax.dynamic_update_index_in_dim(factors, here, k, 1)

    return jax.lax.fori_loop(0, len(matrices), column, (matrices, jnp.zeros_like(matrices)))[1]


def normal_mean(n, noise=None):
    """P^-1 (P m), and, given noise z of unit variance, L^-T z more: a draw.

    Some rows, as many as stay in cache, are solved together: calls of LAPACK for single vectors would cost more than the factors. Small matrices are
    factored together too, and large ones one at a time (`_each`).
    """
    size = n.first.shape[-1]
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[n.first.ndim - 1 :]), (n, noise))
    num_rows = len(flat[0].first)
    if num_rows == 0:
        return n.first
    block = max(1, min(TOGETHER, CACHED // size**2, num_rows))

    def factor(second):
        return jax.lax.linalg.cholesky(_raised(-2 * second), symmetrize_input=False)

    def some(i, out):
        first = jnp.minimum(i * block, num_rows - block)  # the last block may overlap: the same numbers again
        here, noise = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, block), flat)
        if size <= SMALL:
            factors = _factor_together(jnp.moveaxis(_raised(-2 * here.second), 0, 2))
        else:
            factors = jnp.moveaxis(jax.lax.map(factor, here.second), 0, 2)
        found = _substitute(factors, here.first.T, None if noise is None else noise.T)
        return jax.lax.dynamic_update_slice_in_dim(out, found.T, first, 0)

    return jax.lax.fori_loop(0, -(-num_rows // block), some, jnp.zeros_like(flat[0].first)).reshape(n.first.shape)


def normal_moments(n):
    """Mean, covariance and the Cholesky factor of the precision."""
    factor = _normal_factor(n)
    root = _inverse_factor(factor)
    return _apply(_transpose(root), _apply(root, n.first)), _transpose(root) @ root, factor


def _whitened(n):
    """L^-1 (P m), the mean in units of its standard deviation, and the Cholesky factor L of the precision."""
    factor = _normal_factor(n)
    return _solve(factor, n.first[..., None])[..., 0], factor


def _normal_log_normalizer(n):
    half, factor = _whitened(n)
    return 0.5 * (jnp.sum(half**2, -1) + half.shape[-1] * jnp.log(2 * jnp.pi) - _log_det(factor))


def _normal_mean(n):
    mean, covariance, _ = normal_moments(n)
    return Pair(mean, covariance + _outer(mean))


def _normal_mode(n):
    mean = normal_mean(n)
    return Pair(mean, _outer(mean))


def _normal_sample(key, n):
    x = normal_mean(n, jax.random.normal(key, n.first.shape, n.first.dtype))
    return Pair(x, _outer(x))


def _normal_natural(d):
    normal_ = unwrap(d)
    precision = normal_.precision_matrix
    return Pair(jnp.squeeze(precision @ normal_.loc[..., None], -1), -0.5 * precision)


normal = Family(
    name="normal",
    log_normalizer=_normal_log_normalizer,
    stats=lambda x: Pair(x, _outer(x)),
    value=lambda t: t.first,
    mean=_normal_mean,
    mode=_normal_mode,
    sample=_normal_sample,
    distribution=lambda n: dist.MultivariateNormal(normal_mean(n), precision_matrix=-2 * n.second),
    natural=_normal_natural,
    base=Pair(0.0, 0.0),
    separate=True,
)


def _gram(x):
    return Pair(x, (_transpose(x) @ x)[None])


def _tied_location(n, noise=None):
    """The mean of every row, or a draw, and the Cholesky factor of their precision."""
    factor = _normal_factor(n)[0]
    half = jax.scipy.linalg.solve_triangular(factor, n.first.T, lower=True)
    return jax.scipy.linalg.solve_triangular(factor, half if noise is None else half + noise.T, lower=True, trans=1).T, factor, half


def _tied_log_normalizer(n):
    _, factor, half = _tied_location(n)
    return 0.5 * (jnp.sum(half**2, 0) + n.first.shape[1] * jnp.log(2 * jnp.pi) - _log_det(factor))


def _tied_mean(n):
    mean, factor, _ = _tied_location(n)
    root = _inverse_factor(factor)
    return Pair(mean, (len(mean) * _transpose(root) @ root + _transpose(mean) @ mean)[None])


def _tied_distribution(n):
    mean, _, _ = _tied_location(n)
    return dist.MultivariateNormal(mean, precision_matrix=jnp.broadcast_to(-2 * n.second, (len(mean), *n.second.shape[1:])))


def _tied_natural(d):
    n = _normal_natural(d)
    return Pair(n.first, n.second[:1])


# One precision for all rows: K x K numbers instead of rows x K x K.
normal_tied = normal._replace(
    name="normal_tied",
    log_normalizer=_tied_log_normalizer,
    stats=_gram,
    mean=_tied_mean,
    mode=lambda n: _gram(_tied_location(n)[0]),
    sample=lambda key, n: _gram(_tied_location(n, jax.random.normal(key, n.first.shape, n.first.dtype))[0]),
    distribution=_tied_distribution,
    natural=_tied_natural,
    separate=False,
)

# Positive rows ----------------------------------------------------------------------------------------------------------------


def _coefficients(n, start=None):
    """(rows, K) b and p of the independent positive normals that are nearest to q."""
    precision = -2 * n.second
    begin = jnp.maximum(n.first, 0) / jnp.sum(jnp.abs(precision), -1) if start is None else start.first
    b = pos.independent(n.first, precision, jax.lax.stop_gradient(begin))
    return b, jnp.broadcast_to(jnp.diagonal(precision, axis1=1, axis2=2), b.shape)


def _positive_log_normalizer(n):
    """Per row. With m the means and R the coupling: sum log Z + m'R m / 2, for h - b = R m."""
    b, p = _coefficients(n)
    found = pos.moments(b, p)
    return jnp.sum(found.log_z + 0.5 * (n.first - b) * found.first, -1)


def _moments(n, start=None):
    return pos.moments(*_coefficients(n, start))


def _positive_mean(n, start=None):
    found = _moments(n, start)
    return Pair(found.first, _outer(found.first) + _diagonal(found.variance))


def _diagonal(x):
    return x[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)


def _positive_tied_mean(n, start=None):
    found = _moments(n, start)
    return Pair(found.first, (_transpose(found.first) @ found.first + _diagonal(jnp.sum(found.variance, 0)))[None])


SOME_SWEEPS = 2  # over the coordinates, from a point near by: every one of them rises, and the next update begins where this one ends


def _settled(stats, update):
    """Points. Rows that have one precision together have one second statistic together, their sum: a product of matrices."""

    def summary(n, start=None, most=SOME_SWEEPS):
        begin = () if start is None else (start.first, most)
        x = pos.settle(n.first, -2 * n.second, update, *begin)
        return _gram(x) if len(n.second) == 1 else stats(x)

    return summary


def _squared(x):
    return Pair(x, _outer(x))


def _positive_distribution(n):
    b, p = _coefficients(n)
    return PositiveNormal(b / p, 1 / jnp.sqrt(p)).to_event(1)


def _positive_natural(d):
    d = unwrap(d)
    p = 1 / d.scale**2
    return Pair(d.loc * p, -0.5 * _diagonal(p))


def _uncoupled(n):
    b, p = _coefficients(n)
    return Pair(b, -0.5 * _diagonal(p))


positive = Family(
    name="positive",
    log_normalizer=_positive_log_normalizer,
    stats=_squared,
    value=lambda t: t.first,
    mean=_positive_mean,
    mode=_settled(_squared, pos.mode),
    sample=lambda key, n: _squared(pos.draw(key, *_coefficients(n))),
    distribution=_positive_distribution,
    natural=_positive_natural,
    base=Pair(0.0, 0.0),
    uncoupled=_uncoupled,
    refresh=lambda key, n, t: _squared(pos.refresh(key, n.first, -2 * n.second, t.first)),
    log_mode=_settled(_squared, pos.log_mode),
    settles=True,
    separate=True,
)

positive_tied = positive._replace(
    name="positive_tied",
    stats=_gram,
    mean=_positive_tied_mean,
    mode=_settled(_gram, pos.mode),
    sample=lambda key, n: _gram(pos.draw(key, *_coefficients(n))),
    natural=lambda d: Pair(_positive_natural(d).first, _positive_natural(d).second[:1]),
    uncoupled=lambda n: Pair(_coefficients(n)[0], n.second * jnp.eye(n.second.shape[-1], dtype=n.second.dtype)),
    refresh=lambda key, n, t: _gram(pos.refresh(key, n.first, -2 * n.second, t.first)),
    log_mode=_settled(_gram, pos.log_mode),
)

# A point with a curvature -----------------------------------------------------------------------------------------------------


def _point_natural(d):
    """A distribution knows no curvature: one stands for it."""
    x = unwrap(d).v
    return Pair(x, jnp.broadcast_to(-0.5 * jnp.eye(x.shape[-1], dtype=x.dtype), (*x.shape, x.shape[-1])))


point = normal._replace(
    name="point",
    log_normalizer=lambda n: 0.5 * jnp.sum(_whitened(n)[0] ** 2, -1),
    mean=_normal_mode,
    sample=lambda key, n: _normal_mode(n),
    distribution=lambda n: dist.Delta(normal_mean(n), event_dim=1),
    natural=_point_natural,
    has_density=False,
)

LONGEST_STEP = 1.0  # of a location in one Newton step; where exponentials are far from quadratic, longer ones overshoot


def cut(step: jax.Array) -> jax.Array:
    """A step of a location, made no longer than LONGEST_STEP."""
    length = jnp.sqrt(jnp.sum(step**2, -1, keepdims=True))
    return step * (LONGEST_STEP / jnp.maximum(length, LONGEST_STEP))


def newton_step(stats: Pair, target: Pair, fraction: Any = 1.0) -> Pair:
    """A normal's or a point's target with the way to its location, from where `stats` has it, cut, and only a fraction of it gone.

    The curvature is the target's own.
    """
    location = stats.first + fraction * cut(normal_mean(target) - stats.first)
    return Pair(_apply(-2 * target.second, location), target.second)


# Precision of a Gaussian ------------------------------------------------------------------------------------------------------


def _halves(nu, dimension):
    """(nu - j) / 2 for j = 0..D-1, the arguments of the multivariate gamma function's factors."""
    return (nu[..., None] - jnp.arange(dimension, dtype=nu.dtype)) / 2


def _wishart_log_normalizer_of(nu, factor):
    """Of a Wishart distribution with nu degrees of freedom and W^-1 = L L'."""
    size = factor.shape[-1]
    log_gamma = jnp.sum(gammaln(_halves(nu, size)), -1) + size * (size - 1) / 4 * jnp.log(jnp.pi)
    return 0.5 * nu * (size * jnp.log(2.0) - _log_det(factor)) + log_gamma


def _mean_log_det(nu, factor):
    """E log det Lambda."""
    size = factor.shape[-1]
    return jnp.sum(digamma(_halves(nu, size)), -1) + size * jnp.log(2.0) - _log_det(factor)


def _inverse(factor):
    """W from the factor of W^-1."""
    root = _inverse_factor(factor)
    return _transpose(root) @ root


def _bartlett(key, nu, factor):
    """A lower triangular, A_jj^2 chi-square with nu - j degrees of freedom, the rest normal, and its log determinant, squared."""
    gamma_key, normal_key = jax.random.split(key)
    log_square = log_gamma_draw(gamma_key, _halves(nu, factor.shape[-1])) + jnp.log(2.0)
    below = jnp.tril(jax.random.normal(normal_key, factor.shape, factor.dtype), -1)
    return below + jnp.exp(0.5 * log_square)[..., None] * jnp.eye(factor.shape[-1], dtype=factor.dtype), jnp.sum(log_square, -1)


def _degrees(n):
    """nu and the Cholesky factor of W^-1."""
    return 2 * n.first + n.second.shape[-1] + 1, _cholesky(-2 * n.second)


def _wishart_mean(n):
    nu, factor = _degrees(n)
    return Pair(_mean_log_det(nu, factor), nu[..., None, None] * _inverse(factor))


def _wishart_mode(n):
    nu, factor = _degrees(n)
    size = factor.shape[-1]
    scale = jnp.maximum(nu - size - 1, _tiny(nu))
    return Pair(size * jnp.log(scale) - _log_det(factor), scale[..., None, None] * _inverse(factor))


def _wishart_sample(key, n):
    """Lambda = R A A' R' with R R' = W (Bartlett)."""
    nu, factor = _degrees(n)
    bartlett, log_det = _bartlett(key, nu, factor)
    root = _solve_transposed(factor, bartlett)
    return Pair(log_det - _log_det(factor), root @ _transpose(root))


def _wishart_natural(d):
    d = unwrap(d)
    inverse = _inverse_factor(d.scale_tril)
    return Pair(0.5 * (d.concentration - d.scale_tril.shape[-1] - 1), -0.5 * _transpose(inverse) @ inverse)


wishart = Family(
    name="wishart",
    log_normalizer=lambda n: _wishart_log_normalizer_of(*_degrees(n)),
    stats=lambda x: Pair(_log_det(_cholesky(x)), x),
    value=lambda t: t.second,
    mean=_wishart_mean,
    mode=_wishart_mode,
    sample=_wishart_sample,
    distribution=lambda n: dist.Wishart(_degrees(n)[0], rate_matrix=-2 * n.second),
    natural=_wishart_natural,
    base=Pair(0.0, 0.0),
    rows=lambda t: jax.tree.map(lambda x: x[None], t) if jnp.ndim(t.second) == 2 else t,
)

# Mean and precision of a Gaussian ----------------------------------------------------------------------------------------------


class MeanPrecision(NamedTuple):
    """The statistics (or natural parameters) of a mean mu and a precision Lambda."""

    weighted: jax.Array  # (..., D)     Lambda mu
    quadratic: jax.Array  # (...)       mu' Lambda mu
    precision: jax.Array  # (..., D, D) Lambda
    log_det: jax.Array  # (...)         log det Lambda


def _wishart_parameters(n):
    """m, kappa, nu and the Cholesky factor of W^-1."""
    kappa = -2 * n.quadratic
    mean = n.weighted / kappa[..., None]
    factor = _cholesky(-2 * n.precision - _outer(n.weighted) / kappa[..., None, None])
    return mean, kappa, 2 * n.log_det + mean.shape[-1], factor


def _normal_wishart_log_normalizer(n):
    mean, kappa, nu, factor = _wishart_parameters(n)
    return 0.5 * mean.shape[-1] * (jnp.log(2 * jnp.pi) - jnp.log(kappa)) + _wishart_log_normalizer_of(nu, factor)


def _at(mean, precision, log_det):
    """t of a point."""
    weighted = _apply(precision, mean)
    return MeanPrecision(weighted, jnp.sum(mean * weighted, -1), precision, log_det)


def _normal_wishart_mean(n):
    mean, kappa, nu, factor = _wishart_parameters(n)
    point = _at(mean, nu[..., None, None] * _inverse(factor), _mean_log_det(nu, factor))
    return point._replace(quadratic=point.quadratic + mean.shape[-1] / kappa)


def _normal_wishart_mode(n):
    """mu = m and Lambda = (nu - D) W: the mode of both together."""
    mean, _, nu, factor = _wishart_parameters(n)
    size = mean.shape[-1]
    return _at(mean, (nu - size)[..., None, None] * _inverse(factor), size * jnp.log(nu - size) - _log_det(factor))


def _normal_wishart_sample(key, n):
    """Lambda as of `wishart`. With W^-1 = L L' and R = L^-T the mean needs no inverse: mu = m + L A^-T z / sqrt(kappa)."""
    mean, kappa, nu, factor = _wishart_parameters(n)
    precision_key, mean_key = jax.random.split(key)
    bartlett, log_det = _bartlett(precision_key, nu, factor)
    noise = jax.random.normal(mean_key, (*mean.shape, 1), mean.dtype) / jnp.sqrt(kappa)[..., None, None]
    mu = mean + (factor @ _solve_transposed(bartlett, noise))[..., 0]
    root = _solve_transposed(factor, bartlett)
    return _at(mu, root @ _transpose(root), log_det - _log_det(factor))


def _normal_wishart_stats(x):
    mean, precision = unpack(x)
    return _at(mean, precision, _log_det(_cholesky(precision)))


def _normal_wishart_value(t):
    factor = _cholesky(t.precision)
    return pack(_solve_transposed(factor, _solve(factor, t.weighted[..., None]))[..., 0], t.precision)


def _normal_wishart_natural(d):
    d = unwrap(d)
    scatter = d.scatter_tril @ _transpose(d.scatter_tril) + d.strength[..., None, None] * _outer(d.loc)
    return MeanPrecision(d.strength[..., None] * d.loc, -0.5 * d.strength, -0.5 * scatter, 0.5 * (d.df - d.loc.shape[-1]))


normal_wishart = Family(
    name="normal_wishart",
    log_normalizer=_normal_wishart_log_normalizer,
    stats=_normal_wishart_stats,
    value=_normal_wishart_value,
    mean=_normal_wishart_mean,
    mode=_normal_wishart_mode,
    sample=_normal_wishart_sample,
    distribution=lambda n: NormalWishart(*_wishart_parameters(n)),
    natural=_normal_wishart_natural,
    base=MeanPrecision(0.0, 0.0, 0.0, 0.0),
)

_ALL = dirichlet, gamma, gamma_tied, beta, normal, normal_tied, positive, positive_tied, point, wishart, normal_wishart
FAMILIES = {family.name: family for family in _ALL}
