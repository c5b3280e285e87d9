"""Checks of what `fit` is asked for, made before anything is compiled."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from inference.core.engine import Engine
from inference.core.objective import Problem
from inference.core.registry import engines, load_engine
from pp_models.errors import InputError, unknown
from pp_models.model import value_shapes


def check_request(engine: Engine, problem: Problem, wishes: Any, init: Any) -> None:
    """All checks of one call of `fit`."""
    check_wishes(wishes)
    check_suits(engine, problem, wishes.evaluate_every, init)


def check_wishes(wishes: Any) -> None:
    """Refuse what is not a time, a function, a choice of bar or a file."""
    limit, watch, progress = wishes.max_seconds, wishes.watch, wishes.progress
    if limit is not None and not (_is_number(limit) and limit > 0):
        raise InputError(
            f"max_seconds must be a positive number of seconds, or None, not {limit!r}."
        )
    if watch is not None and not callable(watch):
        raise InputError(f"watch must be a function (step, seconds, posterior), not {watch!r}.")
    if progress is not None and not isinstance(progress, bool | str):
        raise InputError(
            "progress must be True, False, None, or text for before the bar's title, not "
            f"{progress!r}."
        )
    check_whole("evaluate_every", wishes.evaluate_every)
    path = wishes.checkpoint
    if path is not None:
        if not isinstance(path, str | Path) or not str(path) or Path(path).is_dir():
            raise InputError(
                f"checkpoint must be the path of a file to keep the run's state in, and {path!r} "
                "is a folder or no path."
            )
        check_when(wishes.checkpoint_seconds, wishes.checkpoint_steps)


def check_when(seconds: Any, steps: Any, name: str = "checkpoint_steps") -> None:
    """Refuse impossible times and numbers of steps. name: of the argument for steps."""
    if not _is_number(seconds) or not 0 <= seconds < math.inf:
        raise InputError(f"checkpoint_seconds must be 0 or more, not {seconds!r}.")
    check_whole(name, steps)


def check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InputError(f"{name} must be a whole number, 0 or more, not {value!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def check_suits(engine: Engine, problem: Problem, every: int = 0, init: Any = None) -> None:
    """Refuse a model, a prior, hyper-parameters or a start that the engine cannot work with.

    every: `evaluate_every`, for which there must be batches of documents.
    """
    model = problem.model
    if reason := engine.suits(model):
        raise InputError(reason)
    if engine.kind != "point" and not model.proper(problem.hyper):
        raise InputError(
            f"Engine {engine.name!r} needs a proper prior, but {model.name} has none with these "
            "hyper-parameters: use engine 'map', which finds the best point without one, or a "
            "model or hyper-parameters with a proper prior."
        )
    if problem.learn and not engine.learns:
        able = ", ".join(name for name in engines() if load_engine(name).learns)
        raise InputError(
            f"Engine {engine.name!r} keeps hyper-parameters as given and cannot learn "
            f"{', '.join(problem.learn)}: use one of {able}."
        )
    if every and engine.rows != "batch":
        able = ", ".join(name for name in engines() if load_engine(name).rows == "batch")
        raise InputError(
            f"Engine {engine.name!r} does not step on new batches, so evaluate_every has nothing "
            f"to score: use one of {able}."
        )
    if every and model.kind != "counts":
        raise InputError(
            f"evaluate_every scores documents, and {model.name} explains {model.kind} data: leave "
            "it out."
        )
    if init:
        _check_init(engine, problem, init)


def _check_init(engine: Engine, problem: Problem, init: Mapping[str, Any]) -> None:
    """Refuse starting points that the engine cannot use, or of other sites or shapes."""
    if engine.init == "none":
        raise InputError(f"Engine {engine.name!r} chooses its own start: leave init out.")
    model, hyper, data = problem.model, problem.hyper, problem.data
    if engine.init == "natural":
        first = jax.eval_shape(lambda key: model.init(key, hyper, data), jax.random.key(0))
        known = {site: [x.shape for x in jax.tree.leaves(first[site])] for site in model.shared}
    else:
        known = {site: [shape] for site, shape in value_shapes(model, hyper, data).items()}
    for site, given in init.items():
        if site not in known:
            raise unknown(f"site that engine {engine.name} can start from", site, known)
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(given)]
        if shapes != known[site]:
            raise InputError(f"init for {site} has shape {shapes}, but {known[site]} is needed.")
