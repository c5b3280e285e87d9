"""Rows, chains and statistics over devices and processes: how the work is shared out changes
nothing but rounding.
"""

import functools
import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import pp_models
from inference.cli import main
from inference.core import devices

_SPEC = importlib.util.spec_from_file_location("joined", Path(__file__).with_name("joined.py"))
joined = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(joined)

FAST = ("svi",)
REST = tuple(name for name in joined.OPTIONS if name not in FAST)


@functools.cache
def together(names, file):
    """What two processes of two devices each found together: [process] -> arrays."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, joined.__file__, address, "2"]
    started = [
        subprocess.Popen(
            [*command, str(i), file, *names], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for i in range(2)
    ]
    try:
        said = [process.communicate(timeout=420)[0].decode() for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said
    return [np.load(f"{file}-{i}.npz") for i in range(2)]


@pytest.mark.parametrize(
    "engine", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in REST)]
)
def test_two_processes_find_what_one_does(engine, tmp_path_factory):
    """Statistics are sums over rows, however they are dealt out; chains depend on their number
    alone. In double precision to 1e-9: sums in another order, some dozens of steps, no chaos in a
    problem this small. Every process makes the same step after the all-reduce: the same bits.
    """
    one, other = together(
        FAST if engine in FAST else REST, tmp_path_factory.getbasetemp() / f"found-{engine in FAST}"
    )
    np.testing.assert_array_equal(
        one["ones"], np.full(3, 4.0)
    )  # a sum over four devices: steps that divide by the rows cannot tell it from a mean
    assert one["added"] == 4.0
    for what, expected in joined.results(engine, devices=jax.local_devices()[:1]).items():
        name = f"{engine}/{what}"
        np.testing.assert_array_equal(one[name], other[name], name)
        np.testing.assert_allclose(one[name], expected, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    "engine", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in REST)]
)
def test_two_processes_that_were_interrupted_end_with_the_same_bits(engine, tmp_path_factory):
    """They go on from the last step that both have: one of them was killed before it had written
    what the other had. A signal to one of them, or a checkpoint that one cannot write, ends both.
    """
    found = together(
        FAST if engine in FAST else REST, tmp_path_factory.getbasetemp() / f"found-{engine in FAST}"
    )
    for process in found:
        steps = process[f"{engine}/again/steps"].tolist()
        assert steps == [0, 1, 2, 3, *range(2, max(steps) + 1)] and max(steps) > 3
        assert process[f"{engine}/ended/said"].tolist() == ["Stopped 15", "InputError "]
        for name in process.files:
            whole = name.replace("/again", "").replace("/ended", "")
            if name.startswith(f"{engine}/") and whole in process.files:
                np.testing.assert_array_equal(process[name], process[whole], name)
        assert f"{engine}/again/beta" in process.files and f"{engine}/ended/beta" in process.files


@pytest.mark.slow
@pytest.mark.parametrize("names", [("ctm",), tuple(sorted(set(pp_models.available()) - {"ctm"}))])
def test_three_devices_find_what_one_does(names, tmp_path):
    """Whatever the shapes of a model's statistics: ctm has scalars among them.

    Sums in another order, a few sweeps: 1e-8.
    """
    subprocess.run(
        [sys.executable, joined.__file__, "devices", tmp_path / "found", *names],
        check=True,
        timeout=1500,
    )
    with np.load(tmp_path / "found.npz") as found:
        assert {name.split("/")[0] for name in found.files} == set(names)
        for name in found.files:
            model, _, site = name.split("/")
            np.testing.assert_allclose(
                found[name], found[f"{model}/1/{site}"], rtol=1e-8, atol=1e-9, err_msg=name
            )


def test_scalars_and_arrays_are_added_up_over_parts():
    """`gather` and `total` see every device's part once."""
    here = jax.local_devices()[:1] * 3
    parts = devices.run(_sum, ("x",), here, np.float64(2.0), [np.arange(3.0) + i for i in range(3)])
    gathered = devices.gather(here, parts)
    assert devices.total([scalar for scalar, _ in gathered]) == 2.0 * (3 + 6 + 9)
    np.testing.assert_array_equal(
        sum(array for _, array in gathered), [0 + 2 + 4, 2 + 4 + 6, 4 + 6 + 8]
    )


def _sum(setting, common, own):
    return common * own.sum(), common * own - (0.0 if setting == ("x",) else 1.0)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--coordinator", "127.0.0.1:5000"], "go together"),
        (
            ["--coordinator", "127.0.0.1:5000", "--num-processes", "2", "--process-id", "2"],
            "from 0",
        ),
        (["--coordinator", "nowhere", "--num-processes", "2", "--process-id", "0"], "HOST:PORT"),
        (["--coordinator", "host:99999", "--num-processes", "2", "--process-id", "0"], "HOST:PORT"),
    ],
)
def test_options_of_processes_are_checked_first(arguments, said, tmp_path, capsys):
    """One sentence, nothing written."""
    assert main(["fit", "lda", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
