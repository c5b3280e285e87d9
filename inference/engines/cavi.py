r"""Coordinate-ascent variational inference. It updates one block after the other to its optimum.

$$ \eta_s \leftarrow \frac{\partial F}{\partial \mu_s} $$

This is Fox's slides 12–17, and section 11.5.1 of Paisley, Blei & Jordan. A sweep first
solves the local sites of all rows, with at most `num_local` iterations of this update. Then it
updates each global site once.

$F$ is convex in the statistics of a block once the auxiliaries are eliminated, so every update
raises the bound. If $F$ is not linear in them (damped sites), the target is a Newton step, which is
shortened until the bound does not fall.

Use it when all rows fit into memory and a sweep takes seconds: the bound in `history` never falls,
and no option needs tuning. Use `svi` or `trust_region` for large corpora. The posterior is too
narrow, as every mean-field approximation is.

`tolerance` compares the bound of two sweeps, so on slow problems it stops early: lower it. Rows
continue where the last sweep left them, so a small `num_local` is enough.
"""

from typing import Any

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import SOLID, Algorithm, Engine, Look
from inference.core.posteriors import Variational
from inference.engines import _coordinate_ascent as ascent
from inference.engines._minibatch import first_natural
from pp_models.elimination.row_solver import RowOptions

Options = opt.compose(opt.epochs(500), opt.rows(10, 1e-4), opt.stop(1e-6, "the bound changes"))


def build(problem: obj.Problem, options: Any) -> Algorithm:
    rows = RowOptions(options.num_local, options.local_tolerance)

    def init(key, start):
        return ascent.State(first_natural(problem, key, start), (), ())

    def step(key, state, batches):
        local = state.local or obj.first_rows(problem, problem.hyper, batches)
        return ascent.sweep(problem, rows, state, local, batches)

    def posterior(state):
        return Variational(problem, *state)

    return Algorithm(init, step, posterior)


ENGINE = Engine(
    "cavi",
    Options,
    build,
    kind="variational",
    init="natural",
    ascends=True,
    compared=True,
    corrected=True,
    is_quick=True,
    quick={"num_epochs": 100},
    tiny={"num_epochs": 30},
    look=Look("vermilion", SOLID, "square"),
)
