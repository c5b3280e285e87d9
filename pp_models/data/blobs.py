"""A table of blobs in SQLite, in memory or in a folder: what a `Database` stores its rows in.

The file is in write-ahead mode: one process writes, others read beside it, each the last commit
before it opened or last called `refresh`. A write is one transaction. Every blob has a CRC-32 of
its id and contents, which is checked whenever it is read.
"""

import contextlib
import json
import os
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pp_models.data.files import explained, lock, write_whole
from pp_models.errors import InputError

Header = dict[str, Any]
FILE, OLD_FILE = "rows.sqlite", "header.json"
FORMAT = 2  # 1 was a folder of logs: `old_database`
MOST_PARAMETERS = 500  # of one SQL statement: old versions of SQLite allow 999
TABLES = ("facts", "rows")  # facts: the header and the state
SCHEMA = [f"CREATE TABLE {t} (id INTEGER PRIMARY KEY, crc INTEGER, blob BLOB)" for t in TABLES]
HEADER, STATE = 0, 1
# Codes for trouble with the disk, memory or permissions; SQLite's other errors mean damage.
TROUBLE = {
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM),
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN),
}


class State(NamedTuple):
    """Stored with every write. total: sum of all entries of all rows."""

    num_rows: int = 0
    total: float = 0.0


class Blobs:
    """Blobs numbered from 0, in a folder that is made if it is not there, or in memory.

    header: what to store when the folder is made
    sync:   commit at every write; otherwise `commit` does
    """

    def __init__(self, folder: Path | None, header: Header, read_only: bool, sync: bool) -> None:
        self._folder, self._read_only, self._sync = folder, read_only, sync
        self._state: State | None = None  # None: read it from the table
        with contextlib.ExitStack() as opening:
            if folder is not None and not read_only:
                with explained(folder):
                    _prepare(folder)
                    advice = "close it there, or open it with read_only=True"
                    opening.enter_context(lock(folder, advice))
                    if not (folder / FILE).exists():
                        write_whole(folder / FILE, lambda file: _make_file(file, header))
            self._connection = _connection(folder, read_only)
            opening.enter_context(contextlib.closing(self._connection))
            if folder is None:
                _make(self._connection, header)
            self.header = _header(self._connection, folder)
            if read_only:
                self.refresh()
            self.state  # noqa: B018  known also when the database is closed
            self._open = opening.pop_all()

    @property
    def state(self) -> State:
        if self._state is None:
            (raw,) = self.read([STATE], "facts")
            if len(raw) != struct.calcsize("<qd"):
                raise damage(self._folder, "its number of rows is not there")
            self._state = State(*struct.unpack("<qd", raw))
        return self._state

    def read(self, ids: Sequence[int], table: str = "rows") -> list[bytes]:
        """The blobs of these ids, checked, in the order given."""
        found: list[Any] = []
        if len(ids) > 1 and list(ids) == list(range(ids[0], ids[0] + len(ids))):
            between = f"SELECT * FROM {table} WHERE id BETWEEN ? AND ?"
            found = self._select(between, (ids[0], ids[-1]))
        else:
            for first in range(0, len(ids), MOST_PARAMETERS):
                part = ids[first : first + MOST_PARAMETERS]
                marks = ",".join("?" * len(part))
                found += self._select(f"SELECT * FROM {table} WHERE id IN ({marks})", part)
        try:
            blobs = {row: blob for row, crc, blob in found if zlib.crc32(blob, row) == crc}
            return [blobs[row] for row in ids]
        except (KeyError, TypeError) as error:
            raise damage(self._folder, "a row is missing, or not as it was stored") from error

    def sizes(self) -> list[int]:
        """Bytes of each blob."""
        return [size for (size,) in self._select("SELECT length(blob) FROM rows ORDER BY id")]

    def write(self, ids: Iterable[int], blobs: Iterable[bytes], state: State) -> None:
        """Add or replace blobs, all or none."""
        rows = (_signed(*row) for row in zip(ids, blobs, strict=True))
        self._state = None  # read again if this fails or is interrupted
        connection = self._connection
        with sentences(self._folder):
            try:
                if not self._sync and not connection.in_transaction:
                    connection.execute("BEGIN")
                connection.execute("SAVEPOINT write")
                connection.executemany("REPLACE INTO rows VALUES (?, ?, ?)", rows)
                _store_fact(connection, STATE, struct.pack("<qd", *state))
                connection.execute("RELEASE write")  # outside BEGIN ... COMMIT, this commits
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK TO write")
                    connection.execute("RELEASE write")
                raise
        self._state = state

    def commit(self) -> None:
        if self._connection.in_transaction and not self._read_only:
            state, self._state = self._state, None  # read again if this fails
            self._select("COMMIT")
            self._state = state

    def refresh(self) -> None:
        """Of a reader: let every read from now on see the last commit there is now."""
        if self._connection.in_transaction:
            self._select("COMMIT")
        self._select("BEGIN")
        self._state = None
        self.state  # noqa: B018  the first read fixes which commit is seen

    def close(self) -> None:
        with self._open:
            self.commit()

    def verify(self) -> None:
        """Refuse a file whose pages or row numbers do not fit together. Blobs: see `read`."""
        told = self._select("PRAGMA quick_check(1)")[0][0].decode(errors="replace")
        if told != "ok":
            raise damage(self._folder, told.splitlines()[-1])
        number = self.state.num_rows
        sums = "SELECT sum(typeof(blob) = 'blob'), min(id), max(id) FROM rows"
        found = self._select(sums)[0]
        if found != ((number, 0, number - 1) if number else (None, None, None)):
            raise damage(self._folder, f"{found[0] or 0} of {number} rows are there")

    def _select(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with sentences(self._folder):
            return self._connection.execute(statement, parameters).fetchall()


# Files --------------------------------------------------------------------------------------------


def is_database(path: Path) -> bool:
    """Whether the folder holds a database, of this format or of the one before."""
    return (path / FILE).is_file() or (path / OLD_FILE).is_file()


def read_header(folder: Path) -> Header:
    """What was stored when the folder was made."""
    with contextlib.closing(_connection(folder, True)) as connection:
        return _header(connection, folder)


def _header(connection: sqlite3.Connection, folder: Path | None) -> Header:
    with sentences(folder):
        schema = connection.execute("SELECT sql FROM sqlite_master").fetchall()
        found = connection.execute("SELECT * FROM facts WHERE id = ?", [HEADER]).fetchall()
    try:
        if schema != [(sql.encode(),) for sql in SCHEMA] or found != [_signed(HEADER, found[0][2])]:
            raise ValueError("its header does not match its checksum")
        header = json.loads(found[0][2])
        if header["format"] == FORMAT:
            return {name: header[name] for name in ("kind", "num_columns", "column_names", "tags")}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise damage(folder, str(error)) from error
    told = f"{folder} has format {header['format']}, but this version reads format {FORMAT}"
    raise InputError(f"{told}: upgrade, or make the database again.")


def _connection(folder: Path | None, read_only: bool) -> sqlite3.Connection:
    name = ":memory:"
    if folder is not None:
        file = folder / FILE
        _refuse_old(folder)
        if not file.exists():
            raise InputError(f"There is no database at {folder}: check the path.")
        mode = "mode=rw"  # readers too: SQLite then tidies up after a writer that was killed
        if read_only and not (os.access(folder, os.W_OK) and os.access(file, os.W_OK)):
            mode = "mode=ro" if Path(f"{file}-wal").exists() else "immutable=1"
        name = f"{file.absolute().as_uri()}?{mode}"
    with sentences(folder), contextlib.ExitStack() as opening:
        connection = sqlite3.connect(name, 60.0, 0, None, check_same_thread=False, uri=True)
        opening.enter_context(contextlib.closing(connection))
        connection.text_factory = bytes
        connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut
        connection.execute("PRAGMA cache_size = -32000")  # 32 MB
        connection.execute(f"PRAGMA query_only = {read_only:d}")
        opening.pop_all()
    return connection


def _refuse_old(folder: Path) -> None:
    if (folder / OLD_FILE).exists() and not (folder / FILE).exists():
        told = f"{folder} holds a database in the format of an earlier version"
        raise InputError(f"{told}: write it anew by `pp-models data convert {folder} NEW`.")


def _prepare(folder: Path) -> None:
    """Make the folder, unless it holds something else."""
    _refuse_old(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(name for name in os.listdir(folder) if name != "lock" and name[:5] != ".tmp-")
    if names and FILE not in names:
        told = f"{folder} holds other files, such as {names[0]}"
        raise InputError(f"{told}: name a new or empty folder for the database.")


def _make_file(file: Path, header: Header) -> None:
    file.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        _make(connection, header)
        connection.execute("PRAGMA journal_mode = WAL")


def _make(connection: sqlite3.Connection, header: Header) -> None:
    for statement in SCHEMA:
        connection.execute(statement)
    _store_fact(connection, HEADER, json.dumps({"format": FORMAT} | header).encode())
    _store_fact(connection, STATE, struct.pack("<qd", *State()))


def _store_fact(connection: sqlite3.Connection, fact: int, blob: bytes) -> None:
    connection.execute("REPLACE INTO facts VALUES (?, ?, ?)", _signed(fact, blob))


def _signed(row: int, blob: bytes) -> tuple[int, int, bytes]:
    return row, zlib.crc32(blob, row), blob  # a row in another's place does not match either


@contextlib.contextmanager
def sentences(folder: Path | None) -> Iterator[None]:
    """SQLite's errors as one sentence."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a message with damaged names
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in TROUBLE:
            told = f"{folder or 'The database'} cannot be used ({error}): "
            raise InputError(f"{told}check its permissions and the disk.") from error
        raise damage(folder, str(error)) from error


def damage(folder: Path | None, what: str) -> InputError:
    name = folder or "The database"
    return InputError(f"{name} is damaged ({what}): restore the folder from a copy.")
