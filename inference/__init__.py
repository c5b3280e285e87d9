"""How models are fitted, evaluated and compared.

fit = inference.fit("lda", data, engine="svi", hyper={"num_topics": 50}, num_epochs=3)
fit.posterior.mean("beta")
"""

import importlib
from typing import Any

from inference.registry import engines

_HOME = {"fit": "fitting", "load": "storage", "compare": "comparison", "stream": "streams"}
_HOME |= dict.fromkeys(("document_completion", "perplexity"), "evaluate")
_HOME |= {"log_evidence": "evidence", "precision_recall_at": "ranking"}
_HOME |= dict.fromkeys(("coherence", "diversity"), "topic_quality")
_HOME |= dict.fromkeys(("calibration_error", "score_probabilities", "score_votes"), "vote_scores")
_HOME |= dict.fromkeys(("loo", "waic"), "information")
_HOME |= dict.fromkeys(("topics", "top_words", "representative_documents", "prevalence", "format_topics"), "topic_tools")
_HOME |= dict.fromkeys(("predict_ratings", "score_ratings", "split_ratings"), "ratings")
_HOME |= {"predict_votes": "votes", "refit_members": "votes"}
_HOME |= dict.fromkeys(("topic_correlations", "correlation_figure", "nearest_documents"), "locations")

__all__ = [
    "calibration_error",
    "coherence",
    "compare",
    "correlation_figure",
    "diversity",
    "document_completion",
    "engines",
    "fit",
    "format_topics",
    "load",
    "log_evidence",
    "loo",
    "nearest_documents",
    "perplexity",
    "precision_recall_at",
    "predict_ratings",
    "predict_votes",
    "prevalence",
    "refit_members",
    "representative_documents",
    "score_probabilities",
    "score_ratings",
    "score_votes",
    "split_ratings",
    "stream",
    "top_words",
    "topic_correlations",
    "topics",
    "waic",
]


def __getattr__(name: str) -> Any:
    """Functions are imported when first used: `import inference` alone costs nothing."""
    if name in _HOME:
        return getattr(importlib.import_module(f"inference.{_HOME[name]}"), name)
    raise AttributeError(f"module 'inference' has no attribute {name!r}")
