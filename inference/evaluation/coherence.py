r"""Coherence of topics' top words in a reference corpus, and diversity of topics.

With $p(v)$ the share of the reference's documents that contain word $v$ and $p(v, w)$ the share
that contain both,

$$ \mathrm{npmi}(v, w) = \log \frac{p(v, w)}{p(v) p(w)} \Big/ \big({-\log p(v, w)}\big), $$

-1 if the words never occur together and 0 if both are in every document.

- `"npmi"`: the mean over pairs of a topic's top words (Bouma 2009; Aletras & Stevenson 2013)
- `"c_v"`: the mean cosine between each top word's vector of npmi with all top words (1 with itself)
  and the sum of these vectors (Roeder et al. 2015, with whole documents in place of windows of 110
  words, which counts do not have)
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
    """(K, num_words) top columns of a fit's topics, or of (K, columns) weights."""
    check_count("num_words", num_words)
    found = word_distributions(topics) if hasattr(topics, "posterior") else np.asarray(topics)
    if found.ndim != 2 or not np.issubdtype(found.dtype, np.number):
        raise InputError(f"topics must be a fit or an array (topics, words), not {found.shape}.")
    if num_words > found.shape[1]:
        told = f"num_words is {num_words}, but there are only {found.shape[1]} words"
        raise InputError(f"{told}: ask for fewer.")
    return largest(found, num_words)


def _pair_npmi(columns: np.ndarray, reference: Data) -> np.ndarray:
    """(words, words) npmi of these columns, with ones on the diagonal."""
    present = reference.matrix[:, columns].astype(bool).astype(np.float64)
    together = (present.T @ present).toarray() / reference.num_rows
    alone, met = np.diagonal(together), together > 0
    joint = np.where(met, together, 1)
    ratio = np.log(joint / np.where(met, alone[:, None] * alone, 1))
    surprise = -np.log(np.where(joint < 1, joint, 0.5))
    found = np.where(met, np.where(joint < 1, ratio / surprise, 0), -1)
    np.fill_diagonal(found, 1)
    return found


def _cosines(npmi: np.ndarray) -> np.ndarray:
    total = npmi.sum(0)
    size = np.linalg.norm(npmi, axis=1) * max(np.linalg.norm(total), np.finfo(float).tiny)
    return npmi @ total / size


def coherence(topics: Any, reference: Data, measure: str = "npmi", num_words: int = 10) -> Measure:
    """Mean coherence of the topics' `num_words` most probable words, with its error over topics.

    topics:  a fit with topics, or (topics, words) weights
    measure: "npmi" or "c_v", both from -1 to 1; see the module
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
            f"The topics have {np.shape(topics)[1]} words but the reference corpus "
            f"{reference.num_columns}: use the same vocabulary."
        )
    words, place = np.unique(top, return_inverse=True)
    npmi, pairs = _pair_npmi(words, reference), np.triu_indices(num_words, 1)
    each = [npmi[np.ix_(row, row)] for row in place.reshape(top.shape)]
    terms = [x[pairs].mean() if measure == "npmi" else _cosines(x).mean() for x in each]
    return mean(np.array(terms))


def diversity(topics: Any, num_words: int = 25) -> Measure:
    """Share of distinct words among the topics' `num_words` most probable words.

    It is 1 if no two topics share a word. A topic's term is the mean over its words of one over
    the number of topics that have the word; the standard error is over topics.
    """
    top = _top(topics, num_words)
    _, place, owners = np.unique(top, return_inverse=True, return_counts=True)
    return mean((1 / owners)[place].reshape(top.shape).mean(1))
