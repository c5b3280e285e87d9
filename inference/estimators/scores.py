"""What `score` measures; higher is better.

| data | measure |
|---|---|
| counts | log probability of a word, each third of a row's words from the others |
| ratings | minus the root mean squared error of a fifth of the ratings, users located by the rest |
| text and votes | minus the log loss of votes that are predicted from the bills' text alone |
| dense | log p(row, its local sites at their means given the row) / columns |
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference.core.posterior import in_batches
from inference.core.topics import labelled_draws
from inference.evaluation.completion import document_completion
from inference.evaluation.ratings import split_ratings
from inference.evaluation.vote_scores import score_votes
from pp_models.errors import InputError


def score(fit: Any, data: Any) -> float:
    """One number; see the module's table."""
    kind = fit.model.kind
    if kind == "ratings":
        return _ratings(fit, data)
    if kind == "dense":
        return _density(fit, data)
    if np.any(data.matrix.data != np.floor(data.matrix.data)):
        raise InputError("score deals out whole tokens, and X holds fractions: pass counts.")
    if kind == "counts":
        return float(document_completion(fit, data).value)
    if data.votes is None:
        raise InputError("score predicts votes from text: pass them as y.")
    return -float(score_votes(fit, data).log_loss.value)


def item_means(fit: Any) -> np.ndarray:
    """(items, K) mean locations of the items, those of draws with common labels."""
    site, posterior = fit.model.ratings.sites[1], fit.posterior
    if posterior.has_chains:
        draws = labelled_draws(fit.model, posterior, list(fit.model.shared))
        return np.asarray(draws[site], np.float64).mean(0)
    return np.asarray(posterior.mean(site), np.float64)


def _ratings(fit: Any, data: Any) -> float:
    """Ratings of new users are predicted from the rest of their own."""
    known, held = split_ratings(data, 0.2)
    columns, rows = item_means(fit), np.asarray(fit.transform(known), np.float64)
    cells = held.matrix.tocoo()
    users, items = cells.coords
    predicted = float(fit.hyper.offset) + np.sum(rows[users] * columns[items], 1)
    return -float(np.sqrt(np.mean((predicted - cells.data) ** 2)))


@partial(jax.jit, static_argnames=("model",))
def _log_rows(model, hyper, values, batch):
    stats = {site: model.families[site].stats(x) for site, x in values.items()}
    return model.log_local(hyper, stats, batch)


def _density(fit: Any, data: Any) -> float:
    """Global sites at their means."""
    model = fit.model
    if len(model.local) > 1:
        raise InputError(f"score does not know the rows of {model.name}: use `fit_`.")
    values = {site: jnp.asarray(fit.posterior.mean(site)) for site in model.shared}
    local = {site: np.asarray(fit.transform(data)) for site in model.local}
    total = 0.0
    for rows, batch in in_batches(data, 1024):
        padded = np.resize(rows, len(batch.mask))  # padding has no weight
        own = {site: jnp.asarray(x[padded]) for site, x in local.items()}
        total += float(_log_rows(model, fit.problem.hyper, values | own, batch))
    return total / (data.num_rows * data.num_columns)
