"""Trust-region steps against natural-gradient steps: the experiments of Theis & Hoffman 2015 (T).

    python benchmarks/trust_region.py mnist     --data mnist.npz    T Fig. 2A/B: Bernoulli mixture
    python benchmarks/trust_region.py patches                       T Fig. 2C: Gaussian mixture
    python benchmarks/trust_region.py synthetic                     LDA, one pass
    python benchmarks/trust_region.py learned   --data bow.npz      LDA, alpha and eta learned
    python benchmarks/trust_region.py sweep     --data bow.npz      T Fig. 3A: random settings
    python benchmarks/trust_region.py streaming --data bow.npz      T Fig. 4: words arriving

Each prints one JSON line and saves a figure into --out. Seconds include compilation. The axes of
the figures are updates or passes, as in the paper.
"""

import argparse
import itertools
import json
import time
from typing import Any

import jax
import numpy as np
from _common import REQUIRED, draw_corpus, pyplot, read_counts, rounded, run_commands
from _mixtures import COLOURS, finish, mnist, patches

import inference
from inference.evaluation.splits import hold_out
from pp_models.data.arrivals import Arrivals, feed, no_ids
from pp_models.data.types import Data

HELD_OUT = "held-out log p per word, nats"


def synthetic(arguments: argparse.Namespace) -> None:
    """One pass of LDA over a drawn corpus (20,000 x 8,000, 100 topics), batches of 500."""
    train, heldout, _ = hold_out(draw_corpus(20_000), 0.1)
    hyper = {"num_topics": 100, "alpha": 0.05, "eta": 0.05}
    settings: dict[str, dict[str, Any]] = {
        "trust_region": {"num_inner": 10, "num_local": 10, "kappa": 0.5},
        "svi": {"num_local": 50, "kappa": 0.5},
        "svi kappa 0.7": {"num_local": 50, "kappa": 0.7},
    }
    line: dict[str, Any] = {}
    shared = {"num_epochs": 1, "batch_size": 500, "bound_every": 0, "progress": False}
    for name, options in settings.items():
        scores, seconds = [], []
        for seed in range(arguments.seeds):
            begin = time.perf_counter()
            start = {"beta": paper_start(seed, 100, train.num_columns)}
            chosen = "lda", train, name.split()[0], hyper, jax.random.key(seed)
            fit = inference.fit(*chosen, init=start, **shared, **options)
            seconds.append(round(time.perf_counter() - begin, 1))
            scores.append(round(inference.document_completion(fit, heldout).value, 4))
        line[name] = {"heldout": scores, "seconds": seconds}
    figure, axes = pyplot().subplots(figsize=(5, 4))
    for i, part in enumerate(line.values()):
        axes.plot([i] * len(part["heldout"]), part["heldout"], "o")
    axes.set(xticks=range(len(line)), xticklabels=list(line))
    axes.set(ylabel=HELD_OUT, title="one pass, synthetic corpus")
    finish(arguments, figure, line)


def ends(alpha: Any) -> list[float]:
    """The smallest and the largest value."""
    return rounded([float(np.min(alpha)), float(np.max(alpha))])


def paper_start(seed: int, num_topics: int, num_columns: int) -> jax.Array:
    """Gamma(100, scale 0.01), as T starts every experiment."""
    return 0.01 * jax.random.gamma(jax.random.key(1000 + seed), 100.0, (num_topics, num_columns))


def learned(arguments: argparse.Namespace) -> None:
    """Held-out score after one to four passes, with alpha and eta learned and as given."""
    train, heldout, _ = hold_out(read_counts(arguments.data), 0.1)
    options = {"batch_size": 100, "num_inner": 10, "num_local": 20, "kappa": 0.5, "tau": 10.0}
    options |= {"bound_every": 0, "progress": False}
    figure, axes = pyplot().subplots(figsize=(6, 4))
    line: dict[str, Any] = {}
    for name, hyper in (
        ("learned", {"alpha": ("learn", 0.05), "eta": ("learn", 0.05)}),
        ("fixed", {"alpha": 0.05, "eta": 0.05}),
    ):
        line[name] = {"heldout": [], "seconds": []}
        for seed in range(arguments.seeds):
            scores = []
            for num_epochs in range(1, 5):
                begin = time.perf_counter()
                given = {"num_topics": arguments.topics, **hyper}
                chosen = "lda", train, "trust_region", given, jax.random.key(seed)
                fit = inference.fit(*chosen, num_epochs=num_epochs, **options)
                seconds = time.perf_counter() - begin
                scores.append(round(inference.document_completion(fit, heldout).value, 4))
            line[name]["heldout"].append(scores)
            line[name]["seconds"].append(round(seconds, 1))
            colour, label = "C0" if name == "learned" else "C7", name if seed == 0 else None
            axes.plot(range(1, 5), scores, color=colour, label=label)
        line[name] |= {"alpha": ends(fit.hyper.alpha), "eta": round(float(fit.hyper.eta), 4)}
    axes.set(xlabel="passes", ylabel=HELD_OUT, title=f"trust region, K = {arguments.topics}")
    axes.legend()
    finish(arguments, figure, line)


BATCH = {"num_inner": 100, "num_local": 10}
GRID = {
    "batch_size": (10, 50, 100, 500, 1000),
    "kappa": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    "tau": (1.0, 10.0, 100.0, 1000.0, 10000.0),
    "steps": ((5, 40), (10, 20), (20, 10), (5, 100)),
    "eta": (0.01, 0.05, 0.1, 0.2, 0.3),
    "alpha": (0.01, 0.05, 0.1),
}


def sweep(arguments: argparse.Namespace) -> None:
    """Random settings of T's grid at equal work.

    Trust region makes m inner and M local steps, natural gradient twice the passes with m M / 2
    local steps. T made 3 and 6 passes over 3.8 million documents. The same passes over a small
    corpus are fewer updates, at which a large tau does not move the start, and twice as many
    updates win in any case. So tau is scaled by the number of documents (`--tau-per` of T's): the
    rate then falls over a pass as T's does. One is added because t counts from 0 here: a first rate
    of exactly 1 would forget the start, which alone tells topics apart.
    """
    train, heldout, _ = hold_out(read_counts(arguments.data), 0.1)
    if arguments.rows < train.num_rows:
        train = train.select(np.arange(arguments.rows))
    scale = train.num_rows / arguments.tau_per
    rng = np.random.default_rng(arguments.seed)
    rows = []
    for number in range(arguments.settings):
        chosen = {name: choices[rng.integers(len(choices))] for name, choices in GRID.items()}
        inner, local = chosen["steps"]
        hyper = {name: ("learn", chosen[name]) for name in ("alpha", "eta")}
        hyper["num_topics"] = arguments.topics
        shared = {name: chosen[name] for name in ("batch_size", "kappa")}
        shared |= {"tau": 1 + scale * chosen["tau"], "bound_every": 0, "local_tolerance": 1e-3}
        shared["init"] = {"beta": paper_start(number, arguments.topics, train.num_columns)}
        key, record = jax.random.key(number), dict(chosen)
        for name, options in (
            ("trust_region", {"num_epochs": 3, "num_inner": inner, "num_local": local}),
            ("svi", {"num_epochs": 6, "num_local": inner * local // 2}),
        ):
            begin = time.perf_counter()
            fit = inference.fit("lda", train, name, hyper, key, progress=False, **shared, **options)
            record[f"{name}_seconds"] = round(time.perf_counter() - begin, 1)
            record[name] = round(inference.document_completion(fit, heldout).value, 4)
        rows.append(record)
        print(json.dumps(record), flush=True)
    scores = {name: np.array([row[name] for row in rows]) for name in ("trust_region", "svi")}
    spread = {n: float(np.subtract(*np.percentile(x, [75, 25]))) for n, x in scores.items()}
    figure, axes = pyplot().subplots(figsize=(5, 5))
    axes.plot(scores["svi"], scores["trust_region"], "o")
    limits = [min(map(np.min, scores.values())) - 0.05, max(map(np.max, scores.values())) + 0.05]
    axes.plot(limits, limits, "k:")
    axes.set(xlabel="natural gradient", ylabel="trust region", xlim=limits, ylim=limits)
    axes.set_title("held-out log p per word, random settings")
    line = {
        "settings": len(rows),
        "documents": train.num_rows,
        "better": round(float(np.mean(scores["trust_region"] > scores["svi"])), 3),
        "interquartile_range": rounded(spread),
        "ratio_of_ranges": round(spread["trust_region"] / spread["svi"], 3),
        "medians": {name: round(float(np.median(x)), 4) for name, x in scores.items()},
    }
    finish(arguments, figure, line)


# T 4.3 --------------------------------------------------------------------------------------------


def streaming(arguments: argparse.Namespace) -> None:
    """Held-out score while documents arrive word by word, and the levels of offline learning."""
    train, heldout, _ = hold_out(read_counts(arguments.data), 0.1)
    if arguments.rows < train.num_rows:
        train = train.select(np.arange(arguments.rows))
    hyper = {"num_topics": arguments.topics, "alpha": ("learn", 0.05), "eta": ("learn", 0.05)}
    local = {"num_inner": 10, "num_local": 20}
    start = {"batch_size": 100, "tau": 10.0, "bound_every": 0}
    followers: dict[str, tuple[str, dict[str, Any]]] = {
        "trust_region": ("streaming", {"update": "trust_region", "kappa": 0.5, **start, **local}),
        "svi": ("streaming", {"update": "natural", "kappa": 0.5, **start, "num_local": 100}),
        "svb": ("svb", {"batch_size": 1000, "num_inner": 20, "num_local": 20}),
        "streaming_batch": ("streaming_batch", {"batch_size": 50_000, **BATCH}),
    }
    arrivals = len(range(0, train.num_rows, arguments.rate))
    figure, axes = pyplot().subplots(figsize=(7, 4.5))
    line: dict[str, Any] = {"documents": train.num_rows}
    every = max(1, arrivals // 12)
    for name, (engine, options) in followers.items():
        begin = time.perf_counter()
        choices = [hyper]
        if name == "svb":  # it uses eta once and cannot learn it: the best of five, as in T 4.3
            choices = [{**hyper, "eta": eta} for eta in GRID["eta"]]
        streams = (
            inference.stream("lda", train.num_columns, engine, h, **options) for h in choices
        )
        curves = [follow(name, train, heldout, every, one, arguments) for one in streams]
        seen, scores, stream = max(curves, key=lambda curve: curve[1][-1])
        line[name] = {"heldout": round(scores[-1], 4), "steps": stream.num_steps}
        line[name]["seconds"] = round(time.perf_counter() - begin, 1)
        line[name]["alpha"] = ends(stream.fit(np.arange(1)).hyper.alpha)
        axes.plot(seen, scores, ".-", color=COLOURS[name], label=name)
        print(json.dumps({name: line[name]}), flush=True)
    natural = {"num_epochs": 8, "num_local": 100, "bound_every": 0}
    trusted = {"num_epochs": 4, "batch_size": 100, **local, "kappa": 0.5, "bound_every": 0}
    pairs = itertools.product((100, 500), (0.5, 0.7))
    naturals = [{**natural, "batch_size": size, "kappa": kappa} for size, kappa in pairs]
    for name, choices in {"trust_region": [trusted], "svi": naturals}.items():
        chosen = "lda", train, name, hyper, jax.random.key(0)
        fits = [inference.fit(*chosen, progress=False, **options) for options in choices]
        best = max(inference.document_completion(fit, heldout).value for fit in fits)
        line[f"offline {name}"] = round(best, 4)
        axes.axhline(best, color=COLOURS[name], linestyle="--", linewidth=1)
    axes.set(xlabel="documents in the database, complete or not", ylabel=HELD_OUT)
    axes.set_title("dashed: offline, best setting")
    axes.legend()
    finish(arguments, figure, line)


def follow(
    name: str, train: Data, heldout: Data, every: int, stream: Any, arguments: argparse.Namespace
) -> tuple[list[int], list[float], Any]:
    """Play the corpus to a stream: (rows in the database, held-out scores, the stream).

    There is one update per tick once there are `--first` documents (T's N_0). The streaming batch
    algorithm trains now and then.
    """
    ids, shown = no_ids(train), 0
    seen: list[int] = []
    scores: list[float] = []

    def score() -> None:
        seen.append(stream.num_rows)
        scores.append(inference.document_completion(stream.fit(np.arange(1)), heldout).value)

    for number, tick in enumerate(Arrivals(train, arguments.rate, arguments.probability, seed=0)):
        if name == "svb":  # whole documents, when their first word comes (T 4.3)
            if len(tick.new_documents):
                stream.append(train.select(np.asarray(tick.new_documents)))
                shown += len(tick.new_documents)
            stream.step(1, flush=shown == train.num_rows)
        else:
            feed(stream.database, tick, ids)
            due = name != "streaming_batch" or number % (3 * every) == every
            if stream.num_rows >= arguments.first and due:
                stream.step(1)
        if number % (2 * every) == 2 * every - 1 and stream.num_steps:
            score()
    if name != "svb":
        stream.step(1 if name == "streaming_batch" else arguments.after)
    score()
    return seen, scores, stream


if __name__ == "__main__":
    shared = {"out": ("results/trust_region", "folder for the figure"), "topics": 50}
    data = {"data": (REQUIRED, "path of the data")}
    every = {"rows": (10**9, "rows used")}
    tau_per = 3.8e6, "documents for which tau is as T gives it; scaled for fewer"
    arriving = {
        "rate": (10, "documents per tick, on average"),
        "probability": (0.7, "that an active document shows a word in a tick"),
        "first": (500, "documents in the database before learning starts"),
        "after": (200, "steps once everything has arrived"),
    }
    commands = {
        mnist: {**data, "seeds": 5, "rows": (60_000, "rows used")},
        patches: {"seeds": 2, "rows": (100_000, "rows used"), "passes": 10},
        synthetic: {"seeds": 2},
        learned: {**data, "seeds": 2},
        sweep: {**data, **every, "seeds": 1, "settings": 20, "tau_per": tau_per, "seed": 0},
        streaming: {**data, **every, "seeds": 1, **arriving},
    }
    run_commands(__doc__, {name: shared | options for name, options in commands.items()})
