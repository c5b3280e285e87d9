"""`pp-models check` and `pp_models.testing`: the shared laws for a model file of one's own.

It needs no clone of the repository. Each planted fault is caught by the line that is about it.
"""

import dataclasses
import os
from types import SimpleNamespace

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

import pp_models
from inference.calibration import engine_laws, laws, testing
from inference.cli import main
from inference.core.posteriors import Variational
from pp_models.errors import InputError

LDA = pp_models.load("lda")
SOURCE = (pp_models.models.PACKAGE / "lda.py").read_text()
DECLARATION = "the declaration is complete, and its parts fit together"
DENSITY = "F is the log density of `generate`"
PADDING = "padding, row order and batches change nothing in F"

MIXTURE = '''"""Documents of one kind each: a mixture of Poisson rates of words."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist, sample

from pp_models import families as fam
from pp_models.base import Count, Model, Positive, documents
from pp_models.data import counts
from pp_models.eliminate import choose


class Hyper(NamedTuple):
    num_components: Count = 2
    a: Positive = 1.3
    shape: Positive = 2.0
    rate: Positive = 1.5


def generate(hyper, data):
    size = hyper.num_components, data.num_columns
    pi = sample("pi", dist.Dirichlet(jnp.full(size[0], hyper.a)))
    beta = sample("beta", dist.Gamma(hyper.shape, hyper.rate).expand(size).to_event(2))
    with documents(data):
        kinds = dist.Categorical(probs=pi)
        rows = dist.MixtureSameFamily(kinds, dist.Poisson(beta).to_event(1))
        sample("counts", rows, obs=data.entries.dense(data.num_columns))


def log_global(hyper, t):
    weights = fam.log_prior(fam.dirichlet, hyper.a, t["pi"])
    rates = fam.log_prior(fam.gamma, fam.Pair(hyper.shape, -hyper.rate), t["beta"])
    return jnp.sum(weights) + jnp.sum(rates)


def log_local(hyper, t, batch, key=None):
    log_rate, rate = t["beta"]
    words = batch.entries.dense(rate.shape[1]) @ log_rate.T - jnp.sum(rate, 1)
    return choose(t["pi"] + words, batch.mask, key) - batch.sum(batch.log_factorials)


def init(key, hyper, data):
    shape = hyper.num_components, data.num_columns
    pi = hyper.a + data.num_rows / shape[0] * jnp.ones(shape[0])
    noise = hyper.shape + 5 * jax.random.uniform(key, shape)
    return {"pi": pi, "beta": fam.Pair(noise, jnp.full(shape, -hyper.rate - 5))}


def predict(hyper, values):
    return values["pi"][None] @ values["beta"]


def example(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    rates = rng.gamma(1.0, 2.0, (2, 6))
    return Hyper(), counts(rng.poisson(rates[np.arange(13) % 2]))


MODEL = Model.of(
    globals(), families={"pi": fam.dirichlet, "beta": fam.gamma}, symmetry="permutation"
)
'''


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Put a model's source into a file of one's own; returns its path."""
    monkeypatch.setenv("PP_MODELS_PATH", "")

    def put(source, name="my_model"):
        file = tmp_path / f"{name}.py"
        file.write_text(source)
        return str(file)

    return put


def changed(*pairs):
    """The source of a right model with a fault planted."""
    source = SOURCE
    for old, new in pairs:
        assert old in source
        source = source.replace(old, new)
    return source


FAMILIES = '"theta": fam.dirichlet, "beta": fam.dirichlet}'
FAULTS = {
    "words count half": (
        ("+ allocate(", "+ 0.5 * allocate("),
        DENSITY,
        "look at the term of counts in log_local",
    ),
    "a forgotten constant": (
        ("gammaln(batch.totals + 1) - batch.log_factorials", "-batch.log_factorials"),
        DENSITY,
        "log_local, whose error is a constant",
    ),
    "a missing family": (
        (FAMILIES, '"theta": fam.dirichlet}'),
        DECLARATION,
        "samples 'beta', which families does not name",
    ),
    "an unknown symmetry": (
        ('symmetry="permutation"', 'symmetry="perm"'),
        DECLARATION,
        "Unknown symmetry 'perm'. Known: none, permutation",
    ),
    "a wrong shape in init": (
        ('"beta": hyper.eta + scale * noise}', '"beta": (hyper.eta + scale * noise)[:, 1:]}'),
        DECLARATION,
        "init of my_model gives 'beta' the shape (3, 8)",
    ),
    "a missing field": (
        ("def predict(", "def _predict("),
        DECLARATION,
        "A model must declare predict",
    ),
    "a file that fails": (
        ("MODEL = Model.of(", "1 / 0\n\nMODEL = Model.of("),
        DECLARATION,
        "ZeroDivisionError at line",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_by_the_right_line(write, fault):
    """Nothing after that line is tried; the exception holds the sentence."""
    pair, law, words = FAULTS[fault]
    file = write(changed(pair))
    with pytest.raises(testing.Failed) as failed:
        testing.check(file, show=False)
    *held, last = failed.value.results
    assert all(one.holds for one in held) and last.law == law and last.holds is False
    assert words in last.told and words in str(failed.value) and words in str(last)


@pytest.fixture(scope="module")
def problem():
    return testing.example_problem(LDA)


def test_a_forgotten_mask_is_caught_by_padding(problem):
    """F is right on all rows, so only padded batches tell."""

    def log_local(hyper, t, batch, key=None):
        prior = pp_models.families.log_prior(LDA.families["theta"], hyper.alpha, t["theta"])
        return LDA.log_local(hyper, t, batch, key) - batch.sum(prior) + jnp.sum(prior)

    broken = problem._replace(model=dataclasses.replace(LDA, log_local=log_local))
    assert testing._density(broken) is None
    result = testing._tried(
        PADDING, lambda: laws.rows_are_exchangeable(broken, laws.some_natural(problem))
    )
    assert result.holds is False and result.law == PADDING
    assert "log_local of lda changes with padding" in result.told and "batch.mask" in result.told


def test_a_guide_that_leaves_a_site_out_is_caught(problem):
    def guide(hyper, data):
        numpyro.sample("beta", dist.Dirichlet(jnp.ones((3, data.num_columns))).to_event(1))

    wrong = problem._replace(model=dataclasses.replace(LDA, guide=guide))
    with pytest.raises(laws.Broken, match="guide of lda samples beta, but families names beta, th"):
        laws.guide_has_the_families_density(wrong)


def test_a_family_with_a_wrong_mean_is_caught(problem):
    """A family of one's own whose mean is not the gradient of its log normaliser."""
    right = LDA.families["beta"]
    wrong = right._replace(mean=lambda natural, *_: right.mean(1.5 * natural))
    model = dataclasses.replace(LDA, families={**LDA.families, "beta": wrong}, solve_local=None)
    with pytest.raises(laws.Broken, match="look at the family of beta"):
        laws.fisher_times_step_is_the_gradient(
            problem._replace(model=model), laws.some_natural(problem)
        )


def test_what_is_not_finite_is_named(problem, monkeypatch):
    """At an edge, and after two steps of an engine."""

    def log_local(hyper, t, batch, key=None):
        return LDA.log_local(hyper, t, batch, key) + batch.sum(jnp.log(batch.totals / batch.totals))

    broken = problem._replace(model=dataclasses.replace(LDA, log_local=log_local))
    with pytest.raises(laws.Broken, match=r"With empty rows, value .*of log_local of lda"):
        laws.edges_are_finite(broken)
    means = SimpleNamespace(mean=lambda site: jnp.where(site == "beta", jnp.nan, 0.0))
    monkeypatch.setattr(engine_laws, "run", lambda *_: SimpleNamespace(posterior=means))
    with pytest.raises(laws.Broken, match="Two steps of cavi leave beta not finite"):
        engine_laws.engine_is_finite(problem, "cavi")


@pytest.mark.parametrize(
    ("bounds", "words"),
    [([-9.0, -8.0, -8.5], "falls by 0.5 nats"), ([-9.0, float("nan"), -8.0], "is not finite")],
)
def test_a_bound_that_falls_is_told(problem, monkeypatch, bounds, words):
    history = {"bound": jnp.array(bounds)}
    monkeypatch.setattr(engine_laws, "run", lambda *_: SimpleNamespace(history=history))
    with pytest.raises(laws.Broken, match=words):
        engine_laws.bound_rises(problem, "cavi")


def test_a_model_need_not_be_found_by_name(problem):
    """`testing.check` takes the `Model` itself, which no file declares."""
    fit = engine_laws.run(problem, *engine_laws.load_with_options("cavi", {"num_epochs": 2}))
    assert isinstance(fit.posterior, Variational) and len(fit.history["bound"]) == 2


def test_a_users_mixture_passes_on_the_command_line(write, monkeypatch, capsys):
    """A model whose tokens are in no single site: `pp-models check FILE` says so law by law."""
    file = write(MIXTURE, "my_mixture")
    monkeypatch.setattr(testing, "engines", lambda: ["cavi", "hybrid", "svi"])
    assert main(["check", file]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"my_mixture: {DENSITY}") and "✗" not in said
    assert f"✓ {PADDING}" in said and "✓ svi takes two steps" in said
    assert "– `guide` has the density of the families: none is written by hand" in said
    assert "– engines that cannot fit this model: hybrid" in said
    assert said.splitlines()[-1].startswith("All ") and said.endswith("laws that apply hold.\n")


def test_exit_status(write, capsys):
    """1 for a broken law, with its sentence; 2 for what is no model."""
    file = write(changed(FAULTS["words count half"][0]))
    for more in ([], ["--quick"]):
        assert main(["check", file, *more]) == 1
        assert "F of my_model is not the log density" in capsys.readouterr().err
    assert main(["check", write(changed(FAULTS["a missing field"][0]), "other")]) == 1
    told = capsys.readouterr().out
    assert f"✗ {DECLARATION}" in told and "A model must declare predict" in told
    assert main(["check", write("x = 1\n", "empty")]) == 2
    assert "declares no model: end it in MODEL = Model(...)" in capsys.readouterr().err
    assert main(["check", "ldaa"]) == 2


def test_files_are_found_beside_those_of_PP_MODELS_PATH(write, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    os.environ["PP_MODELS_PATH"] = str(other)
    assert testing.find(write(SOURCE)) == "my_model" and testing.find("lda") == "lda"
    assert str(other) in os.environ["PP_MODELS_PATH"]
    with pytest.raises(InputError, match="There is no file"):
        testing.find(str(other / "none.py"))


def test_an_edited_copy_is_not_taken_for_the_original(write):
    """A file named like one of our models would never be read: it is refused."""
    with pytest.raises(InputError, match=r"has the name of the model in .*: rename the file"):
        testing.find(write(SOURCE, "lda"))
