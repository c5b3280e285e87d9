"""Held-out score against time: ours beside tomotopy, gensim and scikit-learn, in one run.

A tenth of the documents is held out. Every implementation fits the rest on the same cores. Its mean
topics, with its own alpha, are scored now and then by document completion while its clock stands
still. Ours is given the number of topics alone, once in a fresh process (compilation included) and
once more (left out). tomotopy learns its alpha, as by default; gensim and scikit-learn make passes
in batches of 500 documents. Reading and packing the corpus into each implementation's own form is
not counted; packing of batches is.

    python benchmarks/race.py synthetic
    python benchmarks/race.py ap --data bow.npz --topics 50
    python benchmarks/race.py wikipedia --data bow.npz --plot race.png

prints one JSON line: the curves, and for each score of tomotopy the seconds that ours needs for it.
"""

import argparse
import json
import time
from typing import Any

import jax
import numpy as np
import scipy.sparse
from _common import (
    CORES,
    add_options,
    completion_of,
    draw_corpus,
    gensim_corpus,
    pyplot,
    report,
    save,
    tomotopy_model,
    tomotopy_topics,
)

import inference
import pp_models
from inference.core.problem import make_problem
from inference.evaluation.splits import hold_out

SWEEPS = (10, 20, 30, 50, 100, 200, 400)  # of tomotopy, after which it is scored


class Judge:
    """Scores topics on the held-out documents, and keeps a curve of [seconds, score]."""

    def __init__(self, train: Any, heldout: Any, num_topics: int) -> None:
        self.train, self.heldout, self.num_topics = train, heldout, num_topics
        self.curve: list[list[float]] = []

    def __call__(self, seconds: float, topics: Any, alpha: Any) -> None:
        alpha = np.broadcast_to(np.asarray(alpha, float), (self.num_topics,))
        hyper = {"num_topics": self.num_topics, "alpha": alpha}
        score = completion_of(make_problem("lda", self.train, hyper), topics, self.heldout)
        self.curve.append([round(float(seconds), 2), round(score, 4)])


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

        hyper, key = {"num_topics": num_topics, "alpha": "learn"}, jax.random.key(seed)
        more = {"progress": False, "watch": watch, **options}
        fit = inference.fit("lda", train, engine, hyper, key, **more)
        judge(fit.seconds, fit.posterior.mean("beta"), fit.hyper.alpha)
        curves.append(judge.curve)
    total = round(float(np.sum(fit.hyper.alpha)), 2)
    return {"curve": curves[1], "with_compilation": curves[0], "sum_alpha": total}


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

    settings = {"learning_method": "online", "batch_size": 500, "total_samples": train.num_rows}
    model = LatentDirichletAllocation(num_topics, n_jobs=CORES, random_state=0, **settings)
    judge, seconds = Judge(train, heldout, num_topics), 0.0
    matrix = scipy.sparse.csr_matrix(train.matrix)
    for turn in range(passes):
        order = np.random.default_rng(turn).permutation(matrix.shape[0])
        begin = time.perf_counter()
        model.partial_fit(matrix[order])
        seconds += time.perf_counter() - begin
        judge(seconds, model.components_, 1 / num_topics)
    return {"curve": judge.curve}


def gensim(train, heldout, num_topics, passes):
    from gensim.models import LdaMulticore

    documents, words = gensim_corpus(train)
    settings = {"id2word": words, "chunksize": 500, "workers": CORES, "eval_every": None}
    model = LdaMulticore(num_topics=num_topics, random_state=0, **settings)
    judge, seconds = Judge(train, heldout, num_topics), 0.0
    for _ in range(passes):
        begin = time.perf_counter()
        model.update(documents)
        seconds += time.perf_counter() - begin
        judge(seconds, model.get_topics(), np.asarray(model.alpha))
    return {"curve": judge.curve}


PEERS = {"tomotopy": tomotopy, "gensim": gensim, "scikit_learn": scikit_learn}


def time_to(curve, level):
    """Seconds at which a curve first reaches a score; None if it never does."""
    return next((seconds for seconds, score in curve if score >= level), None)


def draw(line, path):
    figure, axes = pyplot().subplots(figsize=(7, 4.5), layout="constrained")
    for name, run in line["runs"].items():
        axes.plot(*np.array(run["curve"]).T, marker="o", markersize=3, label=name)
    seconds, score = "seconds of fitting (compilation left out)", "held-out log p per word (nats)"
    axes.set(xscale="log", xlabel=seconds, ylabel=score)
    size = f"{line['documents']:,} documents, {line['topics']} topics, {CORES} cores"
    axes.set_title(f"{line['corpus']}: {size}")
    axes.legend()
    save(figure, path)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("corpus", help="synthetic, or a name for --data")
    options = {
        "data": (None, "documents x words, in any format that pp_models reads"),
        "topics": 100,
        "engines": ("hybrid", "of ours, with commas; options as engine:name=value"),
        "peers": "tomotopy,gensim,scikit_learn",
        "sweeps": (100, "of tomotopy"),
        "passes": (2, "of gensim and scikit-learn"),
        "seed": (0, "of ours"),
        "plot": (None, "a PNG to draw"),
    }
    add_options(parser, options)
    chosen = parser.parse_args()
    data = pp_models.readers.read(chosen.data) if chosen.data else draw_corpus(20_000)
    train, heldout, _ = hold_out(data, 0.1)
    line: dict = {"corpus": chosen.corpus, "documents": train.num_rows, "tokens": int(train.total)}
    line |= {"topics": chosen.topics, "cores": CORES, "runs": {}}
    runs = line["runs"]
    for peer in filter(None, chosen.peers.split(",")):
        amount = chosen.sweeps if peer == "tomotopy" else chosen.passes
        runs[peer] = PEERS[peer](train, heldout, chosen.topics, amount)
    for given in chosen.engines.split(","):
        engine, *pairs = given.split(":")
        named = {
            name: json.loads(value) if value[0] in "0123456789" else value
            for name, value in (pair.split("=") for pair in pairs)
        }
        run = runs[given] = ours(train, heldout, chosen.topics, engine, named, chosen.seed)
        if "tomotopy" in runs:
            curves = {name: run[name] for name in ("curve", "with_compilation")}
            run["reached"] = [
                {"score": score, "tomotopy": seconds}
                | {name: time_to(curve, score) for name, curve in curves.items()}
                for seconds, score in runs["tomotopy"]["curve"]
            ]
    report("race", line)
    if chosen.plot:
        draw(line, chosen.plot)


if __name__ == "__main__":
    main()
