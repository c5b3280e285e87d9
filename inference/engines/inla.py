"""The hyper-parameters' posterior on a grid, the rows by Laplace at each of its points (H 3.3-3.4; Rue et al. 2009).

The mode of log p~(log theta | D) and its Hessian are found as in `laplace`. In principal axes z, log theta = mode + spread z, points lie `spacing`
apart on a line or in a plane and are added outwards from the mode until the outermost have a weight below 1e-3 of the largest:

    w_m = Delta_m p~(theta_m | D) / sum,     p(. | D) = sum_m w_m p(. | theta_m, D)                                                  H(13)

All cells Delta_m are alike in log theta; in theta they are theta_m times as wide and the density there is as many times lower, so the weights are the
same. Every point begins where its nearest neighbour ended, which takes a few sweeps instead of hundreds.

Laplace's p~ is right where there is signal and rows are not far from normal. At its mode it is compared with mean-field inference; where they
disagree, as without signal, or on votes that can be told apart without error, p is integrated along slopes instead (`path`), and a warning says so.
"""

import functools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import devices
from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DASHED, Algorithm, Engine, Look
from inference.core.posteriors import Mixture
from inference.engines import _gibbs_sweep as gibbs
from inference.engines import _laplace as laplace
from inference.engines import _mode_search as search_
from inference.engines import _path as path
from inference.engines._laplace import METHODS
from pp_models.errors import InputError

SMALLEST = 1e-3  # of the largest weight: the grid ends where weights are below
APART = 0.3  # posterior standard deviations between Laplace's mode and mean-field inference above which neither is trusted
FURTHEST = 5.0  # standard deviations from the top to which a surface of slopes is followed
ROUNDS = 4  # in search of the mode along slopes, at most


Options = opt.compose(
    opt.marginal(METHODS),
    weights=opt.Option(
        "auto",
        'of the grid: "laplace", "path" (slopes by short Gibbs runs), or "auto": the first, and '
        'with a warning the second where method "log" and mean-field inference disagree',
        choices=("auto", "laplace", "path"),
    ),
    path_sweeps=opt.Option(500, "of each of those runs"),
    spacing=opt.Option(1.0, "of the grid, in standard deviations"),
)


class State(NamedTuple):
    """search: as of `laplace`, its queue the grid's. checked: whether weights have been chosen.

    slopes: of the last round; round: how many there were; surface: what they add up to. finished: whether nothing is left to do.
    """

    search: search_.State
    checked: bool = False
    slopes: tuple[path.Slope, ...] = ()
    round: int = 0
    surface: path.Surface | None = None
    finished: bool = False


def check(options: Any) -> None:
    if not 0 < options.spacing <= 2:
        raise InputError(
            f"spacing must be above 0 and at most 2 standard deviations, not {options.spacing}."
        )


def place(state: search_.State, spacing: float, cell: tuple[int, ...]) -> np.ndarray:
    """log theta of a grid point."""
    return state.centre + state.spread @ (spacing * np.array(cell, float))


def cell_of(state: search_.State, spacing: float, theta: np.ndarray) -> tuple[int, ...] | None:
    """The grid point at log theta, or None where there is none."""
    z = np.linalg.solve(state.spread, theta - state.centre) / spacing
    return tuple(int(i) for i in np.round(z)) if np.all(np.abs(z - np.round(z)) < 1e-6) else None


def on_grid(state: search_.State, spacing: float) -> dict[tuple[int, ...], laplace.Found]:
    cells = ((cell_of(state, spacing, one.theta), one) for one in state.found)
    return {cell: one for cell, one in cells if cell is not None}


def height_of(one: laplace.Found, surface: path.Surface | None) -> float:
    """log p~ of a grid point: Laplace's, or the surface's."""
    return (
        one.value
        if surface is None or not np.isfinite(one.value)
        else float(surface.height(one.theta))
    )


def grow(
    state: search_.State, spacing: float, surface: path.Surface | None = None
) -> search_.State:
    """The neighbours, not tried yet, of all grid points whose weight is not small."""
    known = on_grid(state, spacing)
    size = len(state.centre)
    if not known:
        return state._replace(queue=(state.centre,))
    heights = {cell: height_of(one, surface) for cell, one in known.items()}
    heavy = [
        cell
        for cell, height in heights.items()
        if height > max(heights.values()) + np.log(SMALLEST)
    ]
    around = {
        tuple(np.array(cell) + sign * np.eye(size, dtype=int)[i])
        for cell in heavy
        for i in range(size)
        for sign in (1, -1)
    }
    if surface is not None:  # beyond, slopes know nothing
        around = {
            cell for cell in around if spacing * np.sqrt(sum(i * i for i in cell)) <= FURTHEST
        }
    fresh = sorted(around - set(known), key=lambda cell: sum(i * i for i in cell))
    return state._replace(queue=tuple(place(state, spacing, cell) for cell in fresh))


def disagreement(problem: obj.Problem, search: search_.State, batch: Any) -> np.ndarray:
    """How far mean-field inference from the mode is off it along each hyper-parameter, in standard deviations there."""
    names = laplace.names_of(problem)
    best = search_.nearest(search.found, search.centre)
    start = {
        **best.point,
        **{name: np.exp(search.centre[[i]]).astype(np.float64) for i, name in enumerate(names)},
    }
    known = jax.device_put(
        jax.tree.map(lambda x: jnp.asarray(x, float), start), batch.mask.sharding
    )
    mean = path.mean_field(problem.model, problem.hyper, known, batch, names)
    return (np.asarray(mean, float) - search.centre) / np.sqrt(np.sum(search.spread**2, 1))


def wants_path(problem: obj.Problem, search: search_.State, batch: Any, options: Any) -> bool:
    """Whether weights are to be integrated along slopes, with a warning where that was not asked for."""
    if options.weights != "auto" or options.method != "log" or gibbs.suits(problem.model):
        return options.weights == "path"
    apart = disagreement(problem, search, batch)
    if search.steady and np.all(np.abs(apart) <= APART):
        return False
    named = zip(laplace.names_of(problem), apart, strict=True)
    said = " and ".join(
        f"{name} by {abs(x):.1f} posterior standard deviations"
        for name, x in named
        if abs(x) > APART
    )
    reason = (
        f"Laplace's approximation and mean-field inference disagree on {said}"
        if said
        else "Laplace's approximation has no steady mode"
    )
    warnings.warn(
        f"{reason}: weights are integrated along short Gibbs runs (weights='path'; 'laplace' keeps its own).",
        stacklevel=6,
    )
    return True


def follow(
    problem: obj.Problem, state: State, key: jax.Array, copies: list[Any], options: Any
) -> State:
    """One round of slopes about the centre; then the centre is moved, or, at the mode, slopes are taken further out and their surface is known.

    Runs are in the user's precision: their noise is far above rounding.
    """
    search, names = state.search, laplace.names_of(problem)
    moved = (
        [path.fit_surface(search.centre, search.spread, list(state.slopes), 2).top()]
        if state.slopes
        else []
    )
    centre, spread = moved[0] if moved else (search.centre, search.spread)
    step = (
        np.linalg.solve(search.spread, centre - search.centre)
        if moved
        else np.full(len(centre), np.inf)
    )
    last = bool(np.max(np.abs(step)) < 0.5) or state.round == ROUNDS
    places = path.design(centre, spread, last)

    def start(theta):
        near = min(
            state.slopes, key=lambda one: float(np.sum((one.theta - theta) ** 2)), default=None
        )
        return search_.nearest(search.found, theta).point if near is None else near.values

    waiting = [
        path.run(
            problem,
            laplace.fixed(problem, theta),
            names,
            theta,
            jax.random.fold_in(key, i),
            start(theta),
            copies[i % len(copies)],
            options.path_sweeps,
        )
        for i, theta in enumerate(places)
    ]
    new = tuple(wait() for wait in waiting)
    search = search._replace(centre=centre, spread=spread, queue=())
    if not last:
        return state._replace(search=search, slopes=new, round=state.round + 1)
    surface, top, spread = path.weigh(
        centre, spread, [*new, *(state.slopes if state.round > 1 else ())]
    )  # the first runs had far to come
    search = search._replace(centre=top, spread=spread, steady=bool(np.max(np.abs(step)) < 1.0))
    return state._replace(
        search=grow(search, options.spacing, surface),
        slopes=new,
        round=state.round + 1,
        surface=surface,
    )


def build(problem: obj.Problem, options: Any) -> Algorithm:
    names = laplace.names_of(problem)
    if not 1 <= len(names) <= 2:
        able = " and ".join(problem.model.marginal.gridded) or "none"
        raise InputError(
            f"inla puts one or two hyper-parameters on a grid, but {len(names)} of {problem.model.name} are unknown "
            f"(it can grid: {able}): leave them out of hyper to have them gridded, or use laplace or map."
        )
    if options.weights == "path" and (reason := gibbs.suits(problem.model)):
        raise InputError(f"weights='path' needs Gibbs sampling: {reason}")
    double, copies = search_.in_double_precision(problem)
    first, climb = search_.search(double, options, copies)

    def init(key, given):
        return State(first(key, given))

    @functools.cache
    def plain_copies():
        return [problem.data.pack(device=device) for device in devices.mine(problem.devices)]

    def step(key, state, batches):
        info = search_.Info(None, 0, 1.0, False)
        if state.search.spread is None or state.search.queue:
            search, info = climb(key, state.search, batches)
            if search.spread is not None and state.checked and not search.queue:
                search = grow(search, options.spacing, state.surface)
            state = state._replace(search=search, finished=state.checked and not search.queue)
        elif not state.checked:
            along = search_.doubled(wants_path)(double, state.search, copies[0], options)
            search = state.search if along else grow(state.search, options.spacing)
            state = state._replace(
                search=search, checked=True, finished=not along and not search.queue
            )
        else:
            state = follow(problem, state, key, plain_copies(), options)
            state = state._replace(finished=state.surface is not None and not state.search.queue)
            info = info._replace(sweeps=len(state.slopes) * options.path_sweeps)
        return state, info._replace(finished=state.finished)

    def posterior(state):
        known = on_grid(state.search, options.spacing) if state.search.spread is not None else {}
        found = list(known.values()) or [max(state.search.found, key=lambda one: one.value)]
        values = np.array([height_of(one, state.surface) for one in found])
        weights = np.exp(values - values.max())
        weights /= weights.sum()
        search_.warn_of(
            state.search,
            not state.finished,
            [one for one, weight in zip(found, weights, strict=True) if weight > SMALLEST],
            options,
        )
        cell = (
            np.nan
            if state.search.spread is None
            else np.log(abs(np.linalg.det(options.spacing * state.search.spread)))
        )
        evidence = (
            float(values.max() + np.log(np.sum(np.exp(values - values.max()))) + cell)
            if state.surface is None
            else np.nan
        )
        return Mixture(
            problem,
            names,
            [one.theta for one in found],
            [search_.as_asked(one.natural) for one in found],
            weights,
            evidence,
        )

    return Algorithm(init, step, posterior)


def suits(model: Any) -> str:
    if not model.marginal.gridded:
        return f"inla puts hyper-parameters on a grid, and {model.name} declares none that may be: use laplace, cavi or gibbs."
    return laplace.suits(model)


ENGINE = Engine(
    "inla",
    Options,
    build,
    kind="mixture",
    rows="none",
    check=check,
    suits=suits,
    compared=True,
    is_quick=True,
    quick={"num_sweeps": 500, "weights": "laplace"},
    calibrated={"weights": "laplace"},
    tiny={"num_sweeps": 30, "num_epochs": 12, "weights": "laplace"},
    look=Look("wine", DASHED, "star"),
)
