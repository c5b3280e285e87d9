"""Coordinate-ascent variational inference: block by block, to the optimum of each (X 12-17, P 11.5.1).

    locals of all rows:  natural <- dF/dmu, `num_local` times or until they rest
    each global site:    natural <- dF/dmu

F is convex in the statistics of one block after the auxiliaries are eliminated, so every update raises the bound. Where global sites do not meet in
the rows' part of F once the auxiliaries are given, the same pass over the rows updates them all, one after the other if they meet in the prior.
Where F is not linear in a site's statistics even then (`damped`), the target is a Newton step: it is cut, and blended with the present parameters
until the bound does not fall.
"""

from typing import Any, NamedTuple

from inference import devices
from inference import objective as obj
from inference.engine import Algorithm, Engine
from inference.posterior import Variational
from pp_models.base import Sites
from pp_models.rows import RowOptions


class Options(NamedTuple):
    """num_epochs: sweeps at most. num_local, local_tolerance: the rows' fixed point in each. tolerance: relative change of the bound to stop at."""

    num_epochs: int = 500
    num_local: int = 10
    local_tolerance: float = 1e-4
    tolerance: float = 1e-6


class State(NamedTuple):
    """Natural parameters of the global sites, and of each device's rows with those rows' positions."""

    shared: Sites
    local: tuple[Sites, ...]
    positions: tuple[Any, ...]


class Info(NamedTuple):
    """bound: after the local updates of this sweep, as terms to be added up."""

    bound: Any


def _local(setting, common, own):
    (model, structure), (values, shared, options), (local, batch) = setting, common, own
    hyper = obj.make(model, structure, values)
    return obj.local_part(model, hyper, obj.summarise(model, shared), batch, obj.summarise(model, local), options)._replace(stats={})


def build(problem: obj.Problem, options: Options) -> Algorithm:
    model, structure, values = problem.model, problem.structure, problem.values
    rows = RowOptions(options.num_local, options.local_tolerance)
    block = obj.Block(model, structure, obj.summarise, "mean")

    def init(key, start):
        shared = model.init(key, problem.hyper, problem.data)
        return State({site: start.get(site, shared[site]) for site in model.shared}, (), ())

    def step(key, state, batches):
        shared = dict(state.shared)
        local = state.local or obj.first_rows(problem, values, batches)
        parts = devices.run(_local, (model, structure), problem.devices, (values, shared, rows), list(zip(local, batches, strict=True)))
        local = tuple(part.natural for part in parts)
        terms = devices.gather(problem.devices, [(part.value, part.entropy) for part in parts])
        bound = (obj.shared_bound(model, structure, values, shared), terms)
        gradients = [part.gradient for part in parts]
        for i, site in enumerate(model.shared):
            if i and model.coupled == "rows":  # later blocks see the earlier ones' new values
                later = block._replace(site=site)
                own = list(zip(local, batches, strict=True))
                gradients = [{site: x} for x in devices.run(obj.block_gradient, later, problem.devices, (values, shared), own)]
            shares = tuple(devices.gather(problem.devices, [gradient[site] for gradient in gradients]))
            target = obj.block_target(model, structure, values, shared, shares, site, "mean")
            shared[site] = climb(shared, site, target, local, batches) if site in model.damped else target
        return State(shared, local, tuple(batch.positions for batch in batches)), Info(bound)

    def climb(shared, site, target, local, batches):
        """The blend of the present and the target that does not lower the bound."""

        def height(natural):
            now = {**shared, site: natural}
            there = devices.run(obj.local_value, block, problem.devices, (values, now), list(zip(local, batches, strict=True)))
            return obj.shared_bound(model, structure, values, now), devices.gather(problem.devices, there)

        return obj.advance(shared[site], lambda fraction: obj.blend(shared[site], target, fraction), height)

    def posterior(state):
        return Variational(problem, state.shared, state.local, state.positions)

    return Algorithm(init, step, posterior)


ENGINE = Engine("cavi", Options, build, kind="variational", init="natural", ascends=True)
