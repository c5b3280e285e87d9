r"""Topics of a posterior, the components of a mixture, and the ranking of their words.

The data depend on the product $\theta \beta$ alone, so topics are normalised (Columbia lectures,
C18, step 3): with $a_k = \sum_v \beta_{kv}$,

$$ \mathrm{topic}_{kv} = \beta_{kv} / a_k, \quad \mathrm{weight}_{dk} = \theta_{dk} a_k, \quad
   \mathrm{proportion}_{dk} = \mathrm{weight}_{dk} \Big/ \sum_j \mathrm{weight}_{dj}. $$

The prevalence of a topic is its share of all tokens, the mean proportion weighted by the rows'
lengths. Distributions and points are read at their means. Draws of a Markov chain are relabelled
first (`core.align`), and their normalised quantities are averaged.

The words of a topic are ranked by their probability, or by their relevance (Sievert & Shirley 2014)

$$ \lambda \log p(w \mid k) + (1 - \lambda) \log \frac{p(w \mid k)}{p(w)}, \quad
   p(w) = \sum_k p(k) \, p(w \mid k), $$

which moves words that all topics use to the back. The lift is the relevance at $\lambda = 0$.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import align
from inference.core import objective as obj
from inference.core.completion import topics_of
from pp_models.errors import InputError, unknown
from pp_models.model import Model, check_count, value_shapes

MOST_DRAWS = 200  # of a Markov chain, evenly spaced
RANKS = ("probability", "relevance", "lift")


class Topics(NamedTuple):
    """topics: (K, columns), rows sum to one. weights: (rows, K), weights @ topics = theta @ beta.
    proportions: (rows, K), rows sum to one. prevalence: (K,), sums to one."""

    topics: np.ndarray
    weights: np.ndarray
    proportions: np.ndarray
    prevalence: np.ndarray


class Parts(NamedTuple):
    """What the rows of the data are made of.

    word: "topic" or "component". columns: (K, columns) distributions over words, or the expected
    row of each component. share: (K,) of all tokens or rows, which sum to one; nan if unknown
    """

    word: str
    columns: np.ndarray
    share: np.ndarray


def normalise(theta: Any, beta: Any, totals: np.ndarray) -> Topics:
    """C18, step 3. Topics and rows that are all zero become uniform."""
    theta, beta = np.asarray(theta, np.float64), np.asarray(beta, np.float64)
    weights = theta * beta.sum(-1)
    proportions = shares(weights)
    return Topics(shares(beta), weights, proportions, shares(totals @ proportions))


def shares(x: np.ndarray) -> np.ndarray:
    """Rows that sum to one; rows of zeros become uniform."""
    total = x.sum(-1, keepdims=True)
    return np.where(total > 0, x / np.where(total > 0, total, 1), 1 / x.shape[-1])


def declared_topics(model: Model) -> Any:
    """The declared weights and topics of a model that has them."""
    found = topics_of(model)
    if found is None:
        raise InputError(f"Model {model.name!r} has no topics: use a model with topics.")
    return found


def topics_of_posterior(problem: obj.Problem, posterior: Any, totals: np.ndarray) -> Topics:
    """Normalised topics and proportions of rows with these totals."""
    declared, hyper = declared_topics(problem.model), problem.hyper

    def at(values: dict[str, Any]) -> Topics:
        weights, topics = declared.weights(hyper, values), declared.topics(hyper, values)
        return normalise(weights, topics, totals)

    return Topics(*_over_labels(problem, posterior, at, posterior.sites))


def word_distributions(problem: obj.Problem, posterior: Any) -> np.ndarray:
    """(K, columns) normalised topics, for which the rows need not be known."""
    declared, hyper = declared_topics(problem.model), problem.hyper

    def at(values: dict[str, Any]) -> tuple[np.ndarray]:
        return (shares(np.asarray(declared.topics(hyper, values), np.float64)),)

    return _over_labels(problem, posterior, at, list(problem.model.shared))[0]


def _over_labels(
    problem: obj.Problem, posterior: Any, at: Callable[..., Any], sites: list[str]
) -> tuple[Any, ...]:
    """`at` the posterior's mean or, of chains, averaged over draws with common labels."""
    if not posterior.has_chains:
        return tuple(at({site: posterior.mean(site) for site in sites}))
    values = labelled_draws(problem.model, posterior, sites)
    number = len(values[sites[0]])
    each = (at({site: x[i] for site, x in values.items()}) for i in range(number))
    total = functools.reduce(lambda a, b: tuple(map(np.add, a, b)), each)
    return tuple(part / number for part in total)


def labelled_draws(model: Model, posterior: Any, sites: list[str]) -> dict[str, np.ndarray]:
    """Evenly spaced draws of chains, (draws, ...), with the labels of the most probable of them.

    sites: the global sites, which decide on labels, or more.
    """
    lp = posterior.sample_stats["lp"].reshape(-1)
    pick = np.unique(np.linspace(0, lp.size - 1, min(lp.size, MOST_DRAWS)).round().astype(int))
    draws = {site: posterior.flat(site)[pick] for site in sites}
    most_probable = {site: x[np.argmax(lp[pick])] for site, x in draws.items()}
    return align.common_labels(model, draws, most_probable)[0]


# Components of a mixture ----------------------------------------------------------------------


@functools.cache
def mixture_weights(model: Model) -> str | None:
    """The site that holds the weights of a mixture's components: the one Dirichlet vector of a
    model whose rows have no sites of their own."""
    if model.local:
        return None
    shapes = value_shapes(model, *model.example(jax.random.key(0)))
    vectors = [
        site
        for site in model.shared
        if model.families[site].name == "dirichlet" and len(shapes[site]) == 1
    ]
    return vectors[0] if len(vectors) == 1 else None


def parts_of(problem: obj.Problem, posterior: Any, totals: np.ndarray | None) -> Parts:
    """The topics or components of a posterior.

    totals: of the rows; without them, or if the rows' weights would have to be solved for without
    the data, the topics' shares are not known
    """
    model, hyper = problem.model, problem.hyper
    if topics_of(model) is not None:
        solved = problem.data is not None or set(posterior.at_hand) >= set(posterior.sites)
        if totals is not None and solved:
            found = topics_of_posterior(problem, posterior, totals)
            return Parts("topic", found.topics, found.prevalence)
        words = word_distributions(problem, posterior)
        return Parts("topic", words, np.full(len(words), np.nan))
    if (site := mixture_weights(model)) is None:
        raise InputError(
            f"Model {model.name!r} has no topics or components that could be listed: its factors "
            "are in fit.posterior, and those of rows in fit.transform."
        )

    def at(values: dict[str, Any]) -> tuple[np.ndarray, ...]:
        def expected(weights: jax.Array) -> jax.Array:
            return model.predict(hyper, {**values, site: weights})[0]

        pi = np.asarray(values[site], np.float64)
        return np.asarray(jax.vmap(expected)(jnp.eye(len(pi))), np.float64), pi

    return Parts("component", *_over_labels(problem, posterior, at, list(model.shared)))


# Ranking --------------------------------------------------------------------------------------


def largest(values: np.ndarray, number: int) -> np.ndarray:
    """(K, number) columns with the largest entries of each row, largest first."""
    return np.argsort(-values, axis=-1, kind="stable")[..., :number]


def check_ranking(rank: Any, relevance: Any) -> None:
    """Refuse a ranking that there is not."""
    if rank not in RANKS:
        raise unknown("ranking of words", str(rank), RANKS)
    number = isinstance(relevance, int | float) and not isinstance(relevance, bool)
    if not number or not 0 <= relevance <= 1:
        raise InputError(f"relevance must be a number from 0 to 1, not {relevance!r}.")


def ranked(parts: Parts, number: int, rank: str = "probability", relevance: float = 0.6) -> Any:
    """(K, number) columns of each topic or component, the first in rank first."""
    check_count("num_words", number)
    check_ranking(rank, relevance)
    if rank == "probability":
        return largest(parts.columns, number)
    weight = relevance if rank == "relevance" else 0.0
    return largest(_relevance(parts, weight), number)


def _relevance(parts: Parts, weight: float) -> np.ndarray:
    if np.isnan(parts.share).any():
        raise InputError(
            "Relevance and lift compare topics by their shares of the tokens, and this fit was "
            "stored without the rows' weights: pass data= to pp_models.load_fit."
        )
    if (parts.columns < 0).any():
        raise InputError(
            "Relevance and lift are of probabilities, and the components have negative means: "
            'use rank="probability".'
        )
    margin = parts.share @ parts.columns
    known = parts.columns > 0
    log_p = np.log(np.where(known, parts.columns, 1))
    log_margin = np.log(np.where(known, np.broadcast_to(margin, known.shape), 1))
    return np.where(known, log_p - (1 - weight) * log_margin, -np.inf)


def by_share(parts: Parts) -> np.ndarray:
    """The numbers of topics, most prevalent first; in their own order if shares are unknown."""
    return np.argsort(-np.nan_to_num(parts.share), kind="stable")
