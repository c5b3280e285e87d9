"""Callbacks that show, score, watch and end a run. See also `guards` and `checkpoint`."""

import functools
import warnings
from typing import Any

import numpy as np
from tqdm import tqdm

from inference.core import devices
from inference.core.completion import score_batch
from inference.run.loop import Callback, Row, Run
from pp_models.errors import TooLarge

SHOWN = {"bound": "{:.6g}", "log_joint": "{:.6g}", "rate": "{:.3g}", "divergences": "{:.0f}"}


class Progress(Callback):
    """A progress bar: `with Progress(title, steps) as bar: bar.update({"bound": ...})`.

    show:  True or False to force it; None, or text to put before the title, shows it on a terminal
    first: steps that were made before
    """

    def __init__(
        self, title: str, num_steps: int, show: bool | str | None = None, first: int = 0
    ) -> None:
        self._title = f"{show}: {title}" if isinstance(show, str) and show else title
        look = {"unit": "step", "leave": False, "dynamic_ncols": True, "desc": self._title}
        hidden = not show if isinstance(show, bool) else None
        self._bar: Any = tqdm(total=num_steps, initial=first, disable=hidden, **look)
        self.is_visible = not self._bar.disable

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def begin(self, run: Run) -> bool:
        """Name the phase that the run is in, where it has any."""
        phase = run.stage.phase
        title = f"{self._title}, {phase}" if phase else self._title
        if self._bar.desc != f"{title}: ":
            self._bar.set_description(title)
        return False

    def after_step(self, run: Run) -> bool:
        return self.begin(run)

    def settled(self, run: Run, numbers: dict[str, float]) -> None:
        self.update(numbers)

    def update(self, numbers: dict[str, Any]) -> None:
        """One step done, with these numbers."""
        if self.is_visible:
            known = {name: x for name, x in numbers.items() if name in SHOWN and x == x}
            shown = {name: SHOWN[name].format(x) for name, x in known.items()}
            self._bar.set_postfix(shown, refresh=False)
        self._bar.update()


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

    @property
    def memory(self) -> Any:
        return getattr(self._function, "memory", None)

    @memory.setter
    def memory(self, memory: Any) -> None:
        if hasattr(self._function, "memory"):
            self._function.memory = memory

    def after_step(self, run: Run) -> bool:
        run.wait()
        row = run.history[-1]
        with run.clock.standing():
            self._function(row["step"], row["seconds"], functools.partial(_so_far, run))
        return False


def _so_far(run: Run) -> Any:
    """The posterior of a run that goes on, without its warnings, which are about the last one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run.algorithm.posterior(run.state)


class Convergence(Callback):
    """End a run whose bound has stopped rising.

    The mean bound of the last `window` steps must improve by less than `tolerance`, relatively,
    over that of the steps before. The step that was just dispatched does not count.
    """

    def __init__(self, window: int, tolerance: float) -> None:
        self._window, self._tolerance = window, tolerance

    def after_step(self, run: Run) -> bool:
        return bool(devices.agreed(run.problem.devices, int(self._is_flat(run.history))))

    def _is_flat(self, history: list[Row]) -> bool:
        window = self._window
        bounds = np.array([row["bound"] for row in history[-(2 * window + 1) : -1]])
        if len(bounds) < 2 * window or (len(history) - 1) % window:
            return False
        parts = bounds[:window], bounds[window:]
        if any(np.all(np.isnan(part)) for part in parts):
            return False
        old, new = (np.nanmean(part) for part in parts)
        return bool(abs(new - old) <= self._tolerance * abs(old))


class Limit(Callback):
    """End a run after `max_seconds`.

    The first step compiles, and the time begins at its end. A sampler without draws raises
    TooLarge when its time is over, or when a tenth of the time and two more steps show that it
    would take ten times as long. A sampler gets faster as it adapts, so the last two steps stand
    for those to come.

    memory: the shares of the run that were done after the last three steps
    """

    FAR = 10

    def __init__(self, max_seconds: float, num_steps: int) -> None:
        self._max_seconds, self._num_steps = max_seconds, num_steps
        self.memory: list[float] = []

    def begin(self, run: Run) -> bool:
        if not run.history:
            return False
        self.memory = self.memory or [run.stage.share]
        return self._is_reached(run, self._max_seconds)

    def after_step(self, run: Run) -> bool:
        run.wait()
        self.memory = [*self.memory[-2:], run.stage.share]
        return self._is_reached(run, self._max_seconds)

    def _is_reached(self, run: Run, most: float) -> bool:
        steps, shares = len(run.history), self.memory
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
        if over and steps < self._num_steps and not run.finished:
            run.stopped = f"stopped by max_seconds after {steps} of {self._num_steps} steps"
        return run.stopped is not None
