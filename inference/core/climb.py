r"""To the maximum of a bound, where its curvature is the inverse of a covariance.

A fit ends where its bound hardly rises any more, which may be far from the maximum: topics that
still part from each other gain little in a sweep. Where the bound is concave Newton's method leads
to the maximum, by the conjugate gradients of `linear_response`. Elsewhere sweeps of coordinate
ascent go on, and a step is tried along a direction in which the bound is not concave, which leads
off a saddle.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from inference.core import objective as obj
from inference.core.linear_response import (
    Place,
    Response,
    add,
    bound,
    gradient,
    inner,
    respond,
    without_points,
)
from pp_models.errors import InputError
from pp_models.model import Model, Sites
from pp_models.model.density import joint

MOVED = 0.5  # nats gained on the way to the maximum that are worth a note
SETTLED = 0.01  # sd by which a functional's mean may be off the maximum's
STEPS, DIRECTION_STEPS, DIRECTION_TOLERANCE = 60, 200, 1e-2
SWEEPS = 20  # of coordinate ascent in a step where the bound is not concave
FRACTIONS = tuple(0.5**i for i in range(12))
JUMPS = 64.0, 16.0, 4.0, 1.0, 0.25  # along a direction without positive curvature, in sd of q


class Ascent(NamedTuple):
    """The end of `climb`.

    distance: how far a functional's mean may be from that at the maximum, in its own sd, as far
              as the solver's tolerance tells
    gain:     nats by which the bound rose
    steps:    Newton steps, and blocks of sweeps, taken
    """

    place: Place
    distance: float
    is_maximum: bool
    gain: float
    steps: int


@partial(jax.jit, static_argnames=("model",))
def _slope(model, place):
    """dF/dmu - eta: zero at a maximum."""
    target = gradient(model, place, place.mean)
    return without_points(model, jax.tree.map(jnp.subtract, target, place.natural))


@partial(jax.jit, static_argnames=("model",))
def _moved(model, place, change, fraction):
    natural = add(place.natural, fraction, change)
    moved = place._replace(natural=natural, mean=obj.summarise(model, natural))
    return moved, bound(model, moved)


@partial(jax.jit, static_argnames=("model",))
def _swept(model, place):
    """Coordinate ascent: each site in turn gets the natural parameters dF/dmu."""
    order = [*model.local, *model.shared]

    def sweep(i, now):
        natural, mean = now
        for site in order:
            if model.families[site].has_density:

                def alone(own, site=site, mean=mean):
                    return joint(model, place.hyper, {**mean, site: own}, place.batch)

                natural = {**natural, site: jax.grad(alone)(mean[site])}
                mean = obj.summarise(model, natural)
        return natural, mean

    natural, mean = jax.lax.fori_loop(0, SWEEPS, sweep, (place.natural, place.mean))
    moved = place._replace(natural=natural, mean=mean)
    return moved, bound(model, moved)


def climb(
    model: Model, place: Place, settled: float = SETTLED, watch: Callable[[], Any] = tuple
) -> Ascent:
    r"""Newton's method on the bound, and coordinate ascent where the bound is not concave.

    With the slope $g$ of the bound, $\Sigma g$ leads to its maximum. No functional's mean moves by
    more than $(g^\top \Sigma g)^{1/2}$ of its own sd under $\Sigma$ on the way. Steps are shortened
    until the bound rises.
    """
    height = first = float(_moved(model, place, place.natural, 0.0)[1])
    if not np.isfinite(height):
        raise InputError("Linear response needs a finite bound, and this fit's is not: fit again.")
    distance, is_maximum, steps = np.inf, False, 0
    while steps < STEPS:
        slope = jax.tree.map(lambda x: x[None], _slope(model, place))
        found = respond(model, place, slope, DIRECTION_TOLERANCE, DIRECTION_STEPS, watch)
        distance = float(np.sqrt(max(float(inner(slope, found.shift)), 0.0)))
        is_maximum = bool(found.is_maximum[0])
        if is_maximum and distance < settled:
            break
        better = None if is_maximum else _onward(model, place, found, slope, height)
        if better is None:
            change = found.natural if _any(found.natural) else slope
            change = jax.tree.map(lambda x: x[0], change)
            better = _first_higher(model, _line(model, place, change, FRACTIONS), height)
        if better is None:
            break
        place, height = better
        steps += 1
    return Ascent(place, distance, is_maximum, height - first, steps)


def _onward(
    model: Model, place: Place, found: Response, slope: Sites, height: float
) -> tuple[Place, float] | None:
    """A step off a place where the bound is not concave; None if the bound does not rise."""
    uphill = 1.0 if float(inner(slope, found.last)) >= 0 else -1.0
    _, moved = jax.jvp(partial(obj.summarise, model), (place.natural,), (_only(found.last),))
    size = float(inner(moved, _only(found.last)))
    jumped = None
    if size > 0:
        jump = jax.tree.map(lambda x: uphill / size**0.5 * x, _only(found.last))
        jumped = _highest(model, _line(model, place, jump, JUMPS), height)
    place, height = jumped or (place, height)
    swept = _first_higher(model, [_swept(model, place)], height)
    return swept or jumped


def _only(tree: Sites) -> Sites:
    return jax.tree.map(lambda x: x[0], tree)


def _line(
    model: Model, place: Place, change: Sites, lengths: Iterable[float]
) -> Iterator[tuple[Place, Any]]:
    return (_moved(model, place, change, length) for length in lengths)


def _first_higher(
    model: Model, candidates: Iterable[tuple[Place, Any]], height: float
) -> tuple[Place, float] | None:
    """The first place that raises the bound and is inside the families."""
    for moved, reached in candidates:
        if float(reached) > height and _belongs(model, moved.natural):
            return moved, float(reached)
    return None


def _highest(
    model: Model, candidates: Iterable[tuple[Place, Any]], height: float
) -> tuple[Place, float] | None:
    """The highest of the places that are inside the families; None if none raises the bound."""
    best = None
    for one in candidates:
        best = _first_higher(model, [one], best[1] if best else height) or best
    return best


def _any(tree: Any) -> bool:
    return any(bool(jnp.any(x != 0)) for x in jax.tree.leaves(tree))


def _belongs(model: Model, natural: Sites) -> bool:
    """Whether every natural parameter is that of a distribution."""
    with numpyro.validation_enabled():
        try:
            for site, eta in natural.items():
                if jax.tree.leaves(eta)[0].size:  # the checks fail on arrays without numbers
                    model.families[site].distribution(eta)
        except ValueError:
            return False
    return True


def doubts(model: Model, ascent: Ascent, settled: float) -> Iterator[str]:
    """Sentences on why the widths at the end of a climb may be wrong."""
    if points := [site for site, family in model.families.items() if not family.has_density]:
        yield f"q holds {' and '.join(points)} as a point: the widths are those given its value."
    if not ascent.is_maximum and ascent.steps >= STEPS:
        yield (
            f"{ascent.steps} steps raised the bound by {ascent.gain:,.1f} nats and did not reach "
            "a maximum: fit longer. The corrected widths are not to be trusted."
        )
    elif not ascent.is_maximum:
        yield (
            "The bound has no maximum near this answer: it rises along some direction, and the "
            "corrected widths are not to be trusted."
        )
    elif not ascent.distance <= settled:
        yield (
            f"The answer is up to {ascent.distance:.2g} sd from the maximum of its bound: means "
            "and widths may be off."
        )
    if ascent.gain > MOVED:
        yield (
            "The fit was moved towards the maximum of its bound, which rose by "
            f"{ascent.gain:,.1f} nats: means differ from the fit's."
        )
