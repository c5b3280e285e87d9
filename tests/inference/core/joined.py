"""Processes that test_devices.py starts, as JAX reads its number of devices and processes once.

python joined.py ADDRESS NUM_PROCESSES PROCESS_ID FILE ENGINE...
    one of several that fit LDA together, undisturbed and interrupted
python joined.py devices FILE MODEL...
    every model's example on one device and on three
"""

import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import inference
import pp_models
from inference.core import devices, registry
from inference.core.interruption import Stopped
from inference.run import checkpoint as checkpoints
from pp_models.errors import InputError

OPTIONS = {
    "cavi": {"num_epochs": 5},
    "map": {"num_epochs": 5},
    "svi": {"num_epochs": 2, "batch_size": 10},
    "trust_region": {"num_epochs": 2, "batch_size": 10},
    "memoized": {"num_epochs": 2, "batch_size": 10},
    "hybrid": {"num_epochs": 4, "batch_size": 10},
    "gibbs": {"num_samples": 5, "num_warmup": 20, "num_chains": 3},
}


def corpus():
    """Rows of all lengths, an empty one too, and an odd number of them."""
    rng = np.random.default_rng(0)
    X = rng.poisson(rng.gamma(0.5, 1.0, (23, 1)) * rng.gamma(0.5, 1.0, (1, 12)) * 4)
    X[3] = 0
    return pp_models.data.counts(X)


def results(engine, **shared):
    """Means of all sites, and the history's bounds."""
    hyper = {"num_topics": 3, "alpha": 1.1, "eta": 1.2}
    if registry.load_engine(engine).learns:
        hyper["alpha"] = ("learn", 1.1)
    fit = inference.fit(
        "lda",
        corpus(),
        engine,
        hyper,
        jax.random.key(5),
        progress=False,
        **OPTIONS[engine],
        **shared,
    )
    found = {site: fit.posterior.mean(site) for site in fit.posterior.sites}
    return {**found, "alpha": np.asarray(fit.hyper.alpha), "bound": fit.history["bound"]}


class Killed(BaseException):
    """What a process that is killed would not notice."""


def interrupted(engine, checkpoint, this):
    """The results of a run that is killed in its fourth step; and the steps.

    One process has not yet written the checkpoint of the step before, so none has removed the one
    before that.
    """
    steps, kept = [], []
    older, newer = (checkpoints.own_file(checkpoint, step) for step in (2, 3))

    def watch(step, seconds, posterior):
        steps.append(step)
        if step == 2:
            kept.append(older.read_bytes())
        if step == 3:
            raise Killed

    shared = {"devices": jax.devices(), "checkpoint": checkpoint, "checkpoint_steps": 1}
    try:
        results(engine, watch=watch, **shared)
        raise AssertionError("was not killed")
    except Killed:
        older.write_bytes(kept[0])
        if this == 1:
            newer.unlink()
    found = results(engine, watch=lambda step, *_: steps.append(step), **shared)
    return {**found, "steps": np.array(steps)}


def ended(engine, checkpoint, this):
    """What each process says of a run of which one process is sent SIGTERM in its second step, and,
    going on, cannot write its fourth checkpoint; and the results of the run that goes on from
    there.
    """
    said = []

    def watch(step, seconds, posterior):
        if this == 1 and step == 1 and not said:
            os.kill(os.getpid(), signal.SIGTERM)

    shared = {"devices": jax.devices(), "checkpoint": checkpoint, "checkpoint_steps": 1}
    persist = checkpoints.persist

    def fails(path, header, arrays, title, step, *rest):
        if this == 1 and step == 4:
            raise InputError("made up")
        persist(path, header, arrays, title, step, *rest)

    for _ in range(2):
        try:
            results(engine, watch=watch, **shared)
        except (Stopped, InputError) as error:
            said.append(f"{type(error).__name__} {getattr(error, 'signal', '')}")
        checkpoints.persist = fails
    checkpoints.persist = persist
    return {**results(engine, **shared), "said": np.array(said)}


def on_devices(model, number):
    """Means of a model's sites after a few sweeps on so many devices."""
    declared = pp_models.load(model)
    hyper, data = declared.example(jax.random.key(0))
    engine = "cavi" if declared.proper(hyper) else "map"
    # with a tolerance, sums in another order could make a row stop one iteration sooner
    exact = {"num_epochs": 3, "num_local": 5, "local_tolerance": 0.0, "tolerance": 0.0}
    fit = inference.fit(
        model,
        data,
        engine,
        hyper,
        jax.random.key(5),
        progress=False,
        devices=jax.devices()[:number],
        **exact,
    )
    return {site: fit.posterior.mean(site) for site in fit.posterior.sites}


if __name__ == "__main__" and sys.argv[1] == "devices":
    jax.config.update("jax_num_cpu_devices", 3)
    jax.config.update("jax_enable_x64", True)
    file, *names = sys.argv[2:]
    np.savez(
        f"{file}.npz",
        **{
            f"{name}/{number}/{site}": x
            for name in names
            for number in (1, 3)
            for site, x in on_devices(name, number).items()
        },
    )
elif __name__ == "__main__":
    address, number, this, file, *names = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(address, int(number), int(this))
    arrays = {
        f"{name}/{what}": x
        for name in names
        for what, x in results(name, devices=jax.devices()).items()
    }
    arrays |= {
        f"{name}/ended/{what}": x
        for name in names
        for what, x in ended(name, Path(f"{file}.{name}.ended"), int(this)).items()
    }
    arrays |= {
        f"{name}/again/{what}": x
        for name in names
        for what, x in interrupted(name, Path(f"{file}.{name}"), int(this)).items()
    }
    ones = [jax.device_put(np.ones(3), device) for device in devices.mine(jax.devices())]
    np.savez(
        f"{file}-{this}.npz",
        **arrays,
        ones=devices.gather(jax.devices(), ones)[0],
        added=devices.added(jax.devices(), 2.0),
    )
