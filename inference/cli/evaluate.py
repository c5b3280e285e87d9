"""`pp-models evaluate`: a table of held-out measures that suit the model, or JSON."""

import argparse
import json
from pathlib import Path

from inference.evaluation import measures
from inference.io.fits import load
from pp_models import datasets
from pp_models.data.files import write_whole
from pp_models.data.formats.readers import read_ratings
from pp_models.errors import InputError


def run_evaluate(chosen: argparse.Namespace) -> int:
    """Score a stored fit on held-out data."""
    if chosen.folds < 2:
        raise InputError(
            f"--folds must be at least 2, not {chosen.folds}: some words must stay observed."
        )
    for name, least in (("top", 1), ("words", 2)):
        if getattr(chosen, name) < least:
            raise InputError(f"--{name} must be at least {least}, not {getattr(chosen, name)}.")
    if chosen.data == "synthetic":
        raise InputError(
            "--data synthetic draws other topics than those fitted: give held-out data of the same "
            "source."
        )
    folder = Path(chosen.folder)
    fit = load(folder / "fit.npz" if folder.is_dir() else folder)
    measures.check_names(fit.model, chosen.measure)
    if fit.model.kind == "ratings":
        heldout = read_ratings(Path(chosen.data), complete=False)
    else:
        heldout = datasets.load(chosen.data, fit.model)
    settings = measures.Settings(chosen.folds, chosen.top, chosen.words, chosen.seed)
    rows = measures.measure(fit, heldout, chosen.measure, settings)
    if chosen.json is None:
        print(measures.table(rows))
        return 0
    about = {
        "model": fit.model.name,
        "engine": fit.engine,
        "data": {"path": chosen.data, "hash": heldout.hash},
        "seed": chosen.seed,
        "measures": [measures.plain(row) for row in rows],
    }
    _write(json.dumps(about, indent=2, allow_nan=False), chosen.json)
    return 0


def _write(text: str, target: str) -> None:
    """To a file, or for "-" to standard output."""
    if target == "-":
        print(text)
        return
    path = Path(target)
    try:
        write_whole(path, lambda file: file.write_text(text + "\n", encoding="utf-8"))
    except OSError as error:
        told = f"Cannot write to {path} ({error.strerror}): choose another --json."
        raise InputError(told) from error
    print(f"written to {path}")
