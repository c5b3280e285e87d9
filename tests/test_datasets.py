"""Laws of `pp_models.datasets`: draws come from the model's own prior and depend on the key alone; names and paths are told apart."""

import functools

import jax
import numpy as np
import pytest

import pp_models
from pp_models import datasets
from pp_models.errors import InputError

COUNT_MODELS = [  # that have a prior to draw from
    name for name in pp_models.available() if (model := pp_models.load(name)).kind == "counts" and model.proper(model.example(jax.random.key(0))[0])
]
OTHER_MODELS = [name for name in pp_models.available() if pp_models.load(name).kind not in ("counts", "ratings")]
SMALL = {"num_rows": 12, "num_columns": 7, "hyper": {"num_topics": 2}}


def draw(name, seed, **options):
    return datasets.synthetic(pp_models.load(name), jax.random.key(seed), **{**SMALL, **options})


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == "lda" else pytest.mark.slow) for name in COUNT_MODELS])
def test_a_draw_has_the_sizes_asked_for(name):
    """The draw has the rows and columns asked for, and the truth has every latent site in its shape."""
    model = pp_models.load(name)
    hyper, data, truth = draw(name, 0)
    assert isinstance(hyper, model.Hyper) and hyper.num_topics == 2
    assert (data.kind, data.num_rows, data.num_columns) == ("counts", 12, 7)
    assert set(truth) == set(model.families)
    for site, value in truth.items():
        assert np.all(np.isfinite(value))
        assert value.shape[0] == 12 or site not in model.local


@pytest.mark.parametrize("name", COUNT_MODELS)
def test_a_draw_depends_on_the_key_alone(name):
    """The same key gives the same data and truth, another key others."""
    first, same, other = (draw(name, seed) for seed in (1, 1, 2))
    assert first[1].hash == same[1].hash != other[1].hash
    for site in first[2]:
        np.testing.assert_array_equal(first[2][site], same[2][site])


def test_rows_have_the_length_asked_for():
    """Models that take the rows' totals as given get Poisson ones with that mean, and never an empty row."""
    assert abs(draw("lda", 0, row_length=400.0)[1].total / 12 - 400) < 5 * np.sqrt(400 / 12)  # five standard errors
    np.testing.assert_array_equal(draw("lda", 0, row_length=1e-9)[1].matrix.sum(axis=1), 1)


def test_draws_follow_the_truth():
    """Word frequencies of a long document are its topics mixed in its proportions."""
    hyper, data, truth = draw("lda", 5, row_length=20000.0)
    X = data.matrix.toarray()
    expected = np.asarray(pp_models.load("lda").predict(hyper, truth))
    np.testing.assert_allclose(X / X.sum(1, keepdims=True), expected, atol=5 * 0.5 / np.sqrt(19000))  # five standard errors


def test_an_empty_draw_is_drawn_again():
    """A prior that often gives an empty corpus is tried again, and one that always does is an input error."""
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
    """Impossible sizes, hyper-parameters and priors are refused by name before anything is drawn."""
    with pytest.raises(InputError, match=part):
        datasets.synthetic(pp_models.load("bayesian_nmf"), jax.random.key(0), **options)


def test_load_synthetic(monkeypatch):
    """The name `synthetic` draws from the model, by default always the same."""
    monkeypatch.setattr(datasets, "synthetic", functools.partial(datasets.synthetic, **SMALL))  # small, to be quick
    by_name, by_model = datasets.load("synthetic", "lda"), datasets.load("synthetic", pp_models.load("lda"), jax.random.key(0))
    assert by_name.hash == by_model.hash
    with pytest.raises(InputError, match="say which one"):
        datasets.load("synthetic")


def test_load_reads_paths(tmp_path, monkeypatch):
    """Anything that exists, holds a separator or ends like a data file is a path; a name in the working folder too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("0,0,3\n")
    for path in ("x.csv", "./x.csv", str(tmp_path / "x.csv"), tmp_path / "x.csv"):
        assert datasets.load(path).total == 3
    for path in ("missing.ldac", "missing.mtx.gz", "no/such", str(tmp_path / "synthetic")):
        with pytest.raises(InputError, match="does not exist"):
            datasets.load(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder"):
        datasets.load("folder")


@pytest.mark.parametrize("name", ["sinthetic", "reuters-42", "", "a\0b", "x" * 5000])
def test_load_unknown_name(name):
    """A name that is neither a data set nor a file is refused with the known names, the nearest first."""
    with pytest.raises(InputError, match="Known: synthetic") as caught:
        datasets.load(name, "lda")
    assert ("Did you mean 'synthetic'" in str(caught.value)) == (name == "sinthetic")
