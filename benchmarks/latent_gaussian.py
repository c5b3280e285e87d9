"""Latent Gaussian models (H): the grid against Gibbs, and votes on bills. Each experiment is one sub-command.

    python benchmarks/latent_gaussian.py hyper [--data house110]     H Fig. 4: posteriors of alpha1 and alpha2, by the grid and by Gibbs, and a figure
    python benchmarks/latent_gaussian.py votes --data house110       H 5.2: votes on held-out bills from their text, and missing votes

house110 is a folder with bills.npz (bills x words) and passage_view.npz (votes: members x roll calls, 1, 0, -1 missing; measure_index: their bills).
Each prints one JSON line per figure.
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
import arviz
import matplotlib.pyplot as plt

import inference
import pp_models

# n, p, K, and how far the product stands out of the noise
CASES = {
    "40 x 60": (40, 60, 3, 4.0),
    "40 x 200": (40, 200, 3, 4.0),
    "120 x 60": (120, 60, 3, 4.0),
    "60 x 120": (60, 120, 5, 4.0),
    "weak": (60, 120, 3, 1.0),
}


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


def seconds_of(function: Any) -> tuple[float, Any]:
    """Of a second run, when everything is compiled."""
    function()
    begin = time.perf_counter()
    out = function()
    return time.perf_counter() - begin, out


def against_gibbs(name: str, model: str, data: Any, hyper: dict[str, Any], num_samples: int) -> dict[str, Any]:
    """Posterior means of log alpha in units of Gibbs's posterior sd, ratios of sds, and seconds beside those of 400 effective draws."""
    shared = {"key": jax.random.key(1), "progress": False}
    options = {"num_samples": num_samples, "num_warmup": num_samples // 4, "num_chains": 2}
    seconds, chain = seconds_of(lambda: inference.fit(model, data, "gibbs", hyper, **options, **shared))
    names = [site for site in ("alpha1", "alpha2") if site in chain.posterior.draws]
    draws = np.stack([np.log(chain.posterior.draws[site][..., 0]) for site in names], -1)
    mean, sd = draws.mean((0, 1)), draws.std((0, 1))
    effective = [float(arviz.ess(draws[..., i])) for i in range(len(names))]
    line: dict[str, Any] = {"case": name, "names": names, "gibbs_mean": mean.round(3).tolist(), "gibbs_sd": sd.round(3).tolist()}
    line |= {"rhat": [round(float(arviz.rhat(draws[..., i])), 3) for i in range(len(names))], "ess": np.round(effective).tolist()}
    line["gibbs_seconds_for_400"] = round(seconds * 400 / min(effective), 2)
    n, p = data.num_rows, data.num_columns + data.num_members
    line["papers_shift_predicted"] = round(float(np.log((n + p) ** 2 / (4 * n * p)) / sd[0]), 2)
    for method in ("log", "truncated", "paper"):
        taken, fit = seconds_of(lambda method=method: inference.fit(model, data, "inla", hyper, method=method, **shared))
        found = moments(fit.posterior.theta, fit.posterior.weights)
        line[method] = {
            "shift_sd": ((found[0] - mean) / sd).round(3).tolist(),
            "sd_ratio": (found[1] / sd).round(3).tolist(),
            "points": len(fit.posterior.weights),
            "seconds": round(taken, 2),
        }
        if method != "truncated":
            line.setdefault("_grids", {})[method] = fit.posterior
    line["_draws"] = draws.reshape(-1, len(names))
    return line


def draw_plane(line: dict[str, Any], path: str) -> str:
    """H Fig. 4: draws of (log alpha1, log alpha2), and grids' points with contours of their normals, on one scale."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.4), sharex=True, sharey=True, layout="constrained")
    draws = line["_draws"]
    axes[0].scatter(*draws[:: max(1, len(draws) // 3000)].T, s=3, alpha=0.3, color="tab:gray")
    axes[0].set_title("Gibbs: draws")
    for axis, method, title in zip(axes[1:], ("log", "paper"), ("Grid: mode in log space, balanced", "Grid: H(8) as printed"), strict=True):
        posterior = line["_grids"][method]
        axis.scatter(*posterior.theta.T, s=300 * posterior.weights / posterior.weights.max(), color="tab:blue", alpha=0.7)
        axis.set_title(title)
    mean, covariance = draws.mean(0), np.cov(draws.T)
    angle = np.linspace(0, 2 * np.pi, 100)
    for axis in axes:
        for radius in (1, 2, 3):
            axis.plot(*(mean[:, None] + radius * np.linalg.cholesky(covariance) @ np.stack([np.cos(angle), np.sin(angle)])), color="k", lw=0.7)
        axis.set(xlabel="log alpha1")
    axes[0].set(ylabel="log alpha2 (ellipses: 1, 2, 3 sd of the draws)")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def public(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.startswith("_")}


def hyper(arguments: argparse.Namespace) -> None:
    """Text alone on planted matrices, and text with votes on a part of the House's bills."""
    for name in CASES if arguments.cases == "all" else [case for case in arguments.cases.split(",") if case]:
        n, p, K, size = CASES[name]
        report("hyper", public(against_gibbs(name, "lg_nmf", planted(n, p, K, size), {"num_topics": K}, arguments.samples)))
    if arguments.data:
        text, votes = read_house(arguments.data)
        rng = np.random.default_rng(0)
        bills, members = rng.choice(len(votes), 60, replace=False), rng.choice(votes.shape[1], 40, replace=False)
        words = np.argsort(-np.asarray(text[bills].sum(0)).ravel())[:240]
        part = pp_models.data.text_and_votes(text[bills][:, words], votes[np.ix_(bills, members)])
        line = against_gibbs("house, 60 bills, 240 words, 40 members", "lg_nmf_votes", part, {"num_topics": 4}, arguments.samples)
        report("hyper", {**public(line), "figure": draw_plane(line, arguments.out)})


# Votes ----------------------------------------------------------------------------------------------------------------------------------------


TRIED = (  # text of equal length, a member's own inclination, alpha1, alpha2
    (False, False, 1.0, 1e3),
    (False, True, 1.0, 1e3),
    (True, True, 1.0, 1e3),
    (True, True, 1.0, 1e2),
    (True, True, 0.1, 1e3),
    (True, True, 1.0, 1e4),
)


def settings(text: Any) -> dict[str, tuple[Any, dict[str, Any]]]:
    """What is chosen from inside the training folds."""
    equal = pp_models.data.of_equal_length(text, 300.0)
    return {
        f"{'equal length' if scaled else 'raw'}, bias {bias}, alpha1 {a1:g}, alpha2 {a2:g}": (
            equal if scaled else text,
            {"bias": bias, "alpha1": a1, "alpha2": a2},
        )
        for scaled, bias, a1, a2 in TRIED
    }


def predicted(counts: Any, votes: np.ndarray, train: np.ndarray, test: np.ndarray, given: dict[str, Any], rank: int, sweeps: int) -> np.ndarray:
    """Probabilities of yea for the test bills from their text, words and members fitted to the training bills."""
    seen = pp_models.data.text_and_votes(counts[train], votes[train])
    fit = inference.fit("lg_nmf_votes", seen, "map", {"num_topics": rank, **given}, num_epochs=sweeps, basis="identity", num_local=3, progress=False)
    new = pp_models.data.text_and_votes(counts[test], np.full(votes[test].shape, np.nan))
    return inference.predict_votes(fit, new)


def accuracy(probability: np.ndarray, votes: np.ndarray) -> float:
    seen = ~np.isnan(votes)
    return float(np.mean((probability > 0.5)[seen] == votes[seen]))


def votes(arguments: argparse.Namespace) -> None:
    """Six folds over bills; settings chosen by one inner fold of the training bills; then a tenth of all votes missing at random."""
    text, cast = read_house(arguments.data)
    rng = np.random.default_rng(arguments.seed)
    fold = rng.permutation(np.arange(len(cast)) % 6)
    choices = settings(text)

    def score(name: str, train: np.ndarray, test: np.ndarray) -> float:
        counts, given = choices[name]
        return accuracy(predicted(counts, cast, train, test, given, arguments.rank, arguments.sweeps), cast[test])

    scores, chosen, sizes = [], [], []
    for number in range(arguments.folds):
        test, train = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        mixed = rng.permutation(train)
        valid, fitted = mixed[: len(mixed) // 5], mixed[len(mixed) // 5 :]
        inside = {name: score(name, fitted, valid) for name in choices}
        chosen.append(max(inside, key=lambda name: inside[name]))
        scores.append(score(chosen[-1], train, test))
        sizes.append(int(np.sum(~np.isnan(cast[test]))))
        print(f"fold {number}", {name: round(x, 4) for name, x in inside.items()}, "test", round(scores[-1], 4), flush=True)
    line = {"accuracy": round(float(np.average(scores, weights=sizes)), 4), "folds": np.round(scores, 4).tolist(), "chosen": chosen}
    report("votes", {**line, "always_yea": round(float(np.nanmean(cast)), 4)})
    hidden = (rng.random(cast.shape) < 0.1) & ~np.isnan(cast)
    data = pp_models.data.text_and_votes(text, np.where(hidden, np.nan, cast))
    for alpha2 in (1.0, 10.0, 100.0, 1000.0):
        given = {"num_topics": arguments.rank, "alpha1": 1.0, "alpha2": alpha2, "bias": True}
        fit = inference.fit("lg_nmf_votes", data, "cavi", given, num_epochs=arguments.sweeps, progress=False)
        probability = inference.predict_votes(fit, data)[hidden]
        right = round(float(np.mean((probability > 0.5) == cast[hidden])), 4)
        report("missing votes", {"alpha2": alpha2, "accuracy": right, "calibration_error": calibration(probability, cast[hidden])})


def calibration(probability: np.ndarray, truth: np.ndarray, bins: int = 10) -> float:
    """The expected calibration error: |mean probability - share of yeas| in ten bins, averaged over votes."""
    place = np.minimum((probability * bins).astype(int), bins - 1)
    gaps = [np.sum(place == b) * abs(probability[place == b].mean() - truth[place == b].mean()) for b in range(bins) if np.any(place == b)]
    return round(float(np.sum(gaps) / len(truth)), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("hyper", help=hyper.__doc__)
    command.set_defaults(function=hyper)
    command.add_argument("--data", help="folder of the House's bills and votes")
    command.add_argument("--cases", default="all", help="of planted matrices, with commas; all or none")
    command.add_argument("--samples", type=int, default=8000, help="Gibbs sweeps kept of each of two chains")
    command.add_argument("--out", default="results/hyper.png", help="the figure")
    command = commands.add_parser("votes", help=votes.__doc__)
    command.set_defaults(function=votes)
    command.add_argument("--data", required=True, help="folder of the House's bills and votes")
    command.add_argument("--rank", type=int, default=30)
    command.add_argument("--sweeps", type=int, default=60)
    command.add_argument("--folds", type=int, default=6, help="of six that are run")
    command.add_argument("--seed", type=int, default=0, help="of the folds")
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
