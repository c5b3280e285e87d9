"""The corpus store: rows of counts on disk, of any number, written in one pass and read a batch at a time.

    store.write("wiki.store", "docword.wiki.txt.gz")    # any file of counts, `Data`, a database, or blocks of rows
    corpus = store.read("wiki.store")                   # a `Data` that engines take like any other
    corpus.select(rows)                                 # these rows, in memory
    corpus.batches(key, 1000, devices)                  # one shuffled pass, batch by batch

A folder holds

    manifest.json           shape, totals, and the size and checksum of every other file; written last
    <mark>-00000.columns    the shards: columns and counts of some millions of entries, each in the narrowest type that holds them,
    <mark>-00000.counts     read through memory maps
    <mark>.rows             entries, total and log factorials of each row
    <mark>.row_names        one a line, if there are any; .column_names likewise
    lock                    held by the one process that writes

A store is what its manifest says. A new one is written beside the old under another mark, and takes its place when the manifest is replaced, at
once: a writer that is killed leaves the old store or, where there was none, a folder without a manifest, which is refused as incomplete. What it left
is removed by the next writer. Whoever has the old store open keeps it. Nothing is pickled.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import mmap
import os
import re
import resource
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from pp_models import readers, text
from pp_models.data import Data, count_matrix
from pp_models.database import LARGEST_COLUMNS, Database
from pp_models.errors import InputError
from pp_models.files import explained, lock, sync_folder, write_whole
from pp_models.scanning import usable

SUFFIX = ".store"
FORMAT = "pp-models store 1"
SHARD_ENTRIES = 1 << 22
BLOCK_ROWS = 1 << 14  # read together when everything is
RESIDENT_ROWS = 1 << 12  # rows read before their pages are given back: each comes with its neighbours, some 64 kB of two maps
SPARE_FILES = 256  # that a process may open besides its stores
CHUNK = 1 << 22  # bytes whose checksum is taken together
_KINDS = ("|u1", "<u2", "<u4", "<u8")  # of columns and counts in a shard
ROW = np.dtype([("length", "<i4"), ("total", "<f8"), ("log_factorials", "<f8")])

_OWN = re.compile(r"lock|manifest\.json|[0-9a-f]{8}(-\d{5,}\.(columns|counts)|\.(rows|row_names|column_names))|\.tmp-\d+-manifest\.json")


# Reading ------------------------------------------------------------------------------------------------------------------------


class Shard(NamedTuple):
    """Some consecutive rows: where they end, and their entries, mapped."""

    end: int
    columns: np.ndarray
    counts: np.ndarray


def _places(rows: Any, num_rows: int) -> np.ndarray:
    """Row numbers from numbers, a mask or a slice."""
    numbers = isinstance(rows, np.ndarray) and rows.dtype.kind in "iu" and rows.min(initial=0) >= 0
    return rows if numbers else np.arange(num_rows)[rows]


def _runs(first: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Numbers that count up from each `first`, `lengths` of them, one run after the other; `begins`: where in the result they begin."""
    places = np.repeat(first - begins, lengths)
    places += np.arange(len(places))
    return places


class Shards:
    """The rows as a matrix of counts, of which only what is asked for is read."""

    def __init__(self, shape: tuple[int, int], lengths: np.ndarray, shards: list[Shard], maps: list[mmap.mmap]) -> None:
        self.shape, self.shards, self._maps, self._num_read = shape, shards, maps, 0
        self.indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self._ends = np.array([shard.end for shard in shards])
        self._starts = self.indptr[np.concatenate([[0], self._ends[:-1]])]  # the entry that each shard begins with

    @property
    def nnz(self) -> int:
        return int(self.indptr[-1])

    def __getitem__(self, rows: Any) -> Any:
        """These rows in memory, in the order given."""
        rows = _places(rows, self.shape[0])
        first, lengths = self.indptr[rows], self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        shard = np.searchsorted(self._ends, rows, side="right")
        order = np.argsort(shard, kind="stable")  # the rows of one shard after those of another, then put back
        ends = np.cumsum(lengths[order])
        begins = ends - lengths[order]
        source = _runs(first[order] - self._starts[shard[order]], begins, lengths[order])
        columns, values = np.empty(len(source), np.int32), np.empty(len(source), np.float32)
        numbers, places = np.unique(shard[order], return_index=True)
        cuts = np.append(begins[places], len(source))
        for number, start, end in zip(numbers, cuts[:-1], cuts[1:], strict=True):
            mine = source[start:end]
            columns[start:end], values[start:end] = self.shards[number].columns[mine], self.shards[number].counts[mine]
        if len(numbers) > 1:
            back = np.empty_like(begins)
            back[order] = begins
            target = _runs(back, indptr[:-1], lengths)
            columns, values = columns[target], values[target]
        self._give_back(len(rows))
        indptr = indptr.astype(np.int32) if indptr[-1] < 2**31 else indptr  # or SciPy would widen the columns
        return scipy.sparse.csr_array((values, columns, indptr), shape=(len(rows), self.shape[1]))

    def _give_back(self, num_rows: int) -> None:
        """Let go of pages read long ago. They stay in the system's cache, where there is room."""
        self._num_read += num_rows
        if self._num_read >= RESIDENT_ROWS:
            self._num_read = 0
            for pages in self._maps:
                pages.madvise(mmap.MADV_DONTNEED)

    def blocks(self) -> Iterator[Any]:
        """All rows in order, some at a time."""
        for first in range(0, self.shape[0], BLOCK_ROWS):
            yield self[first : first + BLOCK_ROWS]

    def tocsr(self) -> Any:
        """All rows, in memory."""
        return self[np.arange(self.shape[0])]

    @property
    def indices(self) -> np.ndarray:
        """The columns of all entries, in memory: for what does not go by batches, where there is room. So with `data`."""
        return self.tocsr().indices

    @property
    def data(self) -> np.ndarray:
        return self.tocsr().data

    def sum(self, axis: int | None = None, dtype: Any = None) -> Any:
        """As of any matrix, a block at a time."""
        sums = [block.sum(axis=axis, dtype=dtype) for block in self.blocks()]
        return np.concatenate(sums) if axis == 1 else np.sum(sums, axis=0)


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus(Data):
    """Counts in a store. `matrix` holds `Shards`; what is selected or packed is read, the rest stays on disk."""

    path: Path = Path()
    rows: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, ROW))
    checksum: str = ""

    @functools.cached_property
    def total(self) -> float:
        return float(self.totals.sum())

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        return self.rows["length"].astype(np.int64)

    @functools.cached_property
    def totals(self) -> np.ndarray:
        return np.ascontiguousarray(self.rows["total"])

    @functools.cached_property
    def _log_factorials(self) -> np.ndarray:
        return np.ascontiguousarray(self.rows["log_factorials"])

    @functools.cached_property
    def hash(self) -> str:
        """That of the same counts in memory."""
        digest = hashlib.sha256(f"{self.kind} {self.num_rows} {self.num_columns}".encode())
        digest.update(self.matrix.indptr.tobytes())
        for part, kind in (("indices", np.int64), ("data", np.float32)):
            for block in self.matrix.blocks():
                digest.update(getattr(block, part).astype(kind).tobytes())
        return digest.hexdigest()

    def select(self, rows: np.ndarray) -> Data:
        """These rows, in memory."""
        rows = _places(rows, self.num_rows)
        titles = None if self.row_names is None else tuple(self.row_names[i] for i in rows)
        return Data("counts", matrix=self.matrix[rows], column_names=self.column_names, row_names=titles)

    def __repr__(self) -> str:
        return f"Corpus({self.num_rows} rows x {self.num_columns} columns, {self.path})"


def is_store(path: str | Path) -> bool:
    """Whether a folder is a store, complete or not, by what is in it."""
    folder = usable(path)
    return folder.is_dir() and ((folder / "manifest.json").exists() or (folder.suffix == SUFFIX and not _strangers(folder)))


def _strangers(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not _OWN.fullmatch(name))


def read(path: str | Path, verify: bool = True) -> Corpus:
    """The corpus in a store. verify: check the checksums of all that is stored, not only that everything is there."""
    folder = usable(path)
    with explained(folder):
        while True:
            manifest = _manifest(folder)
            try:
                for entry in manifest["files"]:
                    _check_file(folder, entry, verify)
                return _open(folder, manifest, verify)
            except FileNotFoundError:
                if _manifest(folder) == manifest:  # or else another store has taken its place meanwhile
                    raise


def _manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, no store: name a folder." if folder.exists() else f"{folder} does not exist: check the path.")
    file = folder / "manifest.json"
    if not file.exists():
        if strangers := _strangers(folder):
            raise InputError(f"{folder} is no store but holds other files, such as {strangers[0]}: name the folder that a store was written to.")
        raise InputError(f"{folder} is an incomplete store: its writer was stopped, or is still at work; wait for it, or write the store again.")
    try:
        manifest = json.loads(file.read_bytes())
        if manifest["format"] != FORMAT:
            raise InputError(f"{folder} has format {manifest['format']!r}, but this version reads {FORMAT!r}: upgrade, or write the store again.")
        if manifest.pop("checksum") != _digest(manifest):
            raise ValueError("it does not match its checksum")
        _check_manifest(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} is damaged ({error}): restore the folder from a copy, or write the store again.") from error
    return manifest


def _check_manifest(manifest: dict[str, Any]) -> None:
    """A manifest may be whole and lie: names and sizes must be those of a store's own files, before any of them is touched."""
    mark, shards = manifest["mark"], manifest["shards"]
    sizes = [manifest[name] for name in ("num_rows", "num_columns", "num_entries")] + [end for end, _, _ in shards]
    if not all(type(size) is int and 0 < size < 2**48 for size in sizes) or sizes[1] > LARGEST_COLUMNS:
        raise ValueError("a size is out of range")
    named = {axis: manifest[f"{axis}_names"] for axis in ("row", "column")}
    if not isinstance(mark, str) or not re.fullmatch("[0-9a-f]{8}", mark) or not all(type(there) is bool for there in named.values()):
        raise ValueError("its mark or names are odd")
    if sorted(set(sizes[3:])) != sizes[3:] or sizes[-1] != sizes[0] or not all(kind in _KINDS for _, *kinds in shards for kind in kinds):
        raise ValueError("its shards are odd")
    if not all(type(entry[what]) is int for entry in manifest["files"] for what in ("bytes", "crc32")):
        raise ValueError("a size or checksum is no number")
    found = {entry["name"]: entry["bytes"] for entry in manifest["files"]}
    parts = [tuple(f"{mark}-{number:05d}.{what}" for what in ("columns", "counts")) for number in range(len(shards))]
    names = {f"{mark}.{axis}_names" for axis, there in named.items() if there}
    if found.keys() != {f"{mark}.rows", *names, *(name for pair in parts for name in pair)} or len(found) != len(manifest["files"]):
        raise ValueError("its files are others than its shards'")
    lengths = [
        [found[name] / np.dtype(kind).itemsize for name, kind in zip(pair, kinds, strict=True)]
        for pair, (_, *kinds) in zip(parts, shards, strict=True)
    ]
    if found[f"{mark}.rows"] != ROW.itemsize * sizes[0] or any(a != b for a, b in lengths) or sum(a for a, _ in lengths) != sizes[2]:
        raise ValueError("its sizes do not add up")


def _digest(manifest: dict[str, Any]) -> str:
    """A checksum of all that is stored: the manifest holds that of every file."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _check_file(folder: Path, entry: dict[str, Any], verify: bool) -> None:
    file = folder / entry["name"]
    good = file.stat().st_size == entry["bytes"]
    if good and verify:
        check = 0
        with file.open("rb", buffering=0) as stream:
            while chunk := stream.read(CHUNK):
                check = zlib.crc32(chunk, check)
        good = check == entry["crc32"]
    if not good:
        raise InputError(f"{file} is damaged: it does not match its checksum; restore the folder from a copy, or write the store again.")


def _open(folder: Path, manifest: dict[str, Any], verify: bool) -> Corpus:
    mark = manifest["mark"]
    shards: list[Shard] = []
    maps: list[mmap.mmap] = []
    rows = np.fromfile(folder / f"{mark}.rows", ROW)
    ends = np.cumsum(rows["length"], dtype=np.int64)
    if len(rows) != manifest["num_rows"] or rows["length"].min() < 0 or ends[-1] != manifest["num_entries"]:
        raise _lies(folder)
    _allow_files(2 * len(manifest["shards"]))
    for number, (end, *kinds) in enumerate(manifest["shards"]):
        columns, counts = (
            _mapped(folder / f"{mark}-{number:05d}.{what}", kind, maps) for what, kind in zip(("columns", "counts"), kinds, strict=True)
        )
        if len(columns) != ends[end - 1] - (ends[shards[-1].end - 1] if shards else 0):
            raise _lies(folder)
        if verify and not _in_range(columns, counts, manifest["num_columns"]):
            raise _lies(folder)
        shards.append(Shard(end, columns, counts))
    titles, words = (readers.read_names(folder / f"{mark}.{axis}_names") if manifest[f"{axis}_names"] else None for axis in ("row", "column"))
    if (titles is not None and len(titles) != manifest["num_rows"]) or (words is not None and len(words) != manifest["num_columns"]):
        raise _lies(folder)
    matrix = Shards((manifest["num_rows"], manifest["num_columns"]), rows["length"], shards, maps)
    return Corpus("counts", matrix=matrix, column_names=words, row_names=titles, path=folder, rows=rows, checksum=_digest(manifest))


def _lies(folder: Path) -> InputError:
    return InputError(f"{folder} is damaged: its files do not fit together; restore the folder from a copy, or write the store again.")


def _in_range(columns: np.ndarray, counts: np.ndarray, num_columns: int) -> bool:
    """Whether entries are counts in columns that there are: compiled code that trusts them would read elsewhere."""
    for first in range(0, len(columns), CHUNK):
        part = slice(first, first + CHUNK)
        if columns[part].max() >= num_columns or not 0 < counts[part].min() <= counts[part].max() < 2**24:
            return False
    return True


def _allow_files(number: int) -> None:
    """Every map holds a file open: let this process have so many more, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = len(os.listdir("/dev/fd")) + number + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough if hard == resource.RLIM_INFINITY else min(enough, hard), hard))


def _mapped(file: Path, kind: str, maps: list[mmap.mmap]) -> np.ndarray:
    with file.open("rb") as stream:
        if file.stat().st_size == 0:
            return np.empty(0, kind)
        pages = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    pages.madvise(mmap.MADV_RANDOM)
    maps.append(pages)
    return np.frombuffer(pages, kind)


# Writing ------------------------------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Where rows come from: blocks of them, in order, and names."""

    blocks: Iterator[Any]
    column_names: tuple[str, ...] | None = None
    row_names: tuple[str, ...] | None = None


def write(
    path: str | Path,
    source: Any,
    column_names: Iterable[str] | None = None,
    row_names: Iterable[str] | None = None,
    overwrite: bool = False,
    on_rows: Callable[[int], Any] | None = None,
) -> Path:
    """Write a store in one pass and little memory.

    source:     the path of anything that holds counts, a `Data`, a `Database`, or blocks of rows in order: matrices or `Data`
    overwrite:  replace the store that is there; until the new one is complete, the old one stays
    on_rows:    called with the number of rows of each block that was written

    >>> corpus = read(write("doctest.store", [[[4, 3, 0], [0, 0, 6]], [[1, 1, 1]]], overwrite=True))
    >>> corpus.num_rows, corpus.total
    (3, 16.0)
    """
    folder = usable(path)
    with explained(folder):
        made = _prepare(folder, overwrite)
        with contextlib.closing(lock(folder, "wait for it, or name another folder")):
            _refuse_to_replace(folder, overwrite)  # another process may have written one before the lock was ours
            try:
                _remove_strays(folder)
                _write(folder, open_source(source), column_names, row_names, on_rows)
                _remove_strays(folder)
            except BaseException:
                if made:
                    shutil.rmtree(folder)
                raise
    return folder


def _prepare(folder: Path, overwrite: bool) -> bool:
    """Make the folder; whether it had to be made."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder for the store.")
    if folder.is_dir() and (strangers := _strangers(folder)):
        raise InputError(f"{folder} holds other files, such as {strangers[0]}: name a new or empty folder for the store.")
    _refuse_to_replace(folder, overwrite)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    sync_folder(folder.parent)
    return made


def _refuse_to_replace(folder: Path, overwrite: bool) -> None:
    if (folder / "manifest.json").exists() and not overwrite:
        raise InputError(f"{folder} already holds a store: choose another name, or have it overwritten (--overwrite).")


def _remove_strays(folder: Path) -> None:
    """Files that belong to no store, or to an old one. Of a damaged one, none is removed before it is replaced."""
    kept = {"lock", "manifest.json"}
    if (folder / "manifest.json").exists():
        try:
            kept |= {entry["name"] for entry in _manifest(folder)["files"]}
        except InputError:
            return
    for name in set(os.listdir(folder)) - kept:
        if _OWN.fullmatch(name):
            (folder / name).unlink()


def open_source(source: Any) -> Source:
    """Blocks of rows, and names, from whatever holds counts."""
    if isinstance(source, Source):
        return source
    if isinstance(source, str | Path):
        path = usable(source)
        if is_store(path) or path.suffix == SUFFIX:
            return open_source(read(path))
        if (path / "header.json").exists():
            with Database.open(path, read_only=True, verify=False) as database:
                return Source(_stored_rows(path), database.column_names)
        if text.is_text(path):
            return Source(*text.blocks(path))
        return Source(readers.blocks(path), *readers.names(path))
    if isinstance(source, Corpus):
        return Source(source.matrix.blocks(), source.column_names, source.row_names)
    if isinstance(source, Database):
        return Source(_rows_of(source), source.column_names)
    if isinstance(source, Data):
        _refuse_other_kinds(source.kind)
        data = source
        return Source((data.matrix[rows] for rows in _ranges(data.num_rows)), data.column_names, data.row_names)
    if scipy.sparse.issparse(source) or isinstance(source, np.ndarray):
        return Source(iter([source]))
    if not isinstance(source, Iterable):
        raise InputError(f"A store is written from a path, data or blocks of rows, not from {type(source).__name__}.")
    return Source(iter(source))


def _stored_rows(path: Path) -> Iterator[Any]:
    with Database.open(path, read_only=True) as database:
        yield from _rows_of(database)


def _rows_of(database: Database) -> Iterator[Any]:
    _refuse_other_kinds(database.kind)
    return (database.data(rows).matrix for rows in _ranges(database.num_rows))


def _refuse_other_kinds(kind: str) -> None:
    if kind != "counts":
        raise InputError(f"A store holds counts, not {kind}: use a file.")


def _given(blocks: Iterator[Any]) -> Iterator[Any]:
    """The same blocks; trouble with the disk while they are made is not the store's."""
    try:
        yield from blocks
    except OSError as error:
        raise InputError(f"The rows to be stored cannot be read ({error}): check where they come from.") from error


def _ranges(num_rows: int) -> Iterator[np.ndarray]:
    for first in range(0, num_rows, BLOCK_ROWS):
        yield np.arange(first, min(first + BLOCK_ROWS, num_rows))


def _write(folder: Path, source: Source, column_names: Any, row_names: Any, on_rows: Callable[[int], Any] | None) -> None:
    mark = secrets.token_hex(4)
    titles: list[str] | None = []
    columns = source.column_names if column_names is None else tuple(map(str, column_names))
    num_columns, written = 0, _Written(folder, mark)
    with written:
        for block in _given(source.blocks):
            if isinstance(block, Data):
                _refuse_other_kinds(block.kind)
                columns = block.column_names if columns is None else columns
                if block.column_names not in (None, columns):
                    raise InputError("The blocks of rows have different column names: give all of them over the same columns.")
            if isinstance(block, Data) and block.row_names is not None and titles is not None:
                titles.extend(block.row_names)
            else:
                titles = None
            matrix = count_matrix(block.matrix if isinstance(block, Data) else block)
            num_columns = max(num_columns, matrix.shape[1])
            written.append(matrix)
            if on_rows is not None:
                on_rows(matrix.shape[0])
        if row_names is not None or source.row_names is not None:
            titles = list(source.row_names or ()) if row_names is None else list(map(str, row_names))
        if written.num_entries == 0:
            raise InputError("The corpus is empty: every count is zero.")
        for what, found, size in (("column", columns, num_columns), ("row", titles, written.num_rows)):
            if found is not None and len(found) != size and (what == "row" or len(found) < size):
                raise InputError(f"There are {len(found)} {what} names for {size} {what}s: give one name for each.")
        manifest = written.finish(max(num_columns, len(columns or ())), columns, titles)
        raw = json.dumps(manifest | {"checksum": _digest(manifest)}, indent=1).encode()
        write_whole(folder / "manifest.json", lambda file: file.write_bytes(raw))


class _Written:
    """The files of a store as they grow. Left before the manifest names them, they are removed."""

    def __init__(self, folder: Path, mark: str) -> None:
        self._folder, self._mark, self._files = folder, mark, contextlib.ExitStack()
        self._waiting: list[Any] = []
        self._num_waiting = 0
        self.entries: list[dict[str, Any]] = []
        self.shards: list[tuple[int, str, str]] = []
        self.num_rows = self.num_entries = 0
        self.total = 0.0

    def __enter__(self) -> "_Written":
        self._rows = self._files.enter_context((self._folder / f"{self._mark}.rows").open("wb"))
        self._rows_check = 0
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()
        manifest = self._folder / "manifest.json"
        if not (manifest.exists() and self._mark.encode() in manifest.read_bytes()):  # a failure may follow its replacement
            for file in self._folder.glob(f"{self._mark}*"):
                file.unlink()

    def append(self, matrix: Any) -> None:
        block = Data("counts", matrix=matrix)
        rows = np.zeros(block.num_rows, ROW)
        rows["length"], rows["total"], rows["log_factorials"] = block.lengths, block.totals, block._log_factorials
        self._rows.write(raw := rows.tobytes())
        self._rows_check = zlib.crc32(raw, self._rows_check)
        self.num_rows, self.num_entries, self.total = self.num_rows + block.num_rows, self.num_entries + matrix.nnz, self.total + block.total
        self._waiting.append((matrix.indices, matrix.data))
        self._num_waiting += matrix.nnz
        if self._num_waiting >= SHARD_ENTRIES:
            self._write_shard()

    def _write_shard(self) -> None:
        parts = [np.concatenate(part) for part in zip(*self._waiting, strict=True)]
        self._waiting, self._num_waiting = [], 0
        kinds = []
        for what, values in zip(("columns", "counts"), parts, strict=True):
            kinds.append(np.min_scalar_type(int(values.max(initial=0))).newbyteorder("<"))
            self._write_file(f"{self._mark}-{len(self.shards):05d}.{what}", values.astype(kinds[-1]).data)
        self.shards.append((self.num_rows, kinds[0].str, kinds[1].str))

    def _write_file(self, name: str, raw: Any) -> None:
        with (self._folder / name).open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
            self.entries.append({"name": name, "bytes": file.tell(), "crc32": zlib.crc32(raw)})

    def finish(self, num_columns: int, column_names: Any, row_names: Any) -> dict[str, Any]:
        """The manifest of what was written."""
        if self._waiting:
            self._write_shard()
        self._rows.flush()
        os.fsync(self._rows.fileno())
        self.entries.append({"name": f"{self._mark}.rows", "bytes": self._rows.tell(), "crc32": self._rows_check})
        for axis, found in (("row", row_names), ("column", column_names)):
            if found is not None:
                self._write_file(f"{self._mark}.{axis}_names", readers.encode_names(found))
        sync_folder(self._folder)
        manifest = {"format": FORMAT, "mark": self._mark, "num_rows": self.num_rows, "num_columns": num_columns, "num_entries": self.num_entries}
        manifest |= {"total": self.total, "row_names": row_names is not None, "column_names": column_names is not None}
        return manifest | {"shards": [list(shard) for shard in self.shards], "files": self.entries}
