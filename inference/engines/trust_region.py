"""Trust-region stochastic variational inference (T, Algorithm 1).

On each batch, instead of one natural-gradient step, find

    natural <- argmax  L_n(natural) - xi KL(natural, natural_t),        rho = 1 / (1 + xi)                        (T 11, 14)

by coordinate ascent: natural <- (1 - rho) natural_t + rho target(natural), with the rows solved again, from where they were, after each. Every
step starts anew from beliefs spread evenly over the factors (phi = 1/K, T 2.4), which pulls all factors towards the batch before they compete for
it and so frees those that natural-gradient steps leave dead. This start is not counted among the m inner steps, each of which solves the rows once.
Starting from the current parameters instead, one inner step is a natural-gradient step.
"""

from functools import partial
from typing import Any

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import MIXED, Algorithm, Engine, Look
from inference.engines import _minibatch as mb
from inference.engines._trust_step import check_trust, trust_step, warn_of_copies

Options = opt.compose(
    opt.batches(200),
    opt.rate(10.0, 0.5),
    opt.trust(5),
    {"weights": opt.WEIGHTS},
    opt.rows(10, 1e-3),
    opt.bound(5),
    opt.stop(0.0),
)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    mb.check_weights(problem, options.weights)
    warn_of_copies(problem, options)

    def step(key, state, batches):
        evaluate = bool(options.bound_every) and state.step % options.bound_every == 0
        rate = mb.learning_rate(options.tau, options.kappa, state.step)
        return trust_step(problem, options, state, batches, problem.data.num_rows, rate, evaluate)

    return mb.algorithm(problem, step)


ENGINE = Engine(
    "trust_region",
    Options,
    build,
    kind="variational",
    rows="batch",
    check=check_trust,
    init="natural",
    settle=partial(mb.settle_batches, num_updates=200),
    learns=True,
    compared=True,
    is_quick=True,
    quick={"num_epochs": 10},
    tiny={"num_epochs": 4, "batch_size": 4, "num_inner": 3},
    look=Look("green", MIXED, "down"),
)
