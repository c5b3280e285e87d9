"""The shared laws of what engines make of a model; see `laws`."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from inference.calibration.laws import close, finite, require
from inference.core.engine import Engine
from inference.core.objective import Problem
from inference.core.registry import load_engine, load_with_options
from inference.run.checks import check_suits
from inference.run.loop import Run, advance, feed, run_length
from pp_models.errors import InputError

SHORT = {  # options with which an engine takes a step or two
    "num_epochs": 2,
    "num_steps": 2,
    "num_samples": 4,
    "num_warmup": 4,
    "num_chains": 1,
    "num_sweeps": 3,
    "num_inner": 2,
    "batch_size": 4,
}


def run(problem: Problem, engine: Engine, options: Any, seed: int = 1) -> Any:
    """A `Fit` without callbacks, of a model that need not be found by name."""
    check_suits(engine, problem)
    options = engine.settle(options, problem.data)
    first, batch_key, step_key = jax.random.split(jax.random.key(seed), 3)
    going = Run(problem, engine.build(problem, options), engine.name, options)
    going.state = going.algorithm.init(first, {})
    length, _ = run_length(engine, options, problem)
    advance(going, feed(engine, options, problem, batch_key, length), step_key)
    return going.as_fit(going.state)


def refusal(engine: Engine, problem: Problem) -> str:
    """Why an engine cannot fit a model; empty where it can."""
    try:
        check_suits(engine, problem)
    except InputError as error:
        return str(error)
    return ""


def bound_rises(problem: Problem, engine: str, **options: Any) -> None:
    """Every sweep raises the objective, to rounding."""
    chosen, checked = load_with_options(engine, {"tolerance": 0.0, **options})
    bounds = run(problem, chosen, checked).history["bound"]
    rises = np.diff(bounds) + 1e-9 * np.abs(bounds[1:])
    told = f"The bound of {problem.model.name} by {engine}"
    require(finite(bounds), f"{told} is not finite.")
    require(
        np.all(rises > 0),
        f"{told} falls by {-np.diff(bounds).min(initial=0):.3g} nats in a sweep: look at families "
        "that do not fit F, or at solve_local.",
    )
    require(bounds[-1] > bounds[0], f"{told} does not rise: look at init.")


def full_batch_is_a_sweep(problem: Problem, names: Sequence[str] = ("cavi", "svi")) -> None:
    """With all rows in the batch and a rate of one, a stochastic step is a sweep, as long as global
    sites do not meet in the rows' part of F.
    """
    local = {"num_local": 15, "local_tolerance": 0.0, "num_epochs": 1}
    batch = {"batch_size": problem.data.num_rows, "kappa": 0.0}
    sweep, step = (
        run(problem, *load_with_options(name, given))
        for name, given in zip(names, (local, {**local, **batch}), strict=True)
    )
    model = problem.model
    for site in model.shared[:1] if model.coupled == "rows" else model.shared:
        require(
            close(step.posterior.natural(site), sweep.posterior.natural(site), 1e-10),
            f"A full-batch step of {names[1]} does not end where a sweep of {names[0]} does: look "
            f"at what {site} adds to log_local.",
        )
    require(
        close(step.history["bound"], sweep.history["bound"], 1e-10),
        f"{names[1]} and {names[0]} disagree about the bound on all rows: look at log_local.",
    )


def engine_is_finite(problem: Problem, name: str) -> None:
    """Two steps from the default start leave finite means of the right shapes. `InputError` if the
    engine cannot fit the model."""
    engine, fields = load_engine(name), load_engine(name).Options._fields
    short = {option: x for option, x in SHORT.items() if option in fields}
    _, options = load_with_options(name, {**engine.tiny, **short})
    posterior = run(problem, engine, options).posterior
    wrong = [site for site in problem.model.families if not finite(posterior.mean(site))]
    require(not wrong, f"Two steps of {name} leave {' and '.join(wrong)} not finite.")
