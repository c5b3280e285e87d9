"""The samplers' state and loop: chains side by side on the devices, run in chunks.

A round has as many chains as there are devices, one on each, all run by one compiled program that
exchanges nothing between them. More chains than devices take several rounds; the last round is
filled up with chains that are dropped.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.core import devices as on
from inference.core import objective as obj
from inference.core.engine import Algorithm, Engine, Stage
from inference.core.posteriors import Draws
from pp_models.errors import TooLarge
from pp_models.model import value_shapes

MOST_NUMBERS = 1_000_000_000  # in the draws that are kept

engine = partial(Engine, kind="draws", rows="none", budget=3.0)


class Rounds:
    """Where the chains of a problem run."""

    def __init__(self, problem: obj.Problem, num_chains: int) -> None:
        self.devices = _places(problem.devices, num_chains)
        self.num_chains = num_chains
        self.shared = self.everywhere((problem.hyper, problem.data.pack()))

    def everywhere(self, tree: Any) -> Any:
        """The same on every device, for `run` to take as `common` without sending it again."""
        return on.placed(tree, self.devices, on.EVERYWHERE)

    def keys(self, key: jax.Array) -> list[Any]:
        """A key for every chain, which depends on its number alone, by round."""
        size = len(self.devices)
        number = self.num_chains + -self.num_chains % size
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(number))
        rounds = (keys[i : i + size] for i in range(0, number, size))
        return [on.placed(one, self.devices, on.EACH) for one in rounds]

    def place(self, chains: list[Any]) -> list[Any]:
        """A tree for every chain, by round; copies of the last chain's fill up the last round."""
        size = len(self.devices)
        chains = chains + chains[-1:] * (-len(chains) % size)
        rounds = (chains[i : i + size] for i in range(0, len(chains), size))
        stacked = (jax.tree.map(lambda *x: np.stack(x), *one) for one in rounds)
        return [on.placed(one, self.devices, on.EACH) for one in stacked]

    def run(self, function: Any, setting: Any, common: Any, own: list[Any]) -> list[Any]:
        """Dispatch `function(setting, shared, common, own)` for every chain, by round.

        shared: the hyper-parameters and the rows. common: the same for all chains. own: each
        chain's. Compiled once for a function, a setting, and shapes.
        """
        program = on.program(_one_chain, (function, setting), self.devices)
        return [program((self.shared, common), one) for one in own]

    def read(self, results: list[Any]) -> Any:
        """The chains' results on the host, chains first."""

        def join(*parts):
            return np.concatenate([on.on_host(part) for part in parts])[: self.num_chains]

        return jax.tree.map(join, *results)


def _one_chain(setting: Any, common: Any, own: Any) -> Any:
    """One device's part of a round: a single chain."""
    (function, inner), (shared, same) = setting, common
    result = function(inner, shared, same, jax.tree.map(lambda x: x[0], own))
    return jax.tree.map(lambda x: x[None], result)


def _places(devices: Any, num_chains: int) -> tuple[Any, ...]:
    """At most `num_chains` devices, of the processes in turn.

    With fewer chains than processes, each process runs all chains.
    """
    distinct = tuple(dict.fromkeys(devices))
    by_process: dict[int, list[Any]] = {}
    for device in distinct:
        by_process.setdefault(device.process_index, []).append(device)
    if num_chains < len(by_process):
        return on.mine(distinct)[:num_chains]
    turns = {device: turn for own in by_process.values() for turn, device in enumerate(own)}
    order = [device for own in by_process.values() for device in own]
    return tuple(sorted(order, key=turns.__getitem__)[:num_chains])


def check_size(problem: obj.Problem, options: Any) -> None:
    """Refuse draws that do not fit into memory."""
    shapes = value_shapes(problem.model, problem.hyper, problem.data).values()
    numbers = sum(map(math.prod, shapes)) * options.num_samples * options.num_chains
    if numbers > MOST_NUMBERS:
        remedy = " and raise thin" if "thin" in options._fields else ""
        raise TooLarge(
            f"The draws would hold {numbers:.1e} numbers, more than {MOST_NUMBERS:.0e}: "
            f"lower num_samples{remedy}."
        )


class State(NamedTuple):
    """The chains by round; steps taken; on the host (draws, stats), the last and those kept."""

    chains: list[Any]
    step: int
    last: Any
    kept: tuple[Any, ...]


def algorithm(problem, options, work, num_warming, first, run, info) -> Algorithm:
    """A sampler that runs in chunks.

    work:        relative cost of each step
    num_warming: steps whose draws are dropped
    first:       (key, start) -> the chains
    run:         (key, state, warming) -> the chains after a chunk, and its draws on the host
    info:        (chunk, kept chunks) -> what the history tells
    """

    def init(key, start):
        return State(first(key, start), 0, None, ())

    def step(key, state, batches):
        warming = state.step < num_warming
        chains, chunk = run(key, state, warming)
        last = jax.tree.map(lambda x: x[:, -1:], chunk)
        kept = () if warming else (*state.kept, chunk)
        return State(chains, state.step + 1, last, kept), info(chunk, kept)

    def posterior(state):
        def join(*x):
            return np.concatenate(x, axis=1)[:, : options.num_samples]

        return Draws(problem, *jax.tree.map(join, *(state.kept or (state.last,))))

    def stage(state):
        phase = "warm-up" if state.step < num_warming else "draws"
        return Stage(phase, sum(work[: state.step]) / sum(work), bool(state.kept))

    return Algorithm(init, step, posterior, stage)
