"""Trust-region steps against natural-gradient steps: the experiments of Theis & Hoffman (2015), each one sub-command.

    python benchmarks/trust_region.py mnist     --data mnist.npz         T Fig. 2A/B: Bernoulli mixture, components in use and bound
    python benchmarks/trust_region.py patches                            T Fig. 2C: Gaussian mixture on patches of photographs, beside memoized
    python benchmarks/trust_region.py synthetic                          LDA on a drawn corpus, one pass
    python benchmarks/trust_region.py learned   --data bow.npz           LDA with alpha and eta learned, up to four passes
    python benchmarks/trust_region.py sweep     --data bow.npz           T Fig. 3A: random settings of the paper's grid, equal work
    python benchmarks/trust_region.py streaming --data bow.npz           T Fig. 4: words arriving one at a time

Each prints one JSON line and saves a figure into --out. Seconds include compilation; the figures' axes are updates or passes, as in the paper.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)

import matplotlib
import scipy.sparse

matplotlib.use("agg")
import matplotlib.pyplot as plt
from lda_throughput import corpus

import inference
import pp_models
from inference.core import objective as obj
from inference.engines import _minibatch as mb
from inference.evaluation import completion
from inference.run import fit as fitting
from pp_models.data.arrivals import Arrivals, feed, no_ids
from pp_models.data.types import Data
from pp_models.elimination.row_solver import RowOptions

COLOURS = {
    "trust_region": "C0",
    "svi": "C1",
    "memoized 500": "C2",
    "memoized 10000": "C3",
    "svb": "C4",
    "streaming_batch": "C5",
}


def finish(arguments: argparse.Namespace, figure: Any, line: dict[str, Any]) -> None:
    """Save the figure and print the line."""
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{arguments.command}.png"
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    print(
        json.dumps({"benchmark": f"trust_region {arguments.command}", **line, "figure": str(path)}),
        flush=True,
    )


def run(
    model: str,
    data: Data,
    engine: str,
    hyper: Any,
    seed: int,
    probe: Any,
    every: int = 1,
    **options: Any,
) -> tuple[list[float], list[Any], Any]:
    """An engine stepped by hand: passes made and what `probe(problem, state)` saw, every so many passes, and the last state's posterior."""
    chosen = fitting.load_engine(engine)
    problem = fitting.make_problem(model, data, hyper)
    settled = chosen.settle(fitting.make_options(chosen, options), data)
    algorithm = chosen.build(problem, settled)
    init_key, batch_key, step_key = jax.random.split(jax.random.key(seed), 3)
    state = algorithm.init(init_key, {})
    num_steps, per_pass = fitting.run_length(chosen, settled, problem)
    passes, seen = [0.0], [probe(problem, state)]
    for step, batches in enumerate(fitting.feed(chosen, settled, problem, batch_key, num_steps)):
        state, _ = algorithm.step(jax.random.fold_in(step_key, step), state, batches)
        if (step + 1) % (every * per_pass) == 0:
            passes.append((step + 1) / per_pass)
            seen.append(probe(problem, state))
    return passes, seen, algorithm.posterior(state)


def mean_bound(data: Data) -> Any:
    """The bound per row, from all the rows of `data`, scaled to the problem's number of rows."""

    def probe(problem: obj.Problem, state: Any) -> float:
        hyper, total = getattr(state, "hyper", problem.hyper), 0.0
        for first in range(0, data.num_rows, 5000):
            batches = data.shards(
                np.arange(first, min(first + 5000, data.num_rows)), 5000, problem.devices
            )
            solved = mb.solve(
                problem, hyper, state.shared, batches, RowOptions(100, 1e-3), bound=True
            )
            total += sum(float(term) for share in solved.shares for term in share.bound)
        prior = float(obj.shared_bound(problem.model, hyper, state.shared))
        return total / data.num_rows + prior / problem.data.num_rows

    return probe


def read_counts(path: str) -> Data:
    return pp_models.data.counts(scipy.sparse.load_npz(path))


# T 4.1 -------------------------------------------------------------------------------------------------------------------------


def mnist(arguments: argparse.Namespace) -> None:
    """Forty Bernoulli components; each pixel is set with its grey value as probability."""
    with np.load(arguments.data) as file:
        images = next(
            file[name]
            for name in ("x_train", "train_images", *file.files)
            if name in file.files and file[name].ndim >= 2
        )
    grey = images.reshape(len(images), -1)[: arguments.rows].astype(np.float32)
    grey /= grey.max()
    data = pp_models.data.dense(
        (np.random.default_rng(0).random(grey.shape) < grey).astype(np.float32)
    )
    settings = {
        "trust_region": {"num_epochs": 10, "num_inner": 2, "bound_every": 0},
        "svi": {"num_epochs": 20, "bound_every": 0},
    }
    probe = mean_bound(data.select(np.arange(min(10_000, data.num_rows))))
    full = mean_bound(data)
    line: dict[str, Any] = {
        name: {"components": [], "bound": [], "seconds": []} for name in settings
    }
    figure, (left, *right) = plt.subplots(1, 3, figsize=(15, 4.5))
    for name, axes in zip(settings, right, strict=True):
        for seed in range(arguments.seeds):
            begin = time.perf_counter()
            shared = {"batch_size": 200, "kappa": 0.5, "tau": 100.0}
            hyper = {"num_components": 40}
            passes, bounds, posterior = run(
                "bernoulli_mixture", data, name, hyper, seed, probe, **shared, **settings[name]
            )
            seconds = time.perf_counter() - begin
            final = full(
                posterior.problem,
                argparse.Namespace(shared=posterior._shared, hyper=posterior.problem.hyper),
            )
            weights = posterior.mean("pi")
            record = {
                "components": int((weights > 1 / 400).sum()),
                "bound": round(final, 3),
                "seconds": round(seconds, 1),
            }
            for key, value in record.items():
                line[name][key].append(value)
            left.plot(
                np.array(passes) * (2 if name == "trust_region" else 1) * data.num_rows / 200,
                bounds,
                color=COLOURS[name],
                alpha=0.7,
            )
        order = np.argsort(-weights)
        tiles = (
            posterior.mean("beta")[order]
            .reshape(5, 8, 28, 28)
            .transpose(0, 2, 1, 3)
            .reshape(5 * 28, 8 * 28)
        )
        axes.imshow(tiles, cmap="gray_r")
        axes.set(title=f"{name}: E[beta] of the last seed", xticks=[], yticks=[])
    left.set(
        xlabel="updates (inner steps counted)", ylabel="bound, nats per image", ylim=(-175, -145)
    )
    left.set_title("blue: trust region, orange: natural gradient")
    gaps = np.subtract(line["trust_region"]["bound"], line["svi"]["bound"])
    finish(
        arguments,
        figure,
        {**line, "images": data.num_rows, "least_gap": round(float(gaps.min()), 3)},
    )


# T 4.2 -------------------------------------------------------------------------------------------------------------------------


def photographs() -> list[np.ndarray]:
    """Grey natural photographs that come inside Python packages: scikit-learn's two, and scikit-image's where it is installed."""
    from sklearn.datasets import load_sample_images

    images = [image.mean(2) for image in load_sample_images().images]
    try:
        from skimage import data as shipped
    except ImportError:
        return images
    for name in ("astronaut", "camera", "chelsea", "coffee"):
        try:
            image = getattr(shipped, name)()
        except Exception as error:  # not shipped with this version: it would be downloaded
            print(f"{name} left out: {error}")
            continue
        images.append(image.mean(2) if image.ndim == 3 else image)
    return images


def cut(images: list[np.ndarray], num_patches: int, seed: int = 0) -> np.ndarray:
    """Random 8 x 8 patches of log intensities about their common mean, in units of their common standard deviation."""
    rng = np.random.default_rng(seed)
    sizes = np.array([image.size for image in images], float)
    patches = []
    for image, share in zip(images, rng.multinomial(num_patches, sizes / sizes.sum()), strict=True):
        top, left = (rng.integers(0, size - 7, share) for size in image.shape)
        rows, columns = (
            top[:, None, None] + np.arange(8)[:, None],
            left[:, None, None] + np.arange(8),
        )
        patches.append(np.log1p(image.astype(np.float64))[rows, columns].reshape(share, 64))
    values = rng.permutation(np.concatenate(patches))
    values += rng.normal(
        0, 1e-2, values.shape
    )  # eight-bit intensities tie; a little noise keeps covariances of full rank
    return ((values - values.mean()) / values.std()).astype(np.float32)


def patches(arguments: argparse.Namespace) -> None:
    """Fifty Gaussians with full covariances on image patches."""
    data = pp_models.data.dense(cut(photographs(), arguments.rows))
    shared = {"kappa": 0.5, "tau": 10.0, "bound_every": 0}
    settings: dict[str, tuple[str, dict[str, Any]]] = {
        "trust_region": ("trust_region", {**shared, "batch_size": 500, "num_inner": 5}),
        "svi": ("svi", {**shared, "batch_size": 500}),
        "memoized 500": ("memoized", {"batch_size": 500, "tolerance": 0.0}),
        "memoized 10000": ("memoized", {"batch_size": 10_000, "tolerance": 0.0}),
    }
    probe = mean_bound(data.select(np.arange(min(20_000, data.num_rows))))
    figure, axes = plt.subplots(figsize=(7, 4.5))
    line: dict[str, Any] = {}
    for name, (engine, options) in settings.items():
        line[name] = {"bound": [], "components": [], "seconds": []}
        for seed in range(arguments.seeds):
            begin = time.perf_counter()
            passes, bounds, posterior = run(
                "gaussian_mixture",
                data,
                engine,
                {"num_components": 50},
                seed,
                probe,
                num_epochs=arguments.passes,
                **options,
            )
            weights = posterior.mean("pi")
            record = {
                "bound": round(bounds[-1], 3),
                "components": int((weights > 1 / 500).sum()),
                "seconds": round(time.perf_counter() - begin, 1),
            }
            for key, value in record.items():
                line[name][key].append(value)
            axes.plot(
                passes, bounds, color=COLOURS[name], alpha=0.8, label=name if seed == 0 else None
            )
    axes.set(
        xlabel="passes",
        ylabel="bound, nats per patch",
        title="Gaussian mixture, 50 components, 8 x 8 patches",
    )
    top = max(max(part["bound"]) for part in line.values())
    axes.set_ylim(top - 8, top + 1)
    axes.legend()
    finish(arguments, figure, {**line, "patches": data.num_rows, "passes": arguments.passes})


# LDA ---------------------------------------------------------------------------------------------------------------------------


def synthetic(arguments: argparse.Namespace) -> None:
    """One pass over a corpus drawn from LDA (20,000 x 8,000, 100 topics), batches of 500, from the paper's start."""
    train, heldout, _ = completion.hold_out(pp_models.data.counts(corpus(20_000)), 0.1)
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
            fit = inference.fit(
                "lda",
                train,
                name.split()[0],
                hyper,
                jax.random.key(seed),
                init=start,
                **shared,
                **options,
            )
            seconds.append(round(time.perf_counter() - begin, 1))
            scores.append(round(inference.document_completion(fit, heldout).value, 4))
        line[name] = {"heldout": scores, "seconds": seconds}
    figure, axes = plt.subplots(figsize=(5, 4))
    for i, part in enumerate(line.values()):
        axes.plot([i] * len(part["heldout"]), part["heldout"], "o")
    axes.set(
        xticks=range(len(line)),
        xticklabels=list(line),
        ylabel="held-out log p per word, nats",
        title="one pass, synthetic corpus",
    )
    finish(arguments, figure, line)


def paper_start(seed: int, num_topics: int, num_columns: int) -> jax.Array:
    """Gamma(100, scale 0.01), as T starts every experiment."""
    return 0.01 * jax.random.gamma(jax.random.key(1000 + seed), 100.0, (num_topics, num_columns))


def learned(arguments: argparse.Namespace) -> None:
    """alpha and eta learned by empirical Bayes: held-out score after each of four passes, and with alpha and eta as given."""
    train, heldout, _ = completion.hold_out(read_counts(arguments.data), 0.1)
    options = {
        "batch_size": 100,
        "num_inner": 10,
        "num_local": 20,
        "kappa": 0.5,
        "tau": 10.0,
        "bound_every": 0,
        "progress": False,
    }
    figure, axes = plt.subplots(figsize=(6, 4))
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
                fit = inference.fit(
                    "lda",
                    train,
                    "trust_region",
                    {"num_topics": arguments.topics, **hyper},
                    jax.random.key(seed),
                    num_epochs=num_epochs,
                    **options,
                )
                seconds = time.perf_counter() - begin
                scores.append(round(inference.document_completion(fit, heldout).value, 4))
            line[name]["heldout"].append(scores)
            line[name]["seconds"].append(round(seconds, 1))
            axes.plot(
                range(1, 5),
                scores,
                color="C0" if name == "learned" else "C7",
                label=name if seed == 0 else None,
            )
        alpha = np.asarray(fit.hyper.alpha)
        line[name] |= {
            "alpha": [round(float(alpha.min()), 4), round(float(alpha.max()), 4)],
            "eta": round(float(fit.hyper.eta), 4),
        }
    axes.set(
        xlabel="passes",
        ylabel="held-out log p per word, nats",
        title=f"trust region, K = {arguments.topics}",
    )
    axes.legend()
    finish(arguments, figure, line)


GRID = {
    "batch_size": (10, 50, 100, 500, 1000),
    "kappa": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    "tau": (1.0, 10.0, 100.0, 1000.0, 10000.0),
    "steps": ((5, 40), (10, 20), (20, 10), (5, 100)),
    "eta": (0.01, 0.05, 0.1, 0.2, 0.3),
    "alpha": (0.01, 0.05, 0.1),
}


def sweep(arguments: argparse.Namespace) -> None:
    """Settings at random from T's grid: trust region with m inner and M local steps, natural gradient for twice the passes with m M / 2 local steps.

    T made 3 and 6 passes over 3.8 million documents. The same passes over a small corpus are fewer updates, at which a large tau leaves the start
    where it is, and twice as many updates win whatever they do. So tau is scaled by the number of documents, `--tau-per` of T's: the rate then
    falls over a pass as T's does. One is added, as t counts from 0 here: a first rate of exactly 1 would forget the start, and with it, from even
    allocations, what tells topics apart.
    """
    train, heldout, _ = completion.hold_out(read_counts(arguments.data), 0.1)
    if arguments.rows < train.num_rows:
        train = train.select(np.arange(arguments.rows))
    scale = train.num_rows / arguments.tau_per
    rng = np.random.default_rng(arguments.seed)
    rows = []
    for number in range(arguments.settings):
        chosen = {name: choices[rng.integers(len(choices))] for name, choices in GRID.items()}
        inner, local = chosen["steps"]
        hyper = {
            "num_topics": arguments.topics,
            "alpha": ("learn", chosen["alpha"]),
            "eta": ("learn", chosen["eta"]),
        }
        tau = 1 + scale * chosen["tau"]
        shared = {
            "batch_size": chosen["batch_size"],
            "kappa": chosen["kappa"],
            "tau": tau,
            "bound_every": 0,
            "local_tolerance": 1e-3,
        }
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
    spread = {
        name: float(np.subtract(*np.percentile(score, [75, 25]))) for name, score in scores.items()
    }
    figure, axes = plt.subplots(figsize=(5, 5))
    axes.plot(scores["svi"], scores["trust_region"], "o")
    limits = [min(map(np.min, scores.values())) - 0.05, max(map(np.max, scores.values())) + 0.05]
    axes.plot(limits, limits, "k:")
    axes.set(
        xlabel="natural gradient",
        ylabel="trust region",
        title="held-out log p per word, random settings",
        xlim=limits,
        ylim=limits,
    )
    line = {
        "settings": len(rows),
        "documents": train.num_rows,
        "better": round(float(np.mean(scores["trust_region"] > scores["svi"])), 3),
        "interquartile_range": {name: round(value, 4) for name, value in spread.items()},
        "ratio_of_ranges": round(spread["trust_region"] / spread["svi"], 3),
        "medians": {name: round(float(np.median(score)), 4) for name, score in scores.items()},
    }
    finish(arguments, figure, line)


# T 4.3 -------------------------------------------------------------------------------------------------------------------------


def streaming(arguments: argparse.Namespace) -> None:
    """Documents arrive at a Poisson rate and show one word at a time; held-out score while the database grows, and the levels of offline learning."""
    train, heldout, _ = completion.hold_out(read_counts(arguments.data), 0.1)
    if arguments.rows < train.num_rows:
        train = train.select(np.arange(arguments.rows))
    hyper = {"num_topics": arguments.topics, "alpha": ("learn", 0.05), "eta": ("learn", 0.05)}
    local = {"num_inner": 10, "num_local": 20}
    start = {"batch_size": 100, "tau": 10.0, "bound_every": 0}
    followers: dict[str, tuple[str, dict[str, Any]]] = {
        "trust_region": ("streaming", {"update": "trust_region", "kappa": 0.5, **start, **local}),
        "svi": ("streaming", {"update": "natural", "kappa": 0.5, **start, "num_local": 100}),
        "svb": (
            "svb",
            {"batch_size": 1000, "num_inner": 20, "num_local": 20},
        ),  # eta cannot be learned: the best of five, as T
        "streaming_batch": (
            "streaming_batch",
            {"batch_size": 50_000, "num_inner": 100, "num_local": 10},
        ),
    }
    arrivals = len(range(0, train.num_rows, arguments.rate))
    figure, axes = plt.subplots(figsize=(7, 4.5))
    line: dict[str, Any] = {"documents": train.num_rows}
    every = max(1, arrivals // 12)
    for name, (engine, options) in followers.items():
        begin = time.perf_counter()
        # svb uses eta once and cannot learn it: the best of five, as in T 4.3
        choices = (
            [{**hyper, "eta": eta} for eta in (0.01, 0.05, 0.1, 0.2, 0.3)]
            if name == "svb"
            else [hyper]
        )
        curves = [
            follow(
                name,
                train,
                heldout,
                every,
                inference.stream("lda", train.num_columns, engine, h, **options),
                arguments,
            )
            for h in choices
        ]
        seen, scores, stream = max(curves, key=lambda curve: curve[1][-1])
        line[name] = {
            "heldout": round(scores[-1], 4),
            "steps": stream.num_steps,
            "seconds": round(time.perf_counter() - begin, 1),
        }
        alpha = np.asarray(stream.fit(np.arange(1)).hyper.alpha)
        line[name] |= {"alpha": [round(float(alpha.min()), 4), round(float(alpha.max()), 4)]}
        axes.plot(seen, scores, ".-", color=COLOURS[name], label=name)
        print(json.dumps({name: line[name]}), flush=True)
    natural = {"num_epochs": 8, "num_local": 100, "bound_every": 0}
    levels: dict[str, list[dict[str, Any]]] = {
        "trust_region": [
            {"num_epochs": 4, "batch_size": 100, **local, "kappa": 0.5, "bound_every": 0}
        ],
        "svi": [
            {**natural, "batch_size": size, "kappa": kappa}
            for size in (100, 500)
            for kappa in (0.5, 0.7)
        ],
    }
    for name, choices in levels.items():
        fits = [
            inference.fit("lda", train, name, hyper, jax.random.key(0), progress=False, **options)
            for options in choices
        ]
        best = max(inference.document_completion(fit, heldout).value for fit in fits)
        line[f"offline {name}"] = round(best, 4)
        axes.axhline(best, color=COLOURS[name], linestyle="--", linewidth=1)
    axes.set(
        xlabel="documents in the database, complete or not",
        ylabel="held-out log p per word, nats",
        title="dashed: offline, best setting",
    )
    axes.legend()
    finish(arguments, figure, line)


def follow(
    name: str, train: Data, heldout: Data, every: int, stream: Any, arguments: argparse.Namespace
) -> tuple[list[int], list[float], Any]:
    """Play the corpus to a stream: rows in the database and held-out scores as they grow, and the stream at the end.

    One update a tick, once there are `--first` documents (T's N_0); of the streaming batch algorithm, a training run now and then.
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
            if stream.num_rows >= arguments.first and (
                name != "streaming_batch" or number % (3 * every) == every
            ):
                stream.step(1)
        if number % (2 * every) == 2 * every - 1 and stream.num_steps:
            score()
    if name != "svb":
        stream.step(1 if name == "streaming_batch" else arguments.after)
    score()
    return seen, scores, stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, function, seeds, needs_data in (
        ("mnist", mnist, 5, True),
        ("patches", patches, 2, False),
        ("synthetic", synthetic, 2, False),
        ("learned", learned, 2, True),
        ("sweep", sweep, 1, True),
        ("streaming", streaming, 1, True),
    ):
        command = commands.add_parser(name, help=(function.__doc__ or "").splitlines()[0])
        command.set_defaults(function=function)
        command.add_argument("--out", default="results/trust_region", help="folder for the figure")
        command.add_argument("--seeds", type=int, default=seeds)
        command.add_argument("--topics", type=int, default=50)
        if needs_data:
            command.add_argument("--data", required=True, help="path of the data")
        if name in ("mnist", "patches", "sweep", "streaming"):
            command.add_argument(
                "--rows",
                type=int,
                default={"mnist": 60_000, "patches": 100_000}.get(name, 10**9),
                help="rows used",
            )
        if name == "patches":
            command.add_argument("--passes", type=int, default=10)
        if name == "sweep":
            command.add_argument("--settings", type=int, default=20)
            command.add_argument(
                "--tau-per",
                type=float,
                default=3.8e6,
                help="documents for which tau is as T gives it; scaled for fewer",
            )
            command.add_argument("--seed", type=int, default=0)
        if name == "streaming":
            command.add_argument(
                "--rate", type=int, default=10, help="documents per tick, on average"
            )
            command.add_argument(
                "--probability",
                type=float,
                default=0.7,
                help="that an active document shows a word in a tick",
            )
            command.add_argument(
                "--first",
                type=int,
                default=500,
                help="documents in the database before learning starts",
            )
            command.add_argument(
                "--after", type=int, default=200, help="steps once everything has come"
            )
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
