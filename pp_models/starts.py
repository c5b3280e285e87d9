"""Where topics begin in models whose documents are bound together (correlated NMF, CTM): at the best of a few short fits without that bond.

A mixture of topics in free proportions is fitted by maximum likelihood (probabilistic latent semantic analysis; the divergence NMF of C18, rows
normalised), by EM on a sample of the rows:

    theta_dk <- shares of E[counts of topic k in d] + SMOOTH,    beta_kv <- shares of E[counts of topic k on v] + SMOOTH

from several random topics at once; the likeliest is kept. Where documents' weights lie in few dimensions, a topic that starts in the wrong place
cannot leave it (docs/calibration.md has what is found from here).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_models.batches import Batch
from pp_models.data import Data
from pp_models.eliminate import allocate

SMOOTH = 0.05  # counts added to every cell
WORK = 5e8  # entries x topics x sweeps x starts: some three seconds of a core
MOST_STARTS, MOST_SWEEPS, LEAST_SWEEPS = 10, 150, 20
MOST_ROWS = 1000


def effort(num_entries: int, num_topics: int) -> tuple[int, int]:
    """Starts and sweeps that `WORK` pays for: sweeps first, then starts."""
    cost = max(1, num_entries * num_topics)
    starts = int(np.clip(WORK // (MOST_SWEEPS * cost), 1, MOST_STARTS))
    return starts, int(np.clip(WORK // (starts * cost), LEAST_SWEEPS, MOST_SWEEPS))


def topics(key: jax.Array, data: Data, num_topics: int) -> tuple[jax.Array, jax.Array]:
    """Topics (K, columns), rows summing to one, and the weights (rows of a sample, K) of the documents they were found in."""
    rows = np.unique(np.linspace(0, data.num_rows - 1, min(data.num_rows, MOST_ROWS)).round().astype(int))
    batch = data.pack(rows)
    starts, sweeps = effort(int(data.lengths[rows].sum()), num_topics)
    value, beta, weights = _search(jax.random.split(key, starts), batch, num_topics, sweeps)
    best = jnp.argmax(value)
    return beta[best], weights[best]


ROWS_OF_A_TOPIC = 20


def from_rows(key: jax.Array, data: Data, num_topics: int) -> jax.Array:
    """Topics (K, columns), rows summing to one: each half the frequencies of a few random rows' entries and half those of all.

    Factors that begin at noise are all alike to the rows, and it takes many steps until they are not.
    """
    draw = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    number = min(ROWS_OF_A_TOPIC, data.num_rows)
    some = data.select(np.unique(draw.integers(0, data.num_rows, num_topics * number)))
    weights = np.zeros((num_topics, some.num_rows))
    weights[np.arange(num_topics)[:, None], draw.integers(0, some.num_rows, (num_topics, number))] = 1
    sums = np.asarray(some.matrix.T @ weights.T).T
    everywhere = sums.sum(0) + 1e-3
    shares = (sums + 1e-3 / data.num_columns) / (sums.sum(1, keepdims=True) + 1e-3)
    return jnp.asarray(0.5 * shares + 0.5 * everywhere / everywhere.sum(), float)


def topics_and_places(key: jax.Array, data: Data | Batch, num_topics: int, rank: int) -> tuple[jax.Array, jax.Array]:
    """Topics and their locations (K, rank). For a batch of rows, which only asks for its rows' sites, both are noise."""
    topic_key, place_key = jax.random.split(key)
    if isinstance(data, Batch):
        return _shares(0.5 + jax.random.uniform(topic_key, (num_topics, data.num_columns))), jax.random.normal(place_key, (num_topics, rank))
    beta, weights = topics(topic_key, data, num_topics)
    return beta, locations(place_key, weights, rank)


@partial(jax.jit, static_argnames=("num_topics", "sweeps"))
def _search(keys: jax.Array, batch: Batch, num_topics: int, sweeps: int) -> Any:
    def one(key):
        beta = _shares(0.5 + jax.random.uniform(key, (num_topics, batch.num_columns)))
        weights = jnp.ones((batch.num_rows, num_topics))

        def improve(_, state):
            weights, beta, _ = state
            logits = jnp.log(_shares(weights)), jnp.log(beta)
            value, counts = jax.value_and_grad(lambda pair: allocate(*pair, batch.entries))(logits)
            return counts[0] + SMOOTH, _shares(counts[1] + SMOOTH), value

        weights, beta, value = jax.lax.fori_loop(0, sweeps, improve, (weights, beta, jnp.zeros((), beta.dtype)))
        return value, beta, weights

    return jax.lax.map(one, keys)


def _shares(x: jax.Array) -> jax.Array:
    return x / jnp.sum(x, -1, keepdims=True)


def locations(key: jax.Array, weights: jax.Array, rank: int) -> jax.Array:
    """Topics' places (K, rank) whose inner products are the covariances of log weights, with a tenth of noise where these say nothing.

    The covariances of the logarithms of weights + 1, of which a row's mean (its length) and a column's (the topic's size) are taken out, in their
    leading directions.
    """
    logs = jnp.log1p(weights)
    logs -= jnp.mean(logs, 1, keepdims=True)
    logs -= jnp.mean(logs, 0)
    variances, directions = jnp.linalg.eigh(logs.T @ logs / len(logs))
    num_topics = len(variances)
    kept = min(rank, num_topics)
    places = (jnp.sqrt(jnp.maximum(variances, 0)) * directions)[:, ::-1][:, :kept]
    return jnp.pad(places, ((0, 0), (0, rank - kept))) + 0.1 * jax.random.normal(key, (num_topics, rank))
