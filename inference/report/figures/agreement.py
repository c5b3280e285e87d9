"""Agreement with the reference: ratios of posterior sds, and posterior means against its means."""

import collections
from collections.abc import Iterator
from typing import Any

import numpy as np

from inference.comparison.compare import Comparison
from inference.report import selection, svg
from inference.report.figures.parameters import LEVELS
from inference.report.markup import plain
from inference.report.svg import WIDTH, Figure, make_scale, number

MAX_SITES = 6
MAX_POINTS = 80  # of a scatter plot
SIZE, TOP = 320, 28


def _by_site(comparison: Comparison, most: int) -> Iterator[tuple[str, Any]]:
    """The quantities of the sites with most of them."""
    table = comparison.quantities
    owners = np.asarray(table["site"])
    sizes = collections.Counter(owners.tolist())
    sites = [site for site in comparison.model.families if site in sizes]
    for site in sorted(sites, key=lambda site: -sizes[site])[:most]:
        yield site, table.isel(quantity=np.flatnonzero(owners == site))


def _others(comparison: Comparison) -> list[str]:
    return [one for one in selection.shown(comparison) if one != comparison.reference]


def widths(comparison: Comparison) -> list[Figure]:
    """Quantiles over the entries of a site of the posterior sd divided by the reference's."""
    figures = []
    for site, part in _by_site(comparison, MAX_SITES) if comparison.reference is not None else ():
        ratios = {}
        for engine in _others(comparison):
            ratio = np.asarray(part["sd_ratio"].sel(engine=engine), float)
            ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
            if ratio.size:
                ratios[engine] = np.quantile(ratio, LEVELS)
        if ratios:
            figures.append(_width(comparison, site, ratios, part.sizes["quantity"]))
    return figures


def _width(comparison: Comparison, site: str, ratios: dict[str, Any], count: int) -> Figure:
    left, tall = 12 + svg.CHARACTER * max(map(len, ratios)), 26
    bottom = 12 + tall * len(ratios)
    ends = np.clip([*np.concatenate([*ratios.values()]), 0.45, 1.3], 1 / 16, 16)
    x = make_scale(ends, left, WIDTH - 12, log=True)
    parts = [
        svg.rectangle(x(0.95), 6, x(1.05) - x(0.95), bottom - 6, "band"),
        svg.line(x(1), 6, x(1), bottom, "level"),
        svg.x_axis(x, bottom, f"sd / {comparison.reference}'s sd (log scale)"),
    ]
    for place, (engine, levels) in enumerate(ratios.items()):
        y = 12 + tall * (place + 0.5)
        parts.append(svg.text(left - 6, y + 4, engine, "tick", "end"))
        tip = f"{engine}: median ratio {levels[2]:.2f}, "
        tip += f"90% of the entries from {levels[0]:.2f} to {levels[4]:.2f}"
        parts.append(svg.of(engine, svg.interval(x, y, engine, levels, "wide", tip)))
    said = ", ".join(f"{engine} {levels[2]:.2f}" for engine, levels in ratios.items())
    title = f"{plain(site)}: " + ("one entry" if count == 1 else f"{count:,} entries")
    words = f"Posterior sd of {site} over {comparison.reference}'s, median of {count} entries: "
    words += f"{said}. One is right, less is too narrow."
    return Figure(title, parts, WIDTH, bottom + 40, words, "widths")


def means(comparison: Comparison) -> dict[str, list[Figure]]:
    """Site -> one scatter plot of posterior means per engine, with one sd either way."""
    found = {}
    for site, part in _by_site(comparison, 2) if comparison.reference is not None else ():
        reference = part.sel(engine=comparison.reference)
        centre, spread = (np.asarray(reference[name], float) for name in ("mean", "sd"))
        usable = np.flatnonzero(np.isfinite(centre) & (spread > 0))
        pick = usable[np.argsort(-np.abs(centre[usable]), kind="stable")[:MAX_POINTS]]
        if len(pick) >= 3:
            found[site] = _scatters(comparison, site, part.isel(quantity=pick))
    return found


def _scatters(comparison: Comparison, site: str, part: Any) -> list[Figure]:
    """Scatter plots on common axes, which hold the reference and half as much again."""
    reference = comparison.reference
    finite = np.isfinite(part["mean"]).any("quantity")
    engines = [one for one in _others(comparison) if finite.sel(engine=one)]
    centre, spread = (
        {one: np.asarray(part[name].sel(engine=one), float) for one in (reference, *engines)}
        for name in ("mean", "sd")
    )
    ends = np.array([centre[reference] - spread[reference], centre[reference] + spread[reference]])
    low, high, reach = ends.min(), ends.max(), 0.5 * np.ptp(ends)
    every = np.array([low, high, *(value for one in engines for value in centre[one])])
    every = np.clip(every[np.isfinite(every)], low - reach, high + reach)
    y = make_scale(every, SIZE - 40, TOP)
    x = make_scale(every, svg.margin(y), svg.margin(y) + SIZE - 40 - TOP)
    labels = np.asarray(part["label" if "label" in part.coords else "quantity"]).astype(str)
    figures = []
    for engine in engines:
        here, there, across = centre[reference], centre[engine], spread[reference]
        up = np.nan_to_num(spread[engine])
        at = x.clip(here), y.clip(there)
        bars = svg.segments(x.clip(here - across), at[1], x.clip(here + across), at[1], "thin")
        if np.any(up > 0):
            bars += svg.segments(at[0], y.clip(there - up), at[0], y.clip(there + up), "thin")
        tips = [
            f"{label}: {engine} {number(a)}, {reference} {number(b)}"
            for label, a, b in zip(labels, there, here, strict=True)
        ]
        kind = "mean ± sd" if np.any(up > 0) else "a point"
        frame = svg.frame(x, y, f"{reference}, mean ± sd", f"{engine}, {kind}")
        diagonal = svg.line(x.start, y.start, x.end, y.end, "level")
        shift = np.nanmean(np.abs(there - here) / across)
        words = f"Means of the {len(labels)} largest entries of {site}, {engine} against "
        words += f"{reference}: on average {shift:.2f} reference sd apart."
        parts = [frame, diagonal, svg.of(engine, bars, svg.marks(engine, *at, tips))]
        title = f"{engine}: {shift:.2f} sd apart"
        figures.append(Figure(title, parts, x.end + 14, SIZE, words, "means"))
    return figures
