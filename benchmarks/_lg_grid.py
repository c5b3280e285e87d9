"""The grid of `inla` against Gibbs (H Fig. 4), for `latent_gaussian.py`."""

import argparse
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse
import scipy.stats
from _common import pyplot, report, rounded, save, timed

import inference
import pp_models
from inference.io import arviz

# n, p, K, and the size of the product relative to the noise
CASES = {
    "40 x 60": (40, 60, 3, 4.0),
    "40 x 200": (40, 200, 3, 4.0),
    "120 x 60": (120, 60, 3, 4.0),
    "60 x 120": (60, 120, 5, 4.0),
    "weak": (60, 120, 3, 1.0),
    "no signal": (60, 150, 5, 0.0),
}
PLANTED_VOTES = "planted votes"
GRIDS = {  # options of `inla`
    "default": {},
    "log": {"weights": "laplace"},
    "truncated": {"method": "truncated"},
    "paper": {"method": "paper"},
}


def planted(n: int, p: int, K: int, size: float, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    rate = size * np.abs(rng.normal(size=(n, K))) @ np.abs(rng.normal(size=(p, K))).T / np.sqrt(K)
    return pp_models.data.counts(np.maximum(np.round(rate + rng.normal(size=(n, p))), 0))


def read_house(folder: str) -> tuple[Any, np.ndarray]:
    """(bills, words) counts and (bills, members) votes, nan if missing, a row per roll call."""
    view = np.load(Path(folder) / "passage_view.npz")
    text = scipy.sparse.load_npz(Path(folder) / "bills.npz").tocsr()[view["measure_index"]]
    votes = view["votes"].T.astype(float)
    votes[votes < 0] = np.nan
    return text, votes


def moments(theta: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = weights @ theta
    return mean, np.sqrt(weights @ (theta - mean) ** 2)


def seconds_of(function: Any) -> tuple[float, Any]:
    """Seconds of a second run, when everything is compiled, and its result."""
    function()
    return timed(function)


def grid_of(
    model: str, data: Any, hyper: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The grid, its moments, the seconds of a compiled run, and its warnings."""
    chosen = model, data, "inla", hyper, jax.random.key(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seconds, fit = seconds_of(lambda: inference.fit(*chosen, progress=False, **options))
    posterior = fit.posterior
    mean, sd = moments(posterior.theta, posterior.weights)
    said = sorted({str(one.message) for one in caught if one.category is UserWarning})
    found = {"mean": mean, "sd": sd, "seconds": seconds}
    return found | {"posterior": posterior, "warnings": said}


def against_gibbs(
    name: str, model: str, data: Any, hyper: dict[str, Any], num_samples: int
) -> dict[str, Any]:
    """Differences of the means of log alpha in units of Gibbs's sd, ratios of sds, and seconds.

    Seconds are compared with those of 400 effective draws. With votes the posterior has several
    modes, which neither the grid nor a chain leaves: chains begin at the top of the default grid.
    """
    grids = {method: grid_of(model, data, hyper, options) for method, options in GRIDS.items()}
    top = grids["default"]["posterior"]
    start = top.values(int(np.argmax(top.weights))) if model == "lg_nmf_votes" else None
    options = {"num_samples": num_samples, "num_warmup": num_samples // 4, "num_chains": 2}
    options |= {"init": start, "progress": False}
    chosen = model, data, "gibbs", hyper, jax.random.key(1)
    seconds, chain = seconds_of(lambda: inference.fit(*chosen, **options))
    names = [site for site in ("alpha1", "alpha2") if site in chain.posterior.draws]
    draws = np.stack([np.log(chain.posterior.draws[site][..., 0]) for site in names], -1)
    mean, sd = draws.mean((0, 1)), draws.std((0, 1))
    each, stats = np.moveaxis(draws, -1, 0), arviz.array_stats()
    effective = [float(stats.ess(x)) for x in each]
    line: dict[str, Any] = {"case": name, "names": names}
    line |= {"gibbs_mean": rounded(mean, 3), "gibbs_sd": rounded(sd, 3)}
    line["rhat"] = rounded([float(stats.rhat(x)) for x in each], 3)
    line["ess"] = np.round(effective).tolist()
    line["gibbs_seconds_for_400"] = round(seconds * 400 / min(effective), 2)
    n, p = data.num_rows, data.num_columns + data.num_members
    line["papers_shift_predicted"] = round(float(np.log((n + p) ** 2 / (4 * n * p)) / sd[0]), 2)
    for method, grid in grids.items():
        line[method] = {
            "shift_sd": rounded((grid["mean"] - mean) / sd, 3),
            "sd_ratio": rounded(grid["sd"] / sd, 3),
            "points": len(grid["posterior"].weights),
            "seconds": round(grid["seconds"], 3),
            "warnings": grid["warnings"],
        }
    line["_grids"] = {method: grid["posterior"] for method, grid in grids.items()}
    line["_draws"] = draws.reshape(-1, len(names))
    return line


LEVELS = (0.011, 0.135, 0.607)  # of the highest density: 3, 2 and 1 sd of a normal


def draw_plane(line: dict[str, Any], path: str) -> str:
    """H Fig. 4: contours of the posterior of (log alpha1, log alpha2) by Gibbs and the grids."""
    shared = {"sharex": True, "sharey": True, "layout": "constrained"}
    figure, axes = pyplot().subplots(1, 3, figsize=(13, 4.4), **shared)
    draws = line["_draws"]
    density = scipy.stats.gaussian_kde(draws[:: max(1, len(draws) // 2000)].T)
    sides = [np.linspace(x.min(), x.max(), 60) for x in draws.T]
    mesh = np.meshgrid(*sides)
    heights = density(np.stack([m.ravel() for m in mesh])).reshape(mesh[0].shape)
    titles = {"default": "Grid, weights along slopes", "paper": "Grid: H(8) as printed"}
    for axis, method in zip(axes, (None, *titles), strict=True):
        style = {"levels": LEVELS, "colors": "0.6" if method else "tab:blue", "linewidths": 1}
        axis.contour(*mesh, heights / heights.max(), **style)
        if method:
            grid = line["_grids"][method]
            relative = grid.weights / grid.weights.max()
            axis.tricontour(*grid.theta.T, relative, levels=LEVELS, colors="tab:orange")
            axis.scatter(*grid.theta.T, s=4, color="k")
        axis.set(title=titles.get(method, "Gibbs (gray in the others)"), xlabel="log alpha1")
    axes[0].set(ylabel="log alpha2 (contours at 1, 2, 3 sd)")
    return save(figure, path)


def public(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.startswith("_")}


def planted_votes(seed: int = 0) -> Any:
    """60 bills of 120 words and 40 members whose votes depend on the text, three topics."""
    rng = np.random.default_rng(seed)
    words, members = np.abs(rng.normal(size=(120, 3))), rng.normal(size=(40, 3))
    bills = np.abs(rng.normal(size=(60, 3)))
    counts = np.maximum(np.round(4 * bills @ words.T / np.sqrt(3) + rng.normal(size=(60, 120))), 0)
    votes = (bills @ members.T + rng.normal(size=(60, 40)) > 0).astype(float)
    return pp_models.data.text_and_votes(counts, votes)


def hyper(arguments: argparse.Namespace) -> None:
    """H Fig. 4: posteriors of alpha1 and alpha2 by the grid and by Gibbs, of text and of votes."""

    def tell(name: str, model: str, data: Any, num_topics: int, path: str | None = None) -> None:
        line = against_gibbs(name, model, data, {"num_topics": num_topics}, arguments.samples)
        public = {key: value for key, value in line.items() if not key.startswith("_")}
        if path is not None:
            public["figure"] = draw_plane(line, path)
        report("latent_gaussian hyper", public)

    chosen = [*CASES, PLANTED_VOTES] if arguments.cases == "all" else arguments.cases.split(",")
    for name in filter(None, chosen):
        if name == PLANTED_VOTES:
            tell(name, "lg_nmf_votes", planted_votes(), 3)
        else:
            n, p, K, size = CASES[name]
            tell(name, "lg_nmf", planted(n, p, K, size), K)
    if arguments.data:
        text, votes = read_house(arguments.data)
        rng = np.random.default_rng(0)
        bills = rng.choice(len(votes), 60, replace=False)
        members = rng.choice(votes.shape[1], 40, replace=False)
        words = np.argsort(-np.asarray(text[bills].sum(0)).ravel())[:240]
        counts = text[bills][:, words]
        alone = pp_models.data.counts(counts)
        both = pp_models.data.text_and_votes(counts, votes[np.ix_(bills, members)])
        tell("house, text of 60 bills, 240 words", "lg_nmf", alone, 4)
        tell("house, 60 bills, 240 words, 40 members", "lg_nmf_votes", both, 4, arguments.out)
