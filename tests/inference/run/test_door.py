"""`pp_models.fit` as a newcomer calls it: any data, settings by name, errors that help."""

import json

import jax
import numpy as np
import pandas as pd
import pytest

import inference
import pp_models as pp
from inference.cli import main
from inference.core.settings import read_key, sort_settings
from pp_models import InputError

TEXTS = ["Cat, dog, cat.", "Dog and cat.", "Tax law tax.", "Law of tax."]
QUICK = {"num_topics": 2, "num_epochs": 3, "progress": False}


@pytest.fixture(scope="module")
def fit():
    return pp.fit("lda", TEXTS, seed=3, **QUICK)


def test_one_call(fit):
    """Texts in, topics out, with the words' names; `inference.fit` is the same function."""
    assert pp.fit is inference.fit and fit.engine == "cavi"
    assert fit.column_names == ("cat", "dog", "law", "tax") and fit.hyper.num_topics == 2
    assert fit.options["num_epochs"] == 3


def same(one, two):
    np.testing.assert_array_equal(one.posterior.mean("beta"), two.posterior.mean("beta"))


def test_forms_of_one_call(fit):
    """Names beside or in hyper, a seed or a key, a name or a model, a list or a table: one fit."""
    table = pd.DataFrame({"text": TEXTS})
    options = {"num_epochs": 3, "progress": False}
    same(fit, pp.fit(pp.load("lda"), table, hyper={"num_topics": 2}, key=3, **options))
    same(fit, inference.fit("lda", table["text"], "cavi", None, jax.random.key(3), **QUICK))


def test_ratings_by_name():
    """`alice,Matrix,5` as a table; the fit keeps the names."""
    table = pd.DataFrame({"user": ["alice", "bob"], "item": ["Matrix", "Heat"], "rating": [5, 3]})
    fit = pp.fit("pmf", table, rank=1, num_epochs=2, progress=False)
    assert fit.row_names == ("alice", "bob") and fit.column_names == ("Heat", "Matrix")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"model": "LDA"}, "Did you mean 'lda'"),
        ({"model": "Bayesian NMF"}, "Did you mean 'bayesian_nmf'"),
        ({"model": 3}, "given by its name"),
        ({"engine": "Trust-Region"}, "Did you mean 'trust_region'"),
        ({"num_topic": 3}, "Did you mean 'num_topics', a hyper-parameter of lda?"),
        ({"num_epoch": 3}, "Did you mean 'num_epochs', an option of engine cavi?"),
        ({"max_second": 3}, "Did you mean 'max_seconds', an argument?"),
        ({"Seed": 3}, "Did you mean 'seed', an argument?"),
        ({"batch_size": 3}, r"an option of .*svi, .*, not of cavi: choose one of these"),
        ({"hyper": {"num_epochs": 3}}, "pass it beside hyper, as num_epochs=3"),
        ({"hyper": {"topics": 3}}, "Did you mean 'num_topics'"),
        ({"hyper": {"num_topics": 3}, "num_topics": 4}, "num_topics is given twice"),
        ({"num_topics": 0}, "num_topics must be a whole number of at least 1"),
        ({"seed": 1, "key": 2}, "key and seed mean the same"),
        ({"seed": "1"}, "seed must be a whole number"),
        ({"key": "1"}, "key must be a JAX random key"),
        ({"key": True}, "key must be a JAX random key"),
        ({"seed": -1}, "seed must be from 0"),
        ({"data": "speeches.docs"}, "One string is one document"),
        ({"model": "pmf", "data": "ratings.csv"}, "pp_models.datasets.load"),
    ],
)
def test_errors_that_help(arguments, part):
    """Each names what was meant, or the choice, in one sentence."""
    with pytest.raises(InputError, match=part) as caught:
        pp.fit(**{"model": "lda", "data": TEXTS} | arguments)
    assert "\n" not in str(caught.value)


def test_names_are_sorted():
    """Marks to learn too; what is both is the engine's option, as it always was."""
    assert sort_settings("lda", "svi", "learn", {"num_topics": 3}).hyper == {
        "learn": "all",
        "num_topics": 3,
    }
    assert sort_settings("lda", "cavi", None, {"learn": "all"}).hyper == {"learn": "all"}
    whole = pp.load("lda").Hyper(num_topics=5)
    assert sort_settings("lda", "cavi", whole, {"alpha": 0.3}).hyper["num_topics"] == 5
    found = sort_settings("bayesian_pmf", "svi", {"kappa": 2.0}, {"kappa": 0.6, "rank": 2})
    assert found.options == {"kappa": 0.6} and found.hyper == {"kappa": 2.0, "rank": 2}


def test_keys():
    """Typed and old keys, whole numbers and nothing."""
    for given in (7, np.int64(7), jax.random.key(7), jax.random.PRNGKey(7)):
        assert read_key(given) == jax.random.key(7)
    assert read_key() == jax.random.key(0) and read_key(None, 7) == jax.random.key(7)


def test_streams_take_names_and_tables():
    """A stream sorts settings as `fit` does, and counts texts by its words."""
    words = ("cat", "dog", "law", "tax")
    options = {"column_names": words, "num_topics": 2, "batch_size": 2, "key": 1}
    with pp.stream("lda", 4, **options) as stream:
        assert stream.append(TEXTS).tolist() == [0, 1, 2, 3] and stream._hyper == {"num_topics": 2}
        table = pd.DataFrame([[1, 0, 0, 2]], columns=words)
        assert stream.append(table).tolist() == [4]
    with pytest.raises(InputError, match="Did you mean 'num_topics', a hyper-parameter"):
        pp.stream("lda", 4, num_topic=3)


def test_what_is_seen():
    """`dir` shows what is for users, and every name in it can be had, modules as well."""
    for package in (pp, inference):
        shown = dir(package)
        assert {"fit", "compare", "stream", "topics"} <= set(shown)
        assert not {"Any", "importlib", "annotations"} & set(shown)
        assert all(hasattr(package, name) for name in (*shown, *package.__all__))
    assert pp.load_fit is inference.load and pp.text.count and pp.families.dirichlet
    assert not hasattr(pp, "nothing") and not hasattr(pp, "_nothing")


# On the command line ------------------------------------------------------------------------------


def test_texts_of_a_table(tmp_path, capsys):
    """A csv of texts is fitted, and new texts are counted by the words of the fit."""
    path, new = tmp_path / "talks.csv", tmp_path / "new.csv"
    path.write_text("id,talk\n" + "".join(f't{i},"{x}"\n' for i, x in enumerate(TEXTS)))
    new.write_text("talk\nemu dog cat cat dog tax\ntax tax law law emu\n")
    asked = ["--set", "num_topics=2", "num_epochs=3", "--quiet", "--out", str(tmp_path / "out")]
    assert main(["fit", "lda", "--data", str(path), *asked]) == 2
    assert "--text-column 'talk' --id-column 'id'" in capsys.readouterr().err
    columns = ["--text-column", "talk", "--id-column", "id"]
    assert main(["fit", "lda", "--data", str(path), *columns, *asked]) == 0
    found = pp.load_fit(tmp_path / "out" / "fit.npz")
    assert found.column_names == ("cat", "dog", "law", "tax") and found.row_names[0] == "t0"
    capsys.readouterr()
    scored = ["evaluate", str(tmp_path / "out"), "--data", str(new), "--text-column", "talk"]
    assert main([*scored, "--measure", "completion", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measures"][0]["value"] < 0
    converted = ["data", "convert", str(path), str(tmp_path / "talks.h5ad"), *columns]
    assert main([*converted, "--min-df", "2"]) == 0
    assert pp.datasets.load(tmp_path / "talks.h5ad").row_names == ("t0", "t1", "t2", "t3")
    assert main(["compare", "lda", "--text-column", "x", "--out", str(tmp_path / "c")]) == 2
    assert "add --data FILE" in capsys.readouterr().err


def test_ratings_of_a_table(tmp_path, capsys):
    """Ids of any type on the command line; held-out ratings are matched by name."""
    path, new = tmp_path / "films.csv", tmp_path / "new.csv"
    people, films = ("alice", "bob", "cy"), ("Heat", "Alien", "Up")
    rated = [(u, v, 1 + (i * j) % 5) for i, u in enumerate(people) for j, v in enumerate(films)]
    path.write_text("user,item,rating\n" + "".join(f"{u},{v},{r}\n" for u, v, r in rated))
    out = tmp_path / "out"
    asked = ["--set", "rank=1", "num_epochs=3", "--quiet", "--out", str(out)]
    assert main(["fit", "pmf", "--data", str(path), *asked]) == 0
    new.write_text("cy,Up,5\nzoe,Up,1\nalice,Heat,1\n")
    capsys.readouterr()
    assert main(["evaluate", str(out), "--data", str(new), "--measure", "rmse", "--json"]) == 0
    said = capsys.readouterr()
    assert "1 of 3 ratings are of users or items not fitted" in said.err
    found = pp.load_fit(out / "fit.npz")
    mean = inference.predict_ratings(found, [2, 0], [2, 1]).mean
    expected = np.sqrt(np.mean((mean - [5.0, 1.0]) ** 2))
    assert json.loads(said.out)["measures"][0]["value"] == pytest.approx(expected, rel=1e-5)
    new.write_text("zoe,Up,1\n")
    assert main(["evaluate", str(out), "--data", str(new)]) == 2
    assert "None of the 1 ratings is of a user, such as 'zoe'," in capsys.readouterr().err
