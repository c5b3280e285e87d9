r"""Distances between two sets of draws of the same quantities.

Per quantity, where $m$, $s$, $Q$ are the mean, sd and quantile function of the engine's draws and
$m_0$, $s_0$, $Q_0$ those of the reference's:

| figure | definition |
|---|---|
| `mean_shift_sd` | $(m - m_0) / s_0$ |
| `sd_ratio` | $s / s_0$; below 1 for most mean-field posteriors |
| `coverage50`, `coverage90` | share of reference draws in the central 50 or 90 % interval |
| `wasserstein_sd` | 1-Wasserstein distance, the mean of $\lvert Q - Q_0 \rvert / s_0$ over levels |
| `tail_error_sd` | mean of $\lvert Q - Q_0 \rvert / s_0$ at the levels 5 and 95 % |

Over a group of quantities:

| figure | definition |
|---|---|
| `mean_error_sd` | root mean square of `mean_shift_sd`, Monte Carlo noise removed |
| `sd_ratio` | geometric mean of the ratios |
| `tail_error_sd` | root mean square of the quantities' `tail_error_sd`, noise removed |
| `widths_off` | share of the quantities whose ratio is outside 0.8 to 1.25 beyond its noise |
| others | means over the quantities |

**Noise.** The shift of a quantity has the variance $e^2 = 1/n_0 + (s/s_0)^2/n$ if both means are
the same, where $n_0$ and $n$ are effective numbers of draws. The mean of $d^2 - e^2$ over $p$
quantities estimates their mean squared shift without bias. Its variance is
$(2 e^4 + 4 \overline{d^2} e^2) / p'$, where $p' = p^2 / \sum_{ij} C_{ij}^2$ is the number of
independent quantities that $p$ with the correlations $C$ amount to. The logarithm of a ratio of sds
has the variance $(\kappa_0 - 1) / 4 n_0 + (\kappa - 1) / 4 n$ with kurtoses $\kappa$.

`correlation_error` is the mean absolute difference of correlations among the `BLOCK` quantities of
largest reference sd. Quantities that the reference knows exactly are left out. A point estimate has
no figures of spread.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from inference.comparison.record import Agreement, Reweighted

LEVELS = (np.arange(100) + 0.5) / 100  # at which quantile functions are compared
ENDS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the intervals, and the median
BLOCK = 8
MOST_CORRELATED = 300  # quantities, and draws of each, for the correlations behind p'
TAIL = 0.05  # level of the tail quantiles
NEAR_TAIL = np.searchsorted(LEVELS, [0.02, 0.08])  # between them the density there is estimated
OFF_WIDTH = np.log(1.25)  # log ratio of sds beyond which a quantity's width is off
SURE = 4.0  # standard errors beyond which one of a thousand quantities counts as off


class Quantities(NamedTuple):
    """Draws (n, quantities), their means and sds, and their quantiles at `LEVELS` and `ENDS`.

    size: (quantities,) effective numbers of draws
    """

    draws: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    levels: np.ndarray
    ends: np.ndarray
    size: np.ndarray

    @property
    def is_point(self) -> bool:
        return len(self.draws) == 1


class Distances(NamedTuple):
    """The figures above, one number per quantity."""

    mean_shift_sd: np.ndarray
    sd_ratio: np.ndarray
    coverage50: np.ndarray
    coverage90: np.ndarray
    wasserstein_sd: np.ndarray
    tail_error_sd: np.ndarray


def quantities(draws: np.ndarray, size: Any = None) -> Quantities:
    """Summarise draws (n, ...); every entry is a quantity. size: effective draws (default: n)."""
    draws = np.asarray(draws).reshape(len(draws), -1)
    mean = draws.mean(0, dtype=np.float64)
    sd = draws.std(0, dtype=np.float64, ddof=1) if len(draws) > 1 else np.full(mean.shape, np.nan)
    found = np.quantile(draws, [*LEVELS, *ENDS], axis=0)
    size = np.broadcast_to(np.asarray(len(draws) if size is None else size, float), mean.shape)
    return Quantities(draws, mean, sd, found[: len(LEVELS)], found[len(LEVELS) :], size)


def join(parts: Iterable[Quantities]) -> Quantities:
    """Concatenate quantities."""
    return Quantities(*(np.concatenate(field, axis=-1) for field in zip(*parts, strict=True)))


def scale_of(reference: Quantities) -> np.ndarray:
    """The reference's sds; nan where a quantity is constant up to rounding."""
    size = np.maximum(np.abs(reference.mean), np.finfo(np.float32).tiny)
    return np.where(reference.sd > 1e-6 * size, reference.sd, np.nan)


def distances(reference: Quantities, other: Quantities) -> Distances:
    """The distance of each quantity from the reference's."""
    sd = scale_of(reference)
    spread = np.where(np.isfinite(other.sd), sd, np.nan)  # nan for a point estimate

    def covered(low: int, high: int) -> np.ndarray:
        inside = (reference.draws >= other.ends[low]) & (reference.draws <= other.ends[high])
        return np.where(np.isnan(spread), np.nan, inside.mean(0))

    tails = np.abs(other.ends[[0, 4]] - reference.ends[[0, 4]]).mean(0)
    return Distances(
        mean_shift_sd=(other.mean - reference.mean) / sd,
        sd_ratio=other.sd / spread,
        coverage50=covered(1, 3),
        coverage90=covered(0, 4),
        wasserstein_sd=np.abs(other.levels - reference.levels).mean(0) / sd,
        tail_error_sd=tails / spread,
    )


class Noise(NamedTuple):
    """Standard errors (quantities,) of shifts, of log sd ratios and of shifts of tail quantiles.

    number: p', of independent quantities
    """

    shift: np.ndarray
    log_ratio: np.ndarray
    tail: np.ndarray
    number: float


def noise(reference: Quantities, other: Quantities) -> Noise:
    """What Monte Carlo error alone would make of two sets of draws of the same quantities."""
    sd, spread = scale_of(reference), np.nan_to_num(other.sd)
    share = np.where(other.is_point, 0.0, (spread / sd) ** 2 / other.size)
    widths = [
        np.maximum(_kurtosis(one) - 1, 0.5) / (4 * one.size)
        for one in (reference, other)
        if not one.is_point
    ]
    shift = np.sqrt(1 / reference.size + share)
    low, high = NEAR_TAIL  # the slope of the quantile function is one over the density
    slopes = np.stack([reference.levels, -reference.levels[::-1]])[:, [low, high]]
    slope = np.mean(slopes[:, 1] - slopes[:, 0], 0) / (LEVELS[high] - LEVELS[low])
    tail = np.sqrt(TAIL * (1 - TAIL)) * slope / sd * shift
    return Noise(shift, np.sqrt(sum(widths)), tail, _independent(reference))


def _kurtosis(one: Quantities) -> np.ndarray:
    centred = (one.draws - one.mean) / np.where(one.sd > 0, one.sd, 1)
    return np.mean(centred**4, 0)


def _independent(reference: Quantities) -> float:
    """p', from the correlations of some of the quantities."""
    varying = np.flatnonzero(~np.isnan(scale_of(reference)))
    some = varying[np.linspace(0, len(varying) - 1, min(len(varying), MOST_CORRELATED)).astype(int)]
    if len(some) < 2:
        return 1.0
    standard = (reference.draws[:, some] - reference.mean[some]) / reference.sd[some]
    pairs = len(some) * (len(some) - 1)
    squares = (np.sum((standard.T @ standard / len(standard)) ** 2) - len(some)) / pairs
    shared = max(squares - 1 / np.mean(reference.size[some]), 0.0)  # less what chance makes
    return len(varying) / (1 + (len(varying) - 1) * shared)


def beyond_noise(shifts: np.ndarray, errors: np.ndarray, number: float) -> tuple[float, float]:
    """Root mean square of shifts without their noise, and its standard error."""
    noise = np.mean(errors**2)
    raw = np.mean(shifts**2)
    left = max(raw - noise, 0.0)
    error = np.sqrt((2 * noise**2 + 4 * left * noise) / number)
    return float(np.sqrt(left)), float(error / (2 * np.sqrt(max(left, error / 2, 1e-300))))


def agreement(reference: Quantities, other: Quantities) -> Agreement:
    """The figures over all quantities; None where there is nothing to compare."""
    varies = ~np.isnan(scale_of(reference))
    if not varies.any():
        return Agreement(quantities=0)
    reference, other = (Quantities(*(x[..., varies] for x in one)) for one in (reference, other))
    one, error = distances(reference, other), noise(reference, other)
    found = Agreement(wasserstein_sd=np.mean(one.wasserstein_sd), quantities=int(varies.sum()))
    means = beyond_noise(one.mean_shift_sd, error.shift, error.number)
    found.mean_error_sd, found.mean_error_se = means
    if not other.is_point:
        ratios = np.log(np.maximum(one.sd_ratio, 1e-12))
        found.sd_ratio = np.exp(np.mean(ratios))
        found.sd_ratio_se = found.sd_ratio * np.sqrt(np.mean(error.log_ratio**2) / error.number)
        off = np.abs(ratios) > OFF_WIDTH + SURE * error.log_ratio
        found.widths_off = np.mean(off)
        found.coverage50, found.coverage90 = np.mean(one.coverage50), np.mean(one.coverage90)
        tails = beyond_noise(one.tail_error_sd, error.tail, error.number)
        found.tail_error_sd, found.tail_error_se = tails
        found.correlation_error = correlation_error(reference, other)
    return found


def worst(reference: Quantities, other: Quantities) -> tuple[int, float] | None:
    """The quantity furthest off beyond its noise, and by how many sds; None if none is."""
    shifts, errors = distances(reference, other).mean_shift_sd, noise(reference, other).shift
    sure = np.abs(shifts) - SURE * errors
    if not np.any(sure > 0):
        return None
    place = int(np.nanargmax(sure))
    return place, float(shifts[place])


def correlation_error(reference: Quantities, other: Quantities) -> float | None:
    """Mean absolute difference of correlations; None where fewer than two quantities vary."""
    varying = np.flatnonzero(~np.isnan(scale_of(reference)) & ~np.isnan(scale_of(other)))
    block = varying[np.argsort(-reference.sd[varying], kind="stable")[:BLOCK]]
    if len(block) < 2:
        return None
    first, second = (
        np.corrcoef(one.draws[:, block].astype(np.float64), rowvar=False)
        for one in (reference, other)
    )
    return float(np.mean(np.abs(first - second)[np.triu_indices(len(block), 1)]))


def reweighted(reference: Quantities, other: Quantities, weights: np.ndarray) -> Reweighted:
    """Figures of weighted draws; the weights sum to one."""
    sd = scale_of(reference)
    varies = ~np.isnan(sd)
    if not varies.any():
        return Reweighted()
    reference, other = (Quantities(*(x[..., varies] for x in one)) for one in (reference, other))
    draws, sd = other.draws.astype(np.float64), sd[varies]
    mean = weights @ draws
    ratios = np.sqrt(np.maximum(weights @ (draws - mean) ** 2, 1e-300)) / sd
    errors = np.sqrt(1 / reference.size + ratios**2 * np.sum(weights**2))
    error, _ = beyond_noise((mean - reference.mean) / sd, errors, 1.0)
    return Reweighted(mean_error_sd=error, sd_ratio=float(np.exp(np.mean(np.log(ratios)))))


def pick(shapes: Mapping[str, tuple[int, ...]], most: int, seed: Any) -> dict[str, np.ndarray]:
    """At most `most` random places in each flattened site, sorted."""
    rng = np.random.default_rng(seed)
    sizes = {site: int(np.prod(shape, dtype=np.int64)) for site, shape in shapes.items()}
    return {
        site: np.sort(rng.choice(size, most, replace=False)) if size > most else np.arange(size)
        for site, size in sizes.items()
    }
