"""Gibbs sampling: dF/dt with the auxiliaries sampled is the complete conditional of a block (LG-MCMC of H; X 12 with draws for means).

For each site in turn: draw the auxiliaries given everything (a key into `log_local`), read the block's natural parameter off the gradient, draw
the block, or, where its conditional cannot be drawn from, make a transition that leaves it as it is. Every block gets auxiliaries of its own, so each
is a valid Gibbs step whatever the model. Where blocks move slowly the model may add moves of its own (`Model.moves`).

Chains run side by side on the devices. A chain's draws depend on the key, its number and the size of the chunks (`chunk_size`: data, and num_samples
below 50), not on the other chains, nor, rounding aside, on the devices. With the same warm-up and chunks, a run of 100 draws is the first half of
a run of 200.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference import objective as obj
from inference.chains import Rounds, check_size
from inference.engine import Algorithm, Engine, Stage
from inference.posterior import Draws
from pp_models.base import Model, Sites, log_joint
from pp_models.errors import InputError


class Options(NamedTuple):
    """num_samples: draws kept per chain, one in `thin` sweeps. num_warmup: sweeps dropped first. num_chains: independent chains."""

    num_samples: int = 2000
    num_warmup: int = 500
    num_chains: int = 2
    thin: int = 1


class State(NamedTuple):
    """The chains (here t(x) of every site), a round at a time. Chunks run. On the host, (draws, log joints): the last ones, and those kept."""

    chains: list[Any]
    step: int
    last: Any
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


class Setting(NamedTuple):
    """What a program is compiled for. sweep: (model, hyper, key, chain, batch, *extra) -> chain. stats: (chain) -> t(x) of every site."""

    model: Model
    structure: Any
    num_kept: int
    sweep: Callable[..., Any] = sweep
    stats: Callable[[Any], Sites] = dict


def _run(setting: Setting, shared: Any, common: Any, own: Any) -> Any:
    """A chain's next `num_kept` draws, one every `thin` sweeps."""
    (values, batch), (thin, extra), (key, chain), model = shared, common, own, setting.model
    hyper = obj.make(model, setting.structure, values)

    def one(chain, key):
        chain = jax.lax.fori_loop(0, thin, lambda i, c: setting.sweep(model, hyper, jax.random.fold_in(key, i), c, batch, *extra), chain)
        draws = {site: model.families[site].value(t) for site, t in setting.stats(chain).items()}
        return chain, (draws, log_joint(model, hyper, draws, batch))

    return jax.lax.scan(one, chain, jax.random.split(key, setting.num_kept))


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


def check_counts(name: str, data: Any) -> None:
    """Counts of tokens must fit into single precision."""
    if data.kind == "counts" and max(data.matrix.sum(0).max(), data.matrix.sum(1).max()) >= 2**24:
        raise InputError(f"{name} counts tokens in single precision, up to {2**24 - 1} in a row or column, but there are more: rescale the counts.")


def suits(model: Model) -> str:
    if model.damped:
        sites = " and ".join(sorted(model.damped))
        return f"gibbs draws from complete conditionals, but there is none in closed form for {sites} of {model.name}: use nuts."
    return ""


def begin(problem: obj.Problem, key: jax.Array, start: Sites) -> Sites:
    """t(x) of every site where a chain begins: a draw from the model's starting point, or the values given."""
    init_key, draw_key = jax.random.split(key)
    stats = _first(problem.model, draw_key, problem.model.init(init_key, problem.hyper, problem.data))
    return stats | {site: problem.model.families[site].stats(jnp.asarray(x, float)) for site, x in start.items()}


def build(problem: obj.Problem, options: Options) -> Algorithm:
    check_size(problem, options)
    check_counts("gibbs", problem.data)
    setting = Setting(problem.model, problem.structure, chunk_size(options, problem))
    return run_chains(problem, options, Rounds(problem, options.num_chains), setting, partial(begin, problem))


def run_chains(
    problem: obj.Problem, options: Any, rounds: Rounds, setting: Setting, first: Callable[[jax.Array, Sites], Any], extra: tuple[Any, ...] = ()
) -> Algorithm:
    """Chains of any sweep, in chunks. first: (key, start) -> where a chain begins. extra: what the sweep is given beside the rows, on all devices."""
    num_warming, total = -(-options.num_warmup // setting.num_kept), num_steps(options, problem)

    def init(key, start):
        return State(rounds.place([first(jax.random.fold_in(key, chain), start) for chain in range(options.num_chains)]), 0, None, ())

    def step(key, state, batches):
        warming = state.step < num_warming
        results = rounds.run(_run, setting, (1 if warming else options.thin, extra), list(zip(rounds.keys(key), state.chains, strict=True)))
        draws = [jax.tree.map(lambda x: x[:, -1:], kept) if warming else kept for _, kept in results]
        found, log_joints = rounds.read(draws)
        kept = (found, log_joints.astype(np.float64))
        last = jax.tree.map(lambda x: x[:, -1:], kept)
        after = State([chains for chains, _ in results], state.step + 1, last, () if warming else (*state.kept, kept))
        return after, Info(last[1].mean())

    def posterior(state):
        draws, log_joints = jax.tree.map(lambda *x: np.concatenate(x, axis=1)[:, : options.num_samples], *(state.kept or (state.last,)))
        return Draws(problem, draws, {"lp": log_joints})

    def stage(state):  # a chunk of draws takes `thin` times as long as one of warm-up
        done, whole = (min(step, num_warming) + options.thin * max(step - num_warming, 0) for step in (state.step, total))
        return Stage("warm-up" if state.step < num_warming else "draws", done / whole, bool(state.kept))

    return Algorithm(init, step, posterior, stage)


ENGINE = Engine("gibbs", Options, build, kind="draws", rows="none", init="values", suits=suits, num_steps=num_steps)
