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


def _completion(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    score = document_completion(fit, heldout, settings.folds, settings.seed)
    error = score.perplexity * score.standard_error
    return {"completion": score, "perplexity": Row("", score.perplexity, error, "")}


def _evidence(method: str) -> Compute:
    return lambda fit, data, settings: {method: log_evidence(fit, data, method, seed=settings.seed)}


def _ranking(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return precision_recall_at(fit, heldout, settings.M, seed=settings.seed)._asdict()


def _coherence(measure: str) -> Compute:
    def compute(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
        number = min(settings.num_words, heldout.num_columns)
        return {measure: coherence(fit, heldout, measure, number)}

    return compute


def _diversity(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return {"diversity": diversity(fit, min(settings.num_words, heldout.num_columns))}


def _ratings(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return score_ratings(fit, heldout).measures


def _votes(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return score_votes(fit, heldout)._asdict()


class Kind(NamedTuple):
    """compute: (fit, heldout, settings) -> name -> value with standard error. usual: whether it is
    computed by default. needs_topics: whether the model must have topics."""

    compute: Compute
    units: str
    usual: bool = True
    needs_topics: bool = False


MEASURES = {
    "counts": {
        "completion": Kind(_completion, "nats per token, from the rest of the document"),
        "perplexity": Kind(_completion, "words"),
        "precision": Kind(_ranking, "share of what M columns could hit", False),
        "recall": Kind(_ranking, "share of held-out columns", False),
        "chib": Kind(_evidence("chib"), "nats per token, whole documents", False),
        "left_to_right": Kind(_evidence("left_to_right"), "nats per token, whole documents", False),
        "npmi": Kind(_coherence("npmi"), "-1 to 1", True, True),
        "c_v": Kind(_coherence("c_v"), "-1 to 1", False, True),
        "diversity": Kind(_diversity, "share of distinct words", True, True),
    },
    "ratings": {
        "rmse": Kind(_ratings, "ratings"),
        "mae": Kind(_ratings, "ratings"),
        "log_density": Kind(_ratings, "nats per rating"),
        "coverage": Kind(_ratings, "share inside their 90 % interval"),
    },
    "text_and_votes": {
        "accuracy": Kind(_votes, "share of votes"),
        "auc": Kind(_votes, "share of pairs"),
        "log_loss": Kind(_votes, "nats per vote"),
        "brier": Kind(_votes, "squared probability"),
        "calibration_error": Kind(_votes, "probability"),
    },
}


def measures_for(model: Any) -> dict[str, Kind]:
    """The measures that suit a model, by name."""
    if model.kind not in MEASURES:
        told = f"There is no held-out measure for {model.kind} data, which {model.name} explains"
        raise InputError(f"{told}: use inference.loo or inference.waic.")
    topics = has_topics(model)
    return {name: x for name, x in MEASURES[model.kind].items() if topics or not x.needs_topics}


def check_names(model: Any, names: Sequence[str]) -> None:
    """Refuse names of measures that do not suit a model."""
    known = measures_for(model)
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
    known = measures_for(fit.model)
    names = tuple(dict.fromkeys(names)) or tuple(name for name, x in known.items() if x.usual)
    done: dict[Compute, dict[str, Any]] = {}
    for compute in dict.fromkeys(known[name].compute for name in names):
        done[compute] = compute(fit, heldout, settings or Settings())
    found = {name: done[known[name].compute][name] for name in names}
    return [Row(n, x.value, x.standard_error, known[n].units) for n, x in found.items()]


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
