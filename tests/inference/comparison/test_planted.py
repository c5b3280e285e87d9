"""Posteriors with planted faults: what does the judge say of them?

    python tests/inference/comparison/test_planted.py --seeds 50

prints a table: what was planted, how often the fault was found, and the most frequent verdict. The
posterior is known: 30 global and 60 local numbers, correlated, half of them skewed, 40 expected
data and a log joint. The reference's chains are autoregressive; the engine's draws are independent
draws of the same distribution with the fault planted in them.
"""

import argparse
import collections
from typing import NamedTuple

import numpy as np
import pytest
from scipy import special

from inference.comparison import agreement as distances
from inference.comparison import measure, verdicts
from inference.comparison.agreement import agreement, join, quantities, worst
from inference.comparison.record import Evidence, Row
from inference.io import arviz

SIZES = {"mu": 10, "beta": 20, "theta": 60, "expected data": 40, "log joint": 1}
SHARED, SITES = ("mu", "beta"), ("mu", "beta", "theta")
FAULTY = ("off", "narrow", "wide", "different", "but for", "another", "other factors")


class Case(NamedTuple):
    """What is planted.

    persistence: of the chains. draws: in each of four. names: what the verdict must name.
    trusted: whether the chains judge whatever their R-hat
    """

    what: str
    plant: object = None
    persistence: float = 0.3
    draws: int = 500
    is_faulty: bool = True
    names: str = ""
    trusted: bool = False


def _skew(z, site):
    """Half of the numbers of a site: gamma variables of shape 0.7 in place of normal ones."""
    skewed = special.gammaincinv(0.7, special.ndtr(z[..., ::2]))
    out = z.copy()
    out[..., ::2] = skewed if site in SITES else z[..., ::2]
    return out


def population(rng):
    """Loadings that correlate the numbers: the same for all draws of a seed."""
    total = sum(SIZES.values())
    return rng.normal(size=(total, 6)) * 0.4


def draw(rng, loadings, chains, length, persistence):
    """site -> (chains * length, numbers)"""
    total, factors = loadings.shape
    size = (chains, length, total + factors)
    noise = rng.normal(size=size)
    for t in range(1, length):
        old = persistence * noise[:, t - 1]
        noise[:, t] = old + np.sqrt(1 - persistence**2) * noise[:, t]
    z = noise[..., :total] + noise[..., total:] @ loadings.T
    z /= np.sqrt(1 + np.sum(loadings**2, 1))
    parts = np.split(z.reshape(chains * length, total), np.cumsum(list(SIZES.values()))[:-1], 1)
    return {site: _skew(part, site) for (site, part) in zip(SIZES, parts, strict=True)}


def judge(case, seed):
    """The verdict on one engine."""
    rng = np.random.default_rng(seed)
    loadings = population(rng)
    reference = draw(rng, loadings, 4, case.draws, case.persistence)
    engine = draw(rng, loadings, 1, 2000, 0.0)
    sd = {site: x.std(0) for site, x in draw(rng, loadings, 1, 4000, 0.0).items()}
    if case.plant:
        case.plant(engine, sd)
    shape = 4, case.draws
    markov = measure.Sample(shape, True, {}, np.empty(0), {})
    first = {s: quantities(x, measure.effective_draws(x, markov)) for s, x in reference.items()}
    second = {s: quantities(x) for s, x in engine.items()}
    own = Row(engine="chain", **arviz.chain_diagnostics(reference["beta"].reshape(*shape, -1)))
    converged = case.trusted or not verdicts.trouble(own)
    parts = {site: agreement(first[site], second[site]) for site in SIZES}
    for site in SITES:
        if furthest := worst(first[site], second[site]):
            parts[site].worst = f"{site}[{furthest[0] + 1}]"
            parts[site].worst_shift_sd = abs(furthest[1])
    whole = agreement(*(join(one[site] for site in SHARED) for one in (first, second)))
    if known := [parts[site] for site in SHARED if parts[site].worst]:
        furthest = max(known, key=lambda one: one.worst_shift_sd)
        whole.worst, whole.worst_shift_sd = furthest.worst, furthest.worst_shift_sd
    row = Row(
        engine="planted",
        kind="variational",
        sites={site: parts[site] for site in SITES},
        invariant={name: parts[name] for name in ("expected data", "log joint")},
        **vars(whole),
    )
    return verdicts.of_engine(row, converged)[0]


def shifted(amount, sites=SITES):
    def plant(engine, sd):
        for site in sites:
            engine[site] += amount * sd[site]

    return plant


def scaled(ratio, sites=(*SITES, "expected data")):
    def plant(engine, sd):
        for site in sites:
            engine[site] = engine[site].mean(0) + ratio * (engine[site] - engine[site].mean(0))

    return plant


def one_number(engine, sd):
    engine["beta"][:, 7] += 5 * sd["beta"][7]


def means_and_log_joint(engine, sd):
    shifted(0.25)(engine, sd)
    shifted(5.0, ("log joint",))(engine, sd)


def some_widths(engine, sd):
    for site in SHARED:
        some = slice(0, int(0.4 * SIZES[site]))
        centre = engine[site][:, some].mean(0)
        engine[site][:, some] = centre + 0.3 * (engine[site][:, some] - centre)


CASES = (
    Case("exact", is_faulty=False),
    Case("exact, chains that mix slowly", persistence=0.8, is_faulty=False),
    Case("exact, 60 effective draws", persistence=0.94, is_faulty=False, trusted=True),
    Case("unconverged chains", persistence=0.995, is_faulty=False, names="not judged"),
    Case("means off by 0.25 sd", shifted(0.25)),
    Case("means off by 0.5 sd", shifted(0.5)),
    Case("means off by 1 sd", shifted(1.0)),
    Case("half the variance", scaled(0.5**0.5), names="narrow"),
    Case("twice the variance", scaled(2**0.5), names="wide"),
    Case("one of 30 numbers 5 sd off", one_number, names="means agree but for beta[8]"),
    Case("40 % of the widths 0.3", some_widths, names="narrow"),
    Case("local site 8 sd off", shifted(8.0, ("theta",)), names="theta"),
    Case("local site half as wide", scaled(0.5, ("theta",)), names="theta"),
    Case("expected data 1 sd off", shifted(1.0, ("expected data",)), names="expected data"),
    Case("log joint 5 sd off", shifted(5.0, ("log joint",)), names="log joint"),
    Case("the same, and means off by 0.25 sd", means_and_log_joint, names="log joint off"),
)


def is_right(case, verdict):
    """Whether the judge said what was planted: a fault, by its name where one is to be named."""
    found = any(word in verdict for word in FAULTY)
    return found == case.is_faulty and case.names in verdict


def minor_mode(seed):
    """A bound far above the evidence of chains in a minor mode demotes them."""
    rng = np.random.default_rng(seed)
    evidence = Evidence(log_evidence=-900 + rng.normal(0, 0.1), error=0.1, method="bridge")
    high = Row(engine="cavi", elbo=-623 + rng.normal(0, 0.2), elbo_se=0.2, bound=-640.0)
    low = Row(engine="cavi", elbo=-900.0 + rng.normal(0, 0.2), elbo_se=0.2, bound=-905.0)
    return bool(verdicts.missed_mode(high, evidence)) and not verdicts.missed_mode(low, evidence)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_planted_faults_are_found_and_named(case):
    """One seed of each case. As a script this file runs fifty: the table in docs/reliability.md."""
    verdict = judge(case, 0)
    assert is_right(case, verdict), verdict


def test_a_judge_without_noise_limits_is_caught(monkeypatch):
    """The planted suite can fail: without standard errors an exact engine is called wrong."""
    case = next(case for case in CASES if "60 effective" in case.what)
    raw = lambda shifts, errors, number: (float(np.sqrt(np.mean(shifts**2))), 0.0)  # noqa: E731
    monkeypatch.setattr(distances, "beyond_noise", raw)
    assert not is_right(case, judge(case, 0))


def test_a_bound_above_the_evidence_demotes_the_reference():
    assert minor_mode(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    seeds = range(parser.parse_args().seeds)
    print(f"| planted | said rightly, of {len(seeds)} | most frequent verdict |\n|---|---|---|")
    for case in CASES:
        said = [judge(case, seed) for seed in seeds]
        right = sum(is_right(case, verdict) for verdict in said)
        print(f"| {case.what} | {right} | {collections.Counter(said).most_common(1)[0][0]} |")
    print(f"| reference in a minor mode | {sum(map(minor_mode, seeds))} | reference demoted |")


if __name__ == "__main__":
    main()
