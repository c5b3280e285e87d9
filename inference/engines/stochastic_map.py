r"""Maximum a posteriori from batches of rows. It averages natural parameters over batches and takes
their mode, as online dictionary learning does (Mairal et al. 2009).

$$ \eta \leftarrow (1 - \rho_t)\,\eta + \rho_t\,\hat\eta, \qquad
x \leftarrow \operatorname{argmax}_x \; \langle \eta, t(x) \rangle, \qquad
\rho_t = (\tau + t)^{-\kappa} $$

The rows of the batch are at their mode, and $\hat\eta = \partial F / \partial t$ with the batch
scaled by $N / |B|$. Hu et al. descend along the gradient of the batch instead, (15)–(16),
with a step size that has to be tuned to each corpus and without the factor $N / |B|$, which keeps
the prior as strong as on all rows. Here the rate is a share and needs no tuning. For `lg_nmf` the
natural parameter of `d1` is the running
$\big(\sum_j c_j s_j^\top,\; K I + \sum_j s_j s_j^\top\big)$, and `d1` the nonnegative matrix that
minimises $\mathrm{tr}(d_1 P d_1^\top) / 2 - \mathrm{tr}(h^\top d_1)$, found by coordinate
descent from its last value. For `bayesian_nmf` and `lda` it is stochastic EM.

Use it for predictions from large corpora. It has no width. Use `map` if all rows fit into memory:
with all rows in the batch and a rate of 1 they agree. Precisions are held as in `map`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DOTTED, Algorithm, Look
from inference.core.posteriors import Point, solve_rows
from inference.core.summaries import summary_of
from inference.engines import _minibatch as mb
from inference.engines._held import hold
from inference.engines._natural_step import Info, bound_is_due, learning_rate
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

Options = opt.compose(
    opt.batches(500),
    opt.rate(10.0, 0.7),
    opt.rows(100, 1e-3),
    {"basis": opt.BASIS},
    opt.bound(1),
    opt.stop(0.0),
    num_sweeps=opt.Option(2, "over coordinates of a global site without a closed-form mode"),
)


class State(NamedTuple):
    """Natural parameters of the global sites, the statistics of their mode, and steps taken.

    held: the statistics of the sites that are held
    """

    shared: Sites
    points: Sites
    step: int
    held: Sites


_point = jax.jit(obj.summarise, static_argnames=("model", "summary", "sweeps"))


def build(problem: obj.Problem, options: Any) -> Algorithm:
    model, hyper, num_rows = problem.model, problem.hyper, problem.data.num_rows
    summary = summary_of(problem, options.basis)
    rows = RowOptions(options.num_local, options.local_tolerance)

    def init(key, start):
        shared = mb.first_natural(problem, key, start)
        held = hold(problem, key, {})
        return State(shared, _point(model, shared, summary) | held, 0, held)

    def step(key, state, batches):
        shared, points, number, held = state
        evaluate, rate = bound_is_due(options, number), learning_rate(options, number)
        given = (problem, hyper, points, batches, rows, num_rows)
        solved = mb.solve(*given, bound=evaluate, summary=summary)
        bound = solved.bound if evaluate else None
        shared = mb.ascend(solved, shared, rate, shared, summary=summary, near=points)
        points = _point(model, shared, summary, points, options.num_sweeps) | held
        return State(shared, points, number + 1, held), Info(bound, rate, solved.iterations)

    def posterior(state):
        solve = partial(solve_rows, problem, state.points, summary)
        return Point(problem, state.points, solve=solve)

    return Algorithm(init, step, posterior)


ENGINE = mb.engine(
    "stochastic_map",
    Options,
    build,
    kind="point",
    learns=False,
    quick={"num_epochs": 30},
    tiny={"num_epochs": 10, "batch_size": 4, "basis": "log"},
    look=Look("grey", DOTTED, "circle", True),
)
