"""Factorisations against their peers and the papers' findings, each one sub-command.

    python benchmarks/factorisations.py ratings                            PMF sweeps: map against cmfrec, gibbs against SMURFF, MovieLens-1M's shape
    python benchmarks/factorisations.py movielens --data ml-100k.inter     held-out RMSE on MovieLens-100K, ours, cmfrec's, SMURFF's and Surprise's

Each prints one JSON line. `--data` is a table of ratings with columns user, item, rating, or a wheel that holds such a file (recbole's does).
Peers that are not installed are left out.
"""

import argparse
import importlib
import json
import os
import time
import zipfile
from typing import Any

import jax
import numpy as np

CORES = os.cpu_count() or 1
jax.config.update("jax_num_cpu_devices", CORES)

import scipy.sparse

import inference
import pp_models
from inference import fitting
from pp_models.data import Data

EXACT = {"method": "als", "use_cg": False, "user_bias": False, "item_bias": False, "scale_lam": False}  # cmfrec's exact solves, as PMF has them


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


def synthetic(num_users: int = 6040, num_items: int = 3706, num_ratings: int = 1_000_000, rank: int = 10, seed: int = 0) -> Data:
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
    mean = 3.6 + 0.6 * np.sum(u[users] * v[items], 1) / np.sqrt(rank) + 0.9 * rng.normal(size=num_ratings)
    return pp_models.data.ratings(users, items, np.clip(np.round(mean), 1, 5), shape=(num_users, num_items))


def triples(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    matrix = data.matrix.tocoo()
    return matrix.coords[0], matrix.coords[1], matrix.data


def rmse(heldout: Data, predicted: np.ndarray) -> float:
    return float(np.sqrt(np.mean((triples(heldout)[2] - np.clip(predicted, 1, 5)) ** 2)))


def sweeps_of_map(train: Data, hyper: dict[str, Any], num_sweeps: int) -> tuple[float, float, Any]:
    """(seconds to compile, seconds per sweep, the posterior)."""
    engine = fitting.load_engine("map")
    problem = fitting.make_problem("pmf", train, hyper)
    options = fitting.make_options(engine, {"basis": "identity"})
    algorithm = engine.build(problem, options)
    batches = train.shards(np.arange(train.num_rows), train.num_rows, problem.devices)
    begin = time.perf_counter()
    state = algorithm.init(jax.random.key(0), {})
    for _ in range(2):  # the second step has its own shapes of locals
        state, info = algorithm.step(jax.random.key(0), state, batches)
    jax.block_until_ready((state, info))
    compiled = time.perf_counter() - begin
    state = algorithm.init(jax.random.key(0), {})
    begin = time.perf_counter()
    for _ in range(num_sweeps):
        state, info = algorithm.step(jax.random.key(0), state, batches)
    jax.block_until_ready((state, info))
    return compiled, (time.perf_counter() - begin) / num_sweeps, fitting.Fit(problem, "map", {}, algorithm.posterior(state), {}, 0.0)


def ratings(arguments: argparse.Namespace) -> None:
    """Seconds per sweep at equal rank and penalty, both cores used, compiling excluded but reported."""
    train, heldout = inference.split_ratings(synthetic(), 0.1)
    users, items, _ = triples(heldout)
    rank, penalty = arguments.rank, arguments.penalty
    line: dict[str, Any] = {"ratings": train.num_entries, "rank": rank}
    sigma2 = 1.0
    hyper = {"rank": rank, "sigma2": sigma2, "lam": penalty / sigma2}
    compiled, seconds, fit = sweeps_of_map(train, hyper, arguments.sweeps)
    line["map"] = {
        "seconds_per_sweep": round(seconds, 4),
        "compile_seconds": round(compiled, 1),
        "rmse": round(rmse(heldout, inference.predict_ratings(fit, users, items).mean), 4),
    }
    if (cmfrec := installed("cmfrec")) is not None:

        def fitted(num_sweeps: int) -> tuple[float, Any]:
            model = cmfrec.CMF(k=rank, lambda_=penalty, niter=num_sweeps, nthreads=CORES, verbose=False, **EXACT)
            begin = time.perf_counter()
            model.fit(scipy.sparse.coo_matrix(train.matrix))
            return time.perf_counter() - begin, model

        once, _ = fitted(1)
        many, model = fitted(1 + arguments.sweeps)
        each = (many - once) / arguments.sweeps
        line["cmfrec"] = {"seconds_per_sweep": round(each, 4), "rmse": round(rmse(heldout, model.predict(users, items)), 4)}
        line["map_to_cmfrec"] = round(each / seconds, 2)
    chains = {"num_chains": CORES, "thin": 10}
    for name in ("pmf", "bayesian_pmf"):
        run = sampled(name, train, hyper if name == "pmf" else {"rank": rank}, arguments.samples, **chains)
        line[f"gibbs {name}"] = {
            "sweeps_per_second": round(run[0], 2),
            "rmse": round(rmse(heldout, inference.predict_ratings(run[1], users, items).mean), 4),
        }
    if (smurff := installed("smurff")) is not None:
        speed, predicted = by_smurff(smurff, train, heldout, rank, 20, arguments.samples)
        line["smurff"] = {"sweeps_per_second": round(speed, 2), "rmse": round(rmse(heldout, predicted), 4)}
        line["gibbs_to_smurff"] = round(line["gibbs bayesian_pmf"]["sweeps_per_second"] / speed, 2)
    report("ratings", line)


def sampled(name: str, train: Data, hyper: Any, num_samples: int, **options: Any) -> tuple[float, Any]:
    """Sweeps per second, of all chains together, after compiling; and the fit."""
    engine = fitting.load_engine("gibbs")
    problem = fitting.make_problem(name, train, hyper)
    settled = fitting.make_options(engine, {"num_samples": max(1, num_samples // options["thin"]), "num_warmup": 20, **options})
    algorithm = engine.build(problem, settled)
    state = algorithm.init(jax.random.key(0), {})
    steps = engine.num_steps(settled, problem)
    clocks = []
    for step in range(steps):
        clocks.append((time.perf_counter(), bool(state.warming)))
        state, _ = algorithm.step(jax.random.fold_in(jax.random.key(1), step), state, None)
    end = time.perf_counter()
    first = next(i for i, (_, warming) in enumerate(clocks) if not warming)
    kept = state.kept[0][1].shape[1] * (steps - first - 1) if steps - first > 1 else state.kept[0][1].shape[1]
    begin = clocks[first + 1][0] if steps - first > 1 else clocks[first][0]  # the first step that keeps draws compiles
    speed = kept * options["thin"] * options["num_chains"] / (end - begin)
    return speed, fitting.Fit(problem, "gibbs", {}, algorithm.posterior(state), {}, 0.0)


def by_smurff(smurff: Any, train: Data, heldout: Data, rank: int, burnin: int, num_samples: int) -> tuple[float, np.ndarray]:
    """SMURFF's Bayesian PMF: sweeps per second, and the predictions averaged over its samples."""
    centre = float(train.matrix.data.mean())

    def centred(data: Data) -> Any:
        matrix = scipy.sparse.coo_matrix(data.matrix).astype(np.float64)
        matrix.data = matrix.data - centre
        return matrix

    session = smurff.TrainSession(
        priors=["normal", "normal"], num_latent=rank, burnin=burnin, nsamples=num_samples, num_threads=CORES, verbose=0, seed=0
    )
    session.addTrainAndTest(centred(train), centred(heldout), smurff.AdaptiveNoise(1.0, 10.0))
    session.init()
    begin, sweeps = time.perf_counter(), 0
    while session.step():
        sweeps += 1
    seconds = time.perf_counter() - begin
    found = {(p.coords[0], p.coords[1]): p.pred_avg for p in session.getTestPredictions()}
    users, items, _ = triples(heldout)
    return sweeps / seconds, centre + np.array([found[i, j] for i, j in zip(users, items, strict=True)])


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
    users, items = (np.unique(column, return_inverse=True)[1] for column in (table[:, 0], table[:, 1]))
    return pp_models.data.ratings(users, items, table[:, 2])


def movielens(arguments: argparse.Namespace) -> None:
    """Random 90/10, one seed: RMSE of clipped predictions, and the share of ratings inside their 90 % intervals."""
    train, heldout = inference.split_ratings(read_ratings(arguments.data), 0.1, arguments.seed)
    users, items, _ = triples(heldout)
    line: dict[str, Any] = {"ratings": train.num_entries, "heldout": heldout.num_entries}

    def score(name: str, fit: Any) -> None:
        found = inference.score_ratings(fit, heldout, limits=(1.0, 5.0))
        line[name] = {"rmse": round(found.rmse, 4), "log_density": round(found.log_density, 4), "coverage90": round(found.coverage, 4)}
        print(name, line[name], flush=True)

    for rank in arguments.ranks:
        for lam in arguments.lam:
            hyper = {"rank": rank, "lam": lam, "sigma2": arguments.sigma2}
            score(f"map rank {rank} lam {lam}", inference.fit("pmf", train, "map", hyper, num_epochs=60, progress=False))
        hyper = {"rank": rank}
        score(f"cavi pmf rank {rank}", inference.fit("pmf", train, "cavi", hyper, num_epochs=100, progress=False))
        score(f"cavi rank {rank}", inference.fit("bayesian_pmf", train, "cavi", hyper, num_epochs=100, progress=False))
        chains = {"num_samples": 300, "num_warmup": 100, "num_chains": 2}
        score(f"gibbs rank {rank}", inference.fit("bayesian_pmf", train, "gibbs", hyper, progress=False, **chains))
        if (cmfrec := installed("cmfrec")) is not None:
            model = cmfrec.CMF(k=rank, lambda_=arguments.penalty, niter=60, nthreads=CORES, verbose=False, **EXACT)
            model.fit(scipy.sparse.coo_matrix(train.matrix))
            line[f"cmfrec rank {rank}"] = {"rmse": round(rmse(heldout, model.predict(users, items)), 4)}
        if (smurff := installed("smurff")) is not None:
            line[f"smurff rank {rank}"] = {"rmse": round(rmse(heldout, by_smurff(smurff, train, heldout, rank, 100, 300)[1]), 4)}
    report("movielens", line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("ratings", help=(ratings.__doc__ or "").splitlines()[0])
    command.set_defaults(function=ratings)
    command.add_argument("--rank", type=int, default=30)
    command.add_argument("--penalty", type=float, default=5.0, help="lam times sigma2, the ridge penalty")
    command.add_argument("--sweeps", type=int, default=10)
    command.add_argument("--samples", type=int, default=60, help="Gibbs sweeps timed")
    command = commands.add_parser("movielens", help=(movielens.__doc__ or "").splitlines()[0])
    command.set_defaults(function=movielens)
    command.add_argument("--data", required=True, help="table of ratings, or a wheel that holds ml-100k.inter")
    command.add_argument("--ranks", type=int, nargs="+", default=[5, 10, 30])
    command.add_argument("--lam", type=float, nargs="+", default=[5.0, 10.0], help="precisions of the locations tried by map")
    command.add_argument("--sigma2", type=float, default=0.85)
    command.add_argument("--penalty", type=float, default=10.0, help="cmfrec's")
    command.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
