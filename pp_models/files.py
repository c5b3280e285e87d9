"""Files and folders that are written whole or not at all, by one process at a time."""

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from pp_models.errors import InputError

STRAY_SECONDS = 600.0
_TEMPORARY = re.compile(r"\.tmp-(\d+)-.*")


def write_whole(path: Path, write: Callable[[Path], Any]) -> Path:
    """Let `write` fill a temporary file beside `path`, then put it in place: a failure leaves what was there before."""
    write_all({path: write})
    return path


def is_stray(path: Path) -> bool:
    """Whether a process that was killed while writing left this behind. Asked before this one writes: its own number may have been another's."""
    found = _TEMPORARY.fullmatch(path.name)
    return found is not None and (int(found[1]) == os.getpid() or not _runs(int(found[1])))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    with contextlib.suppress(OSError):  # where there is a list of them: one that has ended stays on it until its parent asks
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] not in ("Z", "X")
    return True


def remove_strays(folder: Path) -> None:
    """Temporary files of other processes that are no more, unless they are new: the process may run on another machine."""
    for file in folder.glob(".tmp-*"):
        with contextlib.suppress(OSError):
            if is_stray(file) and f"-{os.getpid()}-" not in file.name and file.stat().st_mtime < time.time() - STRAY_SECONDS:
                file.unlink()


def write_all(files: dict[Path, Callable[[Path], Any]], check: Callable[[], Any] = lambda: None) -> None:
    """The same for several files, none of which is put in place before all are written; the last one is put in place last.

    Where putting one in place fails, those before it are put back. check: called when all are written, and may refuse.
    """
    files = {Path(os.path.realpath(path)): write for path, write in files.items()}  # a link stays one, to the new contents
    temporary = {path: path.with_name(f".tmp-{os.getpid()}-{path.name}") for path in files}
    before = {path: path.with_name(f".tmp-{os.getpid()}-old-{path.name}") for path in list(files)[:-1]}
    placed: list[Path] = []
    try:
        for path, write in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_strays(path.parent)
            write(temporary[path])
            with temporary[path].open("rb+") as file:
                os.fsync(file.fileno())
        check()
        for path, old in before.items():
            if path.exists():
                shutil.copyfile(path, old)
        for path in files:
            os.replace(temporary[path], path)
            placed.append(path)
        for folder in {path.parent for path in files}:
            sync_folder(folder)  # the new name, too, survives a power cut
    except BaseException:
        if len(placed) < len(files):
            for path in placed:
                _put_back(path, before[path])
        raise
    finally:
        for path in (*temporary.values(), *before.values()):
            path.unlink(missing_ok=True)


def _put_back(path: Path, old: Path) -> None:
    if old.exists():
        os.replace(old, path)
    else:
        path.unlink()


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(folder: Path, advice: str) -> BinaryIO:
    """The folder's lock, held until the file returned is closed or its process ends, however it ends."""
    file = cast(BinaryIO, (folder / "lock").open("a+b", buffering=0))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read(20).decode("ascii", "replace") or "unknown"
        file.close()
        raise InputError(f"{folder} is open for writing already, by process {holder}: {advice}.") from error
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    return file


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Trouble with the disk in one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{folder} is damaged: {Path(error.filename).name} is missing; restore the folder from a copy.") from error
    except OSError as error:
        raise InputError(f"{folder} cannot be used ({error.strerror or error}): check its permissions and the disk.") from error
