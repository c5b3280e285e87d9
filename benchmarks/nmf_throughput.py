"""KL-NMF iterations against scikit-learn: `map` on Bayesian NMF with a flat prior, and CAVI.

Both start from the same factors and make the same multiplicative updates (documents' weights
first), so their log-likelihoods must follow the same trajectory. The corpus is a file (--data, e.g.
the AP corpus: 2,246 x 10,473) or a synthetic one of that size.

    python benchmarks/nmf_throughput.py [--data corpus.npz] [--topics 50] [--iterations 30]

prints one JSON line.
"""

import time
import warnings
from typing import Any

import jax
import numpy as np
import scipy.sparse
from _common import CORES, all_rows, bind, parse, report

import pp_models
from inference.core.problem import make_problem
from pp_models.data.formats import readers
from pp_models.data.types import Data


def synthetic(num_documents: int = 2246, num_words: int = 10473, seed: int = 0) -> Data:
    """Counts of the AP corpus's size and sparsity: Zipfian words, 135 entries per document."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, num_words + 1) ** 0.9
    tilt = rng.gamma(0.3, 1, (20, num_words)) * frequency
    tilt /= tilt.sum(1, keepdims=True)
    shares = rng.dirichlet(np.full(20, 0.2), num_documents) @ tilt
    return pp_models.data.counts(rng.multinomial(rng.poisson(194, num_documents), shares))


def run(algorithm: Any, start: dict, batches: Any, iterations: int) -> tuple[float, float, list]:
    """(compile seconds, seconds per iteration, objective per iteration)."""
    key = jax.random.key(0)

    def steps(state: Any, number: int) -> tuple[float, Any, list[Any]]:
        begin, bounds = time.perf_counter(), []
        for _ in range(number):
            state, info = algorithm.step(key, state, batches)
            bounds.append(info.bound)
            jax.block_until_ready((state, info))  # a fit reads the bound after every step
        return time.perf_counter() - begin, state, bounds

    compiled = steps(algorithm.init(key, start), 2)[0]  # the second step has other local shapes
    _, state, first = steps(algorithm.init(key, start), 1)
    seconds, _, rest = steps(state, iterations - 1)
    objective = [sum(float(term) for term in jax.tree.leaves(x)) for x in first + rest]
    return compiled, seconds / (iterations - 1), objective


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
    parts = matrix.data / rates_at(matrix, W, H), matrix.indices, matrix.indptr
    return W * (scipy.sparse.csr_array(parts, shape=matrix.shape) @ H.T) / H.sum(1)


def scikit_learn(matrix: Any, W: np.ndarray, H: np.ndarray, iterations: int) -> tuple:
    """Seconds per iteration and the factors after the last."""
    from sklearn.decomposition import non_negative_factorization

    settings = {"n_components": W.shape[1], "init": "custom", "solver": "mu", "tol": 0}
    settings |= {"beta_loss": "kullback-leibler", "max_iter": iterations}
    X = scipy.sparse.csr_matrix(matrix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin = time.perf_counter()
        Ws, Hs, _ = non_negative_factorization(X, W.copy(), H.copy(), **settings)
    return (time.perf_counter() - begin) / iterations, Ws, Hs


def main() -> None:
    chosen = parse(
        __doc__,
        data=(None, "a corpus file; default: a synthetic one of the AP corpus's size"),
        topics=50,
        iterations=30,
    )
    data = readers.read(chosen.data) if chosen.data else synthetic()
    K, rng = chosen.topics, np.random.default_rng(0)
    scale = np.sqrt(data.total / data.num_rows / data.num_columns / K)
    W = (scale * rng.gamma(2, 0.5, (data.num_rows, K))).astype(np.float32)
    H = (scale * rng.gamma(2, 0.5, (K, data.num_columns))).astype(np.float32)
    problem = make_problem("bayesian_nmf", data, {"num_topics": K, "flat": True})
    batches = all_rows(problem)
    constant = float(sum(batch.log_factorials.sum() for batch in jax.device_get(batches)))
    flat = bind("map", problem, basis="identity").algorithm
    start = {"theta": W, "beta": H}
    compiled, ours, objective = run(flat, start, batches, chosen.iterations + 1)
    proper = make_problem("bayesian_nmf", data, {"num_topics": K})
    cavi = bind("cavi", proper, num_local=1).algorithm
    _, cavi_seconds, _ = run(cavi, {}, batches, chosen.iterations)

    trajectory = []
    for stop in sorted({*[x for x in (1, 2, 5, 10) if x < chosen.iterations], chosen.iterations}):
        theirs, Ws, Hs = scikit_learn(data.matrix, W, H, stop)
        # ours is recorded between the two updates of a sweep: compare after their next one
        then = log_likelihood(data.matrix, documents_update(data.matrix, Ws, Hs), Hs)
        trajectory.append(abs(objective[stop] + constant - then) / abs(then))
    line = {
        "documents": data.num_rows,
        "words": data.num_columns,
        "topics": K,
        "cores": CORES,
        "map_seconds": round(ours, 5),
        "cavi_seconds": round(cavi_seconds, 5),
        "compile_seconds": round(compiled, 2),
        "scikit_learn_seconds": round(theirs, 5),
        "ratio": round(theirs / ours, 2),
        "cavi_ratio": round(theirs / cavi_seconds, 2),
        "trajectory_difference": float(f"{max(trajectory):.2g}"),
    }
    report("nmf_throughput", line)


if __name__ == "__main__":
    main()
