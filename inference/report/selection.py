"""What of a comparison is shown: nobody reads ten thousand parameters, so the page shows those that matter and says which. People count from 1.

Hyper-parameters first, then the largest words of the largest topics, the largest weights, or the coordinates of the items that lie furthest out. The
choice is made by the reference (without one by the first engine that has a posterior), never by how well an engine does.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from inference.report.typeset import plain
from pp_models.model import factor_axes

if TYPE_CHECKING:
    from inference.comparison.compare import Comparison

MAX_TOPICS = 4  # in forests and densities
MAX_WORDS = 3  # of each of them
MAX_ENTRIES = 8  # of any other site


class Quantity(NamedTuple):
    """One number of a global site: its place there, and what it is called."""

    site: str
    place: tuple[int, ...]
    label: str


def anchor(comparison: "Comparison") -> str | None:
    """The engine that decides what is shown: the reference, else the first one that is more than a point, else the first."""
    if comparison.reference in comparison.draws:
        return comparison.reference
    spread = [engine for engine, draws in comparison.draws.items() if not is_point(draws)]
    return next(iter((*spread, *comparison.draws)), None)


def is_point(draws: Any) -> bool:
    """Whether an engine's draws are a single value."""
    return len(next(iter(draws.values()))) == 1


def shown(comparison: "Comparison") -> list[str]:
    """The engines that have something to draw, in the order of the table."""
    return [engine for engine in comparison.summary["engines"] if engine in comparison.draws]


def others(comparison: "Comparison") -> list[str]:
    """The same without the reference."""
    return [engine for engine in shown(comparison) if engine != comparison.reference]


def values(comparison: "Comparison", engine: str, quantity: Quantity) -> np.ndarray:
    """The engine's finite draws of a quantity."""
    draws = comparison.draws[engine].get(quantity.site)
    if draws is None:
        return np.empty(0)
    every: tuple[Any, ...] = (slice(None), *quantity.place)
    found = np.asarray(draws[every], np.float64)
    return found[np.isfinite(found)]


def true_value(comparison: "Comparison", quantity: Quantity) -> float | None:
    """The value that synthetic data were drawn with, where it is known."""
    if comparison.truth is None or quantity.site not in comparison.truth:
        return None
    value = float(np.asarray(comparison.truth[quantity.site])[quantity.place])
    return value if np.isfinite(value) else None


def mean(comparison: "Comparison", engine: str, site: str) -> np.ndarray:
    """The engine's mean of a site over its finite draws; zero where there are none."""
    draws = np.asarray(comparison.draws[engine][site], np.float64)
    seen = np.isfinite(draws)
    return np.where(seen, draws, 0).sum(0) / np.maximum(seen.sum(0), 1)


# Names ------------------------------------------------------------------------------------------------------------------------


def column_name(comparison: "Comparison", column: int) -> str:
    """A word, an item, a variable: by its name, else by its number."""
    names = comparison.data.column_names
    letter = {"counts": "w", "text_and_votes": "w", "ratings": "item "}.get(
        comparison.data.kind, "x"
    )
    return f"{letter}{column + 1}" if names is None else str(names[column])


def names_of(comparison: "Comparison", site: str) -> Sequence[str] | None:
    """Names of the rows of a site of locations, where the data came with any: of fitted rows, of columns."""
    engine = anchor(comparison)
    if engine is None:
        return None
    count = comparison.draws[engine][site].shape[1]
    if site in comparison.model.local:
        fitted = getattr(comparison.fits.get(engine), "data", None)
        names = None if fitted is None else fitted.row_names
    else:
        names = comparison.data.column_names if site in ("v", "d1") else None
    return names if names is not None and len(names) == count else None


def row_label(comparison: "Comparison", site: str, row: int) -> str:
    """What a row of a site of locations is called."""
    names = names_of(comparison, site)
    return str(names[row]) if names is not None else f"{ROWS.get(site, plain(site))} {row + 1}"


ROWS = {
    "v": "item",
    "u": "row",
    "d1": "word",
    "d2": "member",
    "s": "row",
    "ell": "topic",
    "y": "row",
}


# Topics -----------------------------------------------------------------------------------------------------------------------


class Topics(NamedTuple):
    """The global site that holds a number for each factor and column, and which axis of its value is that of factors (-2 or -1)."""

    site: str
    axis: int

    def rows(self, value: Any) -> np.ndarray:
        """(..., K, columns)"""
        return np.swapaxes(np.asarray(value), -1, -2) if self.axis == -1 else np.asarray(value)

    def place(self, topic: int, column: int) -> tuple[int, int]:
        return (column, topic) if self.axis == -1 else (topic, column)


def topics(comparison: "Comparison") -> Topics | None:
    """Topics or profiles of components, where factors have an identity: none of those known only up to a rotation."""
    engine = anchor(comparison)
    if engine is None or comparison.model.symmetry == "rotation":
        return None
    draws, axes, columns = (
        comparison.draws[engine],
        factor_axes(comparison.model),
        comparison.data.num_columns,
    )
    for site in comparison.model.shared:
        if site in draws and draws[site].ndim == 3 and axes[site] in ((-1,), (-2,)):
            axis = axes[site][0]
            if draws[site].shape[-2 if axis == -1 else -1] == columns:
                return Topics(site, axis)
    return None


def largest_topics(comparison: "Comparison", found: Topics) -> np.ndarray:
    """Topics by the share of the rows' weights that they have, the largest first."""
    engine = anchor(comparison)
    assert engine is not None
    beta = found.rows(mean(comparison, engine, found.site))
    size = beta.sum(-1) if comparison.data.kind != "dense" else np.zeros(len(beta))
    if "theta" in comparison.draws[engine]:
        size = size * mean(comparison, engine, "theta").sum(0)
    elif "pi" in comparison.draws[engine]:
        size = mean(comparison, engine, "pi")
    return np.argsort(-size, kind="stable")


# Quantities -------------------------------------------------------------------------------------------------------------------


def chosen(comparison: "Comparison") -> dict[str, list[Quantity]]:
    """Heading -> the quantities shown under it, hyper-parameters first."""
    engine = anchor(comparison)
    if engine is None:
        return {}
    draws, found, groups = comparison.draws[engine], topics(comparison), {}
    small = [site for site in comparison.model.shared if site in draws and draws[site][0].size == 1]
    if small:
        groups["Hyper-parameters"] = [
            Quantity(site, (0,) * (draws[site].ndim - 1), plain(site)) for site in small
        ]
    for site in comparison.model.shared:
        if site in small or site not in draws:
            continue
        quantities = (
            _of_topics(comparison, found)
            if found is not None and site == found.site
            else _of_site(comparison, engine, site)
        )
        if quantities:
            groups[_heading(comparison, site, found)] = quantities
    return groups


def _heading(comparison: "Comparison", site: str, found: Topics | None) -> str:
    if found is not None and site == found.site:
        return (
            f"{plain(site)}: profiles of the components"
            if comparison.data.kind == "dense"
            else f"{plain(site)}: largest words of the largest topics"
        )
    if site == "pi":
        return f"{plain(site)}: weights of the components"
    if site == "components":
        return "means μ and precisions Λ: entries furthest from zero"
    return f"{plain(site)}: entries furthest from zero"


def _of_topics(comparison: "Comparison", found: Topics) -> list[Quantity]:
    """The largest words of the largest topics; of profiles of components the columns in which components differ most."""
    engine = anchor(comparison)
    assert engine is not None
    beta = found.rows(mean(comparison, engine, found.site))
    differ = np.argsort(-beta.std(0), kind="stable")[:MAX_WORDS]
    quantities = []
    for topic in largest_topics(comparison, found)[:MAX_TOPICS]:
        columns = (
            differ
            if comparison.data.kind == "dense"
            else np.argsort(-beta[topic], kind="stable")[:MAX_WORDS]
        )
        part = "component" if comparison.data.kind == "dense" else "topic"
        quantities += [
            Quantity(
                found.site,
                found.place(int(topic), int(v)),
                f"{column_name(comparison, int(v))} · {part} {topic + 1}",
            )
            for v in columns
        ]
    return quantities


def _of_site(comparison: "Comparison", engine: str, site: str) -> list[Quantity]:
    """All entries of a vector of weights; of other sites the entries furthest from zero, at most two of a row."""
    centre = np.abs(mean(comparison, engine, site))
    if centre.ndim == 1:
        pick = np.sort(np.argsort(-centre, kind="stable")[:MAX_ENTRIES])
        return [Quantity(site, (int(i),), f"{plain(site)}[{i + 1}]") for i in pick]
    taken: dict[int, int] = {}
    quantities: list[Quantity] = []
    for flat in np.argsort(-centre.ravel(), kind="stable")[: 50 * MAX_ENTRIES]:
        index = tuple(int(i) for i in np.unravel_index(flat, centre.shape))
        if taken.get(index[0], 0) >= 2 or len(quantities) >= MAX_ENTRIES:
            continue
        taken[index[0]] = taken.get(index[0], 0) + 1
        quantities.append(Quantity(site, index, _entry_label(comparison, site, index)))
    return sorted(quantities, key=lambda quantity: quantity.place)


def _entry_label(comparison: "Comparison", site: str, index: tuple[int, ...]) -> str:
    """What an entry of a matrix is called. A mean packed with its precision, as row 0 above the rest, is taken apart."""
    if comparison.model.families[site].name == "normal_wishart":
        *before, row, column = index
        owner = " ".join(
            ["component" if site == "components" else plain(site), *(str(i + 1) for i in before)]
        )
        return f"{owner} μ[{column + 1}]" if row == 0 else f"{owner} Λ[{row}, {column + 1}]"
    rest = ", ".join(str(i + 1) for i in index[1:])
    return f"{row_label(comparison, site, index[0])} [{rest}]"
