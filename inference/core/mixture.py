"""A posterior on a grid of hyper-parameters."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import lattice
from inference.core import objective as obj
from inference.core.posterior import Names, Posterior, Stored, Values
from pp_models import families as fam
from pp_models.families import positive_normal as pos
from pp_models.model import Sites


class Mixture(Posterior):
    """Hyper-parameters on a grid with weights, and at each point a product of the rows' factors.

    theta:   (M, d) log hyper-parameters (H 13); names: their sites
    natural: for each point, site -> (b, p) of independent positive normals, or (P m, -P / 2) of
             normal rows
    weights: (M,), which sum to one
    log_evidence: the log marginal likelihood by the grid's integral; nan for a single point
    axes:    (d, d), columns that lead to the next grid point along each axis; None for a single
             point, and for grids of old files, whose draws are bare grid points
    """

    kind, is_sampled = "mixture", True

    def __init__(
        self,
        problem: obj.Problem,
        names: tuple[str, ...],
        theta: Any,
        natural: list[Sites],
        weights: Any,
        log_evidence: float = np.nan,
        axes: np.ndarray | None = None,
    ) -> None:
        super().__init__(problem)
        self.axes = axes
        self.names, self.natural, self.weights = names, natural, np.asarray(weights)
        self.theta = np.asarray(theta, float).reshape(len(natural), len(names))
        self.log_evidence = log_evidence
        self._moments: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def _at_points(self, site: str) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances (M, ...) of a site at all grid points."""
        if self._check(site) in self.names:
            value = np.exp(self.theta[:, [self.names.index(site)]])
            return value, np.zeros_like(value)
        if site not in self._moments:
            settles = self.problem.model.families[site].settles
            found = [_factor_moments(settles, natural[site]) for natural in self.natural]
            means, variances = (np.stack(parts) for parts in zip(*found, strict=True))
            self._moments[site] = means, variances
        return self._moments[site]

    def values(self, m: int) -> Values:
        """Means of all sites at a grid point."""
        return {site: self._at_points(site)[0][m] for site in self.sites}

    def _average(self, values: np.ndarray) -> np.ndarray:
        return np.tensordot(self.weights, values, 1)

    @property
    def _dtype(self) -> Any:
        return jax.tree.leaves(self.natural)[0].dtype

    def mean(self, site: str) -> np.ndarray:
        return self._average(self._at_points(site)[0]).astype(self._dtype)

    def sd(self, site: str) -> np.ndarray:
        means, variances = self._at_points(site)
        squares = self._average(variances + means**2)
        return np.sqrt(np.maximum(squares - self._average(means) ** 2, 0)).astype(self._dtype)

    def sample(self, key: jax.Array, num_draws: int, sites: Names = None) -> Values:
        """Hyper-parameters from the interpolated density, and rows from the factors at the grid
        point that is drawn with them (`lattice`)."""
        pick_key, *keys = jax.random.split(key, 1 + len(self.sites))
        grid = self.theta, self.weights, self.axes
        picked, theta = lattice.draw_points(pick_key, *grid, num_draws)
        out = {}
        for site, site_key in zip(self.sites, keys, strict=True):
            if site in self.names:
                values = np.exp(theta[:, [self.names.index(site)]])
                out[site] = values.astype(self._dtype)
            else:
                stacked = jax.tree.map(lambda *x: jnp.stack(x), *(n[site] for n in self.natural))
                draw_keys = jax.random.split(site_key, num_draws)
                settles = self.problem.model.families[site].settles
                out[site] = np.asarray(_draw_factors(settles, draw_keys, picked, stacked))
        return {site: out[site] for site in (self.sites if sites is None else sites)}

    def stored(self, sites: Sequence[str], options: dict[str, Any]) -> Stored:
        stacked = jax.tree.map(lambda *parts: np.stack(parts), *self.natural)
        leaves = {site: jax.tree.leaves(tree) for site, tree in stacked.items()}
        evidence = np.asarray(self.log_evidence)
        grid = {"theta": self.theta, "weights": self.weights, "log_evidence": evidence}
        grid |= {} if self.axes is None else {"axes": self.axes}
        return Stored(leaves, grid, {}, options)

    @classmethod
    def restored(cls, problem: obj.Problem, stored: Stored) -> "Posterior":
        grid = stored.grid
        natural = [
            {
                s: fam.Pair(*(part[m] for part in parts))
                for s, parts in stored.leaves.items()
                if parts
            }
            for m in range(len(grid["weights"]))
        ]
        names = tuple(site for site, parts in stored.leaves.items() if not parts)
        evidence = float(grid["log_evidence"])
        given = names, grid["theta"], natural, grid["weights"], evidence, grid.get("axes")
        return cls(problem, *given)


def _full(natural):
    """Normal rows with a precision each."""
    shape = (len(natural.first), *natural.second.shape[1:])
    return fam.Pair(natural.first, jnp.broadcast_to(natural.second, shape))


@partial(jax.jit, static_argnames=("settles",))
def _factor_moments(settles, natural):
    if settles:
        found = pos.moments(natural.first, natural.second)
        return found.first, found.variance
    mean, covariance, _ = fam.normal_moments(_full(natural))
    return mean, jnp.diagonal(covariance, axis1=1, axis2=2)


@partial(jax.jit, static_argnames=("settles",))
def _draw_factors(settles, keys, picked, stacked):
    """For each key, a draw of the rows at the grid point picked."""

    def one(each):
        natural = jax.tree.map(lambda x: x[each[1]], stacked)
        if settles:
            return pos.draw(each[0], natural.first, natural.second)
        return fam.normal.sample(each[0], _full(natural)).first

    return jax.lax.map(one, (keys, picked))
