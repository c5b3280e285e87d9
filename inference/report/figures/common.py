"""The figures that every comparison has: bounds and scores against time, forests, densities, widths and means.

Each function returns figures, possibly none. Engines are drawn in the order of the table, each with its own colour, dash and marker; the reference's
densities are filled. A figure's words say what is seen with its main numbers.
"""

import collections
from typing import TYPE_CHECKING, Any

import numpy as np

from inference.report import selection, svg
from inference.report.svg import WIDTH, Figure, Scale, make_scale, number
from inference.report.typeset import plain

if TYPE_CHECKING:
    from inference.comparison.compare import Comparison
    from inference.report.selection import Quantity

MAX_CURVE = 120  # points of a curve
FIRST_STEPS = 4  # of a fit, in which programs are compiled
MAX_POINTS = 80  # of a scatter plot
MAX_SITES = 2  # whose means are scattered
GRID = 90  # points of a density
TALLEST = 5.0  # times the anchor's density, where higher ones are cut
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
HEIGHT = 230
TOP = 28


# Against time -----------------------------------------------------------------------------------------------------------------


def bounds(comparison: "Comparison") -> list[Figure]:
    """ELBO curves against wall time: the whole run, and its end, where engines differ by little, with the log evidence where it is known."""
    curves = {
        engine: bound_curve(comparison.fits[engine])
        for engine in selection.shown(comparison)
        if engine in comparison.fits
    }
    curves = {engine: curve for engine, curve in curves.items() if len(curve[0])}
    if not curves:
        return []
    evidence = (comparison.summary.get("evidence") or {}).get("log_evidence")
    smooth = {
        engine: (seconds, _running_median(bound)) for engine, (seconds, bound) in curves.items()
    }
    finals = [float(bound[-1]) for _, bound in smooth.values()]
    best = max(finals)
    ends = ", ".join(f"{engine} {bound[-1]:.1f}" for engine, (_, bound) in curves.items())
    words = f"Lower bound against wall time; it ends at {ends}" + (
        f"; the log evidence is {evidence:.1f}." if evidence is not None else "."
    )
    lows = [float(bound[0]) for _, bound in curves.values()]
    near = max(1.6 * (best - min(finals)), 0.02 * (best - min(lows)), 1e-3 * abs(best), 1e-6)
    top = max(best, evidence) if evidence is not None and evidence - best < 4 * near else best
    whole = [
        *np.concatenate([bound for _, bound in curves.values()]),
        *([evidence] if evidence is not None else []),
    ]
    return [
        _curves(
            "The whole run",
            curves,
            make_scale(whole, HEIGHT - 40, TOP),
            evidence,
            "bound (nats)",
            words,
        ),
        _curves(
            "Near the end (running medians)",
            smooth,
            Scale(best - near, top + 0.3 * near, HEIGHT - 40, TOP),
            evidence,
            "bound (nats)",
            f"Close up. {words}",
        ),
    ]


def bound_curve(fit: Any) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and bounds where there is a bound, thinned. What compiles, the first step and early ones far longer than usual, counts as usual."""
    if fit.posterior.kind not in ("variational", "mixture") or "bound" not in fit.history:
        return np.empty(0), np.empty(0)
    seconds, bound = (
        np.asarray(fit.history["seconds"], float),
        np.asarray(fit.history["bound"], float),
    )
    steps = np.diff(seconds, prepend=0.0)
    usual = np.median(steps[1:]) if len(steps) > 1 else 0.0
    order = np.arange(len(steps))
    compiles = (order == 0) | ((order < FIRST_STEPS) & (steps > max(20 * usual, 0.2)))
    seconds = np.maximum(np.cumsum(np.where(compiles, usual, steps)), 1e-4)
    place = np.flatnonzero(np.isfinite(bound))
    place = place[svg.thin(len(place), MAX_CURVE)]
    return seconds[place], bound[place]


def _running_median(bound: np.ndarray, window: int = 11) -> np.ndarray:
    """The median of each bound and its neighbours: stochastic engines estimate theirs with noise. Short curves stay as they are."""
    if len(bound) < 4 * window:
        return bound
    padded = np.pad(bound, window // 2, constant_values=np.nan)
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, window), axis=-1)


def _curves(
    title: str, curves: dict[str, Any], y: Scale, level: float | None, y_label: str, words: str
) -> Figure:
    """Lines against seconds on a log scale, cut off where they leave the axes; a level is a line across."""
    left = svg.margin(y)
    x = make_scale(
        np.concatenate([seconds for seconds, _ in curves.values()]), left, WIDTH - 12, log=True
    )
    parts = [svg.frame(x, y, "seconds after compilation", y_label)]
    if level is not None and y.low <= level <= y.high:
        parts.append(
            svg.line(
                x.start,
                float(y(level)),
                x.end,
                float(y(level)),
                "level",
                f"log evidence {level:,.1f}",
            )
        )
        parts.append(svg.text(x.end, float(y(level)) - 4, "log evidence", "note", "end"))
    for engine, (seconds, values) in curves.items():
        inside = np.where((values >= y.low) & (values <= y.high), values, np.nan)
        tips = [
            f"{engine}: {number(value)} after {number(second)} s"
            for second, value in zip(seconds, values, strict=True)
        ]
        few = svg.thin(len(values), 12)
        marks = [svg.mark(engine, float(x(seconds[i])), float(y(inside[i])), tips[i]) for i in few]
        parts.append(svg.of(engine, svg.path(x(seconds), y(inside), "l"), *marks))
    return Figure(title, "".join(parts), WIDTH, HEIGHT, words, "bounds")


def heldout(comparison: "Comparison") -> list[Figure]:
    """Held-out score against wall time: a curve where there is one, and the final score with its standard error at the end of the fit."""
    rows = {
        engine: row
        for engine, row in comparison.summary["engines"].items()
        if row.get("heldout") is not None and row.get("seconds")
    }
    if not rows:
        return []
    curves = {
        engine: np.asarray(row.get("heldout_curve") or [[np.nan, np.nan]], float).reshape(-1, 2)
        for engine, row in rows.items()
    }
    ends = np.array(
        [(row["seconds"], row["heldout"], row.get("heldout_se") or 0.0) for row in rows.values()],
        float,
    )
    scores = np.concatenate(
        [
            ends[:, 1] - ends[:, 2],
            ends[:, 1] + ends[:, 2],
            *(curve[:, 1] for curve in curves.values()),
        ]
    )
    finite = scores[np.isfinite(scores)]
    usual, best = np.median(ends[:, 1]), ends[:, 1].max()
    climbs = [
        best - np.nanmin(curve[:, 1]) for curve in curves.values() if np.isfinite(curve[:, 1]).any()
    ] or [0.0]
    room = max(
        4 * (best - usual), 6 * np.median(ends[:, 2]), 0.25 * np.median(climbs), 1e-3
    )  # first steps and failures would hide the rest
    y = make_scale([max(usual - room, finite.min()), finite.max()], HEIGHT - 40, TOP)
    x = make_scale(
        np.concatenate([ends[:, 0], *(curve[:, 0] for curve in curves.values())]),
        svg.margin(y),
        WIDTH - 12,
        log=True,
    )
    parts = [svg.frame(x, y, "seconds of fitting", "nats per held-out entry")]
    for (engine, curve), (seconds, score, error) in zip(curves.items(), ends, strict=True):
        curve = curve[svg.thin(len(curve), MAX_CURVE)]
        inside = np.where(curve[:, 1] >= y.low, curve[:, 1], np.nan)
        shown = svg.path(x(curve[:, 0]), y(inside), "l") if len(curve) > 1 else ""
        bar = (
            svg.segments(
                x(seconds), y(y.clip(score - error)), x(seconds), y(y.clip(score + error)), "bar"
            )
            if error
            else ""
        )
        tip = (
            f"{engine}: {score:.4f}"
            + (f" ± {error:.4f}" if error else "")
            + f" after {number(seconds)} s"
        )
        parts.append(
            svg.of(
                engine,
                shown,
                bar,
                svg.mark(engine, float(x(seconds)), float(y(y.clip(score))), tip),
            )
        )
    words = "Held-out score against wall time, larger is better: " + ", ".join(
        f"{engine} {row['heldout']:.3f} after {row['seconds']:.1f} s"
        for engine, row in rows.items()
    )
    return [Figure("Held-out score", "".join(parts), WIDTH, HEIGHT, words + ".", "heldout")]


# Parameters -------------------------------------------------------------------------------------------------------------------


def forests(comparison: "Comparison") -> list[Figure]:
    """Medians with 50% and 90% intervals of the chosen quantities, all engines in one axis."""
    found = []
    for heading, quantities in selection.chosen(comparison).items():
        starts = range(0, len(quantities), MOST_ROWS)
        for place, start in enumerate(starts):
            part = f" ({place + 1}/{len(starts)})" if len(starts) > 1 else ""
            found.append(_forest(comparison, heading + part, quantities[start : start + MOST_ROWS]))
    return found


MOST_ROWS = 6  # of a forest


def _forest(comparison: "Comparison", heading: str, quantities: "list[Quantity]") -> Figure:
    engines = selection.shown(comparison)
    apart = 9 if len(engines) <= 5 else 6.5
    tall = apart * len(engines) + 8
    bottom = TOP - 10 + tall * len(quantities)
    levels = {
        (engine, i): _levels(selection.values(comparison, engine, one))
        for engine in engines
        for i, one in enumerate(quantities)
    }
    truths = [selection.true_value(comparison, one) for one in quantities]
    everything = _middle(np.array([*levels.values()]), comparison, len(quantities), levels)
    left = min(130.0, 12 + svg.CHARACTER * max(len(one.label) for one in quantities))
    everything = np.array([*everything, *(value for value in truths if value is not None)])
    apart_in_size = (
        heading.startswith("Hyper")
        and everything.size > 0
        and bool(everything.min() > 0 and everything.max() > 10 * everything.min())
    )
    x = make_scale(everything, left, WIDTH - 10, log=apart_in_size)
    parts = []
    for i, one in enumerate(quantities):
        middle = TOP - 10 + tall * (i + 0.5)
        if i % 2 == 0:
            parts.append(svg.rectangle(0, middle - tall / 2, WIDTH, tall, "stripe"))
        parts.append(svg.text(left - 6, middle + 4, svg.cut(one.label, left - 8), "tick", "end"))
    parts.append(svg.line(x.start, bottom, x.end, bottom, "axis") + svg.x_axis(x, bottom))
    for place, engine in enumerate(engines):
        offset = apart * (place - (len(engines) - 1) / 2)
        drawn = [
            _interval(x, TOP - 10 + tall * (i + 0.5) + offset, engine, one.label, levels[engine, i])
            for i, one in enumerate(quantities)
        ]
        parts.append(svg.of(engine, *drawn))
    for i, value in enumerate(truths):
        if value is not None:
            here, middle = float(x(value)), TOP - 10 + tall * (i + 0.5)
            parts.append(
                svg.line(
                    here,
                    middle - tall / 2 + 2,
                    here,
                    middle + tall / 2 - 2,
                    "truth",
                    f"truth of {quantities[i].label}: {number(value)}",
                )
            )
    return Figure(
        heading,
        "".join(parts),
        WIDTH,
        bottom + 24,
        _forest_words(comparison, heading, quantities, levels),
        "forest",
    )


def _middle(
    levels: np.ndarray, comparison: "Comparison", count: int, by_engine: dict[Any, np.ndarray]
) -> np.ndarray:
    """The ends of the axis. An engine far off must not squeeze the others to a point: at most three times the width of the anchor's."""
    found = levels[np.isfinite(levels)]
    engine = selection.anchor(comparison)
    inner = np.array([by_engine[engine, i] for i in range(count)])
    inner = inner[np.isfinite(inner)]
    if not found.size or not inner.size or np.ptp(inner) == 0:
        return found
    reach = 1.5 * np.ptp(inner)
    return np.clip(found, inner.min() - reach, inner.max() + reach)


def _levels(values: np.ndarray) -> np.ndarray:
    return np.quantile(values, LEVELS) if values.size else np.full(len(LEVELS), np.nan)


def _interval(x: Scale, y: float, engine: str, label: str, levels: np.ndarray) -> str:
    """Thin from 5% to 95%, thick over the middle half, the marker at the median. A point is its marker alone."""
    if not np.isfinite(levels).all():
        return ""
    low, quarter, half, three, high = (float(x(level)) for level in x.clip(levels))
    if levels[0] == levels[-1]:
        return svg.mark(engine, half, y, f"{engine}, {label}: {number(levels[2])}")
    tip = f"{engine}, {label}: {number(levels[2])}, 90% from {number(levels[0])} to {number(levels[4])}"
    return (
        svg.line(low, y, high, y, "bar")
        + svg.line(quarter, y, three, y, "thick")
        + svg.mark(engine, half, y, tip)
    )


def _forest_words(
    comparison: "Comparison",
    heading: str,
    quantities: "list[Quantity]",
    levels: dict[Any, np.ndarray],
) -> str:
    engine = selection.anchor(comparison)
    said = [
        f"{one.label} {number(levels[engine, i][2])}"
        for i, one in enumerate(quantities[:6])
        if np.isfinite(levels[engine, i]).all()
    ]
    points = all(selection.is_point(draws) for draws in comparison.draws.values())
    kind = "Point estimates" if points else "Medians with 50% and 90% intervals"
    return f"{heading}. {kind} by {', '.join(selection.shown(comparison))}. Those of {engine}: {', '.join(said)}."


def densities(comparison: "Comparison") -> list[Figure]:
    """The chosen quantities' posterior densities, all engines in one axis; points and truths are vertical lines."""
    picked = [
        (heading, one)
        for heading, group in selection.chosen(comparison).items()
        for one in _densest(group)
    ]
    return [
        figure
        for heading, one in picked
        if (figure := _density(comparison, heading, one)) is not None
    ]


def _densest(group: "list[Quantity]") -> "list[Quantity]":
    """At most six of a group: with topics the first words of each."""
    return group if len(group) <= 6 else [one for i, one in enumerate(group) if i % 3 < 2][:6]


def _density(comparison: "Comparison", heading: str, quantity: "Quantity") -> Figure | None:
    engines, height = selection.shown(comparison), 170
    draws = {engine: selection.values(comparison, engine, quantity) for engine in engines}
    draws = {engine: values for engine, values in draws.items() if values.size}
    wide = {
        engine: values for engine, values in draws.items() if len(values) > 1 and np.ptp(values) > 0
    }
    if not wide:
        return None  # points alone are in the forest
    truth = selection.true_value(comparison, quantity)
    x = make_scale(
        _support(draws, wide, selection.anchor(comparison), truth), 12, WIDTH - 12, pad=0.02
    )
    curves = {engine: _smooth(values, x) for engine, values in wide.items()}
    y = Scale(0, 1.08 * _tallest(curves, selection.anchor(comparison)), height - 26, 8)
    parts = [svg.line(x.start, y.start, x.end, y.start, "axis"), svg.x_axis(x, y.start)]
    for engine in draws:
        parts.append(
            svg.of(
                engine,
                _density_mark(
                    comparison, engine, draws[engine], curves.get(engine), x, y, quantity.label
                ),
            )
        )
    if truth is not None:
        parts.append(
            svg.line(
                float(x(truth)), y.start, float(x(truth)), y.end, "truth", f"truth: {number(truth)}"
            )
        )
        parts.append(svg.text(float(x(truth)) + 4, y.end + 8, "truth", "note"))
    said = ", ".join(
        f"{engine} {number(values.mean())}"
        + (f" ± {number(values.std())}" if len(values) > 1 else "")
        for engine, values in draws.items()
    )
    words = f"Densities of {quantity.label} ({heading}). Mean and sd: {said}" + (
        f"; truth {number(truth)}." if truth is not None else "."
    )
    return Figure(quantity.label, "".join(parts), WIDTH, height, words, "density")


def _support(
    draws: dict[str, np.ndarray],
    wide: dict[str, np.ndarray],
    engine: str | None,
    truth: float | None,
) -> list[float]:
    """Where the axis ends: what all engines reach, but no further than six sds of the anchor from its mean."""
    values = [
        float(value)
        for one in draws.values()
        for value in (np.quantile(one, 0.002), np.quantile(one, 0.998))
    ]
    values += [] if truth is None else [truth]
    if engine not in wide:
        return values
    centre, width = wide[engine].mean(), 6 * wide[engine].std()
    return [float(value) for value in np.clip(values, centre - width, centre + width)]


def _tallest(curves: dict[str, np.ndarray], engine: str | None) -> float:
    """The top of the axis: of the highest curve, but no higher than `TALLEST` times the anchor's, which a spike would press flat."""
    tops = {name: float(curve[1].max()) for name, curve in curves.items() if curve.size}
    highest = max(tops.values(), default=1.0) or 1.0
    return min(highest, TALLEST * tops[engine]) if engine in tops and tops[engine] > 0 else highest


def _smooth(values: np.ndarray, x: Scale) -> np.ndarray:
    """(2, points): where on the axis the draws reach, and their kernel density there. A positive parameter has none below zero."""
    few = values[svg.thin(len(values), 800)]
    low, high = max(x.low, values.min()), min(x.high, values.max())
    if high <= low or np.std(few) <= 1e-9 * np.abs(few).max():
        return np.empty((2, 0))
    grid = np.linspace(
        low, high, GRID
    )  # of its own: on one for all, narrow posteriors would fall between two points
    return np.stack([grid, kernel_density(few[:, None], grid[:, None])])


def kernel_density(draws: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Gaussian kernels of the draws' own covariance, by Scott's rule, at points (m, d). SciPy's solves a threaded system for each call."""
    number, size = draws.shape
    root = np.linalg.cholesky(np.cov(draws.T).reshape(size, size)) * number ** (-1 / (size + 4))
    unit = np.linalg.inv(root).T
    apart = ((points @ unit)[:, None] - (draws @ unit)[None]) ** 2
    return np.exp(-apart.sum(-1) / 2).mean(1) / (np.prod(np.diag(root)) * (2 * np.pi) ** (size / 2))


def _density_mark(
    comparison: "Comparison",
    engine: str,
    values: np.ndarray,
    curve: np.ndarray | None,
    x: Scale,
    y: Scale,
    label: str,
) -> str:
    """A curve with its marker on the top; a line for a point; the marker alone, at the end of the axis, for draws beyond it."""
    if curve is None:
        here = float(x(x.clip(values[0])))
        return svg.line(here, y.start, here, y.end + 14, "l") + svg.mark(
            engine, here, y.end + 14, f"{engine}, {label}: {number(values[0])}, a point"
        )
    tip = f"{engine}, {label}: {number(values.mean())} ± {number(values.std())}"
    if not curve.size:
        return svg.mark(engine, float(x(x.clip(values.mean()))), y.start, tip)
    grid, height = x(curve[0]), y(y.clip(curve[1]))
    top = int(np.argmax(curve[1]))
    drawn = svg.path(grid, np.where(curve[1] > 2e-3 * curve[1].max(), height, np.nan), "l")
    drawn += svg.mark(engine, float(grid[top]), float(height[top]), tip)
    if engine == comparison.reference:
        drawn = (
            svg.path([grid[0], *grid, grid[-1]], [y.start, *height, y.start], "fill", closed=True)
            + drawn
        )
    return drawn


# Agreement --------------------------------------------------------------------------------------------------------------------


def _global(comparison: "Comparison", site: str) -> Any:
    """The quantities of one site."""
    table = comparison.quantities
    return table.isel(quantity=np.flatnonzero(np.asarray(table["site"]) == site))


def _sites(comparison: "Comparison") -> list[str]:
    """The global sites that were compared, the one with most quantities first."""
    size: collections.Counter[str] = collections.Counter(
        np.asarray(comparison.quantities["site"]).tolist()
    )
    return sorted(
        (site for site in comparison.model.shared if site in size), key=lambda site: -size[site]
    )


def widths(comparison: "Comparison") -> list[Figure]:
    """Posterior sd over the reference's, per global site: median, middle half and middle nine tenths over its entries."""
    if comparison.reference is None:
        return []
    figures = []
    for site in _sites(comparison)[:4]:
        part = _global(comparison, site)
        ratios = {}
        for engine in selection.others(comparison):
            ratio = np.asarray(part["sd_ratio"].sel(engine=engine), float)
            ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
            if ratio.size:
                ratios[engine] = np.quantile(ratio, LEVELS)
        if ratios:
            figures.append(_width(comparison, site, ratios, part.sizes["quantity"]))
    return figures


def _width(
    comparison: "Comparison", site: str, ratios: dict[str, np.ndarray], count: int
) -> Figure:
    left, tall = 12 + svg.CHARACTER * max(len(engine) for engine in ratios), 26
    bottom = 12 + tall * len(ratios)
    found = np.clip(np.concatenate([*ratios.values(), [0.45, 1.3]]), 1 / 16, 16)
    x = make_scale(found, left, WIDTH - 12, log=True)
    parts = [
        svg.rectangle(float(x(0.95)), 6, float(x(1.05) - x(0.95)), bottom - 6, "band"),
        svg.line(float(x(1)), 6, float(x(1)), bottom, "level"),
    ]
    parts += [
        svg.line(x.start, bottom, x.end, bottom, "axis"),
        svg.x_axis(x, bottom, f"sd / {comparison.reference}'s sd (log scale)"),
    ]
    for place, (engine, levels) in enumerate(ratios.items()):
        y = 12 + tall * (place + 0.5)
        parts.append(svg.text(left - 6, y + 4, engine, "tick", "end"))
        low, quarter, half, three, high = (float(x(level)) for level in x.clip(levels))
        tip = f"{engine}: median ratio {levels[2]:.2f}, 90% of the entries from {levels[0]:.2f} to {levels[4]:.2f}"
        parts.append(
            svg.of(
                engine,
                svg.line(low, y, high, y, "bar"),
                svg.line(quarter, y, three, y, "wide"),
                svg.mark(engine, half, y, tip),
            )
        )
    said = ", ".join(f"{engine} {levels[2]:.2f}" for engine, levels in ratios.items())
    title = f"{plain(site)}: " + ("one entry" if count == 1 else f"{count:,} entries")
    words = f"Posterior sd of {site} over {comparison.reference}'s, median of {count} entries: {said}. One is right, less is too narrow."
    return Figure(title, "".join(parts), WIDTH, bottom + 40, words, "widths")


def means(comparison: "Comparison") -> dict[str, list[Figure]]:
    """Site -> posterior means with one sd either way, each engine against the reference, all on the same axes."""
    if comparison.reference is None:
        return {}
    found = {}
    for site in _sites(comparison)[:MAX_SITES]:
        part = _global(comparison, site)
        centre, spread = (
            np.asarray(part[name].sel(engine=comparison.reference), float)
            for name in ("mean", "sd")
        )
        usable = np.flatnonzero(np.isfinite(centre) & (spread > 0))
        pick = usable[np.argsort(-np.abs(centre[usable]), kind="stable")[:MAX_POINTS]]
        if len(pick) >= 3:
            found[site] = _scatters(comparison, site, part.isel(quantity=pick))
    return found


def _scatters(comparison: "Comparison", site: str, part: Any) -> list[Figure]:
    """One panel per engine that has finite means. The axes hold the reference with its sds, and half as much again for engines elsewhere."""
    reference, size = comparison.reference, 320
    engines = [
        one
        for one in selection.others(comparison)
        if np.isfinite(part["mean"].sel(engine=one)).any()
    ]
    centre, spread = (
        {one: np.asarray(part[name].sel(engine=one), float) for one in (reference, *engines)}
        for name in ("mean", "sd")
    )
    low, high = (
        np.min(centre[reference] - spread[reference]),
        np.max(centre[reference] + spread[reference]),
    )
    reach = 0.5 * (high - low)
    ends = np.clip(
        [low, high, *(value for one in engines for value in centre[one] if np.isfinite(value))],
        low - reach,
        high + reach,
    )
    y = make_scale(ends, size - 40, TOP)
    x = make_scale(ends, svg.margin(y), svg.margin(y) + size - 40 - TOP)
    labels = np.asarray(part["label" if "label" in part.coords else "quantity"]).astype(str)
    figures = []
    for engine in engines:
        shift = np.nanmean(np.abs(centre[engine] - centre[reference]) / spread[reference])
        words = f"Means of the {len(labels)} largest entries of {site}, {engine} against {reference}: on average {shift:.2f} reference sd apart."
        tips = [
            f"{label}: {engine} {number(a)}, {reference} {number(b)}"
            for label, a, b in zip(labels, centre[engine], centre[reference], strict=True)
        ]
        kind = "mean ± sd" if np.any(spread[engine] > 0) else "a point"
        drawn = svg.frame(x, y, f"{reference}, mean ± sd", f"{engine}, {kind}") + svg.path(
            [x.start, x.end], [y.start, y.end], "level"
        )
        drawn += _crosses(
            engine,
            x,
            y,
            (centre[reference], spread[reference]),
            (centre[engine], np.nan_to_num(spread[engine])),
            tips,
        )
        figures.append(
            Figure(f"{engine}: {shift:.2f} sd apart", drawn, x.end + 14, size, words, "means")
        )
    return figures


def _crosses(
    engine: str,
    x: Scale,
    y: Scale,
    across: tuple[np.ndarray, np.ndarray],
    up: tuple[np.ndarray, np.ndarray],
    tips: list[str],
) -> str:
    """Marks with one sd either way: means and sds across and up."""
    here, there = x(x.clip(across[0])), y(y.clip(up[0]))
    bars = svg.segments(
        x(x.clip(across[0] - across[1])), there, x(x.clip(across[0] + across[1])), there, "thin"
    )
    if np.any(up[1] > 0):
        bars += svg.segments(here, y(y.clip(up[0] - up[1])), here, y(y.clip(up[0] + up[1])), "thin")
    return svg.of(
        engine,
        bars,
        *(
            svg.mark(engine, float(a), float(b), tip)
            for a, b, tip in zip(here, there, tips, strict=True)
        ),
    )
