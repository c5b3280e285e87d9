"""Learning from data that keep coming (T 3): a growing database and an engine that works on what is there.

    stream = inference.stream("lda", num_columns=8000, hyper={"num_topics": 100, "alpha": "learn"}, path="wiki")
    ids = stream.append(X)                     # new rows
    stream.extend(ids, more)                   # further words for rows already there
    stream.step(10)                            # ten updates on the present contents
    stream.partial_fit(X)                      # append, then as many updates as there are batches in X
    stream.fit().posterior.mean("beta")        # what was learned so far, as a Fit

With a path, rows are on disk as soon as a call returns, and the learned state at every `checkpoint` and on closing: opening the folder again goes on
bit for bit. Which rows a step sees, and every random number in it, depends on the key and the number of the step alone.
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
from inference.io import archives, snapshots
from inference.io.archives import usable
from inference.io.fits import Fit
from inference.run import checkpoint as checkpoints
from inference.run import guards
from inference.run.checks import check_suits, check_when
from inference.run.loop import columns_of, read_numbers
from inference.run.progress import Progress
from pp_models import discovery
from pp_models.data import types as data_
from pp_models.data.batches import growing_layout, power_of_two
from pp_models.data.database import Database
from pp_models.errors import Diverged, InputError, unknown
from pp_models.model import choose_variant, split_learned

FORMAT = 3  # 2: states name the files that engines moved to; 3: states as in checkpoints
MOST_HISTORY = 4_000  # rows of the history: of a stream that has made more steps every second one is kept, then every fourth, and so on
MOST_FIRST = 10_000  # rows that the starting point and data-dependent defaults are taken from


class _Endless:
    """Data of no known size, for options that depend on it."""

    num_rows = 2**40


def stream(
    model: str,
    num_columns: int,
    engine: str = "streaming",
    hyper: Any = None,
    key: jax.Array | None = None,
    *,
    path: str | Path | None = None,
    column_names: Any = None,
    devices: Any = None,
    checkpoint_every: int = 0,
    checkpoint_seconds: float = 60.0,
    **options: Any,
) -> "Stream":
    """Open a stream: a growing database of rows with `num_columns` columns, and an engine to learn from it.

    model, hyper, key, devices, options: as for `inference.fit`
    engine:           streaming, svb or streaming_batch
    path:             a folder, made or opened again; without one everything is kept in memory
    checkpoint_every, checkpoint_seconds: between checkpoints, in steps, or, where these are 0, in seconds; one is made on closing, too. With a path,
                      Ctrl-C and SIGTERM end `step` after the update under way with everything safe, and a full disk ends it with an InputError
    """
    check_when(checkpoint_seconds, checkpoint_every, "checkpoint_every")
    when = checkpoints.Plan(Path(path or ""), checkpoint_seconds, checkpoint_every)
    return Stream(
        model, num_columns, engine, hyper, key, path, column_names, devices, when, options
    )


class Stream:
    """A database that grows and a posterior that follows it. Made by `inference.stream`."""

    def __init__(
        self,
        model: str,
        num_columns: int,
        engine: str,
        hyper: Any,
        key: Any,
        path: Any,
        names: Any,
        devices: Any,
        when: checkpoints.Plan,
        options: dict[str, Any],
    ) -> None:
        self.model = discovery.load(model)
        self.engine = load_engine(engine)
        if self.engine.stream is None:
            able = ", ".join(name for name in engines() if load_engine(name).stream)
            raise InputError(
                f"Engine {engine!r} needs all its data at once and cannot follow a stream: use one of {able}."
            )
        idle = sorted({"num_steps", "num_present", "arrivals", "num_epochs"} & set(options))
        if idle:
            raise InputError(
                f"{', '.join(idle)} belong to inference.fit, which plays a stream from a data set: here rows come by append."
            )
        if key is not None and not (
            hasattr(key, "dtype") and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
        ):
            raise InputError(
                f"key must be a JAX random key, such as jax.random.key(0), not {key!r}."
            )
        self.options = self.engine.settle(make_options(self.engine, options), _Endless())
        for name in split_learned(self.model, hyper)[0] or {}:
            if name not in self.model.Hyper._fields:
                raise unknown(f"hyper-parameter of {model}", name, self.model.Hyper._fields)
        self._hyper, self._key = hyper, jax.random.key(0) if key is None else key
        self._devices, self._when = tuple(devices or jax.local_devices()), when
        self._written: int | None = None  # the step of the last checkpoint
        self._next_time = time.perf_counter() + when.seconds
        self.problem: obj.Problem | None = None
        self._state: Any = None
        self._first_rows, self._seen, self._seconds = 0, 0, 0.0
        self._history: list[dict[str, Any]] = []
        self._open = True
        self.database = Database(num_columns, self.model.kind, path, names, tags={"model": model})
        try:
            self._resume()
        except BaseException:
            self.database.close()
            raise

    def __repr__(self) -> str:
        return f"<Stream {self.model.name} by {self.engine.name}: {self.num_rows} rows, {self.num_steps} steps>"

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
        """step, seconds of learning, bound and what else the engine reports, as for a fit. Of long streams, steps at even distances and the last."""
        return columns_of(self._history)

    # Data come in -------------------------------------------------------------------------------------------------------------

    def append(self, rows: Any) -> np.ndarray:
        """Add new rows; returns their ids. Rows that the model cannot explain are refused before anything is written."""
        data = rows if isinstance(rows, data_.Data) else getattr(data_, self.model.kind)(rows)
        self.model.check_rows(data)
        return self.database.append(data)

    def extend(self, ids: Any, rows: Any) -> None:
        """Add the counts of `rows` to the rows named by `ids`: further words of unfinished documents.

        svb learns from a row once, when its turn comes: what is added to it later is kept but not learned (T 23).
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

    # Learning -----------------------------------------------------------------------------------------------------------------

    def step(
        self, num_steps: int = 1, *, flush: bool = False, progress: bool | None = False
    ) -> int:
        """Make updates on what is in the database; returns how many were made.

        svb makes one for each batch of rows it has not seen yet, and waits for a batch to fill; `flush` takes what there is.
        """
        _check_whole("num_steps", num_steps)
        made = 0
        with (
            Progress(self._title, num_steps, progress) as bar,
            Interruption(self.database.path is not None) as asked,
        ):
            while made < num_steps:
                rows = self._choose(flush)
                if not len(rows):
                    break
                bar.update(self._update(rows))
                made += 1
                if asked.signal or self._due():
                    self.checkpoint()
                if asked.signal:
                    raise Stopped(
                        asked.signal,
                        f"{self._title} was stopped after step {self.num_steps - 1}, and is safe in {self.database.path}.",
                    )
        return made

    @property
    def _title(self) -> str:
        return f"{self.model.name} by {self.engine.name}"

    def _due(self) -> bool:
        return (
            self.num_steps % self._when.steps == 0
            if self._when.steps
            else time.perf_counter() >= self._next_time
        )

    def _choose(self, flush: bool) -> np.ndarray:
        size, present = self.options.batch_size, self.num_rows
        if self.engine.order == "next":
            waiting = present - self._seen
            return (
                np.arange(self._seen, self._seen + min(size, waiting))
                if waiting >= size or flush
                else np.empty(0, np.int64)
            )
        seed = np.asarray(
            jax.random.key_data(jax.random.fold_in(self._key, self.num_steps))
        ).ravel()
        return (
            np.sort(np.random.default_rng(seed).choice(present, min(size, present), replace=False))
            if present
            else np.empty(0, np.int64)
        )

    def _update(self, rows: np.ndarray) -> dict[str, Any]:
        begin = time.perf_counter()
        if self.problem is None:
            self._begin()
        assert self.problem is not None
        assert self.engine.stream is not None
        data, present = self.database.data(rows), self.num_rows
        layout = growing_layout(
            self.database.sizes if data.kind == "counts" else np.zeros((2, 0), int),
            self.options.batch_size,
        )
        batches = data.shards(
            np.arange(len(rows)),
            min(self.options.batch_size, max(64, power_of_two(len(rows)))),
            self._devices,
            layout,
        )
        key = jax.random.fold_in(jax.random.fold_in(self._key, self.num_steps), 1)
        here = self.problem._replace(data=data)
        state, info = self.engine.stream(
            here, self.options, key, self._state, batches, present, present - self._first_rows
        )
        row = {"step": self.num_steps, **info._asdict(), "rows": float(present)}
        numbers = read_numbers(row)  # waits for the step
        row["seconds"] = self._seconds + time.perf_counter() - begin
        try:
            guards.check_row(row["step"], numbers)
        except Diverged as error:
            told, good = guards.explained(self._title, here, [self._state, state], str(error))
            told.fit = self.fit(rows) if good is self._state else None
            raise told from None
        self._state, self._seconds, self._seen = (
            state,
            row["seconds"],
            max(self._seen, int(rows[-1]) + 1),
        )
        self._remember(row)
        return row

    def _remember(self, row: dict[str, Any]) -> None:
        """Into the history, which does not grow for ever: what is kept depends on the number of steps alone."""
        stride, kept = self._stride, self._history
        if kept and kept[-1]["step"] % stride:  # it was kept as the last one
            kept.pop()
        if len(kept) > 1 and kept[1]["step"] % stride:  # from now on at twice the distance
            kept[:] = [one for one in kept if one["step"] % stride == 0]
        kept.append(row)

    @property
    def _stride(self) -> int:
        """Between the steps that are kept."""
        return 1 << max(0, (self.num_steps - 1) // MOST_HISTORY).bit_length()

    def _begin(self) -> None:
        """The starting point, and defaults that depend on the data, from the rows there are before the first step."""
        first = self.database.data(np.arange(min(self.num_rows, MOST_FIRST)))
        problem = make_problem(self.model.name, first, self._hyper, self._devices)
        check_suits(self.engine, problem)
        state = self.engine.build(problem, self.options).init(
            jax.random.fold_in(self._key, 2**31 - 1), {}
        )
        self.problem, self._state, self._first_rows = problem, state, self.num_rows

    # What was learned ---------------------------------------------------------------------------------------------------------

    def fit(self, rows: Any = None) -> Fit:
        """What was learned so far, with the present contents of these rows (default: all) as its data."""
        if self.problem is None:
            raise InputError("Nothing has been learned yet: append rows and call step.")
        problem = self.problem._replace(data=self.database.data(rows), hyper=self._state.hyper)
        return Fit(
            problem,
            self.engine.name,
            self.options._asdict(),
            Variational(problem, self._state.shared),
            self.history,
            self._seconds,
        )

    # On disk ------------------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Make everything safe: rows and learned state. In memory there is nothing to do."""
        begin = time.perf_counter()
        self.database.flush()
        if self.database.path is None or self.problem is None:
            return
        problem = self.problem
        if bad := guards.bad_sites(problem.model, self._state):
            raise Diverged(
                f"What was learned of {' and '.join(bad)} is not finite any more: the last checkpoint in {self.database.path} is kept."
            )
        kept = jax.tree.map(_on_host, (problem.hyper, self._state))
        outline, arrays = snapshots.pack((*kept, problem.learn))
        arrays |= {f"history/{name}": column for name, column in self.history.items()}
        counted = {"first_rows": self._first_rows, "seen": self._seen, "seconds": self._seconds}
        header = {"format": FORMAT, **self._recipe, **counted, "state": outline}
        checkpoints.persist(
            self.database.path / "learned.npz",
            header,
            arrays,
            self._title,
            self.num_steps - 1,
            self._written,
        )
        self._written = self.num_steps - 1
        self._next_time = time.perf_counter() + max(
            self._when.seconds, checkpoints.SHARE * (time.perf_counter() - begin)
        )

    def _resume(self) -> None:
        """Go on from the folder's last checkpoint, if there is one."""
        file = None if self.database.path is None else self.database.path / "learned.npz"
        if file is None or not file.exists():
            return
        header, arrays = archives.read(file, "stream", FORMAT)
        with usable(file, "state of a stream"):
            self._go_on(file, header, arrays)

    def _go_on(self, file: Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        for name, value in self._recipe.items():
            if header[name] != value and not (name == "hyper" and value is None):
                raise InputError(
                    f"{file.parent} was learned with {name} {header[name]}, but now {name} is "
                    f"{value}: open it with the same."
                )
        known = max(header["first_rows"], header["seen"])
        if known > self.num_rows:
            raise InputError(
                f"{file.parent} was learned from {known} rows, but the database holds "
                f"{self.num_rows}: restore it."
            )
        hyper, state, learn = snapshots.unpack(header["state"], arrays)
        hyper, self._state = jax.tree.map(_on_device, (hyper, state))
        model = choose_variant(self.model, hyper, self.model.kind)
        self.problem = obj.Problem(model, hyper, None, self._devices, learn)
        self._first_rows, self._seen = header["first_rows"], header["seen"]
        self._seconds, self._written = header["seconds"], self._state.step - 1
        columns = archives.group(arrays, "history")
        values = zip(*columns.values(), strict=True)
        self._history = [dict(zip(columns, row, strict=True)) for row in values]

    @property
    def _recipe(self) -> dict[str, Any]:
        """Everything that a stream must be opened with again."""
        return {
            "model": self.model.name,
            "engine": self.engine.name,
            "options": self.options._asdict(),
            "hyper": _plain(self._hyper),
            "key": np.asarray(jax.random.key_data(self._key)).tolist(),
        }

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
    """Hyper-parameters as asked for, in what JSON can hold: what a stream that is opened again is compared by."""
    if hasattr(hyper, "_asdict"):
        hyper = hyper._asdict()
    if isinstance(hyper, dict):
        return {str(name): _plain(value) for name, value in hyper.items()}
    if isinstance(hyper, tuple | list):
        return [_plain(value) for value in hyper]
    return np.asarray(hyper).tolist() if hasattr(hyper, "dtype") else hyper


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InputError(f"{name} must be a whole number, 0 or more, not {value!r}.")
