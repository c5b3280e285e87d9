"""Held-out measures by name, and which of them suit a fit: what `python -m pp_models evaluate` prints."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import inference
from inference.evaluation.document_likelihood import check_model
from inference.evaluation.topics import has_topics
from pp_models.data.types import Data
from pp_models.errors import InputError, unknown


class Row(NamedTuple):
    """One line of the table."""

    measure: str
    value: float
    standard_error: float
    units: str


class Settings(NamedTuple):
    """folds: of document completion. M: of precision and recall. num_words: of topics. seed: what is held out within a document."""

    folds: int = 3
    M: int = 20
    num_words: int = 10
    seed: int = 0


Answer = Callable[[Any, Data, Settings], dict[str, Any]]


def _completion(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    score = inference.document_completion(fit, heldout, settings.folds, settings.seed)
    return {
        "completion": score,
        "perplexity": Row(
            "perplexity", score.perplexity, score.perplexity * score.standard_error, "words"
        ),
    }


def _evidence(method: str, fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return {method: inference.log_evidence(fit, heldout, method, seed=settings.seed)}


def _ranking(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return inference.precision_recall_at(fit, heldout, settings.M, seed=settings.seed)._asdict()


def _coherence(measure: str, fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return {
        measure: inference.coherence(
            fit, heldout, measure, min(settings.num_words, heldout.num_columns)
        )
    }


def _diversity(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return {"diversity": inference.diversity(fit, min(settings.num_words, heldout.num_columns))}


def _ratings(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return inference.score_ratings(fit, heldout).measures


def _votes(fit: Any, heldout: Data, settings: Settings) -> dict[str, Any]:
    return inference.score_votes(fit, heldout)._asdict()


UNITS = {
    "completion": "nats per token, from the rest of the document",
    "perplexity": "words",
    "chib": "nats per token, whole documents",
    "left_to_right": "nats per token, whole documents",
    "precision": "share of what M columns could hit",
    "recall": "share of held-out columns",
    "npmi": "-1 to 1",
    "c_v": "-1 to 1",
    "diversity": "share of distinct words",
    "rmse": "ratings",
    "mae": "ratings",
    "log_density": "nats per rating",
    "coverage": "share inside their 90 % interval",
    "accuracy": "share of votes",
    "auc": "share of pairs",
    "log_loss": "nats per vote",
    "brier": "squared probability",
    "calibration_error": "probability",
}


def answers(model: Any) -> tuple[dict[str, Answer], tuple[str, ...]]:
    """name -> what computes it, of all measures that suit a model, and the names of those that are computed unless others are asked for."""
    if model.kind == "ratings":
        found: dict[str, Answer] = dict.fromkeys(
            ("rmse", "mae", "log_density", "coverage"), _ratings
        )
        return found, tuple(found)
    if model.kind == "text_and_votes":
        found = dict.fromkeys(("accuracy", "auc", "log_loss", "brier", "calibration_error"), _votes)
        return found, tuple(found)
    if model.kind != "counts":
        raise InputError(
            f"There is no held-out measure for {model.kind} data, which {model.name} explains: use inference.loo or inference.waic."
        )
    found = {
        "completion": _completion,
        "perplexity": _completion,
        "precision": _ranking,
        "recall": _ranking,
    }
    found |= {method: partial(_evidence, method) for method in ("chib", "left_to_right")}
    usual: tuple[str, ...] = ("completion", "perplexity")
    if has_topics(model):
        found |= {measure: partial(_coherence, measure) for measure in ("npmi", "c_v")} | {
            "diversity": _diversity
        }
        usual += ("npmi", "diversity")
    return found, usual


def check_names(model: Any, names: Sequence[str]) -> None:
    """Refuse names of measures that do not suit a model."""
    known = answers(model)[0]
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
    known, usual = answers(fit.model)
    names = tuple(dict.fromkeys(names)) or usual
    done: dict[Any, dict[str, Any]] = {}
    for name in names:
        if known[name] not in done:
            done[known[name]] = known[name](fit, heldout, settings or Settings())
    rows = ((name, done[known[name]][name]) for name in names)
    return [Row(name, found.value, found.standard_error, UNITS[name]) for name, found in rows]


def plain(row: Row) -> dict[str, Any]:
    """What JSON can hold, None for what is not a number."""
    return {name: None if x != x else x for name, x in row._asdict().items()}


def table(rows: Sequence[Row]) -> str:
    """Aligned columns for a terminal."""
    cells = [
        ("measure", "value", "standard error", "units"),
        *((r.measure, f"{r.value:.4f}", f"{r.standard_error:.4f}", r.units) for r in rows),
    ]
    widths = [max(len(cell[i]) for cell in cells) for i in range(3)]
    return "\n".join(
        f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in cells
    )
