"""Held-out scores, the same for every engine."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from inference import objective as obj
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


@partial(jax.jit, static_argnames=("model", "structure", "options"))
def _complete(model, structure, values, shared, batch, held, options):
    """Per row: log probability of the held-out counts under the posterior-mean prediction from the observed ones."""
    hyper = obj.make(model, structure, values)
    stats = {site: model.families[site].stats(x) for site, x in shared.items()}
    start = obj.start_local(model, hyper, batch)
    part = obj.local_part(model, hyper, stats, batch, start, options)
    means = {site: model.families[site].distribution(eta).mean for site, eta in part.natural.items()}
    rates = model.predict(hyper, {**shared, **means})
    log_p = jnp.log(jnp.maximum(rates, jnp.finfo(rates.dtype).tiny)) - jnp.log(jnp.sum(rates, 1, keepdims=True))
    return jnp.sum(held.entries.dense(held.num_columns) * log_p, 1)


def document_completion(fit: Any, heldout: Data, folds: int = 3, seed: int = 0, num_local: int = 50) -> Score:
    """log p per held-out word (P 11.6): each document's tokens are split into `folds` parts at random; each part is predicted from the others.

    Global sites are fixed at their posterior means, a document's own sites are inferred from its observed tokens, and the prediction is the
    mean rate, normalised over words. Units: nats per token; perplexity is exp(-value).
    """
    if heldout.kind != "counts":
        raise InputError(f"document_completion scores counts, not {heldout.kind}.")
    columns = fit.posterior.mean(fit.model.shared[-1]).shape[-1]
    if heldout.num_columns != columns:
        raise InputError(f"The held-out documents have {heldout.num_columns} words but the model was fitted to {columns}: use the same vocabulary.")
    shared = {site: jnp.asarray(fit.posterior.mean(site)) for site in fit.model.shared}
    size = max(1, min(heldout.num_rows, MOST_CELLS // heldout.num_columns))
    logs, tokens = np.zeros(heldout.num_rows), np.zeros(heldout.num_rows)
    for observed, held in split_tokens(heldout, folds, seed):
        for first in range(0, heldout.num_rows, size):  # batches of rows
            rows = np.arange(first, min(first + size, heldout.num_rows))
            batches = [Data("counts", matrix=part).pack(rows, size) for part in (observed, held)]
            problem = fit.problem
            value = _complete(problem.model, problem.structure, problem.values, shared, *batches, RowOptions(num_local, 0.0))
            logs[rows] += np.asarray(value, np.float64)[: len(rows)]
        tokens += np.asarray(held.sum(axis=1)).ravel()
    mean = logs.sum() / tokens.sum()
    residual = logs - mean * tokens  # a ratio of sums: linearised standard error over documents
    error = np.sqrt(np.sum(residual**2) * len(logs) / max(len(logs) - 1, 1)) / tokens.sum()
    return Score(float(mean), float(error), logs, tokens)


def hold_out(data: Data, share: float = 0.1, seed: int = 0) -> tuple[Data, Data]:
    """Rows split at random into training and held-out ones, at least one of each."""
    order = np.random.default_rng(seed).permutation(data.num_rows)
    size = min(max(1, round(share * data.num_rows)), data.num_rows - 1)
    if data.num_rows < 2:
        raise InputError("Holding out rows needs at least two of them.")
    return data.select(np.sort(order[size:])), data.select(np.sort(order[:size]))


