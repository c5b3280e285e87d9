"""How good probabilities of yes or no are: accuracy, area under the curve, log loss, Brier score and calibration; of votes in particular."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.stats import rankdata

from inference.evaluation.scores import Measure, clustered
from inference.evaluation.votes import predict_votes
from pp_models.data.types import Data
from pp_models.errors import InputError
from pp_models.model import check_count

CLIP = 1e-15  # probabilities are kept this far from 0 and 1 in the log loss


class ProbabilityScore(NamedTuple):
    """Each with its standard error over rows, whose outcomes may depend on each other, and a term for each outcome.

    accuracy:          share of outcomes on the side of 1/2 that the probability is on
    auc:               share of pairs of a yes and a no in which the yes has the larger probability, ties half; nan where all are alike. The error is
                       DeLong's, over outcomes; a term is the share of the other kind that it is on the right side of
    log_loss:          mean of -log p(outcome), nats per outcome
    brier:             mean of (p - outcome)^2
    calibration_error: see `calibration_error`
    """

    accuracy: Measure
    auc: Measure
    log_loss: Measure
    brier: Measure
    calibration_error: Measure


def calibration_error(probability: np.ndarray, truth: np.ndarray, bins: int = 10) -> Measure:
    """The expected calibration error: |mean probability - share of yes| in bins of equal width, averaged over outcomes.

    The error is over outcomes, gaps taken not to change sign. A term is its bin's gap. Where nothing is wrong it is still positive, by chance.
    """
    check_count("bins", bins)
    place = np.minimum((np.asarray(probability, np.float64) * bins).astype(int), bins - 1)
    size = np.bincount(place, minlength=bins)
    residual = np.asarray(probability, np.float64) - truth
    gap = np.bincount(place, residual, bins) / np.maximum(size, 1)
    spread = np.bincount(place, (residual - gap[place]) ** 2, bins)
    return Measure(
        float(np.sum(size * np.abs(gap)) / len(truth)),
        float(np.sqrt(spread.sum()) / len(truth)),
        np.abs(gap)[place],
    )


def _auc(probability: np.ndarray, truth: np.ndarray) -> Measure:
    yes, no = probability[truth > 0], probability[truth <= 0]
    if not len(yes) or not len(no):
        return Measure(float("nan"), float("nan"), np.full(len(truth), np.nan))
    together = rankdata(np.concatenate([yes, no]))
    above = (together[: len(yes)] - rankdata(yes)) / len(
        no
    )  # of each yes, the share of noes below it
    below = 1 - (together[len(yes) :] - rankdata(no)) / len(yes)
    terms = np.empty(len(truth))
    terms[truth > 0], terms[truth <= 0] = above, below
    variance = sum(x.var(ddof=1) / len(x) if len(x) > 1 else np.nan for x in (above, below))
    return Measure(float(above.mean()), float(np.sqrt(variance)), terms)


def score_probabilities(
    probability: Any, truth: Any, rows: Any = None, bins: int = 10
) -> ProbabilityScore:
    """Score probabilities of yes against outcomes, 1 or 0. rows: what each outcome belongs to; by default each stands alone."""
    p, y = np.asarray(probability, np.float64), np.asarray(truth, np.float64)
    if p.ndim != 1 or p.shape != y.shape or not len(p):
        raise InputError(
            "probability and truth must be lists of equal length, with one number for each outcome."
        )
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
    """How well the votes of held-out bills are predicted (`predict_votes`), from their text or, with `observed`, from votes that are known as well.

    heldout:  the votes to predict, and the bills' text
    observed: the same bills with the votes that may be used; none of them may be held out
    options:  of `predict_votes`
    """
    if not isinstance(heldout, Data) or heldout.kind != "text_and_votes":
        raise InputError(
            "score_votes needs held-out votes, made with pp_models.data.text_and_votes."
        )
    silent = scipy.sparse.csr_array(heldout.votes.shape, dtype=np.float32)
    known = dataclasses.replace(heldout, votes=silent) if observed is None else observed
    if (
        not isinstance(known, Data)
        or known.votes is None
        or known.votes.shape != heldout.votes.shape
    ):
        raise InputError(
            "observed must be text and votes of the same bills and members as those held out."
        )
    asked, used = heldout.votes.tocoo(), known.votes.tocoo()
    if np.isin(
        asked.coords[0] * heldout.num_members + asked.coords[1],
        used.coords[0] * heldout.num_members + used.coords[1],
    ).any():
        raise InputError(
            "A vote that is held out is also observed: leave it out of one of the two."
        )
    probability = predict_votes(fit, known, **options)[asked.coords]
    return score_probabilities(np.clip(probability, 0, 1), asked.data, asked.coords[0], bins)
