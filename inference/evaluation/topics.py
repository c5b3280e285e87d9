"""Topics to read, for every model with weights of rows (rows, K) and topics (K, columns).

`core.topics` says how they are normalised and ranked. A fit that was loaded without its data
answers too, if its rows' weights and totals were stored with it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from inference.core import topics as core
from inference.core.topics import Topics, largest, normalise
from pp_models.errors import InputError
from pp_models.model import check_count

__all__ = ["Topics", "check_index", "largest", "normalise", "topics", "word_distributions"]


def topics(fit: Any) -> Topics:
    """The normalised topics, the rows' weights and proportions, and the topics' prevalence.

    >>> import inference, pp_models
    >>> data = pp_models.data.counts([[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 6, 2], [0, 1, 3, 4]])
    >>> fit = inference.fit("lda", data, engine="cavi", hyper={"num_topics": 2})
    >>> found = inference.topics(fit)
    >>> found.topics.shape, found.proportions.shape, float(found.prevalence.sum().round(6))
    ((2, 4), (4, 2), 1.0)
    """
    core.declared_topics(fit.model)
    return core.topics_of_posterior(fit.problem, fit.posterior, _totals(fit))


def word_distributions(fit: Any) -> np.ndarray:
    """(K, columns) normalised topics, without need for the data."""
    return core.word_distributions(fit.problem, fit.posterior)


def _totals(fit: Any) -> np.ndarray:
    if (totals := fit.row_totals) is None:
        raise InputError("This fit was loaded without its data: pass data= to pp_models.load_fit.")
    return totals


def _names(given: Sequence[str] | None, size: int) -> Sequence[Any]:
    """The names given with the data, or indices."""
    return range(size) if given is None else given


def top_words(fit: Any, num_words: int = 10) -> list[list[tuple[Any, float]]]:
    """The most probable words of each topic with their probabilities.

    Words without names are column indices.
    """
    check_count("num_words", num_words)
    found = topics(fit).topics
    return _top(fit, found, largest(found, num_words))


def _words(fit: Any) -> Sequence[Any]:
    return _names(fit.column_names, fit.provenance["columns"])


def _top(fit: Any, found: np.ndarray, best: np.ndarray) -> list[list[tuple[Any, float]]]:
    words = _words(fit)
    return [[(words[v], float(found[k, v])) for v in top] for k, top in enumerate(best)]


def representative_documents(fit: Any, topic: int, num: int = 5) -> list[tuple[Any, float]]:
    """The documents with the largest proportions of a topic, and these proportions.

    Ties go to the longer document. Empty documents are left out.
    """
    check_count("num", num)
    found, totals = topics(fit), _totals(fit)
    check_index("topic", topic, len(found.topics))
    share = found.proportions[:, topic]
    rows = np.flatnonzero(totals > 0)
    best = rows[np.lexsort((-totals[rows], -share[rows]))][:num]
    titles = _names(fit.row_names, len(totals))
    return [(titles[d], float(share[d])) for d in best]


def check_index(name: str, index: Any, size: int) -> None:
    """Refuse what is not one of the whole numbers 0 to size - 1."""
    whole = isinstance(index, int | np.integer) and not isinstance(index, bool)
    if not whole or not 0 <= index < size:
        raise InputError(f"{name} must be a whole number from 0 to {size - 1}, not {index!r}.")


def prevalence(fit: Any) -> np.ndarray:
    """(K,) expected share of the tokens that belong to each topic."""
    return topics(fit).prevalence


def format_topics(
    fit: Any, num_words: int = 10, rank: str = "probability", relevance: float = 0.6
) -> str:
    """A table of topics, most prevalent first, with their share of tokens and top words.

    rank: "probability", "relevance" or "lift"; relevance: its weight lambda (`core.topics`)

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
    core.check_ranking(rank, relevance)
    found, words = topics(fit), _words(fit)
    parts = core.Parts("topic", found.topics, found.prevalence)
    best = core.ranked(parts, num_words, rank, relevance)
    lines = [
        f"{k:5d} {found.prevalence[k]:6.1%}  {' '.join(str(words[v]) for v in best[k])}"
        for k in core.by_share(parts)
    ]
    return "\n".join(["topic  share  words", *lines])
