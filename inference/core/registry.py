"""Finding engines: every file that ends in `ENGINE = Engine(...)`, in `inference/engines` or in a
folder named in PP_MODELS_PATH."""

import functools
import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inference.core.engine import Engine
from inference.core.options import compose, read_options
from pp_models import models as discovery
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
    if corrects(name) in engines():
        raise InputError(
            f"{name} is no engine but a row of a comparison: fit by {corrects(name)}, and ask the "
            "fit for `.corrected()`."
        )
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


CORRECTION = "+lr"  # after a name: its fit with the widths of linear response


def corrects(name: str) -> str:
    """The engine whose fit such a row of a comparison corrects; empty for an engine of its own."""
    return name.removesuffix(CORRECTION) if name.endswith(CORRECTION) else ""


def with_corrected(names: Iterable[str]) -> list[str]:
    """The names once each, and before each correction the engine that it corrects."""
    return list(dict.fromkeys(one for name in names for one in (corrects(name) or name, name)))


NO_OPTIONS = compose()  # of a correction


def load_compared(name: str) -> Engine:
    """An engine, or a correction as a comparison needs it."""
    if "+" not in name:
        return load_engine(name)
    able = [one for one in engines() if load_engine(one).kind == "variational"]
    if (base := corrects(name)) in engines() and base not in able:
        raise InputError(
            f"Linear response corrects variational fits, and {base} makes none: {CORRECTION} goes "
            f"with {', '.join(able)}."
        )
    if base not in able:
        raise unknown("engine", name, [*engines(), *(one + CORRECTION for one in able)])
    engine = load_engine(base)
    return Engine(name, NO_OPTIONS, engine.build, "corrected", suits=engine.suits)


# The order in which engines are compared.
KINDS = ("variational", "conditional", "point", "mixture", "draws")


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


def default_rows(model: Any, hyper: Any, quick: bool = False) -> list[str]:
    """The same with corrections, each after its engine. A quick comparison has no time for them."""
    taken = default_engines(model, hyper, quick)
    corrected = [n for n in taken if load_engine(n).corrected and not quick]
    return [one for n in taken for one in (n, *((n + CORRECTION,) if n in corrected else ()))]


def compared_names() -> list[str]:
    """Every name that a row of a comparison may have."""
    return [*engines(), *(name + CORRECTION for name in engines())]


def make_options(engine: Engine, given: dict[str, Any]) -> Any:
    """The engine's options with the given ones checked."""
    options = read_options(engine.Options, engine.name, given)
    engine.check(options)
    return options
