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
RISE = 0.005  # of the whole rise of the bound: less at the end of a run is not noticeable
SURE = 4.0  # standard errors of that rise
FEW = 5  # estimates of the bound whose scatter says little
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


def warn_of_rising(title: str, history: Any, num_rows: int, options: Any) -> None:
    """Warn if the bound of a run by minibatches still rose when it ended."""
    sizes = batch_sizes(len(history["bound"]), num_rows, options.batch_size)
    per_pass = -(-num_rows // options.batch_size)
    text = still_rising(title, history["bound"], history["rate"], sizes, per_pass)
    if text:
        warnings.warn(text, stacklevel=4)


def batch_sizes(num_steps: int, num_rows: int, size: int) -> np.ndarray:
    """Rows of each step's batch: the last one of a pass has what is left."""
    each = np.full(-(-num_rows // size), size)
    each[-1] = num_rows - size * (len(each) - 1)
    return np.resize(each, num_steps)


def still_rising(title: str, bounds: Any, rates: Any, sizes: Any, per_pass: int) -> str:
    """A sentence if the bound rose by more than noise, and noticeably, from the last eighth of the
    passes but one to the last (three passes at least, or one of few); else none.

    bounds: estimates by batches of so many rows (`sizes`), nan where there is none
    rates:  of the steps: a rise counts for more if they add up to less than a sweep

    A pass meets every row once. With the batches weighted by their rows, the rows' differences
    cancel from pass to pass, and the scatter of the steps from pass to pass is the noise. Of fewer
    than six passes it is that of the batches, which is larger.
    """
    passes = len(bounds) // per_pass
    if passes < 2 or len(bounds) <= per_pass:
        return ""
    values, weights, rate = (
        np.asarray(x, float)[: passes * per_pass].reshape(passes, per_pass)
        for x in (bounds, sizes, rates)
    )
    known = np.isfinite(values)
    if not known.any(1).all():
        return ""
    weights, values = weights * known, np.where(known, values, 0.0)
    means = np.sum(weights * values, 1) / np.sum(weights, 1)
    length = max(3, passes // 8) if passes >= 6 else 1
    before, last = means[-2 * length : -length], means[-length:]
    if length > 1:
        noise = np.sqrt(np.var(np.diff(means[-2 * length :]), ddof=1) / length)
    else:
        parts = [values[i][known[i]] for i in (-2, -1)]
        if per_pass > 1 and min(map(len, parts)) < FEW:
            return ""
        noise = np.sqrt(sum(np.var(part) / max(len(part) - 1, 1) for part in parts))
    gain, whole = last.mean() - before.mean(), last.mean() - values[known][0]
    sweeps = rate[-2 * length :].sum() / 2
    if not (gain > SURE * noise and gain > RISE * min(1.0, sweeps) * whole > 0):
        return ""
    span = "the last pass" if length == 1 else f"the last {length} passes"
    slow = " or lower kappa, because the steps have become short" if sweeps < 1 else ""
    return (
        f"{title} had not converged: in {span} its bound still rose by about {gain:.3g} "
        f"nats. Set num_epochs above {passes}{slow}."
    )


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
