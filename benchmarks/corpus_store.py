"""A corpus on disk: two million documents written, checked and read in shuffled batches, beside the rate at which LDA consumes them.

Documents of about 100 tokens over 20,000 words are drawn from 50 sparse topics, 20,000 at a time, and written as they come; the drawing is not
counted. Then one whole shuffled pass in batches of 1,000, ready for all devices, and natural-gradient LDA steps (K = 50) on batches that were read
before. Peak memory is that of the process, pages of the memory maps included, after each stage.

    python benchmarks/corpus_store.py [--documents 2000000] [--file FILE.h5ad]     prints one JSON line
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

CORES = os.cpu_count() or 1
jax.config.update("jax_num_cpu_devices", CORES)

import scipy.sparse

from inference.engines import svi
from inference.run import fit
from pp_models.data import corpus as corpora
from pp_models.data.types import Data

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
        self.num_documents, self.seconds, self._random = (
            num_documents,
            0.0,
            np.random.default_rng(seed),
        )
        self.num_topics, self.num_words, self.length = num_topics, num_words, length
        topics = self._random.dirichlet(np.full(num_words, 0.02), num_topics)
        self._topics = (
            np.cumsum(topics, axis=1) + np.arange(num_topics)[:, None]
        ).ravel()  # one ascending list, a unit for each topic

    def __iter__(self) -> Iterator[scipy.sparse.csr_array]:
        for first in range(0, self.num_documents, CHUNK):
            begin = time.perf_counter()
            number = min(CHUNK, self.num_documents - first)
            shares = self._random.dirichlet(np.full(self.num_topics, 0.1), number)
            ascending = (np.cumsum(shares, axis=1) + np.arange(number)[:, None]).ravel()
            document = np.repeat(np.arange(number), self._random.poisson(self.length, number))
            topic = (
                np.searchsorted(ascending, document + self._random.random(len(document)))
                - document * self.num_topics
            )
            topic = np.clip(topic, 0, self.num_topics - 1)  # sums of shares are 1 up to rounding
            word = (
                np.searchsorted(self._topics, topic + self._random.random(len(document)))
                - topic * self.num_words
            )
            entries = (
                np.ones(len(document), np.int32),
                (document, np.clip(word, 0, self.num_words - 1)),
            )
            block = scipy.sparse.csr_array(entries, shape=(number, self.num_words))
            self.seconds += time.perf_counter() - begin
            yield block


def peak() -> float:
    return round(
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 3
    )  # GB: Linux counts in kB


def step_rate(corpus: Data, num_steps: int = 30) -> float:
    """Steps of natural-gradient LDA a second, on batches that are in memory."""
    problem = fit.make_problem("lda", corpus, {"num_topics": TOPICS, "alpha": 0.1, "eta": 0.02})
    algorithm = svi.build(problem, svi.Options(1, BATCH, 10.0, 0.7, bound_every=0))
    batches = [
        batch
        for batch, _ in zip(
            corpus.batches(jax.random.key(2), BATCH, problem.devices),
            range(num_steps),
            strict=False,
        )
    ]
    start = 0.01 * jax.random.gamma(jax.random.key(0), 100.0, (TOPICS, corpus.num_columns))
    state = algorithm.init(jax.random.key(0), {"beta": start})
    for batch in batches[:2]:  # compiles
        state, _ = algorithm.step(jax.random.key(0), state, batch)
    jax.block_until_ready(state)
    begin = time.perf_counter()
    for batch in batches:
        state, _ = algorithm.step(jax.random.key(0), state, batch)
    jax.block_until_ready(state)
    return len(batches) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=2_000_000)
    parser.add_argument("--file", help=".h5ad file to write to, kept (default: a temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path, draws = (
            Path(arguments.file or Path(temporary) / "corpus.h5ad"),
            Draws(arguments.documents),
        )
        begin = time.perf_counter()
        corpora.write(path, draws, overwrite=True)
        writing = time.perf_counter() - begin - draws.seconds
        line: dict = {
            "benchmark": "corpus_store",
            "documents": arguments.documents,
            "cores": CORES,
            "peak_gb": {"written": peak()},
        }

        begin = time.perf_counter()
        corpus = corpora.read(path)
        checking = time.perf_counter() - begin
        size = path.stat().st_size
        line |= {
            "tokens": int(corpus.total),
            "entries": corpus.num_entries,
            "bytes_per_token": round(size / corpus.total, 3),
        }
        line |= {
            "write_tokens_per_second": round(corpus.total / writing),
            "check_gb_per_second": round(size / 1e9 / checking, 2),
        }

        begin = time.perf_counter()
        number = sum(1 for _ in corpus.batches(jax.random.key(1), BATCH, jax.local_devices()))
        reading = number / (time.perf_counter() - begin)
        line["peak_gb"]["read"] = peak()
        consuming = step_rate(corpus)
        line["peak_gb"]["with_lda"] = peak()
        line |= {
            "batches_per_second": round(reading, 1),
            "lda_steps_per_second": round(consuming, 1),
            "ratio": round(reading / consuming, 1),
        }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
