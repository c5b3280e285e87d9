"""`fit`: a model, data and an engine in; batches, steps, callbacks; a `Fit` out."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from inference.core import devices as devices_
from inference.core.compilation import keep_programs, make_room
from inference.core.engine import Engine
from inference.core.objective import Problem
from inference.core.posterior import Posterior
from inference.core.problem import make_problem
from inference.core.registry import (
    default_engines,
    load_engine,
    load_with_options,
    make_options,
)
from inference.core.settings import names_of, read_key, sort_settings
from inference.io.fits import Fit
from inference.run.callbacks import Convergence, Limit, Progress, Score, Watch
from inference.run.checkpoint import Checkpoints, Plan, recipe_of
from inference.run.checks import check_request
from inference.run.end_checks import warn_of_answer, warn_of_rising
from inference.run.guards import Guard
from inference.run.loop import Callback, Run, advance, feed, run_length, stream_rows
from pp_models import models as discovery

__all__ = ["Fit", "feed", "fit", "load_engine", "make_options", "make_problem", "run_length"]
__all__ += ["stream_rows"]

FEW_ENTRIES = 20_000  # a pass over so few takes milliseconds, as does handing them out


class Wishes(NamedTuple):
    """What a user asked for beside the fit itself: see `fit`."""

    progress: bool | str | None
    evaluate_every: int
    max_seconds: float | None
    watch: Any
    checkpoint: str | Path | None
    checkpoint_seconds: float
    checkpoint_steps: int


def fit(
    model: Any,
    data: Any,
    engine: str | None = None,
    hyper: Any = None,
    key: Any = None,
    *,
    seed: int | None = None,
    init: Mapping[str, Any] | None = None,
    progress: bool | str | None = None,
    devices: Any = None,
    evaluate_every: int = 0,
    max_seconds: float | None = None,
    watch: Callable[[int, float, Callable[[], Posterior]], Any] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    checkpoint_steps: int = 0,
    **settings: Any,
) -> Fit:
    """Fit a model to data by an engine.

    model, engine: names (see `pp_models.available()` and `inference.engines()`; default: cavi,
                 or map where the prior is not proper)
    data:        made by `pp_models.data`, or anything that `pp_models.data.as_data` converts
    settings:    hyper-parameters and the engine's options by name: num_topics, num_epochs, ...
    hyper:       the hyper-parameters as a dict or Hyper; the rest are the papers' defaults. "learn"
                 as a value, or ("learn", start), learns that one by empirical Bayes; "learn", or
                 {"num_topics": 50, "learn": "all"}, learns all that can be; see `fit.hyper`
    key, seed:   one of them: a JAX random key or a whole number (default: 0)
    init:        natural parameters of global sites (variational engines), or values of any site
    progress:    True or False to force the bar; text to show on a terminal before its title
    devices:     default: all, of all joined processes, but one of each for small data. Every
                 process must make the same call
    evaluate_every: score every so many-th batch of documents before it is learned from (P 11.6),
                 into `fit.history["heldout"]`, in nats per word (0: never)
    max_seconds: end the run with the first step that ends later, counted from the end of the first
                 step, which compiles; see `fit.stopped`. A sampler keeps its draws; without any,
                 or if the run would take ten times as long, it raises TooLarge
    watch:       (step, seconds, posterior) called after each step, while the clock stands;
                 `posterior()` is the posterior so far, in warm-up the chains' present values (all
                 processes must ask, or none). Its attribute `memory`, if any, goes into checkpoints
    checkpoint:  a file for the run's state. If it exists, the run goes on from it and ends with the
                 same bits as an undisturbed one. Ctrl-C and SIGTERM end a run after its step with
                 its state safe (`Stopped`). Remove the file when the fit is saved
    checkpoint_seconds, checkpoint_steps: between checkpoints; steps, if not 0, win

    >>> import pp_models
    >>> counts = [[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 6, 2], [0, 1, 3, 4]]
    >>> pp_models.fit("lda", counts, num_topics=2, num_epochs=50).posterior.mean("beta").shape
    (2, 4)
    """
    when = checkpoint, checkpoint_seconds, checkpoint_steps
    wishes = Wishes(progress, evaluate_every, max_seconds, watch, *when)
    return _begin(Request(model, data, engine, hyper, settings), (key, seed), devices, init, wishes)


class Request(NamedTuple):
    """What is to be fitted, as a user gives it."""

    model: Any
    data: Any
    engine: str | None
    hyper: Any
    settings: Mapping[str, Any]


def default_engine(model: str) -> str:
    """The engine where none is named: `cavi`, or without a proper prior one that finds a point."""
    declared = discovery.load(model)
    if declared.proper(declared.Hyper()):
        return "cavi"
    return default_engines(declared, declared.Hyper())[0]


def _begin(asked: Request, random: Any, devices: Any, init: Any, wishes: Wishes) -> Fit:
    """Check everything, then run."""
    keep_programs()
    engine = default_engine(asked.model) if asked.engine is None else asked.engine
    arguments = names_of(fit)
    hyper, given = sort_settings(asked.model, engine, asked.hyper, asked.settings, arguments)
    chosen, options = load_with_options(engine, given)
    key = read_key(*random)
    make_room()
    problem = make_problem(asked.model, asked.data, hyper, devices)
    problem = problem._replace(devices=_used_devices(chosen, problem, devices is None))
    check_request(chosen, problem, wishes, init)
    options = chosen.settle(options, problem.data)
    return _run(chosen, options, problem, key, dict(init or {}), wishes)


def _used_devices(engine: Engine, problem: Problem, any_will_do: bool) -> tuple[Any, ...]:
    """One for each process if there are few rows. Chains and grids are always shared out."""
    if not engine.sharded:  # every process does everything
        return devices_.mine(problem.devices)[:1]
    few = (
        engine.kind in ("variational", "conditional", "point")
        and problem.data.num_entries < FEW_ENTRIES
    )
    return devices_.one_each(problem.devices) if any_will_do and few else problem.devices


def _run(
    engine: Engine, options: Any, problem: Problem, key: Any, start: Any, wishes: Wishes
) -> Fit:
    """Everything is checked: read the checkpoint, build the engine, and step."""
    data, title, first = problem.data, f"{problem.model.name} by {engine.name}", 0
    keeper = saved = None
    if wishes.checkpoint is not None and (engine.sharded or jax.process_index() == 0):
        when = float(wishes.checkpoint_seconds), int(wishes.checkpoint_steps)
        recipe = recipe_of(problem, engine, options, key, start, wishes.evaluate_every)
        plan = Plan(Path(wishes.checkpoint), *when)
        keeper = Checkpoints(plan, recipe, title, problem.devices)
        saved = keeper.read()
    init_key, batch_key, step_key = jax.random.split(key, 3)
    run = Run(problem, engine.build(problem, options), engine.name, options)
    if saved is None:
        run.state = run.algorithm.init(init_key, start)
    else:
        first = saved.step
    num_steps, window = run_length(engine, options, problem)
    batches = feed(engine, options, problem, batch_key, num_steps, first)
    terms = float(max(data.num_entries, data.total if data.kind == "counts" else 0))
    limit, tolerance = wishes.max_seconds, getattr(options, "tolerance", 0.0)
    shown = wishes.progress if jax.process_index() == 0 else False
    safe = keeper.asked if keeper else contextlib.nullcontext()
    with Progress(title, num_steps, shown, first) as bar, safe:
        callbacks: list[Callback | None] = [
            Guard(terms, engine.ascends),
            bar if bar.is_visible else None,
            Score(wishes.evaluate_every) if wishes.evaluate_every else None,
            Watch(wishes.watch) if wishes.watch else None,
            Convergence(window, tolerance) if tolerance > 0 else None,
            Limit(limit, num_steps) if limit else None,
            keeper,
        ]
        run.callbacks = [callback for callback in callbacks if callback is not None]
        if saved:
            run.resume(saved)
        advance(run, batches, step_key)
    found = run.as_fit(run.state, run.stopped)
    warn_of_answer(found.posterior)
    scheduled = engine.rows == "batch" and hasattr(options, "kappa") and "rate" in found.history
    whole = len(found.history["step"]) == num_steps  # nothing that was asked for ended it early
    if engine.kind in ("variational", "conditional") and scheduled and whole:
        warn_of_rising(title, found.history, data.num_rows, options)
    return found
