"""What results say of where they come from, in JSON's types."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np

from pp_models.models import VERSION


def versions() -> dict[str, str]:
    """Of everything that the numbers depend on."""
    packages = ("jax", "numpyro", "arviz", "numpy", "scipy")
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "pp_models": VERSION,
    }


def hash_of_names(names: Sequence[str] | None) -> str | None:
    """SHA-256 of the columns' names, recorded with every fit; None where they have none."""
    return None if names is None else hashlib.sha256("\0".join(names).encode()).hexdigest()


def plain(value: Any) -> Any:
    """JSON's types only; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray | jax.Array):
        return plain(np.asarray(value).tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
