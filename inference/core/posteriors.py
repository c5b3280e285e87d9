"""What an engine found: a distribution, draws, a point, or a grid of hyper-parameters, all answering the same questions.

mean(site), sd(site)     arrays of the site's shape
sample(key, n)           site -> (n, ...) values
log_density(draws)       log q of such values (distributions only; sites that q holds as a point count nothing where the values are at the point)
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import devices
from inference.core import objective as obj
from inference.core.blocks import over_draws
from pp_models import families as fam
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError, unknown
from pp_models.families import positive_normal as pos
from pp_models.model import Sites


class Posterior(Protocol):
    """The questions above; `kind` is variational, draws, point or mixture."""

    kind: str
    problem: Any

    @property
    def sites(self) -> list[str]: ...
    def mean(self, site: str) -> np.ndarray: ...
    def sd(self, site: str) -> np.ndarray: ...
    def sample(self, key: jax.Array, num_draws: int) -> dict[str, np.ndarray]: ...
    def log_density(self, draws: dict[str, Any]) -> np.ndarray: ...


def rows_of_all(problem: obj.Problem, parts: Any, positions: Any) -> Any:
    """The devices' rows, of all processes, put back into the order of the data."""
    everyone = devices.from_all(problem.devices, list(zip(parts, positions, strict=True)))
    return in_row_order(
        tuple(part for part, _ in everyone),
        tuple(place for _, place in everyone),
        problem.data.num_rows,
    )


def in_row_order(parts: tuple[Any, ...], positions: tuple[Any, ...], num_rows: int) -> Any:
    """Parts of the rows put back into the order of the data. Padding is written past the last row and dropped."""

    def merge(*leaves: Any) -> np.ndarray:
        out = np.empty((num_rows + 1, *leaves[0].shape[1:]), np.asarray(leaves[0]).dtype)
        for leaf, place in zip(leaves, positions, strict=True):
            out[np.asarray(place)] = np.asarray(leaf)
        return out[:num_rows]

    return jax.tree.map(merge, *parts)


@partial(jax.jit, static_argnames=("model", "summary"))
def _solve(model, hyper, shared, batch, options, summary):
    start = obj.start_local(model, hyper, batch, summary)
    stats = obj.summarise(model, shared) if summary == "mean" else shared
    part = obj.local_part(model, hyper, stats, batch, start, options, summary)
    return (
        part.natural
        if summary == "mean"
        else {site: model.families[site].value(t) for site, t in part.stats.items()}
    )


def check_rows(problem: obj.Problem, site: str) -> None:
    """Rows are solved from the data, which a fit that was loaded may be without."""
    if problem.data is None:
        raise InputError(
            f"This fit was stored without {site}, which has a row for each row of the data: pass data= to inference.load."
        )


def solve_rows(
    problem: obj.Problem, shared: Sites, summary: str = "mean", batch_size: int = 1024
) -> Sites:
    """Natural parameters of all rows' local sites given those of the global ones; of points, values of the former given statistics of the latter."""
    size = min(batch_size, problem.data.num_rows)
    parts, positions = [], []
    for first in range(0, problem.data.num_rows, size):  # batches of rows
        rows = np.arange(first, min(first + size, problem.data.num_rows))
        batch = problem.data.pack(rows, size)
        here = jax.device_put((problem.hyper, shared), batch.mask.sharding)
        found = _solve(problem.model, *here, batch, RowOptions(100, 1e-4), summary)
        keep = slice(len(rows))
        parts.append(jax.tree.map(lambda x, keep=keep: np.asarray(x[keep]), found))
        positions.append(rows)
    return in_row_order(tuple(parts), tuple(positions), problem.data.num_rows)


@partial(jax.jit, static_argnames=("family",))
def _log_density(family, natural, values):
    return jax.lax.map(lambda x: jnp.sum(fam.log_density(family, natural, family.stats(x))), values)


@partial(jax.jit, static_argnames=("family",))
def _sample(family, keys, natural):
    return jax.lax.map(lambda k: family.value(family.sample(k, natural)), keys)


class _Sites:
    """Shared by all posteriors: the problem and checked site names."""

    def __init__(self, problem: obj.Problem) -> None:
        self.problem = problem

    @property
    def sites(self) -> list[str]:
        """Names of the latent sites."""
        return list(self.problem.model.families)

    def _check(self, site: str) -> str:
        if site not in self.problem.model.families:
            raise unknown(f"site of {self.problem.model.name}", site, self.problem.model.families)
        return site


class Variational(_Sites):
    """A product of exponential families. Local sites of engines that visit rows only in passing are solved when first asked for."""

    kind = "variational"

    def __init__(
        self,
        problem: obj.Problem,
        shared: Sites,
        local: tuple[Sites, ...] | Sites = (),
        positions: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(problem)
        self._shared = shared
        self._local: Sites | None = None
        if isinstance(local, dict):
            self._local = local
        elif positions:
            self._local = rows_of_all(problem, local, positions)

    @property
    def at_hand(self) -> list[str]:
        """The sites that need not be solved for first."""
        return [site for site in self.sites if site in self._shared or self._local is not None]

    def natural(self, site: str) -> Any:
        """The natural parameter of a site, rows in the order of the data."""
        if self._check(site) in self._shared:
            return self._shared[site]
        if self._local is None:
            check_rows(self.problem, site)
            self._local = solve_rows(self.problem, self._shared)
        return self._local[site]

    def distribution(self, site: str) -> Any:
        """The NumPyro distribution of a site."""
        return self.problem.model.families[self._check(site)].distribution(
            jax.tree.map(jnp.asarray, self.natural(site))
        )

    def mean(self, site: str) -> np.ndarray:
        return np.asarray(self.distribution(site).mean)

    def sd(self, site: str) -> np.ndarray:
        return np.sqrt(np.asarray(self.distribution(site).variance))

    def sample(
        self, key: jax.Array, num_draws: int, sites: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Of all sites, or of those named: the same draws of each whichever others are asked for."""
        families = self.problem.model.families
        keys = jax.random.split(key, len(families))
        draws = {
            s: jax.random.split(k, num_draws)
            for s, k in zip(families, keys, strict=True)
            if sites is None or s in sites
        }
        return {
            s: over_draws(partial(_sample, families[s], natural=self.natural(s)), k)
            for s, k in draws.items()
        }

    def log_density(self, draws: dict[str, Any]) -> np.ndarray:
        families = self.problem.model.families
        terms = [
            over_draws(partial(_log_density, families[s], self.natural(s)), np.asarray(x))
            if families[self._check(s)].has_density
            else self._at_point(s, x)
            for s, x in draws.items()
        ]
        return np.sum([np.asarray(term, np.float64) for term in terms], axis=0)

    def _at_point(self, site: str, values: Any) -> np.ndarray:
        """As of NumPyro's Delta: 0 for values at the point, to rounding, and nothing elsewhere."""
        point = self.mean(site)
        away = np.abs(np.asarray(values) - point) > 100 * np.finfo(point.dtype).eps * (
            1 + np.abs(point)
        )
        return np.where(away.reshape(len(values), -1).any(1), -np.inf, 0.0)


class Point(_Sites):
    """A single value per site, from the global sites' statistics and the devices' values of the local ones.

    solve: () -> values of local sites that are found when first asked for.
    """

    kind = "point"

    def __init__(
        self,
        problem: obj.Problem,
        shared: Sites,
        local: tuple[Sites, ...] = (),
        positions: tuple[Any, ...] = (),
        solve: Callable[[], Sites] | None = None,
    ) -> None:
        super().__init__(problem)
        families = problem.model.families
        rows = rows_of_all(problem, local, positions) if positions else {}
        self._values = {**rows, **{s: np.asarray(families[s].value(t)) for s, t in shared.items()}}
        self._solve = solve if problem.model.local else None

    @property
    def at_hand(self) -> list[str]:
        """The sites that need not be solved for first."""
        return [site for site in self.sites if site in self._values]

    @property
    def values(self) -> dict[str, np.ndarray]:
        """Of all sites."""
        if self._solve is not None:
            check_rows(self.problem, next(iter(self.problem.model.local)))
            self._values, self._solve = {**self._values, **self._solve()}, None
        return self._values

    @values.setter
    def values(self, values: dict[str, np.ndarray]) -> None:
        self._values, self._solve = values, None

    def mean(self, site: str) -> np.ndarray:
        return self._values[site] if self._check(site) in self._values else self.values[site]

    def sd(self, site: str) -> np.ndarray:
        return np.zeros_like(self.mean(site))

    def sample(
        self, key: jax.Array, num_draws: int, sites: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        return {
            site: np.broadcast_to(x, (num_draws, *x.shape))
            for site in sites or self.sites
            for x in [self.mean(site)]
        }

    def log_density(self, draws: dict[str, Any]) -> np.ndarray:
        raise InputError(
            "A point estimate has no density: use fit.log_joint(draws) for the model's."
        )


class Draws(_Sites):
    """Draws of a Markov chain: site -> (chains, draws, ...)."""

    kind = "draws"

    def __init__(
        self,
        problem: obj.Problem,
        draws: dict[str, np.ndarray],
        sample_stats: dict[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__(problem)
        self.draws = draws
        self.sample_stats = sample_stats or {}

    def _flat(self, site: str) -> np.ndarray:
        x = self.draws[self._check(site)]
        return x.reshape(-1, *x.shape[2:])

    def mean(self, site: str) -> np.ndarray:
        return self._flat(site).mean(0)

    def sd(self, site: str) -> np.ndarray:
        return self._flat(site).std(0)

    def sample(self, key: jax.Array, num_draws: int) -> dict[str, np.ndarray]:
        """Draws picked at random, without repetition while there are enough."""
        size = self._flat(self.sites[0]).shape[0]
        pick = np.asarray(jax.random.choice(key, size, (num_draws,), replace=num_draws > size))
        return {site: self._flat(site)[pick] for site in self.sites}

    def log_density(self, draws: dict[str, Any]) -> np.ndarray:
        raise InputError(
            "A Markov chain has draws but no density: use fit.log_joint(draws) for the model's."
        )


class Mixture(_Sites):
    """Hyper-parameters on a grid with weights, and at each of its points a product of rows' factors (H 13).

    theta:   (M, d) log hyper-parameters; names: which
    natural: at each point, site -> (b, p) of independent positive normals or (P m, -P / 2) of normal rows
    weights: (M,) adding up to one
    log_evidence: log p(D), the integral of p~ over the grid; nan for a single point
    """

    kind = "mixture"

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
        self._moments: dict[tuple[int, str], tuple[np.ndarray, np.ndarray]] = {}

    def _at(self, m: int, site: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of a site at a grid point."""
        if (m, site) not in self._moments:
            found = _factor_moments(
                self.problem.model.families[site].settles, self.natural[m][site]
            )
            self._moments[m, site] = np.asarray(found[0]), np.asarray(found[1])
        return self._moments[m, site]

    def values(self, m: int) -> dict[str, np.ndarray]:
        """Means of all sites at a grid point."""
        known = {name: np.exp(self.theta[m, [i]]) for i, name in enumerate(self.names)}
        return {
            site: known[site] if site in known else np.asarray(self._at(m, site)[0])
            for site in self.sites
        }

    def mean(self, site: str) -> np.ndarray:
        if self._check(site) in self.names:
            return np.average(
                np.exp(self.theta[:, [self.names.index(site)]]), axis=0, weights=self.weights
            ).astype(self._dtype)
        return np.asarray(
            sum(w * self._at(m, site)[0] for m, w in enumerate(self.weights)), self._dtype
        )

    @property
    def _dtype(self) -> Any:
        return jax.tree.leaves(self.natural)[0].dtype

    def sd(self, site: str) -> np.ndarray:
        mean = self.mean(site)
        if site in self.names:
            squares = np.average(
                np.exp(2 * self.theta[:, [self.names.index(site)]]), axis=0, weights=self.weights
            )
        else:
            squares = sum(
                w * (self._at(m, site)[1] + self._at(m, site)[0] ** 2)
                for m, w in enumerate(self.weights)
            )
        return np.sqrt(np.maximum(squares - mean**2, 0)).astype(self._dtype)

    def sample(self, key: jax.Array, num_draws: int) -> dict[str, np.ndarray]:
        """Grid points drawn with their weights, and rows from their factors there."""
        pick_key, *keys = jax.random.split(key, 1 + len(self.sites))
        picked = jax.random.choice(
            pick_key, len(self.weights), (num_draws,), p=jnp.asarray(self.weights)
        )
        out = {}
        for site, site_key in zip(self.sites, keys, strict=True):
            if site in self.names:
                out[site] = np.exp(
                    self.theta[np.asarray(picked)][:, [self.names.index(site)]]
                ).astype(self._dtype)
            else:
                stacked = jax.tree.map(
                    lambda *parts: jnp.stack(parts), *(natural[site] for natural in self.natural)
                )
                out[site] = np.asarray(
                    _draw_factors(
                        self.problem.model.families[site].settles,
                        jax.random.split(site_key, num_draws),
                        picked,
                        stacked,
                    )
                )
        return out

    def log_density(self, draws: dict[str, Any]) -> np.ndarray:
        raise InputError(
            "A grid of hyper-parameters has weights but no density: use fit.log_joint(draws) for the model's."
        )


def _full(natural):
    """Normal rows with a precision each."""
    return fam.Pair(
        natural.first,
        jnp.broadcast_to(natural.second, (len(natural.first), *natural.second.shape[1:])),
    )


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
        return (
            pos.draw(each[0], natural.first, natural.second)
            if settles
            else fam.normal.sample(each[0], _full(natural)).first
        )

    return jax.lax.map(one, (keys, picked))
