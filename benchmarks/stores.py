"""Databases and corpora on disk: seconds to write and read them, and peak memory.

    python benchmarks/stores.py [--documents 2000000] [--rounds 3] [--beside TREE]

Every stage runs in a process of its own. With `--beside`, the stages of another checkout of this
repository (0.1.0 or later) run in turn with those of this one. Prints one JSON line for each stage
and tree: the least wall and processor seconds of all rounds, and the least peak memory in MB, that
of the imports included.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

WORDS, BLOCK = 5000, 20_000
DATABASE, CORPUS = "database", "corpus.h5ad"


def draw(num_documents: int, length: float, seed: int = 0) -> Any:
    """Documents whose words follow Zipf's law."""
    rng = np.random.default_rng(seed)
    shares = np.cumsum(1 / np.arange(1, WORDS + 1))
    document = np.repeat(np.arange(num_documents), 1 + rng.poisson(length - 1, num_documents))
    word = np.searchsorted(shares, rng.random(len(document)) * shares[-1])
    entries = np.ones(len(word), np.int32), (document, word)
    return scipy.sparse.csr_array(entries, shape=(num_documents, WORDS))


def modules() -> tuple[Any, Any, Any]:
    """The modules for databases, arrivals and corpora of this version, or of 0.1.0."""
    try:
        from pp_models.data import arrivals, corpus, database
    except ImportError:
        from pp_models import arrivals, database  # type: ignore[attr-defined, no-redef]
        from pp_models import store as corpus  # type: ignore[attr-defined, no-redef]
    return database, arrivals, corpus


# Stages: each prepares, yields, and is timed from there to its end --------------------------------


def append_at_once(folder: Path, _: int) -> Iterator[None]:
    """20,000 documents of 100 words, one commit."""
    rows = draw(BLOCK, 100)
    with modules()[0].Database(WORDS, path=folder / DATABASE) as database:
        yield
        database.append(rows)


def append_in_parts(folder: Path, _: int) -> Iterator[None]:
    """20,000 documents of 100 words, a commit for every 250."""
    parts = [draw(250, 100, seed) for seed in range(BLOCK // 250)]
    with modules()[0].Database(WORDS, path=folder / "parts") as database:
        yield
        for part in parts:
            database.append(part)


def read_batches(folder: Path, _: int) -> Iterator[None]:
    """400 batches of 256 random rows of the 20,000."""
    rng = np.random.default_rng(0)
    chosen = [rng.choice(BLOCK, 256, replace=False) for _ in range(400)]
    with modules()[0].Database.open(folder / DATABASE, read_only=True) as database:
        yield
        for rows in chosen:
            database.data(rows)


def word_by_word(folder: Path, _: int) -> Iterator[None]:
    """100,000 words of 1,000 documents, one commit a tick (Theis & Hoffman 2015, section 4.3)."""
    from pp_models import data

    databases, arrivals, _ = modules()
    documents = data.counts(draw(1000, 100))
    ticks = list(arrivals.Arrivals(documents, rate=5, probability=0.5, seed=0))
    ids = arrivals.no_ids(documents)
    with databases.Database(WORDS, path=folder / "words") as database:
        yield
        for tick in ticks:
            arrivals.feed(database, tick, ids)


def write_corpus(folder: Path, num_documents: int) -> Iterator[None]:
    """Documents of 10 words, 20,000 at a time."""
    block = draw(BLOCK, 10)
    yield
    modules()[2].write(folder / CORPUS, (block for _ in range(num_documents // BLOCK)))


def open_corpus(folder: Path, _: int) -> Iterator[None]:
    """The same opened and checked, and its hash, which every fit records."""
    yield
    modules()[2].read(folder / CORPUS).hash  # noqa: B018


def shuffle_corpus(folder: Path, _: int) -> Iterator[None]:
    """One shuffled pass over the same in batches of 1,000, each put on a device."""
    import jax

    key, devices = jax.random.key(0), jax.local_devices()
    corpus = modules()[2].read(folder / CORPUS, verify=False)
    yield
    for _ in corpus.batches(key, 1000, devices):
        pass


STAGES: dict[str, Callable[[Path, int], Iterator[None]]] = {
    stage.__name__: stage
    for stage in (
        append_at_once,
        append_in_parts,
        read_batches,
        word_by_word,
        write_corpus,
        open_corpus,
        shuffle_corpus,
    )
}


def run_stage(name: str, folder: Path, num_documents: int) -> None:
    """Print the wall seconds, processor seconds and peak memory of a stage."""
    import inference  # noqa: F401  what every user has loaded

    modules()
    stage = STAGES[name](folder, num_documents)
    next(stage)
    wall, processor = time.perf_counter(), time.process_time()
    for _ in stage:
        pass
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(json.dumps([wall, processor, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3]))


def measure(trees: list[Path], num_documents: int, rounds: int) -> None:
    found: dict[tuple[str, Path], list[Any]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as base:
            for name in STAGES:
                for number, tree in enumerate(trees):
                    folder = Path(base) / str(number)
                    folder.mkdir(exist_ok=True)
                    done = subprocess.run(
                        [sys.executable, __file__, name, folder, str(num_documents)],
                        cwd=tree,
                        env=os.environ | {"PYTHONPATH": str(tree)},
                        stdout=subprocess.PIPE,
                        check=True,
                    )
                    found.setdefault((name, tree), []).append(json.loads(done.stdout))
    for (name, tree), times in found.items():
        wall, processor, memory = (round(x, 3) for x in np.min(times, axis=0))
        line = {"tree": str(tree), "seconds": wall, "processor": processor, "peak_mb": memory}
        print(json.dumps({"benchmark": "stores", "stage": name} | line), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in STAGES:
        run_stage(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    else:
        from _common import parse

        beside = None, "another checkout to measure in turn with this one"
        chosen = parse(__doc__, documents=2_000_000, rounds=3, beside=beside)
        here = Path(__file__).resolve().parents[1]
        trees = [Path(chosen.beside).resolve()] if chosen.beside else []
        measure([*trees, here], chosen.documents, chosen.rounds)
