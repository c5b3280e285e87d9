"""Maximum a posteriori by coordinate ascent: `mode` in place of `mean`, so the updates are EM's.

On Bayesian NMF with a flat prior a sweep is Lee and Seung's multiplicative update for the divergence (C18), documents first.

The mode of a positive variable depends on what it is a density of: basis="identity" maximises p(x), basis="log" the density of log x, which has a
mode even when a prior's concentration is below one and p(x) is unbounded at zero. basis="auto" takes the identity where that has a mode.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.core import devices
from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import LONG, Algorithm, Engine, Look
from inference.core.posteriors import Point
from inference.core.summaries import summary_of
from pp_models import families as fam
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

FEW_ROWS = 512  # of a global site, solved where they are: shared out, they would cost more


Options = opt.compose(
    opt.epochs(500),
    opt.rows(1, 0.0),
    {"basis": opt.BASIS},
    opt.stop(1e-6, "the log density changes"),
)


class State(NamedTuple):
    """Statistics t(x) of the global sites, and values of each device's rows, whose statistics may be K times as large, with those rows' positions."""

    shared: Sites
    local: tuple[Sites, ...]
    positions: tuple[Any, ...]


class Info(NamedTuple):
    """bound: the log joint density in the chosen basis, after the local updates of this sweep, as terms to be added up."""

    bound: Any


def _local(setting, common, own):
    (model, summary), (hyper, shared, options), (local, batch) = setting, common, own
    part = obj.local_part(model, hyper, shared, batch, statistics(model, local), options, summary)
    return part._replace(natural={}, stats=_values(model, part.stats))


@partial(jax.jit, static_argnames="model")
def statistics(model, points):
    """Of values."""
    return {site: model.families[site].stats(x) for site, x in points.items()}


def _values(model, stats):
    return {site: model.families[site].value(t) for site, t in stats.items()}


_stats = jax.jit(obj.summarise, static_argnames=("model", "summary"))


def solve_site(
    problem: obj.Problem, site: str, target: Any, shared: Sites, summary: str, sweeps: int
) -> Any:
    """The site's statistics at the target. Rows that do not depend on each other and take long are shared out among this process's devices.

    What is one for all rows, a tied precision, goes to every device; the tied statistic is a sum over rows, and so over the devices' shares.
    """
    here = devices.mine(problem.devices)
    num_rows = len(jax.tree.leaves(target)[0]) if problem.model.families[site].separate else 0
    if len(here) == 1 or num_rows < FEW_ROWS:
        return _stats(problem.model, {site: target}, summary, shared, sweeps)[site]
    shares = [
        jax.device_put(part, device)
        for part, device in zip(
            _split((target, shared[site]), num_rows, len(here)), here, strict=True
        )
    ]
    parts = [
        _stats(problem.model, {site: natural}, summary, {site: start}, sweeps)[site]
        for natural, start in shares
    ]
    return _join(
        devices.gather(here, parts), jax.tree.map(lambda x: len(x) == num_rows, shared[site])
    )


@partial(jax.jit, static_argnames=("num_rows", "number"))
def _split(tree, num_rows, number):
    """So many shares of the rows; what is not of rows is part of every one."""
    edges = [num_rows * i // number for i in range(number + 1)]
    return [
        jax.tree.map(lambda x, i=i: x[edges[i] : edges[i + 1]] if len(x) == num_rows else x, tree)
        for i in range(number)
    ]


@partial(jax.jit, static_argnames=("by_row",))
def _join(parts, by_row):
    return jax.tree.map(
        lambda rows, *x: jnp.concatenate(x) if rows else sum(x[1:], x[0]), by_row, *parts
    )


def _start(setting, hyper, batch):
    model, summary = setting
    return _values(model, obj.start_local(model, hyper, batch, summary))


@partial(jax.jit, static_argnames=("model", "site", "summary"))
def _towards(model, stats, target, fraction, site, summary):
    """A damped site's statistics after a fraction of its step."""
    return fam.summarise(model.families[site], fam.newton_step(stats, target, fraction), summary)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    model, hyper = problem.model, problem.hyper
    summary = summary_of(problem, options.basis)
    rows = RowOptions(options.num_local, options.local_tolerance)
    setting, block = (model, summary), obj.Block(model, statistics)

    def init(key, start):
        natural = model.init(key, hyper, problem.data)
        first = _stats(model, {site: natural[site] for site in model.shared}, summary)
        given = {site: jnp.asarray(x, float) for site, x in start.items()}
        local = {site: x for site, x in given.items() if site in model.local}
        return State(
            {
                **first,
                **statistics(model, {site: given[site] for site in given.keys() - local.keys()}),
            },
            (local,) if local else (),
            (),
        )

    def step(key, state, batches):
        shared = dict(state.shared)
        local = (
            state.local
            if state.positions
            else first(batches, state.local[0] if state.local else {})
        )
        parts = devices.run(
            _local,
            setting,
            problem.devices,
            (hyper, shared, rows),
            list(zip(local, batches, strict=True)),
        )
        terms = devices.gather(problem.devices, [(part.value, part.entropy) for part in parts])
        bound = (obj.shared_value(model, hyper, shared, summary), terms)
        gradients, points = [part.gradient for part in parts], tuple(part.stats for part in parts)
        for i, site in enumerate(model.shared):
            if i and model.coupled == "rows":  # later blocks see the earlier ones' new values
                later, own = block._replace(site=site), list(zip(points, batches, strict=True))
                gradients = [
                    {site: x}
                    for x in devices.run(
                        obj.block_gradient, later, problem.devices, (hyper, shared), own
                    )
                ]
            shares = tuple(
                devices.gather(problem.devices, [gradient[site] for gradient in gradients])
            )
            target = obj.block_target(model, hyper, shared, shares, site, None)
            if site in model.damped:
                shared[site] = climb(shared, site, target, points, batches)
            else:
                shared[site] = solve_site(problem, site, target, shared, summary, options.num_local)
        return State(shared, points, tuple(batch.positions for batch in batches)), Info(bound)

    def climb(shared, site, target, points, batches):
        """The step towards the target, as long as the objective does not fall."""

        def height(stats):
            now = {**shared, site: stats}
            there = devices.run(
                obj.local_value,
                block,
                problem.devices,
                (hyper, now),
                list(zip(points, batches, strict=True)),
            )
            return obj.shared_value(model, hyper, now, summary), devices.gather(
                problem.devices, there
            )

        def move(fraction):
            return _towards(model, shared[site], target, fraction, site, summary)

        return obj.advance(shared[site], move, height)

    def first(batches, given):
        """The rows' starting points: the model's, or the given ones in each batch's order."""
        begin = devices.run(_start, setting, problem.devices, hyper, batches)
        places = [(batch.positions, batch.positions.sharding) for batch in batches]
        return [
            {**one, **jax.tree.map(lambda t, i=i, place=place: jax.device_put(t, place)[i], given)}
            for one, (i, place) in zip(begin, places, strict=True)
        ]

    def posterior(state):
        return Point(problem, state.shared, state.local, state.positions)

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
