"""Laws of modes: chains that mix are in one, chains that stay apart are not."""

import numpy as np
import pytest

from inference.core import align


def slow_chains(num_chains, num_draws, num_features, ess, seed=0):
    """Stationary AR(1) chains of unit variance with this effective sample size, every feature its
    own.
    """
    rng = np.random.default_rng(seed)
    rho = (num_draws - ess) / (num_draws + ess)
    noise = rng.normal(size=(num_chains, num_draws, num_features)) * np.sqrt(1 - rho**2)
    noise[:, 0] = rng.normal(size=(num_chains, num_features))
    for t in range(1, num_draws):
        noise[:, t] += rho * noise[:, t - 1]
    return noise


@pytest.mark.parametrize(
    ("num_features", "ess"), [(1, 10), (1, 50), (20, 20), (500, 50), (500, 1000), (3000, 50)]
)
def test_chains_that_mix_are_in_one_mode(num_features, ess):
    """However slow and however many features.

    In simulations of 20 pairs each, d' reached 1.4 with an effective sample size of 10, 0.7 with
    50.
    """
    found = align.find_modes(slow_chains(4, 1000, num_features, ess))
    assert found.groups == [[0, 1, 2, 3]] and found.text == ""
    assert found.separation.max() < 2.0
    np.testing.assert_array_equal(found.separation, found.separation.T)


@pytest.mark.parametrize("ess", [50, 1000])
@pytest.mark.parametrize("spread_over", [1, 20])
def test_chains_in_two_modes_are_found(ess, spread_over):
    """8 sd apart in one feature among 500, or in a whole factor of 20: chains 2 and 3 against 1 and
    4.
    """
    values = slow_chains(4, 1000, 500, ess)
    values[1:3, :, 100 : 100 + spread_over] += 8 / np.sqrt(spread_over)
    found = align.find_modes(values)
    assert found.groups == [[0, 3], [1, 2]]
    assert found.text.startswith(
        "Chains 1 and 4 and chains 2 and 3 are in different modes"
    ) and found.text.endswith("no relabelling explains.")
    assert 4 < found.separation[0, 1] < 10


def test_distance_is_in_standard_deviations():
    """Of independent draws d' is the distance in sd: 2 sd are one mode, 4 sd two; 0.3 is three
    errors of a difference of means and an sd.
    """
    for distance, groups in ((2.0, [[0, 1]]), (4.0, [[0], [1]])):
        values = np.random.default_rng(0).normal(size=(2, 2000, 1))
        values[1] += distance
        found = align.find_modes(1e5 * values - 3e6)
        assert found.groups == groups and abs(found.separation[0, 1] - distance) < 0.3


def test_a_chain_that_crosses_joins_modes():
    """Chain 3 spends half its time in each of the modes of chains 1 and 2, going back and forth:
    they are one.
    """
    values = slow_chains(3, 1000, 5, 1000)
    values[1] += 8
    values[2, np.arange(1000) // 50 % 2 == 1] += 8
    assert align.find_modes(values).groups == [[0, 1, 2]]
    assert align.find_modes(values[:2]).groups == [[0], [1]]


def test_a_chain_that_comes_late_is_in_the_mode():
    """Chain 1 spends its first half far off and then lies half an sd from chain 2, for certain:
    where they end up counts, not where one began.
    """
    values = slow_chains(2, 1000, 5, 1000)
    values[0, :500] += 8
    values[0, 500:] += 0.5
    found = align.find_modes(values)
    assert found.groups == [[0, 1]] and found.separation.max() < 1


def test_what_tells_nothing_is_left_out():
    """Constant features, what is not finite, one chain, and no feature at all."""
    values = slow_chains(2, 200, 6, 200)
    values[:, :, 0], values[0, :, 1], values[1, 7, 2] = 3.25, np.nan, np.inf
    assert align.find_modes(values).groups == [[0, 1]]
    values[1, :, 5] += 9
    assert align.find_modes(values).groups == [[0], [1]]
    for shape in ((1, 100, 3), (2, 100, 0), (2, 4, 3), (2, 100, 3)):
        assert align.find_modes(np.full(shape, np.nan)).groups == [list(range(shape[0]))]
    assert align.find_modes(values[:1]).separation.shape == (1, 1)
    stuck = np.stack([np.zeros((100, 2)), np.ones((100, 2))])
    assert align.find_modes(stuck).text == (
        "Chain 1 and chain 2 are in different modes: they are apart and do not move, "
        "which no relabelling explains."
    )
