"""Opening files: sizes are checked before memory is allocated, and every error is one sentence."""

import contextlib
import errno
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from pp_models.errors import InputError

LINE_BYTES = 1 << 26  # no text format has longer lines
MOST_TIMES = 250  # a file may unpack to so many times its length, and SOME_BYTES
SOME_BYTES = 1 << 23
LARGEST_INDEX = 2**31 - 2  # columns are 32-bit integers


def usable(path: str | Path) -> Path:
    """The path, with `~` expanded. Nothing needs to be there."""
    try:
        found = Path(path).expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found.stat()
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        name, why = str(path)[:100], error.__class__.__name__
        raise InputError(f"{name!r} is not a usable path ({why}): check it.") from error
    return found


def existing(path: str | Path) -> Path:
    """The path of a file that exists."""
    found = usable(path)
    if found.is_file():
        return found
    if found.is_dir():
        raise InputError(f"{path} is a folder: name one file in it.")
    if found.exists():
        raise InputError(f"{path} is not a regular file: copy its contents to one.")
    raise InputError(f"{path} does not exist: check the path.")


@contextlib.contextmanager
def reading(path: Path, what: str = "a complete file") -> Iterator[None]:
    """Turn any error into one sentence that names the file. Damaged bytes may raise anything."""
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        fail(path, "the compressed file is cut short or damaged: fetch or write it again", error)
    except MemoryError as error:
        fail(path, "the matrix does not fit into memory: split the file into parts", error)
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            problem = f"the file cannot be read ({error.strerror}): check permissions and the disk"
            fail(path, problem, error)
        problem = f"not {what} ({reason(error)}): restore it from a copy, or write it again"
        fail(path, problem, error)


def fail(path: Path, problem: str, cause: Exception | None = None, line: int = 0) -> NoReturn:
    """Raise one sentence about a file, or a line of it."""
    raise InputError(f"{path}{f', line {line}' if line else ''}: {problem}.") from cause


def reason(error: Exception) -> str:
    """The first line of another library's error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")


def check_shape(path: Path, shape: Any, num_entries: int) -> None:
    """Refuse a shape that has far more rows or columns than entries: one index is wrong."""
    for size, what in zip(shape, ("rows", "columns"), strict=True):
        if size > LARGEST_INDEX + 1 or size > 10_000_000 + 10 * num_entries:
            few = f"{size} {what} for {num_entries} entries are too many"
            fail(path, f"{few}: number the {what} consecutively instead of by identifiers")


def check_unpacked(path: Path, num_bytes: float) -> None:
    """Refuse an archive that would unpack to far more bytes than it has."""
    files = path.rglob("*") if path.is_dir() else [path]
    if num_bytes > 16 * SOME_BYTES + MOST_TIMES * sum(file.stat().st_size for file in files):
        fail(path, f"it would unpack to more than {MOST_TIMES} times its length: check what it is")


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a text, gzipped or not, without a byte-order mark."""
    with path.open("rb") as file:
        zipped = file.peek(2)[:2] == b"\x1f\x8b"
        if path.name.lower().endswith(".gz") and not zipped:
            fail(path, "the name ends in .gz but it is not gzip: rename it or fetch it again")
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if zipped else file
        number, num_bytes, most = 0, 0, SOME_BYTES if zipped else float("inf")
        while line := stream.readline(LINE_BYTES):
            number, num_bytes = number + 1, num_bytes + len(line)
            if number == 1:
                if line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    fail(path, "the text is UTF-16: save it again as UTF-8", line=1)
                line = line.removeprefix(b"\xef\xbb\xbf")
            if len(line) == LINE_BYTES:
                limit = f"the line is longer than {LINE_BYTES >> 20} MB"
                fail(path, f"{limit}: this is not a text format", line=number)
            if num_bytes > most:
                most = SOME_BYTES + MOST_TIMES * file.tell()
                if num_bytes > most:
                    problem = f"the file unpacks to more than {MOST_TIMES} times its length"
                    fail(path, f"{problem}: this is not a text file of counts")
            yield line
