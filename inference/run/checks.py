"""Checks of what `fit` is asked for, made before anything is compiled."""

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from inference.core.engine import Engine
from inference.core.objective import Problem
from inference.core.registry import engines, load_engine
from inference.run.checkpoint import Plan
from pp_models.errors import InputError, unknown
from pp_models.model import value_shapes


def check_loop(max_seconds: Any, watch: Any, progress: Any) -> None:
    """Refuse what is not a time, a function or a choice of bar."""
    number = isinstance(max_seconds, int | float | np.number) and not isinstance(max_seconds, bool)
    if max_seconds is not None and not (number and max_seconds > 0):
        raise InputError(
            "max_seconds must be a positive number of seconds, or None for no limit, not "
            f"{max_seconds!r}."
        )
    if watch is not None and not callable(watch):
        raise InputError(f"watch must be a function (step, seconds, posterior), not {watch!r}.")
    if progress is not None and not isinstance(progress, bool | str):
        raise InputError(
            "progress must be True, False, None, or text for before the bar's title, not "
            f"{progress!r}."
        )


def check_evaluation(engine: Engine, problem: Problem, every: Any) -> None:
    """Refuse to score batches where there are none, or where rows are not documents."""
    if isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 0:
        raise InputError(f"evaluate_every must be a whole number, 0 or more, not {every!r}.")
    if every and engine.rows != "batch":
        able = ", ".join(name for name in engines() if load_engine(name).rows == "batch")
        raise InputError(
            f"Engine {engine.name!r} does not step on new batches, so evaluate_every has nothing "
            f"to score: use one of {able}."
        )
    if every and problem.model.kind != "counts":
        raise InputError(
            f"evaluate_every scores documents, and {problem.model.name} explains "
            f"{problem.model.kind} data: leave it out."
        )


def check_suits(engine: Engine, problem: Problem) -> None:
    """Refuse a model, a prior or learned hyper-parameters that the engine cannot work with."""
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


def check_init(engine: Engine, problem: Problem, init: dict[str, Any]) -> dict[str, Any]:
    """The starting points, if the engine can use them and their sites and shapes are right."""
    if not init:
        return init
    if engine.init == "none":
        raise InputError(f"Engine {engine.name!r} chooses its own start: leave init out.")
    model, hyper, data = problem.model, problem.hyper, problem.data
    if engine.init == "natural":
        first = jax.eval_shape(lambda key: model.init(key, hyper, data), jax.random.key(0))
        known = {
            site: [leaf.shape for leaf in jax.tree.leaves(first[site])] for site in model.shared
        }
    else:
        known = {site: [shape] for site, shape in value_shapes(model, hyper, data).items()}
    for site, given in init.items():
        if site not in known:
            raise unknown(f"site that engine {engine.name} can start from", site, known)
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(given)]
        if shapes != known[site]:
            raise InputError(f"init for {site} has shape {shapes}, but {known[site]} is needed.")
    return init


def make_plan(path: Any, seconds: Any, steps: Any) -> Plan | None:
    """The user's wishes, checked; None without a path."""
    if path is None:
        return None
    if not isinstance(path, str | Path) or not str(path):
        raise InputError(
            f"checkpoint must be the path of a file to keep the run's state in, not {path!r}."
        )
    check_when(seconds, steps)
    path = Path(path)
    if path.is_dir():
        raise InputError(f"checkpoint {path} is a folder: name a file.")
    return Plan(path, float(seconds), int(steps))


def check_when(seconds: Any, steps: Any, name: str = "checkpoint_steps") -> None:
    """Refuse impossible times and numbers of steps. name: of the argument for steps."""
    number = isinstance(seconds, int | float | np.number) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds < math.inf:
        raise InputError(f"checkpoint_seconds must be 0 or more, not {seconds!r}.")
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
        raise InputError(f"{name} must be a whole number, 0 or more, not {steps!r}.")
