"""`pp-models evaluate`: a table of held-out measures that suit the model, or JSON."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from inference.cli.arguments import table_options
from inference.evaluation import measures
from inference.io.fits import Fit, load
from pp_models import datasets
from pp_models.data import packaged, text
from pp_models.data.files import write_whole
from pp_models.data.formats.readers import names, read_ratings
from pp_models.data.ids import are_whole
from pp_models.data.rated import match_ratings
from pp_models.data.types import Data
from pp_models.errors import InputError

NO_TEXTS = "Ratings have no columns of texts: leave --text-column out."


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
    heldout = _heldout(chosen, fit)
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


def _heldout(chosen: argparse.Namespace, fit: Fit) -> Data:
    """The data, with the words of the fit, or its users and items."""
    options = table_options(chosen)
    if fit.model.kind != "ratings":
        return load_alike(chosen.data, fit.model, options, fit.column_names)
    if options:
        raise InputError(NO_TEXTS)
    found = _ratings(chosen.data, fit)
    shape = fit.provenance["rows"], fit.provenance["columns"]
    data, dropped = match_ratings(found, fit.row_names, fit.column_names, shape)
    if dropped:
        told = f"{dropped} of {found.num_entries} ratings are of users or items not fitted"
        print(f"pp-models: {told}: they are left out.", file=sys.stderr)
    return data


def _ratings(name: str, fit: Fit) -> Data:
    """Ratings; whole numbers are indices where users or items that have names are counted."""
    if not packaged.is_path(name):
        return datasets.load(name, fit.model)
    known = fit.row_names or (), fit.column_names or ()
    counted = names(name, own=True) != (None, None) or not all(map(are_whole, known))
    return read_ratings(Path(name), complete=not counted)


def load_alike(
    name: str, model: Any, options: dict[str, str], columns: tuple[str, ...] | None
) -> Data:
    """Data in which texts are counted by these words. options: which columns are texts, names."""
    found: dict[str, Any] = dict(options)
    if columns is not None and (options or _is_raw(name)):
        found["vocabulary"] = columns
    return datasets.load(name, model, **found)


def _is_raw(place: str) -> bool:
    """Whether the data are raw text, whose words are to be those of the fit."""
    return packaged.is_path(place) and text.is_text(place)


def _write(words: str, target: str) -> None:
    """To a file, or for "-" to standard output."""
    if target == "-":
        print(words)
        return
    path = Path(target)
    try:
        write_whole(path, lambda file: file.write_text(words + "\n", encoding="utf-8"))
    except OSError as error:
        told = f"Cannot write to {path} ({error.strerror}): choose another --json."
        raise InputError(told) from error
    print(f"written to {path}")
