"""A fit's row of the summary: its draws aligned, its diagnostics, its distances from the reference.

Posteriors are compared site by site after alignment (`core.align`), and on functionals that no
relabelling, rotation or rescaling changes:

    expected data       `model.predict` at some entries: rates, ratings or probabilities
    row likelihoods     log p(row | draw)
    log joint           log p(data, draw)
    hyper-parameters    the global sites without factors

Draws are aligned to a pivot: the mean of the reference's draws, first aligned to its draw of
highest log joint density. Without a reference the first fit provides the pivot.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.comparison import marginal_likelihood, verdicts
from inference.comparison.agreement import Quantities, agreement, join, pick, quantities, reweighted
from inference.comparison.record import Evidence, Modes, Row
from inference.core import align
from inference.core.blocks import over_draws
from inference.evaluation.heldout import heldout_score
from inference.io import arviz
from pp_models.data.types import Data
from pp_models.model import Model, factor_axes

Draws = dict[str, np.ndarray]  # site -> (draws, ...)
MAX_QUANTITIES = 1000  # compared numbers of a site, and entries of the expected data
MAX_FUNCTIONALS = 60  # of each kind for R-hat and effective sample sizes
MAX_KHAT = 99.0  # reported


class Chains(NamedTuple):
    """Functionals of Markov chains: names, and values (chains, draws, functionals)."""

    names: list[str]
    values: np.ndarray


class Yardstick(NamedTuple):
    """The pivot, the places picked of each site, and the reference's quantities, if there is one.

    sites, invariant: quantities by site and by functional; empty without a reference
    """

    engine: str
    pivot: Draws
    picked: dict[str, np.ndarray]
    sites: dict[str, Quantities]
    invariant: dict[str, Quantities]


class Measured(NamedTuple):
    """A fit's row of the summary, aligned draws, quantities by site, and chains of a sampler."""

    row: Row
    draws: Draws
    quantities: dict[str, Quantities]
    chains: Chains | None


class Sample(NamedTuple):
    """Draws of a fit, chains one after the other, and their functionals.

    shape:     (chains, draws)
    flat:      site -> (n, ...)
    entries:   compared entries of the expected data
    invariant: functional -> (n, numbers)
    """

    shape: tuple[int, ...]
    flat: Draws
    entries: np.ndarray
    invariant: dict[str, np.ndarray]

    @property
    def log_joint(self) -> np.ndarray:
        return self.invariant["log joint"][:, 0]


# Draws and functionals ----------------------------------------------------------------------------


def draw(fit: Any, key: jax.Array, num_draws: int, seed: Any) -> Sample:
    """Draw about `num_draws` from a posterior. seed: for picking the compared entries."""
    chains = fit.posterior.chains(key, num_draws)
    shape = next(iter(chains.values())).shape[:2]
    flat = {site: np.asarray(x).reshape(-1, *x.shape[2:]) for site, x in chains.items()}
    if fit.posterior.has_chains:  # exact zeros have underflown: make their logarithm finite
        flat = {site: np.where(x == 0, np.finfo(x.dtype).tiny, x) for site, x in flat.items()}
    first = {site: value[0] for site, value in flat.items()}
    size = jax.eval_shape(lambda x: fit.model.predict(fit.hyper, x), first).size
    entries = pick({"": (size,)}, MAX_QUANTITIES, seed)[""]
    return Sample(shape, flat, entries, functionals(fit, flat, entries))


def rates(fit: Any, draws: Draws, entries: np.ndarray) -> np.ndarray:
    """The expected observations at some entries of the matrix, (n, entries)."""
    hyper = fit.problem.hyper
    return over_draws(lambda block: _rates(fit.model, hyper, block, entries), draws)


@partial(jax.jit, static_argnames=("model",))
def _rates(model, hyper, draws, entries):
    return jax.lax.map(lambda x: model.predict(hyper, x).reshape(-1)[entries], draws)


def hyper_sites(model: Model) -> list[str]:
    """The global sites without factors and outside rotated spaces."""
    axes, rotated = factor_axes(model), model.rotation.sites
    return [site for site in model.shared if not axes[site] and site not in rotated]


def functionals(fit: Any, flat: Draws, entries: np.ndarray) -> dict[str, np.ndarray]:
    """Functionals that no symmetry of the posterior changes, (n, numbers) each."""
    model, number = fit.model, len(flat[next(iter(flat))])
    found = {"log joint": np.asarray(fit.log_joint(flat), np.float64)[:, None]}
    if sites := hyper_sites(model):
        parts = [flat[site].reshape(number, -1) for site in sites]
        found["hyper-parameters"] = np.concatenate(parts, axis=1)
    found["expected data"] = rates(fit, flat, entries)
    affordable = fit.data.num_rows * fit.data.num_columns * number <= arviz.MOST_CELLS
    if affordable and model.proper(fit.hyper):
        found["row likelihoods"] = arviz.likelihood_of_rows(fit, flat)[:, :MAX_QUANTITIES]
    return found


# Measuring ----------------------------------------------------------------------------------------


def make_yardstick(fit: Any, sample: Sample, seed: Any, as_reference: bool) -> Yardstick:
    """Make the pivot, and of a reference the quantities, that fits are measured by."""
    log_joint = sample.log_joint
    best = int(np.nanargmax(log_joint)) if np.any(np.isfinite(log_joint)) else 0
    start = {site: value[best] for site, value in sample.flat.items()}
    aligned, pivot = align.common_labels(fit.model, sample.flat, start)
    picked = pick({site: value.shape[1:] for site, value in aligned.items()}, MAX_QUANTITIES, seed)
    if not as_reference:
        return Yardstick(fit.engine, pivot, picked, {}, {})
    invariant = {name: quantities(values) for name, values in sample.invariant.items()}
    return Yardstick(fit.engine, pivot, picked, _site_quantities(aligned, picked), invariant)


def _site_quantities(aligned: Draws, picked: dict[str, np.ndarray]) -> dict[str, Quantities]:
    return {
        site: quantities(value.reshape(len(value), -1)[:, picked[site]])
        for site, value in aligned.items()
    }


def measure(
    fit: Any,
    sample: Sample,
    yardstick: Yardstick,
    notes: list[str],
    heldout: Data | None,
    evidence: Evidence | None = None,
) -> Measured:
    """Measure a fit. The row lacks its verdict. notes: of the fit; those of measuring are added."""
    aligned = align.align_draws(fit.model, sample.flat, yardstick.pivot)
    sites = _site_quantities(aligned, yardstick.picked)
    shared = {site: sites[site] for site in fit.model.shared if site in sites}
    figures: dict[str, Any] = {"log_joint": np.mean(sample.log_joint), **_bounds(fit, evidence)}
    score = attempt(notes, "held-out score", lambda: heldout_score(fit, heldout))
    figures["heldout"], figures["heldout_se"] = score or (None, None)
    if yardstick.sites and fit.engine != yardstick.engine:
        reference = join(yardstick.sites[site] for site in shared)
        figures |= vars(agreement(reference, join(shared.values())))
        figures["sites"] = {site: agreement(yardstick.sites[site], sites[site]) for site in sites}
        figures["invariant"] = {
            name: agreement(yardstick.invariant[name], quantities(values))
            for name, values in sample.invariant.items()
            if name in yardstick.invariant
        }
    if fit.posterior.has_density:
        figures |= _importance(fit, sample, notes, yardstick, shared)
    chains = chains_of(fit, sample) if fit.posterior.has_chains else None
    if chains is not None:
        found = attempt(notes, "diagnostics", lambda: diagnose(fit, sample, chains, aligned))
        figures |= found or {}
    about = {"engine": fit.engine, "kind": fit.posterior.kind, "seconds": float(fit.seconds)}
    return Measured(Row(**about, **figures, notes=notes), aligned, sites, chains)


def _bounds(fit: Any, evidence: Evidence | None) -> dict[str, Any]:
    """The last bound, when it was first within 1 % of that, and its gap to the log evidence."""
    values = np.asarray(fit.history.get("bound", []), np.float64)
    finite = np.flatnonzero(np.isfinite(values))
    if not fit.posterior.has_density or not len(finite):
        return {}
    last = values[finite[-1]]
    near = finite[np.abs(values[finite] - last) <= 0.01 * abs(last)][0]
    gap = None if evidence is None else evidence.log_evidence - last
    seconds = float(fit.history["seconds"][near])
    return {"bound": last, "seconds_to_1pct": seconds, "bound_gap": gap}


def _importance(
    fit: Any, sample: Sample, notes: list[str], yardstick: Yardstick, sites: dict[str, Quantities]
) -> dict[str, Any]:
    """k-hat of q against the joint density, and moments of weighted draws where it is small."""
    points = [site for site, family in fit.model.families.items() if not family.has_density]
    if points:
        notes.append(f"No k-hat: q holds {' and '.join(points)} as a point.")
        return {}
    log_ratios = sample.log_joint - np.asarray(fit.posterior.log_density(sample.flat), np.float64)
    found = attempt(notes, "k-hat", lambda: arviz.smoothed_weights(log_ratios))
    weights, khat = found or (None, None)
    if weights is None and not np.all(np.isfinite(log_ratios)):
        notes.append("No k-hat: some draws of q have no finite density under q or under the model.")
    if weights is None or khat is None or khat >= verdicts.MAX_KHAT or not yardstick.sites:
        return {"khat": khat if khat is None else min(khat, MAX_KHAT)}
    reference = join(yardstick.sites[site] for site in sites)
    return {"khat": khat, "psis": reweighted(reference, join(sites.values()), weights)}


def chains_of(fit: Any, sample: Sample) -> Chains:
    """The invariant functionals as chains, at most `MAX_FUNCTIONALS` of a kind."""
    names, parts = [], []
    for kind, values in sample.invariant.items():
        some = spaced(values.shape[1])
        if kind == "hyper-parameters":
            known = [
                label
                for site in hyper_sites(fit.model)
                for label in labels(fit.model, site, sample.flat[site].shape[1:], None, fit.data)
            ]
            names += [known[i] for i in some]
        elif kind == "expected data":
            names += [label_of_entry(fit, entry) for entry in sample.entries[some]]
        else:
            names += [kind if values.shape[1] == 1 else f"{kind}[{i + 1}]" for i in some]
        parts.append(values[:, some])
    values = np.concatenate(parts, axis=1, dtype=np.float64)
    return Chains(names, values.reshape(*sample.shape, -1))


def spaced(number: int) -> np.ndarray:
    """At most `MAX_FUNCTIONALS` evenly spaced places: neighbours often share a row or factor."""
    return np.unique(np.linspace(0, number - 1, min(number, MAX_FUNCTIONALS)).round().astype(int))


def quality(fit: Any, sample: Sample) -> tuple[bool, float]:
    """Whether a sampler converged, modes aside, and its smallest effective sample size.

    The sampler for which this is largest is the best reference.
    """
    diagnostics = arviz.chain_diagnostics(chains_of(fit, sample).values)
    row = Row(engine=fit.engine, **diagnostics, **_transitions(fit))
    return not verdicts.trouble(row), row.ess_bulk or 0.0


def diagnose(fit: Any, sample: Sample, chains: Chains, aligned: Draws) -> dict[str, Any]:
    """Worst R-hat and effective sample sizes of functionals, R-hat of global sites, and modes."""
    flat = [aligned[site].reshape(*sample.shape, -1) for site in fit.model.shared]
    shared = np.concatenate([values[..., spaced(values.shape[-1])] for values in flat], axis=-1)
    modes = align.find_modes(np.concatenate([chains.values, shared], axis=-1))
    several = Modes(groups=modes.groups, text=modes.text) if len(modes.groups) > 1 else None
    aligned_rhat = arviz.chain_diagnostics(shared)["rhat"]
    found = arviz.chain_diagnostics(chains.values) | _transitions(fit)
    return found | {"rhat_aligned": aligned_rhat, "modes": several}


def _transitions(fit: Any) -> dict[str, Any]:
    """Divergences and E-BFMI, and the number of draws of all chains together."""
    stats = fit.posterior.sample_stats
    return {
        "divergences": int(np.sum(stats["diverging"])) if "diverging" in stats else None,
        "ebfmi": arviz.energy_fraction(stats["energy"]) if "energy" in stats else None,
        "draws": int(np.prod(np.shape(fit.posterior.draws[fit.posterior.sites[0]])[:2])),
    }


def log_evidence(
    fit: Any, yardstick: Yardstick, key: jax.Array, notes: list[str]
) -> Evidence | None:
    """The reference's estimate of log p(data), where it can be computed and trusted."""
    estimate = partial(marginal_likelihood.log_evidence, fit, pivot=yardstick.pivot, key=key)
    found = attempt(notes, "log evidence", estimate)
    if found is None:
        return None
    return Evidence(log_evidence=found.value, error=found.error, method=found.method)


def attempt(notes: list[str], what: str, function: Callable[[], Any]) -> Any:
    """The function's result, or None with a note: a failing diagnostic must not cost the fit."""
    try:
        return function()
    except Exception as error:
        notes.append(f"No {what}: {error}")
        return None


# Names --------------------------------------------------------------------------------------------


def labels(
    model: Model, site: str, shape: tuple[int, ...], picked: np.ndarray | None, data: Data
) -> list[str]:
    """Labels such as beta[2, pasta], by names or counted from 1. picked: None for all places."""
    places = np.arange(int(np.prod(shape))) if picked is None else picked
    if not shape or shape == (1,):
        return [site] * len(places)
    sizes = data.num_rows, data.num_columns
    names: dict[str, Any] = {"row": data.row_names, "column": data.column_names}
    axes = []
    for dimension, size in zip(
        arviz.site_dimensions(model, site, shape, sizes), shape, strict=True
    ):
        known = names.get(dimension)
        axes.append(known if known is not None and len(known) == size else range(1, size + 1))
    indices = zip(*np.unravel_index(places, shape), strict=True)
    return [
        f"{site}[{', '.join(str(axis[i]) for i, axis in zip(index, axes, strict=True))}]"
        for index in indices
    ]


def label_of_entry(fit: Any, entry: int) -> str:
    """An entry of the expected data by its row and column."""
    data, names = fit.data, fit.data.column_names
    votes = data.kind == "text_and_votes" and fit.model.observed == "votes"
    width = data.num_members if votes else data.num_columns
    row, column = divmod(int(entry), width)
    word = names[column] if names is not None and len(names) == width else str(column + 1)
    return f"expected data[{row + 1}, {word}]"
