"""Gibbs sampling: dF/dt with the auxiliaries sampled is the complete conditional of a block (LG-MCMC of H; X 12 with draws for means).

For each site in turn: draw the auxiliaries given everything (a key into `log_local`), read the block's natural parameter off the gradient, draw
the block, or, where its conditional cannot be drawn from, make a transition that leaves it as it is. Every block gets auxiliaries of its own, so each
is a valid Gibbs step whatever the model. Where blocks move slowly the model may add moves of its own (`Model.moves`). Chains run side by side on the
devices.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference import objective as obj
from inference.engine import Algorithm, Engine
from inference.posterior import Draws
from pp_models.base import Model, Sites, log_joint, value_shapes
from pp_models.errors import InputError


class Options(NamedTuple):
    """num_samples: draws kept per chain, one in `thin` sweeps. num_warmup: sweeps dropped first. num_chains: independent chains."""

    num_samples: int = 2000
    num_warmup: int = 500
    num_chains: int = 2
    thin: int = 1


class State(NamedTuple):
    """Per chain: t(x) of every site. Chunks of warm-up still to run, and the draws kept so far, on the host."""

    chains: tuple[Sites, ...]
    warming: int
    kept: tuple[Any, ...]


class Info(NamedTuple):
    """log_joint: of the last draw, mean over chains."""

    log_joint: Any


def sweep(model: Any, hyper: Any, key: jax.Array, stats: Sites, batch: Any) -> Sites:
    """One draw of every block."""
    stats = dict(stats)
    for site in model.families:
        key, auxiliary_key, block_key = jax.random.split(key, 3)

        def joint(t, site=site, auxiliary_key=auxiliary_key):
            now = {**stats, site: t}
            prior = 0.0 if site in model.local else model.log_global(hyper, {s: now[s] for s in model.shared})
            return prior + model.log_local(hyper, now, batch, auxiliary_key)

        family, conditional = model.families[site], jax.grad(joint)(stats[site])
        stats[site] = family.sample(block_key, conditional) if family.refresh is None else family.refresh(block_key, conditional, stats[site])
    if model.moves is None:
        return stats
    moved = model.moves(hyper, jax.random.fold_in(key, 0), {site: family.value(stats[site]) for site, family in model.families.items()}, batch)
    return {site: family.stats(moved[site]) for site, family in model.families.items()}


@partial(jax.jit, static_argnames=("model", "structure", "num_kept"))
def _run(model, structure, values, key, stats, batch, num_kept, thin):
    """`num_kept` draws, one every `thin` sweeps."""
    hyper = obj.make(model, structure, values)

    def one(stats, key):
        stats = jax.lax.fori_loop(0, thin, lambda i, t: sweep(model, hyper, jax.random.fold_in(key, i), t, batch), stats)
        draws = {site: model.families[site].value(t) for site, t in stats.items()}
        return stats, (draws, log_joint(model, hyper, draws, batch))

    return jax.lax.scan(one, stats, jax.random.split(key, num_kept))


@partial(jax.jit, static_argnames=("model",))
def _first(model, key, natural):
    keys = jax.random.split(key, len(natural))
    return {site: model.families[site].sample(k, natural[site]) for site, k in zip(model.families, keys, strict=True)}


def chunk_size(options: Options, problem: obj.Problem) -> int:
    """Draws between reports, all chunks alike: many on small problems, where a report costs more than a sweep."""
    work = problem.data.total if problem.data.kind == "counts" else problem.data.num_entries
    return max(1, min(50, options.num_samples, int(1e7 / (work + 1))))


def num_steps(options: Options, problem: obj.Problem) -> int:
    """Whole chunks of warm-up (a few sweeps more than asked for) and of draws."""
    chunk = chunk_size(options, problem)
    return -(-options.num_warmup // chunk) - (-options.num_samples // chunk)


MOST_NUMBERS = 1_000_000_000  # in the draws that are kept


def _check_size(problem: obj.Problem, options: Options) -> None:
    """Draws must fit into memory, and counts of tokens into single precision."""
    data, shapes = problem.data, value_shapes(problem.model, problem.hyper, problem.data)
    numbers = sum(math.prod(shape) for shape in shapes.values()) * options.num_samples * options.num_chains
    if numbers > MOST_NUMBERS:
        raise InputError(f"The draws would hold {numbers:.1e} numbers, more than {MOST_NUMBERS:.0e}: lower num_samples and raise thin.")
    if data.kind == "counts" and max(data.matrix.sum(0).max(), data.matrix.sum(1).max()) >= 2**24:
        raise InputError(f"gibbs counts tokens in single precision, up to {2**24 - 1} in a row or column, but there are more: rescale the counts.")


def suits(model: Model) -> str:
    if model.damped:
        sites = " and ".join(sorted(model.damped))
        return f"gibbs draws from complete conditionals, but there is none in closed form for {sites} of {model.name}: use nuts."
    return ""


def build(problem: obj.Problem, options: Options) -> Algorithm:
    model, structure, values = problem.model, problem.structure, problem.values
    _check_size(problem, options)
    chunk = chunk_size(options, problem)
    devices = [problem.devices[chain % len(problem.devices)] for chain in range(options.num_chains)]
    copies = {device: problem.data.pack(device=device) for device in set(devices)}

    def init(key, start):
        chains = []
        for chain, device in enumerate(devices):
            init_key, draw_key = jax.random.split(jax.random.fold_in(key, chain))
            natural = model.init(init_key, problem.hyper, problem.data)
            stats = _first(model, draw_key, natural)
            stats |= {site: model.families[site].stats(jnp.asarray(x, float)) for site, x in start.items()}
            chains.append(jax.device_put(stats, device))
        return State(tuple(chains), -(-options.num_warmup // chunk), ())

    def step(key, state, batches):
        thin = 1 if state.warming else options.thin
        # keys first: one made later would wait in its device's queue behind the first chain, and the others with it
        keys = [jax.device_put(jax.random.fold_in(key, chain), device) for chain, device in enumerate(devices)]
        rows = [copies[device] for device in devices]
        results = [_run(model, structure, values, k, stats, batch, chunk, thin) for k, stats, batch in zip(keys, state.chains, rows, strict=True)]
        log_joints = [np.asarray(lj, np.float64) for _, (_, lj) in results]
        chains = tuple(stats for stats, _ in results)
        info = Info(np.mean([lj[-1] for lj in log_joints]))
        if state.warming:
            return State(chains, state.warming - 1, ()), info
        draws = {site: np.stack([np.asarray(d[site]) for _, (d, _) in results]) for site in model.families}
        return State(chains, 0, (*state.kept, (draws, np.stack(log_joints)))), info

    def posterior(state):
        keep = slice(options.num_samples)
        draws = {site: np.concatenate([d[site] for d, _ in state.kept], axis=1)[:, keep] for site in model.families}
        return Draws(problem, draws, {"lp": np.concatenate([lj for _, lj in state.kept], axis=1)[:, keep]})

    return Algorithm(init, step, posterior)


ENGINE = Engine("gibbs", Options, build, kind="draws", rows="none", init="values", suits=suits, num_steps=num_steps)
