"""Reads a database in the format of versions before SQLite, a folder of logs, to convert it.

This file, and the line of `conversion` that calls it, can go one version later.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from pp_models.data.blobs import FILE, OLD_FILE, damage
from pp_models.data.database import CHUNK, ENTRY, Database
from pp_models.data.files import explained
from pp_models.data.types import Data
from pp_models.errors import InputError

_SEGMENT = [(name, "<i8") for name in ("row", "previous", "start", "total")]
_SEGMENT += [("length", "<i4"), ("depth", "<i4")]
_COMMIT = [(name, "<i8") for name in ("number", "rows", "segments", "entries")]
_COMMIT += [("total", "<f8"), ("segments_crc", "<u4"), ("entries_crc", "<u4"), ("crc", "<u4")]


def is_old(path: Path) -> bool:
    return (path / OLD_FILE).is_file() and not (path / FILE).exists()


def convert(old: Path, new: Path) -> Data:
    """Write the rows of an old folder to a new one; returns them.

    What a stream has learned is not copied: a stream opened in the new folder begins anew.
    """
    try:
        with explained(old):
            header = json.loads((old / OLD_FILE).read_bytes())
            dense = header["kind"] == "dense"
            segments, entries, num_rows = _logs(old, np.dtype("<f4") if dense else ENTRY)
        options = header["column_names"], header["tags"]
        with Database(header["num_columns"], header["kind"], new, *options, sync=False) as database:
            if database.num_rows:
                raise InputError(f"{new} holds rows already: name a new folder.")
            if dense:
                database.append(entries.reshape(num_rows, -1))
            for first in range(0, 0 if dense else num_rows, CHUNK):
                _copy(database, segments, entries, first, min(CHUNK, num_rows - first))
            return database.data()
    except (ValueError, LookupError, TypeError) as error:
        raise error if isinstance(error, InputError) else damage(old, str(error)) from error


def _logs(folder: Path, entry: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray, int]:
    """Segments and entries up to the last whole commit, and the number of rows then."""
    kinds: dict[str, Any] = {"segments": _SEGMENT, "entries": entry, "journal": _COMMIT}
    files = [np.fromfile(folder / f"{name}.bin", kind) for name, kind in kinds.items()]
    segments, entries, journal = files
    known, num_rows = (0, 0), 0
    for number, commit in enumerate(journal, 1):
        ends = int(commit["segments"]), int(commit["entries"])
        parts = segments[known[0] : ends[0]], entries[known[1] : ends[1]]
        raw = [part.tobytes() for part in (*parts, commit)]
        found = [zlib.crc32(part) for part in (raw[0], raw[1], raw[2][:-4])]
        if found != [commit["segments_crc"], commit["entries_crc"], commit["crc"]]:
            if number < len(journal):
                raise ValueError(f"commit {number} does not match its checksum")
            break  # a crash cut the last commit short
        known, num_rows = ends, int(commit["rows"])
    return segments[: known[0]], entries[: known[1]], num_rows


def _copy(database: Database, segments: Any, entries: Any, first: int, number: int) -> None:
    """Make rows of the segments that are reached from each row's newest one."""
    newest = np.full(number, -1)
    here = np.flatnonzero((segments["row"] >= first) & (segments["row"] < first + number))
    newest[segments["row"][here] - first] = here  # of several for one row, the last is kept
    ids, columns, counts = [], [], []
    for row, segment in enumerate(newest.tolist(), first):
        while segment >= 0:
            part = entries[segments["start"][segment] :][: segments["length"][segment]]
            ids.append(np.full(len(part), row))
            columns.append(part["column"])
            counts.append(part["count"])
            if segments["previous"][segment] >= segment:
                raise ValueError("its segments form a circle")
            segment = int(segments["previous"][segment])
    words = [np.concatenate([np.zeros(0, int), *parts]) for parts in (ids, columns, counts)]
    database.add(words[0], words[1], words[2], new_rows=number)
