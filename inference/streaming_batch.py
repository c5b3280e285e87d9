"""The streaming batch algorithm: coordinate ascent on a large random batch of what is there, then again on another (T 3.3).

Each step takes min(B, N_t) rows, scales them to all N_t, runs `num_inner` sweeps of CAVI on them, and puts the result in place of the parameters.
"""

from typing import Any, NamedTuple

import jax

from inference import minibatch as mb
from inference import objective as obj
from inference.empirical_bayes import learn
from inference.engine import Algorithm, Engine
from inference.minibatch import State
from pp_models.errors import unknown
from pp_models.rows import RowOptions


class Options(NamedTuple):
    """num_epochs: passes over the data. batch_size: rows per training run (0: half of them, at most 50,000, T 4.3). num_inner: sweeps in each.

    restart: "fresh" begins each run at a new random start, "warm" where the last one ended. num_local, local_tolerance: the rows' fixed point.
    """

    num_epochs: int = 2
    batch_size: int = 0
    num_inner: int = 100
    restart: str = "fresh"
    num_local: int = 10
    local_tolerance: float = 1e-3


LEARN_RATE = 0.1  # of the hyper-parameters in each sweep: topics must form before alpha may single out some of them


class Info(NamedTuple):
    """bound: at the last sweep, from this batch scaled to all rows, as terms to be added up."""

    bound: Any


def check(options: Options) -> None:
    if options.restart not in ("fresh", "warm"):
        raise unknown("restart", options.restart, ("fresh", "warm"))


def settle(options: Options, data: Any) -> Options:
    return options._replace(batch_size=min(options.batch_size or min(50_000, -(-data.num_rows // 2)), data.num_rows))


def train(problem: obj.Problem, options: Any, key: jax.Array, state: State, batches: Any, present: int, arrived: int = 0) -> tuple[State, Info]:
    """One training run on a batch of a data set of `present` rows."""
    rows = RowOptions(options.num_local, options.local_tolerance)
    fresh = options.restart == "fresh" and state.step > 0
    shared, values = (mb.first_natural(problem, key, {}), problem.values) if fresh else (state.shared, state.values)
    local = None
    for inner in range(options.num_inner):
        last = inner == options.num_inner - 1
        shares = mb.solve(problem, values, shared, batches, rows, start=local, bound=last)
        totals = mb.total(problem, shares, present)
        bound = mb.bound_terms(problem, values, shared, totals) if last else None
        shared = mb.ascend(problem, values, shared, mb.gradients(problem, shares), totals.scale)
        local = [share.natural for share in shares]
        values = learn(problem, values, shared, shares, batches, totals.scale, LEARN_RATE)
    return State(shared, values, state.step + 1), Info(bound)


def build(problem: obj.Problem, options: Options) -> Algorithm:
    def step(key, state, batches):
        return train(problem, options, key, state, batches, problem.data.num_rows)

    return mb.algorithm(problem, step)


ENGINE = Engine(
    "streaming_batch",
    Options,
    build,
    kind="variational",
    rows="batch",
    check=check,
    init="natural",
    settle=settle,
    stream=train,
    State=State,
    learns=True,
)
