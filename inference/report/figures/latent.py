"""Maps of latent locations, and profiles of mixture components.

Locations are known up to a rotation. Draws are aligned to one pivot, so the maps of engines can be
compared. A map shows the first two principal axes of the reference's means.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np

from inference.comparison.compare import Comparison
from inference.report import selection, svg
from inference.report.svg import WIDTH, Figure, Scale, make_scale, number

MAX_POINTS = 60  # of a map
MAX_ELLIPSES = 5
MAX_CELLS = 48  # columns of a heat strip
MAX_COMPONENTS = 12
SIZE = 300


class Axes(NamedTuple):
    """The plane of a map: its origin, two directions, and their shares of the variance."""

    origin: np.ndarray
    directions: np.ndarray
    shares: np.ndarray

    def project(self, locations: Any) -> np.ndarray:
        return (np.asarray(locations, np.float64) - self.origin) @ self.directions


class Plane(NamedTuple):
    """What the maps of a site share. pick: rows shown, special: rows with an ellipse and a name."""

    site: str
    axes: Axes
    x: Scale
    y: Scale
    pick: np.ndarray
    special: list[int]

    def place(self, point: np.ndarray) -> tuple[float, float]:
        return self.x.clip(point[0]), self.y.clip(point[1])


def located(comparison: Comparison) -> list[str]:
    """Sites of two or more dimensions that are known up to a rotation or decide votes."""
    draws = comparison.draws.get(selection.anchor(comparison) or "", {})
    names = dict.fromkeys((*comparison.model.rotation.sites, "d2", "s"))
    sites = [site for site in names if site in draws and draws[site].ndim == 3]
    return [site for site in sites if min(draws[site].shape[1:]) >= 2]


def principal_axes(locations: np.ndarray) -> Axes:
    """The two directions in which locations (n, dimensions) spread most.

    Signs are such that the largest entry of each direction is positive.
    """
    origin = locations.mean(0)
    _, sizes, rows = np.linalg.svd(locations - origin, full_matrices=False)
    rows = rows[:2] * np.sign([row[np.argmax(np.abs(row))] for row in rows[:2]])[:, None]
    shares = sizes**2 / max(float(np.sum(sizes**2)), 1e-300)
    return Axes(origin, rows.T, shares[:2])


def maps(comparison: Comparison) -> dict[str, list[Figure]]:
    """Site -> one map per engine: its means, tied to those of the reference."""
    found = {}
    for site in located(comparison)[:3]:
        engine = str(selection.anchor(comparison))
        base = selection.mean(comparison, engine, site)
        axes = principal_axes(base)
        points = axes.project(base)
        if len(points) >= 2 and np.ptp(points, axis=0).min() > 0:
            found[site] = _maps(comparison, engine, site, axes, points)
    return found


def _maps(comparison: Comparison, engine: str, site: str, axes: Axes, points: np.ndarray):
    outer = np.argsort(-np.sum(points**2, 1), kind="stable")
    half = MAX_POINTS // 2
    pick = np.unique([*outer[:half], *outer[svg.thin(len(outer), half)]])
    special = outer[svg.thin(min(len(outer), 30), MAX_ELLIPSES)].tolist()
    means = {
        other: axes.project(selection.mean(comparison, other, site))
        for other in selection.shown(comparison)
        if site in comparison.draws[other]
    }
    reach = 0.35 * np.ptp(points, axis=0)
    low, high = points.min(0) - reach, points.max(0) + reach
    draws = axes.project(comparison.draws[engine][site][:, special])
    spread = np.nanstd(draws, axis=0)  # room for the ellipses
    inside = [np.clip(one[pick], low, high) for one in means.values()]
    every = np.concatenate([points[special] - spread, points[special] + spread, *inside])
    y = make_scale(every[:, 1], SIZE - 40, 28, pad=0.08)
    x = make_scale(every[:, 0], svg.margin(y), SIZE + 30, pad=0.08)
    plane = Plane(site, axes, x, y, pick, special)
    rest = [other for other in means if other != engine] or [engine]
    return [_map(comparison, plane, {engine: points, other: means[other]}) for other in rest]


def _map(comparison: Comparison, plane: Plane, means: dict[str, np.ndarray]) -> Figure:
    """The means of the reference, and those of one other engine."""
    site, pick, shares = plane.site, plane.pick, plane.axes.shares
    (engine, base), *rest = means.items()
    other, moved = rest[-1] if rest else (engine, base)
    labels = [f"axis {i + 1} ({share:.0%} of the spread)" for i, share in enumerate(shares)]
    ties = np.array([(*plane.place(base[i]), *plane.place(moved[i])) for i in pick])
    x1, y1, x2, y2 = ties.T
    parts = [svg.frame(plane.x, plane.y, *labels), svg.segments(x1, y1, x2, y2, "tie")]
    for name, points in means.items():
        drawn = [_outline(comparison, plane, name, points, row) for row in plane.special]
        for row in pick.tolist():
            tip = f"{name} ({', '.join(map(number, points[row]))})"
            tip = f"{selection.row_label(comparison, site, row)}: {tip}"
            drawn.append(svg.mark(name, *plane.place(points[row]), tip))
        parts.append(svg.of(name, *drawn))
    if (names := selection.names_of(comparison, site)) is not None:
        parts += _labels(plane, base, names)
    apart = np.sqrt(np.mean(np.sum((moved[pick] - base[pick]) ** 2, 1)))
    words = f"Map of {site} in the first two principal axes of {engine}'s means, which hold "
    words += f"{shares.sum():.0%} of their spread: {len(pick)} of {len(base)} points. {other}'s "
    words += f"lie {number(apart)} from {engine}'s on average (root mean square)."
    title = other if other == engine else f"{other} on {engine}"
    return Figure(title, parts, SIZE + 40, SIZE, words, "map")


def _labels(plane: Plane, points: np.ndarray, names: Any) -> list[str]:
    """Names of special points, on the side that has room. One that would overlap is left out."""
    boxes: list[tuple[float, float, float]] = []
    found = []
    for row in plane.special:
        (x, y), name = plane.place(points[row]), svg.cut(str(names[row]), 110)
        right = x < (plane.x.start + plane.x.end) / 2
        anchor, side, width = ("start", x + 7, 0) if right else ("end", x - 7, len(name))
        start = side - svg.CHARACTER * width
        end = start + svg.CHARACTER * len(name)
        if not any(start < b and a < end and abs(y - level) < 13 for a, b, level in boxes):
            boxes.append((start, end, y))
            found.append(svg.text(side, y - 6, name, "note", anchor))
    return found


def _outline(comparison: Comparison, plane: Plane, engine: str, means, row: int) -> str:
    """An ellipse of one standard deviation of the engine's draws; none for a point."""
    draws = plane.axes.project(comparison.draws[engine][plane.site][:, row])
    draws = draws[np.isfinite(draws).all(1)]
    if len(draws) < 3:
        return ""
    covariance = np.cov([plane.x(draws[:, 0]), plane.y(draws[:, 1])])
    if np.sqrt(covariance.max()) > SIZE:
        return ""
    return svg.ellipse([plane.x(means[row, 0]), plane.y(means[row, 1])], covariance, "outline")


def profiles(comparison: Comparison) -> list[Figure]:
    """Mixtures of dense rows: each component's profile over the columns as a strip."""
    if comparison.data.kind != "dense" or comparison.model.symmetry != "permutation":
        return []
    means = {engine: _profiles(comparison, engine) for engine in selection.shown(comparison)}
    means = {engine: found for engine, found in means.items() if found is not None}
    anchor = selection.anchor(comparison)
    if anchor not in means:
        return []
    order = np.arange(len(means[anchor]))
    if "pi" in comparison.draws[anchor]:
        order = np.argsort(-selection.mean(comparison, anchor, "pi"), kind="stable")
    ends = float(means[anchor].min()), float(means[anchor].max())
    return [_strips(comparison, engine, means[engine], order, *ends) for engine in means]


def _profiles(comparison: Comparison, engine: str) -> Any:
    """Probabilities or means, (K, columns). A Normal-Wishart site holds the mean in row 0."""
    found = selection.topics(comparison)
    if found is not None:
        return found.rows(selection.mean(comparison, engine, found.site))
    if "components" in comparison.draws[engine]:
        return selection.mean(comparison, engine, "components")[:, 0]
    return None


def _strips(comparison, engine: str, profile: np.ndarray, order, low, high) -> Figure:
    columns, rows = profile.shape[1], order[:MAX_COMPONENTS].tolist()
    edges = np.unique(np.linspace(0, columns, min(columns, MAX_CELLS) + 1).round().astype(int))
    left, tall = 34, max(12, min(24, 240 / len(rows)))
    x = Scale(0, columns, left, WIDTH - 8)
    parts = []
    for place, component in enumerate(rows):
        top, owner = 8 + tall * place, f"component {component + 1}"
        parts.append(svg.text(left - 6, top + tall / 2 + 4, str(component + 1), "tick", "end"))
        for start, end in itertools.pairwise(edges.tolist()):
            value = float(profile[component, start:end].mean())
            level = round(10 * np.clip((value - low) / (high - low or 1.0), 0, 1))
            name = selection.column_name(comparison, start)
            if end - start > 1:
                name += f" to {selection.column_name(comparison, end - 1)}"
            size, tip = (x(end) - x(start) + 0.3, tall - 2), f"{owner}, {name}: {number(value)}"
            parts.append(svg.rectangle(x(start), top, *size, f"h{level}", tip))
    bottom = 8 + tall * len(rows)
    scale = f"column, 1 to {columns}; faint {number(low)}, strong {number(high)}"
    parts.append(svg.text((left + WIDTH) / 2, bottom + 14, scale, "label", "middle"))
    words = f"Profiles of {len(rows)} of {len(order)} components by {engine} over {columns} "
    words += f"columns, from {number(low)} (faint) to {number(high)} (strong)."
    return Figure(engine, [svg.of(engine, *parts)], WIDTH, bottom + 20, words, "profile")
