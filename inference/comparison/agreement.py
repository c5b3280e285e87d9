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

Over quantities these are averaged; `sd_ratio` is a median, and `mean_error_sd` the mean of absolute
shifts. `correlation_error` is the mean absolute difference of correlations among the `BLOCK`
quantities of largest reference sd. Quantities that the reference knows exactly are left out. A
point estimate has no figures of spread.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from inference.comparison.record import Agreement, Reweighted

LEVELS = (np.arange(100) + 0.5) / 100  # at which quantile functions are compared
ENDS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the intervals, and the median
BLOCK = 8


class Quantities(NamedTuple):
    """Draws (n, quantities), their means and sds, and their quantiles at `LEVELS` and `ENDS`."""

    draws: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    levels: np.ndarray
    ends: np.ndarray

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


def quantities(draws: np.ndarray) -> Quantities:
    """Summarise draws (n, ...); every entry is a quantity."""
    draws = np.asarray(draws).reshape(len(draws), -1)
    mean = draws.mean(0, dtype=np.float64)
    sd = draws.std(0, dtype=np.float64, ddof=1) if len(draws) > 1 else np.full(mean.shape, np.nan)
    found = np.quantile(draws, [*LEVELS, *ENDS], axis=0)
    return Quantities(draws, mean, sd, found[: len(LEVELS)], found[len(LEVELS) :])


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


def agreement(reference: Quantities, other: Quantities) -> Agreement:
    """The figures over all quantities; None where there is nothing to compare."""
    varies = ~np.isnan(scale_of(reference))
    if not varies.any():
        return Agreement(quantities=0)
    one = Distances(*(field[varies] for field in distances(reference, other)))
    found = Agreement(
        mean_error_sd=np.mean(np.abs(one.mean_shift_sd)),
        wasserstein_sd=np.mean(one.wasserstein_sd),
        quantities=int(varies.sum()),
    )
    if not other.is_point:
        found.sd_ratio = np.median(one.sd_ratio)
        found.coverage50, found.coverage90 = np.mean(one.coverage50), np.mean(one.coverage90)
        found.tail_error_sd = np.mean(one.tail_error_sd)
        found.correlation_error = correlation_error(reference, other)
    return found


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
    draws = other.draws[:, varies].astype(np.float64)
    mean = weights @ draws
    spread = np.sqrt(np.maximum(weights @ (draws - mean) ** 2, 0))
    shift = np.abs(mean - reference.mean[varies]) / sd[varies]
    return Reweighted(
        mean_error_sd=float(np.mean(shift)), sd_ratio=float(np.median(spread / sd[varies]))
    )


def pick(shapes: Mapping[str, tuple[int, ...]], most: int, seed: Any) -> dict[str, np.ndarray]:
    """At most `most` random places in each flattened site, sorted."""
    rng = np.random.default_rng(seed)
    sizes = {site: int(np.prod(shape, dtype=np.int64)) for site, shape in shapes.items()}
    return {
        site: np.sort(rng.choice(size, most, replace=False)) if size > most else np.arange(size)
        for site, size in sizes.items()
    }
