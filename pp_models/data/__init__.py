"""Data that models are fitted to: `counts`, `ratings`, `dense` and `text_and_votes` make them from arrays."""

from pp_models.data.batches import Batch, Entries
from pp_models.data.types import (
    Data,
    batch_capacity,
    count_matrix,
    counts,
    dense,
    observed,
    of_equal_length,
    ratings,
    row_sums,
    text_and_votes,
    tf_idf,
    with_votes,
)

__all__ = [
    "Batch",
    "Data",
    "Entries",
    "batch_capacity",
    "count_matrix",
    "counts",
    "dense",
    "observed",
    "of_equal_length",
    "ratings",
    "row_sums",
    "text_and_votes",
    "tf_idf",
    "with_votes",
]
