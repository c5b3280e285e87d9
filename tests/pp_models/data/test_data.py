"""Laws of `pp_models.data`: bad input is refused in one sentence, and batches hold the rows they
were made of.
"""

import itertools

import jax
import numpy as np
import pytest
import scipy.sparse
from scipy.special import gammaln

from pp_models.data import batches
from pp_models.data import types as data_
from pp_models.data.batches import (
    Entries,
    batch_capacity,
    growing_layout,
    part_widths,
    power_of_two,
    window_widths,
)
from pp_models.errors import InputError

COUNTS = np.array([[2, 0, 1, 0], [0, 0, 0, 0], [0, 12, 0, 3], [1, 0, 0, 130], [5, 5, 5, 5]])
VOTES = np.array([[1, np.nan, 0], [0, 1, 1], [np.nan, np.nan, np.nan], [1, 1, np.nan], [0, 0, 0]])
NAN = float("nan")


def random_counts(num_rows=37, num_columns=90, seed=0):
    """Rows of very different lengths, some of them empty, so that several windows are used."""
    rng = np.random.default_rng(seed)
    density = rng.choice([0.0, 0.05, 0.4, 0.95], num_rows)
    X = rng.integers(1, 9, (num_rows, num_columns)) * (
        rng.random((num_rows, num_columns)) < density[:, None]
    )
    X[-1, -1] += 1
    return X


def example(kind):
    X = random_counts()
    rng = np.random.default_rng(1)
    if kind == "counts":
        return data_.counts(X)
    if kind == "ratings":
        return data_.ratings(*np.nonzero(X), rng.normal(size=np.count_nonzero(X)), shape=X.shape)
    if kind == "text_and_votes":
        X[X.sum(1) == 0, 0] = 1
        return data_.text_and_votes(
            X, np.where(rng.random((len(X), 20)) < 0.4, NAN, rng.integers(0, 2, (len(X), 20)))
        )
    return data_.dense(rng.normal(size=(37, 6)))


# Bad input ----------------------------------------------------------------------------------------

BAD = [
    # constructor, arguments, part of the message
    (data_.counts, ([[1, -2]],), "negative"),
    (data_.counts, ([[1, 0.5]],), "whole numbers"),
    (data_.counts, ([[1, NAN]],), "NaN"),
    (data_.counts, ([[1, float("inf")]],), "infinite"),
    (data_.counts, (scipy.sparse.csr_array([[1.0, NAN]]),), "NaN"),
    (data_.counts, (scipy.sparse.coo_array([[1.0, -1.0]]),), "negative"),
    (data_.counts, ([[0, 0], [0, 0]],), "empty"),
    (data_.counts, (scipy.sparse.csr_array((3, 4)),), "empty"),
    (data_.counts, (np.zeros((0, 3)),), "empty"),
    (data_.counts, (np.zeros((3, 0)),), "empty"),
    (data_.counts, ([1, 2, 3],), "two-dimensional"),
    (data_.counts, (np.ones((2, 2, 2)),), "two-dimensional"),
    (data_.counts, (None,), "two-dimensional"),
    (data_.counts, ([["a", "b"]],), "real numbers"),
    (data_.counts, ([[1j, 0]],), "real numbers"),
    (data_.counts, ([[1, None]],), "real numbers"),
    (data_.counts, ([[2**24, 1]],), "single precision"),
    (data_.counts, (COUNTS, ["a", "b"]), "names"),
    (data_.counts, (COUNTS, None, ["a", "b"]), "names"),
    (data_.ratings, ([], [], []), "no ratings"),
    (data_.ratings, ([0, 1], [0], [1.0, 2.0]), "same length"),
    (data_.ratings, ([[0]], [[0]], [[1.0]]), "one-dimensional"),
    (data_.ratings, ([0.5], [0], [1.0]), "integer"),
    (data_.ratings, ([0], ["a"], [1.0], None, None, ["a"]), "are their names already"),
    (data_.ratings, ([-1], [0], [1.0]), "counted from 0"),
    (data_.ratings, ([0], [0], [NAN]), "NaN"),
    (data_.ratings, ([0], [0], ["good"]), "real numbers"),
    (data_.ratings, ([5], [0], [1.0], (5, 1)), "do not fit"),
    (data_.ratings, ([0], [1], [1.0], (5, 1)), "do not fit"),
    (data_.ratings, ([3, 1, 3], [2, 2, 2], [1.0, 2.0, 3.0]), "User 3 rated item 2 more than once"),
    (data_.text_and_votes, (COUNTS, VOTES[:3]), "one row per bill"),
    (data_.text_and_votes, (COUNTS, VOTES[:, 0]), "one row per bill"),
    (data_.text_and_votes, (COUNTS, np.where(VOTES == 1, 2, VOTES)), "1 (yea), 0 (nay)"),
    (data_.text_and_votes, (COUNTS, np.where(VOTES == 1, np.inf, VOTES)), "1 (yea), 0 (nay)"),
    (data_.text_and_votes, (COUNTS, VOTES[[0, 2, 1, 3, 4]]), "Bill 1 has neither words nor votes"),
    (data_.text_and_votes, (-COUNTS, VOTES), "negative"),
    (data_.dense, ([1.0, 2.0],), "two-dimensional"),
    (data_.dense, (np.zeros((0, 2)),), "no observations"),
    (data_.dense, ([[1.0, NAN]],), "NaN"),
    (data_.dense, ([["a"]],), "real numbers"),
    (data_.dense, (np.ones((2, 3)), ["a"]), "names"),
    pytest.param(data_.counts, ([[1, 2], [3]],), "", id="counts-ragged"),
    pytest.param(
        data_.counts,
        (scipy.sparse.coo_array(np.arange(3)),),
        "two-dimensional",
        id="counts-sparse-vector",
    ),
    pytest.param(data_.dense, ([[1, 2], [3]],), "", id="dense-ragged"),
    pytest.param(data_.dense, ([[1e39]],), "", id="dense-overflow"),
    pytest.param(data_.ratings, ([0], [0], [1e39]), "", id="ratings-overflow"),
    pytest.param(data_.text_and_votes, (COUNTS, [["yea"]] * 5), "", id="votes-words"),
    pytest.param(
        data_.text_and_votes,
        (COUNTS, scipy.sparse.csr_array(np.ones((5, 2)))),
        "",
        id="votes-sparse",
    ),
]


@pytest.mark.parametrize(("make", "arguments", "part"), BAD)
def test_bad_input(make, arguments, part):
    """Input that cannot be modelled is refused with one sentence that names the problem."""
    with pytest.raises(InputError) as caught:
        make(*arguments)
    message = str(caught.value)
    assert part in message
    assert message.endswith(".") and "\n" not in message


# What is stored -----------------------------------------------------------------------------------

CONTAINERS = [
    np.asarray,
    lambda X: X.tolist(),
    lambda X: X.astype(np.float64),
    lambda X: X.astype(np.uint8),
    scipy.sparse.csr_array,
    scipy.sparse.csc_matrix,
    scipy.sparse.coo_array,
    scipy.sparse.lil_array,
]


@pytest.mark.parametrize("container", CONTAINERS)
def test_counts_of_any_container(container):
    """The same counts in any container are the same data, hash included."""
    data = data_.counts(container(COUNTS))
    np.testing.assert_array_equal(data.matrix.toarray(), COUNTS)
    assert (data.num_rows, data.num_columns, data.num_entries, data.total) == (
        5,
        4,
        10,
        COUNTS.sum(),
    )
    assert data.hash == data_.counts(COUNTS).hash


def test_hash_does_not_depend_on_the_index_type():
    """64-bit indices hold the same data as 32-bit ones."""
    wide = scipy.sparse.csr_array(COUNTS)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert data_.counts(wide).hash == data_.counts(COUNTS).hash


def test_total_is_exact():
    """The number of tokens is exact also above 2**24."""
    X = np.random.default_rng(0).integers(0, 4000, (20000, 3))
    assert data_.counts(X).total == X.sum()


def test_repeated_small_integers_do_not_wrap():
    """Entries listed twice are added up beyond the range of their type."""
    twice = scipy.sparse.coo_array((np.array([200, 100], np.uint8), ([0, 0], [0, 0])), shape=(1, 1))
    assert data_.counts(twice).total == 300


def test_repeated_and_zero_entries():
    """Entries listed twice are added up, and stored zeros are dropped."""
    X = scipy.sparse.csr_array(
        (np.array([1.0, 2.0, 0.0, 4.0]), np.array([2, 2, 0, 1]), np.array([0, 3, 4])), shape=(2, 3)
    )
    data = data_.counts(X)
    np.testing.assert_array_equal(data.matrix.toarray(), [[0, 0, 3], [0, 4, 0]])
    assert data.num_entries == 2


@pytest.mark.parametrize(
    "container", [scipy.sparse.csr_array, scipy.sparse.csc_array, scipy.sparse.coo_array]
)
def test_the_callers_sparse_matrix_stays_as_it_is(container):
    """Making data changes no array of the caller's, not even unsorted indices, repeated entries or
    stored zeros.
    """
    X = container(
        scipy.sparse.csr_array(
            (np.array([1.0, 2.0, 0.0, 4.0]), np.array([2, 2, 0, 1]), np.array([0, 3, 4])),
            shape=(2, 3),
        )
    )
    parts = [
        getattr(X, name) for name in ("data", "indices", "indptr", "row", "col") if hasattr(X, name)
    ]
    before = [part.copy() for part in parts]
    data = data_.counts(X)
    data.matrix.data[:] = 99
    data.matrix.indices[:] = 0
    for part, old in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part, old)


@pytest.mark.parametrize("make", [data_.counts, data_.dense])
def test_the_callers_array_stays_as_it_is(make):
    """Data do not share memory with the caller's array."""
    X = COUNTS.astype(np.float32)
    data = make(X)
    (data.matrix.data if data.matrix is not None else data.values)[:] = 99
    np.testing.assert_array_equal(X, COUNTS)


def test_ratings_keep_zeros_and_order():
    """A rating of zero is observed; ratings come sorted by user and item; what is not listed stays
    missing.
    """
    data = data_.ratings([2, 0, 2], [1, 3, 0], [5.0, 0.0, -1.0], shape=(4, 5))
    assert (data.num_rows, data.num_columns, data.num_entries) == (4, 5, 3)
    np.testing.assert_array_equal(data.lengths, [1, 0, 2, 0])
    np.testing.assert_array_equal(data.matrix.indices, [3, 0, 1])
    np.testing.assert_array_equal(data.matrix.data, [0, -1, 5])
    assert data_.ratings([2, 0], [1, 3], [1.0, 1.0]).matrix.shape == (3, 4)


def test_votes_keep_nays_and_drop_missing_ones():
    """A nay is an observed zero, a missing vote no entry."""
    data = data_.text_and_votes(COUNTS, VOTES)
    np.testing.assert_array_equal(np.diff(data.votes.indptr), (~np.isnan(VOTES)).sum(1))
    np.testing.assert_array_equal(np.asarray(data.pack().votes.dense(3, fill=NAN)), VOTES)


def test_select_and_names():
    """Names travel with their rows."""
    data = data_.counts(COUNTS, column_names=list("abcd"), row_names=["r0", "r1", "r2", "r3", "r4"])
    chosen = data.select(np.array([3, 0]))
    assert chosen.row_names == ("r3", "r0") and chosen.column_names == ("a", "b", "c", "d")
    np.testing.assert_array_equal(chosen.matrix.toarray(), COUNTS[[3, 0]])


# Batches ------------------------------------------------------------------------------------------


dense = jax.jit(Entries.dense, static_argnums=(1, 2))


def unpacked(data, batch):
    """The real rows of a batch as arrays: positions, then observations, totals and log factorials
    in that order.
    """
    real = np.asarray(batch.mask) > 0
    entries = (
        [np.asarray(dense(batch.entries, data.num_columns, NAN))]
        if batch.entries is not None
        else [np.asarray(batch.dense)]
    )
    votes = (
        [np.asarray(dense(batch.votes, data.votes.shape[1], NAN))]
        if batch.votes is not None
        else []
    )
    parts = (batch.positions, *entries, *votes, batch.totals, batch.log_factorials)
    return [np.asarray(part)[real] for part in parts]


def originals(data, rows):
    """The same, taken from the data without any batch."""

    def filled(matrix):
        out = np.full(matrix.shape, NAN)
        row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        out[row, matrix.indices] = matrix.data
        return out[rows]

    main = data.values[rows] if data.matrix is None else filled(data.matrix)
    factorials = (
        np.nansum(gammaln(main + 1), axis=1)
        if data.kind in ("counts", "text_and_votes")
        else np.zeros(len(rows))
    )
    votes = [] if data.votes is None else [filled(data.votes)]
    return [np.asarray(rows), main, *votes, np.nansum(main, axis=1), factorials]


def assert_same(parts, others):
    for part, other in zip(parts, others, strict=True):
        np.testing.assert_allclose(part, other, rtol=2e-6, atol=2e-5)  # single precision


SELECTIONS = [  # rows, and the size they are padded to
    (np.arange(37), 37),
    (np.arange(37)[::-1], 37),
    (np.arange(37), 40),
    (np.array([4]), 16),
    (np.array([7, 7, 3]), 16),
    (np.array([], int), 16),
    (np.arange(0, 37, 3), 16),
]


@pytest.mark.parametrize("kind", data_.KINDS)
@pytest.mark.parametrize(("rows", "num_rows"), SELECTIONS)
def test_packing_gives_back_the_rows(kind, rows, num_rows):
    """Rows packed into a batch are the original rows, in order, whatever the padding."""
    data = example(kind)
    batch = data.pack(rows, num_rows)
    assert batch.num_rows == num_rows and float(batch.mask.sum()) == len(rows)
    assert_same(unpacked(data, batch), originals(data, rows))
    padded = np.asarray(batch.mask) == 0
    assert (
        not np.asarray(batch.totals)[padded].any()
        and not np.asarray(batch.log_factorials)[padded].any()
    )
    if batch.entries is not None:
        assert not np.asarray(batch.entries.lengths)[padded].any()


@pytest.mark.parametrize("kind", data_.KINDS)
@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_shards_hold_every_row_once(kind, num_shards):
    """Dealing rows out to devices loses, repeats and changes nothing, and gives every device the
    same shapes.
    """
    data = example(kind)
    rows = np.random.default_rng(2).permutation(data.num_rows)[:11]
    shards = data.shards(rows, 12, [jax.devices()[0]] * num_shards)
    together = [
        np.concatenate(parts)
        for parts in zip(*(unpacked(data, shard) for shard in shards), strict=True)
    ]
    order = np.argsort(together[0])
    assert_same([part[order] for part in together], originals(data, np.sort(rows)))
    shapes = [[leaf.shape for leaf in jax.tree.leaves(shard)] for shard in shards]
    assert all(shape == shapes[0] for shape in shapes)


@pytest.mark.parametrize("kind", data_.KINDS)
@pytest.mark.parametrize("batch_size", [1, 10, 37, 50])
def test_a_pass_visits_every_row_once_with_fixed_shapes(kind, batch_size):
    """The batches of one pass hold every row once, have one shape, and depend on the key alone."""
    data = example(kind)
    device = jax.devices()[:1]
    steps = list(data.batches(jax.random.key(3), batch_size, device))
    positions = np.concatenate(
        [np.asarray(batch.positions)[np.asarray(batch.mask) > 0] for (batch,) in steps]
    )
    np.testing.assert_array_equal(np.sort(positions), np.arange(data.num_rows))
    assert len({tuple(leaf.shape for leaf in jax.tree.leaves(step)) for step in steps}) == 1
    again = next(data.batches(jax.random.key(3), batch_size, device))
    np.testing.assert_array_equal(again[0].positions, steps[0][0].positions)
    whole = list(data.batches(jax.random.key(3), batch_size, device, drop_last=True))
    assert len(whole) == data.num_rows // batch_size


def test_windows_cover_their_rows():
    """Every row with entries is read through exactly one window, the smallest that it fits into."""
    data = example("counts")
    entries = data.pack(np.random.default_rng(0).permutation(37), 40).entries
    sizes, order, lengths = (
        np.asarray(part) for part in (entries.sizes, entries.order, entries.lengths)
    )
    seen = [order[w, : sizes[w]] for w in range(len(entries.widths))]
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.flatnonzero(lengths))
    for w, rows in enumerate(seen):
        assert np.all(lengths[rows] <= entries.widths[w])
        assert w == 0 or np.all(lengths[rows] > entries.widths[w - 1])
    assert entries.columns.shape[0] >= int(
        (np.asarray(entries.starts) + max(entries.widths))[lengths > 0].max()
    )


def padded(lengths, widths):
    return int(np.sum(np.asarray(widths)[np.searchsorted(widths, lengths[lengths > 0])]))


@pytest.mark.parametrize("most", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_windows_pad_as_little_as_any(seed, most):
    """Against every choice of so many widths; the last holds the longest row."""
    lengths = np.minimum(np.random.default_rng(seed).lognormal(3, 1, 60).astype(int), 150)
    every = np.unique(-(-lengths[lengths > 0] // 16) * 16)
    choices = (kept for size in range(most) for kept in itertools.combinations(every[:-1], size))
    least = min(padded(lengths, (*kept, every[-1])) for kept in choices)
    widths = window_widths(lengths, most)
    assert len(widths) <= most
    assert padded(lengths, widths) == least


def test_windows_of_extreme_rows(monkeypatch):
    """More different lengths than are considered are grouped first, each raised by under 5 %;
    columns of some rows have a window for all rows.
    """
    lengths = np.random.default_rng(0).lognormal(8, 1.5, 3_000).astype(int)
    widths = window_widths(lengths)
    assert lengths.max() <= widths[-1] < lengths.max() + 16
    monkeypatch.setattr(batches, "CANDIDATES", 10**6)
    assert padded(lengths, widths) < 1.05 * padded(lengths, window_widths(lengths))
    assert window_widths(np.zeros(3, int)) == (16,)
    assert part_widths(lengths, 0.5, 10**9)[-1] == widths[-1]
    assert part_widths(lengths, 0.5, 10)[-1] == 16


def test_data_are_told_in_a_line():
    """However long the vocabulary is."""
    X = np.eye(3, 400)
    assert (
        repr(data_.counts(X, column_names=[f"word{v}" for v in range(400)]))
        == "Data(counts, 3 rows x 400 columns, 3 entries)"
    )
    assert (
        repr(data_.text_and_votes(X, [[1.0, 0.0]] * 3))
        == "Data(text_and_votes, 3 rows x 400 columns x 2 members, 3 entries)"
    )


def test_a_batch_has_room_for_random_rows_and_no_more_than_the_longest_need():
    """All rows: all entries. Rows alike: exactly theirs. Else at most the longest rows', and enough
    for any of 200 random batches.
    """
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 200, 5000)
    assert batch_capacity(lengths, 5000) == batch_capacity(lengths, 9000) == lengths.sum()
    assert batch_capacity(np.full(100, 7), 30) == 210
    for size in (1, 10, 300, 4900):
        room = batch_capacity(lengths, size)
        assert room <= np.sort(lengths)[-size:].sum()
        assert room >= max(lengths[rng.choice(5000, size, replace=False)].sum() for _ in range(200))
        assert growing_layout(np.array(np.unique(lengths, return_counts=True)), size).capacity[
            "matrix"
        ] == power_of_two(max(1024, room))


@pytest.mark.parametrize(
    "make", [lambda x: data_.ratings([0, 1], [0, 1], x), lambda x: data_.dense([x])]
)
def test_real_numbers_keep_the_precision_they_need(make):
    """Numbers that single precision does not hold stay in double precision, on the device too when
    it is in use; the hash is that of single precision, as it always was.
    """
    exact, fine = make([3.0, 4.5]), make([0.1, 1 / 3])
    numbers = [x.matrix.data if x.values is None else x.values.ravel() for x in (exact, fine)]
    assert [x.dtype for x in numbers] == [np.float32, np.float64]
    np.testing.assert_array_equal(numbers[1], [0.1, 1 / 3])
    packed = fine.pack()
    found = packed.dense.ravel() if fine.values is not None else packed.entries.values[:2]
    np.testing.assert_array_equal(found, [0.1, 1 / 3])
    assert fine.hash == make(np.float32([0.1, 1 / 3])).hash
