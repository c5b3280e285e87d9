"""Laplace approximation of the rows given the hyper-parameters, and the marginal posterior of those (H 3.1-3.2).

    log p~(theta | D) = log p(x, theta, D) - log p_G(x | theta, D)   at x = x*(theta)                                       H(8)

with one factor of p_G for each row of each site (H 9-11, which are precisions). H takes the mode of p(x | theta, D) and normals about it. That is
right for as many rows as columns only: a product of factors is as likely when one is scaled up and the other down, and the mode balances their
priors, where the posterior mass is elsewhere on that line by the Jacobian of the scaling (lessons from long Gibbs runs; the shift of log alpha1's
mode is log((n + p)^2 / 4 n p)). So by default (method="log") x* is the mode in log space, each factor scaled to where the mass is (`balance`), and
every positive coordinate is integrated over the positive half line about it,

    I = log int_0^inf exp(g (y - x) - h (y - x)^2 / 2) dy,    g = dF/dx, h = -d^2F/dx^2,

while real rows have their normal integral K/2 log 2 pi - log|P|/2 + g'P^-1 g/2.

| method      | x*                    | factors                                        |
|-------------|-----------------------|------------------------------------------------|
| "log"       | mode in log space, balanced | positive coordinates as above, real rows normal |
| "truncated" | mode                  | the same                                       |
| "paper"     | mode                  | normal rows, positive or not: H(8) as printed  |
| "full"      | mode                  | one normal with the whole Hessian: small problems |

The engine `laplace` takes theta at the mode of p~ (or as given) and stops there; `inla` puts a grid around it.
"""

from typing import Any

import numpy as np

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import MIXED, Algorithm, Engine, Look
from inference.core.posteriors import Mixture
from inference.engines._laplace import METHODS, names_of, suits
from inference.engines._mode_search import as_asked, in_double_precision, search, warn_of

Options = opt.compose(opt.marginal(METHODS))


def build(problem: obj.Problem, options: Any) -> Algorithm:
    double, copies = in_double_precision(problem)
    init, step = search(double, options, copies)

    def posterior(state):
        best = max(state.found, key=lambda one: one.value)
        warn_of(state, bool(state.queue), [best], options)
        return Mixture(
            problem, names_of(problem), [best.theta], [as_asked(best.natural)], np.ones(1)
        )

    return Algorithm(init, step, posterior)


ENGINE = Engine(
    "laplace",
    Options,
    build,
    kind="mixture",
    rows="none",
    suits=suits,
    compared=True,
    is_quick=True,
    quick={"num_sweeps": 500},
    tiny={"num_sweeps": 30},
    look=Look("indigo", MIXED, "hourglass"),
)
