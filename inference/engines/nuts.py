r"""The No-U-Turn sampler of NumPyro on the model's `generate`. It shares no code with $F$, so it
checks every other engine.

$$ H(x, r) = -\log p(x, D) + \tfrac{1}{2} r^\top M^{-1} r $$

NumPyro's kernel makes every transition, a trajectory of this Hamiltonian. The step size and the
diagonal mass matrix $M$ adapt during warm-up, whose draws are dropped, and then stay fixed. Chains
start uniformly within 2 of zero on the unconstrained scale, drawn again until density and gradient
are finite.

Use it on small data, for models without complete conditionals, and as a reference. It holds the
observations as a dense matrix and allocations are summed out, so it is slow on corpora: use
`gibbs`. Raise `target_accept` if transitions diverge.

Transitions run in chunks, so that a run can be watched and ended, with chains side by side on the
devices. The draws of a chain depend on the key and the number of the chain alone: a run of 100
draws is the first 100 of a run of 200 with the same warm-up.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import NUTS

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DASHED, Algorithm, Look
from inference.engines import _chains as chains
from inference.engines._stock import check_stock
from pp_models.errors import Diverged
from pp_models.model import Model

# sample_stats -> the field of the kernel's state
STATS = {
    "diverging": "diverging",
    "energy": "energy",
    "n_steps": "num_steps",
    "acceptance_rate": "accept_prob",
    "lp": "potential_energy",
}
REPORTS = 40  # about as many chunks to a run

Options = opt.compose(
    opt.chains(1000, 1000),
    target_accept=opt.Option(0.8, "acceptance probability that the step size adapts to"),
)


class Info(NamedTuple):
    """divergences: among all draws kept so far. num_leapfrog: mean per transition of the chunk."""

    divergences: Any
    num_leapfrog: Any


class Setting(NamedTuple):
    """The static arguments of a chunk. largest: the most transitions of one."""

    model: Model
    num_warmup: int
    target_accept: float
    largest: int


def plan(options: Any) -> list[int]:
    """Transitions of each step. The first chunks are short, so that a slow run shows early."""
    largest = -(-(options.num_warmup + options.num_samples) // REPORTS)
    sizes, size = [], 1
    for left in (options.num_warmup, options.num_samples):
        while left:
            sizes.append(min(size, left))
            left, size = left - sizes[-1], min(2 * size, largest)
    return sizes


def _kernel(setting: Setting, key: jax.Array, shared: Any) -> tuple[NUTS, Any]:
    """A kernel and a first state. Each program needs its own, because a kernel keeps tracers."""
    kernel = NUTS(setting.model.generate, target_accept_prob=setting.target_accept)
    return kernel, kernel.init(key, setting.num_warmup, None, shared, {})


def _first(setting: Setting, shared: Any, common: Any, key: jax.Array) -> Any:
    return _kernel(setting, key, shared)[1]


def _run(setting: Setting, shared: Any, count: Any, state: Any) -> Any:
    """The state after `count` transitions, and their sites and stats padded to `largest`."""
    kernel, _ = _kernel(setting, state.rng_key, shared)  # XLA drops the unused first state
    constrain = kernel.postprocess_fn(shared, {})

    def look(state):
        values, stats = constrain(state.z), {n: getattr(state, f) for n, f in STATS.items()}
        return {site: values[site] for site in setting.model.families}, stats

    def one(i, carry):
        state, kept = carry
        state = kernel.sample(state, shared, {})
        return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), kept, look(state))

    shapes = jax.eval_shape(look, state)
    room = jax.tree.map(lambda x: jnp.zeros((setting.largest, *x.shape), x.dtype), shapes)
    return jax.lax.fori_loop(0, count, one, (state, room))


def build(problem: obj.Problem, options: Any) -> Algorithm:
    check_stock(problem, "nuts", problem.data.num_rows)
    chains.check_size(problem, options)
    sizes, rounds = plan(options), chains.Rounds(problem, options.num_chains)
    num_warming = int(np.searchsorted(np.cumsum(sizes), options.num_warmup, "right"))
    setting = Setting(problem.model, options.num_warmup, options.target_accept, max(sizes))

    def first(key, start):
        states = rounds.run(_first, setting, None, rounds.keys(key))
        found = rounds.read([(state.potential_energy, state.z_grad) for state in states])
        if not all(np.all(np.isfinite(x)) for x in jax.tree.leaves(found)):
            raise Diverged(
                "nuts found no start of finite density in 100 tries: check the hyper-parameters "
                "and the scale of the data, or try double precision."
            )
        return states

    def run(key, state, warming):
        count = sizes[state.step]
        after, found = zip(*rounds.run(_run, setting, count, state.chains), strict=True)
        draws, stats = jax.tree.map(lambda x: x[:, :count], rounds.read(list(found)))
        return list(after), (draws, {**stats, "lp": -stats["lp"]})

    def info(chunk, kept):
        divergences = sum(stats["diverging"].sum() for _, stats in kept)
        return Info(divergences, chunk[1]["n_steps"].mean())

    return chains.algorithm(problem, options, sizes, num_warming, first, run, info)


ENGINE = chains.engine(
    "nuts",
    Options,
    build,
    num_steps=lambda options, problem: len(plan(options)),
    compared=True,
    is_quick=True,
    quick={"num_samples": 500, "num_warmup": 500},
    tiny={"num_samples": 20, "num_warmup": 20, "num_chains": 1},
    calibrated={"num_samples": 294, "num_warmup": 300, "num_chains": 1, "target_accept": 0.9},
    look=Look("sky", DASHED, "diamond"),
)
