"""Stock NumPyro NUTS on the model's `generate`: the reference that shares no code with F.

NumPyro's kernel makes every transition; what is here runs it in chunks, so that a run can be watched and ended, with chains side by side on the
devices. A chain carries its own random key in the kernel's state, so its draws depend on the key given and the number of the chain alone: not on the
chunks, and not, rounding aside, on the devices. A run of 100 draws is the first 100 of a run of 200 with the same warm-up.

Step size and the diagonal mass matrix adapt during warm-up, the draws of which are dropped, and then stay. Chains start where NumPyro's default
strategy puts them: uniform within 2 of zero on the unconstrained scale, drawn again until density and gradient are finite.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import NUTS

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import DASHED, Algorithm, Engine, Look, Stage
from inference.core.posteriors import Draws
from inference.engines._chains import Rounds, check_size
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
REPORTS = 40  # about so many chunks to a run


Options = opt.compose(
    opt.chains(1000, 1000),
    target_accept=opt.Option(0.8, "acceptance probability that the step size adapts to"),
)


class State(NamedTuple):
    """The kernel's states, a round of chains at a time. Chunks run. On the host, (draws, stats): of the last transition, and of the chunks kept."""

    chains: list[Any]
    step: int
    last: Any
    kept: tuple[Any, ...]


class Info(NamedTuple):
    """divergences: divergent transitions among the draws so far, in all chains; num_leapfrog: mean per transition of this chunk."""

    divergences: Any
    num_leapfrog: Any


class Setting(NamedTuple):
    """What a program is compiled for; data of one shape, values of hyper-parameters and keys may change."""

    model: Model
    num_warmup: int
    target_accept: float
    largest: int


def plan(options: Any) -> list[int]:
    """Transitions of each step: warm-up and draws in chunks of one size, the first ones shorter, so that a slow run is known as one early."""
    largest = -(-(options.num_warmup + options.num_samples) // REPORTS)
    sizes, size = [], 1
    for left in (options.num_warmup, options.num_samples):
        while left:
            sizes.append(min(size, left))
            left, size = left - sizes[-1], min(2 * size, largest)
    return sizes


def _kernel(setting: Setting, key: jax.Array, shared: Any) -> tuple[NUTS, Any]:
    """NumPyro's kernel, and a chain's first state: made in each program anew, as the kernel holds on to what it was traced with."""
    kernel = NUTS(setting.model.generate, target_accept_prob=setting.target_accept)
    return kernel, kernel.init(key, setting.num_warmup, None, shared, {})


def _first(setting: Setting, shared: Any, common: Any, key: jax.Array) -> Any:
    """A chain's first state."""
    return _kernel(setting, key, shared)[1]


def _run(setting: Setting, shared: Any, count: Any, state: Any) -> Any:
    """`count` transitions, at most `largest`: the state after them, the sites' values and the statistics of each; past `count` they mean nothing."""
    kernel, _ = _kernel(
        setting, state.rng_key, shared
    )  # its state is not used here, and the compiler drops it
    constrain = kernel.postprocess_fn(shared, {})

    def look(state):
        sites = constrain(state.z)
        return {site: sites[site] for site in setting.model.families}, {
            name: getattr(state, field) for name, field in STATS.items()
        }

    def one(i, carry):
        state, kept = carry
        state = kernel.sample(state, shared, {})
        return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), kept, look(state))

    room = jax.tree.map(
        lambda x: jnp.zeros((setting.largest, *x.shape), x.dtype), jax.eval_shape(look, state)
    )
    return jax.lax.fori_loop(0, count, one, (state, room))


def build(problem: obj.Problem, options: Any) -> Algorithm:
    check_stock(problem, "nuts", problem.data.num_rows)
    check_size(problem, options)
    sizes = plan(options)
    setting = Setting(problem.model, options.num_warmup, options.target_accept, max(sizes))
    rounds = Rounds(problem, options.num_chains)

    def init(key, start):
        states = rounds.run(_first, setting, None, rounds.keys(key))
        if not all(
            np.all(np.isfinite(x))
            for x in jax.tree.leaves(
                rounds.read([(state.potential_energy, state.z_grad) for state in states])
            )
        ):
            raise Diverged(
                "nuts found no start of finite density in 100 tries: check the hyper-parameters and the scale of the data, or try double precision."
            )
        return State(states, 0, None, ())

    def step(key, state, batches):
        done, count = sum(sizes[: state.step]), sizes[state.step]
        results = rounds.run(_run, setting, count, state.chains)
        kept = jax.tree.map(lambda x: x[:, :count], rounds.read([kept for _, kept in results]))
        num_leapfrog = kept[1]["n_steps"].mean()
        last = jax.tree.map(lambda x: x[:, -1:], kept)
        all_kept = (*state.kept, kept) if done >= options.num_warmup else ()
        divergences = sum(stats["diverging"].sum() for _, stats in all_kept)
        return State([chains for chains, _ in results], state.step + 1, last, all_kept), Info(
            divergences, num_leapfrog
        )

    def posterior(state):
        draws, stats = jax.tree.map(
            lambda *x: np.concatenate(x, axis=1), *(state.kept or (state.last,))
        )
        return Draws(problem, draws, {**stats, "lp": -stats["lp"]})

    def stage(state):
        done = sum(sizes[: state.step])
        return Stage(
            "warm-up" if done < options.num_warmup else "draws", done / sum(sizes), bool(state.kept)
        )

    return Algorithm(init, step, posterior, stage)


ENGINE = Engine(
    "nuts",
    Options,
    build,
    kind="draws",
    rows="none",
    num_steps=lambda options, problem: len(plan(options)),
    compared=True,
    is_quick=True,
    quick={"num_samples": 500, "num_warmup": 500},
    calibrated={"num_samples": 294, "num_warmup": 300, "num_chains": 1, "target_accept": 0.9},
    tiny={"num_samples": 20, "num_warmup": 20, "num_chains": 1},
    budget=3.0,
    look=Look("sky", DASHED, "diamond"),
)
