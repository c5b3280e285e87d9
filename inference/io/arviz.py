"""Fits as ArviZ objects: the only module that knows ArviZ 0.x from 1.x."""

import importlib
import json
import math
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import arviz
import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from inference.core import align
from inference.core.blocks import over_draws
from inference.core.corrected import Corrected
from inference.core.provenance import plain, versions
from inference.io.observations import log_likelihoods, observations_of, predictions
from pp_models.model import Model, factor_axes, value_shapes

MODERN = int(arviz.__version__.split(".")[0]) >= 1
INTERVAL = (0.05, 0.95)  # whose quantiles the tail effective sample size is about
MOST_CELLS = 20_000_000  # draws x rows x columns for which the pointwise log likelihood is computed
MOST_NUMBERS = 20_000_000  # in a file; draws of a distribution take a second per million
DRAWS, FEWEST = 1000, 50
FEWEST_DRAWS = 4  # of a chain, for its diagnostics
COLUMNS = "feature"  # the data's columns; ArviZ 1 keeps "column" for the columns of its plots
LEAST = 200  # draws for which others are given up to have log likelihoods

Draws = dict[str, np.ndarray]  # site -> (chains, draws, ...)


# Diagnostics -----------------------------------------------------------------------------------


def array_stats() -> Any:
    """ArviZ's functions on plain arrays."""
    return importlib.import_module("arviz_stats.base").array_stats if MODERN else arviz


def smoothed_weights(log_ratios: np.ndarray) -> tuple[np.ndarray | None, float | None]:
    """Pareto-smoothed importance weights, which sum to one, and the Pareto shape k-hat.

    (None, None) if a ratio is not finite. Equal ratios (to 0.001) are those of an exact q: they
    have no tail to fit, and k-hat is 0.
    """
    log_ratios = np.asarray(log_ratios, np.float64)
    if not np.all(np.isfinite(log_ratios)):
        return None, None
    if np.ptp(log_ratios) < 1e-3:
        return np.full(len(log_ratios), 1 / len(log_ratios)), 0.0
    centred = log_ratios - log_ratios.max()
    # ArviZ 1 takes log likelihoods, whose importance weights are their inverse
    logs, khat = array_stats().psislw(-centred if MODERN else centred)
    weights = np.exp(np.asarray(logs) - np.max(logs))
    return weights / weights.sum(), float(khat)


def effective_size(values: np.ndarray, method: str = "mean") -> float:
    """Effective sample size of values (chains, draws). method: "mean", "bulk" or "tail"."""
    tail = {"prob": INTERVAL} if MODERN and method == "tail" else {}
    return float(array_stats().ess(np.asarray(values, np.float64), method=method, **tail))


def chain_diagnostics(values: np.ndarray) -> dict[str, Any]:
    """The worst rank-normalised R-hat and effective sizes of functionals (chains, draws, n).

    A single chain is split into halves. None if there are too few draws or some are not finite.
    """
    nothing = {"rhat": None, "ess_bulk": None, "ess_tail": None}
    if len(values) == 1:
        half = values.shape[1] // 2
        values = values[0, : 2 * half].reshape(2, half, -1)
    values = np.asarray(values, np.float64)
    if values.shape[1] < FEWEST_DRAWS or not np.all(np.isfinite(values)):
        return nothing
    varying = values[..., values.std((0, 1)) > 0]
    columns = np.moveaxis(varying, -1, 0)
    if not len(columns):
        return nothing
    found = {
        "rhat": np.max(each_rhat(varying)),
        "ess_bulk": np.min([effective_size(column, "bulk") for column in columns]),
        "ess_tail": np.min([effective_size(column, "tail") for column in columns]),
    }
    return {name: float(value) if np.isfinite(value) else None for name, value in found.items()}


def each_rhat(values: np.ndarray) -> np.ndarray:
    """The rank-normalised R-hat of each of the numbers (chains, draws, n); nan for constants."""
    columns = np.moveaxis(np.asarray(values, np.float64), -1, 0)
    return np.array([float(array_stats().rhat(x)) if x.std() > 0 else np.nan for x in columns])


def energy_fraction(energy: np.ndarray) -> float | None:
    """E-BFMI of the worst chain, from energies (chains, draws)."""
    energy = np.asarray(energy, np.float64)
    if energy.shape[1] < FEWEST_DRAWS or not np.all(energy.var(axis=1) > 0):
        return None
    return float(np.min(array_stats().bfmi(energy)))


# Conversion ------------------------------------------------------------------------------------


def affordable(fit: Any) -> tuple[int, list[str] | None]:
    """How many draws, and of which sites (None: all), hold at most MOST_NUMBERS numbers.

    Sites with a row for each row of the data are left out if fewer than FEWEST draws of all sites
    are affordable.
    """
    posterior, model = fit.posterior, fit.model
    number = posterior.num_draws(DRAWS)
    if fit.data is None:
        return number, None if len(posterior.at_hand) == len(posterior.sites) else posterior.at_hand
    shapes = value_shapes(model, fit.hyper, fit.data)
    sizes = {site: math.prod(shape) for site, shape in shapes.items()}
    room = MOST_NUMBERS // sum(sizes.values())
    if room >= min(number, FEWEST):
        return min(number, room), None
    room = MOST_NUMBERS // max(1, sum(sizes[site] for site in model.shared))
    return max(1, min(number, room)), list(model.shared)


class Plan(NamedTuple):
    """What is exported: so many draws, of these sites (None: all), with log likelihoods and
    predictions or without. note: a sentence on what is left out, or None."""

    number: int
    sites: list[str] | None
    explains: bool
    note: str | None


def _plan(fit: Any, num_draws: int | None) -> Plan:
    posterior, data, notes = fit.posterior, fit.data, []
    chains = posterior.has_chains
    there = math.prod(posterior.draws[posterior.sites[0]].shape[:2]) if chains else 0
    number, sites = (there, None) if chains else affordable(fit) if num_draws is None else (0, None)
    wanted = there if chains else posterior.num_draws(num_draws or DRAWS)
    number = number or wanted
    if data is None:
        return Plan(number, sites, False, "The fit was loaded without its data.")
    shapes = value_shapes(fit.model, fit.hyper, data)
    size = sum(math.prod(shape) for shape in shapes.values())
    table = data.num_rows * max(data.num_columns, data.num_members)
    if chains:
        number = min(number, max(1, MOST_NUMBERS // size))
    room = min(MOST_CELLS // table, MOST_NUMBERS // (size + 2 * table))
    fits = room >= number or (num_draws is None and room >= LEAST)
    explains = sites is None and fits and fit.model.proper(fit.hyper)
    number = min(number, room) if explains else number
    if number < wanted:
        notes.append(f"Of {wanted} draws {number} were kept, evenly spaced.")
    if sites is not None:
        notes.append(f"Only {', '.join(sites)} are kept.")
    if fit.model.proper(fit.hyper) and not explains:
        notes.append("Log likelihoods and predictions of single observations are left out.")
    if notes:
        limits = f"{MOST_NUMBERS // 10**6} million numbers are written"
        notes.append(f"At most {limits}, and {MOST_CELLS // 10**6} million entries computed.")
    return Plan(number, sites, explains, " ".join(notes) or None)


def convert(
    fit: Any,
    num_draws: int | None = None,
    by_row: bool = False,
    pivot: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """A fit as InferenceData or DataTree.

    Groups: posterior, sample_stats, observed_data, log_likelihood, posterior_predictive and, where
    observations are entries of a matrix, constant_data (their rows and columns).
    Factors of all draws have common labels: those of the pivot, or those of the most probable draw.
    Chains stay chains. Of distributions `num_draws` draws are taken as one chain, by default as
    many as are affordable; a point is one draw. `log_q` is the density of q at a draw before its
    labels were changed.

    by_row: log likelihoods of rows, and no observations
    """
    posterior, plan = fit.posterior, _plan(fit, num_draws)
    draws = posterior.chains(jax.random.key(0), plan.number, plan.sites)
    shape = next(iter(draws.values())).shape[:2]
    stats = {n: x[:, posterior.kept(shape[1])] for n, x in posterior.sample_stats.items()}
    flat = {site: np.asarray(x).reshape(-1, *x.shape[2:]) for site, x in draws.items()}
    joint = None
    if plan.sites is None and fit.data is not None:
        joint = fit.log_joint(flat)
        stats.setdefault("lp", joint.reshape(shape))
    if plan.sites is None and posterior.has_density:
        stats["log_q"] = posterior.log_density(flat).reshape(shape)
        stats |= {} if joint is None else {"log_prob": stats["lp"]}
    aligned = _aligned(fit.model, flat, pivot, joint)
    groups: dict[str, Any] = {
        "posterior": {s: x.reshape(*shape, *x.shape[1:]) for s, x in aligned.items()}
    }
    groups |= {"sample_stats": stats} if stats else {}
    dims, coords = _names(fit.model, fit.data, groups["posterior"])
    if plan.explains:
        groups |= _data_groups(fit, flat, shape, by_row, dims)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # more chains than draws
        if MODERN:
            tree = arviz.from_dict(groups, dims=dims, coords=coords)
        else:
            tree = arviz.from_dict(**groups, dims=dims, coords=coords)
    tree["posterior"].attrs.update(_attributes(fit, plan, attributes or {}))
    return tree


def _aligned(model: Model, flat: Draws, pivot: Any, joint: np.ndarray | None) -> Draws:
    """Draws with common labels. The labels of the first draw, where densities are unknown."""
    if pivot is not None:
        return align.align_draws(model, flat, pivot)
    best = 0 if joint is None else int(np.argmax(np.where(np.isfinite(joint), joint, -np.inf)))
    return align.common_labels(model, flat, {site: x[best] for site, x in flat.items()})[0]


def _attributes(fit: Any, plan: Plan, more: Mapping[str, Any]) -> dict[str, str]:
    """What the draws are of; everything that is no text is JSON."""
    told = {
        "model": fit.model.name,
        "engine": fit.engine,
        "kind": fit.posterior.kind,
        "hyper": fit.hyper._asdict(),
        "options": fit.options,
        "data": fit.provenance,
        "versions": versions(),
        "note": plan.note or "",
        **_about_correction(fit.posterior),
        **more,
    }
    return {n: x if isinstance(x, str) else json.dumps(plain(x)) for n, x in told.items()}


def _about_correction(posterior: Any) -> dict[str, Any]:
    """What the draws of a correction are, and what speaks against them."""
    if posterior.kind != Corrected.kind:
        return {}
    return {
        "description": "Means and margins of a mean-field posterior at the maximum of its bound, "
        "widths and correlations of linear response (Giordano, Broderick & Jordan 2018).",
        "doubts": list(posterior.notes),
    }


def _names(model: Model, data: Any, draws: Draws) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Names of dimensions, and names of rows and columns as coordinates."""
    sizes = None if data is None else (data.num_rows, data.num_columns)
    dims = {site: site_dimensions(model, site, x.shape[2:], sizes) for site, x in draws.items()}
    used = {name for names in dims.values() for name in names}
    known = {} if data is None else {COLUMNS: data.column_names, "row": data.row_names}
    coords = {name: list(x) for name, x in known.items() if x is not None and name in used}
    return dims, coords


def site_dimensions(
    model: Model, site: str, shape: tuple[int, ...], sizes: tuple[int, int] | None = None
) -> list[str]:
    """A name for each axis of a site: "row", "factor", "feature", "member", or one of its own.

    sizes: (rows, columns) of the data.
    """
    factors = {len(shape) + axis for axis in factor_axes(model)[site]}
    names: list[str] = []
    for axis, size in enumerate(shape):
        name = f"{site}_dim_{axis}"
        if axis == 0 and site in model.local:
            name = "row"
        elif axis in factors:
            name = name if "factor" in names else "factor"
        elif model.votes is not None and site == model.votes.members:
            name = "member"
        elif sizes is not None and size == sizes[1] and COLUMNS not in names:
            name = COLUMNS
        names.append(name)
    return names


def _data_groups(
    fit: Any, flat: Draws, shape: tuple[int, ...], by_row: bool, dims: dict[str, list[str]]
) -> dict[str, Draws]:
    """Observations, their log likelihoods, and predictions of them."""
    name = fit.model.observed
    if by_row:
        dims[name] = ["row"]
        return {"log_likelihood": {name: likelihood_of_rows(fit, flat).reshape(*shape, -1)}}
    seen = observations_of(fit, {site: x[0] for site, x in flat.items()})
    dims[name] = ["row"] if seen.entries is None else ["entry"]
    new = predictions(fit, flat, seen)
    groups = {
        "log_likelihood": {name: log_likelihoods(fit, flat, seen).reshape(*shape, -1)},
        "posterior_predictive": {name: new.reshape(*shape, *new.shape[1:])},
        "observed_data": {name: seen.values},
    }
    if seen.entries is not None:
        width = seen.width
        places = {"entry_row": seen.entries // width, "entry_column": seen.entries % width}
        dims |= {place: ["entry"] for place in places}
        groups["constant_data"] = places
    return groups


# Likelihoods -----------------------------------------------------------------------------------


def likelihood_of_rows(fit: Any, flat: dict[str, np.ndarray], data: Any = None) -> np.ndarray:
    """(draws, rows) log likelihood of each row of the data, fitted or given, under each draw."""
    hyper, batch = fit.problem.hyper, (fit.data if data is None else data).pack()
    found = over_draws(lambda block: _row_logs(fit.model, hyper, block, batch), flat)
    return np.asarray(found, np.float64)


@partial(jax.jit, static_argnames=("model",))
def _row_logs(model, hyper, draws, batch):
    def one(draw):
        seeded = handlers.seed(model.generate, jax.random.key(0))
        trace = handlers.trace(handlers.substitute(seeded, data=draw)).get_trace(hyper, batch)
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
    """Each row's PSIS-LOO term, the effective number of parameters, and each row's k-hat."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = arviz.loo(tree, pointwise=True)
    terms, number = (found.elpd_i, found.p) if MODERN else (found.loo_i, found.p_loo)
    return np.asarray(terms, np.float64), float(number), np.asarray(found.pareto_k, np.float64)
