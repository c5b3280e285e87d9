"""Data in whatever form people have them, made into `Data`."""

from typing import Any

from pp_models.data.types import Data, counts, dense
from pp_models.errors import InputError


def as_data(value: Any, kind: str = "counts", columns: tuple[str, ...] | None = None) -> Data:
    """`Data` of this kind from what has one meaning; an error names the choice otherwise.

    kind:    what the model explains: counts, ratings, dense or text_and_votes
    columns: the column names of a fit, if rows are to be explained by it: texts are counted by
             exactly these words. Everything else keeps the names that it has
    """
    if isinstance(value, Data):
        return value
    if kind == "counts":
        return counts(value)
    if kind == "dense":
        return dense(value)
    raise InputError(f"{type(value).__name__} cannot be made into {kind}: pass pp_models.data.")
