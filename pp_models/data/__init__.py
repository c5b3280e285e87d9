"""Data that models are fitted to: `counts`, `ratings`, `dense` and `text_and_votes` make them."""

from pp_models.data.batches import Batch, Entries
from pp_models.data.rows import Data
from pp_models.data.types import (
    counts,
    dense,
    of_equal_length,
    ratings,
    text_and_votes,
    tf_idf,
    with_votes,
)

__all__ = ["Batch", "Data", "Entries", "counts", "dense", "of_equal_length", "ratings"]
__all__ += ["text_and_votes", "tf_idf", "with_votes"]
