"""What the samplers share: chains side by side on the devices, and whether their draws fit into memory.

A round is as many chains as there are devices, one on each, run by one program that is compiled once for all of them and has nothing to exchange
between them. Where there are more chains than devices there are several rounds; the last one is filled up with chains that nobody looks at.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.core import devices as on
from inference.core import objective as obj
from inference.core.engine import Algorithm, Stage
from inference.core.posteriors import Draws
from pp_models.errors import TooLarge
from pp_models.model import Model, Sites, log_joint, value_shapes

MOST_NUMBERS = 1_000_000_000  # in the draws that are kept


class Rounds:
    """Where the chains of a problem run."""

    def __init__(self, problem: obj.Problem, num_chains: int) -> None:
        self.devices = _places(problem.devices, num_chains)
        self.num_chains = num_chains
        self.shared = self.everywhere((problem.hyper, problem.data.pack()))

    def everywhere(self, tree: Any) -> Any:
        """The same on every device, to be given to `run` as something in common without being sent again."""
        return on.placed(tree, self.devices, on.EVERYWHERE)

    def keys(self, key: jax.Array) -> list[Any]:
        """A key for every chain, which depends on its number alone, a round at a time."""
        size = len(self.devices)
        each = jax.vmap(jax.random.fold_in, (None, 0))(
            key, np.arange(-(-self.num_chains // size) * size)
        )
        return [
            on.placed(each[i : i + size], self.devices, on.EACH) for i in range(0, len(each), size)
        ]

    def place(self, chains: list[Any]) -> list[Any]:
        """Something for every chain, a round at a time. What fills up the last round is a copy of the last chain's."""
        size = len(self.devices)
        chains = chains + chains[-1:] * (-len(chains) % size)
        stacked = [
            jax.tree.map(lambda *x: np.stack(x), *chains[i : i + size])
            for i in range(0, len(chains), size)
        ]
        return [on.placed(one, self.devices, on.EACH) for one in stacked]

    def run(
        self, function: Callable[..., Any], setting: Any, common: Any, own: list[Any]
    ) -> list[Any]:
        """`function(setting, shared, common, own)` for every chain: all rounds are sent off, none is waited for.

        shared: hyper-parameters' values and the rows. common: the same for all chains. own: each chain's, a round at a time, as the results are.
        Compiled once for a function, a setting, and shapes.
        """
        program = on.program(_one_chain, (function, setting), self.devices)
        return [program((self.shared, common), one) for one in own]

    def read(self, results: list[Any]) -> Any:
        """The chains' results on the host, the chains in front."""
        return jax.tree.map(
            lambda *x: np.concatenate([on.on_host(part) for part in x])[: self.num_chains], *results
        )


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
    turns = [
        mine[i]
        for i in range(max(map(len, by_process.values())))
        for mine in by_process.values()
        if i < len(mine)
    ]
    return tuple(turns[:num_chains])


def check_size(problem: obj.Problem, options: Any) -> None:
    """Draws must fit into memory."""
    shapes = value_shapes(problem.model, problem.hyper, problem.data)
    numbers = (
        sum(math.prod(shape) for shape in shapes.values())
        * options.num_samples
        * options.num_chains
    )
    if numbers > MOST_NUMBERS:
        remedy = (
            "lower num_samples and raise thin" if "thin" in options._fields else "lower num_samples"
        )
        raise TooLarge(
            f"The draws would hold {numbers:.1e} numbers, more than {MOST_NUMBERS:.0e}: {remedy}."
        )


# Chains of any sweep, in chunks --------------------------------------------------------------


class State(NamedTuple):
    """The chains (here t(x) of every site), a round at a time. Chunks run. On the host, (draws, log joints): the last ones, and those kept."""

    chains: list[Any]
    step: int
    last: Any
    kept: tuple[Any, ...]


class Info(NamedTuple):
    """log_joint: of the last draw, mean over chains."""

    log_joint: Any


class Setting(NamedTuple):
    """What a program is compiled for. sweep: (model, hyper, key, chain, batch, *extra) -> chain. stats: (chain) -> t(x) of every site."""

    model: Model
    num_kept: int
    sweep: Callable[..., Any]
    stats: Callable[[Any], Sites] = dict


def _run(setting: Setting, shared: Any, common: Any, own: Any) -> Any:
    """A chain's next `num_kept` draws, one every `thin` sweeps."""
    (hyper, batch), (thin, extra), (key, chain), model = shared, common, own, setting.model

    def one(chain, key):
        chain = jax.lax.fori_loop(
            0,
            thin,
            lambda i, c: setting.sweep(model, hyper, jax.random.fold_in(key, i), c, batch, *extra),
            chain,
        )
        draws = {site: model.families[site].value(t) for site, t in setting.stats(chain).items()}
        return chain, (draws, log_joint(model, hyper, draws, batch))

    return jax.lax.scan(one, chain, jax.random.split(key, setting.num_kept))


def chunk_size(options: Any, problem: obj.Problem) -> int:
    """Draws between reports, all chunks alike: many on small problems, where a report costs more than a sweep."""
    work = problem.data.total if problem.data.kind == "counts" else problem.data.num_entries
    return max(1, min(50, options.num_samples, int(1e7 / (work + 1))))


def num_steps(options: Any, problem: obj.Problem) -> int:
    """Whole chunks of warm-up (a few sweeps more than asked for) and of draws."""
    chunk = chunk_size(options, problem)
    return -(-options.num_warmup // chunk) - (-options.num_samples // chunk)


def run_chains(
    problem: obj.Problem,
    options: Any,
    rounds: Rounds,
    setting: Setting,
    first: Callable[[jax.Array, Sites], Any],
    extra: tuple[Any, ...] = (),
) -> Algorithm:
    """Chains of any sweep, in chunks. first: (key, start) -> where a chain begins. extra: what the sweep is given beside the rows, on all devices."""
    num_warming, total = -(-options.num_warmup // setting.num_kept), num_steps(options, problem)

    def init(key, start):
        return State(
            rounds.place(
                [
                    first(jax.random.fold_in(key, chain), start)
                    for chain in range(options.num_chains)
                ]
            ),
            0,
            None,
            (),
        )

    def step(key, state, batches):
        warming = state.step < num_warming
        results = rounds.run(
            _run,
            setting,
            (1 if warming else options.thin, extra),
            list(zip(rounds.keys(key), state.chains, strict=True)),
        )
        draws = [
            jax.tree.map(lambda x: x[:, -1:], kept) if warming else kept for _, kept in results
        ]
        found, log_joints = rounds.read(draws)
        kept = (found, log_joints.astype(np.float64))
        last = jax.tree.map(lambda x: x[:, -1:], kept)
        after = State(
            [chains for chains, _ in results],
            state.step + 1,
            last,
            () if warming else (*state.kept, kept),
        )
        return after, Info(last[1].mean())

    def posterior(state):
        draws, log_joints = jax.tree.map(
            lambda *x: np.concatenate(x, axis=1)[:, : options.num_samples],
            *(state.kept or (state.last,)),
        )
        return Draws(problem, draws, {"lp": log_joints})

    def stage(state):  # a chunk of draws takes `thin` times as long as one of warm-up
        done, whole = (
            min(step, num_warming) + options.thin * max(step - num_warming, 0)
            for step in (state.step, total)
        )
        return Stage(
            "warm-up" if state.step < num_warming else "draws", done / whole, bool(state.kept)
        )

    return Algorithm(init, step, posterior, stage)
