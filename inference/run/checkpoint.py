"""A run's state on disk, so that it can go on, bit for bit, after whatever ended it.

    keeper = Checkpoints(plan, recipe, title, devices)     # a callback that writes
    saved = keeper.read()                                  # None, or where the run was

The file is an archive (`inference.io.archives`) of the recipe (everything that the run's numbers
depend on), versions, the step, the state (`inference.io.snapshots`) and the history. It is written
whole or not at all. A file of another recipe is refused; other versions are warned of. If the disk
is full the run ends, and the last good checkpoint stays.

Several processes write one file each, named by its step. A file is removed when all processes have
written the next one, so there is always a step that all have.
"""

import hashlib
import re
import tempfile
import time
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.core import devices as devices_
from inference.core.engine import Engine
from inference.core.interruption import Interruption, Stopped
from inference.core.objective import Problem
from inference.core.provenance import plain, versions
from inference.io import archives, snapshots
from inference.run.guards import check_state
from inference.run.loop import Callback, Run, columns_of, rows_of
from pp_models.data.files import write_whole
from pp_models.errors import InputError

FORMAT = 4  # 2, 3: states name files and digests that changed; 4: one file per process and step
SHARE = 20  # a checkpoint that took a second to write is not written again for so many


class Plan(NamedTuple):
    """Where and when. seconds: between checkpoints. steps: the same, used where it is not 0."""

    path: Path
    seconds: float = 60.0
    steps: int = 0


class Foreign(InputError):
    """A checkpoint that is damaged, or of another run."""


class Saved(NamedTuple):
    """Where a run is: state, history, steps made, their seconds, and memory of callbacks."""

    state: Any
    history: list[dict[str, Any]]
    step: int
    seconds: float
    memory: Any = None
    finished: bool = False


# Files ----------------------------------------------------------------------------------------


def files_of(path: Path) -> list[Path]:
    """All files of the checkpoint, of whatever number of processes."""
    stem, suffix = re.escape(path.stem), re.escape(path.suffix)
    names = re.compile(rf"{re.escape(path.name)}|{stem}\.\d+-of-\d+\.\d+{suffix}")
    there = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    return [file for file in there if names.fullmatch(file.name) and file.is_file()]


def own_file(path: Path, step: int) -> Path:
    """The file that this process writes at a step."""
    if jax.process_count() == 1:
        return path
    process = f"{jax.process_index()}-of-{jax.process_count()}"
    return path.with_name(f"{path.stem}.{process}.{step}{path.suffix}")


def remove(path: Path) -> None:
    """Remove a checkpoint that is not needed any more."""
    for file in files_of(path):
        file.unlink(missing_ok=True)


def persist(
    path: Path, header: Any, arrays: Any, title: str, step: int, written: int | None
) -> None:
    """Replace an archive. title: of the run. written: the step of the archive that is there."""
    try:
        write_whole(path, lambda file: archives.write(file, header, arrays))
    except OSError as error:
        kept = "there is none yet" if written is None else f"that of step {written} is kept"
        raise InputError(
            f"The checkpoint {path} cannot be written ({error.strerror or error}), so {title} ends "
            f"at step {step}; of its checkpoints, {kept}: make room or restore the permissions, "
            "then start it again to go on."
        ) from error


# What a run is ---------------------------------------------------------------------------------


def recipe_of(
    problem: Problem, engine: Engine, options: Any, key: jax.Array, init: Any, every: int
) -> dict[str, Any]:
    """Everything that a run's numbers depend on, versions aside. every: `evaluate_every`."""
    hyper = problem.hyper._asdict().items()
    recipe = {
        "model": problem.model.name,
        "engine": engine.name,
        "options": options._asdict(),
        "hyper-parameters": {name: _digest(x) if hasattr(x, "shape") else x for name, x in hyper},
        "hyper-parameters to learn": problem.learn,
        "data": problem.data.hash,
        "key": [str(jax.random.key_impl(key)), np.asarray(jax.random.key_data(key)).tolist()],
        "init": _digest(init) if init else None,
        "precision": str(jax.numpy.result_type(float)),
        "number of devices": len(problem.devices),
        "evaluate_every": every,
    }
    return plain(recipe)


def _digest(tree: Any) -> str:
    """SHA-256 of the numbers in a tree of arrays."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def made_with() -> dict[str, str]:
    """What the bits of a run depend on beside its recipe."""
    device = jax.local_devices()[0].device_kind
    return {**versions(), "jaxlib": metadata.version("jaxlib"), "device": device}


# The callback ----------------------------------------------------------------------------------


class Checkpoints(Callback):
    """Write checkpoints when they are due, at the end, and when a signal asks to stop.

    A state that is not finite never replaces one that was. The clock stands meanwhile.
    devices: those that the run is shared out to. asked: the signals noted while it is entered.
    """

    def __init__(
        self, plan: Plan, recipe: dict[str, Any], title: str, devices: Sequence[Any] = ()
    ) -> None:
        self.plan, self._recipe, self._title, self._devices = plan, recipe, title, devices
        self.asked = Interruption(True)
        self._written: int | None = None  # the step of the last checkpoint
        self._next_time = time.perf_counter() + plan.seconds

    def read(self) -> Saved | None:
        """Where the run was left; None where there is no file."""
        held = devices_.all_or_none(self._devices, self._look)
        found = self._in_common(held) if devices_.is_shared(self._devices) else held
        if not found:
            return None
        self._written = max(found)
        for step in set(held) - {self._written}:  # a kill left files of steps that not all have
            own_file(self.plan.path, step).unlink(missing_ok=True)
        return found[self._written]

    def _look(self) -> dict[int, Saved]:
        """The checkpoints of this process by their steps."""
        path = self.plan.path
        _check_writable(path)
        found = []
        for file in files_of(path):
            numbered = re.search(r"\.(\d+)-of-(\d+)\.\d+$", file.name.removesuffix(path.suffix))
            process, count = map(int, numbered.groups()) if numbered and file != path else (0, 1)
            if count != jax.process_count():
                raise Foreign(
                    f"{file} is a checkpoint of another number of processes: go on with as many "
                    "as it was begun with, or remove it."
                )
            if process == jax.process_index():
                found.append(_read(file, self._recipe))
        return {saved.step: saved for saved in found}

    def _in_common(self, found: dict[int, Saved]) -> dict[int, Saved]:
        """Those of steps that every process has. The run is over if it is in all of them."""
        held = [*sorted(found), -1, -1][:2]
        over = [int(step in found and found[step].finished) for step in held]
        everyone = devices_.across(self._devices, [held, over])
        common = set.intersection(*(set(row.tolist()) for row in everyone[:, 0])) - {-1}
        if not common and (everyone[:, 0] >= 0).any():
            raise InputError(
                f"{self._title} cannot go on: the processes' checkpoints in "
                f"{self.plan.path.parent} have no step in common: restore the missing ones, or "
                "remove all of them to begin anew."
            )
        all_over = bool(everyone[:, 1].any(1).all())
        return {step: found[step]._replace(finished=all_over) for step in common}

    def after_step(self, run: Run) -> bool:
        due, signal = self._agree(self._is_due(len(run.history)))
        if due or signal:
            run.wait()
            check_state(run)
            self._write(run)
            self._stop(run, signal)
        return False

    def end(self, run: Run) -> None:
        if not run.was_over:
            try:
                self._write(run, finished=run.stopped is None)
            except InputError as error:  # the result is not lost
                told = f"The run is over, but its checkpoint is not written: {error}"
                warnings.warn(told, stacklevel=5)
        self._stop(run, self._agree(False)[1])

    def _is_due(self, step: int) -> bool:
        if self.plan.steps:
            return step - (self._written or 0) >= self.plan.steps
        return time.perf_counter() >= self._next_time

    def _agree(self, due: bool) -> tuple[bool, int]:
        """Whether a checkpoint is due in all processes, and the signal sent to any, or 0."""
        signal = self.asked.signal or 0
        if not devices_.is_shared(self._devices):
            return due, signal
        everyone = devices_.across(self._devices, [int(due), signal])
        return bool(everyone[:, 0].all()), int(everyone[:, 1].max())

    def _write(self, run: Run, finished: bool = False) -> None:
        """Write the state, in all processes, then remove the checkpoint before."""
        step, before, begin = len(run.history), self._written, time.perf_counter()
        if step == before and not finished:
            return
        with run.clock.standing():
            outline, arrays = snapshots.pack(run.state)
            history = columns_of(run.history)
            arrays |= {f"history/{name}": column for name, column in history.items()}
            seconds = run.history[-1]["seconds"] if run.history else 0.0
            told = Saved(outline, [], step, seconds, run.memory, finished)._asdict()
            header = {"format": FORMAT, "recipe": self._recipe, "versions": made_with(), **told}
            file = own_file(self.plan.path, step)
            everything = file, header, arrays, self._title, step, before
            devices_.all_or_none(self._devices, lambda: persist(*everything))
            if before is not None and (old := own_file(self.plan.path, before)) != file:
                old.unlink(missing_ok=True)
        self._written, now = step, time.perf_counter()
        self._next_time = now + max(self.plan.seconds, SHARE * (now - begin))

    def _stop(self, run: Run, signal: int) -> None:
        if signal:
            step, file = len(run.history), own_file(self.plan.path, len(run.history))
            told = f"was stopped after step {step - 1}, and its state is safe in {file}"
            raise Stopped(signal, f"{run.title} {told}.")


def _check_writable(path: Path) -> None:
    """Refuse a place that cannot be written to before anything is computed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(
            f"The checkpoint {path} cannot be written ({error.strerror or error}): choose another "
            "place."
        ) from error


def _read(file: Path, recipe: dict[str, Any]) -> Saved:
    """A checkpoint of this recipe. A damaged one, or one of another run, is refused and stays."""
    try:
        header, arrays = archives.read(file, "checkpoint", FORMAT)
        with archives.usable(file, "checkpoint"):
            differs = [name for name in recipe if header["recipe"].get(name) != recipe[name]]
            if differs:
                raise InputError(
                    f"{file} is the checkpoint of a run that differs in {' and '.join(differs)}: "
                    "go on with what it was begun with, or remove it."
                )
            history = rows_of(archives.group(arrays, "history"))
            kept = {name: header[name] for name in ("step", "seconds", "memory", "finished")}
            saved = Saved(snapshots.unpack(header["state"], arrays), history, **kept)
            versions = header["versions"]
    except InputError as error:
        raise Foreign(str(error)) from error
    _warn_of_versions(versions)
    return saved


def _warn_of_versions(before: dict[str, str]) -> None:
    found = made_with().items()
    changed = [f"{n} {before.get(n)} instead of {now}" for n, now in found if before.get(n) != now]
    if changed:
        warnings.warn(
            f"The run was begun with {', '.join(changed)}: it goes on, but may not end with the "
            "same bits.",
            stacklevel=5,
        )
