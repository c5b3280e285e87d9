"""Held-out scores, the same for every engine."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from inference import objective as obj
from inference.ratings import split_ratings
from pp_models.data import Data
from pp_models.eliminate import RowOptions
from pp_models.errors import InputError

MOST_CELLS = 4_000_000  # rows x columns predicted at a time


class Score(NamedTuple):
    """value: mean log probability per held-out token, in nats. standard_error: over documents. per_document, num_tokens: its terms."""

    value: float
    standard_error: float
    per_document: np.ndarray
    num_tokens: np.ndarray

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.value))


def split_tokens(data: Data, folds: int, seed: int = 0) -> list[tuple[Any, Any]]:
    """For each fold, the corpus without that fold's tokens, and those tokens: every token is in one fold, chosen at random."""
    rng = np.random.default_rng(seed)
    matrix = data.matrix
    share = rng.multinomial(matrix.data.astype(np.int64), np.full(folds, 1 / folds))

    def part(values: np.ndarray) -> Any:
        return scipy.sparse.csr_array((values.astype(np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)

    return [(part(matrix.data - share[:, fold]), part(share[:, fold])) for fold in range(folds)]


@partial(jax.jit, static_argnames=("model", "structure", "undo"))
def _complete(model, structure, values, draws, batch, held, options, undo):
    """Per row: log probability of the held-out counts, the prediction from the observed ones averaged over draws of the global sites."""
    hyper = obj.make(model, structure, values)
    start = obj.start_local(model, hyper, batch)

    def add(total, shared):
        stats = {site: model.families[site].stats(x) for site, x in shared.items()}
        part = obj.local_part(model, hyper, stats, batch, start, options)
        means = {site: model.families[site].distribution(eta).mean for site, eta in part.natural.items()}
        rates = undo(model.predict(hyper, {**shared, **means}))
        size = jnp.sum(rates, 1, keepdims=True)  # zero for a row that nothing is known of, neither from tokens nor from a prior
        return total + jnp.where(size > 0, rates / jnp.where(size > 0, size, 1), 1 / batch.num_columns), None

    nothing = jnp.zeros((batch.num_rows, batch.num_columns), batch.mask.dtype)
    total, _ = jax.lax.scan(add, nothing, draws)
    log_p = jnp.log(jnp.maximum(total, jnp.finfo(total.dtype).tiny)) - jnp.log(len(jax.tree.leaves(draws)[0]))
    return jnp.sum(held.entries.dense(held.num_columns) * log_p, 1)


class Scale(NamedTuple):
    """What a model was fitted to in place of counts. apply: (sparse counts) -> sparse matrix; undo: predictions of its entries -> rates of counts."""

    apply: Callable[[Any], Any]
    undo: Callable[[jax.Array], jax.Array]


def _same(x: Any) -> Any:
    return x


COUNTS = Scale(_same, _same)


def document_completion(
    fit: Any, heldout: Data, folds: int = 3, seed: int = 0, num_local: int = 50, num_draws: int = 20, scale: Scale = COUNTS
) -> Score:
    """log p per held-out word (P 11.6): each document's tokens are split into `folds` parts at random; each part is predicted from the others.

    A distribution's or a point's global sites are fixed at their means; of a Markov chain or a grid (H 13), `num_draws` draws are used in turn and
    their predictions averaged, whatever their labels. A document's own sites are inferred from its observed tokens, and the prediction is the
    mean rate, normalised over words. scale: how observed tokens were turned into what the model was fitted to.
    Units: nats per token; perplexity is exp(-value).
    """
    if heldout.kind != "counts":
        raise InputError(f"document_completion scores counts, not {heldout.kind}.")
    if folds < 2:
        raise InputError(f"folds must be at least 2, not {folds}: some words must stay observed.")
    if fit.posterior.kind in ("draws", "mixture"):
        sampled = fit.posterior.sample(jax.random.key(seed), num_draws)
        shared = {site: jnp.asarray(sampled[site]) for site in fit.model.shared}
    else:
        shared = {site: jnp.asarray(fit.posterior.mean(site))[None] for site in fit.model.shared}
    columns = fit.provenance["columns"]
    if heldout.num_columns != columns:
        raise InputError(f"The held-out documents have {heldout.num_columns} words but the model was fitted to {columns}: use the same vocabulary.")
    size = max(1, min(heldout.num_rows, MOST_CELLS // heldout.num_columns))
    logs, tokens = np.zeros(heldout.num_rows), np.zeros(heldout.num_rows)
    problem = fit.problem
    for observed, held in split_tokens(heldout, folds, seed):
        sides = [Data("counts", matrix=part) for part in (scale.apply(observed), held)]
        for first in range(0, heldout.num_rows, size):  # batches of rows
            rows = np.arange(first, min(first + size, heldout.num_rows))
            batches = [side.pack(rows, size) for side in sides]
            value = _complete(problem.model, problem.structure, problem.values, shared, *batches, RowOptions(num_local, 0.0), scale.undo)
            logs[rows] += np.asarray(value, np.float64)[: len(rows)]
        tokens += np.asarray(held.sum(axis=1)).ravel()
    mean = logs.sum() / tokens.sum()
    residual = logs - mean * tokens  # a ratio of sums: linearised standard error over documents
    error = np.sqrt(np.sum(residual**2) * len(logs) / max(len(logs) - 1, 1)) / tokens.sum()
    return Score(float(mean), float(error), logs, tokens)


class Split(NamedTuple):
    """Rows to fit, rows to score on, and where the former stand in the data."""

    training: Data
    heldout: Data
    kept: np.ndarray


def hold_out(data: Data, share: float = 0.1, seed: Any = 0) -> Split:
    """Rows split at random into training and held-out ones, at least one of each. Of ratings, entries: a user without any cannot be predicted."""
    if data.kind == "ratings":
        return Split(*split_ratings(data, share, seed), np.arange(data.num_rows))
    if data.num_rows < 2:
        raise InputError("Holding out rows needs at least two of them.")
    order = np.random.default_rng(seed).permutation(data.num_rows)
    size = min(max(1, round(share * data.num_rows)), data.num_rows - 1)
    kept = np.sort(order[size:])
    return Split(data.select(kept), data.select(np.sort(order[:size])), kept)
