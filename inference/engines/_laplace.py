"""log p~(theta | D) at one value of theta: the rows' mode, and their factors about it (H 8-11).

What `laplace` and `inla` share; the page of `laplace` has the equations.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from inference.core import objective as obj
from inference.engines import _ascent as ascent
from pp_models import families as fam
from pp_models.errors import InputError
from pp_models.families import Pair
from pp_models.families import positive_normal as pos
from pp_models.model import Sites, as_arrays, choose_variant, joint, log_joint

METHODS = ("log", "truncated", "paper", "full")
FAMILIES = ("normal", "normal_tied", "positive", "positive_tied")
MOST_COORDINATES = 4000  # for a whole Hessian


class Found(NamedTuple):
    """What is known at one value of theta."""

    theta: np.ndarray  # log theta
    value: float  # log p~(log theta | D), up to a constant
    point: Sites  # x*, to begin the next value with
    natural: (
        Sites  # of the rows' factors, (b, p) of positive coordinates or (P m, -P/2) of real rows
    )
    sweeps: int
    converged: bool


def suits(model: Any) -> str:
    for site, family in model.families.items():
        if site not in model.marginal.gridded and family.name not in FAMILIES:
            needed = "rows of real or positive numbers given the hyper-parameters"
            return f"The Laplace engines need {needed}, but {site} of {model.name} is {family.name}: use cavi."
    return ""


# Hyper-parameters fixed, one value after the other ------------------------------------------------------------------------------------


def names_of(problem: obj.Problem) -> tuple[str, ...]:
    """The hyper-parameters that are sites, and so unknown."""
    return tuple(name for name in problem.model.marginal.gridded if name in problem.model.families)


def fixed(problem: obj.Problem, theta: np.ndarray) -> obj.Problem:
    """The same problem with theta known."""
    hyper = problem.hyper._replace(
        **{name: float(np.exp(x)) for name, x in zip(names_of(problem), theta, strict=True)}
    )
    return problem._replace(
        model=choose_variant(problem.model, hyper, problem.data.kind), hyper=as_arrays(hyper)
    )


def summary_of_method(method: str) -> str:
    return "log_mode" if method == "log" else "mode"


# log p~ at one value of theta -----------------------------------------------------------------------------------------------------------


def curvatures(model, hyper, stats, batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Site -> (g, P): the gradient of log p(x, D | theta) in x, (rows, K), and minus its Hessian in each row, (rows or 1, K, K)."""
    gradient = jax.grad(lambda t: joint(model, hyper, t, batch))(stats)
    found = {}
    for site in model.families:
        linear = -2 * gradient[site].second
        bent = (
            linear - ascent.bending(model, hyper, stats, batch, site)
            if site in model.curved
            else linear
        )
        found[site] = (gradient[site].first - ascent.row_products(linear, stats[site].first), bent)
    return found


def _half_line(x, g, p):
    """log int_0^inf exp(g (y - x) - p (y - x)^2 / 2) dy, element by element, as a distance from the top and not as a difference of large numbers."""
    above = g + p * x > 0
    offset = x + g / p  # where the parabola has its top
    inside = 0.5 * (g**2 / p + jnp.log(2 * jnp.pi / p)) + jnp.log(
        ndtr(jnp.where(above, offset, 0) * jnp.sqrt(p))
    )
    outside = pos.moments(jnp.where(above, -1.0, g + p * x), p).log_z - x * (g + 0.5 * p * x)
    return jnp.where(above, inside, outside)


def _normal_integral(g, P, shifted):
    """sum over rows of log int exp(g'y - y'P y / 2) dy, with g or, at a mode, without it."""
    family = fam.normal if len(P) == len(g) else fam.normal_tied
    return jnp.sum(family.log_normalizer(Pair(g if shifted else jnp.zeros_like(g), -0.5 * P)))


def factors(model, hyper, point, batch, method):
    """-log p_G(x) of all rows' factors, and their natural parameters."""
    stats = {site: model.families[site].stats(x) for site, x in point.items()}
    total, natural = jnp.zeros(()), {}
    for site, (g, P) in curvatures(model, hyper, stats, batch).items():
        x = stats[site].first
        if model.families[site].settles:
            p = jnp.broadcast_to(jnp.diagonal(P, axis1=1, axis2=2), x.shape)
            natural[site] = Pair(g + p * x, p)
        else:
            natural[site] = Pair(g + ascent.row_products(P, x), -0.5 * P)
        if model.families[site].settles and method in ("log", "truncated"):
            total += jnp.sum(_half_line(x, g, p))
        else:
            total += _normal_integral(g, P, method in ("log", "truncated"))
    return total, natural


def _whole(model, hyper, values, batch):
    """-log p_G(x) of one normal with the whole Hessian, the scale lines' flat directions included as they are."""
    flat, unravel = jax.flatten_util.ravel_pytree(values)
    if len(flat) > MOST_COORDINATES:
        raise InputError(
            f"method='full' needs the Hessian of {len(flat)} coordinates, more than {MOST_COORDINATES}: use another method."
        )
    hessian = jax.hessian(lambda x: log_joint(model, hyper, unravel(x), batch))(flat)
    sign, log_det = np.linalg.slogdet(-np.asarray(hessian, np.float64))
    return 0.5 * (len(flat) * np.log(2 * np.pi) - log_det) if sign > 0 else np.nan


class _Point(NamedTuple):
    """What one compiled program finds at one value of theta."""

    climbed: ascent.Ascent
    height: Any  # log p(x, theta, D)
    correction: Any  # -log p_G(x)
    natural: Sites


@partial(jax.jit, static_argnames=("whole", "model", "names", "method"))
def _evaluate(
    whole, whole_hyper, model, hyper, names, theta, start, batch, method, most, tolerance
):
    hyper = hyper._replace(**{name: jnp.exp(theta[i]) for i, name in enumerate(names)})
    climbed = ascent.ascend(model, hyper, start, batch, summary_of_method(method), most, tolerance)
    correction, natural = factors(model, hyper, climbed.values, batch, method)
    sites = {**climbed.values, **{name: jnp.exp(theta[i : i + 1]) for i, name in enumerate(names)}}
    height = log_joint(whole, whole_hyper, sites, batch)
    return _Point(climbed, height, correction, natural)


def evaluate(
    problem: obj.Problem, theta: np.ndarray, start: Sites, batch: Any, options: Any
) -> Any:
    """log p~(log theta | D) and the factors there, found from the given values: a function that waits for them, so that devices work side by side."""
    given, names = fixed(problem, theta), names_of(problem)
    known = jax.device_put(
        (problem.hyper, given.hyper, jnp.asarray(theta, float), dict(start)), batch.mask.sharding
    )
    settings = options.num_sweeps, options.sweep_tolerance
    found = _evaluate(
        problem.model,
        known[0],
        given.model,
        known[1],
        names,
        *known[2:],
        batch,
        options.method,
        *settings,
    )

    def wait() -> Found:
        point = found.climbed.values
        whole = (
            _whole(given.model, given.hyper, point, batch)
            if options.method == "full"
            else float(found.correction)
        )
        value = float(found.height) + whole + float(np.sum(theta))
        value = value if np.isfinite(value) else -np.inf
        host = [jax.tree.map(np.asarray, x) for x in (point, found.natural)]
        return Found(
            np.asarray(theta, float),
            value,
            host[0],
            host[1],
            int(found.climbed.number),
            bool(found.climbed.rested) and np.isfinite(value),
        )

    return wait
