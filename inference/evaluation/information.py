"""Predictive accuracy on rows like those that were fitted, without holding any out: PSIS-LOO and WAIC, from the log likelihoods of draws.

Rows are left out given their own sites (a document's proportions), which the draws know from that very row. This is what ArviZ computes, and for
models with a site for each row it is optimistic, as Pareto shapes above 0.7 say; `document_completion` and `log_evidence` are not. Draws from a
distribution are taken for draws from the posterior.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from inference.evaluation.scores import ratio
from inference.io import arviz
from pp_models.errors import InputError
from pp_models.model import check_count


class Information(NamedTuple):
    """value: expected log predictive density in nats per token (per rating; of other data per row), with every constant of the model's likelihood.

    standard_error: over rows. per_document, num_tokens: its terms. effective_parameters: p_loo or p_waic.
    khat: Pareto shape of each row's importance weights, above 0.7 not to be trusted; nan for WAIC.
    """

    value: float
    standard_error: float
    per_document: np.ndarray
    num_tokens: np.ndarray
    effective_parameters: float
    khat: np.ndarray


def _tree(fit: Any, num_draws: int) -> Any:
    check_count("num_draws", num_draws)
    if fit.posterior.kind == "point":
        raise InputError(
            f"LOO and WAIC need draws or a distribution, and {fit.engine} gives a point: use another engine."
        )
    if fit.data is None:
        raise InputError(
            "This fit was loaded without its data, whose likelihood is asked for: pass data= to inference.load."
        )
    tree = arviz.convert(fit, num_draws)
    if not arviz.has_group(tree, "log_likelihood"):
        raise InputError(
            "The likelihood of every row under every draw is too much to compute, or the prior is not proper: use fewer draws or rows."
        )
    return tree


def _information(fit: Any, terms: np.ndarray, number: float, khat: np.ndarray) -> Information:
    data = fit.data
    sizes = (
        data.totals
        if data.kind == "counts"
        else data.lengths.astype(float)
        if data.kind == "ratings"
        else np.ones(data.num_rows)
    )
    return Information(*ratio(terms, sizes), terms, sizes, number, khat)


def loo(fit: Any, num_draws: int = 1000) -> Information:
    """Leave-one-row-out by Pareto-smoothed importance sampling (Vehtari, Gelman & Gabry 2017), by ArviZ."""
    return _information(fit, *arviz.pointwise_loo(_tree(fit, num_draws)))


def waic(fit: Any, num_draws: int = 1000) -> Information:
    """log mean p(row | draw) less its variance over draws, row by row (Watanabe 2010). By its formula: ArviZ 1 has none."""
    logs = arviz.row_log_likelihoods(_tree(fit, num_draws), fit.model.observed)
    variance = logs.var(0)
    return _information(
        fit,
        logsumexp(logs, 0) - np.log(len(logs)) - variance,
        float(variance.sum()),
        np.full(logs.shape[1], np.nan),
    )
