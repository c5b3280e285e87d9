r"""The streaming batch algorithm. Each step runs `cavi` on a large random batch and replaces the
parameters by the result.

$$ \eta \leftarrow \eta_{\mathrm{prior}}
+ \frac{N_t}{\min(B, N_t)} \sum_{d \in B} \mathbb{E}[t_d] $$

This is section 3.3 of Theis & Hoffman: a batch of $\min(B, N_t)$ rows is scaled to all $N_t$.
The update is repeated `num_inner` times on each batch, with the rows solved before each.

Use it as a baseline for streams. It starts each run from a new random point and so forgets what it
learned, unless `restart="warm"`.
"""

from functools import partial
from typing import Any

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import LONG, Algorithm, Look
from inference.engines import _minibatch as mb
from inference.engines._empirical_bayes import learn
from pp_models.elimination.row_solver import RowOptions

Options = opt.compose(
    opt.rows(10, 1e-3),
    num_epochs=opt.Option(2, "passes over the data"),
    batch_size=opt.Option(0, "rows per training run (0: half of them, at most 50,000)"),
    num_inner=opt.Option(100, "sweeps in each training run"),
    restart=opt.Option(
        "fresh",
        'where each run begins: at a new random start ("fresh") or where the last ended ("warm")',
        choices=("fresh", "warm"),
    ),
)
LEARN_RATE = 0.1  # damps hyper-parameters: alpha must not settle before topics form


def train(
    problem, options, key, state: mb.State, batches, present, arrived=0
) -> tuple[mb.State, mb.Info]:
    """One training run on a batch of a data set of `present` rows."""
    rows = RowOptions(options.num_local, options.local_tolerance)
    shared, hyper, start, bound = state.shared, state.hyper, None, None
    if options.restart == "fresh" and state.step > 0:
        shared, hyper = mb.first_natural(problem, key, {}), problem.hyper
    for inner in range(options.num_inner):
        last = inner == options.num_inner - 1
        solved = mb.solve(problem, hyper, shared, batches, rows, present, start, bound=last)
        bound = solved.bound if last else None
        shared, start = mb.ascend(solved, shared), solved.local
        hyper = learn(solved, shared, LEARN_RATE)
    return mb.State(shared, hyper, state.step + 1), mb.Info(bound)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    def step(key, state, batches):
        return train(problem, options, key, state, batches, problem.data.num_rows)

    return mb.algorithm(problem, step)


ENGINE = mb.engine(
    "streaming_batch",
    Options,
    build,
    settle=partial(mb.fill_batch_size, share=2, most=50_000),
    stream=train,
    State=mb.State,
    tiny={"num_inner": 10},
    look=Look("pink", LONG, "up", True),
)
