"""Shapes of positive factors: which are alike, and which are flat."""

from typing import Any, NamedTuple

import numpy as np

from inference.core.align import shapes_of_factors

ALIKE = 0.999  # cosine of two factors above which they have the same shape


class Shapes(NamedTuple):
    """units: (K, numbers) positive factors of unit length. flat: whether each factor has equal
    numbers, as in the prior."""

    units: np.ndarray
    flat: np.ndarray


def shapes(model: Any, values: Any) -> Shapes | None:
    """The shapes of positive factors; None for a model that has none to compare."""
    factors = shapes_of_factors(model, values)
    if factors is None or factors.shape[1] < 3:
        return None
    lengths = np.linalg.norm(factors, axis=1, keepdims=True)
    units = np.asarray(factors / np.maximum(lengths, 1e-300))
    return Shapes(units, np.asarray(units.sum(1) / np.sqrt(units.shape[1]) > ALIKE))


def about_flat(model: Any) -> str:
    """A sentence about an answer whose factors are all flat."""
    return (
        f"All factors of {model.name} are flat, as without data: the signal is below the noise "
        "that the model assumes. Try fewer factors, other hyper-parameters, or data on a larger "
        "scale."
    )
