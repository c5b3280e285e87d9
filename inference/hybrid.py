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

from inference import cvb0, devices, evaluate
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
from pp_models.errors import unknown
from pp_models.rows import RowOptions

FIRST = 6  # sweeps with geometric means before the trial
TRIAL = 4  # sweeps with means until they are judged
LEARN_EVERY = 4  # sweeps between steps of learned hyper-parameters, which move slowly
GEOMETRIC, TRIED, MEAN = range(3)  # what the rows' weights are: for now or for good, on trial, for good


class Options(NamedTuple):
    """num_epochs: sweeps over all rows at most. num_passes: passes in batches before. batch_size: their rows (0: 128 to 512, for ninety batches).

    rows: weights of the rows in sweeps, "geometric" means, "mean", or "auto" for the better on rows set aside. tau, kappa: the rate
    (tau + t)^-kappa of the batches. num_first, num_local: iterations of each row's fixed point in a batch and in a sweep. tolerance: stop when a
    sweep changes the global means by less, relatively.
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
    """Natural parameters of the global sites, hyper-parameters, steps taken, the key that orders batches, the rows' own after the last sweep, what
    their weights are, and what a trial that fails goes back to: global sites, their score, and when; () when that is over."""

    shared: Sites
    values: dict[str, jax.Array]
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


def check(options: Options) -> None:
    if options.rows not in ("auto", *mb.WEIGHTS):
        raise unknown("rows", options.rows, ("auto", *mb.WEIGHTS))
    mb.check_schedule(options)


def settle(options: Options, data: Data) -> Options:
    size = options.batch_size or int(np.clip(data.num_rows // 90, 128, 512))
    return options._replace(batch_size=min(size, data.num_rows))


def split(options: Options, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from, and a twentieth, at most 200, set aside where there are some hundreds and something is to be chosen by them."""
    number = min(200, data.num_rows // 20) if data.num_rows >= 400 and options.rows == "auto" else 0
    order = np.random.default_rng(0).permutation(data.num_rows)
    return np.sort(order[number:]), np.sort(order[:number])


def batches_of(options: Options, data: Data) -> int:
    """Steps on batches before the first sweep."""
    return options.num_passes * -(-len(split(options, data)[0]) // options.batch_size)


_point = jax.jit(partial(obj.summarise, summary="log_mode"), static_argnames=("model",))


def build(problem: obj.Problem, options: Options) -> Algorithm:
    data, model, num_batches = problem.data, problem.model, batches_of(options, problem.data)
    rows, aside = split(options, data)
    per_pass = max(1, num_batches // max(1, options.num_passes))
    # of one shape with those set aside and without, so that one program serves both
    everything = functools.lru_cache(1)(lambda whole: data.shards(np.arange(data.num_rows) if whole else rows, data.num_rows, problem.devices))
    plan = functools.cache(lambda: evaluate.Plan(len(aside), data.layout(len(aside))))

    def init(key, start):
        begin, rest = jax.random.split(key)
        first = mb.first_natural(problem, begin, start)
        if model.begin is not None and not start:
            factors = jax.tree.leaves(first[model.shared[0]])[0].shape[0]
            first |= model.begin(problem.hyper, data, starts.from_rows(begin, data, factors))
        return State(first, problem.values, 0, rest, (), MEAN if options.rows == "mean" else GEOMETRIC, None)

    @functools.lru_cache(1)
    def order(turn, seed):
        return list(shuffled(jax.random.wrap_key_data(np.array(seed, np.uint32)), len(rows), options.batch_size))

    def stride(state):
        """A natural-gradient step on the next batch."""
        turn, place = divmod(state.step, per_pass)
        seed = np.asarray(jax.random.key_data(jax.random.fold_in(state.key, turn)))
        batch = data.shards(np.sort(rows[order(turn, tuple(seed.tolist()))[place]]), options.batch_size, problem.devices)
        rate, local = mb.learning_rate(options.tau, options.kappa, state.step), RowOptions(options.num_first, 1e-3)
        now = mb.State(state.shared, state.values, state.step)
        now, info = natural_step(problem, local, now, batch, len(rows), rate, False, "mean")
        return state._replace(shared=now.shared, values=now.values, step=now.step), Info(rate, None, None, info.local_iterations)

    def sweep(state):
        """All rows a little further, and the global sites at their target."""
        whole = state.kept == ()  # the choice is made: rows set aside for it are learned from, too
        batch, present = everything(whole), data.num_rows if whole else len(rows)
        local = RowOptions(options.num_local if state.local or not whole else options.num_first, 0.0)
        given, summary = (state.shared, "mean") if state.weights == GEOMETRIC else (_point(model, state.shared), "log_mode")
        start = state.local or obj.first_rows(problem, state.values, batch)  # given as later ones are: the same program
        shares = mb.solve(problem, state.values, given, batch, local, start=start, summary=summary, weights="mean")
        totals = mb.total(problem, shares, present)
        shared = mb.ascend(problem, state.values, state.shared, mb.gradients(problem, shares), totals.scale)
        values, done = state.values, state.step + 1 - num_batches
        if done % LEARN_EVERY == 0:
            values = learn(problem, values, shared, shares, batch, totals.scale, 1.0)
        change = cvb0.change_of(model, state.shared, shared)
        rests = options.tolerance > 0 and float(devices.agreed(problem.devices, change)) < options.tolerance
        now = state._replace(shared=shared, values=values, step=state.step + 1, local=tuple(share.natural for share in shares))
        now, score = judge(now, done, rests) if options.rows == "auto" else (now, None)
        return now, Info(1.0, change, score, totals.iterations, rests and score is None and now.weights != TRIED)

    def judge(state, done, rests):
        """Begin the trial, or end it, when it is time to."""
        if state.weights == GEOMETRIC and state.kept is None and (done >= FIRST or rests):
            score = predicted(state) if len(aside) else None
            return state._replace(weights=TRIED if len(aside) else MEAN, kept=(state.shared, score, done)), score
        if state.weights != TRIED or done < state.kept[2] + TRIAL:
            return state, None
        shared, before, _ = state.kept
        score = predicted(state)
        if score > before:
            return state._replace(weights=MEAN, kept=(), local=()), score
        return state._replace(shared=shared, local=(), weights=GEOMETRIC, kept=()), score

    def predicted(state):
        """log p per word of the rows set aside, by completion."""
        now = problem._replace(values=state.values)
        logs = evaluate.complete_rows(now, evaluate.global_sites(Variational(now, state.shared)), data, aside, plan())
        return float(devices.agreed(problem.devices, logs.sum() / data.totals[aside].sum()))

    def step(key, state, batches):
        return (stride if state.step < num_batches else sweep)(state)

    def posterior(state):
        return Variational(problem._replace(values=state.values), state.shared)

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
