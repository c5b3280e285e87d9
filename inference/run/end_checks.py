"""Warnings about the answer of a fit that ended well, but is of little use."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from inference.core.factors import ALIKE, about_flat, shapes
from inference.core.posterior import Posterior
from pp_models.model import factor_axes

LIGHT = 0.1  # of an equal share of the weights: a factor with less is not used
DRAWS = 5  # of a chain, whose predictions are averaged


def warn_of_answer(posterior: Posterior) -> None:
    """Warn if factors are copies of each other, or predictions are worse than the mean rating.

    A check that fails, of a user's own model say, must not cost the fit.
    """
    for check in (copies, poor_predictions):
        try:
            found = list(check(posterior))
        except Exception as error:
            found = [f"The answer could not be checked for {check.__name__}: {error}"]
        for text in found:
            warnings.warn(text, stacklevel=4)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings about the answer of a fit that serves to judge another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def point_of(posterior: Posterior, number: int = 1) -> dict[str, np.ndarray]:
    """(number, ...) draws of chains, whose factors have one label within a draw; else one mean."""
    sites = posterior.at_hand
    if posterior.has_chains:
        return posterior.sample(jax.random.key(0), number, sites)
    return {site: np.asarray(posterior.mean(site), np.float64)[None] for site in sites}


def copies(posterior: Posterior) -> Iterator[str]:
    """Sentences about positive factors of the same shape that are both in use, and about an answer
    without any in use."""
    model, values = posterior.problem.model, point_of(posterior)
    found = shapes(model, {site: x[0] for site, x in values.items()})
    if found is None:
        return
    units, flat = found
    if flat.all():
        yield about_flat(model)
    used = ~flat & (_shares(model, values) * len(units) > LIGHT)
    alike = np.triu(units @ units.T > ALIKE, 1) & used & used[:, None]
    if alike.any():
        named = np.flatnonzero(alike.any(0) | alike.any(1))
        told = ", ".join(map(str, named[:10] + 1)) + (", ..." if len(named) > 10 else "")
        yield (
            f"{len(named)} of the {len(units)} factors of {model.name} are copies of another "
            f"({told}): try another key or engine, fewer factors, or other hyper-parameters."
        )


def _shares(model: Any, values: dict[str, np.ndarray]) -> np.ndarray:
    """(K,) each factor's share of the rows' or the mixture's weights; infinite if not at hand."""
    for site, axes in factor_axes(model).items():
        if site in values and axes == (-1,) and (site in model.local or values[site].ndim == 2):
            weights = np.abs(values[site][0]).reshape(-1, values[site].shape[-1]).sum(0)
            return np.asarray(weights / max(weights.sum(), 1e-300))
    return np.array([np.inf])


def poor_predictions(posterior: Posterior) -> Iterator[str]:
    r"""A sentence if, over all cells, predictions are too large for ratings like the observed ones.

    With $p$ and $r$ the root mean squares of predictions and ratings about the offset, the root
    mean squared error is $p - r$ at least. It is compared with the ratings' standard deviation,
    which is that of predicting the mean.
    """
    model, data, hyper = posterior.problem.model, posterior.problem.data, posterior.problem.hyper
    if model.ratings is None or not set(model.ratings.sites) <= set(posterior.at_hand):
        return
    found = point_of(posterior, DRAWS)
    sides = (found[site] / len(found[site]) ** 0.5 for site in model.ratings.sites)
    rows, columns = (np.concatenate(list(side), axis=1) for side in sides)
    squares = np.sum((rows.T @ rows) * (columns.T @ columns))
    predicted = np.sqrt(squares / (len(rows) * len(columns)))
    ratings = np.asarray(data.matrix.data, np.float64)
    size = np.sqrt(np.mean((ratings - float(hyper.offset)) ** 2))
    if predicted - size > np.std(ratings):
        yield (
            f"{model.name} predicts worse than the mean rating: over all cells, its predictions "
            f"differ from the offset by {predicted:.3g}, ratings by {size:.3g}. Try another key, "
            "fewer factors, or a stronger prior."
        )
