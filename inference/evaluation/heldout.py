"""One score on held-out data for every kind of data, in nats; larger is better.

| kind | score |
|---|---|
| counts | log probability per held-out word (`document_completion` with three folds) |
| ratings | log density per held-out rating |
| text_and_votes | log probability per vote on held-out bills, from their text alone |
| dense | log density per row, for models without local sites, averaged over posterior draws |
"""

from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp

from inference.evaluation.completion import document_completion
from inference.evaluation.ratings import score_ratings
from inference.evaluation.scores import Measure, mean
from inference.evaluation.vote_scores import score_votes
from inference.io import arviz
from pp_models.data.types import Data

NUM_DRAWS = 50  # of the posterior, for dense rows


def heldout_score(fit: Any, heldout: Data | None) -> tuple[float | None, float | None]:
    """The score and its standard error; None if there is nothing to score."""
    if heldout is None or heldout.num_rows == 0:
        return None, None
    found: Any = None
    if heldout.kind == "ratings":
        found = score_ratings(fit, heldout).measures["log_density"]
    elif heldout.kind == "counts":
        found = document_completion(fit, heldout, folds=3) if heldout.total else None
    elif heldout.kind == "text_and_votes":
        if heldout.votes is not None and heldout.votes.nnz and heldout.matrix is not None:
            loss = score_votes(fit, heldout).log_loss
            found = Measure(-loss.value, loss.standard_error, -loss.terms)
    elif not fit.model.local:
        posterior = fit.posterior
        draws = posterior.sample(jax.random.key(0), posterior.num_draws(NUM_DRAWS))
        logs = arviz.likelihood_of_rows(fit, draws, heldout)
        found = mean(logsumexp(logs, axis=0) - np.log(len(logs)))
    if found is None:
        return None, None
    error = found.standard_error
    return float(found.value), float(error) if np.isfinite(error) else None
