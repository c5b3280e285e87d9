"""Fits as ArviZ objects, and the two things that differ between ArviZ 0.x (InferenceData) and 1.x (DataTree), in one place."""

import warnings
from typing import Any

import arviz
import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import log_likelihood

from pp_models.base import Model

MODERN = int(arviz.__version__.split(".")[0]) >= 1
MOST_CELLS = 20_000_000  # draws x rows x columns for which the pointwise log likelihood is computed


def from_groups(groups: dict[str, dict[str, np.ndarray]], dims: dict[str, list[str]], coords: dict[str, Any]) -> Any:
    """InferenceData or DataTree from group -> variable -> (chain, draw, ...) arrays (observed_data without chain and draw)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "more chains than draws" on single-draw posteriors
        if MODERN:
            return arviz.from_dict(groups, dims=dims, coords=coords)
        return arviz.from_dict(**groups, dims=dims, coords=coords)


def pareto_k(log_ratios: np.ndarray) -> float:
    """PSIS k-hat of log p - log q at draws from q."""
    if MODERN:
        import xarray

        values = xarray.DataArray(log_ratios[None], dims=("chain", "draw"))
        return float(arviz.psislw(values)[1])
    return float(arviz.psislw(log_ratios)[1])


def convert(fit: Any, num_draws: int = 1000) -> Any:
    """posterior, sample_stats, log_likelihood (per row, where affordable) and observed_data of a fit.

    Distributions and points are turned into one chain of `num_draws` draws (a point into one draw).
    """
    posterior = fit.posterior
    if posterior.kind == "draws":
        draws, stats = posterior.draws, dict(posterior.sample_stats)
    else:
        sample = posterior.sample(jax.random.key(0), 1 if posterior.kind == "point" else num_draws)
        draws = {site: x[None] for site, x in sample.items()}
        stats = {"log_q": posterior.log_density(sample)[None]} if posterior.kind == "variational" else {}
        if fit.data is not None:
            stats["lp"] = fit.log_joint(sample)[None]
    groups = {"posterior": draws}
    if stats:
        groups["sample_stats"] = stats
    dims, coords = _names(fit.model, fit.data, draws)
    if fit.data is not None:
        groups |= _data_groups(fit, draws, dims)
    return from_groups(groups, dims, coords)


def _names(model: Model, data: Any, draws: dict[str, np.ndarray]) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Dimension names: rows, factors, columns, by the shapes that design §5 fixes; vocabulary and row names as coordinates."""
    dims: dict[str, list[str]] = {}
    for site, x in draws.items():
        rank = x.ndim - 2
        if rank == 2:
            dims[site] = ["row", "factor"] if site in model.local else ["factor", "column"]
        else:
            dims[site] = [f"{site}_dim_{i}" for i in range(rank)]
    coords = {}
    if data is not None:
        if data.column_names is not None and any("column" in names for names in dims.values()):
            coords["column"] = list(data.column_names)
        if data.row_names is not None and any("row" in names for names in dims.values()):
            coords["row"] = list(data.row_names)
    return dims, coords


def _data_groups(fit: Any, draws: dict[str, np.ndarray], dims: dict[str, list[str]]) -> dict[str, dict[str, np.ndarray]]:
    """The observations and each row's log likelihood under each draw, where a dense matrix of them is affordable."""
    data, model = fit.data, fit.model
    chains, count = next(iter(draws.values())).shape[:2]
    if data.num_rows * data.num_columns * chains * count > MOST_CELLS or not model.proper(fit.hyper):
        return {}
    flat = {site: jnp.asarray(x.reshape(-1, *x.shape[2:])) for site, x in draws.items()}
    batch = data.pack()
    terms = np.asarray(log_likelihood(model.generate, flat, fit.hyper, batch)[model.observed], np.float64)
    per_row = terms.reshape(chains, count, data.num_rows, -1).sum(-1)
    dims[model.observed] = ["row"]
    observed = np.asarray(batch.totals)
    return {"log_likelihood": {model.observed: per_row}, "observed_data": {model.observed: observed}}
