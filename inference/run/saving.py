"""Callbacks that put a run back where its checkpoint left it, and that write checkpoints."""

import warnings
from typing import Any

import jax

from inference.core import devices
from inference.core.interruption import Interruption, Stopped
from inference.run.callbacks import Limit
from inference.run.checkpoint import Checkpoints, Saved
from inference.run.guards import Guard
from inference.run.loop import Callback, Run
from pp_models.errors import InputError


class Resume(Callback):
    """Restore the state and the history, and forget the time that compiling took again."""

    def __init__(self, saved: Saved, limit: Limit, watch: Any) -> None:
        self._saved, self._limit, self._watch = saved, limit, watch

    def begin(self, run: Run) -> bool:
        saved = self._saved
        run.state, run.history, run.was_over = saved.state, saved.history, saved.finished
        self._limit.shares = list(saved.memory["shares"])
        if saved.memory["watch"] is not None and hasattr(self._watch, "memory"):
            self._watch.memory = saved.memory["watch"]
        return saved.finished

    def after_step(self, run: Run) -> bool:
        """The first step counts as long as the one before, or not at all where there is none."""
        if len(run.history) == self._saved.step + 1:
            jax.block_until_ready(jax.tree.leaves(run.state))
            known = [row["seconds"] for row in run.history[-3:-1]]
            usual = known[1] - known[0] if len(known) > 1 else 0.0
            run.clock.put_back(max(0.0, run.clock.seconds - self._saved.seconds - usual))
        return False


class Save(Callback):
    """Write checkpoints when they are due, at the end, and when a signal asks to stop.

    A state that is not finite never replaces one that was. The clock stands meanwhile.
    """

    def __init__(
        self, keeper: Checkpoints, guard: Guard, limit: Limit, watch: Any, asked: Interruption
    ) -> None:
        self._keeper, self._guard, self._limit = keeper, guard, limit
        self._watch, self._asked = watch, asked

    def after_step(self, run: Run) -> bool:
        due, signal = self._agree(run, self._keeper.due(len(run.history)))
        if due or signal:
            run.wait()
            self._guard.check_state(run)
            self._write(run)
            self._stop(run, signal)
        return False

    def end(self, run: Run) -> None:
        if not run.was_over:
            try:
                self._write(run, finished=self._limit.stopped is None)
            except InputError as error:  # the result is not lost
                told = f"The run is over, but its checkpoint is not written: {error}"
                warnings.warn(told, stacklevel=5)
        self._stop(run, self._agree(run, False)[1])

    def _agree(self, run: Run, due: bool) -> tuple[bool, int]:
        """Whether a checkpoint is due in all processes, and the signal sent to any, or 0."""
        signal = self._asked.signal or 0
        if not devices.is_shared(run.problem.devices):
            return due, signal
        everyone = devices.across(run.problem.devices, [int(due), signal])
        return bool(everyone[:, 0].all()), int(everyone[:, 1].max())

    def _write(self, run: Run, finished: bool = False) -> None:
        memory = {"shares": self._limit.shares, "watch": getattr(self._watch, "memory", None)}
        seconds = run.history[-1]["seconds"] if run.history else 0.0
        saved = Saved(len(run.history), seconds, run.state, run.history, memory, finished)
        with run.clock.standing():  # all processes have written this one before any writes the next
            devices.all_or_none(run.problem.devices, lambda: self._keeper.write(saved))

    def _stop(self, run: Run, signal: int) -> None:
        if signal:
            step, where = len(run.history) - 1, self._keeper.where
            raise Stopped(signal, f"{run.title} was stopped after step {step}, and {where}.")
