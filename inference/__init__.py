"""How models are fitted, evaluated and compared.

fit = inference.fit("lda", data, engine="svi", hyper={"num_topics": 50}, num_epochs=3)
fit.posterior.mean("beta")
"""

import importlib
from typing import Any

from inference.registry import engines

_HOME = {"fit": "fitting", "load": "storage", "document_completion": "evaluate", "compare": "comparison", "stream": "streams"}
_HOME |= dict.fromkeys(("topics", "top_words", "representative_documents", "prevalence", "format_topics"), "topic_tools")
_HOME |= dict.fromkeys(("predict_ratings", "score_ratings", "split_ratings"), "ratings")

__all__ = ["compare", "document_completion", "engines", "fit", "format_topics", "load", "predict_ratings", "prevalence", "representative_documents"]
__all__ += ["score_ratings", "split_ratings", "stream", "top_words", "topics"]


def __getattr__(name: str) -> Any:
    """Functions are imported when first used: `import inference` alone costs nothing."""
    if name in _HOME:
        return getattr(importlib.import_module(f"inference.{_HOME[name]}"), name)
    raise AttributeError(f"module 'inference' has no attribute {name!r}")
