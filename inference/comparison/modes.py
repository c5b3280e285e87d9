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
from inference.comparison.agreement import Quantities
from inference.comparison.measure import Sample, Yardstick, make_yardstick
from inference.comparison.record import Agreement, Row, Within
from inference.core.registry import engines, load_engine
from inference.io import arviz
from inference.run.end_checks import quiet
from inference.run.fit import fit

CHAINS, WARMUP, DRAWS = 2, 300, 1000
SETTLED = 1.1  # R-hat up to which a number of the chains has settled
ENOUGH = 0.5  # share of the numbers that must have settled
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
    sample: Sample,
    key: jax.Array,
    seed: Any,
    max_seconds: float | None,
    reference: Yardstick | None = None,
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
    stick, share = make_yardstick(chains, around, seed, as_reference=True), 1.0
    reasons = verdicts.trouble(Row(engine=sampler, **quality))
    if reasons and reference is None:
        stick, sample, share = only_settled(around, stick, sample)
        told["settled"] = share
    if reasons and (share < ENOUGH or reference is not None):
        return Within(verdict=_moving(around), rule="; ".join(reasons), **told)
    figures, _, _ = measure.distances_from(found, sample, stick)
    row = Row(engine=found.engine, kind=found.posterior.kind, **figures)
    verdict, rule = verdicts.of_engine(row, True)
    if row.mean_error_sd is not None and row.mean_error_sd >= 1:
        verdict = f"its chains rest elsewhere, {row.mean_error_sd:.1f} sd from its answer"
    if reasons:
        verdict += f" (by the {share:.0%} of the compared numbers whose chains have settled)"
        rule += f"; numbers with an R-hat above {SETTLED} are left out: {'; '.join(reasons)}"
    kept = {one.name: getattr(row, one.name) for one in fields(Agreement)}
    return Within(verdict=verdict, rule=rule, **told, **kept)


def only_settled(
    around: Sample, stick: Yardstick, sample: Sample
) -> tuple[Yardstick, Sample, float]:
    """The yardstick and an engine's draws without numbers whose chains disagree, and the share of
    the numbers that is left."""

    def settled(values: np.ndarray) -> np.ndarray:
        if around.shape[1] < arviz.FEWEST_DRAWS:
            return np.zeros(values.shape[1], bool)
        rhat = arviz.each_rhat(values.reshape(*around.shape, -1))
        return (rhat <= SETTLED) | (values.std(0) == 0)

    known = {name: settled(x.draws) for name, x in (stick.sites | stick.invariant).items()}

    def some(quantities: dict[str, Quantities]) -> dict[str, Quantities]:
        return {
            name: Quantities(*(field[..., known[name]] for field in one))
            for name, one in quantities.items()
        }

    picked = {site: places[known[site]] for site, places in stick.picked.items()}
    stick = stick._replace(picked=picked, sites=some(stick.sites), invariant=some(stick.invariant))
    functionals = {name: x[:, known[name]] for name, x in sample.invariant.items() if name in known}
    share = float(np.mean(np.concatenate(list(known.values()))))
    return stick, sample._replace(invariant=functionals), share


def _moving(around: Sample) -> str:
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
