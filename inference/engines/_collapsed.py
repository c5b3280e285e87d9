"""Collapsed weights: the models that `cvb0` and `hybrid` fit, and their stopping rule."""

from functools import partial

import jax
import jax.numpy as jnp

from inference.core import objective as obj
from inference.engines import _minibatch as mb
from pp_models.model import Model, Sites


@partial(jax.jit, static_argnames=("model",))
def change_of(model: Model, old: Sites, new: Sites) -> jax.Array:
    """The largest relative change of a global site's means."""

    def means(natural, site):
        stats = obj.summarise(model, {site: natural[site]}, "log_mode")[site]
        return model.families[site].value(stats)

    pairs = [(means(old, site), means(new, site)) for site in new]
    moved = [jnp.sum(jnp.abs(x - before)) / jnp.sum(jnp.abs(x)) for before, x in pairs]
    return jnp.max(jnp.stack(moved))


def suits(model: Model) -> str:
    """Rows of counts need weights with conjugate priors, and a solver."""
    conjugate = all(mb.has_geometric_mean(family) for family in model.families.values())
    if model.kind == "counts" and model.solve_local and not model.damped and conjugate:
        return ""
    return (
        "Engines 'cvb0' and 'hybrid' need rows with Dirichlet or gamma weights and a solver, and "
        f"{model.name} has none: use cavi or svi."
    )
