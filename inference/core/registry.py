"""Finding engines: every file that ends in `ENGINE = Engine(...)`, in `inference/engines` or in a
folder named in PP_MODELS_PATH."""

import functools
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference.core.options import read_options
from pp_models import discovery
from pp_models.errors import InputError, unknown

if TYPE_CHECKING:
    from inference.core.engine import Engine

PACKAGE = Path(__file__).parents[1] / "engines"


@functools.cache
def _files(folders: str) -> dict[str, Path]:
    """Read once for each value of PP_MODELS_PATH."""
    return discovery.declared(PACKAGE, "ENGINE")


def engines() -> list[str]:
    """Names of all engines, sorted. Reads the files, imports nothing."""
    return sorted(_files(os.environ.get("PP_MODELS_PATH", "")))


def load_engine(name: str) -> "Engine":
    """The engine of that name."""
    if name not in engines():
        raise unknown("engine", name, engines())
    file = _files(os.environ.get("PP_MODELS_PATH", ""))[name]
    if file.parent == PACKAGE:
        return importlib.import_module(f"inference.engines.{name}").ENGINE
    engine = discovery.load_file(file).ENGINE
    if engine.name != name:
        raise InputError(
            f"{file} declares an engine named {engine.name!r}: name it {name!r}, as its file."
        )
    return engine


KINDS = ("variational", "point", "mixture", "draws")  # the order in which engines are compared


def default_reference(model: Any, hyper: Any = None, quick: bool = False) -> str | None:
    """The sampler to judge other engines by; None where there is no posterior to sample from.

    Of those that a comparison takes and that suit the model, the one with a sampler of the model's
    own conditionals before the generic one; for a quick comparison the generic one, of which a few
    hundred draws of a small problem are worth as many.
    """
    if hyper is not None and not model.proper(hyper):
        return None
    samplers = [name for name in default_engines(model, hyper, quick) if _kind(name) == "draws"]
    return samplers[0] if samplers else None


def default_engines(model: Any, hyper: Any, quick: bool = False) -> list[str]:
    """The engines that a comparison is made of where none are named.

    Those that are `compared` (for a quick one `is_quick`) and suit the model; without a proper
    prior all that find a point.
    """
    proper = hyper is None or model.proper(hyper)
    taken = []
    for name in engines():
        engine = load_engine(name)
        wanted = engine.is_quick if quick else engine.compared
        if (wanted if proper else engine.kind == "point") and not engine.suits(model):
            taken.append(name)
    return sorted(taken, key=lambda name: (KINDS.index(_kind(name)), name))


def _kind(name: str) -> str:
    return load_engine(name).kind


def make_options(engine: "Engine", given: dict[str, Any]) -> Any:
    """The engine's options with the given ones checked."""
    options = read_options(engine.Options, engine.name, given)
    engine.check(options)
    return options
