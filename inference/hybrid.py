"""Topics for someone who gives a corpus and a number of them: stochastic steps until they stand apart, then sweeps over all rows.

1. Global sites begin at sums of random rows (`starts.from_rows`) where the model says how, so that factors differ from the first step on.
2. `num_passes` over the data in small batches: `svi` with weights="mean", rows from even beliefs.
3. Sweeps over all rows, which go on from where the last sweep left them: a few iterations each, and global sites at their target.

Throughout, means stand for the global sites (see `minibatch.check_weights`). In the sweeps the rows' weights are geometric means, as in variational
inference, or means, as in collapsed inference and in `map` with basis="log": the former where the data say a lot about each factor, the latter, which
spread a row over more factors, where they say little (`SCARCE`). On nine corpora the better of the two was chosen by that rule (docs/calibration.md).

This is no ascent of a bound; `history["bound"]` is that of the q reached where `bound_every` asks for it.
"""

import functools
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from inference import cvb0
from inference import minibatch as mb
from inference import objective as obj
from inference.empirical_bayes import learn
from inference.engine import Algorithm, Engine
from inference.posterior import Variational
from inference.svi import natural_step
from pp_models import starts
from pp_models.base import Sites
from pp_models.batches import shuffled
from pp_models.data import Data
from pp_models.eliminate import RowOptions
from pp_models.errors import unknown

SCARCE = 2.0  # tokens per factor and column below which means spread the rows
LEARN_EVERY = 4  # sweeps between steps of learned hyper-parameters, which move slowly and cost a pass


class Options(NamedTuple):
    """num_epochs: sweeps over all rows at most. num_passes: passes in batches before. batch_size: their rows (0: 128 to 512, for ninety batches).

    rows: weights of the rows in sweeps, "geometric" means, "mean", or "auto". tau, kappa: the rate (tau + t)^-kappa of the batches. num_first,
    num_local: iterations of each row's fixed point in a batch and in a sweep. tolerance: stop when a sweep changes the global means by less,
    relatively.
    """

    num_epochs: int = 60
    num_passes: int = 1
    batch_size: int = 0
    rows: str = "auto"
    tau: float = 10.0
    kappa: float = 0.75
    num_first: int = 20
    num_local: int = 3
    tolerance: float = 1e-3


class State(NamedTuple):
    """Natural parameters of the global sites, hyper-parameters, steps taken, the key that orders batches, and the rows' own after the last sweep."""

    shared: Sites
    values: dict[str, jax.Array]
    step: int
    key: jax.Array
    local: tuple[Sites, ...]
    positions: tuple[Any, ...]


class Info(NamedTuple):
    """rate: rho. change: of the global means in a sweep, relative to their size. local_iterations: mean over rows."""

    rate: Any
    change: Any
    local_iterations: Any
    finished: bool = False


def check(options: Options) -> None:
    if options.rows not in ("auto", *mb.WEIGHTS):
        raise unknown("rows", options.rows, ("auto", *mb.WEIGHTS))
    mb.check_schedule(options)


def settle(options: Options, data: Data) -> Options:
    size = options.batch_size or int(np.clip(data.num_rows // 90, 128, 512))
    return options._replace(batch_size=min(size, data.num_rows))


def batches_of(options: Options, data: Data) -> int:
    """Steps on batches before the first sweep."""
    return options.num_passes * -(-data.num_rows // options.batch_size)


def weights_of_rows(options: Options, problem: obj.Problem) -> str:
    """The rows' weights in sweeps: by how much the data say of each factor where the user leaves it open."""
    if options.rows != "auto":
        return options.rows
    shared = jax.eval_shape(lambda: problem.model.init(jax.random.key(0), problem.hyper, problem.data))
    factors = jax.tree.leaves(shared[problem.model.shared[0]])[0].shape[0]
    return "mean" if problem.data.total < SCARCE * factors * problem.data.num_columns else "geometric"


_point = jax.jit(partial(obj.summarise, summary="log_mode"), static_argnames=("model",))


def build(problem: obj.Problem, options: Options) -> Algorithm:
    data, num_batches, weights = problem.data, batches_of(options, problem.data), weights_of_rows(options, problem)
    per_pass = num_batches // options.num_passes if options.num_passes else 1
    everything = functools.cache(lambda: data.shards(np.arange(data.num_rows), data.num_rows, problem.devices))
    order = functools.lru_cache(1)(lambda turn, key: list(shuffled(jax.random.wrap_key_data(np.asarray(key)), data.num_rows, options.batch_size)))

    def init(key, start):
        begin, rest = jax.random.split(key)
        first = mb.first_natural(problem, begin, start)
        if problem.model.begin is not None and not start:
            factors = jax.tree.leaves(first[problem.model.shared[0]])[0].shape[0]
            first |= problem.model.begin(problem.hyper, data, starts.from_rows(begin, data, factors))
        return State(first, problem.values, 0, rest, (), ())

    def step(key, state, batches):
        return (stride if state.step < num_batches else sweep)(state)

    def stride(state):
        """A natural-gradient step on the next batch."""
        turn, place = divmod(state.step, per_pass)
        rows = order(turn, tuple(np.asarray(jax.random.key_data(jax.random.fold_in(state.key, turn))).tolist()))[place]
        batch = data.shards(rows, options.batch_size, problem.devices)
        rate, local = mb.learning_rate(options.tau, options.kappa, state.step), RowOptions(options.num_first, 1e-3)
        now = mb.State(state.shared, state.values, state.step)
        now, info = natural_step(problem, local, now, batch, data.num_rows, rate, False, "mean")
        return state._replace(shared=now.shared, values=now.values, step=now.step), Info(rate, None, info.local_iterations)

    def sweep(state):
        """All rows a little further, and the global sites at their target."""
        batch, local = everything(), RowOptions(options.num_local, 0.0)
        given, summary = (state.shared, "mean") if weights == "geometric" else (_point(problem.model, state.shared), "log_mode")
        shares = mb.solve(problem, state.values, given, batch, local, start=state.local or None, summary=summary, weights="mean")
        totals = mb.total(problem, shares, data.num_rows)
        shared = mb.ascend(problem, state.values, state.shared, mb.gradients(problem, shares), totals.scale)
        values = state.values
        if (state.step - num_batches) % LEARN_EVERY == LEARN_EVERY - 1:
            values = learn(problem, values, shared, shares, batch, totals.scale, 1.0)
        change = cvb0.change_of(problem.model, state.shared, shared)
        finished = options.tolerance > 0 and float(change) < options.tolerance
        now = State(shared, values, state.step + 1, state.key, tuple(share.natural for share in shares), tuple(b.positions for b in batch))
        return now, Info(1.0, change, totals.iterations, finished)

    def posterior(state):
        return Variational(problem._replace(values=state.values), state.shared, state.local, state.positions)

    return Algorithm(init, step, posterior)


ENGINE = Engine(
    "hybrid",
    Options,
    build,
    kind="variational",
    rows="none",
    check=check,
    init="natural",
    settle=settle,
    learns=True,
    suits=cvb0.suits,
    num_steps=lambda options, problem: batches_of(options, problem.data) + options.num_epochs,
)
