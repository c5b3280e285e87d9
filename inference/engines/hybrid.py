r"""Topics from a corpus and their number alone. Stochastic steps separate the topics, then sweeps
over all rows refine them.

1. Global sites begin at sums of random rows (if the model has `Tokens.begin`), so that factors
   differ from the first step on.
2. `num_passes` over the data in small batches: steps of `svi` with `weights="mean"`,
   $\eta \leftarrow (1 - \rho_t)\,\eta + \rho_t\,\hat\eta$ with $\rho_t = (\tau + t)^{-\kappa}$.
3. Sweeps over all rows, which continue where the last sweep left them, with
   $\eta \leftarrow \partial F / \partial \mu$. First the rows' weights are geometric means
   $\exp \mathbb{E}[\log \theta]$, as in variational inference. Then means $\mathbb{E}[\theta]$ are
   tried, as in collapsed inference. If they do not predict rows set aside better, the trial is
   undone. Then these rows join the others, and all rows begin once more.

The means of the global sites replace their geometric means throughout. Which weights of the rows
predict better depends on the corpus (docs/experiments.md).

Use it for the best topics in a given time, with nothing to set but the number of topics. It needs
counts with Dirichlet or gamma weights: `lda` and `bayesian_nmf`. It has no bound:
`history["bound"]` is empty, and `score` is the log likelihood per word of the rows set aside,
before and after the trial. Use `cavi` for a bound or error bars.

Rows are set aside only from 400 rows on and with `rows="auto"`. `tolerance` compares the global
means of two sweeps.
"""

import enum
import functools
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.core import completion, devices
from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import SOLID, Algorithm, Look
from inference.core.posteriors import Variational
from inference.engines import _collapsed as collapsed
from inference.engines import _minibatch as mb
from inference.engines._empirical_bayes import learn
from inference.engines._natural_step import natural_step
from pp_models.data.rows import shuffled
from pp_models.data.types import Data
from pp_models.elimination import starts
from pp_models.elimination.row_solver import RowOptions
from pp_models.model import Sites

FIRST = 6  # sweeps with geometric means before the trial
TRIAL = 4  # sweeps with means until they are judged
LEARN_EVERY = 4  # sweeps between steps of learned hyper-parameters, which move slowly


class Weights(enum.IntEnum):
    """What stands for the rows' weights in sweeps: geometric means, means on trial, or means."""

    GEOMETRIC = 0
    TRIED = 1
    MEAN = 2


Options = opt.compose(
    opt.rate(10.0, 0.75),
    opt.stop(1e-3, "a sweep changes the global means"),
    num_epochs=opt.Option(60, "sweeps over all rows at most"),
    num_passes=opt.Option(1, "passes over the data in batches before the sweeps", least=0),
    batch_size=opt.Option(0, "rows of those batches (0: 128 to 512, for ninety batches)"),
    rows=opt.Option(
        "auto",
        'weights of the rows in sweeps: "geometric" means, "mean", or "auto" for the one that '
        "predicts rows set aside better",
        choices=("auto", "geometric", "mean"),
    ),
    num_first=opt.Option(20, "iterations of each row's fixed point in a batch"),
    num_local=opt.Option(3, "iterations of each row's fixed point in a sweep"),
)


class State(NamedTuple):
    """Natural parameters of the global sites, and the progress of the trial.

    key:   orders the batches
    local: natural parameters of the rows after the last sweep
    kept:  (global sites, score, sweep) to return to if the trial fails; None before it, () after
    """

    shared: Sites
    hyper: Any
    step: int
    key: jax.Array
    local: tuple[Sites, ...]
    weights: int
    kept: Any


class Info(NamedTuple):
    """change: relative change of the global means in a sweep. local_iterations: mean over rows."""

    rate: Any
    change: Any
    score: Any
    local_iterations: Any
    finished: bool = False


def settle(options: Any, data: Data) -> Any:
    size = options.batch_size or int(np.clip(data.num_rows // 90, 128, 512))
    return options._replace(batch_size=min(size, data.num_rows))


def split(options: Any, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from, and rows set aside: a twentieth, at most 200, of 400 rows or more."""
    number = min(200, data.num_rows // 20) if data.num_rows >= 400 and options.rows == "auto" else 0
    order = np.random.default_rng(0).permutation(data.num_rows)
    return np.sort(order[number:]), np.sort(order[:number])


def batches_of(options: Any, data: Data) -> int:
    """Steps on batches before the first sweep."""
    return options.num_passes * -(-len(split(options, data)[0]) // options.batch_size)


_point = jax.jit(partial(obj.summarise, summary="log_mode"), static_argnames=("model",))


def judge(state: State, done: int, rests: bool, score_of: Any) -> tuple[State, float | None]:
    """Begin the trial of means, or end it, when it is due. done: number of sweeps."""
    if state.weights == Weights.GEOMETRIC and state.kept is None and (done >= FIRST or rests):
        score, weights = None, Weights.MEAN
        if score_of is not None:
            score, weights = score_of(state), Weights.TRIED
        return state._replace(weights=weights, kept=(state.shared, score, done)), score
    if state.weights != Weights.TRIED or done < state.kept[2] + TRIAL:
        return state, None
    (shared, before, _), score = state.kept, score_of(state)
    if score > before:
        return state._replace(weights=Weights.MEAN, kept=(), local=()), score
    weights = Weights.GEOMETRIC
    return state._replace(shared=shared, local=(), weights=weights, kept=()), score


def _scorer(problem: obj.Problem, aside: np.ndarray) -> Any:
    """(state) -> log p per word of the rows set aside, by document completion; None without any."""
    data, places = problem.data, problem.devices
    plan = functools.cache(lambda: completion.Plan(len(aside), data.layout(len(aside))))

    def score(state):
        now = problem._replace(hyper=state.hyper)
        sites = Variational(now, state.shared).global_values()
        logs = completion.complete_rows(now, sites, data, aside, plan())
        return float(devices.agreed(places, logs.sum() / data.totals[aside].sum()))

    return score if len(aside) else None


def _stepper(problem: obj.Problem, options: Any, rows: np.ndarray, per_pass: int) -> Any:
    """A natural-gradient step on the next batch."""
    data = problem.data
    rows_of_batch = {"num_local": options.num_first, "local_tolerance": 1e-3, "weights": "mean"}
    settled = SimpleNamespace(**options._asdict() | rows_of_batch, bound_every=0)

    @functools.lru_cache(1)
    def order(seed):
        key = jax.random.wrap_key_data(np.array(seed, np.uint32))
        return shuffled(key, len(rows), options.batch_size)

    def step(state):
        turn, place = divmod(state.step, per_pass)
        seed = np.asarray(jax.random.key_data(jax.random.fold_in(state.key, turn)))
        chosen = np.sort(rows[order(tuple(seed.tolist()))[place]])
        batch = data.shards(chosen, options.batch_size, problem.devices)
        now = mb.State(*state[:3])
        now, info = natural_step(problem, settled, now, batch, len(rows), state.step)
        state = state._replace(shared=now.shared, hyper=now.hyper, step=now.step)
        return state, Info(info.rate, None, None, info.local_iterations)

    return step


def build(problem: obj.Problem, options: Any) -> Algorithm:
    data, model, num_batches = problem.data, problem.model, batches_of(options, problem.data)
    rows, aside = split(options, data)
    step_on_batch = _stepper(problem, options, rows, num_batches // max(1, options.num_passes))
    score_of = _scorer(problem, aside)

    @functools.lru_cache(1)
    def all_rows(whole):  # both have one shape, so that one program serves them
        chosen = np.arange(data.num_rows) if whole else rows
        return data.shards(chosen, data.num_rows, problem.devices)

    def init(key, start):
        begin, rest = jax.random.split(key)
        first = mb.first_natural(problem, begin, start)
        if model.tokens is not None and model.tokens.begin is not None and not start:
            factors = jax.tree.leaves(first[model.shared[0]])[0].shape[0]
            first |= model.tokens.begin(problem.hyper, data, starts.from_rows(begin, data, factors))
        weights = Weights.MEAN if options.rows == "mean" else Weights.GEOMETRIC
        return State(first, problem.hyper, 0, rest, (), weights, None)

    def sweep(state):
        """A few iterations of all rows, and the global sites at their target."""
        whole = state.kept == ()  # the trial is over: learn from the rows set aside, too
        batch, present = all_rows(whole), data.num_rows if whole else len(rows)
        begins = whole and not state.local
        local = RowOptions(options.num_first if begins else options.num_local, 0.0)
        shared, summary = state.shared, "mean"
        if state.weights != Weights.GEOMETRIC:
            shared, summary = _point(model, shared), "log_mode"
        # Starting points are arguments like later ones, so that one program serves both.
        start = state.local or obj.first_rows(problem, state.hyper, batch)
        given = problem, state.hyper, shared, batch, local, present, start
        solved = mb.solve(*given, summary=summary, weights="mean")
        shared = mb.ascend(solved, state.shared)
        hyper, done = state.hyper, state.step + 1 - num_batches
        if done % LEARN_EVERY == 0:
            hyper = learn(solved, shared, 1.0)
        change = collapsed.change_of(model, state.shared, shared)
        limit = options.tolerance
        rests = limit > 0 and float(devices.agreed(problem.devices, change)) < limit
        now = state._replace(shared=shared, hyper=hyper, step=state.step + 1, local=solved.local)
        now, score = judge(now, done, rests, score_of) if options.rows == "auto" else (now, None)
        finished = rests and score is None and now.weights != Weights.TRIED
        return now, Info(1.0, change, score, solved.iterations, finished)

    def step(key, state, batches):
        return (step_on_batch if state.step < num_batches else sweep)(state)

    def posterior(state):
        return Variational(problem._replace(hyper=state.hyper), state.shared)

    return Algorithm(init, step, posterior)


ENGINE = mb.engine(
    "hybrid",
    Options,
    build,
    rows="none",
    settle=settle,
    suits=collapsed.suits,
    num_steps=lambda options, problem: batches_of(options, problem.data) + options.num_epochs,
    tiny={"num_epochs": 20, "batch_size": 4},
    look=Look("wine", SOLID, "diamond", True),
)
