"""Files of text as arrays of numbers, and the sentences that say where a file is wrong.

Text is read in blocks of whole lines, and a block's numbers are found and converted together by array operations.
"""

import contextlib
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

import numpy as np

from pp_models.errors import InputError

BLOCK_BYTES = 1 << 23
LINE_BYTES = 1 << 26  # a longer line is not a text format's
MOST_TIMES = 250  # what a file of counts may unpack to, in lengths of the file, beside SOME_BYTES: gzip itself manages 1,000
SOME_BYTES = 1 << 23
LARGEST_COUNT = 2**24 - 1  # whole numbers up to here are exact in single precision
LARGEST_INDEX = 2**31 - 2  # columns are stored as 32-bit integers

NUMBER = re.compile(rb"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_TOKEN, _SPACE, _NEWLINE, _DELIMITER = range(4)


def usable(path: str | Path) -> Path:
    """The path that is meant, whether or not anything is there."""
    try:
        found = Path(path).expanduser()
        found.exists()
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, with a null byte, in an unknown user's home
        raise InputError(f"{str(path)[:100]!r} is not a usable path ({error.__class__.__name__}): check it.") from error
    return found


def existing(path: str | Path) -> Path:
    """The path of a file that is there."""
    found = usable(path)
    if found.is_file():
        return found
    if found.is_dir():
        raise InputError(f"{path} is a folder: name one file in it.")
    raise InputError(f"{path} is not a regular file: copy its contents to one." if found.exists() else f"{path} does not exist: check the path.")


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Trouble with the file in one sentence that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the compressed file is cut short or damaged: fetch or write it again.") from error
    except OSError as error:
        raise InputError(f"{path}: the file cannot be read ({error.strerror or error}): check its permissions and the disk.") from error
    except MemoryError as error:
        raise InputError(f"{path}: the matrix does not fit into memory: split the file into parts.") from error


def fail(path: Path, problem: str, line: int | None = None) -> NoReturn:
    """One sentence about a file, and a line of it."""
    raise InputError(f"{path}: {problem}." if line is None else f"{path}, line {line}: {problem}.")


def reason(error: Exception) -> str:
    """What somebody else's error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")


class Numbers(NamedTuple):
    """The whole numbers on some consecutive lines."""

    values: np.ndarray  # (numbers,)
    line: np.ndarray  # (numbers,) line of each, counted from the first line of the block
    place: np.ndarray  # (numbers,) position of each within its line
    marks: np.ndarray  # (numbers,) delimiters before it within its line
    per_line: np.ndarray  # (lines,) numbers
    marks_per_line: np.ndarray  # (lines,) delimiters
    first: int  # line number, in the file, of the first line


class _Unpacked(io.RawIOBase):
    """What a gzipped file unpacks to, as long as it is not out of all proportion to the file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file, self._stream, self._num_bytes = path, file, gzip.GzipFile(fileobj=file), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        number = self._stream.readinto(buffer)
        self._num_bytes += number
        if self._num_bytes > SOME_BYTES + MOST_TIMES * self._file.tell():  # of what was read so far: not at the end only
            fail(self._path, f"the file unpacks to more than {MOST_TIMES} times its length: this is not a text file of counts")
        return number


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, uncompressed, without a byte-order mark."""
    with path.open("rb") as file:
        zipped = file.peek(2)[:2] == b"\x1f\x8b"
        if path.name.lower().endswith(".gz") and not zipped:
            fail(path, "the name ends in .gz but the contents are not gzip: remove .gz from the name or fetch the file again")
        with io.BufferedReader(_Unpacked(path, file), 1 << 16) if zipped else file as stream:
            mark = stream.peek(3)[:3]
            if mark[:2] in (b"\xff\xfe", b"\xfe\xff"):
                fail(path, "the text is UTF-16: save it again as UTF-8", 1)
            if mark == b"\xef\xbb\xbf":
                stream.read(3)
            yield cast(BinaryIO, stream)


def line_blocks(path: Path, stream: BinaryIO, start: bytes = b"", first: int = 1) -> Iterator[tuple[int, bytes]]:
    """(line number, whole lines) until the end of the stream. `start`: what was read already of it."""
    rest = start
    while chunk := stream.read(BLOCK_BYTES):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            text = rest + chunk[:cut]
            yield first, text
            first, rest = first + text.count(b"\n"), chunk[cut:]
        else:
            rest += chunk
        if len(rest) > LINE_BYTES:
            fail(path, f"the line is longer than {LINE_BYTES >> 20} MB: this is not a text file of counts", first + rest.count(b"\n"))
    if rest:
        yield first, rest if rest.endswith(b"\n") else rest + b"\n"


def scan_numbers(path: Path, stream: BinaryIO, delimiters: bytes = b"", start: bytes = b"", first: int = 1) -> Iterator[Numbers]:
    kinds = np.full(256, _TOKEN, np.uint8)
    kinds[list(b" \t\r")] = _SPACE
    kinds[list(delimiters)] = _DELIMITER
    kinds[ord("\n")] = _NEWLINE
    for line, text in line_blocks(path, stream, start, first):
        yield _scan(path, line, text, kinds)


def _scan(path: Path, first: int, text: bytes, kinds: np.ndarray) -> Numbers:
    raw = np.frombuffer(text, np.uint8)
    kind = kinds[raw]
    inside = (kind == _TOKEN).view(np.int8)
    edges = np.diff(inside, prepend=np.int8(0), append=np.int8(0))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    breaks, delimiters = np.flatnonzero(kind == _NEWLINE), np.flatnonzero(kind == _DELIMITER)
    line = np.searchsorted(breaks, starts)
    per_line = np.bincount(line, minlength=len(breaks))
    marks_per_line = np.bincount(np.searchsorted(breaks, delimiters), minlength=len(breaks))
    place = np.arange(len(starts)) - (np.cumsum(per_line) - per_line)[line]
    marks = np.searchsorted(delimiters, starts) - (np.cumsum(marks_per_line) - marks_per_line)[line]

    widths = ends - starts
    values = np.zeros(len(starts), np.int64)
    for digit in range(min(int(widths.max(initial=0)), 15)):
        some = np.flatnonzero(widths > digit)
        values[some] = 10 * values[some] + (raw[starts[some] + digit] - ord("0"))
    other = np.flatnonzero(inside.astype(bool) & ((raw < ord("0")) | (raw > ord("9"))))
    written_otherwise = np.searchsorted(starts, other, side="right") - 1  # signs, points, exponents, and what is no number at all
    odd = np.union1d(written_otherwise, np.flatnonzero(widths > 15))
    written = [text[start:end] for start, end in zip(starts[odd].tolist(), ends[odd].tolist(), strict=True)]
    places = dict(zip(reversed(written), reversed(odd.tolist()), strict=True))  # where each is written first: the same few come again and again
    known = {token: whole_number(path, first + int(line[place]), token) for token, place in sorted(places.items(), key=lambda item: item[1])}
    values[odd] = [known[token] for token in written]
    return Numbers(values, line, place, marks, per_line, marks_per_line, first)


def whole_number(path: Path, line: int, token: bytes) -> int:
    shown = repr(token[:30].decode("ascii", "backslashreplace"))
    if not NUMBER.fullmatch(token):
        fail(path, f"{shown} is not a number: counts and indices are written as whole numbers", line)
    number = float(token)
    if number < 0:
        fail(path, f"{shown} is negative: counts and indices must be 0 or more", line)
    if not number.is_integer():
        fail(path, f"{shown} is not a whole number: store raw counts, and leave out missing ones", line)
    return int(min(number, 2.0**53))  # far above what any count or index may be


def check(path: Path, bad: np.ndarray, lines: np.ndarray, problem: str, *shown: np.ndarray) -> None:
    """Fail at the first place that is bad. `lines`: the line number of each place; `shown`: what to put into the message's braces."""
    if bad.any():
        first = int(np.argmax(bad))
        fail(path, problem.format(*(values[first] for values in shown)), int(lines[first]))


def check_counts(path: Path, values: np.ndarray, lines: np.ndarray) -> None:
    check(path, values > LARGEST_COUNT, lines, f"the count {{}} is above {LARGEST_COUNT}, the largest that can be used: rescale it", values)


def check_indices(path: Path, index: np.ndarray, lines: np.ndarray) -> None:
    check(path, index > LARGEST_INDEX, lines, "the index {} is too large: number rows and columns consecutively from 0", index)


def check_range(path: Path, triples: np.ndarray, lines: np.ndarray, shape: tuple[int, ...]) -> None:
    """Indices counted from 1 must lie within the shape in the header."""
    for axis, (what, size) in enumerate(zip(("row", "column"), shape, strict=True)):
        index = triples[:, axis]
        check(path, (index < 1) | (index > size), lines, f"{what} {{}} is outside 1 to {size}: correct the index or the header", index)


def rows_of(path: Path, block: Numbers, width: int, pattern: str, delimited: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(lines, width) numbers of a block whose lines hold `width` numbers each or are blank, and their line numbers in the file."""
    blank = (block.per_line == 0) & (block.marks_per_line == 0)
    bad = ~blank & ((block.per_line != width) | (block.marks_per_line != delimited * (width - 1)))
    if delimited:
        bad[block.line[block.marks != block.place]] = True
    lines = block.first + np.arange(len(bad))
    check(path, bad, lines, f"{{}} number(s) do not read as `{pattern}`: complete, correct or delete the line", block.per_line)
    return block.values.reshape(-1, width), lines[~blank]


def gather(parts: list[np.ndarray], width: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, width), np.int64)


def check_shape(path: Path, shape: tuple[int, ...], num_entries: int) -> None:
    """One wrong index must not ask for a matrix of billions of rows."""
    for size, what in zip(shape, ("rows", "columns"), strict=True):
        if size > LARGEST_INDEX + 1 or size > 10_000_000 + 10 * num_entries:
            fail(path, f"{size} {what} for {num_entries} entries are too many: number the {what} consecutively instead of by identifiers")
