r"""Hyper-parameters that a search for the mode holds at an estimate.

The joint density of locations $s$ and of their unknown precision $\alpha$ has a spike at $s = 0$,
$\alpha \to \infty$, which a weak prior of $\alpha$ leaves higher than any fit. Hu et al. maximise
at a given precision. Here it is the mean of mean-field inference, which integrates over the
locations (empirical Bayes), from some of the rows.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import objective as obj
from inference.core.factors import about_flat, shapes
from inference.engines import _coordinate_ascent as ascent
from inference.engines._minibatch import first_natural
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

MOST_ROWS = 1000
SWEEPS = 100
ROWS = RowOptions(10, 1e-4)


def held_sites(problem: obj.Problem) -> list[str]:
    """The sites that are held: precisions that are unknown and have a weak prior."""
    model = problem.model
    return [site for site in model.marginal.held(problem.hyper) if site in model.shared]


def hold(problem: obj.Problem, key: jax.Array, given: dict[str, Any]) -> Sites:
    """The statistics of the held sites, at the values given or else by mean-field inference."""
    names, families = held_sites(problem), problem.model.families
    values = {site: given[site] for site in names if site in given}
    if len(values) < len(names):
        found = _mean_field(problem, key)
        means = {site: families[site].distribution(eta).mean for site, eta in found.items()}
        values = {site: means[site] for site in names} | values
        found_shapes = shapes(problem.model, means)
        if found_shapes is not None and found_shapes.flat.all():
            warnings.warn(about_flat(problem.model), stacklevel=2)
    return {site: families[site].stats(jnp.asarray(x, float)) for site, x in values.items()}


def _mean_field(problem: obj.Problem, key: jax.Array) -> Sites:
    """Natural parameters of the global sites after some sweeps of coordinate ascent."""
    number = problem.data.num_rows
    spread = np.linspace(0, number - 1, min(number, MOST_ROWS)).round().astype(int)
    some = problem._replace(data=problem.data.select(np.unique(spread)))
    rows = np.arange(some.data.num_rows)
    batches = some.data.shards(rows, len(rows), some.devices)
    state = ascent.State(first_natural(some, key, {}), (), ())
    local = obj.first_rows(some, some.hyper, batches)
    for _ in range(SWEEPS):
        state, _ = ascent.sweep(some, ROWS, state, local, batches)
        local = state.local
    return state.shared
