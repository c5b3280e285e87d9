"""Ratings, votes, components and places of columns on the exploring page.

Neighbours are those of largest cosine in factor space, which does not depend on the rotation of the
factors. Maps are the first two principal components of places. Draws of Markov chains are aligned
before maps are made of them.
"""

from typing import Any

import jax
import numpy as np

from inference.core.completion import topics_of
from inference.evaluation.ratings import predict_ratings
from inference.evaluation.votes import predict_votes
from inference.report.explore_parts import (
    Part,
    common_draws,
    cosines,
    counts_of,
    first_of_rows,
    map_of_places,
    named,
    nearest,
    nouns,
    rounded,
    rows_known,
    spaced,
)
from pp_models.model import factor_axes

MOST_ITEMS = 1500
MOST_USERS = 400
MOST_BILLS = 400
MOST_MEMBERS = 600
MOST_NUMBERS = 60_000  # of the components' means
NEAR = 10
TOP = 15  # predictions of a user
RATED = 15  # ratings of a user that are shown
NUM_DRAWS = 200
COLUMNS_OF = 12  # of a component
MOST_DRAWN = 10_000_000  # numbers; beyond this intervals are normal approximations


def _places(fit: Any, site: str) -> tuple[np.ndarray, np.ndarray]:
    """Means of a site (n, dimensions), aligned, and draws or means from which to take cosines."""
    if not fit.posterior.has_chains:
        mean = np.asarray(fit.posterior.mean(site), np.float64)
        return mean, mean
    draws = np.asarray(common_draws(fit, NUM_DRAWS)[site], np.float64)
    return draws.mean(0), draws


def _things(fit: Any, site: str, picked: np.ndarray, names: list[str]) -> dict[str, Any]:
    """A list of things with places: names, neighbours, and a map."""
    mean, draws = _places(fit, site)
    near, similar = nearest(cosines(draws[..., picked, :]), NEAR)
    return {
        "names": names,
        "place": rounded(map_of_places(mean[picked])),
        "near": near,
        "similar": rounded(similar, 2),
    }


# Ratings ------------------------------------------------------------------------------------------


def ratings(fit: Any) -> Part | None:
    """Items with neighbours, and predictions for users."""
    if fit.model.ratings is None:
        return None
    size, noun = fit.provenance["columns"], nouns(fit)
    told = ["Neighbours of an item are those of largest cosine in factor space."]
    entries = mean = None
    picked = spaced(size, MOST_ITEMS)
    if fit.data is not None:
        entries, mean = counts_of(fit.data.matrix, 0)
        if size > MOST_ITEMS:
            picked = np.sort(np.argsort(-entries, kind="stable")[:MOST_ITEMS])
    if len(picked) < size:
        which = "evenly spaced" if entries is None else "those with most ratings"
        told.append(f"{len(picked):,} of {size:,} items are on this page, {which}.")
    names = named(fit.column_names, picked, noun.column)
    items = _things(fit, fit.model.ratings.sites[1], picked, names)
    if entries is not None and mean is not None:
        items["ratings"] = entries[picked].tolist()
        items["mean"] = rounded(mean[picked])
    content: dict[str, Any] = {"items": items}
    if rows_known(fit):
        users, users_told = _users(fit, picked)
        return Part(content | {"users": users}, told + users_told)
    why = "The fit was loaded without its data and does not hold what belongs to single users: "
    return Part(content, [*told, f"{why}predictions are left out."])


def _users(fit: Any, items: np.ndarray) -> tuple[dict[str, Any], list[str]]:
    """For some users the largest predictions among the items that they have not rated."""
    size, data = fit.provenance["rows"], fit.data
    users = spaced(size, MOST_USERS)
    mean = _means_of_pairs(fit, users, items)
    known: Any = None
    told = []
    limits = None
    if data is not None:
        table = data.matrix[users].tocsr()[:, items]
        rows = np.repeat(np.arange(len(users)), np.diff(table.indptr))
        mean[rows, table.indices] = -np.inf
        each = first_of_rows(table, table.data, RATED)
        known = [[table.indices[x].tolist(), rounded(table.data[x])] for x in each]
        lowest, highest = float(data.matrix.data.min()), float(data.matrix.data.max())
        limits = (lowest, highest) if lowest < highest else None
    else:
        told = ["The ratings are not with the fit, so that predictions include rated items."]
    best = np.argsort(-mean, axis=1, kind="stable")[:, :TOP]
    kept = np.isfinite(np.take_along_axis(mean, best, 1))
    which, column = np.nonzero(kept)
    top: list[list[Any]] = [[] for _ in users]
    if len(which):
        chosen = best[which, column]
        found = predict_ratings(fit, users[which], items[chosen], limits=limits)
        lines = np.stack([found.mean, found.lower, found.upper], 1)
        for i, item, line in zip(which, chosen, rounded(lines, 4), strict=True):
            top[i].append([int(item), *line])
    content = {
        "names": [
            f"user {name}" if name.isdigit() else name
            for name in named(fit.row_names, users, nouns(fit).row)
        ],
        "top": top,
        "known": known,
        "limits": None if limits is None else list(limits),
        "spread": bool(fit.posterior.has_spread),
    }
    if data is not None:
        entries, average = counts_of(data.matrix, 1)
        content |= {"ratings": entries[users].tolist(), "mean": rounded(average[users])}
    if len(users) < size:
        told.append(f"{len(users):,} of {size:,} users are on this page, evenly spaced.")
    noise = "Intervals hold a new rating with 90 % probability, noise included"
    scale = "" if limits is None else "; they end at the lowest and highest rating of the data"
    point = "" if fit.posterior.has_spread else "; the fit is a point, so that they are noise alone"
    return content, [*told, f"{noise}{scale}{point}."]


def _means_of_pairs(fit: Any, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """(users, items) E[u'v]: of independent factors the product of means, else over draws."""
    rows, columns = fit.model.ratings.sites
    if fit.posterior.is_sampled:
        draws = fit.posterior.sample(jax.random.key(0), fit.posterior.num_draws(NUM_DRAWS))
        pairs = zip(np.asarray(draws[rows]), np.asarray(draws[columns]), strict=True)
        total = np.zeros((len(users), len(items)))
        for u, v in pairs:
            total += u[users].astype(np.float64) @ v[items].T
        return total / len(draws[rows])
    u, v = (np.asarray(fit.posterior.mean(site), np.float64) for site in (rows, columns))
    return u[users] @ v[items].T


# Votes --------------------------------------------------------------------------------------------


def votes(fit: Any) -> Part | None:
    """A map of members by their tastes, and the probability of yea of each on each bill."""
    if fit.model.votes is None:
        return None
    mean = np.asarray(_places(fit, fit.model.votes.members)[0])
    members = spaced(len(mean), MOST_MEMBERS)
    content: dict[str, Any] = {
        "members": named(None, members, "member"),
        "place": rounded(map_of_places(mean[members])),
        "bills": None,
    }
    told = ["The map of members shows the first two principal components of their tastes."]
    if len(members) < len(mean):
        told.append(f"{len(members):,} of {len(mean):,} members are on this page, evenly spaced.")
    if not rows_known(fit):
        told.append("Votes are left out: the fit was loaded without its data and holds no bills.")
        return Part({"votes": content}, told)
    size = fit.provenance["rows"]
    bills = spaced(size, MOST_BILLS)
    if len(bills) < size:
        told.append(f"{len(bills):,} of {size:,} bills are on this page, evenly spaced.")
    content["bills"] = named(fit.row_names, bills, nouns(fit).row)
    content["yea"] = np.round(100 * _yea(fit, bills)[:, members]).astype(int).tolist()
    if fit.data is None:
        told.append("Probabilities of yea are those at the posterior's means.")
        return Part({"votes": content}, told)
    told.append("For a known vote, the probability is that of another vote on the same bill.")
    table = np.full((len(bills), len(mean)), "-")
    cast = fit.data.votes[bills].tocoo()
    table[cast.coords] = np.where(cast.data > 0, "y", "n")
    content["cast"] = ["".join(row) for row in table[:, members]]
    yeas = np.asarray((fit.data.votes[:, members] > 0).sum(0), float).ravel()
    known = np.bincount(fit.data.votes.indices, minlength=len(mean))[members]
    content["share"] = rounded(yeas / np.maximum(known, 1), 2)
    return Part({"votes": content}, told)


def _yea(fit: Any, bills: np.ndarray) -> np.ndarray:
    if fit.data is not None:
        return predict_votes(fit, fit.data.select(bills))
    model, posterior = fit.model, fit.posterior
    if not posterior.has_chains:
        values = {site: posterior.mean(site) for site in posterior.sites}
        return np.asarray(model.predict(fit.problem.hyper, values))[bills]
    draws = posterior.sample(jax.random.key(0), posterior.num_draws(NUM_DRAWS))
    each = (
        np.asarray(model.predict(fit.problem.hyper, {s: x[i] for s, x in draws.items()}))[bills]
        for i in range(len(next(iter(draws.values()))))
    )
    return np.asarray(np.mean(list(each), axis=0))


# Components ---------------------------------------------------------------------------------------


def components(fit: Any) -> Part | None:
    """Weights and profiles over the columns of a mixture's components."""
    model = fit.model
    if model.local or topics_of(model) is not None:
        return None
    size, axes, noun = fit.provenance["columns"], factor_axes(model), nouns(fit)
    sites = [s for s in model.shared if len(axes[s]) == 1]
    mean, sd = _moments(fit, sites)
    profile = next((s for s in sites if _profile(fit, s, mean[s], size) is not None), None)
    weight = next((s for s in sites if mean[s].ndim == 1), None)
    if profile is None:
        return None
    means = _profile(fit, profile, mean[profile], size)
    assert means is not None
    ends, told_ends = _ends(fit, profile, size, means, sd)
    share = np.full(len(means), 1 / len(means)) if weight is None else mean[weight]
    order = np.argsort(-share, kind="stable")
    content: dict[str, Any] = {
        "order": order.tolist(),
        "weight": None if weight is None else rounded(share),
        "weightSd": None if weight is None or not fit.posterior.has_spread else rounded(sd[weight]),
        **_profiles(fit, means, ends, share),
    }
    told = [f"Components list the {noun.columns} furthest from the average of all components."]
    if content["mean"] is None:
        told.append(f"There are too many {noun.columns} to draw the components' means.")
    if content["side"]:
        told.append("Columns without names, a square number of them, are drawn as a square image.")
    return Part({"components": content}, [*told, told_ends])


def _ends(
    fit: Any, site: str, size: int, means: np.ndarray, sd: dict[str, np.ndarray]
) -> tuple[tuple[np.ndarray, np.ndarray] | None, str]:
    """Ends of 90 % intervals of the components' means, and what they are."""
    posterior = fit.posterior
    if not posterior.has_spread:
        return None, "The fit is a point estimate, so that means have no intervals."
    if not posterior.has_chains and sd[site].size * NUM_DRAWS > MOST_DRAWN:
        half = 1.6449 * np.asarray(_profile(fit, site, sd[site], size))
        return (means - half, means + half), "Whiskers are 1.64 posterior sds either way."
    if posterior.has_chains:
        draws = common_draws(fit, NUM_DRAWS)[site]
    else:
        draws = posterior.sample(jax.random.key(0), NUM_DRAWS, [site])[site]
    each = [_profile(fit, site, np.asarray(draw, np.float64), size) for draw in draws]
    low, high = np.quantile(np.asarray(each), [0.05, 0.95], axis=0)
    return (low, high), f"Whiskers are 90 % intervals of the posterior, from {len(each)} draws."


def _moments(fit: Any, sites: list[str]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    if fit.posterior.has_chains:
        draws = common_draws(fit, NUM_DRAWS)
        each = {site: np.asarray(draws[site], np.float64) for site in sites}
        return {s: x.mean(0) for s, x in each.items()}, {s: x.std(0) for s, x in each.items()}
    read = fit.posterior
    return (
        {site: np.asarray(read.mean(site), np.float64) for site in sites},
        {site: np.asarray(read.sd(site), np.float64) for site in sites},
    )


def _profile(fit: Any, site: str, value: np.ndarray, size: int) -> np.ndarray | None:
    """(K, columns) of a site. A Normal-Wishart site holds the mean in row 0."""
    axis = factor_axes(fit.model)[site][0]
    value = np.moveaxis(value, axis, 0)
    if fit.model.families[site].name == "normal_wishart":
        value = value[:, 0]
    return value if value.ndim == 2 and value.shape[1] == size else None


def _profiles(fit: Any, means: np.ndarray, ends: Any, share: np.ndarray) -> dict[str, Any]:
    size = means.shape[1]
    unit = means.std(0)
    away = (means - share @ means) / np.where(unit > 0, unit, 1)
    best = np.argsort(-np.abs(away), axis=1, kind="stable")[:, :COLUMNS_OF]
    used = np.arange(size) if means.size <= MOST_NUMBERS else np.unique(best)
    place = np.full(size, -1)
    place[used] = np.arange(len(used))
    side = int(np.sqrt(size))
    square = fit.column_names is None and size >= 16 and side * side == size == len(used)
    top = np.take_along_axis(means, best, 1)
    low, high = (None, None) if ends is None else (np.take_along_axis(x, best, 1) for x in ends)
    return {
        "columns": named(fit.column_names, used, nouns(fit).column),
        "mean": rounded(means[:, used]) if len(used) == size else None,
        "average": rounded(share @ means[:, used], 4),
        "side": side if square else None,
        "best": place[best].tolist(),
        "value": rounded(top, 4),
        "low": None if low is None else rounded(low, 4),
        "high": None if high is None else rounded(high, 4),
    }


# Places of columns --------------------------------------------------------------------------------


def places(fit: Any) -> Part | None:
    """Columns and their neighbours, for a model whose only factors are places of the columns."""
    model, size = fit.model, fit.provenance["columns"]
    if model.ratings is not None or topics_of(model) is not None:
        return None
    axes = factor_axes(model)
    site = next(
        (
            s
            for s in model.shared
            if axes[s] == (-1,) and np.shape(fit.posterior.mean(s))[:-1] == (size,)
        ),
        None,
    )
    if site is None:
        return None
    noun = nouns(fit)
    picked = spaced(size, MOST_ITEMS)
    told = [f"Neighbours of a {noun.column} are those of largest cosine in factor space."]
    if fit.data is not None and fit.data.matrix is not None:
        totals = np.asarray(fit.data.matrix.sum(0), float).ravel()
        if size > MOST_ITEMS:
            picked = np.sort(np.argsort(-totals, kind="stable")[:MOST_ITEMS])
    if len(picked) < size:
        told.append(f"{len(picked):,} of {size:,} {noun.columns} are on this page.")
    names = named(fit.column_names, picked, noun.column)
    return Part({"items": _things(fit, site, picked, names)}, told)
