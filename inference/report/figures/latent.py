"""Figures of some models: maps of latent locations, profiles of components, and the grid posterior of hyper-parameters.

A space of locations is known up to a rotation; draws were aligned to one pivot, so engines' maps may be laid over each other. The first two principal
axes of the reference's means are what a map can show; how much of the locations' spread they hold is said with it.
"""

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from contourpy import contour_generator

from inference.report import selection, svg
from inference.report.figures.common import kernel_density
from inference.report.svg import WIDTH, Figure, Scale, make_scale, number
from inference.report.typeset import plain

if TYPE_CHECKING:
    from inference.comparison.compare import Comparison

MAX_POINTS = 60  # of a map
MAX_ELLIPSES = 5
MAX_LABELS = 8
MAX_CELLS = 48  # columns of a heat strip
MAX_COMPONENTS = 12
CONTOURS = (0.5, 0.9)  # share of the draws inside each
SIZE = 300


# Maps -------------------------------------------------------------------------------------------------------------------------


class Axes(NamedTuple):
    """The plane of a map: its origin, the two directions, and the share of the variance that each holds."""

    origin: np.ndarray
    directions: np.ndarray
    shares: np.ndarray

    def project(self, locations: Any) -> np.ndarray:
        return (np.asarray(locations, np.float64) - self.origin) @ self.directions


def located(comparison: "Comparison") -> list[str]:
    """The sites that are locations in a space of two dimensions or more: those known up to a rotation, and the weights that decide votes."""
    engine = selection.anchor(comparison)
    if engine is None:
        return []
    names = [
        *comparison.model.rotation.sites,
        *(site for site in ("d2", "s") if site in comparison.model.families),
    ]
    draws = comparison.draws[engine]
    return [
        site
        for site in dict.fromkeys(names)
        if site in draws and draws[site].ndim == 3 and min(draws[site].shape[1:]) >= 2
    ]


def principal_axes(locations: np.ndarray) -> Axes:
    """Of means (n, dimensions): the two directions in which they spread most. Signs are such that the largest entry of each is positive."""
    origin = locations.mean(0)
    _, sizes, rows = np.linalg.svd(locations - origin, full_matrices=False)
    rows = (
        rows[:2]
        * np.sign(rows[:2][np.arange(min(2, len(rows))), np.argmax(np.abs(rows[:2]), axis=1)])[
            :, None
        ]
    )
    shares = sizes**2 / max(float(np.sum(sizes**2)), 1e-300)
    return Axes(origin, rows.T, shares[:2])


def maps(comparison: "Comparison") -> dict[str, list[Figure]]:
    """Site -> one map per engine, all on the same axes: the engine's means, tied to those of the reference."""
    engine = selection.anchor(comparison)
    found = {}
    for site in located(comparison)[:3]:
        assert engine is not None
        base = selection.mean(comparison, engine, site)
        axes = principal_axes(base)
        points = axes.project(base)
        if len(points) >= 2 and axes.directions.shape[1] == 2 and np.ptp(points, axis=0).min() > 0:
            found[site] = _maps(comparison, engine, site, axes, points)
    return found


def _maps(
    comparison: "Comparison", engine: str, site: str, axes: Axes, points: np.ndarray
) -> list[Figure]:
    outer = np.argsort(-np.sum(points**2, 1), kind="stable")
    pick = np.unique(
        np.concatenate([outer[: MAX_POINTS // 2], outer[svg.thin(len(outer), MAX_POINTS // 2)]])
    )
    special = [int(i) for i in outer[svg.thin(min(len(outer), 30), MAX_ELLIPSES)]]
    means = {
        other: axes.project(selection.mean(comparison, other, site))
        for other in selection.shown(comparison)
        if site in comparison.draws[other]
    }
    reach = 0.35 * np.ptp(points, axis=0)
    spread = np.nanstd(
        [axes.project(comparison.draws[engine][site][:, row]) for row in special], axis=1
    )  # room for the ellipses
    everything = np.concatenate(
        [
            points[special] - spread,
            points[special] + spread,
            *(
                np.clip(one[pick], points.min(0) - reach, points.max(0) + reach)
                for one in means.values()
            ),
        ]
    )
    y = make_scale(everything[:, 1], SIZE - 40, 28, pad=0.08)
    x = make_scale(everything[:, 0], svg.margin(y), SIZE + 30, pad=0.08)
    figures = []
    for other, place in means.items():
        if other == engine and len(means) > 1:
            continue
        figures.append(
            _map(comparison, engine, other, site, axes, points, place, pick, special, x, y)
        )
    return figures


def _map(
    comparison: "Comparison",
    engine: str,
    other: str,
    site: str,
    axes: Axes,
    base: np.ndarray,
    place: np.ndarray,
    pick: np.ndarray,
    special: list[int],
    x: Scale,
    y: Scale,
) -> Figure:
    label = lambda i: selection.row_label(comparison, site, int(i))  # noqa: E731
    where = lambda one, i: (float(x(x.clip(one[i, 0]))), float(y(y.clip(one[i, 1]))))  # noqa: E731
    shares = [f"axis {i + 1} ({share:.0%} of the spread)" for i, share in enumerate(axes.shares)]
    parts = [svg.frame(x, y, shares[0], shares[1])]
    ties = np.array([(*where(base, i), *where(place, i)) for i in pick])
    parts.append(svg.segments(ties[:, 0], ties[:, 1], ties[:, 2], ties[:, 3], "tie"))
    for name, one in ((engine, base), (other, place)):
        outlines = (
            []
            if selection.is_point(comparison.draws[name])
            else [_outline(comparison, name, site, axes, one, i, x, y) for i in special]
        )
        marks = [
            svg.mark(
                name,
                *where(one, i),
                f"{label(i)}: {name} ({number(one[i, 0])}, {number(one[i, 1])})",
            )
            for i in pick
        ]
        parts.append(svg.of(name, *outlines, *marks))
        if name == other == engine:
            break
    if selection.names_of(comparison, site) is not None:
        parts += _labels([(*where(base, i), label(i)) for i in special[:MAX_LABELS]], x)
    apart = np.sqrt(np.mean(np.sum((place[pick] - base[pick]) ** 2, 1)))
    title = other if other == engine else f"{other} on {engine}"
    words = f"Map of {site} in the first two principal axes of {engine}'s means, which hold {axes.shares.sum():.0%} of their spread: {len(pick)} of "
    words += f"{len(base)} points. {other}'s lie {number(apart)} from {engine}'s on average (root mean square)."
    return Figure(title, "".join(parts), SIZE + 40, SIZE, words, "map")


def _labels(points: list[tuple[float, float, str]], x: Scale) -> list[str]:
    """Names, each on the side of its point that has room; one that would lie on another is left out."""
    boxes: list[tuple[float, float, float]] = []
    found = []
    for here, there, name in points:
        name, right = svg.cut(name, 110), here < (x.start + x.end) / 2
        start = here + 7 if right else here - 7 - svg.CHARACTER * len(name)
        end = start + svg.CHARACTER * len(name)
        if any(
            start < other_end and other_start < end and abs(there - level) < 13
            for other_start, other_end, level in boxes
        ):
            continue
        boxes.append((start, end, there))
        found.append(
            svg.text(
                here + (7 if right else -7), there - 6, name, "note", "start" if right else "end"
            )
        )
    return found


def _outline(
    comparison: "Comparison",
    engine: str,
    site: str,
    axes: Axes,
    means: np.ndarray,
    row: int,
    x: Scale,
    y: Scale,
) -> str:
    """One standard deviation of an engine's draws of a location, as an ellipse in pixels."""
    draws = axes.project(comparison.draws[engine][site][:, row])
    draws = draws[np.isfinite(draws).all(1)]
    if len(draws) < 3:
        return ""
    pixels = np.stack([x(draws[:, 0]), y(draws[:, 1])])
    centre = np.array([x(means[row, 0]), y(means[row, 1])])
    covariance = np.cov(pixels)
    if np.sqrt(covariance.max()) > SIZE:
        return ""
    return svg.ellipse(centre, covariance, "outline")


# Profiles of components -------------------------------------------------------------------------------------------------------


def profiles(comparison: "Comparison") -> list[Figure]:
    """Of mixtures of dense rows: each component's profile over the columns as a strip, one figure per engine."""
    if comparison.data.kind != "dense" or comparison.model.symmetry != "permutation":
        return []
    engine = selection.anchor(comparison)
    means = {
        other: found
        for other in selection.shown(comparison)
        if (found := _profiles(comparison, other)) is not None
    }
    if engine not in means:
        return []
    order = (
        np.argsort(-selection.mean(comparison, engine, "pi"), kind="stable")
        if "pi" in comparison.draws[engine]
        else np.arange(len(means[engine]))
    )
    low, high = float(np.min(means[engine])), float(np.max(means[engine]))
    return [
        _strips(comparison, other, profile[order[:MAX_COMPONENTS]], order, low, high)
        for other, profile in means.items()
    ]


def _profiles(comparison: "Comparison", engine: str) -> np.ndarray | None:
    """(K, columns): probabilities or means. A mean and precision packed into one value has the mean in row 0."""
    found = selection.topics(comparison)
    if found is not None:
        return found.rows(selection.mean(comparison, engine, found.site))
    if "components" in comparison.draws[engine]:
        return selection.mean(comparison, engine, "components")[:, 0]
    return None


def _strips(
    comparison: "Comparison",
    engine: str,
    profile: np.ndarray,
    order: np.ndarray,
    low: float,
    high: float,
) -> Figure:
    columns = profile.shape[1]
    edges = np.unique(np.linspace(0, columns, min(columns, MAX_CELLS) + 1).round().astype(int))
    left, tall = 34, max(12, min(24, 240 / len(profile)))
    x = Scale(0, columns, left, WIDTH - 8)
    parts = []
    for row, one in enumerate(profile):
        parts.append(
            svg.text(left - 6, 8 + tall * (row + 0.5) + 4, str(order[row] + 1), "tick", "end")
        )
        for start, end in itertools.pairwise(edges.tolist()):
            value = float(one[start:end].mean())
            level = round(10 * min(1.0, max(0.0, (value - low) / (high - low or 1.0))))
            name = selection.column_name(comparison, int(start)) + (
                "" if end - start == 1 else f" to {selection.column_name(comparison, int(end) - 1)}"
            )
            wide = float(x(end) - x(start))
            parts.append(
                svg.rectangle(
                    float(x(start)),
                    8 + tall * row,
                    wide + 0.3,
                    tall - 2,
                    f"h{level}",
                    f"component {order[row] + 1}, {name}: {number(value)}",
                )
            )
    bottom = 8 + tall * len(profile)
    scale = f"column, 1 to {columns}; faint {number(low)}, strong {number(high)}"
    parts.append(svg.text((left + WIDTH) / 2, bottom + 14, scale, "label", "middle"))
    words = f"Profiles of {len(profile)} of {len(order)} components by {engine} over {columns} columns, "
    words += f"from {number(low)} (faint) to {number(high)} (strong)."
    return Figure(engine, svg.of(engine, *parts), WIDTH, bottom + 20, words, "profile")


# The grid posterior -----------------------------------------------------------------------------------------------------------


def grids(comparison: "Comparison") -> list[Figure]:
    """Hyper-parameters on a grid (inla) over the reference's draws of them, on log scales."""
    found = []
    for engine in selection.shown(comparison):
        posterior = getattr(comparison.fits.get(engine), "posterior", None)
        if (
            posterior is None
            or posterior.kind != "mixture"
            or len(posterior.weights) < 2
            or not len(posterior.names)
        ):
            continue
        theta = np.asarray(posterior.theta, float).reshape(len(posterior.weights), -1)
        weights = np.asarray(posterior.weights, float)
        found.append(
            _line_grid(comparison, engine, posterior.names, theta[:, 0], weights)
            if theta.shape[1] == 1
            else _plane(comparison, engine, posterior)
        )
    return found


def _log_draws(comparison: "Comparison", name: str) -> np.ndarray | None:
    """The reference's finite draws of the logarithm of a hyper-parameter."""
    draws = comparison.draws.get(comparison.reference or "", {}).get(name)
    if draws is None or len(draws) < 3:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.asarray(draws, np.float64).reshape(len(draws), -1)[:, 0])


def _line_grid(
    comparison: "Comparison", engine: str, names: Any, theta: np.ndarray, weights: np.ndarray
) -> Figure:
    """One hyper-parameter: weights over cells as a density of log theta, over the histogram of the reference's draws."""
    name, height = names[0], 230
    order = np.argsort(theta)
    theta, weights = theta[order], weights[order]
    cells = np.gradient(theta) if len(theta) > 1 else np.ones(1)
    density = weights / np.maximum(cells, 1e-12)
    draws = _log_draws(comparison, name)
    finite = np.empty(0) if draws is None else draws[np.isfinite(draws)]
    bars, edges = (
        np.histogram(finite, bins=25, density=True)
        if len(finite) > 2
        else (np.zeros(0), np.zeros(1))
    )
    x = make_scale(
        np.exp([*theta, *(np.quantile(finite, (0.005, 0.995)) if finite.size else [])]),
        12,
        WIDTH - 12,
        log=True,
    )
    y = Scale(0, 1.1 * max([*density, *bars]), height - 40, 10)
    middle = lambda value: float(x(x.clip(np.exp(value))))  # noqa: E731
    parts = [
        svg.line(x.start, y.start, x.end, y.start, "axis"),
        svg.x_axis(x, y.start, f"{plain(name)} (log scale)"),
    ]
    drawn = [
        svg.rectangle(
            middle(a),
            float(y(bar)),
            middle(b) - middle(a),
            y.start - float(y(bar)),
            "fill",
            f"{comparison.reference}: {number(np.exp(a))} to {number(np.exp(b))}",
        )
        for a, b, bar in zip(edges[:-1], edges[1:], bars, strict=True)
    ]
    parts.append(svg.of(comparison.reference or "", *drawn))
    stems = svg.segments(x(np.exp(theta)), y.start, x(np.exp(theta)), y(density), "thin")
    marks = [
        svg.mark(
            engine,
            float(x(np.exp(t))),
            float(y(d)),
            f"{plain(name)} = {number(np.exp(t))}: weight {w:.3f}",
        )
        for t, d, w in zip(theta, density, weights, strict=True)
    ]
    parts.append(svg.of(engine, stems, svg.path(x(np.exp(theta)), y(density), "l"), *marks))
    return Figure(
        f"{engine}: {plain(name)} on {len(theta)} points",
        "".join(parts),
        WIDTH,
        height,
        _grid_words(comparison, engine, (name,), theta[:, None], weights),
        "gridded",
    )


def _plane(comparison: "Comparison", engine: str, posterior: Any) -> Figure:
    """Two hyper-parameters: grid points of area in proportion to their weight, over contours of the reference's draws."""
    names, theta, weights = (
        posterior.names[:2],
        np.asarray(posterior.theta, float)[:, :2],
        np.asarray(posterior.weights, float),
    )
    draws = [found for name in names if (found := _log_draws(comparison, name)) is not None]
    seen = np.stack(draws, 1) if len(draws) == 2 else np.empty((0, 2))
    seen = seen[np.isfinite(seen).all(1)]
    heavy = theta[weights > 1e-3 * weights.max()]
    ends = (
        np.concatenate([heavy, np.quantile(seen, (0.005, 0.995), axis=0)])
        if len(seen) > 10
        else heavy
    )
    y = make_scale(np.exp(ends[:, 1]), SIZE - 40, 28, log=True)
    x = make_scale(np.exp(ends[:, 0]), svg.margin(y), SIZE + 30, log=True)
    parts = [svg.frame(x, y, f"{plain(names[0])} (log scale)", f"{plain(names[1])} (log scale)")]
    parts.append(svg.of(comparison.reference or "", _contours(seen, x, y)))
    radius = 11 * np.sqrt(weights / weights.max())
    dots = []
    for point, weight, r in zip(theta, weights, radius, strict=True):
        tip = f"{plain(names[0])} = {number(np.exp(point[0]))}, {plain(names[1])} = {number(np.exp(point[1]))}: weight {weight:.3f}"
        here, there = float(x(np.exp(point[0]))), float(y(np.exp(point[1])))
        if r > 0.4 and x.start <= here <= x.end and y.end <= there <= y.start:
            dots.append(
                f'<circle class="dot" cx="{here:.1f}" cy="{there:.1f}" r="{r:.1f}">{svg.title(tip)}</circle>'
            )
    parts.append(svg.of(engine, *dots))
    title = f"{engine}: {len(weights)} grid points" + (
        f" over contours of {comparison.reference}" if len(seen) > 10 else ""
    )
    return Figure(
        title,
        "".join(parts),
        SIZE + 40,
        SIZE,
        _grid_words(comparison, engine, names, theta, weights),
        "gridded",
    )


def _contours(draws: np.ndarray, x: Scale, y: Scale) -> str:
    """Contours of a kernel density of log draws (n, 2) that hold `CONTOURS` of them."""
    if len(draws) <= 10 or np.linalg.matrix_rank(np.cov(draws.T)) < 2:
        return ""
    few = draws[svg.thin(len(draws), 500)]
    levels = np.quantile(kernel_density(few, few), 1 - np.array(CONTOURS))
    a, b = (np.linspace(np.log(scale.low), np.log(scale.high), 50) for scale in (x, y))
    height = kernel_density(few, np.stack(np.meshgrid(a, b), -1).reshape(-1, 2)).reshape(50, 50)
    lines = contour_generator(a, b, height)
    parts = []
    for share, level in zip(CONTOURS, levels, strict=True):
        for one in map(np.asarray, lines.lines(float(level))):
            parts.append(
                svg.path(
                    x(np.exp(one[:, 0])),
                    y(np.exp(one[:, 1])),
                    "contour",
                    f"holds {share:.0%} of the reference's draws",
                )
            )
    return "".join(parts)


def _grid_words(
    comparison: "Comparison", engine: str, names: Any, theta: np.ndarray, weights: np.ndarray
) -> str:
    said = []
    for i, name in enumerate(names):
        mean = np.average(theta[:, i], weights=weights)
        sd = np.sqrt(np.average((theta[:, i] - mean) ** 2, weights=weights))
        draws = _log_draws(comparison, name)
        known = (
            ""
            if draws is None
            else f" ({comparison.reference}: {np.nanmean(draws):.2f} ± {np.nanstd(draws):.2f})"
        )
        said.append(f"log {name} {mean:.2f} ± {sd:.2f}{known}")
    return f"Posterior of {' and '.join(names)} on a grid of {len(weights)} points by {engine}: {'; '.join(said)}."
