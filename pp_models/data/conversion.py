"""`pp-models data convert` and `pp-models data info`."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from pp_models.data import corpus, old, packaged, text
from pp_models.data.formats import writers
from pp_models.data.formats.opening import usable
from pp_models.errors import InputError


def convert(
    source: str,
    target: str,
    kind: str | None = None,
    overwrite: bool = False,
    show: bool | None = None,
    **options: Any,
) -> str:
    """Write data to `target`, whose name tells the format; returns a sentence about them.

    Counts go into an .h5ad file in little memory; other formats hold all rows in memory. A
    database of an earlier version becomes one of this version if `target` has no suffix, or .db.
    options: those of `text.blocks`, for raw text.
    """
    path, into = usable(source), usable(target)
    named = not packaged.is_path(source)
    options = {name: value for name, value in options.items() if value is not None}
    by_column = "text_column" in options or "id_column" in options
    if options and (named or not (by_column or text.is_text(path))):
        given = ", ".join(options)
        raise InputError(f"{source} is not raw text, and {given} count its words: leave them out.")
    if old.is_database(path) and into.suffix.lower() in ("", ".db"):
        written = old.convert_database(path, into)
    elif into.suffix.lower() == corpus.SUFFIX:
        if kind not in (None, "counts"):
            raise InputError(f"A corpus holds counts, not {kind}: write another format.")
        with _bar(show, into.name) as on_rows:
            found = _source(source, path, named, kind, options)
            corpus.write(into, found, overwrite=overwrite, on_rows=on_rows)
        written = corpus.read(into, verify=False)
    else:
        written = packaged.load(source, kind) if named else packaged.read(path, kind, **options)
        writers.write(written, into, overwrite)
    size = f"{written.num_rows} rows x {written.num_columns} columns, {written.num_entries} entries"
    return f"{written.kind}: {size}, written to {into}"


def _source(source: str, path: Path, named: bool, kind: str | None, options: Any) -> Any:
    """The counts, in blocks of rows where the format allows that."""
    if named:
        data = packaged.load(source, kind)
    elif old.is_store(path):
        return old.store(path)
    elif options:
        return corpus.Source(*text.blocks(path, **options))
    elif path.is_dir() and path.suffix.lower() not in corpus.SUFFIXES and not text.is_text(path):
        data = packaged.read(path, kind)
    else:
        return path
    if data.kind != "counts":
        what = f"{source} is {data.kind} data, and a corpus holds counts"
        raise InputError(f"{what}: add --kind counts to keep only these, or write another format.")
    return data


@contextlib.contextmanager
def _bar(show: bool | None, title: str) -> Iterator[Callable[[int], Any]]:
    look = {"unit": " rows", "unit_scale": True, "leave": False, "dynamic_ncols": True}
    with tqdm(desc=title, disable=None if show is None else not show, **look) as bar:
        yield bar.update


def describe(source: str, kind: str | None = None) -> dict[str, Any]:
    """Sizes and names of a path or data set, and the checksum of a corpus."""
    named = not packaged.is_path(source)
    data = packaged.load(source, kind) if named else packaged.read(usable(source), kind)
    entries, total = int(data.lengths.sum()), data.total
    total = int(total) if float(total).is_integer() else total
    found = {
        "kind": data.kind,
        "rows": data.num_rows,
        "columns": data.num_columns,
        "entries": entries,
        "sum" if data.kind in ("ratings", "dense") else "tokens": total,
        "density": f"{entries / max(data.num_rows * data.num_columns, 1):.3%}",
        "longest row": f"{int(data.lengths.max(initial=0))} entries",
        "empty rows": int(np.sum(data.lengths == 0)),
    }
    if data.votes is not None:
        yeas = f"{data.votes.data.mean():.1%}"
        found |= {"members": data.num_members, "votes": data.votes.nnz, "yeas": yeas}
    for what, names in (("column names", data.column_names), ("row names", data.row_names)):
        some = ", ".join(name[:30] for name in (names or ("none",))[:4])
        found[what] = some + (", ..." if len(names or ()) > 4 else "")
    if isinstance(data, corpus.Corpus):
        size = data.path.stat().st_size
        found |= {"bytes": size, "bytes per token": round(size / total, 2)}
        found |= {"checksum": data.checksum, "complete": "yes"}
    return found
