r"""A sweep of coordinate ascent over all rows on all devices: the step of `cavi` and `map`.

The rows are solved first. Then each global site $s$ moves to its target,

$$ \eta_s = \frac{\partial F}{\partial \mu_s} $$

given the new values of the sites before it. If the rows couple the global sites
(`Model.coupled` is "rows"), the target of every site after the first takes another pass over the
rows. The target of a damped site is a Newton step, which is halved until the objective does not
fall.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from inference.core import devices
from inference.core import objective as obj
from inference.engines import _minibatch as mb
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites


class State(NamedTuple):
    """Parameters of the global sites; each device's rows, and their positions in the data."""

    shared: Sites
    local: tuple[Sites, ...]
    positions: tuple[jax.Array, ...]


class Info(NamedTuple):
    """bound: terms of the objective after the rows of this sweep were solved."""

    bound: Any


class Rule(NamedTuple):
    """How parameters of global sites move: `natural_rule` is that of `cavi`.

    block:   how parameters become statistics
    solve:   fields of `mb.Setting` that rows are solved with
    value:   (shared) -> the part of the objective without rows
    update:  (shared, site, target) -> new parameters of the site
    move:    (shared, site, target, fraction) -> the same after a part of the way, if damped
    """

    block: obj.Block
    solve: dict[str, Any]
    value: Callable[[Sites], jax.Array]
    update: Callable[..., Any]
    move: Callable[..., Any]


def natural_rule(problem: obj.Problem) -> Rule:
    """Natural parameters move to their target."""
    return Rule(
        obj.Block(problem.model, obj.summarise, "mean"),
        {"bound": True},
        lambda shared: obj.shared_bound(problem.model, problem.hyper, shared),
        lambda shared, site, target: target,
        lambda shared, site, target, fraction: obj.blend(shared[site], target, fraction),
    )


def sweep(
    problem: obj.Problem, rule: Rule, rows: RowOptions, shared: Sites, local: Any, batches: Any
) -> tuple[State, Info]:
    """Solve the rows from `local`, then update every global site."""
    model, hyper, places, block = problem.model, problem.hyper, problem.devices, rule.block
    solved = mb.solve(problem, hyper, shared, batches, rows, start=local, **rule.solve)
    own = list(zip(solved.local, batches, strict=True))
    terms = devices.gather(places, [share.bound for share in solved.shares])
    info, shared = Info((rule.value(shared), terms)), dict(shared)

    def height(now):
        values = devices.run(obj.local_value, block, places, (hyper, now), own)
        return rule.value(now), devices.gather(places, values)

    gradients = [share.gradient for share in solved.shares]
    for i, site in enumerate(model.shared):
        if i and model.coupled == "rows":
            later = block._replace(site=site)
            found = devices.run(obj.block_gradient, later, places, (hyper, shared), own)
            gradients = [{site: x} for x in found]
        parts = tuple(devices.gather(places, [gradient[site] for gradient in gradients]))
        target = obj.block_target(model, hyper, shared, parts, site, block.summary)
        if site in model.damped:
            shared[site] = obj.advance(
                shared[site],
                lambda fraction, s=site, t=target: rule.move(shared, s, t, fraction),
                lambda x, s=site: height({**shared, s: x}),
            )
        else:
            shared[site] = rule.update(shared, site, target)
    return State(shared, solved.local, solved.positions), info
