"""Topics for someone who gives a corpus and a number of them: stochastic steps until they stand apart, then sweeps over all rows.

1. Global sites begin at sums of random rows (`starts.from_rows`) where the model says how, so that factors differ from the first step on.
2. `num_passes` over the data in small batches: `svi` with weights="mean", rows from even beliefs.
3. Sweeps over all rows, which go on from where the last sweep left them: a few iterations each, and global sites at their target. First the rows'
   weights are geometric means, as in variational inference, with which they soon rest; then means, as in collapsed inference and in `map` with
   basis="log", which spread a row over more factors. Some rows are set aside: if means do not predict them better, that trial is taken back. Then
   they join the others, and all rows begin once more.

Throughout, means stand for the global sites (`minibatch.check_weights`). Rows' means predict new rows better on some corpora and
worse on others, which is why they are tried and not taken for granted (docs/calibration.md, "The race").

This is no ascent of a bound, and `history["bound"]` is empty. `score` is that of the rows set aside, in nats per word, before and after the trial.
"""

import functools
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.core import completion, devices
from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import SOLID, Algorithm, Engine, Look
from inference.core.posteriors import Variational
from inference.engines import _collapsed as collapsed
from inference.engines import _minibatch as mb
from inference.engines._empirical_bayes import learn
from inference.engines._natural_step import natural_step
from pp_models.data.batches import shuffled
from pp_models.data.types import Data
from pp_models.elimination import starts
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

FIRST = 6  # sweeps with geometric means before the trial
TRIAL = 4  # sweeps with means until they are judged
LEARN_EVERY = 4  # sweeps between steps of learned hyper-parameters, which move slowly
GEOMETRIC, TRIED, MEAN = range(
    3
)  # what the rows' weights are: for now or for good, on trial, for good


Options = opt.compose(
    opt.rate(10.0, 0.75),
    opt.stop(1e-3, "a sweep changes the global means"),
    num_epochs=opt.Option(60, "sweeps over all rows at most"),
    num_passes=opt.Option(1, "passes over the data in batches before the sweeps", least=0),
    batch_size=opt.Option(0, "rows of those batches (0: 128 to 512, for ninety batches)"),
    rows=opt.Option(
        "auto",
        'weights of the rows in sweeps: "geometric" means, "mean", or "auto" for the one that predicts rows set aside better',
        choices=("auto", "geometric", "mean"),
    ),
    num_first=opt.Option(20, "iterations of each row's fixed point in a batch"),
    num_local=opt.Option(3, "iterations of each row's fixed point in a sweep"),
)


class State(NamedTuple):
    """Natural parameters of the global sites, hyper-parameters, steps taken, the key that orders batches, the rows' own after the last sweep, what
    their weights are, and what a trial that fails goes back to: global sites, their score, and when; () when that is over."""

    shared: Sites
    hyper: Any
    step: int
    key: jax.Array
    local: tuple[Sites, ...]
    weights: int
    kept: Any


class Info(NamedTuple):
    """rate: rho. change: of the global means in a sweep, relative to their size. score: see above. local_iterations: mean over rows."""

    rate: Any
    change: Any
    score: Any
    local_iterations: Any
    finished: bool = False


def settle(options: Any, data: Data) -> Any:
    size = options.batch_size or int(np.clip(data.num_rows // 90, 128, 512))
    return options._replace(batch_size=min(size, data.num_rows))


def split(options: Any, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from, and a twentieth, at most 200, set aside where there are some hundreds and something is to be chosen by them."""
    number = min(200, data.num_rows // 20) if data.num_rows >= 400 and options.rows == "auto" else 0
    order = np.random.default_rng(0).permutation(data.num_rows)
    return np.sort(order[number:]), np.sort(order[:number])


def batches_of(options: Any, data: Data) -> int:
    """Steps on batches before the first sweep."""
    return options.num_passes * -(-len(split(options, data)[0]) // options.batch_size)


_point = jax.jit(partial(obj.summarise, summary="log_mode"), static_argnames=("model",))


def build(problem: obj.Problem, options: Any) -> Algorithm:
    data, model, num_batches = problem.data, problem.model, batches_of(options, problem.data)
    rows, aside = split(options, data)
    per_pass = max(1, num_batches // max(1, options.num_passes))
    # of one shape with those set aside and without, so that one program serves both
    everything = functools.lru_cache(1)(
        lambda whole: data.shards(
            np.arange(data.num_rows) if whole else rows, data.num_rows, problem.devices
        )
    )
    plan = functools.cache(lambda: completion.Plan(len(aside), data.layout(len(aside))))

    def init(key, start):
        begin, rest = jax.random.split(key)
        first = mb.first_natural(problem, begin, start)
        if model.tokens is not None and model.tokens.begin is not None and not start:
            factors = jax.tree.leaves(first[model.shared[0]])[0].shape[0]
            first |= model.tokens.begin(problem.hyper, data, starts.from_rows(begin, data, factors))
        return State(
            first, problem.hyper, 0, rest, (), MEAN if options.rows == "mean" else GEOMETRIC, None
        )

    @functools.lru_cache(1)
    def order(turn, seed):
        return list(
            shuffled(
                jax.random.wrap_key_data(np.array(seed, np.uint32)), len(rows), options.batch_size
            )
        )

    def stride(state):
        """A natural-gradient step on the next batch."""
        turn, place = divmod(state.step, per_pass)
        seed = np.asarray(jax.random.key_data(jax.random.fold_in(state.key, turn)))
        batch = data.shards(
            np.sort(rows[order(turn, tuple(seed.tolist()))[place]]),
            options.batch_size,
            problem.devices,
        )
        rate, local = (
            mb.learning_rate(options.tau, options.kappa, state.step),
            RowOptions(options.num_first, 1e-3),
        )
        now = mb.State(state.shared, state.hyper, state.step)
        now, info = natural_step(problem, local, now, batch, len(rows), rate, False, "mean")
        return state._replace(shared=now.shared, hyper=now.hyper, step=now.step), Info(
            rate, None, None, info.local_iterations
        )

    def sweep(state):
        """All rows a little further, and the global sites at their target."""
        whole = state.kept == ()  # the choice is made: rows set aside for it are learned from, too
        batch, present = everything(whole), data.num_rows if whole else len(rows)
        local = RowOptions(
            options.num_local if state.local or not whole else options.num_first, 0.0
        )
        given, summary = (
            (state.shared, "mean")
            if state.weights == GEOMETRIC
            else (_point(model, state.shared), "log_mode")
        )
        start = state.local or obj.first_rows(
            problem, state.hyper, batch
        )  # given as later ones are: the same program
        shares = mb.solve(
            problem, state.hyper, given, batch, local, start=start, summary=summary, weights="mean"
        )
        totals = mb.total(problem, shares, present)
        shared = mb.ascend(
            problem, state.hyper, state.shared, mb.gradients(problem, shares), totals.scale
        )
        hyper, done = state.hyper, state.step + 1 - num_batches
        if done % LEARN_EVERY == 0:
            hyper = learn(problem, hyper, shared, shares, batch, totals.scale, 1.0)
        change = collapsed.change_of(model, state.shared, shared)
        rests = (
            options.tolerance > 0
            and float(devices.agreed(problem.devices, change)) < options.tolerance
        )
        now = state._replace(
            shared=shared,
            hyper=hyper,
            step=state.step + 1,
            local=tuple(share.natural for share in shares),
        )
        now, score = judge(now, done, rests) if options.rows == "auto" else (now, None)
        return now, Info(
            1.0, change, score, totals.iterations, rests and score is None and now.weights != TRIED
        )

    def judge(state, done, rests):
        """Begin the trial, or end it, when it is time to."""
        if state.weights == GEOMETRIC and state.kept is None and (done >= FIRST or rests):
            score = predicted(state) if len(aside) else None
            return state._replace(
                weights=TRIED if len(aside) else MEAN, kept=(state.shared, score, done)
            ), score
        if state.weights != TRIED or done < state.kept[2] + TRIAL:
            return state, None
        shared, before, _ = state.kept
        score = predicted(state)
        if score > before:
            return state._replace(weights=MEAN, kept=(), local=()), score
        return state._replace(shared=shared, local=(), weights=GEOMETRIC, kept=()), score

    def predicted(state):
        """log p per word of the rows set aside, by completion."""
        now = problem._replace(hyper=state.hyper)
        logs = completion.complete_rows(
            now, Variational(now, state.shared).global_values(), data, aside, plan()
        )
        return float(devices.agreed(problem.devices, logs.sum() / data.totals[aside].sum()))

    def step(key, state, batches):
        return (stride if state.step < num_batches else sweep)(state)

    def posterior(state):
        return Variational(problem._replace(hyper=state.hyper), state.shared)

    return Algorithm(init, step, posterior)


ENGINE = Engine(
    "hybrid",
    Options,
    build,
    kind="variational",
    rows="none",
    check=mb.check_schedule,
    init="natural",
    settle=settle,
    learns=True,
    suits=collapsed.suits,
    num_steps=lambda options, problem: batches_of(options, problem.data) + options.num_epochs,
    tiny={"num_epochs": 20, "batch_size": 4},
    look=Look("wine", SOLID, "diamond", True),
)
