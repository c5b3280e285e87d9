"""How models are fitted, evaluated and compared.

fit = inference.fit("lda", data, engine="svi", hyper={"num_topics": 50}, num_epochs=3)
fit.posterior.mean("beta")
"""

import importlib
from typing import Any

from inference import engines

_PLACES = {
    "run.fit": "fit",
    "run.stream": "stream",
    "io.fits": "load",
    "comparison.compare": "compare",
    "evaluation.choose": "choose",
    "evaluation.completion": "document_completion perplexity",
    "evaluation.document_likelihood": "log_evidence",
    "evaluation.ranking": "precision_recall_at",
    "evaluation.coherence": "coherence diversity",
    "evaluation.vote_scores": "calibration_error score_probabilities score_votes",
    "evaluation.information": "loo waic",
    "evaluation.topics": "format_topics prevalence representative_documents top_words topics",
    "evaluation.ratings": "predict_ratings score_ratings split_ratings",
    "evaluation.votes": "predict_votes refit_members",
    "evaluation.locations": "correlation_figure nearest_documents topic_correlations",
    "report.explore": "explore",
}
_HOME = {name: module for module, names in _PLACES.items() for name in names.split()}

__all__ = ["engines", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    """Functions are imported when first used: `import inference` alone costs nothing."""
    if name in _HOME:
        return getattr(importlib.import_module(f"inference.{_HOME[name]}"), name)
    raise AttributeError(f"module 'inference' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
