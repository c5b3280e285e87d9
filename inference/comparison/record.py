"""The record of a comparison. Its fields are the keys of `summary.json` and make its JSON schema.

Figures of an engine that have a heading are columns of the report's tables (`columns`).
"""

# ruff: noqa: RUF009  `figure` returns dataclasses.field
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin

FORMAT = 1
Number = float | None
Count = int | None
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}


class Column(NamedTuple):
    """A column of a table: the figure's name, heading, format and meaning."""

    key: str
    heading: str
    form: str
    meaning: str


def figure(
    meaning: str, heading: str = "", form: str = "{:.2f}", least: Any = 0, most: Any = None
) -> Any:
    """A figure that may be missing. heading, form: in tables. least, most: its limits."""
    limits = {"description": meaning, "minimum": least, "maximum": most}
    about = {name: value for name, value in limits.items() if value is not None}
    return field(default=None, metadata={"schema": about, "heading": heading, "form": form})


share = functools.partial(figure, most=1)
nats = functools.partial(figure, form="{:,.1f}", least=None)


@dataclass(kw_only=True)
class Agreement:
    """Distances of an engine's quantities from the reference's."""

    wasserstein_sd: Number = figure(
        "1-Wasserstein distance to the reference in reference sd, mean over quantities; "
        "0 is right. Engines are ordered by it",
        "W1",
    )
    mean_error_sd: Number = figure(
        "mean distance of posterior means, in reference sd; 0 is right", "mean error"
    )
    sd_ratio: Number = figure(
        "median posterior sd over the reference's; 1 is right, less is too narrow. "
        "The dot is on a log scale from 1/4 to 4",
        "sd ratio",
    )
    coverage50: Number = share(
        "share of reference draws in the engine's central 50% interval; 0.50 is right", "cover 50%"
    )
    coverage90: Number = share(
        "share of reference draws in the engine's central 90% interval; 0.90 is right, "
        "the stroke on the bar",
        "cover 90%",
    )
    tail_error_sd: Number = figure(
        "distance of the tail quantiles, in reference sd; 0 is right", "tail error"
    )
    correlation_error: Number = figure(
        "mean absolute error of correlations in small blocks; 0 is right", "corr. error"
    )
    quantities: Count = figure("how many numbers were compared", "quantities", "{:,d}")


@dataclass(kw_only=True)
class Modes:
    """Chains that are in different modes, counted from 0, and a sentence about them."""

    groups: list[list[int]]
    text: str


@dataclass(kw_only=True)
class Reweighted:
    """Figures after Pareto-smoothed importance weighting."""

    mean_error_sd: Number = figure("mean distance of posterior means, in reference sd")
    sd_ratio: Number = figure("median posterior sd over the reference's")


Functional = Literal["log joint", "hyper-parameters", "expected data", "row likelihoods"]


@dataclass(kw_only=True)
class Row(Agreement):
    """An engine's results. Agreement is over the global sites; `error` says why an engine failed.

    sites, invariant: agreement by site, and of functionals that no symmetry changes
    heldout_curve: [seconds, held-out score] during the fit
    rule: of the verdict. converged: of the reference
    """

    engine: str
    kind: Literal["variational", "point", "draws", "mixture"] | None = None
    error: str | None = None
    verdict: str = "failed"
    rule: str = "the engine raised an error"
    seconds: Number = figure("wall time of the fit, compilation included", "seconds", "{:.1f}")
    seconds_to_1pct: Number = figure(
        "seconds until the bound was within 1% of where it ended", "s to 1%", "{:.1f}"
    )
    bound: Number = nats("last lower bound of the log evidence (ELBO)", "bound")
    bound_gap: Number = nats(
        "log evidence minus bound: the divergence of q from the posterior, in nats", "gap"
    )
    log_joint: Number = nats("log joint density, mean over draws", "log joint")
    khat: Number = figure(
        "Pareto k of the importance ratios; above 0.7 weighting cannot repair q",
        "k-hat",
        least=None,
    )
    psis: Reweighted | None = None
    heldout: Number = figure(
        "log probability per held-out word, rating, vote or row, in nats; larger is better",
        "held-out",
        "{:.3f}",
        None,
    )
    heldout_se: Number = figure("standard error of the held-out score")
    heldout_curve: list[list[Number]] = field(default_factory=list)
    sites: dict[str, Agreement] | None = None
    invariant: dict[Functional, Agreement] | None = None
    rhat: Number = figure(
        "worst rank-normalised R-hat of invariant functionals; 1.00 is converged", "R-hat", "{:.3f}"
    )
    rhat_aligned: Number = figure("rank-normalised R-hat, worst over the aligned global sites")
    ess_bulk: Number = figure(
        "smallest effective sample size of invariant functionals", "ESS bulk", "{:,.0f}"
    )
    ess_tail: Number = figure("the same for 5% and 95% quantiles", "ESS tail", "{:,.0f}")
    divergences: Count = figure(
        "divergent transitions of the sampler; 0 is right", "divergences", "{:,d}"
    )
    ebfmi: Number = figure(
        "energy fraction of missing information, worst chain; below 0.3 the sampler explores badly",
        "E-BFMI",
    )
    modes: Modes | None = None
    draws: Count = figure("draws of a Markov chain that were measured, all chains together")
    converged: bool | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Evidence:
    """log p(data) by the reference, with its standard error."""

    log_evidence: float
    error: float
    method: str


@dataclass(kw_only=True)
class DataSize:
    """The data compared on, held-out part included. total: of counts."""

    kind: str
    rows: int
    columns: int
    entries: int
    total: Number
    rows_fitted: int
    rows_heldout: int
    entries_heldout: int


@dataclass(kw_only=True)
class Summary:
    """`summary.json`. Engines are in the order of their agreement, the reference first.

    reference: the engine judged by; converged: whether it has
    partial: what is missing after an interruption. pivot: what draws were aligned to
    """

    format: int = FORMAT
    model: str
    title: str
    kind: Literal["counts", "ratings", "text_and_votes", "dense"]
    symmetry: Literal["permutation", "signed_permutation", "rotation", "scale", "none"]
    hyper: dict[str, Any]
    reference: str | None
    converged: bool | None
    partial: str | None
    quick: bool
    budget: Number
    pivot: str
    evidence: Evidence | None
    engines: dict[str, Row]
    options: dict[str, dict[str, Any]]
    num_draws: int
    data: DataSize
    data_hash: str
    seed: int
    versions: dict[str, str]
    command: str | None


def read_row(told: Mapping[str, Any]) -> Row:
    """A row of `summary.json`, of which only the nested modes are read."""
    modes = told.get("modes")
    return Row(**{"engine": "", **told, "modes": Modes(**modes) if modes else None})


def columns() -> dict[str, Column]:
    """The table columns of `Row`."""
    shown = {one.name: one.metadata for one in fields(Row) if one.metadata.get("heading")}
    return {
        name: Column(name, about["heading"], about["form"], about["schema"]["description"])
        for name, about in shown.items()
    }


def schema(kind: Any = Summary) -> dict[str, Any]:
    """The JSON schema of `summary.json`, or of one of its parts."""
    parts, origin = get_args(kind), get_origin(kind)
    if is_dataclass(kind):
        properties = {
            one.name: schema(one.type) | one.metadata.get("schema", {}) for one in fields(kind)
        }
        closed = {"required": list(properties), "additionalProperties": False}
        about = {"description": (kind.__doc__ or "").strip()}
        return {"type": "object", **about, "properties": properties, **closed}
    if origin is UnionType or NoneType in parts:
        return {"anyOf": [schema(part) for part in parts]}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin is list:
        return {"type": "array", "items": schema(parts[0])}
    if origin is dict:
        names = {} if parts[0] is str else {"propertyNames": schema(parts[0])}
        return {"type": "object", **names, "additionalProperties": schema(parts[1])}
    return {} if kind is Any else {"type": TYPES[kind]}
