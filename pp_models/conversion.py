"""From one form of data into another, and what a file, store or data set holds: behind `pp-models data convert` and `data info`."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from pp_models import datasets, packaged, readers, store, text, writers
from pp_models.data import KINDS, Data
from pp_models.errors import InputError, unknown
from pp_models.scanning import usable


def convert(source: str, target: str, kind: str | None = None, overwrite: bool = False, show: bool | None = None, **options: Any) -> str:
    """Write what `source` names to `target`, whose name tells the format; a sentence that says what was written.

    Counts go into a store in one pass and little memory; anything else is read as a whole. Options: those of `text.Options`, for raw text.
    """
    _check_kind(kind)
    path, into = usable(source), usable(target)
    named = not datasets.is_path(source)
    if options and (named or not text.is_text(path)):
        raise InputError(f"{source} is not raw text, and {', '.join(options)} count words in raw text only: leave them out.")
    with _bar(show, into.name) as on_rows:
        if into.suffix.lower() == store.SUFFIX:
            if kind not in (None, "counts"):
                raise InputError(f"A store holds counts, not {kind}: write to a file.")
            store.write(into, _source(source, named, kind, options), overwrite=overwrite, on_rows=on_rows)
            written: Data = store.read(into, verify=False)
        else:
            written = packaged.load(source, kind) if named else packaged.read(path, kind, **options)
            writers.write(written, into, overwrite, on_rows)
    return f"{written.kind}: {written.num_rows} rows x {written.num_columns} columns, {written.num_entries} entries, written to {into}"


def _source(source: str, named: bool, kind: str | None, options: dict[str, Any]) -> Any:
    if named:
        data = packaged.load(source, kind)
        if data.kind != "counts":
            raise InputError(f"{source} is {data.kind} data, and a store holds counts: add --kind counts to keep those alone, or write to a file.")
        return data
    return store.Source(*text.blocks(source, **options)) if options else usable(source)


def _check_kind(kind: str | None) -> None:
    if kind is not None and kind not in KINDS:
        raise unknown("kind of data", kind, KINDS)


@contextlib.contextmanager
def _bar(show: bool | None, title: str) -> Iterator[Callable[[int], Any]]:
    with tqdm(desc=title, disable=None if show is None else not show, unit=" rows", unit_scale=True, leave=False, dynamic_ncols=True) as bar:
        yield bar.update


def describe(source: str, kind: str | None = None, show: bool | None = None) -> dict[str, Any]:
    """What a path or a data set holds: its sizes, its names, and of a store its checksum, which is checked."""
    _check_kind(kind)
    if not datasets.is_path(source):
        return _described(packaged.load(source, kind))
    path = usable(source)
    if store.is_store(path) and kind in (None, "counts"):
        corpus = store.read(path)
        size = sum(file.stat().st_size for file in path.iterdir())
        more = {"shards": len(corpus.matrix.shards), "bytes": size, "bytes per token": round(size / corpus.total, 2)}
        return _described(corpus) | more | {"checksum": corpus.checksum, "complete": "yes"}
    if kind in (None, "counts") and not readers.is_votes(path):
        with _bar(show, path.name) as on_rows:
            return _counted(path, on_rows)
    return _described(packaged.read(path, kind))


def _described(data: Data) -> dict[str, Any]:
    what = {"counts": "tokens", "text_and_votes": "tokens"}.get(data.kind, "sum")
    sizes = _sizes(data.kind, data.num_rows, data.num_columns, data.num_entries, what, data.total, data.lengths)
    if data.votes is not None:
        sizes |= {"members": data.num_members, "votes": data.votes.nnz, "yeas": f"{data.votes.data.mean():.1%}"}
    return sizes | _names(data.column_names, data.row_names)


def _sizes(kind: str, rows: int, columns: int, entries: int, what: str, total: float, lengths: np.ndarray) -> dict[str, Any]:
    sizes = {"kind": kind, "rows": rows, "columns": columns, "entries": entries, what: int(total) if float(total).is_integer() else total}
    density = f"{entries / max(rows * columns, 1):.3%}"
    return sizes | {"density": density, "longest row": f"{int(lengths.max(initial=0))} entries", "empty rows": int(np.sum(lengths == 0))}


def _names(columns: tuple[str, ...] | None, rows: tuple[str, ...] | None) -> dict[str, Any]:
    shown = {}
    for what, names in (("column names", columns), ("row names", rows)):
        shown[what] = "none" if names is None else ", ".join(name[:30] for name in names[:4]) + (", ..." if len(names) > 4 else "")
    return shown


def _counted(path: Path, on_rows: Callable[[int], Any]) -> dict[str, Any]:
    """Counts in a file, block by block where it is sorted, else as a whole."""
    lengths, num_columns, total = [np.zeros(0, int)], 0, 0.0
    source = store.open_source(path)
    try:
        for block in source.blocks:
            lengths.append(np.diff(block.indptr))
            num_columns, total = max(num_columns, block.shape[1]), total + float(block.data.sum(dtype=np.float64))
            on_rows(block.shape[0])
    except InputError as error:
        if "sort the lines" not in str(error):
            raise
        return _described(packaged.read(path, "counts"))
    per_row = np.concatenate(lengths)
    if total == 0:
        raise InputError(f"{path}: The corpus is empty: every count is zero.")
    columns = max(num_columns, len(source.column_names or ()))
    return _sizes("counts", len(per_row), columns, int(per_row.sum()), "tokens", total, per_row) | _names(source.column_names, source.row_names)
