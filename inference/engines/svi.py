"""Stochastic variational inference: natural-gradient steps on batches of rows (X 27-29, P 11.33-11.35, T 10).

    locals of the batch to their fixed point, then    natural <- (1 - rho) natural + rho target,    target = dF/dmu with the batch scaled by N/|B|

The rate is rho_t = (tau + t)^-kappa, or, with rate="adaptive", the one of Ranganath et al. (2013), which keeps running averages of the
natural gradient g and of its squared norm, rho = |mean g|^2 / mean |g|^2, over a window that shrinks when steps are large.

With weights="mean" rows are solved given the means of the global sites instead of their geometric means: half way to collapsed inference (`cvb0`).
That is no step on the bound. The bound in the history is still that of the q reached, from a second solution of the rows.
"""

from typing import Any

import jax
import jax.numpy as jnp

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DASHED, Algorithm, Engine, Look
from inference.engines import _minibatch as mb
from inference.engines._minibatch import State
from inference.engines._natural_step import PROBE_STEPS, Adaptive, natural_step
from pp_models.elimination.row_solver import RowOptions

Options = opt.compose(
    opt.batches(500),
    opt.rate(10.0, 0.7),
    {
        "rate": opt.Option(
            "schedule",
            'the learning rate: "schedule" for (tau + t)^-kappa, t counting steps, or "adaptive" for the one of Ranganath et al.',
            choices=("schedule", "adaptive"),
        ),
        "weights": opt.WEIGHTS,
    },
    opt.rows(100, 1e-3),
    opt.bound(1),
    opt.stop(0.0),
)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    mb.check_weights(problem, options.weights)
    rows = RowOptions(options.num_local, options.local_tolerance)

    def first(shared):
        adaptive = None
        if options.rate == "adaptive":
            adaptive = Adaptive(
                jax.tree.map(jnp.zeros_like, shared), jnp.zeros(()), jnp.asarray(float(PROBE_STEPS))
            )
        return State(shared, problem.hyper, 0, adaptive)

    def step(key, state, batches):
        evaluate = bool(options.bound_every) and state.step % options.bound_every == 0
        rate = (
            mb.learning_rate(options.tau, options.kappa, state.step)
            if options.rate == "schedule"
            else None
        )
        return natural_step(
            problem, rows, state, batches, problem.data.num_rows, rate, evaluate, options.weights
        )

    return mb.algorithm(problem, step, first)


ENGINE = Engine(
    "svi",
    Options,
    build,
    kind="variational",
    rows="batch",
    check=mb.check_schedule,
    init="natural",
    settle=mb.settle_batches,
    learns=True,
    compared=True,
    quick={"num_epochs": 30},
    tiny={"num_epochs": 10, "batch_size": 4},
    look=Look("amber", DASHED, "up"),
)
