"""Tables of a fit with names: pandas DataFrames where pandas is installed, else plain values."""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from inference.core import topics as core


class TopicRow(NamedTuple):
    """One topic or component: its number, its share of the tokens or rows, and its words."""

    topic: int
    share: float
    words: str


def load_pandas() -> Any:
    """pandas, or None where it is not installed."""
    try:
        return importlib.import_module("pandas")
    except ImportError:
        return None


def frame(values: np.ndarray, rows: Sequence[str] | None, columns: Sequence[str]) -> Any:
    """Values (rows, columns) with their names; the bare array without pandas."""
    pandas = load_pandas()
    index = None if rows is None else list(rows)
    return values if pandas is None else pandas.DataFrame(values, index, list(columns))


def numbered(word: str, number: int) -> list[str]:
    """Names of columns: "topic 0", "topic 1", ..."""
    return [f"{word} {k}" for k in range(number)]


def topic_rows(
    parts: core.Parts,
    names: Sequence[str] | None,
    num_words: int,
    rank: str = "probability",
    relevance: float = 0.6,
) -> list[TopicRow]:
    """A row for each topic or component, the largest first. Words without names are numbers."""
    best = core.ranked(parts, num_words, rank, relevance)
    words: Sequence[Any] = range(parts.columns.shape[1]) if names is None else names
    return [
        TopicRow(int(k), float(parts.share[k]), ", ".join(str(words[v]) for v in best[k]))
        for k in core.by_share(parts)
    ]


def topic_table(rows: list[TopicRow], word: str) -> Any:
    """A DataFrame with the columns `word` ("topic" or "component"), share and words; the rows as
    they are without pandas."""
    pandas = load_pandas()
    return rows if pandas is None else pandas.DataFrame(rows, columns=[word, "share", "words"])
