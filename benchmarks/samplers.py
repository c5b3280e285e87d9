"""Gibbs against NUTS: effective draws per second of the same posterior, one JSON line per model.

    python benchmarks/samplers.py [--models bayesian_nmf,pmf] [--rows 300] [--columns 200]

Data are drawn from the prior; --share of ratings is observed. Effective sizes (ArviZ's bulk ESS
over all chains) are of functionals that no relabelling or rotation of factors changes: sixty
entries of the expected data and the log joint density (`comparison.measure.chains_of`). Both
samplers run a chain on each core. NUTS adapts its step size and diagonal mass matrix in warm-up and
is timed after it; the ratio with warm-up on both clocks is reported too. Programs are compiled
before the clock starts, which is reported. A comparison of samplers that disagree means nothing, so
the line also has the largest R-hat, NUTS's divergences and the largest difference of means in
standard errors.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from _common import CORES, bind, parse, report

import pp_models
from inference.calibration import sbc
from inference.comparison import measure
from inference.core.problem import make_problem
from inference.io import arviz
from pp_models.data.types import Data

# Priors, given the number of columns, under which data inform every factor. The centre of ratings
# is known, so that it is part of no posterior. c0 / V of Bayesian NMF is 0.5: with sparser topics
# the logarithms of words' weights go far below -20, where every draw of NUTS diverges.
PRIORS: dict[str, Callable[[int], dict[str, Any]]] = {
    "bayesian_nmf": lambda num_columns: {"a0": 1.0, "b0": 0.2, "c0": 0.5 * num_columns},
    "pmf": lambda num_columns: {"lam": 1.0, "sigma2": 0.5, "center": False, "offset": 0.0},
}
FACTORS = {"bayesian_nmf": "num_topics", "pmf": "rank"}


class Run(NamedTuple):
    """Seconds of a sampler, (chains, draws, functionals), and its own statistics."""

    compiling: float
    warming: float
    drawing: float
    values: np.ndarray
    divergences: int
    leapfrogs: float | None


def simulate(name: str, chosen: argparse.Namespace) -> tuple[dict[str, Any], Data]:
    """Hyper-parameters and data drawn from the prior; of ratings a random share of all cells."""
    hyper = {FACTORS[name]: chosen.factors, **PRIORS[name](chosen.columns)}
    prior = sbc.make_prior(name, chosen.rows, chosen.columns, hyper)
    drawn, _ = prior.simulate(jax.random.key(chosen.seed))
    matrix = drawn.matrix.tocoo()
    if drawn.kind == "counts":
        return hyper, pp_models.data.counts(matrix.toarray())
    number = int(chosen.share * chosen.rows * chosen.columns)
    order = np.random.default_rng(chosen.seed).permutation(matrix.nnz)[:number]
    users, items = (place[order] for place in matrix.coords)
    return hyper, pp_models.data.ratings(users, items, matrix.data[order], shape=matrix.shape)


def run(engine: str, name: str, hyper: dict[str, Any], data: Data, seed: int, **given: Any) -> Run:
    """The whole run, waiting for each step."""
    bound = bind(engine, make_problem(name, data, hyper), num_chains=CORES, **given)
    algorithm, options, key = bound.algorithm, bound.options, jax.random.key(seed)
    began = time.perf_counter()
    algorithm.step(key, algorithm.init(key, {}), None)  # one program serves warm-up and draws
    compiling = time.perf_counter() - began
    began = time.perf_counter()
    state, seconds = algorithm.init(key, {}), {"warm-up": 0.0, "draws": 0.0}
    seconds["warm-up"] += time.perf_counter() - began
    for step in range(bound.engine.num_steps(options, bound.problem)):
        began, phase = time.perf_counter(), algorithm.stage(state).phase
        state, _ = algorithm.step(jax.random.fold_in(key, step), state, None)
        jax.block_until_ready(jax.tree.leaves(state))
        seconds[phase] += time.perf_counter() - began
    fit = bound.fit(state)
    drawn = measure.draw(fit, key, options.num_chains * options.num_samples, 0)
    chains, stats = measure.chains_of(fit, drawn), fit.posterior.sample_stats
    # long runs are not asked for the likelihoods of rows
    kept = [i for i, one in enumerate(chains.names) if not one.startswith("row likelihoods")]
    divergences = int(stats["diverging"].sum()) if "diverging" in stats else 0
    leapfrogs = float(stats["n_steps"].mean()) if "n_steps" in stats else None
    clock = compiling, seconds["warm-up"], seconds["draws"]
    return Run(*clock, chains.values[..., kept], divergences, leapfrogs)


def figures(found: Run) -> dict[str, Any]:
    """Effective draws, in total and per second, of the slowest and the median functional."""
    stats, functionals = arviz.array_stats(), np.moveaxis(found.values, 2, 0)
    sizes = np.array([float(stats.ess(one, method="bulk")) for one in functionals])
    ess = {"min": float(sizes.min()), "median": float(np.median(sizes))}
    whole = found.drawing + found.warming
    return {
        "ess": ess,
        "per_second": {name: x / found.drawing for name, x in ess.items()},
        "per_second_with_warmup": {name: x / whole for name, x in ess.items()},
        "draws": int(np.prod(found.values.shape[:2])),
        "seconds": found.drawing,
        "warmup_seconds": found.warming,
        "compile_seconds": found.compiling,
        "largest_rhat": float(max(stats.rhat(one) for one in functionals)),
    }


def largest_difference(*runs: Run) -> float:
    """Largest difference of two samplers' means in standard errors: about 3 of a hundred."""
    stats = arviz.array_stats()
    means = [run.values.mean((0, 1)) for run in runs]
    each = [np.moveaxis(run.values, 2, 0) for run in runs]
    errors = [np.array([float(stats.mcse(one)) for one in values]) for values in each]
    return float(np.max(np.abs(means[0] - means[1]) / np.hypot(*errors)))


def significant(x: Any) -> Any:
    """Numbers to four significant digits, inside dictionaries too."""
    if isinstance(x, dict):
        return {name: significant(value) for name, value in x.items()}
    return float(f"{x:.4g}") if isinstance(x, float) else x


def compare(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """The line of one model."""
    hyper, data = simulate(name, chosen)
    sweeps = {"num_samples": chosen.sweeps, "num_warmup": chosen.sweeps // 10}
    draws = {"num_samples": chosen.samples, "num_warmup": chosen.warmup}
    gibbs = run("gibbs", name, hyper, data, 1, **sweeps)
    nuts = run("nuts", name, hyper, data, 2, **draws)
    ours, theirs = figures(gibbs), figures(nuts)
    more = {"divergences": nuts.divergences, "leapfrogs": nuts.leapfrogs}
    clocks = ("per_second", "per_second_with_warmup")
    return {
        "model": name,
        "rows": data.num_rows,
        "columns": data.num_columns,
        "entries": data.num_entries,
        "factors": chosen.factors,
        "cores": CORES,
        "functionals": gibbs.values.shape[2],
        "largest_difference_in_standard_errors": largest_difference(gibbs, nuts),
        "gibbs": ours,
        "nuts": theirs | more,
        "gibbs_to_nuts": {
            clock: {which: ours[clock][which] / theirs[clock][which] for which in ours["ess"]}
            for clock in clocks
        },
    }


def main() -> None:
    chosen = parse(
        __doc__,
        models=("bayesian_nmf,pmf", "with commas"),
        rows=300,
        columns=200,
        factors=5,
        share=(0.15, "of ratings that are observed, at most 0.7"),
        sweeps=(4000, "of Gibbs, each chain"),
        samples=(400, "of NUTS, each chain"),
        warmup=(500, "of NUTS"),
        seed=(0, "of the data"),
    )
    for name in chosen.models.split(","):
        report("samplers", significant(compare(name, chosen)))


if __name__ == "__main__":
    main()
