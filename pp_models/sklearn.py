"""scikit-learn estimators, one for each model. They are in `inference.estimators`.

from pp_models.sklearn import LDA

LDA(n_components=20).fit(X).transform(X)
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Import the estimators, and JAX with them, when one is first asked for."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("inference.estimators"), name)
    except AttributeError:
        known = ", ".join(__dir__())
        raise AttributeError(f"There is no estimator {name}: there are {known}.") from None


def __dir__() -> list[str]:
    return dir(importlib.import_module("inference.estimators"))
