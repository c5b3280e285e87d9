"""Data that models are fitted to: `counts`, `ratings`, `dense` and `text_and_votes` make them.

`as_data` converts what has one meaning, and `from_table` takes the columns of a table by name.
"""

from pp_models.data.batches import Batch, Entries
from pp_models.data.coerce import as_data, from_table
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

__all__ = ["Batch", "Data", "Entries", "as_data", "counts", "dense", "from_table"]
__all__ += ["of_equal_length", "ratings", "text_and_votes", "tf_idf", "with_votes"]
