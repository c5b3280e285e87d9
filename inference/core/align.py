r"""Alignment: factors have no labels, so draws are relabelled before they are compared.

A posterior that is invariant to permuting its factors has $K!$ copies of every mode. Each draw is
relabelled to lie nearest to one pivot, so that all posteriors are compared on the same
representative of every orbit. `Model.symmetry` says what the posterior is invariant to:

| symmetry | invariant to |
|---|---|
| `permutation` | permutations of the factors in all sites at once |
| `signed_permutation` | the same, and the sign of each factor in the sites of `Model.rotation` |
| `scale` | permutations, and $\theta c, \beta / c$ for each factor |
| `rotation` | rotations and reflections of the sites of `Model.rotation`; also with a permutation |
| `none` | nothing |

Factors of the profile site are divided by their sum if the scale is free, and those of the first
local site multiplied by it. The profile site tells factors apart: the first global site with one
axis of factors and several numbers for each. The assignment of least total cost is found by the
Hungarian method. For Dirichlet and gamma factors, and all factors known up to scale, the cost of
factor $k$ for label $j$ is the squared Hellinger distance of the normalised factors,

$$ 1 - \sum_v \sqrt{p_{jv} q_{kv}}. $$

For other factors it is the squared difference in units of each coordinate's standard deviation over
all factors of all draws. If the sign is free, the unit is the root mean square, and the smaller of
the differences to the factor and to its negative counts. Rotations are orthogonal Procrustes.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import linear_sum_assignment

from inference.core.modes import Modes, find_modes
from pp_models.errors import InputError, unknown
from pp_models.model import Model, factor_axes, value_shapes

__all__ = ["Labels", "Modes", "Pivot", "align_draws", "common_labels", "find_labels", "find_modes"]

Values = Mapping[str, Any]  # site -> (..., *site shape)
SYMMETRIES = ("permutation", "signed_permutation", "rotation", "scale", "none")
LABELLED = ("permutation", "signed_permutation", "scale")  # whose factors have labels
NORMALISED = ("dirichlet", "gamma", "gamma_tied")  # families whose factors are compared by shape
MOST_ROUNDS = 10  # of alignment to the mean of the aligned draws
AT_REST = 1e-6  # relative change of the pivot at which these rounds stop
BLOCK = 2**22  # numbers of the profile site that are held in double precision at a time


class Pivot(dict[str, np.ndarray]):
    """Site -> the value that draws are aligned to, and the unit of every coordinate of the cost.

    unit: None for Hellinger distances. With its unit a pivot labels every draw independently of
    other draws. A plain dict takes the unit from the draws given with it.
    """

    def __init__(self, values: Values, unit: np.ndarray | None) -> None:
        super().__init__({site: np.asarray(value) for site, value in values.items()})
        self.unit = unit


class Labels(NamedTuple):
    """What turns each draw into the one nearest to the pivot; None where there is nothing to do.

    order: (..., K) factors in the order of the pivot's. sign: (..., K), +1 or -1, of the ordered
    factors. turn: (..., m, m) rotations Q, x -> x Q
    """

    order: np.ndarray | None = None
    sign: np.ndarray | None = None
    turn: np.ndarray | None = None


# The cost of labels ----------------------------------------------------------------------------


def hellinger(reference: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Squared Hellinger distances (..., K, K) of factors (..., K, V) to references (K, V)."""
    return 1 - _root(reference) @ np.swapaxes(_root(factors), -1, -2)


def _root(factors: Any) -> np.ndarray:
    factors = np.asarray(factors, np.float64)
    total = factors.sum(-1, keepdims=True)
    return np.sqrt(factors / np.where(total > 0, total, 1))


def squared(
    reference: Any, factors: Any, unit: np.ndarray | None = None, signed: bool = False
) -> np.ndarray:
    """Squared differences (..., K, K) of factors (..., K, V) to references (K, V), in units.

    signed: take the smaller of the differences to a factor and to its negative.
    """
    reference, factors = np.asarray(reference, np.float64), np.asarray(factors, np.float64)
    unit = spread(reference, factors, not signed) if unit is None else unit
    centre = 0.0 if signed else reference.mean(0)  # against cancellation
    a, b = (reference - centre) / unit, (factors - centre) / unit
    product = a @ np.swapaxes(b, -1, -2)
    product = np.abs(product) if signed else product
    return np.sum(a**2, -1)[:, None] + np.sum(b**2, -1)[..., None, :] - 2 * product


def spread(reference: np.ndarray, factors: np.ndarray, centred: bool = True) -> np.ndarray:
    """The sd (or root mean square) of each coordinate over all finite factors; inf if constant."""
    flat = factors.reshape(-1, reference.shape[-1])
    flat = flat[np.isfinite(flat).all(-1)]
    number = len(reference) + len(flat)
    centre = (reference.sum(0) + flat.sum(0, dtype=np.float64)) / number
    parts = [reference, *(flat[part] for part in _blocks(flat))]
    squares = sum(np.sum((np.asarray(x, np.float64) - centre * centred) ** 2, 0) for x in parts)
    sd = np.sqrt(squares / number)
    return np.where(sd > 1e-9 * np.abs(centre), sd, np.inf)


def _blocks(values: np.ndarray) -> Iterator[slice]:
    """Slices of the first axis, each of few enough numbers to be copied."""
    size = max(1, BLOCK // max(1, int(np.prod(values.shape[1:]))))
    return (slice(i, i + size) for i in range(0, len(values), size))


def topic_order(reference_beta: Any, beta: Any, distance: Any = hellinger) -> np.ndarray:
    """The permutations (..., K) for which `beta[..., order, :]` is nearest to `reference_beta`.

    Factors that are not finite keep the labels they have.
    """
    cost = distance(np.asarray(reference_beta), np.asarray(beta))
    flat = cost.reshape(-1, *cost.shape[-2:])
    finite = np.isfinite(flat).all((1, 2), keepdims=True)
    flat = np.where(finite, flat, 1 - np.eye(cost.shape[-1]))
    return np.array([linear_sum_assignment(one)[1] for one in flat], int).reshape(cost.shape[:-1])


# Relabelling -----------------------------------------------------------------------------------


def permute(model: Model, values: Values, order: Any) -> dict[str, np.ndarray]:
    """Every site with its factors in the given order (..., K), with the draws' leading axes."""
    order = np.asarray(order)
    return {site: _permute(model, site, np.asarray(x), order) for site, x in values.items()}


def _permute(model: Model, site: str, value: np.ndarray, order: np.ndarray) -> np.ndarray:
    for axis in factor_axes(model).get(site, ()):
        value = np.take_along_axis(value, _along(value, order, axis), axis=axis)
    return value


def _along(value: np.ndarray, factors: np.ndarray, axis: int) -> np.ndarray:
    """Numbers (..., K) of the factors, shaped to broadcast along an axis of the value."""
    shape = [1] * (value.ndim - factors.ndim + 1)
    shape[axis] = factors.shape[-1]
    return factors.reshape(*factors.shape[:-1], *shape)


def relabel(model: Model, draws: Values, labels: Labels) -> dict[str, np.ndarray]:
    """Draws (..., *site shape) of any of the sites, rescaled, reordered, flipped and rotated."""
    values = {site: np.asarray(value) for site, value in draws.items()}
    order, sign, turn = labels
    if model.symmetry == "scale":
        values = _rescale(model, values)
    if order is not None and sign is not None:
        values = {s: _reorder_and_flip(model, s, x, order, sign) for s, x in values.items()}
    elif order is not None:
        values = permute(model, values, order)
    if turn is not None:
        values = {site: _turn(model, site, value, turn) for site, value in values.items()}
    return values


def _reorder_and_flip(
    model: Model, site: str, value: np.ndarray, order: np.ndarray, sign: np.ndarray
) -> np.ndarray:
    """Factors in the given order and, in the sites of `Model.rotation`, times their signs."""
    rotated = site in model.rotation.sites
    if rotated and model.families[site].name == "normal_wishart":  # the mean's row is no factor
        flips = np.swapaxes(np.eye(order.shape[-1])[order], -1, -2) * sign[..., None, :]
        return _turn(model, site, value, flips)
    value = _permute(model, site, value, order)
    for axis in factor_axes(model)[site] if rotated else ():
        value = (value * _along(value, sign, axis)).astype(value.dtype)
    return value


def _rescale(model: Model, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Factors of the profile site that sum to one, those of the first local site with the size."""
    site, axis = _profile(model, values)
    axes = factor_axes(model)
    profile, others = values[site], set(range(-_ranks(model)[site], 0)) - {axis}
    size = profile.sum(tuple(others), dtype=np.float64)
    size = np.where(size > 0, size, 1)  # an empty factor stays as it is
    rescaled = {**values, site: (profile / _along(profile, size, axis)).astype(profile.dtype)}
    rows = [name for name in model.families if name in model.local and len(axes[name]) == 1][:1]
    for name in set(rows) & set(values):
        x = values[name]
        rescaled[name] = (x * _along(x, size, axes[name][0])).astype(x.dtype)
    return rescaled


def _turn(model: Model, site: str, value: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Locations x become x Q, precisions Q' Lambda Q; sites outside the space stay."""
    if site not in model.rotation.sites:
        return value
    family = model.families[site].name
    if family == "wishart":
        return (np.swapaxes(turn, -1, -2) @ value @ turn).astype(value.dtype)
    if family == "normal_wishart":  # (mu Q, Q' Lambda Q) for each component
        one = turn[..., None, :, :]
        both = value @ one
        both[..., 1:, :] = np.swapaxes(one, -1, -2) @ both[..., 1:, :]
        return both.astype(value.dtype)
    return (value @ turn).astype(value.dtype)


# Finding labels --------------------------------------------------------------------------------


def align_draws(model: Model, draws: Values, pivot: Values) -> dict[str, np.ndarray]:
    """Draws (..., *site shape) of every site, each relabelled to lie nearest to the pivot."""
    return relabel(model, draws, find_labels(model, draws, pivot))


def find_labels(model: Model, draws: Values, pivot: Values) -> Labels:
    """The labels nearest to the pivot's, from the sites that decide (`deciding`) alone."""
    if model.symmetry not in SYMMETRIES:
        raise unknown(f"symmetry of {model.name}", model.symmetry, SYMMETRIES)
    order = sign = turn = None
    if model.symmetry in LABELLED:
        site, axis = _profile(model, pivot)
        leading = np.ndim(draws[site]) - np.ndim(pivot[site])
        factors, reference = _as_rows(draws[site], leading, axis), _as_rows(pivot[site], 0, axis)
        order, sign = _assign(model, site, factors, reference, getattr(pivot, "unit", None))
    if model.symmetry == "rotation" or (model.symmetry == "permutation" and model.rotation.sites):
        site = _first_rotated(model)
        located = np.asarray(draws[site])
        located = located if order is None else _permute(model, site, located, order)
        turn = _procrustes(located, np.asarray(pivot[site], np.float64))
    return Labels(order, sign, turn)


def deciding(model: Model, values: Values) -> tuple[str, ...]:
    """The sites from which labels are found."""
    found = [_profile(model, values)[0]] if model.symmetry in LABELLED else []
    rotated = () if model.symmetry == "none" else model.rotation.sites[:1]
    return tuple(dict.fromkeys([*found, *rotated]))


def _assign(
    model: Model, site: str, factors: np.ndarray, reference: np.ndarray, unit: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Orders, and signs where they are free, of factors (..., K, V), some draws at a time."""
    reference = np.asarray(reference, np.float64)
    unit = _unit(model, site, factors, reference) if unit is None else unit
    flat, is_signed = factors.reshape(-1, *reference.shape), model.symmetry == "signed_permutation"

    def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return hellinger(a, b) if unit is None else squared(a, b, unit, is_signed)

    orders, signs = np.empty(flat.shape[:2], int), np.ones(flat.shape[:2])
    for part in _blocks(flat):
        orders[part] = topic_order(reference, flat[part], distance)
        if is_signed and unit is not None:
            ordered = np.take_along_axis(flat[part], orders[part][..., None], 1)
            signs[part] = np.where(np.sum(ordered * (reference / unit**2), -1) < 0, -1.0, 1.0)
    shape = factors.shape[:-1]
    return orders.reshape(shape), signs.reshape(shape) if is_signed else None


def _unit(model: Model, site: str, factors: np.ndarray, reference: np.ndarray) -> np.ndarray | None:
    """The unit of each coordinate of the cost; None for Hellinger's, which needs none."""
    permuted = model.symmetry == "permutation"
    if model.symmetry == "scale" or (permuted and model.families[site].name in NORMALISED):
        return None
    return spread(reference, factors, centred=permuted)


def _procrustes(located: np.ndarray, pivot: np.ndarray) -> np.ndarray:
    """Rotations Q (..., m, m) that take locations (..., n, m) nearest to the pivot's.

    Q = U V' of the singular value decomposition x'p = U D V'; the identity if x is not finite.
    """
    product = np.swapaxes(located, -1, -2) @ pivot
    finite = np.isfinite(product).all((-2, -1), keepdims=True)
    left, _, right = np.linalg.svd(np.where(finite, product, np.eye(product.shape[-1])))
    return left @ right


def common_labels(
    model: Model, draws: Values, first: Values
) -> tuple[dict[str, np.ndarray], Pivot]:
    """Draws (n, *site shape) with common labels, and the pivot they were aligned to.

    The draws are aligned to `first`, then to the mean of the aligned draws until that mean rests
    (for rotations: generalised Procrustes). The labels are those of `first`. The mean of rotated
    locations is shorter than they are: only its directions count, and it is no estimate.
    """
    guides = {site: np.asarray(draws[site]) for site in deciding(model, first)}
    unit = None
    if model.symmetry in LABELLED:
        site, axis = _profile(model, first)
        reference = np.asarray(_as_rows(first[site], 0, axis), np.float64)
        unit = _unit(model, site, _as_rows(draws[site], 1, axis), reference)
    pivot = Pivot({site: np.asarray(first[site], np.float64) for site in guides}, unit)
    for turn in range(1, MOST_ROUNDS + 1):
        labels = find_labels(model, guides, pivot)
        mean = Pivot(_means(relabel(model, guides, labels)), unit)
        size = np.linalg.norm
        rests = all(size(mean[s] - pivot[s]) <= AT_REST * size(mean[s]) for s in guides)
        if rests or turn == MOST_ROUNDS:
            break
        pivot = mean
    aligned = relabel(model, draws, labels)
    return aligned, Pivot({**_means(aligned), **pivot}, unit)


def _means(draws: Values) -> dict[str, np.ndarray]:
    """Means over the draws that are finite."""
    finite = {s: np.isfinite(x).reshape(len(x), -1).all(1) for s, x in draws.items()}
    kept = {s: x if finite[s].all() else x[finite[s]] for s, x in draws.items()}
    return {site: x.mean(0, dtype=np.float64) for site, x in kept.items()}


def pivot_in_words(model: Model) -> str:
    """The pivot in a sentence for a report, where `first` was the most probable draw."""
    if model.symmetry == "none":
        return "Nothing had to be aligned: factors are told apart by the model."
    words = {
        "permutation": "relabelled",
        "signed_permutation": "relabelled, its signs flipped",
        "scale": "relabelled and rescaled",
    }
    what = words.get(model.symmetry, "rotated")
    if model.symmetry == "permutation" and model.rotation.sites:
        what += " and rotated"
    sites = " and ".join(deciding(model, {site: np.ones(1) for site in model.families}))
    return (
        f"Every draw is {what} to lie nearest, in {sites}, to the mean of the reference's own "
        "draws, which were first aligned to their draw of highest log joint density and then to "
        "their mean until it rested."
    )


@cache
def _ranks(model: Model) -> dict[str, int]:
    """Site -> the number of axes of its value."""
    hyper, data = model.example(jax.random.key(0))
    return {site: len(shape) for site, shape in value_shapes(model, hyper, data).items()}


def _first_rotated(model: Model) -> str:
    if not model.rotation.sites:
        raise InputError(
            f"Model {model.name!r} has symmetry {model.symmetry!r} and must name the sites of that "
            "space in `rotated`."
        )
    return model.rotation.sites[0]


def _profile(model: Model, values: Values) -> tuple[str, int]:
    """The site that tells factors apart, and its axis of factors."""
    is_signed = model.symmetry == "signed_permutation"
    for site in (_first_rotated(model),) if is_signed else model.shared:
        axes = factor_axes(model)[site]
        if len(axes) == 1 and _ranks(model)[site] >= 2 and np.size(values[site]) > 0:
            return site, axes[0]
    raise InputError(
        f"Model {model.name!r} has no global site with one row or column per factor: its "
        "posteriors cannot be aligned."
    )


def _as_rows(values: Any, leading: int, axis: int) -> np.ndarray:
    """(..., K, numbers) from values whose axis of factors is `axis`, counted from the end."""
    first = np.moveaxis(np.asarray(values), axis, leading)
    return first.reshape(*first.shape[: leading + 1], -1)


def shapes_of_factors(model: Model, values: Values) -> np.ndarray | None:
    """(K, numbers) positive factors of the profile site, whose shapes tell them apart; or None."""
    if model.symmetry not in LABELLED:
        return None
    try:
        site, axis = _profile(model, values)
    except InputError:
        return None
    family = model.families[site]
    positive = model.symmetry == "scale" or family.name in NORMALISED or family.settles
    return np.asarray(_as_rows(values[site], 0, axis), np.float64) if positive else None
