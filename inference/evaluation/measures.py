"""Held-out measures by name, for `pp-models evaluate`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from inference.core.completion import has_topics
from inference.evaluation.coherence import coherence, diversity
from inference.evaluation.completion import document_completion
from inference.evaluation.document_likelihood import check_model, log_evidence
from inference.evaluation.ranking import precision_recall_at
from inference.evaluation.ratings import score_ratings
from inference.evaluation.vote_scores import score_votes
from pp_models.data.types import Data
from pp_models.errors import InputError, unknown


class Row(NamedTuple):
    """One line of the table."""

    measure: str
    value: float
    standard_error: float
    units: str


class Settings(NamedTuple):
    """folds: of document completion. M: of precision and recall. num_words: of topics.
    seed: of what is held out within a document."""

    folds: int = 3
    M: int = 20
    num_words: int = 10
    seed: int = 0


Compute = Callable[[Any, Data, Settings], dict[str, Any]]


class Group(NamedTuple):
    """Measures that are computed together.

    compute: (fit, heldout, settings) -> name -> value with standard error. units: by name.
    usual: whether they are computed by default. topics: whether the model must have topics.
    """

    compute: Compute
    units: dict[str, str]
    usual: bool = True
    topics: bool = False


def _completion(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    score = document_completion(fit, heldout, settings.folds, settings.seed)
    error = score.perplexity * score.standard_error
    return {"completion": score, "perplexity": Row("", score.perplexity, error, "")}


def _ranking(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return precision_recall_at(fit, heldout, settings.M, seed=settings.seed)._asdict()


def _evidence(method: str) -> Group:
    units = {method: "nats per token, whole documents"}
    return Group(lambda f, x, s: {method: log_evidence(f, x, method, seed=s.seed)}, units, False)


def _coherence(name: str, usual: bool) -> Group:
    def compute(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
        number = min(settings.num_words, heldout.num_columns)
        return {name: coherence(fit, heldout, name, number)}

    return Group(compute, {name: "-1 to 1"}, usual, True)


def _diversity(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return {"diversity": diversity(fit, min(settings.num_words, heldout.num_columns))}


COMPLETION = {"completion": "nats per token, from the rest of the document", "perplexity": "words"}
RANKING = {"precision": "share of what M columns could hit", "recall": "share of held-out columns"}
RATINGS = {
    "rmse": "ratings",
    "mae": "ratings",
    "log_density": "nats per rating",
    "coverage": "share inside their 90 % interval",
}
VOTES = {
    "accuracy": "share of votes",
    "auc": "share of pairs",
    "log_loss": "nats per vote",
    "brier": "squared probability",
    "calibration_error": "probability",
}
GROUPS = {
    "counts": (
        Group(_completion, COMPLETION),
        Group(_ranking, RANKING, False),
        _evidence("chib"),
        _evidence("left_to_right"),
        _coherence("npmi", True),
        _coherence("c_v", False),
        Group(_diversity, {"diversity": "share of distinct words"}, True, True),
    ),
    "ratings": (Group(lambda f, x, _: score_ratings(f, x).measures, RATINGS),),
    "text_and_votes": (Group(lambda f, x, _: score_votes(f, x)._asdict(), VOTES),),
}


def groups_for(model: Any) -> dict[str, Group]:
    """The measures that suit a model: name -> group."""
    if model.kind not in GROUPS:
        told = f"There is no held-out measure for {model.kind} data, which {model.name} explains"
        raise InputError(f"{told}: use inference.loo or inference.waic.")
    suitable = (x for x in GROUPS[model.kind] if has_topics(model) or not x.topics)
    return {name: group for group in suitable for name in group.units}


def check_names(model: Any, names: Sequence[str]) -> None:
    """Refuse names of measures that do not suit a model."""
    known = groups_for(model)
    for name in names:
        if name not in known:
            raise unknown(f"measure that suits {model.name}", name, known)
        if name in ("chib", "left_to_right"):
            check_model(model)


def measure(
    fit: Any, heldout: Data, names: Sequence[str] = (), settings: Settings | None = None
) -> list[Row]:
    """The named measures of a fit, or the usual ones, each computed once."""
    check_names(fit.model, names)
    known = groups_for(fit.model)
    names = tuple(dict.fromkeys(names)) or tuple(name for name, x in known.items() if x.usual)
    found: dict[str, Any] = {}
    for name in names:
        if name not in found:
            found |= known[name].compute(fit, heldout, settings or Settings())
    rows = ((name, found[name], known[name].units[name]) for name in names)
    return [Row(name, x.value, x.standard_error, units) for name, x, units in rows]


def plain(row: Row) -> dict[str, Any]:
    """The row for JSON, with None for nan."""
    return {name: None if x != x else x for name, x in row._asdict().items()}


def table(rows: Sequence[Row]) -> str:
    """Aligned columns for a terminal."""
    cells = [
        ("measure", "value", "standard error", "units"),
        *((r.measure, f"{r.value:.4f}", f"{r.standard_error:.4f}", r.units) for r in rows),
    ]
    a, b, c = (max(len(cell[i]) for cell in cells) for i in range(3))
    return "\n".join(f"{w:<{a}}  {x:>{b}}  {y:>{c}}  {z}" for w, x, y, z in cells)
