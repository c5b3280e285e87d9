"""Callbacks that show, score, watch and end a run. See also `guards` and `saving`."""

import functools
from typing import Any

import numpy as np

from inference.core import devices
from inference.core.completion import score_batch
from inference.run.loop import Callback, Row, Run
from inference.run.progress import Progress
from pp_models.errors import TooLarge


class Show(Callback):
    """Show the phase and the numbers in a progress bar."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def begin(self, run: Run) -> bool:
        self._bar.enter(run.stage.phase)
        return False

    def after_step(self, run: Run) -> bool:
        return self.begin(run)

    def settled(self, run: Run, numbers: dict[str, float]) -> None:
        self._bar.update(numbers)


class Score(Callback):
    """Score every so many-th batch of documents before it is learned from (`evaluate_every`)."""

    def __init__(self, every: int) -> None:
        self._every = every

    def before_step(self, run: Run, batches: Any) -> Row:
        if (len(run.history) + 1) % self._every:
            return {"heldout": None}
        run.settle()
        with run.clock.standing():
            posterior, size = run.algorithm.posterior(run.state), run.options.batch_size
            return {"heldout": score_batch(posterior, run.problem.data, batches, size)}


class Watch(Callback):
    """Call the user's function after each step."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def after_step(self, run: Run) -> bool:
        run.wait()
        row = run.history[-1]
        with run.clock.standing():
            posterior = functools.partial(run.algorithm.posterior, run.state)
            self._function(row["step"], row["seconds"], posterior)
        return False


class Convergence(Callback):
    """End a run whose engine says so, or whose bound has stopped rising.

    The mean bound of the last `window` steps must improve by less than `tolerance`, relatively,
    over that of the steps before. The step that was just dispatched does not count.
    """

    def __init__(self, window: int, tolerance: float) -> None:
        self._window, self._tolerance = window, tolerance

    def after_step(self, run: Run) -> bool:
        if self._tolerance <= 0 and not hasattr(run.info, "finished"):
            return False
        finished = getattr(run.info, "finished", False) or self._is_flat(run.history)
        return bool(devices.agreed(run.problem.devices, int(finished)))

    def _is_flat(self, history: list[Row]) -> bool:
        window = self._window
        bounds = np.array([row["bound"] for row in history[-(2 * window + 1) : -1]])
        if self._tolerance <= 0 or len(bounds) < 2 * window or (len(history) - 1) % window:
            return False
        parts = bounds[:window], bounds[window:]
        if any(np.all(np.isnan(part)) for part in parts):
            return False
        old, new = (np.nanmean(part) for part in parts)
        return bool(abs(new - old) <= self._tolerance * abs(old))


class Limit(Callback):
    """End a run after `max_seconds`; `stopped` then says so.

    The first step compiles, and the time begins at its end. A sampler without draws raises
    TooLarge when its time is over, or when a tenth of the time and two more steps show that it
    would take ten times as long. A sampler gets faster as it adapts, so the last two steps stand
    for those to come.
    """

    FAR = 10

    def __init__(self, max_seconds: float | None, num_steps: int) -> None:
        self._max_seconds, self._num_steps = max_seconds, num_steps
        self.stopped: str | None = None
        self.shares: list[float] = []  # of the run that was done after the last three steps

    def begin(self, run: Run) -> bool:
        if self._max_seconds is None or not run.history:
            return False
        if not self.shares:
            self.shares = [run.stage.share]
        return self._is_reached(run, self._max_seconds)

    def after_step(self, run: Run) -> bool:
        if self._max_seconds is None:
            return False
        run.wait()
        self.shares = [*self.shares[-2:], run.stage.share]
        return self._is_reached(run, self._max_seconds)

    def _is_reached(self, run: Run, most: float) -> bool:
        steps, shares = len(run.history), self.shares
        times = [row["seconds"] for row in (run.history[0], *run.history[-3:])]
        first, *seconds = devices.agreed(run.problem.devices, times).tolist()
        spent = seconds[-1] - first
        over = spent > most
        if len(shares) > 1 and shares[-1] > shares[0] and not run.stage.usable:
            seconds = seconds[-len(shares) :]
            pace = (seconds[-1] - seconds[0]) / (shares[-1] - shares[0])
            needed = spent + (1 - shares[-1]) * pace
            if over or (steps > 2 and self.FAR * spent > most and needed > self.FAR * most):
                about = f"{needed:,.0f}" if needed >= 10 else f"{needed:.1g}"
                raise TooLarge(
                    f"{run.title} would take about {about} seconds, but max_seconds is {most:g} "
                    "and it is still warming up: give it more time, fit fewer rows, or lower "
                    "num_warmup and num_samples."
                )
        if over and steps < self._num_steps:
            self.stopped = f"stopped by max_seconds after {steps} of {self._num_steps} steps"
        return self.stopped is not None
