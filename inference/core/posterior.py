"""The base of all posteriors, and how all rows of the data are solved and judged."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import devices
from inference.core import objective as obj
from pp_models import families as fam
from pp_models.data.batches import Layout
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError, unknown
from pp_models.model import Sites

Values = dict[str, np.ndarray]
Names = Sequence[str] | None


class Stored(NamedTuple):
    """A posterior as arrays. leaves: site -> its arrays, none where the site is left out.

    grid: of a mixture. sample_stats: of a sampler. options: of the engine. more: of a correction,
    its widths and draws.
    """

    leaves: dict[str, list[np.ndarray]]
    grid: Values
    sample_stats: Values
    options: dict[str, Any]
    more: Mapping[str, np.ndarray] = {}


class Posterior:
    """Base of all posteriors.

    kind:        variational, conditional, point, draws or mixture; in files and reports
    has_spread:  whether it has standard deviations and draws; a point has none
    has_density: whether `log_density` is defined
    has_chains:  whether it holds `draws` of Markov chains, each with labels of its own
    has_bound:   whether `bound` gives the bound on all rows, or an estimate of it
    needs_data:  whether draws of local sites need the data
    is_sampled:  whether predictions are averages over draws; otherwise means (or moments) are used
    sample_stats: name -> (chains, draws) of a sampler
    """

    kind = ""
    has_spread = True
    has_density = False
    has_bound = False
    needs_data = False
    has_chains = False
    is_sampled = False

    def __init__(self, problem: obj.Problem) -> None:
        self.problem = problem
        self.sample_stats: Values = {}

    @property
    def sites(self) -> list[str]:
        """Names of the latent sites."""
        return list(self.problem.model.families)

    @property
    def at_hand(self) -> list[str]:
        """The sites that need not be solved for first."""
        return self.sites

    def mean(self, site: str) -> np.ndarray:
        raise NotImplementedError

    def sd(self, site: str) -> np.ndarray:
        raise NotImplementedError

    def sample(self, key: jax.Array, num_draws: int, sites: Names = None) -> Values:
        """Draws of all sites, or of those named. The draws of a site do not depend on `sites`."""
        raise NotImplementedError

    def log_density(self, draws: dict[str, Any]) -> np.ndarray:
        raise InputError(
            f"A posterior of kind {self.kind!r} has no density: use fit.log_joint(draws) for the "
            "model's."
        )

    def bound(self) -> float:
        """The lower bound of log p(data) on all rows; nan for a posterior that has none."""
        return float("nan")

    def num_draws(self, wanted: int) -> int:
        """How many different draws there are, at most the number wanted."""
        return wanted

    def chains(self, key: jax.Array, num_draws: int, sites: Names = None) -> Values:
        """About `num_draws` draws (chains, draws, ...): new ones as one chain, a point once."""
        drawn = self.sample(key, self.num_draws(num_draws), sites)
        return {site: x[None] for site, x in drawn.items()}

    def kept(self, number: int) -> np.ndarray:
        """Which draws of `sample_stats` belong to so many draws of each chain."""
        return np.arange(number)

    def global_values(self, num_draws: int = 20, seed: int = 0, from_q: bool = False) -> Sites:
        """(draws, ...) values of the global sites: draws where `is_sampled`, else one mean.

        from_q: take draws of a distribution with a density as well.
        """
        sites = list(self.problem.model.shared)
        if self.is_sampled or (from_q and self.has_density):
            return jax.tree.map(jnp.asarray, self.sample(jax.random.key(seed), num_draws, sites))
        return {site: jnp.asarray(self.mean(site))[None] for site in sites}

    def stored(self, sites: Sequence[str], options: dict[str, Any]) -> Stored:
        """The arrays of these sites, to be given to `restored`."""
        leaves = {site: jax.tree.leaves(self._tree(site)) for site in sites}
        return Stored(leaves, {}, self.sample_stats, options)

    def _tree(self, site: str) -> Any:
        """What is stored of a site."""
        return self.mean(site)

    @classmethod
    def restored(cls, problem: obj.Problem, stored: Stored) -> "Posterior":
        raise NotImplementedError

    def _check(self, site: str) -> str:
        if site not in self.problem.model.families:
            raise unknown(f"site of {self.problem.model.name}", site, self.problem.model.families)
        return site


@partial(jax.jit, static_argnames=("family", "name"))
def moment(family, natural, name):
    """The mean or variance of q with these natural parameters."""
    value = jax.eval_shape(lambda n: family.value(family.mean(n)), natural)
    if not value.size:  # NumPyro's checks fail on arrays without numbers
        return jnp.zeros(value.shape, value.dtype)
    return getattr(family.distribution(natural), name)


def rows_of_all(problem: obj.Problem, parts: Any, positions: Any) -> Any:
    """The rows of all devices of all processes, in the order of the data."""
    everyone = devices.from_all(problem.devices, list(zip(parts, positions, strict=True)))
    rows, places = zip(*everyone, strict=True)
    return _in_row_order(rows, places, problem.data.num_rows)


def _in_row_order(parts: Any, positions: Any, num_rows: int) -> Any:
    """Parts of the rows in the order of the data. Padding is written past the end and dropped."""

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
    if summary == "mean":
        return part.natural
    return {site: model.families[site].value(t) for site, t in part.stats.items()}


def check_data(problem: obj.Problem) -> None:
    """Refuse to solve rows of a fit that was loaded without its data."""
    if problem.data is None:
        raise InputError(
            f"This fit was stored without {', '.join(problem.model.local)}, which have a row for "
            "each row of the data: pass data= to pp_models.load_fit."
        )


def solve_rows(
    problem: obj.Problem, shared: Sites, summary: str = "mean", batch_size: int = 1024
) -> Sites:
    """Solve the local sites of all rows, a batch at a time.

    For means: natural parameters, from those of the global sites. For a mode (`summary`): values,
    from statistics of the global sites.
    """
    check_data(problem)
    parts, positions = [], []
    for rows, batch in in_batches(problem.data, batch_size):
        here = jax.device_put((problem.hyper, shared), batch.mask.sharding)
        found = _solve(problem.model, *here, batch, RowOptions(100, 1e-4), summary)
        parts.append(jax.tree.map(lambda x, keep=rows.size: np.asarray(x[:keep]), found))
        positions.append(rows)
    return _in_row_order(parts, positions, problem.data.num_rows)


def in_batches(
    data: Any, batch_size: int, layout: Layout | None = None
) -> Iterator[tuple[np.ndarray, Any]]:
    """All rows in order: their numbers, and batches padded to one size, that of the layout if it is
    given."""
    size = min(batch_size, data.num_rows) if layout is None else batch_size
    for first in range(0, data.num_rows, size):
        rows = np.arange(first, min(first + size, data.num_rows))
        yield rows, data.pack(rows, size, layout=layout)


@partial(jax.jit, static_argnames=("model",))
def _bound_of_rows(model, hyper, shared, local, batch):
    entropies = [batch.sum(fam.entropy(model.families[s], eta)) for s, eta in local.items()]
    return model.log_local(hyper, obj.summarise(model, {**shared, **local}), batch), entropies


def full_bound(problem: obj.Problem, shared: Sites, local: Sites, batch_size: int = 1024) -> float:
    """F(mu) + H(q) of all rows, given natural parameters of all sites.

    Batches are added up on the host in double precision.
    """
    check_data(problem)
    terms = [obj.shared_bound(problem.model, problem.hyper, shared)]
    local = jax.tree.map(np.asarray, local)
    for rows, batch in in_batches(problem.data, batch_size):
        padded = np.resize(rows, len(batch.mask))  # padding has no weight
        own = jax.tree.map(lambda x, places=padded: x[places], local)
        here = jax.device_put((problem.hyper, shared, own), batch.mask.sharding)
        terms.append(_bound_of_rows(problem.model, *here, batch))
    return float(np.sum([np.float64(term) for term in jax.tree.leaves(terms)]))
