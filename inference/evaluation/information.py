"""PSIS-LOO and WAIC: predictive accuracy from the log likelihoods of draws, without held-out rows.

A row is left out given its own local sites, which the draws learned from that row. For models with
local sites this is optimistic, which Pareto shapes above 0.7 show; `document_completion` and
`log_evidence` do not have this problem. Draws from an approximation are used as posterior draws.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from inference.evaluation.scores import ratio
from inference.io import arviz
from pp_models.errors import InputError
from pp_models.model import check_count


class Information(NamedTuple):
    """value: expected log predictive density in nats per token, per rating, or else per row.

    standard_error: over rows. per_document, num_tokens: its terms. effective_parameters: p_loo or
    p_waic. khat: Pareto shape of each row's importance weights, unreliable above 0.7; nan for WAIC.
    """

    value: float
    standard_error: float
    per_document: np.ndarray
    num_tokens: np.ndarray
    effective_parameters: float
    khat: np.ndarray


def _tree(fit: Any, num_draws: int) -> Any:
    check_count("num_draws", num_draws)
    if not fit.posterior.has_spread:
        told = f"LOO and WAIC need draws or a distribution, and {fit.engine} gives a point"
        raise InputError(f"{told}: use another engine.")
    if fit.data is None:
        raise InputError("This fit was loaded without its data: pass data= to pp_models.load_fit.")
    tree = arviz.convert(fit, num_draws, by_row=True)
    if not arviz.has_group(tree, "log_likelihood"):
        raise InputError(
            "The likelihood of all rows under all draws is too large to compute, or the prior is "
            "improper: use fewer draws or rows."
        )
    return tree


def _information(fit: Any, terms: np.ndarray, number: float, khat: np.ndarray) -> Information:
    data = fit.data
    sizes = {"counts": lambda: data.totals, "ratings": lambda: data.lengths.astype(float)}
    size = sizes.get(data.kind, lambda: np.ones(data.num_rows))()
    return Information(*ratio(terms, size), terms, size, number, khat)


def loo(fit: Any, num_draws: int = 1000) -> Information:
    """Leave-one-row-out by Pareto-smoothed importance sampling (Vehtari, Gelman & Gabry 2017)."""
    return _information(fit, *arviz.pointwise_loo(_tree(fit, num_draws)))


def waic(fit: Any, num_draws: int = 1000) -> Information:
    """log mean p(row | draw) minus its variance over draws (Watanabe 2010); ArviZ 1 has no WAIC."""
    logs = arviz.row_log_likelihoods(_tree(fit, num_draws), fit.model.observed)
    variance = logs.var(0)
    terms = logsumexp(logs, 0) - np.log(len(logs)) - variance
    return _information(fit, terms, float(variance.sum()), np.full(logs.shape[1], np.nan))
