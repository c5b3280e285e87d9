"""A Gibbs sweep over all blocks, and chains of sweeps."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import objective as obj
from inference.core import options as opt
from inference.core.engine import Algorithm
from inference.engines import _chains as chains
from pp_models.errors import InputError
from pp_models.model import Model, Sites, log_joint

Options = opt.compose(
    opt.chains(2000, 500), thin=opt.Option(1, "sweeps between draws that are kept")
)


def sweep(model: Any, hyper: Any, key: jax.Array, stats: Sites, batch: Any) -> Sites:
    """One draw of every block, then the model's own moves."""
    stats = dict(stats)
    for site, family in model.families.items():
        key, auxiliary_key, block_key = jax.random.split(key, 3)

        def joint(t, site=site, auxiliary_key=auxiliary_key):
            now = {**stats, site: t}
            shared = {s: now[s] for s in model.shared}
            prior = 0.0 if site in model.local else model.log_global(hyper, shared)
            return prior + model.log_local(hyper, now, batch, auxiliary_key)

        conditional = jax.grad(joint)(stats[site])
        if family.refresh is None:
            stats[site] = family.sample(block_key, conditional)
        else:
            stats[site] = family.refresh(block_key, conditional, stats[site])
    if model.moves is None:
        return stats
    values = {site: family.value(stats[site]) for site, family in model.families.items()}
    moved = model.moves(hyper, jax.random.fold_in(key, 0), values, batch)
    return {site: family.stats(moved[site]) for site, family in model.families.items()}


@partial(jax.jit, static_argnames=("model",))
def _first(model, key, natural):
    keys = zip(model.families, jax.random.split(key, len(natural)), strict=True)
    return {site: model.families[site].sample(k, natural[site]) for site, k in keys}


def begin(problem: obj.Problem, key: jax.Array, start: Sites) -> Sites:
    """t(x) at the start of a chain: a draw from the model's starting point, or given values."""
    model, (init_key, draw_key) = problem.model, jax.random.split(key)
    stats = _first(model, draw_key, model.init(init_key, problem.hyper, problem.data))
    given = {site: model.families[site].stats(jnp.asarray(x, float)) for site, x in start.items()}
    return stats | given


def check_counts(name: str, data: Any) -> None:
    """Refuse counts of tokens that do not fit into single precision."""
    if data.kind == "counts" and max(data.matrix.sum(0).max(), data.matrix.sum(1).max()) >= 2**24:
        raise InputError(
            f"{name} counts tokens in single precision, up to {2**24 - 1} in a row or column, but "
            "there are more: rescale the counts."
        )


def suits(model: Model) -> str:
    if not model.damped:
        return ""
    return (
        "gibbs draws from complete conditionals, but there is none in closed form for "
        f"{' and '.join(sorted(model.damped))} of {model.name}: use nuts."
    )


# Chains of sweeps ---------------------------------------------------------------------------------


class Info(NamedTuple):
    """log_joint: of the last draw, mean over chains."""

    log_joint: Any


class Setting(NamedTuple):
    """The static arguments of a chunk.

    sweep: (model, hyper, key, chain, batch, *extra) -> chain
    stats: (chain) -> t(x) of every site
    """

    model: Model
    num_kept: int
    sweep: Callable[..., Any]
    stats: Callable[[Any], Sites]


def _chunk(setting: Setting, shared: Any, common: Any, own: Any) -> Any:
    """A chain's next `num_kept` draws, one every `thin` sweeps."""
    (hyper, batch), (thin, extra), (key, chain), model = shared, common, own, setting.model

    def one(chain, key):
        def move(i, chain):
            return setting.sweep(model, hyper, jax.random.fold_in(key, i), chain, batch, *extra)

        chain = jax.lax.fori_loop(0, thin, move, chain)
        draws = {site: model.families[site].value(t) for site, t in setting.stats(chain).items()}
        return chain, (draws, {"lp": log_joint(model, hyper, draws, batch)})

    return jax.lax.scan(one, chain, jax.random.split(key, setting.num_kept))


def chunk_size(options: Any, problem: obj.Problem) -> int:
    """Draws per step: many on small problems, where a report costs more than a sweep."""
    work = problem.data.total if problem.data.kind == "counts" else problem.data.num_entries
    return max(1, min(50, options.num_samples, int(1e7 / (work + 1))))


def _steps(options: Any, problem: obj.Problem) -> tuple[int, int]:
    """Whole chunks of warm-up and of draws."""
    chunk = chunk_size(options, problem)
    return -(-options.num_warmup // chunk), -(-options.num_samples // chunk)


def run_chains(problem, options, rounds, first, sweep, stats=dict, extra=()) -> Algorithm:
    """Chains of any sweep.

    rounds: `chains.Rounds`
    first:  (key, start) -> the first state of a chain
    sweep, stats: as in `Setting`
    extra:  arguments of the sweep beside the rows, on all devices
    """
    num_warming, num_drawing = _steps(options, problem)
    setting = Setting(problem.model, chunk_size(options, problem), sweep, stats)

    def start_chains(key, start):
        keys = [jax.random.fold_in(key, chain) for chain in range(options.num_chains)]
        return rounds.place([first(key, start) for key in keys])

    def run(key, state, warming):
        common = (1 if warming else options.thin, extra)
        own = list(zip(rounds.keys(key), state.chains, strict=True))
        after, found = zip(*rounds.run(_chunk, setting, common, own), strict=True)
        if warming:  # only the last draw is of interest
            found = jax.tree.map(lambda x: x[:, -1:], found)
        draws, numbers = rounds.read(list(found))
        return list(after), (draws, {"lp": numbers["lp"].astype(np.float64)})

    def info(chunk, kept):
        return Info(chunk[1]["lp"][:, -1].mean())

    work = [1] * num_warming + [options.thin] * num_drawing
    return chains.algorithm(problem, options, work, num_warming, start_chains, run, info)


engine = partial(
    chains.engine,
    init="values",
    suits=suits,
    num_steps=lambda options, problem: sum(_steps(options, problem)),
    quick={"num_samples": 1000, "num_warmup": 300},
    tiny={"num_samples": 50, "num_warmup": 20},
    calibrated={"num_samples": 49, "num_warmup": 400, "num_chains": 1, "thin": 40},
)
