"""`pp-models compare`: several engines fitted and judged, with a report."""

import argparse
import shlex
import sys
from typing import Any

import jax

from inference.cli.arguments import table_options
from inference.cli.settings import find_folder, load_data, make_folder, prepare
from inference.comparison import results
from inference.comparison.compare import compare
from inference.core.registry import with_corrected
from inference.report import page as report
from pp_models.data.files import explained
from pp_models.errors import InputError


def run_compare(chosen: argparse.Namespace) -> int:
    """DIR/report.html, summary.json, agreement.csv, one .nc per engine; fits in DIR/fits."""
    if not 0 < chosen.budget < float("inf"):
        raise InputError(f"--budget must be a positive number of seconds, not {chosen.budget}.")
    if chosen.rows is not None and chosen.rows < 1:
        raise InputError(f"--rows must be at least 1, not {chosen.rows}.")
    names = None
    if chosen.engines is not None:
        names = with_corrected(n for part in chosen.engines.split(",") if (n := part.strip()))
    model, settings = prepare(chosen, names)
    folder = find_folder(chosen, comparing=True)
    synthetic = chosen.data == "synthetic" and not table_options(chosen)
    data = None if synthetic else load_data(chosen, model, settings["hyper"])[0]
    if folder.is_dir():
        make_folder(folder)  # one that is not there is made when everything has been checked
    comparison = compare(
        chosen.model,
        data,
        reference=chosen.reference,
        engines=names,
        hyper=settings["hyper"] or None,
        key=jax.random.key(chosen.seed),
        options=settings["options"],
        progress=False if chosen.quiet else None,
        on_result=_tell,
        on_begin=None if chosen.quiet or sys.stderr.isatty() else _begin,
        quick=chosen.quick,
        budget=chosen.budget,
        rows=chosen.rows,
        folder=folder,
        overwrite=chosen.overwrite,
        command=f"pp-models {shlex.join(chosen.arguments)}",
    )
    with explained(folder):
        page = report.write(comparison, folder)
    results.tidy(folder, comparison.fits)
    print(f"\n{report.table(comparison)}\n\nreport: {page}")
    if partial := comparison.summary["partial"]:
        advice = " Leave --overwrite out then, or everything is fitted again."
        print(f"pp-models: {partial}{advice if chosen.overwrite else ''}", file=sys.stderr)
        return 130
    return 0 if len(comparison.fits) > 1 else 1


def _tell(engine: str, row: dict[str, Any]) -> None:
    seconds = "" if row["seconds"] is None else f" ({row['seconds']:.1f} s)"
    said = f"failed: {row['error']}" if row["error"] else row["verdict"]
    print(f"{engine}{seconds}: {said}", flush=True)


def _begin(engine: str, place: str) -> None:
    """Where there is no terminal for progress bars."""
    print(f"{place}: {engine} …", file=sys.stderr, flush=True)
