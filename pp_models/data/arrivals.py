"""A simulated stream of documents that arrive word by word (Theis & Hoffman 2015, section 4.3).

At each tick R ~ Poisson(rate) documents become active, then each active document shows one more of
its words with probability p, chosen at random among those not shown yet. A document enters the
database with its first word and is no longer active after its last:

    arrivals = Arrivals(data, rate=5, probability=0.5, seed=0)
    ids = no_ids(data)
    for tick in arrivals:
        feed(database, tick, ids)

Every word of every document is shown exactly once.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from pp_models.data.database import Database
from pp_models.data.types import Data
from pp_models.errors import InputError

LARGEST_RATE = 1e9


class Words(NamedTuple):
    """Words that arrive: the row of the data, the column, and the count (always 1) of each."""

    rows: np.ndarray
    columns: np.ndarray
    counts: np.ndarray


class Tick(NamedTuple):
    """The words of a tick, and the rows that are seen for the first time, in increasing order."""

    new_documents: np.ndarray
    words: Words


class Arrivals:
    """An iterator of ticks, the same for the same seed.

    rate:         mean number of documents that become active in a tick
    probability:  that an active document shows a word in a tick
    seed:         a whole number or a JAX random key
    shuffle:      take the documents in random order, not in that of the data
    """

    def __init__(
        self, data: Data, rate: float, probability: float, seed: Any = 0, shuffle: bool = True
    ) -> None:
        kind = getattr(data, "kind", type(data).__name__)
        if not isinstance(data, Data) or kind != "counts":
            told = f"Only counts arrive word by word, not {kind}"
            raise InputError(f"{told}: make the data with data.counts.")
        if not isinstance(rate, int | float | np.number) or not 0 < rate <= LARGEST_RATE:
            limits = f"above 0 and at most {LARGEST_RATE:g} documents a tick"
            raise InputError(f"rate must be {limits}, not {rate!r}.")
        if not isinstance(probability, int | float | np.number) or not 0 < probability <= 1:
            raise InputError(f"probability must be above 0 and at most 1, not {probability!r}.")
        self.rate, self.probability = float(rate), float(probability)
        self._random = np.random.default_rng(_seed(seed))
        counts = data.matrix.data.astype(np.int64)
        ends = np.cumsum(np.append(0, counts))[data.matrix.indptr]
        self._tokens = np.repeat(data.matrix.indices, counts)  # a document's shown words first
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
        chosen = self._random.integers(here, self._ends[rows])  # a step of Fisher-Yates in each
        columns = self._tokens[chosen]
        self._tokens[chosen] = self._tokens[here]
        self._tokens[here] = columns
        self._next[rows] += 1
        self._active = self._active[self._next[self._active] < self._ends[self._active]]
        words = Words(rows, columns, np.ones(len(rows), np.int64))
        return Tick(rows[here == self._starts[rows]], words)


def _seed(seed: Any) -> Any:
    if isinstance(seed, jax.Array):
        typed = jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(seed) if typed else seed).ravel()
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        what = "a whole number, 0 or more, or a JAX random key"
        raise InputError(f"seed must be {what}, not {seed!r}.")
    return int(seed)


def no_ids(data: Data) -> np.ndarray:
    """The ids in the database of the rows of the data: -1 for rows that are not there yet."""
    return np.full(data.num_rows, -1, np.int64)


def feed(database: Database, tick: Tick, ids: np.ndarray) -> np.ndarray:
    """Add a tick to the database in one commit and its new documents to `ids`.

    Returns the database ids that changed.
    """
    rows, new = ids[tick.words.rows], tick.new_documents
    if not np.array_equal(new, tick.words.rows[rows < 0]):
        told = "The new documents of the tick are not those that the database lacks"
        raise InputError(f"{told}: feed every tick once, in order, with the same ids.")
    rows[rows < 0] = database.num_rows + np.arange(len(new))
    ids[new] = database.add(rows, tick.words.columns, tick.words.counts, new_rows=len(new))
    return rows
