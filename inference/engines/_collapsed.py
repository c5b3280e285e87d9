"""What the engines with collapsed or averaged weights share: whom they suit, and when they rest."""

from functools import partial

import jax
import jax.numpy as jnp

from inference.core import objective as obj
from inference.engines import _minibatch as mb
from pp_models.model import Model, Sites


@partial(jax.jit, static_argnames=("model",))
def change_of(model: Model, old: Sites, new: Sites) -> jax.Array:
    """How far the means of the global sites moved, the largest over sites."""
    moved = []
    for site in new:
        before, after = (
            model.families[site].value(obj.summarise(model, {site: x[site]}, "log_mode")[site])
            for x in (old, new)
        )
        moved.append(jnp.sum(jnp.abs(after - before)) / jnp.sum(jnp.abs(after)))
    return jnp.max(jnp.stack(moved))


def suits(model: Model) -> str:
    """Allocations are collapsed in rows of counts whose weights have conjugate priors and a solver of their own."""
    if (
        model.kind == "counts"
        and model.solve_local
        and not model.damped
        and all(mb.averages(family) for family in model.families.values())
    ):
        return ""
    return f"Engines 'cvb0' and 'hybrid' need rows with Dirichlet or gamma weights and a solver, and {model.name} has none: use cavi or svi."
