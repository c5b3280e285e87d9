r"""The Dirichlet family, $t(x) = \log x$, and the beta family, $t(x) = (\log x, \log(1 - x))$.

The natural parameters are the concentrations.
"""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import betaln, gammaln, polygamma

from pp_models.families import slopes
from pp_models.families._gamma import log_gamma_draw
from pp_models.families.base import Family, Pair, from_log, row_sum, tiny, unwrap
from pp_models.families.margins import Margin, beta_quantile, shares
from pp_models.families.special import digamma


def _total(c):
    return jnp.sum(c, -1, keepdims=True)


def _mode(natural):
    weights = jnp.maximum(natural, tiny(natural))
    return jnp.log(weights) - jnp.log(_total(weights))


def _sample(key, natural):
    log_gamma = log_gamma_draw(key, natural)
    return log_gamma - jax.nn.logsumexp(log_gamma, -1, keepdims=True)


def _regress(natural, weights):
    """Cov(log x) = diag(trigamma(c)) - trigamma(C) 11', inverted by Sherman and Morrison."""
    if natural.shape[-1] == 1:  # x is 1
        return jnp.zeros_like(natural)
    total = _total(natural)
    slope = (weights - _total(weights * natural) / total) / total
    own, common = polygamma(1, natural), polygamma(1, total)
    shift = common * _total(slope / own) / (1 - common * _total(1 / own))
    return (slope + shift) / own


def _spread(natural, weights):
    total = _total(natural)
    mean = natural / total
    return mean * (weights - _total(mean * weights)) / (total + 1)


dirichlet = Family(
    name="dirichlet",
    log_normalizer=lambda c: row_sum(_total(gammaln(c)) - gammaln(_total(c))),
    stats=jnp.log,
    value=from_log,
    mean=lambda c: digamma(c) - digamma(_total(c)),
    mode=_mode,
    sample=_sample,
    distribution=dist.Dirichlet,
    natural=lambda d: unwrap(d).concentration,
    base=-1.0,
    rows=jnp.atleast_2d,
    regress=_regress,
    spread=_spread,
    margin=Margin(beta_quantile, shares),
    slope=slopes.of_dirichlet,
    inside=slopes.half_at_least,
)


def _inside(x):
    """x kept away from 0 and 1, to which float32 rounds draws and whose logarithm is infinite."""
    return jnp.clip(x, jnp.finfo(x.dtype).tiny, 1 - jnp.finfo(x.dtype).epsneg)


def _beta_mean(n):
    total = digamma(n.first + n.second)
    return Pair(digamma(n.first) - total, digamma(n.second) - total)


def _beta_mode(n):
    a, b = jnp.maximum(n.first, tiny(n.first)), jnp.maximum(n.second, tiny(n.second))
    return Pair(jnp.log(a) - jnp.log(a + b), jnp.log(b) - jnp.log(a + b))


def _beta_sample(key, n):
    key_a, key_b = jax.random.split(key)
    log_a, log_b = log_gamma_draw(key_a, n.first), log_gamma_draw(key_b, n.second)
    total = jnp.logaddexp(log_a, log_b)
    return Pair(log_a - total, log_b - total)


def _beta_regress(n, weights):
    both = jnp.stack(jnp.broadcast_arrays(n.first, n.second), -1)
    found = _regress(both, jnp.stack([weights, jnp.zeros_like(weights)], -1))
    return Pair(found[..., 0], found[..., 1])


beta = Family(
    name="beta",
    log_normalizer=lambda n: row_sum(betaln(n.first, n.second)),
    stats=lambda x: Pair(jnp.log(_inside(x)), jnp.log1p(-_inside(x))),
    value=lambda t: _inside(jnp.exp(t.first)),
    mean=_beta_mean,
    mode=_beta_mode,
    sample=_beta_sample,
    distribution=lambda n: dist.Beta(n.first, n.second),
    natural=lambda d: Pair(unwrap(d).concentration1, unwrap(d).concentration0),
    base=Pair(-1.0, -1.0),
    regress=_beta_regress,
    spread=lambda n, weights: dist.Beta(n.first, n.second).variance * weights,
    margin=Margin(beta_quantile),
    slope=slopes.of_beta,
    inside=slopes.half_at_least,
)
