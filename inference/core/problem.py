"""What is fitted: model, hyper-parameters, data and devices, checked before compilation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import devices as devices_
from inference.core.objective import Problem
from pp_models import models as discovery
from pp_models.data.coerce import as_data
from pp_models.model import declare_learned

__all__ = ["Problem", "likely_cause", "make_problem"]

SMALL, LARGE = 1e-5, 1e6  # hyper-parameters outside this range are a likely cause of overflow
MANY_TOKENS = 1e6  # in one row


def make_problem(model: Any, data: Any, hyper: Any = None, devices: Any = None) -> Problem:
    """The problem of fitting a model to data. hyper, devices: as for `inference.fit`."""
    declared = discovery.load(model)
    data = as_data(data, declared.kind)
    declared, resolved, learn = declare_learned(declared, hyper, data)
    devices = tuple(devices or jax.devices())
    devices_.check(devices)
    return Problem(declared, resolved, data, devices, learn)


def likely_cause(problem: Problem) -> str:
    """The most likely reason why a run of this problem diverged, in a few words."""
    single, data = jnp.result_type(float) == jnp.float32, problem.data
    found = []
    for name, value in problem.hyper._asdict().items():
        if isinstance(value, bool | str | type(None)):
            continue
        numbers = np.abs(np.asarray(value, float).ravel())
        extreme = numbers[(numbers > 0) & ((numbers < SMALL) | (numbers > LARGE))]
        if extreme.size:
            found.append(f"{name} = {extreme[0]:g} is extreme")
    if single and data.kind in ("counts", "text_and_votes"):
        largest = data.totals.max(initial=0)
        if largest >= MANY_TOKENS:
            told = f"a row's counts add up to {largest:.3g}"
            found.append(f"{told}, of which single precision holds seven digits")
    if data.kind in ("dense", "ratings"):
        numbers = np.abs(data.values if data.values is not None else data.matrix.data)
        if numbers.max(initial=0) > 1e4:
            found.append(f"the data reach {numbers.max():.3g}: rescale them")
    if not found:
        found.append("hyper-parameters or the scale of the data do not suit the model")
    if single:
        found[-1] += ", and single precision may not hold it"
        found[-1] += ": try jax.config.update('jax_enable_x64', True)"
    return "; ".join(found)
