r"""Zero-order collapsed variational Bayes (Asuncion et al. 2009). It integrates the weights out and
keeps expected allocations of tokens; from batches it is the form of Foulds et al. (2013).

$$ \phi_{dvk} \propto (a_k + N_{dk} - \phi_{dvk}) \, \mathbb{E}[\beta_{kv}], \qquad
N_{dk} = \sum_v n_{dv} \phi_{dvk}, \qquad
\eta \leftarrow \frac{\partial F}{\partial \mu} $$

A token of column $v$ in row $d$ does not count itself in its own row. It does in
$\mathbb{E}[\beta_{kv}]$, as in Foulds et al.: leaving it out needs a share for every token. Gamma
weights are divided by their rate. Natural parameters hold the expected counts, so the posterior
given them is read off as a distribution.

Use it for predictions, which are often better than those of `cavi`; its intervals are no better
calibrated. It comes from a Taylor series cut off after its first term, and has no bound:
`history["bound"]` is empty, and `change`, the relative change of the global means, stops it.
Without the exclusion of a token itself it is `map` with `basis="log"`, which has an objective.

With all rows in a step the rate is 1 and rows continue where the last step left them. From batches
`tolerance` is not used, and rows that are asked for are solved by the equations of `svi`.
"""

from typing import Any, NamedTuple

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DOTTED, Algorithm, Look
from inference.core.posteriors import Variational
from inference.engines import _collapsed as collapsed
from inference.engines import _minibatch as mb
from inference.engines._empirical_bayes import learn
from inference.engines._natural_step import learning_rate
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

Options = opt.compose(
    opt.rate(10.0, 0.7),
    opt.stop(1e-3, "a step on all rows changes the global means"),
    num_epochs=opt.Option(
        0, "passes over the data at most (0: 100; from batches three, or 500 steps)"
    ),
    batch_size=opt.Option(0, "rows per step (0: all)"),
    num_local=opt.Option(
        0,
        "iterations of the rows' fixed point in each step (0: 3 where rows continue from the last "
        "step, 30 where they begin anew)",
    ),
    local_tolerance=opt.Option(1e-3, "change at which a row's iterations stop"),
)


class State(NamedTuple):
    """Natural parameters of the global sites; and of the rows, if a step sees all of them."""

    shared: Sites
    hyper: Any
    step: int
    local: tuple[Sites, ...]
    positions: tuple[Any, ...]


class Info(NamedTuple):
    """change: relative change of the global means. local_iterations: mean over rows."""

    rate: Any
    change: Any
    local_iterations: Any
    finished: bool = False


def settle(options: Any, data: Any) -> Any:
    everything = options.batch_size in (0, data.num_rows)
    size = options.batch_size or data.num_rows
    chosen = mb.fill_batches(options._replace(batch_size=size), data)
    epochs, local = (100, 3) if everything else (chosen.num_epochs, 30)
    return chosen._replace(
        num_epochs=options.num_epochs or epochs, num_local=options.num_local or local
    )


def build(problem: obj.Problem, options: Any) -> Algorithm:
    num_rows = problem.data.num_rows
    everything = options.batch_size == num_rows
    rows = RowOptions(options.num_local, options.local_tolerance)

    def init(key, start):
        return State(mb.first_natural(problem, key, start), problem.hyper, 0, (), ())

    def step(key, state, batches):
        rate = 1.0 if everything else learning_rate(options, state.step)
        given = (problem, state.hyper, state.shared, batches, rows, num_rows, state.local)
        solved = mb.solve(*given, summary="collapsed", weights="mean")
        shared = mb.ascend(solved, state.shared, rate, state.shared)
        hyper = learn(solved, shared, rate)
        change = collapsed.change_of(problem.model, state.shared, shared)
        finished = everything and options.tolerance > 0 and float(change) < options.tolerance
        local, positions = (solved.local, solved.positions) if everything else ((), ())
        info = Info(rate, change, solved.iterations, finished)
        return State(shared, hyper, state.step + 1, local, positions), info

    def posterior(state):
        now = problem._replace(hyper=state.hyper)
        return Variational(now, state.shared, state.local, state.positions)

    return Algorithm(init, step, posterior)


ENGINE = mb.engine(
    "cvb0",
    Options,
    build,
    settle=settle,
    suits=collapsed.suits,
    tiny={"num_epochs": 30},
    look=Look("indigo", DOTTED, "up", True),
)
