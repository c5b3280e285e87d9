"""Held-out perplexity of latent Gaussian models (H 5.1 and 5.3), for `latent_gaussian.py`."""

import argparse
import itertools
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from _common import Bound, bind, pyplot, read_counts, report, save, timed

import inference
from inference.core import devices
from inference.core import objective as obj
from inference.core.completion import COUNTS, Scale
from inference.core.posteriors import Draws, Point
from inference.core.problem import make_problem
from inference.engines import _coordinate_ascent as ascent
from inference.evaluation.splits import hold_out
from inference.io.fits import Fit
from inference.run.loop import feed
from pp_models.data.types import Data
from pp_models.families import positive_normal as pos


def square(x: Any) -> Any:
    return x**2


def unchanged(x: Any) -> Any:
    return x


def scale_of(name: str, factor: float) -> Scale:
    """raw: c times counts. root: c times their roots, predictions squared. equal: rows of length c.

    LG-NMF has unit variance about every cell, zeros included, so the scale of the counts is part of
    the model: counts times c are counts with variance 1 / c^2, and roots make the variances of
    Poisson counts alike.
    """

    def apply(counts: Any) -> Any:
        out = scipy.sparse.csr_array(counts).copy()
        out.eliminate_zeros()
        values = np.sqrt(out.data) if name == "root" else out.data.astype(np.float64)
        if name == "equal":
            sizes = np.sqrt(np.asarray((out**2).sum(axis=1), np.float64)).ravel()
            values = values / np.repeat(np.maximum(sizes, 1e-9), np.diff(out.indptr))
        out.data = (factor * values).astype(np.float32)
        return out

    return Scale(apply, square if name == "root" else unchanged)


class Run(NamedTuple):
    """An engine bound to a problem, and the transformation of counts that the model sees."""

    bound: Bound
    scale: Scale


class Curve(NamedTuple):
    """Scores along a run.

    seconds: of steps without compiling and scoring. rows: seen so far. nats: log probability per
    held-out word.
    """

    compile_seconds: float
    seconds: list[float]
    rows: list[int]
    nats: list[float]


def compile_seconds(algorithm: Any, state: Any, batches: Any, key: Any) -> float:
    """How much longer two steps take the first time; the second may have other shapes."""

    def two_steps() -> Any:
        return algorithm.step(key, algorithm.step(key, state, batches)[0], batches)

    return round(max(timed(two_steps)[0] - timed(two_steps)[0], 0.0), 1)


def follow(
    model: str,
    data: Any,
    engine: str,
    hyper: dict[str, Any],
    marks: list[int],
    score: Any,
    scale: Scale = COUNTS,
    seed: int = 0,
    **options: Any,
) -> Curve:
    """Steps of an engine, scored after each number of steps in `marks` with the clock stopped."""
    scaled = Data("counts", matrix=scale.apply(data.matrix))
    bound = bind(engine, make_problem(model, scaled, hyper), **options)
    chosen, settled, problem, algorithm = bound
    init_key, batch_key, step_key = jax.random.split(jax.random.key(seed), 3)
    state = algorithm.init(init_key, {})
    batches_of = feed(chosen, settled, problem, batch_key, marks[-1])
    first, in_batches = next(batches_of), chosen.rows == "batch"
    curve = Curve(compile_seconds(algorithm, state, first, step_key), [], [], [])
    size, clock, begin = problem.data.num_rows, 0.0, time.perf_counter()
    every = itertools.islice(itertools.chain([first], batches_of), marks[-1])
    for step, batches in enumerate(every, 1):
        state, _ = algorithm.step(jax.random.fold_in(step_key, step), state, batches)
        if step in marks:
            jax.block_until_ready(jax.tree.leaves(state))
            clock += time.perf_counter() - begin
            curve.seconds.append(round(clock, 2))
            curve.rows.append(min(step * settled.batch_size, size) if in_batches else step * size)
            curve.nats.append(round(float(score(Run(bound, scale), state, batches)), 4))
            begin = time.perf_counter()
    return curve


def completed(run: Run, posterior: Any, heldout: Any, **options: Any) -> float:
    fit = Fit(run.bound.problem, run.bound.engine.name, {}, posterior, {}, 0.0)
    return inference.document_completion(fit, heldout, scale=run.scale, **options).value


def score_posterior(heldout: Any, **options: Any) -> Any:
    """Global sites at their means or at the point."""

    def score(run: Run, state: Any, batches: Any) -> float:
        return completed(run, run.bound.algorithm.posterior(state), heldout, **options)

    return score


def score_draws(heldout: Any, num_draws: int, **options: Any) -> Any:
    """The last few draws of a chain, their predictions averaged."""

    def score(run: Run, state: Any, batches: Any) -> float:
        last = run.bound.algorithm.posterior(state._replace(kept=state.kept[-1:]))
        draws = {site: x[:, -num_draws:] for site, x in last.draws.items()}
        posterior = Draws(run.bound.problem, draws)
        return completed(run, posterior, heldout, num_draws=num_draws, **options)

    return score


@jax.jit
def mean_about_mode(natural: Any, mode: Any) -> Any:
    """E d1 of independent positive normals about the mode.

    Coordinate k given the others at their mode has b = h - P d1 + P_kk d1_k and p = P_kk. A word
    whose coordinates are all zero at the mode is then not impossible.
    """
    precision = -2 * natural.second[0]
    p = jnp.diagonal(precision)
    linear = natural.first - mode @ precision + mode * p
    return pos.moments(linear, jnp.broadcast_to(p, mode.shape)).first


def score_about_mode(heldout: Any, keep: list[Any] | None = None, **options: Any) -> Any:
    """LG-NMF with E d1 about its mode, and E s given that. keep: collects (run, E d1)."""

    def natural_of(run: Run, state: Any, batches: Any) -> Any:
        if run.bound.engine.name == "stochastic_map":
            return state.shared["d1"], state.points
        problem = run.bound.problem
        model, hyper, places = problem.model, problem.hyper, problem.devices
        block = obj.Block(model, ascent.statistics, site="d1")
        own, common = list(zip(state.local, batches, strict=True)), (hyper, state.shared)
        found = devices.run(obj.block_gradient, block, places, common, own)
        parts = tuple(devices.gather(places, found))
        return obj.block_target(model, hyper, state.shared, parts, "d1", None), state.shared

    def score(run: Run, state: Any, batches: Any) -> float:
        natural, points = natural_of(run, state, batches)
        point = Point(run.bound.problem, {})
        point.values = {"d1": np.asarray(mean_about_mode(natural, points["d1"].first))}
        if keep is not None:
            keep.append((run, point.values["d1"]))
        return completed(run, point, heldout, **options)

    return score


def score_grid(kept: list[tuple[Run, np.ndarray]], heldout: Any, **options: Any) -> float:
    """Predictions averaged over values of alpha1 (H 13) of equal weight, each with its own E d1."""
    run, number = kept[0][0], len(kept)
    alpha1 = [[[float(one.bound.problem.hyper.alpha1)] for one, _ in kept]]
    draws = {
        "d1": np.stack([d1 for _, d1 in kept])[None],
        "alpha1": np.array(alpha1, np.float32),
        "s": np.zeros((1, number, 1), np.float32),  # of no document that is scored
    }
    data, hyper = run.bound.problem.data, run.bound.problem.hyper
    problem = make_problem("lg_nmf", data, {"num_topics": hyper.num_topics})
    run = run._replace(bound=run.bound._replace(problem=problem))
    return completed(run, Draws(problem, draws), heldout, num_draws=number, **options)


def curves_figure(curves: dict[str, Curve], against: tuple[str, ...], path: str, title: str) -> str:
    """Perplexity against seconds or rows, one line for each method."""
    labels = {"seconds": "seconds (without compiling)", "rows": "documents seen"}
    shared = {"sharey": True, "layout": "constrained", "squeeze": False}
    figure, axes = pyplot().subplots(1, len(against), figsize=(6.5 * len(against), 4.6), **shared)
    for axis, name in zip(axes[0], against, strict=True):
        for method, curve in curves.items():
            perplexities = np.exp(-np.array(curve.nats))
            axis.plot(getattr(curve, name), perplexities, marker="o", ms=3, label=method)
        axis.set(xscale="log", yscale="log", xlabel=labels[name])
        axis.grid(alpha=0.3, which="both")
    axes[0, 0].set(ylabel="held-out perplexity", title=title)
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, fontsize=8)
    return save(figure, path)


def tell(command: str, method: str, curve: Curve) -> None:
    perplexities = np.exp(-np.array(curve.nats)).round().tolist()
    line = {"method": method, **curve._asdict(), "perplexity": perplexities}
    report(f"latent_gaussian {command}", line | {"best_nats": max(curve.nats)})


def marks_up_to(last: int) -> list[int]:
    """1, 2, 5, 10, 20, ... and the last."""
    return sorted({m * 10**e for m in (1, 2, 5) for e in range(6) if m * 10**e < last} | {last})


def chosen_factor(
    command: str,
    name: str,
    factors: list[float],
    data: Any,
    hyper: dict[str, Any],
    sweeps: int = 20,
) -> float:
    """The best factor of the counts on a tenth of the training documents after few sweeps."""
    inside = hold_out(data, 0.1, 1)
    options = {"basis": "identity", "num_local": 2, "num_epochs": sweeps}
    about = score_about_mode(inside.heldout, num_local=3)
    chosen = "lg_nmf", inside.training, "map", hyper, [sweeps], about
    found = {x: follow(*chosen, scale_of(name, x), **options).nats[-1] for x in factors}
    report(f"latent_gaussian {command}", {"scale": name, "nats_by_factor": found})
    return max(found, key=lambda factor: found[factor])


# of LDA: about the values that empirical Bayes finds (trust_region.py learned)
SMOOTHING = {"alpha": 0.05, "eta": 0.05}


def perplexity(arguments: argparse.Namespace) -> None:
    """H 5.1: perplexity of LG-NMF, LG-MCMC, LG-OP and LDA against seconds.

    A fifth of the documents is held out, their words in three folds.
    """
    data = hold_out(read_counts(arguments.data), 0.2, arguments.seed)
    train, heldout, rank = data.training, data.heldout, {"num_topics": arguments.topics}
    lg, smooth = {**rank, "alpha1": arguments.alpha1}, {**rank, **SMOOTHING}
    point = {"basis": "identity", "num_local": 2, "num_epochs": arguments.sweeps}
    chain = {"num_samples": 5, "num_warmup": 0, "num_chains": 1}
    sweeps, draws = marks_up_to(arguments.sweeps), marks_up_to(arguments.draws // 5)
    ordinal, name = arguments.ordinal_sweeps, arguments.scale
    factors = [3.0, 10.0, 30.0]
    factor = arguments.factor or chosen_factor("perplexity", name, factors, train, lg)
    scale, raw, scaled = scale_of(name, factor), scale_of("raw", 1.0), f"({name} x {factor:g})"
    about, sampled = score_about_mode(heldout, num_local=3), score_draws(heldout, 5, num_local=3)
    mean, mode = score_posterior(heldout), score_posterior(heldout, num_local=3)
    by_map, by_gibbs = ("lg_nmf", train, "map", lg), ("lg_nmf", train, "gibbs", lg)
    lda, lg_op = ("lda", train), ("lg_op", train, "map", lg)
    last = score_draws(heldout, 5)
    methods = {
        f"LG-NMF {scaled}": partial(follow, *by_map, sweeps, about, scale, **point),
        "LDA, cavi": partial(
            follow, *lda, "cavi", smooth, sweeps, mean, num_epochs=arguments.sweeps
        ),
        "LDA, gibbs": partial(follow, *lda, "gibbs", smooth, draws, last, **chain),
        f"LG-MCMC {scaled}": partial(follow, *by_gibbs, draws, sampled, scale, **chain),
        "LG-NMF (counts as they are)": partial(follow, *by_map, sweeps, about, raw, **point),
        "LG-NMF (counts as they are, d1 at its mode)": partial(
            follow, *by_map, sweeps, mode, raw, **point
        ),
        "LG-OP": partial(follow, *lg_op, marks_up_to(ordinal), mode, num_epochs=ordinal),
    }
    if arguments.only:
        methods = {method: run for method, run in methods.items() if arguments.only in method}
    if arguments.grid:
        averaged = partial(grid_curve, train, heldout, lg, arguments, scale, point)
        methods = {"LG-NMF, alpha1 averaged": averaged} | methods
    draw_all("perplexity", methods, ("seconds",), train, arguments)


def draw_all(
    command: str, methods: dict[str, Any], against: tuple[str, ...], train: Any, arguments: Any
) -> None:
    """Run the methods, tell each curve, and draw all of them."""
    curves = {}
    for method, run in methods.items():
        curves[method] = run()
        tell(command, method, curves[method])
    title = f"{train.num_rows} documents, K = {arguments.topics}"
    path = curves_figure(curves, against, arguments.out, title)
    report(f"latent_gaussian {command}", {"figure": path})


def grid_curve(
    train: Any, heldout: Any, lg: dict[str, Any], arguments: Any, scale: Scale, point: Any
) -> Curve:
    """LG-NMF at several alpha1 from different starts, predictions averaged, seconds added."""
    marks = [mark for mark in marks_up_to(arguments.sweeps) if mark >= 5]
    kept: list[list[Any]] = [[] for _ in arguments.grid]
    runs = []
    for seed, (alpha1, keep) in enumerate(zip(arguments.grid, kept, strict=True)):
        score = score_about_mode(heldout, keep, num_local=3)
        chosen = "lg_nmf", train, "map", {**lg, "alpha1": alpha1}, marks, score, scale, seed
        runs.append(follow(*chosen, **point))
    parts = ([keep[i] for keep in kept] for i in range(len(marks)))
    nats = [round(score_grid(part, heldout, num_local=3), 4) for part in parts]
    seconds = np.sum([run.seconds for run in runs], 0).round(2).tolist()
    return Curve(sum(run.compile_seconds for run in runs), seconds, runs[0].rows, nats)


def online(arguments: argparse.Namespace) -> None:
    """H 5.3: perplexity of online LG-NMF, online LDA and adaptive SVI in one pass.

    Batches have 64 documents; the figure is against documents seen and seconds.
    """
    data = read_counts(arguments.data)
    split = hold_out(data, arguments.heldout / data.num_rows, arguments.seed)
    train, heldout, rank = split.training, split.heldout, {"num_topics": arguments.topics}
    marks = [m for m in marks_up_to(-(-train.num_rows // 64)) if m >= 10]
    shared = {"num_epochs": 1, "batch_size": 64, "bound_every": 0}
    about = score_about_mode(heldout, num_local=2, folds=2)
    number, rng = min(train.num_rows, 1500), np.random.default_rng(2)
    some = train.select(np.sort(rng.choice(train.num_rows, number, replace=False)))
    small = {"num_topics": min(arguments.topics, 50), "alpha1": arguments.alpha1[0]}
    factors, name = [3.0, 10.0, 30.0], arguments.scale
    factor = arguments.factor or chosen_factor("online", name, factors, some, small)
    scale, methods = scale_of(name, factor), {}
    for alpha1 in arguments.alpha1:
        chosen = "lg_nmf", train, "stochastic_map", {**rank, "alpha1": alpha1}
        method = f"online LG-NMF ({name} x {factor:g}), alpha1 = {alpha1:g}"
        methods[method] = partial(follow, *chosen, marks, about, scale, **shared)
    lda = "lda", train, "svi", {**rank, **SMOOTHING}, marks, score_posterior(heldout, folds=2)
    methods["online LDA (svi)"] = partial(follow, *lda, **shared)
    methods["adaptive SVI"] = partial(follow, *lda, rate="adaptive", **shared)
    draw_all("online", methods, ("rows", "seconds"), train, arguments)
