"""The time that a run takes, and the time that it may take."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from inference import devices as devices_
from inference.engine import Algorithm, Stage
from pp_models.errors import TooLarge


class Clock:
    """Seconds since it was made, or more where it goes on from some, those spent in `standing` left out."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.begin = time.perf_counter() - seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begin

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        since = time.perf_counter()
        try:
            yield
        finally:
            self.begin += time.perf_counter() - since


class Limit:
    """`max_seconds` of a run, and what becomes of it when they are over."""

    FAR = 10  # times as long as there is time: hopeless

    def __init__(self, title: str, max_seconds: float | None, num_steps: int, algorithm: Algorithm, devices: Any) -> None:
        self.title, self._devices = title, devices
        self.stopped: str | None = None
        self._max_seconds, self._num_steps, self._algorithm = max_seconds, num_steps, algorithm
        self.shares: list[float] = []  # of the run that was done after the last three steps

    def stage(self, state: Any) -> Stage:
        """How far the run is; an engine that is no sampler has an answer after each step."""
        return self._algorithm.stage(state) if self._algorithm.stage else Stage("", 0.0, True)

    def reached(self, history: list[dict[str, Any]], state: Any, again: bool = False) -> bool:
        """Whether the run ends here. Raises TooLarge for a sampler without draws whose time is over, or far too short.

        again: asked once more after the same step, by a run that goes on.

        The first step compiles, and the time begins at its end. How fast a sampler in warm-up is shows after a tenth of the time and two more steps;
        it gathers speed as it adapts, so the last two steps stand for what is to come.
        """
        if self._max_seconds is None:
            return False
        stage, steps = self.stage(state), len(history)
        first, *seconds = devices_.agreed(self._devices, [row["seconds"] for row in (history[0], *history[-3:])]).tolist()
        self.shares = self.shares if again and self.shares else [*self.shares[-2:], stage.share]
        spent = seconds[-1] - first
        over = spent > self._max_seconds
        if len(self.shares) > 1 and self.shares[-1] > self.shares[0] and not stage.usable:
            seconds = seconds[-len(self.shares) :]
            needed = spent + (1 - stage.share) * (seconds[-1] - seconds[0]) / (self.shares[-1] - self.shares[0])
            hopeless = steps > 2 and self.FAR * spent > self._max_seconds and needed > self.FAR * self._max_seconds
            if over or hopeless:
                about = f"{needed:,.0f}" if needed >= 10 else f"{needed:.1g}"
                raise TooLarge(
                    f"{self.title} would take about {about} seconds, but max_seconds is {self._max_seconds:g} and it is still warming up: "
                    "give it more time, fit fewer rows, or lower num_warmup and num_samples."
                )
        if over and steps < self._num_steps:
            self.stopped = f"stopped by max_seconds after {steps} of {self._num_steps} steps"
        return self.stopped is not None
