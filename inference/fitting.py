"""The loop around every engine: batches in, steps, history, a stopping rule and a progress bar, posterior out."""

import functools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from inference import checkpoints, evaluate, guards
from inference import devices as devices_
from inference import objective as obj
from inference.blocks import over_draws
from inference.checkpoints import Checkpoints, Saved
from inference.clock import Clock, Limit
from inference.engine import Algorithm, Engine
from inference.posterior import Posterior
from inference.progress import Progress
from inference.registry import engines, load_engine, make_options
from inference.scores import hash_of_names
from pp_models import discovery
from pp_models.base import declare, learnable, log_joint, split_hyper, split_learned, value_shapes
from pp_models.data import Data
from pp_models.errors import Diverged, InputError, unknown
from pp_models.interruption import Interruption, Stopped


class Fit:
    """A fitted model: the posterior, how it was reached, and what is needed to use, store and compare it."""

    def __init__(
        self,
        problem: obj.Problem,
        engine: str,
        options: dict[str, Any],
        posterior: Posterior,
        history: dict[str, np.ndarray],
        seconds: float,
        provenance: dict[str, Any] | None = None,
        stopped: str | None = None,
    ) -> None:
        self.problem = problem
        self._provenance = provenance
        self.engine = engine
        self.options = options
        self.posterior = posterior
        self.history = history
        self.seconds = seconds
        self.stopped = stopped  # None, or a sentence where `max_seconds` ended the run early

    @property
    def model(self) -> Any:
        return self.problem.model

    @property
    def hyper(self) -> Any:
        return self.problem.hyper

    @property
    def data(self) -> Any:
        return self.problem.data

    @property
    def bound(self) -> float:
        """The last bound evaluated (nan for samplers)."""
        finite = self.history["bound"][np.isfinite(self.history["bound"])]
        return float(finite[-1]) if len(finite) else float("nan")

    @property
    def provenance(self) -> dict[str, Any]:
        """Kind, size and hashes, of the contents and of the columns' names, of the data that were fitted."""
        if self._provenance is None:
            data = self.data
            self._provenance = {"kind": data.kind, "rows": data.num_rows, "columns": data.num_columns, "hash": data.hash}
            self._provenance["vocabulary"] = hash_of_names(data.column_names)
        return self._provenance

    def log_joint(self, draws: Mapping[str, Any]) -> np.ndarray:
        """log p(data, values) of each draw, site -> (draws, ...)."""
        if self.data is None:
            raise InputError("This fit was loaded without its data: pass data= to inference.load.")
        batch = self.data.pack()
        stacked, problem = {site: draws[site] for site in self.model.families}, self.problem
        found = over_draws(lambda block: _log_joints(self.model, problem.structure, problem.values, block, batch), stacked)
        return np.asarray(found, np.float64)

    def to_arviz(self, num_draws: int | None = None) -> Any:
        """ArviZ InferenceData (DataTree with ArviZ 1): posterior, log_likelihood, observed_data, sample_stats.

        num_draws: of a distribution (default: 1000, or as many as hold 20 million numbers; where that would be too few, sites with a row for
        each row of the data are left out).
        """
        from inference import arviz_bridge

        return arviz_bridge.convert(self, num_draws)

    def save(self, path: str | Path) -> Path:
        """Write everything but the data to one file (NumPy arrays and JSON, no pickle)."""
        from inference import storage

        return storage.save(self, path)

    def __repr__(self) -> str:
        bound = "" if np.isnan(self.bound) else f", bound {self.bound:.6g}"
        return f"<Fit {self.model.name} by {self.engine}: {len(self.history['step'])} steps, {self.seconds:.1f} s{bound}>"


@functools.partial(jax.jit, static_argnames=("model", "structure"))
def _log_joints(model, structure, values, draws, batch):
    hyper = obj.make(model, structure, values)
    return jax.lax.map(lambda x: log_joint(model, hyper, x, batch), draws)


def make_problem(model: str, data: Data, hyper: Any = None, devices: Any = None) -> obj.Problem:
    """Everything checked before anything is compiled."""
    declared = discovery.load(model)
    if not isinstance(data, Data):
        raise InputError(f"data must be made with pp_models.data.{declared.kind}(...), not a {type(data).__name__}.")
    given, learn = split_learned(declared, hyper)
    declared, resolved = declare(declared, given, data)
    starts = learnable(declared, resolved)
    learn = tuple(starts) if learn is None else learn
    for name in learn:
        if name not in starts:
            raise unknown(f"hyper-parameter that can be learned for {declared.name}", name, starts)
    structure, values = split_hyper(resolved._replace(**{name: starts[name] for name in learn}))
    devices_.check(devices or jax.devices())
    return obj.Problem(declared, tuple(sorted(structure.items())), values, data, tuple(devices or jax.devices()), tuple(sorted(learn)))


def fit(
    model: str,
    data: Data,
    engine: str = "cavi",
    hyper: Any = None,
    key: jax.Array | None = None,
    *,
    init: Mapping[str, Any] | None = None,
    progress: bool | str | None = None,
    devices: Any = None,
    evaluate_every: int = 0,
    max_seconds: float | None = None,
    watch: Callable[[int, float, Callable[[], Posterior]], Any] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    checkpoint_steps: int = 0,
    **options: Any,
) -> Fit:
    """Fit a model to data by an engine.

    model, engine: names (see `pp_models.available()` and `inference.engines()`)
    hyper:         dict or Hyper of hyper-parameters; the rest are the papers' defaults. "learn" as a value, or ("learn", start), learns that one by
                   empirical Bayes; hyper="learn", or {"num_topics": 50, "learn": "all"}, learns all that can be; `fit.hyper` holds the result
    key:           JAX random key (default: jax.random.key(0))
    init:          where to begin: natural parameters of global sites (variational engines), or values of any site (map, gibbs)
    progress:      True or False to force the progress bar; by default it is shown on a terminal. Text is shown there before the bar's title
    devices:       devices to use (default: all, those of processes joined by `jax.distributed` included, but one of each process where the data are
                   so small that sharing them out would only cost time). Every process must make the same call
    evaluate_every: of engines that step on batches of documents, score every so many-th batch before it is learned from, by document completion
                   (P 11.6), into `fit.history["heldout"]`, in nats per word; in the first pass over the data these documents are new. The fit is the
                   same with and without, and its seconds leave scoring out (0: never)
    max_seconds:   the run ends with the first step that ends later than this, counted from the end of the first step, which compiles; `fit.stopped`
                   then says so. A sampler keeps the draws it has; with none yet, or where a tenth of the time shows that the run would take ten
                   times as long, it raises TooLarge, an InputError, with an estimate of the whole run's time
    watch:         (step, seconds, posterior) called after each step, `posterior` being a function without arguments that returns the posterior so
                   far: of a sampler in warm-up, the chains' present values. What JSON can hold in its attribute `memory`, if it has one, goes into
                   checkpoints and is put back. The clock stands still meanwhile. Neither this nor a `max_seconds` that
                   is not reached changes the fit, but every step is waited for, so that batches are no longer packed while one runs. Of several
                   processes, all must ask for the posterior, or none
    checkpoint:    a file that the run's state is kept in, written whole or not at all. Where it is there, of the same run, the run goes on from it
                   and ends with the same bits as one that nothing disturbed. Ctrl-C and SIGTERM then end a run after the step under way, with its
                   state safe (`pp_models.interruption.Stopped`); a disk that is full or may not be written to makes it pause. When the run is over
                   the file holds its end: remove it when the fit is saved
    checkpoint_seconds, checkpoint_steps: between checkpoints; steps, where not 0, take the place of seconds
    options:       the engine's own, e.g. num_epochs, batch_size; see its Options

    >>> import inference, pp_models
    >>> data = pp_models.data.counts([[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 6, 2], [0, 1, 3, 4]])
    >>> fit = inference.fit("lda", data, engine="cavi", hyper={"num_topics": 2})
    >>> fit.posterior.mean("beta").shape
    (2, 4)
    """
    chosen = load_engine(engine)
    checked = make_options(chosen, options)
    check_loop(max_seconds, watch, progress)
    plan = checkpoints.make_plan(checkpoint, checkpoint_seconds, checkpoint_steps)
    problem = make_problem(model, data, hyper, devices)
    if not chosen.sharded:  # every process does everything, and the first one keeps it
        problem = problem._replace(devices=devices_.mine(problem.devices)[:1])
        plan = plan if jax.process_index() == 0 else None
    elif devices is None and fits_one_device(chosen, data):
        problem = problem._replace(devices=devices_.one_each(problem.devices))
    checked = chosen.settle(checked, data)
    check_suits(chosen, problem)
    check_evaluation(chosen, problem, evaluate_every)
    start = check_init(chosen, problem, dict(init or {}))
    key = jax.random.key(0) if key is None else key
    title = f"{problem.model.name} by {engine}"
    keeper = Checkpoints(plan, lambda: checkpoints.recipe_of(problem, engine, checked._asdict(), key, start, evaluate_every), title, problem.devices)
    saved = keeper.read()
    clock = Clock(saved.seconds if saved else 0.0)
    algorithm = chosen.build(problem, checked)
    init_key, batch_key, step_key = jax.random.split(key, 3)
    num_steps, window = run_length(chosen, checked, problem)
    limit = Limit(title, max_seconds, num_steps, algorithm, problem.devices)
    run = Loop(problem, algorithm, engine, checked, clock, limit, keeper, watch, chosen.ascends, saved)
    if saved is None:
        run.state = algorithm.init(init_key, start)
    first = len(run.history)
    with Progress(title, num_steps, progress if jax.process_index() == 0 else False, first) as bar, Interruption(plan is not None) as asked:
        bar.enter(limit.stage(run.state).phase)
        ended = bool(saved and (saved.finished or limit.reached(run.history, run.state, again=True)))
        for step, batches in () if ended else enumerate(feed(chosen, checked, problem, batch_key, num_steps, first), first):
            scores: dict[str, Any] = {"heldout": None} if evaluate_every else {}
            if evaluate_every and (step + 1) % evaluate_every == 0:
                run.settle(bar)
                with clock.standing():
                    scores = {"heldout": evaluate.score_batch(algorithm.posterior(run.state), problem.data, batches, checked.batch_size)}
            before = run.state
            run.state, info = algorithm.step(jax.random.fold_in(step_key, step), before, batches)
            if saved is not None and step == first:
                run.forget_compiling(saved.seconds)
            run.settle(bar)  # the step before has surely ended: read its numbers while this one runs
            run.add(before, {"step": step, **info._asdict(), **scores, "clock": clock.begin})
            bar.enter(limit.stage(run.state).phase)
            if watch is not None or max_seconds is not None:
                run.wait(bar)
            if watch is not None:
                with clock.standing():
                    watch(step, run.history[-1]["seconds"], functools.partial(algorithm.posterior, run.state))
            finished = getattr(info, "finished", False) or _finished(run.history, window, getattr(checked, "tolerance", 0.0))
            finished, due, number = run.agree(finished, keeper.due(step + 1), asked.signal)
            if finished or limit.reached(run.history, run.state):
                break
            if due or number:
                run.wait(bar)
                run.save(asked.check)
                if number:
                    raise Stopped(number, run.where())
        run.wait(bar)
        seconds = clock.seconds if not (saved and saved.finished) else saved.seconds
        if not (saved and saved.finished):
            run.save(asked.check, finished=limit.stopped is None, last=True)
        if number := run.agree(True, False, asked.signal)[2]:
            raise Stopped(number, run.where())
    posterior = algorithm.posterior(run.state)
    return Fit(posterior.problem, engine, checked._asdict(), posterior, columns(run.history), seconds, stopped=limit.stopped)


class Loop:
    """A run as it goes: the engine's state, the history, and what is done with them when a step has ended."""

    def __init__(
        self,
        problem: obj.Problem,
        algorithm: Algorithm,
        engine: str,
        options: Any,
        clock: Clock,
        limit: Limit,
        keeper: Checkpoints,
        watch: Any,
        ascends: bool,
        saved: checkpoints.Saved | None,
    ) -> None:
        self._problem, self._algorithm, self._clock, self._limit, self._keeper, self._watch = problem, algorithm, clock, limit, keeper, watch
        self._engine, self._options = engine, options
        self._size = float(max(problem.data.num_entries, problem.data.total if problem.data.kind == "counts" else 0))
        self.state: Any = None
        self.history: list[dict[str, Any]] = []
        self._before: list[Any] = []  # states that the last steps began with: what there is when numbers go wrong
        self._highest: float | None = -np.inf if ascends else None
        if saved is not None:
            self.state, self.history = saved.state, saved.history
            limit.shares = list(saved.memory["shares"])
            if saved.memory["watch"] is not None and hasattr(watch, "memory"):
                watch.memory = saved.memory["watch"]
            if ascends:
                self._highest = max((row["bound"] for row in self.history if np.isfinite(row["bound"])), default=-np.inf)

    def add(self, before: Any, row: dict[str, Any]) -> None:
        """A step that is under way, and what it began with."""
        small = sum(getattr(x, "nbytes", 0) for x in jax.tree.leaves(before)) < LARGE_STATE
        self._before = [*self._before[-1:], before] if small else [before]
        self.history.append(row)

    def forget_compiling(self, seconds: float) -> None:
        """The first step after a pause, at so many seconds, compiles: it counts as long as the one before, or not at all where that did, too."""
        jax.block_until_ready(jax.tree.leaves(self.state))
        known = [row["seconds"] for row in self.history[-2:]]
        usual = known[1] - known[0] if len(known) > 1 else 0.0
        self._clock.begin += max(0.0, self._clock.seconds - seconds - usual)

    def settle(self, bar: Progress) -> None:
        """Read the last step's numbers, which waits for it, and refuse what cannot be."""
        if not self.history or "clock" not in self.history[-1]:
            return
        row = self.history[-1]
        try:
            settle_row(row, self._highest, self._size)
        except Diverged as error:
            self._diverge(str(error))
        if self._highest is not None and np.isfinite(row["bound"]):
            self._highest = max(self._highest, row["bound"])
        bar.update(row)

    def wait(self, bar: Progress) -> None:
        """Until the last step has ended."""
        jax.block_until_ready(jax.tree.leaves(self.state))
        self.settle(bar)

    def agree(self, finished: Any, due: bool, number: int | None) -> tuple[bool, bool, int]:
        """Whether the run is over, as the first process finds, a checkpoint is due in all, and the signal that any of them was sent, or 0."""
        if not devices_.is_shared(self._problem.devices):
            return bool(finished), due, number or 0
        everyone = devices_.across(self._problem.devices, [int(finished), int(due), number or 0])
        return bool(everyone[0, 0]), bool(everyone[:, 1].all()), int(everyone[:, 2].max())

    def save(self, stop: Callable[[], Any], finished: bool = False, last: bool = False) -> None:
        """Write a checkpoint, where one is wanted; a state that is not finite never replaces one that was. The clock stands meanwhile.

        last: the run is over, and its result is not lost where this one cannot be written.
        """
        found = len(guards.bad_sites(self._problem.model, self.state))
        if devices_.added(self._problem.devices, [found]).sum():  # of several processes, all stop
            self._diverge(f"numbers left the finite ones by step {len(self.history) - 1}")
        with self._clock.standing():
            memory = {"shares": self._limit.shares, "watch": getattr(self._watch, "memory", None)}
            stored = Saved(len(self.history), self.history[-1]["seconds"] if self.history else 0.0, self.state, self.history, memory, finished)
            try:  # all have written this one before any writes the next
                devices_.all_or_none(self._problem.devices, lambda: self._keeper.write(stored, stop))
            except InputError as error:
                if not last:
                    raise
                warnings.warn(f"The run is over, but its checkpoint is not written: {error}", stacklevel=3)

    def where(self) -> str:
        return f"{self._limit.title} was stopped after step {len(self.history) - 1}, and {self._keeper.where}."

    def _diverge(self, what: str) -> None:
        """Raise Diverged with the block, the likely cause, and the last good state as a fit."""
        error, good = guards.explained(self._limit.title, self._problem, [*self._before, self.state], what)
        error.fit = None if good is None else self._as_fit(good)
        raise error from None

    def _as_fit(self, state: Any) -> Fit | None:
        try:
            posterior = self._algorithm.posterior(state)
        except Exception:  # a sampler without a draw, say
            return None
        settled = [row for row in self.history if "clock" not in row]
        stopped = "numbers went wrong after this"
        return Fit(posterior.problem, self._engine, self._options._asdict(), posterior, columns(settled), self._clock.seconds, stopped=stopped)


LARGE_STATE = 500_000_000  # bytes, of which no more than two are held at a time
FEW_ENTRIES = 20_000  # a pass over which takes milliseconds, as does handing it out


def fits_one_device(engine: Engine, data: Data) -> bool:
    """Whether the rows are too few to be worth sharing out. Chains and grids, whose parts are whole fits, always are."""
    return engine.kind in ("variational", "point") and data.num_entries < FEW_ENTRIES


def check_loop(max_seconds: Any, watch: Any, progress: Any) -> None:
    """Refuse what is not a time, a function or a choice of bar."""
    number = isinstance(max_seconds, int | float | np.number) and not isinstance(max_seconds, bool)
    if max_seconds is not None and not (number and max_seconds > 0):
        raise InputError(f"max_seconds must be a positive number of seconds, or None for no limit, not {max_seconds!r}.")
    if watch is not None and not callable(watch):
        raise InputError(f"watch must be a function (step, seconds, posterior), not {watch!r}.")
    if progress is not None and not isinstance(progress, bool | str):
        raise InputError(f"progress must be True, False, None, or text for before the bar's title, not {progress!r}.")


def check_evaluation(engine: Engine, problem: obj.Problem, every: Any) -> None:
    """Refuse to score batches where there are none, or of something else than documents."""
    if isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 0:
        raise InputError(f"evaluate_every must be a whole number, 0 or more, not {every!r}.")
    if every and engine.rows != "batch":
        able = ", ".join(name for name in engines() if load_engine(name).rows == "batch")
        raise InputError(f"Engine {engine.name!r} does not step on new batches, so evaluate_every has nothing to score: use one of {able}.")
    if every and problem.model.kind != "counts":
        raise InputError(f"evaluate_every scores documents, and {problem.model.name} explains {problem.model.kind} data: leave it out.")


def check_suits(engine: Engine, problem: obj.Problem) -> None:
    """Refuse a model or prior that the engine cannot work with, and hyper-parameters that it cannot learn."""
    if reason := engine.suits(problem.model):
        raise InputError(reason)
    if engine.kind != "point" and not problem.model.proper(problem.hyper):
        raise InputError(
            f"Engine {engine.name!r} needs a proper prior, but {problem.model.name} has none with these hyper-parameters: "
            "use engine 'map', which finds the best point without one, or a model or hyper-parameters with a proper prior."
        )
    if problem.learn and not engine.learns:
        able = ", ".join(name for name in engines() if load_engine(name).learns)
        raise InputError(f"Engine {engine.name!r} keeps hyper-parameters as given and cannot learn {', '.join(problem.learn)}: use one of {able}.")


def run_length(engine: Engine, options: Any, problem: obj.Problem) -> tuple[int, int]:
    """Steps of the whole run, and how many of them the stopping rule averages over."""
    if engine.rows not in ("batch", "partition", "stream"):
        return engine.num_steps(options, problem), 1
    if engine.rows == "stream":
        return options.num_steps, 1
    whole, rest = divmod(problem.data.num_rows, options.batch_size)
    per_epoch = whole + (rest > 0 and engine.sharded)  # stock engines drop a last, smaller batch
    return options.num_epochs * per_epoch, per_epoch


def feed(engine: Engine, options: Any, problem: obj.Problem, key: jax.Array, num_steps: int, first: int = 0) -> Iterator[Any]:
    """What each step from the `first` on is given. All rows are packed once; batches are packed while the step before runs."""
    data, devices = problem.data, problem.devices
    if engine.rows == "none":
        yield from (None for _ in range(first, num_steps))
        return
    if engine.rows == "stream":
        for step in range(first, num_steps):
            yield data.shards(stream_rows(options, data.num_rows, jax.random.fold_in(key, step), step), options.batch_size, devices)
        return
    size = data.num_rows if engine.rows == "all" else options.batch_size
    if size == data.num_rows:
        everything = data.shards(np.arange(size), size, devices)
        yield from (everything for _ in range(first, num_steps))
        return
    whole, skipped = divmod(first, num_steps // options.num_epochs)
    for epoch in range(whole, options.num_epochs):
        again = 0 if engine.rows == "partition" else epoch
        yield from data.batches(jax.random.fold_in(key, again), size, devices, drop_last=not engine.sharded, skip=skipped if epoch == whole else 0)


def stream_rows(options: Any, num_rows: int, key: jax.Array, step: int) -> np.ndarray:
    """Rows picked at random from those that have arrived (T 16)."""
    seed = np.asarray(jax.random.key_data(key)).ravel()
    present = options.present(num_rows, step)
    return np.sort(np.random.default_rng(seed).choice(present, min(options.batch_size, present), replace=False))


def check_init(engine: Engine, problem: obj.Problem, init: dict[str, Any]) -> dict[str, Any]:
    """Starting points that the engine can use, of the right sites and shapes."""
    if init and engine.init == "none":
        raise InputError(f"Engine {engine.name!r} chooses its own start: leave init out.")
    families, shared = problem.model.families, problem.model.shared
    if not init:
        return init
    natural = jax.eval_shape(lambda key: problem.model.init(key, problem.hyper, problem.data), jax.random.key(0))
    values = value_shapes(problem.model, problem.hyper, problem.data)
    for site, given in init.items():
        if site not in (shared if engine.init == "natural" else families):
            raise unknown(f"site that engine {engine.name} can start from", site, shared if engine.init == "natural" else families)
        known = [leaf.shape for leaf in jax.tree.leaves(natural[site])] if engine.init == "natural" else [values[site]]
        shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(given)], known]
        if shapes[0] != shapes[1]:
            raise InputError(f"init for {site} has shape {shapes[0]}, but {shapes[1]} is needed.")
    return init


def settle_row(row: dict[str, Any], highest: float | None = None, size: float = 0.0) -> None:
    """Turn a step's device scalars into numbers, which waits for the step, and note the time. Terms of a bound are added in double precision.

    A row that is settled already stays as it is. Numbers that are not finite are refused, and a bound below the highest one where there is one
    (`guards.check_row`).
    """
    if "clock" not in row:
        return
    known = {name: devices_.total(value) for name, value in row.items() if name not in ("step", "clock") and value is not None}
    for name in row:
        if name not in ("step", "clock"):
            row[name] = known.get(name, float("nan"))
    row.setdefault("bound", float("nan"))  # samplers have none
    row["seconds"] = time.perf_counter() - row.pop("clock")
    guards.check_row(row["step"], known, highest, size)


def _finished(history: list[dict[str, Any]], window: int, tolerance: float) -> bool:
    """Whether the mean bound of the last `window` settled steps improved by less than `tolerance`, relatively, over the ones before."""
    settled = [row["bound"] for row in history[-(2 * window + 1) : -1]]
    if tolerance <= 0 or len(settled) < 2 * window or (len(history) - 1) % window:
        return False
    parts = [np.asarray(part) for part in (settled[:window], settled[window:])]
    if any(np.all(np.isnan(part)) for part in parts):
        return False
    old, new = (np.nanmean(part) for part in parts)
    return bool(abs(new - old) <= tolerance * abs(old))


def columns(history: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    names = ["step", "seconds", "bound", *(n for n in (history[0] if history else {}) if n not in ("step", "seconds", "bound"))]
    return {name: np.array([row[name] for row in history]) for name in names}
