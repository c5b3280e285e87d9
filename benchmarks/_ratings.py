"""Ratings: PMF beside cmfrec, SMURFF and Surprise, for `factorisations.py`."""

import argparse
import itertools
import time
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.sparse
from _common import CORES, all_rows, bind, installed, report, rounded, timed

import inference
import pp_models
from inference.core.problem import make_problem
from pp_models.data.types import Data

# cmfrec's exact solves, as PMF has them
EXACT = {"method": "als", "use_cg": False, "scale_lam": False}
EXACT |= {"user_bias": False, "item_bias": False}
SWEEPS = 200  # of point estimates and coordinate ascent, at most
CHAINS = {"num_samples": 150, "num_warmup": 100, "num_chains": 2}


def synthetic(
    num_users: int = 6040,
    num_items: int = 3706,
    num_ratings: int = 1_000_000,
    rank: int = 10,
    seed: int = 0,
) -> Data:
    """Ratings of MovieLens-1M's shape, from 1 to 5, with noise of about one."""
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
    mean = 3.6 + 0.6 * np.sum(u[users] * v[items], 1) / np.sqrt(rank)
    values = np.clip(np.round(mean + 0.9 * rng.normal(size=num_ratings)), 1, 5)
    return pp_models.data.ratings(users, items, values, shape=(num_users, num_items))


def triples(data: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    matrix = data.matrix.tocoo()
    return matrix.coords[0], matrix.coords[1], matrix.data


def rmse(heldout: Data, predicted: np.ndarray) -> float:
    return float(np.sqrt(np.mean((triples(heldout)[2] - np.clip(predicted, 1, 5)) ** 2)))


Sweeps = Callable[[int], tuple[float, Any]]


def sweeps_of_map(train: Data, hyper: dict[str, Any]) -> tuple[float, Sweeps]:
    """(seconds to compile, (number of sweeps) -> (their seconds, the fit))."""
    bound = bind("map", make_problem("pmf", train, hyper), basis="identity")
    algorithm, batches, key = bound.algorithm, all_rows(bound.problem), jax.random.key(0)

    def sweep(number: int) -> tuple[float, Any]:
        state = algorithm.init(key, {})
        begin = time.perf_counter()
        for _ in range(number):
            state, info = algorithm.step(key, state, batches)
        jax.block_until_ready((state, info))
        return time.perf_counter() - begin, bound.fit(state)

    return sweep(2)[0], sweep  # the second step has other local shapes


def cmfrec_model(cmfrec: Any, rank: int, penalty: float, sweeps: int) -> Any:
    settings = {"k": rank, "lambda_": penalty, "niter": sweeps, "nthreads": CORES}
    return cmfrec.CMF(verbose=False, **settings, **EXACT)


def sweeps_of_cmfrec(cmfrec: Any, train: Data, rank: int, penalty: float) -> Sweeps:
    """(number of sweeps) -> (their seconds without those of starting, the model)."""

    def fitted(number: int) -> tuple[float, Any]:
        model = cmfrec_model(cmfrec, rank, penalty, number)
        return timed(model.fit, scipy.sparse.coo_matrix(train.matrix))[0], model

    def sweep(number: int) -> tuple[float, Any]:
        once, _ = fitted(1)
        many, model = fitted(1 + number)
        return many - once, model

    return sweep


def in_turn(sweeps: dict[str, Sweeps], number: int, rounds: int) -> dict[str, tuple[float, Any]]:
    """name -> (seconds per sweep in the quickest round, the fit): all take turns in each round."""
    found = [{name: sweep(number) for name, sweep in sweeps.items()} for _ in range(rounds)]
    seconds = {name: min(turn[name][0] for turn in found) / number for name in sweeps}
    return {name: (seconds[name], found[-1][name][1]) for name in sweeps}


def ratings(arguments: argparse.Namespace) -> None:
    """Seconds per sweep at equal rank and penalty, on all cores, without compilation."""
    train, heldout = inference.split_ratings(synthetic(), 0.1)
    users, items, _ = triples(heldout)
    rank, penalty = arguments.rank, arguments.penalty
    line: dict[str, Any] = {"ratings": train.num_entries, "rank": rank}

    def tell(name: str, figures: dict[str, float]) -> None:
        line[name] = rounded(figures)
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
        error = rmse(heldout, model.predict(users, items))
        tell("cmfrec", {"seconds_per_sweep": each, "rmse": error})
        line["map_to_cmfrec"] = round(each / seconds, 2)
    if arguments.skip_gibbs:
        return report("factorisations ratings", line)
    chains = {"num_chains": CORES, "thin": 10}
    for name in ("pmf", "bayesian_pmf"):
        given = hyper if name == "pmf" else {"rank": rank}
        speed, fit = sampled(name, train, given, arguments.samples, **chains)
        error = rmse(heldout, inference.predict_ratings(fit, users, items).mean)
        tell(f"gibbs {name}", {"sweeps_per_second": speed, "rmse": error})
    if (smurff := installed("smurff")) is not None:
        speed, predicted = by_smurff(smurff, train, heldout, rank, 20, arguments.samples)
        tell("smurff", {"sweeps_per_second": speed, "rmse": rmse(heldout, predicted)})
        line["gibbs_to_smurff"] = round(line["gibbs bayesian_pmf"]["sweeps_per_second"] / speed, 2)
    report("factorisations ratings", line)


def sampled(
    name: str, train: Data, hyper: Any, num_samples: int, **options: Any
) -> tuple[float, Any]:
    """Sweeps per second of all chains together after compilation, and the fit."""
    length = {"num_samples": max(1, num_samples // options["thin"]), "num_warmup": 20}
    bound = bind("gibbs", make_problem(name, train, hyper), **length, **options)
    algorithm, steps = bound.algorithm, bound.engine.num_steps(bound.options, bound.problem)
    state, clocks = algorithm.init(jax.random.key(0), {}), []
    for step in range(steps):
        clocks.append((time.perf_counter(), bool(state.warming)))
        state, _ = algorithm.step(jax.random.fold_in(jax.random.key(1), step), state, None)
    end = time.perf_counter()
    first = next(i for i, (_, warming) in enumerate(clocks) if not warming)
    later = steps - first > 1  # the first step that keeps draws compiles
    kept = state.kept[0][1].shape[1] * (steps - first - 1 if later else 1)
    seconds = end - clocks[first + later][0]
    return kept * options["thin"] * options["num_chains"] / seconds, bound.fit(state)


def by_smurff(
    smurff: Any, train: Data, heldout: Data, rank: int, burnin: int, num_samples: int
) -> tuple[float, np.ndarray]:
    """SMURFF's Bayesian PMF: sweeps per second, and the predictions averaged over its samples."""
    centre = float(train.matrix.data.mean())

    def centred(data: Data) -> Any:
        matrix = scipy.sparse.coo_matrix(data.matrix).astype(np.float64)
        matrix.data = matrix.data - centre
        return matrix

    size = {"num_latent": rank, "burnin": burnin, "nsamples": num_samples}
    settings = {"priors": ["normal", "normal"], "num_threads": CORES, "verbose": 0, "seed": 0}
    session = smurff.TrainSession(**size, **settings)
    session.addTrainAndTest(centred(train), centred(heldout), smurff.AdaptiveNoise(1.0, 10.0))
    session.init()
    begin, sweeps = time.perf_counter(), 0
    while session.step():
        sweeps += 1
    seconds = time.perf_counter() - begin
    found = {(p.coords[0], p.coords[1]): p.pred_avg for p in session.getTestPredictions()}
    users, items, _ = triples(heldout)
    predicted = np.array([found[pair] for pair in zip(users, items, strict=True)])
    return sweeps / seconds, centre + predicted


def read_ratings(path: str) -> Data:
    """The columns user, item, rating of a table with a header, or of one inside a wheel."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("ml-100k.inter"))
            lines = archive.read(name).decode().splitlines()
    else:
        with open(path) as file:
            lines = file.read().splitlines()
    table = np.array([line.split("\t")[:3] for line in lines[1:]], float)
    users, items = (np.unique(column, return_inverse=True)[1] for column in table.T[:2])
    return pp_models.data.ratings(users, items, table[:, 2])


Settings = dict[str, Any]


def known(train: Data, users: np.ndarray, items: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """The predictions, with the mean rating for users and items without training ratings.

    cmfrec leaves the factors of these uninitialised.
    """
    rows, columns = (np.diff(m.indptr) > 0 for m in (train.matrix.tocsr(), train.matrix.tocsc()))
    return np.where(rows[users] & columns[items], predicted, train.matrix.data.mean())


def by_map(train: Data, heldout: Data, rank: int, penalty: float) -> np.ndarray:
    users, items, _ = triples(heldout)
    hyper = {"rank": rank, "lam": penalty, "sigma2": 1.0}
    fit = inference.fit("pmf", train, "map", hyper, num_epochs=SWEEPS, progress=False)
    return inference.predict_ratings(fit, users, items).mean


def by_cmfrec(train: Data, heldout: Data, rank: int, penalty: float) -> np.ndarray:
    import cmfrec

    users, items, _ = triples(heldout)
    model = cmfrec_model(cmfrec, rank, penalty, SWEEPS)
    model.fit(scipy.sparse.coo_matrix(train.matrix))
    return known(train, users, items, model.predict(users, items))


def by_surprise(train: Data, heldout: Data, **settings: Any) -> np.ndarray:
    import pandas
    import surprise

    table = pandas.DataFrame(dict(zip(("user", "item", "rating"), triples(train), strict=True)))
    ratings = surprise.Dataset.load_from_df(table, surprise.Reader(rating_scale=(1, 5)))
    model = surprise.SVD(random_state=0, **settings).fit(ratings.build_full_trainset())
    pairs = zip(*triples(heldout)[:2], strict=True)
    return np.array([model.predict(user, item).est for user, item in pairs])


def tuned(method: Any, train: Data, choices: list[Settings], seed: int) -> tuple[Settings, float]:
    """The settings with the smallest RMSE on a tenth of the training ratings, and that RMSE."""
    inner, validation = inference.split_ratings(train, 0.1, seed + 1000)
    errors = [rmse(validation, method(inner, validation, **settings)) for settings in choices]
    return choices[int(np.argmin(errors))], min(errors)


def grid(**values: Any) -> list[Settings]:
    return [dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())]


def movielens(arguments: argparse.Namespace) -> None:
    """RMSE of clipped predictions on random 90/10 splits, and coverage of 90 % intervals.

    Ranks and penalties of point estimates are chosen on a tenth of the training ratings. Their
    noise is the squared error found there.
    """
    data = read_ratings(arguments.data)
    for seed in arguments.seeds:
        movielens_split(data, seed, arguments)


def movielens_split(data: Data, seed: int, arguments: argparse.Namespace) -> None:
    train, heldout = inference.split_ratings(data, 0.1, seed)
    users, items, truth = triples(heldout)
    sizes = {"ratings": train.num_entries, "heldout": heldout.num_entries}
    line: dict[str, Any] = {"seed": seed, **sizes}
    errors: dict[str, np.ndarray] = {}

    def score(name: str, predicted: np.ndarray, **more: Any) -> None:
        errors[name] = (truth - np.clip(predicted, 1, 5)) ** 2
        line[name] = {"rmse": round(float(np.sqrt(errors[name].mean())), 4), **more}
        print(name, line[name], flush=True)

    def score_fit(name: str, model: str, engine: str, hyper: Settings, **options: Any) -> None:
        fit = inference.fit(model, train, engine, hyper, progress=False, **options)
        found = inference.score_ratings(fit, heldout, limits=(1.0, 5.0))
        measures = rounded({"log_density": found.log_density, "coverage90": found.coverage})
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
            both = errors[f"gibbs rank {rank}"], errors[f"smurff rank {rank}"]
            line[f"gibbs_minus_smurff rank {rank}"] = difference(*both)
    if installed("surprise") is not None:
        score("surprise", by_surprise(train, heldout))
        tried = {"n_factors": arguments.ranks, "reg_all": [0.02, 0.05, 0.1], "n_epochs": [20, 40]}
        best, _ = tuned(by_surprise, train, grid(biased=[False], **tried), seed)
        line["chosen"]["surprise"] = best
        score("surprise without biases", by_surprise(train, heldout, **best))
    error = errors["map"].std() / np.sqrt(len(truth)) / (2 * line["map"]["rmse"])
    report("factorisations movielens", {**line, "standard_error": round(float(error), 4)})


def difference(ours: np.ndarray, theirs: np.ndarray) -> list[float]:
    """Difference of two RMSEs on the same ratings, from squared errors, and its standard error."""
    root = np.sqrt(theirs.mean())
    spread = (ours - theirs).std() / np.sqrt(len(ours)) / (2 * root)
    return rounded([float(np.sqrt(ours.mean()) - root), float(spread)], 5)
