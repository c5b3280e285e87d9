"""Tiny data sets that several models share as their example."""

import jax
import numpy as np

from pp_models.data import types as data_


def generator(key: jax.Array) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def poisson_counts(key: jax.Array) -> data_.Data:
    """Thirteen documents of eight words, from three topics."""
    rng = generator(key)
    topics, weights = rng.dirichlet(np.full(8, 0.4), 3), rng.gamma(0.6, 12, (13, 3))
    return data_.counts(rng.poisson(weights @ topics))
