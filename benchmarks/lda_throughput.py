"""Natural-gradient LDA steps against scikit-learn and gensim: documents per second in one pass.

The corpus is drawn from LDA: 20,000 documents of about 200 tokens over 8,000 words, 100 topics.
Every implementation makes one pass on all cores with batches of 1,000 documents from the same
prior, schedule and kind of start (Gamma(100, 0.01), the peers' own), and stops each document's
fixed point by scikit-learn's rule (mean change below 1e-3, at most 100 iterations). Ours runs once
more with weights="mean" and at most 40 iterations, whose topics predict better: this gives the
ratio at an equal or better score. Ours is warmed up by two steps on the same shapes; that time is
reported, not counted. The held-out score is document completion on a tenth of the documents from
the mean topics of each implementation.

    python benchmarks/lda_throughput.py [--documents 20000] [--skip-peers]    prints one JSON line
"""

import itertools
import time
from typing import Any

import jax
import numpy as np
import scipy.sparse
from _common import CORES, completion_of, draw_corpus, gensim_corpus, parse, report, rounded

from inference.core.problem import make_problem
from inference.engines import svi
from inference.evaluation.splits import hold_out
from pp_models.data.types import Data

TOPICS, BATCH = 100, 1000
ALPHA, ETA, TAU, KAPPA = 0.05, 0.05, 10.0, 0.7


def ours(problem: Any, **changes: Any) -> dict[str, Any]:
    data, devices = problem.data, problem.devices
    options = svi.Options(1, BATCH, TAU, KAPPA, bound_every=0)._replace(**changes)
    algorithm = svi.build(problem, options)
    start = 0.01 * jax.random.gamma(jax.random.key(0), 100.0, (TOPICS, data.num_columns))
    state = algorithm.init(jax.random.key(0), {"beta": start})
    begin, warm = time.perf_counter(), state
    for batches in itertools.islice(data.batches(jax.random.key(9), BATCH, devices), 2):
        warm, _ = algorithm.step(jax.random.key(0), warm, batches)
    jax.block_until_ready(warm)
    compile_seconds = time.perf_counter() - begin
    begin, iterations, previous = time.perf_counter(), [], None
    for batches in data.batches(jax.random.key(1), BATCH, devices):
        state, info = algorithm.step(jax.random.key(0), state, batches)
        if previous is not None:
            iterations.append(float(previous.local_iterations))
        previous = info
    jax.block_until_ready(state)
    return {
        "seconds": time.perf_counter() - begin,
        "compile_seconds": compile_seconds,
        "iterations": float(np.mean(iterations)),
        "topics": np.asarray(state.shared["beta"]),
    }


def scikit_learn(data: Data) -> dict[str, Any]:
    from sklearn.decomposition import LatentDirichletAllocation

    prior = {"doc_topic_prior": ALPHA, "topic_word_prior": ETA, "total_samples": data.num_rows}
    schedule = {"learning_method": "online", "learning_decay": KAPPA, "learning_offset": TAU}
    stopping = {"max_iter": 1, "mean_change_tol": 1e-3, "max_doc_update_iter": 100}
    settings = prior | schedule | stopping | {"batch_size": BATCH, "n_jobs": CORES}
    lda = LatentDirichletAllocation(TOPICS, random_state=0, **settings)
    begin = time.perf_counter()
    lda.fit(scipy.sparse.csr_matrix(data.matrix))
    return {"seconds": time.perf_counter() - begin, "topics": lda.components_}


def gensim(data: Data) -> dict[str, Any]:
    from gensim.models import LdaModel, LdaMulticore

    documents, words = gensim_corpus(data)
    settings = {"num_topics": TOPICS, "id2word": words, "chunksize": BATCH, "passes": 1}
    settings |= {"decay": KAPPA, "offset": TAU, "random_state": 0, "alpha": [ALPHA] * TOPICS}
    settings |= {"eta": ETA, "iterations": 100, "gamma_threshold": 1e-3, "eval_every": None}
    begin = time.perf_counter()
    if CORES > 1:
        lda = LdaMulticore(documents, workers=CORES, **settings)
    else:
        lda = LdaModel(documents, **settings)
    return {"seconds": time.perf_counter() - begin, "topics": lda.state.get_lambda()}


def main() -> None:
    chosen = parse(__doc__, documents=20_000, skip_peers=(False, "ours alone, for profiling"))
    train, heldout, _ = hold_out(draw_corpus(chosen.documents, TOPICS), 0.1)
    problem = make_problem("lda", train, {"num_topics": TOPICS, "alpha": ALPHA, "eta": ETA})
    means = {"num_local": 40, "weights": "mean"}
    runs = {"pp_models": ours(problem), "pp_models, means": ours(problem, **means)}
    if not chosen.skip_peers:
        runs |= {"scikit_learn": scikit_learn(train), "gensim": gensim(train)}
    line: dict[str, Any] = {"documents": train.num_rows, "cores": CORES}
    for name, run in runs.items():
        score = completion_of(problem, run.pop("topics"), heldout)
        speed = round(train.num_rows / run["seconds"])
        line[name] = rounded(run, 3) | {"docs_per_second": speed, "heldout": round(score, 4)}
    if not chosen.skip_peers:
        speeds, scores = ({n: line[n][key] for n in runs} for key in ("docs_per_second", "heldout"))
        peers = [name for name in runs if not name.startswith("pp_models")]
        fastest, best = max(speeds[n] for n in peers), max(scores[n] for n in peers)
        good = [speeds[n] for n in runs if n not in peers and scores[n] >= best]
        line["ratio"] = round(speeds["pp_models"] / fastest, 2)
        line["ratio_at_equal_score"] = round(max(good, default=0) / fastest, 2)
    report("lda_throughput", line)


if __name__ == "__main__":
    main()
