"""Contents of the report's tables, and the engines' table for the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from inference.comparison.compare import Comparison
from inference.comparison.record import Agreement, Column, Doubling, columns
from inference.evaluation import topics
from inference.report import selection, svg
from inference.report.markup import symbol

NUM_WORDS = 8
MOST_TOPICS = 40


COLUMNS = columns()
AGREEMENT = tuple(columns(Agreement))
MAIN = (
    *("wasserstein_sd", "mean_error_sd", "sd_ratio", "coverage90", "khat"),
    *("heldout", "rmse", "bound", "elbo", "kl", "seconds"),
)
OPEN = "Within the mode that each engine found", "Between modes"  # tables that are not folded
WITHIN = ("mean_error_sd", "sd_ratio", "coverage90", "widths_off")
BETWEEN = ("bound", "elbo", "log_joint", "heldout", "rmse", "climb")
CHAINS = ("rhat", "ess_bulk", "ess_tail", "divergences", "ebfmi")
MORE = tuple(key for key in COLUMNS if key not in (*MAIN, *CHAINS))
TERMINAL = (
    *("seconds", "bound", "wasserstein_sd", "mean_error_sd", "sd_ratio"),
    *("coverage90", "khat", "heldout", "rmse", "rhat"),
)


class Record(NamedTuple):
    """A row of a table: figures by key, and words in the second column."""

    engine: str
    figures: Mapping[str, Any]
    words: str = ""
    rule: str = ""
    css: str = ""


class Table(NamedTuple):
    """second: heading of the column of words, or nothing."""

    title: str
    columns: list[Column]
    records: list[Record]
    second: str = ""


def table(title: str, records: list[Record], keys: Iterable[str], second: str = "") -> Table:
    """A table without the columns in which no row has a number."""
    has = lambda key: any(record.figures.get(key) is not None for record in records)  # noqa: E731
    return Table(title, [COLUMNS[key] for key in keys if has(key)], records, second)


def shown(value: Any, form: str) -> str:
    """A formatted number with a real minus sign, or a dash."""
    known = value is not None and np.isfinite(value)
    return format(value, form).replace("-", "−") if known else "-"


def verdict(row: Mapping[str, Any]) -> str:
    return f"failed: {row['error']}" if row.get("error") else row["verdict"]


def for_terminal(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The engines' main figures and verdicts as lines of plain text."""
    found = table("", [Record(engine, row) for engine, row in rows.items()], TERMINAL)
    lines = [["engine", *(column.heading for column in found.columns), "verdict"]]
    for engine, row in rows.items():
        cells = [shown(row.get(c.key), c.form).replace("−", "-") for c in found.columns]
        lines.append([engine, *cells, " ".join(verdict(row).split())])
    widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[:-1]]
    return [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, cells, widths[1:]), last])
        for first, *cells, last in lines
    ]


def engine_tables(comparison: Comparison) -> list[Table]:
    """All engines with their verdicts, then the tables of details that have figures."""
    rows = comparison.summary["engines"]
    main = [
        Record(engine, row, verdict(row), row["rule"], "failed" if row["error"] else "")
        for engine, row in rows.items()
    ]
    plain = [Record(engine, row) for engine, row in rows.items()]
    chains = [one for one in plain if one.figures.get("ess_bulk") or one.figures.get("rhat")]
    sites = [one._replace(words=symbol(one.words)) for one in _parts(comparison, "sites")]
    invariant = _parts(comparison, "invariant")
    within = [
        Record(engine, row["within"], row["within"]["verdict"], row["within"]["rule"])
        for engine, row in rows.items()
        if row.get("within")
    ]
    said = [
        Record(engine, row, "; ".join(filter(None, [row.get("between"), row.get("predictions")])))
        for engine, row in rows.items()
        if not row["error"]
    ]
    found = [
        table(OPEN[0], within, WITHIN, "verdict"),
        table(OPEN[1], said if within else [], BETWEEN, "beside the best"),
        table("Markov chains: how well they mixed", chains, CHAINS),
        table("More figures of every engine", plain, MORE),
        table("Agreement by site", sites, AGREEMENT, "site"),
        table("Agreement on invariant functionals", invariant, AGREEMENT, "functional"),
    ]
    kept = [one for one in found if one.columns or (one.second and one.records)]
    return [table("", main, MAIN, "verdict"), *kept]


def sensitivity(comparison: Comparison) -> Table | None:
    """How far posterior means move if a hyper-parameter is doubled, or None where it is unknown."""
    records = [
        Record(engine, one, Markup("{}: {}").format(_doubled(one), one["functional"]))
        for engine, row in comparison.summary["engines"].items()
        for one in row.get("sensitivity") or []
    ]
    return Table("", [*columns(Doubling).values()], records, SECOND) if records else None


SECOND = "doubled: what moves"


def _doubled(one: Mapping[str, Any]) -> Markup:
    name, value = symbol(one["hyper"]), one["value"]
    if value is None:
        return name
    return Markup("{} {} → {}").format(name, svg.number(value), svg.number(2 * value))


def _parts(comparison: Comparison, kind: str) -> list[Record]:
    """One record per engine and site, or per engine and functional."""
    return [
        Record(engine, record, name)
        for engine, row in comparison.summary["engines"].items()
        for name, record in (row.get(kind) or {}).items()
        if isinstance(record, Mapping) and engine != comparison.reference
    ]


def topic_tables(comparison: Comparison) -> dict[str, Any]:
    """The top words of each aligned topic by each engine, the largest topics first.

    tables: number -> rows of (word, tooltip, whether it is not among the anchor's words).
    left: how many topics are not shown.
    """
    found, engine = selection.topics(comparison), selection.anchor(comparison)
    if found is None or engine is None or comparison.data.kind not in ("counts", "text_and_votes"):
        return {}
    means = {
        other: found.rows(selection.mean(comparison, other, found.site))
        for other in selection.shown(comparison)
    }
    if comparison.truth is not None and found.site in comparison.truth:
        means["truth"] = found.rows(comparison.truth[found.site])
    tops = {other: topics.largest(value, NUM_WORDS) for other, value in means.items()}
    order = selection.largest_topics(comparison, found).tolist()

    def word(other: str, topic: int, rank: int) -> tuple[str, str, bool]:
        column = int(tops[other][topic, rank])
        name, is_new = selection.column_name(comparison, column), column not in tops[engine][topic]
        tip = f"{name}: {svg.number(means[other][topic, column])}"
        tip += f", not among the words of {engine}" if is_new else ""
        return svg.cut(name, 130), tip, is_new

    ranks = range(tops[engine].shape[1])
    tables = {
        topic + 1: [[word(other, topic, rank) for other in tops] for rank in ranks]
        for topic in order[:MOST_TOPICS]
    }
    return {"engines": [*tops], "tables": tables, "left": len(order) - len(tables)}
