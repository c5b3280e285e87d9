"""The laws of MODEL_CONTRACT.md, for every discovered model.

Double precision: equalities hold to rounding.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from inference.calibration import laws
from inference.core import objective as obj
from pp_models import model as base
from pp_models.elimination.row_solver import RowOptions

# Draws and starting points that several tests begin with; compiled in one piece, which is faster
# than operation by operation.
_KNOWN = {}


def prior_draw(problem, seed):
    """Values of every latent site from the generative process."""
    name = problem.model, "draw"
    if name not in _KNOWN:
        _KNOWN[name] = jax.jit(
            lambda key: base.simulate(problem.model, problem.hyper, problem.data.pack(), key)
        )
    drawn = _KNOWN[name](jax.random.key(seed))
    return {site: drawn[site] for site in problem.model.families}


def some_natural(problem):
    """A q that is not at an optimum, made once for each model."""
    name = problem.model, "natural"
    if name not in _KNOWN:
        _KNOWN[name] = laws.some_natural(problem)
    return _KNOWN[name]


def test_joint_is_numpyros_log_density(problem):
    """F(t(x)) is the log density NumPyro computes, every constant included: log_global that of the
    global sites, log_local that of the others.
    """
    draws = [prior_draw(problem, seed) for seed in range(4)]
    found = base.compare_joint(problem.model, problem.hyper, problem.data, draws)
    for piece, ours in found.ours.items():
        size = np.abs(found.theirs[piece]) + np.abs(sum(found.theirs.values()))
        assert np.all(np.abs(ours - found.theirs[piece]) <= 1e-11 * size), piece


def test_guide_density_is_the_families(problem):
    """The hand-written guide draws from the declared families, and from nothing else."""
    laws.guide_has_the_families_density(problem)


def test_natural_gradient_identity(problem):
    """Fisher information times (target - natural) is the ordinary gradient of the bound, for every
    block (X 25, P 11.20-11.22).
    """
    laws.fisher_times_step_is_the_gradient(problem, some_natural(problem))


def test_bound_is_below_numpyros_elbo(problem):
    """Eliminating auxiliaries by their bound can only lower the ELBO of the same q."""
    laws.bound_is_below_the_elbo(problem, some_natural(problem))


def test_rows_are_exchangeable_and_padding_is_nothing(problem):
    """The objective does not depend on row order, on how rows are split into batches, nor on
    padding.
    """
    laws.rows_are_exchangeable(problem, some_natural(problem))


def test_fused_local_solver_is_the_gradient_iterated(problem):
    """`solve_local`, where a model has one, ends where iterating dF/dmu ends, and the allocations
    it reports are F's own.

    Where iterations are damped Newton steps there are many ways to the end: both get there (1e-7:
    what is left of the slower's way), not together.
    """
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()
    if model.solve_local is None:
        return  # the generic iteration is what the law compares with
    shared = {site: some_natural(problem)[site] for site in model.shared}
    stats = obj.summarise(model, shared)
    evaluate = jax.jit(jax.value_and_grad(lambda t, batch: model.log_local(hyper, t, batch)))
    options, rtol = (
        (RowOptions(3000, 1e-12), 1e-7)
        if model.damped & model.local
        else (RowOptions(7, 0.0), 1e-9)
    )
    for summary in ("mean", "mode", "log_mode"):
        start = obj.start_local(model, hyper, batch, summary)
        natural, _, after = jax.jit(
            lambda s=start, m=summary: model.solve_local(hyper, stats, batch, s, options, m)
        )()
        generic, _, _ = jax.jit(
            lambda s=start, m=summary: obj._fixed_point(model, hyper, stats, batch, s, options, m)
        )()
        for a, b in zip(jax.tree.leaves(natural), jax.tree.leaves(generic), strict=True):
            a, b = np.broadcast_arrays(a, b)  # a precision that all rows share may be there once
            np.testing.assert_allclose(
                a, b, rtol=rtol, atol=rtol * float(jnp.max(jnp.abs(b))) if model.damped else 0
            )
        local = obj.summarise(model, natural, summary)
        known, anew = (evaluate({**stats, **local}, rows) for rows in (after, batch))
        for a, b in zip(jax.tree.leaves(known), jax.tree.leaves(anew), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_padded_rows_change_no_local_solution(problem):
    """A batch with padding solves its rows, and differentiates F, as the batch without, fused or
    generic.
    """
    for variant in (problem.model, dataclasses.replace(problem.model, solve_local=None)):
        laws.padded_rows_change_no_solution(problem, some_natural(problem), variant)


def test_rows_stop_for_themselves(problem):
    """With a tolerance, too, a row ends where it would with other rows, or more padding, beside it,
    after as many iterations, fused or generic.
    """
    model, hyper, data = problem.model, problem.hyper, problem.data
    stats = obj.summarise(model, {site: some_natural(problem)[site] for site in model.shared})
    options, size = RowOptions(60, 1e-3), data.num_rows
    for variant in (model, dataclasses.replace(model, solve_local=None)):
        whole = laws.solved(variant, hyper, stats, data.pack(np.arange(size), size), options)
        for rows in (np.arange(size // 3), np.arange(size // 3, size)):
            part = laws.solved(variant, hyper, stats, data.pack(rows, size), options)
            np.testing.assert_array_equal(
                part.info.iterations[: len(rows)], whole.info.iterations[rows]
            )
            for a, b in zip(
                jax.tree.leaves(part.natural), jax.tree.leaves(whole.natural), strict=True
            ):
                if len(b) == size:  # what rows have in common has no rows
                    np.testing.assert_allclose(a[: len(rows)], b[rows], rtol=1e-10, atol=1e-12)


def test_batches_average_to_the_full_target(problem):
    """The mean of N/|B|-scaled targets over a partition into batches is the full-batch target:
    SVI's gradient is unbiased (P 11.19).
    """
    model, hyper, data = problem.model, problem.hyper, problem.data
    natural = some_natural(problem)
    stats = {site: obj.summarise(model, natural)[site] for site in model.shared}

    def target(rows, num_rows):
        part = laws.solved(model, hyper, stats, data.pack(rows, num_rows))
        scale = data.num_rows / len(rows)
        return jax.tree.map(
            lambda p, g: p + scale * g, obj.prior_gradient(model, hyper, stats), part.gradient
        )

    rows = np.random.default_rng(2).permutation(data.num_rows)
    parts = np.array_split(rows, 3)
    targets = [(len(part) / data.num_rows, target(part, len(parts[0]))) for part in parts]
    mean = jax.tree.map(
        lambda *leaves: sum(w * x for (w, _), x in zip(targets, leaves, strict=True)),
        *[t for _, t in targets],
    )
    for a, b in zip(
        jax.tree.leaves(mean),
        jax.tree.leaves(target(np.arange(data.num_rows), data.num_rows)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-8)


def test_single_precision(problem):
    """F, its gradient and the bound in float32 are finite and within 1e-3 of float64."""
    laws.single_precision_is_close(problem, some_natural(problem))


def test_predict_is_the_mean_of_the_observations(problem):
    """`predict` gives expected observations, of counts up to each row's total: averages of
    simulated data agree with it (five standard errors).
    """
    values = prior_draw(problem, 5)
    batch = problem.data.pack()
    simulate = jax.jit(
        lambda key: base.simulate(problem.model, problem.hyper, batch, key, values)[
            problem.model.observed
        ]
    )
    draws = np.stack([np.asarray(simulate(jax.random.key(i))) for i in range(200)])
    rates = np.asarray(problem.model.predict(problem.hyper, values))
    if problem.model.kind == "counts":
        rates = rates / rates.sum(1, keepdims=True) * draws.mean(0).sum(1, keepdims=True)
    expected = np.broadcast_to(rates, draws.shape[1:])
    error = draws.std(0) / np.sqrt(len(draws)) + 0.02
    assert np.all(np.abs(draws.mean(0) - expected) < 5 * error)


def test_degenerate_problems(problem):
    """Empty rows, a single row, one factor, huge counts: F and its gradient stay finite."""
    laws.edges_are_finite(problem)
