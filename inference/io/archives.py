"""Plain arrays and a JSON header in one .npz file, as `numpy.savez` writes it. Never pickle.

    write(path, {"format": 1, "model": "lda"}, {"beta/0": beta})
    header, arrays = read(path, "fit", 1)

A file is whole or it is refused with one sentence. zipfile verifies the checksum of every member
and NumPy reads the arrays. Before memory is asked for, the declared sizes are compared with the
length of the file: members must be stored, not compressed, so no file takes much more memory than
its own length. Arrays hold booleans, integers or real numbers, little-endian.
"""

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pp_models.errors import InputError

MOST_MEMBERS = 200_000  # a checkpoint of draws holds some for every chunk of them
HEADER_BYTES = 1 << 24
NAME_BYTES = 400
_UTF8 = 0x800  # the only flag of a member that is allowed
_CODES = ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
_TYPES = {np.dtype(code).str for code in _CODES}


class Damaged(ValueError):
    """What is wrong with an archive, for the sentence that refuses it."""


def write(path: Path, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write one file. Contents that `read` would refuse are refused here."""
    contents = {name: np.asarray(x) for name, x in arrays.items()}
    for name, x in contents.items():
        if x.dtype.newbyteorder("<").str not in _TYPES:
            raise InputError(
                f"{name!r} is an array of {x.dtype}, but files hold booleans, integers and real "
                "numbers: convert it."
            )
        contents[name] = x.astype(x.dtype.newbyteorder("<"), copy=False)
    if len(contents) >= MOST_MEMBERS or not all(map(_is_plain, contents)) or "header" in contents:
        raise InputError(
            f"A file holds fewer than {MOST_MEMBERS} arrays with plain names other than 'header': "
            "rename the sites."
        )
    raw = json.dumps(dict(header)).encode()
    if len(raw) > HEADER_BYTES:
        raise InputError(
            f"The header is {len(raw)} bytes long, but at most {HEADER_BYTES} are read again: "
            "store less in it."
        )
    with path.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, x in {"header": np.frombuffer(raw, np.uint8), **contents}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, x, version=(1, 0), allow_pickle=False)


def read(path: Path, what: str, version: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a file of `write`. Any other file is refused."""
    if not path.is_file():
        raise InputError(f"There is no {what} at {path}: give the file that was saved.")
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(archive, path.stat().st_size)
            header = _header(archive, members.pop("header", None))
            if type(header["format"]) is not int or header["format"] != version:
                raise InputError(
                    f"{path} has format {header['format']!r:.40}, but this version reads format "
                    f"{version}: fit again or upgrade."
                )
            return header, {name: _array(archive, member) for name, member in members.items()}
    except InputError:
        raise
    except Exception as error:  # zipfile and NumPy raise a dozen unrelated types
        reason = str(error).splitlines()[0][:150] if str(error) else type(error).__name__
        raise InputError(
            f"{path} is not a complete {what} file ({reason}): it may be truncated; remove it and "
            "fit again."
        ) from error


def _members(archive: zipfile.ZipFile, length: int) -> dict[str, zipfile.ZipInfo]:
    """The members by name, if their names and declared sizes are possible in this file."""
    listed = archive.infolist()
    if len(listed) > MOST_MEMBERS:
        raise Damaged(f"it has more than {MOST_MEMBERS} members")
    if sum(one.file_size for one in listed) > length:
        raise Damaged("its members are longer than the file")
    for one in listed:
        stored = one.compress_type == zipfile.ZIP_STORED and one.compress_size == one.file_size
        if not stored or one.flag_bits & ~_UTF8 or one.comment:
            raise Damaged("a member is compressed, encrypted or has a comment")
        clear = one.filename.isascii() or one.flag_bits & _UTF8
        name = one.filename.removesuffix(".npy")
        if not clear or name == one.filename or not _is_plain(name):
            raise Damaged("a member's name is not plain")
    members = {one.filename.removesuffix(".npy"): one for one in listed}
    if len(members) < len(listed) or archive.comment:
        raise Damaged("two members have the same name, or the archive has a comment")
    return members


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """The array of a member, once its declared shape agrees with the member's size."""
    with archive.open(member) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise Damaged(f"{member.filename} is no array of plain numbers")
        shape, _, kind = np.lib.format.read_array_header_1_0(file)
        size = member.file_size - file.tell()
    if kind.str not in _TYPES or min(shape, default=0) < 0:
        raise Damaged(f"{member.filename} is no array of plain numbers")
    if math.prod(shape) * kind.itemsize != size:
        raise Damaged(f"{member.filename} has another size than it says")
    with archive.open(member) as file:
        found = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # at the end of a member zipfile compares its checksum
            raise Damaged(f"{member.filename} has another size than it says")
    if kind.kind == "b" and found.view(np.uint8).max(initial=0) > 1:
        raise Damaged(f"{member.filename} is no array of plain numbers")
    return found


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo | None) -> dict[str, Any]:
    if member is None or member.file_size > HEADER_BYTES + (1 << 12):
        raise Damaged("it has no header, or one that is too long")
    raw = _array(archive, member)
    if raw.dtype != np.uint8 or raw.ndim != 1:
        raise Damaged("its header is no text")
    try:
        header = json.loads(raw.tobytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Damaged("its header is no JSON") from error
    if not isinstance(header, dict) or "format" not in header:
        raise Damaged("its header says no format")
    header.pop("digest", None)  # files of the first version hold one
    return header


def _is_plain(name: str) -> bool:
    """Whether a name has words between slashes, so that unpacking it stays inside a folder."""
    clean = name.isprintable() and not set(name) & set("\\:") and len(name.encode()) < NAME_BYTES
    return clean and all(word.strip(". ") for word in name.split("/"))
