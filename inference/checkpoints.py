"""A run's state on disk, so that it can go on, bit for bit, after whatever ended it.

    checkpoint = Checkpoints(plan, recipe)
    saved = checkpoint.read()                  # None, or where the run was
    if checkpoint.due(step): checkpoint.write(Saved(...))

The file is an archive (`pp_models.archives`): in its header the recipe (everything that the run's numbers depend on), versions, the step, and the
outline of the state; then the state's arrays (`snapshots`) and the history's columns. It is written whole or not at all, so the last good one is
there at every moment. A file of another recipe is refused; other versions of packages are warned of.

Where the disk is full or may not be written any more the run pauses, says so, and tries again until it can go on or is stopped.

Where several processes work together each writes what it holds, into two files in turn. None writes its next one before all have written this one
(`fitting.Loop.save`), so there is always a step that all of them have, and the run goes on from the last such step.
"""

import errno
import hashlib
import json
import math
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from inference import devices as devices_
from inference import snapshots
from inference.provenance import plain, versions
from pp_models import archives
from pp_models.errors import InputError
from pp_models.files import write_whole

FORMAT = 1
SHARE = 20  # a checkpoint that took a second to write is not written again for so many
PATIENCE = 3600.0  # seconds that a run waits for a disk that cannot be written to
PATIENCE_TOGETHER = 1200.0  # the same where other processes wait for it: their exchange gives up after half an hour
RETRY = 5.0  # seconds between tries
HEALS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE}  # troubles that may pass
LARGE = 1000  # numbers of a hyper-parameter that stand in a recipe themselves, and not as a digest


class Plan(NamedTuple):
    """Where and when. seconds: between checkpoints. steps: between checkpoints, in place of seconds where it is not 0."""

    path: Path
    seconds: float = 60.0
    steps: int = 0


class Foreign(InputError):
    """A checkpoint that is damaged, or of another run."""


class Saved(NamedTuple):
    """Where a run is: steps made, seconds they took, the engine's state, the history's rows, and what the loop, and who watches it, remember."""

    step: int
    seconds: float
    state: Any
    history: list[dict[str, Any]]
    memory: Any = None
    finished: bool = False


def files_of(path: Path) -> list[Path]:
    """All files of the checkpoint that are there, of whatever number of processes."""
    several = re.compile(rf"{re.escape(path.stem)}\.\d+-of-\d+\.[ab]{re.escape(path.suffix)}")
    there = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    return [file for file in there if (file.name == path.name or several.fullmatch(file.name)) and file.is_file()]


def own_files(path: Path) -> list[Path]:
    """Those that this process writes, in turn."""
    if jax.process_count() == 1:
        return [path]
    return [path.with_name(f"{path.stem}.{jax.process_index()}-of-{jax.process_count()}.{turn}{path.suffix}") for turn in "ab"]


def remove(path: Path) -> None:
    """A checkpoint that is not needed any more."""
    for file in files_of(path):
        file.unlink(missing_ok=True)


def make_plan(path: Any, seconds: Any, steps: Any) -> Plan | None:
    """The user's wishes, checked; None without a path."""
    if path is None:
        return None
    if not isinstance(path, str | Path) or not str(path):
        raise InputError(f"checkpoint must be the path of a file to keep the run's state in, not {path!r}.")
    check_when(seconds, steps)
    path = Path(path)
    if path.is_dir():
        raise InputError(f"checkpoint {path} is a folder: name a file.")
    return Plan(path, float(seconds), int(steps))


def check_when(seconds: Any, steps: Any, name: str = "checkpoint_steps") -> None:
    """Refuse times and numbers of steps that cannot be. name: of the steps."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number) or not 0 <= seconds < math.inf:
        raise InputError(f"checkpoint_seconds must be 0 or more, not {seconds!r}.")
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
        raise InputError(f"{name} must be a whole number, 0 or more, not {steps!r}.")


def recipe_of(problem: Any, engine: str, options: dict[str, Any], key: jax.Array, init: dict[str, Any], evaluate_every: int) -> dict[str, Any]:
    """Everything that a run's numbers depend on, versions aside."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(init):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    hyper = {name: _told(x) if hasattr(x, "shape") else x for name, x in problem.hyper._asdict().items()}
    return plain(
        {
            "model": problem.model.name,
            "engine": engine,
            "options": options,
            "hyper-parameters": hyper,
            "hyper-parameters to learn": problem.learn,
            "data": problem.data.hash,
            "key": [str(jax.random.key_impl(key)), np.asarray(jax.random.key_data(key)).tolist()],
            "init": digest.hexdigest() if init else None,
            "precision": str(jax.numpy.result_type(float)),
            "number of devices": len(problem.devices),
            "evaluate_every": evaluate_every,
        }
    )


def _told(x: Any) -> Any:
    return np.asarray(x).tolist() if x.size <= LARGE else hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()


def made_with() -> dict[str, str]:
    """What the bits of a run depend on beside its recipe."""
    return {**versions(), "jaxlib": metadata.version("jaxlib"), "device": jax.local_devices()[0].device_kind}


class Checkpoints:
    """The checkpoint of one run. Without a plan nothing is read or written. devices: those that the run is shared out to."""

    def __init__(self, plan: Plan | None, recipe: Callable[[], dict[str, Any]], title: str, devices: Sequence[Any] = ()) -> None:
        self.plan, self._title, self._devices = plan, title, devices
        self._recipe = None if plan is None else recipe()
        self._files = [] if plan is None else own_files(plan.path)  # the one to be written next comes first
        self._last_step, self._next_time = 0, 0.0
        self._written: int | None = None

    @property
    def where(self) -> str:
        """Where the state is, as a user is told."""
        return "its state is not kept" if self.plan is None else f"its state is safe in {self._files[-1]}"

    def read(self) -> Saved | None:
        """Where the run was left; None where there is no file. One that is damaged, or of another run, is refused: nothing is lost by trying."""
        self._next_time = time.perf_counter() + (self.plan.seconds if self.plan else 0.0)
        if self.plan is None:
            return None
        found = devices_.all_or_none(self._devices, self._look)
        mark = self._agree(list(found))
        if mark is None:
            for _, _, file in found.values():  # of a beginning that not all processes have
                file.unlink()
            return None
        header, arrays, file = found[mark]
        saved = devices_.all_or_none(self._devices, lambda: self._unpack(header, arrays, file))
        self._files = [*(other for other in self._files if other != file), file]
        self._last_step = self._written = saved.step
        return saved

    def _look(self) -> dict[int, tuple[dict[str, Any], dict[str, np.ndarray], Path]]:
        """What this process has: mark -> header, arrays, file. A mark is twice the number of steps, and one more where the run is over."""
        path = self.plan.path  # type: ignore[union-attr]
        _try(path)
        number, found = f"-of-{jax.process_count()}.", {}
        for file in files_of(path):
            if file in self._files:
                header, arrays = self._read(file)
                found[2 * header["step"] + header["finished"]] = header, arrays, file
            elif len(self._files) == 1 or number not in file.name.removeprefix(path.stem):
                raise Foreign(f"{file} is a checkpoint of another number of processes: go on with as many as it was begun with, or remove it.")
        return dict(sorted(found.items()))

    def _agree(self, marks: list[int]) -> int | None:
        """The last of the marks that every process has; None where the run begins."""
        if not devices_.is_shared(self._devices):
            return marks[-1] if marks else None
        sees_any = bool(files_of(self.plan.path))  # type: ignore[union-attr]
        everyone = devices_.across(self._devices, [*[*marks, -1, -1][:2], int(sees_any)])
        held = [set(row[row >= 0].tolist()) for row in everyone[:, :2]]
        if common := set.intersection(*held):
            return max(common)
        known = set.union(*held)
        if len(known) > 1 or (not known and everyone[:, 2].any()):
            raise InputError(
                f"{self._title} cannot go on: the processes' checkpoints have no step in common, so a file like {self._files[0]} is missing, or "
                "processes have other numbers than before: put it right, or remove all of them, and the run begins anew."
            )
        if known:
            warnings.warn(f"{self._title} begins anew: it was ended before all processes had written their first checkpoint.", stacklevel=4)
        return None

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        try:
            header, arrays = archives.read(path, "checkpoint", FORMAT)
            differs = [name for name in self._recipe or {} if header["recipe"].get(name) != (self._recipe or {})[name]]
            header |= {"step": int(header["step"]), "finished": bool(header["finished"])}
        except InputError as error:
            raise Foreign(str(error)) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _incomplete(path, error) from error
        if differs:
            raise Foreign(
                f"{path} is the checkpoint of a run that differs in {' and '.join(differs)}: go on with what it was begun with, or remove it."
            )
        return header, arrays

    def _unpack(self, header: dict[str, Any], arrays: dict[str, np.ndarray], path: Path) -> Saved:
        try:
            self._warn_of_versions(header["versions"])
            columns = {name.split("/", 1)[1]: x for name, x in arrays.items() if name.startswith("history/")}
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*(x.tolist() for x in columns.values()), strict=True)]
            state = snapshots.unpack(header["state"], arrays)
            return Saved(header["step"], float(header["seconds"]), state, rows, header["memory"], header["finished"])
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise _incomplete(path, error) from error

    def _warn_of_versions(self, before: dict[str, str]) -> None:
        changed = [f"{name} {before.get(name)} instead of {found}" for name, found in made_with().items() if before.get(name) != found]
        if changed:
            warnings.warn(f"The run was begun with {', '.join(changed)}: it goes on, but may not end with the same bits.", stacklevel=6)

    def due(self, step: int) -> bool:
        """Whether so many steps, or so much time, have passed since the last one."""
        if self.plan is None:
            return False
        return step - self._last_step >= self.plan.steps if self.plan.steps else time.perf_counter() >= self._next_time

    def write(self, saved: Saved, stop: Callable[[], Any] = lambda: None) -> None:
        """Replace the file. Where that is not possible, wait until it is. stop: called meanwhile, to raise where waiting is over."""
        if self.plan is None or (saved.step == self._written and not saved.finished):
            return
        begin = time.perf_counter()
        outline, arrays = snapshots.pack(saved.state)
        names = saved.history[0] if saved.history else ()
        arrays |= {f"history/{name}": np.array([row[name] for row in saved.history]) for name in names}
        header = {"format": FORMAT, "recipe": self._recipe, "versions": made_with(), "state": outline}
        header |= {"step": saved.step, "seconds": saved.seconds, "memory": saved.memory, "finished": saved.finished}
        if len(arrays) >= archives.MOST_MEMBERS or len(json.dumps(header)) > archives.HEADER_BYTES - 1000:
            warnings.warn(f"The state of {self._title} has too many parts for a checkpoint: the run goes on without.", stacklevel=4)
            self.plan = None
            return
        patience = PATIENCE_TOGETHER if devices_.is_shared(self._devices) else PATIENCE
        persist(self._files[0], header, arrays, self._title, saved.step, self._written, stop, patience)
        self._files = [*self._files[1:], self._files[0]]
        self._last_step = self._written = saved.step
        self._next_time = time.perf_counter() + max(self.plan.seconds, SHARE * (time.perf_counter() - begin))


def _incomplete(path: Path, error: Exception) -> Foreign:
    return Foreign(f"{path} is not a complete checkpoint ({error}): remove it, and the run begins anew.")


def _try(path: Path) -> None:
    """Refuse a place that cannot be written to before anything is computed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(f"The checkpoint {path} cannot be written ({error.strerror or error}): choose another place.") from error


def persist(
    path: Path,
    header: Any,
    arrays: Any,
    title: str,
    step: int,
    written: int | None,
    stop: Callable[[], Any] = lambda: None,
    patience: float | None = None,
) -> None:
    """Replace an archive, waiting for a disk that cannot be written to. title: who waits. written: the step of what is there. stop: see `write`."""
    patience = PATIENCE if patience is None else patience
    since, told = time.perf_counter(), False
    while True:
        try:
            write_whole(path, lambda file: archives.write(file, header, arrays))
        except OSError as error:
            kept = "there is none yet" if written is None else f"that of step {written} is kept"
            waited = time.perf_counter() - since
            if waited > patience or error.errno not in HEALS:
                raise InputError(
                    f"{path} could not be written for {waited:.0f} seconds ({error.strerror or error}), and {title} ends at step {step}; "
                    f"of its checkpoints, {kept}: make room or restore the permissions, then resume."
                ) from error
            if not told:
                print(
                    f"{title} pauses at step {step}: the checkpoint {path} cannot be written ({error.strerror or error}), and {kept}. "
                    "Make room or restore the permissions and it goes on; Ctrl-C ends it.",
                    file=sys.stderr,
                    flush=True,
                )
                told = True
            _wait(RETRY, stop)
        else:
            if told:
                print(f"{title} goes on: the checkpoint of step {step} is written.", file=sys.stderr, flush=True)
            return


def _wait(seconds: float, stop: Callable[[], Any]) -> None:
    """Wait, looking out for a reason to stop."""
    end = time.perf_counter() + seconds
    while True:
        stop()
        left = end - time.perf_counter()
        if left <= 0:
            return
        time.sleep(min(left, 0.1))
