"""Splits into a part to fit and a part to score: whole rows, or columns within each row."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from inference.core.tokens import rows_of_entries, shuffled_tokens, with_values
from inference.evaluation.ratings import split_ratings
from pp_models.data.types import Data
from pp_models.errors import InputError


def split_columns(data: Data, share: float = 0.2, seed: int = 0) -> tuple[Data, Data]:
    """Split each row's columns, whatever their counts, into observed and held-out ones.

    A row of n columns has share * n held out, rounded, and at most n - 1. The split depends on the
    row's contents and the seed alone (`core.tokens`).
    """
    if not 0 < share < 1:
        raise InputError(f"share must be between 0 and 1, not {share}.")
    matrix = data.matrix
    tokens = shuffled_tokens(matrix, seed, (matrix.data > 0).astype(np.int64))
    lengths = np.diff(matrix.indptr)
    size = np.minimum(np.round(share * lengths), np.maximum(lengths - 1, 0))
    held = np.zeros(matrix.nnz, bool)
    held[tokens.entry[tokens.place < size[rows_of_entries(matrix)[tokens.entry]]]] = True
    parts = (with_values(matrix, np.where(chosen, matrix.data, 0)) for chosen in (~held, held))
    observed, hidden = (dataclasses.replace(data, matrix=part) for part in parts)
    return observed, hidden


class Split(NamedTuple):
    """Rows to fit, rows to score, and the positions of the former in the data."""

    training: Data
    heldout: Data
    kept: np.ndarray


def hold_out(data: Data, share: float = 0.1, seed: Any = 0) -> Split:
    """Split rows at random into training and held-out ones, at least one of each.

    Ratings are split by entry, because a user without ratings cannot be predicted.
    """
    if data.kind == "ratings":
        return Split(*split_ratings(data, share, seed), np.arange(data.num_rows))
    if data.num_rows < 2:
        raise InputError("Holding out rows needs at least two of them.")
    order = np.random.default_rng(seed).permutation(data.num_rows)
    size = min(max(1, round(share * data.num_rows)), data.num_rows - 1)
    kept = np.sort(order[size:])
    return Split(data.select(kept), data.select(np.sort(order[:size])), kept)
