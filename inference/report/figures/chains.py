"""Traces and ranks of the reference's chains, and histograms of the data."""

from typing import Any

import numpy as np
from scipy.stats import rankdata

from inference.comparison.compare import Comparison
from inference.io import arviz
from inference.report import svg
from inference.report.svg import WIDTH, Figure, Scale, make_scale, number

MAX_TRACES = 4
MAX_CHAINS = 8
MAX_DRAWS = 400  # of all chains together, in a trace
BINS = 12  # of a chain's ranks


def traces(comparison: Comparison) -> list[Figure]:
    """The log joint density first, then the functionals with the largest R-hat."""
    chains = comparison.chains.get(comparison.reference or "")
    if chains is None or np.ndim(chains.values) != 3 or 0 in np.shape(chains.values):
        return []
    values = np.asarray(chains.values, np.float64)
    rhats = [arviz.chain_diagnostics(values[..., [i]])["rhat"] for i in range(values.shape[-1])]
    names = [str(name) for name in chains.names]
    first = [i for i, name in enumerate(names) if "joint" in name][:1]
    worst = sorted(range(len(names)), key=lambda i: (i not in first, -(rhats[i] or 0)))
    return [
        _trace(str(comparison.reference), names[i], values[:MAX_CHAINS, :, i], rhats[i])
        for i in worst[:MAX_TRACES]
    ]


def _trace(engine: str, name: str, values: np.ndarray, rhat: float | None) -> Figure:
    """Chains side by side, and below each a histogram of its draws' ranks among all draws."""
    count, length = values.shape
    y = make_scale(values, 130, 14)
    left = max(46.0, svg.margin(y, 4))
    wide = (WIDTH - 10 - left) / count
    ranks = rankdata(np.nan_to_num(values, nan=-np.inf)).reshape(values.shape) / values.size
    heights = [np.histogram(rank, BINS, (0, 1))[0] / (length / BINS) for rank in ranks]
    bars = Scale(0, max(1.6, np.max(heights)), 206, 156)
    pick = svg.thin(length, max(20, MAX_DRAWS // count))
    means = [number(float(np.nanmean(chain))) for chain in values]
    parts, drawn = [svg.y_axis(Scale(0, 1, left, WIDTH - 10), y, most=4)], []
    for chain in range(count):
        start, owner = left + chain * wide, f"chain {chain + 1}"
        x = Scale(0, max(length - 1, 1), start + 3, start + wide - 3)
        tip = f"{name}, {owner}: mean {means[chain]}"
        drawn.append(svg.path(x(pick), y(values[chain, pick]), "trace", tip))
        step = (x.end - x.start) / BINS
        for i, bar in enumerate(heights[chain]):
            tip = f"{owner}, ranks {i / BINS:.0%} to {(i + 1) / BINS:.0%}: "
            tip += f"{bar:.2f} times the share of equal chains"
            at = x.start + i * step, bars(bar), step - 0.4, bars.start - bars(bar)
            drawn.append(svg.rectangle(*at, "rank", tip))
        label = owner if count <= 4 else str(chain + 1)
        parts.append(svg.text(start + wide / 2, 222, label, "tick", "middle"))
        parts.append(svg.line(start, 14, start, 206, "grid") if chain else "")
    parts += [svg.text(left - 5, 185, "ranks", "tick", "end"), svg.of(engine, *drawn)]
    level = bars(1)
    parts.append(svg.line(left, level, WIDTH - 10, level, "level", "equal chains"))
    known = "" if rhat is None else f"R-hat {rhat:.3f}"
    words = f"Trace and ranks of {name} in {count} chains of {length} draws of {engine}; "
    words += f"{known or 'R-hat unknown'}; means by chain {', '.join(means)}."
    return Figure(f"{name}: {known}" if known else name, parts, WIDTH, 230, words, "trace")


def data(comparison: Comparison) -> list[Figure]:
    """Totals of rows and columns for counts; values and entries per row for other data."""
    given: Any = comparison.data
    matrix = given.matrix
    if given.kind in ("counts", "text_and_votes"):
        found = {"Tokens per row": given.totals}
        if matrix is not None:
            found["Tokens per column"] = np.asarray(matrix.sum(0)).ravel()
        if given.votes is not None:
            found["Votes per row"] = np.diff(given.votes.indptr)
    else:
        found = {"Values": np.ravel(given.values if matrix is None else matrix.data)}
    if given.kind == "ratings":
        found["Ratings per row"] = np.diff(matrix.indptr)
        found["Ratings per column"] = np.bincount(matrix.indices, minlength=given.num_columns)
    figures = [_histogram(title, values) for title, values in found.items()]
    return [figure for figure in figures if figure is not None]


def _histogram(title: str, values: Any) -> Figure | None:
    """Bins of whole numbers are equally wide, so that integer data show no comb artefact."""
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    wide, height, most = 260, 130, 8 if values.size < 40 else 20
    low, middle, high = np.quantile(values, (0, 0.5, 1))
    log = bool(low > 0 and high > 50 * middle)
    if log:
        edges = np.geomspace(low, high, most + 1)
    elif np.any(values % 1):
        edges = np.linspace(low, high, most + 1) if high > low else np.array([low - 0.5, low + 0.5])
    else:
        step = int(np.ceil((high - low + 1) / most))
        edges = np.arange(low, high + step + 1, step) - 0.5
        edges = edges[: np.searchsorted(edges, high) + 1]
    bars, _ = np.histogram(values, edges)
    x = Scale(float(edges[0]), float(edges[-1]), 10, wide - 14, log)
    y = Scale(0, float(bars.max()) * 1.05, height - 24, 6)
    parts = [svg.x_axis(x, y.start, most=4)]
    for a, b, bar in zip(edges[:-1], edges[1:], bars.tolist(), strict=True):
        ends = (a, b) if log or np.any(values % 1) else (a + 0.5, b - 0.5)
        tip = " to ".join(dict.fromkeys(map(number, ends)))
        size = x(b) - x(a) - 0.6, y.start - y(bar)
        parts.append(svg.rectangle(x(a), y(bar), *size, "data", f"{tip}: {bar:,}") if bar else "")
    words = f"{title}: {values.size:,} numbers from {number(low)} to {number(high)}, "
    words += f"median {number(middle)}."
    return Figure(title + (" (log scale)" if log else ""), parts, wide, height, words, "data")
