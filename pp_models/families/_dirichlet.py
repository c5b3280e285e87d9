"""The Dirichlet family: t(x) = log x, natural parameter the concentrations."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from pp_models.families._gamma import log_gamma_draw
from pp_models.families.base import Family, from_log, row_sum, tiny, unwrap
from pp_models.families.special import digamma


def _total(c):
    return jnp.sum(c, -1, keepdims=True)


def _mode(natural):
    weights = jnp.maximum(natural, tiny(natural))
    return jnp.log(weights) - jnp.log(_total(weights))


def _sample(key, natural):
    log_gamma = log_gamma_draw(key, natural)
    return log_gamma - jax.nn.logsumexp(log_gamma, -1, keepdims=True)


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
)
