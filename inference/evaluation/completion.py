"""Document completion and perplexity, computed alike for every engine (`core.completion`)."""

from typing import Any, NamedTuple

import numpy as np

from inference.core.completion import COUNTS, Scale, complete_rows, has_topics, plan_for
from inference.evaluation.scores import Score, check_vocabulary, ratio, warn_if_fitted
from pp_models.data.types import Data
from pp_models.errors import InputError, unknown
from pp_models.model import check_count

MOST_CELLS = 4_000_000  # rows x columns predicted at a time, if whole rows must be predicted
MOST_ROWS = 4096  # rows scored at a time otherwise


def document_completion(
    fit: Any,
    heldout: Data,
    folds: int = 3,
    seed: int = 0,
    num_local: int = 50,
    num_draws: int = 20,
    scale: Scale = COUNTS,
) -> Score:
    """log p per held-out word in nats (P 11.6); perplexity is exp(-value).

    Each document's tokens are split at random into `folds` parts, and each part is predicted from
    the others. Global sites are fixed at the mean of a distribution or at a point. For a Markov
    chain or a grid (H 13), the predictions of `num_draws` draws are averaged. Local sites are
    inferred from the observed tokens by `num_local` iterations; predicted rates are normalised
    over words. A word that the model rules out counts as one of probability 1e-38.

    seed:  decides, together with a document's contents alone, how its tokens are split
    scale: the transformation of counts that the model was fitted to

    >>> import inference, pp_models
    >>> data = pp_models.data.counts([[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 6, 2], [0, 1, 3, 4]])
    >>> fit = inference.fit("lda", data, engine="cavi", hyper={"num_topics": 2})
    >>> heldout = pp_models.data.counts([[2, 4, 0, 0], [0, 0, 3, 3]])
    >>> score = inference.document_completion(fit, heldout)
    >>> score.num_tokens, score.value > -1.5
    (array([6., 6.]), True)
    """
    check_documents(fit, heldout, "document_completion")
    if folds < 2:
        raise InputError(f"folds must be at least 2, not {folds}: some words must stay observed.")
    check_count("num_local", num_local)
    check_count("num_draws", num_draws)
    at_entries = scale.undo is COUNTS.undo and has_topics(fit.model)
    most = MOST_ROWS if at_entries else max(1, MOST_CELLS // heldout.num_columns)
    size = min(heldout.num_rows, most)
    options = {"folds": folds, "seed": seed, "num_local": num_local, "scale": scale}
    plan = plan_for(heldout, size, **options)
    shared, logs = fit.posterior.global_values(num_draws, seed), np.zeros(heldout.num_rows)
    for rows in batches_of_rows(heldout, size):
        logs[rows] = complete_rows(fit.problem, shared, heldout, rows, plan)
    return Score(*ratio(logs, heldout.totals), logs, heldout.totals)


def batches_of_rows(data: Data, size: int) -> list[np.ndarray]:
    """Indices of the rows, `size` at a time."""
    return np.split(np.arange(data.num_rows), range(size, data.num_rows, size))


def check_documents(fit: Any, heldout: Any, what: str) -> None:
    """Refuse data that are not documents with the fit's vocabulary."""
    if not isinstance(heldout, Data) or heldout.kind != "counts":
        kind = getattr(heldout, "kind", type(heldout).__name__)
        raise InputError(f"{what} scores counts, made with pp_models.data.counts, not {kind}.")
    if fit.model.kind != "counts":
        told = f"{what} scores models of counts, and {fit.model.name} explains {fit.model.kind}"
        raise InputError(f"{told} data.")
    check_vocabulary(fit, heldout)
    if heldout.total == 0:
        raise InputError("The held-out documents are empty: there is nothing to score.")
    warn_if_fitted(fit, heldout)


class Perplexity(NamedTuple):
    """value: H(17). standard_error: over documents. per_document: log p(y_d) in nats.
    num_tokens: n_d."""

    value: float
    standard_error: float
    per_document: np.ndarray
    num_tokens: np.ndarray


METHODS = ("completion", "chib", "left_to_right")


def perplexity(fit: Any, heldout: Data, method: str = "completion", **options: Any) -> Perplexity:
    """exp(-sum_d log p(y_d) / sum_d n_d), H(17), for documents y_d of n_d words in order.

    method:  "completion" uses the sum over folds of `document_completion` for log p(y_d), where
             draws stand for the integral H(18); "chib" and "left_to_right" estimate p(y_d) itself
             (`log_evidence`)
    options: of `document_completion` or `log_evidence`
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
