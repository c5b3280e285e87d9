"""Correlated NMF: planted correlations found again, and the uses of locations in P 11.6.

    python benchmarks/correlations.py signs        signs of P(11.36) found, by engine, over seeds
    python benchmarks/correlations.py retrieval    precision at 10 of documents found by u_d
    python benchmarks/correlations.py figure --data ap.npz    correlations as in P Fig. 11.4

P is Paisley, Blei & Jordan. `retrieval` runs beside the cosine of raw counts and chance. Each
prints one JSON line. Seconds include compilation.
"""

import argparse
import dataclasses
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from _common import REQUIRED, all_rows, report, rounded, run_commands, save

import inference
import pp_models
from inference.core import align
from inference.core import objective as obj
from inference.engines import _minibatch as mb
from pp_models.data.types import Data
from pp_models.elimination.row_solver import RowOptions

ENGINES = {  # equal numbers of passes for the two stochastic ones
    "cavi": {"num_epochs": 100},
    "svi": {"num_epochs": 40, "batch_size": 100, "bound_every": 0},
    "trust_region": {"num_epochs": 40, "batch_size": 100, "bound_every": 0},
}
CLEAR = 0.4  # correlations at least this large have a sign to be found
NEAR = 0.3  # a topic within this total variation of the planted one is recovered


class Planted(NamedTuple):
    """Documents, their topics and locations, and labels: the topic each document uses most."""

    data: Data
    topics: np.ndarray
    ell: np.ndarray
    labels: np.ndarray


def planted(
    seed: int,
    num_rows: int,
    num_topics: int = 8,
    rank: int = 4,
    num_words: int = 200,
    length: float = 80.0,
    size: float = 1.5,
) -> Planted:
    """Topics with 0.9 of their weight on words of their own, and locations of equal length."""
    rng = np.random.default_rng(seed)
    own = np.kron(np.eye(num_topics), np.ones((1, num_words // num_topics)))
    own = own * rng.gamma(1.0, 1.0, (num_topics, num_words))
    topics = 0.9 * own / own.sum(1, keepdims=True) + 0.1 * rng.dirichlet(np.ones(num_words))
    ell = rng.normal(size=(num_topics, rank))
    ell *= size / np.linalg.norm(ell, axis=1, keepdims=True)
    weights = np.exp(rng.normal(size=(num_rows, rank)) @ ell.T)
    weights /= weights.sum(1, keepdims=True)
    counts = rng.poisson(rng.gamma(4.0, length / 4, (num_rows, 1)) * weights @ topics)
    return Planted(pp_models.data.counts(counts), topics, ell, weights.argmax(1))


def full_bound(fit: Any) -> float:
    """The bound with all rows solved anew, by which restarts of any engine are compared."""
    problem, options = fit.problem, RowOptions(50, 1e-4)
    shared = {site: fit.posterior.natural(site) for site in problem.model.shared}
    solved = mb.solve(problem, problem.hyper, shared, all_rows(problem), options, bound=True)
    prior = float(obj.shared_bound(problem.model, problem.hyper, shared))
    return prior + sum(float(term) for share in solved.shares for term in share.bound)


def mean_length(x: np.ndarray) -> float:
    return float(np.linalg.norm(x, axis=1).mean())


def judge(fit: Any, truth: Planted) -> dict[str, float]:
    """Share of clear signs found, correlation with the truth, and topics recovered, after matching.

    A vector added to all locations multiplies all of a document's weights alike, which its scale
    undoes: the data determine locations about their mean only. The prior puts the mean at zero, so
    the planted locations are centred.
    """
    beta = fit.posterior.mean("beta")
    order = align.topic_order(truth.topics, beta)
    beta = beta[order] / beta[order].sum(1, keepdims=True)
    pairs = np.triu_indices(len(truth.ell), 1)
    planted_there = truth.ell - truth.ell.mean(0)
    found, true = (
        inference.topic_correlations(np.asarray(x))[pairs]
        for x in (fit.posterior.mean("ell")[order], planted_there)
    )
    clear = np.abs(true) >= CLEAR
    return {
        "signs": float(np.mean(np.sign(found[clear]) == np.sign(true[clear]))),
        "correlation": float(np.corrcoef(found, true)[0, 1]),
        "topics": float(np.sum(0.5 * np.abs(beta - truth.topics).sum(1) < NEAR)),
        "length": mean_length(fit.posterior.mean("ell")) / mean_length(planted_there),
        "bound": full_bound(fit),
    }


def fit(truth: Planted, engine: str, seed: int, **hyper: Any) -> Any:
    given = {"num_topics": len(truth.ell), "rank": truth.ell.shape[1], **hyper}
    options = {"progress": False, **ENGINES[engine]}
    return inference.fit(
        "correlated_nmf", truth.data, engine, given, jax.random.key(seed), **options
    )


def signs(arguments: argparse.Namespace) -> None:
    """Signs found by every engine from its first start and from the best of some by bound."""
    line: dict[str, Any] = {
        name: getattr(arguments, name) for name in ("seeds", "restarts", "rows")
    }
    cases = {"cavi": {}, "svi": {}, "trust_region": {}, "cavi point_u": {"point_u": True}}
    for name in arguments.engines.split(","):
        begin, first, best = time.perf_counter(), [], []
        for seed in range(arguments.seeds):
            truth = planted(seed if arguments.corpora else 0, arguments.rows)
            scores = [
                judge(fit(truth, name.split()[0], 100 * seed + start, **cases[name]), truth)
                for start in range(arguments.restarts)
            ]
            first.append(scores[0])
            best.append(max(scores, key=lambda score: score["bound"]))
            print(name, seed, rounded(best[-1], 3), flush=True)
        line[name] = {"seconds": round(time.perf_counter() - begin, 1)}
        for which, scores in (("first", first), ("best", best)):
            line[name][which] = {key: rounded([s[key] for s in scores], 3) for key in scores[0]}
    report("correlations signs", line)


def precision(nearest: Any, labels: np.ndarray, queries: np.ndarray, num: int) -> float:
    """The mean share of the `num` nearest documents with the query's label."""
    hits = [np.mean(labels[nearest(int(query))[:num]] == labels[query]) for query in queries]
    return float(np.mean(hits))


def retrieval(arguments: argparse.Namespace) -> None:
    """Precision at 10 of short documents found by u_d, which share hardly any words."""
    scores: dict[str, list[float]] = {"u": [], "counts": [], "chance": []}
    for seed in range(arguments.seeds):
        truth = planted(seed, arguments.rows, num_words=800, length=20.0)
        fits = (fit(truth, "cavi", 100 * seed + start) for start in range(arguments.restarts))
        fitted, number = max(fits, key=full_bound), min(200, arguments.rows)
        queries = np.random.default_rng(seed).choice(arguments.rows, number, replace=False)
        rows = truth.data.matrix.toarray()
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)

        def by_counts(query: int, rows: np.ndarray = rows) -> np.ndarray:
            nearness = rows @ rows[query]
            nearness[query] = -np.inf
            return np.argsort(-nearness, kind="stable")

        def by_location(query: int, fitted: Any = fitted) -> np.ndarray:
            return inference.nearest_documents(fitted, query, 10)

        scores["u"].append(precision(by_location, truth.labels, queries, 10))
        scores["counts"].append(precision(by_counts, truth.labels, queries, 10))
        shares = np.bincount(truth.labels) / len(truth.labels)
        scores["chance"].append(float(shares[truth.labels[queries]].mean()))
    line = {"rows": arguments.rows, "precision_at_10": rounded(scores, 3)}
    report("correlations retrieval", line)


def figure(arguments: argparse.Namespace) -> None:
    """A figure of the correlations of a corpus's topics, and the strongest of them."""
    data = pp_models.datasets.load(arguments.data)
    if arguments.words:
        with open(arguments.words, encoding="utf-8") as file:
            data = dataclasses.replace(data, column_names=tuple(file.read().split()))
    given = {"num_topics": arguments.topics, "rank": arguments.rank}
    begin = time.perf_counter()
    fitted = inference.fit(
        "correlated_nmf", data, "cavi", given, jax.random.key(0), num_epochs=arguments.sweeps
    )
    seconds = time.perf_counter() - begin
    print(inference.format_topics(fitted), flush=True)
    save(inference.correlation_figure(fitted), arguments.out)
    found, words = inference.topic_correlations(fitted), inference.top_words(fitted, 4)
    first, second = np.triu_indices(len(found), 1)
    order = np.argsort(found[first, second])

    named = [" ".join(str(word) for word, _ in topic) for topic in words]

    def pairs(chosen: np.ndarray) -> list[Any]:
        return [
            [round(float(found[i, j]), 2), named[i], named[j]]
            for i, j in zip(first[chosen], second[chosen], strict=True)
        ]

    line = {
        "seconds": round(seconds, 1),
        "bound": fitted.bound,
        "negative": pairs(order[:5]),
        "positive": pairs(order[::-1][:5]),
    }
    report("correlations figure", line)


if __name__ == "__main__":
    shared = {"rows": 1000, "restarts": 3}
    names = "cavi,svi,trust_region,cavi point_u"
    corpora = False, "a new corpus for every seed"
    corpus = {"data": (REQUIRED, "a corpus"), "words": (None, "its words, one a line")}
    model = {"topics": 50, "rank": 20, "sweeps": 100, "out": "results/correlations.png"}
    commands = {
        signs: {**shared, "seeds": 10, "engines": names, "corpora": corpora},
        retrieval: {**shared, "seeds": 3},
        figure: corpus | model,
    }
    run_commands(__doc__, commands)
