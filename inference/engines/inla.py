r"""Integrated nested Laplace approximation (Rue et al. 2009). It puts hyper-parameters on a grid
and approximates the rows by Laplace's method at each point.

$$ p(\cdot \mid D) = \sum_m w_m \, p(\cdot \mid \theta_m, D), \qquad
w_m \propto \Delta_m \, \tilde p(\theta_m \mid D) $$

This is equation (13), sections 3.3–3.4 of Hu et al. The mode and Hessian of
$\log \tilde p(\log \theta \mid D)$ are found as in `laplace`. The grid lies along the principal
axes of $\log \theta$, with points `spacing` apart, and grows
from the mode until the outermost weights are below $10^{-3}$ of the largest. All cells $\Delta_m$
are equal in $\log \theta$. Every point begins where its nearest neighbour ended, which takes a few
sweeps instead of hundreds.

Use it for the posterior of one or two hyper-parameters of a latent Gaussian model. Leave them out
of `hyper` to have them gridded.

Laplace's weights are right if there is signal and rows are not far from normal. With
`weights="auto"` their mode is compared with mean-field inference. If they disagree, as without
signal or on votes that can be separated without error, $p$ is integrated along its slopes by short
Gibbs runs instead, which is slow, and a warning says so.
"""

import functools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from inference.core import devices
from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DASHED, Algorithm, Engine, Look
from inference.core.posteriors import Mixture
from inference.engines import _gibbs_sweep as gibbs
from inference.engines import _laplace as laplace
from inference.engines import _mode_search as search_
from inference.engines import _path as path
from pp_models.errors import InputError

SMALLEST = 1e-3  # the grid ends at weights below this share of the largest
APART = 0.3  # posterior sds between Laplace's mode and mean-field inference that are tolerated
FURTHEST = 5.0  # sds from the top to which a surface of slopes is followed
ROUNDS = 4  # at most this many rounds of slopes in search of the mode

Options = opt.compose(
    opt.marginal(laplace.METHODS),
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
    """The search, whose queue is later that of the grid, and the slopes.

    checked: whether the kind of weights has been chosen
    slopes:  those of the last round. round: number of rounds. surface: fitted to the slopes
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


def on_grid(state: search_.State, spacing: float) -> dict[tuple[int, ...], laplace.Found]:
    """Grid cell -> the approximation there. Values of theta off the grid are left out."""
    found = {}
    for one in state.found:
        z = np.linalg.solve(state.spread, one.theta - state.centre) / spacing
        if np.all(np.abs(z - np.round(z)) < 1e-6):
            found[tuple(int(i) for i in np.round(z))] = one
    return found


def height_of(one: laplace.Found, surface: path.Surface | None) -> float:
    """log p~ of a grid point: Laplace's, or that of the surface."""
    if surface is None or not np.isfinite(one.value):
        return one.value
    return float(surface.height(one.theta))


def grow(
    state: search_.State, spacing: float, surface: path.Surface | None = None
) -> search_.State:
    """Queue the new neighbours of all grid points whose weight is not small."""
    known = on_grid(state, spacing)
    if not known:
        return state._replace(queue=(state.centre,))
    heights = {cell: height_of(one, surface) for cell, one in known.items()}
    least = max(heights.values()) + np.log(SMALLEST)
    steps = np.eye(len(state.centre), dtype=int)
    heavy = [np.array(cell) for cell, height in heights.items() if height > least]
    around = {tuple(cell + sign * step) for cell in heavy for step in steps for sign in (1, -1)}
    if surface is not None:  # slopes say nothing further out
        around = {cell for cell in around if spacing * np.linalg.norm(cell) <= FURTHEST}
    fresh = sorted(around - set(known), key=lambda cell: sum(i * i for i in cell))
    places = (state.centre + state.spread @ (spacing * np.array(cell, float)) for cell in fresh)
    return state._replace(queue=tuple(places))


def disagreement(problem: obj.Problem, search: search_.State, batch: Any) -> np.ndarray:
    """Distance of mean-field inference from the mode along each hyper-parameter, in sds."""
    names, point = laplace.names_of(problem), search_.nearest(search.found, search.centre).point
    start = {**point, **{name: np.exp(search.centre[[i]]) for i, name in enumerate(names)}}
    arrays = jax.tree.map(lambda x: jnp.asarray(x, float), start)
    known = jax.device_put(arrays, batch.mask.sharding)
    mean = path.mean_field(problem.model, problem.hyper, known, batch, names)
    return (np.asarray(mean, float) - search.centre) / np.sqrt(np.sum(search.spread**2, 1))


def wants_path(problem: obj.Problem, search: search_.State, batch: Any, options: Any) -> bool:
    """Whether slopes weigh the grid; warns if the user did not ask for them."""
    if options.weights != "auto" or options.method != "log" or gibbs.suits(problem.model):
        return options.weights == "path"
    apart = np.abs(disagreement(problem, search, batch))
    if search.steady and np.all(apart <= APART):
        return False
    named = zip(laplace.names_of(problem), apart, strict=True)
    said = [f"{name} by {x:.1f} posterior standard deviations" for name, x in named if x > APART]
    reason = "Laplace's approximation has no steady mode"
    if said:
        both = "Laplace's approximation and mean-field inference"
        reason = f"{both} disagree on {' and '.join(said)}"
    warnings.warn(
        f"{reason}: weights are integrated along short Gibbs runs (weights='path'; 'laplace' "
        "keeps its own).",
        stacklevel=6,
    )
    return True


def follow(
    problem: obj.Problem, state: State, key: jax.Array, copies: list[Any], options: Any
) -> State:
    """One round of slopes about the centre, which moves to the mode they tell.

    At the mode, the last round takes slopes further out and fits the surface. Runs are in the
    user's precision: their noise is far above rounding.
    """
    search, slopes = state.search, list(state.slopes)
    centre, spread, step = search.centre, search.spread, np.inf
    if slopes:
        centre, spread = path.fit_surface(centre, spread, slopes, 2).top()
        step = np.max(np.abs(np.linalg.solve(search.spread, centre - search.centre)))
    last = bool(step < 0.5) or state.round == ROUNDS
    waiting = []
    for i, theta in enumerate(path.design(centre, spread, last)):
        start = search_.nearest(search.found, theta).point
        if slopes:
            start = min(slopes, key=lambda one: float(np.sum((one.theta - theta) ** 2))).values
        copy, run_key = copies[i % len(copies)], jax.random.fold_in(key, i)
        waiting.append(path.run(problem, theta, run_key, start, copy, options.path_sweeps))
    new = tuple(wait() for wait in waiting)
    search = search._replace(centre=centre, spread=spread, queue=())
    state = state._replace(search=search, slopes=new, round=state.round + 1)
    if not last:
        return state
    earlier = slopes if state.round > 2 else []  # the first runs started too far away
    surface, top, spread = path.weigh(centre, spread, [*new, *earlier])
    search = search._replace(centre=top, spread=spread, steady=bool(step < 1.0))
    return state._replace(search=grow(search, options.spacing, surface), surface=surface)


def mixture(problem: obj.Problem, state: State, options: Any) -> Mixture:
    """The weighted grid; before there is one, the best value found."""
    search, surface, cell, axes = state.search, state.surface, np.nan, None
    found = [max(search.found, key=lambda one: one.value)]
    if search.spread is not None:
        grid = list(on_grid(search, options.spacing).values())
        found, axes = grid or found, options.spacing * search.spread if grid else None
        cell = np.log(abs(np.linalg.det(options.spacing * search.spread)))
    values = np.array([height_of(one, surface) for one in found])
    weights = np.exp(values - values.max())
    weights /= weights.sum()
    used = [one for one, weight in zip(found, weights, strict=True) if weight > SMALLEST]
    search_.warn_of(search, not state.finished, used, options)
    evidence = float(logsumexp(values) + cell) if surface is None else np.nan
    thetas = [one.theta for one in found]
    natural = [search_.as_asked(one.natural) for one in found]
    return Mixture(problem, laplace.names_of(problem), thetas, natural, weights, evidence, axes)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    number = len(laplace.names_of(problem))
    if not 1 <= number <= 2:
        able = " and ".join(problem.model.marginal.gridded) or "none"
        raise InputError(
            f"inla puts one or two hyper-parameters on a grid, but {number} of "
            f"{problem.model.name} are unknown (it can grid: {able}): leave them out of hyper to "
            "have them gridded, or use laplace or map."
        )
    if options.weights == "path" and (reason := gibbs.suits(problem.model)):
        raise InputError(f"weights='path' needs Gibbs sampling: {reason}")
    double, copies = search_.in_double_precision(problem)
    first, climb = search_.search(double, copies, options)

    @functools.cache
    def plain_copies():
        return [problem.data.pack(device=device) for device in devices.mine(problem.devices)]

    def step(key, state, batches):
        info, search = search_.Info(None, 0, 1.0, False), state.search
        if search.spread is None or search.queue:
            search, info = climb(key, search, batches)
            if search.spread is not None and state.checked and not search.queue:
                search = grow(search, options.spacing, state.surface)
            state = state._replace(search=search, finished=state.checked and not search.queue)
        elif not state.checked:
            along = search_.doubled(wants_path)(double, search, copies[0], options)
            search = search if along else grow(search, options.spacing)
            finished = not along and not search.queue
            state = state._replace(search=search, checked=True, finished=finished)
        else:
            state = follow(problem, state, key, plain_copies(), options)
            state = state._replace(finished=state.surface is not None and not state.search.queue)
            info = info._replace(sweeps=len(state.slopes) * options.path_sweeps)
        return state, info._replace(finished=state.finished)

    return Algorithm(
        lambda key, given: State(first(key, given)),
        step,
        lambda state: mixture(problem, state, options),
    )


def suits(model: Any) -> str:
    if not model.marginal.gridded:
        return (
            f"inla puts hyper-parameters on a grid, and {model.name} declares none that may be: "
            "use laplace, cavi or gibbs."
        )
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
    tiny={"num_sweeps": 30, "num_epochs": 12, "weights": "laplace"},
    calibrated={"weights": "laplace"},
    look=Look("wine", DASHED, "star"),
)
