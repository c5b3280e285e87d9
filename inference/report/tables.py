"""The report's tables as HTML, and the engines' table for the terminal."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from inference.evaluation import topics
from inference.report import selection, svg
from inference.report.typeset import escape, symbol

if TYPE_CHECKING:
    from inference.comparison.compare import Comparison

NUM_WORDS = 8
MAX_TOPICS = 6  # side by side; up to `MOST_TOPICS` more can be unfolded
MOST_TOPICS = 40


class Column(NamedTuple):
    """A figure of a row of the summary: its key, heading, format and meaning."""

    key: str
    heading: str
    form: str
    meaning: str


COLUMNS = {
    column.key: column
    for column in (
        Column(
            "wasserstein_sd",
            "W1",
            "{:.2f}",
            "1-Wasserstein distance to the reference in reference sd, mean over quantities; 0 is right. Engines are ordered by it",
        ),
        Column(
            "mean_error_sd",
            "mean error",
            "{:.2f}",
            "mean distance of posterior means, in reference sd; 0 is right",
        ),
        Column(
            "sd_ratio",
            "sd ratio",
            "{:.2f}",
            "median posterior sd over the reference's; 1 is right, less is too narrow. The dot is on a log scale from 1/4 to 4",
        ),
        Column(
            "coverage50",
            "cover 50%",
            "{:.2f}",
            "share of reference draws in the engine's central 50% interval; 0.50 is right",
        ),
        Column(
            "coverage90",
            "cover 90%",
            "{:.2f}",
            "share of reference draws in the engine's central 90% interval; 0.90 is right, the stroke on the bar",
        ),
        Column(
            "tail_error_sd",
            "tail error",
            "{:.2f}",
            "distance of the tail quantiles, in reference sd; 0 is right",
        ),
        Column(
            "correlation_error",
            "corr. error",
            "{:.2f}",
            "mean absolute error of correlations in small blocks; 0 is right",
        ),
        Column("quantities", "quantities", "{:,d}", "how many numbers were compared"),
        Column("seconds", "seconds", "{:.1f}", "wall time of the fit, compilation included"),
        Column(
            "seconds_to_1pct",
            "s to 1%",
            "{:.1f}",
            "seconds until the bound was within 1% of where it ended",
        ),
        Column(
            "heldout",
            "held-out",
            "{:.3f}",
            "log probability per held-out word, rating, vote or row, in nats; larger is better",
        ),
        Column("bound", "bound", "{:,.1f}", "last lower bound of the log evidence (ELBO)"),
        Column(
            "bound_gap",
            "gap",
            "{:,.1f}",
            "log evidence minus bound: the divergence of q from the posterior, in nats",
        ),
        Column("log_joint", "log joint", "{:,.1f}", "log joint density, mean over draws"),
        Column(
            "khat",
            "k-hat",
            "{:.2f}",
            "Pareto k of the importance ratios; above 0.7 weighting cannot repair q",
        ),
        Column(
            "rhat",
            "R-hat",
            "{:.3f}",
            "rank-normalised R-hat, worst over invariant functionals; 1.00 is converged",
        ),
        Column(
            "ess_bulk",
            "ESS bulk",
            "{:,.0f}",
            "smallest effective sample size of invariant functionals",
        ),
        Column("ess_tail", "ESS tail", "{:,.0f}", "the same for 5% and 95% quantiles"),
        Column(
            "divergences",
            "divergences",
            "{:,d}",
            "divergent transitions of the sampler; 0 is right",
        ),
        Column(
            "ebfmi",
            "E-BFMI",
            "{:.2f}",
            "energy fraction of missing information, worst chain; below 0.3 the sampler explores badly",
        ),
    )
}
MAIN = (
    "wasserstein_sd",
    "mean_error_sd",
    "sd_ratio",
    "coverage90",
    "khat",
    "heldout",
    "bound",
    "bound_gap",
    "seconds",
)
MORE = (
    "coverage50",
    "tail_error_sd",
    "correlation_error",
    "log_joint",
    "seconds_to_1pct",
    "quantities",
)
CHAINS = ("rhat", "ess_bulk", "ess_tail", "divergences", "ebfmi")
AGREEMENT = (
    "wasserstein_sd",
    "mean_error_sd",
    "sd_ratio",
    "coverage50",
    "coverage90",
    "tail_error_sd",
    "correlation_error",
    "quantities",
)
TERMINAL = (
    "seconds",
    "bound",
    "wasserstein_sd",
    "mean_error_sd",
    "sd_ratio",
    "coverage90",
    "khat",
    "heldout",
    "rhat",
)
TERMINAL_WIDTH = 140


def present(rows: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> list[Column]:
    """The columns in which some row has a number."""
    rows = list(rows)
    return [COLUMNS[key] for key in keys if any(row.get(key) is not None for row in rows)]


def shown(value: Any, form: str) -> str:
    """A number in its format; whole numbers may come as floats."""
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "-"
    return form.format(int(value) if "d}" in form else value).replace("-", "−")


def chip(engine: str) -> str:
    """An engine's name with a sample of its line and marker."""
    return f'<span class="chip">{svg.key(engine)}{escape(engine)}</span>'


def for_terminal(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The engines as plain text, their main figures only, no line wider than `TERMINAL_WIDTH`."""
    columns = present(rows.values(), TERMINAL)
    lines = [["engine", *(column.heading for column in columns), "verdict"]]
    for engine, row in rows.items():
        words = f"failed: {row['error']}" if row.get("error") else row["verdict"]
        lines.append(
            [
                engine,
                *(shown(row.get(c.key), c.form).replace("−", "-") for c in columns),
                " ".join(words.split()),
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) + 1)]
    texts = []
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:], strict=True)]
        text = "  ".join([line[0].ljust(widths[0]), *cells, line[-1]])
        texts.append(
            text if len(text) <= TERMINAL_WIDTH else text[: TERMINAL_WIDTH - 3].rstrip() + "..."
        )
    return texts


# Engines ----------------------------------------------------------------------------------------------------------------------


def engine_table(comparison: "Comparison") -> str:
    """Engines in order of agreement with their verdicts; every head is a button that sorts."""
    rows = comparison.summary["engines"]
    columns = present(rows.values(), MAIN)
    heads = (
        _head("engine")
        + _head("verdict", "words")
        + "".join(_head(c.heading, "", c.meaning) for c in columns)
    )
    body = "".join(
        _engine_row(place, engine, row, columns, engine == comparison.reference)
        for place, (engine, row) in enumerate(rows.items())
    )
    return f'{scroll(f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>", "engines sortable")}<p class="sr" aria-live="polite" id="sorted"></p>'


def _head(heading: str, css: str = "", meaning: str = "") -> str:
    about = f' title="{escape(meaning)}"' if meaning else ""
    classed = f' class="{css}"' if css else ""
    return f'<th scope="col" aria-sort="none"{classed}><button type="button"{about}>{escape(heading)}</button></th>'


def _engine_row(
    place: int, engine: str, row: Mapping[str, Any], columns: list[Column], is_reference: bool
) -> str:
    failed = bool(row.get("error"))
    words = f"failed: {row['error']}" if failed else row["verdict"]
    rule = (
        f'<details class="rule"><summary>why</summary><p>{escape(row["rule"])}</p></details>'
        if row.get("rule") and not failed
        else ""
    )
    cells = "".join(_figure_cell(row.get(column.key), column) for column in columns)
    css = ' class="reference"' if is_reference else ' class="failed"' if failed else ""
    return (
        f'<tr{css}><th scope="row" data-v="{place}">{chip(engine)}</th>'
        f'<td class="words" data-v="{escape(words)}">{escape(words)}{rule}</td>{cells}</tr>'
    )


def _figure_cell(value: Any, column: Column) -> str:
    text = shown(value, column.form)
    known = isinstance(value, int | float) and np.isfinite(value)
    sort = f' data-v="{value:.8g}"' if known else ""
    cue = ""
    if known and column.key == "sd_ratio":
        cue = _ratio_cue(float(value))
    elif known and column.key == "coverage90":
        cue = _coverage_cue(float(value))
    return f"<td{sort}>{text}{cue}</td>"


def _ratio_cue(ratio: float) -> str:
    """A dot on a log scale from 1/4 to 4 with a stroke at 1."""
    place = 24 + 22 * float(np.clip(np.log2(max(ratio, 1e-9)) / 2, -1, 1))
    drawn = f'<path class="track" d="M2 5H46"/><path class="goal" d="M24 1V9"/><circle class="dotcue" cx="{place:.1f}" cy="5" r="3.2"/>'
    return f'<svg class="cue" viewBox="0 0 48 10" aria-hidden="true">{drawn}</svg>'


def _coverage_cue(share: float) -> str:
    """A bar from 0 to 1 with a stroke at 0.9."""
    drawn = f'<path class="track" d="M2 5H46"/><path class="barcue" d="M2 5H{2 + 44 * min(max(share, 0), 1):.1f}"/><path class="goal" d="M41.6 1V9"/>'
    return f'<svg class="cue" viewBox="0 0 48 10" aria-hidden="true">{drawn}</svg>'


def scroll(content: str, css: str = "") -> str:
    """A table in a box of its own that scrolls sideways, so that the page never does."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table, scrolls sideways"><table class="{css}">{content}</table></div>'


def details_tables(comparison: "Comparison") -> str:
    """More figures, chains' diagnostics, agreement site by site and of invariant functionals, and what the columns mean."""
    rows = comparison.summary["engines"]
    chains = {
        engine: row
        for engine, row in rows.items()
        if row.get("rhat") is not None or row.get("ess_bulk") is not None
    }
    parts = [
        _fold("Markov chains: how well they mixed", _figures_table(chains, CHAINS)),
        _fold("More figures of every engine", _figures_table(rows, MORE)),
        _fold("Agreement site by site", _parts_table(comparison, "sites")),
        _fold("Agreement on what no relabelling can change", _parts_table(comparison, "invariant")),
        _fold("What the columns mean", _meanings(rows)),
    ]
    return "".join(parts)


def _fold(heading: str, content: str) -> str:
    return f"<details><summary>{escape(heading)}</summary>{content}</details>" if content else ""


def _figures_table(rows: Mapping[str, Mapping[str, Any]], keys: Iterable[str]) -> str:
    columns = present(rows.values(), keys)
    if not columns:
        return ""
    heads = _head("engine") + "".join(_head(c.heading, "", c.meaning) for c in columns)
    body = "".join(
        f'<tr><th scope="row" data-v="{place}">{chip(engine)}</th>{"".join(_figure_cell(row.get(c.key), c) for c in columns)}</tr>'
        for place, (engine, row) in enumerate(rows.items())
    )
    return scroll(f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>", "sortable")


def _parts_table(comparison: "Comparison", kind: str) -> str:
    """One row per engine and site, or per engine and functional."""
    records = [
        (engine, name, record)
        for engine, row in comparison.summary["engines"].items()
        for name, record in (row.get(kind) or {}).items()
        if isinstance(record, Mapping) and engine != comparison.reference
    ]
    columns = present((record for _, _, record in records), AGREEMENT)
    if not columns:
        return ""
    heads = (
        _head("engine")
        + _head("site" if kind == "sites" else "functional", "words")
        + "".join(_head(c.heading, "", c.meaning) for c in columns)
    )
    body = "".join(
        f'<tr><th scope="row" data-v="{place}">{chip(engine)}</th>'
        f'<td class="words" data-v="{escape(name)}">{symbol(name) if kind == "sites" else escape(name)}</td>'
        f"{''.join(_figure_cell(record.get(c.key), c) for c in columns)}</tr>"
        for place, (engine, name, record) in enumerate(records)
    )
    return scroll(f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>", "sortable")


def _meanings(rows: Mapping[str, Mapping[str, Any]]) -> str:
    columns = present(rows.values(), dict.fromkeys((*MAIN, *MORE, *CHAINS)))
    return (
        "<dl>"
        + "".join(f"<dt>{escape(c.heading)}</dt><dd>{escape(c.meaning)}.</dd>" for c in columns)
        + "</dl>"
    )


# Topics -----------------------------------------------------------------------------------------------------------------------


def topic_tables(comparison: "Comparison") -> str:
    """The largest words of each aligned topic, one column per engine; words outside the reference's list are marked."""
    found, engine = selection.topics(comparison), selection.anchor(comparison)
    if found is None or engine is None or comparison.data.kind not in ("counts", "text_and_votes"):
        return ""
    means = {
        other: found.rows(selection.mean(comparison, other, found.site))
        for other in selection.shown(comparison)
    }
    if comparison.truth is not None and found.site in comparison.truth:
        means["truth"] = found.rows(comparison.truth[found.site])
    tops = {other: topics.largest(value, NUM_WORDS) for other, value in means.items()}
    order = selection.largest_topics(comparison, found)
    tables = [
        _topic_table(comparison, int(topic), tops, means, engine) for topic in order[:MOST_TOPICS]
    ]
    left = len(order) - len(tables)
    rest = f"<p>{left} smaller topics are not shown.</p>" if left > 0 else ""
    folded = (
        _fold(
            f"{len(tables) - MAX_TOPICS} smaller topics",
            f'<div class="topicgrid">{"".join(tables[MAX_TOPICS:])}</div>{rest}',
        )
        if tables[MAX_TOPICS:]
        else ""
    )
    return f'<div class="topicgrid">{"".join(tables[:MAX_TOPICS])}</div>{folded}'


def _topic_table(
    comparison: "Comparison",
    topic: int,
    tops: Mapping[str, Any],
    means: Mapping[str, Any],
    engine: str,
) -> str:
    known = set(tops[engine][topic].tolist())
    head = "".join(f'<th scope="col">{chip(other)}</th>' for other in tops)
    body = "".join(
        "<tr>"
        + "".join(
            _word(
                comparison,
                int(top[topic, rank]),
                float(means[other][topic, top[topic, rank]]),
                known,
                engine,
            )
            for other, top in tops.items()
        )
        + "</tr>"
        for rank in range(tops[engine].shape[1])
    )
    return scroll(
        f"<caption>Topic {topic + 1}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>",
        "topics",
    )


def _word(comparison: "Comparison", column: int, value: float, known: set[int], engine: str) -> str:
    whole = selection.column_name(comparison, column)
    name, about = escape(svg.cut(whole, 130)), f"{escape(whole)}: {svg.number(value)}"
    if column in known:
        return f'<td title="{about}">{name}</td>'
    return f'<td title="{about}, not among the words of {escape(engine)}"><em class="new">{name}</em></td>'


def legend(engines: Iterable[str], truth: bool = False) -> str:
    """The engines' keys in a line."""
    known = "".join(chip(engine) for engine in engines)
    marked = (
        '<span class="chip"><svg class="key" viewBox="0 0 28 14" aria-hidden="true"><path class="truth" d="M14 1V13"/></svg>truth</span>'
        if truth
        else ""
    )
    return f'<p class="legend">{known}{marked}</p>' if known or marked else ""
