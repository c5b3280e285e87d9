"""Laws of `pp_models.store`: a store is the data it was written from, bit for bit, whatever happens to its writer; damage is one clear sentence."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import inference
from pp_models import binary, datasets, files, scanning, store
from pp_models.data import counts, ratings, text_and_votes
from pp_models.database import Database
from pp_models.errors import InputError


@pytest.fixture
def small(monkeypatch):
    """Shards and blocks of a few entries, and pages given back at every turn, so that a small corpus meets every seam."""
    monkeypatch.setattr(store, "SHARD_ENTRIES", 7)
    monkeypatch.setattr(store, "BLOCK_ROWS", 3)
    monkeypatch.setattr(store, "RESIDENT_ROWS", 4)


def corpus(seed=0, rows=40, columns=12, named=True):
    rng = np.random.default_rng(seed)
    X = rng.poisson(0.4, (rows, columns))
    X[[0, 5, rows - 1]] = 0  # empty rows, first and last
    X[:, -1] = 0  # and a column that nobody uses
    X[3, 2] = 70_000  # and a count that needs 32 bits
    names = {"column_names": [f"wörd {i}" for i in range(columns)], "row_names": [f"d{i}" for i in range(rows)]} if named else {}
    return counts(scipy.sparse.csr_array(X), **names)


def same(found, data):
    assert found.hash == data.hash and (found.num_rows, found.num_columns) == (data.num_rows, data.num_columns)
    assert (found.column_names, found.row_names) == (data.column_names, data.row_names)
    np.testing.assert_array_equal(found.select(np.arange(data.num_rows)).matrix.toarray(), data.matrix.toarray())


# A store is its data --------------------------------------------------------------------------------------------------------------


def test_a_store_is_a_data(tmp_path, small):
    """Sizes, sums, hash and rows in any order are those of the data in memory, across shards."""
    data = corpus()
    found = store.read(store.write(tmp_path / "x.store", data))
    same(found, data)
    assert len(list((tmp_path / "x.store").glob("*.columns"))) > 3
    assert (found.total, found.num_entries) == (data.total, data.num_entries)
    np.testing.assert_array_equal(found.lengths, data.lengths)
    np.testing.assert_array_equal(found.totals, data.totals)
    np.testing.assert_array_equal(found._log_factorials, data._log_factorials)
    for axis in (0, 1, None):
        np.testing.assert_array_equal(found.matrix.sum(axis=axis, dtype=np.float64), data.matrix.sum(axis=axis, dtype=np.float64))
    for rows in (np.array([39, 3, 3, 0]), np.arange(40) % 3 == 1, slice(7, 2, -1), np.array([-1, 4]), np.zeros(0, int)):
        mine, theirs = found.select(rows), data.select(rows)
        np.testing.assert_array_equal(mine.matrix.toarray(), theirs.matrix.toarray())
        assert mine.row_names == theirs.row_names and mine.matrix.has_canonical_format and type(mine) is type(data)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choice=st.data())
def test_any_counts_survive(tmp_path, small, choice):
    """Whatever the counts, their sizes, and the blocks they are written in."""
    shape = choice.draw(st.tuples(st.integers(1, 9), st.integers(1, 5)))
    cells = st.one_of(st.just(0), st.sampled_from([1, 255, 256, 65535, 65536, 2**24 - 1]), st.integers(0, 300))
    X = np.array(choice.draw(st.lists(cells, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))).reshape(shape)
    X[choice.draw(st.integers(0, shape[0] - 1)), choice.draw(st.integers(0, shape[1] - 1))] = 1
    cuts = sorted(choice.draw(st.sets(st.integers(1, shape[0]), max_size=4)) | {shape[0]})
    parts = [X[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
    same(store.read(store.write(tmp_path / "x.store", iter(parts), overwrite=True)), counts(X))


def test_totals_beyond_single_precision(tmp_path):
    """Rows of more tokens than single precision counts have their exact totals, in memory and on disk."""
    data = counts([[2**24 - 1, 2**24 - 1, 1]])
    found = store.read(store.write(tmp_path / "x.store", data))
    assert data.total == found.total == data.totals[0] == found.totals[0] == 2**25 - 1


def test_columns_beyond_sixteen_bits(tmp_path):
    """Shards hold columns in the narrowest type that fits, and all columns come back."""
    columns = np.array([0, 255, 256, 65535, 65536, 99_999])
    X = scipy.sparse.csr_array((np.ones(6), (np.arange(6), columns)), shape=(6, 100_000))
    same(store.read(store.write(tmp_path / "x.store", X)), counts(X))


def test_more_shards_than_open_files(tmp_path, monkeypatch):
    """A store may have more shards than a process may have files open at first."""
    monkeypatch.setattr(store, "SHARD_ENTRIES", 1)
    path = store.write(tmp_path / "x.store", [[[1, 2]]] * 80)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 50, before[1]))
    try:
        assert len(store.read(path).matrix.shards) == 80
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_batches_are_the_same(tmp_path, small):
    """A shuffled pass gives the batches that it gives in memory: every array, on every device, and the same static sizes."""
    data = corpus(rows=50)
    found = store.read(store.write(tmp_path / "x.store", data))
    devices = jax.local_devices()[:1] * 2
    passes = [list(d.batches(jax.random.key(3), 16, devices)) for d in (found, data)]
    assert jax.tree.structure(passes[0]) == jax.tree.structure(passes[1])
    for mine, theirs in zip(*map(jax.tree.leaves, passes), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_engines_take_a_store(tmp_path, small):
    """A stochastic fit to the store is the fit to the data, and names and hash travel with it."""
    data = corpus(rows=50)
    found = store.read(store.write(tmp_path / "x.store", data))
    settings = {"hyper": {"num_topics": 3}, "num_epochs": 2, "batch_size": 10, "progress": False}
    mine, theirs = (inference.fit("lda", d, "svi", **settings) for d in (found, data))
    np.testing.assert_array_equal(mine.posterior.mean("beta"), theirs.posterior.mean("beta"))
    assert mine.provenance == theirs.provenance
    assert inference.top_words(mine, 3) == inference.top_words(theirs, 3)
    assert inference.document_completion(mine, found).value == inference.document_completion(theirs, data).value


# Sources --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.mtx", "x.ldac", "docword.x.txt.gz", "x.csv", "x.tsv.gz"])
def test_any_file_becomes_a_store(tmp_path, small, monkeypatch, name):
    """A store written from a file in blocks is what reading the file gives, names included."""
    from pp_models import writers

    writers.write(corpus(), tmp_path / name)
    monkeypatch.setattr(scanning, "BLOCK_BYTES", 40)
    monkeypatch.setattr(binary, "BLOCK_ENTRIES", 5)
    same(store.read(store.write(tmp_path / "y.store", tmp_path / name)), corpus())


def test_other_sources(tmp_path, small):
    """A database, a store, blocks of `Data` with names, and matrices."""
    data = corpus()
    with Database(data.num_columns, path=tmp_path / "db", column_names=data.column_names) as database:
        database.append(data)
        bare = corpus(named=False)
        for source in (database, tmp_path / "db"):
            found = store.read(store.write(tmp_path / "a.store", source, overwrite=True))
            assert found.hash == bare.hash and found.column_names == data.column_names
        assert datasets.load(tmp_path / "db").hash == bare.hash
    halves = [data.select(np.arange(17)), data.select(np.arange(17, 40))]
    same(store.read(store.write(tmp_path / "b.store", halves)), data)
    same(store.read(store.write(tmp_path / "c.store", tmp_path / "b.store")), data)
    same(store.read(store.write(tmp_path / "b.store", tmp_path / "b.store", overwrite=True)), data)  # onto itself
    same(store.read(store.write(tmp_path / "d.store", data.matrix, data.column_names, data.row_names)), data)
    same(datasets.load(tmp_path / "d.store"), data)


def test_progress_counts_rows(tmp_path, small):
    """`on_rows` is told of every row once."""
    seen = []
    store.write(tmp_path / "x.store", corpus(), on_rows=seen.append)
    assert sum(seen) == 40 and len(seen) == 14


# Writers that fail ----------------------------------------------------------------------------------------------------------------


def interrupted(data):
    yield data.matrix[:10]
    raise KeyboardInterrupt


@pytest.mark.parametrize("bad", [[[1, -1]], [[0.5, 1]], [["a", "b"]]])
def test_a_failure_leaves_what_was_there(tmp_path, small, bad):
    """Bad rows, or an interruption, leave the old store untouched, or nothing where there was none."""
    data = corpus()
    for source, error in ((lambda: iter([data.matrix, np.array(bad)]), InputError), (lambda: interrupted(data), KeyboardInterrupt)):
        with pytest.raises(error):
            store.write(tmp_path / "new.store", source())
        assert not (tmp_path / "new.store").exists()
        path = store.write(tmp_path / "old.store", data, overwrite=True)
        before = {file.name for file in path.iterdir()}
        with pytest.raises(error):
            store.write(path, source(), overwrite=True)
        assert {file.name for file in path.iterdir()} == before
        same(store.read(path), data)


def test_nothing_is_overwritten_unasked(tmp_path):
    """A store, a file and a folder of other files are refused and stay; asked to, a store is replaced, and those who have it open keep it."""
    data, other = corpus(), corpus(seed=1)
    path = store.write(tmp_path / "x.store", data)
    opened = store.read(path)
    with pytest.raises(InputError, match="already holds a store"):
        store.write(path, other)
    same(store.read(path), data)
    store.write(path, other, overwrite=True)
    same(store.read(path), other)
    same(opened, data)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("kept")
    with pytest.raises(InputError, match=r"other files, such as thesis\.tex"):
        store.write(tmp_path / "mine", data, overwrite=True)
    (tmp_path / "file.store").write_text("kept")
    with pytest.raises(InputError, match="is a file"):
        store.write(tmp_path / "file.store", data, overwrite=True)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_at_any_moment(tmp_path, monkeypatch, call):
    """Whichever operation on the disk fails, the folder is the old store or, where the manifest was replaced before, the new one."""
    old, new = corpus(), corpus(seed=1)
    real, found = getattr(os, call), []
    for number in range(100):
        path, left = store.write(tmp_path / "x.store", old, overwrite=True), [number]

        def failing(*arguments, left=left):
            left[0] -= 1
            if left[0] == -1:
                raise OSError(28, "No space left on device")
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            with contextlib.suppress(InputError):
                store.write(path, new, overwrite=True)
        found.append({old.hash: "old", new.hash: "new"}[store.read(path).hash])
        if left[0] >= 0:
            break
    assert found[0] == "old" and found[-1] == "new" and found == sorted(found, reverse=True) and left[0] == 0


def test_a_store_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    """Another process may finish a store between the first look and the lock."""
    path = tmp_path / "x.store"

    def late(folder, advice):
        monkeypatch.setattr(store, "lock", files.lock)
        store.write(folder, corpus())
        return files.lock(folder, advice)

    monkeypatch.setattr(store, "lock", late)
    with pytest.raises(InputError, match="already holds a store"):
        store.write(path, corpus(seed=1))
    same(store.read(path), corpus())


def test_a_store_that_is_replaced_while_it_is_opened(tmp_path, monkeypatch):
    """A reader that meets a writer gets one of the two stores, not a complaint of damage."""
    path, check = store.write(tmp_path / "x.store", corpus()), store._check_file

    def meanwhile(*arguments):
        monkeypatch.setattr(store, "_check_file", check)
        store.write(path, corpus(seed=1), overwrite=True)
        check(*arguments)

    monkeypatch.setattr(store, "_check_file", meanwhile)
    same(store.read(path), corpus(seed=1))


def test_one_writer_at_a_time(tmp_path):
    """While one process writes, a second is refused, and what the first wrote stays."""
    path = store.write(tmp_path / "x.store", corpus())
    with contextlib.closing(files.lock(path, "wait")), pytest.raises(InputError, match="open for writing already, by process"):
        store.write(path, corpus(seed=1), overwrite=True)
    same(store.read(path), corpus())


def failing_source():
    yield np.ones((1, 2))
    raise FileNotFoundError(2, "No such file or directory", "theirs.txt")


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ([np.zeros((2, 3))], {}, "empty"),
        ([], {}, "empty"),
        ([[[1, 2]]], {"column_names": ["a"]}, "1 column names for 2 columns"),
        ([[[1, 2]]], {"row_names": ["a", "b"]}, "2 row names for 1 rows"),
        ([[[1, 2]]], {"column_names": ["a\nb", "c"]}, "line of its own"),
        ([text_and_votes([[1]], [[1]])], {}, "not text_and_votes"),
        ([ratings([0], [0], [1.0])], {}, "not ratings"),
        (failing_source(), {}, "rows to be stored cannot be read .*theirs.txt"),
        ("nowhere.npz", {}, "does not exist"),
        (5, {}, "not from int"),
    ],
)
def test_bad_sources(tmp_path, source, options, words):
    """Rows and names that cannot be stored are one sentence, and nothing is left."""
    with pytest.raises(InputError, match=words):
        store.write(tmp_path / "x.store", source, **options)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, random, signal, sys, time, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import numpy as np
from pp_models import store
from pp_models.data import counts
from pp_models.errors import InputError
store.SHARD_ENTRIES, store.BLOCK_ROWS = 100, 15
old, new = (counts(np.random.default_rng(seed).poisson(1.0, (60, 8)), row_names=[f"{seed}-{i}" for i in range(60)]) for seed in (0, 1))
random.seed(0)

def in_child(work, delay=None):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1] == signal.SIGKILL

def dying(place, number):  # the process kills itself at the number-th operation on the disk
    left = [number]
    def wrap(function):
        def counted(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)
        return counted
    os.fsync, os.replace, Path.open, Path.unlink, Path.mkdir = map(wrap, (os.fsync, os.replace, Path.open, Path.unlink, Path.mkdir))
    store.write(place, new, overwrite=True)

def state(place):
    if not place.exists():
        return "absent"
    try:
        return {old.hash: "old", new.hash: "new"}.get(store.read(place).hash, "damaged")
    except InputError as error:
        return "incomplete" if "incomplete store" in str(error) else f"damaged: {error}"

found = {}
root = Path(sys.argv[1])
for kind in ("fresh", "over"):
    number, killed = 0, True
    while killed:
        place = root / f"{kind}{number}.store"
        if kind == "over":
            store.write(place, old)
        killed = in_child(lambda: dying(place, number))
        found.setdefault(kind, []).append(state(place))
        store.write(place, old, overwrite=True)  # the next writer is not disturbed, and leaves nothing of the last
        assert state(place) == "old" and len({f.name[:8] for f in place.iterdir() if f.name not in ("lock", "manifest.json")}) == 1
        number += 1

def busy():
    while True:
        store.write(place, new, overwrite=True)
        store.write(place, old, overwrite=True)
place = root / "busy.store"
store.write(place, old)
for _ in range(20):
    assert in_child(busy, random.uniform(0.0, 0.03))
    found.setdefault("busy", []).append(state(place))
import json
print(json.dumps(found))
"""


def test_a_killed_writer(tmp_path):
    """Killed at any operation on the disk, or at any moment, a writer leaves the old store, the new one, or a folder that says it is incomplete."""
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=120)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert len(found["fresh"]) > 15 and len(found["over"]) > 15
    assert set(found["fresh"]) <= {"absent", "incomplete", "new"} and "incomplete" in found["fresh"] and found["fresh"][-1] == "new"
    assert set(found["over"]) == {"old", "new"} and found["over"][0] == "old" and found["over"][-1] == "new"
    assert set(found["busy"]) <= {"old", "new"}


# Damage ---------------------------------------------------------------------------------------------------------------------------


def damaged(path):
    with pytest.raises(InputError) as caught:
        store.read(path)
    message = str(caught.value)
    assert path.name in message and message.endswith(".") and "\n" not in message
    return message


@pytest.mark.parametrize("how", ["flip", "cut", "missing", "longer"])
def test_damage_to_any_file_is_found(tmp_path, small, how):
    """A byte changed, lost or added anywhere, or a file that is gone, is found when the store is opened."""
    path = store.write(tmp_path / "x.store", corpus())
    for file in sorted(path.iterdir()):
        raw = file.read_bytes()
        if file.name == "lock" or not raw:
            continue
        changed = {"flip": raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:] if len(raw) > 4 else bytes([raw[0] ^ 1]) + raw[1:], "cut": raw[:-1]}
        if how == "missing":
            file.unlink()
        else:
            file.write_bytes(changed.get(how, raw + b"}"))
        damaged(path)
        file.write_bytes(raw)
    same(store.read(path), corpus())


JSON = st.recursive(
    st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.sampled_from(["format", "files", "checksum", "shards"]), x)
)


@settings(max_examples=60, deadline=2000, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.one_of(st.binary(max_size=60), JSON.map(lambda x: json.dumps(x).encode())))
def test_any_manifest(tmp_path, raw):
    """Any bytes in place of the manifest are one sentence."""
    path = tmp_path / "x.store"
    path.mkdir(exist_ok=True)
    (path / "manifest.json").write_bytes(raw)
    damaged(path)


def test_what_is_no_store(tmp_path):
    """A missing folder, a file, an empty folder and a folder of other things are told apart."""
    assert "does not exist" in damaged(tmp_path / "x.store")
    (tmp_path / "file").write_text("")
    assert "is a file" in damaged(tmp_path / "file")
    (tmp_path / "x.store").mkdir()
    assert "incomplete store" in damaged(tmp_path / "x.store")
    (tmp_path / "x.store" / "notes.txt").write_text("mine")
    assert "notes.txt" in damaged(tmp_path / "x.store")
    shutil.rmtree(tmp_path / "x.store")
    path = store.write(tmp_path / "x.store", corpus())
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": "pp-models store 99"}))
    assert "upgrade" in damaged(path)
    (path / "manifest.json").write_text("{")
    damaged(path)
    store.write(path, corpus(seed=1), overwrite=True)  # a damaged store may be written again
    same(store.read(path), corpus(seed=1))


READ_ALL = """
import re, sys, numpy as np
from pathlib import Path
from pp_models import store
corpus = store.read(sys.argv[1], verify=False)
def megabytes(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
some = corpus.select(np.arange(1000))
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
before, total = megabytes("VmRSS"), 0.0
for rows in np.random.default_rng(0).permutation(corpus.num_rows).reshape(-1, 1000):
    total += corpus.select(rows).matrix.sum(dtype=np.float64)
print(corpus.total == total, megabytes("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted as Linux does")
def test_reading_takes_little_memory(tmp_path):
    """A shuffled pass over a store of 20 million entries takes below 100 MB: its files, 60 MB, are mapped, and rows of a batch are copied.

    In memory they are 160 MB. That pages are given back shows from some hundred MB on, which `benchmarks/corpus_store.py` reads.
    """
    columns = 50 * np.arange(100)

    def blocks():
        for i in range(10):
            indices = np.concatenate([columns + (i + j) % 50 for j in range(20_000)]).astype(np.int32)
            yield scipy.sparse.csr_array((np.ones(len(indices), np.float32), indices, 100 * np.arange(20_001)), shape=(20_000, 5_000))

    path = store.write(tmp_path / "large.store", blocks())
    result = subprocess.run([sys.executable, "-c", READ_ALL, str(path)], capture_output=True, text=True, check=True)
    right, more = result.stdout.split()
    assert right == "True" and float(more) < 100, more
