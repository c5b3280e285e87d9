"""Latent Gaussian models of Hu et al. 2014 (H), each experiment one sub-command.

    python benchmarks/latent_gaussian.py hyper [--data house110]     H Fig. 4: the grid and Gibbs
    python benchmarks/latent_gaussian.py votes --data house110       H 5.2: votes from text
    python benchmarks/latent_gaussian.py missing --data house110     votes missing at random
    python benchmarks/latent_gaussian.py perplexity --data ap.npz    H 5.1: perplexity and seconds
    python benchmarks/latent_gaussian.py online --data wiki.npz      H 5.3: one pass in batches
    python benchmarks/latent_gaussian.py speed --data ap.npz         sweeps beside scikit-learn's

house110 is a folder with bills.npz (bills x words) and passage_view.npz (votes: members x roll
calls, 1, 0, -1 missing; measure_index: their bills). Each prints one JSON line per figure.
"""

import argparse
import warnings
from functools import partial
from typing import Any

import numpy as np
from _common import REQUIRED, report, run_commands, timed
from _lg_grid import hyper, seconds_of
from _lg_perplexity import online, perplexity
from _lg_votes import missing, votes

import inference
import pp_models


def squares(matrix: Any, weights: np.ndarray, topics: np.ndarray, alpha1: float) -> float:
    """The objective of `map` and of the peer, in double precision, zeros through Gram matrices.

    It is |C - s d1'|^2 / 2 + alpha1 |s|^2 / 2 + K |d1|^2 / 2.
    """
    s, d = weights.astype(float), topics.astype(float)
    crossed, squared = np.sum((matrix @ d.T) * s), np.sum(matrix.data.astype(float) ** 2)
    fit = squared - 2 * crossed + np.sum((s.T @ s) * (d @ d.T))
    return 0.5 * float(fit + alpha1 * np.sum(s**2) + len(d) * np.sum(d**2))


def speed(arguments: argparse.Namespace) -> None:
    """Sweeps of MAP beside scikit-learn's coordinate descent, and a grid beside a single fit.

    Both have the same penalties and start.
    """
    from sklearn.decomposition import NMF

    data = pp_models.datasets.load(arguments.data)
    K, alpha1, matrix = arguments.topics, 1.0, data.matrix.astype(np.float32)
    given, rng = {"num_topics": K, "alpha1": alpha1}, np.random.default_rng(0)
    n, p = data.num_rows, data.num_columns
    start = {"s": rng.random((n, K), np.float32), "d1": 0.1 * rng.random((p, K), np.float32)}

    def ours(sweeps: int) -> Any:
        options = {"num_epochs": sweeps, "basis": "identity", "tolerance": 0.0, "init": start}
        options["progress"] = False
        return inference.fit("lg_nmf", data, "map", given, **options)

    def theirs(sweeps: int) -> tuple[np.ndarray, np.ndarray]:
        penalty = {"alpha_W": alpha1 / p, "alpha_H": K / n, "l1_ratio": 0.0}
        peer = NMF(K, init="custom", solver="cd", max_iter=sweeps, tol=0.0, **penalty)
        weights = peer.fit_transform(matrix, W=start["s"].copy(), H=start["d1"].T.copy())
        return weights, peer.components_

    sweeps = arguments.sweeps
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn has not converged
        ours(3), theirs(2)
        turns = [(timed(ours, sweeps), timed(theirs, sweeps)) for _ in range(arguments.rounds)]
    mine, peer = (min((turn[i] for turn in turns), key=lambda pair: pair[0]) for i in (0, 1))
    posterior = mine[1].posterior
    line = {
        "sweeps": sweeps,
        "map_seconds_a_sweep": round(mine[0] / sweeps, 4),
        "peer_seconds_a_sweep": round(peer[0] / sweeps, 4),
        "ratio": round(peer[0] / mine[0], 2),
        "objective": squares(matrix, posterior.mean("s"), posterior.mean("d1").T, alpha1),
        "peer_objective": squares(matrix, *peer[1], alpha1),
    }
    report("latent_gaussian speed", line)
    if not arguments.skip_grid:
        # rows of one length: nearly all raw counts are zero and say little beyond the prior
        level = pp_models.data.counts(pp_models.data.of_equal_length(data.matrix))
        fit = partial(inference.fit, "lg_nmf", level, progress=False)
        single, one = seconds_of(lambda: fit("laplace", given))
        grid, many = seconds_of(lambda: fit("inla", {"num_topics": K}, weights="laplace"))
        line = {
            "single_point_seconds": round(single, 1),
            "grid_seconds": round(grid, 1),
            "ratio": round(grid / single, 2),
            "grid_points": len(many.posterior.weights),
            "sweeps": [int(found.history["sweeps"].sum()) for found in (one, many)],
        }
        report("latent_gaussian speed", line)


def main() -> None:
    scales = ["raw", "root", "equal"]
    house = {"data": (REQUIRED, "folder of the House's bills and votes")}
    corpus = {"data": (REQUIRED, "documents x words, scipy .npz")}
    by_votes = {**house, "rank": 30, "sweeps": 60, "seed": (0, "of the folds or the missing votes")}
    scaled = {
        "scale": ("raw", "counts, their roots, or rows of one length, for LG-NMF", scales),
        "factor": (0.0, "of these (0: chosen on training documents)"),
        "seed": (0, "of the split"),
    }
    commands = {
        hyper: {
            "data": (None, "folder of the House's bills and votes"),
            "cases": ("all", "of planted matrices, with commas; all or none"),
            "samples": (8000, "Gibbs sweeps kept of each of two chains"),
            "out": ("results/hyper.png", "the figure"),
        },
        votes: by_votes | {"folds": (6, "of six that are run")},
        missing: by_votes,
        perplexity: {
            **corpus,
            **scaled,
            "topics": 50,
            "alpha1": (1.0, "precision of documents' weights"),
            "grid": ([], "values of alpha1 whose predictions are averaged (H 13)", None, float),
            "sweeps": (50, "of MAP and of CAVI"),
            "draws": (300, "sweeps of Gibbs"),
            "ordinal_sweeps": (10, "of LG-OP, which visits all cells"),
            "only": ("", "methods whose name contains this"),
            "out": ("results/perplexity.png", "the figure"),
        },
        online: {
            **corpus,
            **scaled,
            "topics": 200,
            "alpha1": ([1.0], "values tried"),
            "heldout": (640, "documents held out"),
            "out": ("results/online.png", "the figure"),
        },
        speed: {
            "data": (REQUIRED, "documents x words, in any format that the command line reads"),
            "topics": 50,
            "sweeps": 100,
            "rounds": (3, "of both in turn, of which the quickest counts"),
            "skip_grid": (False, "the sweeps alone"),
        },
    }
    run_commands(__doc__, commands)


if __name__ == "__main__":
    main()
