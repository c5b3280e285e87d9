"""Finding engines: every module of this package that ends in `ENGINE = Engine(...)`."""

import functools
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pp_models.errors import InputError, unknown

if TYPE_CHECKING:
    from inference.engine import Engine

_DECLARES = re.compile(r"^ENGINE\s*=", re.MULTILINE)


@functools.cache
def engines() -> list[str]:
    """Names of all engines, sorted. Reads the files, imports nothing."""
    files = Path(__file__).parent.glob("*.py")
    return sorted(file.stem for file in files if _DECLARES.search(file.read_text(encoding="utf-8")))


def load_engine(name: str) -> "Engine":
    """The engine of that name."""
    if name not in engines():
        raise unknown("engine", name, engines())
    return importlib.import_module(f"inference.{name}").ENGINE


COMPARED = ("cavi", "svi", "trust_region", "numpyro_svi", "map", "laplace", "inla", "gibbs", "nuts")  # where they apply
QUICK = ("cavi", "trust_region", "numpyro_svi", "map", "laplace", "inla", "nuts")
POINTS = ("map", "stochastic_map")  # where nothing else does


def default_reference(model: Any, hyper: Any = None, quick: bool = False) -> str | None:
    """The sampler to judge other engines by: gibbs, or nuts where gibbs does not apply; None where there is no posterior to sample from.

    quick: nuts, of which a few hundred draws of a small problem are worth as many, whatever the model.
    """
    if hyper is not None and not model.proper(hyper):
        return None
    if quick:
        return "nuts"
    return "nuts" if load_engine("gibbs").suits(model) else "gibbs"


def default_engines(model: Any, hyper: Any, quick: bool = False) -> list[str]:
    """The engines that a comparison is made of: those of `COMPARED`, or for a quick one of `QUICK`, that apply to the model."""
    if not model.proper(hyper):
        return [name for name in POINTS if not load_engine(name).suits(model)]
    return [name for name in (QUICK if quick else COMPARED) if not load_engine(name).suits(model)]


def make_options(engine: "Engine", given: dict[str, Any]) -> Any:
    """The engine's options with the given ones checked: names, types and signs."""
    defaults = engine.Options()
    for name, value in given.items():
        if name not in defaults._fields:
            raise unknown(f"option of engine {engine.name}", name, defaults._fields)
        default = getattr(defaults, name)
        low = 0 if default == 0 or name in MAY_BE_ZERO or isinstance(default, float) else 1
        if isinstance(default, str):
            good = isinstance(value, str)
        elif isinstance(default, int):
            good = isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= low
        else:
            good = isinstance(value, int | float | np.number) and not isinstance(value, bool) and 0 <= float(value) < float("inf")
        if not good:
            kind = "text" if isinstance(default, str) else "a whole number" if isinstance(default, int) else "a number"
            least = "" if isinstance(default, str) else f" of at least {low}"
            raise InputError(f"Option {name} of engine {engine.name} must be {kind}{least}, not {value!r}.")
    options = defaults._replace(**{name: type(getattr(defaults, name))(value) for name, value in given.items()})
    engine.check(options)
    return options


MAY_BE_ZERO = ("bound_every", "num_passes", "num_warmup")  # beside options whose default is 0, which leaves the choice to the engine
