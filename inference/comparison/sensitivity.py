"""How far posterior means move if a hyper-parameter is doubled, to first order.

Linear response gives the derivatives (`Corrected.sensitivity`). What is looked at:

    shares               of the factors in the data, where the model has shares
    mean expected data   over all rows and columns

Shares are the mean weights where a site's weights sum to one over the factors. Elsewhere they are
the parts of the expected data that are left if the other factors' weights are zero, where these
parts are positive and add up.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference.comparison.measure import Draws
from inference.comparison.record import Doubling
from inference.core import align
from inference.io.arviz import MOST_CELLS
from pp_models.model import factor_axes

MOST_SHARES = 5  # the largest
ROUNDING = 1e-6  # sd relative to the mean below which a functional is a constant

Function = Callable[[Any], Any]  # of the values of all sites


def table(fit: Any, pivot: Draws) -> list[Doubling]:
    """Every hyper-parameter and functional. pivot: whose labels the factors get"""
    names, function = functionals(fit, pivot)
    if not names:
        return []
    posterior, hyper = fit.posterior, fit.hyper._asdict()
    mean = np.asarray(function({site: posterior.mean(site) for site in posterior.sites}), float)
    sd = np.sqrt(np.maximum(np.diag(posterior.covariance(function)), 0.0))
    return [
        Doubling(
            hyper=name,
            value=float(np.ravel(hyper[name])[0]) if np.size(hyper[name]) == 1 else None,
            functional=names[i],
            mean=float(mean[i]),
            sd=float(sd[i]),
            shift=_rounded(moves[i], sd[i]),
            shift_sd=_rounded(moves[i], sd[i]) / float(sd[i]),
        )
        for name, moves in posterior.doubled(function).items()
        for i in range(len(names))
        if sd[i] > ROUNDING * abs(mean[i]) and np.isfinite(moves[i])
    ]


def _rounded(shift: float, sd: float) -> float:
    """Zero where the solver's error is all there is."""
    return float(shift) if abs(shift) > ROUNDING * sd else 0.0


def functionals(fit: Any, pivot: Draws) -> tuple[list[str], Function]:
    """Names, and a function of the values of all sites that gives one number for each."""
    values = {site: fit.posterior.mean(site) for site in fit.model.families}
    small = fit.data.num_rows * max(fit.data.num_columns, fit.data.num_members) <= MOST_CELLS
    shares, names, parts = _shares(fit, values, small), [], []
    if shares is not None:
        before = np.asarray(shares(values))
        aligned = {site: np.asarray(x)[None] for site, x in values.items()}
        aligned = align.align_draws(fit.model, aligned, pivot)
        after = np.asarray(shares({site: x[0] for site, x in aligned.items()}))
        owners = np.empty(len(before), int)  # of each factor of the fit, its place in the pivot
        owners[np.argsort(before)] = np.argsort(after)
        largest = np.argsort(-before, kind="stable")[:MOST_SHARES]
        names += [f"share of {_factor(fit)} {owners[k] + 1}" for k in largest]
        parts.append(lambda x: shares(x)[largest])
    if small:
        names.append("mean expected data")
        parts.append(lambda x: jnp.mean(fit.model.predict(fit.hyper, x))[None])
    return names, lambda x: jnp.concatenate([part(x) for part in parts])


def _factor(fit: Any) -> str:
    axes = factor_axes(fit.model)
    if not any(axes[site] for site in fit.model.local):
        return "component"
    return "topic" if fit.data.kind in ("counts", "text_and_votes") else "factor"


def _shares(fit: Any, values: Draws, small: bool) -> Function | None:
    """The factors' shares in the data as a function of the values; None where there are none."""
    model = fit.model
    if model.symmetry == "rotation":
        return None
    single = {site: one[0] for site, one in factor_axes(model).items() if len(one) == 1}
    for site, axis in single.items():
        if np.allclose(np.sum(values[site], axis), 1, atol=1e-4):
            return partial(_mean_weights, site=site, axis=axis)
    axes = {site: axis for site, axis in single.items() if site in model.local}
    if not axes or not small:
        return None
    site = next(iter(axes))
    number = np.shape(values[site])[axes[site]]

    def parts(x: Any) -> jax.Array:
        def alone(k: Any) -> jax.Array:
            kept = {s: jnp.where(_place(x[s], a) == k, x[s], 0) for s, a in axes.items()}
            return jnp.sum(model.predict(fit.hyper, {**x, **kept}))

        return jnp.stack([alone(k) for k in range(number)])

    whole, found = float(jnp.sum(model.predict(fit.hyper, values))), np.asarray(parts(values))
    if not (np.all(found > 0) and math.isclose(found.sum(), whole, rel_tol=1e-3)):
        return None
    return lambda x: parts(x) / jnp.sum(parts(x))


def _mean_weights(values: Any, site: str, axis: int) -> jax.Array:
    moved = jnp.moveaxis(jnp.asarray(values[site]), axis, -1)
    return jnp.mean(moved.reshape(-1, moved.shape[-1]), 0)


def _place(value: Any, axis: int) -> jax.Array:
    """The index along an axis, in a shape that broadcasts with the value."""
    shape = [1] * jnp.ndim(value)
    shape[axis] = -1
    return jnp.arange(jnp.shape(value)[axis]).reshape(shape)
