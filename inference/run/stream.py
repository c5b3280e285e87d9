"""Learning from data that keep coming: a growing database, and an engine that follows it.

    stream = inference.stream("lda", 8000, hyper={"num_topics": 100, "alpha": "learn"}, path="wiki")
    ids = stream.append(X)                     # new rows
    stream.extend(ids, more)                   # further words for rows already there
    stream.step(10)                            # ten updates on the present contents
    stream.partial_fit(X)                      # append, then one update for each batch of X
    stream.fit().posterior.mean("beta")        # what was learned so far, as a Fit

With a path, rows are on disk as soon as a call returns, and the learned state at every `checkpoint`
and on closing. Opening the folder again goes on bit for bit: the rows of a step, and every random
number in it, depend only on the key and the number of the step. See Theis & Hoffman (T), section 3.
"""

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import objective as obj
from inference.core.interruption import Interruption, Stopped
from inference.core.posteriors import Variational
from inference.core.problem import make_problem
from inference.core.registry import engines, load_engine, make_options
from inference.core.settings import names_of, read_key, sort_settings
from inference.io import archives, snapshots
from inference.io.fits import Fit
from inference.run import checkpoint as checkpoints
from inference.run import guards
from inference.run.callbacks import Progress
from inference.run.checks import check_suits, check_when, check_whole
from inference.run.loop import columns_of, pick_rows, read_numbers, rows_of
from pp_models import models as discovery
from pp_models.data.batches import growing_layout, power_of_two
from pp_models.data.coerce import as_data
from pp_models.data.database import Database
from pp_models.errors import Diverged, InputError, unknown
from pp_models.model import choose_variant, split_learned

FORMAT = 3  # 2: states name the files that engines moved to; 3: states as in checkpoints
MOST_HISTORY = 4_000  # rows of the history; of more steps every second, fourth, ... one is kept
MOST_FIRST = 10_000  # rows that the starting point and data-dependent defaults are taken from


class _Endless:
    """Data of no known size, for options that depend on it."""

    num_rows = 2**40


def stream(
    model: str,
    num_columns: int,
    engine: str = "streaming",
    hyper: Any = None,
    key: Any = None,
    *,
    path: str | Path | None = None,
    column_names: Any = None,
    devices: Any = None,
    checkpoint_every: int = 0,
    checkpoint_seconds: float = 60.0,
    **options: Any,
) -> "Stream":
    """Open a stream: a growing database of rows, and an engine to learn from it.

    model, hyper, key, devices: as for `inference.fit`
    options:          hyper-parameters and the engine's options by name
    engine:           streaming, svb or streaming_batch
    path:             a folder, made or opened again; without one everything is kept in memory
    checkpoint_every, checkpoint_seconds: between checkpoints, in steps, or, where these are 0, in
                      seconds; one is made on closing, too. With a path, Ctrl-C and SIGTERM end
                      `step` after the update under way with everything safe, and a full disk ends
                      it with an InputError
    """
    check_when(checkpoint_seconds, checkpoint_every, "checkpoint_every")
    when = checkpoints.Plan(Path(path or ""), checkpoint_seconds, checkpoint_every)
    chosen = load_engine(engine)
    if chosen.stream is None:
        able = ", ".join(name for name in engines() if load_engine(name).stream)
        raise InputError(
            f"Engine {engine!r} needs all its data at once and cannot follow a stream: use one of "
            f"{able}."
        )
    if idle := sorted({"num_steps", "num_present", "arrivals", "num_epochs"} & set(options)):
        raise InputError(
            f"{', '.join(idle)} belong to inference.fit, which plays a stream from a data set: "
            "here rows come by append."
        )
    key, declared = read_key(key), discovery.load(model)
    arguments = names_of(stream)
    hyper, options = sort_settings(declared, engine, hyper, options, arguments)
    for name in split_learned(declared, hyper)[0] or {}:
        if name not in declared.Hyper._fields:
            raise unknown(f"hyper-parameter of {model}", name, declared.Hyper._fields)
    settled = chosen.settle(make_options(chosen, options), _Endless())
    here = tuple(devices or jax.local_devices())
    database = Database(
        num_columns, declared.kind, path, column_names, tags={"model": declared.name}
    )
    try:
        return Stream(declared, chosen, settled, hyper, key, here, database, when)
    except BaseException:
        database.close()
        raise


class Stream:
    """A database that grows and a posterior that follows it. Made by `inference.stream`."""

    def __init__(
        self,
        model: Any,
        engine: Any,
        options: Any,
        hyper: Any,
        key: jax.Array,
        devices: tuple[Any, ...],
        database: Database,
        when: checkpoints.Plan,
    ) -> None:
        self.model, self.engine, self.options, self.database = model, engine, options, database
        self._hyper, self._key, self._devices, self._when = hyper, key, devices, when
        self._title = f"{model.name} by {engine.name}"
        self._recipe = {  # everything that a stream must be opened with again
            "model": model.name,
            "engine": engine.name,
            "options": options._asdict(),
            "hyper": _plain(hyper),
            "key": np.asarray(jax.random.key_data(key)).tolist(),
        }
        self._written: int | None = None  # the step of the last checkpoint
        self._next_time = time.perf_counter() + when.seconds
        self.problem: obj.Problem | None = None
        self._state: Any = None
        self._first_rows, self._seen, self._seconds = 0, 0, 0.0
        self._history: list[dict[str, Any]] = []
        self._open = True
        self._resume()

    def __repr__(self) -> str:
        return f"<Stream {self._title}: {self.num_rows} rows, {self.num_steps} steps>"

    @property
    def num_rows(self) -> int:
        """Rows in the database."""
        return self.database.num_rows

    @property
    def num_steps(self) -> int:
        """Updates made so far."""
        return 0 if self._state is None else self._state.step

    @property
    def history(self) -> dict[str, np.ndarray]:
        """step, seconds of learning, bound and further columns, as for a fit.

        A long stream keeps evenly spaced steps and the last one.
        """
        return columns_of(self._history)

    # Data come in -----------------------------------------------------------------------------

    def append(self, rows: Any) -> np.ndarray:
        """Add new rows; returns their ids. Rows that do not suit the model are refused first."""
        data = as_data(rows, self.model.kind, self.database.column_names)
        self.model.check_rows(data)
        return self.database.append(data)

    def extend(self, ids: Any, rows: Any) -> None:
        """Add the counts of `rows` to the rows `ids`: further words of unfinished documents.

        svb learns from a row once, when its turn comes. Words added later are not learned (T 23).
        """
        self.database.extend(ids, rows)

    def add(self, ids: Any, columns: Any, counts: Any = 1, new_rows: int = 0) -> np.ndarray:
        """Add words one by one (see `Database.add`); returns the ids of new rows."""
        return self.database.add(ids, columns, counts, new_rows)

    def partial_fit(self, rows: Any) -> "Stream":
        """Append rows, then make as many updates as there are batches in them."""
        ids = self.append(rows)
        self.step(-(-len(ids) // self.options.batch_size))
        return self

    # Learning ---------------------------------------------------------------------------------

    def step(
        self, num_steps: int = 1, *, flush: bool = False, progress: bool | None = False
    ) -> int:
        """Make updates on what is in the database; returns how many were made.

        svb makes one for each full batch of rows that it has not seen; `flush` takes what there is.
        """
        check_whole("num_steps", num_steps)
        made = 0
        safe = Interruption(self.database.path is not None)
        with Progress(self._title, num_steps, progress) as bar, safe as asked:
            while made < num_steps and len(rows := self._choose(flush)):
                bar.update(self._update(rows))
                made += 1
                if asked.signal or self._due():
                    self.checkpoint()
                if asked.signal:
                    where = f"after step {self.num_steps - 1}, and is safe in {self.database.path}"
                    raise Stopped(asked.signal, f"{self._title} was stopped {where}.")
        return made

    def _due(self) -> bool:
        if self._when.steps:
            return self.num_steps % self._when.steps == 0
        return time.perf_counter() >= self._next_time

    def _choose(self, flush: bool) -> np.ndarray:
        """The rows of the next step; none where there is nothing to learn from."""
        size, present = self.options.batch_size, self.num_rows
        if self.engine.order == "next":
            waiting = present - self._seen
            return self._seen + np.arange(min(size, waiting) if waiting >= size or flush else 0)
        key = jax.random.fold_in(self._key, self.num_steps)
        return pick_rows(key, present, size) if present else np.empty(0, np.int64)

    def _update(self, rows: np.ndarray) -> dict[str, Any]:
        begin = time.perf_counter()
        if self.problem is None:
            self._begin()
        data, present, size = self.database.data(rows), self.num_rows, self.options.batch_size
        sizes = self.database.sizes if data.kind == "counts" else np.zeros((2, 0), int)
        room = min(size, max(64, power_of_two(len(rows))))
        layout = growing_layout(sizes, size)
        batches = data.shards(np.arange(len(rows)), room, self._devices, layout)
        key = jax.random.fold_in(jax.random.fold_in(self._key, self.num_steps), 1)
        here = self.problem._replace(data=data)  # type: ignore[union-attr]
        given = self._state, batches, present, present - self._first_rows
        state, info = self.engine.stream(here, self.options, key, *given)
        row = {"step": self.num_steps, **info._asdict(), "rows": float(present)}
        numbers = read_numbers(row)  # waits for the step
        row["seconds"] = self._seconds + time.perf_counter() - begin
        try:
            guards.check_row(row["step"], numbers)
        except Diverged as error:
            told, good = guards.explained(self._title, here, [self._state, state], str(error))
            told.fit = self.fit(rows) if good is self._state else None
            raise told from None
        self._state, self._seconds = state, row["seconds"]
        self._seen = max(self._seen, int(rows[-1]) + 1)
        self._remember(row)
        return row

    def _remember(self, row: dict[str, Any]) -> None:
        """Add a row to the history. The rows that are kept depend on the number of steps alone."""
        stride = 1 << max(0, (self.num_steps - 1) // MOST_HISTORY).bit_length()
        kept = self._history
        if kept and kept[-1]["step"] % stride:  # it was kept as the last one
            kept.pop()
        if len(kept) > 1 and kept[1]["step"] % stride:  # from now on at twice the distance
            kept[:] = [one for one in kept if one["step"] % stride == 0]
        kept.append(row)

    def _begin(self) -> None:
        """Take the starting point, and defaults that depend on the data, from the first rows."""
        first = self.database.data(np.arange(min(self.num_rows, MOST_FIRST)))
        problem = make_problem(self.model.name, first, self._hyper, self._devices)
        check_suits(self.engine, problem)
        key = jax.random.fold_in(self._key, 2**31 - 1)
        self._state = self.engine.build(problem, self.options).init(key, {})
        self.problem, self._first_rows = problem, self.num_rows

    def fit(self, rows: Any = None) -> Fit:
        """What was learned so far, with these rows (default: all) as they are now as its data."""
        if self.problem is None:
            raise InputError("Nothing has been learned yet: append rows and call step.")
        problem = self.problem._replace(data=self.database.data(rows), hyper=self._state.hyper)
        posterior, options = Variational(problem, self._state.shared), self.options._asdict()
        return Fit(problem, self.engine.name, options, posterior, self.history, self._seconds)

    # On disk ----------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Make everything safe: rows and learned state. In memory there is nothing to do."""
        begin = time.perf_counter()
        self.database.flush()
        if self.database.path is None or self.problem is None:
            return
        problem, step = self.problem, self.num_steps - 1
        if bad := guards.bad_sites(problem.model, self._state):
            raise Diverged(
                f"What was learned of {' and '.join(bad)} is not finite any more: the last "
                f"checkpoint in {self.database.path} is kept."
            )
        kept = jax.tree.map(_on_host, (problem.hyper, self._state))
        outline, arrays = snapshots.pack((*kept, problem.learn))
        arrays |= {f"history/{name}": column for name, column in self.history.items()}
        counted = {"first_rows": self._first_rows, "seen": self._seen, "seconds": self._seconds}
        header = {"format": FORMAT, **self._recipe, **counted, "state": outline}
        file = self.database.path / "learned.npz"
        checkpoints.persist(file, header, arrays, self._title, step, self._written)
        self._written, spent = step, time.perf_counter() - begin
        pause = max(self._when.seconds, checkpoints.SHARE * spent)
        self._next_time = time.perf_counter() + pause

    def _resume(self) -> None:
        """Go on from the folder's last checkpoint, if there is one."""
        file = None if self.database.path is None else self.database.path / "learned.npz"
        if file is None or not file.exists():
            return
        header, arrays = archives.read(file, "stream", FORMAT)
        with archives.usable(file, "state of a stream"):
            self._restore(file.parent, header, arrays)

    def _restore(self, folder: Path, header: dict[str, Any], arrays: archives.Arrays) -> None:
        for name, value in self._recipe.items():
            if header[name] != value and not (name == "hyper" and value is None):
                raise InputError(
                    f"{folder} was learned with {name} {header[name]}, but now {name} is {value}: "
                    "open it with the same."
                )
        known = max(header["first_rows"], header["seen"])
        if known > self.num_rows:
            raise InputError(
                f"{folder} was learned from {known} rows, but the database holds {self.num_rows}: "
                "restore it."
            )
        hyper, state, learn = snapshots.unpack(header["state"], arrays)
        hyper, self._state = jax.tree.map(_on_device, (hyper, state))
        model = choose_variant(self.model, hyper, self.model.kind)
        self.problem = obj.Problem(model, hyper, None, self._devices, learn)
        self._first_rows, self._seen = header["first_rows"], header["seen"]
        self._seconds, self._written = header["seconds"], self._state.step - 1
        self._history = rows_of(archives.group(arrays, "history"))

    def close(self) -> None:
        """Checkpoint and close the database. Closing twice is no error."""
        if self._open:
            self._open = False
            try:
                self.checkpoint()
            finally:
                self.database.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _on_host(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, jax.Array) else x


def _on_device(x: Any) -> Any:
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


def _plain(hyper: Any) -> Any:
    """Hyper-parameters as asked for, in what JSON can hold."""
    if hasattr(hyper, "_asdict"):
        hyper = hyper._asdict()
    if isinstance(hyper, dict):
        return {str(name): _plain(value) for name, value in hyper.items()}
    if isinstance(hyper, tuple | list):
        return [_plain(value) for value in hyper]
    return np.asarray(hyper).tolist() if hasattr(hyper, "dtype") else hyper
