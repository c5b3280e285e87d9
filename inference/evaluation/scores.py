"""What every evaluation returns: a value, its standard error, and the terms it was made from."""

from typing import Any, NamedTuple

import numpy as np

from inference.core.provenance import hash_of_names
from pp_models.data.types import Data
from pp_models.errors import InputError


class Score(NamedTuple):
    """value: mean log probability per held-out token, in nats. standard_error: over documents. per_document, num_tokens: its terms."""

    value: float
    standard_error: float
    per_document: np.ndarray
    num_tokens: np.ndarray

    @property
    def perplexity(self) -> float:
        """exp(-value): H(17)."""
        return float(np.exp(-self.value))


class Measure(NamedTuple):
    """value, its standard error, and the terms that it averages, one for each row, topic, rating or vote; nan where a term is not defined."""

    value: float
    standard_error: float
    terms: np.ndarray


def ratio(sums: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    """sum(sums) / sum(sizes) and its standard error, linearised, over rows that were drawn independently: nan where only one has a size."""
    value, number = sums.sum() / sizes.sum(), np.count_nonzero(sizes)
    residual = sums - value * sizes
    return float(value), float(
        np.sqrt(np.sum(residual**2) * number / (number - 1)) / sizes.sum()
    ) if number > 1 else float("nan")


def mean(terms: np.ndarray) -> Measure:
    """The mean of the terms that are defined, and its standard error."""
    known = terms[~np.isnan(terms)]
    if not len(known):
        raise InputError("Nothing here can be scored: no row has anything held out.")
    return Measure(
        float(known.mean()),
        float(known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else float("nan"),
        terms,
    )


def clustered(terms: np.ndarray, row: np.ndarray) -> Measure:
    """The mean of terms, and its standard error over the rows that they belong to: terms of one row may depend on each other."""
    groups = np.unique(row, return_inverse=True)[1]
    return Measure(*ratio(np.bincount(groups, terms), np.bincount(groups).astype(float)), terms)


def check_vocabulary(fit: Any, heldout: Data, what: str = "words") -> None:
    """Refuse held-out rows whose columns are not those that were fitted, by their number or by their names."""
    known = fit.provenance
    if heldout.num_columns != known["columns"]:
        raise InputError(
            f"The held-out documents have {heldout.num_columns} {what} but the model was fitted to {known['columns']}: use the same vocabulary."
        )
    names = known.get("vocabulary")
    if (
        names is not None
        and heldout.column_names is not None
        and names != hash_of_names(heldout.column_names)
    ):
        raise InputError(
            f"The held-out documents' {what} are not those that the model was fitted to, or in another order: use the same vocabulary."
        )
