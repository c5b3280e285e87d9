"""What users call: the names of both packages, the command line's options and exit codes, and what
a model file of one's own imports.

Files may move and rooms be rebuilt; a script written against these names keeps working.
"""

import importlib
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import gammaln

import inference
import pp_models
from inference.cli import main

PUBLIC = {
    "pp_models": "InputError arrivals available compare corpus data database datasets engines "
    "choose explore fit load load_fit readers stream testing text",
    "pp_models.data": "as_data from_table counts dense ratings text_and_votes tf_idf "
    "with_votes Batch Data",
    "pp_models.datasets": "load synthetic",
    "pp_models.database": "Database",
    "pp_models.testing": "check examine Failed Result",
    "pp_models.arrivals": "Arrivals feed",
    "inference": "calibration_error choose coherence compare "
    "correlation_figure diversity document_completion engines explore fit format_topics load "
    "log_evidence loo "
    "nearest_documents perplexity precision_recall_at predict_ratings predict_votes "
    "prevalence refit_members representative_documents "
    "score_probabilities score_ratings score_votes split_ratings stream top_words "
    "topic_correlations topics waic",
}
MODEL_FILES = {  # what a model file may import
    "pp_models.base": "Model check_count check_finite check_positive "
    "choose_variant declare documents factor_axes joint learnable log_joint make_hyper "
    "number_of_factors positive_number simulate value_shapes",
    "pp_models.families": "Family MeanPrecision Pair beta cut digamma dirichlet divergence "
    "dot entropy "
    "gamma gamma_tied log_base log_density "
    "log_gamma_draw log_measure log_prior newton_step normal normal_mean "
    "normal_moments normal_tied normal_wishart pack point positive positive_tied "
    "summarise unpack unwrap wishart",
    "pp_models.eliminate": "UNIFORM allocate choose inner",
    "pp_models.errors": "Diverged InputError TooLarge unknown",
}
MODELS = (
    "bayesian_nmf bayesian_pmf bernoulli_mixture correlated_nmf ctm gaussian_mixture hpf "
    "lda lg_nmf lg_nmf_votes lg_op nmf pmf"
)
ENGINES = (
    "cavi collapsed_gibbs cvb0 gibbs hybrid inla laplace map memoized numpyro_svi nuts "
    "stochastic_map streaming streaming_batch svb svi trust_region"
)
OPTIONS = {
    "fit": "--engine --evaluate-every --checkpoint-seconds --checkpoint-steps --coordinator "
    "--num-processes --process-id --draws --data --out --overwrite "
    "--resume --seed --set --devices --quiet --text-column --id-column",
    "compare": (
        "--engines --reference --quick --budget --rows --data --out --overwrite --resume "
        "--seed --set --devices --quiet --text-column --id-column"
    ),
    "evaluate": "--text-column --id-column --data --measure --folds --top --words --seed --json",
    "explore": "--data --out --open",
    "check": "--data --set --quick",
    "choose": "--data --grid --set --heldout --share --reference --words --out --overwrite --seed "
    "--devices --quiet",
    "reference": "--out --check --again --seed --overwrite --devices --quiet",
    "data convert": "--text-column --id-column --overwrite --min-df --max-df --stop-words "
    "--kind --quiet",
    "data info": "--kind --quiet",
    "list": "",
    "topics": "--num-words --rank --relevance --out",
    "transform": "--data --out --sd",
}


@pytest.mark.parametrize("module", [*PUBLIC, *MODEL_FILES])
def test_names(module):
    """Every name that was there still is; names may be added."""
    package, _, name = module.partition(".")
    found = (
        importlib.import_module(module)
        if module in MODEL_FILES or not name
        else getattr(importlib.import_module(package), name)
    )
    wanted = (PUBLIC | MODEL_FILES)[module].split()
    assert [name for name in wanted if not hasattr(found, name)] == []
    if module in ("pp_models", "inference"):
        assert set(wanted) <= set(found.__all__)


def test_models_and_engines():
    """No model or engine is lost."""
    assert set(MODELS.split()) <= set(pp_models.available()) and set(ENGINES.split()) <= set(
        inference.engines()
    )


@pytest.mark.parametrize("command", OPTIONS)
def test_help_names_every_option(command, capsys):
    """The help text of a command is shown with status 0 and names the options it always had."""
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and shown.startswith(f"usage: pp-models {command}")
    assert set(OPTIONS[command].split()) <= set(re.findall(r"--[a-z][a-z-]*", shown))


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["list"], 0),
        (["fit", "ldaa", "--out", "never"], 2),
        (["evaluate", "nowhere", "--data", "nothing.npz"], 2),
        (["data", "info", "nothing.npz"], 2),
    ],
)
def test_exit_status(arguments, status, capsys):
    """0 where it went well, 2 with one sentence on standard error where the user can put something
    right.
    """
    assert main(arguments) == status
    assert capsys.readouterr().err.count("\n") == (1 if status else 0)


def test_unknown_command():
    """Python's own parser refuses what is no command, with status 2."""
    with pytest.raises(SystemExit) as ended:
        main(["train"])
    assert ended.value.code == 2


MODEL = '''
"""Poisson counts whose rates are a sum of few factors."""
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from pp_models import data as data_
from pp_models import families as fam
from pp_models.base import Model, check_count, check_positive, documents
from pp_models.eliminate import allocate
from pp_models.errors import InputError
from pp_models.families import Pair


class Hyper(NamedTuple):
    num_topics: int = 1
    eta: float = 1.5


def resolve(hyper, data):
    check_count("num_topics", hyper.num_topics)
    check_positive("eta", hyper.eta)
    if hyper.eta > 1e6:
        raise InputError("eta must be at most 1e6.")
    return hyper


def generate(hyper, data):
    with numpyro.plate("topics", hyper.num_topics):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.full(data.num_columns, hyper.eta)))
    with documents(data):
        prior = dist.Gamma(jnp.full(hyper.num_topics, 2.0), 1.0).to_event(1)
        theta = numpyro.sample("theta", prior)
        counts = data.entries.dense(data.num_columns)
        numpyro.sample("counts", dist.Poisson(theta @ beta).to_event(1), obs=counts)


def guide(hyper, data):
    ones = jnp.ones((data.num_data_rows, hyper.num_topics))
    shape = numpyro.param("shape", 2 * ones, constraint=constraints.positive)
    rate = numpyro.param("rate", ones, constraint=constraints.positive)
    start = lambda key: init(key, hyper, data)["beta"]
    topics = numpyro.param("lambda", start, constraint=constraints.positive)
    with numpyro.plate("topics", hyper.num_topics):
        numpyro.sample("beta", dist.Dirichlet(topics))
    with documents(data):
        numpyro.sample("theta", dist.Gamma(shape[data.positions], rate[data.positions]).to_event(1))


def log_global(hyper, t):
    return jnp.sum(fam.log_prior(fam.dirichlet, jnp.reshape(hyper.eta, (1, 1)), t["beta"]))


def log_local(hyper, t, batch, key=None):
    natural = Pair(jnp.full((1, 1), 2.0), jnp.full((1, 1), -1.0))
    prior = fam.log_prior(fam.gamma, natural, t["theta"])
    rows = batch.sum(prior - jnp.sum(t["theta"].second, 1) - batch.log_factorials)
    return rows + allocate(t["theta"].first, t["beta"], batch.entries, key)


def init(key, hyper, data):
    ones = jnp.ones((data.num_rows, hyper.num_topics))
    beta = jnp.full((hyper.num_topics, data.num_columns), 2.0)
    return {"theta": Pair(2 * ones, -ones), "beta": beta}


def predict(hyper, values):
    return values["theta"] @ values["beta"]


def example(key):
    return Hyper(), data_.counts(np.arange(12).reshape(4, 3))


MODEL = Model(
    name="poisson", kind="counts", Hyper=Hyper, generate=generate, guide=guide,
    families={"theta": fam.gamma, "beta": fam.dirichlet}, local=frozenset({"theta"}),
    log_global=log_global, log_local=log_local, init=init, predict=predict,
    symmetry="permutation", example=example, resolve=resolve, observed="counts", coupled="",
)
'''

SCRIPT = """
import jax, pp_models, inference
from pp_models import base
model = pp_models.load("poisson")
hyper, data = model.example(jax.random.key(0))
fit = inference.fit("poisson", data, engine="cavi", num_epochs=5)
draws = fit.posterior.sample(jax.random.key(1), 3)
assert fit.posterior.mean("beta").shape == (1, 3) and draws["theta"].shape == (3, 4, 1)
assert base.factor_axes(model) == {"theta": (-1,), "beta": (-2,)}
print("bound", float(fit.history["bound"][-1]))
"""


def test_a_model_file_of_the_first_version(tmp_path):
    """A model written with every field declared, as MODEL_CONTRACT.md once asked for, is found,
    listed and fitted.
    """
    (tmp_path / "poisson.py").write_text(MODEL)
    environment = {
        **os.environ,
        "PP_MODELS_PATH": str(tmp_path),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr[-2000:]
    counts, eta = np.arange(12).reshape(4, 3), 1.5
    totals, words = counts.sum(1), counts.sum(0)
    rates = np.sum(
        gammaln(2 + totals) - (2 + totals) * np.log(2)
    )  # one factor: rates and topic are independent a posteriori, and the bound exact
    topic = (
        gammaln(3 * eta)
        - 3 * gammaln(eta)
        + np.sum(gammaln(eta + words))
        - gammaln(3 * eta + words.sum())
    )
    assert float(told.stdout.split()[1]) == pytest.approx(
        rates + topic - np.sum(gammaln(counts + 1)), abs=1e-2
    )  # single precision
