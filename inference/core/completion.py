r"""Document completion: each fold of a document's words is predicted from its other folds.

The words of a document are split into folds (`core.tokens`). Each fold $n$ is predicted from the
others $o$, which tell the document's weights (P 11.6 of Paisley, Blei & Jordan; T 25 of Theis &
Hoffman):

$$ \begin{aligned}
\log p(n \mid o) &= \sum_v n_v \log \frac{1}{S} \sum_s p_s(v \mid o), \\
p_s(v \mid o) &= \frac{r_{sv}}{\sum_u r_{su}}, \quad r_s = E[\theta \mid o, \beta_s]' \beta_s
\end{aligned} $$

$\beta_s$ are the global sites: a point or the mean of a distribution ($S = 1$), or draws of a
Markov chain or a grid. Each draw has labels of its own, so only probabilities are averaged.
$E[\theta \mid o, \beta]$ is the mean of the document's mean-field posterior.

For models with topics no array of size (documents x words) or (entries x K) is made: rates are
computed at the held-out entries, and their sum over words is $\theta' \sum_v \beta_v$.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from inference.core import devices
from inference.core import objective as obj
from inference.core.tokens import split_tokens
from pp_models.data.batches import Batch, Layout
from pp_models.data.types import Data
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Model, Topics

ENTRIES = 1024  # whose probabilities are computed at a time
FLOOR = float(np.finfo(np.float32).tiny)  # the probability, 1e-38, of a word that a model rules out


_NAMED = Topics(lambda hyper, values: values["theta"], lambda hyper, values: values["beta"])


def topics_of(model: Model) -> Topics | None:
    """The declared weights and topics of a model, or those of sites theta and beta."""
    named = "theta" in model.local and "beta" in model.shared
    return model.topics or (_NAMED if named else None)


def has_topics(model: Model) -> bool:
    """Whether rows have weights on topics."""
    return topics_of(model) is not None


class Scale(NamedTuple):
    """What a model was fitted to in place of counts.

    apply: (sparse counts) -> sparse matrix. undo: predictions of its entries -> rates of counts.
    """

    apply: Callable[[Any], Any]
    undo: Callable[[jax.Array], jax.Array]


def _same(x: Any) -> Any:
    return x


COUNTS = Scale(_same, _same)


class Held(NamedTuple):
    """Held-out entries: row within the batch, column and count, padded with counts of 0.

    blocks: how many blocks of `ENTRIES` hold any.
    """

    rows: jax.Array
    columns: jax.Array
    counts: jax.Array
    blocks: jax.Array


def _pack_held(matrix: Any, capacity: int) -> Held:
    coordinates, size = matrix.tocoo(), matrix.nnz
    room = -(-max(capacity, size, 1) // ENTRIES) * ENTRIES

    parts = zip((*coordinates.coords, coordinates.data), (np.int32, np.int32, float), strict=True)
    padded = [np.pad(x, (0, room - size)).astype(jnp.result_type(kind)) for x, kind in parts]
    return jax.device_put(Held._make([*padded, np.int32(-(-size // ENTRIES))]))


def _at_entries(weights: jax.Array, topics: jax.Array, held: Held, total: jax.Array) -> jax.Array:
    """Add p(v) of every held-out entry to `total`. A row without weights is spread evenly."""
    table, size = topics.T, weights @ jnp.sum(topics, 1)

    def block(i, total):
        parts = (held.rows, held.columns, total)
        rows, columns, before = (lax.dynamic_slice(x, (i * ENTRIES,), (ENTRIES,)) for x in parts)
        rate, whole = jnp.sum(weights[rows] * table[columns], 1), size[rows]
        share = jnp.where(whole <= 0, 1 / topics.shape[1], rate / jnp.where(whole == 0, 1, whole))
        return lax.dynamic_update_slice(total, before + share, (i * ENTRIES,))

    return lax.fori_loop(0, held.blocks, block, total)


def _at_cells(rates: jax.Array, held: Held, total: jax.Array) -> jax.Array:
    """The same from the rates of all words."""
    size = jnp.sum(rates, 1, keepdims=True)
    shares = jnp.where(size <= 0, 1 / rates.shape[1], rates / jnp.where(size == 0, 1, size))
    return total + shares[jnp.minimum(held.rows, len(shares) - 1), held.columns]


@partial(jax.jit, static_argnames=("model", "undo"))
def _complete(model, hyper, draws, batch, held, options, undo):
    """Per row: log probability of the held-out counts, averaged over draws of the global sites."""
    start = obj.start_local(model, hyper, batch)

    def add(total, shared):
        sites = {**shared, **row_means(model, hyper, shared, batch, start, options)}
        named = topics_of(model)
        if undo is _same and named is not None:
            weights, topics = named.weights(hyper, sites), named.topics(hyper, sites)
            return _at_entries(weights, topics, held, total), None
        return _at_cells(undo(model.predict(hyper, sites)), held, total), None

    total, _ = lax.scan(add, jnp.zeros_like(held.counts), draws)
    log_p = jnp.log(jnp.maximum(total / len(jax.tree.leaves(draws)[0]), FLOOR))
    logs = jnp.where(held.counts > 0, held.counts * log_p, 0)
    return jnp.zeros_like(batch.mask).at[held.rows].add(logs)


def finite_statistics(model: Model, values: dict[str, Any]) -> Any:
    """Statistics of values of the global sites, where a word that no topic has is equally
    improbable under all of them."""

    def finite(stat: jax.Array) -> jax.Array:
        return jnp.where(jnp.isneginf(stat), np.log(FLOOR), stat)

    return {s: jax.tree.map(finite, model.families[s].stats(x)) for s, x in values.items()}


def row_means(model, hyper, shared, batch, start, options):
    """The means of the local sites given values of the global ones."""
    stats = finite_statistics(model, shared)
    part = obj.local_part(model, hyper, stats, batch, start, options)
    return {site: model.families[site].distribution(eta).mean for site, eta in part.natural.items()}


class Plan(NamedTuple):
    """How documents are scored. size, layout: rows of a batch, and its static sizes."""

    size: int
    layout: Layout
    folds: int = 3
    seed: int = 0
    num_local: int = 50
    scale: Scale = COUNTS


def complete_rows(
    problem: obj.Problem, shared: dict[str, jax.Array], data: Data, rows: np.ndarray, plan: Plan
) -> np.ndarray:
    """(rows,) log probability of all tokens, each predicted from the other folds of its document.

    shared: (draws, ...) values of the global sites.
    """
    logs, options = np.zeros(len(rows)), RowOptions(plan.num_local, 0.0)
    for observed, held in split_tokens(data.select(rows), plan.folds, plan.seed):
        known = Data("counts", matrix=plan.scale.apply(observed))
        batch = known.pack(np.arange(len(rows)), plan.size, layout=plan.layout)
        entries = _pack_held(held, plan.layout.capacity["matrix"])
        given = problem.hyper, shared, batch, entries
        found = _complete(problem.model, *given, options, plan.scale.undo)
        logs += np.asarray(found, np.float64)[: len(rows)]
    return logs


def plan_for(data: Data, size: int, **options: Any) -> Plan:
    """A plan for consecutive batches of rows, whose layout has room for each of them."""
    layout = data.layout(size)
    used = np.add.reduceat(data.lengths, np.arange(0, data.num_rows, size))
    capacity = {"matrix": max(layout.capacity["matrix"], int(used.max()))}
    return Plan(size, layout._replace(capacity=capacity), **options)


def score_batch(posterior: Any, data: Data, batches: Sequence[Batch], size: int) -> float | None:
    """log p per word of a batch's documents, given the posterior so far; None if they are empty."""
    parts = [np.asarray(batch.positions)[np.asarray(batch.mask) > 0] for batch in batches]
    rows = np.concatenate(parts)
    logs, tokens = 0.0, float(data.totals[rows].sum())
    if tokens:
        plan, shared = Plan(size, data.layout(size)), posterior.global_values()
        logs = float(complete_rows(posterior.problem, shared, data, rows, plan).sum())
    logs, tokens = devices.added(posterior.problem.devices, [logs, tokens]).tolist()
    return logs / tokens if tokens else None
