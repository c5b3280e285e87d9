r"""Trust-region stochastic variational inference. Each step maximises the bound of a random batch
within a divergence from the last parameters.

$$ \eta_{t+1} = \operatorname{argmax}_\eta \; \mathcal{L}_n(\eta)
- \xi_t \, \mathrm{KL}(\eta, \eta_t), \qquad \rho_t = \frac{1}{1 + \xi_t} = (\tau + t)^{-\kappa} $$

This is Algorithm 1 of Theis & Hoffman (11 and 14). It is solved by coordinate ascent,
$\eta \leftarrow (1 - \rho_t)\,\eta_t + \rho_t\,\hat\eta(\eta)$, `num_inner` times, with the rows
solved again from where they were. Every step starts from allocations spread evenly over the
factors ($\phi = 1/K$, section 2.4). That pulls all factors towards the batch before they compete
for it and revives those that natural-gradient steps leave unused. The start is not counted in
`num_inner`.

Use it for large corpora if the settings of `svi` are unknown or factors stay unused, and for
mixtures. Its steps cost several times those of `svi`.

The answer is the average of the natural parameters over the last steps, as in `svi`, and a warning
says if the bound still rose at the end.

With `tau=1` the first rate is 1 and all factors become equal: a warning says so. With
`start="current"`, one inner step is the natural-gradient step of `svi`.
"""

from functools import partial
from typing import Any

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import MIXED, Algorithm, Look
from inference.engines import _minibatch as mb
from inference.engines._trust_step import check_trust, trust_step, warn_of_copies

MOST_KAPPA = 0.5
NUM_UPDATES = 200

Options = opt.compose(
    opt.batches(NUM_UPDATES),
    opt.rate_of_size(10.0, MOST_KAPPA),
    opt.trust(5),
    {"weights": opt.WEIGHTS},
    opt.rows(10, 1e-3),
    opt.bound(1),
    opt.stop(0.0),
)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    warn_of_copies(problem, options)

    def step(key, state, batches):
        return trust_step(problem, options, state, batches, problem.data.num_rows, state.step)

    return mb.averaging(problem, options, step)


ENGINE = mb.engine(
    "trust_region",
    Options,
    build,
    check=check_trust,
    settle=partial(mb.fill_rate, num_updates=NUM_UPDATES, most=MOST_KAPPA),
    compared=True,
    is_quick=True,
    quick={"num_epochs": 10},
    tiny={"num_epochs": 4, "batch_size": 4, "num_inner": 3},
    look=Look("green", MIXED, "down"),
)
