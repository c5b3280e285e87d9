"""What `score` measures: held-out parts of rows, predicted from the rows' other parts.

| data | measure |
|---|---|
| counts | log probability of a word, each third of a row's words from the others |
| ratings | minus the root mean squared error of a fifth of the ratings, users located by the rest |
| dense, text and votes | log density of a row, per column |
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference.core.posterior import in_batches
from inference.evaluation.completion import document_completion
from inference.evaluation.ratings import split_ratings
from pp_models.errors import InputError


def score(fit: Any, data: Any) -> float:
    """One number, higher for better; see the module's table."""
    if fit.model.kind == "counts":
        return float(document_completion(fit, data).value)
    return _ratings(fit, data) if fit.model.kind == "ratings" else _density(fit, data)


def _ratings(fit: Any, data: Any) -> float:
    """Ratings of new users are predicted from the rest of their own."""
    known, held = split_ratings(data, 0.2)
    columns = np.asarray(fit.posterior.mean(fit.model.ratings.sites[1]), np.float64)
    rows = np.asarray(fit.transform(known), np.float64)
    cells = held.matrix.tocoo()
    users, items = cells.coords
    predicted = float(fit.hyper.offset) + np.sum(rows[users] * columns[items], 1)
    return -float(np.sqrt(np.mean((predicted - cells.data) ** 2)))


def _density(fit: Any, data: Any) -> float:
    """log p(row | global sites at their means), local sites at their means given the row."""
    model, hyper = fit.model, fit.problem.hyper
    values = {site: jnp.asarray(fit.posterior.mean(site)) for site in model.shared}
    if len(model.local) > 1:
        raise InputError(f"score does not know rows of {model.name}: use pp_models.evaluate.")
    local = {site: np.asarray(fit.transform(data)) for site in model.local}
    total = 0.0
    for rows, batch in in_batches(data, 1024):
        own = {
            site: jnp.asarray(np.resize(x[rows], (len(batch.mask), *x.shape[1:])))
            for site, x in local.items()
        }
        stats = {s: model.families[s].stats(x) for s, x in {**values, **own}.items()}
        total += float(jax.jit(model.log_local)(hyper, stats, batch))
    return total / (data.num_rows * data.num_columns)
