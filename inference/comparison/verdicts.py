"""Figures in plain words, each with the rule behind it.

The limits are round numbers. 0.2 sd is about what two good Markov chains of a few hundred effective draws differ by at worst; a half and a whole sd
move central 90 % intervals by what readers of them notice. R-hat and effective sample sizes follow Vehtari et al. (2021), k-hat their paper of 2024.
"""

from collections.abc import Iterable, Mapping
from typing import Any

MAX_RHAT = 1.05  # above this a Markov chain has not converged, and judges nobody
MIN_ESS = 50  # effective draws below which it says too little to judge by
GOOD_RHAT, GOOD_ESS = 1.01, 400  # short of these it judges, with a caution
MAX_DIVERGING = 0.01  # share of transitions
MIN_ENERGY = 0.2  # E-BFMI
MAX_KHAT = 0.7  # above this importance weighting cannot repair q

MEANS = (0.2, "means agree"), (0.5, "means slightly off"), (1.0, "means off")
OTHER_ANSWER = "a different answer: another mode, or not converged"
WIDTHS = (
    (0.5, "far too narrow"),
    (0.8, "too narrow"),
    (0.95, "slightly too narrow"),
    (1.05, "right width"),
    (1.25, "slightly too wide"),
)
NO_REFERENCE = "not judged: there is no reference posterior"
NOT_CONVERGED = "not judged: the reference has not converged"


def trouble(row: Mapping[str, Any], num_draws: int) -> list[str]:
    """Why a Markov chain with these diagnostics has not converged; empty where nothing says so. num_draws: of all chains together."""
    rhat, ess, diverging, energy = (
        row.get(name) for name in ("rhat", "ess_bulk", "divergences", "ebfmi")
    )
    found = []
    if rhat is None or ess is None:
        found.append(
            "R-hat and effective draws could not be computed: too few draws, or some that are not finite"
        )
    elif rhat > MAX_RHAT:
        found.append(f"R-hat {rhat:.2f} is above {MAX_RHAT}")
    if ess is not None and ess < MIN_ESS:
        found.append(f"{ess:.0f} effective draws are fewer than {MIN_ESS}")
    if diverging is not None and diverging > MAX_DIVERGING * num_draws:
        found.append(f"{diverging} of {num_draws} transitions diverged")
    if energy is not None and energy < MIN_ENERGY:
        found.append(f"E-BFMI {energy:.2f} is below {MIN_ENERGY}")
    if row.get("modes"):
        found.append(row["modes"]["text"].rstrip("."))
    return found


def caution(row: Mapping[str, Any]) -> str:
    """What to keep in mind about a chain that is good enough to judge by; empty where it is good."""
    rhat, ess, aligned = row.get("rhat"), row.get("ess_bulk"), row.get("rhat_aligned")
    said = ""
    if rhat is not None and ess is not None and (rhat > GOOD_RHAT or ess < GOOD_ESS):
        said = f"Judge with care: R-hat {rhat:.3f} (below {GOOD_RHAT} is good) and {ess:.0f} effective draws ({GOOD_ESS} are good)."
    if aligned is not None and aligned > MAX_RHAT:
        said += f" Aligned parameters mix less well than predictions: R-hat {aligned:.2f}; some factors may not be told apart by the data."
    return said.strip()


def advice(reference: str, reasons: Iterable[str], cut_short: bool = False) -> str:
    """What the report says in red. cut_short: by the time there was."""
    longer, slower = (
        "run longer chains (num_samples, num_warmup), or try another --seed",
        "its time was over before all its draws: raise --budget",
    )
    remedy = slower if cut_short else longer
    return f"The reference ({reference}) has not converged: {'; '.join(reasons)}. No engine is judged by it; {remedy}."


def of_reference(converged: bool | None) -> tuple[str, str]:
    """The reference's own verdict and rule."""
    rule = (
        f"converged: R-hat at most {MAX_RHAT}, at least {MIN_ESS} effective draws, at most {MAX_DIVERGING:.0%} divergent transitions, "
        f"E-BFMI at least {MIN_ENERGY}, and all chains in one mode"
    )
    words = {True: "the reference", None: "the reference, without diagnostics"}.get(
        converged, "the reference, but it has not converged"
    )
    return words, rule


def of_engine(
    row: Mapping[str, Any], converged: bool | None, judged: bool = True
) -> tuple[str, str]:
    """An engine's verdict, and the rule that its figures fell under."""
    if not judged:
        return NO_REFERENCE, "engines are judged against a Markov chain, and there is none"
    if converged is not True:
        return NOT_CONVERGED, "a reference that has not converged judges nobody"
    error, ratio = row["mean_error_sd"], row["sd_ratio"]
    if error is None or error != error:
        return "not judged: some of its draws are not finite", "mean error is not a number"
    means = _words(error, MEANS, OTHER_ANSWER)
    rule = f"mean error {error:.2f} sd: {means} ({_between(error, MEANS)})"
    if row["kind"] == "point":  # a mode need not be near the mean, however well it was found
        words = means if error < MEANS[0][0] else f"{error:.1f} sd from the means"
        return f"{words}; a point, silent about uncertainty", rule
    invariant = ((row.get("invariant") or {}).get("expected data") or {}).get("mean_error_sd")
    if error >= 1 and invariant is not None and invariant < 0.5:
        means = "other factors, nearly the same predictions"
        rule += f"; mean error of the expected data {invariant:.2f} sd (below 0.5)"
    if ratio is None or ratio != ratio:
        return means, rule
    return (
        f"{means}; {_words(ratio, WIDTHS, 'too wide')}",
        f"{rule}; sd ratio {ratio:.2f}: {_words(ratio, WIDTHS, 'too wide')} ({_between(ratio, WIDTHS)})",
    )


def _words(number: float, limits: Iterable[tuple[float, str]], otherwise: str) -> str:
    return next((words for limit, words in limits if number < limit), otherwise)


def _between(number: float, limits: tuple[tuple[float, str], ...]) -> str:
    """The interval that a number fell into, in words."""
    ends = [limit for limit, _ in limits]
    place = sum(number >= end for end in ends)
    if place == 0:
        return f"below {ends[0]}"
    return f"{ends[-1]} or more" if place == len(ends) else f"{ends[place - 1]} to {ends[place]}"
