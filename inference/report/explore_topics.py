"""Topics and documents of the exploring page.

Relevance of a word for a topic, with weight lambda, is that of Sievert and Shirley (2014):
lambda log p(w | k) + (1 - lambda) log(p(w | k) / p(w)). The script ranks the words that are on the
page; these are each topic's most probable words and its most relevant ones at small lambda. The map
of topics is the classical scaling of their Hellinger distances.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from inference.core.completion import topics_of
from inference.evaluation import topics as reading
from inference.evaluation.locations import topic_correlations
from inference.report.explore_parts import (
    Part,
    common_draws,
    first_of_rows,
    hellinger,
    lengths_of,
    map_of_distances,
    named,
    nearest,
    nouns,
    rounded,
    rows_known,
    spaced,
)
from pp_models.errors import InputError

WORDS = 200  # most probable words of a topic
RELEVANT = 50  # of its most relevant words at each of these lambdas
LAMBDAS = (0.5, 0.2, 0.0)
MOST_LISTED = 40_000  # words of all topics together
BEST = 20  # documents of a topic
MOST_DOCUMENTS = 2000
TOPICS_OF = 12  # of a word or a document
WORDS_OF = 12  # of a document
NEAR = 6
LEAST_SHARE = 0.005  # of a document's topic to be shown
LEAST_CORRELATION = 0.2
NUM_DRAWS = 200
MOST_DRAWN = 10_000_000  # numbers; beyond this intervals are normal approximations
LEVEL = 0.9
HALF = 1.6449  # sds either way that hold 90 % of a normal distribution


class Found(NamedTuple):
    """topics: (K, columns). proportions: (rows, K) or None. share: (K,) or None.
    by_length: whether shares weigh rows by their lengths."""

    topics: np.ndarray
    proportions: np.ndarray | None
    share: np.ndarray | None
    by_length: bool


def topics(fit: Any) -> Part | None:
    """Topics, words and documents; None for a model without topics."""
    if topics_of(fit.model) is None or not fit.provenance["columns"]:
        return None
    found = _read(fit)
    order = np.arange(len(found.topics))
    if found.share is not None:
        order = np.argsort(-found.share, kind="stable")
    weight = np.full(len(order), 1 / len(order)) if found.share is None else found.share
    marginal = weight @ found.topics
    listed = _listed(found.topics, marginal)
    low, high, told = _intervals(fit, found.topics, listed)
    documents, documents_told = _documents(fit, found, listed, marginal)
    vocabulary = np.unique(np.concatenate([*listed, *documents.pop("columns", [])]))
    place = np.full(found.topics.shape[1], -1)
    place[vocabulary] = np.arange(len(vocabulary))
    if "words" in documents:
        documents["words"] = [place[words].tolist() for words in documents["words"]]
    content = {
        "topics": {
            "order": order.tolist(),
            "share": None if found.share is None else rounded(found.share),
            "shareOf": _share_of(fit, found),
            "words": [place[columns].tolist() for columns in listed],
            "p": [rounded(found.topics[k, listed[k]]) for k in range(len(listed))],
            "low": None if low is None else [rounded(one) for one in low],
            "high": None if high is None else [rounded(one) for one in high],
            **_map(fit, found.topics),
        },
        "words": _words(fit, found.topics, weight, vocabulary),
    }
    content |= {"documents": documents} if documents else {}
    return Part(content, [*_told(fit, found, listed), *told, *documents_told])


def _share_of(fit: Any, found: Found) -> str:
    words = nouns(fit)
    return f"of all {words.columns}" if found.by_length else f"of a {words.row} on average"


def _read(fit: Any) -> Found:
    """The topics as `inference.topics` has them, and what is known of rows."""
    try:
        known = reading.topics(fit)
        return Found(known.topics, known.proportions, known.prevalence, True)
    except InputError:  # the lengths of the rows are not known
        if fit.data is not None:
            raise
    if fit.posterior.has_chains or not rows_known(fit):
        return Found(reading.word_distributions(fit), None, None, False)
    declared, values = _means(fit)
    weights = declared.weights(fit.problem.hyper, values)
    beta = declared.topics(fit.problem.hyper, values)
    known = reading.normalise(weights, beta, np.ones(len(weights)))
    return Found(known.topics, known.proportions, known.prevalence, False)


def _means(fit: Any) -> tuple[Any, dict[str, Any]]:
    return topics_of(fit.model), {s: fit.posterior.mean(s) for s in fit.model.families}


# Words --------------------------------------------------------------------------------------------


def _listed(topics: np.ndarray, marginal: np.ndarray) -> list[np.ndarray]:
    """For each topic the columns on the page, most probable first."""
    number = max(20, min(WORDS, MOST_LISTED // len(topics)))
    relevant = min(RELEVANT, number)
    log_marginal = np.log(np.maximum(marginal, 1e-300))
    found = []
    for topic in topics:
        columns = [reading.largest(topic, number)]
        log_p = np.log(np.maximum(topic, 1e-300))
        for weight in LAMBDAS:
            relevance = weight * log_p + (1 - weight) * (log_p - log_marginal)
            relevance = np.where(topic > topic.max() / 1000, relevance, -np.inf)
            best = reading.largest(relevance, relevant)
            columns.append(best[np.isfinite(relevance[best])])
        unique = np.unique(np.concatenate(columns))
        found.append(unique[np.argsort(-topic[unique], kind="stable")])
    return found


def _words(
    fit: Any, topics: np.ndarray, weight: np.ndarray, vocabulary: np.ndarray
) -> dict[str, Any]:
    """Names of the words on the page and the topics that they come from, p(k | w)."""
    joint = topics[:, vocabulary].T * weight
    total = joint.sum(1, keepdims=True)
    given = joint / np.where(total > 0, total, 1)
    order = np.argsort(-given, axis=1, kind="stable")[:, :TOPICS_OF]
    return {
        "names": named(fit.column_names, vocabulary, nouns(fit).column),
        "p": rounded(total[:, 0]),
        "topics": order.tolist(),
        "given": rounded(np.take_along_axis(given, order, 1)),
    }


def _intervals(fit: Any, topics: np.ndarray, listed: list[np.ndarray]) -> tuple[Any, Any, list]:
    """Ends of the intervals of the listed words' probabilities, and what they are."""
    posterior, size = fit.posterior, topics.size
    if not posterior.has_spread:
        return None, None, ["The fit is a point estimate, so that words have no intervals."]
    declared: Any = topics_of(fit.model)
    hyper = fit.problem.hyper
    if not posterior.has_chains and NUM_DRAWS * size > MOST_DRAWN:
        sds = {site: posterior.sd(site) for site in fit.model.shared}  # topics are linear in a site
        values = {site: posterior.mean(site) for site in fit.model.shared}
        total = np.asarray(declared.topics(hyper, values), np.float64).sum(1, keepdims=True)
        sd = np.asarray(declared.topics(hyper, sds), np.float64) / np.where(total > 0, total, 1)
        pairs = list(zip(topics, sd, listed, strict=True))
        low = [np.maximum(p[v] - HALF * s[v], 0) for p, s, v in pairs]
        high = [np.minimum(p[v] + HALF * s[v], 1) for p, s, v in pairs]
        return low, high, ["Whiskers are 1.64 posterior sds either way, about 90 %."]
    if posterior.has_chains:
        draws = common_draws(fit, NUM_DRAWS)
    else:
        draws = posterior.sample(jax.random.key(0), NUM_DRAWS, list(fit.model.shared))
    each: list[list[np.ndarray]] = []
    for i in range(len(next(iter(draws.values())))):
        beta = declared.topics(hyper, {site: draws[site][i] for site in fit.model.shared})
        beta = np.asarray(beta, np.float64)
        total = beta.sum(1, keepdims=True)
        share = beta / np.where(total > 0, total, 1)
        each.append([share[k, columns] for k, columns in enumerate(listed)])
    ends = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    low, high = (
        [np.quantile([one[k] for one in each], end, axis=0) for k in range(len(listed))]
        for end in ends
    )
    told = f"Whiskers are 90 % intervals of the posterior, from {len(each)} draws."
    return low, high, [told]


# The map ------------------------------------------------------------------------------------------


def _map(fit: Any, topics: np.ndarray) -> dict[str, Any]:
    """Places of the topics, their neighbours, and strong correlations where the model has any."""
    distance = hellinger(topics)
    near, similar = nearest(1 - distance, NEAR)
    found: dict[str, Any] = {
        "place": rounded(map_of_distances(distance)),
        "near": near,
        "similar": rounded(similar, 2),
        "correlated": None,
    }
    try:
        correlation = topic_correlations(fit)
    except InputError:  # the model has none, or draws without common axes
        return found
    first, second = np.triu_indices(len(correlation), 1)
    values = correlation[first, second]
    strong = np.flatnonzero(np.abs(values) >= LEAST_CORRELATION)
    strong = strong[np.argsort(-np.abs(values[strong]), kind="stable")][: 3 * len(correlation)]
    found["correlated"] = [
        [int(first[i]), int(second[i]), round(float(values[i]), 2)] for i in strong
    ]
    return found


# Documents ----------------------------------------------------------------------------------------


def _documents(
    fit: Any, found: Found, listed: list[np.ndarray], marginal: np.ndarray
) -> tuple[dict[str, Any], list[str]]:
    """The documents on the page, and what is left out."""
    words = nouns(fit)
    if found.proportions is None:
        why = "The fit was loaded without its data and does not hold what belongs to single "
        advice = f"{words.rows}: these are left out, and topics have no shares. Give --data to "
        return {}, [why + advice + "pp-models explore, or data= to load."]
    lengths = lengths_of(fit)
    used = np.arange(len(found.proportions)) if lengths is None else np.flatnonzero(lengths > 0)
    best = [_best(found.proportions[:, k], lengths, used) for k in range(len(found.topics))]
    size = len(used)
    picked = used
    told = []
    if size > MOST_DOCUMENTS:
        first = np.unique(np.concatenate(best))
        rest = np.setdiff1d(used, first)
        more = rest[spaced(len(rest), max(0, MOST_DOCUMENTS - len(first)))]
        picked = np.sort(np.concatenate([first, more]))
        told = [
            f"{len(picked):,} of {size:,} {words.rows} are on this page: the {BEST} most "
            "representative of each topic, and others evenly spaced."
        ]
    if lengths is not None and size < len(lengths):
        told.append(f"{len(lengths) - size:,} empty {words.rows} are left out.")
    place = np.full(len(found.proportions), -1)
    place[picked] = np.arange(len(picked))
    shares = found.proportions[picked]
    order = np.argsort(-shares, axis=1, kind="stable")[:, :TOPICS_OF]
    near, similar = nearest(1 - hellinger(shares), NEAR)
    content: dict[str, Any] = {
        "rows": picked.tolist(),
        "names": named(fit.row_names, picked, words.row),
        "lengths": None if lengths is None else [float(f"{x:.6g}") for x in lengths[picked]],
        "topics": order.tolist(),
        "shares": rounded(np.take_along_axis(shares, order, 1)),
        "best": [place[rows].tolist() for rows in best],
        "bestShares": [rounded(found.proportions[rows, k]) for k, rows in enumerate(best)],
        "near": near,
        "similar": rounded(similar, 2),
    }
    if fit.data is None:
        told.append(f"The fit was loaded without its data: words of {words.rows} are not known.")
    else:
        content["words"] = _frequent(fit.data, picked, marginal)
        content["columns"] = [np.unique(np.concatenate(content["words"]))]
    return content, told


def _best(share: np.ndarray, lengths: np.ndarray | None, used: np.ndarray) -> np.ndarray:
    """The rows with the largest proportions of a topic. Ties go to the longer row."""
    ties = np.zeros(len(share)) if lengths is None else -lengths
    return used[np.lexsort((ties[used], -share[used]))][:BEST]


def _frequent(data: Any, rows: np.ndarray, marginal: np.ndarray) -> list[np.ndarray]:
    """For each row the columns n that exceed expectation most: n log(n / (N p))."""
    table = data.matrix[rows].tocsr()
    n = table.data.astype(np.float64)
    totals = np.repeat(np.asarray(data.totals)[rows], np.diff(table.indptr))
    expected = np.maximum(totals * marginal[table.indices], 1e-300)
    best = first_of_rows(table, n * np.log(np.maximum(n, 1e-300) / expected), WORDS_OF)
    return [table.indices[places] for places in best]


def _told(fit: Any, found: Found, listed: list[np.ndarray]) -> list[str]:
    """How to read the figures, and what is left out of the words."""
    words, size = nouns(fit), found.topics.shape[1]
    told = ["Topics are numbered from 0, as by inference.topics."]
    longest = max(map(len, listed))
    if longest < size:
        told.append(
            f"Each topic lists at most {longest} of {size:,} {words.columns}: its most probable "
            "ones and its most relevant ones. Ranking by relevance and search are among these."
        )
    if found.share is not None:
        weighed = "by their lengths" if found.by_length else "equally, as lengths are not known"
        told.append(f"The share of a topic is its mean proportion, {words.rows} weighed {weighed}.")
    return told
