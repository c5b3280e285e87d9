"""Reference posteriors: draws of two samplers that meet written criteria.

`files` stores them with the data, the hyper-parameters, the model's equations, and summaries of the
whole runs with Monte Carlo errors. The criteria:

    convergence    rank-normalised split R-hat of every quantity below 1.01, in both samplers
    precision      bulk and tail effective sample sizes of every quantity at least 4,000 (1,000 in
                   the second sampler)
    divergences    none in any run of NUTS or HMC
    agreement      means and sds of the samplers differ by no more standard errors than the largest
                   of as many normal numbers exceeds with probability 0.01
    density        the log joint density of the stored draws is the stored one
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.stats

from inference.calibration import recipes
from inference.calibration import runs as reference_runs
from inference.calibration.recipes import RECIPES, Recipe
from inference.calibration.runs import Run, flatten
from inference.core import align
from inference.core.provenance import versions
from inference.run.fit import Fit, make_problem
from pp_models import models as discovery
from pp_models.data.types import Data
from pp_models.errors import InputError

DRAWS_BYTES = 330_000  # of stored draws
MOST_DRAWS = 500  # stored per chain
MAX_RHAT = 1.01
MIN_ESS = 4000
MIN_ESS_SECOND = 1000
FALSE_ALARM = 0.01  # over all quantities, of each test of agreement
DENSITY_ERROR = 1e-4  # relative, of draws stored in single precision


class Reference(NamedTuple):
    """A reference posterior.

    draws:     site -> (chains, draws, ...) of the first sampler, aligned, evenly thinned
    log_joint: (chains, draws) of them
    pivot:     site -> value that draws were aligned to
    labels:    of the quantities, e.g. "beta[2, 0]"; invariant: whether no relabelling changes them
    first, second: `runs.SUMMARY` of every quantity, of the two samplers' whole runs
    recipe:    samplers, options, seeds, versions, data hash, divergences
    """

    model: str
    hyper: dict[str, Any]
    data: Data
    draws: dict[str, np.ndarray]
    log_joint: np.ndarray
    pivot: dict[str, np.ndarray]
    labels: list[str]
    invariant: np.ndarray
    first: dict[str, np.ndarray]
    second: dict[str, np.ndarray]
    recipe: dict[str, Any]

    @property
    def problem(self) -> Any:
        return _problem(self.model, self.data, self.hyper)


class Criterion(NamedTuple):
    """One line of `check`: a name, the limit in words, the figure reached, whether it is met."""

    name: str
    limit: str
    figure: float
    met: bool


def _problem(model_name: str, data: Data, hyper: dict[str, Any]) -> Any:
    return make_problem(model_name, data, hyper, devices=jax.local_devices()[:1])


def find_recipe(model_name: str) -> Recipe:
    """The recipe of a model's reference, by default on its example."""
    model = discovery.load(model_name)
    if model_name in RECIPES:
        return RECIPES[model_name]
    if not model.proper(model.example(jax.random.key(0))[0]):
        raise InputError(
            f"There is no reference posterior: {model_name} has no proper prior with its example's "
            "hyper-parameters, so it has no posterior."
        )

    def problem(rng: np.random.Generator) -> tuple[dict[str, Any], Data]:
        hyper, data = model.example(jax.random.key(int(rng.integers(2**31))))
        return hyper._asdict(), data

    return Recipe(problem, recipes.DEFAULT_DAMPED if model.damped else recipes.DEFAULT)


# Making -------------------------------------------------------------------------------------------


def make(
    model_name: str,
    seed: int = 1,
    recipe: Recipe | None = None,
    progress: Any = None,
    path: Path | None = None,
) -> Reference:
    """Run both samplers in double precision. `check` says whether the criteria are met.

    path: of the file to be saved; samplers keep checkpoints beside it, and the same call goes on
    """
    recipe = find_recipe(model_name) if recipe is None else recipe
    hyper, data = recipe.problem(np.random.default_rng(recipe.seed))
    hyper = {name: list(x) if isinstance(x, tuple) else x for name, x in hyper.items()}
    files = checkpoints_of(recipe, path)
    with jax.enable_x64(True):
        keys = [jax.random.fold_in(jax.random.key(seed), i) for i in range(len(recipe.samplers))]
        runs = [
            reference_runs.run(model_name, data, hyper, *sampler, key, progress, file)
            for sampler, key, file in zip(recipe.samplers.items(), keys, files, strict=True)
        ]
        problem = _problem(model_name, data, hyper)
        pivot = _pivot(problem.model, runs[0])
        aligned = [align.align_draws(problem.model, one.draws, pivot) for one in runs]
        first, second = (
            reference_runs.quantities(problem, x, one.log_joint)
            for x, one in zip(aligned, runs, strict=True)
        )
        summaries = [reference_runs.summarise(one.values) for one in (first, second)]
    kept = _kept(aligned[0])
    draws = {site: np.asarray(x[:, kept], np.float32) for site, x in aligned[0].items()}
    log_joint = _density(model_name, data, hyper, draws)
    record = _record(recipe, runs, seed, data)
    found = first.labels, first.invariant, summaries[0], summaries[1]
    return Reference(model_name, hyper, data, draws, log_joint, pivot, *found, record)


def _record(recipe: Recipe, runs: list[Run], seed: int, data: Data) -> dict[str, Any]:
    """How the reference was made. Without dates: a file depends on its recipe alone."""
    samplers = [
        {"sampler": name, "options": dict(options), "key": [seed, i], "divergences": x.divergences}
        for i, ((name, options), x) in enumerate(zip(recipe.samplers.items(), runs, strict=True))
    ]
    return {
        "samplers": samplers,
        "data_seed": recipe.seed,
        "seed": seed,
        "data_hash": data.hash,
        "versions": versions(),
        "precision": "float64",
        "pivot": f"the mean of the draws of {samplers[0]['sampler']}, first aligned to its draw of "
        "highest log joint density",
    }


def checkpoints_of(recipe: Recipe, path: Path | None) -> list[Path | None]:
    """The checkpoint of each sampler, beside the reference."""
    return [
        None if path is None else path.with_name(f"{path.name}.{sampler}.checkpoint")
        for sampler in recipe.samplers
    ]


def _pivot(model: Any, run: Run) -> dict[str, np.ndarray]:
    flat = flatten(run.draws)
    best = int(np.argmax(run.log_joint))
    pivot = align.common_labels(model, flat, {site: x[best] for site, x in flat.items()})[1]
    return {site: np.asarray(x, np.float64) for site, x in pivot.items()}


def _kept(aligned: Mapping[str, np.ndarray]) -> np.ndarray:
    """Evenly spaced draws of each chain, as many as a small file holds."""
    chains, count = next(iter(aligned.values())).shape[:2]
    numbers = sum(int(np.prod(x.shape[2:])) for x in aligned.values())
    kept = max(1, min(MOST_DRAWS, count, DRAWS_BYTES // (4 * numbers * chains)))
    return np.linspace(0, count - 1, kept).astype(int)


def _density(
    model_name: str, data: Data, hyper: dict[str, Any], draws: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The log joint density of stored draws, in double precision."""
    shape = next(iter(draws.values())).shape[:2]
    with jax.enable_x64(True):
        problem = _problem(model_name, data, hyper)
        fit = Fit(problem, "reference", {}, None, {}, 0.0)  # type: ignore[arg-type]
        flat = {site: np.asarray(x, np.float64) for site, x in flatten(draws).items()}
        return fit.log_joint(flat).reshape(shape)


# Judging ------------------------------------------------------------------------------------------


def largest_difference(num_quantities: int, false_alarm: float = FALSE_ALARM) -> float:
    """What the largest |z| of so many normal numbers exceeds with at most this probability."""
    return float(scipy.stats.norm.isf(false_alarm / (2 * num_quantities)))


def check(reference: Reference, seed: int | None = None, progress: Any = None) -> list[Criterion]:
    """Every criterion with its figure. With a `seed`, both samplers are run again too."""
    out, samplers = [], reference.recipe["samplers"]
    groups = {"invariant": reference.invariant, "aligned": ~reference.invariant}
    for one, summary, least in zip(
        samplers, (reference.first, reference.second), (MIN_ESS, MIN_ESS_SECOND), strict=True
    ):
        for group, members in groups.items():
            if not members.any():
                continue
            rhat = summary["rhat"][members].max()
            out.append(_below(f"{one['sampler']}: R-hat, {group}", rhat, MAX_RHAT))
            for kind in ("bulk", "tail"):
                size = float(summary[f"ess_{kind}"][members].min())
                name = f"{one['sampler']}: {kind} ESS, {group}"
                out.append(Criterion(name, f"at least {least:,}", size, size >= least))
    divergences = sum(one["divergences"] or 0 for one in samplers)
    out.append(Criterion("divergences", "none", float(divergences), divergences == 0))
    out += _agreement("samplers agree", reference, reference.second, FALSE_ALARM)
    again = _density(reference.model, reference.data, reference.hyper, reference.draws)
    change = np.abs(again - reference.log_joint) / (1 + np.abs(reference.log_joint))
    name = "log joint density, computed anew: relative difference"
    out.append(_below(name, change.max(), DENSITY_ERROR))
    return out if seed is None else out + check_again(reference, seed, progress)


def check_again(
    reference: Reference,
    seed: int,
    progress: Any = None,
    shorter: int = 1,
    false_alarm: float = FALSE_ALARM,
) -> list[Criterion]:
    """Run both samplers from another seed and compare means and sds with the stored ones.

    shorter: draw so many times fewer
    """
    out = []
    for i, one in enumerate(reference.recipe["samplers"]):
        options = one["options"] | {"num_samples": one["options"]["num_samples"] // shorter}
        with jax.enable_x64(True):
            problem = reference.problem
            key = jax.random.fold_in(jax.random.key(seed), 100 + i)
            given = reference.model, reference.data, reference.hyper, one["sampler"], options
            found = reference_runs.run(*given, key, progress)
            aligned = align.align_draws(problem.model, found.draws, reference.pivot)
            every = reference_runs.quantities(problem, aligned, found.log_joint)
            summary = reference_runs.summarise(every.values)
        out += _agreement(f"{one['sampler']} run anew", reference, summary, false_alarm)
    return out


def _agreement(
    name: str, reference: Reference, other: Mapping[str, np.ndarray], false_alarm: float
) -> list[Criterion]:
    limit, out = largest_difference(len(reference.labels), false_alarm), []
    for which in ("mean", "sd"):
        worst = np.abs(reference_runs.differences(reference.first, other, which)).max()
        text = f"{name}: largest difference of {which}s, in standard errors"
        out.append(_below(text, worst, limit))
    return out


def _below(name: str, figure: Any, limit: float) -> Criterion:
    return Criterion(name, f"below {limit:.4g}", float(figure), bool(figure < limit))


def describe(reference: Reference) -> str:
    """The model, the data, the recipe, and the criteria with the figures reached."""
    chains, kept = reference.log_joint.shape
    data, criteria = reference.data, check(reference)
    width = max(len(one.name) for one in criteria)
    size = f"{data.kind}, {data.num_rows} x {data.num_columns}"
    stored = f"{len(reference.labels)} quantities, {chains} x {kept} draws stored"
    lines = [
        f"{reference.model}: {discovery.load(reference.model).title}",
        f"  data: {size}, hash {data.hash[:12]}",
        f"  hyper-parameters: {_settings(reference.hyper)}",
        *(f"  {x['sampler']}: {_settings(x['options'])}" for x in reference.recipe["samplers"]),
        f"  {stored}; pivot: {reference.recipe['pivot']}",
        "",
    ]
    for one in criteria:
        met = "met" if one.met else "NOT MET"
        lines.append(f"  {one.name:<{width}}  {one.figure:>10.4g}  {one.limit:<15} {met}")
    return "\n".join(lines)


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())
