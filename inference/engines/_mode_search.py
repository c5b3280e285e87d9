"""The search for the mode of log p~(log theta | D): stencils, and Newton steps from their values."""

import dataclasses
import warnings
from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import devices
from inference.core import objective as obj
from inference.engines import _ascent as ascent
from inference.engines._laplace import Found, evaluate, names_of, summary_of_method
from pp_models.errors import Diverged
from pp_models.model import Sites


class Info(NamedTuple):
    """log_marginal: the best log p~(log theta | D) of this step, which tries a few values of theta, up to a constant.

    sweeps: of coordinate ascent there. converged: the share of them that came to rest.
    """

    log_marginal: Any
    sweeps: Any
    converged: Any
    finished: bool


class State(NamedTuple):
    """Values of theta tried so far, those still to try, and where the search is.

    centre, widths: the middle of the present stencil, and how far it reaches along each axis
    spread:  once the search has ended, (d, d) columns: a standard deviation along each principal axis of log theta
    start:   values of the sites to begin with
    steady:  whether it ended at a top, and not because p~ jumps between modes of the rows
    """

    found: tuple[Found, ...]
    queue: tuple[np.ndarray, ...]
    centre: Any
    widths: Any
    spread: Any
    start: Sites
    steady: bool = True


# The mode over theta ----------------------------------------------------------------------------------------------------------------------


FIRST_SWEEPS = 100


@partial(jax.jit, static_argnames=("model", "summary", "names"))
def _first(model, hyper, natural, batch, summary, names):
    """A point estimate of everything, the hyper-parameters included, by EM."""
    alone = dataclasses.replace(model, marginal=model.marginal._replace(balance=None))
    start = {
        site: family.value(family.mean(natural[site])) for site, family in model.families.items()
    }
    fit = jax.lax.fori_loop(
        0, FIRST_SWEEPS, lambda i, x: ascent.sweep(alone, hyper, x, batch, summary, 0.0)[0], start
    )
    return jnp.stack([jnp.log(fit[name][0]) for name in names]) if names else jnp.zeros(0), fit


_start = jax.jit(lambda model, hyper, key, data: model.init(key, hyper, data), static_argnums=(0,))


def first_theta(
    problem: obj.Problem, key: jax.Array, batch: Any, options: Any
) -> tuple[np.ndarray, Sites]:
    """Where the search begins: a point estimate of everything, hyper-parameters included."""
    model, names = problem.model, names_of(problem)
    natural = _start(model, problem.hyper, key, batch)
    theta, fit = _first(
        model, problem.hyper, natural, batch, summary_of_method(options.method), names
    )
    return np.clip(np.asarray(theta, float), -12, 12), {
        site: np.asarray(x) for site, x in fit.items() if site not in names
    }


STENCIL = 0.25  # of log theta, for differences: at first, and at most
CLOSE = 0.1  # standard deviations from the top at which the search ends
STENCILS = 15  # at most
WIDE = 1.5  # conditional standard deviations, above which a stencil says little of the top: the next is one wide


def stencil(centre: np.ndarray, widths: np.ndarray) -> tuple[np.ndarray, ...]:
    """The centre, its neighbours along the axes, and in two dimensions the corners that tell the mixed derivative."""
    axes = np.diag(widths)
    steps = [np.zeros(len(centre))] + [sign * axis for axis in axes for sign in (1, -1)]
    if len(centre) == 2:
        steps += [sign * widths for sign in (1, -1)]
    return tuple(centre + step for step in steps)


def quadratic(values: list[float], widths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian from the values on a stencil."""
    centre, size = values[0], len(widths)
    gradient = np.array([(values[1 + 2 * i] - values[2 + 2 * i]) / 2 for i in range(size)])
    hessian = np.diag([values[1 + 2 * i] + values[2 + 2 * i] - 2 * centre for i in range(size)])
    if size == 2:
        both = values[5] + values[6] - 2 * centre
        hessian[0, 1] = hessian[1, 0] = 0.5 * (both - hessian[0, 0] - hessian[1, 1])
    return gradient / widths, hessian / np.outer(widths, widths)


FLATTEST = 0.02  # curvature of log p~ below which an axis counts as flat: a standard deviation of 7


def climb(
    values: list[float], widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """From a stencil: the way to the top, at most 2 long; a standard deviation along each principal axis; widths for the next; whether the top is
    close, and the stencil narrow enough to tell."""
    gradient, hessian = quadratic(values, widths)
    curvature, axes = np.linalg.eigh(-hessian)
    scale = 1 / np.sqrt(np.maximum(curvature, FLATTEST))
    along = (axes.T @ gradient) * scale  # in standard deviations
    step = axes @ (along * scale)
    fitting = np.minimum(1 / np.sqrt(np.maximum(-np.diag(hessian), FLATTEST)), STENCIL)
    close = np.all(np.abs(along) < CLOSE) and np.all(widths <= WIDE * fitting)
    return (
        step * min(1.0, 2 / max(float(np.linalg.norm(step)), 1e-300)),
        axes * scale,
        fitting,
        bool(close),
    )


def advance(state: State, size: int) -> State:
    """What to try next, once the queue is empty: nothing when the search has ended."""
    if size == 0:
        return state._replace(spread=np.zeros((0, 0)))
    if state.spread is not None:
        return state
    number = len(stencil(np.zeros(size), np.ones(size)))
    values = [one.value for one in state.found[-number:]]
    if not np.all(np.isfinite(values)):  # back to the best, and nearer to it
        best = max(state.found, key=lambda one: one.value)
        if not np.isfinite(best.value) or len(state.found) >= STENCILS * number:
            raise Diverged(
                "The rows' curvature is not positive anywhere that was tried: check the data, or use gibbs."
            )
        return state._replace(
            centre=best.theta,
            widths=0.5 * state.widths,
            queue=stencil(best.theta, 0.5 * state.widths),
        )
    step, spread, widths, close = climb(values, state.widths)
    if close or len(state.found) >= STENCILS * number:
        return state._replace(spread=spread, steady=close)
    centre = state.centre + step
    return state._replace(centre=centre, widths=widths, queue=stencil(centre, widths))


def nearest(found: tuple[Found, ...], theta: np.ndarray) -> Found:
    """Of what was found, failed points last."""
    return min(
        (one for one in found if np.isfinite(one.value)),
        default=found[0],
        key=lambda one: float(np.sum((one.theta - theta) ** 2)),
    )


def doubled(function: Any) -> Any:
    """The function with JAX's double precision switched on while it runs."""

    @wraps(function)
    def inside(*arguments: Any) -> Any:
        with jax.enable_x64(True):
            return function(*arguments)

    return inside


@doubled
def in_double_precision(problem: obj.Problem) -> tuple[obj.Problem, list[Any]]:
    """The problem, and its data on every device, in double precision: sums of 1e4 nats and more lose in single what tells values of theta apart."""
    hyper = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), float), problem.hyper)
    return problem._replace(hyper=hyper), [
        problem.data.pack(device=device) for device in devices.mine(problem.devices)
    ]


def as_asked(natural: Sites) -> Sites:
    """Numbers in the precision that the user has set."""
    return jax.tree.map(lambda x: x.astype(jnp.result_type(float)), natural)


def search(problem: obj.Problem, options: Any, copies: list[Any]) -> tuple[Any, Any]:
    """(init, step) of an engine that climbs log p~. A step tries all of the queue, spread over the devices' copies of the data."""
    size = len(names_of(problem))

    def init(key, given):
        centre, point = first_theta(problem, key, copies[0], options)
        widths = np.full(size, STENCIL)
        return State(
            (), stencil(centre, widths) if size else (centre,), centre, widths, None, point
        )

    def step(key, state, batches):
        starts = [
            nearest(state.found, theta).point if state.found else state.start
            for theta in state.queue
        ]
        places = zip(state.queue, starts, strict=True)
        waiting = [
            evaluate(problem, theta, start, copies[i % len(copies)], options)
            for i, (theta, start) in enumerate(places)
        ]
        new = tuple(wait() for wait in waiting)
        state = advance(state._replace(found=(*state.found, *new), queue=()), size)
        best = max(one.value for one in new)
        return state, Info(
            best if np.isfinite(best) else None,
            sum(one.sweeps for one in new),
            np.mean([one.converged for one in new]),
            not state.queue,
        )

    return doubled(init), doubled(step)


def warn_of(state: State, cut: bool, used: list[Found], options: Any) -> None:
    """Say what the result must not hide: values of theta at which the rows did not rest, and a search or grid cut short."""
    unrested = sum(not one.converged for one in used)
    if unrested:
        warnings.warn(
            f"Coordinate ascent did not come to rest in {options.num_sweeps} sweeps at {unrested} of {len(used)} values of the hyper-parameters: "
            "raise num_sweeps.",
            stacklevel=4,
        )
    if not state.steady:
        warnings.warn(
            "The search for the hyper-parameters' mode found no steady top: the rows may have several modes near by.",
            stacklevel=4,
        )
    if cut:
        what = "The search for the hyper-parameters' mode" if state.spread is None else "The grid"
        warnings.warn(
            f"{what} was cut short after {len(state.found)} values: raise num_epochs.", stacklevel=4
        )
