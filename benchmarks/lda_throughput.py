"""Natural-gradient LDA steps against scikit-learn and gensim: documents per second over one pass, on both cores.

The corpus is drawn from LDA: 20,000 documents of about 200 tokens over 8,000 words, 100 topics. Every implementation makes one pass with batches of
1,000 documents from the same prior, schedule and kind of start (Gamma(100, 0.01), the peers' own), and stops each document's fixed point by
scikit-learn's rule (mean change below 1e-3, at most 100 iterations). Ours once more with weights="mean" and at most 40 iterations, whose topics
predict better: the ratio at an equal score or a better one. Ours is warmed up by two steps on the same shapes first; that time is reported, not
counted. The held-out score is document completion on a tenth of the documents (inference.document_completion's prediction, for all three from their
mean topics).

    python benchmarks/lda_throughput.py [--documents 20000] [--skip-peers]     prints one JSON line
"""

import argparse
import json
import os
import time
from typing import Any

import jax
import numpy as np

CORES = os.cpu_count() or 1
jax.config.update("jax_num_cpu_devices", CORES)

import jax.numpy as jnp
import scipy.sparse

import inference
import pp_models
from inference.core.objective import Problem
from inference.engines import svi
from inference.evaluation import completion
from inference.run import fit

TOPICS, WORDS, LENGTH, BATCH = 100, 8000, 200, 1000
ALPHA, ETA, TAU, KAPPA = 0.05, 0.05, 10.0, 0.7


def corpus(num_documents: int, seed: int = 0) -> scipy.sparse.csr_array:
    """Documents drawn from LDA with sparse topics."""
    rng = np.random.default_rng(seed)
    topics = np.cumsum(rng.dirichlet(np.full(WORDS, ETA), TOPICS), axis=1)
    proportions = rng.dirichlet(np.full(TOPICS, ALPHA), num_documents)
    lengths = rng.poisson(LENGTH, num_documents)
    document = np.repeat(np.arange(num_documents), lengths)
    shares = np.cumsum(proportions, axis=1)
    topic = np.minimum((shares[document] < rng.random(len(document))[:, None]).sum(1), TOPICS - 1)
    word = np.empty(len(document), np.int64)
    for k in range(TOPICS):  # one inverse-CDF look-up per topic
        mine = topic == k
        word[mine] = np.minimum(np.searchsorted(topics[k], rng.random(mine.sum())), WORDS - 1)
    return scipy.sparse.csr_array(
        (np.ones(len(word), np.int32), (document, word)), shape=(num_documents, WORDS)
    )


class Topics:
    """Mean topics of any implementation, dressed as a fit so that one function scores all of them."""

    def __init__(self, problem: Problem, topics: np.ndarray) -> None:
        self.problem, self.model, self.posterior, self._topics, self.kind = (
            problem,
            problem.model,
            self,
            topics,
            "point",
        )
        self.provenance = {"columns": topics.shape[1]}

    def mean(self, site: str) -> np.ndarray:
        return self._topics


def ours(problem: Problem, batch_size: int = BATCH, **changes: Any) -> dict:
    options = svi.Options(1, batch_size, TAU, KAPPA, bound_every=0)._replace(**changes)
    algorithm = svi.build(problem, options)
    start = 0.01 * jax.random.gamma(jax.random.key(0), 100.0, (TOPICS, problem.data.num_columns))
    state = algorithm.init(jax.random.key(0), {"beta": start})
    begin = time.perf_counter()
    warm = state
    for i, batches in zip(
        range(2), problem.data.batches(jax.random.key(9), batch_size, problem.devices), strict=False
    ):
        warm, _ = algorithm.step(jax.random.key(i), warm, batches)
    jax.block_until_ready(warm)
    compile_seconds = time.perf_counter() - begin
    begin, iterations = time.perf_counter(), []
    previous = None
    for batches in problem.data.batches(jax.random.key(1), batch_size, problem.devices):
        state, info = algorithm.step(jax.random.key(0), state, batches)
        if previous is not None:
            iterations.append(float(previous.local_iterations))
        previous = info
    jax.block_until_ready(state)
    seconds = time.perf_counter() - begin
    concentration = np.asarray(state.shared["beta"])
    return {
        "seconds": seconds,
        "compile_seconds": compile_seconds,
        "iterations": float(np.mean(iterations)),
        "topics": concentration,
    }


def scikit_learn(matrix: scipy.sparse.csr_array) -> dict:
    from sklearn.decomposition import LatentDirichletAllocation

    lda = LatentDirichletAllocation(
        TOPICS, doc_topic_prior=ALPHA, topic_word_prior=ETA, learning_method="online", learning_decay=KAPPA, learning_offset=TAU,
        batch_size=BATCH, max_iter=1, total_samples=matrix.shape[0], mean_change_tol=1e-3, max_doc_update_iter=100, n_jobs=CORES, random_state=0,
    )  # fmt: skip
    begin = time.perf_counter()
    lda.fit(matrix)
    return {"seconds": time.perf_counter() - begin, "topics": lda.components_}


def gensim(matrix: scipy.sparse.csr_array) -> dict:
    from gensim.matutils import Sparse2Corpus
    from gensim.models import LdaModel, LdaMulticore

    documents = list(Sparse2Corpus(scipy.sparse.csr_matrix(matrix), documents_columns=False))
    words = {i: str(i) for i in range(WORDS)}
    settings = {
        "num_topics": TOPICS,
        "id2word": words,
        "chunksize": BATCH,
        "passes": 1,
        "decay": KAPPA,
        "offset": TAU,
        "random_state": 0,
    }
    settings |= {
        "alpha": [ALPHA] * TOPICS,
        "eta": ETA,
        "iterations": 100,
        "gamma_threshold": 1e-3,
        "eval_every": None,
    }
    begin = time.perf_counter()
    lda = (
        LdaMulticore(documents, workers=CORES, **settings)
        if CORES > 1
        else LdaModel(documents, **settings)
    )
    return {"seconds": time.perf_counter() - begin, "topics": lda.state.get_lambda()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--skip-peers", action="store_true", help="ours alone, for profiling")
    arguments = parser.parse_args()
    train, heldout, _ = completion.hold_out(pp_models.data.counts(corpus(arguments.documents)), 0.1)
    problem = fit.make_problem("lda", train, {"num_topics": TOPICS, "alpha": ALPHA, "eta": ETA})
    runs = {
        "pp_models": ours(problem),
        "pp_models, means": ours(problem, num_local=40, weights="mean"),
    }
    if not arguments.skip_peers:
        runs |= {"scikit_learn": scikit_learn(train.matrix), "gensim": gensim(train.matrix)}
    line: dict = {"benchmark": "lda_throughput", "documents": train.num_rows, "cores": CORES}
    for name, run in runs.items():
        topics = run.pop("topics")
        score = inference.document_completion(
            Topics(problem, jnp.asarray(topics / topics.sum(1, keepdims=True), jnp.float32)),
            heldout,
        )
        line[name] = {
            **{k: round(v, 3) for k, v in run.items()},
            "docs_per_second": round(train.num_rows / run["seconds"]),
            "heldout": round(score.value, 4),
        }
    if not arguments.skip_peers:
        peers = max(line[name]["docs_per_second"] for name in ("scikit_learn", "gensim"))
        line["ratio"] = round(line["pp_models"]["docs_per_second"] / peers, 2)
        best = max(line[name]["heldout"] for name in ("scikit_learn", "gensim"))
        good = [
            line[name]["docs_per_second"]
            for name in runs
            if name.startswith("pp_models") and line[name]["heldout"] >= best
        ]
        line["ratio_at_equal_score"] = round(max(good, default=0) / peers, 2)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
