r"""Predicted ratings with their uncertainty, and scores on held-out ratings.

A rating is an offset plus $u^\top v$ plus noise. Under a mean-field posterior

$$ \mathrm{E}[u^\top v] = \mathrm{E}[u]^\top \mathrm{E}[v], \qquad \mathrm{Var}(u^\top v)
   = \langle \mathrm{E}[u u^\top], \mathrm{E}[v v^\top] \rangle - \mathrm{E}[u^\top v]^2. $$

For a Markov chain these are averages over draws. For a point estimate the variance is zero.
"""

import dataclasses
import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from scipy.stats import norm

from inference.evaluation.scores import Measure, clustered, warn_if_fitted
from pp_models.data.rated import match_ratings
from pp_models.data.types import Data
from pp_models.errors import InputError

PAIRS = 20_000  # predicted at a time
NUM_DRAWS = 500


class Prediction(NamedTuple):
    """mean, sd: of the rating, noise included. lower, upper: ends of its central interval."""

    mean: np.ndarray
    sd: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class RatingScore(NamedTuple):
    """rmse, mae: of the predicted mean. log_density: mean in nats. coverage: of the intervals.

    errors, densities, inside, users: for each rating, truth minus prediction, log density, whether
    its interval contains it, and its user. The density is the mixture over draws for a Markov
    chain, else the normal with the prediction's mean and sd.
    """

    rmse: float
    mae: float
    log_density: float
    coverage: float
    num_ratings: int
    errors: np.ndarray
    densities: np.ndarray
    inside: np.ndarray
    users: np.ndarray

    @property
    def measures(self) -> dict[str, Measure]:
        """Each with its standard error over users. The terms of the rmse are squared errors."""
        square = clustered(self.errors**2, self.users)
        error = square.standard_error / (2 * max(self.rmse, np.finfo(float).tiny))
        return {
            "rmse": Measure(self.rmse, error, square.terms),
            "mae": clustered(np.abs(self.errors), self.users),
            "log_density": clustered(self.densities, self.users),
            "coverage": clustered(self.inside.astype(float), self.users),
        }


def split_ratings(data: Data, share: float = 0.1, seed: Any = 0) -> tuple[Data, Data]:
    """Split ratings at random into those to fit and those to score, keeping users and items."""
    if data.kind != "ratings":
        raise InputError(f"split_ratings splits ratings, not {data.kind}.")
    number = data.num_entries
    if not 0 < share < 1 or number < 2:
        told = f"not {share} of {number}"
        raise InputError(f"share must be between 0 and 1, of at least two ratings, {told}.")
    matrix = data.matrix.tocoo()
    held = np.zeros(number, bool)
    size = min(max(1, round(share * number)), number - 1)
    held[np.random.default_rng(seed).permutation(number)[:size]] = True

    def part(chosen: np.ndarray) -> Data:
        cells = matrix.data[chosen], tuple(index[chosen] for index in matrix.coords)
        some = scipy.sparse.csr_array(cells, shape=matrix.shape)
        return dataclasses.replace(data, matrix=some)

    return part(~held), part(held)


# Moments of the product ---------------------------------------------------------------------------


@jax.jit
def _moments(u, v, users, items):
    """E[u'v] and E[(u'v)^2] at each pair."""
    mean = jnp.sum(u.first[users] * v.first[items], 1)
    return mean, jnp.sum(u.second[users] * v.second[items], (1, 2))


def _at_draw(model, hyper, values, users, items):
    """u'v at each pair, and the variance of the noise."""
    u, v = (values[site] for site in model.ratings.sites)
    return jnp.sum(u[users] * v[items], 1), model.ratings.noise(hyper, values)


@partial(jax.jit, static_argnames=("model",))
def _over_draws(model, hyper, draws, users, items):
    """Means over draws of u'v, of its square and of the variance of the noise."""

    def add(sums, values):
        product, noise = _at_draw(model, hyper, values, users, items)
        return jax.tree.map(jnp.add, sums, (product, product**2, noise)), None

    zeros = jnp.zeros(users.shape), jnp.zeros(users.shape), jnp.zeros(())
    sums, _ = jax.lax.scan(add, zeros, draws)
    return [x / len(jax.tree.leaves(draws)[0]) for x in sums]


@partial(jax.jit, static_argnames=("model",))
def _mixture_density(model, hyper, draws, users, items, ratings):
    """log of the mean over draws of p(rating | draw)."""

    def add(total, values):
        product, noise = _at_draw(model, hyper, values, users, items)
        square = (ratings - hyper.offset - product) ** 2
        log_p = -0.5 * (square / noise + jnp.log(2 * jnp.pi * noise))
        return jnp.logaddexp(total, log_p), None

    total, _ = jax.lax.scan(add, jnp.full(users.shape, -jnp.inf), draws)
    return total - jnp.log(len(jax.tree.leaves(draws)[0]))


def _draws(posterior: Any, wanted: int) -> dict[str, jax.Array]:
    drawn = posterior.sample(jax.random.key(0), posterior.num_draws(wanted))
    return jax.tree.map(jnp.asarray, drawn)


def _in_chunks(function: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    """Outputs of a function of arrays of pairs, some pairs at a time; scalars come once each."""
    chunks = (
        [jnp.asarray(x[i : i + PAIRS]) for x in arrays] for i in range(0, len(arrays[0]), PAIRS)
    )
    parts = [[np.asarray(x, np.float64) for x in function(*chunk)] for chunk in chunks]
    return [np.concatenate([np.atleast_1d(x) for x in part]) for part in zip(*parts, strict=True)]


def _of_product(
    fit: Any, users: np.ndarray, items: np.ndarray, num_draws: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and variance of u'v at each pair, and the variance of the noise."""
    model, posterior, hyper = fit.model, fit.posterior, fit.problem.hyper
    if posterior.is_sampled:
        over_draws = partial(_over_draws, model, hyper, _draws(posterior, num_draws))
        mean, square, noise = _in_chunks(over_draws, users, items)
        return mean, np.maximum(square - mean**2, 0), float(noise[0])
    sites = model.ratings.sites
    others = {s: jnp.asarray(posterior.mean(s)) for s in model.families if s not in sites}
    variance = float(model.ratings.noise(hyper, others))
    if not posterior.has_spread:
        u, v = (posterior.mean(site) for site in sites)
        return np.sum(u[users] * v[items], 1), np.zeros(len(users)), variance
    moments = partial(_moments, *(posterior.statistics(site) for site in sites))
    mean, square = _in_chunks(moments, users, items)
    return mean, np.maximum(square - mean**2, 0), variance


# Predictions and scores ---------------------------------------------------------------------------


def predict_ratings(
    fit: Any,
    users: Any,
    items: Any,
    interval: float = 0.9,
    limits: tuple[float, float] | None = None,
    step: float | None = None,
    num_draws: int = NUM_DRAWS,
) -> Prediction:
    """Predict the ratings of pairs of users and items.

    interval:  probability of the interval (lower, upper)
    limits:    lowest and highest rating; means and intervals are clipped to them
    step:      step of the scale, e.g. 1 or 0.5, to which means are rounded, from the lower limit
               (C17)
    num_draws: draws of a Markov chain to average over

    >>> import inference, pp_models
    >>> data = pp_models.data.ratings([0, 0, 1, 2, 2], [0, 1, 1, 0, 2], [5.0, 3.0, 4.0, 1.0, 2.0])
    >>> fit = inference.fit("pmf", data, engine="map", hyper={"rank": 1})
    >>> found = inference.predict_ratings(fit, users=[0, 1], items=[2, 0], limits=(1, 5))
    >>> found.mean.shape, bool((found.lower <= found.mean).all())
    ((2,), True)
    """
    if fit.model.ratings is None:
        raise InputError(f"predict_ratings needs a model of ratings, not {fit.model.name}.")
    users, items = np.atleast_1d(np.asarray(users)), np.atleast_1d(np.asarray(items))
    for name, index, size in (
        ("users", users, fit.provenance["rows"]),
        ("items", items, fit.provenance["columns"]),
    ):
        whole = index.ndim == 1 and np.issubdtype(index.dtype, np.integer)
        if not whole or len(users) != len(items):
            raise InputError("users and items must be lists of whole numbers of equal length.")
        if len(index) == 0:
            raise InputError("users and items are empty: there is nothing to predict.")
        if not (index.min() >= 0 and index.max() < size):
            told = f"one is {index.min()} or {index.max()}"
            raise InputError(f"{name} must lie between 0 and {size - 1}, but {told}.")
    _check_scale(interval, limits, step, num_draws)
    mean, variance, noise = _of_product(fit, users, items, num_draws)
    mean, sd = float(fit.problem.hyper.offset) + mean, np.sqrt(variance + noise)
    half = norm.ppf(0.5 + interval / 2) * sd
    found = _clipped(Prediction(mean, sd, mean - half, mean + half), limits)
    if limits is None or step is None:
        return found
    rounded = limits[0] + step * np.round((found.mean - limits[0]) / step)
    return found._replace(mean=np.clip(rounded, *limits))


def _check_scale(interval: Any, limits: Any, step: Any = None, num_draws: int = 1) -> None:
    if not isinstance(interval, float) or not 0 < interval < 1:
        raise InputError(f"interval must be a probability between 0 and 1, not {interval!r}.")
    if limits is not None and not (np.shape(limits) == (2,) and limits[0] < limits[1]):
        raise InputError(f"limits must be the lowest and the highest rating, not {limits!r}.")
    if step is not None and not (limits is not None and step > 0):
        raise InputError("step must be positive and needs limits, from which it is counted.")
    if num_draws < 1:
        raise InputError(f"num_draws must be at least 1, not {num_draws}.")


def _clipped(found: Prediction, limits: tuple[float, float] | None) -> Prediction:
    if limits is None:
        return found
    mean, lower, upper = (np.clip(x, *limits) for x in (found.mean, found.lower, found.upper))
    return Prediction(mean, found.sd, lower, upper)


def known_ratings(fit: Any, heldout: Data) -> Data:
    """The ratings whose users and items were fitted, with the indices that these have there."""
    shape = fit.provenance["rows"], fit.provenance["columns"]
    found, dropped = match_ratings(heldout, fit.row_names, fit.column_names, shape)
    warn_of_unknown(dropped, heldout)
    return found


def warn_of_unknown(dropped: int, heldout: Data) -> None:
    """Say how many held-out ratings are left out because they cannot be predicted."""
    if dropped:
        told = f"{dropped} of {heldout.num_entries} ratings are of users or items not fitted"
        warnings.warn(f"{told}: they are left out.", stacklevel=4)


def score_ratings(
    fit: Any, heldout: Data, interval: float = 0.9, limits: tuple[float, float] | None = None
) -> RatingScore:
    """Score predictions of held-out ratings; the density is that before clipping to limits.

    Users and items are matched by their names; those that were not fitted are left out with a
    warning.
    """
    _check_scale(interval, limits)
    if not isinstance(heldout, Data) or heldout.kind != "ratings":
        raise InputError("score_ratings needs held-out ratings: use pp_models.data.ratings.")
    warn_if_fitted(fit, heldout)
    matrix = known_ratings(fit, heldout).matrix.tocoo()
    users, items, truth = (np.asarray(x) for x in (*matrix.coords, matrix.data.astype(np.float64)))
    free = predict_ratings(fit, users, items, interval)
    shown = _clipped(free, limits)
    error, inside = truth - shown.mean, (truth >= shown.lower) & (truth <= shown.upper)
    if fit.posterior.is_sampled:
        known = fit.model, fit.problem.hyper, _draws(fit.posterior, NUM_DRAWS)
        (density,) = _in_chunks(
            lambda *pairs: [_mixture_density(*known, *pairs)], users, items, truth
        )
    else:
        density = norm.logpdf(truth, free.mean, free.sd)
    rmse, mae = float(np.sqrt(np.mean(error**2))), float(np.abs(error).mean())
    means = rmse, mae, float(density.mean()), float(inside.mean())
    return RatingScore(*means, len(truth), error, density, inside, users)
