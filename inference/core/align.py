"""Alignment: the labels of factors mean nothing, so two posteriors are compared only after one labelling is chosen for both.

A posterior that is invariant to permuting its factors has K! copies of every mode. MCMC visits some of them, a mean-field posterior sits in
one. Each draw of each posterior is therefore relabelled to lie nearest to one stated pivot: both posteriors are pushed onto the same
representative of every orbit, and what is compared afterwards depends on nothing but the invariant posterior. `Model.symmetry` says what the
posterior is invariant to:

    permutation          of the factors, in all sites at once
    signed_permutation   the same, and the sign of each factor in the sites `Model.rotated`: those of the space known up to signs
    scale                permutation, and theta c, beta / c for a positive c of each factor: factors of the profile site are divided by their sum
                         and those of the first local site multiplied by it, so that products stay as they are
    rotation             of the space of the sites `Model.rotated`, reflections included; beside a permutation, where both are declared
    none                 nothing to align

The profile site tells factors apart: the first global one with one axis of factors and several numbers for each (of signed permutations, the first
of `Model.rotated`). The cost of giving label j of the pivot to factor k is, for the positive factors of topic models (Dirichlet, gamma, and all that
are known up to scale), the squared Hellinger distance of the two normalised to sum to one,

    1 - sum_v sqrt(p_jv q_kv),

bounded, zero only for equal factors, and not ruled by the few largest words as a squared error would be. The size of other factors
(probabilities, means, precisions) means something, and they may be negative: their cost is the squared difference, every coordinate in units of
its standard deviation over all factors of all draws; where the sign is free, in units of its root mean square, and the smaller of the differences to
the factor and to its negative. The assignment of least total cost is found by the Hungarian method. Rotations are orthogonal Procrustes.

Factors that hardly differ have no labelling to find: say so from the result, not from here.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import linear_sum_assignment

from inference.core.modes import Modes, find_modes
from pp_models.errors import InputError, unknown
from pp_models.model import Model, factor_axes, value_shapes

__all__ = [
    "Labels",
    "Modes",
    "Pivot",
    "align_draws",
    "common_labels",
    "find_labels",
    "find_modes",
    "hellinger",
    "permute",
    "relabel",
    "topic_order",
]

Values = Mapping[str, Any]  # site -> (..., *site shape)
Distance = Callable[[np.ndarray, np.ndarray], np.ndarray]
SYMMETRIES = ("permutation", "signed_permutation", "rotation", "scale", "none")
NORMALISED = (
    "dirichlet",
    "gamma",
    "gamma_tied",
)  # families of factors of which only the shape matters, not the size
MOST_ROUNDS = 10  # of alignment to the mean of what was aligned
AT_REST = (
    1e-6  # a pivot that moves less, relative to its size, is the mean of what is aligned to it
)
BLOCK = 2**22  # numbers of the profile site that are held in double precision at a time


class Pivot(dict[str, np.ndarray]):
    """Site -> the value (*site shape) that draws are aligned to, with the unit of every coordinate of the cost (None: it needs none).

    With its unit a pivot assigns every draw its labels, whatever other draws come along. A plain dict takes the unit from the draws given with it.
    """

    def __init__(self, values: Values, unit: np.ndarray | None) -> None:
        super().__init__({site: np.asarray(value) for site, value in values.items()})
        self.unit = unit


class Labels(NamedTuple):
    """What turns each draw into the one nearest to the pivot; None where there is nothing to do.

    order: (..., K) factors in the order of the pivot's. sign: (..., K), +1 or -1, of the factors so ordered. turn: (..., m, m) rotations Q, x -> x Q
    """

    order: np.ndarray | None = None
    sign: np.ndarray | None = None
    turn: np.ndarray | None = None


# The cost of labels ------------------------------------------------------------------------------------------------------------


def hellinger(reference: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Squared Hellinger distances (..., K, K) between the K reference factors (K, V) and each set of factors (..., K, V)."""
    return 1 - _root(reference) @ np.swapaxes(_root(factors), -1, -2)


def _root(factors: Any) -> np.ndarray:
    factors = np.asarray(factors, np.float64)
    total = factors.sum(-1, keepdims=True)
    return np.sqrt(factors / np.where(total > 0, total, 1))


def squared(
    reference: np.ndarray, factors: np.ndarray, unit: np.ndarray | None = None
) -> np.ndarray:
    """Squared differences (..., K, K) between reference factors (K, V) and others (..., K, V), coordinates in units of their sd over all of them."""
    reference, factors = np.asarray(reference, np.float64), np.asarray(factors, np.float64)
    unit = spread(reference, factors) if unit is None else unit
    centre = reference.mean(0)  # for the sake of rounding
    a, b = (reference - centre) / unit, (factors - centre) / unit
    return (
        np.sum(a**2, -1)[:, None] + np.sum(b**2, -1)[..., None, :] - 2 * a @ np.swapaxes(b, -1, -2)
    )


def signed(
    reference: np.ndarray, factors: np.ndarray, unit: np.ndarray | None = None
) -> np.ndarray:
    """The smaller of the squared differences to a factor and to its negative, coordinates in units of their root mean square over all factors."""
    reference, factors = np.asarray(reference, np.float64), np.asarray(factors, np.float64)
    unit = spread(reference, factors, centred=False) if unit is None else unit
    a, b = reference / unit, factors / unit
    return (
        np.sum(a**2, -1)[:, None]
        + np.sum(b**2, -1)[..., None, :]
        - 2 * np.abs(a @ np.swapaxes(b, -1, -2))
    )


def spread(reference: np.ndarray, factors: np.ndarray, centred: bool = True) -> np.ndarray:
    """The sd (or root mean square) of each coordinate over all finite factors; infinite where it never varies and so tells nothing apart."""
    flat = factors.reshape(-1, reference.shape[-1])
    flat = flat[np.isfinite(flat).all(-1)]
    centre = (reference.sum(0) + flat.sum(0, dtype=np.float64)) / (len(reference) + len(flat))
    size = max(1, BLOCK // max(1, flat.shape[-1]))
    parts = [reference, *(flat[i : i + size] for i in range(0, len(flat), size))]
    squares = sum(
        np.sum((np.asarray(part, np.float64) - centre * centred) ** 2, 0) for part in parts
    )
    sd = np.sqrt(squares / (len(reference) + len(flat)))
    return np.where(sd > 1e-9 * np.abs(centre), sd, np.inf)


def topic_order(reference_beta: Any, beta: Any, distance: Distance = hellinger) -> np.ndarray:
    """The permutations (..., K) for which `beta[..., order, :]` is nearest to `reference_beta`, one for each set of topics.

    Factors that are not finite keep the labels they have.
    """
    cost = distance(np.asarray(reference_beta), np.asarray(beta))
    flat = cost.reshape(
        -1, *cost.shape[-2:]
    )  # the distances of all draws at once; only the assignment itself is one call per draw
    finite = np.isfinite(flat).all((1, 2), keepdims=True)
    flat = np.where(finite, flat, 1 - np.eye(cost.shape[-1]))
    return np.array([linear_sum_assignment(one)[1] for one in flat], int).reshape(cost.shape[:-1])


# Relabelling -------------------------------------------------------------------------------------------------------------------


def permute(model: Model, values: Values, order: Any) -> dict[str, np.ndarray]:
    """Every site with its factors in the given order. `order` is (..., K); its leading axes are those of draws and chains."""
    order = np.asarray(order)
    return {
        site: _permute_site(model, site, np.asarray(value), order) for site, value in values.items()
    }


def _permute_site(model: Model, site: str, value: np.ndarray, order: np.ndarray) -> np.ndarray:
    for axis in factor_axes(model).get(site, ()):
        value = np.take_along_axis(value, _along(value, order, axis), axis=axis)
    return value


def _along(value: np.ndarray, factors: np.ndarray, axis: int) -> np.ndarray:
    """Numbers (..., K) of the factors, shaped to broadcast along an axis of the value, which has the same leading axes."""
    shape = [1] * (value.ndim - factors.ndim + 1)
    shape[axis] = factors.shape[-1]
    return factors.reshape(*factors.shape[:-1], *shape)


def relabel(model: Model, draws: Values, labels: Labels) -> dict[str, np.ndarray]:
    """Draws (..., *site shape) of any of the sites with their labels changed, scales, orders, signs and rotations in turn."""
    values = {site: np.asarray(value) for site, value in draws.items()}
    if model.symmetry == "scale":
        values = _rescale(model, values)
    if labels.order is not None and labels.sign is not None:
        values = {
            site: _reorder_and_flip(model, site, value, labels.order, labels.sign)
            for site, value in values.items()
        }
    elif labels.order is not None:
        values = permute(model, values, labels.order)
    if labels.turn is not None:
        values = {site: _turn(model, site, value, labels.turn) for site, value in values.items()}
    return values


def _reorder_and_flip(
    model: Model, site: str, value: np.ndarray, order: np.ndarray, sign: np.ndarray
) -> np.ndarray:
    """Factors in the given order and, in the sites known up to signs, times their signs along every axis of factors."""
    if (
        site in model.rotation.sites and model.families[site].name == "normal_wishart"
    ):  # of D + 1 rows, the mean's is no factor
        return _turn(
            model,
            site,
            value,
            np.swapaxes(np.eye(order.shape[-1])[order], -1, -2) * sign[..., None, :],
        )
    value = _permute_site(model, site, value, order)
    for axis in factor_axes(model)[site] if site in model.rotation.sites else ():
        value = (value * _along(value, sign, axis)).astype(value.dtype)
    return value


def _rescale(model: Model, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Factors of the profile site that sum to one, those of the first local site with the size. An empty factor has no size and is left as it is."""
    site, axis = _profile(model, values)
    others = tuple(range(-_ranks(model)[site], 0))
    size = values[site].sum(tuple(a for a in others if a != axis), dtype=np.float64)
    size = np.where(size > 0, size, 1)
    rescaled = {
        **values,
        site: (values[site] / _along(values[site], size, axis)).astype(values[site].dtype),
    }
    axes = factor_axes(model)
    for local in [name for name in model.families if name in model.local and len(axes[name]) == 1][
        :1
    ]:
        if local in values:
            rescaled[local] = (values[local] * _along(values[local], size, axes[local][0])).astype(
                values[local].dtype
            )
    return rescaled


def _turn(model: Model, site: str, value: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Locations x become x Q, precisions Q' Lambda Q, and a packed mean and precision (mu Q, Q' Lambda Q); sites outside the space stay."""
    if site not in model.rotation.sites:
        return value
    family = model.families[site].name
    if family == "wishart":
        return (np.swapaxes(turn, -1, -2) @ value @ turn).astype(value.dtype)
    if family == "normal_wishart":
        one = turn[..., None, :, :]  # the site's own axis of components
        both = value @ one
        both[..., 1:, :] = np.swapaxes(one, -1, -2) @ both[..., 1:, :]
        return both.astype(value.dtype)
    return (value @ turn).astype(value.dtype)


# Finding labels ----------------------------------------------------------------------------------------------------------------


def align_draws(model: Model, draws: Values, pivot: Values) -> dict[str, np.ndarray]:
    """Draws (..., *site shape) of every site, each relabelled to lie nearest to the pivot, which holds one value (*site shape) per site."""
    return relabel(model, draws, find_labels(model, draws, pivot))


def find_labels(model: Model, draws: Values, pivot: Values) -> Labels:
    """The labels nearest to the pivot's, from the sites that decide (`deciding`) alone."""
    if model.symmetry not in SYMMETRIES:
        raise unknown(f"symmetry of {model.name}", model.symmetry, SYMMETRIES)
    order = sign = turn = None
    if model.symmetry in ("permutation", "signed_permutation", "scale"):
        site, axis = _profile(model, pivot)
        leading = np.ndim(draws[site]) - np.ndim(pivot[site])
        order, sign = _assign(
            model,
            site,
            _as_rows(draws[site], leading, axis),
            _as_rows(pivot[site], 0, axis),
            getattr(pivot, "unit", None),
        )
    if model.symmetry == "rotation" or (model.symmetry == "permutation" and model.rotation.sites):
        site = _first_rotated(model)
        located = (
            np.asarray(draws[site])
            if order is None
            else _permute_site(model, site, np.asarray(draws[site]), order)
        )
        turn = _procrustes(located, np.asarray(pivot[site], np.float64))
    return Labels(order, sign, turn)


def deciding(model: Model, values: Values) -> tuple[str, ...]:
    """The sites from which labels are found."""
    found = [] if model.symmetry in ("none", "rotation") else [_profile(model, values)[0]]
    return tuple(
        dict.fromkeys([*found, *([] if model.symmetry == "none" else model.rotation.sites[:1])])
    )


def _assign(
    model: Model, site: str, factors: np.ndarray, reference: np.ndarray, unit: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Orders, and signs where they are free, of factors (..., K, V), some draws at a time."""
    reference = np.asarray(reference, np.float64)
    unit = _unit(model, site, factors, reference) if unit is None else unit
    flat = factors.reshape(-1, *reference.shape)
    distance: Distance = (
        hellinger
        if unit is None
        else lambda a, b: (signed if model.symmetry == "signed_permutation" else squared)(
            a, b, unit
        )
    )
    orders = np.empty(flat.shape[:2], int)
    signs = np.ones(flat.shape[:2]) if model.symmetry == "signed_permutation" else None
    for part in _blocks(flat):
        orders[part] = topic_order(reference, flat[part], distance)
        if signs is not None and unit is not None:
            ordered = np.take_along_axis(flat[part], orders[part][..., None], 1)
            signs[part] = np.where(np.sum(ordered * (reference / unit**2), -1) < 0, -1.0, 1.0)
    shape = factors.shape[:-1]
    return orders.reshape(shape), None if signs is None else signs.reshape(shape)


def _unit(model: Model, site: str, factors: np.ndarray, reference: np.ndarray) -> np.ndarray | None:
    """Of each coordinate of the cost; None for Hellinger's, which needs none."""
    if model.symmetry == "scale" or (
        model.symmetry == "permutation" and model.families[site].name in NORMALISED
    ):
        return None
    return spread(reference, factors, centred=model.symmetry == "permutation")


def _blocks(values: np.ndarray) -> Iterator[slice]:
    """Slices of the first axis, each of few enough numbers to be copied."""
    size = max(1, BLOCK // max(1, int(np.prod(values.shape[1:]))))
    return (slice(i, i + size) for i in range(0, len(values), size))


def _procrustes(located: np.ndarray, pivot: np.ndarray) -> np.ndarray:
    """Rotations Q (..., m, m) that take locations (..., n, m) nearest to the pivot's: of x'p = U D V', Q is U V'. Not finite: Q = I."""
    product = np.swapaxes(located, -1, -2) @ pivot
    finite = np.isfinite(product).all((-2, -1), keepdims=True)
    left, _, right = np.linalg.svd(np.where(finite, product, np.eye(product.shape[-1])))
    return left @ right


def common_labels(
    model: Model, draws: Values, first: Values
) -> tuple[dict[str, np.ndarray], Pivot]:
    """Draws (n, *site shape) that agree in their labels, and the pivot they were aligned to, by `align_draws`.

    The draws are aligned to the `first`, then to the mean of what came out, and so on until that mean rests, at most `MOST_ROUNDS` times: for
    rotations, generalised Procrustes. The labels are thus the first's, whatever those of the draws. The mean of locations that were rotated is
    shorter than they are, the more so the less is known of their directions: right for a pivot, of which only directions count, and no estimate.
    """
    guides = {site: np.asarray(draws[site]) for site in deciding(model, first)}
    unit = None
    if model.symmetry in ("permutation", "signed_permutation", "scale"):
        site, axis = _profile(model, first)
        unit = _unit(
            model,
            site,
            _as_rows(draws[site], 1, axis),
            np.asarray(_as_rows(first[site], 0, axis), np.float64),
        )
    pivot = Pivot({site: np.asarray(first[site], np.float64) for site in guides}, unit)
    for turn in range(1, MOST_ROUNDS + 1):
        labels = find_labels(model, guides, pivot)
        mean = Pivot(_means(relabel(model, guides, labels)), unit)
        if turn == MOST_ROUNDS or all(
            np.linalg.norm(mean[s] - pivot[s]) <= AT_REST * np.linalg.norm(mean[s]) for s in guides
        ):
            break
        pivot = mean
    aligned = relabel(model, draws, labels)
    return aligned, Pivot({**_means(aligned), **pivot}, unit)


def _means(draws: Values) -> dict[str, np.ndarray]:
    """Over the draws that are finite."""
    out = {}
    for site, value in draws.items():
        finite = np.isfinite(value).reshape(len(value), -1).all(1)
        out[site] = (value if finite.all() else value[finite]).mean(0, dtype=np.float64)
    return out


def pivot_in_words(model: Model) -> str:
    """What draws are aligned to, for a report, where `first` of `common_labels` was the draw of highest log joint density."""
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
        f"Every draw is {what} to lie nearest, in {sites}, to the mean of the reference's own draws, which were first aligned to their draw of "
        "highest log joint density and then to their mean until it rested."
    )


@cache
def _ranks(model: Model) -> dict[str, int]:
    """Site -> the number of axes of its value."""
    hyper, data = model.example(jax.random.key(0))
    return {site: len(shape) for site, shape in value_shapes(model, hyper, data).items()}


def _first_rotated(model: Model) -> str:
    if not model.rotation.sites:
        raise InputError(
            f"Model {model.name!r} has symmetry {model.symmetry!r} and must name the sites of that space in `rotated`."
        )
    return model.rotation.sites[0]


def _profile(model: Model, values: Values) -> tuple[str, int]:
    """The global site that tells factors apart, the first with an axis of factors and at least one number for each, and that axis."""
    for site in (
        (_first_rotated(model),) if model.symmetry == "signed_permutation" else model.shared
    ):
        axes = factor_axes(model)[site]
        if len(axes) == 1 and _ranks(model)[site] >= 2 and np.size(values[site]) > 0:
            return site, axes[0]
    raise InputError(
        f"Model {model.name!r} has no global site with one row or column per factor: its posteriors cannot be aligned."
    )


def _as_rows(values: Any, leading: int, axis: int) -> np.ndarray:
    """(..., K, numbers), whichever axis after the leading ones, counted from the end, holds the factors."""
    first = np.moveaxis(np.asarray(values), axis, leading)
    return first.reshape(*first.shape[: leading + 1], -1)
