"""Held-out score against time: ours beside tomotopy, gensim and scikit-learn, on the same cores, in one run.

A tenth of the documents is held out. Every implementation fits the rest; its mean topics, with its own alpha, are scored now and then by document
completion (`inference.document_completion`: log probability per held-out word, each third of a document's words from the rest), while its clock
stands still. Ours is given the number of topics and nothing else, once in a fresh process (compilation included) and once more (left out); tomotopy
learns its alpha, as by default, on both cores; gensim and scikit-learn make passes in batches of 500 documents. Reading and packing the corpus into
each implementation's own form is not counted for anybody, packing of batches is.

    python benchmarks/race.py synthetic
    python benchmarks/race.py ap --data bow.npz --topics 50
    python benchmarks/race.py wikipedia --data bow.npz --plot race.png

prints one JSON line: the curves, and for each score of tomotopy the seconds that ours needs for it.
"""

import argparse
import json
import os
import time

import jax
import numpy as np

CORES = os.cpu_count() or 1
jax.config.update("jax_num_cpu_devices", CORES)

import jax.numpy as jnp
import scipy.sparse
from lda_throughput import Topics, corpus
from peers import tomotopy_model, tomotopy_topics

import inference
import pp_models
from inference.evaluation import completion
from inference.run import fit as fitting

SWEEPS = (10, 20, 30, 50, 100, 200, 400)  # of tomotopy, after which it is scored


class Judge:
    """Scores topics on the held-out documents, and keeps a curve of [seconds, score]."""

    def __init__(self, train, heldout, num_topics):
        self.train, self.heldout, self.num_topics = train, heldout, num_topics
        self.curve: list[list[float]] = []

    def __call__(self, seconds, topics, alpha):
        alpha = np.broadcast_to(np.asarray(alpha, float), (self.num_topics,))
        problem = fitting.make_problem(
            "lda", self.train, {"num_topics": self.num_topics, "alpha": alpha}
        )
        shares = jnp.asarray(topics / topics.sum(1, keepdims=True), jnp.float32)
        score = inference.document_completion(Topics(problem, shares), self.heldout).value
        self.curve.append([round(float(seconds), 2), round(float(score), 4)])
        return score


def ours(train, heldout, num_topics, engine, options, seed=0, growth=1.25):
    """Curves of two runs of the same fit, the first of which compiles."""
    curves = []
    for _ in range(2):
        judge, due = Judge(train, heldout, num_topics), {"next": 0.0}

        def watch(step, seconds, posterior, judge=judge, due=due):
            if seconds >= due["next"]:
                found = posterior()
                judge(seconds, found.mean("beta"), found.problem.hyper.alpha)
                due["next"] = growth * seconds

        hyper = {"num_topics": num_topics, "alpha": "learn"}
        fit = inference.fit(
            "lda",
            train,
            engine,
            hyper,
            jax.random.key(seed),
            progress=False,
            watch=watch,
            **options,
        )
        judge(fit.seconds, fit.posterior.mean("beta"), fit.hyper.alpha)
        curves.append(judge.curve)
    return {
        "curve": curves[1],
        "with_compilation": curves[0],
        "sum_alpha": round(float(np.sum(fit.hyper.alpha)), 2),
    }


def tomotopy(train, heldout, num_topics, most):
    model = tomotopy_model(train, num_topics)
    judge, seconds, done = Judge(train, heldout, num_topics), 0.0, 0
    for sweeps in (number for number in SWEEPS if number <= most):
        begin = time.perf_counter()
        model.train(sweeps - done, workers=CORES)
        seconds, done = seconds + time.perf_counter() - begin, sweeps
        judge(seconds, tomotopy_topics(model, train.num_columns), model.alpha)
    return {"curve": judge.curve, "sum_alpha": round(float(np.sum(model.alpha)), 2)}


def scikit_learn(train, heldout, num_topics, passes):
    from sklearn.decomposition import LatentDirichletAllocation

    settings = {
        "learning_method": "online",
        "batch_size": 500,
        "total_samples": train.num_rows,
        "n_jobs": CORES,
        "random_state": 0,
    }
    model = LatentDirichletAllocation(num_topics, **settings)
    judge, seconds, matrix = (
        Judge(train, heldout, num_topics),
        0.0,
        scipy.sparse.csr_matrix(train.matrix),
    )
    for turn in range(passes):
        order = np.random.default_rng(turn).permutation(matrix.shape[0])
        begin = time.perf_counter()
        model.partial_fit(matrix[order])
        seconds += time.perf_counter() - begin
        judge(seconds, model.components_, 1 / num_topics)
    return {"curve": judge.curve}


def gensim(train, heldout, num_topics, passes):
    from gensim.matutils import Sparse2Corpus
    from gensim.models import LdaMulticore

    documents = list(Sparse2Corpus(scipy.sparse.csr_matrix(train.matrix), documents_columns=False))
    words = {i: str(i) for i in range(train.num_columns)}
    judge, seconds = Judge(train, heldout, num_topics), 0.0
    model = LdaMulticore(
        num_topics=num_topics,
        id2word=words,
        chunksize=500,
        workers=CORES,
        eval_every=None,
        random_state=0,
    )
    for _ in range(passes):
        begin = time.perf_counter()
        model.update(documents)
        seconds += time.perf_counter() - begin
        judge(seconds, model.get_topics(), np.asarray(model.alpha))
    return {"curve": judge.curve}


def time_to(curve, level):
    """Seconds at which a curve first reaches a score; None if it never does."""
    return next((seconds for seconds, score in curve if score >= level), None)


def draw(line, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, run in line["runs"].items():
        axes.plot(*np.array(run["curve"]).T, marker="o", markersize=3, label=name)
    axes.set(
        xscale="log",
        xlabel="seconds of fitting (compilation left out)",
        ylabel="held-out log probability per word (nats)",
    )
    axes.set_title(
        f"{line['corpus']}: {line['documents']:,} documents, {line['topics']} topics, {CORES} cores"
    )
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", help="synthetic, or a name for the data given")
    parser.add_argument("--data", help="documents x words, in any format that pp_models reads")
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument(
        "--engines",
        default="hybrid",
        help="ours, each with its options after colons: svi:weights=mean:num_epochs=3",
    )
    parser.add_argument("--peers", default="tomotopy,gensim,scikit_learn")
    parser.add_argument("--sweeps", type=int, default=100, help="of tomotopy")
    parser.add_argument("--passes", type=int, default=2, help="of gensim and scikit-learn")
    parser.add_argument("--seed", type=int, default=0, help="of ours")
    parser.add_argument("--plot", help="a PNG to draw")
    chosen = parser.parse_args()
    data = (
        pp_models.readers.read(chosen.data)
        if chosen.data
        else pp_models.data.counts(corpus(20_000))
    )
    train, heldout, _ = completion.hold_out(data, 0.1)
    line: dict = {
        "benchmark": "race",
        "corpus": chosen.corpus,
        "documents": train.num_rows,
        "tokens": int(train.total),
        "topics": chosen.topics,
    }
    line |= {"cores": CORES, "runs": {}}
    for peer in filter(None, chosen.peers.split(",")):
        amount = chosen.sweeps if peer == "tomotopy" else chosen.passes
        line["runs"][peer] = {"tomotopy": tomotopy, "gensim": gensim, "scikit_learn": scikit_learn}[
            peer
        ](train, heldout, chosen.topics, amount)
    for given in chosen.engines.split(","):
        engine, *options = given.split(":")
        named = {
            name: json.loads(value) if value[0] in "0123456789" else value
            for name, value in (one.split("=") for one in options)
        }
        line["runs"][given] = ours(train, heldout, chosen.topics, engine, named, chosen.seed)
        if "tomotopy" in line["runs"]:
            curves = {name: line["runs"][given][name] for name in ("curve", "with_compilation")}
            levels = line["runs"]["tomotopy"]["curve"]
            reached = [
                {
                    "score": s,
                    "tomotopy": t,
                    **{name: time_to(curve, s) for name, curve in curves.items()},
                }
                for t, s in levels
            ]
            line["runs"][given]["reached"] = reached
    print(json.dumps(line))
    if chosen.plot:
        draw(line, chosen.plot)


if __name__ == "__main__":
    main()
