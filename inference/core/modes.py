r"""Are Markov chains in different modes?

For each pair of chains, the line between their means is fitted on one part of both chains, and
another part is projected onto it:

$$ d' = |m_1 - m_2| / s, $$

the difference of the two projected means in units of the pooled standard deviation within chains.
Differences of means count only beyond `CERTAIN` standard errors, estimated by batch means. Noise in
thousands of features would drown a difference in a single one, so lines are tried along the
largest difference alone, the four largest, the sixteen largest, up to all; the largest $d'$ counts.

The parts are the first and the last 40 % of each chain, since neighbouring draws are correlated.
Each part takes each role once and the smaller $d'$ counts, so that chains which pass each other
are together. Chains with $d' \le 3$ (`SAME`), and those that others connect, are in one mode: two
normals at that distance overlap by 13 %.

In simulations of pairs of autoregressive chains of 200 or 1,000 draws with up to 5,000 features,
$d'$ stayed below 0.7 with an effective sample size of 50 and below 1.7 with 10. For chains 8 sd
apart in one feature it was above 4.5, also with an effective sample size of 5 and 500 features.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

SAME = 3.0  # chains whose d' is no larger are in the same mode
CERTAIN = 2.0  # standard errors that are taken off a difference of means
PART = 0.4  # of a chain, at either end
BATCHES = 5  # in each part, for standard errors
FLAT = 1e-6  # relative variation below which a feature is constant in single precision


class Modes(NamedTuple):
    """groups: chains (counted from 0) of each mode. separation: (chains, chains) d' of each pair.

    text: a sentence, or "" if there is one mode.
    """

    groups: list[list[int]]
    separation: np.ndarray
    text: str


def find_modes(values: np.ndarray) -> Modes:
    """The modes of chains, from aligned parameters or invariant functionals.

    values: (chains, draws, features). Features that are not finite, or constant and equal, say
    nothing about a pair of chains. Fewer than ten draws are too few.
    """
    values = np.asarray(values)
    number, length = values.shape[:2]
    separation = np.zeros((number, number))
    if length >= 2 * BATCHES:
        chains = [_summarise(chain) for chain in values]
        for i in range(number):
            for j in range(i):
                found = _distance(values[i], values[j], chains[i], chains[j])
                separation[i, j] = separation[j, i] = found
    label = connected_components(separation <= SAME)[1]
    groups = [np.flatnonzero(label == one).tolist() for one in dict.fromkeys(label)]
    return Modes(groups, separation, _in_words(groups, separation))


class _Chain(NamedTuple):
    """Summary of each feature: is it finite, its variance and largest size, and of the first and
    the last part (2, features) its mean and squared standard error."""

    finite: np.ndarray
    variance: np.ndarray
    size: np.ndarray
    mean: np.ndarray
    error: np.ndarray


def _parts(chain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    length = max(BATCHES, int(PART * len(chain)))
    return chain[:length], chain[-length:]


def _summarise(chain: np.ndarray) -> _Chain:
    finite = np.isfinite(chain).all(0)
    known = np.where(finite, chain, 0)
    parts = _parts(known)
    means = np.array([part.mean(0, dtype=np.float64) for part in parts])
    batches = [[x.mean(0, dtype=np.float64) for x in np.array_split(p, BATCHES)] for p in parts]
    errors = np.array(batches).var(1, ddof=1) / BATCHES
    variance = np.concatenate(parts).var(0, dtype=np.float64)
    return _Chain(finite, variance, np.abs(known).max(0, initial=0.0), means, errors)


def _distance(a: np.ndarray, b: np.ndarray, about_a: _Chain, about_b: _Chain) -> float:
    """d' of two chains (draws, features)."""
    finite = about_a.finite & about_b.finite
    sd = np.sqrt((about_a.variance + about_b.variance) / 2)
    size = np.maximum(about_a.size, about_b.size)
    difference = about_a.mean - about_b.mean
    constant = sd <= FLAT * size
    if np.any(finite & constant & (np.abs(difference) > 100 * FLAT * size).all(0)):
        return float("inf")  # both stand still, at different values
    use = finite & ~constant
    if not use.any():
        return 0.0
    certain = CERTAIN * np.sqrt(about_a.error + about_b.error)[:, use]
    beyond = np.maximum(np.abs(difference[:, use]) - certain, 0) / sd[use]
    beyond *= np.sign(difference[:, use])
    parts_a, parts_b = _parts(a[:, use] / sd[use]), _parts(b[:, use] / sd[use])
    both = [_along(_lines(beyond[i]), parts_a, parts_b, 1 - i) for i in (0, 1)]
    return float(np.max(np.minimum(*both)))


def _lines(difference: np.ndarray) -> np.ndarray:
    """(features, lines) along the 1, 4, 16, ... largest differences."""
    place = np.argsort(np.argsort(-np.abs(difference)))
    counts = 4 ** np.arange(1 + int(np.ceil(np.log2(len(place)) / 2)))
    return np.where(place[:, None] < counts, difference[:, None], 0)


def _along(lines: np.ndarray, a: tuple, b: tuple, tested: int) -> np.ndarray:
    """d' of the tested parts along each line; 0 if they lie the other way round than the line."""
    on_a, on_b = ([part @ lines for part in chain] for chain in (a, b))
    sd = np.sqrt((np.concatenate(on_a).var(0) + np.concatenate(on_b).var(0)) / 2)
    apart = on_a[tested].mean(0) - on_b[tested].mean(0)
    return np.where(sd > 0, np.maximum(apart, 0) / np.where(sd > 0, sd, 1), 0)


def _in_words(groups: list[list[int]], separation: np.ndarray) -> str:
    if len(groups) < 2:
        return ""
    named = [listed([str(chain + 1) for chain in group]) for group in groups]
    between = min(
        separation[np.ix_(one, other)].min() for one in groups for other in groups if one != other
    )
    far = f"at least {between:.1f} standard deviations apart"
    far = far if np.isfinite(between) else "apart and do not move"
    subject = f"The chains are in {len(groups)} different modes ({'; '.join(named)})"
    if len(groups) == 2:
        first, second = (
            f"hain{'s' * (len(g) > 1)} {n}" for g, n in zip(groups, named, strict=True)
        )
        subject = f"C{first} and c{second} are in different modes"
    return f"{subject}: they are {far}, which no relabelling explains."


def listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
