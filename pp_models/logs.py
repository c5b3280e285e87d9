"""Two logs that grow together, in memory or in a folder that survives crashes: what a `Database` writes into.

A folder holds

    header.json    format, kind, number of columns, type, column names, tags
    segments.bin   the logs: arrays of fixed-size elements that only ever grow
    entries.bin
    journal.bin    one fixed-size record for each commit: how long the logs are then, and checksums
    lock           held by the one process that writes

A commit syncs the logs, then writes and syncs its journal record. What lies in the logs beyond the last whole record is no part of the contents,
and is overwritten. Lengths are 64-bit. Nothing is pickled.
"""

import contextlib
import hashlib
import json
import math
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from pp_models.errors import InputError
from pp_models.files import explained, lock, sync_folder

Header = dict[str, Any]
FORMAT = 1
COMMIT = np.dtype(
    [
        ("number", "<i8"),
        ("num_rows", "<i8"),
        ("num_segments", "<i8"),
        ("num_entries", "<i8"),
        ("total", "<f8"),
        ("segments_check", "<u4"),
        ("entries_check", "<u4"),
        ("check", "<u4"),
    ]
)
SPARE_BYTES = 1 << 20
_CHECKED = COMMIT.itemsize - 4  # bytes of a commit record that its own checksum covers
_MADE_BEFORE_HEADER = {"lock", "segments.bin", "entries.bin", "journal.bin", "header.tmp"}


class State(NamedTuple):
    """How much there is after a write: a commit record without its own checksum."""

    number: int = 0  # of commits before this one
    num_rows: int = 0
    num_segments: int = 0
    num_entries: int = 0
    total: float = 0.0
    segments_check: int = 0  # of what was written since the last commit
    entries_check: int = 0

    def record(self) -> bytes:
        body = np.array((*self, 0), COMMIT).tobytes()[:_CHECKED]
        return body + zlib.crc32(body).to_bytes(4, "little")

    def committed(self) -> "State":
        return self._replace(number=self.number + 1, segments_check=0, entries_check=0)


class Growing:
    """An array in memory that grows at its end."""

    def __init__(self, dtype: Any) -> None:
        self._array = np.empty(0, dtype)
        self.size = 0

    def append(self, values: np.ndarray) -> None:
        end = self.size + len(values)
        if end > len(self._array):
            self._make_room(max(end, 2 * len(self._array), 1024))
        self._array[self.size : end] = values
        self.size = end

    def _make_room(self, size: int) -> None:
        array = np.empty(size, self._array.dtype)
        array[: self.size] = self.view()
        self._array = array

    def view(self) -> np.ndarray:
        return self._array[: self.size]

    def close(self) -> None:
        """Let go of what it holds beside memory."""


class Spilled(Growing):
    """The same in a file without a name, whose pages the system may take back: for an index that is as long as what it is of."""

    def __init__(self, dtype: Any, folder: Path) -> None:
        super().__init__(dtype)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed with the array

    def _make_room(self, size: int) -> None:
        try:
            os.posix_fallocate(self._file.fileno(), 0, size * self._array.itemsize)  # a full disk is told here, not by a crash at the first write
        except OSError:  # then in memory
            super()._make_room(size)
        else:
            spilled = np.asarray(np.memmap(self._file, self._array.dtype, "r+", shape=(size,)))
            spilled[: self.size] = self.view()  # already there, unless it was in memory meanwhile
            self._array = spilled

    def close(self) -> None:
        self._file.close()


class _File:
    """An array in a file that grows at its end, written at once and read through a memory map.

    While it is written, the file is longer than the array, by a hole that takes no room on disk: the map then seldom has to be made again.
    """

    def __init__(self, path: Path, dtype: Any, writable: bool) -> None:
        self.dtype, self.size = np.dtype(dtype), 0
        self.file = cast(BinaryIO, path.open("r+b" if writable else "rb", buffering=0))
        self._map = np.empty(0, dtype)

    def append(self, values: np.ndarray) -> None:
        end = self.size + len(values)
        if end * self.dtype.itemsize > self.num_bytes():
            os.ftruncate(self.file.fileno(), (end + end // 4) * self.dtype.itemsize + SPARE_BYTES)
        self.write(values.astype(self.dtype, copy=False).tobytes(), self.size * self.dtype.itemsize)
        self.size = end

    def write(self, raw: bytes, place: int) -> None:
        """All of `raw`: one system call may write less than it was given."""
        rest = memoryview(raw)
        while len(rest):
            written = os.pwrite(self.file.fileno(), rest, place)
            rest, place = rest[written:], place + written

    def view(self) -> np.ndarray:
        if self.size > len(self._map):
            self._map = np.asarray(np.memmap(self.file, self.dtype, "r", shape=(self.num_bytes() // self.dtype.itemsize,)))
        return self._map[: self.size]

    def num_bytes(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def cut(self) -> None:
        """Drop what lies beyond the end."""
        self._map = self._map[:0].copy()
        os.ftruncate(self.file.fileno(), self.size * self.dtype.itemsize)

    def sync(self) -> None:
        os.fsync(self.file.fileno())


def _check(values: np.ndarray, check: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(values).view(np.uint8).data, check)


class Logs:
    """A log of segments and a log of entries in memory."""

    def __init__(self, segment: Any, entry: Any) -> None:
        self.segments: Any = Growing(segment)
        self.entries: Any = Growing(entry)
        self.state = State()

    def write(self, segments: np.ndarray, entries: np.ndarray, new_rows: int, gained: float) -> None:
        """Append to both, and commit. If that fails, everything is as it was."""
        before = self.state
        try:
            self.segments.append(segments)
            self.entries.append(entries)
            self.state = before._replace(
                num_rows=before.num_rows + new_rows, num_segments=self.segments.size, num_entries=self.entries.size, total=before.total + gained
            )
            self._written(segments, entries)
        except BaseException:
            self.state = before
            self.segments.size, self.entries.size = before.num_segments, before.num_entries
            raise

    def _written(self, segments: np.ndarray, entries: np.ndarray) -> None:
        pass

    def flush(self) -> None:
        """Commit what was written since the last commit."""

    def refresh(self) -> None:
        """See what another process has committed."""

    def close(self) -> None:
        """Commit and let go."""


class StoredLogs(Logs):
    """The same in a folder, which is made if it is not there.

    header:  what to store when the folder is made
    accept:  called with what was stored, to refuse it before anything else is read
    sync:    commit at every write, not at `flush` and `close` only
    verify:  check the checksum of all that is stored when opening, not of the last commit only
    """

    def __init__(
        self,
        segment: Any,
        entry: Any,
        folder: Path,
        header: Header,
        accept: Callable[[Header], None],
        read_only: bool,
        sync: bool,
        verify: bool,
    ) -> None:
        super().__init__(segment, entry)
        self._folder, self._read_only, self._sync = folder, read_only, sync
        self._committed = self.state
        self._open = contextlib.ExitStack()
        try:
            with explained(folder):
                self._open_folder(segment, entry, header, accept, verify)
        except BaseException:
            self._open.close()
            raise

    def _written(self, segments: np.ndarray, entries: np.ndarray) -> None:
        checks = _check(segments, self.state.segments_check), _check(entries, self.state.entries_check)
        self.state = self.state._replace(segments_check=checks[0], entries_check=checks[1])
        if self._sync:
            self.flush()

    def flush(self) -> None:
        if self.state == self._committed:
            return
        self.segments.sync()
        self.entries.sync()
        self._journal.write(self.state.record(), self.state.number * COMMIT.itemsize)
        self._journal.sync()
        self.state = self._committed = self.state.committed()

    def refresh(self) -> None:
        if self._read_only:
            with explained(self._folder):
                self._catch_up(verify=True)

    def close(self) -> None:
        with self._open:
            if not self._read_only:
                self.flush()
                self._cut()

    def _cut(self) -> None:
        self._journal.size = self.state.number
        for log in (self.segments, self.entries, self._journal):
            log.cut()

    # Opening ------------------------------------------------------------------------------------------------------------------

    def _open_folder(self, segment: Any, entry: Any, header: Header, accept: Callable[[Header], None], verify: bool) -> None:
        folder = self._folder
        if not (folder / "header.json").exists():
            if self._read_only:
                raise InputError(f"There is no database at {folder}: check the path, or open it without read_only to make one.")
            if folder.exists() and (strange := sorted(set(os.listdir(folder)) - _MADE_BEFORE_HEADER)):
                raise InputError(f"{folder} holds other files, such as {strange[0]}: name a new or empty folder for the database.")
            folder.mkdir(parents=True, exist_ok=True)
        if not self._read_only:
            self._lock()
        if not (folder / "header.json").exists():
            _make(folder, header)
        accept(read_header(folder))
        self.segments, self.entries, self._journal = (
            self._log(name, dtype) for name, dtype in (("segments", segment), ("entries", entry), ("journal", COMMIT))
        )
        self._catch_up(verify)
        if not self._read_only:
            self._cut()

    def _log(self, name: str, dtype: Any) -> _File:
        log = _File(self._folder / f"{name}.bin", dtype, not self._read_only)
        self._open.enter_context(log.file)
        return log

    def _lock(self) -> None:
        self._open.enter_context(lock(self._folder, "close it there, or open it with read_only=True"))

    def _catch_up(self, verify: bool) -> None:
        """Read the commits after those known. The last may have been cut short, and is then no part of the contents; no other may."""
        known = self.state
        begin = known.number * COMMIT.itemsize
        self._journal.file.seek(begin)
        raw = self._journal.file.read()
        records = np.frombuffer(raw, COMMIT, len(raw) // COMMIT.itemsize)
        num_begun = -(-len(raw) // COMMIT.itemsize)
        state = known
        for log in (self.segments, self.entries):
            log.size = log.num_bytes() // log.dtype.itemsize
        try:
            for i, record in enumerate(records):
                after = State(*record.tolist()[: len(State._fields)])
                last = i == num_begun - 1
                whole = after.record() == record.tobytes() and after.number == state.number and self._follows(state, after)
                if whole and (verify or last):
                    whole = self._are_whole(state, after)
                if not whole and not last:
                    raise InputError(
                        f"{self._folder} is damaged: commit {known.number + i + 1} of {known.number + num_begun} does not match its checksum; "
                        "restore the folder from a copy."
                    )
                state = after.committed() if whole else state
            self.state = self._committed = state
        finally:
            self.segments.size, self.entries.size = self.state.num_segments, self.state.num_entries

    def _follows(self, before: State, after: State) -> bool:
        """Whether the logs are long enough for a commit, and nothing became less."""
        grown = all(old <= new for old, new in zip(before[1:4], after[1:4], strict=True)) and math.isfinite(after.total)
        return grown and after.num_segments <= self.segments.size and after.num_entries <= self.entries.size

    def _are_whole(self, before: State, after: State) -> bool:
        """Whether the logs hold what was written from one commit to the next."""
        parts = (
            (self.segments, before.num_segments, after.num_segments, after.segments_check),
            (self.entries, before.num_entries, after.num_entries, after.entries_check),
        )
        return all(start <= end <= log.size and _check(log.view()[start:end]) == check for log, start, end, check in parts)


def _make(folder: Path, header: Header) -> None:
    """Empty logs first, the header last: a folder with a header is complete."""
    contents = {"format": FORMAT} | header
    text = json.dumps(contents | {"checksum": _digest(contents)}).encode()
    for name, raw in (("segments.bin", b""), ("entries.bin", b""), ("journal.bin", b""), ("header.tmp", text)):
        with (folder / name).open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
    os.replace(folder / "header.tmp", folder / "header.json")
    for changed in (folder, folder.parent):
        sync_folder(changed)


def _digest(header: Header) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def read_header(folder: Path) -> Header:
    """What was stored when the folder was made."""
    try:
        header = json.loads((folder / "header.json").read_bytes())
        if "checksum" in header and header.pop("checksum") != _digest(header):  # folders of before have none
            raise ValueError("it does not match its checksum")
        found, kind, size, names, tags = (header[name] for name in ("format", "kind", "num_columns", "column_names", "tags"))
        named = names is None or (isinstance(names, list) and len(names) == size and all(isinstance(name, str) for name in names))
        if not isinstance(kind, str) or type(size) is not int or not named or not isinstance(tags, dict):
            raise ValueError("it does not say what the rows are")
        if not header.keys() <= {"format", "kind", "num_columns", "dtype", "column_names", "tags"}:
            raise ValueError("it says something that is not known")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{folder / 'header.json'} is damaged ({error}): restore the folder from a copy.") from error
    if found != FORMAT:
        raise InputError(f"{folder} has format {found}, but this version reads format {FORMAT}: upgrade, or make the database again.")
    return header
