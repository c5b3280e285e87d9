"""Laws of `pp_models.database`: what was put in comes out, in any order of feeding, after reopening, and after a crash at any byte."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pp_models import data as data_
from pp_models import database as database_
from pp_models import logs
from pp_models.database import Database
from pp_models.errors import InputError

COUNTS = np.array([[2, 0, 1, 0], [0, 0, 0, 0], [0, 12, 0, 3], [1, 0, 0, 130], [5, 5, 5, 5]])
NAN = float("nan")


def same(found, wanted):
    """Bit for bit, types included."""
    assert found.kind == wanted.kind
    assert found.matrix.shape == wanted.matrix.shape
    assert found.matrix.has_canonical_format
    for name in ("data", "indices", "indptr"):
        a, b = getattr(found.matrix, name), getattr(wanted.matrix, name)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert found.hash == wanted.hash


def check_sizes(database):
    data = database.data()
    assert (database.num_rows, database.num_entries, database.total) == (data.num_rows, data.num_entries, data.total)
    np.testing.assert_array_equal(database.lengths, data.lengths)
    np.testing.assert_array_equal(database.totals, data.totals)


@pytest.fixture
def unsynced(monkeypatch):
    """Without waiting for the disk: what is tested here does not depend on it."""
    monkeypatch.setattr(logs.os, "fsync", lambda _: None)


@pytest.fixture(params=["memory", "disk"])
def empty(request, tmp_path, unsynced):
    with Database(4, path=None if request.param == "memory" else tmp_path / "db") as database:
        yield database


# Contents -------------------------------------------------------------------------------------------------------------------------


def test_rows_come_back(empty):
    """Rows appended in parts are the rows of the whole, and any rows in any order are read alone."""
    np.testing.assert_array_equal(empty.append(COUNTS[:3]), [0, 1, 2])
    np.testing.assert_array_equal(empty.append(data_.counts(scipy.sparse.csc_array(COUNTS[3:]))), [3, 4])
    whole = data_.counts(COUNTS)
    same(empty.data(), whole)
    assert empty.data([]).matrix.shape == (0, 4)
    for rows in ([4, 0, 0, 1], [1], 2):
        same(empty.data(rows), whole.select(np.atleast_1d(np.array(rows, int))))
    check_sizes(empty)


def test_empty_rows_wait_for_their_words(empty):
    """Rows may be made before their words are known, and new rows and words for old ones go in together."""
    np.testing.assert_array_equal(empty.add([], [], new_rows=2), [0, 1])
    np.testing.assert_array_equal(empty.add([2, 1, 2, 2], [3, 0, 3, 1], [1, 4, 1, 0], new_rows=2), [2, 3])
    np.testing.assert_array_equal(empty.data().matrix.toarray(), [[0, 0, 0, 0], [4, 0, 0, 0], [0, 0, 0, 2], [0, 0, 0, 0]])
    assert len(empty.add(1, 2)) == 0
    assert empty.data(1).matrix[0, 2] == 1
    check_sizes(empty)


def test_extend_adds(empty):
    """Counts for rows that are there are added, also when a row is named twice."""
    empty.append(COUNTS)
    empty.extend([4, 1, 4], COUNTS[[0, 2, 3]])
    wanted = COUNTS.copy()
    np.add.at(wanted, [4, 1, 4], COUNTS[[0, 2, 3]])
    same(empty.data(), data_.counts(wanted))
    check_sizes(empty)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_word_by_word_is_the_same_as_whole(draw):
    """A corpus fed one word at a time, in any order and any ticks, ends as the corpus fed whole: same CSR, bit for bit."""
    rng = np.random.default_rng(draw.draw(st.integers(0, 2**32)))
    X = rng.poisson(draw.draw(st.sampled_from([0.2, 1.0, 6.0])), (draw.draw(st.integers(1, 6)), draw.draw(st.integers(1, 9))))
    X[0, 0] += 1
    row, column = (np.repeat(index, X[np.nonzero(X)]) for index in np.nonzero(X))
    order = rng.permutation(len(row))
    whole, words = Database(X.shape[1]), Database(X.shape[1])
    whole.append(X)
    words.add([], [], new_rows=len(X))
    for tick in np.array_split(order, draw.draw(st.integers(1, len(order)))):
        words.add(row[tick], column[tick])
        words.lengths  # noqa: B018  asking in between changes nothing
    same(whole.data(), data_.counts(X))
    same(words.data(), whole.data())
    check_sizes(words)


def test_rows_stay_in_few_segments():
    """A long document fed word by word is read in few steps, and rewriting what is there stays within a factor of log2 n."""
    rng = np.random.default_rng(0)
    num_words = 1500
    database = Database(1000)
    database.add([], [], new_rows=2)
    for columns in rng.integers(0, 1000, (num_words, 2)):
        database.add([0, 1], [columns[0], columns[0] % 3])
    bound = np.log2(num_words)
    assert database._logs.segments.view()["depth"].max() <= database_.DEPTH + bound
    assert database._logs.entries.size <= 2 * num_words * bound
    check_sizes(database)


def test_dense_rows(tmp_path):
    """Dense rows come back in any order, in memory and on disk."""
    Y = np.random.default_rng(0).normal(size=(7, 3))
    for path in (None, tmp_path / "db"):
        with Database(3, "dense", path) as database:
            assert database.data().values.shape == (0, 3)
            np.testing.assert_array_equal(database.append(Y[:4]), np.arange(4))
            np.testing.assert_array_equal(database.append(data_.dense(Y[4:])), np.arange(4, 7))
            assert database.data().hash == data_.dense(Y).hash
            np.testing.assert_array_equal(database.data([6, 0, 6]).values, Y[[6, 0, 6]].astype(np.float32))
            np.testing.assert_array_equal(database.lengths, np.full(7, 3))
            assert (database.num_rows, database.num_entries) == (7, 21)
            np.testing.assert_allclose(database.total, Y.sum(), rtol=1e-6)
            np.testing.assert_allclose(database.totals, Y.sum(1), rtol=1e-6)
    with Database.open(tmp_path / "db") as database:
        assert database.kind == "dense" and database.data().hash == data_.dense(Y).hash


class Machine(RuleBasedStateMachine):
    """Any sequence of writes, reopenings and refusals against a plain matrix."""

    columns = 5
    rows = st.lists(st.lists(st.sampled_from([0, 0, 0, 1, 2, 300]), min_size=5, max_size=5), min_size=1, max_size=4)

    @initialize(on_disk=st.booleans(), sync=st.booleans(), depth=st.sampled_from([1, 2, 16]))
    def begin(self, on_disk, sync, depth):
        self.old, self.sync = (database_.DEPTH, logs.os.fsync), sync
        database_.DEPTH, logs.os.fsync = depth, lambda _: None
        self.folder = tempfile.mkdtemp() if on_disk else None
        self.database = Database(self.columns, path=self.folder, sync=sync)
        self.wanted = np.zeros((0, self.columns), int)

    def teardown(self):
        if hasattr(self, "database"):
            self.database.close()
            database_.DEPTH, logs.os.fsync = self.old
            if self.folder:
                shutil.rmtree(self.folder)

    @rule(rows=rows)
    def append(self, rows):
        rows[0][0] += 1  # a corpus without any word is refused
        ids = self.database.append(rows)
        assert list(ids) == list(range(len(self.wanted), len(self.wanted) + len(rows)))
        self.wanted = np.concatenate([self.wanted, rows])

    @precondition(lambda self: len(self.wanted))
    @rule(rows=rows, choice=st.randoms(use_true_random=False))
    def extend(self, rows, choice):
        rows[0][0] += 1
        ids = [choice.randrange(len(self.wanted)) for _ in rows]
        self.database.extend(ids, rows)
        np.add.at(self.wanted, ids, rows)

    @rule(size=st.integers(0, 12), new_rows=st.integers(0, 2), seed=st.integers(0, 2**32))
    def add(self, size, new_rows, seed):
        rng = np.random.default_rng(seed)
        self.wanted = np.concatenate([self.wanted, np.zeros((new_rows, self.columns), int)])
        size = size if len(self.wanted) else 0
        ids, columns, counts = rng.integers(0, max(len(self.wanted), 1), size), rng.integers(0, self.columns, size), rng.integers(0, 3, size)
        self.database.add(ids, columns, counts, new_rows)
        np.add.at(self.wanted, (ids, columns), counts)

    @rule()
    def refuse(self):
        with pytest.raises(InputError):
            self.database.add([len(self.wanted)], [0])
        with pytest.raises(InputError):
            self.database.append([[1, 2, 3, 4, -1]])

    @precondition(lambda self: self.folder)
    @rule()
    def reopen(self):
        self.database.close()
        self.database = Database.open(self.folder, sync=self.sync)

    @invariant()
    def contents_are_right(self):
        if not hasattr(self, "database"):
            return
        np.testing.assert_array_equal(self.database.data().matrix.toarray(), self.wanted)
        assert self.database.data().matrix.has_canonical_format
        assert (self.database.num_rows, self.database.total) == (len(self.wanted), self.wanted.sum())

    @precondition(lambda self: len(self.wanted))
    @rule(choice=st.randoms(use_true_random=False))
    def fetch(self, choice):
        rows = [choice.randrange(len(self.wanted)) for _ in range(3)]
        np.testing.assert_array_equal(self.database.data(rows).matrix.toarray(), self.wanted[rows])
        np.testing.assert_array_equal(self.database.lengths, (self.wanted > 0).sum(1))
        np.testing.assert_array_equal(self.database.totals, self.wanted.sum(1))
        sizes = np.unique(np.minimum(self.wanted.sum(1), self.database.num_columns), return_counts=True)
        np.testing.assert_array_equal(self.database.sizes, sizes)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)


# Bad input ------------------------------------------------------------------------------------------------------------------------

BAD = [
    # method, arguments, part of the message
    ("append", ([[1, 2, 3]],), "3 columns but the database has 4"),
    ("append", ([[1, 2, 3, -4]],), "negative"),
    ("append", ([[1, 2, 3, 0.5]],), "whole numbers"),
    ("append", ([[1, 2, 3, NAN]],), "NaN"),
    ("append", ([[1, 2, 3, 2**24]],), "single precision"),
    ("append", ([1, 2, 3, 4],), "two-dimensional"),
    ("append", ([["a", "b", "c", "d"]],), "real numbers"),
    ("append", (data_.dense(COUNTS),), "dense but the database holds counts"),
    ("append", (data_.counts(COUNTS, column_names=list("abdc")),), "column 2 is 'd' there and 'c' here"),
    ("extend", ([5], COUNTS[:1]), "the database has 5 rows, but one is 5"),
    ("extend", ([-1], COUNTS[:1]), "one is -1"),
    ("extend", ([0, 1], COUNTS[:1]), "2 row ids for 1 rows"),
    ("extend", ([0.5], COUNTS[:1]), "integers"),
    ("extend", ([0], [[1, 2]]), "2 columns but the database has 4"),
    ("extend", ([0], [[0.5, 0, 0, 0]]), "whole numbers"),
    ("add", ([0], [4]), "the database has 4 columns, but one is 4"),
    ("add", ([0], [-1]), "one is -1"),
    ("add", ([5], [0]), "the database has 5 rows, but one is 5"),
    ("add", ([6], [0], 1, 1), "the database has 6 rows, but one is 6"),
    ("add", ([0, 1], [0]), "2 row ids for 1 columns"),
    ("add", ([0], [0], -1), "negative"),
    ("add", ([0], [0], 0.5), "whole numbers"),
    ("add", ([0], [0], NAN), "NaN"),
    ("add", ([0], [0], [1, 2]), "shape (2,) for 1 words"),
    ("add", ([0], [0], "many"), "real numbers"),
    ("add", ([0], [0], 2**24), "single precision"),
    ("add", ([0, 0], [0, 0], [2**24 - 1, 1]), "would become 16777218"),
    ("add", ([4, 5], [1, 1], 2**24 - 1, 1), "words of row 4"),
    ("add", ([[0]], [[0]]), "one-dimensional"),
    ("add", (["a"], [0]), "integers"),
    ("add", ([True], [0]), "integers"),
    ("add", (None, [0]), "integers"),
    ("add", ([[0, 1], [2]], [0]), "equal length"),
    ("add", ([], [], 1, -1), "new_rows"),
    ("data", ([5],), "the database has 5 rows, but one is 5"),
    ("data", ([True] * 5,), "integers"),
]


@pytest.mark.parametrize(("method", "arguments", "part"), BAD)
def test_bad_input_leaves_the_database_as_it_was(method, arguments, part, tmp_path, unsynced):
    """Input that cannot be stored is refused in one sentence, and nothing of it is stored."""
    with Database(4, path=tmp_path / "db", column_names=list("abcd")) as database:
        database.append(COUNTS)
        files = {file.name: file.read_bytes() for file in (tmp_path / "db").iterdir()}
        with pytest.raises(InputError) as caught:
            getattr(database, method)(*arguments)
        message = str(caught.value)
        assert part in message
        assert message.endswith(".") and "\n" not in message
        assert files == {file.name: file.read_bytes() for file in (tmp_path / "db").iterdir()}
        database.add([0], [1])
    with Database.open(tmp_path / "db") as database:
        wanted = COUNTS.copy()
        wanted[0, 1] += 1
        same(database.data(), data_.counts(wanted))


def test_large_counts_are_added_exactly():
    """Row totals beyond single precision are fine as long as no single count is."""
    database = Database(2)
    database.add([0, 0], [0, 1], 2**24 - 2, new_rows=1)
    database.add([0], [1])
    np.testing.assert_array_equal(database.data().matrix.toarray(), [[2**24 - 2, 2**24 - 1]])
    assert database.total == 2**25 - 3
    with pytest.raises(InputError, match="would become 16777216"):
        database.add([0], [1])
    whole = Database(3)
    whole.append([[2**24 - 1, 2**24 - 1, 1]])
    assert whole.total == whole.totals[0] == 2**25 - 1


def test_dense_refusals():
    """Words belong to counts."""
    database = Database(2, "dense")
    for call in (lambda: database.add([0], [0]), lambda: database.extend([0], [[1, 2]])):
        with pytest.raises(InputError, match="append whole rows"):
            call()
    for rows, part in (([[1.0, NAN]], "NaN"), ([[1.0]], "1 columns but the database has 2"), (data_.counts([[1, 2]]), "counts but")):
        with pytest.raises(InputError, match=part):
            database.append(rows)
    assert database.num_rows == 0


MADE = {"num_columns": 4, "column_names": list("abcd"), "tags": {"model": "lda", "sizes": (1, 2)}}
OTHERWISE = [
    # how the folder is opened again, parts of the message
    ({"num_columns": 5, "column_names": None}, ("num_columns 4, not 5",)),
    ({"kind": "dense"}, ("kind 'counts', not 'dense'",)),
    ({"tags": {"model": "nmf"}}, ("'lda'", "not {'model': 'nmf'}")),
    ({"tags": {}}, ("'lda'", "not {}")),
    ({"column_names": list("abdc")}, ("column 2 is 'c' there and 'd' here",)),
]


@pytest.mark.parametrize(("change", "parts"), OTHERWISE)
def test_another_database_is_refused(change, parts, tmp_path, unsynced):
    """A folder is opened only as what it was made as; what is not asked for is taken from it."""
    Database(**MADE, path=tmp_path / "db").close()
    with pytest.raises(InputError) as caught:
        Database(**(MADE | change), path=tmp_path / "db")
    assert all(part in str(caught.value) for part in (*parts, str(tmp_path)))
    with Database(4, path=tmp_path / "db") as database:  # the refusal let go of the lock
        assert database.tags == {"model": "lda", "sizes": [1, 2]} and database.column_names == tuple("abcd")
        assert database.data().column_names == tuple("abcd")


@pytest.mark.parametrize(
    ("options", "part"),
    [
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
    ],
)
def test_bad_options(options, part):
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
    for call in (lambda: Database(2, path=tmp_path / "none", read_only=True), lambda: Database.open(tmp_path / "none")):
        with pytest.raises(InputError, match="There is no database"):
            call()
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"] and os.listdir(tmp_path / "folder") == ["thesis.tex"]


def test_closed_and_read_only(tmp_path, unsynced):
    """Neither takes rows; closing twice is no error."""
    with Database(4, path=tmp_path / "db") as database:
        database.append(COUNTS)
    database.close()
    for call in (lambda: database.append(COUNTS), database.data, database.flush):
        with pytest.raises(InputError, match="closed"):
            call()
    with Database.open(tmp_path / "db", read_only=True) as reader, pytest.raises(InputError, match="read_only"):
        reader.append(COUNTS)


# The folder: crashes, damage, and other processes -----------------------------------------------------------------------------------


def make(path, parts=(COUNTS[:2], COUNTS[2:4], COUNTS[4:])):
    """A database of several commits, and the sizes of its files after each."""
    sizes = []
    for part in parts:
        with Database(4, path=path) as database:
            database.append(part)
            database.add([0, 1], [3, 3])
        sizes.append({file.name: file.stat().st_size for file in path.glob("*.bin")})
    return sizes


def contents(path, **options):
    with Database.open(path, **options) as database:
        return database.data().matrix.toarray()


def test_reopening_continues(tmp_path, unsynced):
    """A database fed in several sittings is that fed in one, file by file."""
    make(tmp_path / "several")
    with Database(4, path=tmp_path / "one") as database:
        for part in (COUNTS[:2], COUNTS[2:4], COUNTS[4:]):
            database.append(part)
            database.add([0, 1], [3, 3])
    for name in ("segments.bin", "entries.bin", "journal.bin", "header.json"):
        assert (tmp_path / "several" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_a_crash_at_any_byte_loses_only_the_last_write(tmp_path, unsynced):
    """Files cut anywhere within the last write open as if it had not been made, and taking it again gives what was lost."""
    make(tmp_path / "whole", (COUNTS[:2], COUNTS[2:4]))
    before = {file.name: file.stat().st_size for file in (tmp_path / "whole").iterdir()}
    earlier = contents(tmp_path / "whole")
    with Database(4, path=tmp_path / "whole") as database:
        database.append(COUNTS[4:])
    whole = {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()}
    folder = tmp_path / "cut"
    for name in ("segments.bin", "entries.bin", "journal.bin"):
        for size in range(before[name], len(whole[name])):
            shutil.copytree(tmp_path / "whole", folder)
            zeros = whole[name][:size] + bytes(len(whole[name]) - size)  # a crash may also leave the right length but not the contents
            (folder / name).write_bytes(zeros if size % 2 and zeros != whole[name] else whole[name][:size])
            np.testing.assert_array_equal(contents(folder, read_only=True), earlier)
            with Database(4, path=folder) as database:
                assert database.num_rows == len(earlier)
                database.append(COUNTS[4:])
            assert whole == {file.name: file.read_bytes() for file in folder.iterdir()}
            shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["segments.bin", "entries.bin", "journal.bin"])
def test_damage_before_the_last_write_is_refused(name, tmp_path, unsynced):
    """A bit flipped in an earlier commit is damage, not a crash; in the last commit it is taken for a crash."""
    sizes = make(tmp_path / "db")
    raw = (tmp_path / "db" / name).read_bytes()
    for place in range(0, sizes[1][name], 5):
        (tmp_path / "db" / name).write_bytes(raw[:place] + bytes([raw[place] ^ 16]) + raw[place + 1 :])
        with pytest.raises(InputError, match=r"is damaged: commit \d of 6 does not match its checksum; restore the folder from a copy\.$"):
            Database(4, path=tmp_path / "db")
    (tmp_path / "db" / name).write_bytes(raw[:-1] + bytes([raw[-1] ^ 16]))
    with Database(4, path=tmp_path / "db", verify=False) as database:
        assert (database.num_rows, database.total) == (5, COUNTS.sum() + 4)


def test_shortened_by_more_than_one_commit_is_refused(tmp_path, unsynced):
    """The logs cannot lose more than the last commit in a crash."""
    sizes = make(tmp_path / "db")
    os.truncate(tmp_path / "db" / "entries.bin", sizes[0]["entries.bin"])
    with pytest.raises(InputError, match="damaged"):
        Database.open(tmp_path / "db")


def test_a_commit_left_out_is_refused(tmp_path, unsynced):
    """Commits are numbered, so that one missing between others shows even when old contents are not verified."""
    make(tmp_path / "db")
    raw, size = (tmp_path / "db" / "journal.bin").read_bytes(), logs.COMMIT.itemsize
    (tmp_path / "db" / "journal.bin").write_bytes(raw[:size] + raw[2 * size :])
    with pytest.raises(InputError, match="damaged: commit 2 of 5"):
        Database.open(tmp_path / "db", verify=False)


def test_missing_and_damaged_files(tmp_path, unsynced):
    """Whatever is wrong with the folder is one sentence."""
    for name, raw, part in (
        ("journal.bin", None, "journal.bin is missing"),
        ("header.json", b"{", "header.json is damaged"),
        ("header.json", b'{"format": 1}', "header.json is damaged"),
        ("header.json", json.dumps({"format": 9, "kind": "counts", "num_columns": 4, "column_names": None, "tags": {}}).encode(), "format 9"),
    ):
        make(tmp_path / "db")
        (tmp_path / "db" / name).unlink() if raw is None else (tmp_path / "db" / name).write_bytes(raw)
        with pytest.raises(InputError, match=part):
            Database(4, path=tmp_path / "db")
        shutil.rmtree(tmp_path / "db")


def test_a_crash_while_the_folder_is_made(tmp_path, unsynced):
    """A folder without a header yet is made anew."""
    (tmp_path / "db").mkdir()
    for name in ("lock", "segments.bin", "header.tmp"):
        (tmp_path / "db" / name).write_bytes(b"{")
    with Database(4, path=tmp_path / "db") as database:
        database.append(COUNTS)
    np.testing.assert_array_equal(contents(tmp_path / "db"), COUNTS)


def test_the_logs_are_on_disk_before_the_commit(tmp_path, monkeypatch):
    """The journal record is written after both logs are synced, then synced itself."""
    events = []
    database = Database(4, path=tmp_path / "db")
    for call in ("pwrite", "fsync"):
        real = getattr(os, call)

        def recorded(descriptor, *rest, real=real, call=call):
            events.append((call, Path(os.readlink(f"/proc/self/fd/{descriptor}")).stem))
            return real(descriptor, *rest)

        monkeypatch.setattr(logs.os, call, recorded)
    database.append(COUNTS)
    payload = [("pwrite", "segments"), ("pwrite", "entries"), ("fsync", "segments"), ("fsync", "entries")]
    assert events == [*payload, ("pwrite", "journal"), ("fsync", "journal")]
    database.close()


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_full_disk_leaves_the_database_as_it_was(call, which, tmp_path, monkeypatch, unsynced):
    """A write that fails is not there, and does not stand in the way of the next."""
    with Database(4, path=tmp_path / "db") as database:
        database.append(COUNTS)
        real, calls = getattr(os, call), []

        def failing(*arguments):
            calls.append(call)
            if len(calls) == which:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(logs.os, call, failing)
            with pytest.raises(OSError, match="No space left"):
                database.append(COUNTS[::-1])
        np.testing.assert_array_equal(database.data().matrix.toarray(), COUNTS)
        database.append(COUNTS[:1])
        wanted = np.concatenate([COUNTS, COUNTS[:1]])
        np.testing.assert_array_equal(database.data().matrix.toarray(), wanted)
    np.testing.assert_array_equal(contents(tmp_path / "db"), wanted)


def test_commits_wait_for_flush(tmp_path, unsynced):
    """With sync=False others see, and a crash keeps, what was flushed: one commit for all writes since the last."""
    with Database(4, path=tmp_path / "db", sync=False) as database, Database.open(tmp_path / "db", read_only=True) as reader:
        database.append(COUNTS[:2])
        database.flush()
        database.append(COUNTS[2:4])
        database.append(COUNTS[4:])
        reader.refresh()
        np.testing.assert_array_equal(reader.data().matrix.toarray(), COUNTS[:2])
        np.testing.assert_array_equal(contents(tmp_path / "db", read_only=True), COUNTS[:2])
        np.testing.assert_array_equal(database.data().matrix.toarray(), COUNTS)
        database.flush()
        reader.refresh()
        np.testing.assert_array_equal(reader.data().matrix.toarray(), COUNTS)
    assert (tmp_path / "db" / "journal.bin").stat().st_size == 2 * logs.COMMIT.itemsize


def test_offsets_beyond_32_bits(tmp_path, unsynced):
    """More than 2**31 entries: a hole in the file stands for those before."""
    with Database(4, path=tmp_path / "db") as database:
        database.append(COUNTS)
        database._logs.entries.size = 2**31 + 5
        database.append(COUNTS)
        database.add([5], [1])
    with Database.open(tmp_path / "db", verify=False) as database:
        assert database._logs.segments.view()["start"].max() > 2**31
        wanted = np.concatenate([COUNTS, COUNTS])
        wanted[5, 1] += 1
        same(database.data(), data_.counts(wanted))


WRITER = """
import sys
from pp_models.database import Database
database = Database(4, path=sys.argv[1])
database.add([0], [3], new_rows=1)
print("ready", flush=True)
sys.stdin.read()
"""


def test_one_writer_at_a_time(tmp_path):
    """A second writer is refused while another process lives; a reader is not; a killed writer leaves what it committed."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as writer:
        assert writer.stdout.readline() == b"ready\n"
        with pytest.raises(InputError, match=f"open for writing already, by process {writer.pid}: close it there"):
            Database(4, path=tmp_path / "db")
        np.testing.assert_array_equal(contents(tmp_path / "db", read_only=True), [[0, 0, 0, 1]])
        writer.kill()
    with Database(4, path=tmp_path / "db") as database:
        database.append(COUNTS[:1])
        with pytest.raises(InputError, match="open for writing already"):
            Database(4, path=tmp_path / "db")
    np.testing.assert_array_equal(contents(tmp_path / "db"), [[0, 0, 0, 1], [2, 0, 1, 0]])
