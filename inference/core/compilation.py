"""Compiled programs kept on disk, so that each is compiled once on a machine.

They are in $XDG_CACHE_HOME/pp-models (by default ~/.cache/pp-models), or where
JAX_COMPILATION_CACHE_DIR says; PP_MODELS_CACHE=off keeps none. Every kind of processor and every
version of jaxlib has its own folder: different machines may share a home folder, and another
version may crash on a program. JAX lets only the first of several joined processes write.
"""

import contextlib
import functools
import os
import platform
import sys
import zlib
from importlib import metadata
from pathlib import Path
from typing import Any

MOST_BYTES = 2_000_000_000  # of programs, beyond which the oldest are removed
MOST_MAPS = 0.5  # of the memory maps that Linux allows a process; every program takes some


def processor() -> str:
    """A name for this kind of processor: its architecture, and a checksum of what it can do."""
    described = platform.processor()
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        flags = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
        described = next(flags, described)
    return f"{platform.machine()}-{zlib.crc32(described.encode()):08x}"


def jaxlib() -> str:
    """The version of the compiler."""
    return metadata.version("jaxlib")


def folder() -> Path | None:
    """Where programs are kept, None where they are not.

    On macOS, jaxlib below 0.10 crashes when it loads a program.
    """
    if os.environ.get("PP_MODELS_CACHE", "").lower() in ("off", "0", "no"):
        return None
    if sys.platform == "darwin" and tuple(map(int, jaxlib().split(".")[:2])) < (0, 10):
        return None
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with contextlib.suppress(RuntimeError):  # no home
        return Path(home).expanduser() / "pp-models" / "programs" / f"{processor()}-{jaxlib()}"
    return None


@functools.cache
def keep_programs() -> None:
    """Read and write compiled programs from now on. The user's own settings of JAX stay.

    Called by the command line and by the first fit of a process.
    """
    import jax

    place = folder()
    if place is None or jax.config.jax_compilation_cache_dir:
        return
    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": str(place),
        "jax_persistent_cache_min_compile_time_secs": 0.0,  # a small fit has hundreds of programs
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    with contextlib.suppress(OSError):  # nowhere to write: everything compiles each time
        place.mkdir(parents=True, exist_ok=True)
        prune(place)
        for name in settings.keys() - {name.lower() for name in os.environ}:
            jax.config.update(name, settings[name])


def prune(place: Path, most: int = MOST_BYTES) -> None:
    """If programs take more than `most` bytes, remove the oldest until they take half of it."""
    stats = [(file.stat(), file) for file in place.iterdir() if file.is_file()]
    oldest = sorted((one.st_mtime, one.st_size, file) for one, file in stats)
    total = sum(size for _, size, _ in oldest)
    goal = most // 2 if total > most else total
    for _, size, file in oldest:
        if total <= goal:
            break
        file.unlink(missing_ok=True)
        total -= size


def make_room(share: float = MOST_MAPS) -> bool:
    """Forget the compiled programs of this process if they take too many memory maps.

    Without maps the next compilation ends the process. Called between fits: a program that is
    still needed is compiled again, or read from disk. Returns whether they were forgotten.
    """
    try:
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
        used = Path("/proc/self/maps").read_bytes().count(b"\n")
    except (OSError, ValueError):  # not Linux
        return False
    if used <= share * allowed:
        return False
    import jax

    jax.clear_caches()
    return True
