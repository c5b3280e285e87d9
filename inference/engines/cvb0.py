"""Zero-order collapsed variational Bayes (Asuncion et al. 2009), and from batches of rows its stochastic form (Foulds et al. 2013).

Factors' weights are integrated out and only the tokens' allocations kept. A token of column v in row d belongs to factor k with

    share_dvk ~ (a_k + N_dk - share_dvk) E[beta_kv],        N_dk = sum_v n_dv share_dvk,        natural <- dF/dmu = prior + expected counts

in which a token does not count itself in its own row (for gamma weights, divided by their rate). Among the counts of the whole corpus,
E[beta_kv], it is left in, as Foulds et al. do: its share would have to be kept for every token. Sites' natural parameters hold the counts, so
that the posterior given the allocations' means is read off as a distribution. Rows that a batch left behind are solved by `svi`'s equations when
asked for.

This is a fixed point, not an ascent: it comes from a Taylor series of collapsed variational Bayes cut off after its first term, and is no bound
of the evidence. `history["bound"]` is therefore empty; `change`, how far the global means moved in a step, says when to stop. Without the
exclusion the same fixed point is that of `map` with basis="log", which has an objective.

With all rows in a step they go on from where the last step left them, and the rate is 1.
"""

from typing import Any, NamedTuple

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DOTTED, Algorithm, Engine, Look
from inference.core.posteriors import Variational
from inference.engines import _collapsed as collapsed
from inference.engines import _minibatch as mb
from inference.engines._empirical_bayes import learn
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

Options = opt.compose(
    opt.rate(10.0, 0.7),
    opt.stop(1e-3, "a step on all rows changes the global means"),
    num_epochs=opt.Option(
        0,
        "passes over the data at most (0: 100, or from batches three, or as many as make 500 steps)",
    ),
    batch_size=opt.Option(0, "rows per step (0: all)"),
    num_local=opt.Option(
        0,
        "iterations of the rows' fixed point in each step (0: 3 where rows continue from the last step, 30 where they begin anew)",
    ),
    local_tolerance=opt.Option(1e-3, "change at which a row's iterations stop"),
)


class State(NamedTuple):
    """Natural parameters of the global sites, hyper-parameters, steps taken; where each step has all rows, the rows' own and their positions."""

    shared: Sites
    hyper: Any
    step: int
    local: tuple[Sites, ...]
    positions: tuple[Any, ...]


class Info(NamedTuple):
    """rate: rho. change: mean absolute change of the global means in this step, relative to their mean. local_iterations: mean over rows."""

    rate: Any
    change: Any
    local_iterations: Any
    finished: bool = False


def settle(options: Any, data: Any) -> Any:
    """Sizes that suit the data, where the user left them open."""
    everything = options.batch_size in (0, data.num_rows)
    chosen = mb.settle_batches(
        options._replace(batch_size=options.batch_size or data.num_rows), data
    )
    epochs, local = (100, 3) if everything else (chosen.num_epochs, 30)
    return chosen._replace(
        num_epochs=options.num_epochs or epochs, num_local=options.num_local or local
    )


def build(problem: obj.Problem, options: Any) -> Algorithm:
    everything = options.batch_size == problem.data.num_rows
    rows = RowOptions(options.num_local, options.local_tolerance)

    def init(key, start):
        return State(mb.first_natural(problem, key, start), problem.hyper, 0, (), ())

    def step(key, state, batches):
        rate = 1.0 if everything else mb.learning_rate(options.tau, options.kappa, state.step)
        shares = mb.solve(
            problem,
            state.hyper,
            state.shared,
            batches,
            rows,
            start=state.local or None,
            summary="collapsed",
            weights="mean",
        )
        totals = mb.total(problem, shares, problem.data.num_rows)
        shared = mb.ascend(
            problem,
            state.hyper,
            state.shared,
            mb.gradients(problem, shares),
            totals.scale,
            rate,
            state.shared,
        )
        hyper = learn(problem, state.hyper, shared, shares, batches, totals.scale, rate)
        change = collapsed.change_of(problem.model, state.shared, shared)
        finished = everything and options.tolerance > 0 and float(change) < options.tolerance
        local = tuple(share.natural for share in shares) if everything else ()
        positions = tuple(batch.positions for batch in batches) if everything else ()
        return State(shared, hyper, state.step + 1, local, positions), Info(
            rate, change, totals.iterations, finished
        )

    def posterior(state):
        return Variational(
            problem._replace(hyper=state.hyper), state.shared, state.local, state.positions
        )

    return Algorithm(init, step, posterior)


ENGINE = Engine(
    "cvb0",
    Options,
    build,
    kind="variational",
    rows="batch",
    check=mb.check_schedule,
    init="natural",
    settle=settle,
    learns=True,
    suits=collapsed.suits,
    tiny={"num_epochs": 30},
    look=Look("indigo", DOTTED, "up", True),
)
