"""The loop around every engine: step, and let callbacks score, watch, stop, save and guard.

    run = Run(problem, algorithm, "svi", options)
    run.state = algorithm.init(key, {})
    advance(run, feed(engine, options, problem, key, num_steps), key)

A step is dispatched and runs while the next batch is packed. Its numbers are read when the next
step has been dispatched, or when a callback waits for them.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from inference.core import devices
from inference.core.engine import Algorithm, Engine, Stage
from inference.core.objective import Problem
from inference.io.fits import Fit

LARGE_STATE = 500_000_000  # bytes; of larger states only one is held, not two

Row = dict[str, Any]


def advance(run: "Run", batches: Iterable[Any], key: jax.Array) -> None:
    """Step until the batches are used up, or the engine or a callback ends the run."""
    over = run.was_over or any(callback.begin(run) for callback in run.callbacks)
    for given in () if over else batches:
        columns: Row = {}
        for callback in run.callbacks:
            columns |= callback.before_step(run, given)
        before, step_key = run.state, jax.random.fold_in(key, len(run.history))
        run.state, info = run.algorithm.step(step_key, before, given)
        run.settle()  # the step before has ended: read its numbers while this one runs
        run.record(before, info, columns)
        if any(callback.after_step(run) for callback in run.callbacks) or run.finished:
            break
    run.wait()
    for callback in run.callbacks:
        callback.end(run)


class Callback:
    """What happens around the steps of a run. A callback overrides the methods it needs.

    memory: what a checkpoint keeps of it, in JSON's types; None for nothing
    """

    memory: Any = None

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


class Clock:
    """Seconds since it was made. `standing` stops it."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begin

    def put_back(self, seconds: float) -> None:
        """Forget so many seconds."""
        self._begin += seconds

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        since = time.perf_counter()
        try:
            yield
        finally:
            self.put_back(time.perf_counter() - since)


class Run:
    """A run as it goes: the engine's state, and the history of its steps."""

    def __init__(self, problem: Problem, algorithm: Algorithm, engine: str, options: Any) -> None:
        self.problem, self.algorithm, self.engine = problem, algorithm, engine
        self.options, self.clock = options, Clock()
        self.title = f"{problem.model.name} by {engine}"
        self.callbacks: Sequence[Callback] = ()
        self.state: Any = None
        self.earlier: list[Any] = []  # the states that the last two steps began with
        self.history: list[Row] = []
        self.finished = False  # whether the engine says that nothing is left to do
        self.stopped: str | None = None  # why a callback ended the run early
        self.was_over = False  # whether a checkpoint held the end of this run
        self._resumed = -1, 0.0  # steps and seconds of a run that goes on
        self._pending = False  # whether the numbers of the last row are still to be read
        self._keeps = 0  # earlier states, beside the last one

    @property
    def stage(self) -> Stage:
        """How far the run is. An engine that is no sampler has an answer after each step."""
        stage = self.algorithm.stage
        return stage(self.state) if stage else Stage("", 0.0, True)

    @property
    def memory(self) -> dict[str, Any]:
        """What callbacks remember, by their names."""
        kept = {type(callback).__name__: callback.memory for callback in self.callbacks}
        return {name: memory for name, memory in kept.items() if memory is not None}

    def resume(self, saved: Any) -> None:
        """Go on where a run was left."""
        self.state, self.history, self.was_over = saved.state, saved.history, saved.finished
        self._resumed = saved.step, saved.seconds
        self.clock.put_back(self.clock.seconds - saved.seconds)
        for callback in self.callbacks:
            callback.memory = saved.memory.get(type(callback).__name__, callback.memory)

    def record(self, before: Any, info: Any, columns: Row) -> None:
        """Note a step that has been dispatched."""
        if not self.earlier:
            sizes = (getattr(x, "nbytes", 0) for x in jax.tree.leaves(before))
            self._keeps = int(sum(sizes) < LARGE_STATE)
        self.earlier = [*self.earlier[-1:][: self._keeps], before]
        self.history.append({"step": len(self.history), **info._asdict(), **columns})
        self._pending = True
        if hasattr(info, "finished"):
            self.finished = bool(devices.agreed(self.problem.devices, int(info.finished)))
        if len(self.history) == self._resumed[0] + 1:
            self._forget_compiling()

    def _forget_compiling(self) -> None:
        """The first step of a run that goes on counts as long as the one before, if any."""
        jax.block_until_ready(jax.tree.leaves(self.state))
        known = [row["seconds"] for row in self.history[-3:-1]]
        usual = known[1] - known[0] if len(known) > 1 else 0.0
        self.clock.put_back(max(0.0, self.clock.seconds - self._resumed[1] - usual))

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

    def as_fit(self, state: Any, stopped: str | None = None) -> Fit:
        """The result, were this state the last one."""
        seconds = self._resumed[1] if self.was_over else self.clock.seconds
        posterior, options = self.algorithm.posterior(state), self.options._asdict()
        history = columns_of(self.history[:-1] if self._pending else self.history)
        problem = posterior.problem
        return Fit(problem, self.engine, options, posterior, history, seconds, stopped=stopped)


# History ---------------------------------------------------------------------------------------


def read_numbers(row: Row) -> dict[str, float]:
    """Turn a row's device scalars into numbers, which waits for its step; returns those there are.

    The terms of a bound are added in double precision. A missing number becomes nan.
    """
    given = {name: value for name, value in row.items() if name != "step"}
    known = devices.totals({name: value for name, value in given.items() if value is not None})
    row.update({name: known.get(name, float("nan")) for name in given})
    row.setdefault("bound", float("nan"))  # samplers have none
    return known


def columns_of(history: list[Row]) -> dict[str, np.ndarray]:
    """The history's rows as columns: step, seconds, bound, then the engine's own."""
    names = dict.fromkeys(["step", "seconds", "bound", *(history[0] if history else ())])
    return {name: np.array([row[name] for row in history]) for name in names}


def rows_of(columns: dict[str, np.ndarray]) -> list[Row]:
    """The inverse of `columns_of`."""
    values = zip(*(x.tolist() for x in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


# Batches ---------------------------------------------------------------------------------------


def run_length(engine: Engine, options: Any, problem: Problem) -> tuple[int, int]:
    """Steps of the whole run, and how many of them the stopping rule averages over."""
    if engine.rows == "stream":
        return options.num_steps, 1
    if engine.rows not in ("batch", "partition"):
        return engine.num_steps(options, problem), 1
    whole, rest = divmod(problem.data.num_rows, options.batch_size)
    per_epoch = whole + (rest > 0 and engine.sharded)  # stock engines drop a last, smaller batch
    return options.num_epochs * per_epoch, per_epoch


def feed(
    engine: Engine, options: Any, problem: Problem, key: jax.Array, num_steps: int, first: int = 0
) -> Iterator[Any]:
    """The batches of each step from the `first` on.

    All rows are packed once. Batches of rows are packed while the step before runs.
    """
    data, devices = problem.data, problem.devices
    if engine.rows == "none":
        yield from (None for _ in range(first, num_steps))
        return
    if engine.rows == "stream":
        for step in range(first, num_steps):
            rows = stream_rows(options, data.num_rows, jax.random.fold_in(key, step), step)
            yield data.shards(rows, options.batch_size, devices)
        return
    size = data.num_rows if engine.rows == "all" else options.batch_size
    if size == data.num_rows:
        everything = data.shards(np.arange(size), size, devices)
        yield from (everything for _ in range(first, num_steps))
        return
    done, skip = divmod(first, num_steps // options.num_epochs)
    for epoch in range(done, options.num_epochs):
        epoch_key = jax.random.fold_in(key, 0 if engine.rows == "partition" else epoch)
        short = not engine.sharded
        yield from data.batches(epoch_key, size, devices, drop_last=short, skip=skip)
        skip = 0


def stream_rows(options: Any, num_rows: int, key: jax.Array, step: int) -> np.ndarray:
    """Rows picked at random from those that have arrived (T 16)."""
    return pick_rows(key, options.present(num_rows, step), options.batch_size)


def pick_rows(key: jax.Array, present: int, size: int) -> np.ndarray:
    """Some rows of those present, in order, without repetition."""
    seed = np.asarray(jax.random.key_data(key)).ravel()
    return np.sort(np.random.default_rng(seed).choice(present, min(size, present), replace=False))
