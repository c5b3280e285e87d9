"""Functions of draws in blocks of one size: compiled once, however many draws there are."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SIZE = 64  # draws together; the last block is filled up


def over_draws(function: Callable[[Any], Any], draws: Any) -> np.ndarray:
    """function(draws) for a tree of arrays (n, ...), where function takes `SIZE` draws, or a single one, and gives an array with as many rows."""
    leaves = jax.tree.leaves(draws)
    number = len(leaves[0])
    size = SIZE if number > 1 else 1
    parts = []
    for first in range(0, number, size):
        block = jax.tree.map(lambda x, first=first: _fill(x[first : first + size], size), draws)
        parts.append(function(block))
    return np.concatenate([np.asarray(part) for part in parts])[:number]


def _fill(part: Any, size: int) -> Any:
    """Rows, the first one repeated until there are `size`."""
    missing = size - len(part)
    return (
        part
        if missing == 0
        else jnp.concatenate(
            [jnp.asarray(part), jnp.repeat(jnp.asarray(part[:1]), missing, axis=0)]
        )
    )
