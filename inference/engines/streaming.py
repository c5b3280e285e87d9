r"""Streaming variational inference. It takes trust-region or natural-gradient steps on random
batches of a database that grows meanwhile.

$$ \rho_t = \big(\tau + (N_t - N_0) / B\big)^{-\kappa} $$

At step $t$ there are $N_t$ rows, and the objective is their bound, (16) of Theis & Hoffman. A
batch of $B$ rows counts $N_t / B$ times. The rate, their (18), falls with the data that arrive and
not with the number of steps.

Use it by `inference.stream` on a database that grows. `inference.fit` plays a stream from a data
set: `num_present` rows are there at the start, and `arrivals` more come before each step. Without
`arrivals` it is `svi` or `trust_region` at a constant rate: use those instead.

Let some hundred rows arrive before learning starts: begun with the first word, it ends at a lower
bound. `num_present` needs `arrivals`.
"""

from typing import Any, NamedTuple

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import LONG, Algorithm, Look
from inference.engines import _minibatch as mb
from inference.engines._natural_step import natural_step
from inference.engines._trust_step import check_trust, trust_step, warn_of_copies
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
    """bound: terms of its estimate before the step. rows: N_t."""

    bound: Any
    rate: Any
    rows: Any
    local_iterations: Any


def settle(options: Any, data: Any) -> Any:
    if options.num_present and not options.arrivals:
        raise InputError(
            "num_present is the number of rows before others arrive: set arrivals, the rows that "
            "come between steps, too."
        )
    options, first, wait = mb.fill_batch_size(options, data), data.num_rows, 0
    if options.arrivals:
        first = min(options.num_present or options.batch_size, data.num_rows)
        wait = -(-(data.num_rows - first) // options.arrivals)
    return options._replace(num_present=first, num_steps=options.num_steps or max(200, wait))


def stream_step(
    problem, options, key, state: mb.State, batches, present, arrived
) -> tuple[mb.State, Info]:
    """One step on a batch of the `present` rows, of which `arrived` came since learning began."""
    take_step: Any = natural_step if options.update == "natural" else trust_step
    time = arrived / options.batch_size
    state, info = take_step(problem, options, state, batches, present, time)
    return state, Info(info.bound, info.rate, float(present), info.local_iterations)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    mb.check_weights(problem.model, options.weights)
    if options.update == "trust_region":
        warn_of_copies(problem, options)

    def step(key, state, batches):
        present = options.present(problem.data.num_rows, state.step)
        arrived = present - options.num_present
        return stream_step(problem, options, key, state, batches, present, arrived)

    return mb.algorithm(problem, step)


ENGINE = mb.engine(
    "streaming",
    Options,
    build,
    rows="stream",
    check=check_trust,
    settle=settle,
    stream=stream_step,
    State=mb.State,
    tiny={"num_steps": 20, "batch_size": 4, "arrivals": 1, "num_inner": 3},
    look=Look("green", LONG, "square", True),
)
