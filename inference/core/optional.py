"""Optional dependencies, imported when a function needs them."""

import importlib
from typing import Any

from pp_models.errors import InputError


def load_matplotlib() -> Any:
    """matplotlib with its figures and patches."""
    try:
        for part in ("figure", "patches"):
            importlib.import_module(f"matplotlib.{part}")
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise InputError(
            "Figures need matplotlib: install it with pip install 'pp-models[figures]'."
        ) from error
