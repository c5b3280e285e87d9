"""What the samplers share: chains side by side on the devices, and whether their draws fit into memory.

A round is as many chains as there are devices, one on each, run by one program that is compiled once for all of them and has nothing to exchange
between them. Where there are more chains than devices there are several rounds; the last one is filled up with chains that nobody looks at.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from inference import devices as on
from inference.objective import Problem
from pp_models.base import value_shapes
from pp_models.errors import TooLarge

MOST_NUMBERS = 1_000_000_000  # in the draws that are kept


class Rounds:
    """Where the chains of a problem run."""

    def __init__(self, problem: Problem, num_chains: int) -> None:
        self.devices = _places(problem.devices, num_chains)
        self.num_chains = num_chains
        self.shared = self.everywhere((problem.values, problem.data.pack()))

    def everywhere(self, tree: Any) -> Any:
        """The same on every device, to be given to `run` as something in common without being sent again."""
        return on.placed(tree, self.devices, on.EVERYWHERE)

    def keys(self, key: jax.Array) -> list[Any]:
        """A key for every chain, which depends on its number alone, a round at a time."""
        size = len(self.devices)
        each = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(-(-self.num_chains // size) * size))
        return [on.placed(each[i : i + size], self.devices, on.EACH) for i in range(0, len(each), size)]

    def place(self, chains: list[Any]) -> list[Any]:
        """Something for every chain, a round at a time. What fills up the last round is a copy of the last chain's."""
        size = len(self.devices)
        chains = chains + chains[-1:] * (-len(chains) % size)
        stacked = [jax.tree.map(lambda *x: np.stack(x), *chains[i : i + size]) for i in range(0, len(chains), size)]
        return [on.placed(one, self.devices, on.EACH) for one in stacked]

    def run(self, function: Callable[..., Any], setting: Any, common: Any, own: list[Any]) -> list[Any]:
        """`function(setting, shared, common, own)` for every chain: all rounds are sent off, none is waited for.

        shared: hyper-parameters' values and the rows. common: the same for all chains. own: each chain's, a round at a time, as the results are.
        Compiled once for a function, a setting, and shapes.
        """
        program = on.program(_one_chain, (function, setting), self.devices)
        return [program((self.shared, common), one) for one in own]

    def read(self, results: list[Any]) -> Any:
        """The chains' results on the host, the chains in front."""
        return jax.tree.map(lambda *x: np.concatenate([on.on_host(part) for part in x])[: self.num_chains], *results)


def _one_chain(setting: Any, common: Any, own: Any) -> Any:
    """What a device has to do in a round. Its part of what belongs to the chains has one chain in it."""
    (function, inner), (shared, same) = setting, common
    result = function(inner, shared, same, jax.tree.map(lambda x: x[0], own))
    return jax.tree.map(lambda x: x[None], result)


def _places(devices: Any, num_chains: int) -> tuple[Any, ...]:
    """As many devices as there are chains, of every process in turn; where there are too few chains for all processes, each runs all of them."""
    distinct = tuple(dict.fromkeys(devices))
    by_process: dict[int, list[Any]] = {}
    for device in distinct:
        by_process.setdefault(device.process_index, []).append(device)
    if num_chains < len(by_process):
        return on.mine(distinct)[:num_chains]
    turns = [mine[i] for i in range(max(map(len, by_process.values()))) for mine in by_process.values() if i < len(mine)]
    return tuple(turns[:num_chains])


def check_size(problem: Problem, options: Any) -> None:
    """Draws must fit into memory."""
    shapes = value_shapes(problem.model, problem.hyper, problem.data)
    numbers = sum(math.prod(shape) for shape in shapes.values()) * options.num_samples * options.num_chains
    if numbers > MOST_NUMBERS:
        remedy = "lower num_samples and raise thin" if "thin" in options._fields else "lower num_samples"
        raise TooLarge(f"The draws would hold {numbers:.1e} numbers, more than {MOST_NUMBERS:.0e}: {remedy}.")
