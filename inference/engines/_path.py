r"""The hyper-parameters' posterior by integrating its slope, if Laplace's approximation fails.

$$ \frac{\partial \log p(\theta, D)}{\partial \log \theta} = \mathbb{E}\Big[
\frac{\partial \log p(x, \theta, D)}{\partial \log \theta} \,\Big|\, \theta, D \Big] $$

This is Fisher's identity. A short Gibbs run at a fixed $\theta$ estimates the expectation; it mixes
well where $\theta$ itself would move slowly. For the precision $\alpha$ of $N$ coordinates the
slope is $N/2 - \alpha \mathbb{E}|x|^2 / 2$ and that of the prior. A polynomial fitted by least
squares to the slopes at a few points about the mode weighs the grid.

Laplace's mode is checked against mean-field inference from the same start, which errs in another
way: both are right if there is signal, and if they disagree neither is.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import objective as obj
from inference.engines import _gibbs_sweep as gibbs
from inference.engines._ascent import sweep_blocks
from inference.engines._laplace import fixed, names_of, with_theta
from pp_models.model import Sites, log_joint

MEAN_FIELD_SWEEPS = 1000  # at most
MEAN_FIELD_REST = 1e-5  # change of log theta in a sweep at which mean-field inference stops
NEAR = 1.5  # standard deviations from the centre at which slopes are taken


@partial(jax.jit, static_argnames=("model", "names"))
def mean_field(model, hyper, start, batch, names):
    """The mean of log theta under the gamma factors of coordinate ascent from the given values."""

    def location(stats):
        return jnp.stack([stats[name].first[0] for name in names])

    def once(carry):
        number, before, _ = carry
        stats, _, _ = sweep_blocks(model, hyper, before, batch, "mean", None)
        return number + 1, stats, jnp.max(jnp.abs(location(stats) - location(before)))

    def goes_on(carry):
        return (carry[0] < MEAN_FIELD_SWEEPS) & (carry[2] > MEAN_FIELD_REST)

    stats = {site: family.stats(start[site]) for site, family in model.families.items()}
    begin = (0, stats, jnp.asarray(jnp.inf, batch.mask.dtype))
    return location(jax.lax.while_loop(goes_on, once, begin)[1])


class Slope(NamedTuple):
    """The mean and sd of d log p(x, theta, D) / d log theta over a run, and its last values."""

    theta: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    values: Sites


@partial(jax.jit, static_argnames=("whole", "model", "names", "num_draws"))
def _run(whole, whole_hyper, model, hyper, names, theta, key, start, batch, num_burn, num_draws):
    """A run at theta. `whole` has theta among its sites, `model` has it given."""
    families = model.families

    def values(stats):
        return {site: families[site].value(t) for site, t in stats.items()}

    def slope(x):
        def height(theta):
            sites = with_theta(x, names, theta)
            return log_joint(whole, whole_hyper, sites, batch) + jnp.sum(theta)

        return jax.grad(height)(theta)

    def once(stats, key):
        stats = gibbs.sweep(model, hyper, key, stats, batch)
        return stats, slope(values(stats))

    def burn(i, stats):
        return gibbs.sweep(model, hyper, jax.random.fold_in(burn_key, i), stats, batch)

    burn_key, draw_key = jax.random.split(key)
    stats = {site: family.stats(start[site]) for site, family in families.items()}
    stats = jax.lax.fori_loop(0, num_burn, burn, stats)
    stats, slopes = jax.lax.scan(once, stats, jax.random.split(draw_key, num_draws))
    return jnp.mean(slopes, 0), jnp.std(slopes, 0), values(stats)


def run(problem: obj.Problem, theta, key, start: Sites, batch, num_sweeps: int) -> Any:
    """Dispatch a run at theta from the given values; returns a function that waits for its slope.

    A quarter as many sweeps are dropped first.
    """
    given = fixed(problem, theta)
    arrays = (problem.hyper, given.hyper, jnp.asarray(theta, float), key, dict(start))
    outer, inner, *rest = jax.device_put(arrays, batch.mask.sharding)
    parts = problem.model, outer, given.model, inner, names_of(problem), *rest, batch
    found = _run(*parts, num_sweeps // 4, num_sweeps)

    def wait() -> Slope:
        mean, sd, values = jax.tree.map(np.asarray, found)
        return Slope(np.asarray(theta, float), mean.astype(float), sd.astype(float), values)

    return wait


class Surface(NamedTuple):
    """A polynomial of log p(log theta, D) in z, up to a constant; log theta = centre + spread z.

    powers: (terms, d). coefficients: (terms,).
    """

    centre: np.ndarray
    spread: np.ndarray
    powers: np.ndarray
    coefficients: np.ndarray

    def place(self, theta: np.ndarray) -> np.ndarray:
        """z of log theta, (..., d)."""
        return np.linalg.solve(self.spread, (theta - self.centre)[..., None])[..., 0]

    def height(self, theta: np.ndarray) -> np.ndarray:
        return np.prod(self.place(theta)[..., None, :] ** self.powers, -1) @ self.coefficients

    def top(self) -> tuple[np.ndarray, np.ndarray]:
        """The top of the quadratic part, at most three sd away, and sds along its axes."""
        size = len(self.centre)
        gradient, hessian = np.zeros(size), np.zeros((size, size))
        for power, c in zip(self.powers, self.coefficients, strict=True):
            at = np.repeat(np.arange(size), power)
            if len(at) == 1:
                gradient[at[0]] = c
            elif len(at) == 2:
                hessian[at[0], at[1]] = hessian[at[1], at[0]] = c * (2 if at[0] == at[1] else 1)
        curvature, axes = np.linalg.eigh(-hessian)
        scale = 1 / np.sqrt(np.maximum(curvature, 0.1))  # at most three times the sd assumed
        step = axes @ ((axes.T @ gradient) * scale**2)
        step *= min(1.0, 3 / max(float(np.linalg.norm(step)), 1e-300))
        return self.centre + self.spread @ step, self.spread @ (axes * scale)


def fit_surface(
    centre: np.ndarray, spread: np.ndarray, slopes: list[Slope], degree: int
) -> Surface:
    """The polynomial whose slopes are nearest to those found, in units of their own sds."""
    size = len(centre)
    powers = np.array([p for p in np.ndindex(*(degree + 1,) * size) if 0 < sum(p) <= degree])
    surface = Surface(centre, spread, powers, np.zeros(len(powers)))
    z = surface.place(np.stack([one.theta for one in slopes]))
    noise = np.sqrt(np.mean([one.sd**2 for one in slopes], 0))
    by_z = []  # d z^power / d z_k
    for k in range(size):
        lower = np.maximum(powers - np.eye(size, dtype=int)[k], 0)
        by_z.append(powers[:, k] * np.prod(z[:, None, :] ** lower, -1))
    by_theta = np.einsum("kpt,kl->lpt", np.stack(by_z), np.linalg.inv(spread))
    left = np.concatenate([by_theta[k] / noise[k] for k in range(size)])
    right = np.concatenate([[one.mean[k] / noise[k] for one in slopes] for k in range(size)])
    return surface._replace(coefficients=np.linalg.lstsq(left, right, rcond=None)[0])


def falls(surface: Surface, centre: np.ndarray, spread: np.ndarray) -> bool:
    """Whether the surface falls in every direction from 2.5 sd on, enough for the grid to end."""
    size = len(centre)
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    ways = np.stack([np.cos(angles), np.sin(angles)], 1) if size == 2 else np.array([[1.0], [-1.0]])
    radii = (0.0, 2.5, 3.5, 4.5, 5.5)
    heights = [surface.height(centre + radius * ways @ spread.T) for radius in radii]
    low = np.all(heights[1] < heights[0] - 1) and np.all(heights[3] < heights[0] - 7.5)
    return bool(low and np.all(np.diff(heights[1:], axis=0) < 0))


def weigh(
    centre: np.ndarray, spread: np.ndarray, slopes: list[Slope]
) -> tuple[Surface, np.ndarray, np.ndarray]:
    """The surface, its top, and sds there. It is cubic unless noise makes that rise at its ends."""
    quadratic, cubic = (fit_surface(centre, spread, slopes, degree) for degree in (2, 3))
    top, spread_there = quadratic.top()
    return (cubic if falls(cubic, top, spread_there) else quadratic), top, spread_there


def design(centre: np.ndarray, spread: np.ndarray, last: bool) -> tuple[np.ndarray, ...]:
    """Where slopes are taken; in the last round further out and between the axes, too."""
    axes = np.eye(len(centre))
    steps = [np.zeros(len(centre))] + [sign * NEAR * axis for axis in axes for sign in (1, -1)]
    if last:
        steps += [sign * (NEAR + 1) * axis for axis in axes for sign in (1, -1)]
        if len(centre) == 2:
            steps += [NEAR * np.array(corner) for corner in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
    return tuple(centre + spread @ step for step in steps)
