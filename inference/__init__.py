"""How models are fitted, evaluated and compared.

fit = inference.fit("lda", data, engine="svi", hyper={"num_topics": 50}, num_epochs=3)
fit.posterior.mean("beta")
"""

import importlib
from typing import Any

from inference.registry import engines

_HOME = {"fit": "fitting", "load": "storage", "compare": "comparison", "stream": "streams"}
_HOME |= dict.fromkeys(("document_completion", "perplexity"), "evaluate")
_HOME |= {"log_evidence": "evidence"}
_HOME |= dict.fromkeys(("topics", "top_words", "representative_documents", "prevalence", "format_topics"), "topic_tools")
_HOME |= dict.fromkeys(("predict_ratings", "score_ratings", "split_ratings"), "ratings")
_HOME |= {"predict_votes": "votes", "refit_members": "votes"}
_HOME |= dict.fromkeys(("topic_correlations", "correlation_figure", "nearest_documents"), "locations")

__all__ = ["compare", "correlation_figure", "document_completion", "engines", "fit", "format_topics", "load", "nearest_documents", "predict_ratings"]
__all__ += [
    "log_evidence",
    "perplexity",
    "predict_votes",
    "prevalence",
    "refit_members",
    "representative_documents",
    "score_ratings",
    "split_ratings",
    "stream",
    "top_words",
    "topic_correlations",
    "topics",
]


def __getattr__(name: str) -> Any:
    """Functions are imported when first used: `import inference` alone costs nothing."""
    if name in _HOME:
        return getattr(importlib.import_module(f"inference.{_HOME[name]}"), name)
    raise AttributeError(f"module 'inference' has no attribute {name!r}")
