r"""Draws between the points of a weighted grid.

The grid is a part of a lattice along the principal axes of $\log \theta$, with weights in
proportion to the density at its points. Along a line of the lattice the log density is interpolated
by a cubic spline, which is exact for a normal. A uniform number $u$ gives two things: the point
whose share of the cumulated weights holds $u$, and the position $F^{-1}(u)$ in the interpolated
distribution. So points have exactly their weights, positions have the interpolated density, and
both lie near to each other. In two dimensions this is done along the first axis, with the weights
summed over the second, and then along the second axis given the point of the first.
"""

import jax
import jax.numpy as jnp
import numpy as np

FINE = 64  # positions to a cell at which the density is evaluated
BEYOND = 2  # cells beyond the outermost points to which the density is followed


def draw_points(
    key: jax.Array, theta: np.ndarray, weights: np.ndarray, axes: np.ndarray | None, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices (n,) of grid points, and positions (n, d) near them; without axes, the points."""
    if axes is None:
        chances = jnp.asarray(weights)
        picked = np.asarray(jax.random.choice(key, len(weights), (number,), p=chances))
        return picked, theta[picked]
    uniform = np.asarray(jax.random.uniform(key, (number, theta.shape[1])), float)
    return draw(theta, weights, axes, uniform)


def draw(
    theta: np.ndarray, weights: np.ndarray, axes: np.ndarray, uniform: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Indices (n,) of grid points, and positions (n, d).

    theta: (M, d) grid points. axes: (d, d), columns that lead to the next point along each axis.
    uniform: (n, d) numbers between 0 and 1
    """
    top = theta[np.argmax(weights)]
    cells = np.round(np.linalg.solve(axes, (theta - top).T).T).astype(int)
    places = np.empty_like(uniform)
    picked = np.zeros(len(uniform), int)
    columns, column = np.unique(cells[:, 0], return_inverse=True)
    totals = np.bincount(column, weights)
    chosen, places[:, 0] = along_line(columns, totals, uniform[:, 0])
    for i in np.unique(chosen):
        inside, here = np.flatnonzero(column == i), chosen == i
        picked[here] = inside[0]
        if uniform.shape[1] > 1:
            line = cells[inside, 1], weights[inside], uniform[here, 1]
            found, places[here, 1] = along_line(*line)
            picked[here] = inside[found]
    return picked, top + places @ axes.T


def along_line(
    cells: np.ndarray, weights: np.ndarray, uniform: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The indices of cells with these weights, and positions, that belong to uniform numbers."""
    order = np.argsort(cells)
    total = np.cumsum(weights[order]) / np.sum(weights)
    picked = order[np.searchsorted(total[:-1], uniform, side="right")]
    known = order[weights[order] > 0]
    places, density = _density(cells[known].astype(float), np.log(weights[known]))
    cumulated = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    return picked, np.interp(uniform * cumulated[-1], cumulated, places)


def _density(cells: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions along a line, and the interpolated density there; even over a single cell."""
    if len(cells) == 1:
        return cells[0] + np.array([-0.5, 0.5]), np.ones(2)
    first, last = cells[0] - BEYOND, cells[-1] + BEYOND
    places = np.linspace(first, last, int((last - first) * FINE) + 1)
    if len(cells) == 2:
        slope = (logs[1] - logs[0]) / (cells[1] - cells[0])
        found = logs[0] + slope * (places - cells[0])
    else:
        from scipy.interpolate import CubicSpline  # which every import would wait for

        found = CubicSpline(cells, logs)(places)
    ends = np.where(places < cells[0], logs[0], np.where(places > cells[-1], logs[-1], np.inf))
    outside = np.isfinite(ends)
    found = np.where(outside, np.minimum(found, ends), found)
    return places, np.exp(found - found.max())
