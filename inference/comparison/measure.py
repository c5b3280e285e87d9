"""A fit measured: its draws aligned, its diagnostics, and its distances from the reference.

Posteriors are compared twice: site by site after alignment (`align`), and on functionals that no relabelling, rotation or rescaling can change:

    expected data       `model.predict` at some entries: rates, ratings or probabilities
    row likelihoods     log p(row | draw), the predictive probability of each row
    log joint           log p(data, draw)
    hyper-parameters    the sites that have no factors

The pivot of the alignment is the mean of the reference's own draws, first aligned to its draw of highest log joint density. Without a reference it is
that of the first fit.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.comparison import marginal_likelihood, verdicts
from inference.comparison.agreement import Quantities, agreement, join, pick, quantities, reweighted
from inference.core import align
from inference.core.blocks import over_draws
from inference.evaluation.heldout import heldout_score
from inference.io import arviz
from pp_models.data.types import Data
from pp_models.model import Model, factor_axes

Draws = dict[str, np.ndarray]  # site -> (draws, *site shape), or with an axis of chains before
MAX_QUANTITIES = 1000  # numbers of a site, and entries of the expected data, that are compared
MAX_FUNCTIONALS = 60  # of each kind, of which R-hat and effective sample sizes are computed
MAX_KHAT = 99.0  # reported, of ratios without any tail to speak of
FIGURES = (  # of a row of the summary; the last line is for Markov chains
    *("kind", "error", "seconds", "seconds_to_1pct", "bound", "bound_gap", "log_joint"),
    *(
        "mean_error_sd",
        "sd_ratio",
        "coverage50",
        "coverage90",
        "wasserstein_sd",
        "tail_error_sd",
        "correlation_error",
        "quantities",
    ),
    *("khat", "psis", "heldout", "heldout_se", "sites", "invariant"),
    *(
        "rhat",
        "rhat_aligned",
        "ess_bulk",
        "ess_tail",
        "divergences",
        "ebfmi",
        "modes",
        "draws",
        "converged",
    ),
)


class Chains(NamedTuple):
    """Functionals of Markov chains: names, and values (chains, draws, functionals)."""

    names: list[str]
    values: np.ndarray


class Yardstick(NamedTuple):
    """What fits are measured by.

    pivot:      site -> the value that draws are aligned to
    picked:     site -> which of its numbers are compared
    sites, invariant: the reference's quantities; empty without a reference
    """

    engine: str
    pivot: Draws
    picked: dict[str, np.ndarray]
    sites: dict[str, Quantities]
    invariant: dict[str, Quantities]


class Measured(NamedTuple):
    """A fit's row of the summary, its aligned draws (n, ...), its quantities, and its chains where it is a Markov chain."""

    row: dict[str, Any]
    draws: Draws
    quantities: dict[str, Quantities]
    chains: Chains | None


class Sample(NamedTuple):
    """Draws of a fit, chains one after the other, and functionals of them.

    shape:     (chains, draws)
    flat:      site -> (n, ...)
    entries:   which of the expected data are compared
    invariant: name -> (n, numbers) that no symmetry of the posterior can change
    """

    shape: tuple[int, int]
    flat: Draws
    entries: np.ndarray
    invariant: dict[str, np.ndarray]

    @property
    def log_joint(self) -> np.ndarray:
        return self.invariant["log joint"][:, 0]


# Draws and functionals --------------------------------------------------------------------------------------------------------


def draw(fit: Any, key: jax.Array, num_draws: int, seed: Any) -> Sample:
    """About `num_draws` draws of a posterior: a chain's own, thinned evenly; new ones of a distribution; a point once. seed: of what is compared."""
    posterior = fit.posterior
    if posterior.kind == "point":
        chains = {site: np.asarray(posterior.mean(site))[None, None] for site in posterior.sites}
    elif posterior.kind in ("variational", "mixture"):
        chains = {
            site: np.asarray(value)[None]
            for site, value in posterior.sample(key, num_draws).items()
        }
    else:
        number, length = np.shape(posterior.draws[posterior.sites[0]])[:2]
        kept = (
            np.linspace(0, length - 1, min(length, max(1, num_draws // number))).round().astype(int)
        )
        chains = nonzero(
            {site: np.asarray(posterior.draws[site])[:, kept] for site in posterior.sites}
        )
    flat = {site: value.reshape(-1, *value.shape[2:]) for site, value in chains.items()}
    size = jax.eval_shape(
        lambda x: fit.model.predict(fit.hyper, x), {site: value[0] for site, value in flat.items()}
    ).size
    entries = pick({"": (size,)}, MAX_QUANTITIES, seed)[""]
    shape = next(iter(chains.values())).shape
    return Sample((shape[0], shape[1]), flat, entries, functionals(fit, flat, entries))


def nonzero(draws: Draws) -> Draws:
    """Draws whose exact zeros, underflown from positive values, are the smallest positive number, so that their logarithm is finite."""
    return {
        site: np.where(value == 0, np.finfo(value.dtype).tiny, value)
        for site, value in draws.items()
    }


def rates(fit: Any, draws: Draws, entries: np.ndarray) -> np.ndarray:
    """The expected observations of each draw at some entries of the matrix: (n, entries), never all of it for all draws."""
    problem = fit.problem
    return over_draws(lambda block: _rates(fit.model, problem.hyper, block, entries), draws)


@partial(jax.jit, static_argnames=("model",))
def _rates(model, hyper, draws, entries):
    return jax.lax.map(lambda x: model.predict(hyper, x).reshape(-1)[entries], draws)


def hyper_sites(model: Model) -> list[str]:
    """The global sites without factors and outside rotated spaces: every posterior means the same by them."""
    return [
        site
        for site in model.shared
        if not factor_axes(model)[site] and site not in model.rotation.sites
    ]


def functionals(fit: Any, flat: Draws, entries: np.ndarray) -> dict[str, np.ndarray]:
    """Name -> (n, numbers) that no symmetry of the posterior can change."""
    model, number = fit.model, len(flat[next(iter(flat))])
    found = {"log joint": np.asarray(fit.log_joint(flat), np.float64)[:, None]}
    if sites := hyper_sites(model):
        found["hyper-parameters"] = np.concatenate(
            [flat[site].reshape(number, -1) for site in sites], axis=1
        )
    found["expected data"] = rates(fit, flat, entries)
    if fit.data.num_rows * fit.data.num_columns * number <= arviz.MOST_CELLS and model.proper(
        fit.hyper
    ):
        found["row likelihoods"] = arviz.likelihood_of_rows(fit, flat)[:, :MAX_QUANTITIES]
    return found


# Measuring --------------------------------------------------------------------------------------------------------------------


def make_yardstick(fit: Any, sample: Sample, seed: Any, as_reference: bool) -> Yardstick:
    """The pivot and the quantities that all fits are measured by, from the reference, or without one from any fit."""
    model = fit.model
    best = int(np.nanargmax(sample.log_joint)) if np.any(np.isfinite(sample.log_joint)) else 0
    aligned, pivot = align.common_labels(
        model, sample.flat, {site: value[best] for site, value in sample.flat.items()}
    )
    picked = pick({site: value.shape[1:] for site, value in aligned.items()}, MAX_QUANTITIES, seed)
    if not as_reference:
        return Yardstick(fit.engine, pivot, picked, {}, {})
    return Yardstick(
        fit.engine,
        pivot,
        picked,
        _site_quantities(aligned, picked),
        {name: quantities(x) for name, x in sample.invariant.items()},
    )


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
    evidence: float | None = None,
) -> Measured:
    """A fit's row of the summary but for its verdict, aligned draws and chains. evidence: log p(data), where it is known."""
    model = fit.model
    aligned = align.align_draws(model, sample.flat, yardstick.pivot)
    sites = _site_quantities(aligned, yardstick.picked)
    row: dict[str, Any] = {
        "engine": fit.engine,
        **dict.fromkeys(FIGURES),
        "kind": fit.posterior.kind,
        "seconds": float(fit.seconds),
    }
    row |= {"log_joint": np.mean(sample.log_joint), **_bounds(fit, evidence)}
    row["heldout"], row["heldout_se"] = attempt(
        notes, "held-out score", lambda: heldout_score(fit, heldout)
    ) or (None, None)
    shared = [site for site in model.shared if site in sites]
    if yardstick.sites and fit.engine != yardstick.engine:
        reference = join(yardstick.sites[site] for site in shared)
        row |= agreement(reference, join(sites[site] for site in shared))
        row["sites"] = {site: agreement(yardstick.sites[site], sites[site]) for site in sites}
        own = {name: quantities(values) for name, values in sample.invariant.items()}
        row["invariant"] = {
            name: agreement(yardstick.invariant[name], own[name])
            for name in own
            if name in yardstick.invariant
        }
    if fit.posterior.kind == "variational":
        row |= _importance(fit, sample, notes, yardstick, {site: sites[site] for site in shared})
    chains = None
    if fit.posterior.kind == "draws":
        chains = chains_of(fit, sample)
        row |= attempt(notes, "diagnostics", lambda: diagnose(fit, sample, chains, aligned)) or {}
    return Measured(row | {"notes": notes}, aligned, sites, chains)


def _bounds(fit: Any, evidence: float | None) -> dict[str, Any]:
    """The last bound, when it was first within 1 % of that, and how far it is below the log evidence."""
    values = np.asarray(fit.history.get("bound", []), np.float64)
    finite = np.flatnonzero(np.isfinite(values))
    if fit.posterior.kind != "variational" or not len(finite):
        return {}
    last = values[finite[-1]]
    near = finite[np.abs(values[finite] - last) <= 0.01 * abs(last)][0]
    return {
        "bound": last,
        "seconds_to_1pct": float(fit.history["seconds"][near]),
        "bound_gap": None if evidence is None else evidence - last,
    }


def _importance(
    fit: Any, sample: Sample, notes: list[str], yardstick: Yardstick, sites: dict[str, Quantities]
) -> dict[str, Any]:
    """k-hat of q against the joint density, and where weighting works the moments of weighted draws."""
    points = [site for site, family in fit.model.families.items() if not family.has_density]
    if points:
        notes.append(
            f"No k-hat: q holds {' and '.join(points)} as a point, which no weighting can spread."
        )
        return {}
    log_q = np.asarray(fit.posterior.log_density(sample.flat), np.float64)
    weights, khat = attempt(
        notes, "k-hat", lambda: arviz.smoothed_weights(sample.log_joint - log_q)
    ) or (None, None)
    if weights is None and np.any(~np.isfinite(sample.log_joint - log_q)):
        notes.append("No k-hat: some draws of q have no finite density under q or under the model.")
    khat = khat if khat is None else min(khat, MAX_KHAT)
    if weights is None or khat is None or khat >= verdicts.MAX_KHAT or not yardstick.sites:
        return {"khat": khat}
    return {
        "khat": khat,
        "psis": reweighted(
            join(yardstick.sites[site] for site in sites), join(sites.values()), weights
        ),
    }


def chains_of(fit: Any, sample: Sample) -> Chains:
    """The invariant functionals, at most `MAX_FUNCTIONALS` of a kind, as chains."""
    names, parts = [], []
    for kind, values in sample.invariant.items():
        some = spaced(values.shape[1])
        kept = values[:, some]
        if kind == "hyper-parameters":
            known = labels_of_hyper(
                fit.model, {site: value[0] for site, value in sample.flat.items()}
            )
            names += [known[i] for i in some]
        elif kind == "expected data":
            names += [label_of_entry(fit, entry) for entry in sample.entries[some]]
        else:
            names += [kind if values.shape[1] == 1 else f"{kind}[{i + 1}]" for i in some]
        parts.append(kept)
    values = np.concatenate(parts, axis=1, dtype=np.float64)
    return Chains(names, values.reshape(*sample.shape, -1))


def spaced(number: int) -> np.ndarray:
    """At most `MAX_FUNCTIONALS` of so many places, evenly spaced: neighbours often belong to one row or factor."""
    return np.unique(np.linspace(0, number - 1, min(number, MAX_FUNCTIONALS)).round().astype(int))


def quality(fit: Any, sample: Sample) -> tuple[bool, float]:
    """Whether nothing but modes could speak against a sampler, and its smallest effective sample size: the larger is the better reference."""
    found = arviz.chain_diagnostics(chains_of(fit, sample).values) | _transitions(fit)
    return not verdicts.trouble(found, found["draws"]), found["ess_bulk"] or 0.0


def diagnose(fit: Any, sample: Sample, chains: Chains, aligned: Draws) -> dict[str, Any]:
    """R-hat and effective sample sizes, the worst over invariant functionals; of aligned global sites R-hat; divergences, energy and modes."""
    flat = [aligned[site].reshape(*sample.shape, -1) for site in fit.model.shared]
    shared = np.concatenate([values[..., spaced(values.shape[-1])] for values in flat], axis=-1)
    found = arviz.chain_diagnostics(chains.values) | _transitions(fit)
    found["rhat_aligned"] = arviz.chain_diagnostics(shared)["rhat"]
    modes = align.find_modes(np.concatenate([chains.values, shared], axis=-1))
    found["modes"] = {"groups": modes.groups, "text": modes.text} if len(modes.groups) > 1 else None
    return found


def _transitions(fit: Any) -> dict[str, Any]:
    """What a sampler says of its own transitions, and how many draws there are of all chains together."""
    stats = fit.posterior.sample_stats
    return {
        "divergences": int(np.sum(stats["diverging"])) if "diverging" in stats else None,
        "ebfmi": arviz.energy_fraction(stats["energy"]) if "energy" in stats else None,
        "draws": int(np.prod(np.shape(fit.posterior.draws[fit.posterior.sites[0]])[:2])),
    }


def log_evidence(
    fit: Any, yardstick: Yardstick, key: jax.Array, notes: list[str]
) -> dict[str, Any] | None:
    """The reference's estimate of log p(data), where it can be afforded and trusted."""
    found = attempt(
        notes,
        "log evidence",
        lambda: marginal_likelihood.log_evidence(fit, pivot=yardstick.pivot, key=key),
    )
    return (
        None
        if found is None
        else {
            "log_evidence": float(found.value),
            "error": float(found.error),
            "method": found.method,
        }
    )


def attempt(notes: list[str], what: str, function: Callable[[], Any]) -> Any:
    """The function's result, or None with a note: a diagnostic that cannot be computed must not cost the fit."""
    try:
        return function()
    except Exception as error:
        notes.append(f"No {what}: {error}")
        return None


# Names ------------------------------------------------------------------------------------------------------------------------


def labels(
    model: Model, site: str, shape: tuple[int, ...], picked: np.ndarray, data: Data
) -> list[str]:
    """What each number of a site is called: beta[2, pasta] with names where there are some, counted from 1 otherwise."""
    names: dict[str, Any] = {"row": data.row_names, "column": data.column_names}
    known = [
        names.get(one)
        for one in arviz.site_dimensions(model, site, shape, (data.num_rows, data.num_columns))
    ]
    known = [
        one if one is not None and len(one) == size else None
        for one, size in zip(known, shape, strict=True)
    ]
    if not shape or shape == (1,):
        return [site] * len(picked)
    places = np.stack(np.unravel_index(picked, shape), axis=1)
    return [
        f"{site}[{', '.join(str(i + 1) if one is None else one[i] for i, one in zip(place, known, strict=True))}]"
        for place in places
    ]


def labels_of_hyper(model: Model, values: Mapping[str, np.ndarray]) -> list[str]:
    """Names of the numbers that `functionals` calls hyper-parameters."""
    found = []
    for site in hyper_sites(model):
        size = np.size(values[site])
        found += [site] if size == 1 else [f"{site}[{i + 1}]" for i in range(size)]
    return found


def label_of_entry(fit: Any, entry: int) -> str:
    """An entry of the expected data by its row and column."""
    width = (
        fit.data.num_members
        if fit.data.kind == "text_and_votes" and fit.model.observed == "votes"
        else fit.data.num_columns
    )
    row, column = divmod(int(entry), width)
    names = fit.data.column_names
    word = names[column] if names is not None and len(names) == width else str(column + 1)
    return f"expected data[{row + 1}, {word}]"
