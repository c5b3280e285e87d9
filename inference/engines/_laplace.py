r"""$\log \tilde p(\theta \mid D)$ at one value of $\theta$: the mode, and the factors about it.

These are H(8)–(11) of Hu et al. (H), for `laplace` and `inla`; the page of `laplace` has the
equations.
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
    """The approximation at one value of theta.

    theta:     log theta
    value:     log p~(log theta | D), up to a constant
    point:     x*, where the search at the next value begins
    natural:   parameters of the factors: positive coordinates (b, p), real rows (P m, -P/2)
    sweeps:    number of sweeps of coordinate ascent
    converged: whether it converged
    """

    theta: np.ndarray
    value: float
    point: Sites
    natural: Sites
    sweeps: int
    converged: bool


def suits(model: Any) -> str:
    for site, family in model.families.items():
        if site not in model.marginal.gridded and family.name not in FAMILIES:
            return (
                "The Laplace engines need rows of real or positive numbers given the "
                f"hyper-parameters, but {site} of {model.name} is {family.name}: use cavi."
            )
    return ""


def names_of(problem: obj.Problem) -> tuple[str, ...]:
    """The unknown hyper-parameters: those that are sites."""
    return tuple(name for name in problem.model.marginal.gridded if name in problem.model.families)


def fixed(problem: obj.Problem, theta: np.ndarray) -> obj.Problem:
    """The same problem with theta known."""
    known = zip(names_of(problem), np.exp(theta).tolist(), strict=True)
    hyper = problem.hyper._replace(**dict(known))
    model = choose_variant(problem.model, hyper, problem.data.kind)
    return problem._replace(model=model, hyper=as_arrays(hyper))


def summary_of_method(method: str) -> str:
    return "log_mode" if method == "log" else "mode"


def curvatures(model, hyper, stats, batch) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Site -> (g, P): gradient of log p(x, D | theta) and minus its Hessian, row by row."""
    gradient = jax.grad(lambda t: joint(model, hyper, t, batch))(stats)
    found = {}
    for site in model.families:
        linear = bent = -2 * gradient[site].second
        if site in model.curved:
            bent = linear - ascent.bending(model, hyper, stats, batch, site)
        found[site] = (gradient[site].first - ascent.row_products(linear, stats[site].first), bent)
    return found


def _half_line(x, g, p):
    """log int_0^inf exp(g (y - x) - p (y - x)^2 / 2) dy, without differences of large numbers."""
    above = g + p * x > 0
    offset = jnp.where(above, x + g / p, 0)  # the top of the parabola
    inside = 0.5 * (g**2 / p + jnp.log(2 * jnp.pi / p)) + jnp.log(ndtr(offset * jnp.sqrt(p)))
    outside = pos.moments(jnp.where(above, -1.0, g + p * x), p).log_z - x * (g + 0.5 * p * x)
    return jnp.where(above, inside, outside)


def factors(model, hyper, point, batch, method):
    """-log p_G(x) of all rows' factors, and their natural parameters."""
    stats = {site: model.families[site].stats(x) for site, x in point.items()}
    total, natural, shifted = jnp.zeros(()), {}, method in ("log", "truncated")
    for site, (g, P) in curvatures(model, hyper, stats, batch).items():
        x, positive = stats[site].first, model.families[site].settles
        if positive:
            p = jnp.broadcast_to(jnp.diagonal(P, axis1=1, axis2=2), x.shape)
            natural[site] = Pair(g + p * x, p)
        else:
            natural[site] = Pair(g + ascent.row_products(P, x), -0.5 * P)
        if positive and shifted:
            total += jnp.sum(_half_line(x, g, p))
        else:  # H(8) as printed leaves the gradient at the mode out
            family = fam.normal if len(P) == len(g) else fam.normal_tied
            about = Pair(g if shifted else jnp.zeros_like(g), -0.5 * P)
            total += jnp.sum(family.log_normalizer(about))
    return total, natural


def _whole(model, hyper, values, batch):
    """-log p_G(x) of one normal with the whole Hessian; nan if that is not negative definite."""
    flat, unravel = jax.flatten_util.ravel_pytree(values)
    if len(flat) > MOST_COORDINATES:
        raise InputError(
            f"method='full' needs the Hessian of {len(flat)} coordinates, more than "
            f"{MOST_COORDINATES}: use another method."
        )
    hessian = jax.hessian(lambda x: log_joint(model, hyper, unravel(x), batch))(flat)
    sign, log_det = np.linalg.slogdet(-np.asarray(hessian, np.float64))
    return 0.5 * (len(flat) * np.log(2 * np.pi) - log_det) if sign > 0 else np.nan


def with_theta(sites: Sites, names: tuple[str, ...], theta: Any) -> Sites:
    """The sites' values, and those of the hyper-parameters."""
    return {**sites, **{name: jnp.exp(theta[i : i + 1]) for i, name in enumerate(names)}}


@partial(jax.jit, static_argnames=("whole", "model", "names", "method"))
def _evaluate(
    whole, whole_hyper, model, hyper, names, theta, start, batch, method, most, tolerance
):
    """The ascent, log p(x, theta, D), -log p_G(x), and the factors' natural parameters."""
    hyper = hyper._replace(**{name: jnp.exp(theta[i]) for i, name in enumerate(names)})
    climbed = ascent.ascend(model, hyper, start, batch, summary_of_method(method), most, tolerance)
    correction, natural = factors(model, hyper, climbed.values, batch, method)
    sites = with_theta(climbed.values, names, theta)
    return climbed, log_joint(whole, whole_hyper, sites, batch), correction, natural


def evaluate(
    problem: obj.Problem, theta: np.ndarray, start: Sites, batch: Any, options: Any
) -> Any:
    """Dispatch the approximation at theta, from the given values; returns a function that waits.

    So the devices work side by side.
    """
    given, theta = fixed(problem, theta), np.asarray(theta, float)
    arrays = (problem.hyper, given.hyper, jnp.asarray(theta, float), dict(start))
    outer, inner, log_theta, start = jax.device_put(arrays, batch.mask.sharding)
    parts = problem.model, outer, given.model, inner, names_of(problem), log_theta, start, batch
    found = _evaluate(*parts, options.method, options.num_sweeps, options.sweep_tolerance)

    def wait() -> Found:
        climbed, height, correction, natural = found
        if options.method == "full":
            correction = _whole(given.model, given.hyper, climbed.values, batch)
        value = float(height) + float(correction) + float(np.sum(theta))
        converged, value = np.isfinite(value), value if np.isfinite(value) else -np.inf
        point, natural = jax.tree.map(np.asarray, (climbed.values, natural))
        converged &= bool(climbed.converged)
        return Found(theta, value, point, natural, int(climbed.number), bool(converged))

    return wait
