"""Tokens of documents in a random order that depends on the document alone.

A row's contents and a seed give a 64-bit hash. With a column and an occurrence it gives another
hash, by which the row's tokens are sorted. Folds dealt out in that order differ in size by one at
most. Neither the order of rows nor batches or padding matter, and equal rows are split alike.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from pp_models.data.types import Data


def _mix(x: Any) -> np.ndarray:
    """Hash of 64-bit numbers: the finaliser of SplitMix (Steele, Lea & Flood)."""
    x = np.asarray(x).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def rows_of_entries(matrix: Any) -> np.ndarray:
    """The row of each entry."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def fingerprints(matrix: Any, seed: int) -> np.ndarray:
    """(rows,) hashes of the rows' counts and the seed, whatever the order of the entries."""
    with np.errstate(over="ignore"):
        terms = _mix(_mix(matrix.indices) + matrix.data.astype(np.uint64))
        terms = np.where(matrix.data > 0, terms, np.uint64(0))
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        sums = running[matrix.indptr[1:]] - running[matrix.indptr[:-1]]
        return _mix(sums + _mix(np.array([seed], np.int64).view(np.uint64)))


class Tokens(NamedTuple):
    """The tokens of a corpus, row after row, shuffled within rows.

    entry: the entry of the matrix. place: the position within the row.
    """

    entry: np.ndarray
    place: np.ndarray


def shuffled_tokens(matrix: Any, seed: int, counts: np.ndarray | None = None) -> Tokens:
    """Every token once. counts: default the matrix's own; with ones the tokens are entries."""
    counts = matrix.data.astype(np.int64) if counts is None else counts
    entry = np.repeat(np.arange(len(counts)), counts)
    occurrence = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
    row = rows_of_entries(matrix)[entry]
    with np.errstate(over="ignore"):
        word = _mix(fingerprints(matrix, seed)[row] + _mix(matrix.indices)[entry])
        number = _mix(word + occurrence.astype(np.uint64))
    order = np.lexsort((number, row))
    first = np.searchsorted(row, np.arange(matrix.shape[0]))  # rows stand in order before and after
    return Tokens(entry[order], np.arange(len(entry)) - first[row])


def split_tokens(data: Data, folds: int, seed: int = 0) -> list[tuple[Any, Any]]:
    """For each fold, the corpus without that fold's tokens, and those tokens."""
    matrix = data.matrix
    tokens = shuffled_tokens(matrix, seed)
    places = tokens.entry * folds + tokens.place % folds
    shares = np.bincount(places, minlength=matrix.nnz * folds).reshape(matrix.nnz, folds).T
    return [(with_values(matrix, matrix.data - x), with_values(matrix, x)) for x in shares]


def with_values(matrix: Any, values: np.ndarray) -> Any:
    """The same rows with other values, zeros left out."""
    kept = values > 0
    indptr = np.concatenate([[0], np.cumsum(kept)])[matrix.indptr]
    parts = values[kept].astype(np.float32), matrix.indices[kept], indptr
    return scipy.sparse.csr_array(parts, shape=matrix.shape)
