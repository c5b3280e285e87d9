"""The page people look at: one self-contained HTML file with the table, the plots and how to get the same numbers again.

Figures are small inline SVGs that flow into one column on a phone; their ink is the page's own text colour, so they follow light and dark.
Each engine has one colour and one line style everywhere (Okabe and Ito's palette, safe for colour-blind readers).
"""

import functools
import html
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from scipy.stats import gaussian_kde

from inference import topic_tools
from inference.comparison import MAX_RHAT, Comparison
from pp_models.base import factor_axes
from pp_models.files import write_whole

COLOURS = {"gibbs": "#0072B2", "nuts": "#56B4E9", "cavi": "#D55E00", "svi": "#E69F00", "numpyro_svi": "#CC79A7", "map": "#009E73"}
SPARE_COLOURS = ("#999933", "#882255", "#44AA99", "#AA4499", "#DDCC77", "#6699CC", "#117733")
DASHES = ("-", "--", "-.", ":")
INK = "#010203"  # stands for the page's text colour until the figure is inlined
STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK),
}
MAX_TOPICS = 6  # drawn; the tables show more
MAX_POINTS = 150  # in a scatter plot
NUM_WORDS = 8

COLUMNS = (  # of the table: figure, heading, format, what it means
    ("seconds", "seconds", "{:.1f}", "wall time of the fit, compilation included"),
    ("bound", "bound", "{:.1f}", "last lower bound of the log evidence (ELBO)"),
    ("mean_error_sd", "mean error", "{:.2f}", "mean distance of posterior means, in reference sd; 0 is right"),
    ("sd_ratio", "sd ratio", "{:.2f}", "median posterior sd over the reference's; 1 is right"),
    ("coverage90", "cover 90%", "{:.2f}", "share of reference draws in the engine's 90% interval; 0.90 is right"),
    ("wasserstein_sd", "W1", "{:.2f}", "1-Wasserstein distance in reference sd; 0 is right"),
    ("khat", "k-hat", "{:.2f}", "Pareto k of the importance ratios; above 0.7 weighting cannot repair it"),
    ("heldout", "held-out", "{:.3f}", "log probability per held-out word or rating, nats; larger is better"),
    ("rhat", "R-hat", "{:.3f}", "worst over invariant functionals; 1.00 is converged"),
    ("ess_bulk", "ESS bulk", "{:.0f}", "smallest effective sample size of invariant functionals"),
    ("ess_tail", "ESS tail", "{:.0f}", "the same in the tails"),
    ("divergences", "diverg.", "{:d}", "divergent transitions of the sampler"),
)
TERMINAL = ("seconds", "bound", "mean_error_sd", "sd_ratio", "coverage90", "khat", "heldout", "rhat")


def write(comparison: Comparison, folder: str | Path, command: str | None = None) -> Path:
    """Write report.html, summary.json and one .nc file per engine; returns the page's path. Each file appears whole or not at all."""
    folder = Path(folder)
    text = json.dumps(comparison.summary, indent=2, allow_nan=False) + "\n"
    write_whole(folder / "summary.json", lambda path: path.write_text(text, encoding="utf-8"))
    page = render(comparison, command)
    write_whole(folder / "report.html", lambda path: path.write_text(page, encoding="utf-8"))
    for engine, fit in comparison.fits.items():
        tree = fit.to_arviz()
        write_whole(folder / f"{engine}.nc", functools.partial(_write_tree, tree))
    return folder / "report.html"


def _write_tree(tree: Any, path: Path) -> None:
    tree.to_netcdf(str(path))


def table(comparison: Comparison) -> str:
    """The engines as a plain-text table for the terminal, its main figures only."""
    rows = comparison.summary["engines"]
    columns = [column for column in _columns(rows) if column[0] in TERMINAL]
    lines = [["engine", *(heading for _, heading, _, _ in columns), "verdict"]]
    for engine, row in rows.items():
        lines.append([engine, *(_format(row.get(name), form) for name, _, form, _ in columns), row["error"] or row["verdict"]])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    text = [
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:], strict=True)), line[-1][:50]])
        for line in lines
    ]
    if comparison.summary["converged"] is False:
        text += ["", _not_converged(comparison)]
    return "\n".join(text)


def _columns(rows: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    return [column for column in COLUMNS if any(row.get(column[0]) is not None for row in rows.values())]


def _format(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)


def _not_converged(comparison: Comparison) -> str:
    rhat = comparison.summary["engines"][comparison.reference]["rhat"]
    return (
        f"The reference ({comparison.reference}) has not converged: R-hat {rhat:.2f} is above {MAX_RHAT}. "
        "No engine is judged by it; run longer chains (num_samples, num_warmup)."
    )


# The page ---------------------------------------------------------------------------------------------------------------------


def render(comparison: Comparison, command: str | None = None) -> str:
    """The whole page as text."""
    title = f"{comparison.summary['title']}: engines against {comparison.reference}"
    with matplotlib.rc_context(STYLE):
        sections = [
            _header(comparison),
            _warning(comparison),
            _section("How well the engines agree", _engine_table(comparison)),
            _section("Bounds against time", _figures(bound_figures(comparison))),
            _section("Posterior densities of the topics' largest words", _figures(density_figures(comparison))),
            _section("Posterior means", _figures(mean_figures(comparison))),
            _section("Posterior widths", _figures(width_figures(comparison))),
            _section("Topics side by side", topic_tables(comparison)),
            _section("How to reproduce", _reproduce(comparison, command)),
        ]
    body = "\n".join(part for part in sections if part)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{CSS}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{html.escape(heading)}</h2>\n{content}</section>" if content else ""


def _header(comparison: Comparison) -> str:
    summary, data = comparison.summary, comparison.summary["data"]
    story = sys.modules[comparison.model.log_local.__module__].__doc__ or ""
    hyper = ", ".join(f"{name} = {_number(value)}" for name, value in summary["hyper"].items())
    source = "drawn from the model's own prior" if comparison.truth is not None else "given"
    of_entries = data["kind"] == "ratings"
    heldout = data["entries_heldout"] if of_entries else data["rows_heldout"]
    fitted = f"{data['entries'] - heldout:,} ratings" if of_entries else f"{data['rows_fitted']:,} rows"
    facts = (
        f"{data['rows']:,} rows × {data['columns']:,} columns, {data['entries']:,} entries, total {data['total']:,.0f} ({source}). "
        f"{fitted} are fitted, {heldout:,} held out to score."
    )
    return (
        f"<header><h1>{html.escape(summary['title'])}</h1>"
        f"<p class='lead'>How {_engine_list(comparison)} compare with {_chip(comparison.reference)}</p>"
        f"<p><b>Data.</b> {html.escape(facts)}</p><p><b>Hyper-parameters.</b> {html.escape(hyper)}</p>"
        f"<details><summary>The generative story</summary><pre>{html.escape(story.strip())}</pre></details></header>"
    )


def _engine_list(comparison: Comparison) -> str:
    return ", ".join(_chip(engine) for engine in comparison.summary["engines"] if engine != comparison.reference)


def _chip(engine: str) -> str:
    return f'<span class="chip" style="--c:{colour(engine)}">{html.escape(engine)}</span>'


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _warning(comparison: Comparison) -> str:
    failed = [f"{engine} failed: {row['error']}" for engine, row in comparison.summary["engines"].items() if row["error"]]
    notes = [f"{engine}, {note}" for engine, row in comparison.summary["engines"].items() for note in row.get("notes") or []]
    unsure = [_not_converged(comparison)] if comparison.summary["converged"] is False else []
    boxes = [f'<p class="warning" role="alert">{html.escape(text)}</p>' for text in unsure]
    return "\n".join(boxes + [f'<p class="note">{html.escape(text)}</p>' for text in failed + notes])


def _engine_table(comparison: Comparison) -> str:
    rows = comparison.summary["engines"]
    columns = _columns(rows)
    head = "".join(f'<th scope="col" title="{html.escape(meaning)}">{html.escape(heading)}</th>' for _, heading, _, meaning in columns)
    body = []
    for engine, row in rows.items():
        words = f"failed: {row['error']}" if row["error"] else row["verdict"]
        cells = "".join(f"<td>{_format(row.get(name), form)}</td>" for name, _, form, _ in columns)
        body.append(f'<tr><th scope="row">{_chip(engine)}</th><td class="words">{html.escape(words)}</td>{cells}</tr>')
    meanings = "".join(f"<dt>{html.escape(heading)}</dt><dd>{html.escape(meaning)}</dd>" for _, heading, _, meaning in columns)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">engine</th><th scope="col" class="words">verdict</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>{_invariant_table(comparison)}"
        f"<details><summary>What the columns mean</summary><dl>{meanings}</dl>{RULES}</details>"
    )


def _invariant_table(comparison: Comparison) -> str:
    """The same figures per site, and on the expected observations, where no alignment is needed."""
    body = []
    for engine, row in comparison.summary["engines"].items():
        parts = {**(row.get("sites") or {}), "expected data": row.get("invariant")}
        for name, part in parts.items():
            if part:
                cells = "".join(f"<td>{_format(part[key], form)}</td>" for key, _, form, _ in COLUMNS if key in part)
                body.append(
                    f'<tr><th scope="row">{_chip(engine)}</th><td class="words">{html.escape(name)}</td>{cells}<td>{part["quantities"]:,}</td></tr>'
                )
    head = "".join(f'<th scope="col">{html.escape(h)}</th>' for key, h, _, _ in COLUMNS if key in AGREEMENT)
    return (
        '<details><summary>Site by site, and on the expected data, which no labelling of topics can change</summary><div class="scroll" tabindex="0">'
        f'<table><thead><tr><th scope="col">engine</th><th scope="col" class="words">quantity</th>{head}<th scope="col">how many</th></tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div></details>"
    )


AGREEMENT = ("mean_error_sd", "sd_ratio", "coverage90", "wasserstein_sd")
RULES = (
    "<p>The first table is about the aligned global sites. Engines are ordered by W1, which sees location and width at once. "
    "Means agree below 0.2 reference sd, are slightly off below 0.5 and off below 1. Widths are right between 0.95 and 1.05 of the reference's. "
    f"A reference with R-hat above {MAX_RHAT} judges nobody.</p>"
)


def topic_tables(comparison: Comparison) -> str:
    """The largest words of each aligned topic, one column per engine; words outside the reference's list are underlined."""
    site = _topic_site(comparison)
    if site is None:
        return ""
    means = {engine: draws[site].mean(0) for engine, draws in comparison.draws.items()}
    if comparison.truth is not None:
        means["truth"] = comparison.truth[site]
    names = _word_names(comparison)
    tops = {engine: topic_tools.largest(mean, NUM_WORDS) for engine, mean in means.items()}
    blocks = []
    for topic in range(min(len(tops[comparison.reference]), 2 * MAX_TOPICS)):
        known = set(tops[comparison.reference][topic])
        head = "".join(f'<th scope="col">{_chip(engine)}</th>' for engine in tops)
        body = "".join(
            "<tr>" + "".join(f"<td>{_word(names, top[topic, rank], known)}</td>" for top in tops.values()) + "</tr>"
            for rank in range(tops[comparison.reference].shape[1])
        )
        content = f"<caption>Topic {topic + 1}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        blocks.append(f'<div class="scroll" tabindex="0"><table class="topics">{content}</table></div>')
    return "\n".join(blocks) + "<p>Underlined: not among the reference's words of that topic.</p>"


def _word(names: Callable[[int], str], index: int, known: set[int]) -> str:
    name = html.escape(names(index))
    return name if index in known else f"<u>{name}</u>"


def _topic_site(comparison: Comparison) -> str | None:
    """The global site of shape (K, columns), where there is one."""
    draws, axes = comparison.draws[comparison.reference], factor_axes(comparison.model)
    columns = comparison.data.num_columns
    fits = (site for site in comparison.model.shared if draws[site].ndim == 3 and axes[site] == (-2,) and draws[site].shape[2] == columns)
    return next(fits, None)


def _word_names(comparison: Comparison) -> Callable[[int], str]:
    data = comparison.data
    names = topic_tools.names(data.column_names, data.num_columns)
    return lambda index: f"w{index}" if data.column_names is None else names[index]


def _reproduce(comparison: Comparison, command: str | None) -> str:
    summary = comparison.summary
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    return (
        f"<pre>{html.escape(command or default_command(comparison))}</pre><dl><dt>versions</dt><dd>{html.escape(versions)}</dd>"
        f"<dt>seed</dt><dd>{summary['seed']}</dd><dt>data (SHA-256)</dt><dd class='hash'>{summary['data_hash']}</dd>"
        f"<dt>engine options</dt><dd>{html.escape(json.dumps(summary['options']))}</dd></dl>"
        "<p>All figures are in <code>summary.json</code>, the posteriors in one <code>.nc</code> file per engine (open with ArviZ).</p>"
    )


def default_command(comparison: Comparison) -> str:
    """The command line that repeats this comparison, as far as the comparison itself knows it."""
    summary = comparison.summary
    others = ",".join(engine for engine in summary["engines"] if engine != comparison.reference)
    settings = " ".join(f"{name}={_plain_setting(value)}" for name, value in summary["hyper"].items() if value is not None)
    data = "" if comparison.truth is not None else " --data PATH"
    return (
        f"python -m pp_models compare {summary['model']}{data} --reference {comparison.reference} --engines {others} "
        f"--seed {summary['seed']} --set {settings} --out DIR"
    )


def _plain_setting(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


# Figures ----------------------------------------------------------------------------------------------------------------------


def colour(engine: str) -> str:
    """The engine's colour, the same in every report."""
    if engine == "truth":
        return "#808080"
    return COLOURS.get(engine) or SPARE_COLOURS[sum(map(ord, engine)) % len(SPARE_COLOURS)]


def dash(engine: str) -> str:
    """The engine's line style: colour is never the only difference."""
    known = list(COLOURS)
    return DASHES[(known.index(engine) if engine in known else sum(map(ord, engine))) % len(DASHES)]


def _figures(figures: Iterable[tuple[Figure, str]]) -> str:
    parts = "".join(f"<figure>{inline(figure, words)}<figcaption>{html.escape(words)}</figcaption></figure>" for figure, words in figures)
    return f'<div class="grid">{parts}</div>' if parts else ""


def inline(figure: Figure, words: str) -> str:
    """The figure as an SVG element without anything that refers outside the page, in the page's own ink."""
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": words}):  # marks of two figures must not share an id
        figure.savefig(stream, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    head, rest = text.split(">", 1)
    head = re.sub(r'\s(width|height|version)="[^"]*"', "", head)
    rest = rest.replace("xlink:href", "href").replace(INK, "currentColor")
    return f'{head} role="img" aria-label="{html.escape(words)}">{rest}'


def _axes(size: tuple[float, float] = (4.4, 3.1)) -> tuple[Figure, Any]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.add_subplot()


def _legend(axes: Any, **options: Any) -> None:
    axes.legend(frameon=False, fontsize=9, **options)


def bound_figures(comparison: Comparison) -> list[tuple[Figure, str]]:
    """ELBO curves against wall time: the whole run, and its end, where engines differ by little."""
    curves = {engine: _curve(fit) for engine, fit in comparison.fits.items() if fit.posterior.kind == "variational"}
    curves = {engine: curve for engine, curve in curves.items() if len(curve[0])}
    if not curves:
        return []
    ends = [np.median(bound[-max(1, len(bound) // 10) :]) for _, bound in curves.values()]
    starts = [bound[0] for _, bound in curves.values()]
    best, spread = max(ends), max(ends) - min(ends)
    close = max(1.5 * spread, 0.02 * (best - min(starts)), 1e-3 * abs(best))
    figures = []
    for zoomed, words in ((False, "Lower bound against wall time"), (True, "The same, near the final bounds")):
        figure, axes = _axes()
        for engine, (seconds, bound) in curves.items():
            axes.plot(seconds, bound, dash(engine), color=colour(engine), label=engine, linewidth=1.6, marker="." if len(bound) < 15 else None)
        if zoomed:
            axes.set_ylim(best - close, best + 0.3 * close)
        axes.set(xscale="log", xlabel="seconds after compilation (log scale)", ylabel="bound")
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 30 * low else (1,)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        _legend(axes)
        figures.append((figure, words))
    return figures


def _curve(fit: Any, most: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and bounds where a bound was evaluated, thinned. The clock starts when the first step, which compiles, is a usual step old."""
    seconds, bound = np.asarray(fit.history["seconds"], float), np.asarray(fit.history["bound"], float)
    usual = np.median(np.diff(seconds)) if len(seconds) > 1 else 0.0
    seconds = np.maximum(seconds - seconds[:1] + usual, 1e-4)
    place = np.flatnonzero(np.isfinite(bound))
    if len(place) > most:
        place = place[np.linspace(0, len(place) - 1, most).astype(int)]
    return seconds[place], bound[place]


def density_figures(comparison: Comparison) -> list[tuple[Figure, str]]:
    """Each topic's two largest words: the reference's density filled, the engines' as lines, points as vertical lines."""
    site = _topic_site(comparison)
    if site is None:
        return []
    means, names = comparison.draws[comparison.reference][site].mean(0), _word_names(comparison)
    sizes = means.sum(1) if comparison.model.families[site].name != "dirichlet" else means.max(1)
    figures = []
    for topic in np.sort(np.argsort(-sizes)[:MAX_TOPICS]):
        words = np.argsort(-means[topic])[:2]
        figure = Figure(figsize=(4.4, 4.2), layout="constrained")
        for axes, word in zip(np.atleast_1d(figure.subplots(len(words))), words, strict=True):
            draws = {engine: values[site][:, topic, word] for engine, values in comparison.draws.items()}
            _densities(axes, draws, comparison.reference, None if comparison.truth is None else comparison.truth[site][topic, word])
            axes.set_xlabel(names(word)[:40])
        _legend(figure.axes[0], ncols=2, loc="upper left", bbox_to_anchor=(0, 1.0, 1, 0.35), mode="expand", borderaxespad=0)
        figures.append((figure, f"Topic {topic + 1}: densities of {site} at {', '.join(names(word)[:40] for word in words)}"))
    return figures


def _densities(axes: Any, draws: Mapping[str, np.ndarray], reference: str, truth: Any) -> None:
    centre, width = draws[reference].mean(), draws[reference].std()
    low, high = max(min(x.min() for x in draws.values()), centre - 6 * width), min(max(x.max() for x in draws.values()), centre + 6 * width)
    grid = np.linspace(low, high, 160)
    for engine, values in draws.items():
        if len(values) == 1:
            axes.axvline(values[0], color=colour(engine), linestyle=dash(engine), linewidth=1.4, label=engine)
            continue
        if np.std(values) == 0 or not np.all(np.isfinite(values)):
            continue
        density = gaussian_kde(np.asarray(values[:: max(1, len(values) // 1000)], np.float64))(grid)
        axes.plot(grid, density, dash(engine), color=colour(engine), linewidth=1.6, label=engine)
        if engine == reference:
            axes.fill_between(grid, density, color=colour(engine), alpha=0.2, linewidth=0)
    if truth is not None:
        axes.plot([truth], [0], marker="^", color=colour("truth"), markersize=8, clip_on=False, linestyle="none", label="truth")
    axes.set(yticks=[], xlim=(low, high) if high > low else None, ylim=(0, None))
    axes.spines["left"].set_visible(False)


def mean_figures(comparison: Comparison) -> list[tuple[Figure, str]]:
    """Posterior means of the global sites, engine against reference, with one sd either way."""
    reference = _shared_draws(comparison, comparison.reference)
    pick = np.argsort(-np.abs(reference.mean(0)))[:MAX_POINTS]
    x, x_sd = reference[:, pick].mean(0), reference[:, pick].std(0)
    figures = []
    for engine in comparison.draws:
        if engine == comparison.reference:
            continue
        draws = _shared_draws(comparison, engine)[:, pick]
        y, y_sd = draws.mean(0), draws.std(0)
        figure, axes = _axes((4.4, 3.6))
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        axes.plot(ends, ends, color=INK, linewidth=0.8, alpha=0.6)
        axes.errorbar(x, y, y_sd if len(draws) > 1 else None, x_sd, fmt=".", color=colour(engine), elinewidth=0.6, alpha=0.75)
        axes.set(xlabel=f"{comparison.reference}, mean ± sd", ylabel=f"{engine}, mean ± sd" if len(draws) > 1 else f"{engine}, point")
        words = (
            f"{engine} against {comparison.reference}: the {len(pick)} largest entries of {', '.join(comparison.model.shared)}; the line is equality"
        )
        figures.append((figure, words))
    return figures


def width_figures(comparison: Comparison) -> list[tuple[Figure, str]]:
    """Posterior sd over the reference's: median, middle half and middle nine tenths over the entries of the global sites."""
    reference = _shared_draws(comparison, comparison.reference).std(0)
    moves = reference > 0
    engines = [engine for engine, row in comparison.summary["engines"].items() if row.get("sd_ratio") is not None]
    if not engines or not moves.any():
        return []
    figure, axes = _axes((4.4, 1.2 + 0.45 * len(engines)))
    for place, engine in enumerate(reversed(engines)):
        ratio = _shared_draws(comparison, engine).std(0)[moves] / reference[moves]
        five, quarter, half, three, most = np.quantile(ratio, (0.05, 0.25, 0.5, 0.75, 0.95))
        axes.plot([five, most], [place, place], color=colour(engine), linewidth=1.2)
        axes.plot([quarter, three], [place, place], color=colour(engine), linewidth=5, alpha=0.6, solid_capstyle="butt")
        axes.plot([half], [place], "o", color=colour(engine), markersize=7)
    axes.axvline(1, color=INK, linewidth=0.8, alpha=0.6)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.45), max(high, 1.1))  # always a labelled tick on either side
    axes.set(yticks=range(len(engines)), yticklabels=list(reversed(engines)), xlabel="sd / reference sd")
    words = f"Widths relative to {comparison.reference}: median, middle half and 90% of the entries; left of the line is too narrow"
    return [(figure, words)]


def _shared_draws(comparison: Comparison, engine: str) -> np.ndarray:
    """(n, quantities): all global sites side by side."""
    draws = comparison.draws[engine]
    return np.concatenate([draws[site].reshape(len(draws[site]), -1) for site in comparison.model.shared], axis=1)


CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#5c6570;--line:#d9dee4;--card:#f6f8fa;--bad:#b00020;--badcard:#fdecee}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e9ed;--soft:#a2abb6;--line:#333a43;--card:#1c2127;--bad:#ff8a95;--badcard:#3a1a1e}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:1rem}
h1{font-size:1.7rem;line-height:1.2;margin:.6rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line);padding-bottom:.2rem}
.lead{font-size:1.05rem;color:var(--soft)}
.chip{white-space:nowrap;font-weight:600}.chip::before{content:"";display:inline-block;width:.7em;height:.7em;border-radius:50%;background:var(--c);margin-right:.35em}
.scroll{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{padding:.35rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th[scope=row],tr>:first-child{text-align:left}.words{text-align:left;white-space:normal;min-width:11rem}
table.topics td,table.topics th{text-align:left}caption{text-align:left;font-weight:600;padding:.3rem 0}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(310px,100%),1fr));gap:1rem}
figure{margin:0;padding:.6rem;background:var(--card);border:1px solid var(--line);border-radius:8px}
figure svg{display:block;width:100%;height:auto;color:var(--ink)}
figcaption{color:var(--soft);font-size:.85rem;margin-top:.4rem;overflow-wrap:anywhere}
pre{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.7rem;font-size:.85rem}
details{margin:.8rem 0}summary{cursor:pointer;font-weight:600}
dl{display:grid;grid-template-columns:auto 1fr;gap:.2rem 1rem}dt{font-weight:600}dd{margin:0;overflow-wrap:anywhere}
.warning{color:var(--bad);background:var(--badcard);border:2px solid var(--bad);border-radius:8px;padding:.7rem 1rem;font-weight:600}
.note{border-left:4px solid var(--line);padding:.2rem .8rem;color:var(--soft);overflow-wrap:anywhere}
@media print{details{display:block}.scroll{overflow:visible}figure{break-inside:avoid}}
"""
