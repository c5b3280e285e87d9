"""Scores of probabilities of binary outcomes: accuracy, AUC, log loss, Brier, calibration."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.stats import rankdata

from inference.evaluation.scores import Measure, clustered, warn_if_fitted
from inference.evaluation.votes import predict_votes
from pp_models.data.types import Data
from pp_models.errors import InputError
from pp_models.model import check_count

CLIP = 1e-15  # smallest distance of a probability to 0 and 1 in the log loss


class ProbabilityScore(NamedTuple):
    """Scores with their standard errors over rows and a term per outcome.

    accuracy:          share of outcomes on the same side of 1/2 as the probability
    auc:               share of pairs of a yes and a no in which the yes has the larger probability,
                       ties counting half; nan if all outcomes are equal. The error is DeLong's,
                       over outcomes; a term is the share of the other kind ranked correctly
    log_loss:          mean of -log p(outcome), in nats per outcome
    brier:             mean of (p - outcome)^2
    calibration_error: see `calibration_error`
    """

    accuracy: Measure
    auc: Measure
    log_loss: Measure
    brier: Measure
    calibration_error: Measure


def calibration_error(probability: np.ndarray, truth: np.ndarray, bins: int = 10) -> Measure:
    """Expected calibration error: |mean probability - share of yes| in bins of equal width.

    Bins are weighted by their outcomes. The standard error is over outcomes, assuming that gaps do
    not change sign; a term is its bin's gap. The value is positive even for perfect calibration.
    """
    check_count("bins", bins)
    probability = np.asarray(probability, np.float64)
    place = np.minimum((probability * bins).astype(int), bins - 1)
    size, residual = np.bincount(place, minlength=bins), probability - truth
    gap = np.bincount(place, residual, bins) / np.maximum(size, 1)
    spread = np.sum((residual - gap[place]) ** 2)
    value, error = np.sum(size * np.abs(gap)) / len(truth), np.sqrt(spread) / len(truth)
    return Measure(float(value), float(error), np.abs(gap)[place])


def _auc(probability: np.ndarray, truth: np.ndarray) -> Measure:
    terms = np.full(len(truth), np.nan)
    yes, no = probability[truth > 0], probability[truth <= 0]
    if not len(yes) or not len(no):
        return Measure(float("nan"), float("nan"), terms)
    together = rankdata(np.concatenate([yes, no]))
    above = (together[: len(yes)] - rankdata(yes)) / len(no)  # share of noes below each yes
    below = 1 - (together[len(yes) :] - rankdata(no)) / len(yes)
    terms[truth > 0], terms[truth <= 0] = above, below
    variance = sum(x.var(ddof=1) / len(x) if len(x) > 1 else np.nan for x in (above, below))
    return Measure(float(above.mean()), float(np.sqrt(variance)), terms)


def score_probabilities(
    probability: Any, truth: Any, rows: Any = None, bins: int = 10
) -> ProbabilityScore:
    """Score probabilities of yes against outcomes, 1 or 0.

    rows: the row that each outcome belongs to, for the standard errors; by default its own
    """
    p, y = np.asarray(probability, np.float64), np.asarray(truth, np.float64)
    if p.ndim != 1 or p.shape != y.shape or not len(p):
        raise InputError("probability and truth must be non-empty lists of equal length.")
    if not (np.all((p >= 0) & (p <= 1)) and np.all((y == 0) | (y == 1))):
        raise InputError("Probabilities must lie between 0 and 1, and outcomes be 0 or 1.")
    row = np.arange(len(p)) if rows is None else np.asarray(rows)
    clipped = np.clip(p, CLIP, 1 - CLIP)
    return ProbabilityScore(
        clustered(((p > 0.5) == (y > 0)).astype(float), row),
        _auc(p, y),
        clustered(-np.where(y > 0, np.log(clipped), np.log1p(-clipped)), row),
        clustered((p - y) ** 2, row),
        calibration_error(p, y, bins),
    )


def score_votes(
    fit: Any, heldout: Data, observed: Data | None = None, bins: int = 10, **options: Any
) -> ProbabilityScore:
    """Score predictions (`predict_votes`) of the votes on held-out bills.

    heldout:  the votes to predict, and the bills' text
    observed: the same bills with known votes, none of them held out; by default the text alone
    options:  of `predict_votes`
    """
    if not isinstance(heldout, Data) or heldout.kind != "text_and_votes":
        raise InputError("score_votes needs held-out votes: use pp_models.data.text_and_votes.")
    warn_if_fitted(fit, heldout)
    shape = heldout.votes.shape
    none = scipy.sparse.csr_array(shape, dtype=np.float32)
    known = dataclasses.replace(heldout, votes=none) if observed is None else observed
    if not isinstance(known, Data) or known.votes is None or known.votes.shape != shape:
        raise InputError("observed must be text and votes of the same bills and members.")
    asked, used = heldout.votes.tocoo(), known.votes.tocoo()
    cells = (np.ravel_multi_index(votes.coords, shape) for votes in (asked, used))
    if np.isin(*cells).any():
        raise InputError("A held-out vote is also observed: use it in one of the two.")
    probability = predict_votes(fit, known, **options)[asked.coords]
    return score_probabilities(np.clip(probability, 0, 1), asked.data, asked.coords[0], bins)
