"""A new model is one file of 60 lines and a new engine one of 40.

Put into a folder, they are found, listed, held to the shared laws, compared, drawn and calibrated.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LAWS = Path(__file__).parent

MODEL = '''"""Gamma-Poisson (GaP): topics on the simplex, a rate per topic (P 11.3.1, e_k = 1)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist, plate, sample

from pp_models import families as fam
from pp_models.base import Count, Model, Positive, documents
from pp_models.data import counts
from pp_models.eliminate import allocate


class Hyper(NamedTuple):
    num_topics: Count = 3
    shape: Positive = 1.5
    c: Positive = 2.0
    d: Positive = 10.0
    eta: Positive = 1.3


def generate(hyper, data):
    with plate("topics", hyper.num_topics):
        beta = sample("beta", dist.Dirichlet(jnp.full(data.num_columns, hyper.eta)))
        rate = sample("rate", dist.Gamma(hyper.c, hyper.d))
    with documents(data):
        theta = sample("theta", dist.Gamma(hyper.shape, rate).to_event(1))
        seen = data.entries.dense(data.num_columns)
        sample("counts", dist.Poisson(theta @ beta).to_event(1), obs=seen)


def log_global(hyper, t):
    rate = fam.Pair(jnp.full(1, hyper.c), jnp.full(1, -hyper.d))
    topics = fam.log_prior(fam.dirichlet, jnp.full((1, 1), hyper.eta), t["beta"])
    return jnp.sum(topics) + jnp.sum(fam.log_prior(fam.gamma, rate, t["rate"]))


def log_local(hyper, t, batch, key=None):
    (log_theta, theta), (log_rate, rate) = t["theta"], t["rate"]
    prior = hyper.shape * (log_theta + log_rate) - theta * (rate + 1) - jax.lax.lgamma(hyper.shape)
    rows = batch.sum(jnp.sum(prior, 1) - batch.log_factorials)
    return rows + allocate(log_theta, t["beta"], batch.entries, key)


def init(key, hyper, data):
    rows = jnp.ones((data.num_rows, hyper.num_topics))
    beta = hyper.eta + 5 * jax.random.uniform(key, (hyper.num_topics, data.num_columns))
    return {"theta": fam.Pair(rows, -rows), "beta": beta, "rate": fam.Pair(rows[0], -5 * rows[0])}


def example(key):
    rng = np.random.default_rng(jax.random.key_data(key).tolist())
    return Hyper(), counts(rng.poisson(rng.gamma(0.7, 8, (9, 3)) @ rng.dirichlet(6 * [0.4], 3) + 1))


MODEL = Model(Hyper=Hyper, generate=generate, log_global=log_global, log_local=log_local, init=init,
              families={"theta": fam.gamma, "beta": fam.dirichlet, "rate": fam.gamma},
              example=example, predict=lambda _, x: x["theta"] @ x["beta"], symmetry="permutation")
'''

ENGINE = '''"""Natural-gradient ascent on all rows at a fixed rate (X 25): CAVI in short steps."""

from inference.core import options as opt
from inference.core.engine import Engine
from inference.engines import _minibatch as mb
from pp_models.elimination.row_solver import RowOptions

Options = opt.compose(
    opt.epochs(100),
    opt.rows(50, 1e-6),
    {"rate": opt.Option(0.7, "the share of the way to the target")},
)


def build(problem, options):
    rows, num_rows = RowOptions(options.num_local, options.local_tolerance), problem.data.num_rows

    def step(key, state, batches):
        shared, hyper = state.shared, state.hyper
        solved = mb.solve(problem, hyper, shared, batches, rows, num_rows, bound=True)
        after = mb.ascend(solved, shared, options.rate, anchor=shared)
        return mb.State(after, hyper, state.step + 1), mb.Info(solved.bound)

    return mb.algorithm(problem, step)


ENGINE = Engine("gradient_ascent", Options, build, kind="variational", init="natural",
                compared=True, is_quick=True, tiny={"num_epochs": 20})
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that holds the two files."""
    place = tmp_path_factory.mktemp("own")
    (place / "gap.py").write_text(MODEL)
    (place / "gradient_ascent.py").write_text(ENGINE)
    return place


def run(folder, *arguments):
    """What a fresh process says that finds the folder."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        env={**os.environ, "PP_MODELS_PATH": str(folder)},
        capture_output=True,
        text=True,
        cwd=LAWS.parents[1],
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout


def held_to_laws(folder, selection):
    """The shared tests, unchanged: the number that passed."""
    files = [file for file in LAWS.glob("test_*.py") if file != Path(__file__)]
    options = ("-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", selection)
    told = run(folder, "pytest", *options, *files)
    return int(re.search(r"(\d+) passed", told)[1])


@pytest.mark.parametrize(("text", "most"), [(MODEL, 60), (ENGINE, 40)])
def test_a_newcomer_is_short(text, most):
    """Nine fields fit on one page, three functions on half of one, at 100 columns."""
    lines = text.splitlines()
    assert len(lines) <= most and max(map(len, lines)) <= 100


def test_newcomers_are_found(folder):
    """By `list`, and by comparisons that name no engine."""
    assert {"gap", "gradient_ascent"} <= set(run(folder, "pp_models", "list").split())


def test_newcomers_are_held_to_the_laws_that_everything_rests_on(folder):
    """Both are tested because they are there; `make laws` runs all of their laws."""
    model = "numpyros_log_density or guide_density or full_batch or one_inner_step"
    engine = "posterior_answers or interrupted_run"
    assert held_to_laws(folder, f"gap and ({model} or (gradient_ascent and ({engine})))") == 6


@pytest.mark.costly
@pytest.mark.parametrize(("name", "least"), [("gap", 150), ("gradient_ascent", 100)])
def test_newcomers_are_held_to_all_shared_laws(folder, name, least):
    """The model with every engine, the engine with every model."""
    assert held_to_laws(folder, name) >= least


@pytest.mark.costly
def test_newcomers_take_part_in_comparisons(folder, tmp_path):
    """Without being named: in the table, the summary, the page and the stored fits."""
    out = tmp_path / "out"
    told = run(folder, "pp_models", "compare", "gap", "--quick", "--quiet", "--out", out)
    assert re.search(r"^gradient_ascent ", told, re.MULTILINE)
    summary = json.loads((out / "summary.json").read_text())
    found = summary["engines"]["gradient_ascent"]
    assert found["error"] is None and found["verdict"]
    # The same fixed point as coordinate ascent, reached in shorter steps.
    assert found["bound"] == pytest.approx(summary["engines"]["cavi"]["bound"], rel=0.01)
    assert (out / "gradient_ascent.nc").stat().st_size > 0
    page = (out / "report.html").read_text()
    assert re.search(r"\.e-gradient-ascent\s*\{", page) and 'class="e-gradient-ascent"' in page
    assert "<h1>Gamma-Poisson" in page


@pytest.mark.costly
def test_newcomers_are_calibrated(folder, tmp_path):
    """A row of the calibration tables."""
    table = tmp_path / "tables.md"
    sizes = ("--datasets", 4, "--rows", 5, "--out", table)
    run(folder, "inference.calibration", "--models", "gap", "--engines", "gradient_ascent", *sizes)
    assert re.search(r"^\| gap \| gradient_ascent \|", table.read_text(), re.MULTILINE)
