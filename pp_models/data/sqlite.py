"""The SQLite file of a `Database`: blobs numbered from 0, each with a checksum, and a header."""

import contextlib
import json
import os
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pp_models.data.files import explained, lock, write_whole
from pp_models.errors import InputError

FILE, OLD_FILE = "rows.sqlite", "header.json"
FORMAT = 2  # 1 was a folder of logs: `old`
PAGE = 1 << 14  # bytes: with SQLite's 4 kB, appending many rows takes a fifth longer
MOST_PARAMETERS = 500  # of one SQL statement: old versions of SQLite allow 999
SCHEMA = [
    f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, crc INTEGER, blob BLOB)"
    for table in ("facts", "rows")  # facts: the header and the state
]
HEADER, STATE = 0, 1


class State(NamedTuple):
    """Stored with every write. total: sum of all entries of all rows."""

    num_rows: int = 0
    total: float = 0.0


def signed(row: int, blob: bytes) -> tuple[int, int, bytes]:
    """A row of a table. The checksum covers the id: a blob under another id does not match."""
    return row, zlib.crc32(blob, row), blob


class File:
    """An open file in a folder, or in memory."""

    def __init__(self, folder: Path | None, read_only: bool) -> None:
        self.folder, name = folder, ":memory:"
        if folder is not None:
            check_there(folder)
            file, mode = folder / FILE, "mode=rw"  # readers too: they tidy up after a killed writer
            if read_only and not (os.access(folder, os.W_OK) and os.access(file, os.W_OK)):
                mode = "mode=ro" if Path(f"{file}-wal").exists() else "immutable=1"
            name = f"{file.absolute().as_uri()}?{mode}"
        with self._sentences(), contextlib.ExitStack() as opening:
            self.connection = sqlite3.connect(
                name, 60.0, 0, None, check_same_thread=False, uri=True
            )
            opening.enter_context(contextlib.closing(self.connection))
            self.connection.text_factory = bytes
            self.connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut
            self.connection.execute("PRAGMA cache_size = -32000")  # 32 MB
            self.connection.execute(f"PRAGMA query_only = {read_only:d}")
            opening.pop_all()

    def close(self) -> None:
        self.connection.close()

    def make(self, header: dict[str, Any]) -> None:
        """Create the tables."""
        for statement in (f"PRAGMA page_size = {PAGE}", *SCHEMA):
            self.connection.execute(statement)
        self.store_fact(HEADER, json.dumps({"format": FORMAT} | header).encode())
        self.store_fact(STATE, struct.pack("<qd", *State()))

    def store_fact(self, fact: int, blob: bytes) -> None:
        self.connection.execute("REPLACE INTO facts VALUES (?, ?, ?)", signed(fact, blob))

    def header(self) -> dict[str, Any]:
        schema = self.select("SELECT sql FROM sqlite_master")
        found = self.select("SELECT * FROM facts WHERE id = ?", [HEADER])
        try:
            same = schema == [(sql.encode(),) for sql in SCHEMA]
            if not same or found != [signed(HEADER, found[0][2])]:
                raise ValueError("its header does not match its checksum")
            header = json.loads(found[0][2])
            if header["format"] == FORMAT:
                return {n: header[n] for n in ("kind", "num_columns", "column_names", "tags")}
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise damage(self.folder, str(error)) from error
        told = f"{self.folder} has format {header['format']}, but this version reads {FORMAT}"
        raise InputError(f"{told}: upgrade, or make the database again.")

    def state(self) -> State:
        (raw,) = self.blobs([STATE], "facts")
        if len(raw) != struct.calcsize("<qd"):
            raise damage(self.folder, "its number of rows is not there")
        return State(*struct.unpack("<qd", raw))

    def blobs(self, ids: Sequence[int], table: str = "rows") -> list[bytes]:
        """The blobs of these ids, their checksums checked, in the order given."""
        found: list[Any] = []
        if len(ids) > 1 and list(ids) == list(range(ids[0], ids[0] + len(ids))):
            between = f"SELECT * FROM {table} WHERE id BETWEEN ? AND ?"
            found = self.select(between, (ids[0], ids[-1]))
        else:
            for first in range(0, len(ids), MOST_PARAMETERS):
                part = ids[first : first + MOST_PARAMETERS]
                marks = ",".join("?" * len(part))
                found += self.select(f"SELECT * FROM {table} WHERE id IN ({marks})", part)
        try:
            blobs = {row: blob for row, crc, blob in found if zlib.crc32(blob, row) == crc}
            return [blobs[row] for row in ids]
        except (KeyError, TypeError) as error:
            raise damage(self.folder, "a row is missing, or not as it was stored") from error

    def write(self, rows: Iterable[tuple[int, bytes]], state: State, sync: bool) -> None:
        """Add or replace blobs, all or none. sync: commit, too."""
        execute = self.connection.execute
        with self._sentences():
            try:
                if not sync and not self.connection.in_transaction:
                    execute("BEGIN")
                execute("SAVEPOINT write")
                checked = (signed(*row) for row in rows)
                self.connection.executemany("REPLACE INTO rows VALUES (?, ?, ?)", checked)
                self.store_fact(STATE, struct.pack("<qd", *state))
                execute("RELEASE write")  # outside BEGIN ... COMMIT, this commits
            except BaseException:
                if self.connection.in_transaction:
                    execute("ROLLBACK TO write")
                    execute("RELEASE write")
                raise

    def commit(self) -> None:
        if self.connection.in_transaction:
            self.select("COMMIT")

    def check_pages(self, num_rows: int) -> None:
        """Refuse a file whose pages or row numbers do not fit together."""
        told = self.select("PRAGMA quick_check(1)")[0][0].decode(errors="replace")
        if told != "ok":
            raise damage(self.folder, told.splitlines()[-1])
        found = self.select("SELECT sum(typeof(blob) = 'blob'), min(id), max(id) FROM rows")[0]
        if found != ((num_rows, 0, num_rows - 1) if num_rows else (None, None, None)):
            raise damage(self.folder, f"{found[0] or 0} of {num_rows} rows are there")

    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._sentences():
            return self.connection.execute(statement, parameters).fetchall()

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        """Turn SQLite's errors into one sentence."""
        try:
            yield
        except MemoryError as error:  # damaged rows may announce any size
            told = f"{self.folder or 'The database'} cannot be used (there is no room for a row)"
            raise InputError(f"{told}: free RAM, or restore a damaged folder.") from error
        except (sqlite3.Error, UnicodeDecodeError) as error:  # or a message with damaged names
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code == sqlite3.SQLITE_ERROR or not isinstance(error, sqlite3.OperationalError):
                raise damage(self.folder, str(error)) from error
            told = f"{self.folder or 'The database'} cannot be used ({error})"
            raise InputError(f"{told}: check its permissions and the disk.") from error


def damage(folder: Path | None, what: str) -> InputError:
    """what: in SQLite's own words, which may quote damaged names."""
    name, quoted = folder or "The database", " ".join(what.split())[:200]
    return InputError(f"{name} is damaged ({quoted}): restore the folder from a copy.")


# Folders ------------------------------------------------------------------------------------------


def is_database(path: Path) -> bool:
    """Whether the folder holds a database, of this format or of the one before."""
    return (path / FILE).is_file() or (path / OLD_FILE).is_file()


def check_there(folder: Path) -> None:
    """Refuse a folder without a database of this format."""
    if (folder / OLD_FILE).exists() and not (folder / FILE).exists():
        told = f"{folder} holds a database in the format of an earlier version"
        raise InputError(f"{told}: write it anew by `pp-models data convert {folder} NEW`.")
    if not (folder / FILE).exists():
        raise InputError(f"There is no database at {folder}: check the path.")


def make_folder(folder: Path, header: dict[str, Any]) -> BinaryIO:
    """Lock the folder, making it and its file unless they exist; returns the lock."""
    with explained(folder), contextlib.ExitStack() as failing:
        if is_database(folder):
            check_there(folder)
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted(n for n in os.listdir(folder) if n != "lock" and n[:5] != ".tmp-")
        if others and FILE not in others:
            told = f"{folder} holds other files, such as {others[0]}"
            raise InputError(f"{told}: name a new or empty folder for the database.")
        held = failing.enter_context(lock(folder, "close it there, or open it with read_only=True"))
        if not (folder / FILE).exists():
            write_whole(folder / FILE, lambda file: _make_file(file, header))
        failing.pop_all()
        return held


def _make_file(file: Path, header: dict[str, Any]) -> None:
    file.unlink(missing_ok=True)
    made = File(None, False)
    made.make(header)
    with (
        contextlib.closing(made),
        contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection,
    ):
        made.connection.backup(connection)
        connection.execute("PRAGMA journal_mode = WAL")
