"""Data from files: the file's name tells the format; for .txt, its first lines do.

    counts    .npz                      scipy.sparse.save_npz: csr, csc or coo
              .npy                      a two-dimensional array
              .mtx                      Matrix Market, coordinate or array
              .ldac .lda-c .dat .txt    LDA-C: a document a line, `M term:count ...`, terms from 0
              docword*.txt              UCI: lines D, W and NNZ, then `document word count`, from 1
              .csv .tsv                 `row,column,value` from 0, or with names for numbers
              .parquet .arrow .feather  lists of columns and counts, or row, column and value
    ratings   .csv .tsv .parquet ...    `user,item,rating`; ids of csv and tsv of any type
              .npz                      stored entries are observed, zeros too
              .npy                      users x items, nan where there is no rating
    dense     .npy .csv .tsv            one row a line
    votes     <stem>.votes.csv          `bill,member,vote` from 0, 1 or 0: beside counts, or alone

Text may be gzipped and begin with a header line. `<stem>.vocab`, UCI's `vocab.<name>.txt` or
`vocab.txt` beside the file names the columns, `<stem>.rows` the rows. A csv file is as large as
its largest indices or the names beside it, an LDA-C file as wide. Repeated entries are added.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from pp_models.data.formats import matrices, numbers, tables
from pp_models.data.formats.matrices import ARROW
from pp_models.data.formats.names import Names, fitted_shape, names, read_names, stem
from pp_models.data.formats.numbers import Part, Shape, Whole
from pp_models.data.formats.opening import LARGEST_INDEX, check_shape, existing, fail, reading
from pp_models.data.ids import number_ids
from pp_models.data.types import Data, count_matrix, counts, dense, observed, ratings, with_votes
from pp_models.errors import InputError

ROWS_TOGETHER = 1 << 14
VOTES_SUFFIX = ".votes.csv"
_LDAC = (".ldac", ".lda-c", ".dat")
KNOWN_SUFFIXES = (".npz", ".npy", ".mtx", *_LDAC, ".txt", ".csv", ".tsv", *ARROW)
__all__ = ["blocks", "names", "read", "read_dense", "read_names", "read_ratings"]

_MATRICES: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".npz": lambda path: iter([matrices.npz(path).tocsr()]),
    ".npy": matrices.npy_blocks,
    ".mtx": lambda path: iter([matrices.market(path)]),
}
_TRIPLES: dict[str, Callable[[Path], Iterator[Part]]] = {
    **dict.fromkeys((".csv", ".tsv"), lambda path: _numbers_of(path)),
    **dict.fromkeys(_LDAC, numbers.ldac),
    **dict.fromkeys(ARROW, matrices.arrow),
    ".txt": numbers.text,
    "uci": numbers.uci,
}


def format_of(path: Path) -> str:
    """The format of counts that a file's name tells: "uci" or the suffix."""
    name = path.name.lower().removesuffix(".gz")
    suffix, zipped = Path(name).suffix, name != path.name.lower()
    if is_votes(path):
        what = f"a name that ends in {VOTES_SUFFIX} is that of votes (kind text_and_votes)"
        raise InputError(f"{path}: {what}: choose that kind, or rename it.")
    if name.startswith("docword") and (suffix == ".txt" or suffix not in KNOWN_SUFFIXES):
        return "uci"
    if suffix not in KNOWN_SUFFIXES or (zipped and suffix in (".npz", ".npy", *ARROW)):
        known = f"{', '.join(KNOWN_SUFFIXES)} (text also with .gz), .h5ad or .zarr"
        fail(path, f"the name ends in none of the known {known}: rename or convert the file")
    return suffix


# Counts -----------------------------------------------------------------------------------------


def read(path: str | Path) -> Data:
    """The counts in a file, with the names beside it."""
    path = existing(path)
    with reading(path):
        if format_of(path) in tables.TEXTS and (found := _counts_by_id(path)) is not None:
            return found
        beside = names(path)
        parts = list(_rows(path, beside, whole=True))
        width = max(len(beside.columns or ()), *(part.shape[1] for part in parts))
        for part in parts:
            part.resize(part.shape[0], width)
        return counts(scipy.sparse.vstack(parts, format="csr"), *beside)


def blocks(path: str | Path) -> Iterator[Any]:
    """The rows in order, some at a time, as CSR matrices of counts.

    A matrix may have fewer columns than the file: the widest one, or the vocabulary, tells. Text
    is read as it goes and must be sorted by row; .npz and .mtx files are held in memory.
    """
    path = existing(path)
    with reading(path):
        yield from (count_matrix(block) for block in _rows(path, names(path), whole=False))


def _numbers_of(path: Path) -> Iterator[Part]:
    tables.refuse_text(path)
    yield from numbers.csv(path)


def _counts_by_id(path: Path) -> Data | None:
    """Counts whose rows and columns have names in place of numbers: `speech,word,count`."""
    try:
        top = tables.head(path)
        places = tables.entry_places(top)
    except InputError:
        return None  # the reader of numbers says what is wrong
    if places is None:
        return None
    entries = tables.entries(path, places, top, "row,column,count")
    rows, columns = number_ids(entries.rows, "row"), number_ids(entries.columns, "column")
    matrix = scipy.sparse.coo_array((entries.values, (rows.indices, columns.indices)))
    return counts(matrix, columns.names, rows.names)


def _rows(path: Path, beside: Names, whole: bool) -> Iterator[Any]:
    """Blocks of rows, those that only the names tell of included."""
    size, form = (0, 0), format_of(path)
    stated: Shape = (None, None)
    for matrix, said in _sorted(path, form, whole) if form in _TRIPLES else _cut(path, form):
        size, stated = (size[0] + matrix.shape[0], max(size[1], matrix.shape[1])), said
        if matrix.shape[0] or whole:
            yield matrix
    shape = fitted_shape(path, size, size if form in _MATRICES else stated, beside)
    for first in range(size[0], shape[0], ROWS_TOGETHER):
        number = min(ROWS_TOGETHER, shape[0] - first)
        yield scipy.sparse.csr_array((number, max(size[1], 1)), dtype=np.int64)


def _cut(path: Path, form: str) -> Iterator[tuple[Any, Any]]:
    for matrix in _MATRICES[form](path):
        for start in range(0, max(matrix.shape[0], 1), ROWS_TOGETHER):
            yield matrix[start : start + ROWS_TOGETHER], None


def _sorted(path: Path, form: str, whole: bool) -> Iterator[tuple[Any, Shape]]:
    """Matrices of whole rows from triples, and the shape that the file states.

    whole: all rows in one matrix; the triples may come in any order.
    """
    parts, rest, first, num_entries = _TRIPLES[form](path), Part(), 0, 0
    if whole:
        found = list(parts)
        parts = iter([Part(np.concatenate([part.triples for part in found]), found[-1].shape)])
    for part in itertools.chain(parts, [None]):  # None: the file ends
        if part is not None:
            rest = Part(np.concatenate([rest.triples, part.triples]), part.shape)
            num_entries += len(part.triples)
        rows, shape = rest.triples[:, 0], rest.shape
        for i in () if whole else np.flatnonzero(np.diff(rows) < 0)[:1]:
            what = f"row {rows[i + 1]} follows row {rows[i]}: sort the lines by row (sort -n), or"
            fail(path, f"{what} convert the file to .npz first")
        newest = int(rows.max()) if len(rows) else first - 1
        end = newest + 1 if shape[0] is None else shape[0]
        last = end if part is None else max(newest, first)  # the newest row may go on
        width = max(int(rest.triples[:, 1].max(initial=0)) + 1, shape[1] or 0)
        check_shape(path, (end, width), num_entries)
        if whole and part is not None:
            continue
        cut = len(rows) if part is None else int(np.searchsorted(rows, last))
        i, j, values = (rest.triples[:cut] - [first, 0, 0]).T
        yield scipy.sparse.coo_array((values, (i, j)), (last - first, width)).tocsr(), shape
        first, rest = last, Part(rest.triples[cut:], shape)


# Votes ------------------------------------------------------------------------------------------


def is_votes(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(VOTES_SUFFIX)


def read_text_and_votes(path: str | Path) -> Data:
    """Bills x words counts with the votes beside them in `<stem>.votes.csv`, or votes alone."""
    path = existing(path)
    alone = is_votes(path)
    text, file = (None, path) if alone else (read(path), path.with_name(stem(path) + VOTES_SUFFIX))
    if not file.is_file():
        where = f"write them beside it as {file.name}, lines of `bill,member,vote`, votes 1 or 0"
        fail(path, f"the votes are missing: {where}")
    with reading(file):
        votes = _read_votes(file, None if text is None else text.num_rows)
        return with_votes(text, votes, names(path, own=True).rows if alone else None)


def _read_votes(path: Path, num_bills: int | None) -> Any:
    most = LARGEST_INDEX if num_bills is None else num_bills - 1
    whole = Whole("bill", 0, most), Whole("member", 0, LARGEST_INDEX), Whole("vote", 0, 1)
    triples = np.concatenate([part.triples for part in numbers.csv(path, whole)])
    unique, place = np.unique(triples[:, :2], axis=0, return_index=True)
    for again in np.setdiff1d(np.arange(len(triples)), place)[:1]:
        bill, member, _ = triples[again]
        fail(path, f"member {member} has voted on bill {bill} more than once: keep one vote")
    size = triples[:, :2].max(axis=0) + 1
    shape = int(size[0]) if num_bills is None else num_bills, int(size[1])
    check_shape(path, shape, len(triples))
    return observed(unique[:, 0], unique[:, 1], triples[place, 2].astype(np.float32), shape)


# Ratings and dense rows -------------------------------------------------------------------------


def read_ratings(path: Path, complete: bool = True) -> Data:
    """Ratings of users x items; entries that are not listed are missing.

    Columns of a text are found by names such as user, item and rating, else by position. Ids of any
    type become names; whole numbers stay if they are 0 to n - 1, or have names beside the file.

    complete: make names of whole numbers that leave gaps, too
    """
    with reading(existing(path)):
        suffix = _suffix(path, (".csv", ".tsv", ".npz", ".npy", *ARROW))
        beside = names(path, own=True)
        ignored: tuple[str, ...] = ()
        if suffix == ".npz":
            matrix = matrices.npz(path)
            triples = matrix.row, matrix.col, matrix.data
            found = ratings(*triples, matrix.shape, beside.rows, beside.columns)
        elif suffix == ".npy":
            array = np.asarray(matrices.npy(path), np.float64)
            users, items = np.nonzero(~np.isnan(array))
            triples = users, items, array[users, items]
            found = ratings(*triples, array.shape, beside.rows, beside.columns)
        elif suffix in ARROW:
            parts = (part for part, _ in matrices.arrow_tables(path))
            table = np.concatenate([np.zeros((0, 3)), *parts])
            found = _numbered_ratings(path, table, beside, complete)
        else:
            entries, ignored = _ratings_of_text(path)
            if isinstance(entries, tables.Entries):
                found = _rated(*entries)
            else:
                found = _numbered_ratings(path, entries, beside, complete)
    if ignored:
        what = ", ".join(map(repr, ignored))
        told = f"{path}: ratings are user, item and rating; the column(s) {what} are ignored"
        warnings.warn(f"{told}.", stacklevel=2)
    return found


def _numbered_ratings(path: Path, table: Any, beside: Names, complete: bool) -> Data:
    """Ratings of users and items that are whole numbers."""
    lines = np.arange(1, len(table) + 1)
    users, items = numbers.check_whole(path, table[:, :2], lines, numbers.INDEX).T
    if complete and beside == (None, None):
        return _rated(users, items, table[:, 2])
    shape = int(users.max(initial=0)) + 1, int(items.max(initial=0)) + 1
    check_shape(path, shape, len(table))
    for what, index in (("user", users), ("item", items)) if complete else ():
        for silent in np.flatnonzero(np.bincount(index) == 0)[:1]:
            fix = f"number {what}s consecutively from 0, as the names beside the file are"
            fail(path, f"{what} {silent} has no ratings: {fix}")
    return ratings(users, items, table[:, 2], shape, beside.rows, beside.columns)


def _rated(users: Any, items: Any, values: Any) -> Data:
    """Ratings by ids."""
    rows, columns = number_ids(users, "user"), number_ids(items, "item")
    return ratings(rows.indices, columns.indices, values, None, rows.names, columns.names)


def _ratings_of_text(path: Path) -> tuple[Any, tuple[str, ...]]:
    """An array of user, item and rating, or `Entries` if ids are no numbers; ignored columns."""
    form, top = "user,item,rating", tables.head(path)
    places = tables.places_of(top.names or (), tables.USERS, tables.ITEMS, tables.VALUES)
    places = (0, 1, 2) if places is None else places
    if max(places) >= len(top.first):
        return _table(path, form, usecols=places), ()
    ignored = tuple(name for i, name in enumerate(top.names or ()) if i not in places)
    ids = [top.first[place].strip() for place in places[:2]]
    if not all(map(tables.is_number, ids)) or any(id[0] == "0" < id[1:2] for id in ids):
        return tables.entries(path, places, top, form), ignored
    try:
        return _table(path, form, usecols=places), ignored
    except InputError as error:
        if top.names is None:
            raise
        try:  # ids that begin as numbers, such as ISBNs
            return tables.entries(path, places, top, form), ignored
        except InputError:
            raise error from None


def read_dense(path: Path) -> Data:
    """Rows of real observations."""
    with reading(existing(path)):
        array = _suffix(path, (".npy", ".csv", ".tsv")) == ".npy"
        values = matrices.npy(path) if array else _table(path, "number,number,...")
        return dense(values, *names(path, own=True))


def _suffix(path: Path, known: tuple[str, ...]) -> str:
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    if suffix not in known:
        fail(path, f"the file's name must end in {', '.join(known)}: rename or convert it")
    if name.endswith(".gz") and suffix not in (".csv", ".tsv"):
        fail(path, "only text may be gzipped: unpack the file")
    return suffix


def _table(path: Path, form: str, **options: Any) -> np.ndarray:
    """The numbers of a csv or tsv file."""
    source, delimiter = numbers.delimited(path)
    found = numbers.tables(path, source, form, delimiter=delimiter, **options)
    parts = [table for table, _ in found]
    if not parts:
        fail(path, "there are no entries in it")
    if len({part.shape[1] for part in parts}) > 1:
        fail(path, "its lines hold different numbers of columns: complete them")
    return np.concatenate(parts)
