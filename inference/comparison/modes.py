"""Is an engine right about the mode that it found?

A posterior with several modes is the usual case on real data: chains from different starts disagree
and judge nobody. Then short Markov chains start at the engine's own answer. If they are stationary
around it, they show whether q has the means and widths of that mode. If they settle elsewhere, the
answer is no mode.
"""

from dataclasses import fields
from typing import Any

import jax
import numpy as np

from inference.comparison import measure, verdicts
from inference.comparison.record import Agreement, Row, Within
from inference.core.registry import engines, load_engine
from inference.io import arviz
from inference.run.end_checks import quiet
from inference.run.fit import fit

CHAINS, WARMUP, DRAWS = 2, 300, 1000
PARTS = 5  # of the chains, of which the first and the last are compared
NO_SAMPLER = "not judged: no sampler can start at its answer"


def sampler_for(model: Any) -> str | None:
    """The first sampler of comparisons that can start at given values of this model."""
    for engine in map(load_engine, engines()):
        starts = engine.kind == "draws" and engine.compared and engine.init == "values"
        if starts and not engine.suits(model):
            return engine.name
    return None


def judge_within(
    found: Any,
    sample: measure.Sample,
    key: jax.Array,
    seed: Any,
    max_seconds: float | None,
    reference: measure.Yardstick | None = None,
) -> Within:
    """Judge a fit, of which `sample` are draws, by chains that start at its means.

    reference: one that has converged, from which the distance of the chains is measured too
    """
    sampler = sampler_for(found.model)
    if sampler is None:
        return Within(verdict=NO_SAMPLER, rule="samplers of this model choose their own start")
    start = {site: found.posterior.mean(site) for site in found.model.families}
    with quiet():
        chains = fit(
            found.model.name,
            found.data,
            sampler,
            found.hyper,
            key,
            init=start,
            progress=False,
            max_seconds=max_seconds,
            num_chains=CHAINS,
            num_warmup=WARMUP,
            num_samples=DRAWS,
        )
    around = measure.draw(chains, key, CHAINS * DRAWS, seed)
    functionals = measure.chains_of(chains, around)
    quality = arviz.chain_diagnostics(functionals.values)
    size = measure.effective_draws(around.log_joint[:, None], around)[0]
    told = {
        "sampler": sampler,
        "rhat": quality["rhat"],
        "ess_bulk": quality["ess_bulk"],
        "log_joint": np.mean(around.log_joint),
        "log_joint_se": np.std(around.log_joint) / np.sqrt(size),
    }
    if reference is not None:
        told["from_reference_sd"] = measure.mean_error(found.model, around, reference)
    if reasons := verdicts.trouble(Row(engine=sampler, **quality)):
        return Within(verdict=_moving(around), rule="; ".join(reasons), **told)
    stick = measure.make_yardstick(chains, around, seed, as_reference=True)
    figures, _, _ = measure.distances_from(found, sample, stick)
    row = Row(engine=found.engine, kind=found.posterior.kind, **figures)
    verdict, rule = verdicts.of_engine(row, True)
    if row.mean_error_sd is not None and row.mean_error_sd >= 1:
        verdict = f"its chains rest elsewhere, {row.mean_error_sd:.1f} sd from its answer"
    kept = {one.name: getattr(row, one.name) for one in fields(Agreement)}
    return Within(verdict=verdict, rule=rule, **told, **kept)


def _moving(around: measure.Sample) -> str:
    """Words on chains that have not settled: whether their log joint has risen."""
    if around.shape[1] < 2 * PARTS:
        return f"not judged: chains that start at its answer have {around.shape[1]} draws only"
    first, *_, last = np.array_split(around.log_joint.reshape(around.shape), PARTS, axis=1)
    rise = np.mean(last) - np.mean(first)
    if not rise > verdicts.SURE * np.std(last):
        return "not judged: chains that start at its answer have not settled"
    return (
        "not judged: chains that start at its answer leave it, and their log joint rises by "
        f"{rise:,.0f} nats from the first to the last fifth of {around.shape[1]:,} draws"
    )
