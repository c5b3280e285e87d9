r"""Exponential families, the building blocks of every mean-field posterior.

A family is written as

$$\log q(x) = \langle \text{natural}, t(x) \rangle + \langle \text{base}, t(x) \rangle
- A(\text{natural}),$$

so that a conjugate update is `natural = dF/dmu`. The base measure of the Dirichlet, gamma and beta
families is the product of $dx / x$, and their natural parameters are the concentrations. With the
Lebesgue measure they would be concentration - 1, and float32 would round 1e-6 away.

| family | $t(x)$ | natural | base |
|---|---|---|---|
| `dirichlet` | $\log x$ | concentration | $-1$ |
| `gamma` | $(\log x, x)$ | (shape, -rate) | $(-1, 0)$ |
| `gamma_tied` | $(\log x, \sum_v x)$ | (shape, -rate) | $(-1, 0)$ |
| `beta` | $(\log x, \log(1 - x))$ | $(a, b)$ | $(-1, -1)$ |
| `normal` | $(x, x x^\top)$ | $(P m, -P / 2)$ | 0 |
| `normal_tied` | $(x, \sum x x^\top)$ | $(P m, -P / 2)$, one $P$ for all rows | 0 |
| `positive` | $(x, x x^\top)$ | $(h, -P / 2)$ | 0 |
| `positive_tied` | $(x, \sum x x^\top)$ | $(h, -P / 2)$, one $P$ for all rows | 0 |
| `point` | $(x, x x^\top)$ | $(P x, -P / 2)$ | 0 |
| `wishart` | $(\log \det L, L)$ | $((\nu - D - 1) / 2, -W^{-1} / 2)$ | 0 |
| `normal_wishart` | $(L \mu, \mu^\top L \mu, L, \log \det L)$ | see below | 0 |

$P$ and $L$ are precision matrices, $\mu$ is a mean. The natural parameter of `normal_wishart` is
$(\kappa m, -\kappa / 2, -(W^{-1} + \kappa m m^\top) / 2, (\nu - D) / 2)$. Each family is in a file
named with an underscore: `families.gamma` is the family, not a module.
"""

from pp_models.families._dirichlet import beta, dirichlet
from pp_models.families._gamma import gamma, gamma_tied, log_gamma_draw
from pp_models.families._mean_and_precision import NormalWishart, pack, unpack
from pp_models.families._normal import (
    LONGEST_STEP,
    cut,
    newton_step,
    normal,
    normal_mean,
    normal_moments,
    normal_tied,
    point,
)
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
    regression,
    summarise,
    unexplained,
    unwrap,
)
from pp_models.families.positive_normal import PositiveNormal
from pp_models.families.special import digamma

__all__ = [
    "FAMILIES", "LONGEST_STEP", "Family", "MeanPrecision", "NormalWishart", "Pair",
    "PositiveNormal", "Stats", "beta", "cut", "digamma", "dirichlet", "divergence", "dot",
    "entropy", "gamma", "gamma_tied", "log_base", "log_density", "log_gamma_draw", "log_measure",
    "log_prior", "newton_step", "normal", "normal_mean", "normal_moments", "normal_tied",
    "normal_wishart", "pack", "point", "positive", "positive_tied", "regression", "summarise",
    "unexplained", "unpack", "unwrap", "wishart",
]  # fmt: skip

_VECTORS = dirichlet, gamma, gamma_tied, beta, normal, normal_tied, positive, positive_tied, point
FAMILIES = {family.name: family for family in (*_VECTORS, wishart, normal_wishart)}
