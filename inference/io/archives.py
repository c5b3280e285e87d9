"""Plain arrays and a JSON header in one .npz file, as `numpy.savez` writes it. Never pickle.

    write(path, {"format": 1, "model": "lda"}, {"beta/0": beta})
    header, arrays = read(path, "fit", 1)

A file that is damaged is refused with one sentence. zipfile verifies the checksum of every member
and NumPy reads the arrays. Members must be stored, not compressed, and their declared sizes are
compared with the length of the file before memory is asked for.
"""

import contextlib
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pp_models.errors import InputError

Arrays = dict[str, np.ndarray]


class Damaged(ValueError):
    """What is wrong with a file, for the sentence that refuses it."""


def require(good: Any, problem: str) -> None:
    if not good:
        raise Damaged(problem)


def write(path: Path, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write one file. Arrays hold booleans, integers or real numbers."""
    contents = {name: np.asarray(x) for name, x in arrays.items()}
    for name, x in contents.items():
        if x.dtype.kind not in "biuf" or x.dtype.itemsize > 8:
            raise InputError(
                f"{name!r} is an array of {x.dtype}, but files hold booleans, integers and real "
                "numbers: convert it."
            )
    told = {**header, "arrays": len(contents)}  # a damaged directory may lack some
    text = np.frombuffer(json.dumps(told).encode(), np.uint8)
    with path.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, x in {"header": text, **contents}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, x, version=(1, 0), allow_pickle=False)


def read(path: Path, what: str, version: int) -> tuple[dict[str, Any], Arrays]:
    """The header and the arrays of a file of `write`. Any other file is refused."""
    if not path.is_file():
        raise InputError(f"There is no {what} at {path}: give the file that was saved.")
    with usable(path, what), zipfile.ZipFile(path) as archive:
        listed = archive.infolist()
        stored = all(x.compress_size == x.file_size and not x.compress_type for x in listed)
        require(stored and not any(x.comment for x in listed), "its directory is damaged")
        fits = sum(x.file_size for x in listed) <= path.stat().st_size
        require(fits, "its members are longer than the file")
        members = {one.filename.removesuffix(".npy"): one for one in listed}
        require(len(members) == len(listed), "two members have the same name")
        header = json.loads(_array(archive, members.pop("header")).tobytes())
        complete = header.pop("arrays", len(members)) == len(members)
        require(complete, "some of its arrays are missing")
        if header["format"] != version:
            raise InputError(
                f"{path} has format {header['format']!r:.40}, but this version reads format "
                f"{version}: fit again or upgrade."
            )
        return header, {name: _array(archive, member) for name, member in members.items()}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """The array of a member, once its declared shape agrees with the member's size."""
    with archive.open(member) as file:
        require(np.lib.format.read_magic(file) == (1, 0), f"{member.filename} is no array")
        shape, _, kind = np.lib.format.read_array_header_1_0(file)
        size = member.file_size - file.tell()
    agrees = kind.kind in "biuf" and math.prod(shape) * kind.itemsize == size
    require(agrees and min(shape, default=0) >= 0, f"{member.filename} has another size")
    with archive.open(member) as file:
        found = np.lib.format.read_array(file, allow_pickle=False)
        require(not file.read(1), f"{member.filename} has another size")  # compares the checksum
    return found


@contextlib.contextmanager
def usable(path: Path, what: str) -> Iterator[None]:
    """Turn any error that the contents of a file cause into one sentence."""
    try:
        yield
    except InputError as error:
        named = str(path) in str(error) or str(error).startswith(f"{path.parent} ")
        raise error if named else InputError(f"{path}: {error}") from error
    except Exception as error:  # zipfile, NumPy, JAX and models raise a dozen unrelated types
        reason = str(error).splitlines()[0] if str(error) else ""
        reason = reason if isinstance(error, Damaged) else f"{type(error).__name__}: {reason}"
        raise InputError(
            f"{path} holds no {what} that can be used ({reason[:200]}): the file is truncated, "
            "corrupt or from another version; remove it and fit again."
        ) from error


def check_sizes(sizes: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse numbers of factors or columns above the numbers stored, before using them as sizes."""
    most = max(sum(x.size for x in arrays.values()), 64)
    for name, value in sizes.items():
        small = not isinstance(value, int) or abs(value) <= most
        require(small, f"{name} is {value}, but {most} numbers are stored")


def group(arrays: Mapping[str, np.ndarray], name: str) -> Arrays:
    """The arrays "name/..." without the name in front."""
    return {n.removeprefix(f"{name}/"): x for n, x in arrays.items() if n.startswith(f"{name}/")}
