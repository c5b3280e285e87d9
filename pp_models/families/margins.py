"""Margins of single numbers with a given mean and variance: members of the family of q, or near it.

A quantile function takes the standard normal's quantiles z, means and variances.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, gammaincinv, ndtr

WIDEST = 0.9  # of the largest variance that a number between 0 and 1 with its mean can have
TINY = 2.0**24 * float(np.finfo(np.float32).tiny)  # stays normal if divided by a sum of shares
EXACT = 1e-12  # variance, relative to the largest, of a number that is known


class Margin(NamedTuple):
    """quantile: (z, mean, variance) -> x. join: puts numbers with margins of their own together."""

    quantile: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    join: Callable[[np.ndarray], np.ndarray] = lambda x: x


def normal_quantile(z: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return mean + np.sqrt(variance) * z


def gamma_quantile(z: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    shape = np.maximum(mean, TINY) ** 2 / np.maximum(variance, TINY)
    return np.maximum(gammaincinv(shape, ndtr(z)) * mean / shape, TINY)


def beta_quantile(z: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    inside = np.clip(mean, TINY, 1 - 1e-7)
    largest = inside * (1 - inside)
    total = largest / np.clip(variance, EXACT * largest, WIDEST * largest) - 1
    found = np.maximum(betaincinv(inside * total, (1 - inside) * total, ndtr(z)), TINY)
    return np.where(variance > EXACT * largest, found, mean)


def shares(x: np.ndarray) -> np.ndarray:
    """Positive numbers scaled to sum to one."""
    return x / x.sum(-1, keepdims=True)
