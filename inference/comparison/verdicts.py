"""Verdicts in words, each with the rule behind it.

The limits are round numbers. Two good Markov chains of a few hundred effective draws differ by
about 0.2 sd at worst; half an sd and a whole one move 90 % intervals noticeably. Limits of R-hat
and effective sample sizes follow Vehtari et al. (2021), of k-hat Vehtari et al. (2024).
"""

from collections.abc import Iterable

from inference.comparison.record import Row

MAX_RHAT = 1.05  # above this a Markov chain has not converged and no engine is judged by it
MIN_ESS = 50  # likewise below this
GOOD_RHAT, GOOD_ESS = 1.01, 400  # short of these engines are judged with a caution
MAX_DIVERGING = 0.01  # share of transitions
MIN_ENERGY = 0.2  # E-BFMI
MAX_KHAT = 0.7  # above this importance weighting cannot repair q

Limits = tuple[tuple[float, str], ...]
MEANS: Limits = (0.2, "means agree"), (0.5, "means slightly off"), (1.0, "means off")
OTHER_ANSWER = "a different answer: another mode, or not converged"
WIDTHS: Limits = (
    (0.5, "far too narrow"),
    (0.8, "too narrow"),
    (0.95, "slightly too narrow"),
    (1.05, "right width"),
    (1.25, "slightly too wide"),
)
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
    return found


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


def of_engine(row: Row, converged: bool | None, judged: bool = True) -> tuple[str, str]:
    """The verdict on an engine, and the rule that its figures fell under."""
    if not judged:
        return NO_REFERENCE, "engines are judged against a Markov chain, and there is none"
    if converged is not True:
        return NOT_CONVERGED, "a reference that has not converged judges nobody"
    error, ratio = row.mean_error_sd, row.sd_ratio
    if error is None or error != error:
        return "not judged: some of its draws are not finite", "mean error is not a number"
    means = _words(error, MEANS, OTHER_ANSWER)
    rule = f"mean error {error:.2f} sd: {means} ({_between(error, MEANS)})"
    if row.kind == "point":  # a mode need not be near the mean, however well it was found
        words = means if error < MEANS[0][0] else f"{error:.1f} sd from the means"
        return f"{words}; a point, silent about uncertainty", rule
    data = (row.invariant or {}).get("expected data")
    if error >= 1 and data and data.mean_error_sd is not None and data.mean_error_sd < 0.5:
        means = "other factors, nearly the same predictions"
        rule += f"; mean error of the expected data {data.mean_error_sd:.2f} sd (below 0.5)"
    if ratio is None or ratio != ratio:
        return means, rule
    width = _words(ratio, WIDTHS, "too wide")
    rule += f"; sd ratio {ratio:.2f}: {width} ({_between(ratio, WIDTHS)})"
    return f"{means}; {width}", rule


def _words(number: float, limits: Limits, otherwise: str) -> str:
    return next((words for limit, words in limits if number < limit), otherwise)


def _between(number: float, limits: Limits) -> str:
    """The interval that a number fell into."""
    ends = [limit for limit, _ in limits]
    place = sum(number >= end for end in ends)
    if place == 0:
        return f"below {ends[0]}"
    return f"{ends[-1]} or more" if place == len(ends) else f"{ends[place - 1]} to {ends[place]}"
