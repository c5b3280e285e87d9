r"""Topics to read, for every model with weights of rows (rows, K) and topics (K, columns).

The data depend on the product $\theta \beta$ alone, so topics are normalised (Columbia lectures,
C18, step 3): with $a_k = \sum_v \beta_{kv}$,

$$ \mathrm{topic}_{kv} = \beta_{kv} / a_k, \quad \mathrm{weight}_{dk} = \theta_{dk} a_k, \quad
   \mathrm{proportion}_{dk} = \mathrm{weight}_{dk} \Big/ \sum_j \mathrm{weight}_{dj}. $$

The prevalence of a topic is its share of all tokens, the mean proportion weighted by the rows'
lengths. Distributions and points are read at their means. Draws of a Markov chain are relabelled
first (`core.align`), and their normalised quantities are averaged.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from inference.core import align
from inference.core.completion import topics_of
from pp_models.data.types import Data
from pp_models.errors import InputError
from pp_models.model import check_count

MOST_DRAWS = 200  # of a Markov chain, evenly spaced


class Topics(NamedTuple):
    """topics: (K, columns), rows sum to one. weights: (rows, K), weights @ topics = theta @ beta.
    proportions: (rows, K), rows sum to one. prevalence: (K,), sums to one."""

    topics: np.ndarray
    weights: np.ndarray
    proportions: np.ndarray
    prevalence: np.ndarray


def normalise(theta: Any, beta: Any, totals: np.ndarray) -> Topics:
    """C18, step 3. Topics and rows that are all zero become uniform."""
    theta, beta = np.asarray(theta, np.float64), np.asarray(beta, np.float64)
    weights = theta * beta.sum(-1)
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
    return _topics(fit, _data(fit).totals)


def word_distributions(fit: Any) -> np.ndarray:
    """(K, columns) normalised topics, without need for the data."""
    declared, posterior = _declared(fit), fit.posterior
    if posterior.has_chains:
        return _topics(fit, np.ones(fit.provenance["rows"])).topics
    values = {site: posterior.mean(site) for site in fit.model.shared}
    return _shares(np.asarray(declared.topics(fit.problem.hyper, values), np.float64))


def _declared(fit: Any) -> Any:
    found = topics_of(fit.model)
    if found is None:
        raise InputError(f"Model {fit.model.name!r} has no topics: use a model with topics.")
    return found


def _topics(fit: Any, totals: np.ndarray) -> Topics:
    declared, hyper, posterior = _declared(fit), fit.problem.hyper, fit.posterior

    def at(values: dict[str, Any]) -> Topics:
        weights, topics = declared.weights(hyper, values), declared.topics(hyper, values)
        return normalise(weights, topics, totals)

    if not posterior.has_chains:
        return at({site: posterior.mean(site) for site in fit.model.families})
    lp = posterior.sample_stats["lp"].reshape(-1)
    pick = np.unique(np.linspace(0, lp.size - 1, min(lp.size, MOST_DRAWS)).round().astype(int))
    draws = {site: posterior.flat(site)[pick] for site in posterior.sites}
    most_probable = {site: x[np.argmax(lp[pick])] for site, x in draws.items()}
    values = align.common_labels(fit.model, draws, most_probable)[0]
    each = (at({site: x[i] for site, x in values.items()}) for i in range(len(pick)))
    total = functools.reduce(lambda a, b: Topics(*map(np.add, a, b)), each)
    return Topics(*(part / len(pick) for part in total))


def _data(fit: Any) -> Data:
    if fit.data is None:
        raise InputError("This fit was loaded without its data: pass data= to inference.load.")
    return fit.data


def _names(given: Sequence[str] | None, size: int) -> Sequence[Any]:
    """The names given with the data, or indices."""
    return range(size) if given is None else given


def largest(topics: np.ndarray, num_words: int) -> np.ndarray:
    """(K, num_words) columns with the largest entries of each topic, largest first."""
    return np.argsort(-topics, axis=-1, kind="stable")[..., :num_words]


def top_words(fit: Any, num_words: int = 10) -> list[list[tuple[Any, float]]]:
    """The most probable words of each topic with their probabilities.

    Words without names are column indices.
    """
    check_count("num_words", num_words)
    return _top_words(fit, topics(fit), num_words)


def _top_words(fit: Any, found: Topics, num_words: int) -> list[list[tuple[Any, float]]]:
    words, best = (
        _names(fit.data.column_names, fit.data.num_columns),
        largest(found.topics, num_words),
    )
    return [[(words[v], float(found.topics[k, v])) for v in top] for k, top in enumerate(best)]


def representative_documents(fit: Any, topic: int, num: int = 5) -> list[tuple[Any, float]]:
    """The documents with the largest proportions of a topic, and these proportions.

    Ties go to the longer document. Empty documents are left out.
    """
    check_count("num", num)
    found, data = topics(fit), _data(fit)
    check_index("topic", topic, len(found.topics))
    share = found.proportions[:, topic]
    rows = np.flatnonzero(data.totals > 0)
    best = rows[np.lexsort((-data.totals[rows], -share[rows]))][:num]
    titles = _names(data.row_names, data.num_rows)
    return [(titles[d], float(share[d])) for d in best]


def check_index(name: str, index: Any, size: int) -> None:
    """Refuse what is not one of the whole numbers 0 to size - 1."""
    whole = isinstance(index, int | np.integer) and not isinstance(index, bool)
    if not whole or not 0 <= index < size:
        raise InputError(f"{name} must be a whole number from 0 to {size - 1}, not {index!r}.")


def prevalence(fit: Any) -> np.ndarray:
    """(K,) expected share of the tokens that belong to each topic."""
    return topics(fit).prevalence


def format_topics(fit: Any, num_words: int = 10) -> str:
    """A table of topics, most prevalent first, with their share of tokens and top words.

    >>> import inference, pp_models
    >>> X = [[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 6, 2], [0, 1, 3, 4]]
    >>> data = pp_models.data.counts(X, ["cat", "dog", "tax", "vote"])
    >>> fit = inference.fit("lda", data, hyper={"num_topics": 2})
    >>> print(inference.format_topics(fit, num_words=2))
    topic  share  words
        1  53.2%  tax vote
        0  46.8%  dog cat
    """
    check_count("num_words", num_words)
    found = topics(fit)
    words = [" ".join(str(word) for word, _ in top) for top in _top_words(fit, found, num_words)]
    order = np.argsort(-found.prevalence, kind="stable")
    lines = [f"{k:5d} {found.prevalence[k]:6.1%}  {words[k]}" for k in order]
    return "\n".join(["topic  share  words", *lines])
