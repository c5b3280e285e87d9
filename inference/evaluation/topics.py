"""Topics for people to read, of every model with weights theta (rows, K), a site or `Model.weights`, and topics beta (K, columns) or `Model.topics`.

Only the product theta @ beta is seen by the data, so the size of a topic means nothing until it is fixed (C18, step 3): with a_k = sum_v beta_kv,

    topic_kv = beta_kv / a_k,     weight_dk = theta_dk a_k,     proportion_dk = weight_dk / sum_j weight_dj.

Topics and proportions are then distributions, and the product is what it was. The prevalence of a topic is the share of all tokens that belong to it,
sum_d N_d proportion_dk / N, with N_d the tokens of row d.

A distribution or a point is read at its mean. The labels of a Markov chain's draws may switch, so the draws are relabelled first (`align`), and what
is averaged are the normalised quantities of each.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from inference.core import align
from inference.core.completion import has_topics
from pp_models.data.types import Data
from pp_models.errors import InputError
from pp_models.model import check_count

MOST_DRAWS = 200  # of a Markov chain, evenly spaced


class Topics(NamedTuple):
    """topics: (K, columns), rows sum to one. weights: (rows, K), with weights @ topics = theta @ beta. proportions: (rows, K), rows sum to one.

    prevalence: (K,) share of the tokens, sums to one.
    """

    topics: np.ndarray
    weights: np.ndarray
    proportions: np.ndarray
    prevalence: np.ndarray


def _theta(fit: Any, values: Mapping[str, Any]) -> np.ndarray:
    """The rows' weights, given values of every site."""
    return np.asarray(
        values["theta"]
        if fit.model.topics is None
        else fit.model.topics.weights(fit.problem.hyper, values)
    )


def _beta(fit: Any, values: Mapping[str, Any]) -> np.ndarray:
    """The topics, given values of every site."""
    return np.asarray(
        values["beta"]
        if fit.model.topics is None
        else fit.model.topics.topics(fit.problem.hyper, values)
    )


def normalise(theta: Any, beta: Any, totals: np.ndarray) -> Topics:
    """C18, step 3, for values (..., rows, K) and (..., K, columns). A topic or row of nothing but zeros is spread evenly."""
    theta, beta = np.asarray(theta, np.float64), np.asarray(beta, np.float64)
    size = beta.sum(-1)
    weights = theta * size[..., None, :]
    proportions = _shares(weights)
    return Topics(_shares(beta), weights, proportions, _shares(totals @ proportions))


def _shares(x: np.ndarray) -> np.ndarray:
    total = x.sum(-1, keepdims=True)
    return np.where(total > 0, x / np.where(total > 0, total, 1), 1 / x.shape[-1])


def topics(fit: Any) -> Topics:
    """The normalised topics, the rows' weights and proportions, and the topics' prevalence.

    >>> import inference, pp_models
    >>> data = pp_models.data.counts([[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 6, 2], [0, 1, 3, 4]])
    >>> fit = inference.fit("lda", data, engine="cavi", hyper={"num_topics": 2})
    >>> found = inference.topics(fit)
    >>> found.topics.shape, found.proportions.shape, float(found.prevalence.sum().round(6))
    ((2, 4), (4, 2), 1.0)
    """
    _check_topics(fit)
    return _topics(fit, _data(fit).totals)


def word_distributions(fit: Any) -> np.ndarray:
    """(K, columns) the normalised topics alone, for which the data are not needed."""
    _check_topics(fit)
    if fit.posterior.kind != "draws":
        return _shares(
            _beta(fit, {site: fit.posterior.mean(site) for site in fit.model.shared}).astype(
                np.float64
            )
        )
    return _topics(fit, np.ones(fit.provenance["rows"])).topics


def _check_topics(fit: Any) -> None:
    if not has_topics(fit.model):
        raise InputError(
            f"Model {fit.model.name!r} has no topics: it needs weights theta, one row per data row, and topics beta."
        )


def _topics(fit: Any, totals: np.ndarray) -> Topics:
    if fit.posterior.kind != "draws":
        values = {site: fit.posterior.mean(site) for site in fit.model.families}
        return normalise(_theta(fit, values), _beta(fit, values), totals)
    draws, best = _draws(fit.posterior)
    values = align.common_labels(fit.model, draws, {site: x[best] for site, x in draws.items()})[0]
    number = len(next(iter(values.values())))
    each = (
        {site: x[i] for site, x in values.items()} for i in range(number)
    )  # draws, a few hundred
    parts = (normalise(_theta(fit, one), _beta(fit, one), totals) for one in each)
    total = functools.reduce(lambda a, b: Topics(*map(np.add, a, b)), parts)
    return Topics(*(part / number for part in total))


def _draws(posterior: Any) -> tuple[dict[str, np.ndarray], int]:
    """Some draws of all chains, and which of them is the most probable."""
    length = posterior.sample_stats["lp"].size
    pick = np.unique(np.linspace(0, length - 1, min(length, MOST_DRAWS)).round().astype(int))
    draws = {site: x.reshape(-1, *x.shape[2:])[pick] for site, x in posterior.draws.items()}
    return draws, int(np.argmax(posterior.sample_stats["lp"].reshape(-1)[pick]))


def _data(fit: Any) -> Data:
    if fit.data is None:
        raise InputError(
            "This fit was loaded without its data, which tell the rows' lengths and the words' names: pass data= to inference.load."
        )
    return fit.data


def names(given: Sequence[str] | None, size: int) -> Sequence[Any]:
    """Of words or documents: as given with the data, or their indices."""
    return range(size) if given is None else given


def largest(topics: np.ndarray, num_words: int) -> np.ndarray:
    """(K, num_words) columns of the largest entries of each topic, largest first; of equal ones the first."""
    return np.argsort(-topics, axis=-1, kind="stable")[..., :num_words]


def top_words(fit: Any, num_words: int = 10) -> list[list[tuple[Any, float]]]:
    """For each topic its most probable words, each with its probability. Words without names are column indices."""
    check_count("num_words", num_words)
    return _top_words(fit, topics(fit), num_words)


def _top_words(fit: Any, found: Topics, num_words: int) -> list[list[tuple[Any, float]]]:
    words = names(fit.data.column_names, fit.data.num_columns)
    return [
        [(words[v], float(topic[v])) for v in best]
        for topic, best in zip(found.topics, largest(found.topics, num_words), strict=True)
    ]


def representative_documents(fit: Any, topic: int, num: int = 5) -> list[tuple[Any, float]]:
    """The documents with the largest proportion of a topic, each with that proportion; of equal ones the longest. Empty documents are left out."""
    check_count("num", num)
    found, data = topics(fit), _data(fit)
    if (
        isinstance(topic, bool)
        or not isinstance(topic, int | np.integer)
        or not 0 <= topic < len(found.topics)
    ):
        raise InputError(
            f"There is no topic {topic!r}: topics are counted from 0 to {len(found.topics) - 1}."
        )
    share = found.proportions[:, topic]
    rows = np.flatnonzero(data.totals > 0)
    best = rows[np.lexsort((-data.totals[rows], -share[rows]))][:num]
    titles = names(data.row_names, data.num_rows)
    return [(titles[d], float(share[d])) for d in best]


def prevalence(fit: Any) -> np.ndarray:
    """(K,) expected share of the tokens that belong to each topic."""
    return topics(fit).prevalence


def format_topics(fit: Any, num_words: int = 10) -> str:
    """A table for terminals: the topics, the most prevalent first, with their share of the tokens and their most probable words.

    >>> import inference, pp_models
    >>> X = [[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 6, 2], [0, 1, 3, 4]]
    >>> fit = inference.fit("lda", pp_models.data.counts(X, ["cat", "dog", "tax", "vote"]), hyper={"num_topics": 2})
    >>> print(inference.format_topics(fit, num_words=2))
    topic  share  words
        1  53.2%  tax vote
        0  46.8%  dog cat
    """
    check_count("num_words", num_words)
    found = topics(fit)
    words = _top_words(fit, found, num_words)
    lines = ["topic  share  words"]
    for k in np.argsort(-found.prevalence, kind="stable"):
        lines.append(
            f"{k:5d} {found.prevalence[k]:6.1%}  {' '.join(str(word) for word, _ in words[k])}"
        )
    return "\n".join(lines)
