"""Gibbs against NUTS: effective draws per second of the same posterior, one JSON line per model.

    python benchmarks/samplers.py [--models bayesian_nmf,pmf] [--rows 300] [--columns 200] [--factors 5]

Data are drawn from the prior; of ratings, --share is observed. Effective sizes (ArviZ's `ess_bulk`, all chains together) are of functionals that no
relabelling or rotation of factors changes: sixty entries of the expected data and the log joint density (`measure.chains_of`). Both samplers run a
chain on each core. NUTS adapts its step size and diagonal mass matrix in warm-up, and is timed after it; the ratio with warm-up on both clocks stands
beside. Programs are compiled before the clock starts, which is reported. A comparison of samplers that do not agree means nothing: the largest R-hat,
NUTS's divergences and the largest difference of means, in standard errors, are in the line too.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

CORES = os.cpu_count() or 1
jax.config.update("jax_num_cpu_devices", CORES)

import numpy as np

import pp_models
from inference.calibration import sbc
from inference.comparison import measure
from inference.io import arviz
from inference.run import fit as fitting
from pp_models.data.types import Data

# Priors, given the number of columns, under which data say something of every factor. Ratings' centre is known, so that it is part of no posterior.
# c0 / V of Bayesian NMF is 0.5: NUTS diverges, at every draw, where topics are so sparse that their words' logarithms go far below -20.
PRIORS: dict[str, Callable[[int], dict[str, Any]]] = {
    "bayesian_nmf": lambda num_columns: {"a0": 1.0, "b0": 0.2, "c0": 0.5 * num_columns},
    "pmf": lambda num_columns: {"lam": 1.0, "sigma2": 0.5, "center": False, "offset": 0.0},
}
FACTORS = {"bayesian_nmf": "num_topics", "pmf": "rank"}


class Run(NamedTuple):
    """A sampler's clock in seconds, (chains, draws, functionals), and what it says of itself."""

    compiling: float
    warming: float
    drawing: float
    values: np.ndarray
    divergences: int
    leapfrogs: float | None


def simulate(
    name: str, num_rows: int, num_columns: int, num_factors: int, share: float, seed: int
) -> tuple[dict[str, Any], Data]:
    """Hyper-parameters, and data drawn from the prior that they make; of ratings a share of all cells, at random."""
    hyper = {FACTORS[name]: num_factors, **PRIORS[name](num_columns)}
    drawn, _ = sbc.make_prior(name, num_rows, num_columns, hyper).simulate(jax.random.key(seed))
    matrix = drawn.matrix.tocoo()
    if drawn.kind == "counts":
        return hyper, pp_models.data.counts(matrix.toarray())
    order = np.random.default_rng(seed).permutation(matrix.nnz)[
        : int(share * num_rows * num_columns)
    ]
    users, items = (place[order] for place in matrix.coords)
    return hyper, pp_models.data.ratings(users, items, matrix.data[order], shape=matrix.shape)


def run(
    engine_name: str, name: str, hyper: dict[str, Any], data: Data, seed: int, **given: Any
) -> Run:
    """The whole run, each step waited for."""
    engine = fitting.load_engine(engine_name)
    problem = fitting.make_problem(name, data, hyper)
    options = fitting.make_options(engine, {"num_chains": CORES, **given})
    algorithm = engine.build(problem, options)
    key = jax.random.key(seed)
    began = time.perf_counter()
    algorithm.step(
        key, algorithm.init(key, {}), None
    )  # both samplers have one program for warm-up and draws
    compiling = time.perf_counter() - began
    began = time.perf_counter()
    state, seconds = algorithm.init(key, {}), {"warm-up": 0.0, "draws": 0.0}
    seconds["warm-up"] += time.perf_counter() - began
    for step in range(engine.num_steps(options, problem)):
        began, phase = time.perf_counter(), algorithm.stage(state).phase
        state, _ = algorithm.step(jax.random.fold_in(key, step), state, None)
        jax.block_until_ready(jax.tree.leaves(state))
        seconds[phase] += time.perf_counter() - began
    fit = fitting.Fit(problem, engine_name, {}, algorithm.posterior(state), {}, 0.0)
    chains = measure.chains_of(
        fit, measure.draw(fit, key, options.num_chains * options.num_samples, 0)
    )
    kept = [
        i for i, name in enumerate(chains.names) if not name.startswith("row likelihoods")
    ]  # which long runs are not asked for
    stats = fit.posterior.sample_stats
    divergences = int(stats["diverging"].sum()) if "diverging" in stats else 0
    leapfrogs = float(stats["n_steps"].mean()) if "n_steps" in stats else None
    return Run(
        compiling,
        seconds["warm-up"],
        seconds["draws"],
        chains.values[..., kept],
        divergences,
        leapfrogs,
    )


def figures(found: Run) -> dict[str, Any]:
    """Effective draws, and how many a second, after warm-up and with it: of the slowest functional and of the median one."""
    stats, functionals = arviz.array_stats(), np.moveaxis(found.values, 2, 0)
    sizes = np.array([float(stats.ess(one, method="bulk")) for one in functionals])
    least, median = float(sizes.min()), float(np.median(sizes))
    whole = found.drawing + found.warming
    return {
        "ess": {"min": least, "median": median},
        "per_second": {"min": least / found.drawing, "median": median / found.drawing},
        "per_second_with_warmup": {"min": least / whole, "median": median / whole},
        "draws": int(np.prod(found.values.shape[:2])),
        "seconds": found.drawing,
        "warmup_seconds": found.warming,
        "compile_seconds": found.compiling,
        "largest_rhat": float(max(stats.rhat(one) for one in functionals)),
    }


def largest_difference(first: Run, second: Run) -> float:
    """Of the functionals' means, in standard errors by their effective sizes: about 3 where a hundred are compared and all is well."""
    stats = arviz.array_stats()
    means = [run.values.mean((0, 1)) for run in (first, second)]
    errors = [
        np.array([float(stats.mcse(one)) for one in np.moveaxis(run.values, 2, 0)])
        for run in (first, second)
    ]
    return float(np.max(np.abs(means[0] - means[1]) / np.hypot(*errors)))


def rounded(figures: Any) -> Any:
    """Numbers to four digits, within dictionaries too."""
    if isinstance(figures, dict):
        return {name: rounded(value) for name, value in figures.items()}
    return float(f"{figures:.4g}") if isinstance(figures, float) else figures


def compare(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The line of one model."""
    hyper, data = simulate(
        name, arguments.rows, arguments.columns, arguments.factors, arguments.share, arguments.seed
    )
    gibbs = run(
        "gibbs",
        name,
        hyper,
        data,
        1,
        num_samples=arguments.sweeps,
        num_warmup=arguments.sweeps // 10,
    )
    nuts = run(
        "nuts", name, hyper, data, 2, num_samples=arguments.samples, num_warmup=arguments.warmup
    )
    both = {
        "gibbs": figures(gibbs),
        "nuts": {**figures(nuts), "divergences": nuts.divergences, "leapfrogs": nuts.leapfrogs},
    }
    clocks = ("per_second", "per_second_with_warmup")
    ratios = {
        clock: {
            which: both["gibbs"][clock][which] / both["nuts"][clock][which]
            for which in ("min", "median")
        }
        for clock in clocks
    }
    size = {
        "rows": data.num_rows,
        "columns": data.num_columns,
        "entries": data.num_entries,
        "factors": arguments.factors,
        "cores": CORES,
    }
    agreement = {
        "functionals": gibbs.values.shape[2],
        "largest_difference_in_standard_errors": largest_difference(gibbs, nuts),
    }
    return {
        "benchmark": "samplers",
        "model": name,
        **size,
        **agreement,
        **both,
        "gibbs_to_nuts": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="bayesian_nmf,pmf", help="with commas")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--columns", type=int, default=200)
    parser.add_argument("--factors", type=int, default=5)
    parser.add_argument(
        "--share", type=float, default=0.15, help="of ratings that are observed, at most 0.7"
    )
    parser.add_argument("--sweeps", type=int, default=4000, help="of Gibbs, each chain")
    parser.add_argument("--samples", type=int, default=400, help="of NUTS, each chain")
    parser.add_argument("--warmup", type=int, default=500, help="of NUTS")
    parser.add_argument("--seed", type=int, default=0, help="of the data")
    arguments = parser.parse_args()
    for name in arguments.models.split(","):
        print(json.dumps(rounded(compare(name, arguments))), flush=True)


if __name__ == "__main__":
    main()
