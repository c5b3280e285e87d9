"""Ids of any type, such as those of users and items, as indices with names."""

import re
from typing import Any, NamedTuple

import numpy as np

from pp_models.data.frames import is_missing
from pp_models.errors import InputError

_WHOLE = re.compile(r"0|-?[1-9]\d*")


class Numbered(NamedTuple):
    """Indices from 0, and the id of each as a name; None if the ids are 0 to n - 1 themselves."""

    indices: np.ndarray
    names: tuple[str, ...] | None


def number_ids(ids: Any, what: str) -> Numbered:
    """Ids in increasing order as indices. what: is said in the message, such as "user".

    Whole numbers that are exactly 0 to n - 1 stay as they are; all other ids become names.
    """
    array = _checked(ids, what)
    if array.dtype.kind in "iu":
        found, indices = np.unique(array, return_inverse=True)
        if np.array_equal(found, np.arange(len(found))):
            return Numbered(indices.astype(np.int64), None)
        return Numbered(indices.astype(np.int64), tuple(map(str, found.tolist())))
    codes: dict[str, int] = {}
    places = np.array([codes.setdefault(x, len(codes)) for x in array.tolist()], np.int64)
    names = list(codes)
    whole = all(map(_WHOLE.fullmatch, names))
    order = sorted(range(len(names)), key=(lambda i: int(names[i])) if whole else names.__getitem__)
    ranks = np.empty(len(names), np.int64)
    ranks[order] = np.arange(len(names))
    named = tuple(names[i] for i in order)
    counted = whole and named == tuple(map(str, range(len(named))))
    return Numbered(ranks[places], None if counted else named)


def _checked(ids: Any, what: str) -> np.ndarray:
    """Integers, or strings as objects."""
    array = ids if isinstance(ids, np.ndarray) else np.asarray(ids, _kind_of(ids))
    if array.ndim != 1:
        told = f"The ids of {what}s must be a list, one for each rating"
        raise InputError(f"{told}, but have {array.ndim} dimension(s).")
    if array.dtype.kind == "f":
        _refuse_missing(np.isnan(array), what)
        if np.all(array == np.floor(array)) and np.all(np.abs(array) < 2**53):
            return array.astype(np.int64)  # pandas makes floats of whole numbers
        told = f"One id of the {what}s is {array[array != np.floor(array)][:1].tolist()}"
        raise InputError(f"{told}, neither a whole number nor a name: check the column.")
    if array.dtype.kind in "iu":
        return array
    items = array.tolist()
    _refuse_missing(np.array([is_missing(x) or x == "" for x in items], bool), what)
    if all(isinstance(x, int) and not isinstance(x, bool) for x in items):
        return np.array(items) if max(items, default=0) < 2**63 else array.astype(str)
    named = np.empty(len(items), object)
    named[:] = [str(x) for x in items]
    return named


def _kind_of(ids: Any) -> Any:
    """NumPy would cut lists that mix strings and numbers to one width."""
    return None if all(isinstance(x, int | float | np.number) for x in ids) else object


def _refuse_missing(missing: np.ndarray, what: str) -> None:
    if missing.any():
        told = f"The {what} of rating {int(np.argmax(missing))} is missing"
        raise InputError(f"{told}: drop ratings without a {what}.")


def are_whole(names: tuple[str, ...]) -> bool:
    """Whether all names are whole numbers."""
    return all(map(_WHOLE.fullmatch, names))


def match_ids(
    names: tuple[str, ...] | None, known: tuple[str, ...] | None, size: int, known_size: int
) -> np.ndarray:
    """Where each of these ids is among the known ones, -1 for one that is not.

    names: of the ids; None if they are whole numbers from 0, as many as `size`. These are names,
           too, if all the known names are whole numbers, else they count the known ones
    known: names of the known ids; None if they are whole numbers below `known_size`
    """
    if names is None and (known is None or not are_whole(known)):
        indices = np.arange(size)
        return np.where(indices < known_size, indices, -1)
    asked = map(str, range(size)) if names is None else names
    if known is None:
        numbers = (int(name) if _WHOLE.fullmatch(name) else -1 for name in asked)
        return np.array([one if 0 <= one < known_size else -1 for one in numbers], np.int64)
    places = {name: place for place, name in reversed(list(enumerate(known)))}
    return np.array([places.get(name, -1) for name in asked], np.int64)
