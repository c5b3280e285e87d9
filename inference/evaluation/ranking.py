"""Precision and recall of the columns that a row is predicted to have next (T 4.4), such as films that a user will like.

With L the columns of a row that are held out and P the M most probable ones (T 25) among those not seen in it,

    precision = |L and P| / min(|L|, |P|),      recall = |L and P| / |L|                                                            T(24)

Precision is divided by min(|L|, |P|), not by |P|: rows with fewer than M held-out columns could not reach one otherwise.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import objective as obj
from inference.evaluation.completion import (
    MOST_CELLS,
    check_documents,
    plan_for,
    row_means,
)
from inference.evaluation.scores import Measure, mean
from inference.evaluation.splits import split_columns
from pp_models.data.types import Data
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.model import check_count


class PrecisionRecall(NamedTuple):
    """T(24), each with its standard error over rows and a term for each row, nan where nothing of a row is held out."""

    precision: Measure
    recall: Measure


@partial(jax.jit, static_argnames=("model", "M"))
def _best(model, hyper, draws, batch, options, M):
    """(rows, M) columns not seen with the largest predicted probability, largest first, of equal ones the first; and whether there are so many."""
    start = obj.start_local(model, hyper, batch)

    def add(total, shared):
        rates = model.predict(
            hyper, {**shared, **row_means(model, hyper, shared, batch, start, options)}
        )
        return total + rates / jnp.maximum(
            jnp.sum(rates, 1, keepdims=True), jnp.finfo(rates.dtype).tiny
        ), None

    total, _ = jax.lax.scan(add, jnp.zeros((batch.num_rows, batch.num_columns)), draws)
    height, columns = jax.lax.top_k(
        jnp.where(batch.entries.dense(batch.num_columns) > 0, -jnp.inf, total), M
    )
    return columns, height > -jnp.inf


def precision_recall_at(
    fit: Any,
    heldout: Data,
    M: int = 20,
    observed: Data | None = None,
    share: float = 0.2,
    seed: int = 0,
    num_local: int = 50,
    num_draws: int = 20,
) -> PrecisionRecall:
    """Normalised precision and recall at M of T(24)-(25).

    heldout:  rows whose columns are to be predicted. Without `observed`, a `share` of each row's columns, whatever their counts, is held out and
              predicted from the others; with it, which has the same rows, all of them are, from what is observed
    num_local, num_draws: as for `document_completion`
    """
    check_documents(fit, heldout, "precision_recall_at")
    for name, number in (("M", M), ("num_local", num_local), ("num_draws", num_draws)):
        check_count(name, number)
    if observed is None:
        observed, heldout = split_columns(heldout, share, seed)
    elif (
        not isinstance(observed, Data)
        or observed.kind != "counts"
        or observed.matrix.shape != heldout.matrix.shape
    ):
        raise InputError("observed must be counts of the same rows and columns as those held out.")
    elif observed.matrix.multiply(heldout.matrix).nnz:
        raise InputError(
            "A column that is held out is also observed in the same row: leave it out of one of the two."
        )
    shared, problem = fit.posterior.global_values(num_draws, seed), fit.problem
    plan = plan_for(observed, min(observed.num_rows, max(1, MOST_CELLS // observed.num_columns)))
    number = min(M, observed.num_columns)
    hits, size = np.zeros(observed.num_rows), np.zeros(observed.num_rows)
    for first in range(0, observed.num_rows, plan.size):  # batches of rows
        rows = np.arange(first, min(first + plan.size, observed.num_rows))
        batch = observed.pack(rows, plan.size, layout=plan.layout)
        found = _best(
            problem.model, problem.hyper, shared, batch, RowOptions(num_local, 0.0), number
        )
        columns, there = (np.asarray(x)[: len(rows)] for x in found)
        liked = heldout.matrix[rows].toarray() > 0
        hits[rows] = np.sum(np.take_along_axis(liked, columns, 1) & there, 1)
        size[rows] = there.sum(1)
    wanted = heldout.lengths.astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        return PrecisionRecall(
            *(
                mean(np.where(wanted > 0, hits / by, np.nan))
                for by in (np.minimum(wanted, size), wanted)
            )
        )
