"""What `fit` and `compare` share: settings, devices, data and the output folder."""

import argparse
import ast
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import jax

from inference.cli import folder as results
from inference.cli.arguments import table_options
from inference.core.compilation import keep_programs
from inference.core.registry import default_reference, load_compared, load_engine, make_options
from inference.core.registry import engines as all_engines
from pp_models import datasets
from pp_models.errors import InputError, unknown
from pp_models.model import make_hyper, split_learned
from pp_models.models import load


def prepare(chosen: argparse.Namespace, engines: list[str] | None) -> tuple[Any, dict[str, Any]]:
    """The model, and --set sorted into hyper-parameters and options of each engine.

    Every name is checked before anything is compiled. engines: None for all.
    """
    quick = getattr(chosen, "quick", False)
    use_devices(chosen.devices, 1 if quick else os.cpu_count() or 1)
    if quick:  # of a small problem, most of the time is compiling
        jax.config.update("jax_disable_most_optimizations", True)
    model = load(chosen.model)
    every = [one for one in map(load_engine, all_engines()) if one.compared or one.kind == "point"]
    names: list[Any] = [one.name for one in every] if engines is None else list(engines)
    find = load_compared if "reference" in chosen else load_engine
    if "reference" in chosen and chosen.reference != "none":
        names.append(chosen.reference or default_reference(model))
    fields = {name: find(name).Options._fields for name in dict.fromkeys(names)}
    known = {*model.Hyper._fields, *(name for names in fields.values() for name in names)}
    given = dict(parse_setting(text) for text in chosen.set)
    for name in given:
        if name not in known:
            raise unknown("hyper-parameter or option", name, known)
    options = {
        engine: {n: v for n, v in given.items() if n in own} for engine, own in fields.items()
    }
    for engine, own in options.items():
        make_options(find(engine), own)
    hyper = {name: value for name, value in given.items() if name in model.Hyper._fields}
    return model, {"hyper": hyper, "options": {name: own for name, own in options.items() if own}}


def parse_setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value a Python literal or else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--set takes NAME=VALUE, not {text!r}.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def use_devices(number: int | None, default: int = 1) -> None:
    """Make so many CPU devices, and keep compiled programs. JAX takes the number once."""
    if number is not None and number < 1:
        raise InputError(f"--devices must be at least 1, not {number}.")
    with contextlib.suppress(RuntimeError):  # JAX is in use already and keeps its devices
        jax.config.update("jax_num_cpu_devices", number or default)
    keep_programs()


def find_folder(chosen: argparse.Namespace, comparing: bool = False) -> Path:
    """The output folder: new, empty, to be overwritten, or of a run that goes on."""
    folder = Path(chosen.out)
    if chosen.resume and chosen.overwrite:
        raise InputError(
            "--resume goes on with what is there and --overwrite replaces it: give one of them."
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file: name a folder.")
    if comparing:
        goes_on = (folder / "recipe.json").is_file()
    else:
        goes_on = chosen.resume and not results.holds_other_things(folder)
    if results.holds_anything(folder) and not chosen.overwrite and not goes_on:
        if results.is_unfinished(folder) and not comparing:
            raise InputError(
                f"{folder} holds a run that is not finished: add --resume to go on with it, or "
                "--overwrite to begin anew."
            )
        raise InputError(
            f"{folder} already holds results: choose another --out, or add --overwrite to replace "
            "them."
        )
    return folder


def make_folder(folder: Path) -> None:
    """Make the folder and try to write there before hours of fitting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        told = f"Cannot write to {folder} ({error.strerror}): choose another --out."
        raise InputError(told) from error


def load_data(chosen: argparse.Namespace, model: Any, hyper: dict[str, Any]) -> tuple[Any, Any]:
    """The data, and the hyper-parameters to fit with: of synthetic data, those of the draw."""
    given, learned = split_learned(model, hyper)
    if chosen.data == "synthetic":
        if table_options(chosen):
            raise InputError("Synthetic data have no columns of texts: add --data FILE.")
        key = jax.random.key(chosen.seed)
        drawn, data, _ = datasets.synthetic(model, key, hyper=given or None)
        marked = {name: ("learn", getattr(drawn, name)) for name in learned or ()}
        return data, {**drawn._asdict(), **marked}
    data = datasets.load(chosen.data, model, **table_options(chosen))
    make_hyper(model, given, data)
    return data, hyper
