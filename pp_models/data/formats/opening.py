"""Opening a file that may be anything: sizes are checked first, and damage is one sentence."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from pp_models.errors import InputError

LINE_BYTES = 1 << 26  # a longer line is not a text format's
MOST_TIMES = 250  # how much more than its length a file may unpack to, beside SOME_BYTES
SOME_BYTES = 1 << 23
LARGEST_INDEX = 2**31 - 2  # columns are stored as 32-bit integers


def usable(path: str | Path) -> Path:
    """The path that is meant, whether or not anything is there."""
    try:
        found = Path(path).expanduser()
        found.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, an unknown user
        name, why = str(path)[:100], error.__class__.__name__
        raise InputError(f"{name!r} is not a usable path ({why}): check it.") from error
    return found


def existing(path: str | Path) -> Path:
    """The path of a file that is there."""
    found = usable(path)
    if found.is_file():
        return found
    if found.is_dir():
        raise InputError(f"{path} is a folder: name one file in it.")
    if found.exists():
        raise InputError(f"{path} is not a regular file: copy its contents to one.")
    raise InputError(f"{path} does not exist: check the path.")


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a file is one sentence that names it."""
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        fail(path, "the compressed file is cut short or damaged: fetch or write it again", error)
    except OSError as error:
        what = error.strerror or error
        fail(path, f"the file cannot be read ({what}): check its permissions and the disk", error)
    except MemoryError as error:
        fail(path, "the matrix does not fit into memory: split the file into parts", error)


@contextlib.contextmanager
def parsed(path: Path, problem: str) -> Iterator[None]:
    """The same where NumPy, SciPy, HDF5 or Arrow read: foreign bytes make them raise anything."""
    with explained(path):
        try:
            yield
        except (InputError, MemoryError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            fail(path, problem.format(reason(error)), error)


def fail(path: Path, problem: str, cause: Exception | None = None, line: int = 0) -> NoReturn:
    """One sentence about a file, and a line of it."""
    raise InputError(f"{path}{f', line {line}' if line else ''}: {problem}.") from cause


def reason(error: Exception) -> str:
    """What somebody else's error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")


def check_shape(path: Path, shape: tuple[int, ...], num_entries: int) -> None:
    """One wrong index must not ask for a matrix of billions of rows."""
    for size, what in zip(shape, ("rows", "columns"), strict=True):
        if size > LARGEST_INDEX + 1 or size > 10_000_000 + 10 * num_entries:
            few = f"{size} {what} for {num_entries} entries are too many"
            fail(path, f"{few}: number the {what} consecutively instead of by identifiers")


def check_unpacked(path: Path, num_bytes: float) -> None:
    """An archive must not unpack to far more than it holds."""
    if num_bytes > 16 * SOME_BYTES + MOST_TIMES * path.stat().st_size:
        fail(path, f"it would unpack to more than {MOST_TIMES} times its length: check what it is")


class _Unpacked(io.RawIOBase):
    """What a gzipped file unpacks to, as long as it is in proportion to what was read of it."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file, self._num_bytes = path, file, 0
        self._stream = gzip.GzipFile(fileobj=file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        number = self._stream.readinto(buffer)
        self._num_bytes += number
        if self._num_bytes > SOME_BYTES + MOST_TIMES * self._file.tell():
            problem = f"the file unpacks to more than {MOST_TIMES} times its length"
            fail(self._path, f"{problem}: this is not a text file of counts")
        return number


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, uncompressed, without a byte-order mark."""
    with path.open("rb") as file:
        zipped = file.peek(2)[:2] == b"\x1f\x8b"
        if path.name.lower().endswith(".gz") and not zipped:
            fail(path, "the name ends in .gz but it is not gzip: rename it or fetch it again")
        with io.BufferedReader(_Unpacked(path, file), 1 << 16) if zipped else file as stream:
            mark = stream.peek(3)[:3]
            if mark[:2] in (b"\xff\xfe", b"\xfe\xff"):
                fail(path, "the text is UTF-16: save it again as UTF-8", line=1)
            if mark == b"\xef\xbb\xbf":
                stream.read(3)
            yield cast(BinaryIO, stream)


def lines(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    """One after the other, none of them endless."""
    number = 0
    while line := stream.readline(LINE_BYTES):
        number += 1
        if len(line) == LINE_BYTES:
            problem = f"the line is longer than {LINE_BYTES >> 20} MB: this is not a text format"
            fail(path, problem, line=number)
        yield line
