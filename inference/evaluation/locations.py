"""Correlations of topics and neighbours of documents, for models with correlated topics.

Topics and documents either have locations in a common space, known up to a rotation (`Rotation`),
or topics have a precision matrix. Everything here is made of inner products, which do not depend
on the rotation. Draws of a Markov chain may each be rotated differently, so only distributions and
point estimates are supported.
"""

from typing import Any

import numpy as np

from inference.core.optional import load_matplotlib
from inference.evaluation.topics import check_index, prevalence
from pp_models import families as fam
from pp_models.errors import InputError
from pp_models.model import check_count

COLOURS = {True: "tab:green", False: "tab:red"}  # positive, negative (P Fig. 11.4)


def _mean(fit: Any, site: str) -> np.ndarray:
    if fit.posterior.has_chains:
        raise InputError(
            f"Engine {fit.engine!r} gives draws, each with labels and a rotation of its own: use a "
            "variational engine or map."
        )
    return np.asarray(fit.posterior.mean(site), np.float64)


def _directions(fit: Any, which: int) -> np.ndarray:
    """Unit vectors to the locations of topics (0) or documents (1)."""
    sites = fit.model.rotation.sites
    if fit.model.topics is None or not sites:
        told = f"Model {fit.model.name!r} has no locations of topics and documents"
        raise InputError(f"{told}: use a model that has.")
    return _unit(_mean(fit, sites[which]))


def _unit(x: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(length > 0, length, 1)


def topic_correlations(fit: Any) -> np.ndarray:
    """(K, K) correlations of topics.

    They are the cosines of the topics' locations (P 11.36), or the correlations of the inverse of
    the mean precision. `fit` may be an array of locations (K, m).
    """
    if isinstance(fit, np.ndarray):
        unit = _unit(np.asarray(fit, np.float64))
        return unit @ unit.T
    families = fit.model.families
    precision = [site for site in families if families[site] is fam.wishart]
    if not precision:
        unit = _directions(fit, 0)
        return unit @ unit.T
    covariance = np.linalg.inv(_mean(fit, precision[0]))
    size = np.sqrt(np.diag(covariance))
    return covariance / np.outer(size, size)


def correlation_figure(fit: Any, num_topics: int = 40) -> Any:
    """Correlations of the most prevalent topics as in P Fig. 11.4.

    Each pair is a block, green if positive and red if negative, whose area is the correlation.
    """
    matplotlib = load_matplotlib()
    check_count("num_topics", num_topics)
    top = np.argsort(-prevalence(fit))[:num_topics]
    size = len(top)
    figure = matplotlib.figure.Figure(figsize=(1.5 + 0.17 * size, 1.5 + 0.17 * size))
    axes = figure.subplots()
    for (i, j), value in np.ndenumerate(topic_correlations(fit)[np.ix_(top, top)]):
        side = np.sqrt(abs(value))
        corner, colour = (j - side / 2, i - side / 2), COLOURS[bool(value > 0)]
        axes.add_patch(matplotlib.patches.Rectangle(corner, side, side, color=colour, linewidth=0))
    axes.set(xlim=(-0.6, size - 0.4), ylim=(size - 0.4, -0.6), aspect="equal")
    title = "Correlations of topics (area: size; green: positive, red: negative)"
    axes.set_title(title, fontsize=7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(range(size), [str(k) for k in top], fontsize=6)
    axes.tick_params(axis="x", rotation=90)
    return figure


def nearest_documents(fit: Any, query_row: int, num: int = 10) -> np.ndarray:
    """The `num` rows nearest to the query's, nearest first, without the query itself.

    Nearness is the cosine of the documents' mean locations, as P(11.36) has it for topics: the
    direction says what a document is about, the length how purely.
    """
    places = _directions(fit, 1)
    check_index("query_row", query_row, len(places))
    check_count("num", num)
    nearness = places @ places[query_row]
    nearness[query_row] = -np.inf
    return np.argsort(-nearness, kind="stable")[: min(num, len(places) - 1)]
