"""Corpora on disk: counts of any number of rows in an `.h5ad` file, read a batch at a time.

    corpus.write("wiki.h5ad", "docword.wiki.txt.gz")    # any counts: a file, `Data`, blocks of rows
    wiki = corpus.read("wiki.h5ad")                     # a `Data` that engines take like any other
    wiki.select(rows)                                   # these rows, in memory
    wiki.batches(key, 1000, devices)                    # one shuffled pass, batch by batch

The layout is AnnData's: a CSR matrix in the group `X` (`indptr`, `indices`, `data`), the names of
the rows in `obs` and those of the columns in `var`. `anndata` is not needed. We write the three
arrays contiguous, so that they are memory-mapped at their offsets in the file. Files that AnnData
or scanpy wrote, chunked or compressed, sparse or dense, are read block by block into memory; the
raw counts are taken from `layers/counts` if it is there, as scanpy's users keep them.

A file is written beside its place and put there when it is complete. Its attribute
`pp_models_checksum` covers counts and names and is checked when it is read.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import scipy.sparse

from pp_models.data import text
from pp_models.data.files import Files, write_new
from pp_models.data.formats import h5ad, readers
from pp_models.data.formats.opening import existing, fail, parsed, usable
from pp_models.data.types import Data, count_matrix, counts
from pp_models.errors import InputError

SUFFIX = ".h5ad"
BLOCK_ROWS = 1 << 14  # read together when everything is
BLOCK_ENTRIES = 1 << 20  # written or checked together
RESIDENT_ROWS = 1 << 12  # rows read before their pages are given back to the system
KINDS = {"indices": np.dtype("<i4"), "data": np.dtype("<f4")}
CHECKSUM = "pp_models_checksum"
_DAMAGED = "not a complete .h5ad file ({}): restore it from a copy, or write it again"


# Reading ----------------------------------------------------------------------------------------


class MappedMatrix:
    """A CSR matrix of counts in a file, of which only the rows asked for are read."""

    def __init__(self, shape: tuple[int, int], arrays: list[np.ndarray], pages: mmap.mmap) -> None:
        self.shape, (self.indptr, self.indices, self.data) = shape, arrays
        self._pages, self._num_read = pages, 0

    @property
    def nnz(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: Any) -> Any:
        """These rows in memory, in the order given."""
        rows = _row_numbers(rows, self.shape[0])
        first, lengths = self.indptr[rows], self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        where: Any = slice(first[0], first[0] + indptr[-1]) if len(rows) else slice(0)
        if np.any(np.diff(rows) != 1):
            where = np.repeat(first - indptr[:-1], lengths)
            where += np.arange(len(where))
        parts = np.array(self.data[where]), np.array(self.indices[where])
        self._give_back(len(rows))
        if indptr[-1] < 2**31:  # or SciPy would widen the columns
            indptr = indptr.astype(np.int32)
        return scipy.sparse.csr_array((*parts, indptr), shape=(len(rows), self.shape[1]))

    def _give_back(self, num_rows: int) -> None:
        """Let go of pages read long ago. They stay in the system's cache, where there is room."""
        self._num_read += num_rows
        if self._num_read >= RESIDENT_ROWS:
            self._num_read = 0
            self._pages.madvise(mmap.MADV_DONTNEED)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """The entries of `indices` or `data`, some at a time."""
        for first in range(0, self.nnz, BLOCK_ENTRIES):
            yield getattr(self, name)[first : first + BLOCK_ENTRIES]
            self._give_back(RESIDENT_ROWS)

    def blocks(self) -> Iterator[Any]:
        """All rows in order, some at a time."""
        return (self[rows] for rows in _ranges(self.shape[0]))

    def tocsr(self) -> Any:
        """All rows, in memory."""
        return self[:]

    def sum(self, axis: int | None = None, dtype: Any = None) -> Any:
        """As of any matrix, a block at a time."""
        sums = [block.sum(axis=axis, dtype=dtype) for block in self.blocks()]
        return np.concatenate(sums) if axis == 1 else np.sum(sums, axis=0)


def _row_numbers(rows: Any, num_rows: int) -> np.ndarray:
    """Row numbers from numbers, a mask or a slice."""
    plain = isinstance(rows, np.ndarray) and rows.dtype.kind in "iu" and rows.min(initial=0) >= 0
    return rows if plain else np.arange(num_rows)[rows]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Corpus(Data):
    """Counts in a file. What is selected or packed is read; the rest stays on disk."""

    path: Path = Path()

    @functools.cached_property
    def _per_row(self) -> np.ndarray:
        """The total and the log factorials of each row, from one pass."""
        parts = (Data("counts", matrix=block) for block in self.matrix.blocks())
        return np.concatenate([[part.totals, part._log_factorials] for part in parts], axis=1)

    @functools.cached_property
    def totals(self) -> np.ndarray:
        return self._per_row[0]

    @functools.cached_property
    def total(self) -> float:
        return float(self.totals.sum())

    @functools.cached_property
    def _log_factorials(self) -> np.ndarray:
        return self._per_row[1]

    @functools.cached_property
    def hash(self) -> str:
        """That of the same counts in memory."""
        digest = _begin_hash(self.matrix.shape, self.matrix.indptr)
        for name, kind in (("indices", np.int64), ("data", np.float32)):
            for piece in self.matrix.pieces(name):
                digest.update(memoryview(piece.astype(kind)))
        return digest.hexdigest()

    @property
    def checksum(self) -> str:
        """Of the counts and the names."""
        return _checksum(self.hash, self.column_names, self.row_names)

    def select(self, rows: np.ndarray) -> Data:
        """These rows, in memory."""
        rows = _row_numbers(rows, self.num_rows)
        titles = None if self.row_names is None else tuple(self.row_names[i] for i in rows)
        return Data("counts", self.matrix[rows], column_names=self.column_names, row_names=titles)


def _begin_hash(shape: tuple[int, int], indptr: np.ndarray) -> Any:
    digest = hashlib.sha256(f"counts {shape[0]} {shape[1]}".encode())
    digest.update(indptr.astype(np.int64).tobytes())
    return digest


def _checksum(counted: str, columns: Any, rows: Any) -> str:
    return hashlib.sha256(json.dumps([counted, columns, rows]).encode()).hexdigest()


def read(path: str | Path, verify: bool = True) -> Data:
    """The corpus in a file: mapped, if it is ours, else in memory.

    verify: check its checksum, not only that everything is there.
    """
    path = existing(path)
    with parsed(path, _DAMAGED):
        with _opened(path) as (stream, file):
            found = _mapped(path, stream, file)
            if found is None:
                matrix = scipy.sparse.vstack(list(h5ad.blocks(path, file)), format="csr")
                return counts(matrix, *h5ad.names(file))
            said = file.attrs[CHECKSUM]
        if verify and (found.checksum != said or not _in_range(found.matrix)):
            raise ValueError("it does not match its checksum")
        return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    with path.open("rb") as stream, h5py.File(stream, "r") as file:
        yield stream, file


def _mapped(path: Path, stream: Any, file: Any) -> Corpus | None:
    """A corpus of ours, its arrays mapped; None of any other file."""
    if CHECKSUM not in file.attrs:
        return None
    group = file["X"]
    shape = tuple(int(size) for size in group.attrs["shape"])
    places = {name: group[name].id.get_offset() for name in KINDS}
    if None in places.values():
        return None  # written again by somebody who kept the attribute
    indptr = group["indptr"][:].astype(np.int64)
    starts = len(indptr) == shape[0] + 1 and indptr[0] == 0 and np.all(np.diff(indptr) >= 0)
    if not starts or any(group[name].shape != (indptr[-1],) for name in KINDS):
        raise ValueError("its arrays do not fit together")
    pages = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    pages.madvise(mmap.MADV_RANDOM)
    size = int(indptr[-1])
    arrays = [np.frombuffer(pages, kind, size, places[name]) for name, kind in KINDS.items()]
    matrix = MappedMatrix((shape[0], shape[1]), [indptr, *arrays], pages)
    columns, rows = h5ad.names(file)
    for found, size in ((columns, shape[1]), (rows, shape[0])):
        if found is not None and len(found) != size:
            raise ValueError(f"it has {len(found)} names for {size}")
    return Corpus("counts", matrix=matrix, column_names=columns, row_names=rows, path=path)


def _in_range(matrix: MappedMatrix) -> bool:
    """Whether entries are counts in columns that there are: compiled code trusts them."""
    columns = (0 <= part.min() <= part.max() < matrix.shape[1] for part in matrix.pieces("indices"))
    values = (0 < part.min() <= part.max() < 2**24 for part in matrix.pieces("data"))
    return all(columns) and all(values)


class Source(NamedTuple):
    """Where rows come from: blocks of them, in order, and names."""

    blocks: Iterator[Any]
    column_names: tuple[str, ...] | None = None
    row_names: tuple[str, ...] | None = None


# Writing ----------------------------------------------------------------------------------------


def write(
    path: str | Path,
    source: Any,
    column_names: Iterable[str] | None = None,
    row_names: Iterable[str] | None = None,
    overwrite: bool = False,
    on_rows: Callable[[int], Any] = lambda number: None,
) -> Path:
    """Write a corpus in one pass over its source, in little memory.

    source:     the path of a file of counts, a `Data`, a `Database`, or blocks of rows in order
    overwrite:  replace the file that is there, once the new one is complete
    on_rows:    called with the number of rows of each block that was written

    >>> blocks = [[[4, 3, 0], [0, 0, 6]], [[1, 1, 1]]]
    >>> found = read(write("doctest.h5ad", blocks, overwrite=True))
    >>> found.num_rows, found.total
    (3, 16.0)
    """
    path = usable(path)
    if path.suffix.lower() != SUFFIX:
        fail(path, f"a corpus is a file whose name ends in {SUFFIX}: name it so")
    if path.is_dir():
        fail(path, "this is a folder: name a file")
    found = open_source(source)
    if column_names is not None:
        found = found._replace(column_names=tuple(map(str, column_names)))
    if row_names is not None:
        found = found._replace(row_names=tuple(map(str, row_names)))
    files: Files = {path: partial(_write, path.parent, found, on_rows)}
    return write_new(path, files, overwrite, lambda: None)


def open_source(source: Any) -> Source:
    """Blocks of rows, and names, from whatever holds counts."""
    if isinstance(source, Source):
        return source
    if isinstance(source, str | Path):
        path = usable(source)
        if path.suffix.lower() == SUFFIX:
            return _open_file(existing(path))
        if text.is_text(path):
            return Source(*text.blocks(path))
        return Source(readers.blocks(path), *readers.names(path))
    if isinstance(source, Corpus):
        return Source(source.matrix.blocks(), source.column_names, source.row_names)
    if isinstance(source, Data):
        _refuse_other_kinds(source.kind)
        blocks = (source.matrix[rows] for rows in _ranges(source.num_rows))
        return Source(blocks, source.column_names, source.row_names)
    if hasattr(source, "num_rows") and hasattr(source, "data"):  # a `Database`
        _refuse_other_kinds(source.kind)
        blocks = (source.data(rows).matrix for rows in _ranges(source.num_rows))
        return Source(blocks, source.column_names)
    if scipy.sparse.issparse(source) or isinstance(source, np.ndarray):
        return Source(iter([source]))
    if not isinstance(source, Iterable):
        what = f"not from {type(source).__name__}"
        raise InputError(f"A corpus is written from a path, data or blocks of rows, {what}.")
    return Source(iter(source))


def _ranges(num_rows: int) -> Iterator[np.ndarray]:
    for first in range(0, num_rows, BLOCK_ROWS):
        yield np.arange(first, min(first + BLOCK_ROWS, num_rows))


def _open_file(path: Path) -> Source:
    """Ours is checked before anything of it is written elsewhere; another's is read as it goes."""
    with parsed(path, _DAMAGED), _opened(path) as (_, file):
        if CHECKSUM not in file.attrs:
            return Source(_stream(path), *h5ad.names(file))
    return open_source(read(path))


def _stream(path: Path) -> Iterator[Any]:
    with parsed(path, _DAMAGED), _opened(path) as (_, file):
        yield from h5ad.blocks(path, file)


def _refuse_other_kinds(kind: str) -> None:
    if kind != "counts":
        raise InputError(f"A corpus holds counts, not {kind}: write another format.")


def _write(folder: Path, source: Source, on_rows: Callable[[int], Any], file: Path) -> None:
    """How long the arrays are is known at the end: until then they grow in unnamed files."""
    with contextlib.ExitStack() as stack:
        grown = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in KINDS]
        lengths, num_columns, columns, rows = _grow(grown, source, on_rows)
        indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if indptr[-1] == 0:
            raise InputError("The corpus is empty: every count is zero.")
        shape = len(lengths), max(num_columns, len(columns or ()))
        for what, found, size in (("column", columns, shape[1]), ("row", rows, shape[0])):
            if found is not None and len(found) != size:
                counted = f"There are {len(found)} {what} names for {size} {what}s"
                raise InputError(f"{counted}: give one name for each.")
        digest = _begin_hash(shape, indptr)
        # Version 1.10 of the format has checksums of all that is not an array.
        options = {"libver": ("v110", "v110"), "alignment_threshold": 1, "alignment_interval": 8}
        with h5py.File(file, "w", **options) as out:
            h5ad.encode(out, "anndata", "0.1.0")
            h5ad.encode(X := out.create_group("X"), "csr_matrix", "0.1.0", shape=np.array(shape))
            X["indptr"] = indptr
            for (name, kind), raw in zip(KINDS.items(), grown, strict=True):
                array = X.create_dataset(name, (indptr[-1],), kind)
                raw.seek(0)
                for first in range(0, len(array), BLOCK_ENTRIES):
                    piece = np.fromfile(raw, kind, BLOCK_ENTRIES)
                    array[first : first + len(piece)] = piece
                    digest.update(piece.astype(np.int64) if name == "indices" else piece)
            h5ad.write_names(out, "obs", rows, shape[0])
            h5ad.write_names(out, "var", columns, shape[1])
            out.attrs[CHECKSUM] = _checksum(digest.hexdigest(), columns, rows)


def _grow(grown: list[Any], source: Source, on_rows: Callable[[int], Any]) -> Any:
    """Append the blocks' arrays; the rows' lengths, the number of columns, and the names."""
    columns, lengths, num_columns = source.column_names, [np.zeros(0, np.int32)], 0
    titles: list[str] | None = []
    for block in _given(source.blocks):
        if isinstance(block, Data):
            _refuse_other_kinds(block.kind)
            columns = block.column_names if columns is None else columns
            if block.column_names not in (None, columns):
                fix = "give all of them over the same columns"
                raise InputError(f"The blocks of rows have different column names: {fix}.")
        found = block.row_names if isinstance(block, Data) else None
        titles = None if found is None or titles is None else [*titles, *found]
        matrix = count_matrix(block.matrix if isinstance(block, Data) else block)
        grown[0].write(matrix.indices.astype(np.int32))
        grown[1].write(matrix.data)
        lengths.append(np.diff(matrix.indptr).astype(np.int32))
        num_columns = max(num_columns, matrix.shape[1])
        on_rows(matrix.shape[0])
    rows = source.row_names if source.row_names is not None else titles and tuple(titles)
    return np.concatenate(lengths), num_columns, columns, rows or None


def _given(blocks: Iterator[Any]) -> Iterator[Any]:
    """The same blocks; trouble with the disk while they are made is not the corpus's."""
    try:
        yield from blocks
    except OSError as error:
        what = f"The rows to be stored cannot be read ({error})"
        raise InputError(f"{what}: check where they come from.") from error
