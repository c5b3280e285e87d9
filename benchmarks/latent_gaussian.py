"""Latent Gaussian models (H): the grid against Gibbs, and votes on bills. Each experiment is one sub-command.

    python benchmarks/latent_gaussian.py hyper [--data house110]     H Fig. 4: posteriors of alpha1 and alpha2, by the grid and by Gibbs, and a figure
    python benchmarks/latent_gaussian.py votes --data house110       H 5.2: votes on held-out bills from their text
    python benchmarks/latent_gaussian.py missing --data house110     votes missing at random
    python benchmarks/latent_gaussian.py perplexity --data ap.npz    H 5.1: held-out perplexity against seconds, beside LDA's, and a figure
    python benchmarks/latent_gaussian.py online --data wiki.npz      H 5.3: the same from batches in one pass over a large corpus

house110 is a folder with bills.npz (bills x words) and passage_view.npz (votes: members x roll calls, 1, 0, -1 missing; measure_index: their bills).
Each prints one JSON line per figure.
"""

import argparse
import itertools
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)

import matplotlib
import scipy.sparse
import scipy.stats

matplotlib.use("agg")
import arviz
import matplotlib.pyplot as plt

import inference
import pp_models
from inference.core import devices
from inference.core import objective as obj
from inference.core.posteriors import Draws, Point
from inference.engines import _coordinate_ascent as ascent
from inference.evaluation import completion
from inference.evaluation.completion import COUNTS, Scale
from inference.run import fit as fitting
from pp_models.data.types import Data
from pp_models.families import positive_normal as pos

# n, p, K, and how far the product stands out of the noise
CASES = {
    "40 x 60": (40, 60, 3, 4.0),
    "40 x 200": (40, 200, 3, 4.0),
    "120 x 60": (120, 60, 3, 4.0),
    "60 x 120": (60, 120, 5, 4.0),
    "weak": (60, 120, 3, 1.0),
    "no signal": (60, 150, 5, 0.0),
}
PLANTED_VOTES = "planted votes"
GRIDS = {
    "default": {},
    "log": {"weights": "laplace"},
    "truncated": {"method": "truncated"},
    "paper": {"method": "paper"},
}  # options of `inla`


def report(name: str, line: dict[str, Any]) -> None:
    print(json.dumps({"benchmark": f"latent_gaussian {name}", **line}), flush=True)


def planted(n: int, p: int, K: int, size: float, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    rate = size * np.abs(rng.normal(size=(n, K))) @ np.abs(rng.normal(size=(p, K))).T / np.sqrt(K)
    return pp_models.data.counts(np.maximum(np.round(rate + rng.normal(size=(n, p))), 0))


def read_house(folder: str) -> tuple[Any, np.ndarray]:
    """(bills, words) counts and (bills, members) votes with nan for missing ones, a row for each roll call."""
    view = np.load(Path(folder) / "passage_view.npz")
    text = scipy.sparse.load_npz(Path(folder) / "bills.npz").tocsr()[view["measure_index"]]
    votes = view["votes"].T.astype(float)
    votes[votes < 0] = np.nan
    return text, votes


# The grid against Gibbs ---------------------------------------------------------------------------------------------------------------------


def moments(theta: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = weights @ theta
    return mean, np.sqrt(weights @ (theta - mean) ** 2)


def seconds_once(function: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    out = function()
    return time.perf_counter() - begin, out


def seconds_of(function: Any) -> tuple[float, Any]:
    """Of a second run, when everything is compiled."""
    function()
    return seconds_once(function)


def grid_of(
    model: str, data: Any, hyper: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The grid, its moments, the seconds of a compiled run, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seconds, fit = seconds_of(
            lambda: inference.fit(
                model, data, "inla", hyper, key=jax.random.key(1), progress=False, **options
            )
        )
    mean, sd = moments(fit.posterior.theta, fit.posterior.weights)
    said = sorted({str(one.message) for one in caught if one.category is UserWarning})
    return {
        "mean": mean,
        "sd": sd,
        "seconds": seconds,
        "posterior": fit.posterior,
        "warnings": said,
    }


def against_gibbs(
    name: str, model: str, data: Any, hyper: dict[str, Any], num_samples: int
) -> dict[str, Any]:
    """Posterior means of log alpha in units of Gibbs's posterior sd, ratios of sds, and seconds beside those of 400 effective draws.

    With votes the posterior has several modes, which neither the grid nor a chain leaves: chains begin at the top of the default grid.
    """
    grids = {method: grid_of(model, data, hyper, options) for method, options in GRIDS.items()}
    top = grids["default"]["posterior"]
    start = top.values(int(np.argmax(top.weights))) if model == "lg_nmf_votes" else None
    options = {
        "num_samples": num_samples,
        "num_warmup": num_samples // 4,
        "num_chains": 2,
        "init": start,
    }
    seconds, chain = seconds_of(
        lambda: inference.fit(
            model, data, "gibbs", hyper, key=jax.random.key(1), progress=False, **options
        )
    )
    names = [site for site in ("alpha1", "alpha2") if site in chain.posterior.draws]
    draws = np.stack([np.log(chain.posterior.draws[site][..., 0]) for site in names], -1)
    mean, sd = draws.mean((0, 1)), draws.std((0, 1))
    effective = [float(arviz.ess(draws[..., i])) for i in range(len(names))]
    line: dict[str, Any] = {
        "case": name,
        "names": names,
        "gibbs_mean": mean.round(3).tolist(),
        "gibbs_sd": sd.round(3).tolist(),
    }
    line |= {
        "rhat": [round(float(arviz.rhat(draws[..., i])), 3) for i in range(len(names))],
        "ess": np.round(effective).tolist(),
    }
    line["gibbs_seconds_for_400"] = round(seconds * 400 / min(effective), 2)
    n, p = data.num_rows, data.num_columns + data.num_members
    line["papers_shift_predicted"] = round(float(np.log((n + p) ** 2 / (4 * n * p)) / sd[0]), 2)
    for method, grid in grids.items():
        shift, ratio = (
            ((grid["mean"] - mean) / sd).round(3).tolist(),
            (grid["sd"] / sd).round(3).tolist(),
        )
        size = len(grid["posterior"].weights)
        line[method] = {
            "shift_sd": shift,
            "sd_ratio": ratio,
            "points": size,
            "seconds": round(grid["seconds"], 3),
            "warnings": grid["warnings"],
        }
    return {
        **line,
        "_grids": {method: grid["posterior"] for method, grid in grids.items()},
        "_draws": draws.reshape(-1, len(names)),
    }


LEVELS = (
    0.011,
    0.135,
    0.607,
)  # of the highest density: three, two and one standard deviations of a normal


def draw_plane(line: dict[str, Any], path: str) -> str:
    """H Fig. 4: contours of the posterior of (log alpha1, log alpha2), by Gibbs and by the grids, on one scale."""
    figure, axes = plt.subplots(
        1, 3, figsize=(13, 4.4), sharex=True, sharey=True, layout="constrained"
    )
    draws = line["_draws"]
    density = scipy.stats.gaussian_kde(draws[:: max(1, len(draws) // 2000)].T)
    sides = [np.linspace(x.min(), x.max(), 60) for x in draws.T]
    mesh = np.meshgrid(*sides)
    heights = density(np.stack([m.ravel() for m in mesh])).reshape(mesh[0].shape)
    titles = {"default": "Grid, weights along slopes", "paper": "Grid: H(8) as printed"}
    for axis, method in zip(axes, (None, *titles), strict=True):
        axis.contour(
            *mesh,
            heights / heights.max(),
            levels=LEVELS,
            colors="0.6" if method else "tab:blue",
            linewidths=1,
        )
        if method:
            grid = line["_grids"][method]
            axis.tricontour(
                *grid.theta.T, grid.weights / grid.weights.max(), levels=LEVELS, colors="tab:orange"
            )
            axis.scatter(*grid.theta.T, s=4, color="k")
        axis.set(title=titles.get(method, "Gibbs (gray in the others)"), xlabel="log alpha1")
    axes[0].set(ylabel="log alpha2 (contours at 1, 2, 3 sd)")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def public(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.startswith("_")}


def planted_votes(seed: int = 0) -> Any:
    """60 bills of 120 words with 40 members whose votes can be told from the text, three topics."""
    rng = np.random.default_rng(seed)
    words, members, bills = (
        np.abs(rng.normal(size=(120, 3))),
        rng.normal(size=(40, 3)),
        np.abs(rng.normal(size=(60, 3))),
    )
    counts = np.maximum(np.round(4 * bills @ words.T / np.sqrt(3) + rng.normal(size=(60, 120))), 0)
    return pp_models.data.text_and_votes(
        counts, (bills @ members.T + rng.normal(size=(60, 40)) > 0).astype(float)
    )


def hyper(arguments: argparse.Namespace) -> None:
    """Text alone on planted matrices and on bills, and text with votes, planted and on a part of the House's bills."""
    for name in (
        [*CASES, PLANTED_VOTES]
        if arguments.cases == "all"
        else [case for case in arguments.cases.split(",") if case]
    ):
        if name == PLANTED_VOTES:
            report(
                "hyper",
                public(
                    against_gibbs(
                        name, "lg_nmf_votes", planted_votes(), {"num_topics": 3}, arguments.samples
                    )
                ),
            )
            continue
        n, p, K, size = CASES[name]
        report(
            "hyper",
            public(
                against_gibbs(
                    name, "lg_nmf", planted(n, p, K, size), {"num_topics": K}, arguments.samples
                )
            ),
        )
    if arguments.data:
        text, votes = read_house(arguments.data)
        rng = np.random.default_rng(0)
        bills, members = (
            rng.choice(len(votes), 60, replace=False),
            rng.choice(votes.shape[1], 40, replace=False),
        )
        words = np.argsort(-np.asarray(text[bills].sum(0)).ravel())[:240]
        counts = text[bills][:, words]
        alone = pp_models.data.counts(counts)
        report(
            "hyper",
            public(
                against_gibbs(
                    "house, text of 60 bills, 240 words",
                    "lg_nmf",
                    alone,
                    {"num_topics": 4},
                    arguments.samples,
                )
            ),
        )
        both = pp_models.data.text_and_votes(counts, votes[np.ix_(bills, members)])
        line = against_gibbs(
            "house, 60 bills, 240 words, 40 members",
            "lg_nmf_votes",
            both,
            {"num_topics": 4},
            arguments.samples,
        )
        report("hyper", {**public(line), "figure": draw_plane(line, arguments.out)})


# Votes ----------------------------------------------------------------------------------------------------------------------------------------


TRIED = ((1.0, 1e3), (0.3, 3e3), (1.0, 3e2), (1.0, 1e2))  # alpha1, alpha2 of the fit
REFITTED = (
    None,
    1.0,
    3.0,
    10.0,
)  # alpha2 by which members are fitted again to the weights that text alone gives; None: they are not
LENGTH = 50.0  # of a bill's words, weighed by tf-idf
STARTS = 3  # fits at the chosen setting, whose probabilities are averaged


def fitted(
    counts: Any,
    votes: np.ndarray,
    alpha1: float,
    alpha2: float,
    arguments: argparse.Namespace,
    seed: int = 0,
) -> Any:
    """By MAP, as H; on one device, for which a program is compiled once."""
    data = pp_models.data.text_and_votes(counts, votes)
    given = {"num_topics": arguments.rank, "bias": True, "alpha1": alpha1, "alpha2": alpha2}
    options = {
        "num_epochs": arguments.sweeps,
        "basis": "identity",
        "progress": False,
        "devices": jax.local_devices()[:1],
    }
    return inference.fit("lg_nmf_votes", data, "map", given, key=jax.random.key(seed), **options)


def from_text(fit: Any, counts: Any, refit: float | None) -> np.ndarray:
    """Probabilities of yea for bills without votes. Refitted members were fitted to modes of s, so bills have theirs: plug-in, H's choice."""
    new = pp_models.data.text_and_votes(
        counts, np.full((counts.shape[0], len(fit.posterior.mean("d2"))), np.nan)
    )
    return inference.predict_votes(
        fit if refit is None else inference.refit_members(fit, refit), new, "plug_in"
    )


def accuracy(probability: np.ndarray, votes: np.ndarray) -> float:
    seen = ~np.isnan(votes)
    return float(np.mean((probability > 0.5)[seen] == votes[seen]))


def ridge(text: Any, votes: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The peer: tf-idf and a ridge regression of every member's votes, missing ones at the member's share of yeas."""
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import Ridge

    known = votes[train]
    share = (np.nansum(known, 0) + 1) / (np.sum(~np.isnan(known), 0) + 2)
    weigh = TfidfTransformer(sublinear_tf=True).fit(text[train])
    return (
        Ridge(alpha=1.0)
        .fit(weigh.transform(text[train]), np.where(np.isnan(known), share, known))
        .predict(weigh.transform(text[test]))
    )


def chosen_inside(
    text: Any, cast: np.ndarray, train: np.ndarray, rng: Any, arguments: argparse.Namespace
) -> dict[tuple[Any, ...], float]:
    """(alpha1, alpha2, refit) -> accuracy on a fifth of the training bills, by a fit to the others."""
    mixed = rng.permutation(train)
    valid, rest = mixed[: len(mixed) // 5], mixed[len(mixed) // 5 :]
    old, new = (pp_models.data.tf_idf(text[rows], LENGTH, text[rest]) for rows in (rest, valid))
    scores = {}
    for alpha1, alpha2 in TRIED:
        fit = fitted(old, cast[rest], alpha1, alpha2, arguments)
        scores |= {
            (alpha1, alpha2, refit): accuracy(from_text(fit, new, refit), cast[valid])
            for refit in REFITTED
        }
    return scores


def votes(arguments: argparse.Namespace) -> None:
    """Votes on held-out bills: six folds, settings chosen by one inner fold of the training bills, probabilities averaged over random starts."""
    text, cast = read_house(arguments.data)
    rng = np.random.default_rng(arguments.seed)
    fold = rng.permutation(np.arange(len(cast)) % 6)
    scores, peers, chosen, sizes = [], [], [], []
    for number in range(arguments.folds):
        test, train = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        inside = chosen_inside(text, cast, train, rng, arguments)
        alpha1, alpha2, refit = max(inside, key=lambda setting: inside[setting])
        old, new = (
            pp_models.data.tf_idf(text[rows], LENGTH, text[train]) for rows in (train, test)
        )
        said = [
            from_text(fitted(old, cast[train], alpha1, alpha2, arguments, seed), new, refit)
            for seed in range(STARTS)
        ]
        scores.append(accuracy(np.mean(said, 0), cast[test]))
        peers.append(accuracy(ridge(text, cast, train, test), cast[test]))
        chosen.append((alpha1, alpha2, refit))
        sizes.append(int(np.sum(~np.isnan(cast[test]))))
        alone = [round(accuracy(each, cast[test]), 4) for each in said]
        print(
            f"fold {number}",
            {str(k): round(x, 4) for k, x in inside.items()},
            "starts",
            alone,
            "test",
            round(scores[-1], 4),
            flush=True,
        )
    line = {
        "accuracy": round(float(np.average(scores, weights=sizes)), 4),
        "folds": np.round(scores, 4).tolist(),
        "chosen": chosen,
    }
    line |= {
        "ridge": round(float(np.average(peers, weights=sizes)), 4),
        "ridge_folds": np.round(peers, 4).tolist(),
    }
    report("votes", {**line, "always_yea": round(float(np.nanmean(cast)), 4)})


def missing(arguments: argparse.Namespace) -> None:
    """A tenth of all votes missing at random, from the others and the text; alpha2 chosen by another tenth, hidden from the fits that choose."""
    text, cast = read_house(arguments.data)
    place = np.random.default_rng(arguments.seed).random(cast.shape)
    seen = ~np.isnan(cast)
    hidden, valid = seen & (place < 0.1), seen & (place >= 0.1) & (place < 0.2)
    counts = pp_models.data.tf_idf(text, LENGTH)

    def judge(fit: Any, asked: np.ndarray) -> dict[str, Any]:
        out = {}
        for rows in ("plug_in", "gaussian"):
            probability = inference.predict_votes(fit, fit.data, rows)[asked]
            right = round(float(np.mean((probability > 0.5) == cast[asked])), 4)
            out[rows] = {
                "accuracy": right,
                "calibration_error": round(
                    inference.calibration_error(probability, cast[asked]).value, 4
                ),
            }
        return out

    inside = {}
    for alpha2 in (3.0, 10.0, 30.0, 100.0):
        inside[alpha2] = judge(
            fitted(counts, np.where(hidden | valid, np.nan, cast), 1.0, alpha2, arguments), valid
        )
        print("alpha2", alpha2, inside[alpha2], flush=True)
    best = max(inside, key=lambda alpha2: inside[alpha2]["plug_in"]["accuracy"])
    fit = fitted(counts, np.where(hidden, np.nan, cast), 1.0, best, arguments)
    report("missing votes", {"alpha2": best, **judge(fit, hidden), "votes": int(hidden.sum())})


# Perplexity -----------------------------------------------------------------------------------------------------------------------------------
#
# LG-NMF has unit variance about every cell, zeros included. What counts are multiplied by, or raised to, is then a part of the model: counts times c
# are counts with variance 1/c^2, and roots are what makes the variances of Poisson counts alike.


def square(x: Any) -> Any:
    return x**2


def unchanged(x: Any) -> Any:
    return x


def scale_of(name: str, factor: float) -> Scale:
    """raw: c times counts. root: c times their square roots, predictions squared. equal: rows of Euclidean length c."""

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
    """An engine bound to a problem, and what the model sees of counts."""

    problem: Any
    engine: str
    algorithm: Any
    scale: Scale


class Curve(NamedTuple):
    """Scores along a run. seconds: of steps alone, neither compiling nor scoring; rows: seen so far; nats: log probability per held-out word."""

    compile_seconds: float
    seconds: list[float]
    rows: list[int]
    nats: list[float]


def compile_seconds(run: Run, state: Any, batches: Any, key: Any) -> float:
    """Of two steps, the second of which may find another state than the first: how much longer they take the first time."""

    def two_steps() -> float:
        begin = time.perf_counter()
        once, _ = run.algorithm.step(key, state, batches)
        jax.block_until_ready(jax.tree.leaves(run.algorithm.step(key, once, batches)))
        return time.perf_counter() - begin

    return round(max(two_steps() - two_steps(), 0.0), 1)


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
    chosen = fitting.load_engine(engine)
    problem = fitting.make_problem(model, Data("counts", matrix=scale.apply(data.matrix)), hyper)
    settled = chosen.settle(fitting.make_options(chosen, options), problem.data)
    run = Run(problem, engine, chosen.build(problem, settled), scale)
    init_key, batch_key, step_key = jax.random.split(jax.random.key(seed), 3)
    state = run.algorithm.init(init_key, {})
    feed = fitting.feed(chosen, settled, problem, batch_key, marks[-1])
    first = next(feed)
    curve = Curve(compile_seconds(run, state, first, step_key), [], [], [])
    clock, rows, begin = 0.0, 0, time.perf_counter()
    for step, batches in enumerate(itertools.islice(itertools.chain([first], feed), marks[-1]), 1):
        state, _ = run.algorithm.step(jax.random.fold_in(step_key, step), state, batches)
        rows += problem.data.num_rows if chosen.rows != "batch" else settled.batch_size
        if step in marks:
            jax.block_until_ready(jax.tree.leaves(state))
            clock += time.perf_counter() - begin
            curve.seconds.append(round(clock, 2))
            curve.rows.append(min(rows, problem.data.num_rows) if chosen.rows == "batch" else rows)
            curve.nats.append(round(float(score(run, state, batches)), 4))
            begin = time.perf_counter()
    return curve


def completed(run: Run, posterior: Any, heldout: Any, **options: Any) -> float:
    return inference.document_completion(
        fitting.Fit(run.problem, run.engine, {}, posterior, {}, 0.0),
        heldout,
        scale=run.scale,
        **options,
    ).value


def score_posterior(heldout: Any, **options: Any) -> Any:
    """Global sites at their means or at the point."""
    return lambda run, state, batches: completed(
        run, run.algorithm.posterior(state), heldout, **options
    )


def score_draws(heldout: Any, num_draws: int, **options: Any) -> Any:
    """The last few draws of a chain, their predictions averaged."""

    def score(run: Run, state: Any, batches: Any) -> float:
        last = run.algorithm.posterior(state._replace(kept=state.kept[-1:]))
        draws = {site: x[:, -num_draws:] for site, x in last.draws.items()}
        return completed(run, Draws(run.problem, draws), heldout, num_draws=num_draws, **options)

    return score


@jax.jit
def mean_about_mode(natural: Any, mode: Any) -> Any:
    """E d1 of independent positive normals about the mode: coordinate k given the others at theirs has b = h - P d1 + P_kk d1_k and p = P_kk.

    A word whose coordinates are all zero at the mode is then as likely as the data do not exclude, not impossible.
    """
    precision = -2 * natural.second[0]
    p = jnp.diagonal(precision)
    return pos.moments(
        natural.first - mode @ precision + mode * p, jnp.broadcast_to(p, mode.shape)
    ).first


def score_about_mode(heldout: Any, keep: list[Any] | None = None, **options: Any) -> Any:
    """LG-NMF with E d1 about its mode; `document_completion` takes E s given that. keep: collects E d1."""

    def natural_of(run: Run, state: Any, batches: Any) -> Any:
        if run.engine == "stochastic_map":
            return state.shared["d1"], state.points
        model, hyper = run.problem.model, run.problem.hyper
        block, own = (
            obj.Block(model, ascent.statistics, site="d1"),
            list(zip(state.local, batches, strict=True)),
        )
        parts = devices.gather(
            run.problem.devices,
            devices.run(obj.block_gradient, block, run.problem.devices, (hyper, state.shared), own),
        )
        return obj.block_target(model, hyper, state.shared, tuple(parts), "d1", None), state.shared

    def score(run: Run, state: Any, batches: Any) -> float:
        natural, points = natural_of(run, state, batches)
        point = Point(run.problem, {})
        point.values = {"d1": np.asarray(mean_about_mode(natural, points["d1"].first))}
        if keep is not None:
            keep.append((run, point.values["d1"]))
        return completed(run, point, heldout, **options)

    return score


def score_grid(kept: list[tuple[Run, np.ndarray]], heldout: Any, **options: Any) -> float:
    """Predictions averaged over values of alpha1 (H 13), all weighing alike, each with its own E d1."""
    run = kept[0][0]
    draws = {
        "d1": np.stack([d1 for _, d1 in kept])[None],
        "alpha1": np.array([[[float(one.problem.hyper.alpha1)] for one, _ in kept]], np.float32),
    }
    draws["s"] = np.zeros((1, len(kept), 1), np.float32)  # of no document that is scored
    problem = fitting.make_problem(
        "lg_nmf", run.problem.data, {"num_topics": run.problem.hyper.num_topics}
    )
    return completed(
        run._replace(problem=problem),
        Draws(problem, draws),
        heldout,
        num_draws=len(kept),
        **options,
    )


def curves_figure(curves: dict[str, Curve], against: tuple[str, ...], path: str, title: str) -> str:
    """Perplexity against what each panel names, one line for each method."""
    labels = {"seconds": "seconds (two cores; without compiling)", "rows": "documents seen"}
    figure, axes = plt.subplots(
        1,
        len(against),
        figsize=(6.5 * len(against), 4.6),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for axis, name in zip(axes[0], against, strict=True):
        for method, curve in curves.items():
            axis.plot(
                getattr(curve, name), np.exp(-np.array(curve.nats)), marker="o", ms=3, label=method
            )
        axis.set(xscale="log", yscale="log", xlabel=labels[name])
        axis.grid(alpha=0.3, which="both")
    axes[0, 0].set(ylabel="held-out perplexity", title=title)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8
    )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def tell(command: str, method: str, curve: Curve) -> None:
    best = max(curve.nats)
    report(
        command,
        {
            "method": method,
            **curve._asdict(),
            "perplexity": np.exp(-np.array(curve.nats)).round().tolist(),
            "best_nats": best,
        },
    )


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
    """What counts are multiplied by, of several, scored on a tenth of the training documents after few sweeps."""
    inside = completion.hold_out(data, 0.1, 1)

    def score(factor: float) -> float:
        options = {"basis": "identity", "num_local": 2, "num_epochs": sweeps}
        about = score_about_mode(inside.heldout, num_local=3)
        return follow(
            "lg_nmf",
            inside.training,
            "map",
            hyper,
            [sweeps],
            about,
            scale_of(name, factor),
            **options,
        ).nats[-1]

    found = {factor: score(factor) for factor in factors}
    report(command, {"scale": name, "nats_by_factor": found})
    return max(found, key=lambda factor: found[factor])


def perplexity(arguments: argparse.Namespace) -> None:
    """H 5.1: perplexity of LG-NMF, LG-MCMC, LG-OP and LDA against seconds; a fifth of the documents held out, their words in three folds."""
    data = completion.hold_out(
        pp_models.data.counts(scipy.sparse.load_npz(arguments.data)), 0.2, arguments.seed
    )
    train, heldout, rank = data.training, data.heldout, {"num_topics": arguments.topics}
    lg = {**rank, "alpha1": arguments.alpha1}
    point = {"basis": "identity", "num_local": 2, "num_epochs": arguments.sweeps}
    chain = {"num_samples": 5, "num_warmup": 0, "num_chains": 1}
    sweeps, draws = marks_up_to(arguments.sweeps), marks_up_to(arguments.draws // 5)
    factor = arguments.factor or chosen_factor(
        "perplexity", arguments.scale, [3.0, 10.0, 30.0], train, lg
    )
    scale, raw = scale_of(arguments.scale, factor), scale_of("raw", 1.0)
    about, sampled = score_about_mode(heldout, num_local=3), score_draws(heldout, 5, num_local=3)
    methods = {
        f"LG-NMF ({arguments.scale} x {factor:g})": lambda: follow(
            "lg_nmf", train, "map", lg, sweeps, about, scale, **point
        ),
        "LDA, cavi": lambda: follow(
            "lda",
            train,
            "cavi",
            {**rank, **SMOOTHING},
            sweeps,
            score_posterior(heldout),
            num_epochs=arguments.sweeps,
        ),
        "LDA, gibbs": lambda: follow(
            "lda", train, "gibbs", {**rank, **SMOOTHING}, draws, score_draws(heldout, 5), **chain
        ),
        f"LG-MCMC ({arguments.scale} x {factor:g})": lambda: follow(
            "lg_nmf", train, "gibbs", lg, draws, sampled, scale, **chain
        ),
        "LG-NMF (counts as they are)": lambda: follow(
            "lg_nmf", train, "map", lg, sweeps, about, raw, **point
        ),
        "LG-NMF (counts as they are, d1 at its mode)": lambda: follow(
            "lg_nmf", train, "map", lg, sweeps, score_posterior(heldout, num_local=3), raw, **point
        ),
        "LG-OP": lambda: follow(
            "lg_op",
            train,
            "map",
            lg,
            marks_up_to(arguments.ordinal_sweeps),
            score_posterior(heldout, num_local=3),
            num_epochs=arguments.ordinal_sweeps,
        ),
    }
    curves = {}
    if arguments.grid:
        curves["LG-NMF, alpha1 averaged"] = grid_curve(train, heldout, lg, arguments, scale, point)
        tell("perplexity", "LG-NMF, alpha1 averaged", curves["LG-NMF, alpha1 averaged"])
    for method, run in methods.items():
        if not arguments.only or arguments.only in method:
            curves[method] = run()
            tell("perplexity", method, curves[method])
    report(
        "perplexity",
        {
            "figure": curves_figure(
                curves,
                ("seconds",),
                arguments.out,
                f"{train.num_rows} documents, K = {arguments.topics}",
            )
        },
    )


def grid_curve(
    train: Any,
    heldout: Any,
    lg: dict[str, Any],
    arguments: argparse.Namespace,
    scale: Scale,
    point: dict[str, Any],
) -> Curve:
    """LG-NMF at several alpha1, each from its own start, predictions averaged after as many sweeps of each; seconds are those of all together."""
    marks = [mark for mark in marks_up_to(arguments.sweeps) if mark >= 5]
    kept: list[list[Any]] = [[] for _ in arguments.grid]
    runs = [
        follow(
            "lg_nmf",
            train,
            "map",
            {**lg, "alpha1": alpha1},
            marks,
            score_about_mode(heldout, keep, num_local=3),
            scale,
            seed,
            **point,
        )
        for seed, (alpha1, keep) in enumerate(zip(arguments.grid, kept, strict=True))
    ]
    nats = [
        round(score_grid([keep[i] for keep in kept], heldout, num_local=3), 4)
        for i in range(len(marks))
    ]
    seconds = np.sum([run.seconds for run in runs], 0).round(2).tolist()
    return Curve(sum(run.compile_seconds for run in runs), seconds, runs[0].rows, nats)


SMOOTHING = {
    "alpha": 0.05,
    "eta": 0.05,
}  # of LDA: about what empirical Bayes finds (benchmarks/trust_region.py learned)


def online(arguments: argparse.Namespace) -> None:
    """H 5.3: held-out perplexity of online LG-NMF, online LDA and adaptive SVI against documents seen and seconds; one pass, batches of 64."""
    data = pp_models.data.counts(scipy.sparse.load_npz(arguments.data))
    split = completion.hold_out(data, arguments.heldout / data.num_rows, arguments.seed)
    train, heldout, rank = split.training, split.heldout, {"num_topics": arguments.topics}
    marks = [m for m in marks_up_to(-(-train.num_rows // 64)) if m >= 10]
    shared = {"num_epochs": 1, "batch_size": 64, "bound_every": 0}
    scored = {"folds": 2}
    about = score_about_mode(heldout, num_local=2, **scored)
    some = train.select(
        np.sort(
            np.random.default_rng(2).choice(
                train.num_rows, min(train.num_rows, 1500), replace=False
            )
        )
    )
    small = {"num_topics": min(arguments.topics, 50), "alpha1": arguments.alpha1[0]}
    factor = arguments.factor or chosen_factor(
        "online", arguments.scale, [3.0, 10.0, 30.0], some, small
    )
    scale = scale_of(arguments.scale, factor)
    methods = {
        f"online LG-NMF ({arguments.scale} x {factor:g}), alpha1 = {alpha1:g}": lambda alpha1=alpha1: (
            follow(
                "lg_nmf",
                train,
                "stochastic_map",
                {**rank, "alpha1": alpha1},
                marks,
                about,
                scale,
                **shared,
            )
        )
        for alpha1 in arguments.alpha1
    }
    lda = {**rank, **SMOOTHING}
    methods["online LDA (svi)"] = lambda: follow(
        "lda", train, "svi", lda, marks, score_posterior(heldout, **scored), **shared
    )
    methods["adaptive SVI"] = lambda: follow(
        "lda",
        train,
        "svi",
        lda,
        marks,
        score_posterior(heldout, **scored),
        rate="adaptive",
        **shared,
    )
    curves = {}
    for method, run in methods.items():
        curves[method] = run()
        tell("online", method, curves[method])
    report(
        "online",
        {
            "figure": curves_figure(
                curves,
                ("rows", "seconds"),
                arguments.out,
                f"{train.num_rows} documents, K = {arguments.topics}",
            )
        },
    )


def add_perplexity(commands: Any) -> None:
    command = commands.add_parser("perplexity", help=perplexity.__doc__)
    command.set_defaults(function=perplexity)
    command.add_argument("--data", required=True, help="documents x words, scipy .npz")
    command.add_argument("--topics", type=int, default=50)
    command.add_argument(
        "--alpha1", type=float, default=1.0, help="precision of documents' weights"
    )
    command.add_argument(
        "--scale",
        default="raw",
        choices=["raw", "root", "equal"],
        help="what LG-NMF sees: counts, their roots, or rows of one length",
    )
    command.add_argument(
        "--grid",
        type=float,
        nargs="*",
        default=[],
        help="values of alpha1 whose predictions are averaged (H 13)",
    )
    command.add_argument(
        "--factor",
        type=float,
        default=0.0,
        help="what that is multiplied by (0: chosen inside the training documents)",
    )
    command.add_argument("--sweeps", type=int, default=50, help="of MAP and of CAVI")
    command.add_argument("--draws", type=int, default=300, help="sweeps of Gibbs")
    command.add_argument(
        "--ordinal-sweeps", type=int, default=10, help="of LG-OP, which visits all cells"
    )
    command.add_argument("--only", default="", help="methods whose name holds this")
    command.add_argument("--seed", type=int, default=0, help="of the split")
    command.add_argument("--out", default="results/perplexity.png", help="the figure")
    command = commands.add_parser("online", help=online.__doc__)
    command.set_defaults(function=online)
    command.add_argument("--data", required=True, help="documents x words, scipy .npz")
    command.add_argument("--topics", type=int, default=200)
    command.add_argument("--alpha1", type=float, nargs="+", default=[1.0], help="values tried")
    command.add_argument(
        "--scale", default="raw", choices=["raw", "root", "equal"], help="as of perplexity"
    )
    command.add_argument(
        "--factor",
        type=float,
        default=0.0,
        help="as of perplexity (0: chosen inside 1,500 training documents, at most 50 topics)",
    )
    command.add_argument("--heldout", type=int, default=640, help="documents held out")
    command.add_argument("--seed", type=int, default=0, help="of the split")
    command.add_argument("--out", default="results/online.png", help="the figure")


# Speed ----------------------------------------------------------------------------------------------------------------------------------------


def squares(matrix: Any, weights: np.ndarray, topics: np.ndarray, alpha1: float) -> float:
    """|C - s d1'|^2 / 2 + alpha1 |s|^2 / 2 + K |d1|^2 / 2 in double precision, zeros through Gram matrices: what `map` and the peer minimise."""
    s, d = weights.astype(float), topics.astype(float)
    crossed = np.sum((matrix @ d.T) * s)
    fit = 0.5 * (
        np.sum(matrix.data.astype(float) ** 2) - 2 * crossed + np.sum((s.T @ s) * (d @ d.T))
    )
    return float(fit + 0.5 * alpha1 * np.sum(s**2) + 0.5 * len(d) * np.sum(d**2))


def speed(arguments: argparse.Namespace) -> None:
    """A sweep of MAP beside scikit-learn's coordinate descent with the same penalties and start, both to their end; and a grid beside single fits."""
    from sklearn.decomposition import NMF

    data = pp_models.datasets.load(arguments.data)
    K, alpha1, matrix = arguments.topics, 1.0, data.matrix.astype(np.float32)
    given, rng = {"num_topics": K, "alpha1": alpha1}, np.random.default_rng(0)
    n, p = data.num_rows, data.num_columns
    start = {"s": rng.random((n, K), np.float32), "d1": 0.1 * rng.random((p, K), np.float32)}

    def ours(sweeps: int) -> Any:
        options = {
            "num_epochs": sweeps,
            "basis": "identity",
            "tolerance": 0.0,
            "init": start,
            "progress": False,
        }
        return inference.fit("lg_nmf", data, "map", given, **options)

    def theirs(sweeps: int) -> tuple[np.ndarray, np.ndarray]:
        peer = NMF(
            K,
            init="custom",
            solver="cd",
            max_iter=sweeps,
            tol=0.0,
            alpha_W=alpha1 / p,
            alpha_H=K / n,
            l1_ratio=0.0,
        )
        return peer.fit_transform(
            matrix, W=start["s"].copy(), H=start["d1"].T.copy()
        ), peer.components_

    sweeps = arguments.sweeps
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # scikit-learn says that it did not converge, as it was told
        ours(3), theirs(2)
        turns = [
            (seconds_once(lambda: ours(sweeps)), seconds_once(lambda: theirs(sweeps)))
            for _ in range(arguments.rounds)
        ]
    mine, peer = (min((turn[i] for turn in turns), key=lambda pair: pair[0]) for i in (0, 1))
    heights = (
        squares(matrix, mine[1].posterior.mean("s"), mine[1].posterior.mean("d1").T, alpha1),
        squares(matrix, *peer[1], alpha1),
    )
    line = {
        "sweeps": sweeps,
        "map_seconds_a_sweep": round(mine[0] / sweeps, 4),
        "peer_seconds_a_sweep": round(peer[0] / sweeps, 4),
    }
    report(
        "speed",
        {
            **line,
            "ratio": round(peer[0] / mine[0], 2),
            "objective": heights[0],
            "peer_objective": heights[1],
        },
    )
    if not arguments.skip_grid:  # of rows of one length: raw counts, nearly all of them zero, leave K = 50 with unit noise little but its prior
        level = pp_models.data.counts(pp_models.data.of_equal_length(data.matrix))
        single, one = seconds_of(
            lambda: inference.fit("lg_nmf", level, "laplace", given, progress=False)
        )
        grid, fit = seconds_of(
            lambda: inference.fit(
                "lg_nmf", level, "inla", {"num_topics": K}, weights="laplace", progress=False
            )
        )
        line = {
            "single_point_seconds": round(single, 1),
            "grid_seconds": round(grid, 1),
            "ratio": round(grid / single, 2),
        }
        report(
            "speed",
            {
                **line,
                "grid_points": len(fit.posterior.weights),
                "sweeps": [int(f.history["sweeps"].sum()) for f in (one, fit)],
            },
        )


def add_speed(commands: Any) -> None:
    command = commands.add_parser("speed", help=speed.__doc__)
    command.set_defaults(function=speed)
    command.add_argument(
        "--data", required=True, help="documents x words, in any format that the command line reads"
    )
    command.add_argument("--topics", type=int, default=50)
    command.add_argument("--sweeps", type=int, default=100)
    command.add_argument(
        "--rounds", type=int, default=3, help="of both in turn, of which the quickest count"
    )
    command.add_argument("--skip-grid", action="store_true", help="the sweeps alone")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("hyper", help=hyper.__doc__)
    command.set_defaults(function=hyper)
    command.add_argument("--data", help="folder of the House's bills and votes")
    command.add_argument(
        "--cases", default="all", help="of planted matrices, with commas; all or none"
    )
    command.add_argument(
        "--samples", type=int, default=8000, help="Gibbs sweeps kept of each of two chains"
    )
    command.add_argument("--out", default="results/hyper.png", help="the figure")
    for function in (votes, missing):
        command = commands.add_parser(function.__name__, help=function.__doc__)
        command.set_defaults(function=function)
        command.add_argument("--data", required=True, help="folder of the House's bills and votes")
        command.add_argument("--rank", type=int, default=30)
        command.add_argument("--sweeps", type=int, default=60)
        command.add_argument(
            "--seed", type=int, default=0, help="of the folds, or of the votes that are missing"
        )
        if function is votes:
            command.add_argument("--folds", type=int, default=6, help="of six that are run")
    add_perplexity(commands)
    add_speed(commands)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
