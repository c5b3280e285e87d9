"""A zoo of latent-factor models, each declared once and fitted by every engine of `inference`.

import pp_models
pp_models.available()                  # ['bayesian_nmf', 'lda', ...]
model = pp_models.load("lda")
data = pp_models.data.counts(X)
"""

import importlib
from typing import Any

from pp_models.errors import InputError
from pp_models.models import VERSION, available, load

__version__ = VERSION

_LAZY = {name: f"data.{name}" for name in ("arrivals", "corpus", "database", "text")}
_LAZY |= {"data": "data", "datasets": "datasets", "readers": "data.formats.readers"}
_OF_INFERENCE = {"testing": "calibration.testing", "choose": "evaluation.choose"}  # modules there
__all__ = [
    "InputError",
    "arrivals",
    "available",
    "choose",
    "data",
    "database",
    "datasets",
    "load",
    "testing",
]


def __getattr__(name: str) -> Any:
    """Load modules that import JAX when they are first asked for."""
    if name in _LAZY:
        return importlib.import_module(f"pp_models.{_LAZY[name]}")
    if name in _OF_INFERENCE:
        module = importlib.import_module(f"inference.{_OF_INFERENCE[name]}")
        return getattr(module, name, module)  # the function of that name, or the module
    raise AttributeError(f"module 'pp_models' has no attribute {name!r}")
