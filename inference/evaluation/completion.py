"""Document completion and perplexity: held-out scores, the same for every engine. `core.completion` has the formula."""

from typing import Any, NamedTuple

import numpy as np

from inference.core.completion import (
    COUNTS,
    FLOOR,
    Plan,
    Scale,
    _same,
    complete_rows,
    has_topics,
    plan_for,
    row_means,
    score_batch,
)
from inference.evaluation.scores import Score, check_vocabulary, ratio
from inference.evaluation.splits import Split, hold_out, split_tokens
from pp_models.data.types import Data
from pp_models.errors import InputError, unknown
from pp_models.model import check_count

__all__ = [
    "COUNTS",
    "FLOOR",
    "Perplexity",
    "Plan",
    "Scale",
    "Score",
    "Split",
    "complete_rows",
    "document_completion",
    "hold_out",
    "perplexity",
    "plan_for",
    "row_means",
    "score_batch",
    "split_tokens",
]

MOST_CELLS = 4_000_000  # rows x columns predicted at a time, where they must be
MOST_ROWS = 4096  # scored at a time otherwise


def document_completion(
    fit: Any,
    heldout: Data,
    folds: int = 3,
    seed: int = 0,
    num_local: int = 50,
    num_draws: int = 20,
    scale: Scale = COUNTS,
) -> Score:
    """log p per held-out word (P 11.6): each document's tokens are split into `folds` parts at random; each part is predicted from the others.

    A distribution's or a point's global sites are fixed at their means; of a Markov chain or a grid (H 13), `num_draws` draws are used in turn and
    their predictions averaged, whatever their labels. A document's own sites are inferred from its observed tokens by `num_local` iterations, and the
    prediction is the mean rate, normalised over words. A word that the model rules out counts as one of probability 1e-38.
    seed: with a document's contents it decides how its tokens are split; the order of documents and what else there is do not matter.
    scale: how observed tokens were turned into what the model was fitted to.
    Units: nats per token; perplexity is exp(-value).

    >>> import inference, pp_models
    >>> data = pp_models.data.counts([[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 6, 2], [0, 1, 3, 4]])
    >>> fit = inference.fit("lda", data, engine="cavi", hyper={"num_topics": 2})
    >>> score = inference.document_completion(fit, data)
    >>> score.num_tokens, score.value > -1.5
    (array([7., 9., 8., 8.]), True)
    """
    check_documents(fit, heldout, "document_completion")
    if folds < 2:
        raise InputError(f"folds must be at least 2, not {folds}: some words must stay observed.")
    check_count("num_local", num_local)
    check_count("num_draws", num_draws)
    most = (
        MOST_ROWS
        if scale.undo is _same and has_topics(fit.model)
        else max(1, MOST_CELLS // heldout.num_columns)
    )
    plan = plan_for(
        heldout,
        min(heldout.num_rows, most),
        folds=folds,
        seed=seed,
        num_local=num_local,
        scale=scale,
    )
    shared, logs = fit.posterior.global_values(num_draws, seed), np.zeros(heldout.num_rows)
    for first in range(0, heldout.num_rows, plan.size):  # batches of rows
        rows = np.arange(first, min(first + plan.size, heldout.num_rows))
        logs[rows] = complete_rows(fit.problem, shared, heldout, rows, plan)
    return Score(*ratio(logs, heldout.totals), logs, heldout.totals)


def check_documents(fit: Any, heldout: Any, what: str) -> None:
    """Refuse what is not a corpus of the fit's vocabulary with a token in it."""
    if not isinstance(heldout, Data) or heldout.kind != "counts":
        raise InputError(
            f"{what} scores counts, made with pp_models.data.counts, not {getattr(heldout, 'kind', type(heldout).__name__)}."
        )
    if fit.model.kind != "counts":
        raise InputError(
            f"{what} scores models of counts, and {fit.model.name} explains {fit.model.kind} data."
        )
    check_vocabulary(fit, heldout)
    if heldout.total == 0:
        raise InputError("The held-out documents are empty: there is nothing to score.")


class Perplexity(NamedTuple):
    """value: H(17). standard_error: over documents. per_document: log p(y_d) in nats; num_tokens: n_d."""

    value: float
    standard_error: float
    per_document: np.ndarray
    num_tokens: np.ndarray


METHODS = ("completion", "chib", "left_to_right")


def perplexity(fit: Any, heldout: Data, method: str = "completion", **options: Any) -> Perplexity:
    """exp(-sum_d log p(y_d) / sum_d n_d), H(17), with n_d the words of document d: as many equally probable words would be as hard to guess.

    p(y_d) is the probability of the words in their order, without the coefficient that counts the orders of the same words.
    method: "completion" puts for log p(y_d) the sum over folds of log p(n | o) as in `document_completion`, the integral H(18) over hyper-parameters
    and factors being an average over the draws for each word; "chib" and "left_to_right" estimate p(y_d) itself (`log_evidence`).
    options: of `document_completion` or `log_evidence`.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if method == "completion":
        score: Any = document_completion(fit, heldout, **options)
    else:
        from inference.evaluation.document_likelihood import log_evidence

        score = log_evidence(fit, heldout, method, **options)
    value = float(np.exp(-score.value))
    return Perplexity(value, value * score.standard_error, score.per_document, score.num_tokens)
