r"""Stochastic variational inference. Each step solves the rows of a random batch and takes a
natural-gradient step on the global sites.

$$ \eta \leftarrow (1 - \rho_t)\,\eta + \rho_t\,\hat\eta, \qquad
\hat\eta = \frac{\partial}{\partial \mu} \Big[ \log p(\mathrm{global})
+ \frac{N}{|B|} \sum_{n \in B} \log p(\mathrm{row}_n) \Big], \qquad
\rho_t = (\tau + t)^{-\kappa} $$

These are X 27–29 of Fox's slides (X), P(11.33)–(11.35) of Paisley, Blei & Jordan (P) and T(10) of
Theis & Hoffman (T).

Use it for large corpora: a step costs one batch, and from an `.h5ad` file it runs in constant
memory. It may leave factors unused, and needs a learning rate: use `trust_region` if that is a
problem, and `cavi` if all rows fit into memory and a sweep is quick.

`kappa` must be above 0.5 to converge. `rate="adaptive"` replaces the schedule by
$\rho = |\bar g|^2 / \overline{|g|^2}$ of Ranganath et al. (2013), running averages of the natural
gradient $g$ over a window that shrinks after large steps. `weights="mean"` solves the rows given
the means of the global sites instead of their geometric means, half way to `cvb0`. It often
predicts better, but is no step on the bound; `history["bound"]` is still that of the $q$ reached,
from a second solution of the rows.
"""

from typing import Any

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DASHED, Algorithm, Look
from inference.engines import _minibatch as mb
from inference.engines._natural_step import first_adaptive, natural_step

Options = opt.compose(
    opt.batches(500),
    opt.rate(10.0, 0.7),
    opt.rows(100, 1e-3),
    opt.bound(1),
    opt.stop(0.0),
    rate=opt.Option(
        "schedule",
        'the learning rate: "schedule" for (tau + t)^-kappa, t counting steps, or "adaptive" for '
        "the one of Ranganath et al.",
        choices=("schedule", "adaptive"),
    ),
    weights=opt.WEIGHTS,
)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    mb.check_weights(problem.model, options.weights)

    def first(shared):
        return mb.State(shared, problem.hyper, 0, first_adaptive(shared))

    def step(key, state, batches):
        return natural_step(problem, options, state, batches, problem.data.num_rows, state.step)

    return mb.algorithm(problem, step, first if options.rate == "adaptive" else None)


ENGINE = mb.engine(
    "svi",
    Options,
    build,
    compared=True,
    quick={"num_epochs": 30},
    tiny={"num_epochs": 10, "batch_size": 4},
    look=Look("amber", DASHED, "up"),
)
