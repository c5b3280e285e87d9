"""`pp-models explore`: a page to browse a stored fit."""

import argparse
import webbrowser
from pathlib import Path

from inference.cli.settings import use_devices
from inference.io.fits import load
from inference.report.explore import NAME, write_explore
from pp_models import datasets


def run_explore(chosen: argparse.Namespace) -> int:
    """Write the page, beside the fit unless told otherwise."""
    use_devices(None)
    place = Path(chosen.folder)
    file = place / "fit.npz" if place.is_dir() else place
    fit = load(file)
    if chosen.data is not None:
        fit = load(file, datasets.load(chosen.data, fit.model))
    out = Path(chosen.out) if chosen.out else file.parent / NAME
    path = write_explore(fit, out / NAME if out.is_dir() else out)
    print(f"written to {path}")
    if chosen.open and not webbrowser.open(path.resolve().as_uri()):
        print("no browser was found: open the page yourself")
    return 0
