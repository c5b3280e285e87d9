"""Names of rows and columns, one a line, in files beside a data file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pp_models.data.formats.numbers import Shape
from pp_models.data.formats.opening import fail
from pp_models.errors import InputError


class Names(NamedTuple):
    """The names beside a file, or None."""

    columns: tuple[str, ...] | None
    rows: tuple[str, ...] | None


def stem(path: Path) -> str:
    return Path(re.sub(r"\.gz$", "", path.name, flags=re.IGNORECASE)).stem


def names(path: str | Path, own: bool = False) -> Names:
    """The names beside a file. own: only `<stem>.vocab` names columns, not `vocab.txt`."""
    places = name_files(Path(path), own)
    found = [next((f for f in files if f.is_file() and f != Path(path)), None) for files in places]
    return Names(*(None if file is None else read_names(file) for file in found))


def name_files(path: Path, own: bool = False) -> tuple[list[Path], list[Path]]:
    """Files that may hold the names of the columns, the first one wins, and of the rows."""
    columns = [stem(path) + ".vocab"] if own else [stem(path) + ".vocab", "vocab.txt"]
    if path.name.lower().startswith("docword."):
        name = re.sub(r"\.gz$", "", path.name, flags=re.IGNORECASE)
        columns.insert(0, "vocab" + name[len("docword") :])
    return [path.with_name(file) for file in columns], [path.with_name(stem(path) + ".rows")]


def read_names(file: Path) -> tuple[str, ...]:
    return parse_names(file, file.read_bytes())


def parse_names(file: Path, raw: bytes) -> tuple[str, ...]:
    """One name a line, in UTF-8."""
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        found = raw.decode("utf-8").split("\n")  # splitlines() also splits within a word
    except UnicodeDecodeError as error:
        problem = "the names are not UTF-8: save the file again in that encoding"
        fail(file, problem, error, 1 + raw.count(b"\n", 0, error.start))
    return tuple(name.removesuffix("\r") for name in (found[:-1] if found[-1] == "" else found))


def encode_names(found: Sequence[str]) -> bytes:
    """The bytes that `parse_names` turns into these names."""
    try:
        raw = "".join(f"{name}\n" for name in found).encode("utf-8")
        if parse_names(Path(), raw) == tuple(found):
            return raw
    except UnicodeEncodeError as error:
        name = error.object[max(error.start - 10, 0) : error.end]
        raise InputError(f"The name {name!r} cannot be written as UTF-8: change it.") from error
    raise InputError("A name holds a line break or begins with a byte-order mark: remove them.")


def fitted_shape(path: Path, shape: Any, stated: Shape, beside: Names) -> tuple[int, int]:
    """The shape, enlarged to the names where the file states none; other names are refused."""
    fitted, files = list(shape), name_files(path)
    for axis, (what, found) in enumerate((("rows", beside.rows), ("columns", beside.columns))):
        if found is None:
            continue
        if stated[axis] is None:
            fitted[axis] = max(shape[axis], len(found))
        if len(found) != fitted[axis]:
            file = next(file for file in files[1 - axis] if file.is_file())
            what = f"there are {shape[axis]} {what} but {file.name} beside it has {len(found)}"
            fail(path, f"{what} lines: give it one name a line, or move it away")
    return fitted[0], fitted[1]
