"""The hyper-parameters' posterior by integrating its slope, where Laplace's approximation cannot be trusted.

    d log p(theta, D) / d log theta = E[d log p(x, theta, D) / d log theta | theta, D]        (Fisher's identity)

The expectation is taken by a short run of Gibbs sampling at a fixed theta, which mixes well where theta itself would creep. For the precision
alpha of N coordinates it is N/2 - alpha E|x|^2 / 2, and the prior's slope. A polynomial is fitted to the slopes at a few points about the mode, by
least squares, and its values weigh the grid. What is wrong with Laplace's weights is found out by comparing their mode with mean-field inference from
the same start, which errs in another way (lessons from long runs: both are right where there is signal, and where they part neither is).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import objective as obj
from inference.engines import _gibbs_sweep as gibbs
from pp_models import families as fam
from pp_models.model import Sites, joint, log_joint

# Mean-field inference beside ---------------------------------------------------------------------------------------------------------------

MEAN_FIELD_SWEEPS = 1000  # at most
MEAN_FIELD_REST = 1e-5  # of log theta, in a sweep


@partial(jax.jit, static_argnames=("model", "names"))
def mean_field(model, hyper, start, batch, names):
    """The mean of log theta under the gamma factors of coordinate ascent from the given values."""
    stats = {site: family.stats(start[site]) for site, family in model.families.items()}

    def target(stats, site):
        return jax.grad(lambda t: joint(model, hyper, {**stats, site: t}, batch))(stats[site])

    def location(stats):
        return jnp.stack([stats[name].first[0] for name in names])

    def once(carry):
        number, stats, _ = carry
        before, stats = location(stats), dict(stats)
        for site, family in model.families.items():
            stats[site] = fam.summarise(family, target(stats, site), "mean", stats[site])
        return number + 1, stats, jnp.max(jnp.abs(location(stats) - before))

    begin = (0, stats, jnp.asarray(jnp.inf, batch.mask.dtype))
    _, stats, _ = jax.lax.while_loop(
        lambda carry: (carry[0] < MEAN_FIELD_SWEEPS) & (carry[2] > MEAN_FIELD_REST), once, begin
    )
    return location(stats)


# Slopes -------------------------------------------------------------------------------------------------------------------------------------


class Slope(NamedTuple):
    """What a run at one theta found: the mean of d log p(x, theta, D) / d log theta, its standard deviation, and where the run ended."""

    theta: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    values: Sites


@partial(jax.jit, static_argnames=("whole", "model", "names", "num_draws"))
def _run(whole, whole_hyper, model, hyper, names, theta, key, start, batch, num_burn, num_draws):
    """Mean and sd of the slope over a run at theta, and the values it ends at. `whole` has theta among its sites, `model` has it given."""

    def slope(x):
        def height(theta):
            sites = {**x, **{name: jnp.exp(theta[i : i + 1]) for i, name in enumerate(names)}}
            return log_joint(whole, whole_hyper, sites, batch) + jnp.sum(theta)

        return jax.grad(height)(theta)

    def move(stats, key):
        return gibbs.sweep(model, hyper, key, stats, batch)

    def once(stats, key):
        stats = move(stats, key)
        return stats, slope({site: model.families[site].value(t) for site, t in stats.items()})

    burn_key, draw_key = jax.random.split(key)
    stats = {site: model.families[site].stats(start[site]) for site in model.families}
    stats = jax.lax.fori_loop(
        0, num_burn, lambda i, t: move(t, jax.random.fold_in(burn_key, i)), stats
    )
    stats, slopes = jax.lax.scan(once, stats, jax.random.split(draw_key, num_draws))
    return (
        jnp.mean(slopes, 0),
        jnp.std(slopes, 0),
        {site: model.families[site].value(t) for site, t in stats.items()},
    )


def run(
    problem: obj.Problem,
    given: obj.Problem,
    names: Any,
    theta: np.ndarray,
    key: jax.Array,
    start: Sites,
    batch: Any,
    num_sweeps: int,
) -> Any:
    """The slope at theta from a run that begins at the given values: a function that waits for it. A quarter as many sweeps are dropped first."""
    known = jax.device_put(
        (problem.hyper, given.hyper, jnp.asarray(theta, float), key, dict(start)),
        batch.mask.sharding,
    )
    parts = (problem.model, known[0], given.model, known[1], names, *known[2:])
    found = _run(*parts, batch, num_sweeps // 4, num_sweeps)

    def wait() -> Slope:
        mean, sd, values = jax.tree.map(np.asarray, found)
        return Slope(np.asarray(theta, float), mean.astype(float), sd.astype(float), values)

    return wait


# The surface --------------------------------------------------------------------------------------------------------------------------------


class Surface(NamedTuple):
    """A polynomial of log p(log theta, D) in z, log theta = centre + spread z, up to a constant. powers: (terms, d), coefficients: (terms,)."""

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
        """Where the quadratic part is highest, at most three standard deviations away, and its standard deviations along its principal axes."""
        size = len(self.centre)
        gradient, hessian = np.zeros(size), np.zeros((size, size))
        for power, c in zip(self.powers, self.coefficients, strict=True):
            at = np.repeat(np.arange(size), power)
            if len(at) == 1:
                gradient[at[0]] = c
            elif len(at) == 2:
                hessian[at[0], at[1]] = hessian[at[1], at[0]] = c * (2 if at[0] == at[1] else 1)
        curvature, axes = np.linalg.eigh(-hessian)
        scale = 1 / np.sqrt(
            np.maximum(curvature, 0.1)
        )  # no wider than three times what was thought
        step = axes @ ((axes.T @ gradient) * scale**2)
        step *= min(1.0, 3 / max(float(np.linalg.norm(step)), 1e-300))
        return self.centre + self.spread @ step, self.spread @ (axes * scale)


def fit_surface(
    centre: np.ndarray, spread: np.ndarray, slopes: list[Slope], degree: int
) -> Surface:
    """The polynomial whose slopes are nearest to those found, in units of their own standard deviations."""
    size = len(centre)
    powers = np.array([p for p in np.ndindex(*(degree + 1,) * size) if 0 < sum(p) <= degree])
    surface = Surface(centre, spread, powers, np.zeros(len(powers)))
    z = surface.place(np.stack([one.theta for one in slopes]))
    noise = np.sqrt(np.mean([one.sd**2 for one in slopes], 0))
    rows, right = [], []
    for k in range(size):
        lower = np.maximum(powers - np.eye(size, dtype=int)[k], 0)
        rows.append(powers[:, k] * np.prod(z[:, None, :] ** lower, -1))  # d z^power / d z_k
    by_theta = np.einsum(
        "kpt,kl->lpt", np.stack(rows), np.linalg.inv(spread)
    )  # d / d theta_l = sum_k (d z_k / d theta_l) d / d z_k
    for k in range(size):
        rows[k] = by_theta[k] / noise[k]
        right.append(np.array([one.mean[k] for one in slopes]) / noise[k])
    coefficients = np.linalg.lstsq(np.concatenate(rows), np.concatenate(right), rcond=None)[0]
    return surface._replace(coefficients=coefficients)


def falls(surface: Surface, centre: np.ndarray, spread: np.ndarray) -> bool:
    """Whether the surface goes down in every direction, as a density must: always from two and a half standard deviations on, and far enough
    for the grid to end before five."""
    size = len(centre)
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    ways = np.stack([np.cos(angles), np.sin(angles)], 1) if size == 2 else np.array([[1.0], [-1.0]])
    heights = [
        surface.height(centre + radius * ways @ spread.T) for radius in (0.0, 2.5, 3.5, 4.5, 5.5)
    ]
    return bool(
        np.all(heights[1] < heights[0] - 1)
        and np.all(heights[3] < heights[0] - 7.5)
        and np.all(np.diff(heights[1:], axis=0) < 0)
    )


def weigh(
    centre: np.ndarray, spread: np.ndarray, slopes: list[Slope]
) -> tuple[Surface, np.ndarray, np.ndarray]:
    """The surface, of third degree where noise does not turn that up at its ends and else of second, its top, and standard deviations there."""
    plain = fit_surface(centre, spread, slopes, 2)
    top, spread_there = plain.top()
    skewed = fit_surface(centre, spread, slopes, 3)
    return (skewed if falls(skewed, top, spread_there) else plain), top, spread_there


NEAR = 1.5  # standard deviations from the centre at which slopes are taken first, and last further out too


def design(centre: np.ndarray, spread: np.ndarray, last: bool) -> tuple[np.ndarray, ...]:
    """Where slopes are taken: the centre and its neighbours along the axes; in the last round further out, and between the axes too."""
    axes = np.eye(len(centre))
    steps = [np.zeros(len(centre))] + [sign * NEAR * axis for axis in axes for sign in (1, -1)]
    if last:
        steps += [sign * (NEAR + 1) * axis for axis in axes for sign in (1, -1)]
        if len(centre) == 2:
            steps += [NEAR * np.array(corner) for corner in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
    return tuple(centre + spread @ step for step in steps)
