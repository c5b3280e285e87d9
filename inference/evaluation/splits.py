"""What is held out: rows, or a part of each row that its own contents decide, so that neither the order of rows nor batches or padding matter.

A row's contents and a seed give a 64-bit number, and that number with a column and an occurrence another one, by which the row's tokens are put in
order. Dealt out in that order they make parts whose sizes differ by one at most. Two rows that are alike are split alike.
"""

from typing import Any, NamedTuple

import numpy as np

from inference.core.tokens import (
    fingerprints,
    rows_of_entries,
    shuffled_tokens,
    split_tokens,
    with_values,
)
from inference.evaluation.ratings import split_ratings
from pp_models.data.types import Data
from pp_models.errors import InputError

__all__ = ["Split", "fingerprints", "hold_out", "shuffled_tokens", "split_columns", "split_tokens"]


def split_columns(data: Data, share: float = 0.2, seed: int = 0) -> tuple[Data, Data]:
    """Each row's columns, whatever their counts, split into those to see and those to predict: of n columns share * n, rounded, at most n - 1."""
    if not 0 < share < 1:
        raise InputError(
            f"share must be between 0 and 1, not {share}: some columns must be seen and some predicted."
        )
    matrix = data.matrix
    tokens, lengths = (
        shuffled_tokens(matrix, seed, (matrix.data > 0).astype(np.int64)),
        np.diff(matrix.indptr),
    )
    size = np.minimum(np.round(share * lengths), np.maximum(lengths - 1, 0))
    held = np.zeros(matrix.nnz, bool)
    held[tokens.entry[tokens.place < size[rows_of_entries(matrix)[tokens.entry]]]] = True
    parts = (with_values(matrix, np.where(chosen, matrix.data, 0)) for chosen in (~held, held))
    seen, hidden = (
        Data("counts", matrix=part, column_names=data.column_names, row_names=data.row_names)
        for part in parts
    )
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
