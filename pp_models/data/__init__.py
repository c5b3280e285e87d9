"""Data that models are fitted to: `counts`, `ratings`, `dense` and `text_and_votes` make them."""

from pp_models.data.batches import Batch, Entries, batch_capacity
from pp_models.data.rows import row_sums
from pp_models.data.types import (
    Data,
    count_matrix,
    counts,
    dense,
    observed,
    of_equal_length,
    ratings,
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
