"""A Gibbs sweep over all blocks: the transition of `gibbs`, and part of `collapsed_gibbs` and `inla`."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from inference.core import objective as obj
from pp_models.errors import InputError
from pp_models.model import Model, Sites


def sweep(model: Any, hyper: Any, key: jax.Array, stats: Sites, batch: Any) -> Sites:
    """One draw of every block."""
    stats = dict(stats)
    for site in model.families:
        key, auxiliary_key, block_key = jax.random.split(key, 3)

        def joint(t, site=site, auxiliary_key=auxiliary_key):
            now = {**stats, site: t}
            prior = (
                0.0
                if site in model.local
                else model.log_global(hyper, {s: now[s] for s in model.shared})
            )
            return prior + model.log_local(hyper, now, batch, auxiliary_key)

        family, conditional = model.families[site], jax.grad(joint)(stats[site])
        stats[site] = (
            family.sample(block_key, conditional)
            if family.refresh is None
            else family.refresh(block_key, conditional, stats[site])
        )
    if model.moves is None:
        return stats
    moved = model.moves(
        hyper,
        jax.random.fold_in(key, 0),
        {site: family.value(stats[site]) for site, family in model.families.items()},
        batch,
    )
    return {site: family.stats(moved[site]) for site, family in model.families.items()}


@partial(jax.jit, static_argnames=("model",))
def _first(model, key, natural):
    keys = jax.random.split(key, len(natural))
    return {
        site: model.families[site].sample(k, natural[site])
        for site, k in zip(model.families, keys, strict=True)
    }


def check_counts(name: str, data: Any) -> None:
    """Counts of tokens must fit into single precision."""
    if data.kind == "counts" and max(data.matrix.sum(0).max(), data.matrix.sum(1).max()) >= 2**24:
        raise InputError(
            f"{name} counts tokens in single precision, up to {2**24 - 1} in a row or column, but there are more: rescale the counts."
        )


def suits(model: Model) -> str:
    if model.damped:
        sites = " and ".join(sorted(model.damped))
        return f"gibbs draws from complete conditionals, but there is none in closed form for {sites} of {model.name}: use nuts."
    return ""


def begin(problem: obj.Problem, key: jax.Array, start: Sites) -> Sites:
    """t(x) of every site where a chain begins: a draw from the model's starting point, or the values given."""
    init_key, draw_key = jax.random.split(key)
    stats = _first(
        problem.model, draw_key, problem.model.init(init_key, problem.hyper, problem.data)
    )
    return stats | {
        site: problem.model.families[site].stats(jnp.asarray(x, float)) for site, x in start.items()
    }
