"""One colour, dash and marker per engine, the same in every figure, table and report.

The hues are Okabe and Ito's and Tol's, made for colour-blind readers. Each has a shade for light
and one for dark mode, with a contrast of at least 3 to 1. Engines that share a hue differ in marker
and dash, so colour is never the only difference.
"""

from inference.core.engine import DASHED, DOTTED, MIXED, SOLID, Look
from inference.core.registry import engines, load_engine

SHADES = {  # hue -> in light mode, in dark mode
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
MARKERS = {  # outlines around the origin, all of about the same area
    "circle": "M3.6 0A3.6 3.6 0 1 1 -3.6 0A3.6 3.6 0 1 1 3.6 0Z",
    "square": "M-3.2 -3.2H3.2V3.2H-3.2Z",
    "diamond": "M0 -4.6L4.2 0L0 4.6L-4.2 0Z",
    "up": "M0 -4.4L4.2 3.2H-4.2Z",
    "down": "M0 4.4L4.2 -3.2H-4.2Z",
    "plus": "M-1.3 -4.2H1.3V-1.3H4.2V1.3H1.3V4.2H-1.3V1.3H-4.2V-1.3H-1.3Z",
    "cross": "M-3.9 -2.1L-2.1 -3.9L0 -1.8L2.1 -3.9L3.9 -2.1L1.8 0L3.9 2.1L2.1 3.9L0 1.8L-2.1 3.9"
    "L-3.9 2.1L-1.8 0Z",
    "hourglass": "M-4 -4.2H4L1.2 0L4 4.2H-4L-1.2 0Z",
    "star": "M0 -5L1.3 -1.6L4.8 -1.5L2 0.7L3 4.1L0 2.1L-3 4.1L-2 0.7L-4.8 -1.5L-1.3 -1.6Z",
}


def look(engine: str) -> Look:
    """The engine's colour, dash and marker. An engine that declares none gets a spare one."""
    if engine == "truth":
        return TRUTH
    own = load_engine(engine).look if engine in engines() else None
    return own or SPARE[sum(map(ord, engine)) % len(SPARE)]


def css_class(engine: str) -> str:
    """The CSS class of everything drawn for an engine."""
    return "e-" + "".join(sign if sign.isalnum() and sign.isascii() else "-" for sign in engine)
