"""What the command line shows and writes of a fit: tables of topics and of documents."""

import csv
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inference.core import topics as core
from inference.core.completion import has_topics
from inference.evaluation.ratings import score_ratings
from inference.io import tables
from inference.io.fits import Fit, load, stored_sites
from inference.run.end_checks import quiet
from pp_models.data.files import write_whole
from pp_models.errors import InputError

MOST_TOPICS = 30  # printed
MOST_WORDS = 30  # of a topic, tried for the width of the terminal
WIDTH = 100  # where there is no terminal
MOST_NUMBERS = 5_000_000  # in a table of documents that is written unasked
MOST_RATINGS = 1_000_000  # predicted to say how well they are fitted


def load_fit(place: str) -> Fit:
    """The fit in a folder that `pp-models fit` wrote, or in a file."""
    folder = Path(place)
    return load(folder / "fit.npz" if folder.is_dir() else folder)


def has_parts(fit: Fit) -> bool:
    """Whether there are topics or components to list."""
    return has_topics(fit.model) or core.mixture_weights(fit.model) is not None


def is_solved(fit: Fit) -> bool:
    """Whether the rows' weights are at hand or few enough to be solved for."""
    return set(stored_sites(fit)) == set(fit.posterior.sites)


def parts(fit: Fit) -> core.Parts:
    """Topics or components; without shares where these would take a pass over too many rows."""
    totals = fit.row_totals if is_solved(fit) else None
    return core.parts_of(fit.problem, fit.posterior, totals)


def few_documents(fit: Fit, found: core.Parts) -> bool:
    """Whether the table of documents is small enough to be written unasked."""
    numbers = fit.provenance["rows"] * len(found.share)
    return is_solved(fit) and numbers <= MOST_NUMBERS


def format_parts(
    found: core.Parts,
    names: Sequence[str] | None,
    num_words: int | None = None,
    rank: str = "probability",
    relevance: float = 0.6,
    most: int | None = None,
) -> str:
    """A line for each topic, the largest first.

    num_words: by default as many as fit the width. most: topics that are shown
    """
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    best = core.ranked(found, MOST_WORDS if num_words is None else num_words, rank, relevance)
    words: Sequence[Any] = range(found.columns.shape[1]) if names is None else names
    what = "words" if found.word == "topic" else "largest columns"
    lines = [f"{found.word}  share  {what}"]
    order = core.by_share(found)
    most = MOST_TOPICS if most is None else most
    for k in order[:most]:
        share = "     -" if np.isnan(found.share[k]) else f"{found.share[k]:6.1%}"
        line = f"{k:{len(found.word)}d} {share} "
        for v in best[k]:
            longer = f"{line} {words[v]}"
            if num_words is None and len(longer) > width:
                break
            line = longer
        lines.append(line)
    if len(order) > most:
        lines.append(f"and {len(order) - most} more")
    return "\n".join(lines)


def format_ratings(fit: Fit) -> str:
    """How far the fitted ratings are from their predictions, in a line; "" where that is long."""
    if fit.model.ratings is None or fit.data.num_entries > MOST_RATINGS:
        return ""
    with quiet():  # the line says that these are the fitted ratings
        rmse = score_ratings(fit, fit.data).rmse
    spread = float(np.std(fit.data.matrix.data, dtype=np.float64))
    told = f"RMSE {rmse:.4g}, and {spread:.4g} if all are predicted by their mean"
    return f"{fit.data.num_entries:,} fitted ratings: {told}"


def write_parts(
    path: Path,
    found: core.Parts,
    names: Sequence[str] | None,
    num_words: int = 20,
    rank: str = "probability",
    relevance: float = 0.6,
) -> None:
    """A CSV of topics, their shares and their words."""
    rows = tables.topic_rows(found, names, num_words, rank, relevance)
    shown = ((k, "" if np.isnan(share) else f"{share:.6g}", words) for k, share, words in rows)
    write_csv(path, [found.word, "share", "words"], shown)


def write_documents(
    path: Path, values: Any, names: Sequence[str] | None, columns: Sequence[str]
) -> None:
    """A CSV of numbers with a row for each document, which is named or numbered."""
    titles: Sequence[Any] = range(len(values)) if names is None else names
    rows = zip(titles, np.asarray(values), strict=True)
    text = ([title, *(f"{x:.6g}" for x in row)] for title, row in rows)
    write_csv(path, ["document", *columns], text)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a whole file or none."""

    def write(place: Path) -> None:
        with place.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)

    try:
        write_whole(path, write)
    except OSError as error:
        told = f"Cannot write to {path} ({error.strerror}): choose another --out."
        raise InputError(told) from error
