"""Drawing: scales, ticks, and the few SVG elements that the report's figures are made of.

Elements are text with classes, and the page's style sheet gives them ink: the same drawing follows light and dark paper. What is pointed at shows its
<title>, which the page's script turns into a tip. Every number has one decimal at most, so that a page of figures stays small.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from inference.report.palette import css_class, look
from inference.report.typeset import escape

WIDTH = 360  # of most figures, in units that are pixels on a phone
CHARACTER = 6.3  # width of a letter of the figures' text, roughly


class Figure(NamedTuple):
    """A drawing and what it shows in words, with the main numbers, for those who cannot see it. about: classes of what is drawn, for tests."""

    title: str
    drawing: str
    width: float
    height: float
    words: str
    about: str = ""

    def html(self) -> str:
        title = f'<figcaption class="ft">{escape(self.title)}</figcaption>' if self.title else ""
        drawn = f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(self.words)}">{self.drawing}</svg>'
        return f'<figure class="{escape(self.about)}" style="max-width:{1.55 * self.width:.0f}px">{title}{drawn}</figure>'


# Numbers and scales -----------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """A number as short as is honest, with a real minus sign."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    text = (
        f"{value:,.0f}"
        if size >= 999.5
        else f"{value:.3g}"
        if size >= 1e-4 or size == 0
        else f"{value:.1e}"
    )
    return text.replace("-", "−") if size > 0 else "0"


def _short(value: float) -> str:
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


class Scale(NamedTuple):
    """From data between low and high to pixels between start and end, linear or logarithmic. Calling it converts."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, values: Any) -> Any:
        x = np.asarray(values, float)
        low, high = self.low, self.high
        if self.log:
            x = np.log(np.where(x > 0, x, np.nan))
            low, high = math.log(low), math.log(high)
        return self.start + (x - low) / (high - low) * (self.end - self.start)

    def clip(self, values: Any) -> Any:
        """The values moved to the nearest end where they lie outside."""
        return np.clip(values, self.low, self.high)


def make_scale(
    values: Any, start: float, end: float, log: bool = False, pad: float = 0.05
) -> Scale:
    """A scale on which all finite values lie, with some air at its ends."""
    x = np.asarray(values, float).ravel()
    x = x[np.isfinite(x) & ((x > 0) | (not log))]
    if not x.size:
        x = np.array([1.0, 2.0])
    low, high = float(x.min()), float(x.max())
    if log:
        spread = max(math.log(high / low), 1e-3)
        return Scale(low * math.exp(-pad * spread), high * math.exp(pad * spread), start, end, True)
    spread = high - low
    if spread <= 1e-12 * max(abs(low), abs(high)):
        spread = abs(high) * 0.1 or 1.0
        low, high = low - spread / 2, high + spread / 2
    return Scale(low - pad * spread, high + pad * spread, start, end)


def ticks(scale: Scale, most: int = 5) -> list[float]:
    """Round numbers inside a scale, at most so many."""
    if scale.log:
        for parts in ((1, 2, 5), (1, 3), (1,)):
            exponents = range(
                math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1
            )
            found = [
                part * 10.0**e
                for e in exponents
                for part in parts
                if scale.low <= part * 10.0**e <= scale.high
            ]
            if len(found) <= most:
                break
        if len(found) >= 2:
            return found[:: math.ceil(len(found) / most)]
    step = _round_step((scale.high - scale.low) / most)
    first = math.ceil(scale.low / step - 1e-9)
    return [
        round(i * step, 12) if abs(step) > 1e-9 else i * step
        for i in range(first, math.floor(scale.high / step + 1e-9) + 1)
    ]


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(part * power for part in (1, 2, 5, 10) if part * power >= least * (1 - 1e-9))


def tick_labels(places: Sequence[float]) -> list[str]:
    """Labels with as many digits as tell neighbours apart."""
    largest = max((abs(place) for place in places), default=0.0)
    if largest >= 1e6 or 0 < largest < 1e-3:
        digits = next(
            (
                n
                for n in range(3, 12)
                if len({f"{place:.{n}g}" for place in places}) == len(set(places))
            ),
            12,
        )
        return [
            f"{place:.{digits}g}".replace("-", "−").replace("e−0", "e−").replace("e+0", "e")
            for place in places
        ]
    digits = next(
        (
            n
            for n in range(9)
            if all(
                math.isclose(round(place, n), place, rel_tol=1e-6, abs_tol=1e-9) for place in places
            )
        ),
        9,
    )
    return [_tidy(f"{place:,.{digits}f}") for place in places]


def _tidy(label: str) -> str:
    label = label.rstrip("0").rstrip(".") if "." in label else label
    return "0" if label in ("-0", "") else label.replace("-", "−")


# Elements ---------------------------------------------------------------------------------------------------------------------


def title(tip: str) -> str:
    return f"<title>{escape(tip)}</title>" if tip else ""


def text(x: float, y: float, words: str, css: str = "", anchor: str = "") -> str:
    anchored = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{_short(x)}" y="{_short(y)}"{_class(css)}{anchored}>{escape(words)}</text>'


def cut(words: str, most: float) -> str:
    """Words that fit into so many pixels."""
    letters = max(3, int(most / CHARACTER))
    return words if len(words) <= letters else words[: letters - 1] + "…"


def _class(css: str) -> str:
    return f' class="{css}"' if css else ""


def line(x1: float, y1: float, x2: float, y2: float, css: str = "", tip: str = "") -> str:
    return f'<path d="M{_short(x1)} {_short(y1)}L{_short(x2)} {_short(y2)}"{_class(css)}>{title(tip)}</path>'


def path(x: Any, y: Any, css: str, tip: str = "", closed: bool = False) -> str:
    """A line through points in pixels, broken where one is not finite."""
    parts, pen = [], "M"
    for one, other in zip(np.asarray(x, float), np.asarray(y, float), strict=True):
        if not (math.isfinite(one) and math.isfinite(other)):
            pen = "M"
            continue
        parts.append(f"{pen}{_short(one)} {_short(other)}")
        pen = "L"
    return (
        f'<path d="{"".join(parts)}{"Z" if closed and parts else ""}"{_class(css)}>{title(tip)}</path>'
        if parts
        else ""
    )


def segments(x1: Any, y1: Any, x2: Any, y2: Any, css: str) -> str:
    """Many separate lines as one element."""
    rows = np.stack(
        np.broadcast_arrays(*(np.asarray(a, float) for a in (x1, y1, x2, y2))), -1
    ).reshape(-1, 4)
    rows = rows[np.isfinite(rows).all(1)]
    d = "".join(f"M{_short(a)} {_short(b)}L{_short(c)} {_short(e)}" for a, b, c, e in rows)
    return f'<path d="{d}"{_class(css)}/>' if d else ""


def rectangle(x: float, y: float, width: float, height: float, css: str, tip: str = "") -> str:
    return f'<rect x="{_short(x)}" y="{_short(y)}" width="{_short(max(width, 0))}" height="{_short(max(height, 0))}"{_class(css)}>{title(tip)}</rect>'


def mark(engine: str, x: float, y: float, tip: str = "") -> str:
    """The engine's marker at a point in pixels."""
    if not (math.isfinite(x) and math.isfinite(y)):
        return ""
    return (
        f'<use href="#m-{look(engine).marker}" x="{_short(x)}" y="{_short(y)}">{title(tip)}</use>'
    )


def of(engine: str, *parts: str) -> str:
    """What is drawn for an engine, in its colour."""
    content = "".join(parts)
    return f'<g class="{css_class(engine)}">{content}</g>' if content else ""


def key(engine: str) -> str:
    """A little sample of an engine's line and marker."""
    drawn = f'<path class="l" d="M1 7H27"/><use href="#m-{look(engine).marker}" x="14" y="7"/>'
    return (
        f'<svg class="key {css_class(engine)}" viewBox="0 0 28 14" aria-hidden="true">{drawn}</svg>'
    )


def frame(x: Scale, y: Scale, x_label: str = "", y_label: str = "", most: int = 5) -> str:
    """Axes with round numbers: x below, y to the left. Pixels grow downwards, so y.start lies below y.end."""
    return y_axis(x, y, y_label, most) + x_axis(x, y.start, x_label, most)


def y_axis(x: Scale, y: Scale, y_label: str = "", most: int = 5) -> str:
    """Lines across at round numbers, which stand on the left."""
    places = ticks(y, most)
    parts = [
        line(x.start, y.start, x.end, y.start, "axis"),
        segments(x.start, y(places), x.end, y(places), "grid"),
    ]
    parts += [
        text(x.start - 5, float(y(place)) + 4, label, "tick", "end")
        for place, label in zip(places, tick_labels(places), strict=True)
    ]
    return "".join(parts) + (text(2, y.end - 12, y_label, "label") if y_label else "")


def x_axis(x: Scale, bottom: float, x_label: str = "", most: int = 5) -> str:
    """Ticks and their numbers below a line, as many as there is room for."""
    places = ticks(x, most)
    labels = tick_labels(places)
    while len(places) > 2 and sum(len(label) + 2 for label in labels) * CHARACTER > abs(
        x.end - x.start
    ):
        places, labels = places[::2], labels[::2]
    parts = [segments(x(places), bottom, x(places), bottom + 4, "axis")]
    parts += [
        text(float(x(place)), bottom + 16, label, "tick", "middle")
        for place, label in zip(places, labels, strict=True)
    ]
    if x_label:
        parts.append(text((x.start + x.end) / 2, bottom + 32, x_label, "label", "middle"))
    return "".join(parts)


def margin(y: Scale, most: int = 5) -> float:
    """Room that the numbers of a y axis need on the left."""
    return 10 + CHARACTER * max((len(label) for label in tick_labels(ticks(y, most))), default=0)


def ellipse(centre: Any, covariance: Any, css: str, tip: str = "", points: int = 28) -> str:
    """The outline of one standard deviation about a centre, both in pixels."""
    values, vectors = np.linalg.eigh(np.asarray(covariance, float))
    angle = np.linspace(0, 2 * np.pi, points, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    outline = np.asarray(centre, float)[:, None] + vectors @ (
        np.sqrt(np.maximum(values, 0))[:, None] * circle
    )
    return path(outline[0], outline[1], css, tip, closed=True)


def thin(length: int, most: int) -> np.ndarray:
    """At most so many places of a sequence, evenly spread, the first and the last among them."""
    return (
        np.arange(length)
        if length <= most
        else np.unique(np.linspace(0, length - 1, most).round().astype(int))
    )


def gallery(figures: Iterable[Figure], css: str = "grid") -> str:
    """Figures side by side where there is room."""
    parts = "".join(figure.html() for figure in figures)
    return f'<div class="{css}">{parts}</div>' if parts else ""
