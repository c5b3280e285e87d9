"""Laws of `pp_models.data.formats.writers`: what is read back is what was written."""

import itertools
import os
import shutil

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pp_models.data import corpus, counts, dense, ratings, text_and_votes
from pp_models.data.formats import readers, writers
from pp_models.errors import InputError

NAMES = ["x.npz", "x.npy", "x.mtx", "x.csv"]
SETTINGS = settings(
    max_examples=25,
    deadline=2000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """Whether bytes survive a power cut is not tested here, and waiting for the disk takes most of
    the time.
    """
    monkeypatch.setattr(os, "fsync", lambda file: None)


@st.composite
def corpora(draw):
    """Small matrices of counts, with empty rows and columns anywhere, with and without names."""
    shape = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    cells = st.one_of(st.just(0), st.integers(0, 12), st.just(2**24 - 1))
    X = np.array(
        draw(st.lists(cells, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    ).reshape(shape)
    X[draw(st.integers(0, shape[0] - 1)), draw(st.integers(0, shape[1] - 1))] = 1
    name = st.text(
        st.characters(exclude_characters="\0\r\n\ufeff", exclude_categories=["Cs"]), max_size=4
    )
    words, titles = (
        draw(st.none() | st.lists(name, min_size=size, max_size=size))
        for size in (shape[1], shape[0])
    )
    return counts(X, words, titles)


def same(found, data):
    assert found.kind == data.kind and found.hash == data.hash
    assert (found.column_names, found.row_names) == (data.column_names, data.row_names)


def fresh(folder):
    """A new folder: names beside one file are not another's."""
    fresh.number = getattr(fresh, "number", 0) + 1
    (place := folder / str(fresh.number)).mkdir()
    return place


# Round trips --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "x.h5ad"])
@SETTINGS
@given(data=corpora())
@example(data=counts([[0, 1, 0]]))
@example(data=counts([[1], [0]]))
@example(data=counts([[0, 0], [1, 0], [0, 0]], row_names=["", "", ""]))
def test_round_trip(tmp_path, name, data):
    """Reading gives back what was written, names, empty rows and empty columns included, as a whole
    and in blocks.
    """
    path = fresh(tmp_path) / name
    if name.endswith(".h5ad"):
        same(corpus.read(corpus.write(path, data)), data)
        return
    writers.write(data, path)
    same(readers.read(path), data)
    parts = list(readers.blocks(path))
    assert (
        sum(part.shape[0] for part in parts) == data.num_rows
        and sum(part.data.sum(dtype=np.float64) for part in parts) == data.total
    )


@settings(
    max_examples=4,
    deadline=20_000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=corpora())
def test_round_trips_between_all_formats(tmp_path, data):
    """From any format into any other and back, nothing changes: the way of every pair is the
    identity.
    """
    for first, second in itertools.permutations(NAMES, 2):
        folder = fresh(tmp_path)
        start = writers.write(data, folder / f"a{first}")
        writers.write(readers.read(start), folder / second)
        same(readers.read(folder / second), data)
        (folder / "back").mkdir()
        writers.write(readers.read(folder / second), folder / "back" / start.name)
        assert (folder / "back" / start.name).read_bytes() == start.read_bytes() or first.endswith(
            ".npz"
        )  # archives hold the time


def test_a_corpus_is_written_as_its_data(tmp_path):
    """A corpus on disk is written like one in memory."""
    X = np.random.default_rng(0).poisson(0.5, (20, 6))
    X[-1] = X[:, -1] = 0
    X[0, 0] = 1
    found = corpus.read(corpus.write(tmp_path / "x.h5ad", X))
    for name in NAMES:
        writers.write(found, tmp_path / name)
        same(readers.read(tmp_path / name), counts(X))


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.csv"])
def test_ratings(tmp_path, name):
    """Ratings come back exactly, those of zero included, with users' and items' names."""
    rng = np.random.default_rng(0)
    users, items = np.divmod(rng.permutation(40)[:25], 5)
    users, items = (
        np.append(users, np.setdiff1d(np.arange(8), users)),
        np.append(items, np.zeros(8 - len(np.unique(users)), int)),
    )
    values = np.append(0.0, rng.normal(size=len(users) - 1) / 3)
    data = ratings(
        users, items, values, row_names=[f"u{i}" for i in range(8)], column_names=list("abcde")
    )
    writers.write(data, tmp_path / name)
    same(readers.read_ratings(tmp_path / name), data)


def test_dense(tmp_path):
    """Real numbers come back exactly."""
    values = np.random.default_rng(0).normal(size=(7, 3)) / 3
    data = dense(values, column_names=["a", "b", "c"], row_names=list("1234567"))
    writers.write(data, tmp_path / "x.npy")
    same(readers.read_dense(tmp_path / "x.npy"), data)


# What cannot be written, and what must not be lost ------------------------------------------------


def test_nothing_is_overwritten_unasked(tmp_path):
    """A file that is there stays, and so do names beside it that another file may need, unless they
    are to be overwritten.
    """
    data, other = counts([[1, 2]], ["a", "b"]), counts([[3, 4]], ["c", "d"])
    writers.write(data, tmp_path / "x.npz")
    with pytest.raises(InputError, match=r"x\.npz is there already"):
        writers.write(other, tmp_path / "x.npz")
    with pytest.raises(InputError, match=r"x\.vocab is there already"):
        writers.write(other, tmp_path / "x.csv")
    assert sorted(os.listdir(tmp_path)) == ["x.npz", "x.vocab"]
    same(readers.read(tmp_path / "x.npz"), data)
    writers.write(other, tmp_path / "x.npz", overwrite=True)
    same(readers.read(tmp_path / "x.npz"), other)


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    """Another process may write there while the rows are written."""
    data, other = counts([[1, 2]], ["a", "b"]), counts([[3, 4]], ["c", "d"])
    theirs, mine = fresh(tmp_path), tmp_path / "mine"
    writers.write(data, theirs / "x.csv")
    write = writers._write

    def slowly(*arguments):
        shutil.copytree(theirs, mine, dirs_exist_ok=True)
        write(*arguments)

    monkeypatch.setattr(writers, "_write", slowly)
    with pytest.raises(InputError, match=r"x\.csv is there already"):
        writers.write(other, mine / "x.csv")
    same(readers.read(mine / "x.csv"), data)
    assert sorted(os.listdir(mine)) == ["x.csv", "x.vocab"]


def test_links_stay_links(tmp_path):
    """What is written over a link is written to where it leads."""
    (tmp_path / "elsewhere").mkdir()
    writers.write(counts([[1, 2]]), tmp_path / "elsewhere" / "y.csv")
    (tmp_path / "x.csv").symlink_to(tmp_path / "elsewhere" / "y.csv")
    with pytest.raises(InputError, match="is there already"):
        writers.write(counts([[3, 4]]), tmp_path / "x.csv")
    writers.write(counts([[3, 4]]), tmp_path / "x.csv", overwrite=True)
    assert (tmp_path / "x.csv").is_symlink() and readers.read(
        tmp_path / "elsewhere" / "y.csv"
    ).total == 7


def test_names_of_others_are_not_taken_over(tmp_path):
    """Data without names are not written to where other names lie and would be read with them."""
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match=r"vocab\.txt would be taken for names of the data"):
        writers.write(counts([[1, 2]]), tmp_path / "x.npz", overwrite=True)
    assert os.listdir(tmp_path) == ["vocab.txt"]


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    """A disk that fills up in the middle leaves the old files, whole, and no others."""
    data, other = counts([[1, 2]], ["a", "b"]), counts([[3, 4]], ["c", "d"])
    writers.write(data, tmp_path / "x.csv")

    def full(*_):
        raise OSError(28, "No space left on device")

    for function in ("fsync", "replace"):
        with (
            monkeypatch.context() as patch,
            pytest.raises(InputError, match=r"x\.csv cannot be written \(No space left"),
        ):
            patch.setattr(os, function, full)
            writers.write(other, tmp_path / "x.csv", overwrite=True)
        assert sorted(os.listdir(tmp_path)) == ["x.csv", "x.vocab"]
        same(readers.read(tmp_path / "x.csv"), data)


def test_names_stay_with_their_data(tmp_path):
    """Where a folder is in the way of one file, none is put in place."""
    data, other = counts([[1, 2]], ["a", "b"]), counts([[3, 4]], ["c", "d"], ["r"])
    writers.write(data, tmp_path / "x.csv")
    (tmp_path / "x.rows").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        writers.write(other, tmp_path / "x.csv", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["x.csv", "x.rows", "x.vocab"]
    same(readers.read(tmp_path / "x.csv"), data)


BAD = {
    "unknown name": (counts([[1]]), "x.xls", r"end the name in \.npz, .*\.h5ad"),
    "only read": (counts([[1]]), "x.parquet", "counts data are not written to a file of this name"),
    "compressed array": (counts([[1]]), "x.npy.gz", "not written"),
    "a line break in a name": (counts([[1]], ["a\nb"]), "x.csv", "line break"),
    "a return at the end of a name": (counts([[1]], ["a\r"]), "x.csv", "line break"),
    "half a character": (counts([[1]], ["a\ud800"]), "x.csv", "UTF-8"),
    "ratings as LDA-C": (ratings([0], [0], [1.0]), "x.ldac", r"ratings data are not .* \.npz"),
    "dense as npz": (dense([[0.5]]), "x.npz", r"dense data are not written .* \.npy"),
    "silent user": (ratings([1], [0], [1.0]), "x.csv", r"user 0 has no ratings.*\.npz"),
    "silent item": (ratings([0], [0], [1.0], shape=(1, 2)), "x.csv", "item 1 has no ratings"),
    "votes": (text_and_votes([[1]], [[1]]), "x.npz", "text_and_votes data are not written"),
    "too large an array": (
        counts(scipy.sparse.csr_array(([1], ([0], [0])), shape=(100_000, 100_000))),
        "x.npy",
        "too many cells",
    ),
}


def test_what_a_format_cannot_hold(tmp_path):
    """One sentence, and nothing is written."""
    for data, name, words in BAD.values():
        with pytest.raises(InputError, match=words):
            writers.write(data, tmp_path / name)
        assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way(tmp_path):
    """A folder is not replaced by a file, nor is a file taken for a folder."""
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        writers.write(counts([[1]]), tmp_path / "x.csv", overwrite=True)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError, match="cannot be written"):
        writers.write(counts([[1]]), tmp_path / "file" / "x.csv", overwrite=True)
