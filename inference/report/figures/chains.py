"""The reference's chains: traces and ranks of the log joint density and of the functionals that mix worst; and the data in two histograms."""

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm, rankdata

from inference.report import svg
from inference.report.svg import WIDTH, Figure, Scale, make_scale, number

if TYPE_CHECKING:
    from inference.comparison.compare import Comparison

MAX_TRACES = 4
MAX_CHAINS = 8
MAX_DRAWS = 400  # of all chains together, in a trace
BINS = 12  # of a chain's ranks


def split_rhat(values: np.ndarray) -> float:
    """R-hat of draws (chains, draws) as the table has it: of ranks, and of ranks of distances from the median, which tell spreads apart."""
    half = values.shape[1] // 2
    if half < 2 or not np.isfinite(values).all():
        return float("nan")
    halves = np.concatenate([values[:, :half], values[:, -half:]])
    return max(_rank_rhat(halves), _rank_rhat(np.abs(halves - np.median(halves))))


def _rank_rhat(values: np.ndarray) -> float:
    """The square root of the variance of all over that within chains, of normal scores."""
    length = values.shape[1]
    scores = norm.ppf((rankdata(values).reshape(values.shape) - 0.375) / (values.size + 0.25))
    within = scores.var(1, ddof=1).mean()
    return (
        float(np.sqrt((length - 1) / length + scores.mean(1).var(ddof=1) / within))
        if within > 0
        else float("nan")
    )


def traces(comparison: "Comparison") -> list[Figure]:
    """Traces and ranks of the reference: the log joint density first, then what mixes worst."""
    chains = (
        comparison.chains.get(comparison.reference) if comparison.reference is not None else None
    )
    if chains is None:
        return []
    values = np.asarray(chains.values, np.float64)
    if values.ndim != 3 or min(values.shape) == 0:
        return []
    rhats = [split_rhat(values[..., i]) for i in range(values.shape[-1])]
    names = [str(name) for name in chains.names]
    first = [i for i, name in enumerate(names) if "joint" in name][:1]
    worst = [
        int(i)
        for i in np.argsort([-rhat if np.isfinite(rhat) else 0 for rhat in rhats], kind="stable")
        if int(i) not in first
    ]
    return [
        _trace(comparison.reference or "", names[i], values[:MAX_CHAINS, :, i], rhats[i])
        for i in (first + worst)[:MAX_TRACES]
    ]


def _trace(engine: str, name: str, values: np.ndarray, rhat: float) -> Figure:
    """Chains side by side on one axis, and under each how its draws rank among all: flat where chains agree."""
    count, length = values.shape
    y = make_scale(values, 130, 14)
    left = max(46.0, svg.margin(y, 4))
    wide = (WIDTH - 10 - left) / count
    finite = np.where(np.isfinite(values), values, -np.inf)
    ranks = rankdata(finite).reshape(values.shape) / values.size
    pick = svg.thin(length, max(20, MAX_DRAWS // count))
    parts = [svg.y_axis(Scale(0, 1, left, WIDTH - 10), y, most=4)]
    drawn = []
    heights = [
        np.histogram(ranks[chain], bins=BINS, range=(0, 1))[0] / (length / BINS)
        for chain in range(count)
    ]
    top = max(1.6, max(float(height.max()) for height in heights))
    bars = Scale(0, top, 206, 156)
    for chain in range(count):
        x = Scale(0, max(length - 1, 1), left + chain * wide + 3, left + (chain + 1) * wide - 3)
        drawn.append(
            svg.path(
                x(pick),
                y(values[chain, pick]),
                "trace",
                f"{name}, chain {chain + 1}: mean {number(float(np.nanmean(values[chain])))}",
            )
        )
        drawn += _rank_bars(heights[chain], chain, x, bars)
        parts.append(
            svg.text(
                (x.start + x.end) / 2,
                222,
                f"chain {chain + 1}" if count <= 4 else str(chain + 1),
                "tick",
                "middle",
            )
        )
        if chain:
            parts.append(svg.line(left + chain * wide, 14, left + chain * wide, 206, "grid"))
    parts.append(svg.text(left - 5, 185, "ranks", "tick", "end"))
    parts.append(svg.of(engine, *drawn))
    parts.append(
        svg.line(
            left,
            float(bars(1)),
            WIDTH - 10,
            float(bars(1)),
            "level",
            "what equal chains would show",
        )
    )
    said = ", ".join(number(float(np.nanmean(one))) for one in values)
    title = f"{name}: R-hat {rhat:.3f}" if np.isfinite(rhat) else name
    words = f"Trace and ranks of {name} in {count} chains of {length} draws of {engine}; R-hat {rhat:.3f}; means by chain {said}."
    return Figure(title, "".join(parts), WIDTH, 230, words, "trace")


def _rank_bars(height: np.ndarray, chain: int, x: Scale, y: Scale) -> list[str]:
    step = (x.end - x.start) / BINS
    return [
        svg.rectangle(
            x.start + i * step,
            float(y(bar)),
            step - 0.4,
            y.start - float(y(bar)),
            "rank",
            f"chain {chain + 1}, ranks {i / BINS:.0%} to {(i + 1) / BINS:.0%}: {bar:.2f} times the share of equal chains",
        )
        for i, bar in enumerate(height)
    ]


# Data -------------------------------------------------------------------------------------------------------------------------


def data(comparison: "Comparison") -> list[Figure]:
    """Totals of rows and of columns for counts; values, and entries per row, for the others."""
    given = comparison.data
    if given.kind in ("counts", "text_and_votes"):
        columns = (
            np.asarray(given.matrix.sum(0)).ravel() if given.matrix is not None else np.empty(0)
        )
        found = [
            _histogram("Tokens per row", np.asarray(given.totals, float)),
            _histogram("Tokens per column", columns),
        ]
        if given.votes is not None:
            found.append(_histogram("Votes per row", np.diff(given.votes.indptr)))
        return [figure for figure in found if figure is not None]
    entries = given.values if given.matrix is None else given.matrix.data
    found = [_histogram("Values", np.asarray(entries, float).ravel())]
    if given.kind == "ratings":
        found += [
            _histogram("Ratings per row", np.diff(given.matrix.indptr)),
            _histogram(
                "Ratings per column", np.bincount(given.matrix.indices, minlength=given.num_columns)
            ),
        ]
    return [figure for figure in found if figure is not None]


def _histogram(title: str, values: Any) -> Figure | None:
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    wide, height, log = 260, 130, bool(values.min() > 0 and values.max() > 50 * np.median(values))
    edges, labels = _bins(values, log)
    bars, _ = np.histogram(np.log(values) if log else values, bins=edges)
    ends = np.exp(edges) if log else edges
    x = Scale(float(ends[0]), float(ends[-1]), 10, wide - 14, log)
    y = Scale(0, float(bars.max()) * 1.05, height - 24, 6)
    parts = [
        svg.rectangle(
            float(x(a)),
            float(y(bar)),
            float(x(b) - x(a)) - 0.6,
            y.start - float(y(bar)),
            "data",
            f"{label}: {bar:,}",
        )
        for a, b, bar, label in zip(ends[:-1], ends[1:], bars, labels, strict=True)
        if bar
    ]
    parts += [svg.line(x.start, y.start, x.end, y.start, "axis"), svg.x_axis(x, y.start, most=4)]
    low, middle, high = (number(float(level)) for level in np.quantile(values, (0, 0.5, 1)))
    words = f"{title}: {values.size:,} numbers from {low} to {high}, median {middle}."
    return Figure(
        title + (" (log scale)" if log else ""), "".join(parts), wide, height, words, "data"
    )


def _bins(values: np.ndarray, log: bool) -> tuple[np.ndarray, list[str]]:
    """Edges of a histogram, of logarithms where they are asked for, and what each bin is called.

    Of whole numbers every bin holds equally many, lest bars rise and fall with them; few other values have a bin each.
    """
    few, most = np.unique(values), 8 if values.size < 40 else 20
    if len(few) <= 5 and (log or np.any(few % 1)):
        return _edges(np.log(few) if log else few), [number(float(one)) for one in few]
    if not log and not np.any(few % 1):
        step = int(np.ceil((np.ptp(few) + 1) / most))
        first = np.arange(few[0], few[-1] + 1, step)
        return np.append(first, first[-1] + step) - 0.5, [
            number(one) + (f" to {number(one + step - 1)}" if step > 1 else "")
            for one in first.tolist()
        ]
    low, high = (np.log(few[[0, -1]]) if log else few[[0, -1]]).tolist()
    edges = np.linspace(low, high, most + 1)
    ends = (np.exp(edges) if log else edges).tolist()
    return edges, [f"{number(low)} to {number(high)}" for low, high in itertools.pairwise(ends)]


def _edges(few: np.ndarray) -> np.ndarray:
    """Bins with one value in each."""
    if len(few) == 1:
        return np.array([few[0] - 0.5, few[0] + 0.5])
    middle = (few[1:] + few[:-1]) / 2
    return np.array([few[0] - (middle[0] - few[0]), *middle, few[-1] + (few[-1] - middle[-1])])
