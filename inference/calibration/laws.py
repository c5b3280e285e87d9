"""The shared laws of models, each a function of a problem that raises `Broken` with one sentence.

`pp_models.testing.check` runs them on a model's example; the tests run them on every model there
is. Equalities hold to rounding, in double precision.
"""

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer.util import log_density

from inference.core import objective as obj
from inference.core.objective import Problem
from pp_models import families as fam
from pp_models.data.types import Data
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.model import as_arrays, guide_of, joint, number_of_factors
from pp_models.model.check import FAST
from pp_models.model.hyper import check_fields

ROUNDS = RowOptions(60, 0.0)  # of the rows' fixed point: all of them
NUM_DRAWS = 4000  # of q, for the ELBO
jit = functools.partial(jax.jit, compiler_options=FAST)


class Broken(AssertionError):
    """A law does not hold: one sentence that names what to look at."""


def require(holds: Any, sentence: str) -> None:
    if not holds:
        raise Broken(sentence)


def close(one: Any, other: Any, rtol: float, atol: float = 0.0) -> bool:
    """Whether two trees of arrays agree, leaf by leaf. atol: of the other's largest number."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(
        np.allclose(a, b, rtol=rtol, atol=atol * float(np.max(np.abs(b), initial=0)))
        for a, b in pairs
    )


def finite(tree: Any) -> bool:
    return all(bool(np.all(np.isfinite(x))) for x in jax.tree.leaves(tree))


# What the laws begin with -------------------------------------------------------------------------


def some_natural(problem: Problem, seed: int = 1) -> Any:
    """A q that is not at an optimum: after one update of every site from a random start."""
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()

    @jit
    def make(key: jax.Array) -> Any:
        natural = model.init(key, hyper, problem.data)
        stats = obj.summarise(model, natural)
        gradient = jax.grad(lambda t: joint(model, hyper, t, batch))(stats)
        return jax.tree.map(lambda a, b: 0.7 * a + 0.3 * b, gradient, natural)

    return make(jax.random.key(seed))


def bound(problem: Problem, natural: Any, batch: Any = None) -> jax.Array:
    """F(mu) + entropy of a q."""
    model = problem.model
    batch = problem.data.pack() if batch is None else batch
    entropy = jnp.zeros(())
    for site, family in model.families.items():
        terms = fam.entropy(family, natural[site])
        entropy += batch.sum(terms) if site in model.local else jnp.sum(terms)
    return joint(model, problem.hyper, obj.summarise(model, natural), batch) + entropy


@functools.partial(jit, static_argnames=("model",))
def _solved(model, hyper, stats, batch, options):
    return obj.local_part(model, hyper, stats, batch, obj.start_local(model, hyper, batch), options)


def solved(model: Any, hyper: Any, stats: Any, batch: Any, options: RowOptions = ROUNDS) -> Any:
    """The batch's local sites at their fixed point, and F's gradient there.

    Compiled once for all laws with batches of one shape.
    """
    return _solved(model, as_arrays(hyper), stats, batch, options)


# Densities ----------------------------------------------------------------------------------------


def guide_has_the_families_density(problem: Problem) -> None:
    """The guide draws from the declared families, and from nothing else."""
    model, batch = problem.model, problem.data.pack()
    guide = guide_of(model)
    program = handlers.seed(guide, jax.random.key(3))
    trace = handlers.trace(program).get_trace(problem.hyper, batch)
    sampled = {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}
    names = set(sampled) - {"documents"}
    require(
        names == set(model.families),
        f"guide of {model.name} samples {', '.join(sorted(names))}, but families names "
        f"{', '.join(sorted(model.families))}.",
    )
    params = {name: site["value"] for name, site in trace.items() if site["type"] == "param"}
    values = {site: sampled[site] for site in model.families}
    theirs, _ = log_density(guide, (problem.hyper, batch), {}, params | values)
    ours = {}
    for site, family in model.families.items():
        natural = family.natural(trace[site]["fn"])
        ours[site] = jnp.sum(fam.log_density(family, natural, family.stats(sampled[site])))
    wrong = [s for s, x in ours.items() if not np.allclose(x, _log_p(trace[s]), rtol=1e-9)]
    require(
        not wrong and np.allclose(sum(ours.values()), theirs, rtol=1e-11),
        f"guide of {model.name} does not have the density of the families: look at "
        f"{' and '.join(wrong) or 'the plates'}.",
    )


def _log_p(site: Any) -> Any:
    return jnp.sum(site["fn"].log_prob(site["value"]))


def fisher_times_step_is_the_gradient(problem: Problem, natural: Any) -> None:
    """Fisher information times (target - natural) is the ordinary gradient of the bound, for every
    block (X 25, P 11.20-11.22).
    """
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()

    def inner(a: Any, b: Any) -> Any:
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return sum(jnp.sum(x * y) for x, y in pairs)

    @jit
    def both(natural: Any) -> Any:
        stats = obj.summarise(model, natural)
        target = jax.grad(lambda t: joint(model, hyper, t, batch))(stats)
        ordinary = jax.grad(lambda eta: bound(problem, eta, batch))(natural)
        steps = jax.tree.map(jnp.subtract, target, natural)
        means = {site: family.mean for site, family in model.families.items()}
        fisher = {
            site: jax.grad(lambda eta, s=site: inner(means[s](eta), steps[s]))(natural[site])
            for site in model.families
        }
        return fisher, ordinary

    fisher, ordinary = both(natural)
    wrong = [s for s in model.families if not close(fisher[s], ordinary[s], 1e-6, 1e-7)]
    require(
        not wrong,
        f"Fisher times (target - natural) is not the bound's gradient: look at the family of "
        f"{' and '.join(wrong)}, whose mean or log normaliser is wrong.",
    )


def bound_is_below_the_elbo(problem: Problem, natural: Any) -> None:
    """Eliminating auxiliaries by their bound can only lower the ELBO of the same q.

    The ELBO is a mean over 4,000 draws; five standard errors leave one chance in a million of a
    false alarm.
    """
    model, batch = problem.model, problem.data.pack()
    keys = jax.random.split(jax.random.key(7), NUM_DRAWS)
    families = model.families.items()

    def one(key: jax.Array) -> jax.Array:
        parts = jax.random.split(key, len(model.families))
        pairs = zip(families, parts, strict=True)
        stats = {site: family.sample(part, natural[site]) for (site, family), part in pairs}
        log_q = sum(jnp.sum(fam.log_density(f, natural[s], stats[s])) for s, f in families)
        values = {site: family.value(stats[site]) for site, family in families}
        log_p, _ = log_density(model.generate, (problem.hyper, batch), {}, values)
        return log_p - log_q

    terms = np.asarray(jit(lambda k: jax.lax.map(one, k, batch_size=100))(keys))
    elbo, error = terms.mean(), terms.std() / np.sqrt(len(terms))
    ours = float(bound(problem, natural))
    told = f"The bound of {model.name} is {ours:.6g}, NumPyro's ELBO of the same q {elbo:.6g}"
    require(np.isfinite(ours), f"{told}: it must be finite.")
    require(
        ours < elbo + 5 * error,
        f"{told} ± {error:.2g}: a bound lies below. Look at the auxiliaries that log_local "
        "eliminates.",
    )
    require(
        ours > elbo - 0.5 * abs(elbo) - 10,
        f"{told}: the bound lies so far below that a term must be missing in log_local.",
    )


# Rows ---------------------------------------------------------------------------------------------


def rows_are_exchangeable(problem: Problem, natural: Any) -> None:
    """The objective does not depend on row order, on how rows are split into batches, nor on
    padding.
    """
    model, hyper, data = problem.model, problem.hyper, problem.data
    stats = obj.summarise(model, natural)
    shared = {site: stats[site] for site in model.shared}
    evaluate = jit(
        jax.value_and_grad(
            lambda shared, mine, batch: model.log_local(hyper, {**shared, **mine}, batch)
        )
    )

    def local(rows: Any, num_rows: int) -> Any:
        batch = data.pack(np.asarray(rows), num_rows)
        mine = {
            site: jax.tree.map(lambda x: jnp.asarray(x)[batch.positions], stats[site])
            for site in model.local
        }
        return evaluate(shared, mine, batch)

    size = data.num_rows
    whole = local(np.arange(size), size)
    permuted = local(np.random.default_rng(0).permutation(size), size)
    padded = local(np.arange(size), size + 5)
    halves = [local(part, size) for part in (np.arange(size // 2), np.arange(size // 2, size))]
    split = jax.tree.map(jnp.add, *halves)
    head = f"log_local of {model.name}"
    for other, told in (
        (
            padded,
            "changes with padding: add what belongs to rows by batch.sum, or times batch.mask",
        ),
        (permuted, "changes with the order of the rows: take nothing from a row's place"),
        (split, "of two halves does not add up to that of all rows: let every term be a row's own"),
    ):
        require(close(other, whole, 1e-10, 1e-12), f"{head} {told}.")


def padded_rows_change_no_solution(problem: Problem, natural: Any, model: Any = None) -> None:
    """A batch with padding solves its rows, and differentiates F, as the batch without.

    model: a variant, such as one without its fused solver.
    """
    model, hyper, data = model or problem.model, problem.hyper, problem.data
    stats = obj.summarise(model, {site: natural[site] for site in model.shared})
    parts = []
    for num_rows in (data.num_rows, data.num_rows + 3):
        part = solved(model, hyper, stats, data.pack(np.arange(data.num_rows), num_rows))
        natural_there, stats_there = jax.tree.map(
            lambda x: x[: data.num_rows], (part.natural, part.stats)
        )
        parts.append(part._replace(natural=natural_there, stats=stats_there, info=None))
    require(
        close(parts[1], parts[0], 1e-10, 1e-12),
        f"Padding changes the solution of the rows of {model.name}: look at the rows' terms of "
        f"log_local{' and at solve_local' if model.solve_local else ''}.",
    )


# Edges --------------------------------------------------------------------------------------------


def edges(problem: Problem) -> Iterator[tuple[str, Data, Any]]:
    """Name, data and hyper-parameters: a single row, one factor, huge counts, empty rows."""
    data, hyper = problem.data, problem.hyper
    yield "a single row", data.select(np.arange(1)), hyper
    if (one := _with_one_factor(problem)) is not None:
        yield "one factor", data, one
    if data.kind == "counts":
        matrix = data.matrix.copy()
        matrix.data[:] = 2**23
        yield "huge counts", Data("counts", matrix=matrix), hyper
        empty = data.matrix.toarray()
        empty[::2] = 0
        yield "empty rows", Data("counts", matrix=type(data.matrix)(empty)), hyper


def _with_one_factor(problem: Problem) -> Any:
    """The hyper-parameters; None if they cannot be, as with a number for each of more factors."""
    model = problem.model
    size = number_of_factors(model)
    with contextlib.suppress(InputError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a rank above the number of factors, say
        one = check_fields(problem.hyper._replace(**{size: 1}))
        return as_arrays(model.resolve(one, problem.data))
    return None


def edges_are_finite(problem: Problem) -> None:
    """F, its gradient and the rows' solution stay finite."""
    model, size = problem.model, problem.data.num_rows
    layout = problem.data.layout(size)
    for name, data, hyper in edges(problem):
        batch = data.pack(layout=layout if data.num_rows == size else None)
        stats = obj.summarise(model, model.init(jax.random.key(0), hyper, data))
        part = solved(model, hyper, {site: stats[site] for site in model.shared}, batch)
        fields = (field for field in part._fields if field != "info")
        wrong = [field for field in fields if not finite(getattr(part, field))]
        told = f"With {name}, {' and '.join(wrong)} of log_local of {model.name} is not finite."
        require(not wrong, told)


def single_precision_is_close(problem: Problem, natural: Any) -> None:
    """F, its gradient and the bound in float32 are finite and within 1e-3 of float64."""

    def evaluate(hyper: Any, natural: Any) -> Any:
        batch, model = problem.data.pack(), problem.model
        single = problem._replace(hyper=hyper)

        @jit
        def all_of_it(natural: Any) -> Any:
            stats = obj.summarise(model, natural)
            of = jax.value_and_grad(lambda t: joint(model, hyper, t, batch))
            return *of(stats), bound(single, natural, batch)

        return jax.tree.map(np.asarray, all_of_it(natural))

    exact = evaluate(problem.hyper, natural)
    with jax.enable_x64(False):
        lower = functools.partial(jax.tree.map, lambda x: jnp.asarray(np.asarray(x, np.float32)))
        found = evaluate(as_arrays(jax.tree.map(np.asarray, problem.hyper)), lower(natural))
    name = problem.model.name
    kinds = {x.dtype for x in jax.tree.leaves(found)}
    require(kinds == {np.dtype(np.float32)}, f"F of {name} leaves single precision: {kinds}.")
    require(finite(found), f"F of {name}, or its gradient, is not finite in single precision.")
    require(
        close(found, exact, 1e-3, 1e-3),
        f"F of {name} in single precision is not within 1e-3 of that in double precision.",
    )
