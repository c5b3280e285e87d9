"""A corpus on disk: two million documents written, checked and read in shuffled batches.

Documents of about 100 tokens over 20,000 words are drawn from 50 sparse topics, 20,000 at a time,
and written as they come; drawing is not counted. Then one shuffled pass in batches of 1,000 for all
devices, and natural-gradient LDA steps (K = 50) on batches read before, which say how fast batches
are consumed. Peak memory is that of the process after each stage, memory maps included.

    python benchmarks/corpus_store.py [--documents 2000000] [--file FILE.h5ad]

prints one JSON line.
"""

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse
from _common import CORES, parse, peak_gigabytes, report, timed

from inference.core.problem import make_problem
from inference.engines import svi
from pp_models.data import corpus as corpora

TOPICS, WORDS, LENGTH, BATCH, CHUNK = 50, 20_000, 100, 1000, 20_000


class Draws:
    """Blocks of documents, and the seconds that drawing them took."""

    def __init__(
        self,
        num_documents: int,
        seed: int = 0,
        num_topics: int = TOPICS,
        num_words: int = WORDS,
        length: int = LENGTH,
    ) -> None:
        self.num_documents, self.seconds = num_documents, 0.0
        self.num_topics, self.num_words, self.length = num_topics, num_words, length
        self._random = np.random.default_rng(seed)
        topics = self._random.dirichlet(np.full(num_words, 0.02), num_topics)
        # one ascending list, a unit for each topic
        self._topics = (np.cumsum(topics, axis=1) + np.arange(num_topics)[:, None]).ravel()

    def __iter__(self) -> Iterator[scipy.sparse.csr_array]:
        rng, topics, words = self._random, self.num_topics, self.num_words
        for first in range(0, self.num_documents, CHUNK):
            begin = time.perf_counter()
            number = min(CHUNK, self.num_documents - first)
            shares = rng.dirichlet(np.full(topics, 0.1), number)
            ascending = (np.cumsum(shares, axis=1) + np.arange(number)[:, None]).ravel()
            document = np.repeat(np.arange(number), rng.poisson(self.length, number))
            place = np.searchsorted(ascending, document + rng.random(len(document)))
            # shares sum to 1 up to rounding
            topic = np.clip(place - document * topics, 0, topics - 1)
            word = np.searchsorted(self._topics, topic + rng.random(len(document))) - topic * words
            entries = np.ones(len(document), np.int32), (document, np.clip(word, 0, words - 1))
            block = scipy.sparse.csr_array(entries, shape=(number, words))
            self.seconds += time.perf_counter() - begin
            yield block


def step_rate(corpus: Any, num_steps: int = 30) -> float:
    """Steps per second of natural-gradient LDA on batches in memory."""
    problem = make_problem("lda", corpus, {"num_topics": TOPICS, "alpha": 0.1, "eta": 0.02})
    algorithm = svi.build(problem, svi.Options(1, BATCH, 10.0, 0.7, bound_every=0))
    feed = corpus.batches(jax.random.key(2), BATCH, problem.devices)
    batches = list(itertools.islice(feed, num_steps))
    start = 0.01 * jax.random.gamma(jax.random.key(0), 100.0, (TOPICS, corpus.num_columns))

    def steps(state: Any, some: list[Any]) -> Any:
        for batch in some:
            state, _ = algorithm.step(jax.random.key(0), state, batch)
        return state

    _, state = timed(steps, algorithm.init(jax.random.key(0), {"beta": start}), batches[:2])
    return len(batches) / timed(steps, state, batches)[0]


def main() -> None:
    file = None, ".h5ad file to write to, kept (default: a temporary one)"
    chosen = parse(__doc__, documents=2_000_000, file=file)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(chosen.file or Path(temporary) / "corpus.h5ad")
        draws = Draws(chosen.documents)
        writing = timed(corpora.write, path, draws, overwrite=True)[0] - draws.seconds
        memory = {"written": peak_gigabytes()}
        checking, corpus = timed(corpora.read, path)
        size = path.stat().st_size
        batches = corpus.batches(jax.random.key(1), BATCH, jax.local_devices())
        seconds, number = timed(sum, (1 for _ in batches))
        memory["read"] = peak_gigabytes()
        reading, consuming = number / seconds, step_rate(corpus)
        memory["with_lda"] = peak_gigabytes()
        line = {
            "documents": chosen.documents,
            "cores": CORES,
            "peak_gb": memory,
            "tokens": int(corpus.total),
            "entries": corpus.num_entries,
            "bytes_per_token": round(size / corpus.total, 3),
            "write_tokens_per_second": round(corpus.total / writing),
            "check_gb_per_second": round(size / 1e9 / checking, 2),
            "batches_per_second": round(reading, 1),
            "lda_steps_per_second": round(consuming, 1),
            "ratio": round(reading / consuming, 1),
        }
    report("corpus_store", line)


if __name__ == "__main__":
    main()
