"""Parts that the benchmarks share: devices, clocks, JSON lines, options, corpora, peers, figures.

Import this module before JAX starts: it gives JAX one device for each core.
"""

import argparse
import importlib
import json
import os
import resource
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

CORES = os.cpu_count() or 1
jax.config.update("jax_num_cpu_devices", CORES)

import numpy as np
import scipy.sparse

import inference
import pp_models
from inference.core.posteriors import Point
from inference.core.registry import load_engine, make_options
from inference.io.fits import Fit
from pp_models.data.types import Data

REQUIRED = object()  # an option without a default


# The command line ---------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser, options: dict[str, Any]) -> None:
    """Add `--name` for each name -> default or (default, help, choices, type), the rest optional.

    False makes a flag, a list takes several values, REQUIRED and None take text.
    """
    for name, given in options.items():
        filled = (given if isinstance(given, tuple) else (given,)) + (None,) * 3
        default, text, choices, kind = filled[:4]
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true", help=text)
            continue
        example = default[0] if isinstance(default, list) and default else default
        plain = isinstance(example, int | float)
        settings: dict[str, Any] = {"type": kind or (type(example) if plain else str)}
        settings |= {"required": True} if default is REQUIRED else {"default": default}
        if isinstance(default, list):
            settings["nargs"] = "*"
        parser.add_argument(flag, help=text, choices=choices, **settings)


def run_commands(description: str, commands: dict[Any, dict[str, Any]]) -> None:
    """Run the function that the first argument names, with its options as one argument."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="command", required=True)
    for function, options in commands.items():
        part = parts.add_parser(function.__name__, help=(function.__doc__ or "").splitlines()[0])
        part.set_defaults(function=function)
        add_options(part, options)
    arguments = parser.parse_args()
    arguments.function(arguments)


def parse(description: str, **options: Any) -> argparse.Namespace:
    """The options of a benchmark without sub-commands."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, options)
    return parser.parse_args()


def report(benchmark: str, line: dict[str, Any]) -> None:
    """Print one JSON line."""
    print(json.dumps({"benchmark": benchmark, **line}), flush=True)


def rounded(x: Any, digits: int = 4) -> Any:
    """Real numbers rounded to some decimals, inside dictionaries and lists too."""
    if isinstance(x, dict):
        return {name: rounded(value, digits) for name, value in x.items()}
    if isinstance(x, list | tuple | np.ndarray):
        return [rounded(value, digits) for value in x]
    return round(float(x), digits) if isinstance(x, float | np.floating | jax.Array) else x


# Clocks and memory --------------------------------------------------------------------------------


def timed(function: Any, *arguments: Any, **options: Any) -> tuple[float, Any]:
    """(seconds, result), waiting for arrays."""
    begin = time.perf_counter()
    result = jax.block_until_ready(function(*arguments, **options))
    return time.perf_counter() - begin, result


def peak_gigabytes() -> float:
    """Peak resident memory of this process; Linux counts in kB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 3)


# Engines stepped by hand --------------------------------------------------------------------------


class Bound(NamedTuple):
    """An engine with its options, bound to a problem."""

    engine: Any
    options: Any
    problem: Any
    algorithm: Any

    def fit(self, state: Any) -> Fit:
        """The fit that a state stands for."""
        return Fit(self.problem, self.engine.name, {}, self.algorithm.posterior(state), {}, 0.0)


def bind(engine: str, problem: Any, **options: Any) -> Bound:
    chosen = load_engine(engine)
    settled = chosen.settle(make_options(chosen, options), problem.data)
    return Bound(chosen, settled, problem, chosen.build(problem, settled))


def all_rows(problem: Any) -> Any:
    """One batch of all rows on each device."""
    data = problem.data
    return data.shards(np.arange(data.num_rows), data.num_rows, problem.devices)


# Corpora and scores -------------------------------------------------------------------------------


def read_counts(path: str) -> Data:
    return pp_models.data.counts(scipy.sparse.load_npz(path))


def draw_corpus(
    num_documents: int, num_topics: int = 100, num_words: int = 8000, seed: int = 0
) -> Data:
    """Documents of about 200 tokens drawn from LDA with alpha = eta = 0.05."""
    rng = np.random.default_rng(seed)
    topics = np.cumsum(rng.dirichlet(np.full(num_words, 0.05), num_topics), axis=1)
    shares = np.cumsum(rng.dirichlet(np.full(num_topics, 0.05), num_documents), axis=1)
    document = np.repeat(np.arange(num_documents), rng.poisson(200, num_documents))
    chosen = (shares[document] < rng.random(len(document))[:, None]).sum(1)
    topic = np.minimum(chosen, num_topics - 1)
    word = np.empty(len(document), np.int64)
    for k in range(num_topics):  # one inverse-CDF look-up per topic
        mine = topic == k
        word[mine] = np.minimum(np.searchsorted(topics[k], rng.random(mine.sum())), num_words - 1)
    entries = np.ones(len(word), np.int32), (document, word)
    shape = num_documents, num_words
    return pp_models.data.counts(scipy.sparse.csr_array(entries, shape=shape))


def completion_of(problem: Any, topics: Any, heldout: Data) -> float:
    """Document completion of LDA at the topics, normalised here, of any implementation."""
    posterior = Point(problem, {})
    shares = np.asarray(topics) / np.sum(topics, 1, keepdims=True)
    posterior.values = {"beta": shares.astype(np.float32)}
    fit = Fit(problem, "map", {}, posterior, {}, 0.0)
    return float(inference.document_completion(fit, heldout).value)


# Peers --------------------------------------------------------------------------------------------


def installed(name: str) -> Any:
    """The peer's module, or None with a line on the terminal."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"{name} left out: {error}", flush=True)
        return None


def gensim_corpus(data: Data) -> tuple[list[Any], dict[int, str]]:
    """Documents and words as gensim's LDA takes them."""
    from gensim.matutils import Sparse2Corpus

    matrix = scipy.sparse.csr_matrix(data.matrix)
    words = {i: str(i) for i in range(data.num_columns)}
    return list(Sparse2Corpus(matrix, documents_columns=False)), words


def tomotopy_model(data: Data, num_topics: int, **settings: Any) -> Any:
    """tomotopy's LDA on counts, before its first sweep."""
    import tomotopy

    model = tomotopy.LDAModel(k=num_topics, seed=0, **settings)
    matrix = scipy.sparse.csr_array(data.matrix)
    names = np.array([f"w{v}" for v in range(data.num_columns)])
    for row in range(matrix.shape[0]):
        part = slice(matrix.indptr[row], matrix.indptr[row + 1])
        words = np.repeat(names[matrix.indices[part]], matrix.data[part].astype(int))
        model.add_doc(words.tolist())
    model.train(0)
    return model


def tomotopy_topics(model: Any, num_columns: int) -> np.ndarray:
    """(K, columns) mean topics given its allocations.

    tomotopy leaves out words of no training document; they get the prior's share, as in ours.
    """
    column = np.array([int(name[1:]) for name in model.used_vocabs])
    topics = np.full((model.k, num_columns), float(model.eta))
    sizes = np.asarray(model.get_count_by_topics(), float)[:, None] + model.eta * len(column)
    topics[:, column] = sizes * np.stack([model.get_topic_word_dist(k) for k in range(model.k)])
    return topics / topics.sum(1, keepdims=True)


# Figures ------------------------------------------------------------------------------------------


def pyplot() -> Any:
    """matplotlib.pyplot without a display."""
    import matplotlib

    matplotlib.use("agg")
    return importlib.import_module("matplotlib.pyplot")


def save(figure: Any, path: str | Path) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot().close(figure)
    return str(path)
