"""The results of evaluations: a value, its standard error, and the terms it is made of."""

import warnings
from typing import Any, NamedTuple

import numpy as np

from inference.core.provenance import hash_of_names
from pp_models.data.types import Data
from pp_models.errors import InputError


class Score(NamedTuple):
    """value: mean log probability per held-out token, in nats. standard_error: over documents.
    per_document, num_tokens: log probability and length of each document."""

    value: float
    standard_error: float
    per_document: np.ndarray
    num_tokens: np.ndarray

    @property
    def perplexity(self) -> float:
        """exp(-value): H(17)."""
        return float(np.exp(-self.value))


class Measure(NamedTuple):
    """A mean, its standard error, and its terms: one per row, topic, rating or vote, nan where it
    is not defined."""

    value: float
    standard_error: float
    terms: np.ndarray


def ratio(sums: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    """sum(sums) / sum(sizes) and its linearised standard error over independent rows.

    The error is nan if fewer than two rows have a size.
    """
    value, number = sums.sum() / sizes.sum(), np.count_nonzero(sizes)
    if number < 2:
        return float(value), float("nan")
    squares = np.sum((sums - value * sizes) ** 2)
    return float(value), float(np.sqrt(squares * number / (number - 1)) / sizes.sum())


def mean(terms: np.ndarray) -> Measure:
    """The mean of the terms that are not nan."""
    known = ~np.isnan(terms)
    if not known.any():
        raise InputError("Nothing here can be scored: no row has anything held out.")
    return Measure(*ratio(np.where(known, terms, 0), known.astype(float)), terms)


def clustered(terms: np.ndarray, row: np.ndarray) -> Measure:
    """The mean of terms, with a standard error over rows: terms of one row may be dependent."""
    groups = np.unique(row, return_inverse=True)[1]
    return Measure(*ratio(np.bincount(groups, terms), np.bincount(groups).astype(float)), terms)


def check_vocabulary(fit: Any, heldout: Data) -> None:
    """Refuse held-out rows whose columns differ from the fitted ones in number or names."""
    known = fit.provenance
    if heldout.num_columns != known["columns"]:
        raise InputError(
            f"The held-out documents have {heldout.num_columns} words but the model was fitted to "
            f"{known['columns']}: use the same vocabulary."
        )
    names = known.get("vocabulary"), heldout.column_names
    if None not in names and names[0] != hash_of_names(names[1]):
        raise InputError(
            "The held-out documents' words are not those that the model was fitted to, or are in "
            "another order: use the same vocabulary."
        )


def warn_if_fitted(fit: Any, heldout: Data) -> None:
    """Say so if the data to be scored are those that the fit has seen."""
    if heldout.hash == fit.provenance["hash"]:
        warnings.warn(
            "These are the data that were fitted, so the score says how well they are remembered: "
            "score rows or ratings that were held out.",
            stacklevel=3,
        )
