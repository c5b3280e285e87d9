"""Are Markov chains in different modes? What no relabelling explains, R-hat only calls "not converged".

For each pair of chains, the line between their means is found on one part of both, and the chains are compared on another part, projected onto
that line:

    d' = |difference of the two chains' means| / pooled within-chain sd, of the projections

Features are in units of their pooled within-chain sd, and of differences only what is beyond `CERTAIN` standard errors is believed (by batch means,
since neighbours are alike). Thousands of features in which chains merely wander would still drown one in which they differ: lines are tried along the
largest difference alone, the four largest, the sixteen largest, up to all, and the largest d' counts.

The parts are the first and the last 40 % of each chain, with what lies between left out: draws near each other are alike, and a line fitted to the
wandering of some would fit the others' too. Each part takes each role once, and the smaller d' counts, so that chains which come past each
other are together. The sd is that of both parts together, so that what drifts is wide.

d' = 3 says: the chains' centres are three of their own standard deviations apart along the line between them. Of two normals at that distance
13 % overlap, and half-way each is 1.5 sd from its centre. Chains that are nearer (`SAME`) are taken to be in one mode, as are those that others join.

In simulations of pairs of autoregressive chains of 200 or 1,000 draws with up to 5,000 features, d' stayed below 0.7 with an effective sample size of
50 and below 1.7 with 10. Of chains 8 sd apart in one feature it was above 4.5, also with an effective sample size of 5 and 500 features.
"""

from typing import NamedTuple

import numpy as np

SAME = 3.0  # chains whose d' is no larger are in the same mode
CERTAIN = 2.0  # standard errors of a difference of means that are taken off it
PART = 0.4  # of a chain, at either end
BATCHES = 5  # in each part, for standard errors
FLAT = (
    1e-6  # what varies less, relative to its size, is constant to the rounding of single precision
)


class Modes(NamedTuple):
    """groups: chains (counted from 0) that are together. separation: (chains, chains) d' of each pair. text: a sentence, or "" if all are."""

    groups: list[list[int]]
    separation: np.ndarray
    text: str


def find_modes(values: np.ndarray) -> Modes:
    """The modes that chains are in, from aligned parameters or invariant functionals (chains, draws, features).

    What is not finite in either chain of a pair tells nothing about it, nor does what is constant and the same. Fewer than ten draws are too few.
    """
    values = np.asarray(values)
    number, length = values.shape[:2]
    separation = np.zeros((number, number))
    if length >= 2 * BATCHES:
        chains = [_summarise(chain) for chain in values]
        for i in range(number):
            for j in range(i):
                separation[i, j] = separation[j, i] = _distance(
                    values[i], values[j], chains[i], chains[j]
                )
    groups = _components(separation <= SAME)
    return Modes(groups, separation, _in_words(groups, separation))


class _Chain(NamedTuple):
    """Of each feature: whether all of it is finite, its variance and typical size, and, of the first and the last part, mean and squared error."""

    finite: np.ndarray
    variance: np.ndarray
    size: np.ndarray
    mean: np.ndarray  # (2, features)
    error: np.ndarray  # (2, features)


def _parts(chain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    length = max(BATCHES, int(PART * len(chain)))
    return chain[:length], chain[-length:]


def _summarise(chain: np.ndarray) -> _Chain:
    finite = np.isfinite(chain).all(0)
    usable = np.where(finite, chain, 0)
    means, errors = [], []
    for part in _parts(usable):
        batches = np.array(
            [batch.mean(0, dtype=np.float64) for batch in np.array_split(part, BATCHES)]
        )
        means.append(part.mean(0, dtype=np.float64))
        errors.append(batches.var(0, ddof=1) / BATCHES)
    variance = np.concatenate(_parts(usable)).var(0, dtype=np.float64)
    return _Chain(
        finite, variance, np.abs(usable).max(0, initial=0.0), np.array(means), np.array(errors)
    )


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
    beyond = (
        np.sign(difference[:, use]) * np.maximum(np.abs(difference[:, use]) - certain, 0) / sd[use]
    )
    parts_a, parts_b = _parts(a[:, use] / sd[use]), _parts(b[:, use] / sd[use])
    both = [
        _along(_lines(beyond[part]), parts_a, parts_b, tested) for part, tested in ((0, 1), (1, 0))
    ]
    return float(np.max(np.minimum(*both)))


def _lines(difference: np.ndarray) -> np.ndarray:
    """(features, lines): along the largest difference alone, the four largest, the sixteen largest and so on up to all of them."""
    order = np.argsort(-np.abs(difference))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    counts = 4 ** np.arange(1 + int(np.ceil(np.log2(len(order)) / 2)))
    return np.where(place[:, None] < counts, difference[:, None], 0)


def _along(
    lines: np.ndarray,
    a: tuple[np.ndarray, np.ndarray],
    b: tuple[np.ndarray, np.ndarray],
    tested: int,
) -> np.ndarray:
    """d' of the tested parts of two chains along each line; 0 where they lie the other way round than the line says, or where there is none."""
    on_a, on_b = ([part @ lines for part in chain] for chain in (a, b))
    sd = np.sqrt((np.concatenate(on_a).var(0) + np.concatenate(on_b).var(0)) / 2)
    apart = on_a[tested].mean(0) - on_b[tested].mean(0)
    return np.where(sd > 0, np.maximum(apart, 0) / np.where(sd > 0, sd, 1), 0)


def _components(joined: np.ndarray) -> list[list[int]]:
    """Connected components, each sorted, in the order of their first members."""
    label = np.arange(len(joined))
    for i, j in np.argwhere(joined):
        label[label == max(label[i], label[j])] = min(label[i], label[j])
    return [np.flatnonzero(label == one).tolist() for one in np.unique(label)]


def _in_words(groups: list[list[int]], separation: np.ndarray) -> str:
    if len(groups) < 2:
        return ""
    named = [listed([str(chain + 1) for chain in group]) for group in groups]
    between = min(
        separation[i, j]
        for one in groups
        for other in groups
        if one is not other
        for i in one
        for j in other
    )
    far = (
        f"at least {between:.1f} standard deviations apart"
        if np.isfinite(between)
        else "apart and do not move"
    )
    if len(groups) == 2:
        subject = f"Chain{'s' * (len(groups[0]) > 1)} {named[0]} and chain{'s' * (len(groups[1]) > 1)} {named[1]} are in different modes"
    else:
        subject = f"The chains are in {len(groups)} different modes ({'; '.join(named)})"
    return f"{subject}: they are {far}, which no relabelling explains."


def listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
