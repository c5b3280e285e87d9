"""Laws of the distances between posteriors, on draws whose distances are known."""

import numpy as np
import pytest

from inference.comparison import agreement
from inference.comparison.agreement import quantities
from inference.comparison.record import Agreement


def normal(num_draws=20_000, size=3, seed=0, width=1.0, shift=0.0):
    return shift + width * np.random.default_rng(seed).normal(size=(num_draws, size))


def test_a_copy_is_at_distance_zero():
    """Bit for bit, whatever the scale: every distance is 0, every ratio 1, and the intervals hold
    what they say.
    """
    draws = normal() * [1e-4, 1.0, 1e6]
    found = agreement.agreement(quantities(draws), quantities(draws.copy()))
    assert [
        getattr(found, name)
        for name in ("mean_error_sd", "wasserstein_sd", "tail_error_sd", "correlation_error")
    ] == [0, 0, 0, 0]
    assert found.sd_ratio == 1 and found.quantities == 3
    assert found.coverage50 == pytest.approx(0.5, abs=1e-3) and found.coverage90 == pytest.approx(
        0.9, abs=1e-3
    )


def test_a_shift_is_reported_in_sd():
    """A shift by 0.7 sd moves the mean, the tails and every quantile by 0.7 sd, and no width."""
    draws = normal()
    found = agreement.agreement(quantities(draws), quantities(draws + 0.7 * draws.std(0, ddof=1)))
    assert found.wasserstein_sd == pytest.approx(0.7, rel=1e-9)
    for name in ("mean_error_sd", "tail_error_sd"):  # noise of 2 / 20,000 is taken off the squares
        assert getattr(found, name) == pytest.approx(0.7, rel=2e-3)
    assert found.sd_ratio == pytest.approx(1, rel=1e-9)
    assert agreement.distances(
        quantities(draws), quantities(draws - draws.std(0, ddof=1))
    ).mean_shift_sd == pytest.approx(-1, rel=1e-9)


def test_half_the_width():
    """Of a normal: the 90 % interval of half the width holds P(|z| < 1.645 / 2) = 0.589, the 50 %
    one 0.264; W1 is 0.5 E|z| = 0.399; tails 0.822 sd.

    0.015: three standard errors of a share of 20,000 draws are 0.011; a width's are 1.5 % of it.
    """
    found = agreement.agreement(quantities(normal()), quantities(normal(seed=1, width=0.5)))
    assert found.sd_ratio == pytest.approx(0.5, rel=0.015)
    assert found.coverage90 == pytest.approx(
        0.589, abs=0.015
    ) and found.coverage50 == pytest.approx(0.264, abs=0.015)
    assert found.wasserstein_sd == pytest.approx(
        0.399, abs=0.015
    ) and found.tail_error_sd == pytest.approx(0.822, abs=0.03)


def test_lost_correlations_are_seen():
    """Draws with correlation 0.8 against independent ones of the same marginals: 0.8 on the one
    pair; marginals agree.
    """
    z = normal(size=2)
    tied = np.stack([z[:, 0], 0.8 * z[:, 0] + 0.6 * z[:, 1]], axis=1)
    found = agreement.agreement(quantities(tied), quantities(normal(size=2, seed=3)))
    assert found.correlation_error == pytest.approx(
        0.8, abs=0.02
    )  # standard error of a correlation: 0.007 and less
    assert found.wasserstein_sd < 0.03 and found.sd_ratio == pytest.approx(1, abs=0.02)


def test_what_varies_by_rounding_alone_has_no_correlation():
    """A quantity that the other posterior holds fixed, as `laplace` does hyper-parameters, has an
    sd of rounding: it is left out of correlations.
    """
    reference, other = normal(size=3), normal(size=3, seed=3)
    other[:, 0] = 0.1
    assert quantities(other).sd[0] > 0
    found = agreement.agreement(quantities(reference), quantities(other))
    assert found.correlation_error == agreement.correlation_error(
        quantities(reference[:, 1:]), quantities(other[:, 1:])
    )


def test_a_point_has_a_place_but_no_spread():
    """W1 from a point mass at the mean is E|z| = 0.798 sd."""
    reference = quantities(normal())
    found = agreement.agreement(reference, quantities(reference.mean[None]))
    assert found.mean_error_sd < 1e-12 and found.wasserstein_sd == pytest.approx(0.798, abs=0.01)
    spreads = ("sd_ratio", "coverage50", "coverage90", "tail_error_sd", "correlation_error")
    assert all(getattr(found, name) is None for name in spreads)


def test_what_the_reference_knows_exactly_is_left_out():
    draws = normal()
    draws[:, 1] = 5.0
    found = agreement.agreement(quantities(draws), quantities(normal(seed=1)))
    assert found.quantities == 2 and found.mean_error_sd < 0.1
    nothing = agreement.agreement(quantities(np.ones((9, 2))), quantities(np.ones((9, 2))))
    assert nothing == Agreement(quantities=0)


def test_order_of_draws_and_of_quantities_does_not_matter():
    one, two = normal(2000), normal(2000, seed=1, width=0.8, shift=0.3)
    shuffled = np.random.default_rng(5).permutation(2000)
    first = agreement.agreement(quantities(one), quantities(two))
    second = agreement.agreement(quantities(one[shuffled][:, ::-1]), quantities(two[:, ::-1]))
    one, two = (
        {n: x for n, x in vars(found).items() if x is not None} for found in (first, second)
    )
    assert one == pytest.approx(two, rel=1e-9)


def test_weights_repair_what_they_can():
    """Draws of N(0.5, 1) with exact weights for N(0, 1) have its mean and width: 0.05, some four
    standard errors at an effective size of 15,000.
    """
    reference, draws = quantities(normal(size=1)), normal(size=1, seed=1, shift=0.5)
    logs = -0.5 * draws[:, 0] ** 2 + 0.5 * (draws[:, 0] - 0.5) ** 2
    weights = np.exp(logs) / np.exp(logs).sum()
    found = agreement.reweighted(reference, quantities(draws), weights)
    assert found.mean_error_sd < 0.05 and found.sd_ratio == pytest.approx(1, abs=0.05)
    even = agreement.reweighted(reference, quantities(draws), np.full(len(draws), 1 / len(draws)))
    assert even.mean_error_sd == pytest.approx(0.5, abs=0.05)


def test_some_of_many_numbers_are_picked_the_same_way_every_time():
    shapes = {"a": (4, 5), "b": (100, 100), "c": ()}
    found = agreement.pick(shapes, 50, seed=3)
    assert list(found["a"]) == list(range(20)) and list(found["c"]) == [0]
    assert len(set(found["b"])) == 50 and np.all(np.diff(found["b"]) > 0)
    np.testing.assert_array_equal(found["b"], agreement.pick(shapes, 50, seed=3)["b"])


@pytest.mark.parametrize("size", [50, 300, 1500])
def test_correlated_quantities_count_as_few(size):
    """With a common correlation r the number of independent ones is size / (1 + (size - 1) r^2),
    which stays below 1 / r^2 = 10.4. A fifth: 2,000 draws leave the estimate of r^2 some noise.
    """
    rng = np.random.default_rng(0)
    draws = np.sqrt(0.69) * rng.normal(size=(2000, size)) + np.sqrt(0.31) * rng.normal(
        size=(2000, 1)
    )
    found = agreement.noise(quantities(draws), quantities(draws)).number
    assert found == pytest.approx(size / (1 + (size - 1) * 0.31**2), rel=0.2)
