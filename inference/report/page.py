"""The report: one self-contained HTML page with verdicts, tables, figures and the command.

The page is a Jinja2 template (`templates/page.html.j2`) that includes its style sheet and script.
It needs no network and no server. Sections without content are left out, for example where there
is no reference, no truth or no held-out data.
"""

import base64
import functools
import hashlib
import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from inference.comparison import verdicts
from inference.comparison.compare import Comparison
from inference.comparison.record import read_row
from inference.core import registry
from inference.report import markup, palette, selection, tables
from inference.report.figures import agreement, chains, grids, latent, parameters, progress
from pp_models.data.files import write_whole
from pp_models.errors import InputError


def write(comparison: Comparison, folder: str | Path, command: str | None = None) -> Path:
    """Write report.html, summary.json, agreement.csv and one .nc file per engine.

    Returns the path of the page. Each file appears whole or not at all.
    """
    folder = Path(folder)
    texts = {
        "summary.json": json.dumps(comparison.summary, indent=2, allow_nan=False) + "\n",
        "report.html": render(comparison, command),
    }
    tidy = comparison.quantities.to_dataframe().reset_index()
    layout = {"index": False, "lineterminator": "\n", "errors": "backslashreplace"}
    write_whole(folder / "agreement.csv", functools.partial(tidy.to_csv, **layout))
    for name, text in texts.items():
        write_whole(folder / name, functools.partial(Path.write_text, data=text, encoding="utf-8"))
    _write_posteriors(comparison, folder)
    return folder / "report.html"


def _write_posteriors(comparison: Comparison, folder: Path) -> None:
    """One .nc file per engine, with the labels of the page."""
    attributes = {"seed": comparison.summary.get("seed")}
    for engine, fit in comparison.fits.items():
        tree = fit.to_arviz(pivot=comparison.pivot, attributes=attributes)
        write_whole(folder / f"{engine}.nc", functools.partial(_write_tree, tree))
        if note := tree["posterior"].attrs.get("note"):
            print(f"{engine}.nc: {note}", file=sys.stderr)


def _write_tree(tree: Any, path: Path) -> None:
    try:
        tree.to_netcdf(str(path))
    except ValueError as error:  # NetCDF strings hold neither null characters nor surrogates
        message = f"The posteriors cannot be written as .nc files ({error}): "
        message += "change the names of rows and columns. The report is written."
        raise InputError(message) from error


def table(comparison: Comparison) -> str:
    """The engines as a plain-text table for the terminal, followed by warnings."""
    rows = comparison.summary["engines"]
    partial = comparison.summary.get("partial")
    said = [partial, _not_converged(comparison), _no_reference(comparison)]
    if any(row.get("wasserstein_sd") is not None for row in rows.values()):
        meaning = "W1 and mean error: distance from the reference in its posterior sds, 0 is right."
        said.insert(0, f"{meaning} sd ratio: 1 is right, less is too narrow.")
    warnings = [str(words) for words in said if words]
    return "\n".join([*tables.for_terminal(rows), *([""] if warnings else []), *warnings])


def _not_converged(comparison: Comparison) -> str:
    if comparison.summary.get("converged") is not False:
        return ""
    row = comparison.summary["engines"].get(comparison.reference, {})
    return verdicts.advice(str(comparison.reference), verdicts.trouble(read_row(row)))


def _no_reference(comparison: Comparison) -> str:
    if comparison.reference is not None:
        return ""
    rows = comparison.summary["engines"]
    failed = [engine for engine in registry.engines() if rows.get(engine, {}).get("error")]
    failed = [engine for engine in failed if registry.load_engine(engine).kind == "draws"]
    why = "no sampler was run or applies to this model"
    if failed:
        why = f"{' and '.join(failed)} failed"
    elif any(row.get("kind") == "draws" for row in rows.values()):
        why = "none was asked for"
    said = "" if _followed(comparison.summary) else " and none is judged"
    return f"There is no reference ({why}), so engines stand side by side{said}."


def _followed(summary: Any) -> list[str]:
    """The engines at whose answers chains started."""
    rows = summary["engines"].items()
    return [engine for engine, row in rows if (row.get("within") or {}).get("sampler")]


@functools.cache
def _template() -> jinja2.Template:
    options: Any = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    loader = jinja2.PackageLoader("inference.report")
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, **options)
    environment.globals |= {
        "palette": palette,
        "shown": tables.shown,
        "symbol": markup.symbol,
        "ratio_place": lambda ratio: 24 + 11 * float(np.clip(np.log2(max(ratio, 1e-9)), -2, 2)),
        "max_components": latent.MAX_COMPONENTS,
        "row_kinds": selection.ROWS,
        "MAX_KHAT": verdicts.MAX_KHAT,
    }
    return environment.get_template("page.html.j2")


def _package_text(name: str) -> str:
    return resources.files("inference.report").joinpath("templates", name).read_text("utf-8")


def render(comparison: Comparison, command: str | None = None) -> str:
    """The whole page as text."""
    summary, script = comparison.summary, _package_text("page.js")
    module = sys.modules.get(comparison.model.log_local.__module__)
    story = markup.split((module and module.__doc__) or "")
    found = tables.engine_tables(comparison)
    text = _template().render(
        summary=summary,
        rows=summary["engines"],
        data=summary["data"],
        reference=comparison.reference,
        synthetic=comparison.truth is not None,
        engines=selection.shown(comparison),
        fitted=[engine for engine in summary["engines"] if engine in comparison.fits],
        anchor_engine=selection.anchor(comparison),
        warning=_not_converged(comparison),
        banners=[summary.get("partial"), _no_reference(comparison)],
        process=markup.to_html(markup.named_papers(story.process)),
        story=markup.to_html(markup.named_papers(story.rest)),
        histograms=chains.data(comparison),
        tables=found,
        open_tables=tables.OPEN,
        followed=_followed(summary),
        columns={column.key: column for one in found for column in one.columns}.values(),
        bounds=progress.bounds(comparison),
        scores=progress.heldout(comparison),
        forests=parameters.forests(comparison),
        densities=parameters.densities(comparison),
        widths=agreement.widths(comparison),
        corrected=any(map(registry.corrects, comparison.fits)),
        means=agreement.means(comparison),
        sensitivity=tables.sensitivity(comparison),
        topics=tables.topic_tables(comparison),
        profiles=latent.profiles(comparison),
        maps=latent.maps(comparison),
        grids=grids.grids(comparison),
        traces=chains.traces(comparison),
        command=command or summary.get("command"),
        style=Markup(_package_text("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return markup.clean(text)
