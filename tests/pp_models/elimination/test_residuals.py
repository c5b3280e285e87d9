"""Squared errors over observed entries equal their definition, for points and for distributions, on
either side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pp_models
from pp_models.elimination.residuals import LONGEST, SMALL, STEP, regression, squared_error
from pp_models.families import Pair

RANK = 3


def observed(num_rows=7, num_columns=5, share=0.6, seed=0):
    rng = np.random.default_rng(seed)
    seen = rng.random((num_rows, num_columns)) < share
    seen[2], seen[:, 1] = False, False  # a row and a column without entries
    table = np.where(
        seen, rng.normal(size=seen.shape).astype(np.float32).astype(float), np.nan
    )  # as ratings are stored
    rows, columns = np.nonzero(seen)
    return table, pp_models.data.ratings(rows, columns, table[seen], shape=seen.shape)


def side(size, seed, spread):
    rng = np.random.default_rng(seed)
    x, root = rng.normal(size=(size, RANK)), spread * rng.normal(size=(size, RANK, RANK))
    x = jnp.asarray(x)
    second = x[:, :, None] * x[:, None, :]
    return Pair(x, second + jnp.asarray(root @ root.transpose(0, 2, 1)) if spread else second)


def defined(table, rows, columns):
    """The definition, on the dense table."""
    seen = jnp.asarray(~np.isnan(table))
    filled = jnp.asarray(np.nan_to_num(table))
    expected = (
        filled**2
        - 2 * filled * (rows.first @ columns.first.T)
        + jnp.einsum("iab,jab->ij", rows.second, columns.second)
    )
    return jnp.sum(jnp.where(seen, expected, 0))


@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_value_and_gradients_are_the_definitions(spread):
    """Value and gradients equal the definition, to 1e-12 (sums of seven terms in double
    precision)."""
    table, data = observed()
    batch = data.pack()
    rows, columns = side(7, 1, spread), side(5, 2, spread)
    ours = jax.value_and_grad(
        lambda x, y: squared_error(x, y, batch.entries, batch.by_column), (0, 1)
    )(rows, columns)
    theirs = jax.value_and_grad(lambda x, y: defined(table, x, y), (0, 1))(rows, columns)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    for k in (0, 1):  # the gradient of one side alone computes the value differently
        value, gradient = jax.value_and_grad(
            lambda x, y: squared_error(x, y, batch.entries, batch.by_column), k
        )(rows, columns)
        np.testing.assert_allclose(value, theirs[0], rtol=1e-12)
        np.testing.assert_allclose(gradient.second, theirs[1][k].second, rtol=1e-12, atol=1e-12)


def test_batches_add_up():
    """Padded batches of rows, in any order, add up to the value and column gradient of the whole;
    padding and empty rows add nothing."""
    _, data = observed(num_rows=11, seed=3)
    rows, columns = side(11, 1, 0.5), side(5, 2, 0.5)

    def part(index, size):
        batch = data.pack(np.asarray(index), size)
        mine = jax.tree.map(
            lambda x: jnp.concatenate(
                [x[jnp.asarray(index)], jnp.ones((size - len(index), *x.shape[1:]))]
            ),
            rows,
        )
        return jax.value_and_grad(lambda y: squared_error(mine, y, batch.entries, batch.by_column))(
            columns
        )

    whole, parts = (
        part(np.arange(11), 11),
        [part([9, 2, 5], 6), part([0, 1, 3, 4], 6), part([10, 6, 7, 8], 6)],
    )
    np.testing.assert_allclose(sum(p[0] for p in parts), whole[0], rtol=1e-12)
    for name in ("first", "second"):
        np.testing.assert_allclose(
            sum(getattr(p[1], name) for p in parts), getattr(whole[1], name), rtol=1e-11, atol=1e-12
        )


def test_points_and_distributions_meet():
    """The fast path for points is the limit of the general one (1e-9 apart at covariances of
    1e-10)."""
    _, data = observed()
    batch, point = data.pack(), side(5, 2, 0.0)
    near = point._replace(second=point.second + 1e-10 * jnp.eye(RANK))
    for a, b in zip(regression(batch.entries, point), regression(batch.entries, near), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
        assert np.abs(a).max() > 0.1


def test_ratings_have_no_gradient():
    """Entries that are passed as an argument do not stop the gradient of the rows."""
    _, data = observed()
    batch, rows, columns = data.pack(), side(7, 1, 0.0), side(5, 2, 0.0)
    gradient = jax.grad(lambda x, e: squared_error(x, columns, e, batch.by_column), 0)(
        rows, batch.entries
    )
    assert gradient.first.shape == rows.first.shape


@pytest.mark.parametrize(
    "rank", [RANK, SMALL + 1]
)  # added up one by one, and by products of matrices
@pytest.mark.parametrize("single", [True, False])
def test_rows_of_any_length_have_their_normal_equations(single, rank):
    """(sum r y, sum y y') for rows that are empty, short, about as long as a matrix product is
    wide, and several times as long."""
    lengths = [
        0,
        1,
        STEP - 1,
        STEP,
        STEP + 1,
        LONGEST - 1,
        LONGEST,
        LONGEST + 1,
        2 * LONGEST,
        2 * LONGEST + STEP + 1,
        0,
    ]
    rng = np.random.default_rng(5)
    columns = np.concatenate([rng.choice(700, length, replace=False) for length in lengths])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    ratings = rng.normal(size=len(rows)).astype(np.float32)
    other = rng.normal(size=(700, rank)).astype(np.float32)
    table = np.zeros((len(lengths), 700))
    table[rows, columns] = 1
    filled = np.zeros_like(table)
    filled[rows, columns] = ratings
    with jax.enable_x64(not single):
        entries = pp_models.data.ratings(rows, columns, ratings, shape=table.shape).pack().entries
        y = jnp.asarray(other, float)
        found = regression(entries, Pair(y, y[:, :, None] * y[:, None, :]))
        close = (
            {"rtol": 1e-4, "atol": 1e-3} if single else {"rtol": 1e-11, "atol": 1e-11}
        )  # sums of hundreds of terms of either sign
        np.testing.assert_allclose(found.first, filled @ other.astype(float), **close)
        np.testing.assert_allclose(
            found.second,
            np.einsum("ij,ja,jb->iab", table, other.astype(float), other.astype(float)),
            **close,
        )
