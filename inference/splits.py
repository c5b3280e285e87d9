"""What is held out: rows, or a part of each row that its own contents decide, so that neither the order of rows nor batches or padding matter.

A row's contents and a seed give a 64-bit number, and that number with a column and an occurrence another one, by which the row's tokens are put in
order. Dealt out in that order they make parts whose sizes differ by one at most. Two rows that are alike are split alike.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from inference.ratings import split_ratings
from pp_models.data import Data
from pp_models.errors import InputError


def _mix(x: Any) -> np.ndarray:
    """64-bit numbers whose every bit depends on every bit of the given ones (the finaliser of Steele, Lea & Flood's SplitMix)."""
    x = np.asarray(x).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _rows(matrix: Any) -> np.ndarray:
    """The row of each entry."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def fingerprints(matrix: Any, seed: int) -> np.ndarray:
    """(rows,) 64-bit numbers that depend on a row's counts and the seed, and on nothing else: not even on how its entries are ordered."""
    with np.errstate(over="ignore"):
        terms = np.where(matrix.data > 0, _mix(_mix(matrix.indices) + matrix.data.astype(np.uint64)), np.uint64(0))
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        return _mix(running[matrix.indptr[1:]] - running[matrix.indptr[:-1]] + _mix(np.array([seed], np.int64).view(np.uint64)))


class Tokens(NamedTuple):
    """The tokens of a corpus, row after row, in the order that each row's fingerprint gives. entry: of the matrix. place: within the row."""

    entry: np.ndarray
    place: np.ndarray


def shuffled_tokens(matrix: Any, seed: int, counts: np.ndarray | None = None) -> Tokens:
    """Every token once. counts: in place of the matrix's own; ones make whole entries the tokens."""
    counts = matrix.data.astype(np.int64) if counts is None else counts
    entry = np.repeat(np.arange(len(counts)), counts)
    occurrence = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
    row = _rows(matrix)[entry]
    with np.errstate(over="ignore"):
        number = _mix(_mix(fingerprints(matrix, seed)[row] + _mix(matrix.indices)[entry]) + occurrence.astype(np.uint64))
    order = np.lexsort((number, row))
    first = np.searchsorted(row, np.arange(matrix.shape[0]))  # rows stand in order before and after
    return Tokens(entry[order], np.arange(len(entry)) - first[row])


def split_tokens(data: Data, folds: int, seed: int = 0) -> list[tuple[Any, Any]]:
    """For each fold, the corpus without that fold's tokens, and those tokens: every token is in one fold, and documents are split evenly."""
    matrix = data.matrix
    tokens = shuffled_tokens(matrix, seed)
    share = np.bincount(tokens.entry * folds + tokens.place % folds, minlength=matrix.nnz * folds).reshape(matrix.nnz, folds)
    return [(_part(matrix, matrix.data - share[:, fold]), _part(matrix, share[:, fold])) for fold in range(folds)]


def _part(matrix: Any, values: np.ndarray) -> Any:
    """The same rows with other values, zeros left out."""
    kept = values > 0
    indptr = np.concatenate([[0], np.cumsum(kept)])[matrix.indptr]
    return scipy.sparse.csr_array((values[kept].astype(np.float32), matrix.indices[kept], indptr), shape=matrix.shape)


def split_columns(data: Data, share: float = 0.2, seed: int = 0) -> tuple[Data, Data]:
    """Each row's columns, whatever their counts, split into those to see and those to predict: of n columns share * n, rounded, at most n - 1."""
    if not 0 < share < 1:
        raise InputError(f"share must be between 0 and 1, not {share}: some columns must be seen and some predicted.")
    matrix = data.matrix
    tokens, lengths = shuffled_tokens(matrix, seed, (matrix.data > 0).astype(np.int64)), np.diff(matrix.indptr)
    size = np.minimum(np.round(share * lengths), np.maximum(lengths - 1, 0))
    held = np.zeros(matrix.nnz, bool)
    held[tokens.entry[tokens.place < size[_rows(matrix)[tokens.entry]]]] = True
    parts = (_part(matrix, np.where(chosen, matrix.data, 0)) for chosen in (~held, held))
    seen, hidden = (Data("counts", matrix=part, column_names=data.column_names, row_names=data.row_names) for part in parts)
    return seen, hidden


class Split(NamedTuple):
    """Rows to fit, rows to score on, and where the former stand in the data."""

    training: Data
    heldout: Data
    kept: np.ndarray


def hold_out(data: Data, share: float = 0.1, seed: Any = 0) -> Split:
    """Rows split at random into training and held-out ones, at least one of each. Of ratings, entries: a user without any cannot be predicted."""
    if data.kind == "ratings":
        return Split(*split_ratings(data, share, seed), np.arange(data.num_rows))
    if data.num_rows < 2:
        raise InputError("Holding out rows needs at least two of them.")
    order = np.random.default_rng(seed).permutation(data.num_rows)
    size = min(max(1, round(share * data.num_rows)), data.num_rows - 1)
    kept = np.sort(order[size:])
    return Split(data.select(kept), data.select(np.sort(order[:size])), kept)
