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

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import inference.map as map_
from inference import objective as obj
from inference.engine import Algorithm, Engine
from inference.posterior import Mixture, in_row_order
from pp_models import positive_normal as pos
from pp_models.base import Sites, choose_variant, joint, log_joint, split_hyper
from pp_models.errors import InputError, unknown
from pp_models.families import Pair

METHODS = ("log", "truncated", "paper", "full")
FAMILIES = ("normal", "normal_tied", "positive", "positive_tied")
MOST_COORDINATES = 4000  # for a whole Hessian


class Options(NamedTuple):
    """num_epochs: values of theta tried at most. method: see the module. num_sweeps: of coordinate ascent at each value, at most;

    sweep_tolerance: it rests when five of them gain fewer nats.
    """

    num_epochs: int = 60
    method: str = "log"
    num_sweeps: int = 2000
    sweep_tolerance: float = 1e-3


class Found(NamedTuple):
    """What is known at one value of theta."""

    theta: np.ndarray  # log theta
    value: float  # log p~(log theta | D), up to a constant
    point: Any  # of `map`: values of all sites, to begin the next value with
    natural: Sites  # of the rows' factors, (b, p) of positive coordinates or (P m, -P/2) of real rows
    sweeps: int
    converged: bool


class Info(NamedTuple):
    """log_marginal: log p~(log theta | D) up to a constant, at this step's theta. sweeps: of coordinate ascent there. converged: 1 if it rested."""

    log_marginal: Any
    sweeps: Any
    converged: Any
    finished: bool


class State(NamedTuple):
    """Values of theta tried so far, those still to try, and where the search is.

    centre:  the middle of the present stencil, None before the first
    spread:  once the search has ended, (d, d) columns: a standard deviation along each principal axis of log theta
    """

    found: tuple[Found, ...]
    queue: tuple[np.ndarray, ...]
    centre: np.ndarray | None
    spread: np.ndarray | None


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


@partial(jax.jit, static_argnames=("model", "structure", "volume"))
def _scalings(model, structure, values, shared, sums, volume):
    """c_k of every factor that maximises -(A c^2 + B / c^2) / 2 + lambda log c, its up-scaled sites times c and the others divided by it."""
    up, down = model.balance(obj.make(model, structure, values))
    norms = {**{site: jnp.sum(shared[site].first ** 2, 0) for site in shared if site in up}, **sums}
    a, b = (sum(precision * norms[site] for site, precision in side.items()) for side in (up, down))
    root = jnp.sqrt(volume**2 + 4 * a * b)
    w = jnp.where(volume >= 0, (volume + root) / (2 * a), 2 * b / (root - volume))
    return jnp.sqrt(jnp.where((a > 0) & (b > 0), w, 1.0))


@partial(jax.jit, static_argnames=("model", "sites"))
def _scale(model, stats, factor, sites):
    return {site: model.families[site].stats(t.first * factor) if site in sites else t for site, t in stats.items()}


def balanced(problem: obj.Problem, state: Any, method: str) -> Any:
    """The state with every factor scaled to the top of its line."""
    model = problem.model
    if model.balance is None:
        return state
    up, down = (tuple(side) for side in model.balance(problem.hyper))
    sums = {site: sum(jax.device_put(jnp.sum(part[site].first ** 2, 0), problem.devices[0]) for part in state.local) for site in down}
    size = {site: state.shared[site].first.shape[0] if site in state.shared else problem.data.num_rows for site in (*up, *down)}
    volume = sum(size[site] for site in up) - sum(size[site] for site in down) if method == "log" else 0
    factor = _scalings(model, problem.structure, problem.values, state.shared, sums, float(volume))
    shared = _scale(model, state.shared, factor, up)
    local = tuple(_scale(model, part, 1 / jax.device_put(factor, device), down) for part, device in zip(state.local, problem.devices, strict=False))
    return state._replace(shared=shared, local=local)


def find_mode(problem: obj.Problem, state: Any, batches: Any, options: Any, key: jax.Array) -> tuple[Any, int, bool]:
    """Coordinate ascent from the given state, or afresh, until the objective rests. Returns the state, the sweeps and whether it rested."""
    basis = "log" if options.method == "log" else "identity"
    algorithm = map_.build(problem, map_.Options(basis=basis, num_local=5))
    state = algorithm.init(key, {}) if state is None else state
    before = -np.inf
    for sweep in range(1, options.num_sweeps + 1):
        state, info = algorithm.step(key, state, batches)
        state = balanced(problem, state, options.method)
        if sweep % 5 == 0:  # looking waits for the devices
            now = sum(float(term) for term in jax.tree.leaves(info.bound))
            if abs(now - before) <= max(options.sweep_tolerance, 4 * np.finfo(jnp.result_type(float)).eps * abs(now)):
                return state, sweep, True
            before = now
    return state, options.num_sweeps, False


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


def _normal_integral(g, P, shifted):
    """sum over rows of log int exp(g'y - y'P y / 2) dy."""
    num_rows, size = g.shape
    factor = jnp.linalg.cholesky(P)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=1, axis2=2))) * (num_rows / len(P))
    half = jax.scipy.linalg.solve_triangular(jnp.broadcast_to(factor, (num_rows, size, size)), g[..., None], lower=True) if shifted else jnp.zeros(())
    return 0.5 * (num_rows * size * jnp.log(2 * jnp.pi) - log_det + jnp.sum(half**2))


@partial(jax.jit, static_argnames=("model", "structure", "method"))
def _factors(model, structure, values, stats, batch, method):
    """-log p_G(x) of all rows' factors, and their natural parameters."""
    hyper = obj.make(model, structure, values)
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
            total += jnp.sum(pos.moments(g + p * x, p).log_z - g * x - 0.5 * p * x**2)
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


def together(problem: obj.Problem, state: Any) -> Sites:
    """Statistics of all sites, rows in the order of the data, on the first device."""
    rows = in_row_order(state.local, state.positions, problem.data.num_rows)
    return jax.device_put({**jax.tree.map(jnp.asarray, rows), **state.shared}, problem.devices[0])


def _values(problem: obj.Problem, state: Any) -> Any:
    """A state of `map` with values for statistics: a K-th of the memory."""
    families = problem.model.families

    def values(sites):
        return {site: families[site].value(t) for site, t in sites.items()}

    return state._replace(shared=values(state.shared), local=tuple(values(part) for part in state.local))


@partial(jax.jit, static_argnames=("model",))
def _stats(model, values):
    return {site: model.families[site].stats(x) for site, x in values.items()}


def evaluate(problem: obj.Problem, theta: np.ndarray, point: Any, batches: Any, batch: Any, options: Any, key: jax.Array) -> Found:
    """log p~(log theta | D) and the factors there, from a state of `map` with values for statistics, or afresh."""
    given = fixed(problem, theta)
    model = given.model
    begin = None
    if point is not None:
        begin = point._replace(shared=_stats(model, point.shared), local=tuple(_stats(model, part) for part in point.local))
    state, sweeps, converged = find_mode(given, begin, batches, options, key)
    stats = together(given, state)
    values = {site: model.families[site].value(t) for site, t in stats.items()}
    correction, natural = _factors(model, given.structure, given.values, stats, batch, options.method)
    if options.method == "full":
        correction = _whole(model, given.hyper, values, batch)
    known = {name: jnp.exp(jnp.asarray([x], float)) for name, x in zip(names_of(problem), theta, strict=True)}
    terms = _log_joint(problem.model, problem.structure, problem.values, {**values, **known}, batch), correction
    value = sum(float(term) for term in terms) + float(np.sum(theta))
    return Found(np.asarray(theta, float), value, _values(given, state), jax.tree.map(np.asarray, natural), sweeps, converged)


@partial(jax.jit, static_argnames=("model", "structure"))
def _log_joint(model, structure, values, sites, batch):
    return log_joint(model, obj.make(model, structure, values), sites, batch)


# The mode over theta ----------------------------------------------------------------------------------------------------------------------


def first_theta(problem: obj.Problem, key: jax.Array, options: Any, batches: Any) -> tuple[np.ndarray, Any]:
    """Where the search begins: a point estimate of everything, hyper-parameters included."""
    names = names_of(problem)
    algorithm = map_.build(problem, map_.Options(basis="log" if options.method == "log" else "identity", num_local=5))
    state = algorithm.init(key, {})
    for _ in range(30):
        state, _ = algorithm.step(key, state, batches)
    values = _values(problem, state)
    theta = np.array([float(np.log(values.shared[name][0])) for name in names])
    return np.clip(theta, -12, 12), values._replace(shared={site: x for site, x in values.shared.items() if site not in names})


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
    if state.spread is not None or size == 0:
        return state._replace(spread=np.zeros((0, 0))) if size == 0 else state
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
    batch = problem.data.pack(device=problem.devices[0])
    start: dict[str, Any] = {}

    def init(key, given):
        return State((), (), None, None)

    def step(key, state, batches):
        if state.centre is None:
            if size:
                centre, start["point"] = first_theta(problem, key, options, batches)
                state = state._replace(centre=centre, queue=stencil(centre))
            else:
                state = state._replace(centre=np.zeros(0), queue=(np.zeros(0),))
        theta, rest = state.queue[0], state.queue[1:]
        point = nearest(state.found, theta).point if state.found else start.get("point")
        one = evaluate(problem, theta, point, batches, batch, options, key)
        state = state._replace(found=(*state.found, one), queue=rest)
        if not state.queue:
            state = advance(state, size)
            if state.spread is not None and more is not None:
                state = more(state)
        return state, Info(one.value, one.sweeps, float(one.converged), not state.queue)

    return init, step


def build(problem: obj.Problem, options: Options) -> Algorithm:
    init, step = search(problem, options)

    def posterior(state):
        best = max(state.found, key=lambda one: one.value)
        return Mixture(problem, names_of(problem), [best.theta], [best.natural], np.ones(1))

    return Algorithm(init, step, posterior)


ENGINE = Engine("laplace", Options, build, kind="mixture", check=check, suits=suits)
