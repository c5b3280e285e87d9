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
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from inference import objective as obj
from inference.engine import Algorithm, Engine
from inference.posterior import Mixture
from pp_models import families as fam
from pp_models import positive_normal as pos
from pp_models.base import Sites, choose_variant, joint, log_joint, split_hyper
from pp_models.eliminate import RowOptions
from pp_models.errors import InputError, unknown
from pp_models.families import Pair

METHODS = ("log", "truncated", "paper", "full")
FAMILIES = ("normal", "normal_tied", "positive", "positive_tied")
MOST_COORDINATES = 4000  # for a whole Hessian


class Options(NamedTuple):
    """num_epochs: steps at most, each of which tries as many theta as there are devices. method: see the module.

    num_sweeps: of coordinate ascent at each value, at most. sweep_tolerance: it rests when three of them gain fewer nats.
    """

    num_epochs: int = 60
    method: str = "log"
    num_sweeps: int = 2000
    sweep_tolerance: float = 1e-3


class Found(NamedTuple):
    """What is known at one value of theta."""

    theta: np.ndarray  # log theta
    value: float  # log p~(log theta | D), up to a constant
    point: Sites  # x*, to begin the next value with
    natural: Sites  # of the rows' factors, (b, p) of positive coordinates or (P m, -P/2) of real rows
    sweeps: int
    converged: bool


class Info(NamedTuple):
    """log_marginal: the best log p~(log theta | D) of this step, which tries as many theta as there are devices, up to a constant.

    sweeps: of coordinate ascent there. converged: the share of them that came to rest.
    """

    log_marginal: Any
    sweeps: Any
    converged: Any
    finished: bool


class State(NamedTuple):
    """Values of theta tried so far, those still to try, and where the search is.

    centre:  the middle of the present stencil
    spread:  once the search has ended, (d, d) columns: a standard deviation along each principal axis of log theta
    start:   values of the sites to begin with
    """

    found: tuple[Found, ...]
    queue: tuple[np.ndarray, ...]
    centre: Any
    spread: Any
    start: Sites


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


# The mode of the rows -------------------------------------------------------------------------------------------------------------------


def balanced(model, hyper, values, log_space: bool) -> Sites:
    """Every factor of a product scaled against the other to the top of its line: c_k maximises -(A c^2 + B / c^2) / 2 + lambda log c.

    A and B are the priors' squares of the sites to be multiplied and divided by c; lambda is their difference in rows in log space, and else 0.
    """
    if model.balance is None:
        return values
    up, down = model.balance(hyper)
    a, b = (sum(precision * jnp.sum(values[site] ** 2, 0) for site, precision in side.items()) for side in (up, down))
    volume = float(sum(len(values[site]) for site in up) - sum(len(values[site]) for site in down)) if log_space else 0.0
    root = jnp.sqrt(volume**2 + 4 * a * b)
    w = (volume + root) / (2 * a) if volume >= 0 else 2 * b / (root - volume)
    c = jnp.sqrt(jnp.where((a > 0) & (b > 0), w, 1.0))
    return {site: x * c if site in up else x / c if site in down else x for site, x in values.items()}


def sweep(model, hyper, values, batch, summary) -> tuple[Sites, jax.Array]:
    """One pass of coordinate ascent over all sites, then their balance; and the objective after the rows' part of it."""
    families = model.families
    stats = {site: families[site].stats(x) for site, x in values.items()}
    shared = {site: stats[site] for site in model.shared}
    part = obj.local_part(model, hyper, shared, batch, {site: stats[site] for site in model.local}, RowOptions(5, 0.0), summary)
    height = part.value + part.entropy + model.log_global(hyper, shared)
    height += sum((jnp.sum(fam.log_measure(families[site], shared[site], summary)) for site in shared), jnp.zeros(()))
    for site in model.shared:
        target = obj.add(obj.prior_gradient(model, hyper, shared)[site], part.gradient[site])
        shared[site] = fam.summarise(families[site], target, summary, shared[site])
    new = {site: families[site].value(t) for site, t in {**shared, **part.stats}.items()}
    return balanced(model, hyper, new, summary == "log_mode"), height


LEAPS = 100.0  # sweeps that an extrapolation may stand for, at most


@partial(jax.jit, static_argnames=("model", "structure", "summary"))
def ascend(model, structure, values, start, batch, summary, most, tolerance):
    """Coordinate ascent until three sweeps gain less than the tolerance, each three extrapolated (SQUAREM, Varadhan & Roland 2008).

    Returns the values, the sweeps and whether it came to rest. An extrapolation that lands lower is not taken.
    """
    hyper = obj.make(model, structure, values)
    positive = {site for site, family in model.families.items() if family.settles} if summary == "log_mode" else set()
    tiny = jnp.finfo(jnp.result_type(float)).tiny

    def inward(x):
        return {site: jnp.log(jnp.maximum(v, tiny)) if site in positive else v for site, v in x.items()}

    def outward(u):
        out = {site: jnp.exp(v) if site in positive else v for site, v in u.items()}
        return {site: jnp.maximum(v, 0) if model.families[site].settles else v for site, v in out.items()}

    def size(u):
        return jnp.sqrt(sum(jnp.sum(v**2) for v in u.values()))

    def three(carry):
        number, x0, before, _ = carry
        x1, _ = sweep(model, hyper, x0, batch, summary)
        x2, here = sweep(model, hyper, x1, batch, summary)
        u0, u1, u2 = (inward(x) for x in (x0, x1, x2))
        r = {site: u1[site] - u0[site] for site in u0}
        v = {site: u2[site] - u1[site] - r[site] for site in u0}
        length = jnp.clip(size(r) / jnp.maximum(size(v), tiny), 1.0, LEAPS)
        far = outward({site: u0[site] + 2 * length * r[site] + length**2 * v[site] for site in u0})
        x3, there = sweep(model, hyper, far, batch, summary)
        good = jnp.isfinite(there) & (there >= here)
        new = {site: jnp.where(good, x3[site], x2[site]) for site in x2}
        now = jnp.where(good, there, here)
        rested = (number > 0) & (jnp.abs(now - before) <= jnp.maximum(tolerance, 4 * jnp.finfo(now.dtype).eps * jnp.abs(now)))
        return number + 3, new, now, rested

    low = jnp.asarray(-jnp.inf, jnp.result_type(float))
    begin = (0, start, low, jnp.asarray(False))
    number, x, _, rested = jax.lax.while_loop(lambda carry: (carry[0] < most) & ~carry[3], three, begin)
    return x, number, rested


def _summary(options: Any) -> str:
    return "log_mode" if options.method == "log" else "mode"


# log p~ at one value of theta -----------------------------------------------------------------------------------------------------------


def _beyond_linear(model, hyper, stats, batch, site):
    """(rows, K, K) second derivatives of F with respect to a site's first statistic: what eliminated auxiliaries bend. Rows do not meet."""

    def slope(first):
        return jax.grad(lambda x: joint(model, hyper, {**stats, site: Pair(x, stats[site].second)}, batch))(first)

    x = stats[site].first
    columns = jax.lax.map(lambda e: jax.jvp(slope, (x,), (jnp.broadcast_to(e, x.shape),))[1], jnp.eye(x.shape[1], dtype=x.dtype))
    return jnp.moveaxis(columns, 0, 2)


def curvatures(model, hyper, stats, batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Site -> (g, P): the gradient of log p(x, D | theta) in x, (rows, K), and minus its Hessian in each row, (rows or 1, K, K)."""
    gradient = jax.grad(lambda t: joint(model, hyper, t, batch))(stats)
    found = {}
    for site in model.families:
        x, linear = stats[site].first, -2 * gradient[site].second
        applied = x @ linear[0] if len(linear) == 1 else (linear @ x[..., None])[..., 0]
        bent = linear - _beyond_linear(model, hyper, stats, batch, site) if site in model.curved else linear
        found[site] = (gradient[site].first - applied, bent)
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


@partial(jax.jit, static_argnames=("model", "structure", "method"))
def _factors(model, structure, values, point, batch, method):
    """-log p_G(x) of all rows' factors, and their natural parameters."""
    hyper = obj.make(model, structure, values)
    stats = {site: model.families[site].stats(x) for site, x in point.items()}
    total, natural = jnp.zeros(()), {}
    for site, (g, P) in curvatures(model, hyper, stats, batch).items():
        x = stats[site].first
        if model.families[site].settles:
            p = jnp.broadcast_to(jnp.diagonal(P, axis1=1, axis2=2), x.shape)
            natural[site] = Pair(g + p * x, p)
        else:
            applied = x @ P[0] if len(P) == 1 else (P @ x[..., None])[..., 0]
            natural[site] = Pair(g + applied, -0.5 * P)
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


def evaluate(problem: obj.Problem, theta: np.ndarray, start: Sites, batch: Any, options: Any) -> Any:
    """log p~(log theta | D) and the factors there, found from the given values: a function that waits for them, so that devices work side by side."""
    given = fixed(problem, theta)
    device = batch.mask.sharding
    known = jax.device_put((given.values, problem.values, dict(start)), device)
    found, sweeps, converged = ascend(
        given.model, given.structure, known[0], known[2], batch, _summary(options), options.num_sweeps, options.sweep_tolerance
    )
    correction, natural = _factors(given.model, given.structure, known[0], found, batch, options.method)
    sites = {**found, **{name: jax.device_put(jnp.exp(jnp.asarray([x], float)), device) for name, x in zip(names_of(problem), theta, strict=True)}}
    height = _log_joint(problem.model, problem.structure, known[1], sites, batch)

    def wait() -> Found:
        whole = _whole(given.model, given.hyper, found, batch) if options.method == "full" else float(correction)
        value = float(height) + whole + float(np.sum(theta))
        return Found(
            np.asarray(theta, float), value, jax.tree.map(np.asarray, found), jax.tree.map(np.asarray, natural), int(sweeps), bool(converged)
        )

    return wait


@partial(jax.jit, static_argnames=("model", "structure"))
def _log_joint(model, structure, values, sites, batch):
    return log_joint(model, obj.make(model, structure, values), sites, batch)


# The mode over theta ----------------------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("model", "structure", "summary", "names"))
def _first(model, structure, values, start, batch, summary, names):
    hyper = obj.make(model, structure, values)
    fit = jax.lax.fori_loop(0, 100, lambda i, x: sweep(dataclasses.replace(model, balance=None), hyper, x, batch, summary)[0], start)
    return jnp.stack([jnp.log(fit[name][0]) for name in names]) if names else jnp.zeros(0), fit


def first_theta(problem: obj.Problem, key: jax.Array, batch: Any, options: Any) -> tuple[np.ndarray, Sites]:
    """Where the search begins: a point estimate of everything, hyper-parameters included."""
    model, names = problem.model, names_of(problem)
    natural = model.init(key, problem.hyper, problem.data)
    start = {site: family.value(fam.summarise(family, natural[site], "mean")) for site, family in model.families.items()}
    theta, fit = _first(model, problem.structure, problem.values, start, batch, _summary(options), names)
    return np.clip(np.asarray(theta, float), -12, 12), {site: np.asarray(x) for site, x in fit.items() if site not in names}


STENCIL = 0.25  # of log theta, for differences
CLOSE = 0.1  # standard deviations from the top at which the search ends


def stencil(centre: np.ndarray) -> tuple[np.ndarray, ...]:
    """The centre, its neighbours along the axes, and in two dimensions the corners that tell the mixed derivative."""
    size = len(centre)
    steps = [np.zeros(size)] + [sign * STENCIL * np.eye(size)[i] for i in range(size) for sign in (1, -1)]
    if size == 2:
        steps += [STENCIL * np.array(corner) for corner in ((1, 1), (-1, -1))]
    return tuple(centre + step for step in steps)


def quadratic(values: list[float], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian from the values on a stencil."""
    centre = values[0]
    gradient = np.array([(values[1 + 2 * i] - values[2 + 2 * i]) / (2 * STENCIL) for i in range(size)])
    hessian = np.diag([(values[1 + 2 * i] + values[2 + 2 * i] - 2 * centre) / STENCIL**2 for i in range(size)])
    if size == 2:
        both = (values[5] + values[6] - 2 * centre) / STENCIL**2
        hessian[0, 1] = hessian[1, 0] = 0.5 * (both - hessian[0, 0] - hessian[1, 1])
    return gradient, hessian


FLATTEST = 0.02  # curvature of log p~ below which an axis counts as flat: a standard deviation of 7


def climb(values: list[float], size: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """From a stencil: the way to the top, at most 2 long; a standard deviation along each principal axis; whether the top is close."""
    gradient, hessian = quadratic(values, size)
    curvature, axes = np.linalg.eigh(-hessian)
    scale = 1 / np.sqrt(np.maximum(curvature, FLATTEST))
    along = (axes.T @ gradient) * scale  # in standard deviations
    step = axes @ (along * scale)
    return step * min(1.0, 2 / max(float(np.linalg.norm(step)), 1e-300)), axes * scale, bool(np.all(np.abs(along) < CLOSE))


def advance(state: State, size: int) -> State:
    """What to try next, once the queue is empty: nothing when the search has ended."""
    if size == 0:
        return state._replace(spread=np.zeros((0, 0)))
    if state.spread is not None:
        return state
    number = len(stencil(np.zeros(size)))
    step, spread, close = climb([one.value for one in state.found[-number:]], size)
    if close:
        return state._replace(spread=spread)
    centre = state.centre + step
    return state._replace(centre=centre, queue=stencil(centre))


def nearest(found: tuple[Found, ...], theta: np.ndarray) -> Found:
    return min(found, key=lambda one: float(np.sum((one.theta - theta) ** 2)))


def search(problem: obj.Problem, options: Any, more: Any = None) -> tuple[Any, Any]:
    """(init, step) of an engine that climbs log p~ and then asks `more` (state) -> state for what else to try."""
    size = len(names_of(problem))
    copies = [problem.data.pack(device=device) for device in problem.devices]

    def init(key, given):
        centre, point = first_theta(problem, key, copies[0], options)
        return State((), stencil(centre) if size else (centre,), centre, None, point)

    def step(key, state, batches):
        now, rest = state.queue[: len(copies)], state.queue[len(copies) :]
        starts = [nearest(state.found, theta).point if state.found else state.start for theta in now]
        waiting = [evaluate(problem, *each, options) for each in zip(now, starts, copies, strict=False)]
        new = tuple(wait() for wait in waiting)
        state = state._replace(found=(*state.found, *new), queue=rest)
        if not state.queue:
            state = advance(state, size)
            if state.spread is not None and more is not None:
                state = more(state)
        best = max(one.value for one in new)
        return state, Info(best, sum(one.sweeps for one in new), np.mean([one.converged for one in new]), not state.queue)

    return init, step


ENOUGH = 0.05  # nats: rounding of log p~ that weights can bear


def warn_of(state: State, used: list[Found], options: Any) -> None:
    """Say what the result must not hide: values of theta at which the rows did not rest, a search or grid cut short, and rounding."""
    unrested = sum(not one.converged for one in used)
    if unrested:
        warnings.warn(
            f"Coordinate ascent did not come to rest in {options.num_sweeps} sweeps at {unrested} of {len(used)} values of the hyper-parameters: "
            "raise num_sweeps.",
            stacklevel=4,
        )
    if state.queue:
        what = "The search for the hyper-parameters' mode" if state.spread is None else "The grid"
        warnings.warn(f"{what} was cut short after {len(state.found)} values: raise num_epochs.", stacklevel=4)
    rounding = float(np.finfo(jnp.result_type(float)).eps) * max(abs(one.value) for one in used)
    if rounding > ENOUGH:
        warnings.warn(
            f"Single precision knows the marginal likelihood to {rounding:.1g} nats only: call jax.config.update('jax_enable_x64', True) first.",
            stacklevel=4,
        )


def build(problem: obj.Problem, options: Options) -> Algorithm:
    init, step = search(problem, options)

    def posterior(state):
        best = max(state.found, key=lambda one: one.value)
        warn_of(state, [best], options)
        return Mixture(problem, names_of(problem), [best.theta], [best.natural], np.ones(1))

    return Algorithm(init, step, posterior)


ENGINE = Engine("laplace", Options, build, kind="mixture", rows="none", check=check, suits=suits)
