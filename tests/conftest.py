"""Shared fixtures. Laws are checked in double precision; tests of single precision switch it off locally."""

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
    """A test that takes `model_name` or `engine_name` runs for every model or engine there is: a new one joins by being discovered.

    Tests of one model and engine share their fits, so they go to the same process (pytest-xdist's loadgroup).
    """
    for argument, names in (("model_name", pp_models.available()), ("engine_name", engines())):
        if argument in metafunc.fixturenames:
            values = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names]
            metafunc.parametrize(argument, values, scope="module")


@pytest.fixture(scope="module")
def problem(model_name):
    """The model's example as a problem on one device."""
    model = pp_models.load(model_name)
    hyper, data = model.example(jax.random.key(0))
    return fitting.make_problem(model_name, data, hyper, devices=jax.local_devices()[:1])


# Options that make each engine quick enough for the example problems.
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
    return QUICK
