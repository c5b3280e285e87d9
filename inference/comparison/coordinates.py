r"""Real coordinates in which posteriors are nearly normal, in double precision on the host.

A chart maps the values of a site to real numbers $y$:

| support | coordinates |
|---|---|
| simplex | logits of stick-breaking fractions |
| $(0, 1)$, positive | logit, logarithm |
| real | the value itself |
| others | NumPyro's bijection of the support |

Then every marginal is transformed to be nearly normal. Fractions of Dirichlet, beta and gamma
variables are beta or gamma distributed. With parameters $a, b$ fitted by maximum likelihood,

$$ x = \Phi^{-1}(F(y; a, b)) $$

is standard normal where the fit is right, also for small concentrations, whose logarithms have
long tails. The transform is tabulated at `NODES` and linear in between and beyond: a bijection with
known slope, whether the fit is good or not.
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
LARGEST = 1e8  # fitted concentration
NODES = np.linspace(-9, 9, 901)  # standard normal values at which transforms are tabulated
STEP = NODES[1] - NODES[0]
Pair = tuple[np.ndarray, np.ndarray]


class Chart(NamedTuple):
    """Real coordinates of a site, rows in order.

    size:   how many numbers
    family: of their marginals: beta, gamma or none
    to:     values (n, *shape) -> y (n, size)
    back:   y -> values, and terms (n, ...) of log |dvalue / dy|, as many for each row
    """

    size: int
    family: str
    to: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray], Pair]


class Marginals(NamedTuple):
    """The places of the transformed numbers, and y at `NODES` for each: (places, nodes), rising."""

    places: np.ndarray
    table: np.ndarray


def supports(fit: Any) -> dict[str, Any]:
    """Site -> the support of its prior."""
    program = handlers.seed(fit.model.generate, jax.random.key(0))
    trace = handlers.trace(program).get_trace(fit.hyper, fit.data.pack())
    return {site: trace[site]["fn"].support for site in fit.model.families}


def make_chart(support: Any, shape: tuple[int, ...]) -> Chart:
    """The chart of a site whose values have this support and shape."""
    inner = support
    while isinstance(inner, constraints.independent):
        inner = inner.base_constraint
    if inner == constraints.simplex:
        return _simplex(shape)
    if inner == constraints.unit_interval:

        def log_slope(y: np.ndarray) -> np.ndarray:
            return -np.logaddexp(0, y) - np.logaddexp(0, -y)

        return _elementwise("beta", shape, special.logit, special.expit, log_slope)
    if inner in (constraints.positive, constraints.nonnegative):
        return _elementwise("gamma", shape, np.log, np.exp, lambda y: y)
    if inner in (constraints.real, constraints.real_vector):
        return _elementwise("none", shape, np.asarray, np.asarray, np.zeros_like)
    return _stock(support, shape)


def _elementwise(family: str, shape: tuple[int, ...], to: Any, back: Any, log_slope: Any) -> Chart:
    return Chart(
        math.prod(shape),
        family,
        lambda x: to(x).reshape(len(x), -1),
        lambda y: (back(y).reshape(len(y), *shape), log_slope(y)),
    )


def _simplex(shape: tuple[int, ...]) -> Chart:
    free = (*shape[:-1], shape[-1] - 1)
    size = math.prod(free)

    def to(x: np.ndarray) -> np.ndarray:
        left = np.cumsum(x[..., ::-1], -1)[..., ::-1]  # summed from the end: exact if tiny
        return (np.log(x[..., :-1]) - np.log(left[..., 1:])).reshape(len(x), size)

    def back(y: np.ndarray) -> Pair:
        y = y.reshape(len(y), *free)
        taken, kept = -np.logaddexp(0, -y), -np.logaddexp(0, y)  # log fractions
        none = np.zeros((*y.shape[:-1], 1))
        before = np.concatenate([none, np.cumsum(kept, -1)], -1)
        value = np.exp(before + np.concatenate([taken, none], -1))
        return value, taken + kept + before[..., :-1]

    return Chart(size, "beta", to, back)


def _stock(support: Any, shape: tuple[int, ...]) -> Chart:
    bijection = biject_to(support)
    real = bijection.inverse_shape(shape)

    def back(y: np.ndarray) -> Pair:
        with jax.enable_x64(True):
            y = y.reshape(len(y), *real)
            value = bijection(y)
            return np.asarray(value), np.asarray(bijection.log_abs_det_jacobian(y, value))

    def to(x: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(bijection.inv(x)).reshape(len(x), -1)

    return Chart(math.prod(real), "none", to, back)


def inside(draws: Mapping[str, Any], charts: Mapping[str, Chart]) -> dict[str, np.ndarray]:
    """Draws in double precision; those rounded to the edge of their support are put next to it."""
    out = {}
    for site, value in draws.items():
        precision = np.finfo(np.asarray(value).dtype)
        least = precision.tiny if charts[site].family != "none" else -np.inf
        most = 1 - precision.epsneg if charts[site].family == "beta" else np.inf
        out[site] = np.clip(np.asarray(value, np.float64), least, most)
    return out


# Marginals ----------------------------------------------------------------------------------------


def fit_marginals(y: np.ndarray, families: np.ndarray) -> Marginals:
    """Fit the family of each number to draws y (n, numbers)."""
    table = np.zeros((y.shape[1], len(NODES)))
    for name, fit, quantiles in (
        ("beta", _fit_beta, _beta_quantiles),
        ("gamma", _fit_gamma, _gamma_quantiles),
    ):
        which = families == name
        if which.any():
            a, b = fit(y[:, which])
            table[which] = quantiles(NODES, a[:, None], b[:, None])
    places = np.flatnonzero(families != "none")
    first, table = table[places, :1], table[places]
    least = 1e-11 * np.maximum(1, np.abs(table[:, :-1]))  # rounding must not make it fall
    rises = np.cumsum(np.maximum(np.diff(table), least), 1)
    return Marginals(places, np.concatenate([first, first + rises], 1))


def _newton(shape: np.ndarray, step: np.ndarray) -> np.ndarray:
    """A step in the logarithm of a shape, at most a factor e."""
    return np.clip(shape * np.exp(np.clip(step / shape, -1, 1)), 1e-6, LARGEST)


def _fit_beta(y: np.ndarray) -> Pair:
    """Maximum likelihood for fractions with logits y, by Newton's method from the moments."""
    z = special.expit(y)
    mean, variance = np.clip(z.mean(0), 1e-12, 1 - 1e-12), np.maximum(z.var(0), 1e-24)
    total = np.clip(mean * (1 - mean) / variance - 1, 1e-2, LARGEST)
    shapes = np.array([mean * total, (1 - mean) * total])
    mean_logs = -np.array([np.logaddexp(0, -y).mean(0), np.logaddexp(0, y).mean(0)])
    for _ in range(50):
        gradient = mean_logs - special.digamma(shapes) + special.digamma(shapes.sum(0))
        curve, common = special.polygamma(1, shapes), special.polygamma(1, shapes.sum(0))
        step = gradient / curve  # the Hessian is diagonal plus a constant
        step += common * step.sum(0) / (1 - common * np.sum(1 / curve, 0)) / curve
        shapes = _newton(shapes, step)
    return shapes[0], shapes[1]


def _fit_gamma(y: np.ndarray) -> Pair:
    """Maximum likelihood for positive numbers with logarithms y: shape, and log rate."""
    log_mean = special.logsumexp(y, axis=0) - np.log(len(y))
    gap = np.maximum(log_mean - y.mean(0), 1 / LARGEST)  # log a - digamma(a) of the shape a
    shape = (3 - gap + np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(10):
        slope = 1 / shape - special.polygamma(1, shape)
        shape = _newton(shape, -(np.log(shape) - special.digamma(shape) - gap) / slope)
    return shape, np.log(shape) - log_mean


def to_normal(marginals: Marginals, y: np.ndarray) -> Pair:
    """x (n, numbers), nearly standard normal where transformed, and log |dy / dx|."""
    x, log_slope = y.copy(), np.zeros(y.shape)
    for place, nodes in zip(marginals.places, marginals.table, strict=True):  # a few hundred
        cell = np.clip(np.searchsorted(nodes, y[:, place]) - 1, 0, len(nodes) - 2)
        rise = nodes[cell + 1] - nodes[cell]
        x[:, place] = NODES[cell] + STEP * (y[:, place] - nodes[cell]) / rise
        log_slope[:, place] = np.log(rise / STEP)
    return x, log_slope


def from_normal(marginals: Marginals, x: np.ndarray) -> Pair:
    """The inverse: y and log |dy / dx|."""
    y, log_slope, places = x.copy(), np.zeros(x.shape), marginals.places
    some = x[:, places]
    cell = np.clip(np.floor((some - NODES[0]) / STEP).astype(int), 0, len(NODES) - 2)
    number = np.arange(len(places))
    low = marginals.table[number, cell]
    rise = marginals.table[number, cell + 1] - low
    y[:, places] = low + rise * (some - NODES[cell]) / STEP
    log_slope[:, places] = np.log(rise / STEP)
    return y, log_slope


def _log_quantile(z: np.ndarray, power_law: np.ndarray) -> np.ndarray:
    """log z, or the power law of the tail where z underflows."""
    return np.where(z > 1e-290, np.log(np.maximum(z, TINY)), power_law)


def _beta_quantiles(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Logits, each from the nearer end. The tail is F = z^a / (a B(a, b))."""
    low = x < 0
    here, there = np.where(low, a, b), np.where(low, b, a)
    tail = special.ndtr(-np.abs(x))
    z = special.betaincinv(here, there, tail)
    power_law = (np.log(tail) + np.log(here) + special.betaln(here, there)) / here
    logit = _log_quantile(z, power_law) - np.log1p(-np.minimum(z, 1 - 1e-16))
    return np.where(low, logit, -logit)


def _gamma_quantiles(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    tail = special.ndtr(-np.abs(x))
    z = np.where(x < 0, special.gammaincinv(a, tail), special.gammainccinv(a, tail))
    return _log_quantile(z, (np.log(tail) + special.gammaln(a + 1)) / a) - b
