"""Fits as ArviZ objects, and everything that differs between ArviZ 0.x (InferenceData) and 1.x (DataTree), in one place."""

import importlib
import warnings
from typing import Any

import arviz
import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import log_likelihood

from pp_models.base import Model

MODERN = int(arviz.__version__.split(".")[0]) >= 1
INTERVAL = (0.05, 0.95)  # whose quantiles the tail effective sample size is about
MOST_CELLS = 20_000_000  # draws x rows x columns for which the pointwise log likelihood is computed


def from_groups(groups: dict[str, dict[str, np.ndarray]], dims: dict[str, list[str]], coords: dict[str, Any]) -> Any:
    """InferenceData or DataTree from group -> variable -> (chain, draw, ...) arrays (observed_data without chain and draw)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "more chains than draws" on single-draw posteriors
        if MODERN:
            return arviz.from_dict(groups, dims=dims, coords=coords)
        return arviz.from_dict(**groups, dims=dims, coords=coords)  # type: ignore[arg-type]


def _array_stats() -> Any:
    """ArviZ's functions on plain arrays."""
    return importlib.import_module("arviz_stats.base").array_stats if MODERN else arviz


def pareto_khat(log_ratios: np.ndarray) -> float | None:
    """The Pareto shape of the largest importance ratios; None where a ratio is not a number."""
    log_ratios = np.asarray(log_ratios, np.float64)
    if not np.all(np.isfinite(log_ratios)):
        return None
    stats = _array_stats()
    centred = log_ratios - log_ratios.max()
    return float(stats.psislw(-centred if MODERN else centred)[1])  # 1.x takes log likelihoods, whose weights are their inverse


def chain_diagnostics(values: np.ndarray) -> dict[str, float | None]:
    """The worst rank-normalised R-hat and effective sample sizes over functionals (chains, draws, functionals). One chain is judged by its halves."""
    if len(values) == 1:
        half = values.shape[1] // 2
        values = values[0, : 2 * half].reshape(2, half, -1)
    values = np.asarray(values, np.float64)
    moving = values[..., values.std((0, 1)) > 0]
    columns = np.moveaxis(moving, -1, 0)
    if not len(columns):
        return {"rhat": None, "ess_bulk": None, "ess_tail": None}
    stats = _array_stats()
    tail = {"method": "tail", "prob": INTERVAL} if MODERN else {"method": "tail"}
    return {
        "rhat": max(float(stats.rhat(column)) for column in columns),
        "ess_bulk": min(float(stats.ess(column, method="bulk")) for column in columns),
        "ess_tail": min(float(stats.ess(column, **tail)) for column in columns),
    }


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
    observed = np.asarray(batch.totals if batch.dense is None else batch.dense)
    return {"log_likelihood": {model.observed: per_row}, "observed_data": {model.observed: observed}}


def has_group(tree: Any, name: str) -> bool:
    """Whether a converted fit has a group of that name."""
    return name in (tree.children if MODERN else tree.groups())


def row_log_likelihoods(tree: Any, observed: str) -> np.ndarray:
    """(draws, rows), the chains one after the other."""
    values = np.asarray(tree["log_likelihood"][observed])
    return values.reshape(-1, values.shape[-1])


def pointwise_loo(tree: Any) -> tuple[np.ndarray, float, np.ndarray]:
    """Each row's PSIS-LOO term, the effective number of parameters, and each row's Pareto shape, which says what ArviZ would warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = arviz.loo(tree, pointwise=True)
    terms, number = (found.elpd_i, found.p) if MODERN else (found.loo_i, found.p_loo)
    return np.asarray(terms, np.float64), float(number), np.asarray(found.pareto_k, np.float64)
