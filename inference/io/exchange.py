"""Topics in the layouts of other tools: OCTIS's dict of an output, topicwizard's TopicData."""

from typing import Any

import numpy as np

from inference.core import topics as core
from pp_models.errors import InputError, unknown
from pp_models.model import check_count


def octis(fit: Any, num_words: int = 10) -> dict[str, Any]:
    """What OCTIS's measures take: lists of words, (K, words) and (K, documents) probabilities."""
    parts, names = _parts(fit, num_words), _words(fit)
    return {
        "topics": [[names[v] for v in best] for best in core.largest(parts.columns, num_words)],
        "topic-word-matrix": parts.columns,
        "topic-document-matrix": np.asarray(fit.documents()).T,
    }


def topicwizard(fit: Any, num_words: int = 10) -> dict[str, Any]:
    """What `topicwizard.visualize(topic_data=...)` takes. Documents stand under their names,
    because a fit has no texts; `num_words` name a topic. The counts stay a sparse matrix."""
    parts, names = _parts(fit, num_words), _words(fit)
    if fit.data is None:
        raise InputError(
            "topicwizard shows the documents' counts, which this fit was loaded without: pass "
            "data= to load_fit."
        )
    number = fit.data.num_rows
    return {
        "corpus": list(fit.row_names or (f"document {d}" for d in range(number))),
        "vocab": np.asarray(names),
        "document_term_matrix": fit.data.matrix,
        "document_topic_matrix": np.asarray(fit.documents()),
        "topic_term_matrix": parts.columns,
        "document_representation": fit.data.matrix,
        "transform": lambda new: np.asarray(fit.transform(new)),
        "topic_names": [
            f"{k}: " + ", ".join(names[v] for v in best)
            for k, best in enumerate(core.largest(parts.columns, min(num_words, 4)))
        ],
    }


LAYOUTS = {"octis": octis, "topicwizard": topicwizard}


def layout_of(name: Any) -> Any:
    """The function that makes a layout."""
    if name not in LAYOUTS:
        raise unknown("layout of topics", str(name), LAYOUTS)
    return LAYOUTS[name]


def _parts(fit: Any, num_words: Any) -> Any:
    """Topics of counts: what other tools take are distributions over words."""
    check_count("num_words", num_words)
    if fit.provenance["kind"] not in ("counts", "text_and_votes"):
        raise InputError(
            f"OCTIS and topicwizard take topics of counts, and {fit.model.name} explains "
            f"{fit.provenance['kind']} data: use fit.topics() without as_."
        )
    return fit.parts()


def _words(fit: Any) -> list[str]:
    names = fit.column_names
    return [str(v) for v in range(fit.provenance["columns"])] if names is None else list(names)
