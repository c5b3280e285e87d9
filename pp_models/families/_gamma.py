"""The gamma families, and fast gamma draws."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln, polygamma

from pp_models.families import slopes
from pp_models.families.base import Family, Pair, from_log, row_sum, tiny, until_accepted, unwrap
from pp_models.families.margins import Margin, gamma_quantile
from pp_models.families.special import digamma

FEW_DRAWS = 1024  # up to this number, all draws are proposed again until the last is accepted
MANY_DRAWS = 65536  # draws made at a time: they stay in cache, which is up to twice as fast
REJECTED = 16  # at most about one in this many proposals is rejected


def _propose(normal_key, uniform_key, d: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Marsaglia and Tsang's proposal for Gamma(d + 1/3): its logarithm, and whether to accept."""
    c = 1 / jnp.sqrt(9 * d)
    x = jax.random.normal(normal_key, d.shape, d.dtype)
    log_u = -jax.random.exponential(uniform_key, d.shape, d.dtype)
    log_v = 3 * jnp.log1p(jnp.maximum(c * x, -1 + 1e-6))
    accept = (c * x > -1) & (log_u < 0.5 * x * x + d * (log_v - jnp.expm1(log_v)))
    return jnp.log(d) + log_v, accept


def _few(key: jax.Array, d: jax.Array) -> jax.Array:
    """Propose for every element until all are accepted."""
    none = jnp.zeros(d.shape, bool)
    return until_accepted(key, 2, lambda a, b: _propose(a, b, d), jnp.zeros_like(d), none)


def _many(key: jax.Array, d: jax.Array) -> jax.Array:
    """One proposal for all, then new ones for the rejected alone: half the time of `_few`."""
    key, normal_key, uniform_key = jax.random.split(key, 3)

    def mend(carry):
        key, draw, accepted = carry
        key, draw_key = jax.random.split(key)
        some = jnp.nonzero(~accepted, size=d.size // REJECTED, fill_value=d.size)[0]
        found = _few(draw_key, jnp.take(d, some, mode="clip"))
        draw = draw.at[some].set(found, mode="drop")
        return key, draw, accepted.at[some].set(True, mode="drop")

    begin = (key, *_propose(normal_key, uniform_key, d))
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), mend, begin)[1]


def _standard_gammas(key: jax.Array, d: jax.Array) -> jax.Array:
    """Logarithms of any number of Gamma(d + 1/3) draws."""
    if d.size <= FEW_DRAWS:
        return _few(key, d)
    if d.size <= MANY_DRAWS:
        return _many(key, d.ravel()).reshape(d.shape)
    padded = jnp.pad(d.ravel(), (0, -d.size % MANY_DRAWS), constant_values=1)
    blocks = padded.reshape(-1, MANY_DRAWS)
    keys = jax.random.split(key, len(blocks))
    draws = jax.lax.map(lambda one: _many(*one), (keys, blocks))
    return draws.ravel()[: d.size].reshape(d.shape)


def log_gamma_draw(key: jax.Array, shape: jax.Array) -> jax.Array:
    """Logarithms of Gamma(shape, 1) draws, by Marsaglia and Tsang's method on the whole array.

    `jax.random.gamma` runs one rejection loop per element, about twenty times slower on a CPU.
    Shapes below one are boosted, log G(a) = log G(a + 1) + log(U) / a, which keeps draws whose
    value would underflow.
    """
    boost_key, draw_key = jax.random.split(key)
    d = jnp.where(shape < 1, shape + 1, shape) - 1 / 3
    draw = _standard_gammas(draw_key, d)
    boost = -jax.random.exponential(boost_key, shape.shape, shape.dtype) / shape
    return draw + jnp.where(shape < 1, boost, 0)


# The families ------------------------------------------------------------------------------------


def _log_rate(natural):
    """log(rate) of a proper prior. A rate of zero means an improper prior, left unnormalised."""
    rate = -natural.second
    return jnp.where(rate > 0, jnp.log(jnp.where(rate > 0, rate, 1)), 0)


def _log_normalizer(natural):
    return row_sum(gammaln(natural.first) - natural.first * _log_rate(natural))


def _mode(natural):
    x = jnp.maximum(natural.first / -natural.second, tiny(natural.first))
    return Pair(jnp.log(x), x)


def _sample(key, natural):
    log_x = log_gamma_draw(key, natural.first) - jnp.log(-natural.second)
    return Pair(log_x, jnp.exp(log_x))


def _natural(d):
    d = unwrap(d)
    return Pair(d.concentration, -jnp.broadcast_to(d.rate, jnp.shape(d.concentration)))


gamma = Family(
    name="gamma",
    log_normalizer=_log_normalizer,
    stats=lambda x: Pair(jnp.log(x), x),
    value=lambda t: from_log(t.first),
    mean=lambda n: Pair(digamma(n.first) - jnp.log(-n.second), n.first / -n.second),
    mode=_mode,
    sample=_sample,
    distribution=lambda n: dist.Gamma(n.first, -n.second),
    natural=_natural,
    base=Pair(-1.0, 0.0),
    regress=lambda n, weights: Pair(jnp.zeros_like(weights), weights),
    margin=Margin(gamma_quantile),
    slope=slopes.of_gamma,
    inside=slopes.half_at_least,
)


def _tie(t):
    return Pair(t.first, jnp.sum(t.second, -1, keepdims=True))


def _tied_regress(n, weights):
    """Of Cov(t) only the row and column of sum x are not diagonal: eliminate the logarithms."""
    rate, own = -n.second, polygamma(1, n.first)
    rest = jnp.sum(n.first - 1 / own, -1, keepdims=True)
    of_sum = jnp.sum(weights * (n.first - 1 / own), -1, keepdims=True) / rest
    return Pair((weights - of_sum) / (rate * own), of_sum)


# One rate for a whole row, as in P(11.26): K numbers instead of K x V.
gamma_tied = gamma._replace(
    name="gamma_tied",
    stats=lambda x: _tie(gamma.stats(x)),
    mean=lambda n: _tie(gamma.mean(n)),
    mode=lambda n: _tie(_mode(n)),
    sample=lambda key, n: _tie(_sample(key, n)),
    natural=lambda d: _natural(d)._replace(second=_natural(d).second[..., :1]),
    regress=_tied_regress,
    spread=lambda n, weights: n.first / n.second**2 * weights,
    slope=slopes.of_gamma_tied,
)
