"""One colour, one dash and one marker per engine, the same in every figure, table and report.

The hues are Okabe and Ito's and Tol's, made for colour-blind readers, each in a shade for light and one for dark paper with a contrast of at least
3 to 1 against it. There are more engines than hues that can be told apart, so engines of a hue differ in marker and dash: colour is never the
only difference between any two.
"""

from collections.abc import Iterable

from inference.core.engine import DASHED, DOTTED, MIXED, SOLID, Look
from inference.core.registry import engines, load_engine

SHADES = {  # hue -> on light paper, on dark paper
    "blue": ("#0067a5", "#5cb0ea"),
    "sky": ("#2f8fc4", "#9bd6f7"),
    "vermilion": ("#c84a00", "#ff8a4c"),
    "amber": ("#a87400", "#f0bb45"),
    "green": ("#00805f", "#35c79e"),
    "pink": ("#b8457f", "#ec8fc0"),
    "grey": ("#5f6670", "#b9c0c9"),
    "indigo": ("#4b3fae", "#a79df5"),
    "wine": ("#8a1f45", "#e07a9c"),
    "olive": ("#7a7a1e", "#c9c95a"),
}
SPARE = (
    Look("olive", SOLID, "down", True),
    Look("olive", DASHED, "star", True),
    Look("olive", DOTTED, "circle"),
    Look("olive", MIXED, "square"),
)
TRUTH = Look("grey", SOLID, "up")
MARKERS = {  # outlines about the origin, all of about the same area
    "circle": "M3.6 0A3.6 3.6 0 1 1 -3.6 0A3.6 3.6 0 1 1 3.6 0Z",
    "square": "M-3.2 -3.2H3.2V3.2H-3.2Z",
    "diamond": "M0 -4.6L4.2 0L0 4.6L-4.2 0Z",
    "up": "M0 -4.4L4.2 3.2H-4.2Z",
    "down": "M0 4.4L4.2 -3.2H-4.2Z",
    "plus": "M-1.3 -4.2H1.3V-1.3H4.2V1.3H1.3V4.2H-1.3V1.3H-4.2V-1.3H-1.3Z",
    "cross": "M-3.9 -2.1L-2.1 -3.9L0 -1.8L2.1 -3.9L3.9 -2.1L1.8 0L3.9 2.1L2.1 3.9L0 1.8L-2.1 3.9L-3.9 2.1L-1.8 0Z",
    "hourglass": "M-4 -4.2H4L1.2 0L4 4.2H-4L-1.2 0Z",
    "star": "M0 -5L1.3 -1.6L4.8 -1.5L2 0.7L3 4.1L0 2.1L-3 4.1L-2 0.7L-4.8 -1.5L-1.3 -1.6Z",
}


def look(engine: str) -> Look:
    """The engine's colour, dash and marker. An engine without a look of its own gets a spare one, by its name."""
    if engine == "truth":
        return TRUTH
    own = load_engine(engine).look if engine in engines() else None
    return own or SPARE[sum(map(ord, engine)) % len(SPARE)]


def css_class(engine: str) -> str:
    """The class of everything drawn for an engine."""
    return "e-" + "".join(sign if sign.isalnum() and sign.isascii() else "-" for sign in engine)


def styles(engines: Iterable[str]) -> str:
    """The colours and dashes of these engines as CSS variables, for light and for dark paper."""
    light, dark = [], []
    for engine in engines:
        one = look(engine)
        shades = SHADES[one.hue]
        fill = "--f:var(--card);--s:var(--c);--w:1.3;" if one.is_open else ""
        light.append(f".{css_class(engine)}{{--c:{shades[0]};--d:{one.dash};{fill}}}")
        dark.append(f".{css_class(engine)}{{--c:{shades[1]}}}")
    return "".join(light) + "@media screen and (prefers-color-scheme:dark){" + "".join(dark) + "}"


def marker_definitions() -> str:
    """The markers, once per page: every mark is a reference to one."""
    shapes = "".join(f'<path id="m-{name}" d="{path}"/>' for name, path in MARKERS.items())
    return f'<svg class="defs" width="0" height="0" aria-hidden="true"><defs>{shapes}</defs></svg>'
