"""One score on held-out data for every kind of data, in nats; larger is better.

| kind | score |
|---|---|
| counts | log probability per held-out word (`document_completion` with three folds) |
| ratings | log density per held-out rating |
| text_and_votes | log probability per vote on held-out bills, from their text alone |
| dense | log density per row, for models without local sites, averaged over posterior draws |
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import logsumexp

from inference.evaluation.completion import document_completion
from inference.evaluation.ratings import known_ratings, score_ratings
from inference.evaluation.scores import Measure, mean, ratio
from inference.evaluation.vote_scores import score_votes
from inference.io import arviz
from pp_models.data.types import Data

NUM_DRAWS = 50  # of the posterior, for dense rows
UNITS = {
    "counts": "nats per held-out word",
    "ratings": "nats per held-out rating",
    "text_and_votes": "nats per vote on held-out bills",
    "dense": "nats per held-out row",
}


class RowScores(NamedTuple):
    """What each held-out row adds to the score, sum(sums) / sum(sizes): rows are independent, the
    entries of a row may not be. Differences of two fits on the same rows are taken row by row."""

    sums: np.ndarray
    sizes: np.ndarray

    def minus(self, other: "RowScores") -> tuple[float, float]:
        """The difference of the two scores, and its standard error."""
        return ratio(self.sums - other.sums, self.sizes)


def heldout_score(fit: Any, heldout: Data | None) -> tuple[float | None, float | None]:
    """The score and its standard error; None if there is nothing to score."""
    if heldout is None or heldout.num_rows == 0:
        return None, None
    found = _scored(fit, heldout)
    if found is None:
        return None, None
    error = found.standard_error
    return float(found.value), float(error) if np.isfinite(error) else None


def row_scores(fit: Any, heldout: Data) -> RowScores | None:
    """The same score row by row; None if there is nothing to score."""
    if heldout.kind == "ratings":
        heldout = known_ratings(fit, heldout)
    found = _scored(fit, heldout)
    if found is None:
        return None
    if heldout.kind == "counts":
        return RowScores(found.per_document, found.num_tokens)
    known = ~np.isnan(found.terms)
    terms, rows = np.where(known, found.terms, 0), np.arange(len(known))
    if heldout.kind == "ratings":
        rows = heldout.matrix.tocoo().coords[0]
    elif heldout.kind == "text_and_votes":
        rows = heldout.votes.tocoo().coords[0]
    return RowScores(*(np.bincount(rows, x, heldout.num_rows) for x in (terms, known)))


def _scored(fit: Any, heldout: Data) -> Any:
    """A `Score` of documents or a `Measure` with a term for each rating, vote or row."""
    if heldout.kind == "ratings":
        return score_ratings(fit, heldout).measures["log_density"]
    if heldout.kind == "counts":
        return document_completion(fit, heldout, folds=3) if heldout.total else None
    if heldout.kind == "text_and_votes":
        if heldout.votes is None or not heldout.votes.nnz or heldout.matrix is None:
            return None
        loss = score_votes(fit, heldout).log_loss
        return Measure(-loss.value, loss.standard_error, -loss.terms)
    if fit.model.local:
        return None
    posterior = fit.posterior
    draws = posterior.sample(jax.random.key(0), posterior.num_draws(NUM_DRAWS))
    logs = arviz.likelihood_of_rows(fit, draws, heldout)
    return mean(logsumexp(logs, axis=0) - np.log(len(logs)))
