"""Problems for reference posteriors and calibration, by model.

The data of reference posteriors are planted, not drawn from the prior: factors far apart, and
enough counts to tell them apart. No sampler meets the criteria on a posterior with several modes.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pp_models.data import types as data_
from pp_models.data.types import Data

Problem = Callable[[np.random.Generator], tuple[dict[str, Any], Data]]
Options = dict[str, Any]

# Priors of calibration that give data neither empty nor huge; the rest are the model's example's.
PRIORS: dict[str, Options] = {
    "pmf": {"center": False, "offset": 0.0},
    "bayesian_pmf": {"center": False, "offset": 0.0, "nu": 12.0, "scale": 12.0},
    "gaussian_mixture": {"mean": 0.0, "scale": 2.0, "nu": 16.0},
    "lda": {"alpha": 0.8, "eta": 0.8},
}
COLUMNS = {"gaussian_mixture": 3}


class Recipe(NamedTuple):
    """How a reference posterior is made.

    problem:  (generator) -> hyper-parameters and data
    samplers: name -> options; the draws of the first are stored
    seed:     of the data
    """

    problem: Problem
    samplers: Mapping[str, Mapping[str, Any]]
    seed: int = 0


def block_topics(num_topics: int, num_words: int, own: float = 0.96) -> np.ndarray:
    """Topics (K, V) that give `own` of their mass to a block of words each, the rest to all."""
    words = np.arange(num_words)
    mine = (words * num_topics // num_words) == np.arange(num_topics)[:, None]
    uneven = mine * (1.0 + words % 3)
    return own * uneven / uneven.sum(1, keepdims=True) + (1 - own) / num_words


TOPICS = block_topics(3, 9)


def lda(rng):
    proportions = rng.dirichlet(np.full(3, 0.6), 12)
    counts = [rng.multinomial(80, p) for p in proportions @ TOPICS]
    return {"num_topics": 3, "alpha": 1.0, "eta": 1.0}, data_.counts(counts)


def _poisson(rng):
    weights = rng.gamma(0.6, 40.0, (12, 3)) + 1.0
    return data_.counts(rng.poisson(weights @ TOPICS))


def bayesian_nmf(rng):
    return {"num_topics": 3, "a0": 1.0, "b0": 0.05, "c0": 9.0}, _poisson(rng)


def hpf(rng):
    scales = dict.fromkeys(("a_prime", "b_prime", "c_prime", "d_prime"), 5.0)
    return {"num_topics": 3, "a": 1.0, "c": 1.0, **scales}, _poisson(rng)


def _correlated(rng, rows):
    places = np.array([[1.2, 0.0], [-0.6, 1.0], [-0.6, -1.0]])
    return np.exp(rng.normal(size=(rows, 2)) @ places.T)


def correlated_nmf(rng):
    weights = rng.gamma(6.0, 4.0, (12, 1)) * _correlated(rng, 12)
    hyper = {"num_topics": 3, "rank": 2, "sigma2": 0.6, "a0": 2.0, "b0": 0.1, "c0": 9.0}
    return hyper, data_.counts(rng.poisson(weights @ TOPICS))


def ctm(rng):
    weights = _correlated(rng, 14)
    shares = weights / weights.sum(1, keepdims=True)
    counts = [rng.multinomial(60, p) for p in shares @ TOPICS]
    return {"num_topics": 3, "eta": 1.0, "degrees": 15.0, "scale": 11.0}, data_.counts(counts)


def _ratings(rng):
    u, v = rng.normal(size=(12, 2)), rng.normal(size=(8, 2))
    user, item = np.nonzero(rng.random((12, 8)) < 0.8)
    values = 3 + np.sum(u[user] * v[item], 1) + 0.4 * rng.normal(size=len(user))
    return data_.ratings(user, item, values, shape=(12, 8))


def pmf(rng):
    return {"rank": 2, "lam": 1.0, "sigma2": 0.16, "center": False, "offset": 3.0}, _ratings(rng)


def bayesian_pmf(rng):
    fixed = {"rank": 2, "center": False, "offset": 3.0}
    return {**fixed, "kappa": 3.0, "nu": 6.0, "scale": 4.0, "a": 5.0, "b": 1.0}, _ratings(rng)


def bernoulli_mixture(rng):
    own = np.repeat(np.eye(3), 3, axis=1)  # nine columns, three of them frequent in each component
    probabilities = 0.12 + 0.76 * own
    hyper = {"num_components": 3, "concentration": 2.0, "a": 1.0, "b": 1.0}
    return hyper, data_.dense(rng.random((45, 9)) < probabilities[np.arange(45) % 3])


def gaussian_mixture(rng):
    centres = np.array([[-4.0, 0.0], [4.0, 1.0], [0.0, 6.0]])
    noise = rng.normal(size=(45, 2)) @ np.array([[0.9, 0.3], [0.0, 0.7]])
    hyper = {"num_components": 3, "concentration": 2.0, "kappa": 0.1, "nu": 6.0}
    places = {"mean": (0.0, 2.0), "scale": (3.0, 3.0)}
    return hyper | places, data_.dense(centres[np.arange(45) % 3] + noise)


POSITIVE = {"num_topics": 2, "a0": 4.0, "b0": 2.0}


def _positive(rng):
    """Weights and counts of two positive factors, most rows mostly of one of them."""
    side, first = np.arange(12) % 3, (np.arange(8) < 4)[:, None]
    sides = np.stack([np.where(side == 1, 0.3, 2.5), np.where(side == 0, 0.3, 2.5)], 1)
    weights = sides * rng.uniform(0.6, 1.4, (12, 2))
    words = np.where(first == np.array([True, False]), 3.0, 0.4) * rng.uniform(0.6, 1.4, (8, 2))
    return weights, np.maximum(np.round(weights @ words.T + rng.normal(size=(12, 8))), 0)


def lg_nmf(rng):
    return POSITIVE, data_.counts(_positive(rng)[1])


def lg_nmf_votes(rng):
    weights, counts = _positive(rng)
    tastes = rng.normal(size=(6, 2))
    votes = (weights @ tastes.T + rng.normal(size=(12, 6)) > 0).astype(float)
    votes[rng.random(votes.shape) < 0.1] = np.nan
    return POSITIVE, data_.text_and_votes(counts, votes)


def lg_op(rng):
    mean = 1.5 * rng.normal(size=(12, 2)) @ rng.normal(size=(8, 2)).T + rng.normal(size=(12, 8))
    return POSITIVE, data_.counts(np.where(mean < 0, 0, np.floor(mean) + 1))


def _gibbs(num_samples: int, thin: int) -> Options:
    return {"num_samples": num_samples, "num_warmup": 2000, "num_chains": 4, "thin": thin}


def _nuts(num_samples: int, target_accept: float = 0.9) -> Options:
    shared = {"num_warmup": 1000, "num_chains": 4}
    return {"num_samples": num_samples, **shared, "target_accept": target_accept}


def _hmc(num_samples: int) -> Options:
    shared = {"num_warmup": 1500, "num_chains": 4, "target_accept": 0.9}
    return {"num_samples": num_samples, **shared, "trajectory_length": 2.0}


# For models without a recipe of their own, on their example's data.
NUTS = {"nuts": {"num_samples": 4000, "num_chains": 4, "target_accept": 0.95}}
DEFAULT = NUTS | {"gibbs": _gibbs(3000, 20)}
DEFAULT_DAMPED = NUTS | {"hmc": _hmc(4000)}

RECIPES: dict[str, Recipe] = {
    "lda": Recipe(lda, {"gibbs": _gibbs(3000, 18), "nuts": _nuts(2000)}),
    "bayesian_nmf": Recipe(bayesian_nmf, {"gibbs": _gibbs(3000, 18), "nuts": _nuts(2000)}),
    "hpf": Recipe(hpf, {"gibbs": _gibbs(3000, 25), "nuts": _nuts(2000)}),
    "correlated_nmf": Recipe(correlated_nmf, {"nuts": _nuts(7000), "hmc": _hmc(2500)}),
    "ctm": Recipe(ctm, {"nuts": _nuts(5000, 0.97), "hmc": _hmc(4000)}),
    "pmf": Recipe(pmf, {"gibbs": _gibbs(2000, 10), "nuts": _nuts(1500)}),
    "bayesian_pmf": Recipe(bayesian_pmf, {"gibbs": _gibbs(3000, 12), "nuts": _nuts(1500)}),
    "bernoulli_mixture": Recipe(
        bernoulli_mixture, {"gibbs": _gibbs(2000, 10), "nuts": _nuts(1500)}
    ),
    "gaussian_mixture": Recipe(gaussian_mixture, {"gibbs": _gibbs(2000, 10), "nuts": _nuts(1500)}),
    "lg_nmf": Recipe(lg_nmf, {"gibbs": _gibbs(3000, 15), "nuts": _nuts(4000, 0.95)}),
    "lg_nmf_votes": Recipe(lg_nmf_votes, {"gibbs": _gibbs(3000, 15), "nuts": _nuts(5000, 0.95)}),
    "lg_op": Recipe(lg_op, {"gibbs": _gibbs(3000, 15), "nuts": _nuts(6000, 0.95)}),
}
