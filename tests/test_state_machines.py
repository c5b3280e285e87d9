"""The stream's database and the corpus store, driven by random sequences of calls, against a dense array that is held beside them.

After every call the contents are those of the array: after writes of all kinds, closing and opening again, a reader beside the writer, crashes at
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
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from pp_models import data, files, logs, store
from pp_models.database import Database
from pp_models.errors import InputError

COLUMNS = 5
FAST = settings(max_examples=25, stateful_step_count=20, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
LONG = settings(FAST, max_examples=600, stateful_step_count=60)
NUMBERS = st.integers(0, 2**31 - 1)


def counts(seed: int, num_rows: int, largest: int = 4) -> np.ndarray:
    """Sparse rows, some of them empty."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, largest + 1, (num_rows, COLUMNS)) * (rng.random((num_rows, COLUMNS)) < 0.5)


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
        ids, more = np.random.default_rng(seed).integers(0, len(self.rows), number), counts(seed, number)
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
        ids, columns, several = rng.integers(0, len(rows), number), rng.integers(0, COLUMNS, number), rng.integers(0, 3, number)
        found = self.database.add(ids, columns, several, new_rows)
        assert found.tolist() == list(range(len(self.rows), len(rows)))
        np.add.at(rows, (ids, columns), several)
        self.written(rows)

    @precondition(lambda self: len(self.rows))
    @rule(column=st.integers(0, COLUMNS - 1))
    def one_row_many_times(self, column: int) -> None:
        """More segments than a row may have."""
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

    @rule(seed=NUMBERS, after=st.integers(0, 2))
    def full_disk(self, seed: int, after: int) -> None:
        """A write that fails at its first, second or third file leaves everything as it was."""
        more, calls = counts(seed, 2) + 1, iter(range(100))
        real = logs._File.write

        def fails(log, raw, place):
            if next(calls) >= after:
                raise OSError(28, "No space left on device")
            return real(log, raw, place)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(logs._File, "write", fails)
            with contextlib.suppress(OSError, InputError):
                self.database.append(more)
                self.written(np.concatenate([self.rows, more]))

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

    @rule(seed=NUMBERS, tail=st.sampled_from(["nothing", "garbage", "half a commit", "logs cut off"]))
    def crash(self, seed: int, tail: str) -> None:
        """The folder as a crash at this moment leaves it: all that was committed is there, and what was not is not, whatever lies behind it."""
        copy = Path(shutil.copytree(self.path, self.folder / "copy"))
        rng = np.random.default_rng(seed)
        try:
            with Database.open(copy, read_only=True) as database:
                kept = database._logs.state
            if tail == "half a commit":
                with (copy / "journal.bin").open("ab") as file:
                    file.write(rng.bytes(rng.integers(1, logs.COMMIT.itemsize)))
            elif tail != "nothing":
                for name in ("segments", "entries"):
                    log = getattr(self.database._logs, name)
                    committed = getattr(kept, f"num_{name}") * log.dtype.itemsize
                    with (copy / f"{name}.bin").open("r+b") as file:
                        if tail == "logs cut off":
                            file.truncate(committed)
                        else:
                            file.seek(committed)
                            file.write(rng.bytes(100))
            with Database(COLUMNS, path=copy) as database:
                np.testing.assert_array_equal(dense(database), self.committed)
                database.append(np.ones((1, COLUMNS)))  # and it goes on
            with Database.open(copy, read_only=True) as database:
                np.testing.assert_array_equal(dense(database), np.concatenate([self.committed, np.ones((1, COLUMNS))]))
        finally:
            shutil.rmtree(copy)

    @precondition(lambda self: len(self.committed))
    @rule(seed=NUMBERS, name=st.sampled_from(["segments", "entries", "journal"]))
    def damage(self, seed: int, name: str) -> None:
        """A bit flipped in what was committed: refused, or, where it belongs to the last commit, that one is lost and nothing else."""
        copy = Path(shutil.copytree(self.path, self.folder / "copy"))
        try:
            with Database.open(copy, read_only=True) as database:
                log = getattr(database._logs, name if name != "journal" else "_journal")
                size = {"journal": database._logs.state.number * logs.COMMIT.itemsize}.get(name, log.size * log.dtype.itemsize)
            if size == 0:
                return
            raw = bytearray((copy / f"{name}.bin").read_bytes())
            place = int(np.random.default_rng(seed).integers(8 * size))
            raw[place // 8] ^= 1 << place % 8
            (copy / f"{name}.bin").write_bytes(raw)
            with contextlib.suppress(InputError), Database.open(copy, read_only=True) as database:
                found = dense(database)
                assert len(found) <= len(self.committed) and np.all(found <= self.committed[: len(found)])
                assert database.total < self.committed.sum() or len(found) < len(self.committed)
        finally:
            shutil.rmtree(copy)

    @invariant()
    def is_the_array(self) -> None:
        if not hasattr(self, "database"):
            return
        assert self.database.num_rows == len(self.rows) and self.database.total == self.rows.sum()
        np.testing.assert_array_equal(dense(self.database), self.rows)
        np.testing.assert_array_equal(self.database.totals, self.rows.sum(1))
        np.testing.assert_array_equal(self.database.lengths, (self.rows > 0).sum(1))
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


class StoreMachine(RuleBasedStateMachine):
    """A store that is written, read, replaced and damaged: it is what the last write that came to its end has left."""

    opened = Bundle("opened")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "a.store"
        self.rows: np.ndarray | None = None

    def blocks(self, seed: int, sizes: list[int]) -> list[np.ndarray]:
        out = [counts(seed + i, size, 300) for i, size in enumerate(sizes)]
        out[0][0, 0] += 1
        return out

    @rule(seed=NUMBERS, sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), small=st.booleans())
    def write(self, seed: int, sizes: list[int], small: bool) -> None:
        """In one shard, or in one for each block."""
        made = self.blocks(seed, sizes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "SHARD_ENTRIES", 1 if small else 1 << 22)
            store.write(self.path, iter(made), overwrite=self.rows is not None)
        self.rows = np.concatenate(made)

    @precondition(lambda self: self.rows is not None)
    @rule(seed=NUMBERS)
    def not_over_another(self, seed: int) -> None:
        with pytest.raises(InputError, match="already holds a store"):
            store.write(self.path, self.blocks(seed, [2]))

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

        there = self.path.exists()
        with pytest.raises((RuntimeError, KeyboardInterrupt, InputError)):
            store.write(self.path, source(), overwrite=True)
        assert self.path.exists() == there

    @rule(name=st.sampled_from(["0123abcd.rows", "0123abcd-00000.counts", ".tmp-1-manifest.json"]))
    def killed_writer(self, name: str) -> None:
        """What a writer that was killed leaves is no part of the store, and is removed by the next."""
        self.path.mkdir(exist_ok=True)
        (self.path / name).write_bytes(b"\0" * 40)

    @precondition(lambda self: self.path.exists())
    @rule()
    def strange_file(self) -> None:
        """A folder that holds something else is not written to."""
        (self.path / "notes.txt").write_text("mine")
        with pytest.raises(InputError, match=r"notes\.txt"):
            store.write(self.path, self.blocks(0, [1]), overwrite=True)
        assert (self.path / "notes.txt").read_text() == "mine"
        (self.path / "notes.txt").unlink()

    @rule()
    def second_writer(self) -> None:
        self.path.mkdir(exist_ok=True)
        with contextlib.closing(files.lock(self.path, "wait")), pytest.raises(InputError, match="open for writing already"):
            store.write(self.path, self.blocks(0, [1]), overwrite=True)

    @precondition(lambda self: self.rows is not None)
    @rule(target=opened)
    def keep_open(self):
        """Whoever has a store open keeps it, whatever takes its place."""
        return store.read(self.path), self.rows

    @rule(one=opened, seed=NUMBERS)
    def read_what_is_open(self, one, seed: int) -> None:
        corpus, rows = one
        chosen = np.random.default_rng(seed).integers(0, len(rows), 7)
        np.testing.assert_array_equal(corpus.matrix[chosen].toarray(), rows[chosen])
        assert corpus.hash == data.counts(rows).hash and corpus.total == rows.sum()

    @precondition(lambda self: self.rows is not None)
    @rule(seed=NUMBERS, how=st.sampled_from(["flip", "cut", "remove", "empty"]))
    def damage(self, seed: int, how: str) -> None:
        """Any file of it: refused; or, a bit in a place that says nothing, the same."""
        copy = Path(shutil.copytree(self.path, self.folder / "copy.store"))
        rng = np.random.default_rng(seed)
        try:
            mark = store._manifest(copy)["mark"]
            mine = [file for file in sorted(copy.iterdir()) if file.name.startswith(mark) or file.name == "manifest.json"]
            file = mine[rng.integers(len(mine))]
            raw = bytearray(file.read_bytes())
            if how != "remove" and not raw:
                return
            if how == "remove":
                file.unlink()
            elif how == "flip":
                raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
                file.write_bytes(raw)
            else:
                file.write_bytes(raw[: rng.integers(len(raw)) if how == "cut" else 0])
            try:
                found = store.read(copy)
            except InputError as error:
                assert "\n" not in str(error)
            else:
                assert how == "flip" and file.name == "manifest.json"
                np.testing.assert_array_equal(found.matrix.tocsr().toarray(), self.rows)
        finally:
            shutil.rmtree(copy)

    @invariant()
    def is_the_array(self) -> None:
        if self.rows is None:
            if self.path.exists():
                with pytest.raises(InputError, match="incomplete"):
                    store.read(self.path)
            return
        for verify in (True, False):
            corpus = store.read(self.path, verify)
            np.testing.assert_array_equal(corpus.matrix.tocsr().toarray(), self.rows)
            np.testing.assert_array_equal(corpus.totals, self.rows.sum(1))
        strays = {name.split(".")[0].split("-")[0] for name in os.listdir(self.path)}
        assert len(strays - {"lock", "manifest", "", "0123abcd"}) == 1, "files of a store that was replaced are still there"

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """The disk need not keep up: no power is cut here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("machine", [DatabaseMachine, StoreMachine])
def test_random_calls(machine):
    run_state_machine_as_test(machine, settings=FAST)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [DatabaseMachine, StoreMachine])
def test_many_random_calls(machine):
    run_state_machine_as_test(machine, settings=LONG)
