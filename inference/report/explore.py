"""The page to browse a fitted model: topics, documents, items, users, votes, components.

One HTML file without requests: a skeleton (`templates/explore.html.j2`), its style sheet, a script
and the fit's figures as JSON. The parts of the page follow from what a model declares: topics,
ratings, votes, components with columns, or places of columns. Every model has the part about the
fit. The size of the file is bounded, and the page says what was left out.
"""

import base64
import functools
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from inference.report import explore_factors, explore_topics, markup
from inference.report.explore_parts import Part, nouns, number
from pp_models.data.files import explained, write_whole
from pp_models.model import value_shapes

NAME = "explore.html"
TABS = {
    "topics": "Topics",
    "documents": "{rows}",
    "items": "{columns}",
    "users": "Users",
    "votes": "Votes",
    "components": "Components",
    "about": "About this fit",
}


def explore(fit: Any, path: str | Path = NAME) -> Path:
    """Write a page to browse a fitted model, and return its path.

    The page is one HTML file that needs no network. It shows what the model has: topics with
    their words, uncertainty and documents; items, neighbours and predicted ratings; members and
    bills; components. Words of documents, ratings and votes are shown if the fit has its data.

    path: a file, or a folder in which the page is called explore.html

    >>> import inference, pp_models
    >>> data = pp_models.data.counts([[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 6, 2], [0, 1, 3, 4]])
    >>> fit = inference.fit("lda", data, engine="cavi", hyper={"num_topics": 2})
    >>> inference.explore(fit, "topics.html").name
    'topics.html'
    """
    path = Path(path)
    return write_explore(fit, path / NAME if path.is_dir() else path)


def write_explore(fit: Any, path: Path) -> Path:
    """Write the page to this file, which appears whole or not at all."""
    text = render(fit)
    with explained(path.parent):
        return write_whole(path, functools.partial(_write, text))


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")


def parts_of(fit: Any) -> list[Part]:
    """The parts of the page that this model has."""
    makers = (
        explore_topics.topics,
        explore_factors.ratings,
        explore_factors.votes,
        explore_factors.components,
        explore_factors.places,
    )
    return [part for make in makers if (part := make(fit)) is not None]


def render(fit: Any) -> str:
    """The whole page as text."""
    parts = parts_of(fit)
    words = nouns(fit)
    content: dict[str, Any] = {"nouns": words._asdict()}
    for part in parts:
        content |= part.content
    script = _package_text("explore.js")
    tabs = {
        key: title.format(rows=words.rows.capitalize(), columns=words.columns.capitalize())
        for key, title in TABS.items()
        if key == "about" or key in content
    }
    text = _template().render(
        title=_title(fit),
        size=_size(fit),
        tabs=tabs,
        nouns=words,
        content=content,
        notes=[note for part in parts for note in part.notes],
        facts=_facts(fit),
        sites=_sites(fit),
        data=Markup(_safe_json(content)),
        style=Markup(_package_text("explore.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return markup.clean(text)


@functools.cache
def _template() -> jinja2.Template:
    options: Any = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    loader = jinja2.PackageLoader("inference.report")
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, **options)
    return environment.get_template("explore.html.j2")


def _package_text(name: str) -> str:
    return resources.files("inference.report").joinpath("templates", name).read_text("utf-8")


def _safe_json(content: Any) -> str:
    """JSON that can stand inside a script element: no name can end the element or a line."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))  # ASCII: no U+2028 either
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


# About the fit ------------------------------------------------------------------------------------


def _title(fit: Any) -> str:
    return str(fit.model.title)


def _size(fit: Any) -> str:
    words, about = nouns(fit), fit.provenance
    return (
        f"{about['rows']:,} {words.of(words.row, about['rows'])} × "
        f"{about['columns']:,} {words.of(words.column, about['columns'])}"
    )


def _facts(fit: Any) -> dict[str, str]:
    """What was fitted and how, in the order of the page."""
    hyper = {
        name: _plain(value) for name, value in fit.hyper._asdict().items() if value is not None
    }
    seconds = f" in {fit.seconds:.1f} s" if np.isfinite(fit.seconds) else ""
    facts = {
        "Model": f"{fit.model.name}: {_title(fit)}",
        "Engine": f"{fit.engine}, {len(fit.history['step']):,} steps{seconds}",
        "Data": f"{fit.provenance['kind']}, {_size(fit)}",
        "Hyper-parameters": ", ".join(f"{name} = {value}" for name, value in hyper.items()),
    }
    if fit.known_bound is not None:
        facts["Bound"] = f"{fit.known_bound:,.1f} nats"
    if fit.stopped:
        facts["Ended early"] = fit.stopped
    return facts


def _plain(value: Any) -> str:
    found = np.asarray(value)
    if found.dtype.kind in "biuOU" and not found.ndim:
        return str(value)
    shown = [number(x) for x in found.ravel()[:6].tolist()]
    more = ", …" if found.size > 6 else ""
    return shown[0] if not found.ndim else f"({', '.join(shown)}{more})"


def _sites(fit: Any) -> list[dict[str, Any]]:
    """A line for each latent site: its letter, shape, and the value of a single number."""
    model, posterior = fit.model, fit.posterior
    shapes = value_shapes(model, fit.hyper, fit.data) if fit.data is not None else {}
    lines = []
    for site in posterior.sites:
        at_hand = fit.data is not None or site in posterior.at_hand
        value = np.asarray(posterior.mean(site)) if at_hand else None
        shape = shapes.get(site, None if value is None else value.shape)
        single = value is not None and value.size == 1
        mean = number(value.item()) if single and value is not None else ""
        if mean and posterior.has_spread:
            mean += f" ± {number(float(np.asarray(posterior.sd(site)).item()))}"
        lines.append(
            {
                "symbol": markup.symbol(site),
                "kind": f"each {nouns(fit).row}" if site in model.local else "all data",
                "shape": "not stored" if shape is None else " × ".join(f"{n:,}" for n in shape),
                "mean": mean,
            }
        )
    return lines
