"""A new model is one file: dropped into a folder, it is discovered, listed, fitted by every engine and held to the shared laws."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

GAP = '''
"""Gamma-Poisson (GaP) with topics on the simplex and a learned rate per topic (P 11.3.1, e_k = 1)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from pp_models import data as data_
from pp_models import families as fam
from pp_models.base import Count, Model, Positive, documents
from pp_models.eliminate import allocate
from pp_models.families import Pair


class Hyper(NamedTuple):
    num_topics: Count = 3
    shape: Positive = 1.5
    c: Positive = 2.0
    d: Positive = 10.0
    eta: Positive = 1.3


def generate(hyper, data):
    with numpyro.plate("topics", hyper.num_topics):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.full(data.num_columns, hyper.eta)))
        rate = numpyro.sample("rate", dist.Gamma(hyper.c, hyper.d))
    with documents(data):
        theta = numpyro.sample("theta", dist.Gamma(hyper.shape, rate).to_event(1))
        numpyro.sample("counts", dist.Poisson(theta @ beta).to_event(1), obs=data.entries.dense(data.num_columns))


def log_global(hyper, t):
    rates = fam.log_prior(fam.gamma, Pair(jnp.reshape(hyper.c, (1,)), jnp.reshape(-hyper.d, (1,))), t["rate"])
    return jnp.sum(fam.log_prior(fam.dirichlet, jnp.reshape(hyper.eta, (1, 1)), t["beta"])) + jnp.sum(rates)


def log_local(hyper, t, batch, key=None):
    theta, rate = t["theta"], t["rate"]
    prior = jnp.sum(hyper.shape * (theta.first + rate.first) - theta.second * rate.second - gammaln(hyper.shape), 1)
    return batch.sum(prior - jnp.sum(theta.second, 1) - batch.log_factorials) + allocate(theta.first, t["beta"], batch.entries, key)


def init(key, hyper, data):
    rows, topics = jnp.ones((data.num_rows, hyper.num_topics)), 5 * jax.random.uniform(key, (hyper.num_topics, data.num_columns))
    return {"theta": Pair(2 * rows, -rows), "beta": hyper.eta + topics, "rate": Pair(2 * rows[0], -5 * rows[0])}


def example(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    rates = rng.gamma(0.7, 8, (9, 3)) @ rng.dirichlet(np.full(6, 0.4), 3) + np.eye(9, 6)
    return Hyper(), data_.counts(rng.poisson(rates))


MODEL = Model(Hyper=Hyper, generate=generate, families={"theta": fam.gamma, "beta": fam.dirichlet, "rate": fam.gamma},
              log_global=log_global, log_local=log_local, init=init, predict=lambda hyper, values: values["theta"] @ values["beta"],
              symmetry="permutation", example=example)
'''


def run_shared_tests(folder, selection):
    """The shared tests, unchanged, in a fresh process that finds the folder."""
    (folder / "gap.py").write_text(GAP)
    environment = {**os.environ, "PP_MODELS_PATH": str(folder)}
    listed = subprocess.run(
        [sys.executable, "-m", "pp_models", "list"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "gap" in listed.stdout.split()
    shared = [
        str(TESTS / name)
        for name in (
            "test_model_contract.py",
            "test_engine_contract.py",
            "test_stochastic_engines.py",
            "test_samplers.py",
        )
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        selection,
        *shared,
    ]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=TESTS.parents[1]
    )
    assert result.returncode == 0, result.stdout[-5000:]
    return int(re.search(r"(\d+) passed", result.stdout)[1])


def test_a_model_in_a_folder_passes_the_shared_tests(tmp_path):
    """The new model is tested because it is there. Here: the laws that everything rests on; `make calibrate` runs all of them."""
    laws = "numpyros_log_density or guide_density or full_batch or one_inner_step"
    assert run_shared_tests(tmp_path, f"gap and ({laws})") >= 4


def test_the_model_is_short():
    """Nine fields fit on one page."""
    assert len(GAP.strip().splitlines()) <= 60


@pytest.mark.slow
def test_a_model_in_a_folder_passes_all_shared_tests(tmp_path):
    """Every shared test with every engine."""
    assert run_shared_tests(tmp_path, "gap") > 50
