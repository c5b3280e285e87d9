"""Coordinates in which posteriors are nearly normal: site values of any support to and from real vectors, in double precision on the host.

First each site becomes real numbers, whose posterior is smooth and has no edge:

    simplex            logits of stick-breaking fractions, of which tiny ones are exact: what is left of the stick is summed up from its end
    (0, 1), positive   logit, logarithm
    real               the value itself
    others             NumPyro's own bijection of the support

Then each number is bent to be nearly normal: of a Dirichlet, beta or gamma variable the fractions are beta or gamma distributed, so with a and b
fitted by maximum likelihood to draws, x = Phi^-1(F(y; a, b)) is standard normal where the fit is right. Small concentrations, whose logarithms have
long tails to the left, become as harmless as others. The function used is the one that is linear between a thousand points of this one and beyond
them: a bijection whose slope is known exactly, whatever a and b. They decide on how well it works, not on whether it does.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from scipy import special

TINY = np.finfo(np.float64).tiny
LARGEST = 1e8  # concentration that is fitted to what hardly varies
NODES = np.linspace(-9, 9, 901)  # standard normal values at which functions are tabulated
STEP = NODES[1] - NODES[0]


class Chart(NamedTuple):
    """Real coordinates of a site. to: values (n, *shape) -> y (n, numbers). back: y -> values, and terms of log |dvalue / dy|.

    Numbers of a site that has rows are in the order of its rows, and so are the terms, (n, ...) as many for each.
    """

    size: int  # how many numbers
    bend: str  # the family that y is fitted by: beta, gamma or none
    to: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Marginals(NamedTuple):
    """Which numbers are bent (by their places), and y at `NODES` for each of them."""

    bent: np.ndarray
    table: np.ndarray  # (bent, nodes), rising


def supports(fit: Any) -> dict[str, Any]:
    """Site -> the support of its prior, as NumPyro knows it."""
    trace = handlers.trace(handlers.seed(fit.model.generate, jax.random.key(0))).get_trace(
        fit.hyper, fit.data.pack()
    )
    return {site: trace[site]["fn"].support for site in fit.model.families}


def make_chart(support: Any, shape: tuple[int, ...]) -> Chart:
    """The chart of a site whose values have this support and shape."""
    inner = support
    while isinstance(inner, constraints.independent):
        inner = inner.base_constraint
    if inner == constraints.simplex:
        return _simplex(shape)
    if inner == constraints.unit_interval:
        return _elementwise(
            "beta",
            shape,
            special.logit,
            special.expit,
            lambda y: -np.logaddexp(0, y) - np.logaddexp(0, -y),
        )
    if inner in (constraints.positive, constraints.nonnegative):
        return _elementwise("gamma", shape, np.log, np.exp, lambda y: y)
    if inner in (constraints.real, constraints.real_vector):
        return _elementwise("none", shape, np.asarray, np.asarray, np.zeros_like)
    return _stock(support, shape)


def _elementwise(bend: str, shape: tuple[int, ...], to: Any, back: Any, log_slope: Any) -> Chart:
    return Chart(
        math.prod(shape),
        bend,
        lambda x: to(x).reshape(len(x), -1),
        lambda y: (back(y).reshape(len(y), *shape), log_slope(y)),
    )


def _simplex(shape: tuple[int, ...]) -> Chart:
    def to(x: np.ndarray) -> np.ndarray:
        left = np.cumsum(x[..., ::-1], -1)[..., ::-1]  # of the stick, before each is broken off
        return (np.log(x[..., :-1]) - np.log(left[..., 1:])).reshape(
            len(x), math.prod(shape[:-1]) * (shape[-1] - 1)
        )

    def back(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = y.reshape(len(y), *shape[:-1], shape[-1] - 1)
        taken, kept = -np.logaddexp(0, -y), -np.logaddexp(0, y)  # log fractions
        none = np.zeros((*y.shape[:-1], 1))
        before = np.concatenate([none, np.cumsum(kept, -1)], -1)
        value = np.exp(before + np.concatenate([taken, none], -1))
        return value, taken + kept + before[..., :-1]

    return Chart(math.prod(shape[:-1]) * (shape[-1] - 1), "beta", to, back)


def _stock(support: Any, shape: tuple[int, ...]) -> Chart:
    bijection = biject_to(support)
    real = bijection.inverse_shape(shape)

    def back(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            y = y.reshape(len(y), *real)
            value = bijection(y)
            slope = np.asarray(bijection.log_abs_det_jacobian(y, value))
        return np.asarray(value), slope

    def to(x: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(bijection.inv(x)).reshape(len(x), -1)

    return Chart(math.prod(real), "none", to, back)


def inside(draws: Mapping[str, Any], charts: Mapping[str, Chart]) -> dict[str, np.ndarray]:
    """Draws in double precision, those that were rounded to the edge of their support put next to it."""
    out = {}
    for site, value in draws.items():
        value = np.asarray(value)
        tiny, eps = (
            (np.finfo(value.dtype).tiny, np.finfo(value.dtype).epsneg)
            if value.dtype.kind == "f"
            else (TINY, 0.0)
        )
        value = value.astype(np.float64)
        if charts[site].bend != "none":
            value = np.maximum(value, tiny)
        if charts[site].bend == "beta":
            value = np.minimum(value, 1 - eps)
        out[site] = value
    return out


# Marginals ---------------------------------------------------------------------------------------------------------------------


def fit_marginals(y: np.ndarray, bends: np.ndarray) -> Marginals:
    """Of draws y (n, numbers); `bends` names each number's family."""
    table = np.zeros((y.shape[1], len(NODES)))
    for name, fitted, quantiles in (
        ("beta", _fit_beta, _beta_quantiles),
        ("gamma", _fit_gamma, _gamma_quantiles),
    ):
        which = bends == name
        if which.any():
            a, b = fitted(y[:, which])
            table[which] = quantiles(NODES, a[:, None], b[:, None])
    bent = np.flatnonzero(bends != "none")
    table = table[bent]
    least = 1e-11 * np.maximum(1, np.abs(table[:, :-1]))  # rounding must not make it fall
    return Marginals(
        bent,
        np.concatenate(
            [table[:, :1], table[:, :1] + np.cumsum(np.maximum(np.diff(table), least), 1)], 1
        ),
    )


def _fit_beta(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximum likelihood for fractions with logits y, by Newton's method from the moments, steps cut to a factor e."""
    z = special.expit(y)
    mean, variance = np.clip(z.mean(0), 1e-12, 1 - 1e-12), np.maximum(z.var(0), 1e-24)
    total = np.clip(mean * (1 - mean) / variance - 1, 1e-2, LARGEST)
    shapes = np.array([mean * total, (1 - mean) * total])
    wanted = -np.array(
        [np.logaddexp(0, -y).mean(0), np.logaddexp(0, y).mean(0)]
    )  # mean logarithms of z and 1 - z
    for _ in range(50):
        gradient = wanted - special.digamma(shapes) + special.digamma(shapes.sum(0))
        curve, common = special.polygamma(1, shapes), special.polygamma(1, shapes.sum(0))
        step = gradient / curve
        step += (
            common * step.sum(0) / (1 - common * np.sum(1 / curve, 0))
        ) / curve  # the Hessian is diagonal plus a constant
        shapes = np.clip(shapes * np.exp(np.clip(step / shapes, -1, 1)), 1e-6, LARGEST)
    return shapes[0], shapes[1]


def _fit_gamma(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximum likelihood for positive numbers with logarithms y: shape, and log rate."""
    log_mean = special.logsumexp(y, axis=0) - np.log(len(y))
    gap = np.maximum(log_mean - y.mean(0), 1 / LARGEST)  # log a - digamma(a) of the shape wanted
    shape = (3 - gap + np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(10):
        step = (np.log(shape) - special.digamma(shape) - gap) / (
            1 / shape - special.polygamma(1, shape)
        )
        shape = np.clip(shape * np.exp(np.clip(-step / shape, -1, 1)), 1e-6, LARGEST)
    return shape, np.log(shape) - log_mean


def straighten(marginals: Marginals, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x (n, numbers), nearly standard normal where it was bent, and log |dy / dx| of each number."""
    x, log_slope = y.copy(), np.zeros(y.shape)
    for place, nodes in zip(marginals.bent, marginals.table, strict=True):  # numbers, a few hundred
        cell = np.clip(np.searchsorted(nodes, y[:, place]) - 1, 0, len(nodes) - 2)
        rise = nodes[cell + 1] - nodes[cell]
        x[:, place] = NODES[cell] + STEP * (y[:, place] - nodes[cell]) / rise
        log_slope[:, place] = np.log(rise / STEP)
    return x, log_slope


def bend(marginals: Marginals, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse: y and log |dy / dx| of each number."""
    y, log_slope = x.copy(), np.zeros(x.shape)
    some = x[:, marginals.bent]
    cell = np.clip(np.floor((some - NODES[0]) / STEP).astype(int), 0, len(NODES) - 2)
    number = np.arange(len(marginals.bent))
    low = marginals.table[number, cell]
    rise = marginals.table[number, cell + 1] - low
    y[:, marginals.bent] = low + rise * (some - NODES[cell]) / STEP
    log_slope[:, marginals.bent] = np.log(rise / STEP)
    return y, log_slope


def _beta_quantiles(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Logits. Each is taken from the nearer end, and below what double precision holds from the power law there, F = z^a / (a B(a, b))."""
    low = x < 0
    here, there = np.where(low, a, b), np.where(low, b, a)
    tail = special.ndtr(-np.abs(x))
    z = special.betaincinv(here, there, tail)
    power = (np.log(tail) + np.log(here) + special.betaln(here, there)) / here
    log_z = np.where(z > 1e-290, np.log(np.maximum(z, TINY)), power)
    logit = log_z - np.log1p(-np.minimum(z, 1 - 1e-16))
    return np.where(low, logit, -logit)


def _gamma_quantiles(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    tail = special.ndtr(-np.abs(x))
    z = np.where(x < 0, special.gammaincinv(a, tail), special.gammainccinv(a, tail))
    power = (np.log(tail) + special.gammaln(a + 1)) / a
    return np.where(z > 1e-290, np.log(np.maximum(z, TINY)), power) - b
