"""A zoo of latent-factor models, each declared once and fitted by every engine of `inference`.

import pp_models
pp_models.available()                  # ['bayesian_nmf', 'lda', ...]
fit = pp_models.fit("lda", texts, num_topics=20)
model = pp_models.load("lda")
data = pp_models.data.counts(X)
"""

import importlib
import importlib.util
from typing import Any

from pp_models.errors import InputError
from pp_models.models import VERSION, available, load

__version__ = VERSION

# Short names of modules, and `inference`'s own names: another package on PyPI is called that, too.
_LAZY = {name: f"pp_models.data.{name}" for name in ("arrivals", "corpus", "database", "text")}
_LAZY |= {"readers": "pp_models.data.formats.readers", "testing": "inference.calibration.testing"}
_MODULES = [
    "base",
    "data",
    "datasets",
    "eliminate",
    "errors",
    "families",
    "model",
    "models",
    "sklearn",
]
_FITTED = {name: name for name in ("choose", "compare", "engines", "explore", "fit", "stream")}
_FITTED |= {"load_fit": "load"}
__all__ = ["InputError", "available", "data", "datasets", "load", *_FITTED, *_LAZY]


def __getattr__(name: str) -> Any:
    """Load what imports JAX when it is first asked for: modules, and functions of `inference`."""
    if name in _LAZY:
        return importlib.import_module(_LAZY[name])
    if name in _FITTED:
        return getattr(importlib.import_module("inference"), _FITTED[name])
    if name[:1] != "_" and importlib.util.find_spec(f"pp_models.{name}") is not None:
        return importlib.import_module(f"pp_models.{name}")
    inference = importlib.import_module("inference")
    if name[:1] != "_" and name in inference.__all__:
        return getattr(inference, name)
    raise AttributeError(f"module 'pp_models' has no attribute {name!r}")


def __dir__() -> list[str]:
    fitted = importlib.import_module("inference").__all__
    return sorted({*__all__, *_MODULES, *fitted, "__version__"})
