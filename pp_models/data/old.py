"""Reads corpora and databases in the formats before .h5ad and SQLite, to convert them.

This file, and the lines of `conversion` and `packaged` that call it, can go one version later.
"""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from pp_models.data.corpus import Source
from pp_models.data.database import ENTRY, Database
from pp_models.data.formats.names import read_names
from pp_models.data.formats.opening import reading
from pp_models.data.sqlite import FILE, OLD_FILE
from pp_models.errors import InputError

SUFFIX = ".store"
ROWS_TOGETHER = 1_000_000  # rows that are added to a new database at a time
_SEGMENT = [(name, "<i8") for name in ("row", "previous", "start", "total")]
_SEGMENT += [("length", "<i4"), ("depth", "<i4")]
_COMMIT = [(name, "<i8") for name in ("number", "rows", "segments", "entries")]
_COMMIT += [("total", "<f8"), ("segments_crc", "<u4"), ("entries_crc", "<u4"), ("crc", "<u4")]


def is_store(path: Path) -> bool:
    return path.is_dir() and (path.suffix == SUFFIX or (path / "manifest.json").is_file())


def store(path: Path) -> Source:
    """The rows of a store, shard by shard, and its names."""
    with reading(path, "a complete store"):
        manifest = json.loads((path / "manifest.json").read_bytes())
        for entry in manifest["files"]:
            raw = (path / Path(entry["name"]).name).read_bytes()
            if zlib.crc32(raw) != entry["crc32"]:
                raise ValueError(f"{entry['name']} does not match its checksum")
        stem = path / Path(manifest["mark"]).name
        files = (Path(f"{stem}.{axis}_names") for axis in ("column", "row"))
        columns, rows = (read_names(file) if file.is_file() else None for file in files)
        return Source(_shards(stem, manifest), columns, rows)


def _shards(stem: Path, manifest: dict[str, Any]) -> Iterator[Any]:
    row = np.dtype([("length", "<i4"), ("total", "<f8"), ("log_factorials", "<f8")])
    lengths, first = np.fromfile(f"{stem}.rows", row)["length"], 0
    for number, (end, *kinds) in enumerate(manifest["shards"]):
        files = (f"{stem}-{number:05d}.{name}" for name in ("columns", "counts"))
        columns, values = (np.fromfile(*pair) for pair in zip(files, kinds, strict=True))
        indptr = np.concatenate([[0], np.cumsum(lengths[first:end])])
        shape = end - first, manifest["num_columns"]
        yield scipy.sparse.csr_array((values, columns.astype(np.int32), indptr), shape=shape)
        first = end


def is_database(path: Path) -> bool:
    return (path / OLD_FILE).is_file() and not (path / FILE).exists()


def convert_database(old: Path, new: Path) -> Any:
    """Write the rows of an old folder to a new one; returns them. What was learned stays behind."""
    with reading(old, "a complete database"):
        header = json.loads((old / OLD_FILE).read_bytes())
        dense = header["kind"] == "dense"
        segments, entries, num_rows = _logs(old, np.dtype("<f4") if dense else ENTRY)
        options = header["column_names"], header["tags"]
        with Database(header["num_columns"], header["kind"], new, *options, sync=False) as database:
            if database.num_rows:
                raise InputError(f"{new} holds rows already: name a new folder.")
            if dense:
                database.append(entries.reshape(num_rows, -1))
            else:
                ids, columns, counts = _words(segments, entries, num_rows)
                for first in range(0, num_rows, ROWS_TOGETHER):
                    last = min(first + ROWS_TOGETHER, num_rows)
                    some = slice(*np.searchsorted(ids, (first, last)))
                    database.add(ids[some], columns[some], counts[some], new_rows=last - first)
            return database.data()


def _logs(folder: Path, entry: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Segments and entries up to the last whole commit, and the number of rows then."""
    kinds: dict[str, Any] = {"segments": _SEGMENT, "entries": entry, "journal": _COMMIT}
    files = [np.fromfile(folder / f"{name}.bin", kind) for name, kind in kinds.items()]
    segments, entries, journal = files
    known, num_rows = (0, 0), 0
    for number, commit in enumerate(journal, 1):
        ends = int(commit["segments"]), int(commit["entries"])
        parts = segments[known[0] : ends[0]], entries[known[1] : ends[1]], commit
        found = [zlib.crc32(part.tobytes()[: -4 if part is commit else None]) for part in parts]
        if found != [commit["segments_crc"], commit["entries_crc"], commit["crc"]]:
            if number < len(journal):
                raise ValueError(f"commit {number} does not match its checksum")
            break  # a crash cut the last commit short
        known, num_rows = ends, int(commit["rows"])
    return segments[: known[0]], entries[: known[1]], num_rows


def _words(segments: np.ndarray, entries: np.ndarray, num_rows: int) -> tuple[Any, Any, Any]:
    """Row, column and count of the segments that are reached from each row's newest one, by row."""
    newest = np.full(num_rows, -1)
    newest[segments["row"]] = np.arange(len(segments))  # of several for one row, the last is kept
    chosen, left = [], newest[newest >= 0]
    while len(left):
        chosen.append(left)
        previous = segments["previous"][left]
        if np.any(previous >= left):
            raise ValueError("its segments form a circle")
        left = previous[previous >= 0]
    used = segments[np.concatenate([np.zeros(0, int), *chosen])]
    first = used["start"] - np.cumsum(used["length"]) + used["length"]
    where = np.repeat(first, used["length"]) + np.arange(used["length"].sum())
    rows, found = np.repeat(used["row"], used["length"]), entries[where]
    order = np.argsort(rows, kind="stable")
    return rows[order], found["column"][order], found["count"][order]
