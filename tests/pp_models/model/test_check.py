"""F held to `generate`: wrong terms are found, and named."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import pp_models
from inference.cli import main
from inference.comparison.compare import compare
from pp_models import families as fam
from pp_models.errors import InputError
from pp_models.model import check, check_joint, compare_joint, declare

LDA = pp_models.load("lda")


def problem(name="lda"):
    model = pp_models.load(name)
    hyper, data = model.example(jax.random.key(0))
    return *declare(model, hyper, data), data


def local_with(extra):
    def changed(hyper, t, batch, key=None):
        return LDA.log_local(hyper, t, batch, key) + extra(hyper, t, batch)

    return {"log_local": changed}


def global_with(extra):
    return {"log_global": lambda hyper, t: LDA.log_global(hyper, t) + extra(hyper, t)}


WRONG = {
    "a concentration": (
        global_with(lambda hyper, t: 0.01 * jnp.sum(t["beta"])),
        r"look at the term of beta in log_global, whose error changes with beta\.",
    ),
    "a normaliser": (
        global_with(lambda hyper, t: hyper.eta),
        r"term of beta in log_global, whose error changes with eta\.",
    ),
    "a prior of rows": (
        local_with(lambda hyper, t, batch: 0.1 * hyper.alpha * batch.sum(t["theta"][:, 0])),
        r"term of theta in log_local, whose error changes with alpha and theta\.",
    ),
    "the likelihood": (
        local_with(lambda hyper, t, batch: 1e-3 * jnp.sum(t["theta"]) * jnp.sum(t["beta"])),
        r"term of counts in log_local, whose error changes with beta and theta\.",
    ),
    "a constant of the data": (
        local_with(lambda hyper, t, batch: jnp.sum(batch.log_factorials)),
        r"term of theta or counts in log_local, whose error is a constant\.",
    ),
    "a term in the wrong place": (
        global_with(lambda hyper, t: 3.0) | local_with(lambda hyper, t, batch: -3.0),
        "log_global and log_local differ .* by 3 nats each, in opposite directions: move",
    ),
    "nothing finite": (
        global_with(lambda hyper, t: jnp.nan),
        "differ by up to inf nats: look at the term of beta",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_term_is_named(name):
    """The site whose density F states wrongly is named, with what the error depends on."""
    changes, words = WRONG[name]
    _, hyper, data = problem()
    with pytest.raises(InputError, match=words):
        compare_joint(dataclasses.replace(LDA, **changes), hyper, data)


def test_large_data_are_checked_on_a_part():
    """Few rows and columns of a large matrix; the example where columns cannot be left out."""
    rng = np.random.default_rng(0)
    matrix = scipy.sparse.random(200, 5000, 0.01, "csr", rng=rng)
    matrix.data = np.ceil(5 * matrix.data)
    data = pp_models.data.counts(matrix)
    found = compare_joint(*declare(LDA, {"num_topics": 4}, data), data)
    assert (found.num_rows, found.num_columns) == (check.MOST_ROWS, check.MOST_COLUMNS)
    wide = pp_models.data.dense(rng.normal(size=(40, 60)))
    model, hyper = declare(pp_models.load("gaussian_mixture"), {"num_components": 3}, wide)
    _, _, example = problem("gaussian_mixture")
    assert compare_joint(model, hyper, wide).num_columns == example.num_columns


def test_a_model_is_checked_once_for_each_shape(monkeypatch):
    """`compare` asks every time; only a new shape costs anything. A mismatch is found again."""
    asked = []
    monkeypatch.setattr(check, "_CHECKED", set())
    monkeypatch.setattr(check, "compare_joint", lambda *problem: asked.append(problem))
    model, hyper, data = problem()
    for one in (hyper, hyper._replace(eta=0.3), hyper._replace(num_topics=4)):
        check_joint(model, one, data)
    assert len(asked) == 2  # values are no shape, the number of topics is


LOCAL = "return batch.sum(prior + coefficient) + allocate"


def test_a_users_model_with_a_wrong_F_is_named(tmp_path, monkeypatch, capsys):
    """`pp-models check FILE` and `compare` stop with the sentence; the right file passes."""
    source = (pp_models.models.PACKAGE / "lda.py").read_text()
    assert LOCAL in source
    (tmp_path / "right.py").write_text(source)
    (tmp_path / "twice.py").write_text(source.replace(LOCAL, LOCAL.replace("+ all", "+ 2 * all")))
    monkeypatch.setenv("PP_MODELS_PATH", "")
    assert main(["check", str(tmp_path / "right.py"), "--quick"]) == 0
    said = capsys.readouterr().out
    assert "right: F is the log density of `generate`" in said and "3 draws" in said
    assert "log_global" in said and "sites: theta, counts" in said and "tolerance" in said
    assert main(["check", str(tmp_path / "twice.py"), "--set", "num_topics=2"]) == 1
    words = "look at the term of counts in log_local, whose error changes with beta and theta."
    assert words in capsys.readouterr().err
    with pytest.raises(InputError, match="F of twice is not the log density of its `generate`"):
        compare("twice", engines=["cavi", "map"], reference="none", quick=True)
    assert main(["check", str(tmp_path / "missing.py")]) == 2


def test_points_are_moved():
    """A site that is estimated as a point starts at one place: the check must leave it."""
    model, hyper, data = problem("correlated_nmf")
    model, hyper = declare(model, hyper._replace(point_u=True), data)
    points = [site for site, family in model.families.items() if not family.has_density]
    assert points
    first, second = (
        check._draw(model, hyper, data.pack(), jax.random.key(seed)) for seed in range(2)
    )
    for site in points:
        assert float(jnp.min(jnp.abs(first[site] - second[site]))) > 0
    assert fam.point in model.families.values()
