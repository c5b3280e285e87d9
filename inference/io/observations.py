"""Log likelihoods and predictions of single observations under draws of a posterior.

An observation is the smallest unit that `generate` draws at its observed site:

| distribution of the observed site | observation | log likelihood |
|---|---|---|
| independent numbers (`to_event`) | an entry that is not masked, zeros too | of that entry |
| a multinomial | an entry with tokens | of its n tokens, n log p; the coefficient is left out |
| any other of whole rows | a row | of that row |

Predictions are new draws at the same places. Entries of a multinomial were chosen because they have
tokens, and new draws may have none there: predictions are then smaller than the observations on
average, also under the right model.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import MultinomialProbs

from inference.core.blocks import over_draws
from pp_models.model import simulate

Flat = dict[str, np.ndarray]  # site -> (draws, ...)


class Observations(NamedTuple):
    """What was observed.

    entries: (n,) places in the table of rows x columns, read row by row; None for rows
    width:   columns of that table
    """

    values: np.ndarray
    entries: np.ndarray | None
    width: int


def observations_of(fit: Any, draw: dict[str, Any]) -> Observations:
    """The observations of the fitted data; draw: any value of every site."""
    site = _observed(fit.model, fit.problem.hyper, draw, fit.data.pack())
    is_discrete = site["fn"].support.is_discrete
    values = np.asarray(site["value"], int if is_discrete else np.float64)
    base, mask = _unwrapped(site["fn"])
    if isinstance(base, MultinomialProbs):
        entries = np.flatnonzero(values)
    elif base.event_dim == 0:
        seen = np.broadcast_to(True if mask is None else np.asarray(mask), values.shape)
        entries = np.flatnonzero(seen)
    else:
        return Observations(values, None, values.shape[1])
    return Observations(values.reshape(-1)[entries], entries, values.shape[1])


def _observed(model: Any, hyper: Any, draw: Any, batch: Any) -> dict[str, Any]:
    """The observed site of `generate` under a draw."""
    seeded = handlers.seed(model.generate, jax.random.key(0))
    trace = handlers.trace(handlers.substitute(seeded, data=draw)).get_trace(hyper, batch)
    return trace[model.observed]


def _unwrapped(distribution: Any) -> tuple[Any, Any]:
    """A distribution without `to_event` and `mask`, and the mask."""
    mask = None
    while isinstance(distribution, dist.Independent | dist.MaskedDistribution):
        mask = getattr(distribution, "_mask", mask)
        distribution = distribution.base_dist
    return distribution, mask


def log_likelihoods(fit: Any, flat: Flat, seen: Observations) -> np.ndarray:
    """(draws, observations), some draws at a time."""
    hyper, batch, entries = fit.problem.hyper, fit.data.pack(), seen.entries
    found = over_draws(lambda block: _entry_logs(fit.model, hyper, block, batch, entries), flat)
    return np.asarray(found, np.float64)


@partial(jax.jit, static_argnames=("model",))
def _entry_logs(model, hyper, draws, batch, entries):
    def one(draw):
        site = _observed(model, hyper, draw, batch)
        base, _ = _unwrapped(site["fn"])
        if entries is None:
            return site["fn"].log_prob(site["value"]).reshape(batch.num_rows)
        if isinstance(base, MultinomialProbs):
            counts = site["value"].reshape(-1)[entries]
            return counts * jnp.log(base.probs.reshape(-1)[entries])
        return base.log_prob(site["value"]).reshape(-1)[entries]

    return jax.lax.map(one, draws)


def predictions(fit: Any, flat: Flat, seen: Observations) -> np.ndarray:
    """(draws, observations, ...) one new observation in place of each, under each draw."""
    hyper, batch = fit.problem.hyper, fit.data.pack()
    base, _ = _unwrapped(_observed(fit.model, hyper, _at(flat, 0), batch)["fn"])
    if isinstance(base, MultinomialProbs):
        return _new_counts(fit, flat, seen, np.asarray(base.total_count, np.int64))
    keys = jax.random.split(jax.random.key(1), len(next(iter(flat.values()))))
    found = over_draws(
        lambda block: _new(fit.model, hyper, block[0], block[1], batch, seen.entries),
        (flat, jax.random.key_data(keys)),
    )
    return np.asarray(found, seen.values.dtype)


@partial(jax.jit, static_argnames=("model",))
def _new(model, hyper, draws, keys, batch, entries):
    def one(each):
        key = jax.random.wrap_key_data(each[1])
        value = simulate(model, hyper, batch, key, each[0])[model.observed]
        return value if entries is None else value.reshape(-1)[entries]

    return jax.lax.map(one, (draws, keys))


def _at(flat: Flat, draw: int) -> dict[str, Any]:
    return {site: values[draw] for site, values in flat.items()}


def _new_counts(fit: Any, flat: Flat, seen: Observations, totals: np.ndarray) -> np.ndarray:
    """New counts on the host: NumPyro draws token by token, NumPy column by column."""
    rng, batch, found = np.random.default_rng(1), fit.data.pack(), []
    for draw in range(len(next(iter(flat.values())))):
        at = _probabilities(fit.model, fit.problem.hyper, _at(flat, draw), batch)
        probabilities = np.array(at, np.float64)
        probabilities /= probabilities.sum(-1, keepdims=True)
        found.append(rng.multinomial(totals, probabilities).reshape(-1)[seen.entries])
    return np.asarray(found, seen.values.dtype)


@partial(jax.jit, static_argnames=("model",))
def _probabilities(model, hyper, draw, batch):
    return _unwrapped(_observed(model, hyper, draw, batch)["fn"])[0].probs
