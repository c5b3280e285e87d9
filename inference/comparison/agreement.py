"""How far two sets of draws of the same quantities are apart, every distance in units of the reference's posterior sd.

Per quantity, with m, s and Q the mean, sd and quantile function of the engine's draws, and m0, s0 and Q0 those of the reference's:

    mean_shift_sd    (m - m0) / s0
    sd_ratio         s / s0; mean-field posteriors lie below 1
    coverage50, 90   share of the reference's draws inside the engine's central 50 and 90 % intervals; 0.5 and 0.9 are right
    wasserstein_sd   the 1-Wasserstein distance, the mean of |Q - Q0| / s0 over levels (for a point estimate: of the point mass)
    tail_error_sd    the mean of |Q - Q0| / s0 at the levels 5 and 95 %

Over many quantities: means, and of ratios the median. mean_error_sd is the mean of |mean_shift_sd|. correlation_error is the mean absolute difference
of posterior correlations within a block of at most `BLOCK` quantities, those of largest reference sd.

What the reference knows exactly has no scale and is left out: its figures are nan.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

LEVELS = (np.arange(100) + 0.5) / 100  # where quantile functions are compared
ENDS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the intervals, and the median
BLOCK = 8
FIGURES = (
    "mean_error_sd",
    "sd_ratio",
    "coverage50",
    "coverage90",
    "wasserstein_sd",
    "tail_error_sd",
    "correlation_error",
)
SPREADS = (
    "sd_ratio",
    "coverage50",
    "coverage90",
    "tail_error_sd",
    "correlation_error",
)  # which a point estimate does not have


class Quantities(NamedTuple):
    """Draws (n, quantities), their means and sds, and their quantiles at `LEVELS` and at `ENDS`."""

    draws: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    levels: np.ndarray
    ends: np.ndarray

    @property
    def is_point(self) -> bool:
        return len(self.draws) == 1


class Distances(NamedTuple):
    """The figures above, one per quantity."""

    mean_shift_sd: np.ndarray
    sd_ratio: np.ndarray
    coverage50: np.ndarray
    coverage90: np.ndarray
    wasserstein_sd: np.ndarray
    tail_error_sd: np.ndarray


def quantities(draws: np.ndarray) -> Quantities:
    """The summaries of draws (n, ...), every entry a quantity of its own."""
    draws = np.asarray(draws).reshape(len(draws), -1)
    mean = draws.mean(0, dtype=np.float64)
    sd = draws.std(0, dtype=np.float64, ddof=1) if len(draws) > 1 else np.full(mean.shape, np.nan)
    found = np.quantile(draws, [*LEVELS, *ENDS], axis=0)
    return Quantities(draws, mean, sd, found[: len(LEVELS)], found[len(LEVELS) :])


def join(parts: Iterable[Quantities]) -> Quantities:
    """Quantities side by side."""
    return Quantities(*(np.concatenate(field, axis=-1) for field in zip(*parts, strict=True)))


def scale_of(reference: Quantities) -> np.ndarray:
    """The reference's sds; nan where it knows a quantity exactly, rounding aside."""
    size = np.maximum(np.abs(reference.mean), np.finfo(np.float32).tiny)
    return np.where(reference.sd > 1e-6 * size, reference.sd, np.nan)


def distances(reference: Quantities, other: Quantities) -> Distances:
    """How far each quantity is from the reference's."""
    sd = scale_of(reference)
    none = np.full(sd.shape, np.nan)

    def inside(low: int, high: int) -> np.ndarray:
        share = np.mean(
            (reference.draws >= other.ends[low]) & (reference.draws <= other.ends[high]), axis=0
        )
        return np.where(np.isnan(sd) | ~np.isfinite(other.mean), np.nan, share)

    return Distances(
        (other.mean - reference.mean) / sd,
        none if other.is_point else other.sd / sd,
        none if other.is_point else inside(1, 3),
        none if other.is_point else inside(0, 4),
        np.abs(other.levels - reference.levels).mean(0) / sd,
        none
        if other.is_point
        else np.abs(other.ends[[0, 4]] - reference.ends[[0, 4]]).mean(0) / sd,
    )


def agreement(reference: Quantities, other: Quantities) -> dict[str, Any]:
    """The figures over all quantities; None where there is nothing to say."""
    found, moves = distances(reference, other), ~np.isnan(scale_of(reference))
    if not moves.any():
        return {**dict.fromkeys(FIGURES), "quantities": 0}
    one = Distances(*(field[moves] for field in found))
    record: dict[str, Any] = {
        name: np.mean(getattr(one, name))
        for name in ("coverage50", "coverage90", "wasserstein_sd", "tail_error_sd")
    }
    record |= {
        "mean_error_sd": np.mean(np.abs(one.mean_shift_sd)),
        "sd_ratio": np.median(one.sd_ratio),
    }
    record["correlation_error"] = None if other.is_point else correlation_error(reference, other)
    if other.is_point:
        record |= dict.fromkeys(SPREADS)
    return {**{name: record[name] for name in FIGURES}, "quantities": int(moves.sum())}


def correlation_error(reference: Quantities, other: Quantities) -> float | None:
    """The mean absolute difference of correlations among the few quantities of largest reference sd; None where fewer than two vary."""
    varying = np.flatnonzero(~np.isnan(scale_of(reference)) & ~np.isnan(scale_of(other)))
    block = varying[np.argsort(-reference.sd[varying], kind="stable")[:BLOCK]]
    if len(block) < 2:
        return None
    pairs = np.triu_indices(len(block), 1)
    first, second = (
        np.asarray(np.corrcoef(one.draws[:, block].astype(np.float64), rowvar=False))[pairs]
        for one in (reference, other)
    )
    return float(np.mean(np.abs(first - second)))


def reweighted(
    reference: Quantities, other: Quantities, weights: np.ndarray
) -> dict[str, float | None]:
    """mean_error_sd and sd_ratio of draws with weights that sum to one."""
    sd = scale_of(reference)
    moves = ~np.isnan(sd)
    if not moves.any():
        return {"mean_error_sd": None, "sd_ratio": None}
    draws = other.draws[:, moves].astype(np.float64)
    mean = weights @ draws
    spread = np.sqrt(np.maximum(weights @ (draws - mean) ** 2, 0))
    return {
        "mean_error_sd": float(np.mean(np.abs(mean - reference.mean[moves]) / sd[moves])),
        "sd_ratio": float(np.median(spread / sd[moves])),
    }


def pick(shapes: Mapping[str, tuple[int, ...]], most: int, seed: Any) -> dict[str, np.ndarray]:
    """Of each site at most so many of its numbers, at random, as sorted places in the flattened site."""
    rng = np.random.default_rng(seed)
    sizes = {site: int(np.prod(shape, dtype=np.int64)) for site, shape in shapes.items()}
    return {
        site: np.sort(rng.choice(size, most, replace=False)) if size > most else np.arange(size)
        for site, size in sizes.items()
    }
