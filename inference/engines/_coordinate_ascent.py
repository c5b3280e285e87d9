r"""A sweep of coordinate ascent over all rows on all devices: the step of `cavi` and `map`.

The rows are solved first. Then each global site $s$ moves to its target
$\eta_s = \partial F / \partial \mu_s$, or to the point there, given the new values of the sites
before it. If the rows couple the global sites (`Model.coupled` is "rows"), the target of every site
after the first takes another pass over the rows. The target of a damped site is a Newton step,
which is shortened until the objective does not fall.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.core import devices
from inference.core import objective as obj
from inference.engines import _minibatch as mb
from pp_models import families as fam
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

FEW_ROWS = 512  # global sites with fewer rows are solved on one device


class State(NamedTuple):
    """The parameters of a mean-field posterior, or a point.

    shared:    natural parameters of the global sites, or statistics of a point
    local:     by device, natural parameters of the rows, or values, smaller than statistics
    positions: by device, row numbers in the data
    """

    shared: Sites
    local: tuple[Sites, ...]
    positions: tuple[jax.Array, ...]


statistics = jax.jit(mb.statistics, static_argnames="model")
point = jax.jit(obj.summarise, static_argnames=("model", "summary"))


def sweep(
    problem: obj.Problem,
    rows: RowOptions,
    state: State,
    local: Any,
    batches: Any,
    summary: str = "mean",
    held: Any = (),
) -> tuple[State, mb.Info]:
    """Solve the rows from `local`, then update every global site that is not held.

    summary: "mean", or of points
    """
    model, hyper, places, points = problem.model, problem.hyper, problem.devices, summary != "mean"
    block = obj.Block(model, statistics) if points else obj.Block(model, obj.summarise, "mean")
    shared = dict(state.shared)
    given = (problem, hyper, shared, batches, rows, None, local)
    solved = mb.solve(*given, bound=True, summary=summary, values=points)
    own = list(zip(solved.local, batches, strict=True))

    def without_rows(now):
        if points:
            return obj.shared_value(model, hyper, now, summary)
        return obj.shared_bound(model, hyper, now)

    def height(parameters, site):
        now = {**shared, site: parameters}
        _, values = devices.run_and_gather(obj.local_value, block, places, (hyper, now), own)
        return without_rows(now), values

    info = mb.Info((without_rows(shared), [bound for bound, _, _ in solved.sums]))
    for i, site in enumerate(model.shared):
        if site in held:
            continue
        parts = [gradient[site] for gradient in solved.gradients]
        if i and model.coupled == "rows":
            later = block._replace(site=site)
            asked = obj.block_gradient, later, places, (hyper, shared), own
            _, parts = devices.run_and_gather(*asked)
        target = obj.block_target(model, hyper, shared, tuple(parts), site, block.summary)
        if site in model.damped:
            move = partial(_towards, model, shared[site], target, site=site, summary=summary)
            shared[site] = obj.advance(shared[site], move, partial(height, site=site))
        elif points:
            shared[site] = _solve_site(problem, site, target, shared, summary, rows.num_local)
        else:
            shared[site] = target
    return State(shared, solved.local, solved.positions), info


def _towards(model, old, target, fraction, site, summary):
    """A damped site's parameters after a fraction of its step."""
    if summary == "mean":
        return obj.blend(old, target, fraction)
    return _newton_point(model, old, target, fraction, site, summary)


@partial(jax.jit, static_argnames=("model", "site", "summary"))
def _newton_point(model, stats, target, fraction, site, summary):
    return fam.summarise(model.families[site], fam.newton_step(stats, target, fraction), summary)


def _solve_site(problem: obj.Problem, site, target, shared: Sites, summary, sweeps) -> Any:
    """The statistics of the site's point at the target.

    Independent rows that are many are shared out among this process's devices. A tied precision
    goes to every device, and a tied statistic is summed over the devices' shares.
    """
    model, here = problem.model, devices.mine(problem.devices)
    num_rows = len(jax.tree.leaves(target)[0]) if model.families[site].separate else 0
    if len(here) == 1 or num_rows < FEW_ROWS:
        return point(model, {site: target}, summary, shared, sweeps)[site]
    parts, shares = [], _split((target, shared[site]), num_rows, len(here))
    for share, device in zip(shares, here, strict=True):
        natural, start = jax.device_put(share, device)
        parts.append(point(model, {site: natural}, summary, {site: start}, sweeps)[site])
    by_row = jax.tree.map(lambda x: len(x) == num_rows, shared[site])
    return _join(devices.gather(here, parts), by_row)


@partial(jax.jit, static_argnames=("num_rows", "number"))
def _split(tree, num_rows, number):
    """Shares of the rows. An array without rows is part of every share."""
    edges = [num_rows * i // number for i in range(number + 1)]
    return [
        jax.tree.map(lambda x, i=i: x[edges[i] : edges[i + 1]] if len(x) == num_rows else x, tree)
        for i in range(number)
    ]


@partial(jax.jit, static_argnames=("by_row",))
def _join(parts, by_row):
    def join(rows, *x):
        return jnp.concatenate(x) if rows else sum(x[1:], x[0])

    return jax.tree.map(join, by_row, *parts)
