"""Pages of the reference: the public names by purpose."""

import importlib
import inspect
from collections.abc import Iterable
from typing import Any

from pages import paragraphs, table

import inference
import pp_models


def _names(package: str, *lines: str) -> list[str]:
    return [f"{package}.{name}" for line in lines for name in line.split()]


GROUPS: dict[str, tuple[str, list[str]]] = {
    "Fitting": (
        "Fit a model, follow a stream, and use the result.",
        _names(
            "inference",
            "fit load engines io.fits.Fit core.posteriors.Posterior stream run.stream.Stream",
        ),
    ),
    "Comparing": (
        "Judge engines against MCMC.",
        _names("inference", "compare comparison.compare.Comparison report.page.write"),
    ),
    "Evaluating": (
        "Held-out scores: documents, rows, ratings, votes.",
        _names(
            "inference",
            "document_completion perplexity log_evidence precision_recall_at coherence diversity",
            "split_ratings score_ratings score_votes score_probabilities calibration_error loo",
            "waic evaluation.scores.Score evaluation.scores.Measure",
            "choose evaluation.choice.Choice",
        ),
    ),
    "Reading topics": (
        "Topics, their words and documents, and their correlations.",
        _names(
            "inference",
            "topics top_words format_topics prevalence representative_documents",
            "topic_correlations correlation_figure nearest_documents explore",
            "evaluation.topics.Topics",
        )
        + _names("pp_models", "explore"),
    ),
    "Predicting": (
        "Unseen ratings and votes.",
        _names(
            "inference", "predict_ratings evaluation.ratings.Prediction predict_votes refit_members"
        ),
    ),
    "Data": (
        "Data in memory, from files, on disk and by name.",
        _names(
            "pp_models",
            "data.as_data data.from_table data.counts data.ratings data.text_and_votes data.dense",
            "data.of_equal_length data.tf_idf data.Data datasets.load datasets.synthetic",
            "readers.read readers.blocks data.formats.writers.write text.read text.count",
            "corpus.write corpus.read database.Database arrivals.Arrivals",
        ),
    ),
    "Models": (
        "Finding models, and the fields of a declaration.",
        _names("pp_models", "available load model.Model InputError testing.check testing.examine"),
    ),
    "Engines": (
        "The fields of an engine.",
        _names("inference", "core.engine.Engine core.engine.Algorithm core.engine.Stage"),
    ),
}


def groups() -> dict[str, tuple[str, list[str]]]:
    """The public names by purpose. Names that no group has come last, so that none is missing."""
    placed = {name for _, names in GROUPS.values() for name in names}
    public = [f"{one.__name__}.{name}" for one in (pp_models, inference) for name in one.__all__]

    placed |= {other for name in placed for other in aliases(name)}

    def is_placed(name: str) -> bool:
        members = inspect.ismodule(_value(name)) and any(n.startswith(f"{name}.") for n in placed)
        return name in placed or members

    rest = [name for name in public if not is_placed(name)]
    return GROUPS | ({"Others": ("Other names.", rest)} if rest else {})


def _value(name: str) -> Any:
    package, *parts = name.split(".")
    found = importlib.import_module(package)
    for part in parts:
        found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
    return found


def aliases(name: str) -> list[str]:
    """The names in `pp_models` of what is also in `inference`."""
    if not name.startswith("inference."):
        return []
    names = (f"pp_models.{other}" for other in pp_models.__all__)
    return [other for other in names if _value(other) is _value(name)]


def home(name: str) -> str:
    """Where a name is defined."""
    value = _value(name)
    return value.__name__ if inspect.ismodule(value) else f"{value.__module__}.{value.__qualname__}"


def slug(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def reference_page(heading: str, about: str, names: Iterable[str]) -> str:
    called = {name: ", ".join([*aliases(name), name]) for name in names}
    entries = [
        f"::: {home(name)}\n    options:\n      heading: {title}\n      toc_label: {name}"
        for name, title in called.items()
    ]
    return paragraphs(f"# {heading}", about, *entries)


def reference_index() -> str:
    rows = []
    for heading, (about, names) in groups().items():
        page = f"{slug(heading)}.md"
        links = ", ".join(f"[`{name}`]({page}#{home(name)})" for name in names)
        rows.append([f"[{heading}]({page})", about, links])
    return paragraphs(
        "# Reference",
        "`import inference, pp_models`. Names are shown as they are imported.",
        table(["purpose", "", "names"], rows),
    )
