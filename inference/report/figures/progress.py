"""Bounds and held-out scores against time."""

from typing import Any

import numpy as np
from scipy.ndimage import median_filter

from inference.comparison.compare import Comparison
from inference.core.registry import engines, load_engine
from inference.report import selection, svg
from inference.report.svg import WIDTH, Figure, Scale, make_scale, number

MAX_CURVE = 120  # points of a curve
FIRST_STEPS = 4  # of a fit, which may compile
HEIGHT, TOP = 230, 28


def bounds(comparison: Comparison) -> list[Figure]:
    """ELBO against time: the whole run, and a close-up of its end. Noisy curves are smoothed."""
    fits = {engine: comparison.fits.get(engine) for engine in selection.shown(comparison)}
    rows = comparison.summary["engines"]
    curves = {
        engine: ended(bound_curve(fit), engine, rows[engine])
        for engine, fit in fits.items()
        if fit is not None
    }
    curves = {engine: curve for engine, curve in curves.items() if len(curve[0])}
    if not curves:
        return []
    evidence = (comparison.summary.get("evidence") or {}).get("log_evidence")
    finals = [bound[-1] for _, bound in curves.values()]
    best, lowest = max(finals), min(bound[0] for _, bound in curves.values())
    near = max(1.6 * (best - min(finals)), 0.02 * (best - lowest), 1e-3 * abs(best), 1e-6)
    top = max(best, evidence) if evidence is not None and evidence - best < 4 * near else best
    every = [value for _, bound in curves.values() for value in bound]
    every += [] if evidence is None else [evidence]
    words = ", ".join(f"{engine} {bound[-1]:.1f}" for engine, (_, bound) in curves.items())
    words = f"Lower bound against wall time; it ends at {words}"
    words += "." if evidence is None else f"; the log evidence is {evidence:.1f}."
    whole = make_scale(every, HEIGHT - 40, TOP)
    end = Scale(best - near, top + 0.3 * near, HEIGHT - 40, TOP)
    return [
        _curves("The whole run", curves, whole, evidence, words),
        _curves("Near the end", curves, end, evidence, f"Close-up. {words}"),
    ]


def bound_curve(fit: Any) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and running medians of the bound, thinned.

    Steps that compile (the first, and early ones far longer than usual) count as usual ones.
    """
    if (
        fit.posterior.kind not in ("variational", "conditional", "mixture")
        or "bound" not in fit.history
    ):
        return np.empty(0), np.empty(0)
    bound = np.asarray(fit.history["bound"], float)
    steps = np.diff(np.asarray(fit.history["seconds"], float), prepend=0.0)
    usual = np.median(steps[1:]) if len(steps) > 1 else 0.0
    order = np.arange(len(steps))
    compiles = (order == 0) | ((order < FIRST_STEPS) & (steps > max(20 * usual, 0.2)))
    seconds = np.maximum(np.cumsum(np.where(compiles, usual, steps)), 1e-4)
    known = np.flatnonzero(np.isfinite(bound))
    window = min(11, 2 * (len(known) // 8) + 1)
    smooth = median_filter(bound[known], window, mode="nearest")
    pick = svg.thin(len(known), MAX_CURVE)
    return seconds[known][pick], smooth[pick]


def ended(
    curve: tuple[np.ndarray, np.ndarray], engine: str, row: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The curve with the bound on all rows at its end, or the ELBO if the engine follows that.

    Steps on batches, or on draws, estimate it with noise.
    """
    seconds, bound = curve
    sums_out = engine in engines() and load_engine(engine).sums_out
    last = row.get("elbo" if sums_out else "bound")
    if not len(seconds) or last is None:
        return curve
    return np.append(seconds, seconds[-1]), np.append(bound, last)


def _curves(
    title: str, curves: dict[str, Any], y: Scale, evidence: float | None, words: str
) -> Figure:
    """Lines against seconds on a log scale, cut off where they leave the axes."""
    every = np.concatenate([seconds for seconds, _ in curves.values()])
    x = make_scale(every, svg.margin(y), WIDTH - 12, log=True)
    parts = [svg.frame(x, y, "seconds after compilation", "bound (nats)")]
    if evidence is not None and y.low <= evidence <= y.high:
        level, tip = y(evidence), f"log evidence {evidence:,.1f}"
        parts.append(svg.line(x.start, level, x.end, level, "level", tip))
        parts.append(svg.text(x.end, level - 4, "log evidence", "note", "end"))
    for engine, (seconds, bound) in curves.items():
        inside = y(np.where((bound >= y.low) & (bound <= y.high), bound, np.nan))
        few = svg.thin(len(bound), 12)
        tips = [f"{engine}: {number(bound[i])} after {number(seconds[i])} s" for i in few]
        marks = svg.marks(engine, x(seconds[few]), inside[few], tips)
        parts.append(svg.of(engine, svg.path(x(seconds), inside, "l"), marks))
    return Figure(title, parts, WIDTH, HEIGHT, words, "bounds")


def heldout(comparison: Comparison) -> list[Figure]:
    """Held-out score against time: curves where known, final scores with their standard errors."""
    rows = comparison.summary["engines"].items()
    rows = {
        engine: row for engine, row in rows if row.get("heldout") is not None and row["seconds"]
    }
    if not rows:
        return []
    ends = [(row["seconds"], row["heldout"], row.get("heldout_se") or 0.0) for row in rows.values()]
    found = [row.get("heldout_curve") or [] for row in rows.values()]
    curves = [np.array([*curve, end[:2]], float) for curve, end in zip(found, ends, strict=True)]
    x, y = _score_axes(np.array(ends), curves)
    parts = [svg.frame(x, y, "seconds of fitting", "nats per held-out entry")]
    for engine, curve, (seconds, score, error) in zip(rows, curves, ends, strict=True):
        curve = curve[:-1][svg.thin(len(curve) - 1, MAX_CURVE)]
        inside = np.where(curve[:, 1] >= y.low, curve[:, 1], np.nan)
        low, high = y.clip([score - error, score + error])
        tip = f"{engine}: {score:.4f}" + (f" ± {error:.4f}" if error else "")
        drawn = (
            svg.path(x(curve[:, 0]), y(inside), "l") if len(curve) > 1 else "",
            svg.line(x(seconds), low, x(seconds), high, "bar") if error else "",
            svg.mark(engine, x(seconds), y.clip(score), f"{tip} after {number(seconds)} s"),
        )
        parts.append(svg.of(engine, *drawn))
    said = [f"{score:.3f} after {seconds:.1f} s" for seconds, score, _ in ends]
    words = ", ".join(map(" ".join, zip(rows, said, strict=True)))
    words = f"Held-out score against wall time, larger is better: {words}."
    return [Figure("Held-out score", parts, WIDTH, HEIGHT, words, "heldout")]


def _score_axes(ends: np.ndarray, curves: list[np.ndarray]) -> tuple[Scale, Scale]:
    """Axes for seconds and scores. First steps and failures are cut off below."""
    seconds, scores = np.concatenate(curves).T
    final, errors = ends[:, 1], ends[:, 2]
    best, usual = final.max(), np.median(final)
    climbs = [best - np.nanmin(curve[:-1, 1]) for curve in curves if len(curve) > 1] or [0.0]
    room = max(4 * (best - usual), 6 * np.median(errors), 0.25 * np.median(climbs), 1e-3)
    every = np.array([*scores, *(final - errors), *(final + errors)])
    low, high = np.nanmin(every), np.nanmax(every)
    y = make_scale([max(usual - room, low), high], HEIGHT - 40, TOP)
    return make_scale(seconds, svg.margin(y), WIDTH - 12, log=True), y
