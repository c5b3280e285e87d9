"""A simulated stream of documents that arrive word by word (Theis & Hoffman 2015, section 4.3).

At each tick R ~ Poisson(rate) documents join the active ones, then each active document shows one more of its words with probability p, chosen
at random among those not shown yet. A document that has shown all its words is no longer active. A document enters the database with its first
word, so that the database holds complete and incomplete documents at any time:

    arrivals = Arrivals(data, rate=5, probability=0.5, seed=0)
    ids = no_ids(data)
    for tick in arrivals:
        feed(database, tick, ids)

Every word of every document is shown exactly once. A document without words never shows up.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from pp_models.data.database import Database
from pp_models.data.types import Data
from pp_models.errors import InputError

LARGEST_RATE = 1e9


class Words(NamedTuple):
    """Words observed: the row of the data each belongs to, its column, and how often (always 1)."""

    rows: np.ndarray
    columns: np.ndarray
    counts: np.ndarray


class Tick(NamedTuple):
    """What one tick brings. `new_documents`: rows of the data that are seen for the first time, in increasing order."""

    new_documents: np.ndarray
    words: Words


class Arrivals:
    """An iterator of ticks, the same for the same seed.

    data:         the documents, kind "counts"
    rate:         documents that become active in a tick, on average
    probability:  that an active document shows a word in a tick
    seed:         a whole number or a JAX random key
    shuffle:      take the documents in random order; otherwise as they come in the data
    """

    def __init__(
        self, data: Data, rate: float, probability: float, seed: Any = 0, shuffle: bool = True
    ) -> None:
        if not isinstance(data, Data) or data.kind != "counts":
            raise InputError(
                f"Only counts arrive word by word, not {getattr(data, 'kind', type(data).__name__)}: make the data with data.counts."
            )
        if not isinstance(rate, int | float | np.number) or not 0 < rate <= LARGEST_RATE:
            raise InputError(
                f"rate must be above 0 and at most {LARGEST_RATE:g} documents a tick, not {rate!r}."
            )
        if not isinstance(probability, int | float | np.number) or not 0 < probability <= 1:
            raise InputError(f"probability must be above 0 and at most 1, not {probability!r}.")
        self.rate, self.probability = float(rate), float(probability)
        self._random = np.random.default_rng(_seed(seed))
        counts = data.matrix.data.astype(np.int64)
        ends = np.cumsum(np.append(0, counts))[data.matrix.indptr]
        self._tokens = np.repeat(
            data.matrix.indices, counts
        )  # of a document: those shown, then the others
        self._next, self._ends, self._starts = ends[:-1].copy(), ends[1:], ends[:-1]
        waiting = np.flatnonzero(self._ends > self._starts)
        self._waiting = self._random.permutation(waiting) if shuffle else waiting
        self._active = self._waiting[:0]

    @property
    def num_waiting(self) -> int:
        """Documents that are not active yet."""
        return len(self._waiting)

    @property
    def num_active(self) -> int:
        """Documents that have become active and have words left to show."""
        return len(self._active)

    def __iter__(self) -> "Arrivals":
        return self

    def __next__(self) -> Tick:
        if not self.num_waiting and not self.num_active:
            raise StopIteration
        number = self._random.poisson(self.rate)
        self._active = np.concatenate([self._active, self._waiting[:number]])
        self._waiting = self._waiting[number:]
        rows = np.sort(self._active[self._random.random(self.num_active) < self.probability])
        here = self._next[rows]
        chosen = self._random.integers(
            here, self._ends[rows]
        )  # one step of Fisher and Yates's shuffle in each document
        columns = self._tokens[chosen]
        self._tokens[chosen] = self._tokens[here]
        self._tokens[here] = columns
        self._next[rows] += 1
        self._active = self._active[self._next[self._active] < self._ends[self._active]]
        return Tick(
            rows[here == self._starts[rows]], Words(rows, columns, np.ones(len(rows), np.int64))
        )


def _seed(seed: Any) -> Any:
    if isinstance(seed, jax.Array):
        key = (
            jax.random.key_data(seed)
            if jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key)
            else seed
        )
        return np.asarray(key).ravel()
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(
            f"seed must be a whole number, 0 or more, or a JAX random key, not {seed!r}."
        )
    return int(seed)


def no_ids(data: Data) -> np.ndarray:
    """For each row of the data its id in the database: -1 while it is not there."""
    return np.full(data.num_rows, -1, np.int64)


def feed(database: Database, tick: Tick, ids: np.ndarray) -> np.ndarray:
    """Add a tick to the database in one commit, and the ids of its new documents to `ids`. Returns the database ids that changed."""
    rows = ids[tick.words.rows]
    if not np.array_equal(tick.new_documents, tick.words.rows[rows < 0]):
        raise InputError(
            "The new documents of the tick are not those that the database lacks: feed every tick once, in order, with the same ids."
        )
    rows[rows < 0] = database.num_rows + np.arange(len(tick.new_documents))
    ids[tick.new_documents] = database.add(
        rows, tick.words.columns, tick.words.counts, new_rows=len(tick.new_documents)
    )
    return rows
