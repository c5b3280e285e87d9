"""Memoized variational inference (T 4.2, after Hughes and Sudderth 2013): every batch's statistics are kept, and swapped when the batch comes round.

    total <- total - kept_b + new_b,    natural <- prior + total

No rate and no noise: after the first pass each step is coordinate ascent on all the data, and the bound never falls. The price is memory: one
set of statistics per batch (on the host), and the rows' own parameters. In the first pass, batches not yet seen count as more of those that were.
Rows go on from where the last pass left them, which is what makes the bound rise (in single precision, to rounding); solved afresh at the end they
may do better, since each has optima of its own.

F is convex in the statistics of the global sites, so its tangent at the time a batch was visited, kept with it, bounds it from below ever after.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.core import devices
from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DOTTED, Algorithm, Engine, Look
from inference.core.posteriors import Variational
from inference.engines import _minibatch as mb
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.model import Model, Sites

Options = opt.compose(
    opt.rows(10, 1e-4),
    opt.stop(1e-6, "a pass's mean bound improves"),
    num_epochs=opt.Option(50, "passes over the data"),
    batch_size=opt.Option(0, "rows per step (0: an eighth of them), the same in every pass"),
)


def suits(model: Model) -> str:
    if model.coupled == "rows" or model.damped & set(model.shared):
        return f"memoized keeps statistics of the rows, but those of {model.name} change with each global site: use cavi."
    return ""


class Kept(NamedTuple):
    """What is remembered of a batch: its statistics, the rest of its bound, its rows' parameters and their number."""

    gradient: Sites
    rest: float
    local: tuple[Sites, ...]
    rows: float


class State(NamedTuple):
    """Natural parameters of the global sites, the sum of all kept statistics, what is kept by batch and where its rows belong, and steps taken."""

    shared: Sites
    total: Sites
    kept: tuple[Kept, ...]
    positions: tuple[Any, ...]
    step: int


class Info(NamedTuple):
    """bound: after the step, over all batches seen (nan in the first pass, which has not seen them all)."""

    bound: Any


MOST_BYTES = 8_000_000_000  # of kept statistics


def settle(options: Any, data: Any) -> Any:
    return options._replace(
        batch_size=min(options.batch_size or -(-data.num_rows // 8), data.num_rows)
    )


@partial(jax.jit, static_argnames=("model",))
def _inner(model, shared, gradient):
    """<gradient, mu> over all global sites."""
    stats = obj.summarise(model, shared)
    return sum(
        jax.tree.leaves(jax.tree.map(lambda t, g: jnp.sum(t * g), stats, gradient)), jnp.zeros(())
    )


@jax.jit
def _swap(total, new, old):
    return jax.tree.map(lambda t, n, o: t + n - o, total, new, old)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    model, num_rows = problem.model, problem.data.num_rows
    num_batches = -(-num_rows // options.batch_size)
    rows = RowOptions(options.num_local, options.local_tolerance)
    natural = jax.eval_shape(
        lambda key: model.init(key, problem.hyper, problem.data), jax.random.key(0)
    )
    size = (
        sum(
            leaf.size * leaf.dtype.itemsize
            for site in model.shared
            for leaf in jax.tree.leaves(natural[site])
        )
        * num_batches
    )
    if size > MOST_BYTES:
        raise InputError(
            f"memoized would keep {size:.1e} bytes of statistics, one set for each of {num_batches} batches: raise batch_size."
        )

    def init(key, start):
        shared = mb.first_natural(problem, key, start)
        return State(shared, jax.tree.map(jnp.zeros_like, shared), (), (), 0)

    def step(key, state, batches):
        place = state.step % num_batches
        old = state.kept[place] if place < len(state.kept) else None
        shares = mb.solve(
            problem,
            problem.hyper,
            state.shared,
            batches,
            rows,
            start=None if old is None else old.local,
            bound=True,
        )
        gradient = obj.add(*mb.gradients(problem, shares))
        terms = devices.gather(problem.devices, [(share.bound, share.rows) for share in shares])
        rest = devices.total([bound for bound, _ in terms]) - float(
            _inner(model, state.shared, gradient)
        )
        new = Kept(
            jax.device_get(gradient),
            rest,
            tuple(share.natural for share in shares),
            devices.total([count for _, count in terms]),
        )
        kept = (*state.kept[:place], new, *state.kept[place + 1 :])
        positions = (
            state.positions
            if old is not None
            else (*state.positions, tuple(batch.positions for batch in batches))
        )
        if old is None:
            total = obj.add(state.total, gradient)
        elif place:
            total = _swap(state.total, gradient, old.gradient)
        else:  # added up afresh once per pass, so that rounding does not pile up
            total = jax.tree.map(
                jnp.asarray,
                jax.tree.map(
                    lambda *parts: sum(parts[1:], parts[0]), *(part.gradient for part in kept)
                ),
            )
        shared = mb.ascend(
            problem,
            problem.hyper,
            state.shared,
            (total,),
            num_rows / sum(part.rows for part in kept),
        )
        bound = None
        if len(kept) == num_batches:
            bound = (
                obj.shared_bound(model, problem.hyper, shared),
                _inner(model, shared, total),
                sum(part.rest for part in kept),
            )
        return State(shared, total, kept, positions, state.step + 1), Info(bound)

    def posterior(state):
        if len(state.kept) < num_batches:
            return Variational(problem, state.shared)
        local = tuple(part for kept in state.kept for part in kept.local)
        return Variational(
            problem,
            state.shared,
            local,
            tuple(place for places in state.positions for place in places),
        )

    return Algorithm(init, step, posterior)


ENGINE = Engine(
    "memoized",
    Options,
    build,
    kind="variational",
    rows="partition",
    init="natural",
    settle=settle,
    suits=suits,
    ascends=True,
    tiny={"num_epochs": 10},
    look=Look("vermilion", DOTTED, "diamond", True),
)
