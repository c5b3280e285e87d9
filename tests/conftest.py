"""Shared fixtures. Laws are checked in double precision; tests of single precision switch it off locally."""

import functools
import gc
import itertools
import os
import signal
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Examples are tiny and programs many: compiling costs more than running. JAX_DISABLE_MOST_OPTIMIZATIONS=0 tests what users run.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1":
    # Emitters by way of MLIR take a third of the time of compiling. Versions of XLA that do not know these options pass them over.
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters,xla_cpu_disable_tiled_emitter",
    )
os.environ["PP_MODELS_CACHE"] = (
    "off"  # tests write nothing to the user's cache; make gives them one of their own
)

import jax

jax.config.update("jax_enable_x64", True)

import pytest

import pp_models
from inference.core.registry import engines, load_engine
from inference.run import fit

gc.set_threshold(
    100_000, 20, 20
)  # tracing makes millions of objects that live long: looking through them again and again is a tenth of the time

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as a shell leaves it to what runs in the background; tests send it to themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)

OWN = {file.stem for file in (Path(pp_models.__file__).parent / "models").glob("*.py")}
FULL_MODEL = "lda"  # takes all shared tests in `make test`; this repository's other models take the core law there, and all in `make calibrate`
CORE = {"test_joint_is_numpyros_log_density"}
SLOW_ENGINES = {
    "nuts",
    "numpyro_svi",
}  # compile for minutes: on data with one factor only in `make calibrate`

# Declarations that hyper-parameters choose (`Model.variant`), for the model's contract: name in the tests -> the model and what is changed.
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


def pytest_generate_tests(metafunc):
    """A test that takes `model_name` or `engine_name` runs for every model or engine there is: a new one joins by being discovered.

    A model whose example has no proper prior, and so no posterior to share laws about, takes part where a point is asked for.

    To keep `make test` short, some of these runs are marked slow and left to `make calibrate`: a test marked `representative` for models of this
    repository that it does not name, and the rest, the core law aside, for all but one of them. Models from outside, which somebody is writing, are
    tested in full.
    """
    taken = set(metafunc.fixturenames)
    named = metafunc.definition.get_closest_marker("representative")

    def cost(model, engine=None):
        if model not in OWN:
            return []
        test = metafunc.function.__name__
        skipped = model not in named.args if named else model != FULL_MODEL and test not in CORE
        return (
            [pytest.mark.slow]
            if skipped
            or (engine in SLOW_ENGINES and test == "test_degenerate_data_in_single_precision")
            else []
        )

    if {"model_name", "engine_name"} <= taken:
        pairs = [
            (model, engine)
            for model in pp_models.available()
            for engine in engines()
            if applies(model, load_engine(engine))
        ]
        metafunc.parametrize(
            ("model_name", "engine_name"),
            [pytest.param(*pair, marks=cost(*pair)) for pair in pairs],
            scope="module",
        )
    elif "model_name" in taken:
        names = [
            pytest.param(name, marks=cost(name))
            for name in pp_models.available()
            if has_prior(name)
        ]
        if metafunc.module.__name__.endswith("model_contract"):
            names += [
                pytest.param(name, marks=cost(model)) for name, (model, _) in OTHERWISE.items()
            ]
        metafunc.parametrize("model_name", names, scope="module")
    elif "engine_name" in taken:
        metafunc.parametrize("engine_name", engines(), scope="module")


MOST_MAPS = 30_000  # of the 65,530 memory maps that Linux allows a process; every compiled program takes some


_ENDED = itertools.count(1)


def pytest_runtest_teardown():
    """Forget compiled programs before there are so many that the next one would crash the process."""
    maps = Path("/proc/self/maps")
    if next(_ENDED) % 8 == 0 and maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


# A file runs in one process, which compiles its programs once. Those of 20 seconds or more begin (xdist would go by the number of tests: Makefile).
LONGEST = (
    "test_engine_contract",
    "test_families",
    "test_model_contract",
    "test_evidence",
    "test_eliminate",
    "test_nmf",
    "test_command_line",
    "test_browser",
    "test_collapsed_gibbs",
    "test_stochastic_engines",
    "test_latent_gaussian",
    "test_references",
    "test_comparison",
    "test_pmf",
    "test_measures",
    "test_third_model",
    "test_evaluate",
    "test_checkpoints",
)


def pytest_collection_modifyitems(items):
    """The longest tests first, so that two processes end together."""
    items.sort(
        key=lambda item: (
            LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST)
        )
    )


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
