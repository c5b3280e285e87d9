"""Alignment: the labels of factors mean nothing, so two posteriors are compared only after one labelling is chosen for both.

A posterior that is invariant to permuting its factors has K! copies of every mode. MCMC visits some of them, a mean-field posterior sits in
one. Each draw of each posterior is therefore relabelled to lie nearest to one stated pivot: both posteriors are pushed onto the same
representative of every orbit, and what is compared afterwards depends on nothing but the invariant posterior.

The cost of giving label j of the pivot to factor k is, for the positive factors of topic models (Dirichlet and gamma), the squared Hellinger
distance of the two normalised to sum to one,

    1 - sum_v sqrt(p_jv q_kv),

bounded, zero only for equal factors, and not ruled by the few largest words as a squared error would be. The size of other factors
(probabilities, means, precisions) means something, and they may be negative: their cost is the squared difference, every coordinate in units of
its standard deviation over all factors of all draws. The assignment of least total cost is found by the Hungarian method.

Where sites lie in a space known up to a rotation (`Model.rotated`), each draw is then turned to lie nearest to the pivot (orthogonal Procrustes).

Factors that hardly differ have no labelling to find: say so from the result, not from here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from pp_models.base import Model, factor_axes
from pp_models.errors import InputError

Values = Mapping[str, Any]  # site -> (..., *site shape)
NORMALISED = ("dirichlet", "gamma", "gamma_tied")  # families of factors of which only the shape matters, not the size


def hellinger(reference: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Squared Hellinger distances (..., K, K) between the K reference factors (K, V) and each set of factors (..., K, V)."""
    return 1 - _root(reference) @ np.swapaxes(_root(factors), -1, -2)


def _root(factors: Any) -> np.ndarray:
    factors = np.asarray(factors, np.float64)
    total = factors.sum(-1, keepdims=True)
    return np.sqrt(factors / np.where(total > 0, total, 1))


def squared(reference: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Squared differences (..., K, K) between reference factors (K, V) and others (..., K, V), coordinates in units of their sd over all of them."""
    reference, factors = np.asarray(reference, np.float64), np.asarray(factors, np.float64)
    everything = np.concatenate([reference, factors.reshape(-1, reference.shape[-1])])
    centre, sd = everything.mean(0), everything.std(0)
    unit = np.where(sd > 1e-9 * np.abs(centre), sd, np.inf)  # what never varies tells nothing apart
    a, b = (reference - centre) / unit, (factors - centre) / unit
    return np.sum(a**2, -1)[:, None] + np.sum(b**2, -1)[..., None, :] - 2 * a @ np.swapaxes(b, -1, -2)


def topic_order(reference_beta: Any, beta: Any, distance: Callable[[np.ndarray, np.ndarray], np.ndarray] = hellinger) -> np.ndarray:
    """The permutations (..., K) for which `beta[..., order, :]` is nearest to `reference_beta`, one for each set of topics."""
    cost = distance(np.asarray(reference_beta), np.asarray(beta))
    flat = cost.reshape(-1, *cost.shape[-2:])  # the distances of all draws at once; only the assignment itself is one call per draw
    return np.array([linear_sum_assignment(one)[1] for one in flat], int).reshape(cost.shape[:-1])


def permute(model: Model, values: Values, order: Any) -> dict[str, np.ndarray]:
    """Every site with its factors in the given order. `order` is (..., K); its leading axes are those of draws and chains."""
    order = np.asarray(order)
    return {site: _permute_site(model, site, np.asarray(value), order) for site, value in values.items()}


def _permute_site(model: Model, site: str, value: np.ndarray, order: np.ndarray) -> np.ndarray:
    leading = order.ndim - 1
    for axis in factor_axes(model).get(site, ()):
        spread = [1] * (value.ndim - leading)
        spread[axis] = order.shape[-1]
        value = np.take_along_axis(value, order.reshape(*order.shape[:-1], *spread), axis=axis)
    return value


def align_draws(model: Model, draws: Values, pivot: Values) -> dict[str, np.ndarray]:
    """Draws (..., *site shape) of every site, each relabelled to lie nearest to the pivot, which holds one value (*site shape) per site."""
    if model.symmetry == "none":
        return {site: np.asarray(value) for site, value in draws.items()}
    if model.symmetry == "rotation":
        return _rotate(model, draws, pivot)
    if model.symmetry != "permutation":
        raise InputError(
            f"Posteriors of {model.name!r} are invariant to {model.symmetry}, and only permutations and rotations can be aligned so far."
        )
    site, axis = _profile(model, pivot)
    distance = hellinger if model.families[site].name in NORMALISED else squared
    leading = np.ndim(draws[site]) - np.ndim(pivot[site])
    permuted = permute(model, draws, topic_order(_as_rows(pivot[site], 0, axis), _as_rows(draws[site], leading, axis), distance))
    return _rotate(model, permuted, pivot) if model.rotated else permuted


def common_labels(model: Model, draws: Values, first: Values) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Draws (n, *site shape) that agree in their labels, and the pivot they were aligned to: the mean of all when aligned to the `first` one."""
    pivot = {site: value.mean(0) for site, value in align_draws(model, draws, first).items()}
    return align_draws(model, draws, pivot), pivot


def _rotate(model: Model, draws: Values, pivot: Values) -> dict[str, np.ndarray]:
    """Draws turned, each as a whole, so that its global locations lie nearest to the pivot's: orthogonal Procrustes, solved by singular values.

    Locations x become x Q; a mean and precision (mu, Lambda) of theirs become (mu Q, Q' Lambda Q).
    """
    site = model.rotated[0]
    left, _, right = np.linalg.svd(np.swapaxes(np.asarray(draws[site], np.float64), -1, -2) @ np.asarray(pivot[site], np.float64))
    turn = left @ right

    def turned(name: str, value: np.ndarray) -> np.ndarray:
        if name not in model.rotated:
            return value
        if model.families[name].name == "normal_wishart":
            one = turn[..., None, :, :]  # the site's own axis of components
            both = value @ one
            both[..., 1:, :] = np.swapaxes(one, -1, -2) @ both[..., 1:, :]
            return both.astype(value.dtype)
        return (value @ turn).astype(value.dtype)

    return {name: turned(name, np.asarray(value)) for name, value in draws.items()}


def _profile(model: Model, values: Values) -> tuple[str, int]:
    """The global site that tells factors apart, the first with an axis of factors and more than one number for each, and that axis."""
    for site in model.shared:
        axes = factor_axes(model)[site]
        if len(axes) == 1 and np.ndim(values[site]) >= 2:
            return site, axes[0]
    raise InputError(f"Model {model.name!r} has no global site with one row or column per factor: its posteriors cannot be aligned.")


def _as_rows(values: Any, leading: int, axis: int) -> np.ndarray:
    """(..., K, numbers), whichever axis after the leading ones, counted from the end, holds the factors."""
    first = np.moveaxis(np.asarray(values), axis, leading)
    return first.reshape(*first.shape[: leading + 1], -1)
