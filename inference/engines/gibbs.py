r"""Gibbs sampling. It draws each block from its complete conditional, which is the gradient of $F$
with the auxiliaries sampled.

$$ z \sim p(z \mid x, D), \qquad
\eta_s = \frac{\partial F}{\partial t_s}\Big|_{z}, \qquad
x_s \sim \exp\{\langle \eta_s, t(x_s) \rangle\} $$

This is the LG-MCMC of Hu et al., and Fox's slide 12 with draws in place of means.
Every block has auxiliaries of its own, so each is a valid Gibbs step. A conditional that cannot be
drawn from is replaced by a transition that leaves it invariant. A model may add moves
(`Model.moves`) that mix faster.

Use it as the reference for other engines, and for ratings with hyper-priors. It is slow on large
corpora, and needs complete conditionals: use `nuts` for `ctm` and `correlated_nmf`, and
`collapsed_gibbs` for short documents. Look at R-hat.

Chains run side by side on the devices. The draws of a chain depend on the key, the number of the
chain and the size of the chunks, which `num_samples` below 50 changes. With the same warm-up and
chunks, a run of 100 draws is the first half of a run of 200.
"""

from functools import partial
from typing import Any

from inference.core import objective as obj
from inference.core.engine import SOLID, Algorithm, Look
from inference.engines import _gibbs_sweep as gibbs
from inference.engines._chains import Rounds, check_size


def build(problem: obj.Problem, options: Any) -> Algorithm:
    check_size(problem, options)
    gibbs.check_counts("gibbs", problem.data)
    rounds, first = Rounds(problem, options.num_chains), partial(gibbs.begin, problem)
    return gibbs.run_chains(problem, options, rounds, first, gibbs.sweep)


look = Look("blue", SOLID, "circle")
ENGINE = gibbs.engine("gibbs", gibbs.Options, build, compared=True, look=look)
