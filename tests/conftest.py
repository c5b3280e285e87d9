"""Shared fixtures. Laws are checked in double precision; tests of single precision switch it off.

`make test` runs what is neither `costly` nor `slow`, `make laws` every law that is not `slow`.
"""

import collections
import functools
import gc
import itertools
import os
import signal
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Examples are tiny and programs many: compiling costs more than running.
# JAX_DISABLE_MOST_OPTIMIZATIONS=0 tests what users run.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1":
    # Emitters by way of MLIR take a third of the time of compiling. Versions of XLA that do not
    # know these options pass them over.
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters,xla_cpu_disable_tiled_emitter",
    )
# Tests write nothing to the user's cache; make gives them one of their own.
os.environ["PP_MODELS_CACHE"] = "off"

import jax

jax.config.update("jax_enable_x64", True)

import pytest

import pp_models
from inference.core.compilation import make_room
from inference.core.registry import engines, load_engine
from inference.run import fit

# Tracing makes millions of objects that live long: collecting them takes a tenth of the time.
gc.set_threshold(100_000, 20, 20)

# A shell ignores SIGINT for what runs in the background; tests send it to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LAWS = Path(__file__).parent / "laws"
# Laws that take long, measured; the first line says how. One pair of model and engine has one
# line for all its laws, which share a fit.
COSTLY = {line.split()[1] for line in (LAWS / "costly.txt").read_text().splitlines()[1:]}

# Declarations that hyper-parameters choose (`Model.variant`), for the model's contract: name in
# the tests -> the model and what is changed.
OTHERWISE = {
    "correlated_nmf, points": ("correlated_nmf", {"point_u": True}),
    "ctm, locations": ("ctm", {"prior": "locations"}),
    "lg_nmf, alpha1 given": ("lg_nmf", {"alpha1": 0.7}),
    "lg_nmf_votes, alphas given": ("lg_nmf_votes", {"alpha1": 0.7, "alpha2": 1.3, "bias": True}),
    "lg_op, alpha1 given": ("lg_op", {"alpha1": 0.7}),
}


@functools.cache
def has_prior(model_name):
    model = pp_models.load(model_name)
    return model.proper(model.example(jax.random.key(0))[0])


def applies(model, engine):
    """Whether the engine can fit the model's example."""
    return (has_prior(model) or engine.kind == "point") and not engine.suits(pp_models.load(model))


@functools.cache
def pairs():
    """Every model with every engine that can fit its example."""
    names = itertools.product(pp_models.available(), engines())
    return [(model, engine) for model, engine in names if applies(model, load_engine(engine))]


def pytest_generate_tests(metafunc):
    """Run a test that takes `model_name` or `engine_name` for every model or engine there is.

    A model whose example has no proper prior, and so no posterior, takes part where a point is
    asked for.
    """
    taken = set(metafunc.fixturenames)
    models = pp_models.available()
    if {"model_name", "engine_name"} <= taken:
        metafunc.parametrize(("model_name", "engine_name"), pairs(), scope="module")
    elif "model_name" in taken:
        names = [name for name in models if has_prior(name)]
        if metafunc.module.__name__.endswith("model_contract"):
            names += OTHERWISE
        metafunc.parametrize("model_name", names, scope="module")
    elif "engine_name" in taken:
        metafunc.parametrize("engine_name", engines(), scope="module")


_ENDED = itertools.count(1)


def pytest_runtest_teardown():
    """Forget compiled programs before there are so many that the next one crashes the process."""
    if next(_ENDED) % 8 == 0:
        make_room()


# Tests that run in one process because they share compiled programs: those of a file, or the laws
# of a model. Groups of 20 seconds or more begin, so that two processes end together.
LONGEST = (
    "test_third_model",
    "laws",
    "test_families",
    "test_evidence",
    "test_eliminate",
    "test_nmf",
    "test_command_line",
    "test_browser",
    "test_collapsed_gibbs",
    "test_latent_gaussian",
    "test_references",
    "test_comparison",
    "test_pmf",
    "test_measures",
    "test_evaluate",
    "test_checkpoints",
)


def model_of(item):
    """The model whose law a test is; "" for other tests."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    name = parameters.get("model_name", "")
    return OTHERWISE.get(name, (name,))[0] if LAWS in item.path.parents else ""


def cost_name(item):
    """What a test is called in `laws/costly.txt`."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if {"model_name", "engine_name"} <= set(parameters):
        return f"{parameters['model_name']}-{parameters['engine_name']}"
    return f"{item.path.stem}::{item.name}".replace(" ", "")


HEAD = "# {limit} s of processor time or more in an empty cache: pytest tests/laws --costs FILE\n"
LIMIT = 3.0
_SECONDS = collections.Counter()


def pytest_addoption(parser):
    parser.addoption("--costs", type=Path, help="measure the laws and write `laws/costly.txt` anew")
    parser.addoption("--until", type=float, help="second since 1970 after which no test begins")


@pytest.hookimpl(tryfirst=True)  # before fixtures are set up
def pytest_runtest_setup(item):
    """Skip what would begin too late, so that a slow machine reports what it did run."""
    until = item.config.getoption("until")
    if until is not None and time.time() > until:
        pytest.skip("not begun before the time of --until")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Count processor time, that of processes which a test starts included."""
    began = os.times()
    result = yield
    _SECONDS[cost_name(item)] += sum(os.times()[:4]) - sum(began[:4])
    return result


def pytest_sessionfinish(session):
    if place := session.config.getoption("costs"):
        costly = sorted((-round(x), name) for name, x in _SECONDS.items() if x >= LIMIT)
        lines = [f"{-x} {name}\n" for x, name in costly]
        place.write_text(HEAD.format(limit=LIMIT) + "".join(lines))


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items):
    """Mark laws and costly ones, and put the longest groups first."""
    for item in items:
        model = model_of(item)
        item.add_marker(pytest.mark.xdist_group(f"laws of {model}" if model else item.path.stem))
        if LAWS in item.path.parents:
            item.add_marker(pytest.mark.law)
            if cost_name(item) in COSTLY:
                item.add_marker(pytest.mark.costly)
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get("laws" if model_of(item) else item.path.stem, len(ranks)))


@pytest.fixture(scope="module")
def problem(model_name):
    """The model's example as a problem on one device."""
    name, changes = OTHERWISE.get(model_name, (model_name, {}))
    hyper, data = pp_models.load(name).example(jax.random.key(0))
    return fit.make_problem(name, data, hyper._replace(**changes), devices=jax.local_devices()[:1])


@pytest.fixture(scope="session")
def quick():
    """Options with which each engine takes seconds on a model's example."""
    return {name: dict(load_engine(name).tiny) for name in engines()}


@pytest.fixture
def compiled():
    """A list that grows with every program that is compiled or read from the cache on disk.

    Room is made first, so that a fit in the middle of the test does not forget programs.
    """
    names = []
    make_room(share=0.25)
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: names.append(name) if "backend_compile" in name else None
    )
    yield names
    jax.monitoring.clear_event_listeners()
