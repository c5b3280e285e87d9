"""Compiled programs kept on disk: where, when, and never in the way."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import inference
import pp_models
from inference.core import compilation

COMMAND = [
    sys.executable,
    *[
        "-m",
        "pp_models",
        "fit",
        "bernoulli_mixture",
        "--engine",
        "cavi",
        "--set",
        "num_epochs=2",
        "--quiet",
        "--overwrite",
        "--devices",
        "1",
    ],
]


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    """XDG's cache folder, a folder for each kind of processor and version of jaxlib, and none where
    it is switched off or loading a program crashes.
    """
    monkeypatch.delenv("PP_MODELS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = tmp_path / "pp-models" / "programs"
    monkeypatch.setattr(compilation, "jaxlib", lambda: "0.9.2")
    assert compilation.folder() == here / f"{compilation.processor()}-0.9.2"
    monkeypatch.setattr(compilation.sys, "platform", "darwin")
    assert compilation.folder() is None
    monkeypatch.setattr(compilation, "jaxlib", lambda: "0.10.0")
    assert compilation.folder() == here / f"{compilation.processor()}-0.10.0"
    monkeypatch.setenv("PP_MODELS_CACHE", "OFF")
    assert compilation.folder() is None


def test_programs_are_forgotten_when_memory_maps_run_out():
    """Beyond its share of the maps that Linux allows, a process forgets its programs, and only
    then; a fit afterwards gives the same numbers.
    """

    @jax.jit
    def double(x):
        return 2 * x

    def fitted():
        hyper, data = pp_models.load("bernoulli_mixture").example(jax.random.key(0))
        return inference.fit("bernoulli_mixture", data, "cavi", hyper, progress=False, num_epochs=2)

    before = fitted().posterior.mean("beta")
    double(1.0)
    assert not compilation.make_room(share=1.0)
    assert double._cache_size() == 1
    if not Path("/proc/self/maps").exists():
        pytest.skip("only Linux counts memory maps")
    assert compilation.make_room(share=0.0)
    assert double._cache_size() == 0
    np.testing.assert_array_equal(fitted().posterior.mean("beta"), before)


@pytest.mark.slow
def test_a_second_process_compiles_nothing_anew(tmp_path):
    """The first run of a command leaves programs, the second adds none; without a place to write,
    it runs all the same.
    """
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_", "PP_MODELS_CACHE"))
    }
    clean["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = (
        "0"  # a program may take just long enough in one run and not in the other
    )
    found = []
    for _ in range(2):
        subprocess.run(
            [*COMMAND, "--out", str(tmp_path / "out")],
            check=True,
            env={**clean, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        )
        found.append({file.name for file in (tmp_path / "cache").rglob("*-cache")})
    assert found[0] and found[0] == found[1]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pp-models").touch()  # a file where the folder should be
    subprocess.run(
        [*COMMAND, "--out", str(tmp_path / "out")],
        check=True,
        env={**clean, "XDG_CACHE_HOME": str(tmp_path / "other")},
    )


def test_the_oldest_programs_go_first(tmp_path):
    """Beyond its room a cache is cut to half of it; within, nothing is touched."""
    for age in range(6):
        (tmp_path / str(age)).write_bytes(b"x" * 10)
        os.utime(tmp_path / str(age), (1000 - age, 1000 - age))
    compilation.prune(tmp_path, most=60)
    assert len(list(tmp_path.iterdir())) == 6
    compilation.prune(tmp_path, most=50)
    assert {file.name for file in tmp_path.iterdir()} == {"0", "1"}
