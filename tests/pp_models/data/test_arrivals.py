"""Laws of `pp_models.arrivals`: every word arrives once, the same for the same seed, and as often
as the rates say.
"""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pp_models import data as data_
from pp_models.data.arrivals import Arrivals, feed, no_ids
from pp_models.data.database import Database
from pp_models.errors import InputError

# Statistics are compared within five standard deviations of their sampling error: a right simulator
# with a new seed fails once in a million.
DEVIATIONS = 5


def corpus(num_rows=40, num_columns=12, seed=0):
    X = np.random.default_rng(seed).poisson(0.7, (num_rows, num_columns))
    X[1::7] = 0
    X[0, 0] += 1
    return data_.counts(X)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 30),
    st.floats(0.05, 50),
    st.floats(0.05, 1),
    st.integers(0, 2**63),
    st.booleans(),
)
def test_every_word_arrives_once(num_rows, rate, probability, seed, shuffle):
    """All that arrived, added up, is the corpus; a document is new exactly once, with its first
    word; no tick has two words of a document.
    """
    data = corpus(num_rows, seed=seed)
    arrived, seen = np.zeros(data.matrix.shape, int), np.zeros(data.num_rows, bool)
    arrivals = Arrivals(data, rate, probability, seed, shuffle)
    for new, (rows, columns, counts) in arrivals:
        assert len(np.unique(rows)) == len(rows) and np.all(counts == 1)
        np.testing.assert_array_equal(new, rows[~seen[rows]])
        seen[rows] = True
        np.add.at(arrived, (rows, columns), counts)
    np.testing.assert_array_equal(arrived, data.matrix.toarray())
    assert (arrivals.num_waiting, arrivals.num_active) == (0, 0)
    with pytest.raises(StopIteration):
        next(arrivals)


def test_the_database_ends_as_the_corpus(tmp_path):
    """Feeding all ticks gives the corpus without its empty documents, in the order of arrival; each
    tick is one commit.
    """
    data = corpus()
    for path in (None, tmp_path / "db"):
        ids = no_ids(data)
        with Database(data.num_columns, path=path, sync=False) as database:
            for tick in Arrivals(data, 3, 0.5, seed=1):
                changed = feed(database, tick, ids)
                np.testing.assert_array_equal(changed, ids[tick.words.rows])
                assert database.num_rows == np.count_nonzero(ids >= 0)
            there = ids >= 0
            np.testing.assert_array_equal(there, data.lengths > 0)
            assert database.data(ids[there]).hash == data.select(there).hash
            assert database.total == data.total


def test_ticks_are_fed_once_and_in_order():
    """Neither a tick fed twice nor one left out goes unnoticed, and nothing of it is stored."""
    data, database = corpus(), Database(12)
    ids = no_ids(data)
    first, second = itertools.islice(Arrivals(data, 50, 1.0), 2)
    with pytest.raises(InputError, match="feed every tick once, in order"):
        feed(database, second, ids)
    feed(database, first, ids)
    with pytest.raises(InputError, match="feed every tick once, in order"):
        feed(database, first, ids)
    assert database.total == len(first.words.rows)


def flat(arrivals):
    return [np.concatenate([tick.new_documents, *tick.words]).tolist() for tick in arrivals]


def test_the_same_seed_gives_the_same_stream():
    """The data stay as they are, and numbers and keys both serve as seeds."""
    data = corpus()
    before = data.matrix.copy()
    assert (
        flat(Arrivals(data, 3, 0.5, 7))
        == flat(Arrivals(data, 3, 0.5, 7))
        != flat(Arrivals(data, 3, 0.5, 8))
    )
    keys = [jax.random.key(1), jax.random.PRNGKey(1), jax.random.key(2)]
    first, second, third = (flat(Arrivals(data, 3, 0.5, key)) for key in keys)
    assert first == second != third
    np.testing.assert_array_equal(data.matrix.toarray(), before.toarray())


def test_given_order():
    """Unshuffled documents that show a word at every tick appear in the order of the data."""
    data = corpus()
    seen = np.concatenate([tick.new_documents for tick in Arrivals(data, 2, 1.0, shuffle=False)])
    np.testing.assert_array_equal(seen, np.flatnonzero(data.lengths))
    shuffled = np.concatenate([tick.new_documents for tick in Arrivals(data, 2, 1.0)])
    assert sorted(shuffled) == sorted(seen) and shuffled.tolist() != seen.tolist()


def test_documents_arrive_as_a_poisson_process():
    """The number that becomes active in a tick has the mean and the variance of Poisson(rate):
    sampling variances λ/n and (λ + 2λ²)/n.
    """
    rate, num_ticks = 5.0, 2000
    arrivals = Arrivals(data_.counts(np.ones((20000, 1))), rate, 0.5)
    waiting = [20000] + [arrivals.num_waiting for _ in itertools.islice(arrivals, num_ticks)]
    joined = -np.diff(waiting)
    assert abs(joined.mean() - rate) < DEVIATIONS * np.sqrt(rate / num_ticks)
    assert abs(joined.var() - rate) < DEVIATIONS * np.sqrt((rate + 2 * rate**2) / num_ticks)


def test_active_documents_show_words_with_the_given_probability():
    """While all documents are active, the words of a tick are Binomial(documents, p), independent
    between ticks.
    """
    probability, num_documents, num_ticks = 0.3, 500, 100
    arrivals = Arrivals(data_.counts(np.full((num_documents, 1), 1000)), 1e9, probability)
    shown = np.array([len(tick.words.rows) for tick in itertools.islice(arrivals, num_ticks)])
    assert arrivals.num_active == num_documents
    spread = probability * (1 - probability)
    assert abs(shown.sum() / (num_documents * num_ticks) - probability) < DEVIATIONS * np.sqrt(
        spread / (num_documents * num_ticks)
    )
    # The sample variance of 100 nearly normal numbers has relative standard deviation sqrt(2 /
    # 100).
    assert abs(shown.var() / (num_documents * spread) - 1) < DEVIATIONS * np.sqrt(2 / num_ticks)


def test_words_of_a_document_come_in_random_order():
    """In a random order each place, first or last, is a given word in proportion to its count."""
    counts, num_documents = np.array([1, 2, 3]), 6000
    arrivals = Arrivals(data_.counts(np.tile(counts, (num_documents, 1))), 1e9, 1.0)
    ticks = [tick.words.columns for tick in arrivals]
    assert [len(columns) for columns in ticks] == [num_documents] * 6
    wanted = counts / counts.sum()
    for columns in ticks:
        found = np.bincount(columns, minlength=3) / num_documents
        assert np.all(
            np.abs(found - wanted) < DEVIATIONS * np.sqrt(wanted * (1 - wanted) / num_documents)
        )


BAD = [
    ((data_.dense(np.ones((2, 2))), 1, 0.5), "not dense"),
    (([[1, 2]], 1, 0.5), "not list"),
    ((corpus(), 0, 0.5), "rate"),
    ((corpus(), float("nan"), 0.5), "rate"),
    ((corpus(), "fast", 0.5), "rate"),
    ((corpus(), 1, None), "probability"),
    ((corpus(), 1, 1.5), "probability"),
    ((corpus(), 1, 0.5, -1), "seed"),
    ((corpus(), 1, 0.5, "x"), "seed"),
]


def test_bad_input():
    """One sentence names the problem."""
    for arguments, part in BAD:
        with pytest.raises(InputError, match=part) as caught:
            Arrivals(*arguments)
        assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
