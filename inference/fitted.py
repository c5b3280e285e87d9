"""The folder of one fit, as `pp-models fit` writes it.

    DIR/checkpoint.npz    the state of a run that is not over (`checkpoints`)
    DIR/fit.npz           the fit (`storage`)
    DIR/posterior.nc      the same for ArviZ
    DIR/summary.json      what was fitted and how
    DIR/last-good.npz     of a run that went wrong, the fit before it did

The checkpoint is removed last: a folder that has one is not finished.
"""

import json
from pathlib import Path
from typing import Any

from inference.fitting import Fit
from pp_models.errors import Diverged, InputError
from pp_models.files import explained, is_stray, write_whole

CHECKPOINT, FIT, POSTERIOR, SUMMARY, LAST_GOOD = "checkpoint.npz", "fit.npz", "posterior.nc", "summary.json", "last-good.npz"


def holds_anything(folder: Path) -> bool:
    return folder.is_dir() and any(not is_stray(file) for file in folder.iterdir())


def is_unfinished(folder: Path) -> bool:
    return (folder / CHECKPOINT).is_file()


def is_finished(folder: Path) -> bool:
    return (folder / SUMMARY).is_file() and (folder / FIT).is_file() and not is_unfinished(folder)


def check_same(folder: Path, model: str, engine: str, seed: int) -> None:
    """Refuse to call a run finished that was another."""
    try:
        found = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        before = {name: found[name] for name in ("model", "engine", "seed")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / SUMMARY} cannot be read ({error}): choose another --out, or add --overwrite.") from error
    differs = [f"{name} {before[name]}" for name, value in (("model", model), ("engine", engine), ("seed", seed)) if before[name] != value]
    if differs:
        raise InputError(f"{folder} holds a finished fit of {' and '.join(differs)}: choose another --out, or add --overwrite to replace it.")


def write(fit: Fit, folder: Path, seed: int) -> None:
    """Everything, then the end of the checkpoint."""
    summary = {"model": fit.model.name, "engine": fit.engine, "seconds": fit.seconds, "bound": None if fit.bound != fit.bound else fit.bound}
    summary |= {"seed": seed, "steps": len(fit.history["step"]), "options": fit.options, "data": fit.provenance}
    text = json.dumps(summary, indent=2) + "\n"
    with explained(folder):
        fit.save(folder / FIT)
        tree = fit.to_arviz()
        write_whole(folder / POSTERIOR, lambda path: tree.to_netcdf(str(path)))
        write_whole(folder / SUMMARY, lambda path: path.write_text(text, encoding="utf-8"))
        (folder / LAST_GOOD).unlink(missing_ok=True)
        (folder / CHECKPOINT).unlink(missing_ok=True)


def keep_last_good(error: Diverged, folder: Path) -> Any:
    """The error, with where the last good state was put."""
    if error.fit is None:
        return error
    with explained(folder):
        path = error.fit.save(folder / LAST_GOOD)
    told = Diverged(f"{error} The last good state is in {path}.")
    told.fit = error.fit
    return told
