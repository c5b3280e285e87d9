"""The posteriors that engines return: a distribution, a point, draws, or a grid.

mean(site), sd(site)     arrays of the site's shape
sample(key, n)           site -> (n, ...) values
log_density(draws)       log q of such values, where `has_density`
chains(key, n)           site -> (chains, draws, ...) values to summarise or convert

Callers ask for traits (`has_spread`, `has_chains`, `has_density`, `is_sampled`), not for the class.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import objective as obj
from inference.core.blocks import over_draws
from inference.core.mixture import Mixture
from inference.core.posterior import (
    Names,
    Posterior,
    Stored,
    Values,
    check_data,
    full_bound,
    moment,
    rows_of_all,
    solve_rows,
)
from inference.core.structured import Structured
from inference.core.summaries import summary_of
from pp_models import families as fam
from pp_models.model import Sites

__all__ = [
    "KINDS",
    "Draws",
    "Mixture",
    "Point",
    "Posterior",
    "Structured",
    "Variational",
    "solve_rows",
]


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

    kind, has_density, has_bound = "variational", True, True

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
        sites = self.problem.model.families
        return [site for site in sites if site in self._shared or self._local is not None]

    def natural(self, site: str) -> Any:
        """The natural parameter of a site, rows in the order of the data."""
        if self._check(site) in self._shared:
            return self._shared[site]
        if self._local is None:
            self._local = solve_rows(self.problem, self._shared)
        return self._local[site]

    def bound(self) -> float:
        """The bound on all rows at these parameters, with auxiliaries such as allocations in q."""
        local = {site: self.natural(site) for site in self.problem.model.local}
        return full_bound(self.problem, self._shared, local)

    def statistics(self, site: str) -> Any:
        """The expected sufficient statistics of a site."""
        natural = jax.tree.map(jnp.asarray, self.natural(site))
        return self.problem.model.families[site].mean(natural)

    def distribution(self, site: str) -> Any:
        """The NumPyro distribution of a site."""
        natural = jax.tree.map(jnp.asarray, self.natural(site))
        return self.problem.model.families[site].distribution(natural)

    def mean(self, site: str) -> np.ndarray:
        return self._moment(site, "mean")

    def sd(self, site: str) -> np.ndarray:
        return np.sqrt(self._moment(site, "variance"))

    def _moment(self, site: str, name: str) -> np.ndarray:
        natural = self.natural(site)
        return np.asarray(moment(self.problem.model.families[site], natural, name))

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

    def statistics(self, site: str) -> Any:
        """The sufficient statistics of a site's value."""
        return self.problem.model.families[site].stats(jnp.asarray(self.mean(site)))

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
        kept = self.kept(min(length, max(1, num_draws // number)))
        return {site: self.draws[site][:, kept] for site in sites or self.sites}

    def kept(self, number: int) -> np.ndarray:
        """So many of each chain's draws, evenly spaced."""
        return np.linspace(0, self.draws[self.sites[0]].shape[1] - 1, number).round().astype(int)

    def _tree(self, site: str) -> Any:
        return self.draws[site]

    @classmethod
    def restored(cls, problem: obj.Problem, stored: Stored) -> "Posterior":
        draws = {site: parts[0] for site, parts in stored.leaves.items()}
        return cls(problem, draws, stored.sample_stats)


KINDS: dict[str, type[Posterior]] = {
    one.kind: one for one in (Variational, Structured, Point, Mixture, Draws)
}  # in the order in which engines are compared
