"""Shared fixtures. Laws are checked in double precision; tests of single precision switch it off locally."""

import collections
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Examples are tiny and programs many: compiling costs more than running. JAX_DISABLE_MOST_OPTIMIZATIONS=0 tests what users run.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax

jax.config.update("jax_enable_x64", True)

import pytest

import pp_models
from inference import fitting
from inference.registry import engines


def pytest_generate_tests(metafunc):
    """A test that takes `model_name` or `engine_name` runs for every model or engine there is: a new one joins by being discovered."""
    for argument, names in (("model_name", pp_models.available()), ("engine_name", engines())):
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, names, scope="module")


LONGEST = ("test_third_model", "test_samplers", "test_engine_contract")


def pytest_collection_modifyitems(items):
    """The longest tests first, so that two processes end together."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(scope="module")
def problem(model_name):
    """The model's example as a problem on one device."""
    model = pp_models.load(model_name)
    hyper, data = model.example(jax.random.key(0))
    return fitting.make_problem(model_name, data, hyper, devices=jax.local_devices()[:1])


# Options that make each engine quick enough for the example problems; a new engine runs with its defaults.
QUICK = {
    "cavi": {"num_epochs": 30},
    "svi": {"num_epochs": 10, "batch_size": 4},
    "map": {"num_epochs": 30, "basis": "log"},
    "gibbs": {"num_samples": 50, "num_warmup": 20},
    "nuts": {"num_samples": 20, "num_warmup": 20, "num_chains": 1},
    "numpyro_svi": {"num_epochs": 20, "num_particles": 1},
}


@pytest.fixture(scope="session")
def quick():
    return collections.defaultdict(dict, QUICK)
