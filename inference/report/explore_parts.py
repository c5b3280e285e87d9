"""What the parts of the exploring page share: nouns, names, rounding and the layout of maps."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from inference.core import align
from inference.report import svg

LONGEST_NAME = 160
number = svg.number


class Part(NamedTuple):
    """content: key -> what the script draws. notes: what was left out, and how to read figures."""

    content: dict[str, Any]
    notes: list[str]


class Nouns(NamedTuple):
    """What rows and columns of the data are called."""

    row: str
    rows: str
    column: str
    columns: str

    def of(self, noun: str, size: int) -> str:
        """The noun for so many things."""
        plural = {self.row: self.rows, self.column: self.columns}[noun]
        return noun if size == 1 else plural


_NOUNS = {
    "counts": Nouns("document", "documents", "word", "words"),
    "ratings": Nouns("user", "users", "item", "items"),
    "text_and_votes": Nouns("bill", "bills", "word", "words"),
}


def nouns(fit: Any) -> Nouns:
    return _NOUNS.get(fit.provenance["kind"], Nouns("row", "rows", "column", "columns"))


def named(given: Sequence[str] | None, index: Any, noun: str) -> list[str]:
    """Names of these rows or columns. Without names they are numbered from 0."""
    return [_short(given[i]) if given is not None else f"{noun} {i}" for i in map(int, index)]


def _short(name: str) -> str:
    name = " ".join(name.split()) or "(no name)"
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def rounded(values: Any, digits: int = 3) -> Any:
    """Nested lists of numbers with so many significant digits. What is not finite becomes 0."""
    x = np.asarray(values, np.float64)
    x = np.where(np.isfinite(x), x, 0.0)
    exponent = np.floor(np.log10(np.where(x == 0, 1.0, np.abs(x))))
    scale = 10.0 ** np.clip(digits - 1 - exponent, -300, 300)
    return _lists(np.round(x * scale) / scale, digits)


def _lists(x: Any, digits: int) -> Any:
    if x.ndim > 1:
        return [_lists(one, digits) for one in x]
    return [float(f"{value:.{digits}g}") for value in np.atleast_1d(x).tolist()]


def first_of_rows(table: Any, size: Any, most: int) -> list[np.ndarray]:
    """For each row of a CSR table the places of its entries of largest size, largest first."""
    rows = np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))
    order = np.lexsort((-np.asarray(size), rows))
    rank = np.arange(len(order)) - table.indptr[rows]  # of the sorted entries within their rows
    kept = order[rank < most]
    ends = np.cumsum(np.minimum(np.diff(table.indptr), most))
    return np.split(kept, ends[:-1])


def spaced(size: int, most: int) -> np.ndarray:
    """At most so many of the numbers 0 to size - 1, evenly spaced."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(int))


def map_of_distances(distances: np.ndarray) -> np.ndarray:
    """(n, 2) places by classical multidimensional scaling of distances (n, n).

    The signs of the axes make the entry of largest size positive, so that the map is the same each
    time.
    """
    n = len(distances)
    centre = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-0.5 * centre @ distances**2 @ centre)
    pick = np.argsort(-values, kind="stable")[:2]
    return _flat(vectors[:, pick] * np.sqrt(np.maximum(values[pick], 0)))


def map_of_places(places: np.ndarray) -> np.ndarray:
    """(n, 2) the first two principal components of places (n, dimensions)."""
    left, size, _ = np.linalg.svd(places - places.mean(0), full_matrices=False)
    return _flat(left[:, :2] * size[:2])


def _flat(found: np.ndarray) -> np.ndarray:
    found = np.pad(found, ((0, 0), (0, 2 - found.shape[1])))
    largest = np.argmax(np.round(np.abs(found), 9), axis=0)
    return found * np.where(found[largest, [0, 1]] < 0, -1.0, 1.0)


def hellinger(shares: np.ndarray) -> np.ndarray:
    """(n, n) Hellinger distances, between 0 and 1, of distributions (n, size)."""
    distance = np.sqrt(np.maximum(align.hellinger(shares, shares), 0))
    np.fill_diagonal(distance, 0)
    return (distance + distance.T) / 2


def nearest(nearness: np.ndarray, number: int) -> tuple[list[list[int]], np.ndarray]:
    """For each thing, the others of largest nearness (n, n), largest first, and their nearness."""
    nearness = np.array(nearness, np.float64)
    np.fill_diagonal(nearness, -np.inf)
    order = np.argsort(-nearness, axis=1, kind="stable")[:, : min(number, len(nearness) - 1)]
    return order.tolist(), np.take_along_axis(nearness, order, 1)


def cosines(places: np.ndarray) -> np.ndarray:
    """(n, n) cosines of places; averaged over draws (draws, n, dimensions) if there are any."""
    stack = places if places.ndim == 3 else places[None]
    total = np.zeros((stack.shape[1],) * 2)
    for one in stack.astype(np.float64):
        length = np.linalg.norm(one, axis=1, keepdims=True)
        unit = one / np.where(length > 0, length, 1)
        total += unit @ unit.T
    return total / len(stack)


def common_draws(fit: Any, most: int) -> dict[str, np.ndarray]:
    """Draws of Markov chains, evenly spaced, with common labels, signs and axes."""
    posterior = fit.posterior
    joint = posterior.sample_stats["lp"].reshape(-1)
    pick = spaced(joint.size, most)
    draws = {site: posterior.flat(site)[pick] for site in posterior.sites}
    pivot = {site: x[np.argmax(joint[pick])] for site, x in draws.items()}
    return dict(align.common_labels(fit.model, draws, pivot)[0])


def rows_known(fit: Any) -> bool:
    """Whether the rows' own sites are stored or can be solved for."""
    return fit.data is not None or set(fit.model.local) <= set(fit.posterior.at_hand)


def lengths_of(fit: Any) -> np.ndarray | None:
    """The sum of each row's entries; None if neither the data nor these sums are with the fit."""
    found = getattr(fit, "row_totals", None) if fit.data is None else fit.data.totals
    return None if found is None else np.asarray(found)


def counts_of(matrix: Any, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of entries and their mean, of each row (1) or column (0); 0 without entries."""
    table = matrix.tocoo()
    index, size = table.coords[1 - axis], table.shape[1 - axis]
    entries = np.bincount(index, minlength=size)
    sums = np.bincount(index, weights=table.data, minlength=size)
    return entries, sums / np.maximum(entries, 1)
