"""`pp-models choose`: candidates compared on held-out data; a table, choose.csv, choose.svg."""

import argparse
import ast
import csv
import math
import os
from pathlib import Path
from typing import Any

import jax

from inference.cli.arguments import table_options
from inference.cli.evaluate import load_alike
from inference.cli.settings import load_data, make_folder, parse_setting, use_devices
from inference.evaluation.choice import Choice, Row, label
from inference.evaluation.choose import choose
from pp_models.data.files import write_whole
from pp_models.errors import InputError
from pp_models.models import load

TABLE, FIGURE = "choose.csv", "choose.svg"


def run_choose(chosen: argparse.Namespace) -> int:
    """Fit and score every candidate; print what was found and write it to DIR."""
    use_devices(chosen.devices, os.cpu_count() or 1)
    settings = _settings(chosen)
    model, folder = load(chosen.model), Path(chosen.out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file: name a folder.")
    if not chosen.overwrite and any((folder / name).exists() for name in (TABLE, FIGURE)):
        raise InputError(
            f"{folder} already holds results: choose another --out, or add --overwrite to replace "
            "them."
        )
    data, _ = load_data(chosen, model, {})
    heldout, reference = (
        None if name is None else load_alike(name, model, table_options(chosen), data.column_names)
        for name in (chosen.heldout, chosen.reference)
    )
    make_folder(folder)
    found = choose(
        chosen.model,
        data,
        heldout=heldout,
        share=chosen.share,
        seed=chosen.seed,
        key=jax.random.key(chosen.seed),
        reference=reference,
        num_words=chosen.words,
        progress=False if chosen.quiet else None,
        watch=None if chosen.quiet else _tell,
        **settings,
    )
    print(found)
    write_whole(folder / TABLE, lambda file: _write_table(found, file))
    note = _write_figure(found, folder / FIGURE)
    print(f"written to {folder}")
    if note:
        print(f"{FIGURE}: {note}")
    return 0


def _settings(chosen: argparse.Namespace) -> dict[str, Any]:
    """--set, and the lists of --grid."""
    settings = dict(parse_setting(text) for text in chosen.set)
    for text in chosen.grid:
        name, equals, values = text.partition("=")
        if not equals or not name or not values:
            raise InputError(f"--grid takes NAME=A,B,..., not {text!r}.")
        if name in settings:
            raise InputError(f"{name} is given twice: once is enough.")
        settings[name] = _values(name, values)
    if not chosen.grid:
        raise InputError("There is nothing to compare: add --grid, e.g. num_topics=10,20,40.")
    return settings


def _values(name: str, text: str) -> list[Any]:
    """Values between commas; a Python list, whose values may hold commas."""
    if text.startswith("["):
        try:
            return list(ast.literal_eval(text))
        except (ValueError, SyntaxError, TypeError) as error:
            raise InputError(f"--grid {name}={text} is not a list of values.") from error
    return [parse_setting(f"{name}={part.strip()}")[1] for part in text.split(",")]


def _tell(row: Row) -> None:
    """One finished candidate."""
    known = row.failed or f"{row.score:.4f}, {row.seconds:.1f} s"
    print(f"{label(row.settings)}: {known}", flush=True)


def _write_table(found: Choice, file: Path) -> None:
    records = found.records()
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(records[0]))
        writer.writeheader()
        for record in records:  # what is not known stays empty
            missing = (k for k, x in record.items() if isinstance(x, float) and math.isnan(x))
            writer.writerow(record | dict.fromkeys(missing))


def _write_figure(found: Choice, path: Path) -> str:
    """Draw it, or say why not."""
    try:
        figure = found.figure()
    except InputError as error:  # matplotlib is optional
        return str(error)
    write_whole(path, lambda file: figure.savefig(file, format="svg"))
    return ""
