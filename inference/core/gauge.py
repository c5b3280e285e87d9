r"""Directions in which a posterior is flat: rotations of locations that leave the data as they are.

If the posterior is invariant to $x \to x Q$ in the sites of `Model.rotation`, its covariance is
infinite along the tangents $\tau$ of these rotations. Draws are therefore compared after they were
turned to a pivot (`align`). To first order this takes off the part of a change that turns the pivot
site, so that a functional $b$ becomes

$$ b - \sum_{jl} e_j (M^{-1})_{jl} \langle \tau_l, b \rangle, \qquad
e_j = \text{the pivot site's part of } \tau_j, \quad M_{jl} = \langle e_j, \tau_l \rangle, $$

which is orthogonal to every $\tau$.

The tangents are never stored: a sum of them is the change under one antisymmetric matrix.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_models.model import Model, Sites

RANK = 1e-10  # singular values below this, relative to the largest, are of turns that move nothing


def number_of_turns(model: Model, mean: Sites) -> int:
    """How many planes the posterior is invariant to rotations in."""
    sites = model.rotation.sites
    held = any(not model.families[site].has_density for site in sites)  # a point does not turn
    if not sites or held or model.symmetry == "signed_permutation":
        return 0
    size = model.families[sites[0]].value(mean[sites[0]]).shape[-1]
    return size * (size - 1) // 2


def turn(model: Model, tree: Sites, weights: jax.Array) -> Sites:
    """The sum of the tangents, times a weight for each plane of two axes.

    tree: expected statistics or natural parameters, whose tangents are V^-1 times the former's
    """
    size = round((1 + (1 + 8 * len(weights)) ** 0.5) / 2)
    places = np.triu_indices(size, 1)
    upper = jnp.zeros((size, size)).at[places].set(weights, unique_indices=True)
    matrix = upper - upper.T

    def of_site(site: str) -> Any:
        if site not in model.rotation.sites:
            return jax.tree.map(jnp.zeros_like, tree[site])
        axes = model.families[site].turning
        return jax.tree.map(lambda x, number: _turned(x, matrix, number), tree[site], axes)

    return {site: of_site(site) for site in tree}


def _turned(x: jax.Array, matrix: jax.Array, number: int) -> jax.Array:
    """d/de of x (I + e W) for one turning axis, of (I + e W)' x (I + e W) for two."""
    if number == 0:
        return jnp.zeros_like(x)
    return x @ matrix if number == 1 else x @ matrix + matrix.T @ x


def _along(model: Model, tree: Sites, number: int, functional: Sites) -> jax.Array:
    """Inner products of a functional with each tangent."""
    weights = jnp.zeros(number, jax.tree.leaves(tree)[0].dtype)
    return jax.linear_transpose(partial(turn, model, tree), weights)(functional)[0]


def _pivot(model: Model, mean: Sites, change: Sites) -> Sites:
    """A change of the expected statistics as a functional of the pivot site, which is linear."""
    site = model.rotation.sites[0]
    value = model.families[site].value
    own = jax.vjp(value, mean[site])[1](value(change[site]))[0]
    return {**jax.tree.map(jnp.zeros_like, change), site: own}


@partial(jax.jit, static_argnames=("model",))
def _pivot_inverse(model: Model, mean: Sites) -> jax.Array:
    """The inverse of M."""
    number = number_of_turns(model, mean)

    def row(weights: jax.Array) -> jax.Array:
        return _along(model, mean, number, _pivot(model, mean, turn(model, mean, weights)))

    return jnp.linalg.pinv(jax.lax.map(row, jnp.eye(number)), rtol=RANK)


@partial(jax.jit, static_argnames=("model",))
def without_turns(model: Model, mean: Sites, rights: Sites) -> Sites:
    """The stacked functionals b after alignment: orthogonal to every rotation."""
    number = number_of_turns(model, mean)
    if not number:
        return rights
    inverse = _pivot_inverse(model, mean)

    def one(right: Sites) -> Sites:
        weights = inverse.T @ _along(model, mean, number, right)
        return _less(right, _pivot(model, mean, turn(model, mean, weights)))

    return jax.vmap(one)(rights)


@partial(jax.jit, static_argnames=("model",))
def aligned(model: Model, mean: Sites, changes: Sites) -> Sites:
    """Stacked changes of the expected statistics without their rotation of the pivot site."""
    number = number_of_turns(model, mean)
    if not number:
        return changes
    inverse = _pivot_inverse(model, mean)

    def one(change: Sites) -> Sites:
        weights = inverse @ _along(model, mean, number, _pivot(model, mean, change))
        return _less(change, turn(model, mean, weights))

    return jax.vmap(one)(changes)


# Projections in the norm of V ------------------------------------------------------------------


@partial(jax.jit, static_argnames=("model",))
def flat_inverse(model: Model, mean: Sites, natural: Sites) -> jax.Array:
    r"""The inverse of $\langle \tau_j, V^{-1} \tau_l \rangle$; (0, 0) if nothing turns."""
    number = number_of_turns(model, mean)
    if not number:
        return jnp.zeros((0, 0))

    def row(weights: jax.Array) -> jax.Array:
        return _along(model, mean, number, turn(model, natural, weights))

    return jnp.linalg.pinv(jax.lax.map(row, jnp.eye(number)), rtol=RANK)


def off_turns(
    model: Model, mean: Sites, natural: Sites, inverse: jax.Array, residual: Sites
) -> Sites:
    r"""A change r of the natural parameters with $\langle \tau, r \rangle = 0$ for every rotation.

    What is taken off is along $V^{-1} \tau$, so that V r is off $\tau$ in the norm of V^-1.
    """
    if not len(inverse):
        return residual
    weights = inverse @ _along(model, mean, len(inverse), residual)
    return _less(residual, turn(model, natural, weights))


@partial(jax.jit, static_argnames=("model",))
def without_turning(model: Model, mean: Sites, natural: Sites, changes: Sites) -> Sites:
    """Stacked changes of the expected statistics off the rotations, in the norm of V^-1."""
    inverse = flat_inverse(model, mean, natural)
    if not len(inverse):
        return changes

    def one(change: Sites) -> Sites:
        weights = inverse @ _along(model, natural, len(inverse), change)
        return _less(change, turn(model, mean, weights))

    return jax.vmap(one)(changes)


def _less(one: Sites, other: Sites) -> Sites:
    return jax.tree.map(jnp.subtract, one, other)


def products(one: Sites, other: Sites) -> jax.Array:
    """(i, j) inner products of stacked trees."""
    parts = jax.tree.map(lambda a, b: a.reshape(len(a), -1) @ b.reshape(len(b), -1).T, one, other)
    return sum(jax.tree.leaves(parts))


def diagonal(one: Sites, other: Sites) -> jax.Array:
    """(i,) inner products of stacked trees."""
    parts = jax.tree.map(lambda a, b: jnp.sum((a * b).reshape(len(a), -1), 1), one, other)
    return sum(jax.tree.leaves(parts))
