"""Data from one format into another, and what a path or data set holds.

`pp-models data convert` and `pp-models data info` call these.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from pp_models.data import corpus, datasets, old_database, packaged, text
from pp_models.data.corpus import Source
from pp_models.data.formats import old_store, readers, writers
from pp_models.data.formats.opening import usable
from pp_models.data.types import KINDS, Data
from pp_models.errors import InputError, unknown


def convert(
    source: str,
    target: str,
    kind: str | None = None,
    overwrite: bool = False,
    show: bool | None = None,
    **options: Any,
) -> str:
    """Write what `source` names to `target`, whose name tells the format; say what was written.

    Counts go into an .h5ad file in little memory; anything else is read as a whole. Options:
    those of `text.Options`, for raw text. A database of an earlier version is written as one of
    this version, if `target` has no ending, or .db.
    """
    _check_kind(kind)
    path, into = usable(source), usable(target)
    written: Data
    named = not datasets.is_path(source)
    if options and (named or not text.is_text(path)):
        given = ", ".join(options)
        raise InputError(f"{source} is not raw text, and {given} count its words: leave them out.")
    with _bar(show, into.name) as on_rows:
        if old_database.is_old(path) and into.suffix.lower() in ("", ".db"):
            written = old_database.convert(path, into)
        elif into.suffix.lower() == corpus.SUFFIX:
            if kind not in (None, "counts"):
                raise InputError(f"A corpus holds counts, not {kind}: write another format.")
            found = _source(source, path, named, kind, options)
            corpus.write(into, found, overwrite=overwrite, on_rows=on_rows)
            written = corpus.read(into, verify=False)
        else:
            data = packaged.load(source, kind) if named else packaged.read(path, kind, **options)
            writers.write(data, into, overwrite, on_rows)
            written = data
    size = f"{written.num_rows} rows x {written.num_columns} columns, {written.num_entries} entries"
    return f"{written.kind}: {size}, written to {into}"


def _source(source: str, path: Path, named: bool, kind: str | None, options: Any) -> Any:
    """Rows in blocks, where the format allows that."""
    if old_store.is_store(path) and not named:
        return Source(*old_store.blocks(path))
    if options:
        return Source(*text.blocks(path, **options))
    if not named and not (path.is_dir() and not text.is_text(path)):
        return path
    data = packaged.load(source, kind) if named else packaged.read(path, kind)
    if data.kind != "counts":
        what = f"{source} is {data.kind} data, and a corpus holds counts"
        raise InputError(f"{what}: add --kind counts to keep those alone, or write another format.")
    return data


def _check_kind(kind: str | None) -> None:
    if kind is not None and kind not in KINDS:
        raise unknown("kind of data", kind, KINDS)


@contextlib.contextmanager
def _bar(show: bool | None, title: str) -> Iterator[Callable[[int], Any]]:
    look = {"unit": " rows", "unit_scale": True, "leave": False, "dynamic_ncols": True}
    with tqdm(desc=title, disable=None if show is None else not show, **look) as bar:
        yield bar.update


def describe(source: str, kind: str | None = None, show: bool | None = None) -> dict[str, Any]:
    """What a path or a data set holds: its sizes, its names, and of a corpus its checksum."""
    _check_kind(kind)
    path = usable(source)
    if not datasets.is_path(source):
        return _described(packaged.load(source, kind))
    if kind not in (None, "counts") or readers.is_votes(path) or path.is_dir():
        return _described(packaged.read(path, kind))
    if path.suffix.lower() == corpus.SUFFIX:
        data = corpus.read(path)
        size = path.stat().st_size
        more: dict[str, Any] = {"bytes": size, "bytes per token": round(size / data.total, 2)}
        if isinstance(data, corpus.Corpus):
            more |= {"checksum": data.checksum, "complete": "yes"}
        return _described(data) | more
    with _bar(show, path.name) as on_rows:
        return _counted(path, on_rows)


def _described(data: Data) -> dict[str, Any]:
    what = {"counts": "tokens", "text_and_votes": "tokens"}.get(data.kind, "sum")
    shape = data.num_rows, data.num_columns
    sizes = _sizes(data.kind, shape, what, data.total, data.lengths)
    if data.votes is not None:
        yeas = f"{data.votes.data.mean():.1%}"
        sizes |= {"members": data.num_members, "votes": data.votes.nnz, "yeas": yeas}
    return sizes | _names(data.column_names, data.row_names)


def _sizes(kind: str, shape: Any, what: str, total: float, lengths: Any) -> dict[str, Any]:
    entries = int(lengths.sum())
    return {
        "kind": kind,
        "rows": shape[0],
        "columns": shape[1],
        "entries": entries,
        what: int(total) if float(total).is_integer() else total,
        "density": f"{entries / max(shape[0] * shape[1], 1):.3%}",
        "longest row": f"{int(lengths.max(initial=0))} entries",
        "empty rows": int(np.sum(lengths == 0)),
    }


def _names(columns: tuple[str, ...] | None, rows: tuple[str, ...] | None) -> dict[str, Any]:
    shown = {}
    for what, names in (("column names", columns), ("row names", rows)):
        some = ", ".join(name[:30] for name in (names or ("none",))[:4])
        shown[what] = some + (", ..." if len(names or ()) > 4 else "")
    return shown


def _counted(path: Path, on_rows: Callable[[int], Any]) -> dict[str, Any]:
    """Counts in a file, block by block where it is sorted, else as a whole."""
    lengths, num_columns, total = [np.zeros(0, int)], 0, 0.0
    found = corpus.open_source(path)
    try:
        for block in found.blocks:
            lengths.append(np.diff(block.indptr))
            num_columns = max(num_columns, block.shape[1])
            total += float(block.data.sum(dtype=np.float64))
            on_rows(block.shape[0])
    except InputError as error:
        if "sort the lines" not in str(error):
            raise
        return _described(packaged.read(path, "counts"))
    if total == 0:
        raise InputError(f"{path}: The corpus is empty: every count is zero.")
    per_row = np.concatenate(lengths)
    shape = len(per_row), max(num_columns, len(found.column_names or ()))
    sizes = _sizes("counts", shape, "tokens", total, per_row)
    return sizes | _names(found.column_names, found.row_names)
