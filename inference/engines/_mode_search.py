"""The search for the mode of log p~(log theta | D): Newton steps from values on a stencil."""

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

FIRST_SWEEPS = 100  # EM sweeps to the starting point
STENCIL = 0.25  # half width of a stencil in log theta: at first, and at most
CLOSE = 0.1  # standard deviations from the top at which the search ends
STENCILS = 15  # at most
WIDE = 1.5  # conditional sds: a wider stencil says little about the top
FLATTEST = 0.02  # curvature of log p~ below which an axis counts as flat: an sd of 7


class Info(NamedTuple):
    """log_marginal: the best log p~(log theta | D) of this step's values of theta.

    sweeps: number of sweeps of coordinate ascent. converged: share of values where it converged.
    """

    log_marginal: Any
    sweeps: Any
    converged: Any
    finished: bool


class State(NamedTuple):
    """The values of theta tried so far, those still to try, and the state of the search.

    centre, widths: the present stencil
    spread:  after the search, (d, d) columns: an sd along each principal axis of log theta
    start:   values of the sites to begin with
    steady:  False if the search ended without a top, because p~ jumps between modes of the rows
    """

    found: tuple[Found, ...]
    queue: tuple[np.ndarray, ...]
    centre: Any
    widths: Any
    spread: Any
    start: Sites
    steady: bool = True


@partial(jax.jit, static_argnames=("model", "summary", "names"))
def _first(model, hyper, natural, batch, summary, names):
    """A point estimate of everything, the hyper-parameters included, by EM."""
    alone = dataclasses.replace(model, marginal=model.marginal._replace(balance=None))
    start = {s: family.value(family.mean(natural[s])) for s, family in model.families.items()}
    fit = jax.lax.fori_loop(
        0, FIRST_SWEEPS, lambda i, x: ascent.sweep(alone, hyper, x, batch, summary, 0.0)[0], start
    )
    return jnp.stack([jnp.log(fit[name][0]) for name in names]) if names else jnp.zeros(0), fit


_start = jax.jit(lambda model, hyper, key, data: model.init(key, hyper, data), static_argnums=(0,))


def first_theta(
    problem: obj.Problem, key: jax.Array, batch: Any, options: Any
) -> tuple[np.ndarray, Sites]:
    """Where the search begins: a point estimate of log theta, and of the sites."""
    model, hyper, names = problem.model, problem.hyper, names_of(problem)
    natural, summary = _start(model, hyper, key, batch), summary_of_method(options.method)
    theta, fit = _first(model, hyper, natural, batch, summary, names)
    sites = {site: np.asarray(x) for site, x in fit.items() if site not in names}
    return np.clip(np.asarray(theta, float), -12, 12), sites


def stencil(centre: np.ndarray, widths: np.ndarray) -> tuple[np.ndarray, ...]:
    """The centre, its neighbours along the axes, and in two dimensions two corners."""
    axes = np.diag(widths)
    steps = [np.zeros(len(centre))] + [sign * axis for axis in axes for sign in (1, -1)]
    if len(centre) == 2:
        steps += [widths, -widths]
    return tuple(centre + step for step in steps)


def quadratic(values: list[float], widths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian from the values on a stencil."""
    centre, size = values[0], len(widths)
    up, down = np.array(values[1 : 2 * size + 1]).reshape(size, 2).T
    gradient, hessian = (up - down) / 2, np.diag(up + down - 2 * centre)
    if size == 2:
        both = values[5] + values[6] - 2 * centre
        hessian[0, 1] = hessian[1, 0] = 0.5 * (both - hessian[0, 0] - hessian[1, 1])
    return gradient / widths, hessian / np.outer(widths, widths)


def climb(
    values: list[float], widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """From a stencil: the step to the top, sds along the principal axes, widths, and whether close.

    The step is at most 2 long. The widths are those of the next stencil. The top is close if a
    narrow stencil says so.
    """
    gradient, hessian = quadratic(values, widths)
    curvature, axes = np.linalg.eigh(-hessian)
    scale = 1 / np.sqrt(np.maximum(curvature, FLATTEST))
    along = (axes.T @ gradient) * scale  # in standard deviations
    step = axes @ (along * scale)
    step *= min(1.0, 2 / max(float(np.linalg.norm(step)), 1e-300))
    fitting = np.minimum(1 / np.sqrt(np.maximum(-np.diag(hessian), FLATTEST)), STENCIL)
    close = np.all(np.abs(along) < CLOSE) and np.all(widths <= WIDE * fitting)
    return step, axes * scale, fitting, bool(close)


def advance(state: State, size: int) -> State:
    """The search after its queue has been tried. Its queue stays empty when it has ended."""
    if size == 0:
        return state._replace(spread=np.zeros((0, 0)))
    if state.spread is not None:
        return state
    number = len(stencil(np.zeros(size), np.ones(size)))
    values = [one.value for one in state.found[-number:]]
    ended = len(state.found) >= STENCILS * number
    if np.all(np.isfinite(values)):
        step, spread, widths, close = climb(values, state.widths)
        if close or ended:
            return state._replace(spread=spread, steady=close)
        centre = state.centre + step
    else:  # return to the best value with a smaller stencil
        best = max(state.found, key=lambda one: one.value)
        if not np.isfinite(best.value) or ended:
            raise Diverged(
                "The rows' curvature is not positive anywhere that was tried: check the data, or "
                "use gibbs."
            )
        centre, widths = best.theta, 0.5 * state.widths
    return state._replace(centre=centre, widths=widths, queue=stencil(centre, widths))


def nearest(found: tuple[Found, ...], theta: np.ndarray) -> Found:
    """The value found nearest to theta; one that failed only if all did."""
    finite = (one for one in found if np.isfinite(one.value))
    return min(finite, default=found[0], key=lambda one: float(np.sum((one.theta - theta) ** 2)))


def doubled(function: Any) -> Any:
    """The function run with JAX's double precision."""

    @wraps(function)
    def inside(*arguments: Any) -> Any:
        with jax.enable_x64(True):
            return function(*arguments)

    return inside


@doubled
def in_double_precision(problem: obj.Problem) -> tuple[obj.Problem, list[Any]]:
    """The problem, and a copy of its data on every device, in double precision.

    Sums of 1e4 nats lose in single precision what tells values of theta apart.
    """
    hyper = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), float), problem.hyper)
    copies = [problem.data.pack(device=device) for device in devices.mine(problem.devices)]
    return problem._replace(hyper=hyper), copies


def as_asked(natural: Sites) -> Sites:
    """Numbers in the precision that the user has set."""
    return jax.tree.map(lambda x: x.astype(jnp.result_type(float)), natural)


def search(problem: obj.Problem, copies: list[Any], options: Any) -> tuple[Any, Any]:
    """(init, step) of an engine that climbs log p~. A step tries its queue on all devices."""
    size = len(names_of(problem))

    def init(key, given):
        centre, point = first_theta(problem, key, copies[0], options)
        widths = np.full(size, STENCIL)
        queue = stencil(centre, widths) if size else (centre,)
        return State((), queue, centre, widths, None, point)

    def step(key, state, batches):
        waiting = []
        for i, theta in enumerate(state.queue):
            start = nearest(state.found, theta).point if state.found else state.start
            waiting.append(evaluate(problem, theta, start, copies[i % len(copies)], options))
        new = tuple(wait() for wait in waiting)
        state = advance(state._replace(found=(*state.found, *new), queue=()), size)
        best, sweeps = max(one.value for one in new), sum(one.sweeps for one in new)
        converged = np.mean([one.converged for one in new])
        best = best if np.isfinite(best) else None
        return state, Info(best, sweeps, converged, not state.queue)

    return doubled(init), doubled(step)


def warn_of(state: State, cut: bool, used: list[Found], options: Any) -> None:
    """Warn of rows that did not converge, and of a search or grid that was cut short."""
    unfinished = sum(not one.converged for one in used)
    texts = {
        f"Coordinate ascent did not come to rest in {options.num_sweeps} sweeps at {unfinished} "
        f"of {len(used)} values of the hyper-parameters: raise num_sweeps.": bool(unfinished),
        "The search for the hyper-parameters' mode found no steady top: the rows may have several "
        "modes near by.": not state.steady,
        f"{'The grid' if state.spread is not None else 'The search for the mode'} was cut short "
        f"after {len(state.found)} values: raise num_epochs.": cut,
    }
    for text, applies in texts.items():
        if applies:
            warnings.warn(text, stacklevel=4)
