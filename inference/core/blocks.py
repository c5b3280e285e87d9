"""Functions of draws in blocks of one size: compiled once, however many draws there are."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SIZE = 64  # draws together; the last block is filled up with copies of its first draw


def over_draws(function: Callable[[Any], Any], draws: Any) -> Any:
    """function(draws) for a tree of arrays (n, ...), called with `SIZE` draws at a time, or one.

    The result may be a tree as well.
    """
    number = len(jax.tree.leaves(draws)[0])
    size = SIZE if number > 1 else 1

    def block(x: Any, first: int) -> Any:
        part = x[first : first + size]
        if missing := size - len(part):
            part = jnp.asarray(part)
            part = jnp.concatenate([part, jnp.repeat(part[:1], missing, axis=0)])
        return part

    starts = range(0, number, size)
    found = [function(jax.tree.map(lambda x, i=i: block(x, i), draws)) for i in starts]
    return jax.tree.map(
        lambda *parts: np.concatenate(list(map(np.asarray, parts)))[:number], *found
    )
