"""Tables of other libraries, told by what they can do: no library is imported.

pandas and polars DataFrames, Arrow tables, Hugging Face data sets, AnnData objects, dicts of
columns, structured arrays and lists of records become a `Table`.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pp_models.errors import InputError

NUMBER, TEXT, TIME, OTHER = "number", "text", "time", "other"
Names = tuple[str, ...] | None


class Table(NamedTuple):
    """Columns of equal length.

    names:    of the columns; numbers if they have none, and then `labelled` is false
    kinds:    "number", "text", "time" or "other", of each column
    rows:     names of the rows, or None
    column:   (place) -> the values of a column as an array
    matrix:   () -> all columns, which hold numbers, as one array or sparse matrix
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: Names
    column: Callable[[int], np.ndarray]
    matrix: Callable[[], Any]
    labelled: bool = True

    def places(self, kind: str) -> list[int]:
        return [place for place, one in enumerate(self.kinds) if one == kind]

    def place(self, name: Any, what: str) -> int:
        """Where the column of this name is."""
        found = [place for place, one in enumerate(self.names) if one == str(name)]
        if len(found) != 1:
            told = f"The table has no column {name!r}" if not found else f"{name!r} is there twice"
            raise InputError(f"{told} for {what}: its columns are {self.listed()}.")
        return found[0]

    def listed(self, places: Iterable[int] | None = None) -> str:
        """The first names, for a message."""
        names = self.names if places is None else [self.names[place] for place in places]
        return ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")


def table_of(value: Any) -> Table | None:
    """The table that a value is, or None."""
    if all(hasattr(value, name) for name in ("X", "obs_names", "var_names")):
        return _annotated(value)
    if hasattr(value, "iloc") and hasattr(value, "columns"):
        return _pandas(value)
    if hasattr(value, "collect_schema") and hasattr(value, "collect"):
        raise InputError("The frame is lazy and has no rows yet: pass frame.collect().")
    if hasattr(value, "get_columns") and hasattr(value, "schema"):
        return _made({name: value[name].to_numpy() for name in value.columns})
    if hasattr(value, "column_names") and hasattr(value, "__getitem__"):
        return _by_name(value)
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, np.ndarray) and value.dtype.names:
        return _made({name: value[name] for name in value.dtype.names})
    return None


def _annotated(value: Any) -> Table:
    """Of AnnData: `layers["counts"]` if it is there, else X."""
    if getattr(value, "isbacked", False):
        value = value.to_memory()
    layers = getattr(value, "layers", {})
    matrix = layers.get("counts", value.X)
    if matrix is None:
        raise InputError("The AnnData object has no X: put counts into X or layers['counts'].")
    names, rows = tuple(map(str, value.var_names)), tuple(map(str, value.obs_names))
    return Table(names, (NUMBER,) * len(names), rows, lambda i: matrix[:, i], lambda: matrix)


def _by_name(value: Any) -> Table:
    """Of an object with `column_names` that is indexed by them: Arrow, Hugging Face."""
    names = value.column_names
    if isinstance(names, Mapping):
        told = f"The data set has the splits {', '.join(map(repr, names))}"
        raise InputError(f"{told}: pass one of them, such as dataset[{next(iter(names), '')!r}].")
    return _made({name: _values(value[name]) for name in names})


def _mapping(value: Mapping[Any, Any]) -> Table:
    if value and all(hasattr(one, "column_names") for one in value.values()):
        told = f"The data set has the splits {', '.join(map(repr, value))}"
        raise InputError(f"{told}: pass one of them, such as dataset[{next(iter(value))!r}].")
    for name, one in value.items():
        if isinstance(one, str) or not isinstance(one, Iterable):
            told = f"A dict holds a list for each column, but {name!r} is a {type(one).__name__}"
            raise InputError(f"{told}: write {{{name!r}: [...]}}.")
    return _made({name: _values(one) for name, one in value.items()})


def records(value: Sequence[Any]) -> Table:
    """A list of dicts with the same keys, or of tuples, one a row."""
    if isinstance(value[0], Mapping):
        keys = list(dict.fromkeys(key for one in value for key in one))
        return _made({key: _values([one.get(key) for one in value]) for key in keys})
    if len({len(one) for one in value}) > 1:
        raise InputError("The records have different lengths: give each the same fields.")
    columns = {place: _values(one) for place, one in enumerate(zip(*value, strict=True))}
    return _made(columns)._replace(labelled=False)


def _made(columns: Mapping[Any, np.ndarray], rows: Names = None) -> Table:
    sizes = {len(one) for one in columns.values()}
    if len(sizes) != 1:
        told = "it has no columns" if not sizes else f"its columns have {sorted(sizes)} values"
        raise InputError(f"A table needs columns of equal length, but {told}: complete it.")
    values = [one if one.ndim == 1 else _objects(list(one)) for one in columns.values()]
    kinds = tuple(_kind(one) for one in values)
    names = tuple(map(str, columns))

    def matrix() -> Any:
        return np.column_stack([numbers(one) for one in values])

    return Table(names, kinds, rows, values.__getitem__, matrix)


def _pandas(frame: Any) -> Table:
    sparse = [hasattr(kind, "fill_value") for kind in frame.dtypes]  # not to be made dense
    names = tuple(map(str, frame.columns))
    kinds = tuple(
        NUMBER if one else _kind(frame.iloc[:, i].to_numpy(), str(kind))
        for i, (one, kind) in enumerate(zip(sparse, frame.dtypes, strict=True))
    )

    def matrix() -> Any:
        if sparse and all(sparse):
            return frame.sparse.to_coo()
        values = frame.to_numpy()
        if values.dtype != object:
            return values
        return np.column_stack([numbers(frame.iloc[:, i].to_numpy()) for i in range(len(names))])

    labelled = labels(frame.columns) is not None
    column = lambda place: frame.iloc[:, place].to_numpy()  # noqa: E731
    return Table(names, kinds, labels(frame.index), column, matrix, labelled)


def labels(index: Any) -> Names:
    """The names in an index of pandas, None for one that only counts from 0."""
    if getattr(index, "start", None) == 0 and getattr(index, "step", None) == 1:
        return None
    return tuple(map(str, index))


def _values(column: Any) -> np.ndarray:
    """A column as an array; strings and mixtures as objects."""
    if hasattr(column, "to_pylist"):  # Arrow
        column = column.to_pylist()
    array = column if isinstance(column, np.ndarray) else None
    if array is None:
        items = list(column)
        if any(isinstance(x, str | bytes) or x is None or hasattr(x, "__len__") for x in items):
            return _objects(items)
        array = np.asarray(items)
    return array.astype(object) if array.dtype.kind in "US" else array


def _objects(items: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(items), object)
    for place, item in enumerate(items):  # NumPy would look into lists
        array[place] = item
    return array


def _kind(values: np.ndarray, stated: str = "") -> str:
    """What a column holds. Missing values say nothing."""
    if values.dtype.kind in "biuf":
        return NUMBER
    if values.dtype.kind in "Mm" or stated.startswith(("datetime", "timedelta")):
        return TIME
    if values.dtype.kind in "US":
        return TEXT
    present = [type(x) for x in values if not is_missing(x)]
    if present and all(issubclass(kind, str) for kind in set(present)):
        return TEXT
    number = int, float, np.number, np.bool_
    return NUMBER if present and all(issubclass(kind, number) for kind in set(present)) else OTHER


def numbers(values: np.ndarray) -> np.ndarray:
    """A column of numbers, nan where one is missing."""
    if values.dtype != object:
        return values
    return np.array([np.nan if is_missing(x) else x for x in values], np.float64)


def is_missing(x: Any) -> bool:
    """None, NaN, and the marks of pandas."""
    nan = isinstance(x, float | np.floating) and x != x
    return x is None or nan or type(x).__name__ in ("NAType", "NaTType")


# Numbers with names -------------------------------------------------------------------------------


def of_numbers(value: Any, what: str) -> tuple[Any, Names, Names]:
    """A matrix with the names of its columns and rows; what is no table stays as it is.

    what: is said in the message, such as "Counts".
    """
    table = value if isinstance(value, Table) else table_of(value)
    if table is None:
        return value, None, None
    if other := [place for place, kind in enumerate(table.kinds) if kind != NUMBER]:
        raise InputError(_not_numbers(table, other, what))
    return table.matrix(), table.names if table.labelled else None, table.rows


def _not_numbers(table: Table, other: list[int], what: str) -> str:
    told = f"{what} are numbers, but the column(s) {table.listed(other)} of the table are not"
    first = table.names[other[0]]
    if what == "Votes":
        return f"{told}: make names of bills the index, and drop the others."
    kind = "" if what == "Counts" else "'dense', "
    named = f"if {first!r} names the rows, use pp_models.data.from_table(table, {kind}id={first!r})"
    if what == "Counts":
        text = f"to count the words of {first!r}, pp_models.data.from_table(table, text={first!r})"
        return f"{told}: {named}; {text}."
    return f"{told}: {named}, else drop them."


# Texts --------------------------------------------------------------------------------------------


def texts_of(value: Any) -> tuple[list[str], Names]:
    """Texts, one a document, from a list, a Series or a table with one column; names of rows."""
    if isinstance(value, str):
        fix = "pass a list, as in [text]; a file or data set is read by pp_models.datasets.load"
        raise InputError(f"One string is one document: {fix}.")
    table = table_of(value)
    if table is not None:
        place = text_place(table)
        return checked_texts(table.column(place), table.names[place]), table.rows
    rows = labels(value.index) if hasattr(value, "iloc") else None
    if not isinstance(value, Iterable):
        told = f"Texts are a list of strings, not a {type(value).__name__}"
        raise InputError(f"{told}: pass one string for each document.")
    return checked_texts(value), rows


def text_place(table: Table) -> int:
    """The column of texts, if only one can be meant."""
    found = table.places(TEXT)
    if len(found) == 1 and len(table.names) == 1:
        return found[0]
    if len(found) == 1 and table.names[found[0]].lower() == "text":
        name = next((one for one in table.names if one.lower() in ("id", "name", "title")), None)
        if name is not None:
            told = f"The words of {table.names[found[0]]!r} are counted, and {name!r} is ignored"
            fix = f"pp_models.data.from_table(table, text={table.names[found[0]]!r}, id={name!r})"
            warnings.warn(f"{told}: {fix} takes it as the rows' names.", stacklevel=4)
        return found[0]
    if not found:
        told = f"No column of the table holds texts; there are {table.listed()}"
        raise InputError(f"{told}: pass the texts, or pp_models.data.counts(table) for numbers.")
    raise InputError(which_text(table))


def which_text(table: Table) -> str:
    """The sentence that asks which column is meant, with a guess."""
    found = table.places(TEXT)
    sizes = {place: sum(len(str(x)) for x in table.column(place)[:100]) for place in found}
    text = max(sizes, key=lambda place: sizes[place])
    rest = [place for place in range(len(table.names)) if place != text]
    names = next((p for p in rest if table.names[p].lower() in ("id", "name", "title")), None)
    names = next((p for p in rest if p in found), None) if names is None else names
    more = "" if names is None else f", id={table.names[names]!r}"
    told = f"The table has the columns {table.listed()}, and several things can be meant"
    made = f"pp_models.data.from_table(table, text={table.names[text]!r}{more})"
    fix = f"{told}: say which column holds the texts, as in {made}"
    if len(found) == 1:
        numbers = f"pp_models.data.from_table(table, id={table.names[text]!r})"
        return f"{fix}, or which names the rows of counts, as in {numbers}."
    return f"{fix}."


def checked_texts(documents: Iterable[Any], column: str | None = None) -> list[str]:
    """The documents as a list, refused if one is missing or no string."""
    found = list(documents)
    if missing := [place for place, one in enumerate(found) if is_missing(one)]:
        number = f" ({len(missing)} are)" if len(missing) > 1 else ""
        told = f"Document {missing[0]} is missing{number}"
        fix = "[text for text in texts if isinstance(text, str)]"
        fix = fix if column is None else f"table.dropna(subset=[{column!r}])"
        raise InputError(f"{told}: drop such rows, as in {fix}, or put '' for no words.")
    for place, one in enumerate(found):
        if not isinstance(one, str):
            fix = "decode it first" if isinstance(one, bytes) else "convert it to one first"
            raise InputError(f"Document {place} is {type(one).__name__}, not a string: {fix}.")
    return found
