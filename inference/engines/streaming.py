"""Streaming SVI: steps on random batches of a database that grows meanwhile (T 3.1).

At time t there are N_t rows, and the bound of T(16) is that of those. Each step picks a batch of them and takes a trust-region or a natural-gradient
step scaled by N_t / |B|. The rate follows the data, not the number of steps:

    rho_t = (tau + (N_t - N_0) / B)^-kappa                                                                        (T 18)

`inference.stream` runs this on a real database. `fit` plays a stream from a data set: its first `num_present` rows are there at the start, and
`arrivals` more come before each step. With everything there from the start this is svi or trust_region at a constant rate.
"""

from typing import Any, NamedTuple

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import LONG, Algorithm, Engine, Look
from inference.engines import _minibatch as mb
from inference.engines._minibatch import State
from inference.engines._natural_step import natural_step
from inference.engines._trust_step import check_trust, trust_step, warn_of_copies
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError


class Options(
    opt.compose(  # type: ignore[misc]
        opt.rate(10.0, 0.5),
        opt.trust(5),
        {"weights": opt.WEIGHTS},
        opt.rows(10, 1e-3),
        opt.bound(5),
        num_steps=opt.Option(0, "updates (0: until all rows have arrived, then up to 200)"),
        batch_size=opt.Option(0, "rows per step (0: an eighth of them, at most 256)"),
        num_present=opt.Option(0, "rows at the start (0: a batch)"),
        arrivals=opt.Option(0, "rows that arrive between steps (0: all are there at the start)"),
        update=opt.Option("trust_region", "the step to take", choices=("trust_region", "natural")),
    )
):
    """See `core.options`."""

    __slots__ = ()

    def present(self, num_rows: int, step: int) -> int:
        """N_t: rows that have arrived before a step."""
        return min(num_rows, self.num_present + self.arrivals * step)


class Info(NamedTuple):
    """bound: estimate from this batch before its step, as terms to be added up. rate: rho. rows: N_t. local_iterations: of the last inner step."""

    bound: Any
    rate: Any
    rows: Any
    local_iterations: Any


def settle(options: Any, data: Any) -> Any:
    if options.num_present and not options.arrivals:
        raise InputError(
            "num_present says how many rows are there before others arrive: set arrivals, the rows that come between steps, too."
        )
    size = min(options.batch_size or min(256, -(-data.num_rows // 8)), data.num_rows)
    first = min(options.num_present or size, data.num_rows) if options.arrivals else data.num_rows
    wait = -(-(data.num_rows - first) // options.arrivals) if options.arrivals else 0
    return options._replace(
        batch_size=size, num_present=first, num_steps=options.num_steps or max(200, wait)
    )


def stream_step(
    problem: obj.Problem,
    options: Any,
    key: Any,
    state: State,
    batches: Any,
    present: int,
    arrived: int,
) -> tuple[State, Info]:
    """One step on a batch of the `present` rows, of which `arrived` came since learning began."""
    rate = mb.learning_rate(options.tau, options.kappa, arrived / options.batch_size)
    evaluate = bool(options.bound_every) and state.step % options.bound_every == 0
    if options.update == "natural":
        rows = RowOptions(options.num_local, options.local_tolerance)
        state, info = natural_step(
            problem, rows, state, batches, present, rate, evaluate, options.weights
        )
    else:
        state, info = trust_step(problem, options, state, batches, present, rate, evaluate)
    return state, Info(info.bound, rate, float(present), info.local_iterations)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    mb.check_weights(problem, options.weights)
    if options.update == "trust_region":
        warn_of_copies(problem, options)

    def step(key, state, batches):
        present = options.present(problem.data.num_rows, state.step)
        return stream_step(
            problem, options, key, state, batches, present, present - options.num_present
        )

    return mb.algorithm(problem, step)


ENGINE = Engine(
    "streaming",
    Options,
    build,
    kind="variational",
    rows="stream",
    check=check_trust,
    init="natural",
    settle=settle,
    stream=stream_step,
    State=State,
    learns=True,
    tiny={"num_steps": 20, "batch_size": 4, "arrivals": 1, "num_inner": 3},
    look=Look("green", LONG, "square", True),
)
