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
from scipy.ndimage import median_filter

from inference.comparison import marginal_likelihood, verdicts
from inference.comparison.agreement import (
    Quantities,
    agreement,
    join,
    pick,
    quantities,
    reweighted,
    worst,
)
from inference.comparison.labels import label_of_entry, labels
from inference.comparison.record import Agreement, Evidence, Modes, Row
from inference.core import align
from inference.core.blocks import over_draws
from inference.core.registry import load_engine
from inference.evaluation.heldout import heldout_score
from inference.evaluation.ratings import score_ratings
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
    is_markov: whether the draws are those of Markov chains, and not independent
    flat:      site -> (n, ...)
    entries:   compared entries of the expected data
    invariant: functional -> (n, numbers)
    """

    shape: tuple[int, ...]
    is_markov: bool
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
    markov = fit.posterior.has_chains
    return Sample(shape, markov, flat, entries, functionals(fit, flat, entries))


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
    sites, invariant = _quantities(sample, aligned, picked)
    return Yardstick(fit.engine, pivot, picked, sites, invariant)


def _quantities(
    sample: Sample, aligned: Draws, picked: dict[str, np.ndarray]
) -> tuple[dict[str, Quantities], dict[str, Quantities]]:
    """The compared quantities of sites and of functionals, with their effective draws."""

    def summarised(values: np.ndarray) -> Quantities:
        return quantities(values, effective_draws(values, sample))

    sites = {
        site: summarised(value.reshape(len(value), -1)[:, picked[site]])
        for site, value in aligned.items()
    }
    return sites, {name: summarised(values) for name, values in sample.invariant.items()}


def effective_draws(values: np.ndarray, sample: Sample) -> np.ndarray:
    """Effective draws of each column (n, columns), that of the nearest of `spaced` columns."""
    number, columns = values.shape
    if not sample.is_markov or not columns:
        return np.full(columns, float(number))
    some = spaced(columns)
    chains = np.asarray(values[:, some], np.float64).reshape(*sample.shape, -1)
    found = np.array([arviz.effective_size(chains[..., i]) for i in range(len(some))])
    found = np.clip(np.nan_to_num(found, nan=number), 1.0, number)
    nearest = np.abs(np.arange(columns)[:, None] - some).argmin(1)
    return found[nearest]


def measure(
    fit: Any,
    sample: Sample,
    yardstick: Yardstick,
    notes: list[str],
    heldout: Data | None,
    evidence: Evidence | None = None,
) -> Measured:
    """Measure a fit. The row lacks its verdict. notes: of the fit; those of measuring are added."""
    figures, aligned, sites = distances_from(fit, sample, yardstick)
    shared = {site: sites[site] for site in fit.model.shared if site in sites}
    figures |= {"log_joint": np.mean(sample.log_joint), **_bounds(fit, notes)}
    score = attempt(notes, "held-out score", lambda: heldout_score(fit, heldout))
    figures["heldout"], figures["heldout_se"] = score or (None, None)
    if heldout is not None and heldout.kind == "ratings":
        error = attempt(notes, "RMSE", lambda: score_ratings(fit, heldout).measures["rmse"])
        figures |= {"rmse": error.value, "rmse_se": error.standard_error} if error else {}
    if fit.posterior.has_density:
        figures |= _importance(fit, sample, notes, yardstick, shared)
    if evidence is not None and figures.get("elbo") is not None:
        figures["kl"] = evidence.log_evidence - figures["elbo"]
        figures["kl_se"] = np.hypot(evidence.error, figures["elbo_se"])
    chains = chains_of(fit, sample) if fit.posterior.has_chains else None
    if chains is not None:
        found = attempt(notes, "diagnostics", lambda: diagnose(fit, sample, chains, aligned))
        figures |= found or {}
    about = {"engine": fit.engine, "kind": fit.posterior.kind, "seconds": float(fit.seconds)}
    return Measured(Row(**about, **figures, notes=notes), aligned, sites, chains)


def distances_from(
    fit: Any, sample: Sample, yardstick: Yardstick
) -> tuple[dict[str, Any], Draws, dict[str, Quantities]]:
    """Agreement with the reference, if there is one; aligned draws; and quantities by site."""
    aligned = align.align_draws(fit.model, sample.flat, yardstick.pivot)
    sites, invariant = _quantities(sample, aligned, yardstick.picked)
    if not yardstick.sites or fit.engine == yardstick.engine:
        return {}, aligned, sites
    shared = [site for site in fit.model.shared if site in sites]
    two = [join(one[site] for site in shared) for one in (yardstick.sites, sites)]
    figures = vars(agreement(*two))
    figures["sites"] = {site: _site_agreement(fit, yardstick, site, sites) for site in sites}
    known = [figures["sites"][site] for site in shared if figures["sites"][site].worst]
    if known:
        furthest = max(known, key=lambda one: one.worst_shift_sd or 0.0)
        figures |= {"worst": furthest.worst, "worst_shift_sd": furthest.worst_shift_sd}
    figures["invariant"] = {
        name: agreement(yardstick.invariant[name], found)
        for name, found in invariant.items()
        if name in yardstick.invariant
    }
    return figures, aligned, sites


def mean_error(model: Model, sample: Sample, reference: Yardstick) -> float | None:
    """The mean error of the global sites, whichever engine the draws are of."""
    aligned = align.align_draws(model, sample.flat, reference.pivot)
    sites, _ = _quantities(sample, aligned, reference.picked)
    shared = [site for site in model.shared if site in sites]
    two = [join(one[site] for site in shared) for one in (reference.sites, sites)]
    return agreement(*two).mean_error_sd


def _site_agreement(
    fit: Any, yardstick: Yardstick, site: str, sites: dict[str, Quantities]
) -> Agreement:
    """A site's agreement, with the label of its worst number."""
    reference, other = yardstick.sites[site], sites[site]
    found = agreement(reference, other)
    if furthest := worst(reference, other):
        place, shift = furthest
        picked = yardstick.picked[site][[place]]
        found.worst = labels(fit.model, site, yardstick.pivot[site].shape, picked, fit.data)[0]
        found.worst_shift_sd = abs(shift)
    return found


def _bounds(fit: Any, notes: list[str]) -> dict[str, Any]:
    """The bound on all rows, and when the steps' bounds were first within 1 % of it."""
    if not fit.posterior.has_density:
        return {}
    last = attempt(notes, "bound", lambda: fit.bound)
    if last is None or not np.isfinite(last):
        return {}
    values = np.asarray(fit.history.get("bound", []), np.float64)
    finite = np.flatnonzero(np.isfinite(values))
    if load_engine(fit.engine).sums_out:  # its steps have another bound
        return {
            "bound": last,
            "gain": values[finite[-1]] - values[finite[0]] if len(finite) else None,
        }
    window = min(11, 2 * (len(finite) // 8) + 1)  # of a batch the bound is noisy
    smooth = median_filter(values[finite], window, mode="nearest") if len(finite) else values
    near = finite[np.abs(smooth - last) <= 0.01 * abs(last)] if len(finite) else finite
    seconds = float(fit.history["seconds"][near[0]]) if len(near) else None
    gain = last - values[finite[0]] if len(finite) else None
    return {"bound": last, "gain": gain, "seconds_to_1pct": seconds}


def log_ratios(fit: Any, draws: Draws, log_joint: np.ndarray | None = None) -> np.ndarray:
    """log p(data, x) - log q(x) of draws x of q."""
    joint = fit.log_joint(draws) if log_joint is None else log_joint
    return joint - np.asarray(fit.posterior.log_density(draws), np.float64)


def _importance(
    fit: Any, sample: Sample, notes: list[str], yardstick: Yardstick, sites: dict[str, Quantities]
) -> dict[str, Any]:
    """k-hat of q against the joint density, and moments of weighted draws where it is small.

    The mean of log p / q over the draws is the ELBO with every auxiliary summed out.
    """
    points = [site for site, family in fit.model.families.items() if not family.has_density]
    if points:
        notes.append(f"No k-hat: q holds {' and '.join(points)} as a point.")
        return {}
    ratios = log_ratios(fit, sample.flat, sample.log_joint)
    found = attempt(notes, "k-hat", lambda: arviz.smoothed_weights(ratios))
    weights, khat = found or (None, None)
    figures: dict[str, Any] = {"khat": khat if khat is None else min(khat, MAX_KHAT)}
    if np.all(np.isfinite(ratios)):
        figures["elbo"] = np.mean(ratios)
        figures["elbo_se"] = np.std(ratios) / np.sqrt(len(ratios))
    elif weights is None:
        notes.append("No k-hat: some draws of q have no finite density under q or under the model.")
    if weights is None or khat is None or khat >= verdicts.MAX_KHAT or not yardstick.sites:
        return figures
    reference = join(yardstick.sites[site] for site in sites)
    return figures | {"psis": reweighted(reference, join(sites.values()), weights)}


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
