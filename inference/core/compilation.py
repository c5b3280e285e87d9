"""Compiled programs kept on disk, so that a machine compiles each once, not in every process.

They are in $XDG_CACHE_HOME/pp-models (by default ~/.cache/pp-models), or where
JAX_COMPILATION_CACHE_DIR says; PP_MODELS_CACHE=off keeps none. A program is made for one kind of
processor. Each has a folder of its own, as machines that differ may share a home folder. Of several
processes that fit together JAX lets only the first write: other machines compile in each run.
"""

import contextlib
import os
import platform
import zlib
from pathlib import Path
from typing import Any

MOST_BYTES = 2_000_000_000  # of programs, beyond which the oldest are removed
KEPT_SECONDS = 0.0  # keep all: a small fit has hundreds of programs of milliseconds each


def processor() -> str:
    """A name for this kind of processor: its architecture, and a checksum of what it can do."""
    described = platform.processor()
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        flags = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
        described = next(flags, described)
    return f"{platform.machine()}-{zlib.crc32(described.encode()):08x}"


def folder() -> Path | None:
    """Where programs are kept, None where they are not."""
    if os.environ.get("PP_MODELS_CACHE", "").lower() in ("off", "0", "no"):
        return None
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with contextlib.suppress(RuntimeError):  # no home
        return Path(home).expanduser() / "pp-models" / "programs" / processor()
    return None


def keep_programs() -> None:
    """Read and write compiled programs from now on. What the user has told JAX stays as it is."""
    import jax

    place = folder()
    if place is None or jax.config.jax_compilation_cache_dir:
        return
    with contextlib.suppress(OSError):  # nowhere to write: everything compiles each time
        place.mkdir(parents=True, exist_ok=True)
        prune(place)
        settings: dict[str, Any] = {
            "jax_compilation_cache_dir": str(place),
            "jax_persistent_cache_min_compile_time_secs": KEPT_SECONDS,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        for name, value in settings.items():
            if name.upper() not in os.environ:
                jax.config.update(name, value)


def prune(place: Path, most: int = MOST_BYTES) -> None:
    """If programs take more than `most` bytes, remove the oldest until they take half of it."""
    stats = [(file.stat(), file) for file in place.iterdir() if file.is_file()]
    files = sorted(((one.st_mtime, one.st_size, file) for one, file in stats), reverse=True)
    total = sum(size for _, size, _ in files)
    goal = most // 2 if total > most else total
    while total > goal:
        _, size, file = files.pop()
        file.unlink(missing_ok=True)
        total -= size
