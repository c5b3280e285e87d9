"""Scales, ticks and the SVG elements that the report's figures are made of.

Elements are text with CSS classes, so that one drawing follows light and dark mode. Each `<title>`
becomes a tooltip. Coordinates have one decimal, which keeps a page of figures small.
"""

import functools
import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from inference.report.palette import css_class, look

WIDTH = 360  # of most figures, in units that are pixels on a phone
CHARACTER = 6.3  # approximate width of a letter


class Figure(NamedTuple):
    """A drawing with its alternative text. about: CSS class that names the kind of figure."""

    title: str
    parts: Sequence[str]
    width: float
    height: float
    words: str
    about: str

    @property
    def drawing(self) -> str:
        return "".join(self.parts)


def number(value: float) -> str:
    """A number with three digits and a real minus sign."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    form = ",.0f" if size >= 999.5 else ".3g" if size >= 1e-4 or size == 0 else ".1e"
    return format(value, form).replace("-", "−") if size > 0 else "0"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Scale(NamedTuple):
    """Map data between low and high to pixels between start and end. Call it to convert."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, values: Any) -> Any:
        x, low, high = np.asarray(values, float), self.low, self.high
        if self.log:
            x, low, high = np.log(np.where(x > 0, x, np.nan)), math.log(low), math.log(high)
        pixels = self.start + (x - low) / (high - low) * (self.end - self.start)
        return pixels if pixels.ndim else float(pixels)

    def clip(self, values: Any) -> Any:
        """Pixels of the values, moved to the nearest end where they lie outside."""
        return self(np.clip(values, self.low, self.high))


def make_scale(values: Any, start: float, end: float, log=False, pad=0.05) -> Scale:
    """A scale that contains all finite values, with some space at its ends."""
    x = np.asarray(values, float).ravel()
    x = x[np.isfinite(x) & ((x > 0) | (not log))]
    low, high = (float(x.min()), float(x.max())) if x.size else (1.0, 2.0)
    if log:
        factor = math.exp(pad * max(math.log(high / low), 1e-3))
        return Scale(low / factor, high * factor, start, end, True)
    spread = high - low
    if spread <= 1e-12 * max(abs(low), abs(high)):
        spread = abs(high) * 0.1 or 1.0
        low, high = low - spread / 2, high + spread / 2
    return Scale(low - pad * spread, high + pad * spread, start, end)


def ticks(scale: Scale, most: int = 5) -> list[float]:
    """At most this many round numbers inside a scale."""
    if scale.log:
        decades = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
        for parts in ((1, 2, 5), (1, 3), (1,)):
            found = [part * 10.0**e for e in decades for part in parts]
            found = [place for place in found if scale.low <= place <= scale.high]
            if len(found) <= most:
                break
        if len(found) >= 2:
            return found[:: math.ceil(len(found) / most)]
    least = (scale.high - scale.low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(part * power for part in (1, 2, 5, 10) if part * power >= least * (1 - 1e-9))
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_labels(places: Sequence[float]) -> list[str]:
    """Labels with as many digits as the numbers need."""
    largest = max(map(abs, places), default=0.0)
    exponent = largest >= 1e6 or 0 < largest < 1e-3
    forms = [f".{n}g" if exponent else f",.{n}f" for n in range(1 if exponent else 0, 12)]

    def is_exact(form: str) -> bool:
        shown = [float(format(place, form).replace(",", "")) for place in places]
        return bool(np.allclose(shown, places, rtol=0, atol=1e-9 * largest))

    form = next(filter(is_exact, forms), forms[-1])
    labels = [format(place, form).replace("-", "−") for place in places]
    return [label.replace("e−0", "e−").replace("e+0", "e") for label in labels]


def thin(length: int, most: int) -> np.ndarray:
    """At most this many indices of a sequence, evenly spaced, including both ends."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(int))


def title(tip: str) -> str:
    return f"<title>{escape(tip)}</title>" if tip else ""


def text(x: float, y: float, words: str, css: str, anchor: str = "start") -> str:
    at = f'x="{_short(x)}" y="{_short(y)}" class="{css}" text-anchor="{anchor}"'
    return f"<text {at}>{escape(words)}</text>"


def cut(words: str, most: float) -> str:
    """Shorten a text to about this many pixels."""
    letters = max(3, int(most / CHARACTER))
    return words if len(words) <= letters else words[: letters - 1] + "…"


def path(x: Any, y: Any, css: str, tip: str = "", closed: bool = False) -> str:
    """A line through points in pixels, broken where one is not finite."""
    points = np.stack([np.asarray(x, float), np.asarray(y, float)], 1)
    finite = np.isfinite(points).all(1)
    pens = np.where(np.append(False, finite[:-1]), "L", "M")
    shown = zip(pens[finite], points[finite], strict=True)
    d = "".join(f"{pen}{_short(a)} {_short(b)}" for pen, (a, b) in shown)
    return f'<path d="{d}{"Z" if closed else ""}" class="{css}">{title(tip)}</path>' if d else ""


def line(x1: float, y1: float, x2: float, y2: float, css: str, tip: str = "") -> str:
    return path([x1, x2], [y1, y2], css, tip)


def segments(x1: Any, y1: Any, x2: Any, y2: Any, css: str, tip: str = "") -> str:
    """Many separate lines as one element."""
    ends = np.broadcast_arrays(*(np.asarray(a, float) for a in (x1, y1, x2, y2)))
    rows = np.stack(ends, -1).reshape(-1, 4)
    rows = rows[np.isfinite(rows).all(1)]
    d = "".join(f"M{_short(a)} {_short(b)}L{_short(c)} {_short(e)}" for a, b, c, e in rows)
    return f'<path d="{d}" class="{css}">{title(tip)}</path>' if d else ""


def rectangle(x: float, y: float, width: float, height: float, css: str, tip: str = "") -> str:
    at = f'x="{_short(x)}" y="{_short(y)}"'
    size = f'width="{_short(max(width, 0))}" height="{_short(max(height, 0))}"'
    return f'<rect {at} {size} class="{css}">{title(tip)}</rect>'


def mark(engine: str, x: float, y: float, tip: str) -> str:
    """The engine's marker at a point in pixels."""
    if not (math.isfinite(x) and math.isfinite(y)):
        return ""
    at = f'href="#m-{look(engine).marker}" x="{_short(x)}" y="{_short(y)}"'
    return f"<use {at}>{title(tip)}</use>"


def marks(engine: str, x: Any, y: Any, tips: Sequence[str]) -> str:
    return "".join(map(functools.partial(mark, engine), x, y, tips))


def of(engine: str | None, *parts: str) -> str:
    """A group in the engine's colour."""
    content = "".join(parts)
    return f'<g class="{css_class(engine or "")}">{content}</g>' if content else ""


def interval(x: Scale, y: float, engine: str, levels: np.ndarray, css: str, tip: str) -> str:
    """Five quantiles: a thin line over all, `css` over the middle half, a marker on the median."""
    low, quarter, half, three, high = x.clip(levels)
    bars = line(low, y, high, y, "bar") + line(quarter, y, three, y, css)
    return (bars if levels[0] < levels[-1] else "") + mark(engine, half, y, tip)


def ellipse(centre: Any, covariance: Any, css: str, points: int = 28) -> str:
    """The outline of one standard deviation about a centre, both in pixels."""
    values, vectors = np.linalg.eigh(np.asarray(covariance, float))
    angle = np.linspace(0, 2 * np.pi, points, endpoint=False)
    circle = np.sqrt(np.maximum(values, 0))[:, None] * [np.cos(angle), np.sin(angle)]
    x, y = np.asarray(centre, float)[:, None] + vectors @ circle
    return path(x, y, css, closed=True)


def frame(x: Scale, y: Scale, x_label: str = "", y_label: str = "") -> str:
    """Both axes. Pixels grow downwards, so y.start lies below y.end."""
    return y_axis(x, y, y_label) + x_axis(x, y.start, x_label)


def y_axis(x: Scale, y: Scale, y_label: str = "", most: int = 5) -> str:
    """Grid lines with their numbers on the left."""
    places = ticks(y, most)
    parts = [segments(x.start, y(places), x.end, y(places), "grid")]
    for place, label in zip(places, tick_labels(places), strict=True):
        parts.append(text(x.start - 5, y(place) + 4, label, "tick", "end"))
    return "".join(parts) + (text(2, y.end - 12, y_label, "label") if y_label else "")


def x_axis(x: Scale, bottom: float, x_label: str = "", most: int = 5) -> str:
    """A line with as many ticks and numbers below it as there is room for."""
    places = ticks(x, most)
    labels = tick_labels(places)
    while len(places) > 2 and len("  ".join(labels)) > (x.end - x.start) / CHARACTER - 2:
        places, labels = places[::2], labels[::2]
    marked = segments(x(places), bottom, x(places), bottom + 4, "axis")
    parts = [line(x.start, bottom, x.end, bottom, "axis"), marked]
    for place, label in zip(places, labels, strict=True):
        parts.append(text(x(place), bottom + 16, label, "tick", "middle"))
    if x_label:
        parts.append(text((x.start + x.end) / 2, bottom + 32, x_label, "label", "middle"))
    return "".join(parts)


def margin(y: Scale, most: int = 5) -> float:
    """The space that the numbers of a y axis need on the left."""
    return 10 + CHARACTER * max(map(len, tick_labels(ticks(y, most))), default=0)
