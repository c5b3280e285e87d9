r"""Maximum a posteriori by coordinate ascent. The updates are those of `cavi` with the mode in
place of the mean, which makes them EM.

$$ x_s \leftarrow \arg\max_x \; \Big\langle \frac{\partial F}{\partial t_s}, t(x) \Big\rangle $$

For `pmf` this is the ridge solve of alternating least squares (C17 of the Columbia lectures, C).
For `bayesian_nmf` with a flat prior it is Lee and Seung's multiplicative update for the
divergence (C18), documents first.

Use it for predictions, NMF and matrix factorisation at scale. It has no width: `sd` is zero.

The mode of a positive variable depends on the scale: `basis="identity"` maximises the density of
$x$, `basis="log"` that of $\log x$, which has a mode even if a prior's concentration is below one
and the density of $x$ is unbounded at zero. `basis="auto"` takes the identity if it has a mode.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from inference.core import devices
from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import LONG, Algorithm, Engine, Look
from inference.core.posteriors import Point
from inference.core.summaries import summary_of
from inference.engines import _coordinate_ascent as ascent
from inference.engines import _minibatch as mb
from pp_models import families as fam
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

FEW_ROWS = 512  # of a global site: below, sharing them out costs more than solving them here

Options = opt.compose(
    opt.epochs(500),
    opt.rows(1, 0.0),
    {"basis": opt.BASIS},
    opt.stop(1e-6, "the log density changes"),
)

statistics = jax.jit(mb.statistics, static_argnames="model")
_point = jax.jit(obj.summarise, static_argnames=("model", "summary"))


def solve_site(
    problem: obj.Problem, site: str, target: Any, shared: Sites, summary: str, sweeps: int
) -> Any:
    """The site's statistics at the target.

    Independent rows that are many are shared out among this process's devices. A tied precision
    goes to every device, and a tied statistic is summed over the devices' shares.
    """
    model, here = problem.model, devices.mine(problem.devices)
    num_rows = len(jax.tree.leaves(target)[0]) if model.families[site].separate else 0
    if len(here) == 1 or num_rows < FEW_ROWS:
        return _point(model, {site: target}, summary, shared, sweeps)[site]
    parts = []
    for share, device in zip(
        _split((target, shared[site]), num_rows, len(here)), here, strict=True
    ):
        natural, start = jax.device_put(share, device)
        parts.append(_point(model, {site: natural}, summary, {site: start}, sweeps)[site])
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


def _start(setting, hyper, batch):
    model, summary = setting
    stats = obj.start_local(model, hyper, batch, summary)
    return {site: model.families[site].value(t) for site, t in stats.items()}


@partial(jax.jit, static_argnames=("model", "site", "summary"))
def _towards(model, stats, target, fraction, site, summary):
    """A damped site's statistics after a fraction of its step."""
    return fam.summarise(model.families[site], fam.newton_step(stats, target, fraction), summary)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    model, hyper, summary = problem.model, problem.hyper, summary_of(problem, options.basis)
    rows = RowOptions(options.num_local, options.local_tolerance)

    def update(shared, site, target):
        return solve_site(problem, site, target, shared, summary, options.num_local)

    def move(shared, site, target, fraction):
        return _towards(model, shared[site], target, fraction, site, summary)

    def value(shared):
        return obj.shared_value(model, hyper, shared, summary)

    # Rows are kept as values, because their statistics may be K times as large.
    solve = {"bound": True, "summary": summary, "values": True}
    rule = ascent.Rule(obj.Block(model, statistics), solve, value, update, move)

    def init(key, start):
        natural = model.init(key, hyper, problem.data)
        shared = _point(model, {site: natural[site] for site in model.shared}, summary)
        given = {site: jnp.asarray(x, float) for site, x in start.items()}
        local = {site: given.pop(site) for site in list(given) if site in model.local}
        return ascent.State({**shared, **statistics(model, given)}, (local,) if local else (), ())

    def step(key, state, batches):
        local = state.local
        if not state.positions:
            local = first_rows(batches, local[0] if local else {})
        return ascent.sweep(problem, rule, rows, state.shared, local, batches)

    def first_rows(batches, given):
        """The rows' starting points: the model's, or the given ones in the order of each batch."""
        begin, found = devices.run(_start, (model, summary), problem.devices, hyper, batches), []
        for first, batch in zip(begin, batches, strict=True):
            place = batch.positions.sharding
            own = {site: jax.device_put(x, place)[batch.positions] for site, x in given.items()}
            found.append({**first, **own})
        return found

    def posterior(state):
        return Point(problem, *state)

    return Algorithm(init, step, posterior)


ENGINE = Engine(
    "map",
    Options,
    build,
    kind="point",
    init="values",
    ascends=True,
    compared=True,
    is_quick=True,
    quick={"num_epochs": 100},
    tiny={"num_epochs": 30, "basis": "log"},
    look=Look("grey", LONG, "cross"),
)
