"""The hyper-parameters' posterior on a grid, the rows by Laplace at each of its points (H 3.3-3.4; Rue et al. 2009).

The mode of log p~(log theta | D) and its Hessian are found as in `laplace`. In principal axes z, log theta = mode + spread z, points lie `spacing`
apart on a line or in a plane and are added outwards from the mode until the outermost have a weight below 1e-3 of the largest:

    w_m = Delta_m p~(theta_m | D) / sum,     p(. | D) = sum_m w_m p(. | theta_m, D)                                                  H(13)

All cells Delta_m are alike in log theta; in theta they are theta_m times as wide and the density there is as many times lower, so the weights are the
same. Every point begins where its nearest neighbour ended, which takes a few sweeps instead of hundreds.
"""

from typing import Any, NamedTuple

import numpy as np

from inference import laplace
from inference import objective as obj
from inference.engine import Algorithm, Engine
from inference.posterior import Mixture
from pp_models.errors import InputError

SMALLEST = 1e-3  # of the largest weight: the grid ends where weights are below


class Options(NamedTuple):
    """num_epochs: steps at most, the search for the mode included, each of which tries as many theta as there are devices. method: as of `laplace`.

    spacing: of the grid, in standard deviations. num_sweeps, sweep_tolerance: of coordinate ascent at each value.
    """

    num_epochs: int = 200
    method: str = "log"
    spacing: float = 1.0
    num_sweeps: int = 2000
    sweep_tolerance: float = 1e-3


def check(options: Options) -> None:
    laplace.check(options)
    if not 0 < options.spacing <= 2:
        raise InputError(f"spacing must be above 0 and at most 2 standard deviations, not {options.spacing}.")


def place(state: laplace.State, spacing: float, cell: tuple[int, ...]) -> np.ndarray:
    """log theta of a grid point."""
    return state.centre + state.spread @ (spacing * np.array(cell, float))


def cell_of(state: laplace.State, spacing: float, theta: np.ndarray) -> tuple[int, ...] | None:
    """The grid point at log theta, or None where there is none."""
    z = np.linalg.solve(state.spread, theta - state.centre) / spacing
    return tuple(int(i) for i in np.round(z)) if np.all(np.abs(z - np.round(z)) < 1e-6) else None


def on_grid(state: laplace.State, spacing: float) -> dict[tuple[int, ...], laplace.Found]:
    cells = ((cell_of(state, spacing, one.theta), one) for one in state.found)
    return {cell: one for cell, one in cells if cell is not None}


def grow(state: laplace.State, spacing: float) -> laplace.State:
    """The neighbours, not tried yet, of all grid points whose weight is not small."""
    known = on_grid(state, spacing)
    size = len(state.centre)
    if not known:
        return state._replace(queue=(state.centre,))
    best = max(one.value for one in known.values())
    heavy = [cell for cell, one in known.items() if one.value > best + np.log(SMALLEST)]
    around = {tuple(np.array(cell) + sign * np.eye(size, dtype=int)[i]) for cell in heavy for i in range(size) for sign in (1, -1)}
    fresh = sorted(around - set(known), key=lambda cell: sum(i * i for i in cell))
    return state._replace(queue=tuple(place(state, spacing, cell) for cell in fresh))


def build(problem: obj.Problem, options: Options) -> Algorithm:
    names = laplace.names_of(problem)
    if not 1 <= len(names) <= 2:
        able = " and ".join(problem.model.gridded) or "none"
        raise InputError(
            f"inla puts one or two hyper-parameters on a grid, but {len(names)} of {problem.model.name} are unknown "
            f"(it can grid: {able}): leave them out of hyper to have them gridded, or use laplace or map."
        )
    init, step = laplace.search(problem, options, lambda state: grow(state, options.spacing))

    def posterior(state):
        known = on_grid(state, options.spacing) if state.spread is not None else {}
        found = list(known.values()) or [max(state.found, key=lambda one: one.value)]
        values = np.array([one.value for one in found])
        weights = np.exp(values - values.max())
        weights /= weights.sum()
        laplace.warn_of(state, [one for one, weight in zip(found, weights, strict=True) if weight > SMALLEST], options)
        cell = np.nan if state.spread is None else np.log(abs(np.linalg.det(options.spacing * state.spread)))
        evidence = float(values.max() + np.log(np.sum(np.exp(values - values.max()))) + cell)
        return Mixture(problem, names, [one.theta for one in found], [one.natural for one in found], weights, evidence)

    return Algorithm(init, step, posterior)


def suits(model: Any) -> str:
    if not model.gridded:
        return f"inla puts hyper-parameters on a grid, and {model.name} declares none that may be: use laplace, cavi or gibbs."
    return laplace.suits(model)


ENGINE = Engine("inla", Options, build, kind="mixture", rows="none", check=check, suits=suits)
