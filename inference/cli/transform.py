"""`pp-models transform`: the weights of new rows under a stored fit."""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from inference.cli import shown
from inference.cli.arguments import table_options
from inference.cli.evaluate import NO_TEXTS, load_alike
from inference.core.transform import word_of
from inference.io.fits import Fit
from inference.io.tables import numbered
from pp_models import datasets
from pp_models.data import match, packaged, text
from pp_models.data.formats import readers, tables
from pp_models.data.types import Data
from pp_models.errors import InputError

PREVIEW = 10, 8  # rows and columns


def run_transform(chosen: argparse.Namespace) -> int:
    """A CSV with a row for each new row or, without --out, the first of them on the terminal."""
    if chosen.data == "synthetic":
        raise InputError("--data synthetic draws other topics than those fitted: give new data.")
    fit = shown.load_fit(chosen.folder)
    data = _read(chosen.data, fit, table_options(chosen))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = fit.transform(data, sd=chosen.sd)
    for warning in caught:
        _tell(str(warning.message))
    means, sds = found if chosen.sd else (found, None)
    table = np.asarray(means)
    columns = numbered(word_of(fit.model), table.shape[1])
    if sds is not None:
        table = np.concatenate([table, np.asarray(sds)], axis=1)
        columns += [f"{column} sd" for column in columns]
    if chosen.out is None:
        print(_preview(table, data.row_names, columns))
    else:
        shown.write_documents(Path(chosen.out), table, data.row_names, columns)
        print(f"{len(table):,} rows written to {chosen.out}")
    return 0


def _tell(note: str) -> None:
    print(f"pp-models: {note}", file=sys.stderr)


def _read(name: str, fit: Fit, options: dict[str, str]) -> Data:
    """New rows. Texts are counted by the fitted words, which the rows then have.

    options: which columns of a table are texts and their names
    """
    kind = fit.model.kind
    if options and kind == "ratings":
        raise InputError(NO_TEXTS)
    names = fit.column_names
    if not packaged.is_path(name):
        return load_alike(name, fit.model, options, names)
    path = Path(name)
    if kind == "ratings":
        beside = readers.names(path, own=True)  # of indices, which may leave gaps
        return readers.read_ratings(path, complete=beside == (None, None))
    if not (kind == "counts" or (kind == "text_and_votes" and (options or not _has_votes(path)))):
        return datasets.load(name, fit.model, **options)
    if not options and (names is None or not text.is_text(path)):
        return packaged.read(name, "counts")
    rows = text.blocks(path, **options, vocabulary=names or ())[2]
    column = options.get("text_column")
    texts = text.documents(path) if column is None else tables.texts(path, column)
    fitted = match.Fitted("counts", fit.provenance["columns"], names)
    found = match.count_texts(list(texts), fitted, rows)
    if found.note:
        _tell(f"transform: {found.note}")
    return found.data


def _has_votes(path: Path) -> bool:
    """Whether a path is a file of votes, or has one beside it."""
    beside = path.with_name(readers.stem(path) + readers.VOTES_SUFFIX)
    return readers.is_votes(path) or beside.exists()


def _preview(table: np.ndarray, names: Any, columns: list[str]) -> str:
    """The first rows and columns, and how many there are."""
    most_rows, most_columns = PREVIEW
    part, heads = table[:most_rows, :most_columns], columns[:most_columns]
    titles = [str(i) if names is None else str(names[i])[:30] for i in range(len(part))]
    left = max(map(len, ["row", *titles]))
    widths = [max(len(head), 9) for head in heads]

    def line(title: str, cells: list[str]) -> str:
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return "  ".join([f"{title:<{left}}", *padded])

    lines = [line("row", heads)]
    lines += [
        line(title, [f"{x:.4g}" for x in row]) for title, row in zip(titles, part, strict=True)
    ]
    if part.shape != table.shape:
        lines.append(f"of {len(table):,} rows and {len(columns)} columns: --out FILE writes all")
    return "\n".join(lines)
