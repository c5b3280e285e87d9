"""Which point stands for a distribution where a posterior's mode is searched for."""

import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from inference.core import objective as obj
from pp_models.data.batches import Batch
from pp_models.model import Model


@partial(jax.jit, static_argnames=("model",))
def _lowest(model, hyper, batch):
    """The least natural parameter of the prior, that of a flat density being zero."""
    if batch.entries is not None:
        batch = batch.replace(entries=batch.entries.emptied())
    stats = obj.summarise(model, model.init(jax.random.key(0), hyper, batch))

    def log_prior(t):
        shared = {site: t[site] for site in model.shared}
        return model.log_global(hyper, shared) + model.log_local(hyper, t, batch)

    base = {site: model.families[site].base for site in stats}
    shifted = jax.tree.map(
        lambda b, n: jnp.min(n + b) if b else jnp.zeros(()), base, jax.grad(log_prior)(stats)
    )
    return jnp.min(jnp.stack(jax.tree.leaves(shifted)))


def summary_at(model: Model, hyper: Any, basis: str, batch: Batch) -> str:
    """The point that stands for q: the mode of the density of x or of log x.

    basis: "identity", "log", or "auto" for x unless the prior's density of x has no maximum.
    """
    bounded = any(jax.tree.leaves([family.base for family in model.families.values()]))
    flat = basis == "auto" and bounded and _lowest(model, hyper, batch) <= -1e-6
    return "log_mode" if flat or basis == "log" else "mode"


def summary_of(problem: obj.Problem, basis: str) -> str:
    """The same of a problem, with a warning where "auto" is the mode of log x."""
    model = problem.model
    summary = summary_at(model, problem.hyper, basis, problem.data.pack())
    if basis == "auto" and summary == "log_mode":
        warnings.warn(
            f"The prior of {model.name} has a concentration below 1, so its density has no "
            'interior mode: the density of log x is maximised instead (basis="log").',
            stacklevel=2,
        )
    return summary
