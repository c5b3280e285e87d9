r"""Directions in which a posterior is flat: rotations of locations that leave the data as they are.

If the posterior is invariant to $x \to x Q$ in the sites of `Model.rotation`, its covariance is
infinite along the tangents $\tau$ of these rotations. Draws are therefore compared after they were
turned to a pivot (`align`). To first order this takes off the part of a change that turns the pivot
site, so that a functional $b$ becomes

$$ b - \sum_{jl} e_j (M^{-1})_{jl} \langle \tau_l, b \rangle, \qquad
e_j = \text{the pivot site's part of } \tau_j, \quad M_{jl} = \langle e_j, \tau_l \rangle, $$

which is orthogonal to every $\tau$.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import linear_response as lr
from pp_models.model import Model, Sites


def tangents(model: Model, mean: Sites) -> Sites | None:
    """Changes of the expected statistics (turns, ...) under each rotation in a plane of two axes.

    None if the posterior is not invariant to rotations.
    """
    sites = model.rotation.sites
    held = any(not model.families[site].has_density for site in sites)  # a point does not turn
    if not sites or held or model.symmetry == "signed_permutation":
        return None
    size = _pivot(model, mean).shape[-1]
    first, second = np.triu_indices(size, 1)
    turns = np.zeros((len(first), size, size))
    planes = np.arange(len(first))
    turns[planes, first, second], turns[planes, second, first] = 1.0, -1.0
    if not len(first):
        return None

    def turn(site: str) -> Any:
        if site not in sites:
            return jax.tree.map(lambda x: jnp.zeros((len(turns), *x.shape), x.dtype), mean[site])
        axes = model.families[site].turning
        return jax.tree.map(lambda x, number: _turned(x, turns, number), mean[site], axes)

    return {site: turn(site) for site in mean}


def _turned(x: jax.Array, turns: np.ndarray, number: int) -> jax.Array:
    """d/de of x (I + e W) for one turning axis, of (I + e W)' x (I + e W) for two."""
    if number == 0:
        return jnp.zeros((len(turns), *x.shape), x.dtype)
    right = jnp.einsum("...i,jik->j...k", x, turns)
    return right if number == 1 else right + jnp.einsum("jik,...il->j...kl", turns, x)


def _pivot(model: Model, mean: Sites) -> Any:
    site = model.rotation.sites[0]
    return model.families[site].value(mean[site])


def without_turns(model: Model, mean: Sites, rights: Sites) -> Sites:
    """The stacked functionals b after alignment: orthogonal to every rotation."""
    along = tangents(model, mean)
    if along is None:
        return rights
    pivots = _pivots(model, mean, along)
    weights = jnp.linalg.solve(products(pivots, along).T, products(along, rights))
    return _take_off(rights, pivots, weights)


def aligned(model: Model, mean: Sites, changes: Sites) -> Sites:
    """Stacked changes of the expected statistics without their rotation of the pivot site."""
    along = tangents(model, mean)
    if along is None:
        return changes
    pivots = _pivots(model, mean, along)
    weights = jnp.linalg.solve(products(pivots, along), products(pivots, changes))
    return _take_off(changes, along, weights)


def without_turning(model: Model, place: lr.Place, changes: Sites) -> Sites:
    """Stacked changes without their part along the rotations, in the norm of V^-1.

    There (V^-1 - F'') tau = 0, so that F'' tau is V^-1 tau.
    """
    along = tangents(model, place.mean)
    if along is None:
        return changes
    images = jax.vmap(partial(lr.curvature, model, place))(along)
    weights = jnp.linalg.solve(products(images, along), products(images, changes))
    return _take_off(changes, along, weights)


def _pivots(model: Model, mean: Sites, along: Sites) -> Sites:
    """The pivot site's part of the tangents, as functionals. Its value is linear in t."""
    site = model.rotation.sites[0]
    value = model.families[site].value
    back = jax.vjp(value, mean[site])[1]
    own = jax.vmap(lambda change: back(value(change))[0])(along[site])
    return {**jax.tree.map(jnp.zeros_like, along), site: own}


def _take_off(stacked: Sites, directions: Sites, weights: jax.Array) -> Sites:
    """Less the directions (j, ...) times weights (j, r)."""
    return jax.tree.map(
        lambda x, d: x - jnp.einsum("jr,j...->r...", weights, d), stacked, directions
    )


def products(one: Sites, other: Sites) -> jax.Array:
    """(i, j) inner products of stacked trees."""
    parts = jax.tree.map(lambda a, b: a.reshape(len(a), -1) @ b.reshape(len(b), -1).T, one, other)
    return sum(jax.tree.leaves(parts))


def diagonal(one: Sites, other: Sites) -> jax.Array:
    """(i,) inner products of stacked trees."""
    parts = jax.tree.map(lambda a, b: jnp.sum((a * b).reshape(len(a), -1), 1), one, other)
    return sum(jax.tree.leaves(parts))
