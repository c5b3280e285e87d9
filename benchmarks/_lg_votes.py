"""Votes on bills of the House (H 5.2), for `latent_gaussian.py`."""

import argparse
from functools import partial
from typing import Any

import jax
import numpy as np
from _common import report, rounded
from _lg_grid import read_house

import inference
import pp_models

TRIED = ((1.0, 1e3), (0.3, 3e3), (1.0, 3e2), (1.0, 1e2))  # alpha1, alpha2 of the fit
REFITTED = (None, 1.0, 3.0, 10.0)  # alpha2 of members refitted to text alone; None: not refitted
LENGTH = 50.0  # of a bill's words, weighted by tf-idf
STARTS = 3  # fits at the chosen setting, whose probabilities are averaged


def fitted(
    counts: Any,
    votes: np.ndarray,
    alpha1: float,
    alpha2: float,
    arguments: argparse.Namespace,
    seed: int = 0,
) -> Any:
    """A fit by MAP, as H, on one device."""
    data = pp_models.data.text_and_votes(counts, votes)
    given = {"num_topics": arguments.rank, "bias": True, "alpha1": alpha1, "alpha2": alpha2}
    options = {"num_epochs": arguments.sweeps, "basis": "identity", "progress": False}
    options["devices"] = jax.local_devices()[:1]
    return inference.fit("lg_nmf_votes", data, "map", given, key=jax.random.key(seed), **options)


def from_text(fit: Any, counts: Any, refit: float | None) -> np.ndarray:
    """Probabilities of yea for bills without votes, plugged in as H does.

    Refitted members were fitted to modes of s, so bills are at their modes too.
    """
    unknown = np.full((counts.shape[0], len(fit.posterior.mean("d2"))), np.nan)
    new = pp_models.data.text_and_votes(counts, unknown)
    chosen = fit if refit is None else inference.refit_members(fit, refit)
    return inference.predict_votes(chosen, new, "plug_in")


def accuracy(probability: np.ndarray, votes: np.ndarray) -> float:
    seen = ~np.isnan(votes)
    return float(np.mean((probability > 0.5)[seen] == votes[seen]))


def ridge(text: Any, votes: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The peer: a ridge regression of votes on tf-idf, missing votes at the member's mean."""
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import Ridge

    known = votes[train]
    share = (np.nansum(known, 0) + 1) / (np.sum(~np.isnan(known), 0) + 2)
    weigh = TfidfTransformer(sublinear_tf=True).fit(text[train])
    filled = np.where(np.isnan(known), share, known)
    model = Ridge(alpha=1.0).fit(weigh.transform(text[train]), filled)
    return model.predict(weigh.transform(text[test]))


def chosen_inside(
    text: Any, cast: np.ndarray, train: np.ndarray, rng: Any, arguments: argparse.Namespace
) -> dict[tuple[Any, ...], float]:
    """(alpha1, alpha2, refit) -> accuracy on a fifth of the training bills, fitted to the rest."""
    mixed = rng.permutation(train)
    valid, rest = mixed[: len(mixed) // 5], mixed[len(mixed) // 5 :]
    old, new = (pp_models.data.tf_idf(text[rows], LENGTH, text[rest]) for rows in (rest, valid))
    scores = {}
    for alpha1, alpha2 in TRIED:
        fit = fitted(old, cast[rest], alpha1, alpha2, arguments)
        for refit in REFITTED:
            said = from_text(fit, new, refit)
            scores[alpha1, alpha2, refit] = accuracy(said, cast[valid])
    return scores


def votes(arguments: argparse.Namespace) -> None:
    """H 5.2: votes on held-out bills from their text, in six folds.

    Settings are chosen by one inner fold of the training bills. Probabilities are averaged over
    random starts.
    """
    text, cast = read_house(arguments.data)
    rng = np.random.default_rng(arguments.seed)
    fold = rng.permutation(np.arange(len(cast)) % 6)
    scores, peers, chosen, sizes = [], [], [], []
    for number in range(arguments.folds):
        test, train = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        inside = chosen_inside(text, cast, train, rng, arguments)
        alpha1, alpha2, refit = max(inside, key=lambda setting: inside[setting])
        old, new = (pp_models.data.tf_idf(text[x], LENGTH, text[train]) for x in (train, test))
        chosen_fit = partial(fitted, old, cast[train], alpha1, alpha2, arguments)
        said = [from_text(chosen_fit(seed), new, refit) for seed in range(STARTS)]
        scores.append(accuracy(np.mean(said, 0), cast[test]))
        peers.append(accuracy(ridge(text, cast, train, test), cast[test]))
        chosen.append((alpha1, alpha2, refit))
        sizes.append(int(np.sum(~np.isnan(cast[test]))))
        alone = [round(accuracy(each, cast[test]), 4) for each in said]
        tried = {str(setting): round(x, 4) for setting, x in inside.items()}
        told = f"fold {number}", tried, "starts", alone, "test", round(scores[-1], 4)
        print(*told, flush=True)
    line = {
        "accuracy": float(np.average(scores, weights=sizes)),
        "folds": scores,
        "ridge": float(np.average(peers, weights=sizes)),
        "ridge_folds": peers,
        "always_yea": float(np.nanmean(cast)),
    }
    report("latent_gaussian votes", rounded(line) | {"chosen": chosen})


def missing(arguments: argparse.Namespace) -> None:
    """A tenth of all votes, missing at random, from the others and the text.

    alpha2 is chosen by another tenth, hidden from the fits that choose.
    """
    text, cast = read_house(arguments.data)
    place = np.random.default_rng(arguments.seed).random(cast.shape)
    seen = ~np.isnan(cast)
    hidden, valid = seen & (place < 0.1), seen & (place >= 0.1) & (place < 0.2)
    counts = pp_models.data.tf_idf(text, LENGTH)

    def judge(fit: Any, asked: np.ndarray) -> dict[str, Any]:
        out = {}
        for rows in ("plug_in", "gaussian"):
            probability = inference.predict_votes(fit, fit.data, rows)[asked]
            right = float(np.mean((probability > 0.5) == cast[asked]))
            error = inference.calibration_error(probability, cast[asked]).value
            out[rows] = rounded({"accuracy": right, "calibration_error": error})
        return out

    inside = {}
    for alpha2 in (3.0, 10.0, 30.0, 100.0):
        known = np.where(hidden | valid, np.nan, cast)
        inside[alpha2] = judge(fitted(counts, known, 1.0, alpha2, arguments), valid)
        print("alpha2", alpha2, inside[alpha2], flush=True)
    best = max(inside, key=lambda alpha2: inside[alpha2]["plug_in"]["accuracy"])
    fit = fitted(counts, np.where(hidden, np.nan, cast), 1.0, best, arguments)
    report(
        "latent_gaussian missing votes",
        {"alpha2": best, **judge(fit, hidden), "votes": int(hidden.sum())},
    )
