"""Fits as ArviZ objects, and everything that differs between ArviZ 0.x (InferenceData) and 1.x (DataTree), in one place."""

import importlib
import math
import warnings
from functools import partial
from typing import Any

import arviz
import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from inference.core.blocks import over_draws
from pp_models.model import Model, factor_axes, value_shapes

MODERN = int(arviz.__version__.split(".")[0]) >= 1
INTERVAL = (0.05, 0.95)  # whose quantiles the tail effective sample size is about
MOST_CELLS = 20_000_000  # draws x rows x columns for which the pointwise log likelihood is computed


def from_groups(
    groups: dict[str, dict[str, np.ndarray]], dims: dict[str, list[str]], coords: dict[str, Any]
) -> Any:
    """InferenceData or DataTree from group -> variable -> (chain, draw, ...) arrays (observed_data without chain and draw)."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # "more chains than draws" on single-draw posteriors
        if MODERN:
            return arviz.from_dict(groups, dims=dims, coords=coords)
        return arviz.from_dict(**groups, dims=dims, coords=coords)  # type: ignore[arg-type]


def array_stats() -> Any:
    """ArviZ's functions on plain arrays."""
    return importlib.import_module("arviz_stats.base").array_stats if MODERN else arviz


def smoothed_weights(log_ratios: np.ndarray) -> tuple[np.ndarray | None, float | None]:
    """Pareto-smoothed importance weights, which sum to one, and the Pareto shape of the largest ratios; None where a ratio is not a number.

    Ratios that are all alike, to a thousandth, are those of an exact q: there is no tail to fit, and the shape is 0.
    """
    log_ratios = np.asarray(log_ratios, np.float64)
    if not np.all(np.isfinite(log_ratios)):
        return None, None
    if np.ptp(log_ratios) < 1e-3:
        return np.full(len(log_ratios), 1 / len(log_ratios)), 0.0
    stats = array_stats()
    centred = log_ratios - log_ratios.max()
    logs, khat = stats.psislw(
        -centred if MODERN else centred
    )  # 1.x takes log likelihoods, whose weights are their inverse
    weights = np.exp(np.asarray(logs) - np.max(logs))
    return weights / weights.sum(), float(khat)


def chain_diagnostics(values: np.ndarray) -> dict[str, Any]:
    """The worst rank-normalised R-hat and effective sample sizes over functionals (chains, draws, functionals). One chain is judged by its halves.

    None where they are not defined: too few draws, or some that are not finite.
    """
    nothing = {"rhat": None, "ess_bulk": None, "ess_tail": None}
    if len(values) == 1:
        half = values.shape[1] // 2
        values = values[0, : 2 * half].reshape(2, half, -1)
    values = np.asarray(values, np.float64)
    if values.shape[1] < 4 or not np.all(np.isfinite(values)):
        return nothing
    moving = values[..., values.std((0, 1)) > 0]
    columns = np.moveaxis(moving, -1, 0)
    if not len(columns):
        return nothing
    stats = array_stats()
    tail = {"method": "tail", "prob": INTERVAL} if MODERN else {"method": "tail"}
    found = {
        "rhat": np.max([float(stats.rhat(column)) for column in columns]),
        "ess_bulk": np.min([float(stats.ess(column, method="bulk")) for column in columns]),
        "ess_tail": np.min([float(stats.ess(column, **tail)) for column in columns]),
    }
    return {name: float(value) if np.isfinite(value) else None for name, value in found.items()}


def effective_size(chains: np.ndarray) -> float:
    """The effective sample size of the mean of (chains, draws), at most the number of draws."""
    chains = np.asarray(chains, np.float64)
    if np.ptp(chains) == 0:
        return float(chains.size)
    found = float(array_stats().ess(chains, method="mean"))
    return min(max(found, 1.0), chains.size) if np.isfinite(found) else 1.0


def energy_fraction(energy: np.ndarray) -> float | None:
    """E-BFMI of the worst chain, from energies (chains, draws)."""
    energy = np.asarray(energy, np.float64)
    if energy.shape[1] < 4 or not np.all(energy.var(axis=1) > 0):
        return None
    return float(np.min(array_stats().bfmi(energy)))


MOST_NUMBERS = 20_000_000  # in the draws of a distribution, which take a second per million
DRAWS, FEWEST = 1000, 50


def affordable(fit: Any) -> tuple[int, list[str] | None]:
    """How many draws of a distribution, and of which sites (None: all), hold no more than MOST_NUMBERS.

    Where that would leave fewer than FEWEST draws of all sites, those with a row for each row of the data are left out.
    """
    posterior, model = fit.posterior, fit.model
    number = 1 if posterior.kind == "point" else DRAWS
    if posterior.kind == "mixture":
        return number, None
    if fit.data is None:
        return number, None if len(posterior.at_hand) == len(posterior.sites) else posterior.at_hand
    sizes = {
        site: math.prod(shape) for site, shape in value_shapes(model, fit.hyper, fit.data).items()
    }
    room = MOST_NUMBERS // sum(sizes.values())
    if room >= min(number, FEWEST):
        return min(number, room), None
    return max(
        1, min(number, MOST_NUMBERS // max(1, sum(sizes[site] for site in model.shared)))
    ), list(model.shared)


def convert(fit: Any, num_draws: int | None = None) -> Any:
    """posterior, sample_stats, log_likelihood (per row, where affordable) and observed_data of a fit.

    Distributions and points are turned into one chain of `num_draws` draws (a point into one draw); None: as many as are affordable.
    """
    posterior, sites = fit.posterior, None
    if posterior.kind == "draws":
        draws, stats = posterior.draws, dict(posterior.sample_stats)
    else:
        number, sites = (
            affordable(fit)
            if num_draws is None
            else (1 if posterior.kind == "point" else num_draws, None)
        )
        sample = (
            posterior.sample(jax.random.key(0), number)
            if sites is None
            else posterior.sample(jax.random.key(0), number, sites)
        )
        draws, stats = {site: x[None] for site, x in sample.items()}, {}
        if sites is None and posterior.kind == "variational":
            stats["log_q"] = posterior.log_density(sample)[None]
        if sites is None and fit.data is not None:
            stats["lp"] = fit.log_joint(sample)[None]
    groups = {"posterior": draws}
    if stats:
        groups["sample_stats"] = stats
    dims, coords = _names(fit.model, fit.data, draws)
    if fit.data is not None and sites is None:
        groups |= _data_groups(fit, draws, dims)
    return from_groups(groups, dims, coords)


def _names(
    model: Model, data: Any, draws: dict[str, np.ndarray]
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Dimension names, and vocabulary and row names as coordinates where sites have such a dimension."""
    sizes = None if data is None else (data.num_rows, data.num_columns)
    dims = {site: site_dimensions(model, site, x.shape[2:], sizes) for site, x in draws.items()}
    coords = {}
    if data is not None:
        if data.column_names is not None and any("column" in names for names in dims.values()):
            coords["column"] = list(data.column_names)
        if data.row_names is not None and any("row" in names for names in dims.values()):
            coords["row"] = list(data.row_names)
    return dims, coords


def site_dimensions(
    model: Model, site: str, shape: tuple[int, ...], sizes: tuple[int, int] | None = None
) -> list[str]:
    """A name for each axis of a site: "row", "factor" or "column" where it is one, and its own otherwise. sizes: (rows, columns) of the data."""
    factors = {len(shape) + axis for axis in factor_axes(model)[site]}
    names = []
    for axis, size in enumerate(shape):
        if axis == 0 and site in model.local:
            name = "row"
        elif axis in factors and "factor" not in names:
            name = "factor"
        elif (
            axis not in factors and sizes is not None and size == sizes[1] and "column" not in names
        ):
            name = "column"
        else:
            name = f"{site}_dim_{axis}"
        names.append(name)
    return names


def _data_groups(
    fit: Any, draws: dict[str, np.ndarray], dims: dict[str, list[str]]
) -> dict[str, dict[str, np.ndarray]]:
    """The observations and each row's log likelihood under each draw, where a dense matrix of them is affordable."""
    data, model = fit.data, fit.model
    chains, count = next(iter(draws.values())).shape[:2]
    if data.num_rows * data.num_columns * chains * count > MOST_CELLS or not model.proper(
        fit.hyper
    ):
        return {}
    per_row = likelihood_of_rows(
        fit, {site: x.reshape(-1, *x.shape[2:]) for site, x in draws.items()}
    ).reshape(chains, count, -1)
    dims[model.observed] = ["row"]
    batch = data.pack()
    observed = np.asarray(batch.totals if batch.dense is None else batch.dense)
    return {
        "log_likelihood": {model.observed: per_row},
        "observed_data": {model.observed: observed},
    }


def likelihood_of_rows(fit: Any, flat: dict[str, np.ndarray], data: Any = None) -> np.ndarray:
    """(draws, rows): the log likelihood of each row of the data, those fitted or others, under each draw (draws, ...)."""
    problem, batch = fit.problem, (fit.data if data is None else data).pack()
    found = over_draws(lambda block: _row_logs(fit.model, problem.hyper, block, batch), flat)
    return np.asarray(found, np.float64)


@partial(jax.jit, static_argnames=("model",))
def _row_logs(model, hyper, draws, batch):

    def one(draw):
        trace = handlers.trace(
            handlers.substitute(handlers.seed(model.generate, jax.random.key(0)), data=draw)
        ).get_trace(hyper, batch)
        logs = trace[model.observed]["fn"].log_prob(trace[model.observed]["value"])
        return jnp.sum(logs.reshape(batch.num_rows, -1), axis=1)

    return jax.lax.map(one, draws)


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
