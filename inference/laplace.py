"""Laplace approximation of the rows given the hyper-parameters, and the marginal posterior of those (H 3.1-3.2).

    log p~(theta | D) = log p(x, theta, D) - log p_G(x | theta, D)   at x = x*(theta)                                       H(8)

with one factor of p_G for each row of each site (H 9-11, which are precisions). H takes the mode of p(x | theta, D) and normals about it. That is
right for as many rows as columns only: a product of factors is as likely when one is scaled up and the other down, and the mode balances their
priors, where the posterior mass is elsewhere on that line by the Jacobian of the scaling (lessons from long Gibbs runs; the shift of log alpha1's
mode is log((n + p)^2 / 4 n p)). So by default (method="log") x* is the mode in log space, each factor scaled to where the mass is (`balance`), and
every positive coordinate is integrated over the positive half line about it,

    I = log int_0^inf exp(g (y - x) - h (y - x)^2 / 2) dy,    g = dF/dx, h = -d^2F/dx^2,

while real rows have their normal integral K/2 log 2 pi - log|P|/2 + g'P^-1 g/2.

| method      | x*                    | factors                                        |
|-------------|-----------------------|------------------------------------------------|
| "log"       | mode in log space, balanced | positive coordinates as above, real rows normal |
| "truncated" | mode                  | the same                                       |
| "paper"     | mode                  | normal rows, positive or not: H(8) as printed  |
| "full"      | mode                  | one normal with the whole Hessian: small problems |

The engine `laplace` takes theta at the mode of p~ (or as given) and stops there; `inla` puts a grid around it.
"""

import dataclasses
import warnings
from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from inference import ascent, devices
from inference import objective as obj
from inference.engine import Algorithm, Engine
from inference.posterior import Mixture
from pp_models import families as fam
from pp_models import positive_normal as pos
from pp_models.base import Sites, choose_variant, joint, log_joint, split_hyper
from pp_models.errors import Diverged, InputError, unknown
from pp_models.families import Pair

METHODS = ("log", "truncated", "paper", "full")
FAMILIES = ("normal", "normal_tied", "positive", "positive_tied")
MOST_COORDINATES = 4000  # for a whole Hessian


class Options(NamedTuple):
    """num_epochs: steps at most, each of which tries a few values of theta. method: see the module.

    num_sweeps: of coordinate ascent at each value, at most. sweep_tolerance: it rests when three of them gain fewer nats.
    """

    num_epochs: int = 60
    method: str = "log"
    num_sweeps: int = 2000
    sweep_tolerance: float = 1e-4


class Found(NamedTuple):
    """What is known at one value of theta."""

    theta: np.ndarray  # log theta
    value: float  # log p~(log theta | D), up to a constant
    point: Sites  # x*, to begin the next value with
    natural: Sites  # of the rows' factors, (b, p) of positive coordinates or (P m, -P/2) of real rows
    sweeps: int
    converged: bool


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


def suits(model: Any) -> str:
    for site, family in model.families.items():
        if site not in model.gridded and family.name not in FAMILIES:
            needed = "rows of real or positive numbers given the hyper-parameters"
            return f"The Laplace engines need {needed}, but {site} of {model.name} is {family.name}: use cavi."
    return ""


def check(options: Any) -> None:
    if options.method not in METHODS:
        raise unknown("method", options.method, METHODS)


# Hyper-parameters fixed, one value after the other ------------------------------------------------------------------------------------


def names_of(problem: obj.Problem) -> tuple[str, ...]:
    """The hyper-parameters that are sites, and so unknown."""
    return tuple(name for name in problem.model.gridded if name in problem.model.families)


def fixed(problem: obj.Problem, theta: np.ndarray) -> obj.Problem:
    """The same problem with theta known."""
    hyper = problem.hyper._replace(**{name: float(np.exp(x)) for name, x in zip(names_of(problem), theta, strict=True)})
    structure, values = split_hyper(hyper)
    return problem._replace(model=choose_variant(problem.model, hyper, problem.data.kind), structure=tuple(sorted(structure.items())), values=values)


def _summary(method: str) -> str:
    return "log_mode" if method == "log" else "mode"


# log p~ at one value of theta -----------------------------------------------------------------------------------------------------------


def curvatures(model, hyper, stats, batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Site -> (g, P): the gradient of log p(x, D | theta) in x, (rows, K), and minus its Hessian in each row, (rows or 1, K, K)."""
    gradient = jax.grad(lambda t: joint(model, hyper, t, batch))(stats)
    found = {}
    for site in model.families:
        linear = -2 * gradient[site].second
        bent = linear - ascent.bending(model, hyper, stats, batch, site) if site in model.curved else linear
        found[site] = (gradient[site].first - ascent.row_products(linear, stats[site].first), bent)
    return found


def _half_line(x, g, p):
    """log int_0^inf exp(g (y - x) - p (y - x)^2 / 2) dy, element by element, as a distance from the top and not as a difference of large numbers."""
    above = g + p * x > 0
    offset = x + g / p  # where the parabola has its top
    inside = 0.5 * (g**2 / p + jnp.log(2 * jnp.pi / p)) + jnp.log(ndtr(jnp.where(above, offset, 0) * jnp.sqrt(p)))
    outside = pos.moments(jnp.where(above, -1.0, g + p * x), p).log_z - x * (g + 0.5 * p * x)
    return jnp.where(above, inside, outside)


def _normal_integral(g, P, shifted):
    """sum over rows of log int exp(g'y - y'P y / 2) dy, with g or, at a mode, without it."""
    family = fam.normal if len(P) == len(g) else fam.normal_tied
    return jnp.sum(family.log_normalizer(Pair(g if shifted else jnp.zeros_like(g), -0.5 * P)))


def factors(model, hyper, point, batch, method):
    """-log p_G(x) of all rows' factors, and their natural parameters."""
    stats = {site: model.families[site].stats(x) for site, x in point.items()}
    total, natural = jnp.zeros(()), {}
    for site, (g, P) in curvatures(model, hyper, stats, batch).items():
        x = stats[site].first
        if model.families[site].settles:
            p = jnp.broadcast_to(jnp.diagonal(P, axis1=1, axis2=2), x.shape)
            natural[site] = Pair(g + p * x, p)
        else:
            natural[site] = Pair(g + ascent.row_products(P, x), -0.5 * P)
        if model.families[site].settles and method in ("log", "truncated"):
            total += jnp.sum(_half_line(x, g, p))
        else:
            total += _normal_integral(g, P, method in ("log", "truncated"))
    return total, natural


def _whole(model, hyper, values, batch):
    """-log p_G(x) of one normal with the whole Hessian, the scale lines' flat directions included as they are."""
    flat, unravel = jax.flatten_util.ravel_pytree(values)
    if len(flat) > MOST_COORDINATES:
        raise InputError(f"method='full' needs the Hessian of {len(flat)} coordinates, more than {MOST_COORDINATES}: use another method.")
    hessian = jax.hessian(lambda x: log_joint(model, hyper, unravel(x), batch))(flat)
    sign, log_det = np.linalg.slogdet(-np.asarray(hessian, np.float64))
    return 0.5 * (len(flat) * np.log(2 * np.pi) - log_det) if sign > 0 else np.nan


class _Point(NamedTuple):
    """What one compiled program finds at one value of theta."""

    climbed: ascent.Ascent
    height: Any  # log p(x, theta, D)
    correction: Any  # -log p_G(x)
    natural: Sites


@partial(jax.jit, static_argnames=("problem_model", "problem_structure", "model", "structure", "names", "method"))
def _evaluate(problem_model, problem_structure, problem_values, model, structure, values, names, theta, start, batch, method, most, tolerance):
    hyper = obj.make(model, structure, {**values, **{name: jnp.exp(theta[i]) for i, name in enumerate(names)}})
    climbed = ascent.ascend(model, hyper, start, batch, _summary(method), most, tolerance)
    correction, natural = factors(model, hyper, climbed.values, batch, method)
    sites = {**climbed.values, **{name: jnp.exp(theta[i : i + 1]) for i, name in enumerate(names)}}
    height = log_joint(problem_model, obj.make(problem_model, problem_structure, problem_values), sites, batch)
    return _Point(climbed, height, correction, natural)


def evaluate(problem: obj.Problem, theta: np.ndarray, start: Sites, batch: Any, options: Any) -> Any:
    """log p~(log theta | D) and the factors there, found from the given values: a function that waits for them, so that devices work side by side."""
    given, names = fixed(problem, theta), names_of(problem)
    known = jax.device_put((problem.values, given.values, jnp.asarray(theta, float), dict(start)), batch.mask.sharding)
    settings = options.num_sweeps, options.sweep_tolerance
    found = _evaluate(
        problem.model, problem.structure, known[0], given.model, given.structure, known[1], names, *known[2:], batch, options.method, *settings
    )

    def wait() -> Found:
        point = found.climbed.values
        whole = _whole(given.model, given.hyper, point, batch) if options.method == "full" else float(found.correction)
        value = float(found.height) + whole + float(np.sum(theta))
        value = value if np.isfinite(value) else -np.inf
        host = [jax.tree.map(np.asarray, x) for x in (point, found.natural)]
        return Found(np.asarray(theta, float), value, host[0], host[1], int(found.climbed.number), bool(found.climbed.rested) and np.isfinite(value))

    return wait


# The mode over theta ----------------------------------------------------------------------------------------------------------------------


FIRST_SWEEPS = 100


@partial(jax.jit, static_argnames=("model", "structure", "summary", "names"))
def _first(model, structure, values, natural, batch, summary, names):
    """A point estimate of everything, the hyper-parameters included, by EM."""
    hyper, alone = obj.make(model, structure, values), dataclasses.replace(model, balance=None)
    start = {site: family.value(family.mean(natural[site])) for site, family in model.families.items()}
    fit = jax.lax.fori_loop(0, FIRST_SWEEPS, lambda i, x: ascent.sweep(alone, hyper, x, batch, summary, 0.0)[0], start)
    return jnp.stack([jnp.log(fit[name][0]) for name in names]) if names else jnp.zeros(0), fit


_start = jax.jit(lambda model, structure, values, key, data: model.init(key, obj.make(model, structure, values), data), static_argnums=(0, 1))


def first_theta(problem: obj.Problem, key: jax.Array, batch: Any, options: Any) -> tuple[np.ndarray, Sites]:
    """Where the search begins: a point estimate of everything, hyper-parameters included."""
    model, names = problem.model, names_of(problem)
    natural = _start(model, problem.structure, problem.values, key, batch)
    theta, fit = _first(model, problem.structure, problem.values, natural, batch, _summary(options.method), names)
    return np.clip(np.asarray(theta, float), -12, 12), {site: np.asarray(x) for site, x in fit.items() if site not in names}


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


def climb(values: list[float], widths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """From a stencil: the way to the top, at most 2 long; a standard deviation along each principal axis; widths for the next; whether the top is
    close, and the stencil narrow enough to tell."""
    gradient, hessian = quadratic(values, widths)
    curvature, axes = np.linalg.eigh(-hessian)
    scale = 1 / np.sqrt(np.maximum(curvature, FLATTEST))
    along = (axes.T @ gradient) * scale  # in standard deviations
    step = axes @ (along * scale)
    fitting = np.minimum(1 / np.sqrt(np.maximum(-np.diag(hessian), FLATTEST)), STENCIL)
    close = np.all(np.abs(along) < CLOSE) and np.all(widths <= WIDE * fitting)
    return step * min(1.0, 2 / max(float(np.linalg.norm(step)), 1e-300)), axes * scale, fitting, bool(close)


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
            raise Diverged("The rows' curvature is not positive anywhere that was tried: check the data, or use gibbs.")
        return state._replace(centre=best.theta, widths=0.5 * state.widths, queue=stencil(best.theta, 0.5 * state.widths))
    step, spread, widths, close = climb(values, state.widths)
    if close or len(state.found) >= STENCILS * number:
        return state._replace(spread=spread, steady=close)
    centre = state.centre + step
    return state._replace(centre=centre, widths=widths, queue=stencil(centre, widths))


def nearest(found: tuple[Found, ...], theta: np.ndarray) -> Found:
    """Of what was found, failed points last."""
    return min((one for one in found if np.isfinite(one.value)), default=found[0], key=lambda one: float(np.sum((one.theta - theta) ** 2)))


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
    values = {name: jnp.asarray(np.asarray(x), float) for name, x in problem.values.items()}
    return problem._replace(values=values), [problem.data.pack(device=device) for device in devices.mine(problem.devices)]


def as_asked(natural: Sites) -> Sites:
    """Numbers in the precision that the user has set."""
    return jax.tree.map(lambda x: x.astype(jnp.result_type(float)), natural)


def search(problem: obj.Problem, options: Any, copies: list[Any]) -> tuple[Any, Any]:
    """(init, step) of an engine that climbs log p~. A step tries all of the queue, spread over the devices' copies of the data."""
    size = len(names_of(problem))

    def init(key, given):
        centre, point = first_theta(problem, key, copies[0], options)
        widths = np.full(size, STENCIL)
        return State((), stencil(centre, widths) if size else (centre,), centre, widths, None, point)

    def step(key, state, batches):
        starts = [nearest(state.found, theta).point if state.found else state.start for theta in state.queue]
        places = zip(state.queue, starts, strict=True)
        waiting = [evaluate(problem, theta, start, copies[i % len(copies)], options) for i, (theta, start) in enumerate(places)]
        new = tuple(wait() for wait in waiting)
        state = advance(state._replace(found=(*state.found, *new), queue=()), size)
        best = max(one.value for one in new)
        return state, Info(
            best if np.isfinite(best) else None, sum(one.sweeps for one in new), np.mean([one.converged for one in new]), not state.queue
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
        warnings.warn("The search for the hyper-parameters' mode found no steady top: the rows may have several modes near by.", stacklevel=4)
    if cut:
        what = "The search for the hyper-parameters' mode" if state.spread is None else "The grid"
        warnings.warn(f"{what} was cut short after {len(state.found)} values: raise num_epochs.", stacklevel=4)


def build(problem: obj.Problem, options: Options) -> Algorithm:
    double, copies = in_double_precision(problem)
    init, step = search(double, options, copies)

    def posterior(state):
        best = max(state.found, key=lambda one: one.value)
        warn_of(state, bool(state.queue), [best], options)
        return Mixture(problem, names_of(problem), [best.theta], [as_asked(best.natural)], np.ones(1))

    return Algorithm(init, step, posterior)


ENGINE = Engine("laplace", Options, build, kind="mixture", rows="none", check=check, suits=suits)
