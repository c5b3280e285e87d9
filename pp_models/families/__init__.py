"""Exponential families, the building blocks of every mean-field posterior.

A family is written as

    log q(x) = <natural, t(x)> + <base, t(x)> - A(natural),

so that a conjugate update is `natural = dF/dmu`, with nothing to add or subtract. The base measure
of the Dirichlet, gamma and beta families is the product of dx/x. Their natural parameters are then
the concentrations themselves. With the Lebesgue measure they would be `concentration - 1`, and a
concentration of 1e-6 would be lost to rounding in float32.

| family         | t(x)                           | natural                            | base    |
|----------------|--------------------------------|------------------------------------|---------|
| dirichlet      | log x                          | concentration                      | -1      |
| gamma          | (log x, x)                     | (shape, -rate)                     | (-1, 0) |
| gamma_tied     | (log x, sum_v x)               | (shape, -rate)                     | (-1, 0) |
| beta           | (log x, log(1 - x))            | (a, b)                             | (-1,-1) |
| normal         | (x, x x')                      | (P m, -P/2)                        | 0       |
| normal_tied    | (x, sum of x x' over rows)     | (P m, -P/2), one P for all rows    | 0       |
| positive       | (x, x x')                      | (h, -P/2)                          | 0       |
| positive_tied  | (x, sum of x x' over rows)     | (h, -P/2), one P for all rows      | 0       |
| point          | (x, x x')                      | (P x, -P/2)                        | 0       |
| wishart        | (log det L, L)                 | ((nu - D - 1)/2, -W^-1/2)          | 0       |
| normal_wishart | (L mu, mu' L mu, L, log det L) | (kappa m, -kappa/2, S, (nu - D)/2) | 0       |

P and L (Lambda) are precision matrices, mu is a mean, S = -(W^-1 + kappa m m')/2. Each family is in
a file named with an underscore, so that `families.gamma` is always the family, never a module.
"""

from pp_models.families._beta import beta
from pp_models.families._dirichlet import dirichlet
from pp_models.families._gamma import gamma, gamma_tied, log_gamma_draw
from pp_models.families._mean_and_precision import NormalWishart, pack, unpack
from pp_models.families._normal import normal, normal_mean, normal_moments, normal_tied
from pp_models.families._point import LONGEST_STEP, cut, newton_step, point
from pp_models.families._positive import positive, positive_tied
from pp_models.families._wishart import MeanPrecision, normal_wishart, wishart
from pp_models.families.base import (
    Family,
    Pair,
    Stats,
    divergence,
    dot,
    entropy,
    log_base,
    log_density,
    log_measure,
    log_prior,
    summarise,
    unwrap,
)
from pp_models.families.positive_normal import PositiveNormal
from pp_models.families.special import digamma

__all__ = [
    "FAMILIES",
    "LONGEST_STEP",
    "Family",
    "MeanPrecision",
    "NormalWishart",
    "Pair",
    "PositiveNormal",
    "Stats",
    "beta",
    "cut",
    "digamma",
    "dirichlet",
    "divergence",
    "dot",
    "entropy",
    "gamma",
    "gamma_tied",
    "log_base",
    "log_density",
    "log_gamma_draw",
    "log_measure",
    "log_prior",
    "newton_step",
    "normal",
    "normal_mean",
    "normal_moments",
    "normal_tied",
    "normal_wishart",
    "pack",
    "point",
    "positive",
    "positive_tied",
    "summarise",
    "unpack",
    "unwrap",
    "wishart",
]

_VECTORS = dirichlet, gamma, gamma_tied, beta, normal, normal_tied, positive, positive_tied, point
FAMILIES = {family.name: family for family in (*_VECTORS, wishart, normal_wishart)}
