"""Correlated NMF: planted correlations found again, and what P 11.6 uses locations for. Each experiment is one sub-command.

    python benchmarks/correlations.py signs         signs of P(11.36) found, by engine, over seeds; best of a few restarts by bound
    python benchmarks/correlations.py retrieval     precision at 10 of documents found by u_d, beside the cosine of raw counts and chance
    python benchmarks/correlations.py figure --data ap.npz     the most prevalent topics' correlations, in the manner of P Fig. 11.4

Each prints one JSON line. Seconds include compilation.
"""

import argparse
import dataclasses
import json
import os
import time
from typing import Any, NamedTuple

import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)

import inference
import pp_models
from inference.core import align
from inference.core import objective as obj
from inference.engines import _minibatch as mb
from inference.evaluation import locations
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
    """Documents, the topics and locations they were drawn with, and labels: the topic that each document uses most."""

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
    """Topics with nine tenths of their weight on words of their own, locations of one length in random directions."""
    rng = np.random.default_rng(seed)
    own = np.kron(np.eye(num_topics), np.ones((1, num_words // num_topics))) * rng.gamma(
        1.0, 1.0, (num_topics, num_words)
    )
    topics = 0.9 * own / own.sum(1, keepdims=True) + 0.1 * rng.dirichlet(np.ones(num_words))
    ell = rng.normal(size=(num_topics, rank))
    ell *= size / np.linalg.norm(ell, axis=1, keepdims=True)
    weights = np.exp(rng.normal(size=(num_rows, rank)) @ ell.T)
    weights /= weights.sum(1, keepdims=True)
    counts = rng.poisson(rng.gamma(4.0, length / 4, (num_rows, 1)) * weights @ topics)
    return Planted(pp_models.data.counts(counts), topics, ell, weights.argmax(1))


def full_bound(fit: Any) -> float:
    """The bound over all rows, solved afresh: what restarts are judged by, whatever the engine."""
    problem = fit.problem
    batches = problem.data.shards(
        np.arange(problem.data.num_rows), problem.data.num_rows, problem.devices
    )
    shared = {site: fit.posterior.natural(site) for site in problem.model.shared}
    solved = mb.solve(problem, problem.hyper, shared, batches, RowOptions(50, 1e-4), bound=True)
    prior = float(obj.shared_bound(problem.model, problem.hyper, shared))
    return prior + sum(float(term) for share in solved.shares for term in share.bound)


def judge(fit: Any, truth: Planted) -> dict[str, float]:
    """Share of clear signs found, correlation with the planted correlations, and topics recovered, the best matching taken.

    A vector added to all locations multiplies all of a document's weights alike, and its scale takes that back: data know locations about their mean
    only. The prior puts that at zero, so the planted ones are taken about theirs.
    """
    beta = fit.posterior.mean("beta")
    order = align.topic_order(truth.topics, beta)
    beta = beta[order] / beta[order].sum(1, keepdims=True)
    pairs = np.triu_indices(len(truth.ell), 1)
    planted_there = truth.ell - truth.ell.mean(0)
    found, true = (
        locations.topic_correlations(np.asarray(x))[pairs]
        for x in (fit.posterior.mean("ell")[order], planted_there)
    )
    clear = np.abs(true) >= CLEAR
    return {
        "signs": float(np.mean(np.sign(found[clear]) == np.sign(true[clear]))),
        "correlation": float(np.corrcoef(found, true)[0, 1]),
        "topics": float(np.sum(0.5 * np.abs(beta - truth.topics).sum(1) < NEAR)),
        "length": float(
            np.linalg.norm(fit.posterior.mean("ell"), axis=1).mean()
            / np.linalg.norm(planted_there, axis=1).mean()
        ),
        "bound": full_bound(fit),
    }


def fit(truth: Planted, engine: str, seed: int, **hyper: Any) -> Any:
    given = {"num_topics": len(truth.ell), "rank": truth.ell.shape[1], **hyper}
    return inference.fit(
        "correlated_nmf",
        truth.data,
        engine,
        given,
        jax.random.key(seed),
        progress=False,
        **ENGINES[engine],
    )


def signs(arguments: argparse.Namespace) -> None:
    """Every engine from several random starts, on one corpus or a new one for each: the first start, and the best of some by bound."""
    line: dict[str, Any] = {
        "seeds": arguments.seeds,
        "restarts": arguments.restarts,
        "rows": arguments.rows,
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
            print(name, seed, {key: round(value, 3) for key, value in best[-1].items()}, flush=True)
        line[name] = {
            "seconds": round(time.perf_counter() - begin, 1),
            **{
                which: {key: [round(s[key], 3) for s in scores] for key in scores[0]}
                for which, scores in (("first", first), ("best", best))
            },
        }
    print(json.dumps({"benchmark": "correlations signs", **line}), flush=True)


def precision(nearest: Any, labels: np.ndarray, queries: np.ndarray, num: int) -> float:
    """The mean share of the `num` nearest documents with the query's label."""
    return float(
        np.mean([np.mean(labels[nearest(int(query))[:num]] == labels[query]) for query in queries])
    )


def retrieval(arguments: argparse.Namespace) -> None:
    """Documents labelled by the topic they use most, with few words each, so that two of one topic share hardly any."""
    scores: dict[str, list[float]] = {"u": [], "counts": [], "chance": []}
    for seed in range(arguments.seeds):
        truth = planted(seed, arguments.rows, num_words=800, length=20.0)
        fitted = max(
            (fit(truth, "cavi", 100 * seed + start) for start in range(arguments.restarts)),
            key=full_bound,
        )
        queries = np.random.default_rng(seed).choice(
            arguments.rows, min(200, arguments.rows), replace=False
        )
        rows = truth.data.matrix.toarray()
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)

        def by_counts(query: int, rows: np.ndarray = rows) -> np.ndarray:
            nearness = rows @ rows[query]
            nearness[query] = -np.inf
            return np.argsort(-nearness, kind="stable")

        scores["u"].append(
            precision(
                lambda q, f=fitted: locations.nearest_documents(f, q, 10), truth.labels, queries, 10
            )
        )
        scores["counts"].append(precision(by_counts, truth.labels, queries, 10))
        shares = np.bincount(truth.labels) / len(truth.labels)
        scores["chance"].append(float(shares[truth.labels[queries]].mean()))
    rounded = {name: [round(x, 3) for x in values] for name, values in scores.items()}
    print(
        json.dumps(
            {
                "benchmark": "correlations retrieval",
                "rows": arguments.rows,
                "precision_at_10": rounded,
            }
        ),
        flush=True,
    )


def figure(arguments: argparse.Namespace) -> None:
    """Correlated NMF of a corpus: a picture of its topics' correlations, and the pairs that correlate most."""
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
    os.makedirs(os.path.dirname(arguments.out) or ".", exist_ok=True)
    inference.correlation_figure(fitted).savefig(arguments.out, dpi=150, bbox_inches="tight")
    found, words = locations.topic_correlations(fitted), inference.top_words(fitted, 4)
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
    print(json.dumps({"benchmark": "correlations figure", **line}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command, seeds, restarts in ((signs, 10, 3), (retrieval, 3, 3)):
        sub = commands.add_parser(command.__name__, help=command.__doc__)
        sub.set_defaults(run=command)
        sub.add_argument("--rows", type=int, default=1000)
        sub.add_argument("--seeds", type=int, default=seeds)
        sub.add_argument("--restarts", type=int, default=restarts)
    commands.choices["signs"].add_argument(
        "--engines", default="cavi,svi,trust_region,cavi point_u"
    )
    commands.choices["signs"].add_argument(
        "--corpora", action="store_true", help="a new corpus for every seed"
    )
    sub = commands.add_parser("figure", help=figure.__doc__)
    sub.set_defaults(run=figure)
    sub.add_argument("--data", required=True, help="a corpus")
    sub.add_argument("--words", help="its words, one a line")
    sub.add_argument("--topics", type=int, default=50)
    sub.add_argument("--rank", type=int, default=20)
    sub.add_argument("--sweeps", type=int, default=100)
    sub.add_argument("--out", default="results/correlations.png")
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
