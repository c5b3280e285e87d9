"""`pp-models reference`: a reference posterior, made or checked."""

import argparse
from pathlib import Path

from inference.calibration import files, reference
from inference.cli.settings import make_folder, use_devices
from inference.run import checkpoint as checkpoints
from pp_models.errors import InputError


def run_reference(chosen: argparse.Namespace) -> int:
    """0 where every criterion is met, else 1."""
    use_devices(chosen.devices)
    reference.find_recipe(chosen.model)
    return _check(chosen) if chosen.check is not None else _make(chosen)


def _check(chosen: argparse.Namespace) -> int:
    found = files.load(chosen.check)
    if found.model != chosen.model:
        raise InputError(
            f"{chosen.check} is a reference posterior of {found.model}, not of {chosen.model}: "
            "name that model."
        )
    criteria = reference.check(found)
    print(reference.describe(found))
    if chosen.again:
        anew = reference.check_again(found, chosen.seed, False if chosen.quiet else None)
        criteria += anew
        for one in anew:
            print(f"  {one.name}: {one.figure:.4g} ({one.limit}){'' if one.met else ' NOT MET'}")
    return 0 if all(one.met for one in criteria) else 1


def _make(chosen: argparse.Namespace) -> int:
    path = Path(chosen.out)
    if path.exists() and not chosen.overwrite:
        raise InputError(
            f"{path} is already there: choose another --out, or add --overwrite to replace it."
        )
    make_folder(path.parent)
    progress = False if chosen.quiet else None
    found = reference.make(chosen.model, chosen.seed, progress=progress, path=path)
    files.save(found, path)
    for checkpoint in reference.checkpoints_of(reference.find_recipe(chosen.model), path):
        if checkpoint is not None:
            checkpoints.remove(checkpoint)
    print(f"{reference.describe(found)}\n\nwritten to {path}")
    return 0 if all(one.met for one in reference.check(found)) else 1
