"""`pp_models.testing`: the shared laws for a model of one's own, outside a clone of the repository.

    from pp_models import testing

    def test_my_model():
        testing.check("my_model.py")

The laws (`laws`) are those that the models of the package are held to, on the model's `example`.
Each has a line that says whether it holds, and if not, one sentence that names what to look at.
`pp-models check FILE` prints the same lines.
"""

import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from inference.calibration import engine_laws, laws
from inference.core.objective import Problem
from inference.core.registry import engines, load_engine
from pp_models.errors import InputError, unknown
from pp_models.model import Model, as_arrays, check_declaration, compare_joint, declare
from pp_models.models import PACKAGE, available, declared, load

__all__ = ["Failed", "Result", "check", "declaration", "examine", "example_problem", "other_laws"]


class Result(NamedTuple):
    """A law in plain words. holds: None if it was not tried, for the reason told."""

    law: str
    holds: bool | None
    seconds: float = 0.0
    told: str = ""

    def __str__(self) -> str:
        mark = {True: "✓", False: "✗", None: "–"}[self.holds]
        if self.holds is None:
            return f"{mark} {self.law}: {self.told}"
        line = f"{mark} {self.law:<72} {self.seconds:5.1f} s"
        return line if self.holds else f"{line}\n    {self.told}"


class Failed(AssertionError):
    """A model breaks laws. results: all of them."""

    def __init__(self, results: tuple[Result, ...]) -> None:
        self.results = results
        super().__init__(" ".join(one.told for one in results if one.holds is False))


def check(model: str | Path | Model, quick: bool = False, show: bool = True) -> tuple[Result, ...]:
    """Hold a model to the shared laws; raise `Failed` with a sentence for each that it breaks.

    model: the name of a model, the file that declares it, or the `Model` itself
    quick: only the declaration, and F against `generate`
    show:  print a line for each law

    >>> from pp_models import testing
    >>> results = testing.check("lda", quick=True, show=False)
    >>> [result.holds for result in results]
    [True, True]
    """
    results = []
    for result in examine(model, quick):
        results.append(result)
        if show:
            print(result, flush=True)
    if any(one.holds is False for one in results):
        raise Failed(tuple(results))
    return tuple(results)


def examine(model: str | Path | Model, quick: bool = False) -> Iterator[Result]:
    """The results one by one. After a broken declaration or a wrong F, no other law is tried."""
    first, declared = declaration(model)
    yield first
    if declared is None:
        return
    with jax.enable_x64(True):
        problem = example_problem(declared)
    density = _tried("F is the log density of `generate`", partial(_density, problem))
    yield density
    if density.holds and not quick:
        yield from other_laws(problem)


def declaration(model: str | Path | Model) -> tuple[Result, Model | None]:
    """The first law, and the model if it holds."""
    found: list[Model] = []
    name = model if isinstance(model, Model) else find(model)

    def run() -> None:
        one = name if isinstance(name, Model) else load(name)
        check_declaration(one)
        found.append(one)

    result = _tried("the declaration is complete, and its parts fit together", run)
    return result, found[0] if found else None


def other_laws(problem: Problem) -> Iterator[Result]:
    """The laws that rest on a complete declaration and a right F, of an `example_problem`."""
    yield from _of_the_declaration(problem)
    yield from _of_engines(problem)


def find(model: str | Path) -> str:
    """The name of a model; that of a file, whose folder joins PP_MODELS_PATH."""
    file = Path(model)
    if file.suffix != ".py":
        if str(model) not in available():
            raise unknown("model", str(model), available())
        return str(model)
    if not file.is_file():
        raise InputError(f"There is no file {model}: name a model, or the file that declares it.")
    folders = [str(file.resolve().parent), os.environ.get("PP_MODELS_PATH", "")]
    os.environ["PP_MODELS_PATH"] = os.pathsep.join(filter(None, folders))
    found = declared(PACKAGE, "MODEL").get(file.stem)
    if found is None:
        raise InputError(f"{file} declares no model: end it in MODEL = Model(...).")
    if found.resolve() != file.resolve():
        raise InputError(f"{file} has the name of the model in {found}: rename the file.")
    return file.stem


def example_problem(model: Model) -> Problem:
    """The model's example on one device, in the precision in use: double, but for engines."""
    hyper, data = model.example(jax.random.key(0))
    model, hyper = declare(model, hyper, data)
    return Problem(model, as_arrays(hyper), data, tuple(jax.local_devices()[:1]))


# One law ------------------------------------------------------------------------------------------


def _tried(law: str, run: Callable[[], Any], exact: bool = True) -> Result:
    """Run a law; an error of any kind breaks it, and the user's own line is named."""
    began = time.perf_counter()
    told = ""
    try:
        with warnings.catch_warnings(), jax.enable_x64(exact):
            warnings.simplefilter("ignore")
            run()
    except (laws.Broken, InputError) as error:
        told = str(error)
    except Exception as error:
        told = _place_of(error)
    return Result(law, not told, time.perf_counter() - began, told)


def _place_of(error: Exception) -> str:
    """What was raised, and the last line outside of installed packages that was under way."""
    home = Path(__file__).parents[1], Path(laws.fam.__file__).parents[1]
    own = None
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename)
        models = home[1] / "models"
        outside = not any(place in file.parents for place in home) or models in file.parents
        if outside and "site-packages" not in file.parts and "importlib" not in frame.filename:
            own = f" at line {frame.lineno} of {file.name}"
    message = str(error).strip().splitlines()
    return f"{type(error).__name__}{own or ''}: {message[0] if message else 'no message'}"


def _density(problem: Problem) -> None:
    compare_joint(problem.model, problem.hyper, problem.data)


NO_POSTERIOR = "the example's prior is not proper, so that there is no posterior"


def _of_the_declaration(problem: Problem) -> Iterator[Result]:
    """The laws of F, the families and the rows."""
    model, proper = problem.model, problem.model.proper(problem.hyper)
    law = "`guide` has the density of the families"
    if model.guide is None:
        yield Result(law, None, told="none is written by hand, one is derived")
    else:
        yield _tried(law, partial(laws.guide_has_the_families_density, problem))
    found: list[Any] = []
    first = _tried("a q is found: an update from init is finite", partial(_start, problem, found))
    yield first
    if not found:
        return
    of_q = {  # these need a q that is a distribution
        "Fisher x (target - natural) is the gradient of the bound": (
            laws.fisher_times_step_is_the_gradient
        ),
        "the bound is below NumPyro's ELBO": laws.bound_is_below_the_elbo,
    }
    of_rows = {
        "padding, row order and batches change nothing in F": laws.rows_are_exchangeable,
        "padding changes nothing in the solution of the rows": laws.padded_rows_change_no_solution,
        "single precision is finite and close": laws.single_precision_is_close,
    }
    for law, function in (of_q | of_rows).items():
        if law in of_q and not proper:
            yield Result(law, None, told=NO_POSTERIOR)
        else:
            yield _tried(law, partial(function, problem, found[0]))
    law = "one row, one factor, huge counts and empty rows stay finite"
    if proper:
        yield _tried(law, partial(laws.edges_are_finite, problem))
    else:
        yield Result(law, None, told=NO_POSTERIOR)


def _start(problem: Problem, found: list[Any]) -> None:
    """Append the q that other laws begin with."""
    model = problem.model
    if model.proper(problem.hyper):
        natural = laws.some_natural(problem)
    else:  # an update may leave no distribution
        natural = model.init(jax.random.key(1), problem.hyper, problem.data)
    told = f"An update from init of {model.name} is not finite: look at init."
    laws.require(laws.finite(natural), told)
    found.append(natural)


def _of_engines(problem: Problem) -> Iterator[Result]:
    """The laws of what engines make of the model, then each engine for two steps."""
    every = {name: load_engine(name) for name in engines()}
    refused = {name: engine_laws.refusal(engine, problem) for name, engine in every.items()}
    for name, engine in every.items():
        if engine.ascends and engine.rows == "all" and not refused[name]:
            law = f"every sweep of {name} raises its objective"
            yield _tried(law, partial(engine_laws.bound_rises, problem, name, num_epochs=40))
    law = "a stochastic step on all rows with rate 1 is a sweep"
    if problem.model.proper(problem.hyper):
        yield _tried(law, partial(engine_laws.full_batch_is_a_sweep, problem))
    else:
        yield Result(law, None, told=NO_POSTERIOR)
    with jax.enable_x64(False):
        single = example_problem(problem.model)
    for name in every:
        if not refused[name]:
            law = f"{name} takes two steps and stays finite"
            yield _tried(law, partial(engine_laws.engine_is_finite, single, name), exact=False)
    unfit = [name for name, reason in refused.items() if reason]
    if unfit:
        yield Result("engines that cannot fit this model", None, told=", ".join(unfit))
