r"""Stochastic variational inference. Each step solves the rows of a random batch and takes a
natural-gradient step on the global sites.

$$ \eta \leftarrow (1 - \rho_t)\,\eta + \rho_t\,\hat\eta, \qquad
\hat\eta = \frac{\partial}{\partial \mu} \Big[ \log p(\mathrm{global})
+ \frac{N}{|B|} \sum_{n \in B} \log p(\mathrm{row}_n) \Big], \qquad
\rho_t = (\tau + t)^{-\kappa} $$

These are Fox's slides 27–29, (11.33)–(11.35) of Paisley, Blei & Jordan and (10) of Theis & Hoffman.

Use it for large corpora: a step costs one batch, and from an `.h5ad` file it runs in constant
memory. It may leave factors unused: use `trust_region` if that is a problem, and `cavi` if all rows
fit into memory and a sweep is quick.

The answer is the average of the natural parameters over the last steps (`_minibatch`), unless a
batch holds all rows. The noise of batches averages out, so that the rate falls slowly where a pass
has few steps, and as many passes as sweeps of `cavi` end as high. Without averaging, the
classical conditions for convergence ask for `kappa` above 0.5. A warning says if the bound still
rose at the end.

Factors that begin at noise are nearly equal, and rash steps leave some of them so: on long
documents topics are lost. With `begin="trust"` the first twentieth of the steps are therefore those
of `trust_region`, with two inner steps from even beliefs. Mixtures, whose rows have no weights of
their own, do without: it led them to lower modes. So do a run that is given a start (`init`) or
another rate, or whose first rate is 1.

`rate="adaptive"` replaces the schedule by
$\rho = |\bar g|^2 / \overline{|g|^2}$ of Ranganath et al. (2013), running averages of the natural
gradient $g$ over a window that shrinks after large steps. `weights="mean"` solves the rows given
the means of the global sites instead of their geometric means, half way to `cvb0`. It often
predicts better, but is no step on the bound; `history["bound"]` is still that of the $q$ reached,
from a second solution of the rows.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DASHED, Algorithm, Look
from inference.engines import _minibatch as mb
from inference.engines._natural_step import Info, first_adaptive, learning_rate, natural_step
from inference.engines._trust_step import trust_step

MOST_KAPPA = 0.7
NUM_UPDATES = 500
SHARE = 20  # of the steps, one part of so many parts the factors
NUM_INNER = 2

Options = opt.compose(
    opt.batches(NUM_UPDATES),
    opt.rate_of_size(10.0, MOST_KAPPA),
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
    begin=opt.Option(
        "trust",
        'the first twentieth of the steps, if rows have weights: in the "trust" region of '
        '`trust_region`, which parts the factors, or "natural" gradients like the others',
        choices=("trust", "natural"),
    ),
)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    adaptive, rows = options.rate == "adaptive", problem.data.num_rows
    parts = {"num_inner": NUM_INNER, "inner_tolerance": 0.0, "start": "uniform"}
    trust = SimpleNamespace(**options._asdict() | parts)

    def first(shared):
        return mb.State(shared, problem.hyper, 0, first_adaptive(shared))

    def step(key, state, batches):
        if state.step >= state.parting:
            return natural_step(problem, options, state, batches, rows, state.step)
        new, info = trust_step(problem, trust, state, batches, rows, state.step)
        return new, Info(info.bound, info.rate, info.local_iterations)

    algorithm = mb.averaging(problem, options, step, first if adaptive else None)

    def init(key, start):
        state = algorithm.init(key, start)
        natural = options.begin == "natural" or adaptive or start or options.batch_size >= rows
        steps = options.num_epochs * -(-rows // options.batch_size)
        unfit = natural or not problem.model.local or learning_rate(options, 0) >= 1
        return state._replace(parting=0 if unfit else steps // SHARE)

    return algorithm._replace(init=init)


ENGINE = mb.engine(
    "svi",
    Options,
    build,
    settle=partial(mb.fill_rate, num_updates=NUM_UPDATES, most=MOST_KAPPA),
    compared=True,
    quick={"num_epochs": 30},
    tiny={"num_epochs": 10, "batch_size": 4},
    look=Look("amber", DASHED, "up"),
)
