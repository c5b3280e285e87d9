"""Laws of `pp_models.database`: rows come back bit for bit, whatever was killed or refused.

Random sequences of calls: `test_state_machines`. Every kind of damage: `test_hostile_files`.
"""

import os
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from pp_models import data as data_
from pp_models.data import conversion, packaged, sqlite
from pp_models.data.database import ENTRY, Database
from pp_models.errors import InputError

COUNTS = np.array([[2, 0, 1, 0], [0, 0, 0, 0], [0, 12, 0, 3], [1, 0, 0, 130], [5, 5, 5, 5]])
NAN = float("nan")


def check(database, wanted):
    """Contents are those of the array, bit for bit and as `data.counts` makes them."""
    found, made = database.data(), data_.counts(wanted)
    assert found.hash == made.hash and found.matrix.has_canonical_format
    for name in ("data", "indices", "indptr"):
        assert getattr(found.matrix, name).dtype == getattr(made.matrix, name).dtype
    assert (database.num_rows, database.total) == (made.num_rows, made.total)
    np.testing.assert_array_equal(database.lengths, made.lengths)
    np.testing.assert_array_equal(database.sizes, np.unique(made.lengths, return_counts=True))


def contents(path, **options):
    with Database.open(path, **options) as database:
        return database.data().matrix.toarray()


@pytest.fixture(params=["memory", "disk"])
def empty(request, tmp_path):
    with Database(4, path=None if request.param == "memory" else tmp_path / "db") as database:
        yield database


# Contents -----------------------------------------------------------------------------------------


def test_rows_come_back(empty):
    """Rows appended in parts are the whole; a batch has the rows asked for, in order."""
    assert empty.append(COUNTS[:3]).tolist() == [0, 1, 2]
    assert empty.append(data_.counts(scipy.sparse.csc_array(COUNTS[3:]))).tolist() == [3, 4]
    check(empty, COUNTS)
    for rows in ([4, 0, 0, 1], [1], [1, 2, 3], 2, []):
        wanted = COUNTS[np.atleast_1d(np.array(rows, int))]
        np.testing.assert_array_equal(empty.data(rows).matrix.toarray(), wanted)


def test_words_are_added(empty):
    """Rows may be made empty; counts are added to old rows and new, also if one is named twice."""
    assert empty.add([], [], new_rows=2).tolist() == [0, 1]
    assert empty.add([2, 1, 2, 2], [3, 0, 3, 1], [1, 4, 1, 0], new_rows=2).tolist() == [2, 3]
    wanted = np.array([[0, 0, 0, 0], [4, 0, 0, 0], [0, 0, 0, 2], [0, 0, 0, 0]])
    check(empty, wanted)
    assert len(empty.add(1, 2)) == 0
    empty.extend([3, 1, 3], COUNTS[[0, 2, 3]])
    np.add.at(wanted, (1, 2), 1)
    np.add.at(wanted, [3, 1, 3], COUNTS[[0, 2, 3]])
    check(empty, wanted)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), rate=st.sampled_from([0.2, 1.0, 6.0]), ticks=st.integers(1, 40))
def test_word_by_word_is_the_same_as_whole(seed, rate, ticks):
    """A corpus fed one word at a time, in any order and any ticks, ends as the corpus fed whole."""
    rng = np.random.default_rng(seed)
    X = rng.poisson(rate, rng.integers(1, 9, 2))
    X[0, 0] += 1
    row, column = (np.repeat(index, X[np.nonzero(X)]) for index in np.nonzero(X))
    database = Database(X.shape[1])
    database.add([], [], new_rows=len(X))
    for tick in np.array_split(rng.permutation(len(row)), ticks):
        database.add(row[tick], column[tick])
    check(database, X)


def test_dense_rows(tmp_path):
    """Dense rows come back in any order, in memory and on disk, and take no words."""
    Y = np.random.default_rng(0).normal(size=(7, 3))
    for path in (None, tmp_path / "db"):
        with Database(3, "dense", path) as database:
            assert database.data().values.shape == (0, 3)
            database.append(Y[:4])
            assert database.append(data_.dense(Y[4:])).tolist() == [4, 5, 6]
            assert database.data().hash == data_.dense(Y).hash
            np.testing.assert_array_equal(database.data([6, 0]).values, np.float32(Y[[6, 0]]))
            assert (database.num_rows, database.lengths.sum()) == (7, 21)
            np.testing.assert_allclose(database.total, Y.sum(), rtol=1e-6)
            for call in (lambda d=database: d.add([0], [0]), lambda d=database: d.extend([0], Y)):
                with pytest.raises(InputError, match="append whole rows"):
                    call()
    assert packaged.read(tmp_path / "db", "dense").hash == data_.dense(Y).hash


def test_large_counts_are_added_exactly():
    """Row totals beyond single precision are fine as long as no single count is."""
    database = Database(2)
    database.add([0, 0], [0, 1], 2**24 - 2, new_rows=1)
    database.add([0], [1])
    check(database, [[2**24 - 2, 2**24 - 1]])
    with pytest.raises(InputError, match="row 0 would become 16777216"):
        database.add([0], [1])


# Refusals -----------------------------------------------------------------------------------------

BAD = [  # method, arguments, part of the message
    ("append", ([[1, 2, 3]],), "3 columns but the database has 4"),
    ("append", ([[1, 2, 3, -4]],), "negative"),
    ("append", ([[1, 2, 3, 2**24]],), "single precision"),
    ("append", (data_.dense(COUNTS),), "dense but the database holds counts"),
    ("append", (data_.counts(COUNTS, [*"abdc"]),), "other column names"),
    ("extend", ([5], COUNTS[:1]), "the database has 5 rows, but one is 5"),
    ("extend", ([0, 1], COUNTS[:1]), "2 row ids for 1 rows"),
    ("add", ([0], [4]), "the database has 4 columns, but one is 4"),
    ("add", ([-1], [0]), "one is -1"),
    ("add", ([6], [0], 1, 1), "the database has 6 rows, but one is 6"),
    ("add", ([0, 1], [0]), "2 row ids for 1 columns"),
    ("add", ([0], [0], -1), "negative"),
    ("add", ([0], [0], 0.5), "whole numbers"),
    ("add", ([0], [0], NAN), "NaN"),
    ("add", ([0], [0], [1, 2]), "shape (2,) for 1 words"),
    ("add", ([0], [0], "many"), "real numbers"),
    ("add", ([0], [0], 2**24), "single precision"),
    ("add", ([4, 5], [1, 1], 2**24 - 1, 1), "row 4 would become"),
    ("add", ([[0]], [[0]]), "one-dimensional"),
    ("add", ([True], [0]), "integers"),
    ("add", ([[0, 1], [2]], [0]), "equal length"),
    ("add", ([], [], 1, -1), "new_rows"),
    ("data", ([5],), "the database has 5 rows, but one is 5"),
    ("data", ([0.5],), "integers"),
]


def test_bad_input_leaves_the_database_as_it_was():
    """Input that cannot be stored is refused in one sentence, and nothing of it is stored."""
    database = Database(4, column_names=[*"abcd"])
    database.append(COUNTS)
    for method, arguments, part in BAD:
        with pytest.raises(InputError) as caught:
            getattr(database, method)(*arguments)
        message = str(caught.value)
        assert part in message and message.endswith(".") and "\n" not in message
        check(database, COUNTS)


MADE = {"num_columns": 4, "column_names": [*"abcd"], "tags": {"model": "lda", "sizes": (1, 2)}}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"num_columns": 5, "column_names": None}, "num_columns 4, not 5"),
        ({"kind": "dense"}, "kind 'counts', not 'dense'"),
        ({"tags": {"model": "nmf"}}, "not {'model': 'nmf'}"),
        ({"tags": {}}, "not {}"),
        ({"column_names": [*"abdc"]}, "other column names"),
    ],
)
def test_another_database_is_refused(change, part, tmp_path):
    """A folder is opened only as what it was made as; what is not asked for is taken from it."""
    Database(**MADE, path=tmp_path / "db").close()
    with pytest.raises(InputError) as caught:
        Database(**(MADE | change), path=tmp_path / "db")
    assert part in str(caught.value) and str(tmp_path) in str(caught.value)
    with Database(4, path=tmp_path / "db") as database:  # the refusal let go of the lock
        assert database.tags == {"model": "lda", "sizes": [1, 2]}
        assert database.column_names == database.data().column_names == tuple("abcd")


def test_bad_options():
    for options, part in (
        ({"num_columns": 0}, "num_columns"),
        ({"num_columns": 2.0}, "num_columns"),
        ({"num_columns": 2**31}, "num_columns"),
        ({"kind": "count"}, "Did you mean 'counts'"),
        ({"column_names": ["a"]}, "names"),
        ({"tags": ["lda"]}, "dictionary"),
        ({"tags": {"x": np.ones(2)}}, "JSON"),
        ({"read_only": True}, "in memory"),
        ({"path": 3}, "path"),
        ({"path": "a\0b"}, "path"),
    ):
        with pytest.raises(InputError, match=part):
            Database(**({"num_columns": 2} | options))


def test_folders_that_are_no_database(tmp_path):
    """A file, a folder of something else, and no folder at all are told apart."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("x")
    for path, part in (("file", "is a file"), ("folder", "thesis.tex")):
        with pytest.raises(InputError, match=part):
            Database(2, path=tmp_path / path)
    for call in (lambda p: Database(2, path=p, read_only=True), Database.open):
        with pytest.raises(InputError, match="There is no database"):
            call(tmp_path / "none")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert os.listdir(tmp_path / "folder") == ["thesis.tex"]


# The folder: readers, crashes and damage ----------------------------------------------------------


def test_commits_wait_for_flush(tmp_path):
    """A reader sees one commit until it refreshes; with sync=False, what was flushed."""
    with Database(4, path=tmp_path / "db", sync=False) as database:
        database.append(COUNTS[:2])
        database.flush()
        with Database.open(tmp_path / "db", read_only=True) as reader:
            database.append(COUNTS[2:])
            database.extend([0], COUNTS[4:])
            reader.refresh()
            check(reader, COUNTS[:2])
            database.flush()
            check(reader, COUNTS[:2])
            reader.refresh()
            wanted = COUNTS + np.outer([1, 0, 0, 0, 0], COUNTS[4])
            check(reader, wanted)
            with pytest.raises(InputError, match="read_only"):
                reader.append(COUNTS)
    database.close()  # closing twice is no error
    for call in (lambda: database.append(COUNTS), database.data, database.flush):
        with pytest.raises(InputError, match="closed"):
            call()
    np.testing.assert_array_equal(contents(tmp_path / "db"), wanted)


WRITER = """
import sys
from pp_models.data.database import Database
database = Database(4, path=sys.argv[1])
number = 0
while True:
    database.add([0] * bool(number) + [number], [3] * bool(number) + [number % 4], new_rows=1)
    number += 1
    print(number, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_was_committed(tmp_path):
    """A second writer is refused while the first lives, a reader is not; all it wrote is there."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "db")]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, text=True) as writer:
        numbers = [int(writer.stdout.readline()) for _ in range(20)]
        with pytest.raises(InputError, match=f"by process {writer.pid}: close it there"):
            Database(4, path=tmp_path / "db")
        assert len(contents(tmp_path / "db", read_only=True)) >= 20
        writer.kill()
        numbers += [int(line) for line in writer.stdout if line.endswith("\n")]
    found = contents(tmp_path / "db")
    number = len(found)
    assert number in (numbers[-1], numbers[-1] + 1)  # the last may have been committed but not told
    wanted = np.eye(4, dtype=int)[np.arange(number) % 4]
    wanted[0, 3] = number - 1  # one more with every row after the first
    np.testing.assert_array_equal(found, wanted)
    with Database(4, path=tmp_path / "db") as database:  # the lock died with its holder
        database.append(COUNTS)
    assert sorted(os.listdir(tmp_path / "db")) == ["lock", "rows.sqlite"]


def test_a_database_whose_last_commit_fails_is_closed(tmp_path, monkeypatch):
    """Closing it once more is no error, and adding to it says that it is closed."""
    database = Database(4, path=tmp_path / "db", sync=False)
    database.append(COUNTS)
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(Database, "flush", lambda self: (_ for _ in ()).throw(OSError(28, "full")))
        database.close()
    database.close()
    with pytest.raises(InputError, match="is closed"):
        database.append(COUNTS)


@pytest.mark.parametrize("sync", [True, False])
def test_a_write_that_fails_is_not_there(tmp_path, monkeypatch, sync):
    """A full disk is one sentence and undoes what was not committed; an interrupt, its write."""
    with Database(4, path=tmp_path / "db", sync=sync) as database:
        database.append(COUNTS)
        database.flush()
        database.add([0], [1], int(not sync))
        execute = database._file.connection.execute
        limit = execute("PRAGMA max_page_count").fetchone()[0]
        execute("PRAGMA max_page_count = 1")  # in effect, the pages there are
        with pytest.raises(InputError, match="full"):
            database.append(np.tile(COUNTS, (500, 1)))
        execute(f"PRAGMA max_page_count = {limit}")
        check(database, COUNTS)
        database.append(COUNTS[:1])
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(
                sqlite.File, "store_fact", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
            )
            database.add([0, 5], [1, 1], new_rows=1)
        check(database, np.concatenate([COUNTS, COUNTS[:1]]))
    np.testing.assert_array_equal(contents(tmp_path / "db"), np.concatenate([COUNTS, COUNTS[:1]]))


def test_a_flipped_bit_in_a_row_is_noticed(tmp_path):
    """When the database is opened, or without `verify` when the row is read."""
    with Database(4, path=tmp_path / "db") as database:
        database.append(COUNTS)
    file = tmp_path / "db" / sqlite.FILE
    raw, row = file.read_bytes(), np.array([(0, 1), (3, 130)], ENTRY).tobytes()
    assert raw.count(row) == 1
    place = raw.index(row) + 4
    file.write_bytes(raw[:place] + bytes([raw[place] ^ 16]) + raw[place + 1 :])
    told = r"db is damaged \(a row is missing, or not as it was stored\): restore .* from a copy\.$"
    with pytest.raises(InputError, match=told):
        Database(4, path=tmp_path / "db")
    with Database.open(tmp_path / "db", verify=False) as database:
        np.testing.assert_array_equal(database.data([2, 4]).matrix.toarray(), COUNTS[[2, 4]])
        with pytest.raises(InputError, match=told):
            database.data([2, 3])


@pytest.mark.parametrize("left", ["nothing", "a log"])
def test_readers_need_no_permission_to_write(tmp_path, monkeypatch, left):
    """A folder that cannot be written to is read, also beside a writer's log."""
    with Database(4, path=tmp_path / "db") as database:
        database.append(COUNTS)
        if left == "nothing":
            database.close()
        monkeypatch.setattr(sqlite.os, "access", lambda *_: False)
        np.testing.assert_array_equal(contents(tmp_path / "db", read_only=True), COUNTS)


def test_a_database_of_the_old_format_is_converted(tmp_path):
    """Opening it names the command; that writes the rows to a new folder. Superseded parts stay."""
    old = tmp_path / "old"
    old.mkdir()
    names = '"column_names": ["a", "b", "c"], "tags": {"model": "lda"}'
    header = f'{{"format": 1, "kind": "counts", "num_columns": 3, "dtype": "float32", {names}}}'
    (old / "header.json").write_text(header)
    kinds = [("row", "<i8"), ("previous", "<i8"), ("start", "<i8"), ("total", "<i8")]
    parts = [(0, -1, 0, 3, 2, 1), (2, -1, 2, 1, 1, 1), (0, 0, 3, 4, 1, 2), (2, -1, 4, 6, 2, 1)]
    segments = np.array(parts, [*kinds, ("length", "<i4"), ("depth", "<i4")]).tobytes()
    entries = np.array([(0, 1), (2, 2), (1, 1), (2, 1), (1, 2), (2, 4)], ENTRY).tobytes()
    head = np.array([0, 3, 4, 6], "<i8").tobytes() + np.float64(10).tobytes()
    commit = head + np.array([zlib.crc32(segments), zlib.crc32(entries)], "<u4").tobytes()
    commit += zlib.crc32(commit).to_bytes(4, "little")
    for name, raw in (("segments", segments), ("entries", entries), ("journal", commit)):
        (old / f"{name}.bin").write_bytes(raw)
    for call in (Database.open, packaged.read, lambda path: Database(3, path=path)):
        with pytest.raises(InputError, match=f"earlier version: .* data convert {old} NEW"):
            call(old)
    assert "3 rows x 3 columns" in conversion.convert(str(old), str(tmp_path / "new"))
    with Database.open(tmp_path / "new") as database:
        check(database, [[1, 0, 3], [0, 0, 0], [0, 2, 4]])
        assert database.column_names == tuple("abc") and database.tags == {"model": "lda"}


def test_other_tools_read_the_file(tmp_path):
    """One row of the table `rows` is one row of the database: pairs of a column and a count."""
    with Database(4, path=tmp_path / "db") as database:
        database.append(COUNTS)
    with sqlite3.connect(tmp_path / "db" / sqlite.FILE) as connection:
        found = dict(connection.execute("SELECT id, blob FROM rows"))
    assert np.frombuffer(found[3], ENTRY).tolist() == [(0, 1.0), (3, 130.0)]
