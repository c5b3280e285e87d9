"""The posteriors that engines return: a distribution, a point, draws, or a grid.

mean(site), sd(site)     arrays of the site's shape
sample(key, n)           site -> (n, ...) values
log_density(draws)       log q of such values, where `has_density`
chains(key, n)           site -> (chains, draws, ...) values to summarise or convert

Callers ask for traits (`has_spread`, `has_chains`, `has_density`, `is_sampled`), not for the class.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import objective as obj
from inference.core.blocks import over_draws
from inference.core.posterior import (
    Names,
    Posterior,
    Stored,
    Values,
    check_data,
    rows_of_all,
    solve_rows,
)
from inference.core.summaries import summary_of
from pp_models import families as fam
from pp_models.families import positive_normal as pos
from pp_models.model import Sites

__all__ = ["KINDS", "Draws", "Mixture", "Point", "Posterior", "Variational", "solve_rows"]


@partial(jax.jit, static_argnames=("family",))
def _log_density(family, natural, values):
    return jax.lax.map(lambda x: jnp.sum(fam.log_density(family, natural, family.stats(x))), values)


@partial(jax.jit, static_argnames=("family",))
def _sample(family, keys, natural):
    return jax.lax.map(lambda k: family.value(family.sample(k, natural)), keys)


class Variational(Posterior):
    """A product of exponential families.

    local: natural parameters of the rows, either of all in order or of each device with their
    `positions`. Without any, rows are solved when first asked for.
    """

    kind, has_density = "variational", True

    def __init__(
        self, problem: obj.Problem, shared: Sites, local: Any = (), positions: Any = ()
    ) -> None:
        super().__init__(problem)
        self._shared = shared
        self._local: Sites | None = local if isinstance(local, dict) else None
        if positions:
            self._local = rows_of_all(problem, local, positions)

    @property
    def at_hand(self) -> list[str]:
        return [site for site in self.sites if site in self._shared or self._local is not None]

    def natural(self, site: str) -> Any:
        """The natural parameter of a site, rows in the order of the data."""
        if self._check(site) in self._shared:
            return self._shared[site]
        if self._local is None:
            self._local = solve_rows(self.problem, self._shared)
        return self._local[site]

    def statistics(self, site: str) -> Any:
        """The expected sufficient statistics of a site."""
        family = self.problem.model.families[self._check(site)]
        return family.mean(jax.tree.map(jnp.asarray, self.natural(site)))

    def distribution(self, site: str) -> Any:
        """The NumPyro distribution of a site."""
        family = self.problem.model.families[self._check(site)]
        return family.distribution(jax.tree.map(jnp.asarray, self.natural(site)))

    def mean(self, site: str) -> np.ndarray:
        return np.asarray(self.distribution(site).mean)

    def sd(self, site: str) -> np.ndarray:
        return np.sqrt(np.asarray(self.distribution(site).variance))

    def sample(self, key: jax.Array, num_draws: int, sites: Names = None) -> Values:
        families = self.problem.model.families
        keys = dict(zip(families, jax.random.split(key, len(families)), strict=True))
        drawn = {}
        for site in self.sites if sites is None else sites:
            draw = partial(_sample, families[site], natural=self.natural(site))
            drawn[site] = over_draws(draw, jax.random.split(keys[site], num_draws))
        return drawn

    def log_density(self, draws: dict[str, Any]) -> np.ndarray:
        """log q of draws. A site that q holds at a point adds 0 there and -inf elsewhere."""
        families = self.problem.model.families
        terms = [
            over_draws(partial(_log_density, families[s], self.natural(s)), np.asarray(x))
            if families[self._check(s)].has_density
            else self._at_point(s, x)
            for s, x in draws.items()
        ]
        return np.sum([np.asarray(term, np.float64) for term in terms], axis=0)

    def _at_point(self, site: str, values: Any) -> np.ndarray:
        point = self.mean(site)
        rounding = 100 * np.finfo(point.dtype).eps * (1 + np.abs(point))
        away = np.abs(np.asarray(values) - point) > rounding
        return np.where(away.reshape(len(values), -1).any(1), -np.inf, 0.0)

    def _tree(self, site: str) -> Any:
        return self.natural(site)

    @classmethod
    def restored(cls, problem: obj.Problem, stored: Stored) -> "Posterior":
        model = problem.model
        trees = {
            site: jax.tree.unflatten(jax.tree.structure(model.families[site].base), parts)
            for site, parts in stored.leaves.items()
            if parts
        }
        rows = {site: trees[site] for site in model.local} if model.local <= trees.keys() else ()
        return cls(problem, {site: trees[site] for site in model.shared}, rows)


class Point(Posterior):
    """One value for each site.

    shared: statistics of the global sites. local, positions: values of the rows on each device.
    solve: () -> values of the local sites, called when they are first asked for.
    """

    kind, has_spread = "point", False

    def __init__(
        self,
        problem: obj.Problem,
        shared: Sites,
        local: Any = (),
        positions: Any = (),
        solve: Callable[[], Sites] | None = None,
    ) -> None:
        super().__init__(problem)
        families = problem.model.families
        rows = rows_of_all(problem, local, positions) if positions else {}
        self._values = {**rows, **{s: np.asarray(families[s].value(t)) for s, t in shared.items()}}
        self._solve = solve if problem.model.local else None

    @property
    def at_hand(self) -> list[str]:
        return [site for site in self.sites if site in self._values]

    @property
    def values(self) -> Values:
        """The values of all sites."""
        if self._solve is not None:
            self._values, self._solve = {**self._values, **self._solve()}, None
        return self._values

    @values.setter
    def values(self, values: Values) -> None:
        self._values, self._solve = values, None

    def mean(self, site: str) -> np.ndarray:
        return self._values[site] if self._check(site) in self._values else self.values[site]

    def sd(self, site: str) -> np.ndarray:
        return np.zeros_like(self.mean(site))

    def num_draws(self, wanted: int) -> int:
        return 1

    def sample(self, key: jax.Array, num_draws: int, sites: Names = None) -> Values:
        values = {site: self.mean(site) for site in (self.sites if sites is None else sites)}
        return {site: np.broadcast_to(x, (num_draws, *x.shape)) for site, x in values.items()}

    @classmethod
    def restored(cls, problem: obj.Problem, stored: Stored) -> "Posterior":
        families = problem.model.families
        known = {site: parts[0] for site, parts in stored.leaves.items() if parts}
        if len(known) == len(stored.leaves):
            point = cls(problem, {})
            point.values = known
            return point
        stats = {site: families[site].stats(jnp.asarray(x)) for site, x in known.items()}

        def solve() -> Any:
            check_data(problem)
            return solve_rows(problem, stats, summary_of(problem, stored.options["basis"]))

        return cls(problem, stats, solve=solve)


class Draws(Posterior):
    """Draws of Markov chains: site -> (chains, draws, ...)."""

    kind, has_chains, is_sampled = "draws", True, True

    def __init__(
        self, problem: obj.Problem, draws: Values, sample_stats: Values | None = None
    ) -> None:
        super().__init__(problem)
        self.draws, self.sample_stats = draws, sample_stats or {}

    def flat(self, site: str) -> np.ndarray:
        """(draws, ...) values of a site, the chains one after the other."""
        x = self.draws[self._check(site)]
        return x.reshape(-1, *x.shape[2:])

    def mean(self, site: str) -> np.ndarray:
        return self.flat(site).mean(0)

    def sd(self, site: str) -> np.ndarray:
        return self.flat(site).std(0)

    def num_draws(self, wanted: int) -> int:
        return min(wanted, len(self.flat(self.sites[0])))

    def sample(self, key: jax.Array, num_draws: int, sites: Names = None) -> Values:
        """Draws picked at random, without repetition while there are enough."""
        size = len(self.flat(self.sites[0]))
        pick = np.asarray(jax.random.choice(key, size, (num_draws,), replace=num_draws > size))
        return {site: self.flat(site)[pick] for site in (self.sites if sites is None else sites)}

    def chains(self, key: jax.Array, num_draws: int, sites: Names = None) -> Values:
        """The chains' own draws, evenly thinned to about `num_draws` in total."""
        number, length = np.shape(self.draws[self.sites[0]])[:2]
        most = min(length, max(1, num_draws // number))
        kept = np.linspace(0, length - 1, most).round().astype(int)
        return {site: self.draws[site][:, kept] for site in sites or self.sites}

    def _tree(self, site: str) -> Any:
        return self.draws[site]

    @classmethod
    def restored(cls, problem: obj.Problem, stored: Stored) -> "Posterior":
        draws = {site: parts[0] for site, parts in stored.leaves.items()}
        return cls(problem, draws, stored.sample_stats)


class Mixture(Posterior):
    """Hyper-parameters on a grid with weights, and at each point a product of the rows' factors.

    theta:   (M, d) log hyper-parameters (H 13); names: their sites
    natural: for each point, site -> (b, p) of independent positive normals, or (P m, -P / 2) of
             normal rows
    weights: (M,), which sum to one
    log_evidence: the log marginal likelihood by the grid's integral; nan for a single point
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
    ) -> None:
        super().__init__(problem)
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
        """Grid points drawn with their weights, and rows from their factors there."""
        pick_key, *keys = jax.random.split(key, 1 + len(self.sites))
        weights = jnp.asarray(self.weights)
        picked = jax.random.choice(pick_key, len(weights), (num_draws,), p=weights)
        out = {}
        for site, site_key in zip(self.sites, keys, strict=True):
            if site in self.names:
                values = self._at_points(site)[0][np.asarray(picked)]
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
        return cls(problem, names, grid["theta"], natural, grid["weights"], evidence)


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


KINDS: dict[str, type[Posterior]] = {
    one.kind: one for one in (Variational, Point, Mixture, Draws)
}  # in the order in which engines are compared
