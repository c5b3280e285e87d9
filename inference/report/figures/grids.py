"""Hyper-parameters on a grid (`inla`) over the reference's draws, on log scales."""

from typing import Any

import numpy as np

from inference.comparison.compare import Comparison
from inference.report import selection, svg
from inference.report.figures.parameters import kernel_density
from inference.report.markup import plain
from inference.report.svg import WIDTH, Figure, Scale, make_scale, number

REGIONS = (0.9, 0.5)  # share of the draws in each
SIZE, HEIGHT = 300, 230


def grids(comparison: Comparison) -> list[Figure]:
    """One figure per engine that has a grid of two or more points."""
    found = []
    for engine in selection.shown(comparison):
        posterior: Any = getattr(comparison.fits.get(engine), "posterior", None)
        if getattr(posterior, "kind", "") == "mixture" and len(posterior.weights) > 1:
            names, weights = posterior.names[:2], np.asarray(posterior.weights, float)
            theta = np.asarray(posterior.theta, float).reshape(len(weights), -1)[:, :2]
            if names:
                draw = _line if len(names) == 1 else _plane
                found.append(draw(comparison, engine, names, theta, weights))
    return found


def _log_draws(comparison: Comparison, names: Any) -> np.ndarray:
    """The reference's draws of the logarithms of hyper-parameters, (n, parameters)."""
    draws = comparison.draws.get(comparison.reference or "", {})
    if any(name not in draws or len(draws[name]) < 3 for name in names):
        return np.empty((0, len(names)))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = [np.log(np.asarray(draws[name], float).reshape(-1)) for name in names]
    found = np.stack(values, 1)
    return found[np.isfinite(found).all(1)]


def _line(comparison: Comparison, engine: str, names, theta, weights) -> Figure:
    """One hyper-parameter: grid density of its logarithm over a histogram of the draws."""
    order = np.argsort(theta[:, 0])
    theta, weights = theta[order], weights[order]
    density = weights / np.maximum(np.gradient(theta[:, 0]), 1e-12)
    draws, reference, name = _log_draws(comparison, names)[:, 0], comparison.reference, names[0]
    bars, edges = np.zeros(0), np.zeros(1)
    if len(draws) > 2:
        bars, edges = np.histogram(draws, bins=25, density=True)
    ends = [*theta[:, 0], *(np.quantile(draws, (0.005, 0.995)) if len(draws) else [])]
    x = make_scale(np.exp(ends), 12, WIDTH - 12, log=True)
    y = Scale(0, 1.1 * max([*density, *bars]), HEIGHT - 40, 10)
    parts = [svg.x_axis(x, y.start, f"{plain(name)} (log scale)")]
    drawn = []
    for a, b, bar in zip(np.exp(edges[:-1]), np.exp(edges[1:]), bars, strict=True):
        size, tip = (x.clip(b) - x.clip(a), y.start - y(bar)), f"{number(a)} to {number(b)}"
        drawn.append(svg.rectangle(x.clip(a), y(bar), *size, "fill", f"{reference}: {tip}"))
    parts.append(svg.of(reference, *drawn))
    here, there = x(np.exp(theta[:, 0])), y(density)
    tips = [_tip(names, point, weight) for point, weight in zip(theta, weights, strict=True)]
    stems = svg.segments(here, y.start, here, there, "thin") + svg.path(here, there, "l")
    parts.append(svg.of(engine, stems, svg.marks(engine, here, there, tips)))
    title = f"{engine}: {plain(name)} on {len(theta)} points"
    words = _words(comparison, engine, names, theta, weights)
    return Figure(title, parts, WIDTH, HEIGHT, words, "gridded")


def _plane(comparison: Comparison, engine: str, names, theta, weights) -> Figure:
    """Two hyper-parameters: points with area in proportion to weight, over regions of the draws."""
    draws = _log_draws(comparison, names)
    ends = theta[weights > 1e-3 * weights.max()]
    if len(draws) > 10:
        ends = np.concatenate([ends, np.quantile(draws, (0.005, 0.995), axis=0)])
    y = make_scale(np.exp(ends[:, 1]), SIZE - 40, 28, log=True)
    x = make_scale(np.exp(ends[:, 0]), svg.margin(y), SIZE + 30, log=True)
    parts = [svg.frame(x, y, *(f"{plain(name)} (log scale)" for name in names))]
    parts.append(svg.of(comparison.reference, _regions(draws, x, y)))
    dots = []
    for point, weight in zip(theta, weights, strict=True):
        here, there = x(np.exp(point[0])), y(np.exp(point[1]))
        radius = 11 * np.sqrt(weight / weights.max())
        if radius > 0.4 and x.start <= here <= x.end and y.end <= there <= y.start:
            at = f'cx="{here:.1f}" cy="{there:.1f}" r="{radius:.1f}"'
            tip = svg.title(_tip(names, point, weight))
            dots.append(f'<circle class="dot" {at}>{tip}</circle>')
    parts.append(svg.of(engine, *dots))
    over = f" over regions of {comparison.reference}" if len(draws) > 10 else ""
    title = f"{engine}: {len(weights)} grid points{over}"
    words = _words(comparison, engine, names, theta, weights)
    return Figure(title, parts, SIZE + 40, SIZE, words, "gridded")


def _regions(draws: np.ndarray, x: Scale, y: Scale, rows: int = 90) -> str:
    """Highest-density regions of log draws (n, 2), drawn as one horizontal line per pixel row."""
    if len(draws) <= 10 or np.linalg.matrix_rank(np.cov(draws.T)) < 2:
        return ""
    few = draws[svg.thin(len(draws), 500)]
    a, b = (np.linspace(np.log(scale.low), np.log(scale.high), rows) for scale in (x, y))
    height = kernel_density(few, np.stack(np.meshgrid(a, b), -1).reshape(-1, 2)).reshape(rows, rows)
    step, parts = (a[1] - a[0]) / 2, []
    for share in REGIONS:
        inside = np.pad(
            height >= np.quantile(kernel_density(few, few), 1 - share), ((0, 0), (1, 1))
        )
        row, start = np.nonzero(~inside[:, :-1] & inside[:, 1:])
        _, end = np.nonzero(inside[:, :-1] & ~inside[:, 1:])
        ends = x.clip(np.exp(a[start] - step)), x.clip(np.exp(a[end - 1] + step))
        level, tip = y(np.exp(b[row])), f"contains {share:.0%} of the reference's draws"
        parts.append(svg.segments(ends[0], level, ends[1], level, "region", tip))
    return "".join(parts)


def _tip(names: Any, point: np.ndarray, weight: float) -> str:
    values = (f"{plain(name)} = {number(np.exp(t))}" for name, t in zip(names, point, strict=True))
    return f"{', '.join(values)}: weight {weight:.3f}"


def _words(comparison: Comparison, engine: str, names, theta, weights) -> str:
    said = []
    for i, name in enumerate(names):
        mean = np.average(theta[:, i], weights=weights)
        sd = np.sqrt(np.average((theta[:, i] - mean) ** 2, weights=weights))
        draws, known = _log_draws(comparison, [name]), ""
        if len(draws):
            known = f" ({comparison.reference}: {draws.mean():.2f} ± {draws.std():.2f})"
        said.append(f"log {name} {mean:.2f} ± {sd:.2f}{known}")
    points = f"on a grid of {len(weights)} points by {engine}"
    return f"Posterior of {' and '.join(names)} {points}: {'; '.join(said)}."
