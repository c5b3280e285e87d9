"""The same seed, versions and number of devices give the same bits, in whatever process.

Run as a program it prints a digest for each engine.
"""

import hashlib
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import inference
import pp_models
from inference.core.registry import engines, load_engine

OPTIONS = {
    "gibbs": {"num_samples": 60, "num_warmup": 20},
    "collapsed_gibbs": {"num_samples": 60, "num_warmup": 20},
    "nuts": {"num_samples": 20, "num_warmup": 20},
    "numpyro_svi": {"num_epochs": 20},
    "inla": {"num_sweeps": 30, "num_epochs": 12, "weights": "laplace"},
    "laplace": {"num_sweeps": 30},
}


def digest(engine):
    """Of the posterior's means and standard deviations and the history, times aside, on the model's
    example: all devices of the process take part.
    """
    model = next(
        name for name in ("lda", "lg_nmf") if not load_engine(engine).suits(pp_models.load(name))
    )
    hyper, data = pp_models.load(model).example(jax.random.key(0))
    fit = inference.fit(
        model,
        data,
        engine,
        hyper,
        jax.random.key(5),
        progress=False,
        devices=jax.local_devices(),
        **OPTIONS.get(engine, {}),
    )
    found = hashlib.sha256()
    for name in sorted(fit.history.keys() - {"seconds"}):
        found.update(np.ascontiguousarray(fit.history[name]).tobytes())
    for site in fit.model.families:
        found.update(
            np.ascontiguousarray(fit.posterior.mean(site)).tobytes()
            + np.ascontiguousarray(fit.posterior.sd(site)).tobytes()
        )
    return found.hexdigest()


def in_a_process(names, devices, seed):
    """seed: of the hashes of texts, by which sets of names are in another order."""
    command = [sys.executable, __file__, str(devices), *names]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": str(seed)},
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_the_order_of_names_is_nothing():
    """NumPyro's ELBO goes by a set of them.

    With the seeds 0 and 1 it adds up in different orders, and to different last digits.
    """
    one, other = (in_a_process(["numpyro_svi"], 1, seed) for seed in range(2))
    assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_two_processes_find_the_same_bits(devices):
    one, other = (in_a_process(engines(), devices, seed) for seed in range(2))
    assert one.keys() == set(engines())
    assert one == other


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
    print(json.dumps({name: digest(name) for name in sys.argv[2:]}))
