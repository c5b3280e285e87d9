"""The record of a comparison. Its fields are the keys of `summary.json` and make its JSON schema.

Figures of an engine that have a heading are columns of the report's tables (`columns`).
"""

# ruff: noqa: RUF009  `figure` returns dataclasses.field
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin

FORMAT = 1
Number = float | None
Count = int | None
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}


class Column(NamedTuple):
    """A column of a table: the figure's name, heading, format and meaning.

    error: the name of its standard error, if it has one
    """

    key: str
    heading: str
    form: str
    meaning: str
    error: str = ""


def figure(heading: str, form: str, meaning: str, least: Any = 0, most: Any = None) -> Any:
    """A figure that may be missing. heading, form: in tables. least, most: its limits."""
    limits = {"description": meaning, "minimum": least, "maximum": most}
    about = {name: value for name, value in limits.items() if value is not None}
    return field(default=None, metadata={"schema": about, "heading": heading, "form": form})


SD, RIGHT = "in reference sd", "is right"


@dataclass(kw_only=True)
class Agreement:
    """Distances of an engine's quantities from the reference's."""

    wasserstein_sd: Number = figure("W1", ".2f", f"mean Wasserstein distance, {SD}; 0 {RIGHT}")
    mean_error_sd: Number = figure(
        "mean error", ".2f", f"root mean square distance of means beyond noise, {SD}; 0 {RIGHT}"
    )
    mean_error_se: Number = None
    sd_ratio: Number = figure(
        "sd ratio", ".2f", f"geometric mean of sds over the reference's; 1 {RIGHT}"
    )
    sd_ratio_se: Number = None
    widths_off: Number = figure(
        "widths off",
        ".0%",
        "share of sds off by more than a quarter beyond noise; 0% is right",
        0,
        1,
    )
    coverage50: Number = figure(
        "cover 50%", ".2f", f"reference draws in the 50% interval; 0.50 {RIGHT}", 0, 1
    )
    coverage90: Number = figure(
        "cover 90%", ".2f", f"reference draws in the 90% interval; 0.90 {RIGHT}", 0, 1
    )
    tail_error_sd: Number = figure(
        "tail error", ".2f", f"distance of the 5% and 95% quantiles beyond noise, {SD}; 0 {RIGHT}"
    )
    tail_error_se: Number = None
    correlation_error: Number = figure(
        "corr. error", ".2f", f"mean error of correlations; 0 {RIGHT}"
    )
    worst: str | None = None  # the number furthest off beyond noise, in words
    worst_shift_sd: Number = figure(
        "worst", ".1f", f"largest distance of a mean that noise does not explain, {SD}"
    )
    quantities: Count = figure("quantities", ",.0f", "how many numbers were compared")


@dataclass(kw_only=True)
class Doubling:
    """How far a posterior mean moves if a hyper-parameter is doubled, to first order.

    value: of the hyper-parameter, if it is one number
    """

    hyper: str
    value: Number
    functional: str
    mean: Number = figure("mean", ".3g", "posterior mean of what moves", None)
    sd: Number = figure("sd", ".2g", "its posterior sd by linear response")
    shift: Number = figure(
        "moves by", ".2g", "log 2 times the derivative by the hyper-parameter's logarithm", None
    )
    shift_sd: Number = figure("in its sd", ".2f", "the same in units of the posterior sd", None)


@dataclass(kw_only=True)
class Modes:
    """Chains that are in different modes, counted from 0, and a sentence about them."""

    groups: list[list[int]]
    text: str


@dataclass(kw_only=True)
class Reweighted:
    """Figures after Pareto-smoothed importance weighting."""

    mean_error_sd: Number = None
    sd_ratio: Number = None


@dataclass(kw_only=True)
class Within(Agreement):
    """An engine judged within the mode that it found, by chains that start at its answer.

    settled: share of the numbers whose chains agree, if some do not; the others are left out
    log_joint: mean over the chains' draws, with its Monte Carlo error
    from_reference_sd: mean error of the chains from a converged reference
    """

    verdict: str
    rule: str
    sampler: str | None = None
    rhat: Number = None
    ess_bulk: Number = None
    settled: Number = None
    log_joint: Number = None
    log_joint_se: Number = None
    from_reference_sd: Number = None


Functional = Literal["log joint", "hyper-parameters", "expected data", "row likelihoods"]


@dataclass(kw_only=True)
class Row(Agreement):
    """An engine's results. Agreement is over the global sites; `error` says why an engine failed.

    sites, invariant: agreement by site, and of functionals that no symmetry changes
    heldout_curve: [seconds, held-out score] during the fit
    within: judged within its own mode, where the reference does not judge it
    between, predictions: its bound and its held-out score beside the best engine's, in words
    sensitivity: to the prior, of a correction by linear response
    missed: why the reference, though its chains agree, cannot be complete
    rhat_aligned: the worst of the aligned global sites
    draws: of a Markov chain, all chains together. converged: of the reference
    """

    engine: str
    kind: Literal["variational", "conditional", "corrected", "point", "draws", "mixture"] | None = (
        None
    )
    error: str | None = None
    verdict: str = "failed"
    rule: str = "the engine raised an error"
    seconds: Number = figure(
        "seconds",
        ".1f",
        "wall time of the fit, compilation included; of a row +lr that of the fit, of the "
        "correction and of its draws",
    )
    seconds_to_1pct: Number = figure(
        "s to 1%", ".1f", "seconds until the bound was within 1% of its end"
    )
    bound: Number = figure(
        "bound",
        ",.1f",
        "lower bound of the log evidence on all fitted rows, allocations in q",
        None,
    )
    elbo: Number = figure(
        "ELBO", ",.1f", "the bound with allocations summed out, from draws of q", None
    )
    elbo_se: Number = None
    gain: Number = None  # nats from the first bound of the fit to its last
    kl: Number = figure("KL", ",.1f", "KL(q || posterior) in nats: log evidence minus ELBO", None)
    kl_se: Number = None
    climb: Number = figure(
        "climb", ",.1f", "nats by which sweeps of coordinate ascent raise the bound further", None
    )
    log_joint: Number = figure("log joint", ",.1f", "log joint density, mean over draws", None)
    khat: Number = figure(
        "k-hat", ".2f", "Pareto k of importance ratios; above 0.7 q cannot be repaired", None
    )
    psis: Reweighted | None = None
    heldout: Number = figure(
        "held-out", ".3f", "log probability per held-out entry; larger is better", None
    )
    heldout_se: Number = None
    rmse: Number = figure("RMSE", ".3f", "root mean square error of held-out ratings")
    rmse_se: Number = None
    heldout_curve: list[list[Number]] = field(default_factory=list)
    sites: dict[str, Agreement] | None = None
    invariant: dict[Functional, Agreement] | None = None
    within: Within | None = None
    sensitivity: list[Doubling] | None = None
    between: str | None = None
    predictions: str | None = None
    missed: str | None = None
    rhat: Number = figure(
        "R-hat", ".3f", "worst rank-normalised R-hat of functionals; 1.00 is converged"
    )
    rhat_aligned: Number = None
    ess_bulk: Number = figure("ESS bulk", ",.0f", "smallest effective sample size of functionals")
    ess_tail: Number = figure("ESS tail", ",.0f", "the same for 5% and 95% quantiles")
    divergences: Count = figure("divergences", ",.0f", f"divergent transitions; 0 {RIGHT}")
    ebfmi: Number = figure(
        "E-BFMI", ".2f", "energy fraction of missing information; below 0.3 is bad"
    )
    modes: Modes | None = None
    draws: Count = None
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
    kind: str
    symmetry: str
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


def columns(record: Any = Row) -> dict[str, Column]:
    """The table columns of a record."""
    shown = {one.name: one.metadata for one in fields(record) if one.metadata.get("heading")}
    known = {one.name for one in fields(record)}
    errors = {name: f"{name.removesuffix('_sd')}_se" for name in shown}
    return {
        name: Column(
            name,
            about["heading"],
            about["form"],
            about["schema"]["description"],
            errors[name] if errors[name] in known else "",
        )
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
