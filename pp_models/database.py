"""The growing database behind streaming inference (Theis & Hoffman 2015, section 3.1): rows that arrive, and words that arrive later.

    with Database(num_columns, path="wiki.db") as database:     # without a path: in memory
        ids = database.append(X)                                # new rows, numbered in the order they came
        database.extend(ids, more)                              # further counts for these rows: they are added
        database.add([0, 0, 7], [12, 3, 12])                    # the same, word by word
        data = database.data(rows)                              # `Data` of these rows, as they are now

A document fed word by word ends as the same contents, bit for bit, as the document fed whole.

Storage. Two logs only ever grow: `entries` (column, count) and `segments`. A segment is what one write brought for one row, entries sorted
by column, and it points to the row's previous segment; memory holds the newest segment of each row, nothing for each word. A row spread over
`DEPTH` segments takes its newest ones along in the next write, as long as each is shorter than twice what is being written: a row of n entries
then has at most DEPTH + log2 n segments, and no entry is rewritten more than a multiple of log n times. Dense rows need no segments.

Superseded segments stay in the logs: to drop them, append `database.data(rows)`, part by part, to a new database. How the logs lie on disk and
survive crashes: `logs`. A `Database` belongs to one thread. Other processes may read while one writes; `refresh` shows them what came since.
"""

import functools
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from pp_models import data as data_
from pp_models.data import Data
from pp_models.errors import InputError, unknown
from pp_models.files import explained
from pp_models.logs import Growing, Header, Logs, Spilled, StoredLogs, read_header

KINDS = ("counts", "dense")
DEPTH = 16  # segments a row may be spread over before a write takes some along
LARGEST_COUNT = 2**24 - 1  # whole numbers up to here are exact in single precision
LARGEST_COLUMNS = 2**31 - 1  # columns are stored as 32-bit integers
EMPTY_ROWS = 50_000_000  # beside ten for each segment: the index holds every row in memory
CHUNK = 1 << 20  # segments, and entries at most, that are looked at together when everything is

ENTRY = np.dtype([("column", "<i4"), ("count", "<f4")])
# previous: the row's segment before this one, or -1; depth: how many there are from here on; total: sum of the row's counts from here on
SEGMENT = np.dtype([("row", "<i8"), ("previous", "<i8"), ("start", "<i8"), ("total", "<i8"), ("length", "<i4"), ("depth", "<i4")])


class Database:
    """Rows of counts or of dense observations that grow, in memory or in a folder.

    num_columns:   words of the vocabulary, pixels of an image
    kind:          "counts" or "dense"
    path:          the folder, made or opened again; None keeps everything in memory
    column_names:  the vocabulary, or None
    tags:          anything JSON can hold, stored when the folder is made; opening it with other tags is refused, with None accepted
    read_only:     open beside a writer; `refresh` shows what it has committed since
    sync:          commit at every write. If False, at `flush` and `close` only: faster, and a crash loses what came since
    verify:        check the checksum of all that is stored when opening, not of the last commit only
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
        if isinstance(num_columns, bool) or not isinstance(num_columns, int | np.integer) or not 0 < num_columns <= LARGEST_COLUMNS:
            raise InputError(f"num_columns must be a whole number from 1 to {LARGEST_COLUMNS}, not {num_columns!r}.")
        self.kind, self.num_columns = kind, int(num_columns)
        self.column_names = data_._names(column_names, self.num_columns, "column")
        self.tags = _plain(tags)
        self.path = None if path is None else _folder(path)
        self.read_only = bool(read_only)
        self._newest = Growing(np.int64)  # the newest segment of each row, or -1
        self._lengths = Growing(np.int32)  # entries of each row, or -1: in several segments, not counted yet
        self._sizes = np.zeros((2, 0), np.int64)  # numbers of tokens, at most as many as columns, and how many rows have them
        self._num_indexed = 0  # segments that these three know of; -1 where bringing them up to date was interrupted
        self._num_checked = 0  # entries
        self._verify = bool(verify)
        self._closed = False
        entry = "<i8" if kind == "counts" else "<f4"  # an ENTRY is gathered as one 64-bit number, which is faster
        if self.path is None:
            if read_only:
                raise InputError("A database in memory cannot be opened read_only: give the path of one on disk.")
            self._logs = Logs(SEGMENT, entry)
            return
        header = {"kind": kind, "num_columns": self.num_columns, "dtype": "float32", "column_names": self.column_names, "tags": self.tags}
        accept = functools.partial(self._accept, tags is not None)
        self._logs = StoredLogs(SEGMENT, entry, self.path, header, accept, self.read_only, bool(sync), bool(verify))
        if kind == "counts" and not self.read_only:
            self._newest, self._lengths = Spilled(np.int64, self.path), Spilled(np.int32, self.path)

    @classmethod
    def open(cls, path: str | Path, **options: Any) -> "Database":
        """The database in this folder, its kind and number of columns taken from there. Options: those of `Database`."""
        folder = _folder(path)
        if not (folder / "header.json").exists():
            raise InputError(f"There is no database at {folder}: check the path.")
        with explained(folder):
            header = read_header(folder)
        return cls(header["num_columns"], header["kind"], folder, **options)

    def __repr__(self) -> str:
        return f"Database({self.kind}, {self.num_rows} rows x {self.num_columns} columns, {'in memory' if self.path is None else self.path})"

    # Size ---------------------------------------------------------------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        return self._logs.state.num_rows

    @property
    def num_entries(self) -> int:
        """Entries of all rows: pairs of a row and a column for counts."""
        return int(self.lengths.sum()) if self.kind == "counts" else self.num_rows * self.num_columns

    @property
    def total(self) -> float:
        """Sum of all entries: the number of tokens of a corpus."""
        return self._logs.state.total

    @property
    def lengths(self) -> np.ndarray:
        """Entries per row. Rows that grew are counted when this is asked for, and then remembered."""
        if self.kind == "dense":
            return np.full(self.num_rows, self.num_columns)
        self._ready()
        known = self._lengths.view()
        unknown_rows = np.flatnonzero(known < 0)
        upper = self._logs.segments.view()["total"][self._newest.view()[unknown_rows]]  # a row has no more entries than tokens
        part = np.cumsum(np.minimum(upper, self.num_columns)) // CHUNK
        for rows in np.split(unknown_rows, np.flatnonzero(np.diff(part)) + 1):
            known[rows] = np.diff(self._matrix(rows).indptr)
        return known.astype(np.int64)

    @property
    def sizes(self) -> np.ndarray:
        """(2, ...): numbers of entries that rows have at most, in order, and how many rows do: as many as tokens, and no more than columns."""
        self._ready()
        return self._sizes

    @property
    def totals(self) -> np.ndarray:
        """Sum of the entries of each row."""
        self._ready()
        if self.kind == "dense":
            return self._values().sum(axis=1, dtype=np.float64)
        return self._row_totals(np.arange(self.num_rows)).astype(np.float64)

    # Reading ------------------------------------------------------------------------------------------------------------------

    def data(self, rows: Any = None) -> Data:
        """The present contents of these rows (default: all), in the order given. Only they are read."""
        self._ready()
        rows = np.arange(self.num_rows) if rows is None else _indices(rows, self.num_rows, "Row ids", "the database has {} rows")
        if self.kind == "dense":
            return Data("dense", values=self._values()[rows], column_names=self.column_names)
        return Data("counts", matrix=self._matrix(rows), column_names=self.column_names)

    def _values(self) -> np.ndarray:
        if self._logs.entries.size != self.num_rows * self.num_columns:
            raise self._lies()
        return self._logs.entries.view().reshape(-1, self.num_columns)

    def _matrix(self, rows: np.ndarray) -> Any:
        """These rows as CSR, in canonical format."""
        segments = self._logs.segments.view()
        newest = self._newest.view()[rows]
        places, chain = [np.flatnonzero(newest >= 0)], [newest[newest >= 0]]
        while len(chain[-1]):  # one turn for each segment of the row that has most
            previous = segments["previous"][chain[-1]]
            places.append(places[-1][previous >= 0])
            chain.append(previous[previous >= 0])
        entries, lengths = self._gather(np.concatenate(chain))
        if len(chain) <= 2:  # every row in one segment, so in order already
            per_row = np.zeros(len(rows), np.int64)
            per_row[places[0]] = lengths
            return _csr(entries["count"], entries["column"], np.concatenate([[0], np.cumsum(per_row)]), self.num_columns)
        return _added(np.repeat(np.concatenate(places), lengths), entries["column"], entries["count"], (len(rows), self.num_columns))

    def _gather(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The entries of some segments, one after another, and how many each has."""
        segments = self._logs.segments.view()
        starts, lengths = segments["start"][chosen], segments["length"][chosen].astype(np.int64)
        ends = np.cumsum(lengths)
        source = np.repeat(starts - (ends - lengths), lengths)
        source += np.arange(len(source))
        return self._logs.entries.view()[source].view(ENTRY), lengths

    def _row_totals(self, rows: np.ndarray) -> np.ndarray:
        newest = self._newest.view()[rows]
        totals = np.zeros(len(rows), np.int64)
        totals[newest >= 0] = self._logs.segments.view()["total"][newest[newest >= 0]]
        return totals

    # Writing ------------------------------------------------------------------------------------------------------------------

    def append(self, rows: Any) -> np.ndarray:
        """Add new rows: what `data.counts` or `data.dense` accepts, or a `Data`. Returns their ids."""
        self._ready(writing=True)
        data = self._checked(rows)
        ids = np.arange(self.num_rows, self.num_rows + data.num_rows)
        if self.kind == "dense":
            assert data.values is not None
            self._logs.write(np.empty(0, SEGMENT), data.values.ravel(), data.num_rows, data.total)
        else:
            self._write_counts(data.matrix, ids, np.full(data.num_rows, -1), data.totals.astype(np.int64), data.num_rows, data.total)
        return ids

    def extend(self, ids: Any, rows: Any) -> None:
        """Add the counts of `rows` to the rows named by `ids`, one for each."""
        self._ready(writing=True, words=True)
        ids = _indices(ids, self.num_rows, "Row ids", "the database has {} rows")
        matrix = self._checked(rows).matrix
        if len(ids) != matrix.shape[0]:
            raise InputError(f"There are {len(ids)} row ids for {matrix.shape[0]} rows: give one id for each.")
        self._add(np.repeat(ids, np.diff(matrix.indptr)), matrix.indices, matrix.data, 0)

    def add(self, ids: Any, columns: Any, counts: Any = 1, new_rows: int = 0) -> np.ndarray:
        """Add words one by one: `counts[i]` (or `counts`) of word `columns[i]` to row `ids[i]`, in one commit for all.

        `new_rows` rows are made first, empty; `ids` may name them. Returns their ids, which follow those of the rows there are.
        """
        self._ready(writing=True, words=True)
        if isinstance(new_rows, bool) or not isinstance(new_rows, int | np.integer) or new_rows < 0:
            raise InputError(f"new_rows must be a whole number, 0 or more, not {new_rows!r}.")
        if new_rows > EMPTY_ROWS:
            raise InputError(f"{new_rows} new rows are too many at a time: add up to {EMPTY_ROWS}.")
        new_ids = np.arange(self.num_rows, self.num_rows + int(new_rows))
        ids = _indices(ids, self.num_rows + len(new_ids), "Row ids", "the database has {} rows")
        columns = _indices(columns, self.num_columns, "Columns", "the database has {} columns")
        if len(ids) != len(columns):
            raise InputError(f"There are {len(ids)} row ids for {len(columns)} columns: give one of each for every word.")
        counts = _whole_numbers(counts, len(ids))
        some = counts > 0
        self._add(ids[some], columns[some], counts[some], len(new_ids))
        return new_ids

    def _add(self, ids: np.ndarray, columns: np.ndarray, counts: np.ndarray, new_rows: int) -> None:
        """Add checked words to rows."""
        rows, place = np.unique(ids, return_inverse=True)
        matrix = _added(place, columns, counts.astype(np.float64), (len(rows), self.num_columns))
        old = rows[rows < self.num_rows]  # unique is sorted: new rows come last
        newest = np.full(len(rows), -1)
        newest[: len(old)] = self._newest.view()[old]
        totals = np.zeros(len(rows), np.int64)
        totals[: len(old)] = self._row_totals(old)
        totals += data_.row_sums(matrix).astype(np.int64)
        self._check_sums(rows, matrix, totals)
        newest, places, taken = self._taken_along(newest, np.diff(matrix.indptr))
        gained = float(matrix.data.sum(dtype=np.float64))
        if len(taken):
            entries, lengths = self._gather(taken)
            row = np.concatenate([np.repeat(np.arange(len(rows)), np.diff(matrix.indptr)), np.repeat(places, lengths)])
            column = np.concatenate([matrix.indices, entries["column"]])
            matrix = _added(row, column, np.concatenate([matrix.data, entries["count"]]), matrix.shape)
        self._write_counts(matrix, rows, newest, totals, new_rows, gained)

    def _check_sums(self, rows: np.ndarray, matrix: Any, totals: np.ndarray) -> None:
        """Refuse counts that single precision cannot hold, once added to what is there. `totals`: of the rows after this write."""
        large = np.flatnonzero(totals > LARGEST_COUNT)  # hardly ever any: no entry is larger than its row's total
        if not len(large):
            return
        sums = self._matrix(rows[large][rows[large] < self.num_rows]).astype(np.float64)
        sums.resize((len(large), self.num_columns))  # new rows come last
        sums = sums + matrix[large]
        if sums.max() > LARGEST_COUNT:
            raise InputError(
                f"A count would become {sums.max():.0f}, but counts above {LARGEST_COUNT} cannot be held exactly in single precision: "
                f"leave those words of row {rows[large][sums.max(axis=1).toarray().argmax()]} out."
            )

    def _taken_along(self, newest: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which segments to merge into a write of so many entries to each row: the newest that then remain, and (place, segment) of those taken."""
        segments = self._logs.segments.view()
        newest, size = newest.copy(), lengths.astype(np.int64)
        place = np.flatnonzero(newest >= 0)
        place = place[segments["depth"][newest[place]] >= DEPTH]
        places, taken = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        while len(place):
            segment = newest[place]
            more = segments["length"][segment]
            fits = more < 2 * size[place]
            place, segment = place[fits], segment[fits]
            size[place] += more[fits]
            newest[place] = segments["previous"][segment]
            places.append(place)
            taken.append(segment)
            place = place[newest[place] >= 0]
        return newest, np.concatenate(places), np.concatenate(taken)

    def _write_counts(self, matrix: Any, rows: np.ndarray, previous: np.ndarray, totals: np.ndarray, new_rows: int, gained: float) -> None:
        """Write one segment for each of the rows that has entries. `totals`: of the rows after this write."""
        lengths = np.diff(matrix.indptr)
        some = lengths > 0
        segments = np.zeros(int(some.sum()), SEGMENT)
        segments["row"], segments["previous"], segments["total"] = rows[some], previous[some], totals[some]
        segments["start"] = self._logs.entries.size + matrix.indptr[:-1][some].astype(np.int64)
        segments["length"], segments["depth"] = lengths[some], 1
        chained = segments["previous"] >= 0
        segments["depth"][chained] += self._logs.segments.view()["depth"][segments["previous"][chained]]
        entries = np.empty(matrix.nnz, ENTRY)
        entries["column"], entries["count"] = matrix.indices, matrix.data
        self._check_rows(self.num_rows + new_rows, self._logs.segments.size + len(segments))
        self._logs.write(segments, entries.view("<i8"), new_rows, gained)

    def flush(self) -> None:
        """Commit what was written since the last commit: once this returns, neither a crash nor a power cut loses it."""
        self._ready()
        self._logs.flush()

    def refresh(self) -> None:
        """Let a read-only database see what the writer has committed since."""
        self._ready()
        self._logs.refresh()

    def close(self) -> None:
        """Commit, close the files and let others write. Closing twice is no error."""
        if not self._closed:
            self._closed = True
            for index in (self._newest, self._lengths):
                index.close()
            self._logs.close()

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _ready(self, writing: bool = False, words: bool = False) -> None:
        """Refuse what this database cannot do; otherwise take note of what was written since."""
        if self._closed:
            raise InputError("The database is closed: open it again.")
        if writing and self.read_only:
            raise InputError(f"{self.path} was opened read_only: open it without to add to it.")
        if words and self.kind == "dense":
            raise InputError("Words can be added to counts only, and this database holds dense rows: append whole rows.")
        if self.kind == "counts":
            self._index()

    def _index(self) -> None:
        """Bring the index up to the logs. Interrupted, it is made anew the next time."""
        self._check_rows(self.num_rows, self._logs.segments.size)
        if self.path is not None:
            self._check_entries()
        if self._num_indexed < 0:
            self._newest.size, self._lengths.size, self._num_indexed, self._sizes = 0, 0, 0, np.zeros((2, 0), np.int64)
        if self._num_indexed == self._logs.segments.size and self._newest.size == self.num_rows:
            return
        begin, self._num_indexed = self._num_indexed, -1
        self._count(np.zeros(self.num_rows - self._newest.size, np.int64), 1)
        for index, none in ((self._newest, -1), (self._lengths, 0)):
            index.append(np.full(self.num_rows - index.size, none))
        newest, lengths, totals = self._newest.view(), self._lengths.view(), self._logs.segments.view()["total"]
        for first in range(begin, self._logs.segments.size, CHUNK):
            segments = self._logs.segments.view()[first : first + CHUNK]
            self._check_segments(first, segments)
            rows = np.unique(segments["row"])
            before = newest[rows]
            newest[segments["row"]] = first + np.arange(len(segments))  # of several for one row, the last is kept
            lengths[segments["row"]] = np.where(segments["depth"] == 1, segments["length"], -1)
            self._count(np.where(before >= 0, totals[before], 0), -1)
            self._count(totals[newest[rows]], 1)
        self._num_indexed = self._logs.segments.size

    def _count(self, totals: np.ndarray, sign: int) -> None:
        """Rows with so many tokens come, or go."""
        found, rows = np.unique(np.minimum(totals, self.num_columns), return_counts=True)
        sizes, place = np.unique(np.concatenate([self._sizes[0], found]), return_inverse=True)
        counts = np.zeros(len(sizes), np.int64)
        np.add.at(counts, place, np.concatenate([self._sizes[1], sign * rows]))
        self._sizes = np.stack([sizes, counts])[:, counts > 0]

    # What is stored may match its checksums and lie: it is looked at before compiled code trusts it.

    def _check_rows(self, num_rows: int, num_segments: int) -> None:
        if num_rows > EMPTY_ROWS + 10 * num_segments:
            raise InputError(f"{num_rows} rows are too many for {num_segments} with contents: leave empty rows out.")

    def _check_segments(self, first: int, segments: np.ndarray) -> None:
        row, previous, start, length = (segments[name] for name in ("row", "previous", "start", "length"))
        good = (row >= 0) & (row < self.num_rows) & (previous >= -1) & (previous < first + np.arange(len(segments)))
        good &= (start >= 0) & (length > 0) & (start <= self._logs.entries.size - length.astype(np.int64))
        if not np.all(good & (segments["depth"] > 0) & (segments["total"] > 0)):
            raise self._lies()

    def _check_entries(self) -> None:
        """Those that were there when the database was opened, or that another process has written: not one's own."""
        if not self._verify or (self._num_checked and not self.read_only):
            return
        size = self._logs.entries.size
        for first in range(self._num_checked, size, CHUNK):
            entries = self._logs.entries.view()[first : first + CHUNK].view(ENTRY)
            column, count = entries["column"], entries["count"]
            if column.min() < 0 or column.max() >= self.num_columns or not (count.min() > 0 and count.max() <= LARGEST_COUNT):
                raise self._lies()
        self._num_checked = max(size, 1)

    def _lies(self) -> InputError:
        return InputError(f"{self.path} is damaged: its logs do not fit together; restore the folder from a copy.")

    def _checked(self, rows: Any) -> Data:
        data = rows if isinstance(rows, Data) else data_.counts(rows) if self.kind == "counts" else data_.dense(rows)
        if data.kind != self.kind:
            raise InputError(f"The rows are {data.kind} but the database holds {self.kind}: convert them, or use another database.")
        if data.num_columns != self.num_columns:
            raise InputError(f"The rows have {data.num_columns} columns but the database has {self.num_columns}: give rows over the same columns.")
        if data.column_names and self.column_names and data.column_names != self.column_names:
            raise InputError(f"The rows have other columns than the database ({_difference(data.column_names, self.column_names)}): reorder them.")
        return data

    def _accept(self, has_tags: bool, header: Header) -> None:
        """Refuse a folder that was made as something else; take over what was not asked for."""
        for name in ("kind", "num_columns", "tags") if has_tags else ("kind", "num_columns"):
            made, asked = header[name], getattr(self, name)
            if made != asked:
                raise InputError(f"{self.path} was made with {name} {made!r}, not {asked!r}: ask for the same, or name another folder.")
        names = None if header["column_names"] is None else tuple(header["column_names"])
        if self.column_names is not None and names != self.column_names:
            difference = "it has none" if names is None else _difference(names, self.column_names)
            raise InputError(f"{self.path} was made with other column names ({difference}): give the same, or name another folder.")
        self.column_names, self.tags = names, header["tags"]


# Checks and small parts -----------------------------------------------------------------------------------------------------------


def _csr(values: np.ndarray, columns: np.ndarray, indptr: np.ndarray, num_columns: int) -> Any:
    """As `data.counts` makes it."""
    parts = values.astype(np.float32), columns.astype(np.int32), indptr.astype(np.int64)
    return scipy.sparse.csr_array(parts, shape=(len(indptr) - 1, num_columns))


def _added(rows: np.ndarray, columns: np.ndarray, counts: np.ndarray, shape: tuple[int, int]) -> Any:
    """Entries in any order as canonical CSR, those listed more than once added up: whole numbers, so exactly in any order."""
    matrix = scipy.sparse.coo_array((counts, (rows, columns)), shape=shape).tocsr()
    return matrix if counts.dtype == np.float64 else _csr(matrix.data, matrix.indices, matrix.indptr, shape[1])


def _indices(values: Any, size: int, what: str, have: str) -> np.ndarray:
    """One index or a list of them, counted from 0 and below `size`."""
    index = np.atleast_1d(data_._rectangular(values, what))
    if index.ndim != 1:
        raise InputError(f"{what} must be a one-dimensional list, but the array has {index.ndim} dimensions.")
    if index.size and not np.issubdtype(index.dtype, np.integer):
        raise InputError(f"{what} must be integers counted from 0, not {index.dtype}.")
    if index.size and (index.min() < 0 or index.max() >= size):
        wrong = index.min() if index.min() < 0 else index.max()
        raise InputError(f"{what} are counted from 0 and {have.format(size)}, but one is {wrong}: check where it comes from.")
    return index.astype(np.int64)


def _whole_numbers(counts: Any, size: int) -> np.ndarray:
    counts = data_._array(counts, "Counts")
    if counts.shape not in ((), (size,)):
        raise InputError(f"There are counts of shape {counts.shape} for {size} words: give one number, or one for each word.")
    if not np.all(np.isfinite(counts)):
        raise InputError("Counts hold NaN or infinite values: leave those words out.")
    if np.any(counts < 0):
        raise InputError(f"Counts must not be negative, but the smallest is {counts.min():g}: words cannot be taken back.")
    if np.any(counts != np.floor(counts)):
        raise InputError(f"Counts must be whole numbers, but one is {counts[counts != np.floor(counts)].flat[0]:g}: pass raw counts.")
    if np.any(counts > LARGEST_COUNT):
        raise InputError(
            f"Counts above {LARGEST_COUNT} cannot be held exactly in single precision, but the largest is {counts.max():g}: leave it out."
        )
    return np.broadcast_to(counts, size).astype(np.int64)


def _plain(tags: Any) -> dict[str, Any]:
    """Tags as they come back from JSON."""
    try:
        plain = json.loads(json.dumps({} if tags is None else tags, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"tags must be a dictionary of names, numbers and lists that JSON can hold ({error}).") from error
    if not isinstance(plain, dict):
        raise InputError(f"tags must be a dictionary, not {tags!r}.")
    return plain


def _difference(first: tuple[str, ...], second: tuple[str, ...]) -> str:
    column = next(i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    return f"column {column} is {first[column]!r} there and {second[column]!r} here"


def _folder(path: str | Path) -> Path:
    try:
        folder = Path(path).expanduser()
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except FileNotFoundError:
        return folder
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise InputError(f"{path!r} is not a usable path ({error}): check it.") from error
    if not is_folder:
        raise InputError(f"{folder} is a file: name a folder for the database.")
    return folder
