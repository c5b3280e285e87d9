"""KL-NMF iterations against scikit-learn: `map` on Bayesian NMF with a flat prior, and CAVI, on both cores.

Both start from the same factors and make the same multiplicative updates of both factors (documents' weights first), so their
log-likelihoods must follow the same trajectory. The corpus is a file (--data, e.g. the AP corpus: 2,246 x 10,473) or a synthetic one of that size.

    python benchmarks/nmf_throughput.py [--data corpus.npz] [--topics 50] [--iterations 30]     prints one JSON line
"""

import argparse
import json
import os
import time
import warnings
from typing import Any

import jax
import numpy as np
import scipy.sparse

CORES = os.cpu_count() or 1
jax.config.update("jax_num_cpu_devices", CORES)

import pp_models
from inference.engines import cavi
from inference.engines import map as map_
from inference.run import fit
from pp_models.data.types import Data


def synthetic(num_documents: int = 2246, num_words: int = 10473, seed: int = 0) -> Data:
    """Counts of the AP corpus's size and sparsity: Zipfian words, 135 entries a document."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, num_words + 1) ** 0.9
    tilt = rng.gamma(0.3, 1, (20, num_words)) * frequency
    tilt /= tilt.sum(1, keepdims=True)
    shares = rng.dirichlet(np.full(20, 0.2), num_documents) @ tilt
    return pp_models.data.counts(rng.multinomial(rng.poisson(194, num_documents), shares))


def run(
    algorithm: Any, start: dict, batches: Any, iterations: int
) -> tuple[float, float, list[float], Any]:
    """(compile seconds, seconds per iteration, objective per iteration, final state)."""
    begin = time.perf_counter()
    state, info = algorithm.step(
        jax.random.key(0), algorithm.init(jax.random.key(0), start), batches
    )
    state, info = algorithm.step(
        jax.random.key(0), state, batches
    )  # the second step has its own shapes of locals
    jax.block_until_ready((state, info))
    compiled = time.perf_counter() - begin
    state, infos = algorithm.init(jax.random.key(0), start), []
    state, info = algorithm.step(jax.random.key(0), state, batches)
    infos.append(info.bound)
    jax.block_until_ready(state)
    begin = time.perf_counter()
    for _ in range(iterations - 1):
        state, info = algorithm.step(jax.random.key(0), state, batches)
        infos.append(info.bound)
    jax.block_until_ready((state, infos))
    return (
        compiled,
        (time.perf_counter() - begin) / (iterations - 1),
        [sum(float(term) for term in jax.tree.leaves(x)) for x in infos],
        state,
    )


def rates_at(matrix: Any, W: np.ndarray, H: np.ndarray) -> np.ndarray:
    """(W H) at the nonzeros only, some at a time."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    parts = zip(np.array_split(rows, 50), np.array_split(matrix.indices, 50), strict=True)
    return np.concatenate([np.einsum("ek,ek->e", W[r], H.T[c]) for r, c in parts])


def log_likelihood(matrix: Any, W: np.ndarray, H: np.ndarray) -> float:
    """Poisson log likelihood without the constant."""
    return float(np.sum(matrix.data * np.log(rates_at(matrix, W, H))) - W.sum(0) @ H.sum(1))


def documents_update(matrix: Any, W: np.ndarray, H: np.ndarray) -> np.ndarray:
    """One multiplicative update of the documents' weights."""
    ratio = scipy.sparse.csr_array(
        (matrix.data / rates_at(matrix, W, H), matrix.indices, matrix.indptr), shape=matrix.shape
    )
    return W * (ratio @ H.T) / H.sum(1)


def scikit_learn(
    matrix: Any, W: np.ndarray, H: np.ndarray, iterations: int
) -> tuple[float, np.ndarray, np.ndarray]:
    """Seconds per iteration and the factors after the last."""
    from sklearn.decomposition import non_negative_factorization

    X = scipy.sparse.csr_matrix(matrix)
    settings: dict = {
        "n_components": W.shape[1],
        "init": "custom",
        "solver": "mu",
        "beta_loss": "kullback-leibler",
        "tol": 0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin = time.perf_counter()
        Ws, Hs, _ = non_negative_factorization(
            X, W.copy(), H.copy(), max_iter=iterations, **settings
        )
        seconds = time.perf_counter() - begin
    return seconds / iterations, Ws, Hs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", help="a corpus file; default: a synthetic one of the AP corpus's size"
    )
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=30)
    arguments = parser.parse_args()
    from pp_models.data.formats import readers

    data = readers.read(arguments.data) if arguments.data else synthetic()
    K, rng = arguments.topics, np.random.default_rng(0)
    scale = np.sqrt(data.total / data.num_rows / data.num_columns / K)
    W = (scale * rng.gamma(2, 0.5, (data.num_rows, K))).astype(np.float32)
    H = (scale * rng.gamma(2, 0.5, (K, data.num_columns))).astype(np.float32)
    problem = fit.make_problem("bayesian_nmf", data, {"num_topics": K, "flat": True})
    batches = data.shards(np.arange(data.num_rows), data.num_rows, problem.devices)
    constant = float(sum(batch.log_factorials.sum() for batch in jax.device_get(batches)))

    flat = map_.build(problem, map_.Options(basis="identity"))
    compiled, ours, objective, _ = run(
        flat, {"theta": W, "beta": H}, batches, arguments.iterations + 1
    )
    proper = fit.make_problem("bayesian_nmf", data, {"num_topics": K})
    _, cavi_seconds, _, _ = run(
        cavi.build(proper, cavi.Options(num_local=1)), {}, batches, arguments.iterations
    )

    theirs, trajectory = [], []
    for stop in sorted({1, 2, 5, 10, arguments.iterations}):
        seconds, Ws, Hs = scikit_learn(data.matrix, W, H, stop)
        theirs.append(seconds)
        # ours is recorded between the two updates of a sweep: compare after their next documents' update
        theirs_then = log_likelihood(data.matrix, documents_update(data.matrix, Ws, Hs), Hs)
        trajectory.append(abs(objective[stop] + constant - theirs_then) / abs(theirs_then))
    line = {
        "benchmark": "nmf_throughput",
        "documents": data.num_rows,
        "words": data.num_columns,
        "topics": K,
        "cores": CORES,
        "map_seconds": round(ours, 5),
        "cavi_seconds": round(cavi_seconds, 5),
        "compile_seconds": round(compiled, 2),
        "scikit_learn_seconds": round(theirs[-1], 5),
        "ratio": round(theirs[-1] / ours, 2),
        "cavi_ratio": round(theirs[-1] / cavi_seconds, 2),
        "trajectory_difference": float(f"{max(trajectory):.2g}"),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
