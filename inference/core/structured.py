r"""A structured posterior: the rows keep their dependence on the global sites.

$$ q(\beta) \prod_n q(z_n \mid \beta) $$

$q(\beta)$ is a product of exponential families. $q(z_n \mid \beta)$ is the row's mean-field
distribution given a value of $\beta$, found anew for every draw of $\beta$. A row's width thus has
two parts, the spread given $\beta$ and the spread of its mean over draws of $\beta$.
"""

from collections.abc import Iterator, Sequence
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
    in_batches,
    moment,
)
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

NUM_DRAWS = 64  # of the global sites, for means, widths and the bound
ROWS = RowOptions(100, 1e-4)


@partial(jax.jit, static_argnames=("model",))
def draw_statistics(model: Any, key: jax.Array, shared: Sites) -> Sites:
    """Statistics of one draw of the global sites."""
    keys = dict(zip(model.shared, jax.random.split(key, len(shared)), strict=True))
    return {site: model.families[site].sample(keys[site], shared[site]) for site in model.shared}


@partial(jax.jit, static_argnames=("family",))
def _draw(family, keys, natural):
    """Statistics of draws of one global site."""
    return jax.lax.map(lambda key: family.sample(key, natural), keys)


@partial(jax.jit, static_argnames=("family",))
def _values(family, stats):
    return jax.lax.map(family.value, stats)


def _given(model, hyper, batch, start, stats):
    return obj.local_part(model, hyper, stats, batch, start, ROWS)


@partial(jax.jit, static_argnames=("model",))
def _row_moments(model, hyper, drawn, batch):
    """Of the batch's rows: site -> sums over draws of the conditional means m, of m^2 + variance,
    and each draw's share of the bound."""
    start = obj.start_local(model, hyper, batch)
    first = jax.tree.map(lambda x: x[0], drawn)

    def moments(stats):
        part = _given(model, hyper, batch, start, stats)
        found = {}
        for site, natural in part.natural.items():
            family = model.families[site]
            mean = moment(family, natural, "mean")
            found[site] = mean, moment(family, natural, "variance") + mean**2
        return found, part.value + part.entropy

    def add(total, stats):
        found, bound = moments(stats)
        return jax.tree.map(jnp.add, total, found), bound

    shapes = jax.eval_shape(moments, first)[0]
    return jax.lax.scan(add, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), drawn)


@partial(jax.jit, static_argnames=("model", "sites"))
def _row_draws(model, hyper, batch, sites, draws):
    """For each draw of the global sites and keys of the sites, one draw of the batch's rows."""
    start = obj.start_local(model, hyper, batch)

    def one(each):
        stats, own = each
        natural = _given(model, hyper, batch, start, stats).natural
        families = {site: model.families[site] for site in sites}
        return {
            site: family.value(family.sample(own[site], natural[site]))
            for site, family in families.items()
        }

    return jax.lax.map(one, draws)


class Structured(Posterior):
    """q(global) prod q(row | global).

    shared: natural parameters of the global sites
    rows:   site -> (mean, sd) of local sites, if they are known; else found when first asked for,
            from `NUM_DRAWS` draws of the global sites
    """

    kind, is_sampled, has_bound, needs_data = "conditional", True, True, True

    def __init__(self, problem: obj.Problem, shared: Sites, rows: Any = None) -> None:
        super().__init__(problem)
        self._shared = shared
        self._rows: dict[str, tuple[np.ndarray, np.ndarray]] | None = rows
        self._bound: tuple[float, float] | None = None

    @property
    def at_hand(self) -> list[str]:
        known = {*self._shared, *(self._rows or ())}
        return [site for site in self.sites if site in known]

    def natural(self, site: str) -> Any:
        """The natural parameter of a global site."""
        return self._shared[self._check(site)]

    def mean(self, site: str) -> np.ndarray:
        if self._check(site) in self._shared:
            return self._own(site, "mean")
        return self._of_rows()[site][0]

    def sd(self, site: str) -> np.ndarray:
        if self._check(site) in self._shared:
            return np.sqrt(self._own(site, "variance"))
        return self._of_rows()[site][1]

    def _own(self, site: str, name: str) -> np.ndarray:
        return np.asarray(moment(self.problem.model.families[site], self._shared[site], name))

    def _of_rows(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        if self._rows is None:
            self._average()
        return self._rows or {}

    def _batches(self) -> Iterator[tuple[np.ndarray, Any, Any]]:
        """Rows, their batch, and the hyper-parameters on its device."""
        check_data(self.problem)
        for rows, batch in in_batches(self.problem.data, 1024):
            yield rows, batch, jax.device_put(self.problem.hyper, batch.mask.sharding)

    def _average(self) -> None:
        """Moments of all rows and the bound, from draws of the global sites."""
        model, hyper = self.problem.model, self.problem.hyper
        drawn = self._statistics(jax.random.key(0), NUM_DRAWS)
        parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {s: [] for s in model.local}
        bounds = np.zeros(NUM_DRAWS)
        for rows, batch, here in self._batches():
            stats = jax.device_put(drawn, batch.mask.sharding)
            totals, shares = _row_moments(model, here, stats, batch)
            bounds += np.asarray(shares, np.float64)
            for site, total in totals.items():
                mean, square = (np.asarray(x[: rows.size]) / NUM_DRAWS for x in total)
                parts[site].append((mean, np.sqrt(np.maximum(square - mean**2, 0))))
        self._rows = {
            site: (np.concatenate(means), np.concatenate(sds))
            for site, found in parts.items()
            for means, sds in (zip(*found, strict=True),)
        }
        bounds += float(obj.shared_bound(model, hyper, self._shared))
        self._bound = float(np.mean(bounds)), float(np.std(bounds) / np.sqrt(NUM_DRAWS - 1))

    def bound(self) -> float:
        """The structured bound on all rows, estimated by `NUM_DRAWS` draws of the global sites.

        `bound_error` is its standard error.
        """
        return self._judged()[0]

    def bound_error(self) -> float:
        """The standard error of `bound()`."""
        return self._judged()[1]

    def _judged(self) -> tuple[float, float]:
        if self._bound is None:
            self._average()
        return self._bound or (float("nan"), float("nan"))

    def _keys(self, key: jax.Array) -> dict[str, jax.Array]:
        return dict(zip(self.sites, jax.random.split(key, len(self.sites)), strict=True))

    def _statistics(self, key: jax.Array, num_draws: int) -> Sites:
        """Statistics of draws of the global sites."""
        families, keys = self.problem.model.families, self._keys(key)
        return {
            site: _draw(families[site], jax.random.split(keys[site], num_draws), natural)
            for site, natural in self._shared.items()
        }

    def sample(self, key: jax.Array, num_draws: int, sites: Names = None) -> Values:
        model, wanted = self.problem.model, self.sites if sites is None else list(sites)
        drawn = self._statistics(key, num_draws)
        found = {
            site: np.asarray(_values(model.families[site], drawn[site]))
            for site in wanted
            if site in self._shared
        }
        rows = tuple(site for site in wanted if site in model.local)
        return found | (self._row_draws(key, num_draws, drawn, rows) if rows else {})

    def _row_draws(
        self, key: jax.Array, num_draws: int, drawn: Sites, sites: tuple[str, ...]
    ) -> Values:
        parts: list[Values] = []
        for rows, batch, hyper in self._batches():
            own = {
                site: jax.random.split(jax.random.fold_in(k, int(rows[0])), num_draws)
                for site, k in self._keys(key).items()
                if site in sites
            }
            one = partial(_row_draws, self.problem.model, hyper, batch, sites)
            found = over_draws(one, jax.device_put((drawn, own), batch.mask.sharding))
            parts.append({site: x[:, : rows.size] for site, x in found.items()})
        return {site: np.concatenate([part[site] for part in parts], axis=1) for site in sites}

    def stored(self, sites: Sequence[str], options: dict[str, Any]) -> Stored:
        rows = self._of_rows() if set(sites) - set(self._shared) else {}
        leaves = {s: jax.tree.leaves(self._shared[s]) for s in sites if s in self._shared}
        return Stored({**leaves, **{s: list(x) for s, x in rows.items()}}, {}, {}, options)

    @classmethod
    def restored(cls, problem: obj.Problem, stored: Stored) -> "Posterior":
        model = problem.model
        shared = {
            s: jax.tree.unflatten(jax.tree.structure(model.families[s].base), stored.leaves[s])
            for s in model.shared
        }
        rows = {s: tuple(stored.leaves[s]) for s in model.local if stored.leaves.get(s)}
        return cls(problem, shared, rows if len(rows) == len(model.local) else None)
