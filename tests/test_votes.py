"""Votes predicted from text and from other votes: how rows are integrated out, on cases small enough to integrate exactly."""

import jax
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
from scipy.special import log_ndtr, ndtr

import inference
from inference import laplace, votes
from pp_models import data as data_
from pp_models import lg_nmf_votes
from pp_models.errors import InputError

NONE = np.nan


def at_point(data, values, **given):
    """A point estimate that is not fitted but set."""
    fit = inference.fit("lg_nmf_votes", data, "map", given, progress=False, num_epochs=1)
    fit.posterior.values |= {site: np.asarray(x, float) for site, x in values.items()}
    return fit


# One member, one bill, one topic ------------------------------------------------------------------------------------------------------------


def integrated(known, s_known, d1, counts, alpha1, alpha2):
    """The probability of yea for a bill with these counts, by integration over d2 and s in turn; known votes on bills with weights s_known."""
    sign = np.where(np.asarray(known) > 0, 1, -1)
    p, b = alpha1 + d1 @ d1, counts @ d1

    def member(d):
        return np.exp(-0.5 * alpha2 * d**2 + np.sum(log_ndtr(sign * d * s_known)))

    def bill(s):
        return np.exp(b * s - 0.5 * p * s**2 - (0.5 * b**2 / p if b > 0 else 0))

    def yea(d):
        return scipy.integrate.quad(lambda s: bill(s) * ndtr(d * s), 0, 30, limit=200)[0] / mass

    mass = scipy.integrate.quad(bill, 0, 30, limit=200)[0]
    total = scipy.integrate.quad(member, -12, 12, limit=200)[0]
    return scipy.integrate.quad(lambda d: member(d) * yea(d), -12, 12, limit=200)[0] / total


CASES = {  # votes known, weights of their bills, words, counts of the new bill, alpha1, alpha2
    "few votes": ([1, 1, 0, 1], [1.0, 2.0, 0.3, 1.5], [0.3, 0.4], [2.0, 1.0], 0.5, 0.3),
    "no words": ([1, 1, 1], [1.0, 1.0, 2.0], [0.5], [0.0], 0.2, 0.5),
    "all one way": ([1, 1, 1, 1, 1], [1.0, 1.5, 2.0, 2.0, 1.0], [0.2, 0.2, 0.2], [1.0, 0.0, 3.0], 1.0, 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_nested_is_nearest_to_the_integral(case):
    """Nested is nearer to the integral of H(13) than gaussian, gaussian than plug-in; nested within 0.01, the order of its error for a handful of votes."""
    known, s_known, d1, counts, alpha1, alpha2 = (np.asarray(x, float) for x in CASES[case])
    data = data_.text_and_votes(np.ones((len(known), len(d1))), known[:, None])
    given = {"num_topics": 1, "alpha1": float(alpha1), "alpha2": float(alpha2)}
    mode = scipy.optimize.minimize_scalar(
        lambda d: 0.5 * alpha2 * d**2 - np.sum(log_ndtr(np.where(known > 0, 1, -1) * d * s_known)), bounds=(-12, 12), method="bounded"
    ).x
    fit = at_point(data, {"d1": d1[:, None], "d2": [[mode]], "s": s_known[:, None]}, **given)
    exact = integrated(known, s_known, d1, counts, alpha1, alpha2)
    # a bill of which nothing is known is refused, so a word is counted and then taken back
    bill = data_.text_and_votes(counts[None] if counts.any() else None, [[NONE]]) if counts.any() else None
    if bill is None:
        bill = data_.text_and_votes(np.ones((1, len(d1))), [[NONE]])
        exact = integrated(known, s_known, d1, np.ones(len(d1)), alpha1, alpha2)
    error = {rows: abs(float(inference.predict_votes(fit, bill, rows)[0, 0]) - exact) for rows in votes.ROWS}
    print(case, exact, error)
    assert error["nested"] < error["gaussian"] < error["plug_in"]
    assert error["nested"] < 0.01 < error["plug_in"]
