"""Laws of `pp_models.data.corpus`: a corpus is the data it was written from, bit for bit, whatever
happens to its writer; AnnData reads it, and we read AnnData's; damage is one sentence."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import zlib

import h5py
import jax
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import inference
from inference.cli import main
from pp_models import datasets
from pp_models.data import corpus, counts, files, ratings, text_and_votes
from pp_models.data.conversion import convert
from pp_models.data.database import Database
from pp_models.data.formats import h5ad, matrices, names, numbers, readers, writers
from pp_models.errors import InputError


@pytest.fixture
def small(monkeypatch):
    """Small blocks, and pages given back at every turn: a small corpus meets every seam."""
    monkeypatch.setattr(corpus, "BLOCK_ENTRIES", 7)
    monkeypatch.setattr(h5ad, "BLOCK_ENTRIES", 7)
    monkeypatch.setattr(corpus, "BLOCK_ROWS", 3)
    monkeypatch.setattr(corpus, "RESIDENT_ROWS", 4)


def example(seed=0, rows=40, columns=12, named=True):
    rng = np.random.default_rng(seed)
    X = rng.poisson(0.4, (rows, columns))
    X[[0, 5, rows - 1]] = 0  # empty rows, first and last
    X[:, -1] = 0  # and a column that nobody uses
    X[3, 2] = 70_000
    names = {
        "column_names": [f"wörd {i}" for i in range(columns)],
        "row_names": [f"d\n{i}" for i in range(rows)],
    }
    return counts(scipy.sparse.csr_array(X), **(names if named else {}))


def same(found, data):
    assert found.hash == data.hash and (found.num_rows, found.num_columns) == (
        data.num_rows,
        data.num_columns,
    )
    assert (found.column_names, found.row_names) == (data.column_names, data.row_names)
    np.testing.assert_array_equal(
        found.select(np.arange(data.num_rows)).matrix.toarray(), data.matrix.toarray()
    )


# A corpus is its data -----------------------------------------------------------------------------


def test_a_corpus_is_a_data(tmp_path, small):
    """Sizes, sums, hash and rows in any order are those of the data in memory."""
    data = example()
    found = corpus.read(corpus.write(tmp_path / "x.h5ad", data))
    same(found, data)
    assert (found.total, found.num_entries) == (data.total, data.num_entries)
    for name in ("lengths", "totals", "_log_factorials"):
        np.testing.assert_array_equal(getattr(found, name), getattr(data, name))
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found.matrix, name), getattr(data.matrix, name))
    for axis in (0, 1, None):
        np.testing.assert_array_equal(
            found.matrix.sum(axis=axis, dtype=np.float64),
            data.matrix.sum(axis=axis, dtype=np.float64),
        )
    for rows in (
        np.array([39, 3, 3, 0]),
        np.arange(40) % 3 == 1,
        slice(7, 2, -1),
        np.array([-1, 4]),
        np.zeros(0, int),
        np.array([5, 6, 7]),
    ):
        mine, theirs = found.select(rows), data.select(rows)
        np.testing.assert_array_equal(mine.matrix.toarray(), theirs.matrix.toarray())
        assert (
            mine.row_names == theirs.row_names
            and mine.matrix.has_canonical_format
            and type(mine) is type(data)
        )


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(choice=st.data())
def test_any_counts_survive(tmp_path, small, choice):
    """Whatever the counts, their sizes, and the blocks they are written in."""
    shape = choice.draw(st.tuples(st.integers(1, 9), st.integers(1, 5)))
    cells = st.one_of(
        st.just(0), st.sampled_from([1, 255, 256, 65536, 2**24 - 1]), st.integers(0, 300)
    )
    X = np.array(
        choice.draw(st.lists(cells, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    ).reshape(shape)
    X[choice.draw(st.integers(0, shape[0] - 1)), choice.draw(st.integers(0, shape[1] - 1))] = 1
    cuts = sorted(choice.draw(st.sets(st.integers(1, shape[0]), max_size=4)) | {shape[0]})
    parts = [X[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
    found = corpus.read(corpus.write(tmp_path / "x.h5ad", iter(parts), overwrite=True))
    same(found, counts(X))
    assert found.total == X.sum()  # exact, beyond single precision


def test_batches_and_fits_are_the_same(tmp_path, small):
    """A shuffled pass gives the batches, and a stochastic fit the posterior, that the data in
    memory give.
    """
    data = example(rows=50)
    found = corpus.read(corpus.write(tmp_path / "x.h5ad", data))
    passes = [
        list(d.batches(jax.random.key(3), 16, jax.local_devices()[:1] * 2)) for d in (found, data)
    ]
    assert jax.tree.structure(passes[0]) == jax.tree.structure(passes[1])
    for mine, theirs in zip(*map(jax.tree.leaves, passes), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    chosen = {"hyper": {"num_topics": 3}, "num_epochs": 2, "batch_size": 10, "progress": False}
    mine, theirs = (inference.fit("lda", d, "svi", **chosen) for d in (found, data))
    np.testing.assert_array_equal(mine.posterior.mean("beta"), theirs.posterior.mean("beta"))
    assert mine.provenance == theirs.provenance and inference.top_words(
        mine, 3
    ) == inference.top_words(theirs, 3)
    assert (
        inference.document_completion(mine, found).value
        == inference.document_completion(theirs, data).value
    )


# AnnData ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.filterwarnings("default")
def test_anndata_reads_a_corpus(tmp_path, named):
    """In memory and backed; its arrays are contiguous and lie where they can be mapped."""
    anndata = pytest.importorskip("anndata")
    data = example(named=named)
    path = corpus.write(tmp_path / "x.h5ad", data)
    theirs, backed = anndata.read_h5ad(path), anndata.read_h5ad(path, backed="r")
    for found in (theirs.X, backed.X[:]):
        np.testing.assert_array_equal(found.toarray(), data.matrix.toarray())
    np.testing.assert_array_equal(
        backed[[7, 3, 30]].to_memory().X.toarray(), data.matrix[[7, 3, 30]].toarray()
    )
    assert tuple(theirs.obs_names) == (data.row_names if named else tuple(map(str, range(40))))
    assert tuple(theirs.var_names) == (data.column_names if named else tuple(map(str, range(12))))
    backed.file.close()
    with h5py.File(path) as file:
        assert all(
            file["X"][name].id.get_offset() % 4 == 0 for name in ("indptr", "indices", "data")
        )


@pytest.mark.parametrize("form", ["csr", "csc", "dense", "layer"])
@pytest.mark.filterwarnings("default")
def test_we_read_what_anndata_writes(tmp_path, small, form):
    """Chunked and compressed, sparse or dense, at once and in blocks; raw counts in a layer come
    first.
    """
    anndata = pytest.importorskip("anndata")
    data = example()
    X = data.matrix.toarray() / (2 if form == "layer" else 1)
    make = {"csr": scipy.sparse.csr_matrix, "csc": scipy.sparse.csc_matrix}.get(form, np.asarray)
    theirs = anndata.AnnData(make(X))
    theirs.obs_names, theirs.var_names = data.row_names, data.column_names
    if form == "layer":
        theirs.layers["counts"] = data.matrix.astype(int)
    for compression in (None, "gzip"):
        theirs.write_h5ad(tmp_path / "theirs.h5ad", compression=compression)
        same(datasets.load(tmp_path / "theirs.h5ad", "lda"), data)
        same(
            corpus.read(
                corpus.write(tmp_path / "ours.h5ad", tmp_path / "theirs.h5ad", overwrite=True)
            ),
            data,
        )
        assert (
            sum(block.shape[0] for block in corpus.open_source(tmp_path / "theirs.h5ad").blocks)
            == 40
        )
    if form == "dense":
        theirs.X = X / 2
        theirs.write_h5ad(tmp_path / "half.h5ad")
        with pytest.raises(InputError, match=r"half\.h5ad: Counts must be whole numbers"):
            datasets.load(tmp_path / "half.h5ad")


@pytest.mark.parametrize("form", ["csr", "csc", "dense"])
@pytest.mark.filterwarnings("default")
def test_we_read_anndata_in_zarr(tmp_path, small, form):
    """Of both versions of the format, at once and in blocks. A codec that unpickles is refused."""
    anndata, zarr = pytest.importorskip("anndata"), pytest.importorskip("zarr")
    data, path = example(), tmp_path / "theirs.zarr"
    make = {"csr": scipy.sparse.csr_matrix, "csc": scipy.sparse.csc_matrix}.get(form, np.asarray)
    theirs = anndata.AnnData(make(data.matrix.toarray()))
    theirs.obs_names, theirs.var_names = data.row_names, data.column_names
    for version in (2, 3):
        with anndata.settings.override(zarr_write_format=version):
            theirs.write_zarr(path)
        same(datasets.load(path, "lda"), data)
        same(corpus.read(corpus.write(tmp_path / f"{version}.h5ad", path)), data)
        shutil.rmtree(path)
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("X", shape=(2, 2), dtype="i4")
    file = path / "X" / ".zarray"
    said = json.loads(file.read_text()) | {"filters": [{"id": "pickle", "protocol": 5}]}
    file.write_text(json.dumps(said).replace("pickle", "\\u0070ickle"))
    for call in (corpus.read, lambda path: corpus.write(tmp_path / "x.h5ad", path)):
        with pytest.raises(InputError, match=r"theirs\.zarr: not .* asks for pickles"):
            call(path)
    with pytest.raises(InputError, match="no such folder"):
        datasets.load(tmp_path / "nowhere.zarr")


def test_files_that_lie(tmp_path):
    """Sizes beyond the file, arrays that do not fit, and arrays elsewhere are refused before they
    are read.
    """

    def lie(change):
        with h5py.File(tmp_path / "lie.h5ad", "w") as file:
            group = file.create_group("X")
            group.attrs.update({"encoding-type": "csr_matrix", "shape": [2, 3]})
            group["indptr"], group["indices"], group["data"] = [0, 1, 2], [0, 2], [1.0, 2.0]
            change(file, group)
        corpus.read(tmp_path / "lie.h5ad")

    def replace(name, **options):
        return lambda file, group: (group.__delitem__(name), group.create_dataset(name, **options))

    (tmp_path / "elsewhere").write_bytes(bytes(16))
    lie(lambda file, group: None)  # as it is, it is read
    for words, change in {
        "250 times its length": replace("data", shape=(10**12,), dtype="f4", chunks=(2**16,)),
        "rows for 2 entries are too many": lambda file, group: group.attrs.update(
            {"shape": [2**40, 3]}
        ),
        "does not ascend from 0": replace("indptr", data=[0, 5, 2]),
        "outside its shape": replace("indices", data=[0, 3]),
        "do not fit together": replace("data", data=[1.0]),
        "in other files": replace(
            "data", shape=(2,), dtype="f8", external=[(str(tmp_path / "elsewhere"), 0, 16)]
        ),
        "not a complete": lambda file, group: file.__delitem__("X"),
        "whole numbers": replace("data", data=[0.5, 1.0]),
    }.items():
        with pytest.raises(InputError, match=rf"lie\.h5ad.*{words}"):
            lie(change)


# Parquet and Arrow --------------------------------------------------------------------------------


def arrow_files(folder, data):
    """The same counts as lists in Parquet and Feather, and as triples in Parquet and Arrow."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    feather, X = pytest.importorskip("pyarrow.feather"), data.matrix
    rows = [slice(*ends) for ends in itertools.pairwise(X.indptr.tolist())]
    lists = pa.table(
        {
            "title": [f"d{i}" for i in range(data.num_rows)],
            "words": [X.indices[row].tolist() for row in rows],
            "counts": [X.data[row].astype(int).tolist() for row in rows],
        }
    )
    entries = X.tocoo()
    columns = {"row": entries.row, "column": entries.col, "value": entries.data}
    triples = pa.table({name: np.asarray(x) for name, x in columns.items()})
    parquet.write_table(lists, folder / "lists.parquet", row_group_size=7)
    feather.write_feather(lists, folder / "lists.feather", chunksize=7)
    parquet.write_table(triples, folder / "triples.parquet")
    with pa.ipc.new_file(str(folder / "triples.arrow"), triples.schema) as writer:
        writer.write_table(triples, max_chunksize=7)
    return [folder / f"{name}.{kind}" for name, kind in ARROW]


ARROW = ("lists", "parquet"), ("lists", "feather"), ("triples", "parquet"), ("triples", "arrow")


def test_parquet_and_arrow(tmp_path):
    """Lists or triples, at once and in blocks; ratings are triples."""
    data = counts(example(named=False).matrix[1:-1, :-1])  # triples hold no empty ends
    for path in arrow_files(tmp_path, data):
        same(datasets.load(path, "lda"), data)
        same(corpus.read(corpus.write(tmp_path / "x.h5ad", path, overwrite=True)), data)
    found = readers.read_ratings(tmp_path / "triples.parquet", complete=False)
    assert found.kind == "ratings" and found.total == data.total


def test_bad_parquet_and_arrow(tmp_path):
    """Other columns, missing values, lists that do not fit, and files cut short are refused."""
    data = counts(example(named=False).matrix[1:-1, :-1])
    paths = arrow_files(tmp_path, data)
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for path in paths:
        raw = path.read_bytes()
        for length in (0, 10, len(raw) // 2, len(raw) - 1):
            path.write_bytes(raw[:length])
            with pytest.raises(InputError, match=path.name):
                datasets.load(path)
    path = tmp_path / "bad.parquet"
    for table, words in (
        ({"a": [1], "b": [2]}, r"its columns a \(int64\), b \(int64\) are not"),
        ({"a": ["x"], "b": ["y"], "c": ["z"]}, "are not"),
        ({"a": [["x"]], "b": [[1]]}, r"a \(list<.*string>\).*number rows and columns from 0"),
        ({"a": [0], "b": [0], "c": [None]}, "are not|missing"),
        ({"a": [0, 1], "b": [0, None], "c": [1, 1]}, "missing"),
        ({"a": [[0, 1]], "b": [[1]]}, "more columns than counts"),
        ({"a": [[0, -1]], "b": [[1, 1]]}, "the column -1"),
        ({"a": [0], "b": [0], "c": [0.5]}, "the count 0.5"),
        ({"a": [0], "b": [2**40], "c": [1]}, "the column"),
    ):
        parquet.write_table(pa.table(table), path)
        with pytest.raises(InputError, match=rf"bad\.parquet.*({words})"):
            datasets.load(path)


@pytest.mark.filterwarnings("default")
def test_files_of_other_tools_are_fitted_from_the_command_line(tmp_path, capsys):
    """A file of anndata, of pyarrow, and of SciPy's Matrix Market writer."""
    data = counts(example(named=False).matrix[1:-1, :-1])
    market, theirs = tmp_path / "x.mtx", tmp_path / "x.h5ad"
    scipy.io.mmwrite(market, data.matrix.astype(int))
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(scipy.sparse.csr_matrix(data.matrix)).write_h5ad(theirs)
    found = []
    for number, path in enumerate((market, theirs, arrow_files(tmp_path, data)[0])):
        out = str(tmp_path / f"out{number}")
        settings = ["num_topics=2", "num_epochs=2"]
        arguments = ["--engine", "cavi", "--out", out, "--devices", "1", "--set", *settings]
        assert main(["fit", "lda", "--data", str(path), *arguments, "--quiet"]) == 0
        found.append(inference.load(f"{out}/fit.npz").posterior.mean("beta"))
        np.testing.assert_array_equal(found[number], found[0])


# Sources ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.mtx", "x.ldac", "docword.x.txt", "x.csv"])
def test_any_file_becomes_a_corpus(tmp_path, small, monkeypatch, name):
    """A corpus written from a file in blocks is what reading the file gives, names included."""
    data = counts(example().matrix, [f"wörd {i}" for i in range(12)], [f"d{i}" for i in range(40)])
    X = data.matrix.astype(int)
    if name in ("x.ldac", "docword.x.txt"):
        entries, lengths = X.tocoo(), np.diff(X.indptr)
        pairs = [f"{v}:{n}" for v, n in zip(entries.col, entries.data, strict=True)]
        lines = [" ".join([str(len(p)), *p]) for p in np.split(pairs, np.cumsum(lengths)[:-1])]
        if name != "x.ldac":
            cells = zip(entries.row + 1, entries.col + 1, entries.data, strict=True)
            lines = [*map(str, (*X.shape, X.nnz)), *(f"{d} {v} {n}" for d, v, n in cells)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        (tmp_path / f"{name.rpartition('.')[0]}.rows").write_bytes(
            names.encode_names(data.row_names)
        )
        (tmp_path / "vocab.txt").write_bytes(names.encode_names(data.column_names))
    else:
        writers.write(data, tmp_path / name)
    monkeypatch.setattr(numbers, "LINES_TOGETHER", 5)
    monkeypatch.setattr(matrices, "BLOCK_CELLS", 5)
    same(corpus.read(corpus.write(tmp_path / "y.h5ad", tmp_path / name)), data)


def test_other_sources(tmp_path, small):
    """A database, a corpus, blocks of `Data` with names, and matrices; `on_rows` is told of every
    row once.
    """
    data, seen = example(), []
    with Database(
        data.num_columns, path=tmp_path / "db", column_names=data.column_names
    ) as database:
        database.append(data)
        found = corpus.read(corpus.write(tmp_path / "a.h5ad", database, on_rows=seen.append))
    assert (
        found.hash == data.hash
        and found.column_names == data.column_names
        and sum(seen) == 40
        and len(seen) == 14
    )
    convert(str(tmp_path / "db"), str(tmp_path / "db.h5ad"))
    assert datasets.load(tmp_path / "db.h5ad").hash == data.hash
    path = corpus.write(
        tmp_path / "b.h5ad", [data.select(np.arange(17)), data.select(np.arange(17, 40))]
    )
    same(corpus.read(path), data)
    same(corpus.read(corpus.write(tmp_path / "c.h5ad", path)), data)
    same(corpus.read(corpus.write(path, path, overwrite=True)), data)  # onto itself
    same(
        corpus.read(
            corpus.write(tmp_path / "d.h5ad", data.matrix, data.column_names, data.row_names)
        ),
        data,
    )
    same(datasets.load(tmp_path / "d.h5ad"), data)


def failing_source():
    yield np.ones((1, 2))
    raise FileNotFoundError(2, "No such file or directory", "theirs.txt")


def test_bad_sources(tmp_path):
    """Rows and names that cannot be stored are one sentence, and nothing is left."""
    for source, options, words in (
        ([np.zeros((2, 3))], {}, "empty"),
        ([], {}, "empty"),
        ([[[1, 2]]], {"column_names": ["a"]}, "1 column names for 2 columns"),
        ([[[1, 2]]], {"row_names": ["a", "b"]}, "2 row names for 1 rows"),
        ([[[1, 2]]], {"column_names": ["a\0b", "c"]}, "null bytes"),
        ([[[1, 2]]], {"column_names": ["a\ud800", "c"]}, "UTF-8"),
        ([counts([[1]], ["a"]), counts([[1]], ["b"])], {}, "different column names"),
        ([text_and_votes([[1]], [[1]])], {}, "not text_and_votes"),
        ([ratings([0], [0], [1.0])], {}, "not ratings"),
        ([[[0.5, 1]]], {}, "whole numbers"),
        (failing_source(), {}, "No such file"),
        ("nowhere.npz", {}, "does not exist"),
        ("nowhere.h5ad", {}, "does not exist"),
        (5, {}, "not from int"),
    ):
        with pytest.raises(InputError, match=words):
            corpus.write(tmp_path / "x.h5ad", source, **options)
        assert list(tmp_path.iterdir()) == []


def test_old_stores(tmp_path):
    """A folder of the former format is answered with the command that converts it, which does; a
    damaged one is refused.
    """
    data, folder = example(), tmp_path / "old.store"
    folder.mkdir()
    data = counts(data.matrix, data.column_names)
    parts = {
        f"0123abcd-0000{i}": data.matrix[rows]
        for i, rows in enumerate((slice(0, 20), slice(20, 40)))
    }
    rows = np.zeros(40, [("length", "<i4"), ("total", "<f8"), ("log_factorials", "<f8")])
    rows["length"] = data.lengths
    written = {
        "0123abcd.rows": rows.tobytes(),
        "0123abcd.column_names": names.encode_names(data.column_names),
    }
    for mark, part in parts.items():
        written |= {
            f"{mark}.columns": part.indices.astype("|u1").tobytes(),
            f"{mark}.counts": part.data.astype("<u4").tobytes(),
        }
    for name, raw in written.items():
        (folder / name).write_bytes(raw)
    listed = [
        {"name": name, "bytes": len(raw), "crc32": zlib.crc32(raw)} for name, raw in written.items()
    ]
    manifest = {
        "format": "pp-models store 1",
        "mark": "0123abcd",
        "num_rows": 40,
        "num_columns": 12,
        "files": listed,
    }
    manifest |= {
        "row_names": False,
        "column_names": True,
        "shards": [[20, "|u1", "<u4"], [40, "|u1", "<u4"]],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"pp-models data convert .*old\.store .*old\.h5ad"):
        datasets.load(folder)
    convert(str(folder), str(tmp_path / "new.h5ad"))
    same(corpus.read(tmp_path / "new.h5ad"), data)
    (folder / "0123abcd.rows").write_bytes(b"")
    for words in ("does not match its checksum", "not a complete store"):
        with pytest.raises(InputError, match=words):
            convert(str(folder), str(tmp_path / "newer.h5ad"))
        (folder / "manifest.json").write_text("{")


# Writers that fail --------------------------------------------------------------------------------


def test_nothing_is_lost_or_overwritten_unasked(tmp_path):
    """Bad rows, an interruption, another's file and a folder leave what was there; those who have
    it open keep it.
    """
    data, other, path = example(), example(seed=1), tmp_path / "x.h5ad"

    def interrupted():
        yield data.matrix[:10]
        raise KeyboardInterrupt

    for _ in range(2):
        for source, error in (
            (lambda: iter([data.matrix, [[0.5]]]), InputError),
            (interrupted, KeyboardInterrupt),
        ):
            before = sorted(os.listdir(tmp_path))
            with pytest.raises(error):
                corpus.write(path, source(), overwrite=True)
            assert sorted(os.listdir(tmp_path)) == before
        corpus.write(path, data, overwrite=True)
    opened = corpus.read(path)
    with pytest.raises(InputError, match="is there already"):
        corpus.write(path, other)
    same(corpus.read(path), data)
    corpus.write(path, other, overwrite=True)
    same(corpus.read(path), other)
    same(opened, data)

    def late():
        corpus.write(tmp_path / "late.h5ad", data)
        yield other.matrix

    with pytest.raises(InputError, match="is there already"):
        corpus.write(tmp_path / "late.h5ad", late())
    same(corpus.read(tmp_path / "late.h5ad"), data)
    (tmp_path / "folder.h5ad").mkdir()
    for name, words in (("folder.h5ad", "folder"), ("x.store", r"ends in \.h5ad")):
        with pytest.raises(InputError, match=words):
            corpus.write(tmp_path / name, data, overwrite=True)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_at_any_moment(tmp_path, monkeypatch, call):
    """Whichever operation on the disk fails, the file is the old corpus or, once it was replaced,
    the new one.
    """
    old, new = example(), example(seed=1)
    real, found = getattr(os, call), []
    for number in range(100):
        path, left = corpus.write(tmp_path / "x.h5ad", old, overwrite=True), [number]

        def failing(*arguments, left=left):
            left[0] -= 1
            if left[0] == -1:
                raise OSError(28, "No space left on device")
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            with contextlib.suppress(InputError):
                corpus.write(path, new, overwrite=True)
        found.append({old.hash: "old", new.hash: "new"}[corpus.read(path).hash])
        if left[0] >= 0:
            break
    assert (
        found[0] == "old"
        and found[-1] == "new"
        and found == sorted(found, reverse=True)
        and left[0] == 0
    )
    assert os.listdir(tmp_path) == ["x.h5ad"]


KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
import numpy as np
from pp_models.data import corpus, counts
def made(seed):
    X = np.random.default_rng(seed).poisson(1.0, (60, 8))
    return counts(X, row_names=[f"{seed}-{i}" for i in range(60)])
old, new = made(0), made(1)
random.seed(0)
place, found = Path(sys.argv[1]) / "busy.h5ad", []
corpus.write(place, old)
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        while True:
            corpus.write(place, new, overwrite=True)
            corpus.write(place, old, overwrite=True)
    time.sleep(random.uniform(0.0, 0.05))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    found.append(corpus.read(place).hash in (old.hash, new.hash))
print(json.dumps(found))
"""


def test_a_killed_writer(tmp_path, monkeypatch):
    """Killed at any moment, a writer leaves the old corpus or the new one; what it left is removed
    by a later one.
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [True] * 20
    monkeypatch.setattr(files, "STRAY_SECONDS", 0)
    corpus.write(tmp_path / "next.h5ad", example())
    assert sorted(os.listdir(tmp_path)) == ["busy.h5ad", "next.h5ad"]


# Damage and memory --------------------------------------------------------------------------------


def test_what_is_no_corpus(tmp_path):
    """A missing file, a folder and a file of something else are one sentence each."""
    (tmp_path / "folder.h5ad").mkdir()
    (tmp_path / "text.h5ad").write_text("hello")
    (tmp_path / "empty.h5ad").write_bytes(b"")
    for name, words in (
        ("none.h5ad", "does not exist"),
        ("folder.h5ad", "folder"),
        ("text.h5ad", "not a complete"),
        ("empty.h5ad", "not a complete"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            datasets.load(tmp_path / name)
        assert name in str(caught.value) and "\n" not in str(caught.value)


READ_ALL = """
import re, sys, numpy as np
from pathlib import Path
from pp_models.data import corpus
found = corpus.read(sys.argv[1], verify=False)
def megabytes(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
some = found.select(np.arange(1000))
before, most, total = megabytes("RssAnon"), 0.0, 0.0  # without pages of the file
for rows in np.random.default_rng(0).permutation(found.num_rows).reshape(-1, 1000):
    batch = found.select(rows)
    most = max(most, megabytes("RssAnon") - before)
    total += batch.matrix.sum(dtype=np.float64)
print(found.total == total, most)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted as Linux does")
def test_reading_takes_little_memory(tmp_path):
    """A shuffled pass over 20 million entries, 160 MB, allocates below 20 MB: rows of a batch are
    copied, the rest is mapped.
    """
    columns = 50 * np.arange(100)

    def blocks():
        for i in range(10):
            indices = np.concatenate([columns + (i + j) % 50 for j in range(20_000)]).astype(
                np.int32
            )
            yield scipy.sparse.csr_array(
                (np.ones(len(indices), np.float32), indices, 100 * np.arange(20_001)),
                shape=(20_000, 5_000),
            )

    path = corpus.write(tmp_path / "large.h5ad", blocks())
    result = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(path)], capture_output=True, text=True, check=True
    )
    right, more = result.stdout.split()
    assert right == "True" and float(more) < 20, more
