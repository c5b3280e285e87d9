"""Which topics go together, and which documents: models with correlated topics (correlated NMF, CTM).

Topics and documents of correlated NMF, and of CTM with prior="locations", have locations in one space; otherwise CTM has a covariance of topics.
Locations are known only up to a common rotation, so everything here is made of inner products and distances. Draws of a Markov chain may each be
rotated differently, and their mean lies nowhere: distributions and point estimates only.
"""

from typing import Any

import numpy as np

from inference.evaluation.topics import prevalence
from pp_models.errors import InputError
from pp_models.model import check_count

TOPICS, DOCUMENTS, PRECISION = (
    "ell",
    "u",
    "precision",
)  # the sites that hold locations, or the inverse of the topics' covariance
COLOURS = {True: "tab:green", False: "tab:red"}  # positive, negative (P Fig. 11.4)


def _location(fit: Any, site: str) -> np.ndarray:
    if site not in fit.model.families:
        raise InputError(
            f"Model {fit.model.name!r} has no locations {site!r}: fit one that has, such as correlated_nmf."
        )
    if fit.posterior.kind == "draws":
        raise InputError(
            f"Engine {fit.engine!r} gives draws, each with labels and a rotation of its own: use a variational engine or map."
        )
    return np.asarray(fit.posterior.mean(site), np.float64)


def _unit(x: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(length > 0, length, 1)


def topic_correlations(fit: Any) -> np.ndarray:
    """ell_i' ell_j / |ell_i| |ell_j| of every two topics (P 11.36), (K, K), or C_ij / sqrt(C_ii C_jj) with C the inverse of the mean precision.

    `fit` may be an array of locations (K, m).
    """
    if not isinstance(fit, np.ndarray) and PRECISION in fit.model.families:
        covariance = np.linalg.inv(_location(fit, PRECISION))
        size = np.sqrt(np.diag(covariance))
        return covariance / np.outer(size, size)
    unit = _unit(
        np.asarray(fit, np.float64) if isinstance(fit, np.ndarray) else _location(fit, TOPICS)
    )
    return unit @ unit.T


def correlation_figure(fit: Any, num_topics: int = 40) -> Any:
    """Correlations of the most prevalent topics in the manner of P Fig. 11.4: a block per pair, green or red, the larger the stronger."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    check_count("num_topics", num_topics)
    top = np.argsort(-prevalence(fit))[:num_topics]
    shown = topic_correlations(fit)[np.ix_(top, top)]
    size = len(top)
    figure = Figure(figsize=(1.5 + 0.17 * size, 1.5 + 0.17 * size))
    axes = figure.subplots()
    for (i, j), value in np.ndenumerate(shown):
        side = np.sqrt(abs(value))  # a block's area is the correlation
        axes.add_patch(
            Rectangle(
                (j - side / 2, i - side / 2),
                side,
                side,
                color=COLOURS[bool(value > 0)],
                linewidth=0,
            )
        )
    axes.set(xlim=(-0.6, size - 0.4), ylim=(size - 0.4, -0.6), aspect="equal")
    axes.set_title(
        "Correlations of topics (area: size; green: positive, red: negative)", fontsize=7
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(range(size), [str(k) for k in top], fontsize=6)
    axes.tick_params(axis="x", rotation=90)
    return figure


def nearest_documents(fit: Any, query_row: int, num: int = 10) -> np.ndarray:
    """The `num` rows whose documents lie nearest to the query's, nearest first, the query itself left out.

    Nearness is the cosine of E[u_d], as P(11.36) has it for topics: the direction says what a document is about, the length how purely.
    """
    places = _unit(_location(fit, DOCUMENTS))
    if (
        isinstance(query_row, bool)
        or not isinstance(query_row, int | np.integer)
        or not 0 <= query_row < len(places)
    ):
        raise InputError(
            f"query_row must be one of the rows 0 to {len(places) - 1}, not {query_row!r}."
        )
    check_count("num", num)
    nearness = places @ places[query_row]
    nearness[query_row] = -np.inf
    return np.argsort(-nearness, kind="stable")[: min(num, len(places) - 1)]
