"""Plain arrays and a JSON header in one .npz file, as `numpy.savez` writes it, read without trusting it. Never pickle.

    write(path, {"format": 1, "model": "lda"}, {"beta/0": beta})
    header, arrays = read(path, "fit", 1)

A file is whole or it is refused, in one sentence. Members lie one after the other from the first byte on, stored as they are, then the directory,
which says the same of them, and nothing else: what the file says of sizes is compared with its length before memory is asked for, so that reading
takes little more of it than the file is long. Arrays are of booleans, whole or real numbers, little-endian. Every member's checksum is verified, and
the header holds a digest of itself and of all arrays, with their names: none can be exchanged. Files of before that have none are read, too.
"""

import hashlib
import json
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pp_models.errors import InputError

MOST_MEMBERS = 200_000  # a checkpoint of draws holds some for every chunk of them
HEADER_BYTES = 1 << 24
NAME_BYTES = 400
_LOCAL = struct.Struct("<4s5H3L2H")  # of a member: signature, version, flags, method, time, date, checksum, sizes, lengths of name and extra field
_WIDE = struct.Struct("<2H2Q")  # the extra field that holds sizes where they may exceed 32 bits
_ARRAY = re.compile(rb"\{'descr': '([<|][biuf]\d{1,2})', 'fortran_order': (True|False), 'shape': \(((?:\d{1,15}(?:, \d{1,15})*,?)?)\), \} *\n")
_KINDS = {np.dtype(kind).str: np.dtype(kind) for kind in ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")}
_CHUNK = 1 << 20


class Damaged(ValueError):
    """What is wrong with an archive, for the sentence that refuses it."""


class _Member(NamedTuple):
    name: str
    start: int  # of its local header
    begin: int  # of its contents
    size: int
    checksum: int


# Writing ------------------------------------------------------------------------------------------------------------------------


def write(path: Path, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """One file. What `read` would refuse is refused here."""
    contents = {name: np.asarray(x) for name, x in arrays.items()}
    for name, x in contents.items():
        if x.dtype.newbyteorder("<").str not in _KINDS:
            raise InputError(f"{name!r} is an array of {x.dtype}, but files hold booleans, whole and real numbers: convert it.")
        contents[name] = x.astype(x.dtype.newbyteorder("<"), copy=False)
    if len(contents) >= MOST_MEMBERS or not all(map(_is_plain, contents)) or "header" in contents:
        raise InputError(f"A file holds fewer than {MOST_MEMBERS} arrays with plain names, and its header is written by itself: rename the sites.")
    plain = json.loads(json.dumps(dict(header)))  # as it will be read
    raw = json.dumps(plain | {"digest": _digest(plain, contents)}).encode()
    if len(raw) > HEADER_BYTES:
        raise InputError(f"The description is {len(raw)} bytes long, but at most {HEADER_BYTES} are read again: store less in it.")
    with path.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, x in {"header": np.frombuffer(raw, np.uint8), **contents}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, x, version=(1, 0), allow_pickle=False)


def _digest(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Of the header without its digest, and of names, types, shapes and contents of all arrays."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        x = arrays[name]
        digest.update(json.dumps([name, x.dtype.str, x.shape]).encode())
        digest.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _is_plain(name: str) -> bool:
    """Words between slashes: nothing that leads out of a folder if somebody unpacks the file, and nothing that cannot be shown."""
    words = name.split("/")
    return name.isprintable() and not set(name) & set("\\:") and all(word.strip(". ") for word in words) and len(name.encode()) < NAME_BYTES


# Reading ------------------------------------------------------------------------------------------------------------------------


def read(path: Path, what: str, version: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a file of `write`; one that is missing, truncated, damaged or foreign is refused."""
    if not path.is_file():
        raise InputError(f"There is no {what} at {path}: give the file that was saved.")
    try:
        with path.open("rb") as file:
            members = {member.name.removesuffix(".npy"): member for member in _members(file)}
            if "header" not in members:
                raise Damaged("it has no header")
            header = _header(file, members.pop("header"))
            if type(header["format"]) is not int or header["format"] != version:
                raise InputError(f"{path} has format {header['format']!r:.40}, but this version reads format {version}: fit again or upgrade.")
            arrays = {name: _array(file, member) for name, member in members.items()}
        if "digest" in header and header.pop("digest") != _digest(header, arrays):
            raise Damaged("its arrays are not those it was written with")
        return header, arrays
    except (OSError, Damaged) as error:
        raise InputError(f"{path} is not a complete {what} file ({error}): it may be truncated; remove it and fit again.") from error


def _take(file: BinaryIO, size: int) -> bytes:
    raw = file.read(size)
    if len(raw) != size:
        raise Damaged("it ends too early")
    return raw


def _members(file: BinaryIO) -> list[_Member]:
    """Where the members are: one after the other, and then the directory."""
    length, place = os.fstat(file.fileno()).st_size, 0
    members: list[_Member] = []
    while (mark := _take(file, 4)) == b"PK\x03\x04":
        if len(members) == MOST_MEMBERS:
            raise Damaged(f"it has more than {MOST_MEMBERS} members")
        members.append(_member(file, place, mark))
        place = members[-1].begin + members[-1].size
        if place > length:
            raise Damaged("a member is longer than the file")
        file.seek(place)
    if mark != b"PK\x01\x02":
        raise Damaged("it is no archive of arrays, or damaged")
    if len({member.name for member in members}) < len(members):
        raise Damaged("two members have the same name")
    _check_directory(file, members, place, length)
    return members


def _member(file: BinaryIO, place: int, mark: bytes) -> _Member:
    _, _, flags, method, _, _, checksum, packed, size, name_length, extra_length = _LOCAL.unpack(mark + _take(file, _LOCAL.size - 4))
    if flags & ~0x800:  # which says that the name is UTF-8
        raise Damaged("a member is encrypted or was written otherwise than as a file of arrays")
    if method != zipfile.ZIP_STORED:
        raise Damaged("a member is compressed")
    if name_length >= NAME_BYTES or extra_length not in (0, _WIDE.size):
        raise Damaged("a member's name is too long")
    raw, extra = _take(file, name_length), _take(file, extra_length)
    if extra:
        kind, width, size_, packed_ = _WIDE.unpack(extra)
        if (kind, width, size, packed) != (1, 16, 0xFFFFFFFF, 0xFFFFFFFF):
            raise Damaged("a member's size is not clear")
        size, packed = size_, packed_
    if packed != size:
        raise Damaged("a member's size is not clear")
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        name = ""
    if not name.endswith(".npy") or not _is_plain(name.removesuffix(".npy")):
        raise Damaged("a member's name is not plain")
    return _Member(name, place, place + _LOCAL.size + name_length + extra_length, size, checksum)


def _check_directory(file: BinaryIO, members: list[_Member], place: int, length: int) -> None:
    """The directory names the same members, in their order, and nothing follows it."""
    most = sum(46 + len(member.name.encode()) + 28 for member in members) + 98  # an entry of each, and both forms of the end
    if length - place > most:
        raise Damaged("its directory is too long")
    file.seek(max(length - 22, 0))
    end = file.read(22)
    if end[:4] != b"PK\x05\x06" or end[-2:] != b"\0\0":
        raise Damaged("it does not end with its directory")
    try:
        with zipfile.ZipFile(file) as archive:
            listed = [(one.filename, one.header_offset, one.file_size, one.compress_size, one.CRC, one.compress_type) for one in archive.infolist()]
            good = archive.start_dir == place and not archive.comment
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError, OSError) as error:
        raise Damaged(f"its directory cannot be read: {error}") from error
    if not good or listed != [(one.name, one.start, one.size, one.size, one.checksum, zipfile.ZIP_STORED) for one in members]:
        raise Damaged("its directory does not match its members")


def _array(file: BinaryIO, member: _Member) -> np.ndarray:
    """The array that a member holds, if its bytes are what it says they are and match the checksum."""
    file.seek(member.begin)
    head = _take(file, min(10, member.size))
    size = int.from_bytes(head[8:10], "little")
    if head[:8] != b"\x93NUMPY\x01\x00" or size > min(1 << 12, member.size - 10):
        raise Damaged(f"{member.name} is no array")
    head += _take(file, size)
    said = _ARRAY.fullmatch(head[10:])
    kind = None if said is None else _KINDS.get(said[1].decode())
    if said is None or kind is None:
        raise Damaged(f"{member.name} is no array of plain numbers")
    shape = tuple(int(number) for number in re.findall(rb"\d+", said[3]))
    if len(shape) > 32 or math.prod(shape) * kind.itemsize != member.size - len(head):
        raise Damaged(f"{member.name} has another size than it says")
    flat = np.empty(math.prod(shape), kind)
    view, checksum = memoryview(flat.view(np.uint8)), zlib.crc32(head)  # type: ignore[arg-type]
    for first in range(0, len(view), _CHUNK):
        part = view[first : first + _CHUNK]
        if file.readinto(part) != len(part):  # type: ignore[attr-defined]
            raise Damaged("it ends too early")
        checksum = zlib.crc32(part, checksum)
    if checksum != member.checksum:
        raise Damaged(f"{member.name} does not match its checksum")
    if kind.kind == "b" and flat.view(np.uint8).max(initial=0) > 1:
        raise Damaged(f"{member.name} is no array of plain numbers")
    try:
        return flat.reshape(shape, order="F" if said[2] == b"True" else "C")
    except ValueError as error:  # of no numbers, in more dimensions than there may be
        raise Damaged(f"{member.name} has another size than it says") from error


def _header(file: BinaryIO, member: _Member) -> dict[str, Any]:
    if member.size > HEADER_BYTES + (1 << 12):
        raise Damaged("its header is too long")
    raw = _array(file, member)
    if raw.dtype != np.uint8 or raw.ndim != 1:
        raise Damaged("its header is no text")
    try:
        header = json.loads(raw.tobytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Damaged("its header is no JSON") from error
    if not isinstance(header, dict) or "format" not in header:
        raise Damaged("its header says no format")
    return header
