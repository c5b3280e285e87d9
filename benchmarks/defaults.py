"""Do `svi` and `trust_region` with their default settings climb as high as `cavi`?

    python benchmarks/defaults.py                          # the grid; prints a Markdown table
    python benchmarks/defaults.py --rows 60 --tokens 3000 --topics 5 --seeds 0 1

Corpora are drawn from LDA with planted topics (alpha 0.3, eta 0.05), data of other models from
their priors. Every engine begins with the same key. A bound is that of all rows. The gap is that
from cavi's start to cavi; the columns say how many per cent of it an engine leaves (negative: it
ends higher than cavi).

at equal passes: cavi made as many sweeps as the engine made passes over the data
converged:       cavi ran for 400 sweeps, or until its bound changed by less than 1e-8 of itself
after sweeps:    of engines that leave more than 1 %, the gap to converged cavi after 60 sweeps of
                 cavi from their answer. If it is much less than before, the engine had not
                 converged; if not, it is in another mode
lost:            planted topics without a topic within 0.3 in total variation (in brackets: cavi's)
copies:          factors that are copies of others, or used less than a tenth of an equal share (in
                 brackets: cavi's)
seconds:         of all steps, compilation aside (in brackets: cavi's at equal passes)
"""

import itertools
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
from _common import parse
from scipy.optimize import linear_sum_assignment

import inference
import pp_models
from inference.core.factors import ALIKE, shapes
from inference.core.posteriors import Variational
from inference.core.problem import make_problem
from inference.engines._minibatch import first_natural
from inference.run.end_checks import _shares, point_of
from inference.run.polish import polish
from pp_models import datasets
from pp_models import models as discovery

FAR = 0.3  # total variation between a planted topic and its match
TOLERANCE = 1.0  # per cent of the gap
SWEEPS = 60
LIGHT = 0.1
LARGE = 3e7  # entries x topics: a corpus above it takes minutes
HEADER = "corpus|seed|engine|passes|at equal passes|converged|after sweeps|lost|copies|seconds|says"


class Case(NamedTuple):
    """Data to fit. planted: (K, columns) topics, or None."""

    name: str
    model: str
    hyper: Any
    data: Any
    planted: Any = None


# Data ---------------------------------------------------------------------------------------------


def corpus(rows: int, tokens: int, topics: int, seed: int, columns: int = 500) -> Case:
    rng = np.random.default_rng(seed)
    planted = rng.dirichlet(np.full(columns, 0.05), topics)
    shares = rng.dirichlet(np.full(topics, 0.3), rows)
    drawn = np.array([rng.multinomial(tokens, p) for p in shares @ planted])
    name = f"lda {rows:,} x {columns:,}, {tokens:,} tokens, K = {topics}"
    return Case(name, "lda", {"num_topics": topics}, pp_models.data.counts(drawn), planted)


def drawn(model: str, seed: int, rows: int, columns: int) -> Case:
    key = jax.random.key(seed)
    hyper, data, _ = datasets.synthetic(discovery.load(model), key, rows, columns)
    return Case(f"{model} {rows} x {columns}", model, hyper, data)


def mixtures(seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    inputs, chosen = rng.beta(0.5, 0.5, (8, 40)), rng.integers(0, 8, 400)
    binary = pp_models.data.dense((rng.random((400, 40)) < inputs[chosen]).astype(float))
    means, chosen = rng.normal(0, 4, (6, 2)), rng.integers(0, 6, 400)
    points = pp_models.data.dense(means[chosen] + rng.normal(size=(400, 2)))
    return [
        Case(
            "bernoulli_mixture 400 x 40, K = 8", "bernoulli_mixture", {"num_components": 8}, binary
        ),
        Case("gaussian_mixture 400 x 2, K = 6", "gaussian_mixture", {"num_components": 6}, points),
    ]


def cases(arguments: Any) -> Any:
    for seed in arguments.seeds:
        if "others" in arguments.parts:
            yield seed, drawn("lda", seed, 100, 25)._replace(name="lda of `make compare`")
            yield seed, drawn("bayesian_nmf", seed, 300, 60)
            yield seed, drawn("pmf", seed, 300, 60)
            yield from ((seed, case) for case in mixtures(seed))
        if "corpora" not in arguments.parts:
            continue
        yield seed, corpus(120, 3000, 5, seed, 2000)
        for topics, tokens, rows in itertools.product(
            arguments.topics, arguments.tokens, arguments.rows
        ):
            if min(tokens, 250) * rows * topics <= arguments.largest:
                yield seed, corpus(rows, tokens, topics, seed)


# Measures -----------------------------------------------------------------------------------------


def lost(case: Case, fit: Any) -> Any:
    """Number of planted topics without a match."""
    if case.planted is None:
        return "–"
    found = np.asarray(fit.posterior.mean("beta"), float)
    far = 0.5 * np.abs(case.planted[:, None] - found[None]).sum(-1)
    return int((far[linear_sum_assignment(far)] > FAR).sum())


def copies(fit: Any) -> Any:
    """Number of factors that are copies of others or unused."""
    values = point_of(fit.posterior)
    found = shapes(fit.model, {site: x[0] for site, x in values.items()})
    if found is None:
        return "–"
    units = found.units
    alike = (units @ units.T > ALIKE).sum(1) > 1
    return int((alike | (_shares(fit.model, values) * len(units) <= LIGHT)).sum())


def seconds(fit: Any) -> float:
    """Of all steps, at the pace of those after the third."""
    clock = fit.history["seconds"]
    return float(clock[-1] - clock[2]) * len(clock) / max(1, len(clock) - 3)


def fitted(case: Case, engine: str, **options: Any) -> tuple[Any, str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit = inference.fit(case.model, case.data, engine, case.hyper, progress=False, **options)
    texts = [str(one.message) for one in said if issubclass(one.category, UserWarning)]
    return fit, "; ".join(" ".join(text.split()[:6]) for text in texts)


def compared(seed: int, case: Case, engines: list[str], key: jax.Array) -> list[float]:
    """Print a row for each engine; returns what they leave of the gap."""
    problem = make_problem(case.model, case.data, case.hyper)
    begin = Variational(problem, first_natural(problem, jax.random.split(key, 3)[0], {})).bound()
    sweep = {"key": key, "tolerance": 0.0}
    converged, _ = fitted(case, "cavi", num_epochs=400, key=key, tolerance=1e-8)
    after: dict[int, Any] = {}
    leaves = []
    for engine in engines:
        fit, says = fitted(case, engine, key=key)
        passes = fit.options["num_epochs"]
        if passes not in after:
            after[passes] = fitted(case, "cavi", num_epochs=passes, **sweep)[0]
        equal, bound = after[passes], fit.bound
        lag, final = (100 * (b - bound) / (b - begin) for b in (equal.bound, converged.bound))
        climbed = "–"
        if max(lag, final) > TOLERANCE and (polished := polish(fit, SWEEPS)) is not None:
            best = converged.bound
            climbed = f"{100 * (best - polished.bound) / (best - begin):.2f} %"
        cells = [
            case.name,
            seed,
            engine,
            passes,
            f"{'**' if lag > TOLERANCE else ''}{lag:.2f} %{'**' if lag > TOLERANCE else ''}",
            f"{final:.2f} %",
            climbed,
            f"{lost(case, fit)} ({lost(case, converged)})",
            f"{copies(fit)} ({copies(converged)})",
            f"{seconds(fit):.1f} ({seconds(equal):.1f})",
            says,
        ]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        leaves.append(lag)
    return leaves


def main(arguments: Any) -> None:
    print("| " + HEADER.replace("|", " | ") + " |")
    print("|" + "---|" * len(HEADER.split("|")))
    lags: dict[str, list[float]] = {engine: [] for engine in arguments.engines}
    for seed, case in cases(arguments):
        found = compared(seed, case, arguments.engines, jax.random.key(arguments.key))
        for engine, lag in zip(arguments.engines, found, strict=True):
            lags[engine].append(lag)
    for engine, values in lags.items():
        over = sum(lag > TOLERANCE for lag in values)
        print(
            f"\n{engine}: {over} of {len(values)} above {TOLERANCE:g} % of the gap at equal "
            f"passes, the worst {max(values):.2f} %"
        )


if __name__ == "__main__":
    main(
        parse(
            __doc__ or "",
            rows=[60, 300, 3000],
            tokens=[30, 300, 3000],
            topics=[5, 20],
            seeds=[0, 1],
            engines=["svi", "trust_region"],
            parts=["others", "corpora"],
            largest=(LARGE, "leave out corpora with more entries x topics", None, float),
            key=0,
        )
    )
