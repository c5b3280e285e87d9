r"""Streaming variational Bayes. The posterior after one batch is the prior of the next.

$$ q_{n+1} = \operatorname{argmin}_q \; \mathrm{KL}(q \,\|\, p(x_n \mid \cdot)\, q_n), \qquad
\eta \leftarrow \eta_n + \sum_{d \in x_n} \mathbb{E}[t_d] $$

This is (19)–(20) of Theis & Hoffman, after Broderick et al. (2013); (19) prints $q(\theta)$
and means $q(\beta)$. The right-hand update is coordinate ascent on the batch alone, `num_inner`
times. Nothing is scaled to the size of the data set. The first prior is the model's own. With all
rows in one batch this is `cavi`.

Use it for streams of unknown length whose rows arrive complete. It cannot correct early mistakes:
use `streaming` if rows can be visited again.

`num_epochs` above 1 counts rows more than once. `tau` and `kappa` affect only learned
hyper-parameters, and those of the global sites' prior cannot be learned.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import MIXED, Algorithm, Look
from inference.engines import _minibatch as mb
from inference.engines._empirical_bayes import learn
from inference.engines._natural_step import learning_rate
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.model import Sites

Options = opt.compose(
    opt.rows(10, 1e-3),
    opt.rate(1.0, 0.5),  # for learned hyper-parameters
    num_epochs=opt.Option(1, "passes over the data; more than one count rows more than once"),
    batch_size=opt.Option(0, "rows per step (0: an eighth of them, at most 1,000)"),
    num_inner=opt.Option(20, "sweeps of coordinate ascent on each batch"),
)


class State(NamedTuple):
    """Natural parameters of the global sites, and those of their prior (None: the model's)."""

    shared: Sites
    prior: Sites | None
    hyper: Any
    step: int


class Info(NamedTuple):
    """bound: terms of its estimate before the step. local_iterations: of the last sweep."""

    bound: Any
    local_iterations: Any


def absorb(problem, options, key, state: State, batches, present, arrived=0) -> tuple[State, Info]:
    """The posterior after one more batch."""
    rows = RowOptions(options.num_local, options.local_tolerance)
    hyper, shared, start, bound = state.hyper, state.shared, None, None
    for inner in range(options.num_inner):
        given = (problem, hyper, shared, batches, rows, present, start)
        solved = mb.solve(*given, bound=inner == 0)
        if inner == 0:
            bound = solved.bound
        shared = mb.ascend(solved._replace(scale=1.0), shared, prior=state.prior)
        start = solved.local
    hyper = learn(solved, shared, learning_rate(options, state.step))
    return State(shared, shared, hyper, state.step + 1), Info(bound, solved.iterations)


def check_learned(problem: obj.Problem) -> None:
    """Refuse to learn hyper-parameters of the global sites' prior, which is used once (T 4.3)."""

    def prior(hyper):
        stats = obj.summarise(problem.model, mb.first_natural(problem, jax.random.key(0), {}))
        return problem.model.log_global(hyper, stats)

    slopes = jax.grad(prior)(problem.hyper)
    vain = [name for name in problem.learn if bool(jnp.any(getattr(slopes, name) != 0))]
    if vain:
        raise InputError(
            "svb uses the prior of the global sites only once, so it cannot learn "
            f"{', '.join(vain)}: give a value, or use streaming."
        )


def build(problem: obj.Problem, options: Any) -> Algorithm:
    check_learned(problem)

    def step(key, state, batches):
        return absorb(problem, options, key, state, batches, problem.data.num_rows)

    return mb.algorithm(problem, step, lambda shared: State(shared, None, problem.hyper, 0))


ENGINE = mb.engine(
    "svb",
    Options,
    build,
    settle=partial(mb.fill_batch_size, most=1000),
    stream=absorb,
    State=State,
    order="next",
    tiny={"batch_size": 4, "num_inner": 5},
    look=Look("amber", MIXED, "hourglass", True),
)
