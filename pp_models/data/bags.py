"""Bags of words in Python's own types as matrices: those of gensim, Counters, lists of words."""

import collections
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from pp_models.errors import InputError

Names = tuple[str, ...] | None


def matrix_of(value: Any, dictionary: Any = None) -> tuple[Any, Names]:
    """The counts of bags of words, and the words; (value, None) if it is something else.

    A document is a list of pairs (number of a word, count), as gensim has them, a dict or Counter
    of counts by word, or a list of words.

    dictionary: names the numbers: a gensim Dictionary, or a dict of words by number
    """
    found = _documents(value)
    first = next((one for one in found if len(one)), None)
    if isinstance(first, Mapping):
        return _by_word([list(one.items()) for one in found])
    if _is_pair(first):
        return _by_number(found, dictionary)
    if first is not None and all(isinstance(word, str) for word in first):
        return _by_word([list(collections.Counter(one).items()) for one in found])
    return value, None


def of_pairs(value: Any) -> tuple[Any, Names]:
    """The same of lists of pairs and of Counters alone, not of lists of words."""
    first = next((one for one in _documents(value) if len(one)), None)
    return matrix_of(value) if isinstance(first, Mapping) or _is_pair(first) else (value, None)


def _documents(value: Any) -> Sequence[Any]:
    """The documents, if they may be bags of words; else nothing."""
    if isinstance(value, str | Mapping | np.ndarray) or scipy.sparse.issparse(value):
        return ()
    if not isinstance(value, list | tuple):
        streamed = isinstance(value, Iterable) and not hasattr(value, "shape")
        value = list(value) if streamed and not hasattr(value, "__array__") else ()
    return value if all(isinstance(one, list | tuple | Mapping) for one in value) else ()


def _is_pair(document: Any) -> bool:
    """Whether a document is a list of (number, count)."""
    first = document[0] if document is not None and not isinstance(document, Mapping) else None
    return isinstance(first, list | tuple) and len(first) == 2


def _by_number(documents: Any, dictionary: Any) -> tuple[Any, Names]:
    rows = np.repeat(np.arange(len(documents)), [len(one) for one in documents])
    pairs = list(itertools.chain.from_iterable(documents))
    bad = next((x for x in pairs if not isinstance(x, list | tuple) or len(x) != 2), None)
    if bad is not None:
        told = f"A bag of words is a list of pairs (number of the word, count), but one is {bad!r}"
        raise InputError(f"{told}: make it with dictionary.doc2bow.")
    try:
        numbers = np.array([number for number, _ in pairs])
        counts = np.array([count for _, count in pairs], np.float64)
        whole = numbers.dtype.kind in "iu"
    except (TypeError, ValueError):
        whole = False
    if not whole or numbers.min(initial=0) < 0:
        told = "The words of a bag of words are numbers from 0, and their counts numbers"
        raise InputError(f"{told}: make it with dictionary.doc2bow.")
    words = None if dictionary is None else _words(dictionary)
    size = int(numbers.max(initial=-1)) + 1
    if words is not None and size > len(words):
        told = f"The bag of words holds the word {size - 1}, but the dictionary {len(words)} words"
        raise InputError(f"{told}: pass the dictionary that made it.")
    shape = len(documents), size if words is None else len(words)
    matrix = scipy.sparse.coo_array((counts, (rows, numbers)), shape=shape)
    return matrix, words


def _words(dictionary: Any) -> tuple[str, ...]:
    """The words of a dictionary in the order of their numbers."""
    if hasattr(dictionary, "token2id"):
        dictionary = {number: word for word, number in dictionary.token2id.items()}
    if isinstance(dictionary, Mapping):
        numbers = list(dictionary)
        if not all(isinstance(n, int | np.integer) and n >= 0 for n in numbers):
            told = "A dictionary of a bag of words holds words by number"
            raise InputError(f"{told}: pass a gensim Dictionary, or {{0: 'word', ...}}.")
        size = max(numbers, default=-1) + 1
        return tuple(str(dictionary.get(n, n)) for n in range(size))
    return tuple(map(str, dictionary))


def _by_word(documents: Any) -> tuple[Any, Names]:
    """Counts of documents that are lists of (word, count); words are sorted."""
    known = sorted({word for one in documents for word, _ in one}, key=str)
    places = {word: place for place, word in enumerate(known)}
    rows = np.repeat(np.arange(len(documents)), [len(one) for one in documents])
    numbers = np.array([places[word] for one in documents for word, _ in one], np.int64)
    try:
        counts = np.array([count for one in documents for _, count in one], np.float64)
    except (TypeError, ValueError) as error:
        told = f"The counts of words must be numbers ({str(error).splitlines()[0]})"
        raise InputError(f"{told}: pass a dict of word and count for each document.") from error
    matrix = scipy.sparse.coo_array((counts, (rows, numbers)), shape=(len(documents), len(known)))
    return matrix, tuple(map(str, known))


def pick(matrix: Any, names: Sequence[str], columns: tuple[str, ...]) -> tuple[Any, Names]:
    """The columns of these names, in this order; zeros for a name that is not there."""
    places = {name: place for place, name in reversed(list(enumerate(columns)))}
    to = np.array([places.get(name, -1) for name in names], np.int64)
    entries = scipy.sparse.coo_array(matrix)
    rows, old = entries.coords
    kept = to[old] >= 0 if len(to) else np.zeros(0, bool)
    parts = entries.data[kept], (rows[kept], to[old[kept]])
    return scipy.sparse.coo_array(parts, shape=(entries.shape[0], len(columns))), columns
