"""Files that are written whole or not at all, and folders with one writer at a time."""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from pp_models.errors import InputError

STRAY_SECONDS = 600.0
Files = dict[Path, Callable[[Path], Any]]  # each with the function that writes it
_TEMPORARY = re.compile(r"\.tmp-(\d+)-.*")


def write_whole(path: Path, write: Callable[[Path], Any]) -> Path:
    """Let `write` fill a temporary file, then rename it: a failure leaves the old file."""
    _write_all({path: write}, lambda: None)
    return path


def _write_all(files: Files, check: Callable[[], Any]) -> None:
    """Write all files, call `check`, which may raise, then rename them in order."""
    files = {Path(os.path.realpath(path)): write for path, write in files.items()}  # keeps links
    temporary = {path: path.with_name(f".tmp-{os.getpid()}-{path.name}") for path in files}
    try:
        for path, write in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_strays(path.parent)
            write(temporary[path])
            with temporary[path].open("rb+") as file:
                os.fsync(file.fileno())
        check()
        if folder := next((path for path in files if path.is_dir()), None):
            raise IsADirectoryError(21, f"{folder.name} is a folder")
        for path in files:
            os.replace(temporary[path], path)
        for folder in {path.parent for path in files}:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # the new name survives a power cut
            finally:
                os.close(descriptor)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


def write_new(path: Path, files: Files, overwrite: bool, check: Any = lambda: None) -> Path:
    """Write files that do not exist yet, unless they are to be overwritten."""

    def refuse() -> None:
        there = next((file for file in reversed(files) if file.exists()), None)
        if there is not None and not overwrite:
            fix = "choose another name, or have it overwritten (--overwrite)"
            raise InputError(f"{there} is there already: {fix}.")
        check()

    refuse()
    try:
        _write_all(files, refuse)  # again: another process may have written meanwhile
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise InputError(f"{path} {what}: check the folder's permissions and the disk.") from error
    return path


def is_stray(path: Path) -> bool:
    """Whether a process that was killed left this temporary file.

    Ask before this process writes: an earlier process may have had the same number.
    """
    found = _TEMPORARY.fullmatch(path.name)
    return found is not None and (int(found[1]) == os.getpid() or not _runs(int(found[1])))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    with contextlib.suppress(OSError):  # a zombie has ended
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return status.rpartition(")")[2].split()[0] not in ("Z", "X")
    return True


def _remove_strays(folder: Path) -> None:
    """Remove old temporary files of ended processes. New ones may be another machine's."""
    for file in folder.glob(".tmp-*"):
        with contextlib.suppress(OSError):
            old = file.stat().st_mtime < time.time() - STRAY_SECONDS
            if old and is_stray(file) and f"-{os.getpid()}-" not in file.name:
                file.unlink()


def lock(folder: Path, advice: str) -> BinaryIO:
    """Lock the folder until the returned file is closed or the process ends."""
    file = cast(BinaryIO, (folder / "lock").open("a+b", buffering=0))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read(20).decode("ascii", "replace") or "unknown"
        file.close()
        what = f"is open for writing already, by process {holder}"
        raise InputError(f"{folder} {what}: {advice}.") from error
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    return file


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        what = f"is damaged: {Path(error.filename).name} is missing"
        raise InputError(f"{folder} {what}; restore the folder from a copy.") from error
    except OSError as error:
        what = f"cannot be used ({error.strerror or error})"
        raise InputError(f"{folder} {what}: check its permissions and the disk.") from error
