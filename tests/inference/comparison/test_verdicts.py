"""Words follow from figures by stated limits, and say what they rest on."""

import re
from dataclasses import replace

import pytest

from inference.comparison import verdicts
from inference.comparison.record import Agreement, Evidence, Modes, Row, Within

GOOD = Row(engine="gibbs", rhat=1.004, ess_bulk=900.0, divergences=0, ebfmi=0.9, draws=2000)


def row(error, ratio, kind="variational", **more):
    return Row(engine="cavi", mean_error_sd=error, sd_ratio=ratio, kind=kind, **more)


@pytest.mark.parametrize(
    ("error", "ratio", "words"),
    [
        (0.05, 1.0, "means agree; right width"),
        (0.15, 0.94, "means slightly off; slightly too narrow"),
        (0.6, 0.48, "means off; far too narrow"),
        (0.1, 0.5, "means agree; too narrow"),
        (0.1, 1.25, "means agree; too wide"),
        (3.0, 1.0, "a different answer; right width"),
    ],
)
def test_words_and_the_rule_behind_them(error, ratio, words):
    """A limit belongs to the words above it, and the rule repeats both figures."""
    verdict, rule = verdicts.of_engine(row(error, ratio), True)
    assert verdict == words
    assert f"mean error {error:.2f} ±" in rule and f"sd ratio {ratio:.2f}" in rule
    low_high = re.findall(r"\(([^)]*)\)", rule)
    assert len(low_high) == 2


def test_a_part_whose_width_errs_the_other_way_is_not_said_to_err_more():
    """Parameters that are too narrow beside likelihoods that are too wide."""
    for ratio, words in (
        (1.47, "slightly too narrow but row likelihoods too wide (1.47 of its sd)"),
        (0.6, "slightly too narrow and more so row likelihoods (0.60 of its sd)"),
    ):
        part = Agreement(quantities=20, mean_error_sd=0.0, sd_ratio=ratio)
        found = row(0.05, 0.9, invariant={"row likelihoods": part})
        assert words in verdicts.of_engine(found, True)[0]


def test_another_mode_is_told_from_a_fit_that_has_not_converged():
    """Sweeps that raise the bound say that a fit has not converged. Chains that settle at its
    answer say that it is another mode, and chains that leave it that it is none.
    """
    far = row(3.0, 1.0, climb=45.0, gain=500.0)
    assert verdicts.of_engine(far, True)[0].startswith(
        "not converged (more sweeps raise its bound by 45.0 nats); a different answer"
    )
    said = []
    for error in (0.1, 1.5, None):
        settled = row(3.0, 1.0, climb=0.3, gain=500.0)
        settled.verdict = verdicts.of_engine(settled, True)[0]
        assert settled.verdict == "a different answer; right width"
        settled.within = Within(mean_error_sd=error, verdict="not judged: they left", rule="")
        said.append(verdicts.of_other_mode(settled))
    settled.within = Within(mean_error_sd=0.95, from_reference_sd=0.3, verdict="means off", rule="")
    assert "no other mode: chains that start there agree with" in verdicts.of_other_mode(settled)
    assert said[0].startswith("another mode; right width; within that mode")
    assert said[1].startswith("a different answer; right width; no mode")
    assert said[2] == "a different answer; right width; they left"


def test_parts_are_said_where_the_reference_judges_nobody():
    """Convergence, the mode, and the best engine's ELBO and held-out score. A score that is not a
    number silences nobody.
    """
    rows = {
        "cavi": Row(engine="cavi", elbo=-100.0, elbo_se=0.1, heldout=-3.0, heldout_se=0.01),
        "svi": Row(engine="svi", elbo=-150.0, elbo_se=0.1, heldout=-3.2, heldout_se=0.01, climb=9),
        "map": Row(engine="map", heldout=float("nan")),
    }
    verdicts.beside_the_best(rows)
    for one in rows.values():
        one.within = Within(verdict="means agree", rule="")
    assert verdicts.in_parts(rows["cavi"]) == "within its mode: means agree"
    assert verdicts.in_parts(rows["svi"]) == (
        "not converged (more sweeps raise its bound by 9.0 nats); within its mode: means agree; "
        "ELBO 50.0 nats below that of cavi; held-out score 0.200 below that of cavi"
    )


def test_a_difference_without_its_error_is_not_said():
    """One held-out row has no standard error; the score of one engine may then be anything."""
    rows = {
        "cavi": Row(engine="cavi", heldout=-3.0, heldout_se=None),
        "svi": Row(engine="svi", heldout=-3.1, heldout_se=None, verdict="not judged"),
    }
    verdicts.beside_the_best(rows)
    assert verdicts.in_parts(rows["svi"]) == "not judged"


def test_one_number_among_many_is_named():
    """Twelve sd of one number of a thousand make a mean error of 0.38 of all of them. Without it
    the rest is right; of a thousand that are all 0.38 sd off, none is to blame.
    """
    far = {"quantities": 1000, "mean_error_se": 0.01, "worst": "beta[3, cat]"}
    one = verdicts.of_engine(row(0.38, 1.0, worst_shift_sd=12.0, **far), True)[0]
    assert one == "means agree but for beta[3, cat] (12.0 sd); right width"
    all_of_them = verdicts.of_engine(row(0.38, 1.0, worst_shift_sd=1.3, **far), True)[0]
    assert all_of_them == "means slightly off; right width"


def test_the_worst_word_needs_to_be_sure():
    """1.05 sd with a standard error of 0.25 may be half an sd: means are off, more is not known."""
    assert verdicts.of_engine(row(1.05, 1.0, mean_error_se=0.25), True)[0].startswith("means off;")


def test_rounding_of_a_sum_of_single_precision_demotes_nobody():
    """Of half a million nats, one hundred thousandth is rounding; a hundred nats are not."""
    evidence = Evidence(log_evidence=-400_555.0, error=0.1, method="bridge")
    assert verdicts.missed_mode(Row(engine="cavi", bound=-400_552.5), evidence) is None
    assert verdicts.missed_mode(Row(engine="cavi", bound=-400_455.0), evidence)


def test_the_worst_sites_are_named_and_broken_ones_are_not_passed_over():
    off = {
        name: Agreement(mean_error_sd=error) for name, error in zip("abc", (2, 3, 50), strict=True)
    }
    assert (
        "but for c (50.0 sd) and b (3.0 sd)"
        in verdicts.of_engine(row(0.0, 1.0, sites=off), True)[0]
    )
    point = verdicts.of_engine(row(0.0, None, kind="point", sites={"c": off["c"]}), True)[0]
    assert point == "means agree but for c (50.0 sd); a point, silent about uncertainty"
    broken = {"a": Agreement(mean_error_sd=float("nan"), quantities=3)}
    said = verdicts.of_engine(row(0.0, 1.0, sites=broken), True)[0]
    assert said == "not judged: draws of a are not finite"


def test_nobody_is_judged_without_a_reference_that_converged():
    assert verdicts.of_engine(row(0.0, 1.0), False)[0].startswith("not judged")
    assert verdicts.of_engine(row(0.0, 1.0), None)[0].startswith("not judged")
    assert verdicts.of_engine(row(0.0, 1.0), None, judged=False)[0].startswith("not judged")
    assert verdicts.of_engine(row(None, None), True)[0].startswith("not judged")
    assert verdicts.of_engine(row(float("nan"), 1.0), True)[0].startswith("not judged")


def test_same_predictions_by_other_factors():
    found = verdicts.of_engine(
        row(2.0, 0.9, invariant={"expected data": Agreement(mean_error_sd=0.1)}), True
    )
    assert (
        found[0].startswith("other factors, nearly the same predictions") and "0.10 sd" in found[1]
    )


def test_a_point_is_silent_about_uncertainty():
    assert "point" in verdicts.of_engine(row(0.1, None, kind="point"), True)[0]
    assert verdicts.of_engine(row(0.74, None, kind="point"), True)[0].startswith(
        "0.7 sd from the means"
    )


@pytest.mark.parametrize(
    ("worse", "word"),
    [
        ({"rhat": 1.2}, "R-hat 1.20"),
        ({"rhat": None}, "could not be computed"),
        ({"ess_bulk": 12.0}, "12 effective draws"),
        ({"divergences": 30}, "30 of 2000"),
        ({"ebfmi": 0.1}, "E-BFMI"),
        (
            {"modes": Modes(groups=[[0], [1]], text="Chains 1 and 2 are in different modes.")},
            "different modes",
        ),
    ],
)
def test_every_sign_of_trouble_is_named(worse, word):
    """Any one of them is enough, and the red sentence says which."""
    assert verdicts.trouble(GOOD) == []
    reasons = verdicts.trouble(replace(GOOD, **worse))
    for cut_short, remedy in ((False, "longer chains"), (True, "--budget")):
        said = verdicts.advice("gibbs", reasons, cut_short)
        assert len(reasons) == 1 and word in said and remedy in said


def test_a_chain_that_is_only_good_enough_comes_with_a_caution():
    assert verdicts.caution(GOOD) == ""
    assert "1.030" in verdicts.caution(replace(GOOD, rhat=1.03))
    assert "120 effective" in verdicts.caution(replace(GOOD, ess_bulk=120.0))
    assert "not be told apart" in verdicts.caution(replace(GOOD, rhat_aligned=1.3))
