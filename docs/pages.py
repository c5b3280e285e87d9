"""The pages that are made from what is discovered: a card for every model, a page for every engine, the table of both, the reference, the lessons."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import prose

import inference
import pp_models
from inference.core import registry
from inference.report import typeset

ROOT = Path(__file__).parent.parent
KINDS = {
    "variational": "a distribution",
    "point": "a point",
    "draws": "draws",
    "mixture": "a mixture",
}
RETURNS = {
    "variational": "A distribution q, with `mean`, `sd`, `sample` and `log_density` for every site.",
    "point": "A point: the best value of every site. It has no width, and `sd` is zero.",
    "draws": "Draws of Markov chains, with diagnostics of how well they mixed.",
    "mixture": "A weighted mixture of distributions, one for each value of the hyper-parameters on the grid (one value: a mixture of one).",
}
ROWS = {
    "all": "All rows, at every step.",
    "batch": "A random batch of rows, at every step.",
    "partition": "The batches of one fixed partition of the rows, in turn.",
    "stream": "Rows of a database that grows.",
    "none": "All rows: the engine packs its own.",
}
DATA = {
    "counts": "counts, documents x words: [`data.counts`](../data-formats.md#counts)",
    "ratings": "ratings of items by users, most of them missing: [`data.ratings`](../data-formats.md#ratings)",
    "text_and_votes": "text of bills and votes on them: [`data.text_and_votes`](../data-formats.md#text-and-votes)",
    "dense": "rows of numbers without gaps: [`data.dense`](../data-formats.md#dense-rows)",
}
SYMMETRIES = {
    "permutation": "The factors may be relabelled.",
    "signed_permutation": "The factors may be relabelled and their signs changed.",
    "rotation": "The space of the factors may be rotated.",
    "scale": "The factors may be relabelled, and one side scaled up while the other is scaled down.",
    "none": "Nothing: the posterior has no symmetry.",
}
PAPERS = (
    "Letters such as P(11.25) or T 3.1 name the papers and their equations: "
    "[what they stand for](../corrections.md#the-papers). Symbols shared by all models are in the [glossary](../glossary.md)."
)


def table(heads: list[str], rows: list[list[str]]) -> str:
    """In Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])


def paragraph(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""


# Which engines apply -----------------------------------------------------------------------------------------------------------


def own_models() -> list[str]:
    """The models of this package, without those of folders in PP_MODELS_PATH."""
    return [
        name
        for name in pp_models.available()
        if (ROOT / "pp_models" / "models" / f"{name}.py").exists()
    ]


def refusal(model: Any, engine: Any) -> str:
    """Why the engine cannot fit the model with its default hyper-parameters, as `inference.fit` decides it; empty where it can."""
    if reason := engine.suits(model):
        return reason
    return (
        f"{model.name} has no proper prior, hence no posterior: only points apply."
        if engine.kind != "point" and not is_proper(model)
        else ""
    )


def is_proper(model: Any) -> bool:
    return model.proper(model.Hyper())


# Fields of Hyper and Options ---------------------------------------------------------------------------------------------------


def fields(declared: Any) -> dict[str, str]:
    """What is said of each field: an option's own words, or what a docstring says, `name: meaning.`, one after the other."""
    if hasattr(declared, "described"):
        return {name: f"{option.about}." for name, option in declared.described.items()}
    text = " ".join((inspect.getdoc(declared) or "").split())
    name = "|".join(sorted(declared._fields, key=len, reverse=True))
    marks = list(
        re.finditer(
            rf"(?:(?<=^)|(?<=\s))((?:{name})(?: \(\w\))?(?:, (?:{name})(?: \(\w\))?)*): ", text
        )
    )
    found: dict[str, str] = {}
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        meaning = (
            text[mark.end() : following.start() if following else len(text)].strip().rstrip(",;")
        )
        found |= dict.fromkeys(re.findall(rf"\b(?:{name})\b", mark[1]), meaning)
    for field in declared._fields:
        if field not in found:
            place = next(
                (one for one, words in found.items() if re.search(rf"\b{field}\b", words)), None
            )
            found[field] = f"see `{place}`" if place else ""
    return found


def field_table(declared: Any, head: str) -> str:
    meanings, defaults = fields(declared), declared._field_defaults
    rows = [
        [
            _field(name),
            _default(defaults[name]) if name in defaults else "–",
            prose.inline(meanings[name]),
        ]
        for name in declared._fields
    ]
    return table([head, "default", "meaning"], rows)


def _field(name: str) -> str:
    shown = typeset.symbol(name)
    return f"`{name}`" if shown.startswith("<code>") else f"`{name}` {shown}"


def _default(value: Any) -> str:
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


# Models ------------------------------------------------------------------------------------------------------------------------


def title(text: str) -> str:
    return text.strip().splitlines()[0].rstrip(".")


def model_page(name: str) -> str:
    """The card: the process as the report shows it, names, settings, data, engines, and the rest of the story."""
    model, text = pp_models.load(name), docstring(ROOT / "pp_models" / "models" / f"{name}.py")
    lines, rest = typeset.split_story(text)
    before, rest = _introduction(text, rest)
    story, symbols = _without_table(rest)
    return paragraph(
        f"# `{name}`",
        f"{prose.inline(title(text))}.",
        "## Generative process",
        prose.markdown(before) if before else "",
        prose.equations(lines),
        _facts(model),
        "## Symbols" if symbols else "",
        symbols,
        PAPERS,
        "## Hyper-parameters",
        f'In Python `hyper={{"{model.Hyper._fields[0]}": 20}}`, on the command line `--set {model.Hyper._fields[0]}=20`. '
        "`None` is filled in from the data, or, where the meaning says so, unknown.",
        field_table(model.Hyper, "name"),
        "## Engines",
        _engines_of(model),
        "## The whole story" if story else "",
        prose.markdown(story) if story else "",
    )


def _introduction(text: str, rest: str) -> tuple[str, str]:
    """What a docstring says between its title and its process, and what is left of the rest of it."""
    before = re.match(r"[^\n]*\n[ \t]*\n((?:\S[^\n]*\n)+)[ \t]*\n(?=    )", text.lstrip("\n"))
    if before is None or not rest.startswith(before[1].strip()):
        return "", rest
    return before[1], rest.removeprefix(before[1].strip()).strip("\n")


def _without_table(rest: str) -> tuple[str, str]:
    """The text, and the tables of symbols taken out of it."""
    blocks = re.split(r"\n[ \t]*\n", rest)
    tables = [block for block in blocks if block.lstrip().startswith("|")]
    return "\n\n".join(block for block in blocks if block not in tables), "\n\n".join(
        map(prose.markdown, tables)
    )


def _facts(model: Any) -> str:
    laws = {
        site: family.name.replace("_tied", ", tied").replace("_", "-")
        for site, family in model.families.items()
    }
    named = {
        site: re.sub("dirichlet|wishart", lambda law: law[0].capitalize(), law)
        for site, law in laws.items()
    }
    sites = [
        f"`{site}` ({law}{', one row for each row of the data' if site in model.local else ''})"
        for site, law in named.items()
    ]
    facts = {
        "Data": DATA.get(model.kind, model.kind),
        "Unknowns": ", ".join(sites),
        "What the data cannot tell": " ".join(
            (SYMMETRIES.get(model.symmetry, model.symmetry), _rotation(model))
        ).strip(),
        "Fit it": f'`inference.fit("{model.name}", data)` or `pp-models fit {model.name} --data FILE --out DIR`',
    }
    return "\n\n".join(f"**{name}**\n:   {words}" for name, words in facts.items())


def _rotation(model: Any) -> str:
    if not model.rotation.sites or model.symmetry in ("rotation", "signed_permutation"):
        return ""
    return (
        f"The space of {' and '.join(f'`{site}`' for site in model.rotation.sites)} may be rotated."
    )


def _engines_of(model: Any) -> str:
    found = {name: refusal(model, registry.load_engine(name)) for name in registry.engines()}
    able = [f"[`{name}`](../engines/{name}.md)" for name, reason in found.items() if not reason]
    compared = [f"`{name}`" for name in registry.default_engines(model, model.Hyper())]
    listed = "\n".join(
        f"- [`{name}`](../engines/{name}.md): {prose.inline(reason)}"
        for name, reason in found.items()
        if reason
    )
    return paragraph(
        f"These apply: {', '.join(able)}.",
        f"`pp-models compare {model.name} --out DIR` takes {', '.join(compared)}.",
        f"These do not:\n\n{listed}" if listed else "",
    )


def models_index() -> str:
    rows = []
    for name in own_models():
        model, text = pp_models.load(name), docstring(ROOT / "pp_models" / "models" / f"{name}.py")
        number = sum(
            not refusal(model, registry.load_engine(engine)) for engine in registry.engines()
        )
        rows.append(
            [f"[`{name}`]({name}.md)", prose.inline(title(text)), f"`{model.kind}`", str(number)]
        )
    return paragraph(
        "# Models",
        "Each is one file, which states the generative process, the guide and the log joint density. Cards show the process as equations, what its "
        "symbols are called in the papers and in code, its hyper-parameters, and the engines that apply.",
        table(["model", "what it is", "data", "engines"], rows),
        "A model of your own joins `pp-models list`, every engine and the report by being in a folder that `PP_MODELS_PATH` names: see "
        "[the model contract](../model-contract.md).",
    )


# Engines -----------------------------------------------------------------------------------------------------------------------


def engine_page(name: str) -> str:
    engine, text = (
        registry.load_engine(name),
        docstring(ROOT / "inference" / "engines" / f"{name}.py"),
    )
    first, _, rest = text.strip().partition("\n\n")
    head, _, more = " ".join(first.split()).partition(". ")
    begins = {
        "natural": "`init` may hold natural parameters of global sites",
        "values": "`init` may hold values of any site",
        "none": "chooses its own start",
    }
    facts = {
        "Returns": RETURNS[engine.kind],
        "A step sees": ROWS[engine.rows],
        "Start": f"{begins[engine.init].capitalize() if engine.init == 'none' else begins[engine.init]}.",
        "Hyper-parameters": "Can be learned while it runs (`learn`)."
        if engine.learns
        else "Are kept as given.",
        "Streams": "Can follow a database that grows, by `inference.stream`."
        if engine.stream
        else "",
    }
    suits = {model: refusal(pp_models.load(model), engine) for model in own_models()}
    able = ", ".join(
        f"[`{model}`](../models/{model}.md)" for model, reason in suits.items() if not reason
    )
    unable = "\n".join(
        f"- [`{model}`](../models/{model}.md): {prose.inline(reason)}"
        for model, reason in suits.items()
        if reason
    )
    return paragraph(
        f"# `{name}`",
        prose.inline(f"{head.rstrip('.')}." + (f" {more}" if more else "")),
        "\n\n".join(f"**{fact}**\n:   {words}" for fact, words in facts.items() if words),
        "## How it works" if rest else "",
        prose.markdown(rest) if rest else "",
        PAPERS,
        "## Options",
        f'In Python `inference.fit(model, data, engine="{name}", {engine.Options._fields[0]}=...)`, on the command line '
        f"`--engine {name} --set {engine.Options._fields[0]}=...`. Where a default is 0 and its meaning says so, the engine chooses.",
        field_table(engine.Options, "option"),
        "## Models",
        f"It fits {able}.",
        f"It does not fit:\n\n{unable}" if unable else "",
    )


def engines_index() -> str:
    rows = []
    for name in registry.engines():
        engine, text = (
            registry.load_engine(name),
            docstring(ROOT / "inference" / "engines" / f"{name}.py"),
        )
        rows.append(
            [
                f"[`{name}`]({name}.md)",
                prose.inline(" ".join(text.strip().split("\n\n")[0].split())),
                KINDS[engine.kind],
            ]
        )
    return paragraph(
        "# Engines",
        "An engine knows families of distributions, the log joint density F and its gradients, and no model by name. "
        "Which one to take is said in [How to choose an engine](../choosing.md).",
        table(["engine", "what it does", "returns"], rows),
        "Which model each applies to is in [the table of models and engines](../models-and-engines.md).",
    )


def matrix() -> str:
    """Models against engines."""
    names = registry.engines()
    heads = "".join(
        f'<th scope="col"><a href="../engines/{name}.html"><span>{name}</span></a></th>'
        for name in names
    )
    body = []
    for model in own_models():
        declared, shown = pp_models.load(model), []
        default = registry.default_engines(declared, declared.Hyper())
        for name in names:
            reason = refusal(declared, registry.load_engine(name))
            sign, words = (
                ("no", reason)
                if reason
                else ("both", "applies, compared by default")
                if name in default
                else ("yes", "applies")
            )
            mark = {"no": "–", "both": "●", "yes": "○"}[sign]
            shown.append(
                f'<td class="{sign}" title="{typeset.escape(f"{model} by {name}: {words}")}">{mark}</td>'
            )
        body.append(
            f'<tr><th scope="row"><a href="../models/{model}.html">{model}</a></th>{"".join(shown)}</tr>'
        )
    grid = f'<div class="matrix"><table class="crossing"><thead><tr><td></td>{heads}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    return paragraph(
        "# Models and engines",
        "● applies, and `pp-models compare` takes it unless told otherwise; ○ applies; – does not. Point at a cell for the reason. "
        "All with default hyper-parameters: `bayesian_nmf` with `flat=True` has no prior, and then only points apply.",
        grid.replace('href="../', 'href="'),
    )


# The reference -----------------------------------------------------------------------------------------------------------------


def _names(package: str, *lines: str) -> list[str]:
    return [f"{package}.{name}" for line in lines for name in line.split()]


GROUPS: dict[str, tuple[str, list[str]]] = {
    "Fitting": (
        "Fit a model, follow a stream, and use what comes out.",
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
            "document_completion perplexity log_evidence precision_recall_at coherence diversity split_ratings score_ratings score_votes",
            "score_probabilities calibration_error loo waic evaluation.scores.Score evaluation.scores.Measure",
        ),
    ),
    "Reading topics": (
        "Topics, their words and documents, and which go together.",
        _names(
            "inference",
            "topics top_words format_topics prevalence representative_documents topic_correlations correlation_figure nearest_documents",
            "evaluation.topics.Topics",
        ),
    ),
    "Predicting": (
        "Ratings and votes that were not seen.",
        _names(
            "inference", "predict_ratings evaluation.ratings.Prediction predict_votes refit_members"
        ),
    ),
    "Data": (
        "Data in memory, from files, on disk and by name.",
        _names(
            "pp_models",
            "data.counts data.ratings data.text_and_votes data.dense data.of_equal_length data.tf_idf data.Data datasets.load datasets.synthetic",
            "data.formats.readers.read data.formats.readers.blocks data.formats.writers.write data.text.read data.text.count",
            "data.corpus.write data.corpus.read database.Database arrivals.Arrivals",
        ),
    ),
    "Models": (
        "Finding models, and what one declares.",
        _names("pp_models", "available load model.Model InputError"),
    ),
    "Engines": (
        "What an engine declares.",
        _names("inference", "core.engine.Engine core.engine.Algorithm core.engine.Stage"),
    ),
}


def groups() -> dict[str, tuple[str, list[str]]]:
    """The public names by purpose; those that no group names come last, so that none is missing."""
    public = [
        f"{package.__name__}.{name}"
        for package in (pp_models, inference)
        for name in package.__all__
    ]
    placed = {name for _, names in GROUPS.values() for name in names}
    modules = {name for name in public if inspect.ismodule(_value(name))}
    rest = [name for name in public if name not in placed and name not in modules]
    unknown = sorted(
        name for name in modules - placed if not any(one.startswith(f"{name}.") for one in placed)
    )
    return GROUPS | ({"Others": ("What else there is.", rest + unknown)} if rest + unknown else {})


def _value(name: str) -> Any:
    package, *parts = name.split(".")
    found = importlib.import_module(package)
    for part in parts:
        found = getattr(found, part, None) or importlib.import_module(f"{found.__name__}.{part}")
    return found


def home(name: str) -> str:
    """Where a name is defined, which is where its docstring is read."""
    value = _value(name)
    return value.__name__ if inspect.ismodule(value) else f"{value.__module__}.{value.__qualname__}"


def slug(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def reference_page(heading: str, about: str, names: list[str]) -> str:
    entries = [
        f"::: {home(name)}\n    options:\n      heading: {name}\n      toc_label: {name}"
        for name in names
    ]
    return paragraph(f"# {heading}", about, *entries)


def reference_index() -> str:
    rows = [
        [
            f"[{heading}]({slug(heading)}.md)",
            about,
            ", ".join(f"[`{name}`]({slug(heading)}.md#{home(name)})" for name in names),
        ]
        for heading, (about, names) in groups().items()
    ]
    return paragraph(
        "# Reference",
        "`import inference, pp_models`. Names are shown as they are imported; each entry says what a function takes and returns.",
        table(["purpose", "", "names"], rows),
    )


# Lessons -----------------------------------------------------------------------------------------------------------------------

LESSONS = (
    "From EM to SVI on LDA",
    "LDA, GaP and Bayesian NMF are one family",
    "Correlated topics",
    "PMF",
    "Why trust regions",
    "Votes and bills",
    "Is my variational posterior any good?",
    "Write your own model",
)


def notebooks() -> str:
    """The lessons, each with its own first heading and paragraph where its file exists."""
    sources = {
        int(match[1]): path
        for path in sorted((ROOT / "notebooks").glob("[0-9]*_*.py"))
        if (match := re.match(r"0*(\d+)_", path.name))
    }
    parts = []
    for number in sorted({*range(1, len(LESSONS) + 1), *sources}):
        heading, text = lesson(sources[number]) if number in sources else ("", "")
        heading = re.sub(r"^\d+[.:]?\s+", "", heading) or (
            LESSONS[number - 1] if number <= len(LESSONS) else f"Lesson {number}"
        )
        where = (
            f"`notebooks/{sources[number].name}`"
            if number in sources
            else "Not in this version yet."
        )
        parts.append(
            f"## {number}. {heading}\n\n{text}\n\n{where}"
            if text
            else f"## {number}. {heading}\n\n{where}"
        )
    return paragraph(
        "# Notebooks",
        "Lessons, each one file in jupytext's percent format, each under three minutes on two cores. `make notebooks` runs them all and writes an "
        "`.ipynb` with every output beside each. Exercises stand at the end of each, with solutions in folded cells.",
        *parts,
    )


def lesson(path: Path) -> tuple[str, str]:
    """First heading and first paragraph of a notebook's Markdown cells."""
    cell = re.search(
        r"^# %% \[markdown\][^\n]*\n((?:#[^\n]*\n?)+)",
        path.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    lines = [] if cell is None else [re.sub(r"^# ?", "", line) for line in cell[1].splitlines()]
    blocks = [block for block in re.split(r"\n\s*\n", "\n".join(lines)) if block.strip()]
    heading = next((block.splitlines()[0] for block in blocks if block.startswith("#")), "")
    said = [
        "\n".join(line for line in block.splitlines() if not line.startswith("#")).strip()
        for block in blocks
    ]
    return heading.lstrip("# ").strip(), next((words for words in said if words), "")
