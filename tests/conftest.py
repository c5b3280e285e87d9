"""Shared fixtures. Laws are checked in double precision; tests of single precision switch it off locally."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_enable_x64", True)

import pytest

import pp_models
from inference import fitting
from inference.registry import engines, load_engine


def pytest_generate_tests(metafunc):
    """A test that takes `model_name` or `engine_name` runs for every model or engine there is: a new one joins by being discovered."""
    if "model_name" in metafunc.fixturenames:
        metafunc.parametrize("model_name", pp_models.available(), scope="module")
    if "engine_name" in metafunc.fixturenames:
        kinds = getattr(metafunc.function, "engine_kinds", ("variational", "point", "draws"))
        names = [name for name in engines() if load_engine(name).kind in kinds]
        metafunc.parametrize("engine_name", names, scope="module")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests of one file on one model and engine share their fits: they go to the same process (pytest-xdist's loadgroup)."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        names = [parameters.params[name] for name in ("model_name", "engine_name") if parameters and name in parameters.params]
        if names:
            item.add_marker(pytest.mark.xdist_group("-".join([item.path.stem, *names])))


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
