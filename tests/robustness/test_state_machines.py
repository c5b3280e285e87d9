"""The stream's database and the corpus on disk, driven by random sequences of calls, against a
dense array that is held beside them.

After every call the contents are those of the array: after writes of all kinds, closing and opening
again, a reader beside the writer, crashes at
any moment, writes that are refused, and files that were damaged.
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pp_models import data
from pp_models.data import corpus, sqlite
from pp_models.data.database import Database
from pp_models.errors import InputError

COLUMNS = 5
FAST = settings(
    max_examples=25,
    stateful_step_count=20,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
LONG = settings(FAST, max_examples=600, stateful_step_count=60)
NUMBERS = st.integers(0, 2**31 - 1)


def counts(seed: int, num_rows: int, largest: int = 4) -> np.ndarray:
    """Sparse rows, some of them empty."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, largest + 1, (num_rows, COLUMNS)) * (
        rng.random((num_rows, COLUMNS)) < 0.5
    )


def dense(database: Database) -> np.ndarray:
    return database.data().matrix.toarray() if database.num_rows else np.zeros((0, COLUMNS))


class DatabaseMachine(RuleBasedStateMachine):
    """A database on disk: what it holds, what was committed last, and what was before that."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "db"
        self.rows = np.zeros((0, COLUMNS))
        self.committed = self.rows  # at least this is safe
        self.reader: Database | None = None
        self.seen = self.rows

    @initialize(sync=st.booleans())
    def open(self, sync: bool) -> None:
        self.sync = sync
        self.database = Database(COLUMNS, path=self.path, sync=sync)

    def written(self, rows: np.ndarray) -> None:
        self.rows = rows
        if self.sync:
            self.committed = rows

    @rule(seed=NUMBERS, number=st.integers(1, 4))
    def append(self, seed: int, number: int) -> None:
        more = counts(seed, number)
        if not more.any():
            more[0, 0] = 1  # a corpus of nothing is refused
        ids = self.database.append(more)
        assert ids.tolist() == list(range(len(self.rows), len(self.rows) + number))
        self.written(np.concatenate([self.rows, more]))

    @precondition(lambda self: len(self.rows))
    @rule(seed=NUMBERS, number=st.integers(1, 3))
    def extend(self, seed: int, number: int) -> None:
        """Rows may be named twice."""
        ids, more = (
            np.random.default_rng(seed).integers(0, len(self.rows), number),
            counts(seed, number),
        )
        more[0, 0] += 1
        self.database.extend(ids, more)
        rows = self.rows.copy()
        np.add.at(rows, ids, more)
        self.written(rows)

    @rule(seed=NUMBERS, number=st.integers(0, 30), new_rows=st.integers(0, 2))
    def add(self, seed: int, number: int, new_rows: int) -> None:
        rng = np.random.default_rng(seed)
        rows = np.concatenate([self.rows, np.zeros((new_rows, COLUMNS))])
        if len(rows) == 0:
            return
        ids, columns, several = (
            rng.integers(0, len(rows), number),
            rng.integers(0, COLUMNS, number),
            rng.integers(0, 3, number),
        )
        found = self.database.add(ids, columns, several, new_rows)
        assert found.tolist() == list(range(len(self.rows), len(rows)))
        np.add.at(rows, (ids, columns), several)
        self.written(rows)

    @precondition(lambda self: len(self.rows))
    @rule(column=st.integers(0, COLUMNS - 1))
    def one_row_many_times(self, column: int) -> None:
        """Word by word."""
        rows = self.rows.copy()
        for _ in range(20):
            self.database.add([0], [column])
        rows[0, column] += 20
        self.written(rows)

    @rule()
    def flush(self) -> None:
        self.database.flush()
        self.committed = self.rows

    @rule(sync=st.booleans(), verify=st.booleans())
    def close_and_open(self, sync: bool, verify: bool) -> None:
        self.database.close()
        self.committed, self.sync = self.rows, sync
        self.database = Database(COLUMNS, path=self.path, sync=sync, verify=verify)

    @rule()
    def refused_input(self) -> None:
        """Nothing of it is written."""
        number = len(self.rows)
        for write in (
            lambda: self.database.append([[0.5] * COLUMNS]),
            lambda: self.database.append([[1] * (COLUMNS + 1)]),
            lambda: self.database.append([[-1] + [0] * (COLUMNS - 1)]),
            lambda: self.database.append([[np.nan] * COLUMNS]),
            lambda: self.database.extend([number], [[1] * COLUMNS]),
            lambda: self.database.add([0, number + 1], [0, 0], new_rows=1),
            lambda: self.database.add([0], [COLUMNS], new_rows=1),
            lambda: self.database.add([0], [0], 2**24, new_rows=1),
            lambda: self.database.add([0], [0], -1, new_rows=1),
            lambda: self.database.add([0], [0], new_rows=10**12),
            lambda: Database(COLUMNS, path=self.path),
            lambda: Database(COLUMNS + 1, path=self.path, read_only=True),
            lambda: Database(COLUMNS, "dense", self.path, read_only=True),
        ):
            with pytest.raises(InputError):
                write()

    @rule(seed=NUMBERS)
    def full_disk(self, seed: int) -> None:
        """A write that does not fit leaves what was committed."""
        more = np.tile(counts(seed, 200) + 1, (50, 1))
        execute = self.database._file.connection.execute
        limit = execute("PRAGMA max_page_count").fetchone()[0]
        execute("PRAGMA max_page_count = 1")  # in effect, the pages there are
        with pytest.raises(InputError, match="full"):
            self.database.append(more)
        execute(f"PRAGMA max_page_count = {limit}")
        self.rows = self.committed

    @rule(seed=NUMBERS)
    def interrupt(self, seed: int) -> None:
        """A write that is interrupted leaves everything as it was."""
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(
                sqlite.File, "store_fact", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
            )
            self.database.append(counts(seed, 2) + 1)

    @rule(verify=st.booleans())
    def read_beside(self, verify: bool) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader = Database.open(self.path, read_only=True, verify=verify)
        self.seen = self.committed

    @precondition(lambda self: self.reader is not None)
    @rule()
    def refresh(self) -> None:
        self.reader.refresh()
        self.seen = self.committed

    @rule(seed=NUMBERS, tail=st.integers(0, 5000))
    def crash(self, seed: int, tail: int) -> None:
        """The folder as a crash leaves it, with a torn end of the log: what was committed is there,
        what was not is not.
        """
        copy = Path(shutil.copytree(self.path, self.folder / "copy"))
        try:
            with (copy / f"{sqlite.FILE}-wal").open("ab") as file:
                file.write(np.random.default_rng(seed).bytes(tail))
            with Database(COLUMNS, path=copy) as database:
                np.testing.assert_array_equal(dense(database), self.committed)
                database.append(np.ones((1, COLUMNS)))  # and it goes on
            with Database.open(copy, read_only=True) as database:
                np.testing.assert_array_equal(
                    dense(database), np.concatenate([self.committed, np.ones((1, COLUMNS))])
                )
        finally:
            shutil.rmtree(copy)

    @precondition(lambda self: len(self.committed))
    @rule(seed=NUMBERS, log=st.booleans())
    def damage(self, seed: int, log: bool) -> None:
        """A bit flipped in the file: refused or without effect. In the log of a writer that died:
        commits from there on may be lost.
        """
        copy = Path(shutil.copytree(self.path, self.folder / "copy"))
        try:
            if not log:
                Database(COLUMNS, path=copy).close()  # into the file
            file = copy / (f"{sqlite.FILE}-wal" if log else sqlite.FILE)
            raw = bytearray(file.read_bytes() if file.exists() else b"")
            if not raw:
                return
            place = int(np.random.default_rng(seed).integers(8 * len(raw)))
            raw[place // 8] ^= 1 << place % 8
            file.write_bytes(raw)
            with contextlib.suppress(InputError), Database.open(copy, read_only=True) as database:
                found = dense(database)
                assert len(found) <= len(self.committed) and np.all(
                    found <= self.committed[: len(found)]
                )
                assert log or np.array_equal(found, self.committed)
        finally:
            shutil.rmtree(copy)

    @invariant()
    def is_the_array(self) -> None:
        if not hasattr(self, "database"):
            return
        assert self.database.num_rows == len(self.rows) and self.database.total == self.rows.sum()
        np.testing.assert_array_equal(dense(self.database), self.rows)
        np.testing.assert_array_equal(self.database.lengths, (self.rows > 0).sum(1))
        np.testing.assert_array_equal(
            self.database.sizes, np.unique((self.rows > 0).sum(1), return_counts=True)
        )
        if self.reader is not None:
            np.testing.assert_array_equal(dense(self.reader), self.seen)

    def teardown(self) -> None:
        if self.reader is not None:
            self.reader.close()
        if hasattr(self, "database"):
            self.database.close()
            with Database.open(self.path, read_only=True) as again:
                np.testing.assert_array_equal(dense(again), self.rows)
        shutil.rmtree(self.folder)


class CorpusMachine(RuleBasedStateMachine):
    """A corpus that is written, read, replaced and damaged: it is what the last write that came to
    its end has left.
    """

    opened = Bundle("opened")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "a.h5ad"
        self.rows: np.ndarray | None = None

    def blocks(self, seed: int, sizes: list[int]) -> list[np.ndarray]:
        out = [counts(seed + i, size, 300) for i, size in enumerate(sizes)]
        out[0][0, 0] += 1
        return out

    @rule(seed=NUMBERS, sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4))
    def write(self, seed: int, sizes: list[int]) -> None:
        made = self.blocks(seed, sizes)
        corpus.write(self.path, iter(made), overwrite=self.rows is not None)
        self.rows = np.concatenate(made)

    @precondition(lambda self: self.rows is not None)
    @rule(seed=NUMBERS)
    def not_over_another(self, seed: int) -> None:
        with pytest.raises(InputError, match="is there already"):
            corpus.write(self.path, self.blocks(seed, [2]))

    @rule(seed=NUMBERS, how=st.sampled_from(["error", "interrupt", "bad row", "disk", "no rows"]))
    def fail_midway(self, seed: int, how: str) -> None:
        """The source fails after its first block; what was there stays."""

        def source():
            if how != "no rows":
                yield from self.blocks(seed, [3])
            if how == "error":
                raise RuntimeError("the source fails")
            if how == "interrupt":
                raise KeyboardInterrupt
            if how == "disk":
                raise OSError(5, "Input/output error")
            if how == "bad row":
                yield [[0.5] * COLUMNS]

        with pytest.raises((RuntimeError, KeyboardInterrupt, InputError)):
            corpus.write(self.path, source(), overwrite=True)

    @precondition(lambda self: self.rows is not None)
    @rule(target=opened)
    def keep_open(self):
        """Whoever has a corpus open keeps it, whatever takes its place."""
        return corpus.read(self.path), self.rows

    @rule(one=opened, seed=NUMBERS)
    def read_what_is_open(self, one, seed: int) -> None:
        found, rows = one
        chosen = np.random.default_rng(seed).integers(0, len(rows), 7)
        np.testing.assert_array_equal(found.matrix[chosen].toarray(), rows[chosen])
        assert found.hash == data.counts(rows).hash and found.total == rows.sum()

    @precondition(lambda self: self.rows is not None)
    @rule(seed=NUMBERS, how=st.sampled_from(["flip", "cut"]))
    def damage(self, seed: int, how: str) -> None:
        """Refused; or, a bit in a place that says nothing, the same."""
        rng, copy = np.random.default_rng(seed), self.folder / "copy" / "a.h5ad"
        copy.parent.mkdir(exist_ok=True)
        raw = bytearray(self.path.read_bytes())
        raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
        copy.write_bytes(raw if how == "flip" else raw[: rng.integers(len(raw))])
        try:
            found = corpus.read(copy)
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert how == "flip"
            np.testing.assert_array_equal(found.matrix.tocsr().toarray(), self.rows)

    @invariant()
    def is_the_array(self) -> None:
        assert sorted({*os.listdir(self.folder)} - {"copy"}) == (
            [] if self.rows is None else ["a.h5ad"]
        )
        for verify in (True, False) if self.rows is not None else ():
            found = corpus.read(self.path, verify)
            np.testing.assert_array_equal(found.matrix.tocsr().toarray(), self.rows)
            np.testing.assert_array_equal(found.totals, self.rows.sum(1))

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """The disk need not keep up: no power is cut here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("machine", [DatabaseMachine, CorpusMachine])
def test_random_calls(machine):
    run_state_machine_as_test(machine, settings=FAST)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [DatabaseMachine, CorpusMachine])
def test_many_random_calls(machine):
    run_state_machine_as_test(machine, settings=LONG)
