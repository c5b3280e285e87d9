"""How much the most probable words of topics belong together in a reference corpus, and how much topics differ.

p(v) is the share of the reference's documents that have word v, p(v, w) of those that have both:

    npmi(v, w) = log(p(v, w) / (p(v) p(w))) / -log p(v, w),        -1 where the two never meet, 0 where both are in every document.

"npmi"  the mean over pairs of a topic's top words (Bouma 2009; Aletras & Stevenson 2013)
"c_v"   each top word's vector of npmi with all top words, itself (1) included, is compared with the sum of these vectors: the mean of the cosines
        (Roeder et al. 2015, their C_v, but with whole documents in place of windows of 110 words, which counts do not have)
"""

from typing import Any

import numpy as np

from inference.evaluation.scores import Measure, check_vocabulary, mean
from inference.evaluation.topics import largest, word_distributions
from pp_models.data.types import Data
from pp_models.errors import InputError, unknown
from pp_models.model import check_count

MEASURES = ("npmi", "c_v")


def _top(topics: Any, num_words: int) -> np.ndarray:
    """(K, num_words) columns of a fit's topics, or of (K, columns) weights."""
    check_count("num_words", num_words)
    found = word_distributions(topics) if hasattr(topics, "posterior") else np.asarray(topics)
    if found.ndim != 2 or not np.issubdtype(found.dtype, np.number):
        raise InputError(
            f"topics must be a fit, or an array (topics, words), not of shape {found.shape}."
        )
    if num_words > found.shape[1]:
        raise InputError(
            f"num_words is {num_words}, but there are only {found.shape[1]} words: ask for fewer."
        )
    return largest(found, num_words)


def pair_npmi(columns: np.ndarray, reference: Data) -> np.ndarray:
    """(words, words) npmi of these columns, one on the diagonal."""
    present = reference.matrix[:, columns].astype(bool).astype(np.float64)
    together = (present.T @ present).toarray() / reference.num_rows
    alone = np.diagonal(together)
    met = together > 0
    joint = np.where(met, together, 1)
    ratio = np.log(joint / np.where(met, alone[:, None] * alone, 1))
    found = np.where(
        met, np.where(joint < 1, ratio / -np.log(np.where(joint < 1, joint, 0.5)), 0), -1
    )
    np.fill_diagonal(found, 1)
    return found


def _cosines(npmi: np.ndarray) -> np.ndarray:
    total = npmi.sum(0)
    return (
        npmi
        @ total
        / (np.linalg.norm(npmi, axis=1) * max(np.linalg.norm(total), np.finfo(float).tiny))
    )


def coherence(topics: Any, reference: Data, measure: str = "npmi", num_words: int = 10) -> Measure:
    """The mean over topics of how well their `num_words` most probable words go together in the reference corpus; its error over topics.

    topics: a fit with topics, or (topics, words) weights. measure: "npmi", from -1 to 1, or "c_v", from -1 to 1; see the module.
    """
    if measure not in MEASURES:
        raise unknown("measure", measure, MEASURES)
    if not isinstance(reference, Data) or reference.kind != "counts":
        raise InputError("The reference corpus must be counts, made with pp_models.data.counts.")
    if num_words == 1:
        raise InputError("num_words must be at least 2: coherence is about pairs of words.")
    if hasattr(topics, "posterior"):
        check_vocabulary(topics, reference)
    top = _top(topics, num_words)
    if not hasattr(topics, "posterior") and np.shape(topics)[1] != reference.num_columns:
        raise InputError(
            f"The topics have {np.shape(topics)[1]} words but the reference corpus {reference.num_columns}: use the same vocabulary."
        )
    words, place = np.unique(top, return_inverse=True)
    npmi, pairs = pair_npmi(words, reference), np.triu_indices(num_words, 1)
    each = [npmi[np.ix_(row, row)] for row in place.reshape(top.shape)]  # topics
    return mean(
        np.array([x[pairs].mean() if measure == "npmi" else _cosines(x).mean() for x in each])
    )


def diversity(topics: Any, num_words: int = 25) -> Measure:
    """The share of distinct words among the `num_words` most probable words of all topics: one where no two topics share any; its error over topics.

    A topic's term is the mean over its words of one over the number of topics that have the word.
    """
    top = _top(topics, num_words)
    _, place, owners = np.unique(top, return_inverse=True, return_counts=True)
    return mean((1 / owners)[place].reshape(top.shape).mean(1))
