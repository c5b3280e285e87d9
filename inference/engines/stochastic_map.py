"""Maximum a posteriori from batches of rows (H 4): statistics blended, their mode taken, as in online dictionary learning (Mairal et al. 2009).

    rows of the batch to their mode, then
    natural <- (1 - rho) natural + rho target,    target = dF/dt with the batch scaled by N/|B|,    rho = (tau + t)^-kappa
    point   <- argmax_x <natural, t(x)>

H(15)-(16) descend along the batch's own gradient with a step size of 0.003, which has to be found anew for every corpus: it depends on the counts'
scale, on K and on the batch. Here a step is on the natural parameters, which are averages over batches of what a sweep of `map` would be given: the
rate is a share, and no other number has to be tuned. The factor N/|B|, which H(15) lacks, keeps the prior as strong as it is on all rows. For LG-NMF
the natural parameter of d1 is the running (sum_j c_j s_j', K I + sum_j s_j s_j'), and d1 the nonnegative matrix that minimises
tr(d1 P d1') / 2 - tr(h'd1), found one coordinate at a time from where the last step left it. For Bayesian NMF and LDA it is stochastic EM.

With all rows in the batch and rho = 1 a step is a sweep of `map`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DOTTED, Algorithm, Engine, Look
from inference.core.posteriors import Point, solve_rows
from inference.core.summaries import summary_of
from inference.engines import _minibatch as mb
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
    """Natural parameters of the global sites, the statistics of their mode, and steps taken."""

    shared: Sites
    points: Sites
    step: int


class Info(NamedTuple):
    """bound: estimate of the log joint density in the chosen basis from this batch before its step, as terms to be added up. rate: rho."""

    bound: Any
    rate: Any
    local_iterations: Any


_point = jax.jit(obj.summarise, static_argnames=("model", "summary", "sweeps"))


def build(problem: obj.Problem, options: Any) -> Algorithm:
    model, hyper = problem.model, problem.hyper
    summary = summary_of(problem, options.basis)
    rows = RowOptions(options.num_local, options.local_tolerance)

    def init(key, start):
        shared = mb.first_natural(problem, key, start)
        return State(shared, _point(model, shared, summary), 0)

    def step(key, state, batches):
        evaluate = bool(options.bound_every) and state.step % options.bound_every == 0
        rate = mb.learning_rate(options.tau, options.kappa, state.step)
        shares = mb.solve(
            problem, hyper, state.points, batches, rows, bound=evaluate, summary=summary
        )
        totals = mb.total(problem, shares, problem.data.num_rows)
        bound = mb.bound_terms(problem, hyper, state.points, totals, summary) if evaluate else None
        gradients = mb.gradients(problem, shares)
        shared = mb.ascend(
            problem,
            hyper,
            state.shared,
            gradients,
            totals.scale,
            rate,
            state.shared,
            summary=summary,
            near=state.points,
        )
        points = _point(model, shared, summary, state.points, options.num_sweeps)
        return State(shared, points, state.step + 1), Info(bound, rate, totals.iterations)

    def posterior(state):
        return Point(
            problem, state.points, solve=partial(solve_rows, problem, state.points, summary)
        )

    return Algorithm(init, step, posterior)


ENGINE = Engine(
    "stochastic_map",
    Options,
    build,
    kind="point",
    rows="batch",
    check=mb.check_schedule,
    init="natural",
    settle=mb.settle_batches,
    quick={"num_epochs": 30},
    tiny={"num_epochs": 10, "batch_size": 4, "basis": "log"},
    look=Look("grey", DOTTED, "circle", True),
)
