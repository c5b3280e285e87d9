"""Labels of the compared numbers."""

from typing import Any

import numpy as np

from inference.io import arviz
from pp_models.data.types import Data
from pp_models.model import Model


def labels(
    model: Model, site: str, shape: tuple[int, ...], picked: np.ndarray | None, data: Data
) -> list[str]:
    """Labels such as beta[2, pasta], by names or counted from 1. picked: None for all places."""
    places = np.arange(int(np.prod(shape))) if picked is None else picked
    if not shape or shape == (1,):
        return [site] * len(places)
    sizes = data.num_rows, data.num_columns
    names: dict[str, Any] = {"row": data.row_names, arviz.COLUMNS: data.column_names}
    axes = []
    for dimension, size in zip(
        arviz.site_dimensions(model, site, shape, sizes), shape, strict=True
    ):
        known = names.get(dimension)
        axes.append(known if known is not None and len(known) == size else range(1, size + 1))
    indices = zip(*np.unravel_index(places, shape), strict=True)
    return [
        f"{site}[{', '.join(str(axis[i]) for i, axis in zip(index, axes, strict=True))}]"
        for index in indices
    ]


def label_of_entry(fit: Any, entry: int) -> str:
    """An entry of the expected data by its row and column."""
    data, names = fit.data, fit.data.column_names
    votes = data.kind == "text_and_votes" and fit.model.observed == "votes"
    width = data.num_members if votes else data.num_columns
    row, column = divmod(int(entry), width)
    word = names[column] if names is not None and len(names) == width else str(column + 1)
    return f"expected data[{row + 1}, {word}]"
