"""`allocate`, `inner` and `choose` against dense evaluations, and `allocate` against its sampled
form and its fused fixed point."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import digamma

from pp_models import data
from pp_models.elimination.allocate import allocate
from pp_models.elimination.choose import choose
from pp_models.elimination.inner import inner
from pp_models.elimination.primitive import UNIFORM
from pp_models.elimination.row_solver import RowOptions, converge_rows


@pytest.fixture(scope="module", params=[1, 17], ids=lambda k: f"K={k}")
def problem(request):
    """Counts with an empty row, a heavy row and an empty column, and random logits."""
    rng = np.random.default_rng(0)
    X = rng.poisson(0.3, (23, 40))
    X[3], X[:, 7] = 0, 0
    X[5] = rng.poisson(6, 40)
    K = request.param
    return (
        X,
        data.counts(X).pack().entries,
        jnp.asarray(rng.normal(size=(23, K))),
        jnp.asarray(rng.normal(size=(K, 40))),
    )


def dense(X, rows, columns):
    return jnp.sum(X * jax.nn.logsumexp(rows[:, :, None] + columns[None], axis=1))


def test_value_and_gradients(problem):
    """Value and both gradients are those of the dense formula."""
    X, entries, rows, columns = problem
    ours = jax.value_and_grad(allocate, (0, 1))(rows, columns, entries)
    theirs = jax.value_and_grad(lambda r, c: dense(X, r, c), (0, 1))(rows, columns)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(allocate(rows, columns, entries), theirs[0], rtol=1e-12)


def test_scaled_cotangent(problem):
    """Scaling the value scales the gradient."""
    _, entries, rows, columns = problem
    once = jax.grad(allocate, (0, 1))(rows, columns, entries)
    thrice = jax.grad(lambda r, c: 3 * allocate(r, c, entries) + jnp.sum(r), (0, 1))(rows, columns)
    np.testing.assert_allclose(thrice[0], 3 * once[0] + 1, rtol=1e-12)
    np.testing.assert_allclose(thrice[1], 3 * once[1], rtol=1e-12)


def largest_arrays(jaxpr):
    """Sizes of all arrays in a jaxpr, nested ones included."""
    for equation in jaxpr.eqns:
        yield from (v.aval.shape for v in equation.outvars if hasattr(v.aval, "shape"))
        for value in equation.params.values():
            for part in jax.tree.leaves(
                value, is_leaf=lambda x: hasattr(x, "jaxpr") or hasattr(x, "eqns")
            ):
                part = getattr(part, "jaxpr", part)
                if hasattr(part, "eqns"):
                    yield from largest_arrays(part)


def test_only_the_side_asked_for(problem):
    """A gradient for the rows holds no column statistics in any loop, and nothing is as large as
    entries x K."""
    X, _, _, _ = problem
    big = data.counts(np.tile(X, (30, 1)))
    entries, K = big.pack().entries, 16
    rows, columns = jnp.zeros((big.num_rows, K)), jnp.zeros((K, 40))
    shapes = list(
        largest_arrays(jax.make_jaxpr(jax.grad(allocate, 0))(rows, columns, entries).jaxpr)
    )
    both = list(
        largest_arrays(jax.make_jaxpr(jax.grad(allocate, (0, 1)))(rows, columns, entries).jaxpr)
    )
    carries = [shape for shape in shapes if shape == (40, K)]
    assert len(carries) < len([shape for shape in both if shape == (40, K)])
    assert max(int(np.prod(shape)) for shape in both) < big.num_entries * K


def test_inner_is_the_sparse_product(problem):
    """The value is sum X (rows @ columns), for numbers of either sign; the gradients are X columns'
    and rows' X, together and one side at a time."""
    X, entries, rows, columns = problem
    value, gradient = jax.value_and_grad(inner, (0, 1))(rows, columns, entries)
    np.testing.assert_allclose(value, np.sum(X * (rows @ columns)), rtol=1e-11)
    for found, expected in zip(gradient, (X @ columns.T, rows.T @ X), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
    for side in (0, 1):
        np.testing.assert_allclose(
            jax.grad(inner, side)(rows, columns, entries), gradient[side], rtol=1e-12
        )


@pytest.mark.parametrize("num_factors", [64, 65, 130])
def test_inner_of_lines_in_blocks(num_factors):
    """Gradients are right in every block of factors, also for rows and columns without entries."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.4, (9, 14)) * (np.arange(9) % 4 > 0)[:, None] * (np.arange(14) != 3)
    rows, columns = (
        jnp.asarray(rng.normal(size=(9, num_factors))),
        jnp.asarray(rng.normal(size=(num_factors, 14))),
    )
    entries = data.counts(counts).pack().entries
    gradient = jax.grad(inner, (0, 1))(rows, columns, entries)
    np.testing.assert_allclose(gradient[0], counts @ columns.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gradient[1], rows.T @ counts, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(jax.grad(inner)(rows, columns, entries.emptied()), 0)


def test_counts_have_no_gradient(problem):
    """Differentiating with respect to the data is refused, not silently zero."""
    _, entries, rows, columns = problem
    with pytest.raises(TypeError, match="no gradient with respect to the counts"):
        jax.grad(
            lambda values: allocate(rows, columns, dataclasses.replace(entries, values=values))
        )(entries.values)


def test_sampled_allocations(problem):
    """Sampled counts keep row and column totals exactly and average to the expected ones (five
    standard errors of 2,000 draws)."""
    X, entries, rows, columns = problem
    sample = jax.jit(jax.vmap(lambda key: jax.grad(allocate, (0, 1))(rows, columns, entries, key)))
    by_row, by_column = sample(jax.random.split(jax.random.key(0), 2000))
    np.testing.assert_array_equal(by_row.sum(2), np.broadcast_to(X.sum(1), (2000, 23)))
    np.testing.assert_array_equal(by_column.sum(1), np.broadcast_to(X.sum(0), (2000, 40)))
    expected = jax.grad(allocate, (0, 1))(rows, columns, entries)
    for draws, mean in zip((by_row, by_column), expected, strict=True):
        error = np.sqrt(
            np.maximum(mean, 0.01) / 2000
        )  # a sum of Bernoulli draws varies less than a Poisson one
        assert np.all(np.abs(draws.mean(0) - mean) < 5 * error)
        assert (
            draws.shape[-2] == 1
            or rows.shape[1] == 1
            or np.all(draws.var(0)[np.asarray(mean) > 1] > 0)
        )


def test_one_key_one_allocation(problem):
    """Row and column counts of one key are two views of the same allocation: the totals per factor
    agree."""
    _, entries, rows, columns = problem
    by_row, by_column = jax.grad(allocate, (0, 1))(rows, columns, entries, jax.random.key(3))
    np.testing.assert_array_equal(by_row.sum(0), by_column.sum(1))
    alone = jax.grad(allocate, 1)(rows, columns, entries, jax.random.key(3))
    np.testing.assert_array_equal(alone, by_column)


@pytest.mark.parametrize("iterations", [pytest.param(1, marks=pytest.mark.slow), 9])
def test_fused_fixed_point_is_the_gradient_iterated(problem, iterations):
    """`converge_rows` equals iterating c <- a + d allocate/d rows at digamma(c) + scale, and its
    statistics are the gradients there."""
    _, entries, rows, columns = problem
    K = rows.shape[1]
    a, scale = (
        jnp.asarray(np.random.default_rng(1).gamma(1, 1, (1, K)) + 0.01),
        jnp.linspace(-1, 1, K)[None],
    )
    counts, info, solved = converge_rows(
        a, scale, columns, entries, rows, RowOptions(iterations, 0.0)
    )
    logits = rows
    for _ in range(iterations):
        expected = jax.grad(allocate)(logits, columns, entries)
        logits = digamma(a + expected) + scale
    np.testing.assert_allclose(counts, expected, rtol=1e-9, atol=1e-12)
    assert info.iterations.max() == iterations or (
        K == 1 and info.iterations.max() == 2
    )  # with one factor the fixed point is immediate
    known = jax.value_and_grad(allocate, (0, 1))(logits, columns, solved)
    anew = jax.value_and_grad(allocate, (0, 1))(logits, columns, entries)
    for x, y in zip(jax.tree.leaves(known), jax.tree.leaves(anew), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-10)


def test_fixed_point_stops_when_it_rests(problem):
    """Each row stops on its own once its mean change is below the tolerance."""
    _, entries, rows, columns = problem
    a, scale = jnp.full((1, rows.shape[1]), 0.5), jnp.zeros((1, 1))
    _, info, _ = converge_rows(a, scale, columns, entries, rows, RowOptions(500, 1e-6))
    filled = np.asarray(entries.lengths) > 0
    assert (
        np.all(info.change[filled] <= 1e-6)
        and np.all(info.iterations[filled] < 500)
        and np.all(info.iterations[~filled] == 0)
    )


def test_single_precision_extremes():
    """In float32, logits hundreds apart and concentrations of 1e-6 give finite values and
    statistics that count every token."""
    rng = np.random.default_rng(4)
    X = rng.poisson(0.5, (30, 50))
    X[0, 0], X[1] = 10**6, 0
    with jax.enable_x64(False):
        entries = data.counts(X).pack().entries
        rows, columns = (
            jnp.asarray(rng.normal(size=(30, 6)) * 300),
            jnp.asarray(rng.normal(size=(6, 50)) * 300),
        )
        value, (by_row, by_column) = jax.value_and_grad(allocate, (0, 1))(rows, columns, entries)
        assert np.isfinite(value)
        np.testing.assert_allclose(by_row.sum(1), X.sum(1), rtol=1e-5)
        np.testing.assert_allclose(by_column.sum(0), X.sum(0), rtol=1e-5)
        sparse = jnp.full((1, 6), 1e-6)
        counts, _, solved = converge_rows(
            sparse, jnp.zeros((1, 1)), columns, entries, jnp.zeros((30, 6)), RowOptions(30, 1e-3)
        )
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((counts, solved.solved)))
        np.testing.assert_allclose(counts.sum(1), X.sum(1), rtol=1e-5)


def test_single_precision_value_is_exact_where_weights_underflow():
    """A row and a column that share no factor within float32's range still get the right value and
    gradient."""
    X = np.array([[3, 1], [2, 5]])
    rows = np.array([[0.0, -120.0, -130.0], [0.0, -1.0, -2.0]])
    columns = np.array([[-150.0, 0.0], [0.0, -110.0], [-1.0, -90.0]])
    exact = jax.value_and_grad(lambda r, c: dense(X, r, c), (0, 1))(
        jnp.asarray(rows), jnp.asarray(columns)
    )
    with jax.enable_x64(False):
        entries = data.counts(X).pack().entries
        single = jax.value_and_grad(allocate, (0, 1))(
            jnp.asarray(rows, jnp.float32), jnp.asarray(columns, jnp.float32), entries
        )
        single = jax.tree.map(np.asarray, single)
    for a, b in zip(jax.tree.leaves(single), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_even_beliefs(problem):
    """With phi = 1/K the value is the bound at these responsibilities: linear in the logits, and
    below the optimum."""
    X, entries, rows, columns = problem
    value, (by_row, by_column) = jax.value_and_grad(allocate, (0, 1))(
        rows, columns, entries, UNIFORM
    )
    K = rows.shape[1]
    theirs = jnp.sum(X * (jnp.mean(rows[:, :, None] + columns[None], 1) + jnp.log(K)))
    np.testing.assert_allclose(value, theirs, rtol=1e-12)
    np.testing.assert_allclose(by_row, np.repeat(X.sum(1)[:, None] / K, K, 1), rtol=1e-12)
    np.testing.assert_allclose(by_column, np.repeat(X.sum(0)[None] / K, K, 0), rtol=1e-12)
    assert value <= allocate(rows, columns, entries) + 1e-9


def test_choose():
    """The gradient is the responsibilities, draws with those odds, or 1/K. Padded rows contribute
    nothing, whatever they hold."""
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(6, 4))).at[5].set(jnp.nan)
    weights = jnp.asarray([1.0, 1, 1, 1, 1, 0])
    value, responsibilities = jax.value_and_grad(choose)(logits, weights)
    np.testing.assert_allclose(value, jax.nn.logsumexp(logits[:5], 1).sum(), rtol=1e-12)
    np.testing.assert_allclose(responsibilities[:5], jax.nn.softmax(logits[:5], 1), rtol=1e-12)
    assert np.all(np.asarray(responsibilities[5]) == 0)
    draws = jax.vmap(lambda key: jax.grad(choose)(logits, weights, key))(
        jax.random.split(jax.random.key(0), 4000)
    )
    assert set(np.unique(draws)) == {0.0, 1.0} and np.all(np.asarray(draws[:, :5].sum(2)) == 1)
    np.testing.assert_allclose(
        draws.mean(0), responsibilities, atol=5 * np.sqrt(0.25 / 4000)
    )  # five standard errors
    np.testing.assert_allclose(jax.grad(choose)(logits, weights, UNIFORM)[:5], 0.25, rtol=1e-12)
