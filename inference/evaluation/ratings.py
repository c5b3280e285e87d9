"""Predicted ratings with their uncertainty, and how well they fit ratings that were held out.

A rating is offset + u'v plus noise. Its predictive mean and variance need no draws from a mean-field posterior,

    E[u'v] = E[u]'E[v],    var(u'v) = <E[u u'], E[v v']> - (E[u]'E[v])^2,

are averages over draws for a Markov chain, and for a point estimate the variance is the noise alone.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from scipy.stats import norm

from inference.evaluation.scores import Measure, clustered
from pp_models.data.types import Data
from pp_models.errors import InputError

PAIRS = 20_000  # predicted at a time


class Prediction(NamedTuple):
    """mean, sd: of the rating, noise included. lower, upper: the central interval that holds it with the probability asked for."""

    mean: np.ndarray
    sd: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class RatingScore(NamedTuple):
    """rmse, mae: of the predicted mean. log_density: mean over ratings, nats. coverage: share inside their interval. num_ratings: how many.

    The density is the mixture over draws of a Markov chain, and the normal with the prediction's mean and sd for the others.
    errors, densities, inside, users: of each rating, truth less prediction, log density, whether its interval holds it, and whose it is.
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
        """Each with its standard error, over users, and its terms: for the rmse squared errors, of whose mean it is the root."""
        square = clustered(self.errors**2, self.users)
        rmse = Measure(
            self.rmse,
            square.standard_error / (2 * max(self.rmse, np.finfo(float).tiny)),
            square.terms,
        )
        named = {
            "mae": np.abs(self.errors),
            "log_density": self.densities,
            "coverage": self.inside.astype(float),
        }
        return {
            "rmse": rmse,
            **{name: clustered(terms, self.users) for name, terms in named.items()},
        }


def split_ratings(data: Data, share: float = 0.1, seed: Any = 0) -> tuple[Data, Data]:
    """Ratings split at random into those to fit and those to score on, users and items staying as they are."""
    if data.kind != "ratings":
        raise InputError(f"split_ratings splits ratings, not {data.kind}.")
    if not 0 < share < 1 or data.num_entries < 2:
        raise InputError(
            f"share must be between 0 and 1, of at least two ratings, not {share} of {data.num_entries}."
        )
    matrix = data.matrix.tocoo()
    held = np.zeros(matrix.nnz, bool)
    size = min(max(1, round(share * matrix.nnz)), matrix.nnz - 1)
    held[np.random.default_rng(seed).permutation(matrix.nnz)[:size]] = True

    def part(chosen: np.ndarray) -> Data:
        cells = scipy.sparse.csr_array(
            (matrix.data[chosen], (matrix.coords[0][chosen], matrix.coords[1][chosen])),
            shape=matrix.shape,
        )
        return Data(
            "ratings", matrix=cells, column_names=data.column_names, row_names=data.row_names
        )

    return part(~held), part(held)


@jax.jit
def _moments(u, v, users, items):
    """E[u'v] and E[(u'v)^2] at each pair."""
    mean = jnp.sum(u.first[users] * v.first[items], 1)
    return mean, jnp.sum(u.second[users] * v.second[items], (1, 2))


@partial(jax.jit, static_argnames=("model",))
def _over_draws(model, hyper, draws, users, items):
    """Mean and variance of u'v over draws, and the mean of the noise's variance."""

    def add(sums, values):
        product = jnp.sum(values["u"][users] * values["v"][items], 1)
        return (
            sums[0] + product,
            sums[1] + product**2,
            sums[2] + model.ratings.noise(hyper, values),
        ), None

    nothing = jnp.zeros(users.shape), jnp.zeros(users.shape), jnp.zeros(())
    sums, _ = jax.lax.scan(add, nothing, draws)
    count = len(jax.tree.leaves(draws)[0])
    mean = sums[0] / count
    return mean, jnp.maximum(sums[1] / count - mean**2, 0), sums[2] / count


@partial(jax.jit, static_argnames=("model",))
def _mixture_density(model, hyper, draws, users, items, ratings):
    """log of the mean over draws of p(rating | draw)."""

    def one(values):
        mean, variance = (
            hyper.offset + jnp.sum(values["u"][users] * values["v"][items], 1),
            model.ratings.noise(hyper, values),
        )
        return -0.5 * ((ratings - mean) ** 2 / variance + jnp.log(2 * jnp.pi * variance))

    def add(total, values):
        return jnp.logaddexp(total, one(values)), None

    total, _ = jax.lax.scan(add, jnp.full(users.shape, -jnp.inf), draws)
    return total - jnp.log(len(jax.tree.leaves(draws)[0]))


DRAWN = ("draws", "mixture")  # posteriors whose predictions are averaged over draws


def _some_draws(fit: Any, num_draws: int) -> dict[str, jax.Array]:
    """Draws of a posterior, of a Markov chain no more than it has."""
    posterior = fit.posterior
    most = int(np.prod(posterior.draws["u"].shape[:2])) if posterior.kind == "draws" else num_draws
    return {
        site: jnp.asarray(x)
        for site, x in posterior.sample(jax.random.key(0), min(num_draws, most)).items()
    }


def _of_product(
    fit: Any, users: np.ndarray, items: np.ndarray, num_draws: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and variance of u'v at each pair, and the variance of the noise."""
    model, posterior, hyper = fit.model, fit.posterior, fit.problem.hyper
    if posterior.kind in DRAWN:
        draws = _some_draws(fit, num_draws)
        parts = [
            _over_draws(model, hyper, draws, jnp.asarray(i), jnp.asarray(j))
            for i, j in _chunks(users, items)
        ]
        return (
            np.concatenate([p[0] for p in parts]),
            np.concatenate([p[1] for p in parts]),
            float(parts[0][2]),
        )
    noise = float(
        model.ratings.noise(
            hyper,
            {
                site: jnp.asarray(posterior.mean(site))
                for site in model.families
                if site not in ("u", "v")
            },
        )
    )
    if posterior.kind == "point":
        u, v = posterior.mean("u"), posterior.mean("v")
        return np.sum(u[users] * v[items], 1), np.zeros(len(users)), noise
    u, v = (
        model.families[site].mean(jax.tree.map(jnp.asarray, posterior.natural(site)))
        for site in ("u", "v")
    )
    parts = [_moments(u, v, jnp.asarray(i), jnp.asarray(j)) for i, j in _chunks(users, items)]
    mean, square = (np.concatenate([np.asarray(p[k], np.float64) for p in parts]) for k in (0, 1))
    return mean, np.maximum(square - mean**2, 0), noise


def _chunks(*arrays: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    return [tuple(x[i : i + PAIRS] for x in arrays) for i in range(0, len(arrays[0]), PAIRS)]


def predict_ratings(
    fit: Any,
    users: Any,
    items: Any,
    interval: float = 0.9,
    limits: tuple[float, float] | None = None,
    step: float | None = None,
    num_draws: int = 500,
) -> Prediction:
    """The ratings that these users would give these items, pair by pair.

    interval:  probability that the interval (lower, upper) holds the rating
    limits:    the rating scale's ends; means and intervals are clipped to it
    step:      the scale's step, e.g. 1 or 0.5; means are rounded to it, counted from the lower limit (C17)
    num_draws: draws of a Markov chain to average over

    >>> import inference, pp_models
    >>> data = pp_models.data.ratings([0, 0, 1, 2, 2], [0, 1, 1, 0, 2], [5.0, 3.0, 4.0, 1.0, 2.0])
    >>> fit = inference.fit("pmf", data, engine="map", hyper={"rank": 1})
    >>> found = inference.predict_ratings(fit, users=[0, 1], items=[2, 0], limits=(1, 5))
    >>> found.mean.shape, bool((found.lower <= found.mean).all())
    ((2,), True)
    """
    if fit.model.ratings is None:
        raise InputError(
            f"predict_ratings is for models of ratings with noise, not {fit.model.name}."
        )
    users, items = np.atleast_1d(np.asarray(users)), np.atleast_1d(np.asarray(items))
    shape = fit.provenance["rows"], fit.provenance["columns"]
    for name, index, size in (("users", users, shape[0]), ("items", items, shape[1])):
        if (
            index.ndim != 1
            or not np.issubdtype(index.dtype, np.integer)
            or len(users) != len(items)
        ):
            raise InputError(
                "users and items must be lists of whole numbers, of equal length: one pair for each rating."
            )
        if len(index) == 0:
            raise InputError("users and items are empty: there is nothing to predict.")
        if not (index.min() >= 0 and index.max() < size):
            raise InputError(
                f"{name} must lie between 0 and {size - 1}, as in the ratings that were fitted, but one is {index.min()} or {index.max()}."
            )
    _check_scale(interval, limits, step, num_draws)
    mean, variance, noise = _of_product(fit, users, items, num_draws)
    mean, sd = float(fit.problem.hyper.offset) + mean, np.sqrt(variance + noise)
    half = norm.ppf(0.5 + interval / 2) * sd
    found = _clipped(Prediction(mean, sd, mean - half, mean + half), limits)
    if limits is None or step is None:
        return found
    return found._replace(
        mean=np.clip(limits[0] + step * np.round((found.mean - limits[0]) / step), *limits)
    )


def _check_scale(interval: Any, limits: Any, step: Any = None, num_draws: int = 1) -> None:
    if not isinstance(interval, float) or not 0 < interval < 1:
        raise InputError(f"interval must be a probability between 0 and 1, not {interval!r}.")
    if limits is not None and not (np.shape(limits) == (2,) and limits[0] < limits[1]):
        raise InputError(f"limits must be the lowest and the highest rating, not {limits!r}.")
    if step is not None and not (limits is not None and step > 0):
        raise InputError(
            "step must be positive and needs limits: ratings are counted from the lowest one."
        )
    if num_draws < 1:
        raise InputError(f"num_draws must be at least 1, not {num_draws}.")


def _clipped(found: Prediction, limits: tuple[float, float] | None) -> Prediction:
    if limits is None:
        return found
    return Prediction(
        np.clip(found.mean, *limits),
        found.sd,
        np.clip(found.lower, *limits),
        np.clip(found.upper, *limits),
    )


def score_ratings(
    fit: Any, heldout: Data, interval: float = 0.9, limits: tuple[float, float] | None = None
) -> RatingScore:
    """How well held-out ratings of known users and items are predicted. The density is that of the prediction before clipping."""
    _check_scale(interval, limits)
    if not isinstance(heldout, Data) or heldout.kind != "ratings":
        raise InputError(
            "score_ratings needs held-out ratings, made with pp_models.data.ratings or split_ratings."
        )
    matrix = heldout.matrix.tocoo()
    users, items, truth = (np.asarray(x) for x in (*matrix.coords, matrix.data.astype(np.float64)))
    free = predict_ratings(fit, users, items, interval)
    shown = _clipped(free, limits)
    error = truth - shown.mean
    inside = (truth >= shown.lower) & (truth <= shown.upper)
    if fit.posterior.kind in DRAWN:
        draws, hyper = _some_draws(fit, 500), fit.problem.hyper
        parts = [
            _mixture_density(fit.model, hyper, draws, *map(jnp.asarray, part))
            for part in _chunks(users, items, truth)
        ]
        density = np.concatenate([np.asarray(part, np.float64) for part in parts])
    else:
        density = norm.logpdf(truth, free.mean, free.sd)
    rmse, mae = float(np.sqrt(np.mean(error**2))), float(np.mean(np.abs(error)))
    return RatingScore(
        rmse,
        mae,
        float(density.mean()),
        float(inside.mean()),
        len(truth),
        error,
        density,
        inside,
        users,
    )
