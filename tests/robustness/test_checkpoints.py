"""Checkpoints: what refuses to go on, what a full disk and a signal leave behind.

That every engine goes on bit for bit: test_engine_contract.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import inference
import pp_models
from inference.cli import main
from inference.core import devices
from inference.core.interruption import Interruption, Stopped
from inference.engines._chains import State
from inference.io import archives, fits, snapshots
from inference.run import checkpoint
from pp_models.data import files
from pp_models.errors import InputError

HYPER, DATA = pp_models.load("lda").example(jax.random.key(0))


def run(path, engine="cavi", key=1, **arguments):
    options = {"num_epochs": 12, "tolerance": 0.0} if engine == "cavi" else {}
    return inference.fit(
        "lda",
        DATA,
        engine,
        HYPER,
        jax.random.key(key),
        progress=False,
        **{"checkpoint": path, "checkpoint_steps": 1, **options, **arguments},
    )


def stop_at(last):
    def watch(step, seconds, posterior):
        if step == last:
            raise RuntimeError("killed")

    return watch


@pytest.fixture
def begun(tmp_path):
    """The checkpoint of a run that was killed in its fifth step."""
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path / "run.checkpoint", watch=stop_at(4))
    return tmp_path / "run.checkpoint"


# States -------------------------------------------------------------------------------------------


def test_a_state_comes_back_as_it_was():
    """Types, bits, weak types, and where arrays lie."""
    here = jax.local_devices()
    mesh = devices.placed(jnp.arange(4.0), here[:1], devices.EACH)
    state = State(
        chains=[
            {"x": jnp.asarray(1.5), "y": jax.device_put(jnp.arange(3, dtype=jnp.float32), here[0])},
            mesh,
        ],
        step=3,
        last=(
            np.float64(0.1),
            np.array([[np.nan, -0.0, np.inf]]),
            None,
            True,
            "word",
            0.1,
            {("a", "b"): 2},
        ),
        kept=(
            jax.random.key(7),
            jax.random.split(jax.random.key(8, impl="rbg"), 3),
            jnp.zeros((0, 2)),
        ),
    )
    outline, arrays = snapshots.pack(state)
    back = snapshots.unpack(json.loads(json.dumps(outline)), arrays)
    assert type(back) is State and back.step == 3 and back.last[2:] == state.last[2:]
    assert jax.tree.structure(back) == jax.tree.structure(state)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(back), strict=True):
        assert type(one) is type(other)
        if isinstance(one, jax.Array) and jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(one) == jax.random.key_impl(other)
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        if isinstance(one, jax.Array):
            assert (one.dtype, one.weak_type, one.committed, one.sharding) == (
                other.dtype,
                other.weak_type,
                other.committed,
                other.sharding,
            )
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_double_precision_stays_where_single_is_the_default():
    outline, arrays = snapshots.pack(jnp.asarray([1 / 3], jnp.float64))
    with jax.enable_x64(False):
        assert snapshots.unpack(outline, arrays).dtype == jnp.float64


@pytest.mark.parametrize(
    "outline",
    [
        ["named", "subprocess", "Popen", [["plain", "true"]]],
        ["named", "inference.run.fit", "Fit", []],
        ["named", "inference.engines._chains", "State", [["plain", 1]]],
        ["named", "inference.engines.no_such_module", "State", []],
        ["numpy", "state/7", False],
        ["plain", {"a": 1}],
        ["eval", "1"],
        ["tuple", 3],
        [],
        None,
        {"a": 1},
    ],
)
def test_an_outline_that_lies_makes_nothing(outline):
    """Nothing is imported, called or made that is no part of a state."""
    with pytest.raises((ValueError, KeyError, TypeError, IndexError, AttributeError)):
        snapshots.unpack(outline, {})


def test_what_cannot_be_read_back_is_not_written():
    with pytest.raises(TypeError, match="object"):
        snapshots.pack((1, object()))


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": 2}, "key"),
        ({"num_epochs": 13}, "options"),
        ({"init": {"beta": jnp.ones((3, 12))}}, "init"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_stays(begun, change, said):
    before = begun.read_bytes()
    if "init" in change:
        natural = pp_models.load("lda").init(jax.random.key(0), HYPER, DATA)
        change = {"init": {"beta": natural["beta"]}}
    with pytest.raises(InputError, match=f"differs in {said}"):
        run(begun, **change)
    assert begun.read_bytes() == before


def test_other_data_hyper_parameters_and_engines_are_refused(begun):
    others = (
        (
            "data",
            lambda: inference.fit(
                "lda", DATA.select(np.arange(5)), "cavi", HYPER, jax.random.key(1), checkpoint=begun
            ),
        ),
        (
            "hyper-parameters",
            lambda: inference.fit(
                "lda",
                DATA,
                "cavi",
                HYPER._replace(alpha=0.123),
                jax.random.key(1),
                checkpoint=begun,
            ),
        ),
        ("engine", lambda: run(begun, "svi")),
    )
    for said, fit in others:
        with pytest.raises(InputError, match=rf"differs in.* {said}"):
            fit()


def test_single_precision_does_not_go_on_from_double(begun):
    with jax.enable_x64(False), pytest.raises(InputError, match="precision"):
        run(begun)


def test_a_truncated_checkpoint_is_refused_with_a_sentence(begun):
    begun.write_bytes(begun.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"truncated|complete|damaged"):
        run(begun)


def test_other_versions_are_warned_of(begun, monkeypatch):
    monkeypatch.setattr(checkpoint, "made_with", lambda: {"jax": "0.0.1"})
    with pytest.warns(UserWarning, match=r"jax [\d.]+ instead of 0.0.1"):
        run(begun)


@pytest.mark.parametrize(
    "wish",
    [
        {"checkpoint": 3},
        {"checkpoint": ""},
        {"checkpoint_seconds": -1},
        {"checkpoint_seconds": True},
        {"checkpoint_steps": 0.5},
    ],
)
def test_wishes_that_cannot_be_are_refused(tmp_path, wish):
    with pytest.raises(InputError, match="checkpoint"):
        run(
            **{
                "path": tmp_path / "run.checkpoint",
                **({"path": wish.pop("checkpoint")} if "checkpoint" in wish else {}),
                **wish,
            }
        )


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_computed(tmp_path):
    (tmp_path / "file").write_text("")
    steps = []
    with pytest.raises(InputError, match="cannot be written"):
        run(tmp_path / "file" / "run.checkpoint", watch=lambda step, *_: steps.append(step))
    assert not steps


def test_a_run_that_is_over_is_not_lost_with_its_last_checkpoint(tmp_path, monkeypatch):
    fill_disk(monkeypatch, good=0)
    with pytest.warns(UserWarning, match="The run is over, but its checkpoint is not written"):
        found = run(tmp_path / "run.checkpoint", checkpoint_steps=1000)
    np.testing.assert_array_equal(run(None).posterior.mean("beta"), found.posterior.mean("beta"))


@pytest.mark.parametrize(
    ("held", "step"),
    [
        ([[], []], None),
        ([[4, 6], [4]], 4),
        ([[4, 6], [6]], 6),
        ([[4], []], InputError),  # one was killed before it had written its first
        ([[4], [6]], InputError),
    ],
)
@pytest.mark.parametrize("over", [False, True])
def test_processes_go_on_from_the_last_step_that_all_have(monkeypatch, held, step, over):
    """The run is over only if all know it. Where a file is missing, nobody begins anew in
    silence.
    """
    told = [[[*steps, -1, -1][:2], [0, int(over)]] for steps in held]
    monkeypatch.setattr(checkpoint.devices_, "across", lambda devices, x: np.array(told))
    keeper = checkpoint.Checkpoints(checkpoint.Plan(Path("run.npz")), {}, "lda by svi")
    found = {one: checkpoint.Saved(None, [], one, 0.0) for one in held[0]}
    if step is InputError:
        with pytest.raises(InputError, match="no step in common"):
            keeper._in_common(found)
    else:
        common = keeper._in_common(found)
        assert max(common, default=None) == step
        assert all(saved.finished is over for saved in common.values())


@pytest.mark.parametrize(
    ("number", "error", "said"),
    [(0, InputError, "Process 1 failed"), (signal.SIGTERM, Stopped, "SIGTERM")],
)
def test_what_fails_in_one_process_fails_in_all(monkeypatch, number, error, said):
    """Nobody waits for a process that has ended. One that was told to stop stops the others."""
    monkeypatch.setattr(devices, "is_shared", lambda devices: True)
    monkeypatch.setattr(devices, "across", lambda devices, x: np.array([x, [1, number]]))
    with pytest.raises(error, match=said):
        devices.all_or_none([], lambda: 3)
    with pytest.raises(ZeroDivisionError):
        devices.all_or_none([], lambda: 1 / 0)


def test_files_of_another_checkpoint_are_not_taken_for_its_own(tmp_path):
    """`run.npz` has no part in `run.svi.npz`, of whatever number of processes."""
    for name in (
        "run.npz",
        "run.1-of-2.40.npz",
        "run.svi.0-of-2.4.npz",
        "run.1-of-2.c.npz",
        "run-of-2.npz",
    ):
        (tmp_path / name).touch()
    assert [file.name for file in checkpoint.files_of(tmp_path / "run.npz")] == [
        "run.1-of-2.40.npz",
        "run.npz",
    ]


def test_what_a_process_that_has_ended_was_writing_is_in_nobodys_way(tmp_path):
    """Also before its parent has asked how it ended, until when its number is taken: `--resume`
    right after a kill.
    """
    ended = subprocess.Popen([sys.executable, "-c", ""])
    end = time.perf_counter() + 10
    while (
        not files.is_stray(tmp_path / f".tmp-{ended.pid}-checkpoint.npz")
        and time.perf_counter() < end
    ):
        time.sleep(0.01)
    os.kill(ended.pid, 0)  # it is still listed
    assert files.is_stray(tmp_path / f".tmp-{ended.pid}-checkpoint.npz")
    assert not files.is_stray(tmp_path / f".tmp-{os.getppid()}-checkpoint.npz")
    ended.wait()


def test_another_number_of_processes_is_refused(begun, monkeypatch):
    """What two processes have left is no reason for one to begin anew, nor the other way round."""
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 2)
        with pytest.raises(InputError, match="another number of processes"):
            checkpoint.Checkpoints(checkpoint.Plan(begun), {}, "lda by cavi").read()
    other = begun.with_name("run.1-of-2.4.checkpoint")
    assert checkpoint.files_of(begun) == [begun]
    begun.rename(other)
    assert checkpoint.files_of(begun) == [other]
    with pytest.raises(InputError, match="another number of processes"):
        run(begun)
    checkpoint.remove(begun)
    assert not other.exists()


def test_a_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        run(tmp_path)


# When ---------------------------------------------------------------------------------------------


def test_checkpoints_are_as_seldom_as_asked(tmp_path, monkeypatch):
    """Every five steps, or by the clock; and never so often that writing them takes more than a
    twentieth of the time.
    """
    steps = []
    persist = checkpoint.persist
    monkeypatch.setattr(
        checkpoint, "persist", lambda *given: (steps.append(given[4]), persist(*given))[1]
    )
    run(tmp_path / "a", checkpoint_steps=5)
    assert steps == [5, 10, 12]
    steps.clear()
    run(tmp_path / "b", checkpoint_steps=0, checkpoint_seconds=1e6)
    assert steps == [12]
    steps.clear()
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)
    run(tmp_path / "c", checkpoint_steps=0, checkpoint_seconds=0)
    assert steps == [1, 12]


# Disks --------------------------------------------------------------------------------------------


def fill_disk(monkeypatch, good, number=errno.ENOSPC):
    """A disk that is full, or read-only, after so many writes."""
    write, tries = archives.write, []

    def attempt(path, *contents):
        tries.append(path)
        if len(tries) > good:
            path.write_bytes(b"half")
            raise OSError(number, os.strerror(number))
        write(path, *contents)

    monkeypatch.setattr(archives, "write", attempt)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENAMETOOLONG])
def test_a_full_disk_ends_the_run_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch, number):
    """One sentence with the reason; the run goes on from the third step to the same bits."""
    want = run(None)
    fill_disk(monkeypatch, good=3, number=number)
    with pytest.raises(
        InputError, match=rf"{os.strerror(number)}.*ends at step 4.*that of step 3 is kept"
    ):
        run(tmp_path / "run.checkpoint")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["run.checkpoint"]
    steps = []
    found = run(tmp_path / "run.checkpoint", watch=lambda step, *_: steps.append(step))
    assert steps[0] == 3
    np.testing.assert_array_equal(want.posterior.mean("beta"), found.posterior.mean("beta"))


# Signals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step_with_its_state_safe(tmp_path, number):
    before = signal.getsignal(number)

    def watch(step, seconds, posterior):
        if step == 4:
            os.kill(os.getpid(), number)

    with pytest.raises(Stopped, match="stopped after step 4") as stopped:
        run(tmp_path / "run.checkpoint", checkpoint_steps=1000, watch=watch)
    assert stopped.value.signal == number and signal.getsignal(number) == before
    steps = []
    found = run(
        tmp_path / "run.checkpoint",
        checkpoint_steps=1000,
        watch=lambda step, *_: steps.append(step),
    )
    assert steps[0] == 5
    np.testing.assert_array_equal(run(None).posterior.mean("beta"), found.posterior.mean("beta"))


def test_a_second_signal_ends_at_once():
    with pytest.raises(Stopped), Interruption(True) as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert asked.signal == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
        pytest.fail("nothing happened")


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Interruption(True) as asked:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        assert asked.signal is None
    finally:
        signal.signal(signal.SIGTERM, before)


FIT = (
    "fit",
    "lda",
    "--engine",
    "svi",
    "--quiet",
    "--devices",
    "1",
    "--checkpoint-steps",
    "20",
    "--set",
    "num_epochs=150",
    "batch_size=50",
)


def command(*arguments):
    return [sys.executable, "-m", "pp_models", *arguments]


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)],
)
def test_the_command_line_is_stopped_and_resumed(tmp_path, capsys, number, code):
    """Begun in a process of its own and resumed in this one, it finds the bits of a run in this
    one.
    """
    out = tmp_path / "out"
    process = subprocess.Popen(command(*FIT, "--out", str(out)), stderr=subprocess.PIPE, text=True)
    while not (out / "checkpoint.npz").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == code and "--resume" in said and "Traceback" not in said
    assert os.listdir(out) == ["checkpoint.npz"]
    with jax.enable_x64(False):  # as in that process
        assert main([*FIT, "--out", str(out)]) == 2 and "add --resume" in capsys.readouterr().err
        for arguments in (
            (*FIT, "--out", str(out), "--resume"),
            (*FIT, "--out", str(tmp_path / "whole")),
        ):
            assert main([*arguments]) == 0
    one, other = (
        archives.read(folder / "fit.npz", "fit", fits.FORMAT)[1]
        for folder in (out, tmp_path / "whole")
    )
    assert one.keys() == other.keys() and len(one["history/step"]) == 300
    for name in one.keys() - {"history/seconds"}:
        np.testing.assert_array_equal(one[name], other[name])
    assert not (out / "checkpoint.npz").exists()
    with jax.enable_x64(False):
        assert (
            main([*FIT, "--out", str(out), "--resume"]) == 0
            and "nothing is left to do" in capsys.readouterr().out
        )
        assert (
            main([*FIT, "tau=5.0", "--out", str(out), "--resume"]) == 2
            and "differs in hyper-parameters and options" in capsys.readouterr().err
        )
