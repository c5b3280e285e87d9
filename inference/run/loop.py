"""The loop around every engine: step, and let callbacks score, watch, stop, save and guard.

    run = Run(problem, algorithm, "svi", options, Clock(), callbacks)
    run.state = algorithm.init(key, {})
    advance(run, batches, key)

A step is dispatched and runs while the next batch is packed. Its numbers are read when the next
step has been dispatched, or when a callback waits for them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from inference.core import devices
from inference.core.engine import Algorithm, Stage
from inference.core.objective import Problem
from inference.io.fits import Fit
from inference.run.clock import Clock

Row = dict[str, Any]


class Callback:
    """What happens around the steps of a run. A callback overrides the methods it needs."""

    def begin(self, run: "Run") -> bool:
        """Called before the first step. True: the run is over already."""
        return False

    def before_step(self, run: "Run", batches: Any) -> Row:
        """Called before a step on these batches. Returns further columns of the history."""
        return {}

    def after_step(self, run: "Run") -> bool:
        """Called when a step has been dispatched. True ends the run."""
        return False

    def settled(self, run: "Run", numbers: dict[str, float]) -> None:
        """Called when the numbers of the last row of the history have been read."""

    def end(self, run: "Run") -> None:
        """Called when the last step has ended."""


class Run:
    """A run as it goes: the engine's state, and the history of its steps."""

    def __init__(
        self, problem: Problem, algorithm: Algorithm, engine: str, options: Any, clock: Clock
    ) -> None:
        self.problem, self.algorithm, self.engine = problem, algorithm, engine
        self.options, self.clock = options, clock
        self.title = f"{problem.model.name} by {engine}"
        self.callbacks: Sequence[Callback] = ()
        self.state: Any = None
        self.before: Any = None  # the state that the last step began with
        self.info: Any = None  # of the last step
        self.history: list[Row] = []
        self.was_over = False  # whether a checkpoint held the end of this run
        self._pending = False  # whether the numbers of the last row are still to be read

    @property
    def stage(self) -> Stage:
        """How far the run is. An engine that is no sampler has an answer after each step."""
        stage = self.algorithm.stage
        return stage(self.state) if stage else Stage("", 0.0, True)

    def record(self, before: Any, info: Any, columns: Row) -> None:
        """Note a step that has been dispatched."""
        self.before, self.info, self._pending = before, info, True
        self.history.append({"step": len(self.history), **info._asdict(), **columns})

    def settle(self) -> None:
        """Read the numbers of the last step, which waits for it."""
        if self._pending:
            self._pending = False
            numbers = read_numbers(self.history[-1])
            self.history[-1]["seconds"] = self.clock.seconds
            for callback in self.callbacks:
                callback.settled(self, numbers)

    def wait(self) -> None:
        """Wait until the last step has ended."""
        jax.block_until_ready(jax.tree.leaves(self.state))
        self.settle()

    def as_fit(self, state: Any, seconds: float, stopped: str | None = None) -> Fit:
        """The result, were this state the last one."""
        posterior, options = self.algorithm.posterior(state), self.options._asdict()
        history = columns_of(self.history[:-1] if self._pending else self.history)
        problem = posterior.problem
        return Fit(problem, self.engine, options, posterior, history, seconds, stopped=stopped)


def advance(run: Run, batches: Iterable[Any], key: jax.Array) -> None:
    """Step until the batches are used up or a callback ends the run."""
    over = any(callback.begin(run) for callback in run.callbacks)
    for given in () if over else batches:
        columns: Row = {}
        for callback in run.callbacks:
            columns |= callback.before_step(run, given)
        before, step_key = run.state, jax.random.fold_in(key, len(run.history))
        run.state, info = run.algorithm.step(step_key, before, given)
        run.settle()  # the step before has ended: read its numbers while this one runs
        run.record(before, info, columns)
        if any(callback.after_step(run) for callback in run.callbacks):
            break
    run.wait()
    for callback in run.callbacks:
        callback.end(run)


def read_numbers(row: Row) -> dict[str, float]:
    """Turn a row's device scalars into numbers, which waits for its step; returns those there are.

    The terms of a bound are added in double precision. A missing number becomes nan.
    """
    given = {name: value for name, value in row.items() if name != "step"}
    known = {name: devices.total(value) for name, value in given.items() if value is not None}
    row.update({name: known.get(name, float("nan")) for name in given})
    row.setdefault("bound", float("nan"))  # samplers have none
    return known


def columns_of(history: list[Row]) -> dict[str, np.ndarray]:
    """The history's rows as columns: step, seconds, bound, then the engine's own."""
    names = dict.fromkeys(["step", "seconds", "bound", *(history[0] if history else ())])
    return {name: np.array([row[name] for row in history]) for name in names}
