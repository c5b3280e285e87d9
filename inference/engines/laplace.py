r"""Laplace approximation of the rows, at the mode of the hyper-parameters' marginal posterior.

The marginal posterior of the hyper-parameters $\theta$ is approximated by

$$ \log \tilde p(\theta \mid D) = \log p(x, \theta, D) - \log p_G(x \mid \theta, D)
\quad \text{at } x = x^*(\theta) $$

This is equation (8) of Hu et al., with one factor of $p_G$ for each row of each site (9–11, which
are precisions). They take the mode of $p(x \mid \theta, D)$, which is right only for as many rows
as columns: a product of factors does not change if one is scaled up and the other down, and the
posterior mass lies elsewhere on that line than the mode, by the Jacobian of the scaling. (The mode
of $\log \alpha_1$ moves by $\log\{(n + p)^2 / 4np\}$.) So by default $x^*$ is the mode in log
space, with the factors scaled to where the mass is. Every positive coordinate is integrated over
the positive half line about it, with $g = \partial F / \partial x$ and
$h = -\partial^2 F / \partial x^2$,

$$ I = \log \int_0^\infty \exp\{g (y - x) - h (y - x)^2 / 2\} \, dy, $$

and a real row has its normal integral
$\frac{K}{2} \log 2\pi - \frac{1}{2} \log |P| + \frac{1}{2} g^\top P^{-1} g$.

| method | $x^*$ | factors |
|---|---|---|
| `log` | mode in log space, balanced | positive coordinates as above, real rows normal |
| `truncated` | mode | the same |
| `paper` | mode | normal rows, positive or not: (8) as printed |
| `full` | mode | one normal with the whole Hessian: small problems |

Use it for a quick look at a latent Gaussian model. The hyper-parameters are a point, so intervals
are too narrow: use `inla`. A warning asks for more `num_sweeps` if the rows did not converge.
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
    init, step = search(double, copies, options)

    def posterior(state):
        best = max(state.found, key=lambda one: one.value)
        warn_of(state, bool(state.queue), [best], options)
        natural = [as_asked(best.natural)]
        return Mixture(problem, names_of(problem), [best.theta], natural, np.ones(1))

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
