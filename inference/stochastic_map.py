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

from inference import minibatch as mb
from inference import objective as obj
from inference.engine import Algorithm, Engine
from inference.map import check as check_basis
from inference.map import summary_of
from inference.posterior import Point, solve_rows
from pp_models.base import Sites
from pp_models.rows import RowOptions


class Options(NamedTuple):
    """num_epochs: passes over the data (0: three, or as many as make 500 steps). batch_size: rows per step (0: an eighth of them, at most 256).

    tau, kappa: the rate (tau + t)^-kappa. num_local, local_tolerance: the rows' fixed point. basis: identity, log or auto, as of `map`.
    num_sweeps: over the coordinates of a global site whose mode has no closed form, in each step. bound_every: steps between estimates of the log
    density (0: never). tolerance: stop when an epoch's mean estimate improves by less than this, relatively (0: run all epochs).
    """

    num_epochs: int = 0
    batch_size: int = 0
    tau: float = 10.0
    kappa: float = 0.7
    num_local: int = 100
    local_tolerance: float = 1e-3
    basis: str = "auto"
    num_sweeps: int = 2
    bound_every: int = 1
    tolerance: float = 0.0


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


def check(options: Options) -> None:
    check_basis(options)
    mb.check_schedule(options)


def build(problem: obj.Problem, options: Options) -> Algorithm:
    model, values = problem.model, problem.values
    summary = summary_of(problem, options.basis)
    rows = RowOptions(options.num_local, options.local_tolerance)

    def init(key, start):
        shared = mb.first_natural(problem, key, start)
        return State(shared, _point(model, shared, summary), 0)

    def step(key, state, batches):
        evaluate = bool(options.bound_every) and state.step % options.bound_every == 0
        rate = mb.learning_rate(options.tau, options.kappa, state.step)
        shares = mb.solve(problem, values, state.points, batches, rows, bound=evaluate, summary=summary)
        totals = mb.total(problem, shares, problem.data.num_rows)
        bound = mb.bound_terms(problem, values, state.points, totals, summary) if evaluate else None
        gradients = mb.gradients(problem, shares)
        shared = mb.ascend(problem, values, state.shared, gradients, totals.scale, rate, state.shared, summary=summary, near=state.points)
        points = _point(model, shared, summary, state.points, options.num_sweeps)
        return State(shared, points, state.step + 1), Info(bound, rate, totals.iterations)

    def posterior(state):
        return Point(problem, state.points, solve=partial(solve_rows, problem, state.points, summary))

    return Algorithm(init, step, posterior)


ENGINE = Engine("stochastic_map", Options, build, kind="point", rows="batch", check=check, init="natural", settle=mb.settle_batches)
