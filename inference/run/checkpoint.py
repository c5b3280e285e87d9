"""A run's state on disk, so that it can go on, bit for bit, after whatever ended it.

    keeper = Checkpoints(plan, recipe, title)
    saved = keeper.read()                  # None, or where the run was
    if keeper.due(step):
        keeper.write(Saved(...))

The file is an archive (`inference.io.archives`). Its header holds the recipe (everything that the
run's numbers depend on), versions, the step, and the outline of the state. Then follow the state's
arrays (`snapshots`) and the history's columns. The file is written whole or not at all. A file of
another recipe is refused; other versions of packages are warned of. A disk that cannot be written
to ends the run with a sentence, and the last good checkpoint stays.

Of several processes each writes what it holds, into two files in turn. None writes its next file
before all have written this one, so there is always a step that all have. One file each would not
do: a process that is killed before it has replaced its file has another step than the rest.
"""

import hashlib
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.core import devices as devices_
from inference.core.provenance import plain, versions
from inference.io import archives, snapshots
from inference.io.archives import usable
from pp_models.data.files import write_whole
from pp_models.errors import InputError

FORMAT = 3  # 2: states name the files that engines moved to; 3: digests of hyper-parameters
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
    versions: dict[str, str] | None = None  # of packages, of one that was read


# Files ----------------------------------------------------------------------------------------


def files_of(path: Path) -> list[Path]:
    """All files of the checkpoint that are there, of whatever number of processes."""
    stem, suffix = re.escape(path.stem), re.escape(path.suffix)
    names = re.compile(rf"{re.escape(path.name)}|{stem}\.\d+-of-\d+\.[ab]{suffix}")
    there = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    return [file for file in there if names.fullmatch(file.name) and file.is_file()]


def own_files(path: Path) -> list[Path]:
    """The files that this process writes, in turn."""
    if jax.process_count() == 1:
        return [path]
    stem = f"{path.stem}.{jax.process_index()}-of-{jax.process_count()}"
    return [path.with_name(f"{stem}.{turn}{path.suffix}") for turn in "ab"]


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
    problem: Any,
    engine: str,
    options: dict[str, Any],
    key: jax.Array,
    init: dict[str, Any],
    evaluate_every: int,
) -> dict[str, Any]:
    """Everything that a run's numbers depend on, versions aside."""
    hyper = problem.hyper._asdict().items()
    recipe = {
        "model": problem.model.name,
        "engine": engine,
        "options": options,
        "hyper-parameters": {name: _digest(x) if hasattr(x, "shape") else x for name, x in hyper},
        "hyper-parameters to learn": problem.learn,
        "data": problem.data.hash,
        "key": [str(jax.random.key_impl(key)), np.asarray(jax.random.key_data(key)).tolist()],
        "init": _digest(init) if init else None,
        "precision": str(jax.numpy.result_type(float)),
        "number of devices": len(problem.devices),
        "evaluate_every": evaluate_every,
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
    """The checkpoint of one run. Without a plan nothing is read or written.

    devices: those that the run is shared out to.
    """

    def __init__(
        self,
        plan: Plan | None,
        recipe: Callable[[], dict[str, Any]],
        title: str,
        devices: Sequence[Any] = (),
    ) -> None:
        self.plan, self._title, self._devices = plan, title, devices
        self._recipe = {} if plan is None else recipe()
        self._files = [] if plan is None else own_files(plan.path)  # the next one to write first
        self._last_step, self._next_time = 0, 0.0
        self._written: int | None = None

    @property
    def where(self) -> str:
        """Where the state is, as a user is told."""
        return f"its state is safe in {self._files[-1]}" if self.plan else "its state is not kept"

    def read(self) -> Saved | None:
        """Where the run was left; None where there is no file."""
        if self.plan is None:
            return None
        self._next_time = time.perf_counter() + self.plan.seconds
        found = devices_.all_or_none(self._devices, self._look)
        mark = self._agree(list(found))
        if mark is None:
            for file, _ in found.values():  # of a beginning that not all processes have
                file.unlink()
            return None
        file, saved = found[mark]
        _warn_of_versions(saved.versions)
        self._files = [*(other for other in self._files if other != file), file]
        self._last_step = self._written = saved.step
        return saved

    def _look(self) -> dict[int, tuple[Path, Saved]]:
        """The checkpoints of this process with their files, by mark, in order.

        A mark is twice the number of steps, and one more where the run is over.
        """
        path = self.plan.path  # type: ignore[union-attr]
        _check_writable(path)
        ours, found = f"-of-{jax.process_count()}.", {}
        for file in files_of(path):
            if file in self._files:
                saved = _read(file, self._recipe)
                found[2 * saved.step + saved.finished] = file, saved
            elif len(self._files) == 1 or ours not in file.name.removeprefix(path.stem):
                raise Foreign(
                    f"{file} is a checkpoint of another number of processes: go on with as many "
                    "as it was begun with, or remove it."
                )
        return dict(sorted(found.items()))

    def _agree(self, marks: list[int]) -> int | None:
        """The last mark that every process has; None where the run begins."""
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
                f"{self._title} cannot go on: the processes' checkpoints have no step in common. A "
                f"file like {self._files[0]} is missing, or processes have other numbers than "
                "before: put it right, or remove all of them, and the run begins anew."
            )
        if known:
            warnings.warn(
                f"{self._title} begins anew: it was ended before all processes had written their "
                "first checkpoint.",
                stacklevel=4,
            )
        return None

    def due(self, step: int) -> bool:
        """Whether so many steps, or so much time, have passed since the last one."""
        if self.plan is None:
            return False
        if self.plan.steps:
            return step - self._last_step >= self.plan.steps
        return time.perf_counter() >= self._next_time

    def write(self, saved: Saved) -> None:
        """Replace the file."""
        if self.plan is None or (saved.step == self._written and not saved.finished):
            return
        begin = time.perf_counter()
        outline, arrays = snapshots.pack(saved.state)
        names = saved.history[0] if saved.history else ()
        columns = {name: np.array([row[name] for row in saved.history]) for name in names}
        arrays |= {f"history/{name}": column for name, column in columns.items()}
        header = {"format": FORMAT, "recipe": self._recipe, "versions": made_with()}
        told = saved._asdict()
        header |= {
            "state": outline,
            **{n: told[n] for n in ("step", "seconds", "memory", "finished")},
        }
        persist(self._files[0], header, arrays, self._title, saved.step, self._written)
        self._files = [*self._files[1:], self._files[0]]
        self._last_step = self._written = saved.step
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
        with usable(file, "checkpoint"):
            differs = [name for name in recipe if header["recipe"].get(name) != recipe[name]]
            if differs:
                raise InputError(
                    f"{file} is the checkpoint of a run that differs in {' and '.join(differs)}: "
                    "go on with what it was begun with, or remove it."
                )
            columns = {n.split("/", 1)[1]: x for n, x in arrays.items() if n.startswith("history/")}
            values = zip(*(x.tolist() for x in columns.values()), strict=True)
            history = [dict(zip(columns, row, strict=True)) for row in values]
            state = snapshots.unpack(header["state"], arrays)
            step, seconds, finished = header["step"], header["seconds"], header["finished"]
            told = header["memory"], bool(finished), dict(header["versions"])
            return Saved(int(step), float(seconds), state, history, *told)
    except InputError as error:
        raise Foreign(str(error)) from error


def _warn_of_versions(before: Any) -> None:
    changed = [
        f"{name} {before.get(name)} instead of {found}"
        for name, found in made_with().items()
        if before.get(name) != found
    ]
    if changed:
        warnings.warn(
            f"The run was begun with {', '.join(changed)}: it goes on, but may not end with the "
            "same bits.",
            stacklevel=5,
        )
