"""Which point stands for a distribution where a posterior's mode is searched for."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp

from inference.core import objective as obj


def has_mode(problem: obj.Problem) -> bool:
    """Whether the prior's own density has a maximum: no natural parameter below that of a flat one."""
    model = problem.model
    if not any(jax.tree.leaves({site: family.base for site, family in model.families.items()})):
        return True  # all real variables
    return bool(_lowest(model, problem.hyper, problem.data.pack()) > -1e-6)


@partial(jax.jit, static_argnames=("model",))
def _lowest(model, hyper, batch):
    """The least natural parameter of the prior, that of a flat density being zero."""
    if batch.entries is not None:
        batch = batch.replace(entries=batch.entries.emptied())
    stats = obj.summarise(model, model.init(jax.random.key(0), hyper, batch))
    prior = jax.grad(
        lambda t: (
            model.log_global(hyper, {s: t[s] for s in model.shared})
            + model.log_local(hyper, t, batch)
        )
    )(stats)
    shifted = [
        jax.tree.map(
            lambda n, b: jnp.min(n + b) if b else jnp.zeros(()),
            prior[site],
            model.families[site].base,
        )
        for site in prior
    ]
    return jnp.min(jnp.stack(jax.tree.leaves(shifted)))


def summary_of(problem: obj.Problem, basis: str) -> str:
    """The point that stands for q: the mode of the density of x or of log x."""
    if basis == "auto" and not has_mode(problem):
        warnings.warn(
            f"The prior of {problem.model.name} has a concentration below 1, so its density has no interior mode: "
            'the density of log x is maximised instead (basis="log").',
            stacklevel=2,
        )
        return "log_mode"
    return "log_mode" if basis == "log" else "mode"
