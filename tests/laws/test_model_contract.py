"""The laws of MODEL_CONTRACT.md, for every discovered model.

Double precision: equalities hold to rounding.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer.util import log_density

from inference.core import objective as obj
from inference.run import fit
from pp_models import families as fam
from pp_models import model as base
from pp_models.data import Data
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


def some_natural(problem, seed=1):
    """A q that is not at an optimum: after one update of every site from a random start."""
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()

    @jax.jit
    def make(key):
        natural = model.init(key, hyper, problem.data)
        gradient = jax.grad(lambda t: base.joint(model, hyper, t, batch))(
            obj.summarise(model, natural)
        )
        return jax.tree.map(lambda a, b: 0.7 * a + 0.3 * b, gradient, natural)

    name = model, "natural", seed
    if name not in _KNOWN:
        _KNOWN[name] = make(jax.random.key(seed))
    return _KNOWN[name]


def bound(problem, natural, batch=None):
    model = problem.model
    batch = problem.data.pack() if batch is None else batch
    entropy = sum(
        batch.sum(fam.entropy(family, natural[site]))
        if site in model.local
        else jnp.sum(fam.entropy(family, natural[site]))
        for site, family in model.families.items()
    )
    return base.joint(model, problem.hyper, obj.summarise(model, natural), batch) + entropy


ROUNDS = RowOptions(60, 0.0)


@partial(jax.jit, static_argnames=("model",))
def _solved(model, hyper, stats, batch, options):
    return obj.local_part(model, hyper, stats, batch, obj.start_local(model, hyper, batch), options)


def solved(model, hyper, stats, batch, options=ROUNDS):
    """The batch's local sites at their fixed point, and F's gradient there.

    Compiled once for all tests with batches of one shape.
    """
    return _solved(model, base.as_arrays(hyper), stats, batch, options)


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
    model, batch = problem.model, problem.data.pack()
    program = handlers.seed(base.guide_of(model), jax.random.key(3))
    trace = handlers.trace(program).get_trace(problem.hyper, batch)
    sampled = {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}
    assert set(sampled) - {"documents"} == set(model.families)
    params = {name: site["value"] for name, site in trace.items() if site["type"] == "param"}
    theirs, _ = log_density(
        base.guide_of(model),
        (problem.hyper, batch),
        {},
        {**params, **{s: sampled[s] for s in model.families}},
    )
    ours = 0.0
    for site, family in model.families.items():
        natural = family.natural(trace[site]["fn"])
        ours += jnp.sum(fam.log_density(family, natural, family.stats(sampled[site])))
    np.testing.assert_allclose(ours, theirs, rtol=1e-11)


def test_natural_gradient_identity(problem):
    """Fisher information times (target - natural) is the ordinary gradient of the bound, for every
    block (X 25, P 11.20-11.22).
    """
    model = problem.model
    natural = some_natural(problem)
    batch = problem.data.pack()
    target = jax.jit(jax.grad(lambda t: base.joint(model, problem.hyper, t, batch)))(
        obj.summarise(model, natural)
    )
    ordinary = jax.jit(jax.grad(lambda eta: bound(problem, eta, batch)))(natural)
    for site, family in model.families.items():
        step = jax.tree.map(jnp.subtract, target[site], natural[site])
        fisher_step = jax.jit(
            jax.grad(lambda eta, family=family, step=step: _inner(family.mean(eta), step))
        )(natural[site])
        for a, b in zip(jax.tree.leaves(fisher_step), jax.tree.leaves(ordinary[site]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7 * float(jnp.max(jnp.abs(b))))


def _inner(a, b):
    return sum(jnp.sum(x * y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_bound_is_below_numpyros_elbo(problem):
    """Eliminating auxiliaries by their bound can only lower the ELBO of the same q.

    The ELBO is a mean over 4,000 draws; five standard errors leave one chance in a million of a
    false alarm.
    """
    model, batch = problem.model, problem.data.pack()
    natural = some_natural(problem)
    keys = jax.random.split(jax.random.key(7), 4000)

    def one(key):
        parts = jax.random.split(key, len(model.families))
        stats = {
            s: f.sample(k, natural[s])
            for (s, f), k in zip(model.families.items(), parts, strict=True)
        }
        log_q = sum(
            jnp.sum(fam.log_density(f, natural[s], stats[s])) for s, f in model.families.items()
        )
        values = {s: f.value(stats[s]) for s, f in model.families.items()}
        log_p, _ = log_density(model.generate, (problem.hyper, batch), {}, values)
        return log_p - log_q

    terms = np.asarray(jax.jit(lambda k: jax.lax.map(one, k, batch_size=100))(keys))
    elbo, error = terms.mean(), terms.std() / np.sqrt(len(terms))
    ours = float(bound(problem, natural))
    assert np.isfinite(ours)
    assert ours < elbo + 5 * error, (ours, elbo, error)
    assert ours > elbo - 0.5 * abs(elbo) - 10, "so far below that a term must be missing"


def test_rows_are_exchangeable_and_padding_is_nothing(problem):
    """The objective does not depend on row order, on how rows are split into batches, nor on
    padding.
    """
    model, hyper, data = problem.model, problem.hyper, problem.data
    natural = some_natural(problem)
    stats = obj.summarise(model, natural)

    def local(rows, num_rows):
        batch = data.pack(np.asarray(rows), num_rows)
        mine = {
            site: jax.tree.map(lambda x: jnp.asarray(x)[batch.positions], stats[site])
            for site in model.local
        }
        shared = {site: stats[site] for site in model.shared}
        return evaluate(shared, mine, batch)

    evaluate = jax.jit(
        jax.value_and_grad(
            lambda shared, mine, batch: model.log_local(hyper, {**shared, **mine}, batch)
        )
    )
    size = data.num_rows
    whole = local(np.arange(size), size)
    permuted = local(np.random.default_rng(0).permutation(size), size)
    padded = local(np.arange(size), size + 5)
    halves = [local(part, size) for part in (np.arange(size // 2), np.arange(size // 2, size))]
    split = jax.tree.map(jnp.add, *halves)
    for other in (permuted, padded, split):
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


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
    model, hyper, data = problem.model, problem.hyper, problem.data
    stats = obj.summarise(model, {site: some_natural(problem)[site] for site in model.shared})
    for variant in (model, dataclasses.replace(model, solve_local=None)):
        parts = []
        for num_rows in (data.num_rows, data.num_rows + 3):
            batch = data.pack(np.arange(data.num_rows), num_rows)
            part = solved(variant, hyper, stats, batch)
            natural, stats_there = jax.tree.map(
                lambda x: x[: data.num_rows], (part.natural, part.stats)
            )
            parts.append(part._replace(natural=natural, stats=stats_there, info=None))
        for a, b in zip(jax.tree.leaves(parts[0]), jax.tree.leaves(parts[1]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_rows_stop_for_themselves(problem):
    """With a tolerance, too, a row ends where it would with other rows, or more padding, beside it,
    after as many iterations, fused or generic.
    """
    model, hyper, data = problem.model, problem.hyper, problem.data
    stats = obj.summarise(model, {site: some_natural(problem)[site] for site in model.shared})
    options, size = RowOptions(60, 1e-3), data.num_rows
    for variant in (model, dataclasses.replace(model, solve_local=None)):
        whole = solved(variant, hyper, stats, data.pack(np.arange(size), size), options)
        for rows in (np.arange(size // 3), np.arange(size // 3, size)):
            part = solved(variant, hyper, stats, data.pack(rows, size), options)
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
        part = solved(model, hyper, stats, data.pack(rows, num_rows))
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
    natural = some_natural(problem)

    def evaluate(problem, natural):
        batch = problem.data.pack()

        @jax.jit
        def all_of_it(natural):
            stats = obj.summarise(problem.model, natural)
            value, gradient = jax.value_and_grad(
                lambda t: base.joint(problem.model, problem.hyper, t, batch)
            )(stats)
            return value, bound(problem, natural, batch), gradient

        return all_of_it(natural)

    exact = evaluate(problem, natural)
    with jax.enable_x64(False):
        again = fit.make_problem(problem.model.name, problem.data, problem.hyper)
        single = evaluate(
            again, jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float32)), natural)
        )
        single = jax.tree.map(np.asarray, single)
    for a, b in zip(jax.tree.leaves(single), jax.tree.leaves(exact), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(np.asarray(b)).max())


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
    model, data = problem.model, problem.data
    size = base.number_of_factors(model)
    variants = {
        "single row": (data.select(np.arange(1)), problem.hyper),
        "one factor": (data, problem.hyper._replace(**{size: 1})),
    }
    if data.kind == "counts":
        matrix = data.matrix.copy()
        matrix.data[:] = 2**23
        variants["huge counts"] = (dataclasses.replace(data, matrix=matrix), problem.hyper)
        empty = data.matrix.toarray()
        empty[::2] = 0
        variants["empty rows"] = (Data("counts", matrix=type(data.matrix)(empty)), problem.hyper)
    for name, (variant, hyper) in variants.items():
        batch = variant.pack(
            layout=data.layout(data.num_rows) if variant.num_rows == data.num_rows else None
        )
        stats = obj.summarise(model, model.init(jax.random.key(0), hyper, variant))
        shared = {site: stats[site] for site in model.shared}
        part = solved(model, hyper, shared, batch)
        assert all(
            bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(part._replace(info=None))
        ), name
