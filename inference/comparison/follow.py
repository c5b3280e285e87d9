"""Held-out scores and warnings of a fit that is under way."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from inference.evaluation.heldout import heldout_score
from inference.io.fits import Fit
from pp_models.data.types import Data

SLOW_SCORE = 0.5  # seconds for a held-out score above which no more are computed during a fit
SLOWEST_SCORE = 20.0  # the same for the first two, which compile


class Follow:
    """Score held-out data after 1, 2, 4, 8, ... steps of a fit, into `curve`: [seconds, score].

    memory: goes into the fit's checkpoints
    caught: warnings of the fit
    """

    def __init__(self, engine: str, heldout: Data | None) -> None:
        self._engine, self._heldout = engine, heldout
        self.curve: list[list[float]] = []
        self.caught: list[Any] = []
        self._next: float | None = None if heldout is None else 1.0  # step; None: no more scores
        self._scores = 0  # in this process
        self._notes: list[str] = []  # of before an interruption

    @property
    def notes(self) -> list[str]:
        """All warnings, once each."""
        kinds = UserWarning, RuntimeWarning
        new = [str(one.message) for one in self.caught if issubclass(one.category, kinds)]
        return list(dict.fromkeys([*self._notes, *new]))

    @property
    def memory(self) -> dict[str, Any]:
        return {"curve": self.curve, "next": self._next, "notes": self.notes}

    @memory.setter
    def memory(self, before: dict[str, Any]) -> None:
        self.curve, self._notes = list(before["curve"]), list(before["notes"])
        self._next = before["next"]

    def __call__(self, step: int, seconds: float, posterior: Callable[[], Any]) -> None:
        if self._next is None or step + 1 < self._next:
            return
        begin = time.perf_counter()
        try:
            now = posterior()
            present = Fit(now.problem, self._engine, {}, now, {}, seconds)
            score, _ = heldout_score(present, self._heldout)
        except Exception:  # the score of the finished fit reports the error
            score = None
        if score is None or not np.isfinite(score):
            self._next = None
            return
        self.curve.append([float(seconds), float(score)])
        self._scores += 1
        limit = SLOW_SCORE if self._scores > 2 else SLOWEST_SCORE
        self._next = None if time.perf_counter() - begin > limit else 2 * (step + 1)
