"""`pp-models check`: whether a model's F is the density of its `generate`."""

import argparse
import os
from pathlib import Path
from typing import Any

import jax

from inference.cli.settings import parse_setting, use_devices
from pp_models import datasets
from pp_models.errors import InputError
from pp_models.model import Model, compare_joint, declare
from pp_models.model.check import PIECES, ROUNDING
from pp_models.models import load


def run_check(chosen: argparse.Namespace) -> int:
    """Compare the two, and print what was compared; a mismatch is an `InputError`."""
    use_devices(None)
    model = load(_name(chosen.model))
    hyper, data = _problem(model, chosen.data, dict(parse_setting(text) for text in chosen.set))
    model, hyper = declare(model, hyper, data)
    found = compare_joint(model, hyper, data)
    differences = found.differences
    print(f"{model.name}: F is the log density of `generate`.")
    where = f"{found.num_draws} draws of q at its start, on {found.num_rows} x {found.num_columns}"
    print(f"  at         {where} data, in double precision")
    for piece, sites in zip(PIECES, _sites(model), strict=True):
        print(f"  {piece:<10} differs by {differences[piece]:.1e} nats; sites: {sites}")
    print(f"  tolerance  {found.tolerance:.1e} nats: {ROUNDING:g} of the sum of the terms' sizes,")
    print("             a million times what rounding leaves of it")
    return 0


def _name(text: str) -> str:
    """The name of a model; that of a file, whose folder joins PP_MODELS_PATH."""
    file = Path(text)
    if file.suffix != ".py":
        return text
    if not file.is_file():
        raise InputError(f"There is no file {text}: name a model, or the file that declares it.")
    folders = [str(file.resolve().parent), os.environ.get("PP_MODELS_PATH", "")]
    os.environ["PP_MODELS_PATH"] = os.pathsep.join(filter(None, folders))
    return file.stem


def _problem(model: Model, name: str | None, given: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Hyper-parameters and data: of the example, unless they are given."""
    own, example = model.example(jax.random.key(0))
    if name is None:
        return {**own._asdict(), **given}, example
    return given, datasets.load(name, model)


def _sites(model: Model) -> tuple[str, str]:
    """The sites of `generate` whose densities each piece of F states."""
    local = [site for site in model.families if site in model.local]
    return ", ".join(model.shared) or "none", ", ".join([*local, model.observed])
