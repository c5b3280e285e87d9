"""The parameters that a report shows, and their labels.

A model may have ten thousand parameters. The report shows the hyper-parameters, the top words of
the largest topics, the largest weights, and the entries furthest from zero, as the reference (or
the first engine with a posterior) has them. Labels count from 1.
"""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from inference.comparison.compare import Comparison
from inference.report.markup import plain
from pp_models.model import factor_axes

MAX_TOPICS = 4  # in forests and densities
MAX_WORDS = 3  # of each of them
MAX_ENTRIES = 8  # of any other site
ROWS = {"v": "item", "d1": "word", "d2": "member", "ell": "topic"}  # what a row of a site is


class Quantity(NamedTuple):
    """One number of a global site, with its index and label."""

    site: str
    place: tuple[int, ...]
    label: str


def anchor(comparison: Comparison) -> str | None:
    """The reference, else the first engine with more than one draw, else the first engine."""
    if comparison.reference in comparison.draws:
        return comparison.reference
    spread = [engine for engine, draws in comparison.draws.items() if not is_point(draws)]
    return next(iter((*spread, *comparison.draws)), None)


def is_point(draws: Any) -> bool:
    """Whether an engine's draws are a single value."""
    return len(next(iter(draws.values()))) == 1


def shown(comparison: Comparison) -> list[str]:
    """Engines that have draws, in the order of the table."""
    return [engine for engine in comparison.summary["engines"] if engine in comparison.draws]


def values(comparison: Comparison, engine: str, quantity: Quantity) -> np.ndarray:
    """The engine's finite draws of a quantity."""
    draws: Any = comparison.draws[engine].get(quantity.site)
    if draws is None:
        return np.empty(0)
    found = np.asarray(draws[(slice(None), *quantity.place)], np.float64)
    return found[np.isfinite(found)]


def true_value(comparison: Comparison, quantity: Quantity) -> float | None:
    """The value that synthetic data were drawn with, if known."""
    if comparison.truth is None or quantity.site not in comparison.truth:
        return None
    value = float(np.asarray(comparison.truth[quantity.site])[quantity.place])
    return value if np.isfinite(value) else None


def mean(comparison: Comparison, engine: str, site: str) -> np.ndarray:
    """The engine's mean of a site over its finite draws; zero where there are none."""
    draws = np.asarray(comparison.draws[engine][site], np.float64)
    finite = np.isfinite(draws)
    return draws.sum(0, where=finite) / np.maximum(finite.sum(0), 1)


def column_name(comparison: Comparison, column: int) -> str:
    """Name of a word, item or variable, or its number."""
    names, kind = comparison.data.column_names, comparison.data.kind
    letter = {"counts": "w", "text_and_votes": "w", "ratings": "item "}.get(kind, "x")
    return f"{letter}{column + 1}" if names is None else str(names[column])


def names_of(comparison: Comparison, site: str) -> Sequence[str] | None:
    """Names of the rows of a site, if the data have any for them."""
    engine = str(anchor(comparison))
    names = comparison.data.column_names if site in ("v", "d1") else None
    if site in comparison.model.local:
        names = getattr(getattr(comparison.fits.get(engine), "data", None), "row_names", None)
    fits = names is not None and len(names) == comparison.draws[engine][site].shape[1]
    return names if fits else None


def row_label(comparison: Comparison, site: str, row: int) -> str:
    """Label of a row of a site."""
    names = names_of(comparison, site)
    return str(names[row]) if names is not None else f"{ROWS.get(site, 'row')} {row + 1}"


class Topics(NamedTuple):
    """The global site with a number for each factor and column. axis: of the factors, -2 or -1."""

    site: str
    axis: int

    def rows(self, value: Any) -> np.ndarray:
        """(..., K, columns)"""
        return np.swapaxes(np.asarray(value), -1, -2) if self.axis == -1 else np.asarray(value)

    def place(self, topic: int, column: int) -> tuple[int, int]:
        return (column, topic) if self.axis == -1 else (topic, column)


def topics(comparison: Comparison) -> Topics | None:
    """Topics, or profiles of components; None where factors are known only up to a rotation."""
    engine = anchor(comparison)
    if engine is None or comparison.model.symmetry == "rotation":
        return None
    draws, axes = comparison.draws[engine], factor_axes(comparison.model)
    for site in comparison.model.shared:
        if site in draws and draws[site].ndim == 3 and axes[site] in ((-1,), (-2,)):
            found = Topics(site, axes[site][0])
            if found.rows(draws[site]).shape[-1] == comparison.data.num_columns:
                return found
    return None


def largest_topics(comparison: Comparison, found: Topics) -> np.ndarray:
    """Topics by their share of the rows' weights, the largest first."""
    engine = str(anchor(comparison))
    beta = found.rows(mean(comparison, engine, found.site))
    size = beta.sum(-1) if comparison.data.kind != "dense" else np.zeros(len(beta))
    if "theta" in comparison.draws[engine]:
        size = size * mean(comparison, engine, "theta").sum(0)
    elif "pi" in comparison.draws[engine]:
        size = mean(comparison, engine, "pi")
    return np.argsort(-size, kind="stable")


def chosen(comparison: Comparison) -> dict[str, list[Quantity]]:
    """Heading -> the quantities shown under it, hyper-parameters first."""
    engine = anchor(comparison)
    if engine is None:
        return {}
    draws, found = comparison.draws[engine], topics(comparison)
    order = (*comparison.model.shared, *sorted(comparison.model.local))
    sites = [site for site in order if site in draws]
    small = [site for site in sites if draws[site][0].size == 1]
    scalars = [Quantity(site, (0,) * (draws[site].ndim - 1), plain(site)) for site in small]
    groups = {"Hyper-parameters": scalars}
    for site in sites:
        name = "means μ and precisions Λ" if site == "components" else plain(site)
        if found is not None and site == found.site:
            dense = comparison.data.kind == "dense"
            what = "profiles of the components" if dense else "largest words of the largest topics"
            groups[f"{name}: {what}"] = _of_topics(comparison, found)
        elif site not in small:
            what = "weights of the components" if site == "pi" else "entries furthest from zero"
            groups[f"{name}: {what}"] = _of_site(comparison, engine, site)
    return {heading: group for heading, group in groups.items() if group}


def _of_topics(comparison: Comparison, found: Topics) -> list[Quantity]:
    """Top words of the largest topics; for dense data the columns that differ most."""
    dense = comparison.data.kind == "dense"
    beta = found.rows(mean(comparison, str(anchor(comparison)), found.site))
    quantities = []
    for topic in largest_topics(comparison, found)[:MAX_TOPICS].tolist():
        size = beta.std(0) if dense else beta[topic]
        for column in np.argsort(-size, kind="stable")[:MAX_WORDS].tolist():
            owner = f"{'component' if dense else 'topic'} {topic + 1}"
            label = f"{column_name(comparison, column)} · {owner}"
            quantities.append(Quantity(found.site, found.place(topic, column), label))
    return quantities


def _of_site(comparison: Comparison, engine: str, site: str) -> list[Quantity]:
    """The entries furthest from zero, for matrices at most two of a row."""
    centre = np.abs(mean(comparison, engine, site))
    taken: collections.Counter[int] = collections.Counter()
    quantities: list[Quantity] = []
    for flat in np.argsort(-centre, axis=None, kind="stable")[: 50 * MAX_ENTRIES]:
        index = tuple(int(i) for i in np.unravel_index(flat, centre.shape))
        if len(quantities) < MAX_ENTRIES and taken[index[0]] < 2:
            taken[index[0]] += 1
            quantities.append(Quantity(site, index, _entry_label(comparison, site, index)))
    return sorted(quantities, key=lambda quantity: quantity.place)


def _entry_label(comparison: Comparison, site: str, index: tuple[int, ...]) -> str:
    """Label of an entry. A Normal-Wishart site holds the mean in row 0, the precision below it."""
    if len(index) == 1:
        return f"{plain(site)}[{index[0] + 1}]"
    if comparison.model.families[site].name == "normal_wishart":
        *before, row, column = index
        owner = "component" if site == "components" else plain(site)
        owner = " ".join([owner, *(str(i + 1) for i in before)])
        return f"{owner} μ[{column + 1}]" if row == 0 else f"{owner} Λ[{row}, {column + 1}]"
    rest = ", ".join(str(i + 1) for i in index[1:])
    return f"{row_label(comparison, site, index[0])} [{rest}]"
