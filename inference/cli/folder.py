"""The folder of one fit, as `pp-models fit` writes it.

    DIR/checkpoint.npz    the state of a run that is not over (`run.checkpoint`); of several
                          processes checkpoint.0-of-2.7.npz and the like
    DIR/fit.npz           the fit (`io.fits`)
    DIR/topics.csv        topics or components: shares and words
    DIR/document_topics.csv  the documents' proportions of the topics
    DIR/posterior.nc      draws for ArviZ, if they are asked for
    DIR/summary.json      what was fitted and how
    DIR/last-good.npz     of a run that went wrong, the fit before it did

The checkpoint is removed last: a folder that has one is not finished.
"""

import json
import math
from pathlib import Path
from typing import Any

from inference.cli import shown
from inference.io.fits import Fit
from inference.io.tables import numbered
from inference.run import checkpoint
from pp_models.data.files import explained, is_stray, write_whole
from pp_models.errors import Diverged, InputError

CHECKPOINT, FIT, POSTERIOR = "checkpoint.npz", "fit.npz", "posterior.nc"
SUMMARY, LAST_GOOD = "summary.json", "last-good.npz"
TOPICS, DOCUMENTS = "topics.csv", "document_topics.csv"


def holds_other_things(folder: Path) -> bool:
    """Whether there is something in it that no fit has put there."""
    files = (file.name for file in checkpoint.files_of(folder / CHECKPOINT))
    own = {FIT, POSTERIOR, SUMMARY, LAST_GOOD, TOPICS, DOCUMENTS, *files}
    there = folder.iterdir() if folder.is_dir() else ()
    return any(file.name not in own and not is_stray(file) for file in there)


def holds_anything(folder: Path) -> bool:
    return folder.is_dir() and any(not is_stray(file) for file in folder.iterdir())


def is_unfinished(folder: Path) -> bool:
    return bool(checkpoint.files_of(folder / CHECKPOINT))


def is_finished(folder: Path) -> bool:
    written = (folder / SUMMARY).is_file() and (folder / FIT).is_file()
    return written and not is_unfinished(folder)


def begin_anew(folder: Path) -> None:
    """Mark the folder as not finished. The old fit stays until the new one replaces it."""
    checkpoint.remove(folder / CHECKPOINT)
    (folder / SUMMARY).unlink(missing_ok=True)


def check_same(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse a finished fit with other settings."""
    asked = json.loads(json.dumps(settings))
    advice = "choose another --out, or add --overwrite"
    try:
        found = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["settings"]
        differs = [name for name, value in asked.items() if found.get(name) != value]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        told = f"{folder / SUMMARY} does not say what was fitted ({error}): {advice}."
        raise InputError(told) from error
    if differs:
        raise InputError(
            f"{folder} holds a finished fit that differs in {' and '.join(differs)}: {advice}."
        )


def write(fit: Fit, folder: Path, settings: dict[str, Any], num_draws: int = 0) -> list[str]:
    """Write everything, then remove the checkpoint. settings: for `check_same`.

    Returns what the files lack, in sentences.
    """
    summary = {
        "model": fit.model.name,
        "engine": fit.engine,
        "seconds": fit.seconds,
        "bound": _bound(fit),
        "seed": settings["seed"],
        "steps": len(fit.history["step"]),
        "options": fit.options,
        "data": fit.provenance,
        "settings": settings,
    }
    text = json.dumps(summary, indent=2) + "\n"
    with explained(folder):
        fit.save(folder / FIT)
        for name in (TOPICS, DOCUMENTS, POSTERIOR):  # of a fit that is replaced
            (folder / name).unlink(missing_ok=True)
        notes = _write_tables(fit, folder)
        if num_draws:
            tree = fit.to_arviz(num_draws, attributes={"seed": settings["seed"]})
            write_whole(folder / POSTERIOR, lambda path: tree.to_netcdf(str(path)))
            if note := tree["posterior"].attrs["note"]:
                notes.append(f"{POSTERIOR}: {note}")
        write_whole(folder / SUMMARY, lambda path: path.write_text(text, encoding="utf-8"))
        (folder / LAST_GOOD).unlink(missing_ok=True)
        checkpoint.remove(folder / CHECKPOINT)
    return notes


def _write_tables(fit: Fit, folder: Path) -> list[str]:
    """topics.csv and document_topics.csv, of a model that has topics or components."""
    if not shown.has_parts(fit):
        return []
    found = shown.parts(fit)
    shown.write_parts(folder / TOPICS, found, fit.column_names)
    if not shown.few_documents(fit, found):
        number = f"{fit.provenance['rows']:,} documents and {len(found.share)} {found.word}s"
        return [f"{DOCUMENTS} would be large for {number}: `pp-models transform` writes it."]
    columns = numbered(found.word, len(found.share))
    shown.write_documents(folder / DOCUMENTS, fit.documents(), fit.row_names, columns)
    return []


def _bound(fit: Fit) -> float | None:
    """The bound on all rows, unless there are too many rows to solve for it."""
    return fit.bound if shown.is_solved(fit) and math.isfinite(fit.bound) else fit.known_bound


def keep_last_good(error: Diverged, folder: Path) -> Any:
    """The error, with where the last good state was put."""
    if error.fit is None:
        return error
    try:
        path = error.fit.save(folder / LAST_GOOD)
        told = Diverged(f"{error} The last good state is in {path}.")
    except (OSError, InputError) as failure:
        told = Diverged(f"{error} The last good state could not be saved ({failure}).")
    told.fit = error.fit
    return told
