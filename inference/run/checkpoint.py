"""A run's state on disk, so that it can go on, bit for bit, after whatever ended it.

    keeper = Checkpoints(plan, recipe, title, devices)
    saved = keeper.read()                  # None, or where the run was
    if keeper.due(step):
        keeper.write(Saved(...))

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
from inference.run.callbacks import Limit
from inference.run.guards import Guard
from inference.run.loop import Callback, Run
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
    """Where a run is: steps made, their seconds, state, history, and what callbacks remember."""

    step: int
    seconds: float
    state: Any
    history: list[dict[str, Any]]
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


# Reading and writing --------------------------------------------------------------------------


class Checkpoints:
    """The checkpoint of one run. devices: those that the run is shared out to."""

    def __init__(
        self, plan: Plan, recipe: dict[str, Any], title: str, devices: Sequence[Any] = ()
    ) -> None:
        self.plan, self._recipe, self._title, self._devices = plan, recipe, title, devices
        self._written: int | None = None  # the step of the last checkpoint
        self._next_time = time.perf_counter() + plan.seconds

    def read(self) -> Saved | None:
        """Where the run was left; None where there is no file."""
        found = devices_.all_or_none(self._devices, self._look)
        if devices_.is_shared(self._devices):
            found = self._in_common(found)
        if not found:
            return None
        saved = found[max(found)]
        self._written = saved.step
        return saved

    def _look(self) -> dict[int, Saved]:
        """The checkpoints of this process by their steps."""
        path = self.plan.path
        _check_writable(path)
        count, found = jax.process_count(), []
        for file in files_of(path):
            numbered = re.search(r"\.(\d+)-of-(\d+)\.\d+$", file.name.removesuffix(path.suffix))
            process, of = map(int, numbered.groups()) if numbered and file != path else (0, 1)
            if of != count:
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

    def due(self, step: int) -> bool:
        """Whether so many steps, or so much time, have passed since the last one."""
        if self.plan.steps:
            return step - (self._written or 0) >= self.plan.steps
        return time.perf_counter() >= self._next_time

    def write(self, saved: Saved) -> None:
        """Write this state, in all processes, then remove the one before."""
        before = self._written
        if saved.step == before and not saved.finished:
            return
        begin = time.perf_counter()
        outline, arrays = snapshots.pack(saved.state)
        for name in saved.history[0] if saved.history else ():
            arrays[f"history/{name}"] = np.array([row[name] for row in saved.history])
        told = saved._replace(state=outline, history=[])._asdict()
        header = {"format": FORMAT, "recipe": self._recipe, "versions": made_with(), **told}
        file = own_file(self.plan.path, saved.step)
        everything = file, header, arrays, self._title, saved.step, before
        devices_.all_or_none(self._devices, lambda: persist(*everything))
        if before is not None and (old := own_file(self.plan.path, before)) != file:
            old.unlink(missing_ok=True)
        self._written = saved.step
        spent = time.perf_counter() - begin
        self._next_time = time.perf_counter() + max(self.plan.seconds, SHARE * spent)


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
            _warn_of_versions(header["versions"])
            columns = archives.group(arrays, "history")
            values = zip(*(x.tolist() for x in columns.values()), strict=True)
            history = [dict(zip(columns, row, strict=True)) for row in values]
            state = snapshots.unpack(header["state"], arrays)
            kept = {name: header[name] for name in ("step", "seconds", "memory", "finished")}
            return Saved(state=state, history=history, **kept)
    except InputError as error:
        raise Foreign(str(error)) from error


def _warn_of_versions(before: dict[str, str]) -> None:
    found = made_with().items()
    changed = [f"{n} {before.get(n)} instead of {now}" for n, now in found if before.get(n) != now]
    if changed:
        warnings.warn(
            f"The run was begun with {', '.join(changed)}: it goes on, but may not end with the "
            "same bits.",
            stacklevel=5,
        )


# Callbacks ------------------------------------------------------------------------------------


class Resume(Callback):
    """Restore the state and the history, and forget the time that compiling took again."""

    def __init__(self, saved: Saved, limit: Limit | None, watch: Any) -> None:
        self._saved, self._limit, self._watch = saved, limit, watch

    def begin(self, run: Run) -> bool:
        saved = self._saved
        run.state, run.history, run.was_over = saved.state, saved.history, saved.finished
        if self._limit is not None:
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
        self,
        keeper: Checkpoints,
        guard: Guard,
        limit: Limit | None,
        watch: Any,
        asked: Interruption,
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
                self._write(run, finished=run.stopped is None)
            except InputError as error:  # the result is not lost
                told = f"The run is over, but its checkpoint is not written: {error}"
                warnings.warn(told, stacklevel=5)
        self._stop(run, self._agree(run, False)[1])

    def _agree(self, run: Run, due: bool) -> tuple[bool, int]:
        """Whether a checkpoint is due in all processes, and the signal sent to any, or 0."""
        signal = self._asked.signal or 0
        if not devices_.is_shared(run.problem.devices):
            return due, signal
        everyone = devices_.across(run.problem.devices, [int(due), signal])
        return bool(everyone[:, 0].all()), int(everyone[:, 1].max())

    def _write(self, run: Run, finished: bool = False) -> None:
        shares = self._limit.shares if self._limit else []
        memory = {"shares": shares, "watch": getattr(self._watch, "memory", None)}
        seconds = run.history[-1]["seconds"] if run.history else 0.0
        with run.clock.standing():
            self._keeper.write(
                Saved(len(run.history), seconds, run.state, run.history, memory, finished)
            )

    def _stop(self, run: Run, signal: int) -> None:
        if signal:
            file = own_file(self._keeper.plan.path, len(run.history))
            raise Stopped(
                signal,
                f"{run.title} was stopped after step {len(run.history) - 1}, and its state is safe "
                f"in {file}.",
            )
