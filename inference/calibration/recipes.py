"""What the reference posteriors are of, and how their draws are made: a planted data set and two samplers for every model with a posterior.

The data are drawn from factors that are far apart, with enough counts to tell them so: a posterior with several modes that are no relabelling of each
other would meet no criterion with any sampler. They are no draws from the prior, and need not be: what is stored is the posterior of these data.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pp_models.data import types as data_
from pp_models.data.types import Data

Problem = Callable[[np.random.Generator], tuple[dict[str, Any], Data]]


class Recipe(NamedTuple):
    """problem: (generator) -> hyper-parameters and data. seed: of the data. samplers: name -> options; the first one's draws are stored."""

    problem: Problem
    seed: int
    samplers: Mapping[str, Mapping[str, Any]]


def block_topics(num_topics: int, num_words: int, own: float = 0.96) -> np.ndarray:
    """Topics (K, V) that give `own` of their mass to a block of words each, unevenly, and the rest to all words alike."""
    words = np.arange(num_words)
    mine = (words * num_topics // num_words) == np.arange(num_topics)[:, None]
    uneven = mine * (1.0 + words % 3)
    return own * uneven / uneven.sum(1, keepdims=True) + (1 - own) / num_words


def lda(rng):
    proportions = rng.dirichlet(np.full(3, 0.6), 12)
    counts = [rng.multinomial(80, p) for p in proportions @ block_topics(3, 9)]
    return {"num_topics": 3, "alpha": 1.0, "eta": 1.0}, data_.counts(counts)


def _poisson(rng, rows=12, columns=9):
    weights = rng.gamma(0.6, 40.0, (rows, 3)) + 1.0
    return data_.counts(rng.poisson(weights @ block_topics(3, columns)))


def bayesian_nmf(rng):
    return {"num_topics": 3, "a0": 1.0, "b0": 0.05, "c0": 9.0}, _poisson(rng)


def hpf(rng):
    return {
        "num_topics": 3,
        "a": 1.0,
        "a_prime": 5.0,
        "b_prime": 5.0,
        "c": 1.0,
        "c_prime": 5.0,
        "d_prime": 5.0,
    }, _poisson(rng)


def _correlated(rng, rows):
    places = np.array([[1.2, 0.0], [-0.6, 1.0], [-0.6, -1.0]])
    return np.exp(rng.normal(size=(rows, 2)) @ places.T)


def correlated_nmf(rng):
    weights = rng.gamma(6.0, 4.0, (12, 1)) * _correlated(rng, 12)
    hyper = {"num_topics": 3, "rank": 2, "sigma2": 0.6, "a0": 2.0, "b0": 0.1, "c0": 9.0}
    return hyper, data_.counts(rng.poisson(weights @ block_topics(3, 9)))


def ctm(rng):
    weights = _correlated(rng, 14)
    counts = [
        rng.multinomial(60, p) for p in weights / weights.sum(1, keepdims=True) @ block_topics(3, 9)
    ]
    return {"num_topics": 3, "eta": 1.0, "degrees": 15.0, "scale": 11.0}, data_.counts(counts)


def _ratings(rng):
    u, v = rng.normal(size=(12, 2)), rng.normal(size=(8, 2))
    user, item = np.nonzero(rng.random((12, 8)) < 0.8)
    return data_.ratings(
        user,
        item,
        3 + np.sum(u[user] * v[item], 1) + 0.4 * rng.normal(size=len(user)),
        shape=(12, 8),
    )


def pmf(rng):
    return {"rank": 2, "lam": 1.0, "sigma2": 0.16, "center": False, "offset": 3.0}, _ratings(rng)


def bayesian_pmf(rng):
    hyper = {
        "rank": 2,
        "kappa": 3.0,
        "nu": 6.0,
        "scale": 4.0,
        "a": 5.0,
        "b": 1.0,
        "center": False,
        "offset": 3.0,
    }
    return hyper, _ratings(rng)


def bernoulli_mixture(rng):
    own = np.repeat(np.eye(3), 3, axis=1)  # nine columns, three of them frequent in each component
    probabilities = 0.12 + 0.76 * own
    return {"num_components": 3, "concentration": 2.0, "a": 1.0, "b": 1.0}, data_.dense(
        rng.random((45, 9)) < probabilities[np.arange(45) % 3]
    )


def gaussian_mixture(rng):
    centres = np.array([[-4.0, 0.0], [4.0, 1.0], [0.0, 6.0]])
    noise = rng.normal(size=(45, 2)) @ np.array([[0.9, 0.3], [0.0, 0.7]])
    hyper = {
        "num_components": 3,
        "concentration": 2.0,
        "kappa": 0.1,
        "nu": 6.0,
        "mean": (0.0, 2.0),
        "scale": (3.0, 3.0),
    }
    return hyper, data_.dense(centres[np.arange(45) % 3] + noise)


def _positive(rng, rows=12, columns=8):
    """Weights and words of two positive factors, each row mostly of one of them and both factors present."""
    side = np.arange(rows) % 3
    weights = np.stack(
        [np.where(side == 1, 0.3, 2.5), np.where(side == 0, 0.3, 2.5)], 1
    ) * rng.uniform(0.6, 1.4, (rows, 2))
    words = np.where(
        (np.arange(columns) < columns // 2)[:, None] == np.array([True, False]), 3.0, 0.4
    ) * rng.uniform(0.6, 1.4, (columns, 2))
    return weights, words


def lg_nmf(rng):
    weights, words = _positive(rng)
    counts = np.maximum(np.round(weights @ words.T + rng.normal(size=(12, 8))), 0)
    return {"num_topics": 2, "a0": 4.0, "b0": 2.0}, data_.counts(counts)


def lg_nmf_votes(rng):
    weights, words = _positive(rng)
    counts = np.maximum(np.round(weights @ words.T + rng.normal(size=(12, 8))), 0)
    tastes = rng.normal(size=(6, 2))
    votes = (weights @ tastes.T + rng.normal(size=(12, 6)) > 0).astype(float)
    votes[rng.random(votes.shape) < 0.1] = np.nan
    return {"num_topics": 2, "a0": 4.0, "b0": 2.0}, data_.text_and_votes(counts, votes)


def lg_op(rng):
    mean = 1.5 * rng.normal(size=(12, 2)) @ rng.normal(size=(8, 2)).T + rng.normal(size=(12, 8))
    return {"num_topics": 2, "a0": 4.0, "b0": 2.0}, data_.counts(
        np.where(mean < 0, 0, np.floor(mean) + 1)
    )


def _gibbs(num_samples: int, thin: int) -> dict[str, Any]:
    return {"num_samples": num_samples, "num_warmup": 2000, "num_chains": 4, "thin": thin}


def _nuts(num_samples: int, target_accept: float = 0.9) -> dict[str, Any]:
    return {
        "num_samples": num_samples,
        "num_warmup": 1000,
        "num_chains": 4,
        "target_accept": target_accept,
    }


def _hmc(num_samples: int, trajectory_length: float) -> dict[str, Any]:
    return {
        "num_samples": num_samples,
        "num_warmup": 1500,
        "num_chains": 4,
        "target_accept": 0.9,
        "trajectory_length": trajectory_length,
    }


RECIPES: dict[str, Recipe] = {
    "lda": Recipe(lda, 0, {"gibbs": _gibbs(3000, 18), "nuts": _nuts(2000)}),
    "bayesian_nmf": Recipe(bayesian_nmf, 0, {"gibbs": _gibbs(3000, 18), "nuts": _nuts(2000)}),
    "hpf": Recipe(hpf, 0, {"gibbs": _gibbs(3000, 25), "nuts": _nuts(2000)}),
    "correlated_nmf": Recipe(correlated_nmf, 0, {"nuts": _nuts(7000), "hmc": _hmc(2500, 2.0)}),
    "ctm": Recipe(ctm, 0, {"nuts": _nuts(5000, 0.97), "hmc": _hmc(4000, 2.0)}),
    "pmf": Recipe(pmf, 0, {"gibbs": _gibbs(2000, 10), "nuts": _nuts(1500)}),
    "bayesian_pmf": Recipe(bayesian_pmf, 0, {"gibbs": _gibbs(3000, 12), "nuts": _nuts(1500)}),
    "bernoulli_mixture": Recipe(
        bernoulli_mixture, 0, {"gibbs": _gibbs(2000, 10), "nuts": _nuts(1500)}
    ),
    "gaussian_mixture": Recipe(
        gaussian_mixture, 0, {"gibbs": _gibbs(2000, 10), "nuts": _nuts(1500)}
    ),
    "lg_nmf": Recipe(lg_nmf, 0, {"gibbs": _gibbs(3000, 15), "nuts": _nuts(4000, 0.95)}),
    "lg_nmf_votes": Recipe(lg_nmf_votes, 0, {"gibbs": _gibbs(3000, 15), "nuts": _nuts(5000, 0.95)}),
    "lg_op": Recipe(lg_op, 0, {"gibbs": _gibbs(3000, 15), "nuts": _nuts(6000, 0.95)}),
}

WITHOUT = {
    "nmf": "nmf has no prior, so it has no posterior: its likelihood alone cannot be normalised over the factors"
}
