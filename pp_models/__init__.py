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

_LAZY = {name: f"data.{name}" for name in ("arrivals", "corpus", "database", "text")}
_LAZY |= {"readers": "data.formats.readers"}
_MODULES = ["base", "data", "datasets", "eliminate", "errors", "families", "model", "models"]
_MODULES += ["sklearn"]
# Names of `inference`, which another package on PyPI is called, too.
_FITTED = {"load_fit": "load"} | {
    name: name for name in ("compare", "engines", "explore", "fit", "stream")
}
__all__ = ["InputError", "arrivals", "available", "compare", "corpus", "data", "database"]
__all__ += [
    "datasets",
    "engines",
    "explore",
    "fit",
    "load",
    "load_fit",
    "readers",
    "stream",
    "text",
]


def __getattr__(name: str) -> Any:
    """Load what imports JAX when it is first asked for: modules, and functions of `inference`."""
    if name in _LAZY:
        return importlib.import_module(f"pp_models.{_LAZY[name]}")
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
