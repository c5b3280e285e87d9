r"""Maximum a posteriori by coordinate ascent. The updates are those of `cavi` with the mode in
place of the mean, which makes them EM.

$$ x_s \leftarrow \operatorname{argmax}_x \; \langle \eta_s, t(x) \rangle, \qquad
\eta_s = \frac{\partial F}{\partial t_s} $$

For `pmf` this is the ridge solve of alternating least squares (Columbia lecture 17).
For `bayesian_nmf` with a flat prior it is Lee and Seung's multiplicative update for the
divergence (lecture 18), documents first.

Use it for predictions, NMF and matrix factorisation at scale. It has no width: `sd` is zero.

The mode of a positive variable depends on the scale: `basis="identity"` maximises the density of
$x$, `basis="log"` that of $\log x$, which has a mode even if a prior's concentration is below one
and the density of $x$ is unbounded at zero. `basis="auto"` takes the identity if it has a mode.

The joint mode of locations and their unknown precision is a spike at locations of zero. Such a
precision (`Marginal.held`) is held at the mean that mean-field inference gives it.
"""

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
from inference.engines._held import held_sites, hold
from pp_models.elimination.row_solver import RowOptions

Options = opt.compose(
    opt.epochs(500),
    opt.rows(1, 0.0),
    {"basis": opt.BASIS},
    opt.stop(1e-6, "the log density changes"),
)


def _start(setting, hyper, batch):
    model, summary = setting
    stats = obj.start_local(model, hyper, batch, summary)
    return {site: model.families[site].value(t) for site, t in stats.items()}


def build(problem: obj.Problem, options: Any) -> Algorithm:
    model, hyper, summary = problem.model, problem.hyper, summary_of(problem, options.basis)
    rows, held = RowOptions(options.num_local, options.local_tolerance), held_sites(problem)

    def init(key, start):
        natural = model.init(key, hyper, problem.data)
        shared = ascent.point(model, {site: natural[site] for site in model.shared}, summary)
        given = {site: jnp.asarray(x, float) for site, x in start.items()}
        local = {site: given.pop(site) for site in list(given) if site in model.local}
        shared |= ascent.statistics(model, given) | hold(problem, key, given)
        return ascent.State(shared, (local,) if local else (), ())

    def first_rows(batches, given):
        """The rows' starting points: the model's, or the given ones in the order of each batch."""
        begin, found = devices.run(_start, (model, summary), problem.devices, hyper, batches), []
        for first, batch in zip(begin, batches, strict=True):
            place = batch.positions.sharding
            own = {site: jax.device_put(x, place)[batch.positions] for site, x in given.items()}
            found.append({**first, **own})
        return found

    def step(key, state, batches):
        local = state.local
        if not state.positions:
            local = first_rows(batches, local[0] if local else {})
        return ascent.sweep(problem, rows, state, local, batches, summary, held)

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
