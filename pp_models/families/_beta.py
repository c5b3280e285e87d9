"""The beta family: t(x) = (log x, log(1 - x)), natural parameter the two concentrations."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import betaln

from pp_models.families._gamma import log_gamma_draw
from pp_models.families.base import Family, Pair, row_sum, tiny, unwrap
from pp_models.families.special import digamma


def _inside(x):
    """x kept away from 0 and 1, to which float32 rounds draws and whose logarithm is infinite."""
    return jnp.clip(x, jnp.finfo(x.dtype).tiny, 1 - jnp.finfo(x.dtype).epsneg)


def _mean(n):
    total = digamma(n.first + n.second)
    return Pair(digamma(n.first) - total, digamma(n.second) - total)


def _mode(n):
    a, b = jnp.maximum(n.first, tiny(n.first)), jnp.maximum(n.second, tiny(n.second))
    return Pair(jnp.log(a) - jnp.log(a + b), jnp.log(b) - jnp.log(a + b))


def _sample(key, n):
    key_a, key_b = jax.random.split(key)
    log_a, log_b = log_gamma_draw(key_a, n.first), log_gamma_draw(key_b, n.second)
    total = jnp.logaddexp(log_a, log_b)
    return Pair(log_a - total, log_b - total)


beta = Family(
    name="beta",
    log_normalizer=lambda n: row_sum(betaln(n.first, n.second)),
    stats=lambda x: Pair(jnp.log(_inside(x)), jnp.log1p(-_inside(x))),
    value=lambda t: _inside(jnp.exp(t.first)),
    mean=_mean,
    mode=_mode,
    sample=_sample,
    distribution=lambda n: dist.Beta(n.first, n.second),
    natural=lambda d: Pair(unwrap(d).concentration1, unwrap(d).concentration0),
    base=Pair(-1.0, -1.0),
)
