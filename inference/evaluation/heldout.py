"""One score on held-out data for every kind of data, so that engines can be compared by what they predict: larger is better, in nats.

counts           log probability per held-out word, each third of a document's words from the rest (`document_completion`)
ratings          log density per held-out rating
text_and_votes   log probability per vote on held-out bills, from their text alone
dense            log density per row, for models whose rows have no sites of their own (mixtures), averaged over draws inside the logarithm
"""

from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp

import inference
from inference.evaluation.scores import Measure, mean
from inference.io import arviz
from pp_models.data.types import Data

NUM_DRAWS = 50  # of the posterior, for dense rows


def heldout_score(fit: Any, heldout: Data | None) -> tuple[float | None, float | None]:
    """The score and its standard error; None where there is nothing to score."""
    if heldout is None or heldout.num_rows == 0:
        return None, None
    if heldout.kind == "ratings":
        found: Any = inference.score_ratings(fit, heldout).measures["log_density"]
    elif heldout.kind == "counts":
        if heldout.total == 0:
            return None, None
        found = inference.document_completion(fit, heldout, folds=3)
    elif heldout.kind == "text_and_votes":
        if heldout.votes is None or heldout.votes.nnz == 0 or heldout.matrix is None:
            return None, None
        loss = inference.score_votes(fit, heldout).log_loss
        found = Measure(-loss.value, loss.standard_error, -loss.terms)
    elif fit.model.local:
        return None, None
    else:
        found = _new_rows(fit, heldout)
    error = found.standard_error
    return float(found.value), float(error) if np.isfinite(error) else None


def _new_rows(fit: Any, heldout: Data) -> Measure:
    """Rows that no site belongs to: their density is the posterior's mean of it."""
    number = 1 if fit.posterior.kind == "point" else NUM_DRAWS
    draws = fit.posterior.sample(jax.random.key(0), number)
    logs = arviz.likelihood_of_rows(fit, draws, heldout)
    return mean(logsumexp(logs, axis=0) - np.log(len(logs)))
