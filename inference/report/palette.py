"""One colour, dash and marker per engine, the same in every figure, table and report.

The hues are Okabe and Ito's and Tol's, made for colour-blind readers. Each has a shade for light
and one for dark mode, with a contrast of at least 3 to 1. Engines that share a hue differ in marker
and dash, so colour is never the only difference.
"""

from inference.core.engine import DASHED, DOTTED, MIXED, SOLID, Look, corrected_look
from inference.core.registry import corrects, engines, load_engine

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


def look(engine: str) -> Look:
    """The engine's colour, dash and marker. An engine that declares none gets a spare one."""
    if engine == "truth":
        return TRUTH
    if base := corrects(engine):
        return corrected_look(look(base))
    own = load_engine(engine).look if engine in engines() else None
    return own or SPARE[sum(map(ord, engine)) % len(SPARE)]


def css_class(engine: str) -> str:
    """The CSS class of everything drawn for an engine."""
    return "e-" + "".join(sign if sign.isalnum() and sign.isascii() else "-" for sign in engine)
