"""The growing database behind streaming inference (Theis & Hoffman 2015, section 3.1).

    with Database(num_columns, path="wiki") as database:     # without a path: in memory
        ids = database.append(X)                             # new rows, numbered in order
        database.extend(ids, more)                           # adds counts to these rows
        database.add([0, 0, 7], [12, 3, 12])                 # the same, word by word
        data = database.data(rows)                           # `Data` of these rows, as they are now

A document fed word by word ends as the same contents, bit for bit, as the document fed whole.

Rows are in SQLite, in the file `rows.sqlite` of the folder, in write-ahead mode, one blob a row:
pairs of a column (32-bit integer) and a count (32-bit float) sorted by column, or the values of a
dense row, with a CRC-32 that is checked whenever the row is read. A write is one transaction.

One process writes at a time. Others may read beside it: each sees the last commit before it opened
or last called `refresh`. A `Database` is used by one thread at a time.
"""

import contextlib
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from pp_models.data import sqlite
from pp_models.data import types as data_
from pp_models.data.formats.opening import usable
from pp_models.data.sqlite import State, damage
from pp_models.data.types import Data
from pp_models.errors import InputError, unknown

KINDS = ("counts", "dense")
LARGEST_COUNT = 2**24 - 1  # whole numbers up to here are exact in single precision
LARGEST_COLUMNS = 2**31 - 1  # columns are stored as 32-bit integers
MOST_NEW_ROWS = 10_000_000  # made by one call
CHUNK = 4096  # rows that are read at a time when all are
ENTRY = np.dtype([("column", "<i4"), ("count", "<f4")])


class Database:
    """Rows of counts or of dense observations that grow, in memory or in a folder.

    num_columns:   words of the vocabulary, pixels of an image
    kind:          "counts" or "dense"
    path:          the folder, made or opened again; None keeps everything in memory
    column_names:  the vocabulary, or None
    tags:          anything JSON can hold, stored when the folder is made; opening it with other
                   tags is refused, with None accepted
    read_only:     open beside a writer; `refresh` shows what it has committed since
    sync:          commit at every write. If False, at `flush` and `close` only: faster, and a crash
                   or a full disk loses what came since
    verify:        check all that is stored when opening, not only what is read later
    """

    def __init__(
        self,
        num_columns: int,
        kind: str = "counts",
        path: str | Path | None = None,
        column_names: Any = None,
        tags: dict[str, Any] | None = None,
        read_only: bool = False,
        sync: bool = True,
        verify: bool = True,
    ) -> None:
        if kind not in KINDS:
            raise unknown("kind of database", kind, KINDS)
        self.kind, self.num_columns = kind, _whole(num_columns, "num_columns", 1, LARGEST_COLUMNS)
        self.column_names = data_._names(column_names, self.num_columns, "column")
        self.tags = _plain(tags)
        self.path = None if path is None else _folder(path)
        if path is None and read_only:
            raise InputError("A database in memory cannot be opened read_only: give a path.")
        self.read_only, self._sync = bool(read_only), bool(sync)
        names = ("kind", "num_columns", "column_names", "tags")
        header = {name: getattr(self, name) for name in names}
        self._sizes: Counter[int] | None = None  # rows by their number of entries; None: unknown
        self._last: State | None = None  # None: read it from the table
        with contextlib.ExitStack() as opening:
            if self.path is not None and not self.read_only:
                opening.enter_context(sqlite.make_folder(self.path, header))
            self._file = sqlite.File(self.path, self.read_only)
            opening.enter_context(contextlib.closing(self._file))
            if self.path is None:
                self._file.make(header)
            self._accept(self._file.header(), tags is not None)
            self._closed = False
            self.refresh()
            if self.path is not None and verify:
                self._file.check_pages(self.num_rows)
                for first in range(0, self.num_rows, CHUNK):
                    self._read(np.arange(first, min(first + CHUNK, self.num_rows)))
            self._open = opening.pop_all()

    @classmethod
    def open(cls, path: str | Path, **options: Any) -> "Database":
        """The database in this folder, with its own kind and columns. Options: see `Database`."""
        folder = _folder(path)
        with contextlib.closing(sqlite.File(folder, True)) as file:
            header = file.header()
        return cls(header["num_columns"], header["kind"], folder, **options)

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else self.path
        return f"Database({self.kind}, {self.num_rows} rows x {self.num_columns} columns, {where})"

    # Sizes ------------------------------------------------------------------------------------

    @property
    def _state(self) -> State:
        if self._last is None:
            self._last = self._file.state()
        return self._last

    @property
    def num_rows(self) -> int:
        return self._state.num_rows

    @property
    def total(self) -> float:
        """Sum of all entries: the number of tokens of a corpus."""
        return self._state.total

    @property
    def lengths(self) -> np.ndarray:
        """Entries per row."""
        self._ready()
        found = self._file.select("SELECT length(blob) FROM rows ORDER BY id")
        return np.array(found, np.int64).ravel() // self._entry.itemsize

    @property
    def sizes(self) -> np.ndarray:
        """(2, ...): numbers of entries that rows have, in order, and how many rows have each."""
        if self._sizes is None:
            self._sizes = Counter(self.lengths.tolist())
        found = sorted((size, rows) for size, rows in self._sizes.items() if rows)
        return np.array(found, np.int64).reshape(-1, 2).T

    @property
    def _entry(self) -> np.dtype[Any]:
        return ENTRY if self.kind == "counts" else np.dtype("<f4")

    # Reading ----------------------------------------------------------------------------------

    def data(self, rows: Any = None) -> Data:
        """The present contents of these rows (default: all), in the order given."""
        self._ready()
        rows = np.arange(self.num_rows) if rows is None else _indices(rows, self.num_rows, "row")
        entries, lengths = self._read(rows)
        if self.kind == "dense":
            values = entries.reshape(-1, self.num_columns)
            return Data("dense", values=values, column_names=self.column_names)
        indptr = np.append(0, np.cumsum(lengths))
        parts = np.ascontiguousarray(entries["count"]), np.ascontiguousarray(entries["column"])
        matrix = scipy.sparse.csr_array((*parts, indptr), shape=(len(rows), self.num_columns))
        return Data("counts", matrix=matrix, column_names=self.column_names)

    def _read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The entries of these rows, checked, and how many each has."""
        blobs = self._file.blobs(rows.tolist())
        sizes = np.fromiter(map(len, blobs), np.int64, len(blobs))
        lengths, rest = np.divmod(sizes, self._entry.itemsize)
        if rest.any() or (self.kind == "dense" and np.any(lengths != self.num_columns)):
            raise damage(self.path, "a row has a wrong length")
        entries = np.frombuffer(bytearray().join(blobs), self._entry)
        if self.kind == "counts":  # compiled code relies on sorted columns within bounds
            column, count = entries["column"], entries["count"]
            order = np.repeat(np.arange(len(rows)) * self.num_columns, lengths) + column
            inside = (column >= 0) & (column < self.num_columns)
            if not (np.all(inside) and np.all(np.diff(order) > 0)):
                raise damage(self.path, "a row has a wrong column")
            if not np.all((count > 0) & (count <= LARGEST_COUNT)):
                raise damage(self.path, "a row has a wrong count")
        return entries, lengths

    # Writing ----------------------------------------------------------------------------------

    def append(self, rows: Any) -> np.ndarray:
        """Add new rows: what `data.counts` or `data.dense` accepts, or a `Data`. Returns ids."""
        self._ready(writing=True)
        data = self._checked(rows)
        ids = np.arange(self.num_rows, self.num_rows + data.num_rows)
        matrix, values = data.matrix, data.values
        entries = _pairs(matrix.indices, matrix.data) if values is None else values.ravel()
        state = State(self.num_rows + data.num_rows, self.total + data.total)
        self._write(ids, entries, data.lengths, state, np.zeros(0, np.int64))
        return ids

    def extend(self, ids: Any, rows: Any) -> None:
        """Add the counts of `rows` to the rows named by `ids`, one for each."""
        self._ready(writing=True, words=True)
        ids, matrix = _indices(ids, self.num_rows, "row"), self._checked(rows).matrix
        if len(ids) != matrix.shape[0]:
            told = f"There are {len(ids)} row ids for {matrix.shape[0]} rows"
            raise InputError(f"{told}: give one id for each.")
        counts = matrix.data.astype(np.int64)
        self._add(np.repeat(ids, np.diff(matrix.indptr)), matrix.indices, counts, 0)

    def add(self, ids: Any, columns: Any, counts: Any = 1, new_rows: int = 0) -> np.ndarray:
        """Add words one by one: `counts[i]` (or `counts`) of word `columns[i]` to row `ids[i]`.

        All are one write. `new_rows` empty rows are made first; `ids` may name them. Returns the
        ids of the new rows, which follow those of the existing ones.
        """
        self._ready(writing=True, words=True)
        new_rows = _whole(new_rows, "new_rows", 0, MOST_NEW_ROWS)
        ids = _indices(ids, self.num_rows + new_rows, "row")
        columns = _indices(columns, self.num_columns, "column")
        if len(ids) != len(columns):
            told = f"There are {len(ids)} row ids for {len(columns)} columns"
            raise InputError(f"{told}: give one of each for every word.")
        counts = _whole_numbers(counts, len(ids))
        some = counts > 0
        return self._add(ids[some], columns[some], counts[some], new_rows)

    def _add(self, ids: Any, columns: Any, counts: Any, new_rows: int) -> np.ndarray:
        """Add checked words; returns the ids of the new rows."""
        new_ids = np.arange(self.num_rows, self.num_rows + new_rows)
        rows = np.union1d(ids, new_ids)
        old = rows[rows < self.num_rows]  # new rows come last
        entries, before = self._read(old)
        row = np.append(np.repeat(np.arange(len(old)), before), np.searchsorted(rows, ids))
        key = row * self.num_columns + np.append(entries["column"], columns)
        order = np.argsort(key, kind="stable")  # fast for keys that are nearly sorted
        key = key[order]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        sums = np.add.reduceat(np.append(entries["count"], counts)[order], first)  # in float64
        row, column = np.divmod(key[first], self.num_columns)
        if (largest := sums.max(initial=0)) > LARGEST_COUNT:
            told = f"A count of row {rows[row[sums.argmax()]]} would become {largest:.0f}"
            limit = f"counts above {LARGEST_COUNT} are not exact in single precision"
            raise InputError(f"{told}, but {limit}: leave those words out.")
        state = State(self.num_rows + new_rows, self.total + float(counts.sum()))
        lengths = np.bincount(row, minlength=len(rows))
        self._write(rows, _pairs(column, sums), lengths, state, before)
        return new_ids

    def _write(self, ids: Any, entries: Any, lengths: Any, state: State, before: Any) -> None:
        """Store rows, all or none. before: numbers of entries of those that are replaced."""
        raw = entries.astype(self._entry, copy=False).tobytes()
        ends = (self._entry.itemsize * np.append(0, np.cumsum(lengths))).tolist()
        blobs = (raw[start:end] for start, end in itertools.pairwise(ends))
        sizes, self._sizes, self._last = self._sizes, None, None  # read again if this fails
        self._file.write(zip(ids.tolist(), blobs, strict=True), state, self._sync)
        if sizes is not None:
            sizes.update(lengths.tolist())
            sizes.subtract(before.tolist())
        self._sizes, self._last = sizes, state

    def flush(self) -> None:
        """Commit what was written since: then neither a crash nor a power cut loses it."""
        self._ready()
        if not self.read_only:
            before = self._sizes, self._last
            self._sizes = self._last = None  # read again if this fails
            self._file.commit()
            self._sizes, self._last = before

    def refresh(self) -> None:
        """Let a read-only database see what the writer has committed since."""
        self._ready()
        if self.read_only:
            self._file.commit()
            self._file.select("BEGIN")
            self._sizes = self._last = None
        self._state  # noqa: B018  the first read fixes which commit is seen

    def close(self) -> None:
        """Commit, close the file and let others write. Closing twice is no error."""
        if not self._closed:
            with self._open:
                try:
                    self.flush()
                finally:
                    self._closed = True

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # Checks -----------------------------------------------------------------------------------

    def _ready(self, writing: bool = False, words: bool = False) -> None:
        if self._closed:
            raise InputError("The database is closed: open it again.")
        if writing and self.read_only:
            raise InputError(f"{self.path} was opened read_only: open it without to add to it.")
        if words and self.kind == "dense":
            raise InputError("Words are added to counts, not to dense rows: append whole rows.")

    def _checked(self, rows: Any) -> Data:
        data = rows if isinstance(rows, Data) else getattr(data_, self.kind)(rows)
        if data.kind != self.kind:
            told = f"The rows are {data.kind} but the database holds {self.kind}"
            raise InputError(f"{told}: convert them, or use another database.")
        if data.num_columns != self.num_columns:
            told = f"The rows have {data.num_columns} columns but the database has"
            raise InputError(f"{told} {self.num_columns}: give rows over the same columns.")
        if data.column_names and self.column_names and data.column_names != self.column_names:
            fix = "reorder the columns, or use another database"
            raise InputError(f"The rows have other column names than the database: {fix}.")
        return data

    def _accept(self, header: dict[str, Any], has_tags: bool) -> None:
        """Refuse a folder that was made as something else; take over what was not asked for."""
        made = header | {"tags": _plain(header["tags"])}
        advice = "ask for the same, or name another folder"
        for name in ("kind", "num_columns", *(["tags"] if has_tags else [])):
            if made[name] != (asked := getattr(self, name)):
                told = f"was made with {name} {made[name]!r}, not {asked!r}"
                raise InputError(f"{self.path} {told}: {advice}.")
        names = data_._names(header["column_names"], self.num_columns, "column")
        if self.column_names not in (None, names):
            raise InputError(f"{self.path} was made with other column names: {advice}.")
        self.column_names, self.tags = names, made["tags"]


def _pairs(columns: np.ndarray, counts: np.ndarray) -> np.ndarray:
    entries = np.empty(len(columns), ENTRY)
    entries["column"], entries["count"] = columns, counts
    return entries


def _whole(value: Any, name: str, least: int, most: int) -> int:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise InputError(f"{name} must be a whole number from {least} to {most}, not {value!r}.")
    return int(value)


def _indices(values: Any, size: int, what: str) -> np.ndarray:
    """One index or a list of them, counted from 0 and below `size`."""
    name = {"row": "Row ids", "column": "Columns"}[what]
    index = np.atleast_1d(data_._rectangular(values, name))
    if index.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, but there are {index.ndim} dimensions.")
    if index.size and not np.issubdtype(index.dtype, np.integer):
        raise InputError(f"{name} must be integers counted from 0, not {index.dtype}.")
    if index.size and (index.min() < 0 or index.max() >= size):
        wrong = index.min() if index.min() < 0 else index.max()
        told = f"{name} are counted from 0 and the database has {size} {what}s, but one is {wrong}"
        raise InputError(f"{told}: check where it comes from.")
    return index.astype(np.int64)


def _whole_numbers(counts: Any, size: int) -> np.ndarray:
    counts = data_._array(counts, "Counts")
    if counts.shape not in ((), (size,)):
        told = f"There are counts of shape {counts.shape} for {size} words"
        raise InputError(f"{told}: give one number, or one for each word.")
    if not np.all((counts >= 0) & (counts <= LARGEST_COUNT) & (counts == np.floor(counts))):
        data_.count_matrix(counts.reshape(1, -1))  # says what is wrong
    return np.broadcast_to(counts, size).astype(np.int64)


def _plain(tags: Any) -> dict[str, Any]:
    """Tags as they come back from JSON."""
    try:
        if not isinstance(tags or {}, dict):
            raise TypeError(f"a {type(tags).__name__} is none")
        return dict(json.loads(json.dumps(tags or {}, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise InputError(f"tags must be a dictionary that JSON can hold ({error}).") from error


def _folder(path: str | Path) -> Path:
    folder = usable(path)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder for the database.")
    return folder
