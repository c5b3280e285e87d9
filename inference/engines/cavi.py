"""Coordinate-ascent variational inference: block by block, to the optimum of each (X 12-17, P 11.5.1).

    locals of all rows:  natural <- dF/dmu, `num_local` times or until they rest
    each global site:    natural <- dF/dmu

F is convex in the statistics of one block after the auxiliaries are eliminated, so every update raises the bound. Where global sites do not meet in
the rows' part of F once the auxiliaries are given, the same pass over the rows updates them all, one after the other if they meet in the prior.
Where F is not linear in a site's statistics even then (`damped`), the target is a Newton step: it is cut, and blended with the present parameters
until the bound does not fall.
"""

from typing import Any, NamedTuple

from inference.core import devices
from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import SOLID, Algorithm, Engine, Look
from inference.core.posteriors import Variational
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

Options = opt.compose(opt.epochs(500), opt.rows(10, 1e-4), opt.stop(1e-6, "the bound changes"))


class State(NamedTuple):
    """Natural parameters of the global sites, and of each device's rows with those rows' positions."""

    shared: Sites
    local: tuple[Sites, ...]
    positions: tuple[Any, ...]


class Info(NamedTuple):
    """bound: after the local updates of this sweep, as terms to be added up."""

    bound: Any


def _local(model, common, own):
    (hyper, shared, options), (local, batch) = common, own
    return obj.local_part(
        model, hyper, obj.summarise(model, shared), batch, obj.summarise(model, local), options
    )._replace(stats={})


def build(problem: obj.Problem, options: Any) -> Algorithm:
    model, hyper = problem.model, problem.hyper
    rows = RowOptions(options.num_local, options.local_tolerance)
    block = obj.Block(model, obj.summarise, "mean")

    def init(key, start):
        shared = model.init(key, hyper, problem.data)
        return State({site: start.get(site, shared[site]) for site in model.shared}, (), ())

    def step(key, state, batches):
        shared = dict(state.shared)
        local = state.local or obj.first_rows(problem, hyper, batches)
        parts = devices.run(
            _local,
            model,
            problem.devices,
            (hyper, shared, rows),
            list(zip(local, batches, strict=True)),
        )
        local = tuple(part.natural for part in parts)
        terms = devices.gather(problem.devices, [(part.value, part.entropy) for part in parts])
        bound = (obj.shared_bound(model, hyper, shared), terms)
        gradients = [part.gradient for part in parts]
        for i, site in enumerate(model.shared):
            if i and model.coupled == "rows":  # later blocks see the earlier ones' new values
                later = block._replace(site=site)
                own = list(zip(local, batches, strict=True))
                gradients = [
                    {site: x}
                    for x in devices.run(
                        obj.block_gradient, later, problem.devices, (hyper, shared), own
                    )
                ]
            shares = tuple(
                devices.gather(problem.devices, [gradient[site] for gradient in gradients])
            )
            target = obj.block_target(model, hyper, shared, shares, site, "mean")
            shared[site] = (
                climb(shared, site, target, local, batches) if site in model.damped else target
            )
        return State(shared, local, tuple(batch.positions for batch in batches)), Info(bound)

    def climb(shared, site, target, local, batches):
        """The blend of the present and the target that does not lower the bound."""

        def height(natural):
            now = {**shared, site: natural}
            there = devices.run(
                obj.local_value,
                block,
                problem.devices,
                (hyper, now),
                list(zip(local, batches, strict=True)),
            )
            return obj.shared_bound(model, hyper, now), devices.gather(problem.devices, there)

        return obj.advance(
            shared[site], lambda fraction: obj.blend(shared[site], target, fraction), height
        )

    def posterior(state):
        return Variational(problem, state.shared, state.local, state.positions)

    return Algorithm(init, step, posterior)


ENGINE = Engine(
    "cavi",
    Options,
    build,
    kind="variational",
    init="natural",
    ascends=True,
    compared=True,
    is_quick=True,
    quick={"num_epochs": 100},
    tiny={"num_epochs": 30},
    look=Look("vermilion", SOLID, "square"),
)
