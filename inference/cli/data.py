"""`pp-models data`: convert data between formats, or say what is in them."""

import argparse
from typing import Any

from inference.cli.arguments import table_options
from pp_models.data.conversion import convert, describe
from pp_models.errors import InputError


def run_convert(chosen: argparse.Namespace) -> int:
    """Write the same data in another format."""
    options: dict[str, Any] = dict(table_options(chosen))
    for name in ("min_df", "max_df"):
        if (text := getattr(chosen, name)) is not None:
            options[name] = _frequency(name, text)
    if chosen.stop_words is not None:
        options["stop_words"] = chosen.stop_words
    progress = False if chosen.quiet else None
    paths = chosen.source, chosen.target
    print(convert(*paths, chosen.kind, chosen.overwrite, progress, **options))
    return 0


def run_info(chosen: argparse.Namespace) -> int:
    """Say what the data are."""
    for name, value in describe(chosen.source, chosen.kind).items():
        print(f"{name + ':':<16} {value}")
    return 0


def _frequency(name: str, text: str) -> int | float:
    try:
        return float(text) if "." in text else int(text)
    except ValueError as error:
        raise InputError(
            f"--{name.replace('_', '-')} takes a number of documents or a share of them, such as 5 "
            f"or 0.5, not {text!r}."
        ) from error
