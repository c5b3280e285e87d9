"""Initial topics, found by short fits of simpler models.

In models whose documents are coupled (correlated NMF, CTM) a topic that starts in the wrong place
cannot leave it, if the documents' weights lie in few dimensions (docs/experiments.md). `topics`
fits a mixture of topics in free proportions by maximum likelihood (probabilistic latent semantic
analysis; the divergence NMF of C18 with normalised rows), by EM on a sample of the rows: theta and
beta are the shares of the expected counts plus SMOOTH, in turn. It starts from several random sets
of topics and keeps the one with the highest likelihood.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_models.data.batches import Batch
from pp_models.data.types import Data
from pp_models.elimination.allocate import allocate

SMOOTH = 0.05  # counts added to every cell
WORK = 5e8  # entries x topics x sweeps x starts: about three seconds of a core
MOST_STARTS, MOST_SWEEPS, LEAST_SWEEPS = 10, 150, 20
MOST_ROWS = 1000
ROWS_OF_A_TOPIC = 20


def effort(num_entries: int, num_topics: int) -> tuple[int, int]:
    """The numbers of starts and sweeps that fit into `WORK`: sweeps first, then starts."""
    cost = max(1, num_entries * num_topics)
    starts = int(np.clip(WORK // (MOST_SWEEPS * cost), 1, MOST_STARTS))
    return starts, int(np.clip(WORK // (starts * cost), LEAST_SWEEPS, MOST_SWEEPS))


def topics(key: jax.Array, data: Data, num_topics: int) -> tuple[jax.Array, jax.Array]:
    """(K, columns) topics and (rows of a sample, K) weights of the documents used to find them. A
    topic sums to one."""
    spread = np.linspace(0, data.num_rows - 1, min(data.num_rows, MOST_ROWS))
    rows = np.unique(spread.round().astype(int))
    batch = data.pack(rows)
    starts, sweeps = effort(int(data.lengths[rows].sum()), num_topics)
    value, beta, weights = _search(jax.random.split(key, starts), batch, num_topics, sweeps)
    best = jnp.argmax(value)
    return beta[best], weights[best]


def from_rows(key: jax.Array, data: Data, num_topics: int) -> jax.Array:
    """(K, columns) topics: half the frequencies in a few random rows, half those in all of them.
    Topics that start at noise are nearly equal, and take many steps to separate."""
    draw = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    number = min(ROWS_OF_A_TOPIC, data.num_rows)
    some = data.select(np.unique(draw.integers(0, data.num_rows, num_topics * number)))
    weights = np.zeros((num_topics, some.num_rows))
    chosen = draw.integers(0, some.num_rows, (num_topics, number))
    weights[np.arange(num_topics)[:, None], chosen] = 1
    sums = np.asarray(some.matrix.T @ weights.T).T
    everywhere = sums.sum(0) + 1e-3
    shares = (sums + 1e-3 / data.num_columns) / (sums.sum(1, keepdims=True) + 1e-3)
    return jnp.asarray(0.5 * shares + 0.5 * everywhere / everywhere.sum(), float)


def topics_and_places(
    key: jax.Array, data: Data | Batch, num_topics: int, rank: int
) -> tuple[jax.Array, jax.Array]:
    """Topics and their locations (K, rank). Both are noise for a `Batch`, whose caller uses only
    the sites of its rows."""
    topic_key, place_key = jax.random.split(key)
    if isinstance(data, Batch):
        beta = _random_topics(topic_key, num_topics, data.num_columns)
        return beta, jax.random.normal(place_key, (num_topics, rank))
    beta, weights = topics(topic_key, data, num_topics)
    return beta, locations(place_key, weights, rank)


def _random_topics(key: jax.Array, num_topics: int, num_columns: int) -> jax.Array:
    return _shares(0.5 + jax.random.uniform(key, (num_topics, num_columns)))


@partial(jax.jit, static_argnames=("num_topics", "sweeps"))
def _search(keys: jax.Array, batch: Batch, num_topics: int, sweeps: int) -> Any:
    """Log likelihood, topics and weights after EM from each key."""

    def one(key):
        beta = _random_topics(key, num_topics, batch.num_columns)
        weights = jnp.ones((batch.num_rows, num_topics))

        def improve(_, state):
            weights, beta, _ = state
            logits = jnp.log(_shares(weights)), jnp.log(beta)
            bound = jax.value_and_grad(lambda pair: allocate(*pair, batch.entries))
            value, counts = bound(logits)
            return counts[0] + SMOOTH, _shares(counts[1] + SMOOTH), value

        begin = (weights, beta, jnp.zeros((), beta.dtype))
        weights, beta, value = jax.lax.fori_loop(0, sweeps, improve, begin)
        return value, beta, weights

    return jax.lax.map(one, keys)


def _shares(x: jax.Array) -> jax.Array:
    return x / jnp.sum(x, -1, keepdims=True)


def locations(key: jax.Array, weights: jax.Array, rank: int) -> jax.Array:
    """(K, rank) locations of topics whose inner products approximate covariances of log weights.

    The covariances are those of log(weights + 1), after subtracting the mean of each row (its
    length) and of each column (the topic's size). Their leading directions are used, plus noise of
    sd 0.1 for the directions without information.
    """
    logs = jnp.log1p(weights)
    logs -= jnp.mean(logs, 1, keepdims=True)
    logs -= jnp.mean(logs, 0)
    variances, directions = jnp.linalg.eigh(logs.T @ logs / len(logs))
    num_topics = len(variances)
    kept = min(rank, num_topics)
    places = (jnp.sqrt(jnp.maximum(variances, 0)) * directions)[:, ::-1][:, :kept]
    noise = 0.1 * jax.random.normal(key, (num_topics, rank))
    return jnp.pad(places, ((0, 0), (0, rank - kept))) + noise
