r"""Memoized variational inference (Hughes & Sudderth 2013). It keeps the statistics of every batch
and replaces them when the batch comes round.

$$ S \leftarrow S - S_b^{\mathrm{old}} + S_b^{\mathrm{new}}, \qquad
\eta \leftarrow \eta_{\mathrm{prior}} + S $$

See section 4.2 of Theis & Hoffman. There is no rate and no noise: after the first pass every
step is coordinate ascent on all the data, and the bound never falls. During the first pass the
batches seen stand for the others, and `history["bound"]` is empty.

Use it for a bound that never falls, from batches. It needs memory for one set of statistics per
batch and for the parameters of all rows. Use `cavi` if all rows fit into one batch, and `svi` or
`trust_region` if the statistics do not fit.

Rows continue where the last pass left them, which makes the bound rise. `batch_size` below an
eighth of the rows costs memory, and often ends at a lower bound.

$F$ is convex in the statistics of the global sites, so its tangent at the time a batch was visited
bounds it from below later.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.core import devices
from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DOTTED, Algorithm, Look
from inference.core.posteriors import Variational
from inference.engines import _minibatch as mb
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.model import Model, Sites

MOST_BYTES = 8_000_000_000  # the most memory for kept statistics

Options = opt.compose(
    opt.rows(10, 1e-4),
    opt.stop(1e-6, "a pass's mean bound improves"),
    num_epochs=opt.Option(50, "passes over the data"),
    batch_size=opt.Option(0, "rows per step (0: an eighth of them), the same in every pass"),
)


def suits(model: Model) -> str:
    if model.coupled == "rows" or model.damped & set(model.shared):
        return (
            f"memoized keeps statistics of the rows, but those of {model.name} change with each "
            "global site: use cavi."
        )
    return ""


class Kept(NamedTuple):
    """A batch: its statistics, the rest of its bound, its rows' parameters and number of rows."""

    gradient: Sites
    rest: float
    local: tuple[Sites, ...]
    rows: float


class State(NamedTuple):
    """Natural parameters of the global sites; the sum of statistics; the batches; steps taken."""

    shared: Sites
    total: Sites
    kept: tuple[Kept, ...]
    positions: tuple[Any, ...]
    step: int


@partial(jax.jit, static_argnames=("model",))
def _inner(model, shared, gradient):
    """<gradient, mu> over all global sites."""
    products = jax.tree.map(lambda t, g: jnp.sum(t * g), obj.summarise(model, shared), gradient)
    return sum(jax.tree.leaves(products), jnp.zeros(()))


@jax.jit
def _swap(total, new, old):
    return jax.tree.map(lambda t, n, o: t + n - o, total, new, old)


def check_memory(problem: obj.Problem, num_batches: int) -> None:
    """Refuse more statistics than fit into memory."""
    model, hyper, data = problem.model, problem.hyper, problem.data
    natural = jax.eval_shape(lambda key: model.init(key, hyper, data), jax.random.key(0))
    leaves = jax.tree.leaves([natural[site] for site in model.shared])
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) * num_batches
    if size > MOST_BYTES:
        raise InputError(
            f"memoized would keep {size:.1e} bytes of statistics, one set for each of "
            f"{num_batches} batches: raise batch_size."
        )


def build(problem: obj.Problem, options: Any) -> Algorithm:
    model, hyper, num_rows = problem.model, problem.hyper, problem.data.num_rows
    num_batches = -(-num_rows // options.batch_size)
    rows = RowOptions(options.num_local, options.local_tolerance)
    check_memory(problem, num_batches)

    def init(key, start):
        shared = mb.first_natural(problem, key, start)
        return State(shared, jax.tree.map(jnp.zeros_like, shared), (), (), 0)

    def visit(shared, batches, start):
        """The solved rows of a batch, their statistics, and the `Kept` record."""
        solved = mb.solve(problem, hyper, shared, batches, rows, start=start, bound=True)
        gradient = obj.add(*solved.gradients)
        bounds, _, counts = zip(*solved.sums, strict=True)
        rest = devices.total(bounds) - float(_inner(model, shared, gradient))
        kept = Kept(jax.device_get(gradient), rest, solved.local, devices.total(counts))
        return solved, gradient, kept

    def step(key, state, batches):
        place = state.step % num_batches
        old = state.kept[place] if place < len(state.kept) else None
        solved, gradient, new = visit(state.shared, batches, old and old.local)
        kept, positions = (*state.kept[:place], new, *state.kept[place + 1 :]), state.positions
        if old is None:
            total, positions = obj.add(state.total, gradient), (*positions, solved.positions)
        elif place:
            total = _swap(state.total, gradient, old.gradient)
        else:  # summed afresh once per pass, so that rounding does not accumulate
            total = jax.tree.map(jnp.asarray, obj.add(*(part.gradient for part in kept)))
        solved = solved._replace(scale=num_rows / sum(part.rows for part in kept))
        shared, bound = mb.ascend(solved, state.shared, gradients=(total,)), None
        if len(kept) == num_batches:
            rest = sum(part.rest for part in kept)
            bound = obj.shared_bound(model, hyper, shared), _inner(model, shared, total), rest
        return State(shared, total, kept, positions, state.step + 1), mb.Info(bound)

    def posterior(state):
        if len(state.kept) < num_batches:
            return Variational(problem, state.shared)
        local = tuple(part for kept in state.kept for part in kept.local)
        return Variational(problem, state.shared, local, sum(state.positions, ()))

    return Algorithm(init, step, posterior)


ENGINE = mb.engine(
    "memoized",
    Options,
    build,
    rows="partition",
    settle=partial(mb.fill_batch_size, most=2**63),
    learns=False,
    suits=suits,
    ascends=True,
    tiny={"num_epochs": 10},
    look=Look("vermilion", DOTTED, "diamond", True),
)
