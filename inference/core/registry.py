"""Finding engines: every file that ends in `ENGINE = Engine(...)`, in `inference/engines` or in a
folder named in PP_MODELS_PATH."""

import functools
import importlib
import os
from pathlib import Path
from typing import Any

from inference.core.engine import Engine
from inference.core.options import read_options
from pp_models import discovery
from pp_models.errors import InputError, unknown

PACKAGE = Path(__file__).parents[1] / "engines"


@functools.cache
def _files(folders: str) -> dict[str, Path]:
    """Read once for each value of PP_MODELS_PATH."""
    return discovery.declared(PACKAGE, "ENGINE")


def engines() -> list[str]:
    """Names of all engines, sorted. Reads the files, imports nothing."""
    return sorted(_files(os.environ.get("PP_MODELS_PATH", "")))


def load_engine(name: str) -> Engine:
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
    """The sampler to judge other engines by: the first that a comparison takes.

    None if the posterior is not proper.
    """
    if hyper is not None and not model.proper(hyper):
        return None
    taken = default_engines(model, hyper, quick)
    return next((name for name in taken if load_engine(name).kind == "draws"), None)


def default_engines(model: Any, hyper: Any, quick: bool = False) -> list[str]:
    """The engines of a comparison that names none.

    Those that are `compared` (for a quick one `is_quick`) and suit the model; without a proper
    prior all that find a point.
    """
    proper = hyper is None or model.proper(hyper)

    def is_wanted(engine: Engine) -> bool:
        wanted = engine.is_quick if quick else engine.compared
        return (wanted if proper else engine.kind == "point") and not engine.suits(model)

    taken = [engine for engine in map(load_engine, engines()) if is_wanted(engine)]
    return [x.name for x in sorted(taken, key=lambda x: (KINDS.index(x.kind), x.name))]


def load_with_options(name: str, given: dict[str, Any]) -> tuple[Engine, Any]:
    """The engine of that name, and its options with the given ones checked."""
    engine = load_engine(name)
    return engine, make_options(engine, given)


def make_options(engine: Engine, given: dict[str, Any]) -> Any:
    """The engine's options with the given ones checked."""
    options = read_options(engine.Options, engine.name, given)
    engine.check(options)
    return options
