"""Corpora on disk: counts of any number of rows in an `.h5ad` file, read a batch at a time.

    corpus.write("wiki.h5ad", "docword.wiki.txt.gz")    # from a file, `Data`, or blocks of rows
    wiki = corpus.read("wiki.h5ad")                     # a `Data` like any other
    wiki.select(rows)                                   # these rows, in memory
    wiki.batches(key, 1000, devices)                    # one shuffled pass, batch by batch

The layout is AnnData's: a CSR matrix in the group `X` (`indptr`, `indices`, `data`), row names in
`obs` and column names in `var`. `anndata` is not needed. The arrays are contiguous, so they can
be memory-mapped. Files that AnnData or scanpy wrote (.h5ad or .zarr; chunked or compressed;
sparse or dense) are read block by block into memory, from `layers/counts` if it exists.

A file appears when it is complete. It begins with a block that HDF5 leaves to its users, in which
a checksum of the rest is kept. It is compared before HDF5 opens the file, because HDF5 may not
return from a damaged one.
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
from pp_models.data.files import write_new
from pp_models.data.formats import h5ad, readers
from pp_models.data.formats.opening import existing, fail, reading, usable
from pp_models.data.types import Data, count_matrix, counts, named
from pp_models.errors import InputError

SUFFIX = ".h5ad"
SUFFIXES = (SUFFIX, ".zarr")
BLOCK_ROWS = 1 << 14  # read together when all rows are
BLOCK_ENTRIES = 1 << 20  # written or checked together
RESIDENT_ROWS = 1 << 12  # rows read before their pages are given back to the system
KINDS = {"indices": np.dtype("<i4"), "data": np.dtype("<f4")}
SEAL = b"pp_models corpus, SHA-256 of all that follows these 512 bytes: "
SEALED = 512  # the least that HDF5 allows


# Reading ----------------------------------------------------------------------------------------


class MappedMatrix:
    """A CSR matrix of counts in a file. Only the rows asked for are read."""

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
        """Release pages read long ago; the system may still cache them."""
        self._num_read += num_rows
        if self._num_read >= RESIDENT_ROWS:
            self._num_read = 0
            self._pages.madvise(mmap.MADV_DONTNEED)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """The entries of `indices` or `data`, some at a time."""
        for first in range(0, self.nnz, BLOCK_ENTRIES):
            yield getattr(self, name)[first : first + BLOCK_ENTRIES]
            self._give_back(RESIDENT_ROWS)

    def tocsr(self) -> Any:
        return self[:]

    def sum(self, axis: int | None = None, dtype: Any = None) -> Any:
        sums = [self[rows].sum(axis=axis, dtype=dtype) for rows in _ranges(self.shape[0])]
        return np.concatenate(sums) if axis == 1 else np.sum(sums, axis=0)


def _row_numbers(rows: Any, num_rows: int) -> np.ndarray:
    """Row numbers from numbers, a mask or a slice."""
    plain = isinstance(rows, np.ndarray) and rows.dtype.kind in "iu" and rows.min(initial=0) >= 0
    return rows if plain else np.arange(num_rows)[rows]


def _ranges(num_rows: int) -> Iterator[np.ndarray]:
    for first in range(0, num_rows, BLOCK_ROWS):
        yield np.arange(first, min(first + BLOCK_ROWS, num_rows))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Corpus(Data):
    """Counts in a file. Rows are read when they are selected or packed."""

    path: Path = Path()

    @functools.cached_property
    def _per_row(self) -> np.ndarray:
        """The total and the log factorials of each row, from one pass."""
        parts = (Data("counts", self.matrix[rows]) for rows in _ranges(self.num_rows))
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
        """The same as that of these counts in memory."""
        rows, columns = self.matrix.shape
        digest = hashlib.sha256(f"counts {rows} {columns}".encode())
        digest.update(self.matrix.indptr.astype(np.int64).tobytes())
        for name, kind in (("indices", np.int64), ("data", np.float32)):
            for piece in self.matrix.pieces(name):
                digest.update(memoryview(piece.astype(kind)))
        return digest.hexdigest()

    @property
    def checksum(self) -> str:
        """A checksum of the counts and the names."""
        contents = [self.hash, self.column_names, self.row_names]
        return hashlib.sha256(json.dumps(contents).encode()).hexdigest()

    def select(self, rows: np.ndarray) -> Data:
        """These rows, in memory."""
        rows = _row_numbers(rows, self.num_rows)
        titles = None if self.row_names is None else tuple(self.row_names[i] for i in rows)
        return Data("counts", self.matrix[rows], column_names=self.column_names, row_names=titles)


def read(path: str | Path, verify: bool = True) -> Data:
    """The corpus in a file: memory-mapped if `write` wrote it, else in memory.

    verify: check the checksum, not only the sizes of the arrays.
    """
    path = _there(path)
    is_ours = _is_ours(path, verify)
    with h5ad.opened(path) as (file, stream):
        if not is_ours:
            matrix = scipy.sparse.vstack(list(h5ad.blocks(path, file)), format="csr")
            return counts(matrix, *h5ad.names(file))
        found = _mapped(path, file, stream)
        if verify and not _in_range(found.matrix):
            raise ValueError("a column or a count is out of range")
        return found


def _is_ours(path: Path, verify: bool = False) -> bool:
    """Whether `write` wrote the file. verify: refuse one of ours that was altered."""
    if path.suffix.lower() != SUFFIX:
        return False
    with reading(path, h5ad.WHAT), path.open("rb") as stream:
        seal = stream.read(SEALED).rstrip(b"\0")
        if verify and seal.startswith(SEAL) and seal != _seal(stream):
            raise ValueError("it does not match its checksum")
        return seal.startswith(SEAL)


def _seal(stream: Any) -> bytes:
    """The first block of a file."""
    stream.seek(SEALED)
    return SEAL + hashlib.file_digest(stream, "sha256").hexdigest().encode()


def _there(path: str | Path) -> Path:
    return usable(path) if str(path).lower().endswith(".zarr") else existing(path)


def _mapped(path: Path, file: Any, stream: Any) -> Corpus:
    """A corpus of ours, its arrays mapped."""
    group = file["X"]
    shape = tuple(int(size) for size in group.attrs["shape"])
    places = {name: group[name].id.get_offset() for name in KINDS}
    if None in places.values():
        raise ValueError("its arrays are not contiguous")
    indptr = group["indptr"][:].astype(np.int64)
    starts = len(indptr) == shape[0] + 1 and indptr[0] == 0 and np.all(np.diff(indptr) >= 0)
    if not starts or any(group[name].shape != (indptr[-1],) for name in KINDS):
        raise ValueError("its arrays do not fit together")
    pages = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    pages.madvise(mmap.MADV_RANDOM)
    size = int(indptr[-1])
    arrays = [np.frombuffer(pages, kind, size, places[name]) for name, kind in KINDS.items()]
    matrix = MappedMatrix((shape[0], shape[1]), [indptr, *arrays], pages)
    return Corpus("counts", matrix=matrix, path=path, **named(shape, *h5ad.names(file)))


def _in_range(matrix: MappedMatrix) -> bool:
    """Whether columns and counts are within bounds, on which compiled code relies."""
    columns = (0 <= part.min() <= part.max() < matrix.shape[1] for part in matrix.pieces("indices"))
    values = (0 < part.min() <= part.max() < 2**24 for part in matrix.pieces("data"))
    return all(columns) and all(values)


# Writing ----------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Blocks of rows, in order, and names."""

    blocks: Iterator[Any]
    column_names: tuple[str, ...] | None = None
    row_names: tuple[str, ...] | None = None


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
    overwrite:  replace an existing file once the new one is complete
    on_rows:    called with the number of rows of each block that was written

    >>> blocks = [[[4, 3, 0], [0, 0, 6]], [[1, 1, 1]]]
    >>> found = read(write("doctest.h5ad", blocks, overwrite=True))
    >>> found.num_rows, found.total
    (3, 16.0)
    """
    path = usable(path)
    if path.suffix.lower() != SUFFIX or path.is_dir():
        what = "this is a folder" if path.is_dir() else f"a corpus is a file that ends in {SUFFIX}"
        fail(path, f"{what}: choose another name")
    found = open_source(source)
    if column_names is not None:
        found = found._replace(column_names=tuple(map(str, column_names)))
    if row_names is not None:
        found = found._replace(row_names=tuple(map(str, row_names)))
    return write_new(path, {path: partial(_write, path.parent, found, on_rows)}, overwrite)


def open_source(source: Any) -> Source:
    """Blocks of rows, and names, of anything that holds counts."""
    if isinstance(source, str | Path):
        path = usable(source)
        if path.suffix.lower() in SUFFIXES:
            return _open_file(_there(path))
        if text.is_text(path):
            return Source(*text.blocks(path))
        return Source(readers.blocks(path), *readers.names(path))
    if isinstance(source, Source):
        return source
    if hasattr(source, "num_rows"):  # `Data` or a `Database`
        _refuse_other_kinds(source.kind)
        rows = _ranges(source.num_rows)
        parts = (source.matrix[r] if isinstance(source, Data) else source.data(r) for r in rows)
        return Source(parts, source.column_names, getattr(source, "row_names", None))
    if scipy.sparse.issparse(source) or isinstance(source, np.ndarray):
        return Source(iter([source]))
    if not isinstance(source, Iterable):
        what = f"not from {type(source).__name__}"
        raise InputError(f"A corpus is written from a path, data or blocks of rows, {what}.")
    return Source(iter(source))


def _open_file(path: Path) -> Source:
    """A corpus of ours is verified first; another's file is read as it goes."""
    if _is_ours(path):
        return open_source(read(path))
    with h5ad.opened(path) as (file, _):
        return Source(_stream(path), *h5ad.names(file))


def _stream(path: Path) -> Iterator[Any]:
    with h5ad.opened(path) as (file, _):
        yield from h5ad.blocks(path, file)


def _refuse_other_kinds(kind: str) -> None:
    if kind != "counts":
        raise InputError(f"A corpus holds counts, not {kind}: write another format.")


def _write(folder: Path, source: Source, on_rows: Callable[[int], Any], file: Path) -> None:
    """The arrays' lengths are known at the end: until then they grow in unnamed files."""
    with contextlib.ExitStack() as stack:
        grown = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in KINDS]
        lengths, num_columns, columns, rows = _grow(grown, source, on_rows)
        indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if indptr[-1] == 0:
            raise InputError("The corpus is empty: every count is zero.")
        shape = len(lengths), max(num_columns, len(columns or ()))
        named(shape, columns, rows)  # checks their number
        options = {"userblock_size": SEALED, "alignment_threshold": 1, "alignment_interval": 8}
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
            h5ad.write_names(out, "obs", rows, shape[0])
            h5ad.write_names(out, "var", columns, shape[1])
    with file.open("r+b") as stream:
        seal = _seal(stream)
        stream.seek(0)
        stream.write(seal)


def _grow(grown: list[Any], source: Source, on_rows: Callable[[int], Any]) -> Any:
    """Append the blocks' arrays; returns the rows' lengths, the number of columns, and names."""
    columns, lengths, num_columns = source.column_names, [np.zeros(0, np.int32)], 0
    titles: list[str] | None = []
    for block in source.blocks:
        given = block if isinstance(block, Data) else None
        if given is not None:
            _refuse_other_kinds(given.kind)
            columns = given.column_names if columns is None else columns
            if given.column_names not in (None, columns):
                fix = "give all of them over the same columns"
                raise InputError(f"The blocks of rows have different column names: {fix}.")
        found = None if given is None else given.row_names
        titles = None if found is None or titles is None else [*titles, *found]
        matrix = count_matrix(block if given is None else given.matrix)
        grown[0].write(matrix.indices.astype(np.int32, copy=False))
        grown[1].write(matrix.data)
        lengths.append(np.diff(matrix.indptr).astype(np.int32))
        num_columns = max(num_columns, matrix.shape[1])
        on_rows(matrix.shape[0])
    rows = source.row_names if source.row_names is not None else titles and tuple(titles)
    return np.concatenate(lengths), num_columns, columns, rows or None
