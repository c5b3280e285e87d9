r"""Precision and recall of the columns predicted for a row (Theis & Hoffman (T) 4.4), such as the
films that a user will like.

For the held-out columns $L$ of a row and the $M$ most probable columns $P$ among those not
observed in it (T 25), T(24) is

$$ \mathrm{precision} = \frac{|L \cap P|}{\min(|L|, |P|)}, \qquad
   \mathrm{recall} = \frac{|L \cap P|}{|L|}. $$

Dividing by $\min(|L|, |P|)$ lets rows with fewer than $M$ held-out columns reach a precision of 1.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import objective as obj
from inference.core.completion import plan_for, row_means
from inference.evaluation.completion import MOST_CELLS, batches_of_rows, check_documents
from inference.evaluation.scores import Measure, mean
from inference.evaluation.splits import split_columns
from pp_models.data.types import Data
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.model import check_count


class PrecisionRecall(NamedTuple):
    """T(24), with standard errors over rows; terms are nan for rows with nothing held out."""

    precision: Measure
    recall: Measure


@partial(jax.jit, static_argnames=("model", "M"))
def _best(model, hyper, draws, batch, options, M):
    """(rows, M) most probable unobserved columns, best first, and whether each of them exists."""
    start = obj.start_local(model, hyper, batch)

    def add(total, shared):
        local = row_means(model, hyper, shared, batch, start, options)
        rates = model.predict(hyper, {**shared, **local})
        size = jnp.maximum(jnp.sum(rates, 1, keepdims=True), jnp.finfo(rates.dtype).tiny)
        return total + rates / size, None

    total, _ = jax.lax.scan(add, jnp.zeros((batch.num_rows, batch.num_columns)), draws)
    seen = batch.entries.dense(batch.num_columns) > 0
    height, columns = jax.lax.top_k(jnp.where(seen, -jnp.inf, total), M)
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
    """Normalised precision and recall at M, T(24)-(25).

    heldout:  rows whose columns are predicted
    observed: the observed columns of the same rows. By default a `share` of each row's columns,
              whatever their counts, is held out and predicted from the others
    num_local, num_draws: as for `document_completion`
    """
    check_documents(fit, heldout, "precision_recall_at")
    for name, number in (("M", M), ("num_local", num_local), ("num_draws", num_draws)):
        check_count(name, number)
    if observed is None:
        observed, heldout = split_columns(heldout, share, seed)
    elif getattr(observed, "kind", "") != "counts" or observed.matrix.shape != heldout.matrix.shape:
        raise InputError("observed must be counts of the same rows and columns as those held out.")
    elif observed.matrix.multiply(heldout.matrix).nnz:
        raise InputError("A held-out column is also observed in its row: use it in one of the two.")
    shared, problem = fit.posterior.global_values(num_draws, seed), fit.problem
    plan = plan_for(observed, min(observed.num_rows, max(1, MOST_CELLS // observed.num_columns)))
    number, options = min(M, observed.num_columns), RowOptions(num_local, 0.0)
    hits, size = np.zeros(observed.num_rows), np.zeros(observed.num_rows)
    for rows in batches_of_rows(observed, plan.size):
        batch = observed.pack(rows, plan.size, layout=plan.layout)
        found = _best(problem.model, problem.hyper, shared, batch, options, number)
        columns, exists = (np.asarray(x)[: len(rows)] for x in found)
        liked = heldout.matrix[rows].toarray() > 0
        hits[rows] = np.sum(np.take_along_axis(liked, columns, 1) & exists, 1)
        size[rows] = exists.sum(1)
    wanted = heldout.lengths.astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        terms = [np.where(wanted > 0, hits / x, np.nan) for x in (np.minimum(wanted, size), wanted)]
    return PrecisionRecall(*map(mean, terms))
