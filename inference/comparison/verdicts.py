"""Verdicts in words, each with the rule behind it.

Judged are the global sites together, every site, functionals that no relabelling changes, and
single numbers. Figures are free of Monte Carlo noise on average (`agreement`). A fault must be
`SURE` standard errors beyond the limit; the verdict says so if the draws are too few to tell.

Limits are round: 0.15 sd hardly moves a 90 % interval. Those of R-hat and effective sample sizes
follow Vehtari et al. (2021), of k-hat Vehtari et al. (2024).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from inference.comparison.record import Agreement, Evidence, Row

MAX_RHAT = 1.05  # above this a Markov chain has not converged and no engine is judged by it
MIN_ESS = 50  # likewise below this
GOOD_RHAT, GOOD_ESS = 1.01, 400  # short of these engines are judged with a caution
MAX_DIVERGING = 0.01  # share of transitions
MIN_ENERGY = 0.2  # E-BFMI
MAX_KHAT = 0.7  # above this importance weighting cannot repair q

SURE = 3.0  # standard errors
SLACK = 0.5  # nats between a bound and the log evidence that are not taken for a missed mode,
ROUNDING = 1e-5  # and this share of the bound: it is a sum of many terms in single precision
FAR_NUMBER = 1.0  # sd by which a single number must be off to be named
LONELY = 3.0  # times its site's error beyond which a single number is named, and not its site
MANY_WIDTHS = 0.05  # share of widths that may be off
MAX_TAIL = 0.3  # sd
LEAST_CLIMB = 1.0  # nats by which more sweeps may raise the bound of a converged fit,
CLIMB_SHARE = 1e-3  # or this share of what the fit gained, if that is more

Limits = tuple[tuple[float, str, int], ...]  # below, words, how bad
MEANS: Limits = (
    (0.15, "means agree", 0),
    (0.5, "means slightly off", 1),
    (1.0, "means off", 2),
    (np.inf, "a different answer", 3),
)
WIDTHS: Limits = (
    (0.5, "far too narrow", 3),
    (0.8, "too narrow", 2),
    (0.95, "slightly too narrow", 1),
    (1.05, "right width", 0),
    (1.25, "slightly too wide", 1),
    (2.0, "too wide", 2),
    (np.inf, "far too wide", 3),
)
UNRESOLVED = "cannot be told apart from right"
NO_REFERENCE = "not judged: there is no reference posterior"
NOT_CONVERGED = "not judged: the reference has not converged"


def trouble(row: Row) -> list[str]:
    """The signs that a Markov chain has not converged."""
    found = []
    if row.rhat is None or row.ess_bulk is None:
        found.append(
            "R-hat and effective draws could not be computed: too few draws, or some that are not "
            "finite"
        )
    elif row.rhat > MAX_RHAT:
        found.append(f"R-hat {row.rhat:.2f} is above {MAX_RHAT}")
    if row.ess_bulk is not None and row.ess_bulk < MIN_ESS:
        found.append(f"{row.ess_bulk:.0f} effective draws are fewer than {MIN_ESS}")
    if row.divergences is not None and row.divergences > MAX_DIVERGING * (row.draws or 0):
        found.append(f"{row.divergences} of {row.draws} transitions diverged")
    if row.ebfmi is not None and row.ebfmi < MIN_ENERGY:
        found.append(f"E-BFMI {row.ebfmi:.2f} is below {MIN_ENERGY}")
    if row.modes:
        found.append(row.modes.text.rstrip("."))
    return [*found, row.missed] if row.missed else found


def caution(row: Row) -> str:
    """A caution about a chain that is just good enough to judge by; empty where it is good."""
    rhat, ess, said = row.rhat, row.ess_bulk, []
    if rhat is not None and ess is not None and (rhat > GOOD_RHAT or ess < GOOD_ESS):
        said.append(
            f"Judge with care: R-hat {rhat:.3f} (below {GOOD_RHAT} is good) and {ess:.0f} "
            f"effective draws ({GOOD_ESS} are good)."
        )
    if row.rhat_aligned is not None and row.rhat_aligned > MAX_RHAT:
        said.append(
            f"Aligned parameters mix less well than predictions: R-hat {row.rhat_aligned:.2f}; "
            "some factors may not be told apart by the data."
        )
    return " ".join(said)


def advice(reference: str, reasons: Iterable[str], cut_short: bool = False) -> str:
    """The sentence about a reference that has not converged. cut_short: by the time limit."""
    remedy = "run longer chains (num_samples, num_warmup), or try another --seed"
    if cut_short:
        remedy = "its time was over before all its draws: raise --budget"
    return (
        f"The reference ({reference}) has not converged: {'; '.join(reasons)}. No engine is judged "
        f"by it; {remedy}."
    )


def of_reference(converged: bool) -> tuple[str, str]:
    """The verdict on the reference, and its rule."""
    rule = (
        f"converged: R-hat at most {MAX_RHAT}, at least {MIN_ESS} effective draws, at most "
        f"{MAX_DIVERGING:.0%} divergent transitions, E-BFMI at least {MIN_ENERGY}, and all chains "
        "in one mode"
    )
    return "the reference" if converged else "the reference, but it has not converged", rule


def missed_mode(row: Row, evidence: Evidence) -> str | None:
    """Why a lower bound shows that the reference has missed a mode; None where it does not.

    A lower bound of the log evidence cannot exceed it, but for Monte Carlo errors and rounding.
    """
    known = [(row.elbo, row.elbo_se or 0.0), (row.bound, 0.0)]
    for value, error in known:
        if value is None:
            continue
        excess = value - evidence.log_evidence
        room = SLACK + ROUNDING * abs(value)
        if excess > room + SURE * float(np.hypot(error, evidence.error)):
            return (
                f"the lower bound of {row.engine} is {excess:.1f} nats above its log evidence, "
                "so its chains have missed a mode"
            )
    return None


def beside_the_best(rows: Mapping[str, Row]) -> None:
    """Say in every row how far its bound and its held-out score are below the best engine's.

    A difference is said if it is `SURE` standard errors of both engines' figures or more.
    """
    for bound, error, said, what in (
        ("elbo", "elbo_se", "between", "ELBO {:,.1f} nats below that of {}"),
        ("heldout", "heldout_se", "predictions", "held-out score {:.3f} below that of {}"),
    ):
        known = {
            name: row
            for name, row in rows.items()
            if getattr(row, bound) is not None and np.isfinite(getattr(row, bound))
        }
        if len(known) < 2:
            continue
        best = max(known, key=lambda name: getattr(known[name], bound))
        for name, row in known.items():
            below = getattr(known[best], bound) - getattr(row, bound)
            errors = getattr(row, error), getattr(known[best], error)
            if name == best or None in errors:  # without its error a difference says nothing
                continue
            rounding = ROUNDING * abs(getattr(row, bound)) if bound == "elbo" else 0.0
            if below > rounding + SURE * np.hypot(*errors):
                setattr(row, said, what.format(below, best))


def in_parts(row: Row) -> str:
    """The verdict on an engine that the reference does not judge: its mode, and others'.

    Where no chains looked at its mode, its verdict as it is comes first.
    """
    within = row.verdict if row.within is None else f"within its mode: {row.within.verdict}"
    parts = [about_convergence(row), within, row.between, row.predictions]
    return "; ".join(part for part in parts if part)


def of_other_mode(row: Row) -> str:
    """The verdict on an engine far from a converged reference, after chains started at it."""
    assert row.within is not None
    error = row.within.mean_error_sd
    if error is None:
        return f"{row.verdict}; {row.within.verdict.removeprefix('not judged: ')}"
    apart = row.within.from_reference_sd
    if apart is not None and apart < 1:  # they went back
        return f"{row.verdict}; no other mode: chains that start there agree with the reference"
    if error >= 1:
        return f"{row.verdict}; no mode: {row.within.verdict}"
    words = row.verdict.replace("a different answer", "another mode")
    return f"{words}; within that mode: {row.within.verdict}"


class Finding(NamedTuple):
    """Words on means or widths, how bad they are (0: right), and the rule."""

    words: str
    level: int
    rule: str


Judge = Callable[[Agreement], Finding | None]


def means(part: Agreement) -> Finding | None:
    """A finding on the means; None where there are no figures."""
    value, error = part.mean_error_sd, part.mean_error_se or 0.0
    if value is None or not np.isfinite(value):
        return None
    words, level, place = _words(value, MEANS)
    figures = f"mean error {value:.2f} ± {error:.2f} sd"
    right = MEANS[0][0]
    if level == len(MEANS) - 1 and value - SURE * error < MEANS[-2][0]:  # not sure of the worst
        (_, words, level), place = MEANS[-2], f"{MEANS[-3][0]} or more"
    if value - SURE * error >= right or (level == 0 and value + SURE * error < MEANS[1][0]):
        return Finding(words, level, f"{figures}: {words} ({place})")
    return Finding(f"means {UNRESOLVED}", 0, f"{figures}: too few draws to tell from {right}")


def widths(part: Agreement) -> Finding | None:
    """A finding on the standard deviations; None for a point estimate."""
    value, error = part.sd_ratio, part.sd_ratio_se or 0.0
    if value is None or not np.isfinite(value) or value <= 0:
        return None
    words, level, place = _words(value, WIDTHS)
    figures = f"sd ratio {value:.2f} ± {error:.2f}"
    distance, room = abs(np.log(value)), SURE * error / value
    if distance - room > np.log(1.05) or (level == 0 and distance + room < np.log(1.25)):
        return Finding(words, level, f"{figures}: {words} ({place})")
    return Finding(f"width {UNRESOLVED}", 0, f"{figures}: too few draws to tell from 0.95 to 1.05")


def _words(number: float, limits: Limits) -> tuple[str, int, str]:
    """The words for a number, how bad that is, and the interval that it fell into."""
    ends = [limit for limit, _, _ in limits]
    place = next(i for i, end in enumerate(ends) if number < end or i == len(ends) - 1)
    _, words, level = limits[place]
    if place == 0:
        return words, level, f"below {ends[0]}"
    if place == len(ends) - 1:
        return words, level, f"{ends[-2]} or more"
    return words, level, f"{ends[place - 1]} to {ends[place]}"


def of_engine(row: Row, converged: bool | None, judged: bool = True) -> tuple[str, str]:
    """The verdict on an engine, and the rules that its figures fell under."""
    if not judged:
        return NO_REFERENCE, "engines are judged against a Markov chain, and there is none"
    if converged is not True:
        return NOT_CONVERGED, "a reference that has not converged judges nobody"
    head = _but_for_one(row, means(row))
    if head is None:
        return "not judged: some of its draws are not finite", "mean error is not a number"
    if broken := [name for name, part in _all_parts(row).items() if _is_broken(part)]:
        return f"not judged: draws of {' and '.join(broken)} are not finite", "no mean error"
    if row.kind == "point":  # a mode need not be near the mean, however well it was found
        error = row.mean_error_sd or 0.0
        if head.level > 0:
            head = head._replace(words=f"{error:.1f} sd from the means")
        head = _with_culprits(row, means, head)
        return f"{head.words}; a point, silent about uncertainty", head.rule
    if head.level == 3:
        words, rule = _other_answer(row)
        head = head._replace(words=words, rule=head.rule + rule)
    found = [_with_culprits(row, means, head)]
    width = widths(row)
    if width is not None:
        width = _with_culprits(row, widths, width)
        found.append(width)
    if all(one.level == 0 for one in found):
        found += _tails(row)
    if width is None or width.level == 0:  # of a narrow q the log joint is off in any case
        found += _log_joint(row, max(one.level for one in found))
    if unsettled := about_convergence(row):
        found.insert(0, Finding(unsettled, 3, unsettled))
    return "; ".join(one.words for one in found), "; ".join(one.rule for one in found)


def about_convergence(row: Row) -> str:
    """Words on a variational fit that has not converged; empty where it has."""
    if not is_unsettled(row):
        return ""
    return f"not converged (more sweeps raise its bound by {row.climb:,.1f} nats)"


def is_unsettled(row: Row) -> bool:
    """Whether more sweeps of coordinate ascent raise the bound by much."""
    if row.climb is None:
        return False
    rounding = ROUNDING * abs(row.bound or 0.0)
    return row.climb > max(LEAST_CLIMB + rounding, CLIMB_SHARE * (row.gain or 0.0))


def _but_for_one(row: Row, head: Finding | None) -> Finding | None:
    """The finding on the means but for one number, if that makes up most of the mean error."""
    error, far, number = row.mean_error_sd or 0.0, row.worst_shift_sd or 0.0, row.quantities or 0
    if head is None or head.level == 0 or number < 2 or far < FAR_NUMBER:
        return head
    rest = float(np.sqrt(max(error**2 * number - far**2, 0.0) / (number - 1)))
    words, level, place = _words(rest, MEANS)
    if level >= head.level:
        return head
    said = f"{row.worst} ({far:.1f} sd)"
    rule = f"{head.rule}; without {said} {rest:.2f} sd: {words} ({place})"
    return Finding(f"{words} but for {said}", max(level, 1), rule)


def _other_answer(row: Row) -> tuple[str, str]:
    """Words on means that are far off, and what is added to the rule.

    Whether it is another mode is known when chains have started at the answer (`of_other_mode`).
    """
    data = (row.invariant or {}).get("expected data")
    if data and data.mean_error_sd is not None and data.mean_error_sd < 0.5:
        rule = f", but that of the expected data {data.mean_error_sd:.2f} sd (below 0.5)"
        return "other factors, nearly the same predictions", rule
    return "a different answer", ""


def _is_broken(part: Agreement) -> bool:
    return bool(part.quantities) and not np.isfinite(part.mean_error_sd or 0.0)


def _all_parts(row: Row) -> dict[str, Agreement]:
    return {**(row.sites or {}), **{str(name): x for name, x in (row.invariant or {}).items()}}


def _parts(row: Row) -> dict[str, Agreement]:
    """Sites and functionals, without those that are sites already or off for every narrow q."""
    skipped = "log joint", "hyper-parameters"
    return {name: x for name, x in _all_parts(row).items() if name not in skipped}


def _with_culprits(row: Row, judge: Judge, head: Finding) -> Finding:
    """Name the sites, functionals or numbers that are worse than the global sites together."""
    parts = _parts(row)
    worse = {name: one for name, x in parts.items() if (one := judge(x)) and one.level > head.level}
    order = sorted(worse, key=lambda name: (-worse[name].level, -_size(parts[name], judge)))[:2]
    sides = {(one.sd_ratio or 1.0) > 1.0 for one in (row, *(parts[name] for name in order))}
    turned = judge is widths and head.level > 0 and len(sides) == 2  # too wide, and too narrow
    label = {name: f"{name} {worse[name].words}" if turned else name for name in order}
    named = {name: _culprit(label[name], parts[name], judge) for name in order}
    named = {name: words for name, words in named.items() if words not in head.words}
    said, rules = list(named.values()), [f"{name}: {worse[name].rule}" for name in named]
    if not said and head.level == 0:
        said, rules = _single_numbers(row, judge)
    if not said:
        return head
    level = max([head.level, 1, *(one.level for one in worse.values())])
    joint = "but" if turned else "but for" if head.level == 0 else "and more so"
    joint = "and" if "but for" in head.words else joint
    words = f"{head.words} {joint} {' and '.join(said)}"
    return Finding(words, level, "; ".join([head.rule, *rules]))


def _size(part: Agreement, judge: Judge) -> float:
    """How far off a part is."""
    if judge is widths:
        return float(abs(np.log(part.sd_ratio or 1.0)))
    return part.mean_error_sd or 0.0


def _culprit(name: str, part: Agreement, judge: Judge) -> str:
    """A site with its figure, or the one number of it that is to blame."""
    if judge is widths:
        return f"{name} ({part.sd_ratio:.2f} of its sd)"
    error, furthest = part.mean_error_sd or 0.0, part.worst_shift_sd or 0.0
    if furthest > LONELY * error:
        return f"{part.worst} ({furthest:.1f} sd)"
    return f"{name} ({error:.1f} sd)"


def _single_numbers(row: Row, judge: Judge) -> tuple[list[str], list[str]]:
    """Single means that are far off, or many widths, though their sites are right together."""
    sites = row.sites or {}
    if judge is means:
        far = {name: one.worst_shift_sd or 0.0 for name, one in sites.items()}
        name = max(far, key=lambda site: far[site], default="")
        if not name or far[name] < FAR_NUMBER:
            return [], []
        said = f"{sites[name].worst} ({far[name]:.1f} sd)"
        return [said], [f"{said} is off by more than {FAR_NUMBER:g} sd"]
    off = {name: one.widths_off or 0.0 for name, one in _parts(row).items()}
    name = max(off, key=lambda part: off[part], default="")
    if not name or off[name] <= MANY_WIDTHS:
        return [], []
    said = f"{off[name]:.0%} of {name}"
    return [said], [f"{said} have widths off by more than a quarter (allowed: {MANY_WIDTHS:.0%})"]


def _tails(row: Row) -> list[Finding]:
    """Tails of an engine whose means and widths are right."""
    found = []
    for name, part in _parts(row).items():
        tail, error = part.tail_error_sd, part.tail_error_se
        if tail is not None and error is not None and tail - SURE * error > MAX_TAIL:
            rule = f"tail error of {name} {tail:.2f} ± {error:.2f} sd is above {MAX_TAIL}"
            found.append(Finding(f"tails of {name} off", 1, rule))
    return found[:1]


def _log_joint(row: Row, level: int) -> list[Finding]:
    """The log joint density, if it is worse than this level."""
    joint = (row.invariant or {}).get("log joint")
    one = None if joint is None else means(joint)
    if joint is None or one is None or one.level <= level:
        return []
    said = f"log joint off by {joint.mean_error_sd:.1f} sd"
    return [Finding(said, one.level, f"log joint: {one.rule}")]
