"""The page people look at: one self-contained HTML file with the verdict, the table, the figures and how to get the same numbers again.

Figures are small inline SVGs (`figures`, `figures_latent`, `figures_chains`) that flow into one column on a phone; the model's equations are MathML
(`typeset`); `page.css` and `page.js` are put into the file, which needs neither a network nor a server. Without its script the page still shows all,
but tables do not sort. What a comparison lacks, a reference, a truth, held-out data, leaves its part of the page out.
"""

import base64
import functools
import hashlib
import json
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference.comparison import verdicts
from inference.comparison.record import read_row
from inference.report import palette, selection, svg, tables, typeset
from inference.report.figures import chains, common, latent
from inference.report.tables import chip
from inference.report.typeset import escape
from pp_models.data.files import write_whole
from pp_models.errors import InputError

if TYPE_CHECKING:
    from inference.comparison.compare import Comparison

GOOD_KHAT = 0.5
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src '{script}'; img-src data:"  # no script but the page's own, by its hash


def write(comparison: "Comparison", folder: str | Path, command: str | None = None) -> Path:
    """Write report.html, summary.json, agreement.csv and one .nc file per engine; returns the page's path. Each file appears whole or not at all."""
    folder = Path(folder)
    text = json.dumps(comparison.summary, indent=2, allow_nan=False) + "\n"
    write_whole(folder / "summary.json", lambda path: path.write_text(text, encoding="utf-8"))
    tidy = comparison.quantities.to_dataframe().reset_index()
    write_whole(
        folder / "agreement.csv",
        lambda path: tidy.to_csv(path, index=False, lineterminator="\n", errors="backslashreplace"),
    )
    page = render(comparison, command)
    write_whole(folder / "report.html", lambda path: path.write_text(page, encoding="utf-8"))
    for engine, fit in comparison.fits.items():
        write_whole(folder / f"{engine}.nc", functools.partial(_write_tree, fit.to_arviz()))
    return folder / "report.html"


def _write_tree(tree: Any, path: Path) -> None:
    try:
        tree.to_netcdf(str(path))
    except (
        ValueError
    ) as error:  # of names: NetCDF's strings hold neither null characters nor half a surrogate pair
        raise InputError(
            f"The posteriors cannot be written as .nc files ({error}): change the names of rows and columns. The report is written."
        ) from error


def table(comparison: "Comparison") -> str:
    """The engines as a plain-text table for the terminal, and what must be said about the run."""
    rows = comparison.summary["engines"].values()
    meant = "W1 and mean error: distance from the reference in its posterior sds, 0 is right. sd ratio: 1 is right, less is too narrow."
    meant = meant if any(row.get("wasserstein_sd") is not None for row in rows) else ""
    said = [
        words
        for words in (
            meant,
            comparison.summary.get("partial"),
            _not_converged(comparison),
            _no_reference(comparison),
        )
        if words
    ]
    return "\n".join(
        [*tables.for_terminal(comparison.summary["engines"]), *(["", *said] if said else [])]
    )


def _not_converged(comparison: "Comparison") -> str:
    if comparison.summary.get("converged") is not False:
        return ""
    row = comparison.summary["engines"].get(comparison.reference, {})
    return verdicts.advice(str(comparison.reference), verdicts.trouble(read_row(row)))


def _no_reference(comparison: "Comparison") -> str:
    if comparison.reference is not None:
        return ""
    rows = comparison.summary["engines"]
    failed = [
        engine
        for engine in ("gibbs", "collapsed_gibbs", "nuts")
        if rows.get(engine, {}).get("error")
    ]
    asked = any(row.get("kind") == "draws" for row in rows.values())
    why = (
        f"{' and '.join(failed)} failed"
        if failed
        else "none was asked for"
        if asked
        else "no sampler was run or applies to this model"
    )
    return f"There is no reference ({why}), so engines stand side by side and none is judged."


# The page ---------------------------------------------------------------------------------------------------------------------


def render(comparison: "Comparison", command: str | None = None) -> str:
    """The whole page as text."""
    sections = {
        "Model and data": _model(comparison),
        "Engines": tables.engine_table(comparison) + tables.details_tables(comparison),
        "Bound and score against time": _against_time(comparison),
        "Parameters": _parameters(comparison),
        "Widths": _widths(comparison),
        "Means": _means(comparison),
        "Topics side by side": _topics(comparison),
        "Components": _profiles(comparison),
        "Latent maps": _maps(comparison),
        "Hyper-parameters on a grid": _grids(comparison),
        "The reference's chains": _chains(comparison),
        "Warnings and notes": _notes(comparison),
        "How to reproduce": _reproduce(comparison, command),
    }
    sections = {heading: content for heading, content in sections.items() if content}
    body = "\n".join(
        f'<section id="{_anchor(heading)}"><h2>{escape(heading)}</h2>\n{content}</section>'
        for heading, content in sections.items()
    )
    contents = "".join(
        f'<li><a href="#{_anchor(heading)}">{escape(heading)}</a></li>' for heading in sections
    )
    engines = [*comparison.summary["engines"], "truth"]
    title = comparison.summary["title"] + (
        f": engines against {comparison.reference}"
        if comparison.reference
        else ": engines side by side"
    )
    script = _package_text("page.js")
    policy = CONTENT_POLICY.format(
        script="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_package_text('page.css')}{palette.styles(engines)}</style></head>\n"
        f"<body>{palette.marker_definitions()}<main>\n{_headline(comparison)}\n"
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav>\n{body}\n</main><div id="tip" role="tooltip" hidden></div>'
        f"<script>{script}</script></body></html>\n"
    )


def _package_text(name: str) -> str:
    return (
        resources.files("inference.report").joinpath("templates", name).read_text(encoding="utf-8")
    )


def _anchor(heading: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in heading.lower())


def _headline(comparison: "Comparison") -> str:
    """The title, what must be known before anything else, the reference's quality, and the best approximation in one sentence."""
    summary = comparison.summary
    rest = ", ".join(
        chip(engine) for engine in summary["engines"] if engine != comparison.reference
    )
    against = (
        f"{rest} against {chip(comparison.reference)}"
        if comparison.reference is not None and rest
        else rest or chip(comparison.reference or "")
    )
    return (
        f'<header><h1>{escape(summary["title"])}</h1><p class="lead">{against}</p>{_banners(comparison)}'
        f'<div class="verdict">{_badges(comparison)}<p class="best">{_best(comparison)}</p></div></header>'
    )


def _banners(comparison: "Comparison") -> str:
    urgent = _not_converged(comparison)
    boxes = [f'<p class="warning" role="alert">{escape(urgent)}</p>'] if urgent else []
    quick = (
        "A quick run: short fits and chains, for teaching; figures are rough."
        if comparison.summary.get("quick")
        else ""
    )
    said = (comparison.summary.get("partial"), _no_reference(comparison), quick)
    boxes += [f'<p class="banner" role="status">{escape(words)}</p>' for words in said if words]
    return "".join(boxes)


def _badges(comparison: "Comparison") -> str:
    """The reference and whether each of its diagnostics is good, fair or bad; a sign says it as well as the colour."""
    if comparison.reference is None:
        return ""
    row = comparison.summary["engines"].get(comparison.reference, {})
    limits = {  # good where this holds; fair where that does
        "rhat": ("R-hat", "{:.3f}", lambda x: x <= 1.01, lambda x: x <= 1.05),
        "ess_bulk": ("ESS bulk", "{:,.0f}", lambda x: x >= 400, lambda x: x >= 100),
        "ess_tail": ("ESS tail", "{:,.0f}", lambda x: x >= 400, lambda x: x >= 100),
        "divergences": ("divergences", "{:,.0f}", lambda x: x == 0, lambda x: x <= 5),
        "ebfmi": ("E-BFMI", "{:.2f}", lambda x: x >= 0.3, lambda x: x >= 0.2),
    }
    parts = [f'<span class="badge">reference {chip(comparison.reference)}</span>']
    for name, (words, form, good, fair) in limits.items():
        if row.get(name) is not None:
            tone, sign = (
                ("good", "✓")
                if good(row[name])
                else ("fair", "≈")
                if fair(row[name])
                else ("bad", "!")
            )
            parts.append(
                f'<span class="badge {tone}"><b aria-hidden="true">{sign}</b> {words} {form.format(row[name])}</span>'
            )
    evidence = comparison.summary.get("evidence")
    if evidence and evidence.get("log_evidence") is not None:
        error = "" if evidence.get("error") is None else f" ± {evidence['error']:.2g}"
        value = tables.shown(evidence["log_evidence"], "{:,.1f}")
        parts.append(
            f'<span class="badge" title="{escape(str(evidence.get("method", "")))}">log evidence {value}{error}</span>'
        )
    return f'<p class="badges">{"".join(parts)}</p>'


def _best(comparison: "Comparison") -> str:
    """The approximation nearest to the reference, in one sentence."""
    if comparison.reference is None or comparison.summary.get("converged") is False:
        return "No engine is judged here; the figures below show where they differ."
    for engine, row in comparison.summary["engines"].items():
        if (
            engine != comparison.reference
            and row.get("wasserstein_sd") is not None
            and row.get("kind") != "draws"
        ):
            figures_said = [
                f"means {row['mean_error_sd']:.2f} sd off"
                if row.get("mean_error_sd") is not None
                else ""
            ]
            figures_said += [
                f"{row['sd_ratio']:.2f} of the width"
                if row.get("sd_ratio") is not None
                else "no width"
            ]
            figures_said += [f"{row['seconds']:.1f} s" if row.get("seconds") is not None else ""]
            return f"Nearest approximation: {chip(engine)} – {escape(row['verdict'])} ({', '.join(filter(None, figures_said))})."
    return "No approximation was judged: only Markov chains, or nothing that could be compared."


# Sections ---------------------------------------------------------------------------------------------------------------------


def _model(comparison: "Comparison") -> str:
    module = sys.modules.get(comparison.model.log_local.__module__)
    lines, rest = typeset.split_story((module.__doc__ if module is not None else None) or "")
    rows = "".join(_equation(one) for one in typeset.process(lines))
    equations = (
        f'<div class="scroll plainbox"><table class="equations"><tbody>{rows}</tbody></table></div>'
        if rows
        else ""
    )
    story = (
        f'<details><summary>The whole story of the model</summary><pre class="story">{escape(rest)}</pre></details>'
        if rest
        else ""
    )
    cards = {"Generative process": equations + story, "Data": _data(comparison)}
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><h3>{heading}</h3>{content}</div>'
            for heading, content in cards.items()
        )
        + "</div>"
    )


def _equation(one: typeset.Equation) -> str:
    if not one.relation and not one.right:
        return f'<tr><td class="case" colspan="4">{one.left}</td></tr>'
    return f'<tr><td class="left">{one.left}</td><td>{one.relation}</td><td class="right">{one.right}</td><td class="comment">{one.comment}</td></tr>'


def _data(comparison: "Comparison") -> str:
    data, summary = comparison.summary["data"], comparison.summary
    cells = data["rows"] * data["columns"]
    of_entries = data["kind"] == "ratings"
    heldout = data.get("entries_heldout") if of_entries else data.get("rows_heldout")
    fitted = data["entries"] - (heldout or 0) if of_entries else data.get("rows_fitted")
    unit = "rating" if of_entries else "row"
    counted = data["kind"] in ("counts", "text_and_votes") and data.get("total") is not None
    facts = {
        "kind": data["kind"].replace("_", " ")
        + (
            ", synthetic: the values that made them are known"
            if comparison.truth is not None
            else ""
        ),
        "size": f"{data['rows']:,} rows × {data['columns']:,} columns",
        "entries": f"{data['entries']:,}"
        + (f", {data['entries'] / cells:.1%} of the cells" if cells else ""),
        "tokens": f"{data['total']:,.0f}" if counted else "",
        "fitted": _several(fitted, unit) if fitted is not None else "",
        "held out": f"{_several(heldout, unit)}, to score" if heldout else "nothing",
    }
    hyper = "".join(
        f"<li>{typeset.symbol(name)} = {escape(_value(value))}</li>"
        for name, value in summary["hyper"].items()
        if value is not None
    )
    terms = "".join(
        f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in facts.items() if words
    )
    pictures = svg.gallery(chains.data(comparison), "grid small")
    return f'<dl class="facts">{terms}<dt>settings</dt><dd><ul class="hyper">{hyper}</ul></dd></dl>{pictures}'


def _several(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        first = ", ".join(_value(one) for one in value[:5])
        return f"({first})" if len(value) <= 5 else f"({first}, … {len(value):,} numbers)"
    return str(value)


def _against_time(comparison: "Comparison") -> str:
    curves, scores = common.bounds(comparison), common.heldout(comparison)
    if not curves and not scores:
        return ""
    said = (
        ["Bounds rise to the log evidence as q nears the posterior."]
        if curves and comparison.summary.get("evidence")
        else []
    )
    said += (
        ["Engines that see some rows at a time, or draw from q, estimate bounds with noise."]
        if curves
        else []
    )
    said += (
        [
            "Held-out scores are larger for better predictions, their bars one standard error; far lower ones are at the edge."
        ]
        if scores
        else []
    )
    rows = [engine for engine in comparison.summary["engines"] if engine in comparison.fits]
    hint = f'<p class="hint">{" ".join(said)}</p>' if said else ""
    return tables.legend(rows) + hint + svg.gallery([*curves, *scores])


def _parameters(comparison: "Comparison") -> str:
    forests, densities = common.forests(comparison), common.densities(comparison)
    if not forests:
        return ""
    hint = "Point estimates of aligned parameters. "
    if densities:
        hint = "Medians with 50% (thick) and 90% (thin) intervals of aligned parameters; axes are cut where an engine is far off or a peak too high. "
    hint += f"Chosen by {escape(selection.anchor(comparison) or '')}, not by agreement. Topics and components are counted from 1."
    folded = f"<h3>Densities</h3>{svg.gallery(densities)}" if densities else ""
    return f'{tables.legend(selection.shown(comparison), comparison.truth is not None)}<p class="hint">{hint}</p>{svg.gallery(forests)}{folded}'


def _widths(comparison: "Comparison") -> str:
    found = common.widths(comparison)
    hint = "Posterior sd over the reference's: median (marker), middle half (thick) and 90% (thin) of the entries. Left of the line is too narrow, "
    hint += "which is what mean-field posteriors are known for; the band is within 5%." + _unjudged(
        comparison
    )
    return f'<p class="hint">{hint}</p>{svg.gallery(found)}' if found else ""


def _unjudged(comparison: "Comparison") -> str:
    return (
        " The reference has not converged: these are differences, not errors."
        if comparison.summary.get("converged") is False
        else ""
    )


def _means(comparison: "Comparison") -> str:
    found = common.means(comparison)
    hint = "Posterior means with one sd either way, against the reference; the line is equality. All panels of a site have the same axes."
    hint += _unjudged(comparison)
    parts = "".join(
        f"<h3>{typeset.symbol(site)}</h3>{svg.gallery(panels)}"
        for site, panels in found.items()
        if panels
    )
    return f'<p class="hint">{hint}</p>{parts}' if parts else ""


def _topics(comparison: "Comparison") -> str:
    content = tables.topic_tables(comparison)
    engine = selection.anchor(comparison)
    hint = "The largest words of each aligned topic, the largest topics first. "
    hint += f'<em class="new">Marked</em>: not among the words of {escape(engine or "")}.'
    return f'<p class="hint">{hint}</p>{content}' if content else ""


def _profiles(comparison: "Comparison") -> str:
    found = latent.profiles(comparison)
    hint = "Each component's profile over the columns, the heaviest component first; the stronger the ink the larger, on one scale for all engines."
    hint += f" At most {latent.MAX_COMPONENTS} components are shown."
    return f'<p class="hint">{hint}</p>{svg.gallery(found)}' if found else ""


def _maps(comparison: "Comparison") -> str:
    found = latent.maps(comparison)
    engine = selection.anchor(comparison)
    hint = f"Posterior means in the first two principal axes of those of {escape(engine or '')}, to which lines tie them; ellipses are one sd."
    what = {site: f"{selection.ROWS.get(site, 'location')}s" for site in found}
    parts = "".join(
        f"<h3>{typeset.symbol(site)}: {what[site]}</h3>{svg.gallery(panels)}"
        for site, panels in found.items()
        if panels
    )
    return (
        f'{tables.legend(selection.shown(comparison))}<p class="hint">{hint}</p>{parts}'
        if parts
        else ""
    )


def _grids(comparison: "Comparison") -> str:
    found = latent.grids(comparison)
    hint = "Grid points with their weights (areas, or heights over one parameter) over the reference's draws: contours hold 50% and 90% of them."
    return f'<p class="hint">{hint}</p>{svg.gallery(found)}' if found else ""


def _chains(comparison: "Comparison") -> str:
    found = chains.traces(comparison)
    hint = "Chains side by side, and below how each chain's draws rank among all: flat bars where chains agree. "
    hint += "The log joint first, then what mixes worst."
    return f'<p class="hint">{hint}</p>{svg.gallery(found)}' if found else ""


def _notes(comparison: "Comparison") -> str:
    items = []
    for engine, row in comparison.summary["engines"].items():
        said = [("failed: " + row["error"], "bad")] if row.get("error") else []
        said += (
            [(row["modes"]["text"], "bad")] if row.get("modes") and row["modes"].get("text") else []
        )
        said += [
            (words, "")
            for words in (_khat_words(row), _psis_words(row), *map(str, row.get("notes") or []))
            if words
        ]
        if said:
            lines = "".join(
                f'<li class="{css or "said"}">{escape(words)}</li>' for words, css in said
            )
            items.append(f'<div class="engine-notes">{chip(engine)}<ul>{lines}</ul></div>')
    return "".join(items)


def _khat_words(row: Mapping[str, Any]) -> str:
    """k-hat in words."""
    khat = row.get("khat")
    if khat is None:
        return ""
    if khat < GOOD_KHAT:
        return f"k-hat {khat:.2f}: q is so near the posterior that importance weighting repairs what is left."
    if khat < verdicts.MAX_KHAT:
        return f"k-hat {khat:.2f}: importance weighting can still repair q, if with some noise."
    return f"k-hat {khat:.2f}: q is too far from the posterior in this many dimensions for importance weighting to repair."


def _psis_words(row: Mapping[str, Any]) -> str:
    psis = row.get("psis")
    if not psis or psis.get("mean_error_sd") is None:
        return ""
    ratio = (
        ""
        if psis.get("sd_ratio") is None
        else f" and widths {psis['sd_ratio']:.2f} of the reference's"
    )
    return f"After Pareto-smoothed importance weighting means are {psis['mean_error_sd']:.2f} reference sd off{ratio}."


def _reproduce(comparison: "Comparison", command: str | None) -> str:
    summary = comparison.summary
    line = command or summary.get("command") or default_command(comparison)
    facts = {
        "versions": ", ".join(f"{name} {version}" for name, version in summary["versions"].items()),
        "seed": str(summary["seed"]),
        "data (SHA-256)": summary["data_hash"],
        "engine options": json.dumps(
            {
                engine: given
                for engine, given in (summary.get("options") or {}).items()
                if engine in summary["engines"]
            }
        ),
        "draws": f"{summary['num_draws']:,} of each posterior" if summary.get("num_draws") else "",
        "budget": f"{summary['budget']:g} s" if summary.get("budget") else "",
        "alignment": summary.get("pivot") or "",
    }
    terms = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in facts.items() if words
    )
    return (
        f'<div class="command"><pre id="command">{escape(line)}</pre>'
        '<button type="button" class="copy" data-copy="command" hidden>copy</button></div>'
        f"<dl>{terms}</dl><p>All figures are in <code>summary.json</code>, every quantity of every engine in <code>agreement.csv</code>, "
        "the posteriors in one <code>.nc</code> file per engine (open with ArviZ).</p>"
    )


def default_command(comparison: "Comparison") -> str:
    """The command line that repeats this comparison, as far as the comparison itself knows it."""
    summary = comparison.summary
    others = ",".join(engine for engine in summary["engines"] if engine != comparison.reference)
    settings = " ".join(
        f"{name}={_plain_setting(value)}"
        for name, value in summary["hyper"].items()
        if value is not None
    )
    data = "" if comparison.truth is not None else " --data PATH"
    reference = f" --reference {comparison.reference}" if comparison.reference is not None else ""
    engines = f" --engines {others}" if others else ""
    how = (" --quick" if summary.get("quick") else "") + (
        f" --budget {summary['budget']:g}" if summary.get("budget") else ""
    )
    return f"python -m pp_models compare {summary['model']}{data}{reference}{engines}{how} --seed {summary['seed']} --set {settings} --out DIR"


def _plain_setting(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
