"""Forests and densities of the chosen parameters, all engines on one axis."""

import numpy as np

from inference.comparison.compare import Comparison
from inference.report import selection, svg
from inference.report.selection import Quantity
from inference.report.svg import WIDTH, Figure, Scale, make_scale, number

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
MOST_ROWS = 6  # of a forest
GRID = 90  # points of a density
TALLEST = 5.0  # times the anchor's density; higher curves are cut
TOP = 18


def forests(comparison: Comparison) -> list[Figure]:
    """Medians with 50% and 90% intervals."""
    found = []
    for heading, quantities in selection.chosen(comparison).items():
        starts = range(0, len(quantities), MOST_ROWS)
        for place, start in enumerate(starts):
            part = f" ({place + 1}/{len(starts)})" if len(starts) > 1 else ""
            found.append(_forest(comparison, heading + part, quantities[start : start + MOST_ROWS]))
    return found


def _forest(comparison: Comparison, heading: str, quantities: list[Quantity]) -> Figure:
    levels = {
        engine: [_levels(selection.values(comparison, engine, one)) for one in quantities]
        for engine in selection.shown(comparison)
    }
    truths = [selection.true_value(comparison, one) for one in quantities]
    anchor = levels[str(selection.anchor(comparison))]
    ends = _ends(np.array([*levels.values()]), np.array(anchor))
    ends = np.array([*ends, *(value for value in truths if value is not None)])
    log = heading.startswith("Hyper") and ends.size > 0 and 0 < 10 * ends.min() < ends.max()
    left = min(130.0, 12 + svg.CHARACTER * max(len(one.label) for one in quantities))
    x = make_scale(ends, left, WIDTH - 10, log=bool(log))
    apart = 9 if len(levels) <= 5 else 6.5
    tall = apart * len(levels) + 8
    middles = [TOP + tall * (i + 0.5) for i in range(len(quantities))]
    parts = []
    for i, (one, middle) in enumerate(zip(quantities, middles, strict=True)):
        if i % 2 == 0:
            parts.append(svg.rectangle(0, middle - tall / 2, WIDTH, tall, "stripe"))
        parts.append(svg.text(left - 6, middle + 4, svg.cut(one.label, left - 8), "tick", "end"))
    bottom = TOP + tall * len(quantities)
    parts.append(svg.x_axis(x, bottom))
    for place, (engine, rows) in enumerate(levels.items()):
        offset = apart * (place - (len(levels) - 1) / 2)
        drawn = [
            svg.interval(x, middle + offset, engine, row, "thick", _tip(engine, one, row))
            for one, middle, row in zip(quantities, middles, rows, strict=True)
            if np.isfinite(row).all()
        ]
        parts.append(svg.of(engine, *drawn))
    for one, middle, truth in zip(quantities, middles, truths, strict=True):
        if truth is not None:
            low, high = middle - tall / 2 + 2, middle + tall / 2 - 2
            tip = f"truth of {one.label}: {number(truth)}"
            parts.append(svg.line(x(truth), low, x(truth), high, "truth", tip))
    words = _words(comparison, heading, quantities, anchor)
    return Figure(heading, parts, WIDTH, bottom + 24, words, "forest")


def _levels(values: np.ndarray) -> np.ndarray:
    return np.quantile(values, LEVELS) if values.size else np.full(len(LEVELS), np.nan)


def _ends(levels: np.ndarray, anchor: np.ndarray) -> np.ndarray:
    """Values that the axis must contain, at most three times the range of the anchor's."""
    found, inner = levels[np.isfinite(levels)], anchor[np.isfinite(anchor)]
    if not found.size or not inner.size or np.ptp(inner) == 0:
        return found
    reach = 1.5 * np.ptp(inner)
    return np.clip(found, inner.min() - reach, inner.max() + reach)


def _tip(engine: str, quantity: Quantity, levels: np.ndarray) -> str:
    low, middle, high = map(number, levels[[0, 2, 4]])
    tip = f"{engine}, {quantity.label}: {middle}"
    return tip if levels[0] == levels[4] else f"{tip}, 90% from {low} to {high}"


def _words(comparison: Comparison, heading: str, quantities, levels) -> str:
    said = ", ".join(
        f"{one.label} {number(row[2])}"
        for one, row in zip(quantities, levels, strict=True)
        if np.isfinite(row).all()
    )
    points = all(selection.is_point(draws) for draws in comparison.draws.values())
    kind = "Point estimates" if points else "Medians with 50% and 90% intervals"
    engines = ", ".join(selection.shown(comparison))
    return f"{heading}. {kind} by {engines}. Those of {selection.anchor(comparison)}: {said}."


def densities(comparison: Comparison) -> list[Figure]:
    """Posterior densities of at most six quantities per group; points and truths are lines."""
    figures = []
    for heading, group in selection.chosen(comparison).items():
        if len(group) > 6:  # with topics the first two words of each
            group = [one for i, one in enumerate(group) if i % 3 < 2][:6]
        figures += [_density(comparison, heading, one) for one in group]
    return [figure for figure in figures if figure is not None]


def _density(comparison: Comparison, heading: str, quantity: Quantity) -> Figure | None:
    height, label, anchor = 170, quantity.label, str(selection.anchor(comparison))
    engines = selection.shown(comparison)
    draws = {engine: selection.values(comparison, engine, quantity) for engine in engines}
    draws = {engine: values for engine, values in draws.items() if values.size}
    wide = {engine: values for engine, values in draws.items() if np.ptp(values) > 0}
    if not wide:
        return None  # the forest shows points
    truth = selection.true_value(comparison, quantity)
    ends = np.array([level for one in draws.values() for level in np.quantile(one, (0.002, 0.998))])
    ends = ends if truth is None else np.append(ends, truth)
    if anchor in wide:  # an engine far off must not squeeze the others
        centre, reach = wide[anchor].mean(), 6 * wide[anchor].std()
        ends = np.clip(ends, centre - reach, centre + reach)
    x = make_scale(ends, 12, WIDTH - 12, pad=0.02)
    curves = {engine: _smooth(values, x) for engine, values in wide.items()}
    tops = {engine: curve[1].max() for engine, curve in curves.items() if curve.size}
    top = min(max(tops.values(), default=1.0), TALLEST * tops.get(anchor, np.inf))
    y = Scale(0, 1.08 * top, height - 26, 8)
    parts = [svg.x_axis(x, y.start)]
    for engine, values in draws.items():
        filled = engine == comparison.reference
        drawn = _density_mark(engine, values, curves.get(engine), x, y, label, filled)
        parts.append(svg.of(engine, drawn))
    if truth is not None:
        tip = f"truth: {number(truth)}"
        parts.append(svg.line(x(truth), y.start, x(truth), y.end, "truth", tip))
        parts.append(svg.text(x(truth) + 4, y.end + 8, "truth", "note"))
    said = ", ".join(f"{engine} {_mean_and_sd(values)}" for engine, values in draws.items())
    words = f"Densities of {label} ({heading}). Mean and sd: {said}"
    words += "." if truth is None else f"; truth {number(truth)}."
    return Figure(label, parts, WIDTH, height, words, "density")


def _mean_and_sd(values: np.ndarray) -> str:
    return number(values.mean()) + (f" ± {number(values.std())}" if len(values) > 1 else "")


def _smooth(values: np.ndarray, x: Scale) -> np.ndarray:
    """Kernel density between the smallest and the largest draw, (2, points); empty off the axis.

    Every engine has its own grid, because a narrow posterior falls between points of a common one.
    """
    few = values[svg.thin(len(values), 800)]
    low, high = max(x.low, values.min()), min(x.high, values.max())
    if high <= low or np.std(few) <= 1e-9 * np.abs(few).max():
        return np.empty((2, 0))
    grid = np.linspace(low, high, GRID)
    return np.stack([grid, kernel_density(few[:, None], grid[:, None])])


def kernel_density(draws: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Gaussian kernels with Scott's rule at points (m, d); SciPy's takes 20 ms per call."""
    number, size = draws.shape
    root = np.linalg.cholesky(np.cov(draws.T).reshape(size, size)) * number ** (-1 / (size + 4))
    unit = np.linalg.inv(root).T
    apart = ((points @ unit)[:, None] - (draws @ unit)[None]) ** 2
    return np.exp(-apart.sum(-1) / 2).mean(1) / (np.prod(np.diag(root)) * (2 * np.pi) ** (size / 2))


def _density_mark(engine, values, curve, x: Scale, y: Scale, label: str, filled: bool) -> str:
    """A curve with its marker on top, a line for a point, or only a marker off the axis."""
    tip = f"{engine}, {label}: {_mean_and_sd(values)}"
    if curve is None:
        here, top = x.clip(values[0]), y.end + 14
        stem = svg.line(here, y.start, here, top, "l")
        return stem + svg.mark(engine, here, top, f"{tip}, a point")
    if not curve.size:
        return svg.mark(engine, x.clip(values.mean()), y.start, tip)
    grid, height, top = x(curve[0]), y.clip(curve[1]), int(np.argmax(curve[1]))
    drawn = svg.path(grid, np.where(curve[1] > 2e-3 * curve[1].max(), height, np.nan), "l")
    drawn += svg.mark(engine, grid[top], height[top], tip)
    if filled:
        outline = [grid[0], *grid, grid[-1]], [y.start, *height, y.start]
        drawn = svg.path(*outline, "fill", closed=True) + drawn
    return drawn
