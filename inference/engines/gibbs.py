"""Gibbs sampling: dF/dt with the auxiliaries sampled is the complete conditional of a block (LG-MCMC of H; X 12 with draws for means).

For each site in turn: draw the auxiliaries given everything (a key into `log_local`), read the block's natural parameter off the gradient, draw
the block, or, where its conditional cannot be drawn from, make a transition that leaves it as it is. Every block gets auxiliaries of its own, so each
is a valid Gibbs step whatever the model. Where blocks move slowly the model may add moves of its own (`Model.moves`).

Chains run side by side on the devices. A chain's draws depend on the key, its number and the size of the chunks (`chunk_size`: data, and num_samples
below 50), not on the other chains, nor, rounding aside, on the devices. With the same warm-up and chunks, a run of 100 draws is the first half of
a run of 200.
"""

from functools import partial
from typing import Any

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import SOLID, Algorithm, Engine, Look
from inference.engines._chains import Rounds, Setting, check_size, chunk_size, num_steps, run_chains
from inference.engines._gibbs_sweep import begin, check_counts, suits, sweep

Options = opt.compose(
    opt.chains(2000, 500), thin=opt.Option(1, "sweeps between draws that are kept")
)


def build(problem: obj.Problem, options: Any) -> Algorithm:
    check_size(problem, options)
    check_counts("gibbs", problem.data)
    setting = Setting(problem.model, chunk_size(options, problem), sweep)
    return run_chains(
        problem, options, Rounds(problem, options.num_chains), setting, partial(begin, problem)
    )


ENGINE = Engine(
    "gibbs",
    Options,
    build,
    kind="draws",
    rows="none",
    init="values",
    suits=suits,
    num_steps=num_steps,
    compared=True,
    quick={"num_samples": 1000, "num_warmup": 300},
    calibrated={"num_samples": 49, "num_warmup": 400, "num_chains": 1, "thin": 40},
    tiny={"num_samples": 50, "num_warmup": 20},
    budget=3.0,
    look=Look("blue", SOLID, "circle"),
)
