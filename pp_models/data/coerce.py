"""Data in whatever form people have them, made into `Data`.

    as_data(texts)                                  a list or Series of strings, or a table of one
    as_data(frame)                                  counts, with the names of columns and rows
    as_data((bow, dictionary))                      gensim; also Counters and lists of words
    as_data((X, vectoriser))                        scikit-learn; also (X, names)
    as_data(adata)                                  AnnData
    as_data(Path("speeches"))                       what a file or folder holds
    as_data(frame, "ratings")                       columns user, item, rating; or users x items
    as_data((text, votes), "text_and_votes")        each of them in any of these forms
    from_table(frame, text="speech", id="speaker")  says which column is which

What has one meaning is converted. Where several things can be meant, the error names the choice.
"""

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from pp_models.data import bags, frames, rated, text
from pp_models.data.formats.tables import COLUMNS, ROWS, VALUES, places_of, plain
from pp_models.data.frames import Table
from pp_models.data.rows import KINDS
from pp_models.data.types import Data, count_matrix, counts, dense, named, text_and_votes
from pp_models.errors import InputError, unknown

Columns = tuple[str, ...] | None


def as_data(value: Any, kind: str = "counts", columns: tuple[str, ...] | None = None) -> Data:
    """`Data` of this kind from what has one meaning; an error names the choice otherwise.

    Ids of users and items that are whole numbers other than 0 to n - 1 become names.

    kind:    what the model explains: counts, ratings, dense or text_and_votes
    columns: the column names of a fit, if rows are to be explained by it: texts and bags of words
             are counted by exactly these words. Everything else keeps the names that it has

    >>> as_data(["A cat sat.", "The cat and the dog."]).column_names
    ('cat', 'dog', 'sat')
    """
    return convert(value, kind, columns).data


class Converted(NamedTuple):
    """Data, and what is lost of their words if only those of a fit are counted.

    tokens, words: how many tokens are left out, and of how many words
    of_texts: stop words are not among them
    numbered: words are numbers; how many there are beyond the last that occurs is not known
    """

    data: Data
    tokens: float = 0.0
    words: int = 0
    of_texts: bool = False
    numbered: bool = False


def convert(value: Any, kind: str, columns: Columns) -> Converted:
    """What `as_data` makes of a value, and what is lost."""
    if isinstance(value, Data):
        return Converted(value)
    if kind not in KINDS:
        raise unknown("kind of data", str(kind), KINDS)
    columns = None if columns is None else tuple(columns)
    if isinstance(value, os.PathLike):
        return _read(Path(value), kind, columns)
    if isinstance(value, str) and kind != "counts":
        fix = "what is in a file or data set is read by pp_models.datasets.load(name, model)"
        raise InputError(f"{value[:100]!r} is a string, not {kind}: {fix}.")
    if isinstance(value, Iterator):
        value = list(value)  # it can be looked at only once
    if kind == "counts":
        return _counts(value, columns)
    if kind == "text_and_votes":
        return _text_and_votes(value, columns)
    return Converted(rated.as_ratings(value) if kind == "ratings" else dense(value))


def _read(path: Path, kind: str, columns: Columns) -> Converted:
    from pp_models.data import packaged  # which reads databases, too

    if columns is None or kind != "counts" or not text.is_text(path):
        return Converted(packaged.read(path, kind))
    rows = text.blocks(path, vocabulary=columns)[2]
    return count_known(list(text.documents(path)), columns, rows)


def from_table(
    table: Any,
    kind: str = "counts",
    *,
    text: str | None = None,
    id: str | None = None,
    entries: tuple[str, str, str] | None = None,
    **options: Any,
) -> Data:
    """Data from the named columns of a table: a DataFrame, Arrow, dict of columns, or the like.

    text:    the column of texts, whose words are counted; options: those of `text.Options`
    id:      the column that names the rows (default: the index, of pandas)
    entries: the columns of a long table, a line for each entry: names of the row and of the column,
             and the value, such as ("speech", "word", "count") or ("user", "film", "stars")
    kind:    counts, ratings or dense; without text and entries, all columns but the id are numbers

    >>> table = {"id": ["a", "b"], "year": [1, 2], "speech": ["A cat.", "The cat and the dog."]}
    >>> from_table(table, text="speech", id="id").row_names
    ('a', 'b')
    """
    found = _table(table)
    if found is None:
        told = f"from_table takes a table with columns, not a {type(table).__name__}"
        raise InputError(f"{told}: pass a DataFrame or a dict of columns.")
    if kind not in ("counts", "ratings", "dense"):
        raise unknown("kind of table", str(kind), ("counts", "ratings", "dense"))
    if options and text is None:
        told = f"{', '.join(options)} say how words are counted, but no column of texts is named"
        raise InputError(f"{told}: add text=.")
    if text is not None and (kind != "counts" or entries is not None):
        raise InputError("Words of texts are counts: give text, or entries or another kind.")
    rows = found.rows
    if id is not None:
        rows = tuple(map(str, found.column(found.place(id, "id")).tolist()))
    if text is not None:
        return _of_texts(found, text, rows, options)
    if entries is not None:
        if id is not None or len(entries) != 3 or isinstance(entries, str):
            raise InputError("entries are three columns: those of rows, of columns, of values.")
        places = [found.place(name, "entries") for name in entries]
        if kind == "dense":
            raise InputError("Dense data have a value in every cell: pivot the table first.")
        return rated.of_entries(found, places, kind)
    if id is not None:
        found = _without(found, found.place(id, "id"), rows)
    return rated.of_matrix(found) if kind == "ratings" else _cells(found, kind)


def _of_texts(table: Table, name: str, rows: Any, options: dict[str, Any]) -> Data:
    documents = frames.checked_texts(table.column(table.place(name, "text")), name)
    return text.count(documents, row_names=rows, **options)


def _without(table: Table, place: int, rows: Any) -> Table:
    """The table without one column, whose values name the rows."""
    kept = [i for i in range(len(table.names)) if i != place]
    matrix = lambda: np.column_stack([frames.numbers(table.column(i)) for i in kept])  # noqa: E731
    names, kinds = (tuple(one[i] for i in kept) for one in (table.names, table.kinds))
    return Table(names, kinds, rows, lambda i: table.column(kept[i]), matrix, table.labelled)


def _cells(table: Table, kind: str) -> Data:
    """A value in each cell."""
    matrix, columns, rows = frames.of_numbers(
        table, "Counts" if kind == "counts" else "Observations"
    )
    return (counts if kind == "counts" else dense)(matrix, columns, rows)


def _table(value: Any) -> Table | None:
    """Tables, lists of dicts and Series of them."""
    is_list = isinstance(value, list) and len(value) > 0
    if is_list and all(isinstance(one, Mapping) for one in value):
        return frames.records(value)
    return frames.table_of(value)


# Counts -------------------------------------------------------------------------------------------


def _counts(value: Any, columns: Columns) -> Converted:
    if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], str):
        return _named_counts(*value, columns)
    if isinstance(value, list | tuple) and len(value) == 0:
        raise InputError("There are no rows: pass at least one document.")
    if isinstance(value, list) and isinstance(value[0], Mapping):
        strings = any(isinstance(x, str) for x in value[0].values())
        value = frames.records(value) if strings else value
    table = value if isinstance(value, Table) else frames.table_of(value)
    if table is not None:
        return _counted_table(table, columns)
    if _are_texts(value):
        documents, rows = frames.texts_of(value)
        return _words(documents, rows, columns)
    matrix, words = bags.matrix_of(value)
    return _bag(matrix, words, columns)._replace(numbered=words is None and matrix is not value)


def _bag(matrix: Any, words: Columns, columns: Columns) -> Converted:
    """Counts of bags of words: of all their words, or of exactly these."""
    if columns is None or words is None:
        return Converted(_checked(matrix, words, None, columns is not None))
    every = count_matrix(matrix).tocoo()
    tokens = np.bincount(every.coords[1], every.data, len(words)).astype(np.float64)
    lost = tokens[~np.isin(np.array(words, str), np.array(columns, str))]
    picked, _ = bags.pick(every, words, columns)
    data = _checked(picked, columns, None, True)
    return Converted(data, float(lost.sum()), int(np.count_nonzero(lost)))


def _checked(matrix: Any, columns: Any, rows: Any, may_be_empty: bool) -> Data:
    """Counts; new rows may have no known word at all."""
    if not may_be_empty:
        return counts(matrix, columns, rows)
    checked = count_matrix(matrix)
    return Data("counts", matrix=checked, **named(checked.shape, columns, rows))


def _are_texts(value: Any) -> bool:
    """Whether to look at the value as texts: a string, or the first of several is one."""
    if isinstance(value, str | bytes):
        return True
    if isinstance(value, Mapping) or scipy.sparse.issparse(value) or getattr(value, "ndim", 1) > 1:
        return False
    if hasattr(value, "iloc"):
        value = value.iloc[:100]
    elif hasattr(value, "dtype") and getattr(value.dtype, "kind", "O") in "biufc":
        return False
    some = list(value)[:100] if isinstance(value, list | tuple) or hasattr(value, "dtype") else []
    if not some and hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        some = [value[i] for i in range(min(len(value), 100))]
    present = [one for one in some if not frames.is_missing(one)]
    return bool(some) and all(isinstance(one, str | bytes) for one in present)


def _words(documents: list[str], rows: Any, columns: Columns) -> Converted:
    """Texts as counts of all their words, or of exactly these."""
    if columns is None:
        return Converted(text.count(documents, row_names=rows))
    return count_known(documents, columns, rows)


def count_known(documents: Iterable[Any], columns: tuple[str, ...], rows: Any = None) -> Converted:
    """Counts of exactly these words. English stop words that are not among them are no loss."""
    check_distinct(columns)
    if foreign := [word for word in columns if text.words(word) != [word]]:
        told = f"{len(foreign)} of {len(columns)} columns of the fit are no words that are found"
        fix = "count them as before the fit, and pass (matrix, names)"
        warnings.warn(f"{told} in texts, such as {foreign[0]!r}: {fix}.", stacklevel=4)
    places = {word: place for place, word in enumerate(columns)}
    unknown: Counter[str] = Counter()
    sizes, cells = [], [np.zeros(0, np.int64)]
    for document in frames.checked_texts(documents):
        words = text.words(document)
        found = [places[word] for word in words if word in places]
        unknown.update(w for w in words if w not in places and w not in text.STOP_WORDS)
        sizes.append(len(found))
        cells.append(np.array(found, np.int64))
    tokens = np.concatenate(cells)
    entries = np.ones(len(tokens), np.int64), (np.repeat(np.arange(len(sizes)), sizes), tokens)
    matrix = scipy.sparse.coo_array(entries, shape=(len(sizes), len(columns)))
    data = _checked(matrix, columns, rows, True)
    return Converted(data, unknown.total(), len(unknown), of_texts=True)


def check_distinct(names: Sequence[str]) -> None:
    """Refuse a fit whose columns are not told apart by their names."""
    if len(set(names)) < len(names):
        name = Counter(names).most_common(1)[0][0]
        raise InputError(
            f"The fit has {name!r} more than once, so that names do not tell its columns apart: "
            "give the same columns in the same order, without names."
        )


def _counted_table(table: Table, columns: Columns) -> Converted:
    """A table of texts, or of counts."""
    texts, numbers = table.places(frames.TEXT), table.places(frames.NUMBER)
    triple = places_of(table.names, ROWS, COLUMNS, VALUES) if len(table.names) <= 4 else None
    if triple is not None and table.kinds[triple[2]] == frames.NUMBER:
        what = [table.names[place] for place in triple]
        told = f"The columns {table.listed(triple)} seem to be rows, columns and values"
        fix = f"pp_models.data.from_table(table, entries=({', '.join(map(repr, what))}))"
        raise InputError(f"{told}: if so, pass {fix}; else, from_table with id= or text=.")
    if texts:
        place = frames.text_place(table)
        documents = frames.checked_texts(table.column(place), table.names[place])
        return _words(documents, table.rows, columns)
    if len(numbers) < len(table.names):
        return Converted(_cells(table, "counts"))  # which says what is wrong
    names = table.names if table.labelled else None
    matrix = table.matrix()
    _refuse_ids(matrix, names)
    return Converted(_checked(matrix, names, table.rows, columns is not None))


def _refuse_ids(matrix: Any, names: Columns) -> None:
    """A first column that numbers the rows is no word, though its numbers could be counts."""
    if names is None or plain(names[0]) not in ("id", "docid", "rowid", "index", "unnamed"):
        return
    column = scipy.sparse.csr_array(matrix)[:, [0]].toarray()
    if 1 < len(column) == len(np.unique(column)):
        raise InputError(
            f"The column {names[0]!r} seems to number the rows: pass pp_models.data.from_table("
            f"table, id={names[0]!r}), or pp_models.data.counts(matrix, names) if it is a word."
        )


def _named_counts(value: Any, names: Any, columns: Columns) -> Converted:
    """(matrix, vectoriser), (texts, vectoriser), (matrix, names) or (bag of words, dictionary)."""
    vectoriser = hasattr(names, "get_feature_names_out")
    if _are_texts(value) and vectoriser:
        documents, rows = frames.texts_of(value)
        return Converted(text.count(documents, row_names=rows, vectoriser=names))
    table = frames.table_of(value) if not isinstance(value, list | tuple) else None
    matrix, rows = (value, None) if table is None else (table.matrix(), table.rows)
    if vectoriser:
        words = names.get_feature_names_out()
        return Converted(_checked(matrix, words, rows, columns is not None))
    if isinstance(names, Mapping) or hasattr(names, "token2id"):
        return _bag(*bags.matrix_of(value, names), columns)
    if isinstance(value, list) and isinstance(names, list) and not _are_texts(names):
        return _counts([value, names], columns)  # two documents
    if _are_texts(names) and not isinstance(names, str):
        bag, _ = bags.matrix_of(matrix)
        return Converted(_checked(bag, list(names), rows, columns is not None))
    told = (
        f"A pair of {type(value).__name__} and {type(names).__name__} is not understood as counts"
    )
    fix = "pass (matrix, vectoriser), (matrix, names) or (bag of words, dictionary)"
    raise InputError(f"{told}: {fix}.")


# Text and votes -----------------------------------------------------------------------------------


def _text_and_votes(value: Any, columns: Columns) -> Converted:
    if not isinstance(value, list | tuple) or len(value) != 2:
        told = f"Text and votes are a pair (text, votes), not a {type(value).__name__}"
        raise InputError(f"{told}: pass both, or (None, votes) for votes alone.")
    found = None if value[0] is None else convert(value[0], "counts", columns)
    matrix, _, bills = frames.of_numbers(value[1], "Votes")
    votes = np.asarray(matrix, np.float64)
    if found is None:
        return Converted(text_and_votes(None, votes, row_names=bills))
    words = found.data
    if bills is not None and words.row_names is not None and bills != words.row_names:
        places = {name: place for place, name in enumerate(bills)}
        if len(places) < len(bills) or sorted(bills) != sorted(words.row_names):
            told = "The bills of the text and those of the votes have different names"
            raise InputError(f"{told}: give both the same rows, or drop the index of one.")
        votes = votes[[places[name] for name in words.row_names]]
    names = words.row_names if words.row_names is not None else bills
    data = text_and_votes(words.matrix, votes, words.column_names, names)
    return found._replace(data=data)
