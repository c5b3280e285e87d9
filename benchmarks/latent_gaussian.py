"""Latent Gaussian models (H): the grid against Gibbs, and votes on bills. Each experiment is one sub-command.

    python benchmarks/latent_gaussian.py hyper [--data house110]     H Fig. 4: posteriors of alpha1 and alpha2, by the grid and by Gibbs, and a figure
    python benchmarks/latent_gaussian.py votes --data house110       H 5.2: votes on held-out bills from their text
    python benchmarks/latent_gaussian.py missing --data house110     votes missing at random

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


TRIED = ((1.0, 1e3), (0.3, 3e3), (1.0, 3e2), (1.0, 1e2))  # alpha1, alpha2 of the fit
REFITTED = (None, 1.0, 3.0, 10.0)  # alpha2 by which members are fitted again to the weights that text alone gives; None: they are not
LENGTH = 50.0  # of a bill's words, weighed by tf-idf
STARTS = 3  # fits at the chosen setting, whose probabilities are averaged


def fitted(counts: Any, votes: np.ndarray, alpha1: float, alpha2: float, arguments: argparse.Namespace, seed: int = 0) -> Any:
    """By MAP, as H; on one device, for which a program is compiled once."""
    data = pp_models.data.text_and_votes(counts, votes)
    given = {"num_topics": arguments.rank, "bias": True, "alpha1": alpha1, "alpha2": alpha2}
    options = {"num_epochs": arguments.sweeps, "basis": "identity", "progress": False, "devices": jax.local_devices()[:1]}
    return inference.fit("lg_nmf_votes", data, "map", given, key=jax.random.key(seed), **options)


def from_text(fit: Any, counts: Any, refit: float | None) -> np.ndarray:
    """Probabilities of yea for bills without votes. Refitted members were fitted to modes of s, so bills have theirs: plug-in, H's choice."""
    new = pp_models.data.text_and_votes(counts, np.full((counts.shape[0], len(fit.posterior.mean("d2"))), np.nan))
    return inference.predict_votes(fit if refit is None else inference.refit_members(fit, refit), new, "plug_in")


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
    return Ridge(alpha=1.0).fit(weigh.transform(text[train]), np.where(np.isnan(known), share, known)).predict(weigh.transform(text[test]))


def chosen_inside(text: Any, cast: np.ndarray, train: np.ndarray, rng: Any, arguments: argparse.Namespace) -> dict[tuple[Any, ...], float]:
    """(alpha1, alpha2, refit) -> accuracy on a fifth of the training bills, by a fit to the others."""
    mixed = rng.permutation(train)
    valid, rest = mixed[: len(mixed) // 5], mixed[len(mixed) // 5 :]
    old, new = (pp_models.data.tf_idf(text[rows], LENGTH, text[rest]) for rows in (rest, valid))
    scores = {}
    for alpha1, alpha2 in TRIED:
        fit = fitted(old, cast[rest], alpha1, alpha2, arguments)
        scores |= {(alpha1, alpha2, refit): accuracy(from_text(fit, new, refit), cast[valid]) for refit in REFITTED}
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
        old, new = (pp_models.data.tf_idf(text[rows], LENGTH, text[train]) for rows in (train, test))
        said = [from_text(fitted(old, cast[train], alpha1, alpha2, arguments, seed), new, refit) for seed in range(STARTS)]
        scores.append(accuracy(np.mean(said, 0), cast[test]))
        peers.append(accuracy(ridge(text, cast, train, test), cast[test]))
        chosen.append((alpha1, alpha2, refit))
        sizes.append(int(np.sum(~np.isnan(cast[test]))))
        alone = [round(accuracy(each, cast[test]), 4) for each in said]
        print(f"fold {number}", {str(k): round(x, 4) for k, x in inside.items()}, "starts", alone, "test", round(scores[-1], 4), flush=True)
    line = {"accuracy": round(float(np.average(scores, weights=sizes)), 4), "folds": np.round(scores, 4).tolist(), "chosen": chosen}
    line |= {"ridge": round(float(np.average(peers, weights=sizes)), 4), "ridge_folds": np.round(peers, 4).tolist()}
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
            out[rows] = {"accuracy": right, "calibration_error": calibration(probability, cast[asked])}
        return out

    inside = {}
    for alpha2 in (3.0, 10.0, 30.0, 100.0):
        inside[alpha2] = judge(fitted(counts, np.where(hidden | valid, np.nan, cast), 1.0, alpha2, arguments), valid)
        print("alpha2", alpha2, inside[alpha2], flush=True)
    best = max(inside, key=lambda alpha2: inside[alpha2]["plug_in"]["accuracy"])
    fit = fitted(counts, np.where(hidden, np.nan, cast), 1.0, best, arguments)
    report("missing votes", {"alpha2": best, **judge(fit, hidden), "votes": int(hidden.sum())})


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
    for function in (votes, missing):
        command = commands.add_parser(function.__name__, help=function.__doc__)
        command.set_defaults(function=function)
        command.add_argument("--data", required=True, help="folder of the House's bills and votes")
        command.add_argument("--rank", type=int, default=30)
        command.add_argument("--sweeps", type=int, default=60)
        command.add_argument("--seed", type=int, default=0, help="of the folds, or of the votes that are missing")
        if function is votes:
            command.add_argument("--folds", type=int, default=6, help="of six that are run")
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
