"""The streaming batch algorithm: coordinate ascent on a large random batch of what is there, then again on another (T 3.3).

Each step takes min(B, N_t) rows, scales them to all N_t, runs `num_inner` sweeps of CAVI on them, and puts the result in place of the parameters.
"""

from typing import Any, NamedTuple

import jax

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import LONG, Algorithm, Engine, Look
from inference.engines import _minibatch as mb
from inference.engines._empirical_bayes import learn
from inference.engines._minibatch import State
from pp_models.elimination.row_solver import RowOptions

Options = opt.compose(
    opt.rows(10, 1e-3),
    num_epochs=opt.Option(2, "passes over the data"),
    batch_size=opt.Option(0, "rows per training run (0: half of them, at most 50,000, T 4.3)"),
    num_inner=opt.Option(100, "sweeps in each training run"),
    restart=opt.Option(
        "fresh",
        'where each run begins: at a new random start ("fresh") or where the last ended ("warm")',
        choices=("fresh", "warm"),
    ),
)


LEARN_RATE = 0.1  # of the hyper-parameters in each sweep: topics must form before alpha may single out some of them


class Info(NamedTuple):
    """bound: at the last sweep, from this batch scaled to all rows, as terms to be added up."""

    bound: Any


def settle(options: Any, data: Any) -> Any:
    return options._replace(
        batch_size=min(options.batch_size or min(50_000, -(-data.num_rows // 2)), data.num_rows)
    )


def train(
    problem: obj.Problem,
    options: Any,
    key: jax.Array,
    state: State,
    batches: Any,
    present: int,
    arrived: int = 0,
) -> tuple[State, Info]:
    """One training run on a batch of a data set of `present` rows."""
    rows = RowOptions(options.num_local, options.local_tolerance)
    fresh = options.restart == "fresh" and state.step > 0
    shared, hyper = (
        (mb.first_natural(problem, key, {}), problem.hyper)
        if fresh
        else (state.shared, state.hyper)
    )
    local = None
    for inner in range(options.num_inner):
        last = inner == options.num_inner - 1
        shares = mb.solve(problem, hyper, shared, batches, rows, start=local, bound=last)
        totals = mb.total(problem, shares, present)
        bound = mb.bound_terms(problem, hyper, shared, totals) if last else None
        shared = mb.ascend(problem, hyper, shared, mb.gradients(problem, shares), totals.scale)
        local = [share.natural for share in shares]
        hyper = learn(problem, hyper, shared, shares, batches, totals.scale, LEARN_RATE)
    return State(shared, hyper, state.step + 1), Info(bound)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    def step(key, state, batches):
        return train(problem, options, key, state, batches, problem.data.num_rows)

    return mb.algorithm(problem, step)


ENGINE = Engine(
    "streaming_batch",
    Options,
    build,
    kind="variational",
    rows="batch",
    init="natural",
    settle=settle,
    stream=train,
    State=State,
    learns=True,
    tiny={"num_inner": 10},
    look=Look("pink", LONG, "up", True),
)
