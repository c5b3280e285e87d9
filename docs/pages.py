"""Pages generated from the code: models, engines, their table and the lessons."""

import ast
import inspect
import re
from html import escape
from pathlib import Path
from typing import Any

import pp_models
from inference.core import registry
from inference.report import markup
from pp_models.model.description import family_words

ROOT = Path(__file__).parent.parent
RETURNS = {
    "variational": "A distribution q, with `mean`, `sd`, `sample` and `log_density` of every site.",
    "conditional": "A distribution of the global sites, and of the rows given draws of them, with "
    "`mean`, `sd` and `sample` of every site.",
    "point": "A point: the best value of every site. Its `sd` is zero.",
    "draws": "Draws of Markov chains, with diagnostics of how well they mixed.",
    "mixture": "A weighted mixture of distributions, one for each value of the hyper-parameters "
    "on the grid (one value: a mixture of one).",
}
ROWS = {
    "all": "All rows, at every step.",
    "batch": "A random batch of rows, at every step.",
    "partition": "The batches of one fixed partition of the rows, in turn.",
    "stream": "Rows of a database that grows.",
    "none": "All rows: the engine packs its own.",
}
STARTS = {
    "natural": "`init` may hold natural parameters of global sites.",
    "values": "`init` may hold values of any site.",
    "none": "Chooses its own start.",
}
DATA = {
    "counts": "counts, documents x words: [`data.counts`](../data-formats.md#counts)",
    "ratings": "ratings of items by users, most of them missing: "
    "[`data.ratings`](../data-formats.md#ratings)",
    "text_and_votes": "text of bills and votes on them: "
    "[`data.text_and_votes`](../data-formats.md#text-and-votes)",
    "dense": "rows of numbers without gaps: [`data.dense`](../data-formats.md#dense-rows)",
}
SYMMETRIES = {
    "permutation": "The factors may be relabelled.",
    "signed_permutation": "The factors may be relabelled and their signs changed.",
    "rotation": "The space of the factors may be rotated.",
    "scale": "The factors may be relabelled, and one side scaled up while the other shrinks.",
    "none": "Nothing: the posterior has no symmetry.",
}
PAPERS = (
    "Numbers in brackets after authors' names are equations of [their "
    "papers](../corrections.md#the-papers). The [glossary](../glossary.md) lists the symbols that "
    "all models share."
)


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def paragraphs(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def definitions(facts: dict[str, str]) -> str:
    return "\n\n".join(f"**{name}**\n:   {words}" for name, words in facts.items() if words)


def story(folder: str, name: str) -> markup.Story:
    """Docstring of a model's or an engine's file."""
    source = (ROOT / folder / f"{name}.py").read_text(encoding="utf-8")
    return markup.split(markup.named_papers(ast.get_docstring(ast.parse(source)) or ""))


def model_story(name: str) -> markup.Story:
    return story("pp_models/models", name)


def engine_story(name: str) -> markup.Story:
    return story("inference/engines", name)


# Which engines apply --------------------------------------------------------------------------


def own_models() -> list[str]:
    """The models of this package, without those of folders in PP_MODELS_PATH."""
    folder = ROOT / "pp_models" / "models"
    return [name for name in pp_models.available() if (folder / f"{name}.py").exists()]


def refusal(model: Any, engine: Any) -> str:
    """Why `inference.fit` refuses a model with default hyper-parameters, or an empty string."""
    if reason := engine.suits(model):
        return reason
    if engine.kind != "point" and not model.proper(model.Hyper()):
        return f"{model.name} has no proper prior, hence no posterior: only points apply."
    return ""


def suited(folder: str, reasons: dict[str, str]) -> tuple[str, str]:
    """Links to what applies, and a list of what does not with the reasons."""
    link = lambda name: f"[`{name}`](../{folder}/{name}.md)"  # noqa: E731
    able = ", ".join(link(name) for name, reason in reasons.items() if not reason)
    unable = [f"- {link(name)}: {reason}" for name, reason in reasons.items() if reason]
    return able, "\n".join(unable)


# Fields of Hyper and Options ------------------------------------------------------------------


def fields(declared: Any) -> dict[str, str]:
    """Meaning of each field: an option's own words, or `name: meaning.` in the docstring."""
    if hasattr(declared, "described"):
        return {name: f"{option.about}." for name, option in declared.described.items()}
    text = " ".join((inspect.getdoc(declared) or "").split())
    name = "|".join(sorted(declared._fields, key=len, reverse=True))
    names = rf"(?:^|(?<=\s))((?:{name})(?: \(\w\))?(?:, (?:{name})(?: \(\w\))?)*): "
    _, *parts = re.split(names, text)
    found: dict[str, str] = {}
    for which, meaning in zip(parts[::2], parts[1::2], strict=True):
        found |= dict.fromkeys(re.findall(rf"\b(?:{name})\b", which), meaning.strip().rstrip(",;"))
    for field in set(declared._fields) - set(found):
        mentions = (one for one, words in found.items() if re.search(rf"\b{field}\b", words))
        place = next(mentions, None)
        found[field] = f"see `{place}`" if place else ""
    return found


def field_table(declared: Any, head: str) -> str:
    meanings, defaults = fields(declared), declared._field_defaults
    rows = []
    for name in declared._fields:
        shown, value = markup.symbol(name), defaults.get(name)
        shown = f"`{name}`" if shown.startswith("<code>") else f"`{name}` {shown}"
        value = f'"{value}"' if isinstance(value, str) else value
        default = f"`{value}`" if name in defaults else "–"
        rows.append([shown, default, meanings[name].replace("|", r"\|")])
    return table([head, "default", "meaning"], rows)


# Models ---------------------------------------------------------------------------------------


def model_page(name: str) -> str:
    """Generative process, facts, hyper-parameters, engines, and the rest of the docstring."""
    model, text = pp_models.load(name), model_story(name)
    first = model.Hyper._fields[0]
    reasons = {one: refusal(model, registry.load_engine(one)) for one in registry.engines()}
    able, unable = suited("engines", reasons)
    compared = ", ".join(f"`{one}`" for one in registry.default_engines(model, model.Hyper()))
    return paragraphs(
        f"# `{name}`",
        text.title,
        "## Generative process",
        text.process,
        definitions(_facts(model)),
        "## Hyper-parameters",
        f'In Python `hyper={{"{first}": 20}}`, on the command line `--set {first}=20`. '
        "`None` is filled in from the data, or, where the meaning says so, unknown.",
        field_table(model.Hyper, "name"),
        "## Engines",
        f"These apply: {able}.",
        f"`pp-models compare {name} --out DIR` takes {compared}.",
        f"These do not:\n\n{unable}" if unable else "",
        "## More about the model" if text.rest else "",
        text.rest,
        PAPERS,
    )


def _facts(model: Any) -> dict[str, str]:
    sites = []
    for site, family in model.families.items():
        law = family_words(family.name)
        local = ", one row for each row of the data" if site in model.local else ""
        sites.append(f"`{site}` ({law}{local})")
    symmetry = SYMMETRIES.get(model.symmetry, model.symmetry)
    if model.rotation.sites and model.symmetry not in ("rotation", "signed_permutation"):
        rotated = " and ".join(f"`{site}`" for site in model.rotation.sites)
        symmetry += f" The space of {rotated} may be rotated."
    return {
        "Data": DATA.get(model.kind, model.kind),
        "Unknowns": ", ".join(sites),
        "What the data cannot tell": symmetry,
        "Fit it": f'`inference.fit("{model.name}", data)` or '
        f"`pp-models fit {model.name} --data FILE --out DIR`",
    }


def models_index() -> str:
    engines = [registry.load_engine(name) for name in registry.engines()]
    rows = []
    for name in own_models():
        model, title = pp_models.load(name), model_story(name).title.rstrip(".")
        number = sum(not refusal(model, engine) for engine in engines)
        rows.append([f"[`{name}`]({name}.md)", title, f"`{model.kind}`", str(number)])
    return paragraphs(
        "# Models",
        "Each model is one file with its generative process and its log joint density. Its page "
        "shows the equations, the symbols of the papers and of the code, the hyper-parameters, and "
        "the engines that apply.",
        table(["model", "what it is", "data", "engines"], rows),
        "To add a model of your own to `pp-models list`, every engine and the report, put its "
        "file into a folder that `PP_MODELS_PATH` names: see "
        "[the model contract](../model-contract.md).",
    )


# Engines --------------------------------------------------------------------------------------


def engine_page(name: str) -> str:
    engine, text = registry.load_engine(name), engine_story(name)
    reasons = {model: refusal(pp_models.load(model), engine) for model in own_models()}
    able, unable = suited("models", reasons)
    facts = {
        "Returns": RETURNS[engine.kind],
        "A step sees": ROWS[engine.rows],
        "Start": STARTS[engine.init],
        "Hyper-parameters": "Can be learned while it runs (`learn`)."
        if engine.learns
        else "Are kept as given.",
        "Streams": "Can follow a growing database: `inference.stream`." if engine.stream else "",
    }
    first = engine.Options._fields[0]
    how = "\n\n".join(part for part in (text.process, text.rest) if part)
    return paragraphs(
        f"# `{name}`",
        text.title,
        definitions(facts),
        "## How it works" if how else "",
        how,
        PAPERS,
        "## Options",
        f'In Python `inference.fit(model, data, engine="{name}", {first}=...)`, on the command '
        f"line `--engine {name} --set {first}=...`. Where a default is 0 and its meaning says "
        "so, the engine chooses.",
        field_table(engine.Options, "option"),
        "## Models",
        f"It fits {able}.",
        f"It does not fit:\n\n{unable}" if unable else "",
    )


def engines_index() -> str:
    kinds = {"variational": "distribution", "conditional": "distribution"}
    rows = []
    for name in registry.engines():
        kind = registry.load_engine(name).kind
        rows.append([f"[`{name}`]({name}.md)", engine_story(name).title, kinds.get(kind, kind)])
    return paragraphs(
        "# Engines",
        "An engine knows families of distributions, the log joint density F and its gradients, and "
        "no model by name. See [How to choose an engine](../choosing.md).",
        table(["engine", "what it does", "returns"], rows),
        "[Models and engines](../models-and-engines.md) shows which model each applies to.",
    )


def matrix() -> str:
    """Models against engines."""
    names = registry.engines()
    heads = "".join(
        f'<th scope="col"><a href="engines/{name}.html"><span>{name}</span></a></th>'
        for name in names
    )
    body = []
    for name in own_models():
        model = pp_models.load(name)
        default, cells = registry.default_engines(model, model.Hyper()), []
        for engine in names:
            css, mark, words = "yes", "○", "applies"
            if reason := refusal(model, registry.load_engine(engine)):
                css, mark, words = "no", "–", reason
            elif engine in default:
                css, mark, words = "both", "●", "applies, compared by default"
            tip = escape(f"{name} by {engine}: {words}")
            cells.append(f'<td class="{css}" title="{tip}">{mark}</td>')
        head = f'<th scope="row"><a href="models/{name}.html">{name}</a></th>'
        body.append(f"<tr>{head}{''.join(cells)}</tr>")
    rows = f"<thead><tr><td></td>{heads}</tr></thead><tbody>{''.join(body)}</tbody>"
    return paragraphs(
        "---\nhide: [navigation, toc]\n---",
        "# Models and engines",
        "● applies, and `pp-models compare` takes it by default; ○ applies; – does not. Point at a "
        "cell for the reason, or see the model's page. All with default hyper-parameters: "
        "`bayesian_nmf` with `flat=True` has no prior, and then only points apply.",
        '<p class="only-narrow">The table scrolls sideways.</p>',
        f'<div class="matrix"><table class="crossing">{rows}</table></div>',
    )


# Lessons --------------------------------------------------------------------------------------


def notebooks() -> str:
    """The lessons, each with the first heading and paragraph of its file."""
    parts = []
    for path in sorted((ROOT / "notebooks").glob("[0-9]*_*.py")):
        heading, text = lesson(path)
        heading = re.sub(r"^\d+[.:]?\s+", "", heading)
        number = int(path.name.split("_")[0])
        parts += [f"## {number}. {heading}", text, f"`notebooks/{path.name}`"]
    return paragraphs(
        "# Notebooks",
        "Lessons, each one file in jupytext's percent format, each under three minutes on two "
        "cores. `make notebooks` runs them all and writes an `.ipynb` with every output beside "
        "each. Exercises are at the end of each, with solutions in folded cells.",
        *parts,
    )


def lesson(path: Path) -> tuple[str, str]:
    """First heading and first paragraph of a notebook's Markdown cells."""
    text = path.read_text(encoding="utf-8")
    cell = re.search(r"^# %% \[markdown\][^\n]*\n((?:#[^\n]*\n?)+)", text, re.MULTILINE)
    lines = re.sub(r"(?m)^# ?", "", cell[1] if cell else "")
    heading = re.search(r"(?m)^#+ (.*)", lines)
    prose = re.sub(r"(?m)^#.*\n?", "", lines).strip()
    return (heading[1].strip() if heading else ""), prose.partition("\n\n")[0]
