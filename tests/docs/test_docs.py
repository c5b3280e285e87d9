"""What is written about the project is true: examples run, commands are understood, links lead
somewhere, and the documentation's site is whole.

The site is built and opened in a browser by slow tests, which are skipped where MkDocs or
Chromium is missing, but not where CI is set.
"""

import collections
import functools
import html.parser
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest

import pp_models
from inference.cli import _parser, main
from inference.core import registry
from inference.report import markup

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(
        ROOT / name
        for name in ("README.md", "MODEL_CONTRACT.md", "CONTRIBUTING.md", "CHANGELOG.md")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
]
MODELS = [
    name
    for name in pp_models.available()
    if (ROOT / "pp_models" / "models" / f"{name}.py").exists()
]
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
)


def loaded(path):
    """A script of the project as a module."""
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


examples = loaded(Path(__file__).with_name("examples.py"))


def need(missing):
    """Skip what cannot be tested here, unless it must be."""
    if missing and os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"The documentation must be tested here, but {missing}.")
    if missing:
        pytest.skip(missing)


# Examples -------------------------------------------------------------------------------------


FAST = {"README.md", "reliability.md"}  # the others, and docstrings, in `make calibrate`


def run_examples(tmp_path, files, modules):
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # which one of them reads from
    command = [
        sys.executable,
        Path(examples.__file__),
        *files,
        *(["--modules", *modules] if modules else []),
    ]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr[-3000:] + result.stdout[-3000:]
    assert result.stdout.count("\n== ") + result.stdout.startswith("== ") == len(files) + len(
        modules
    )
    return result.stdout


def test_the_first_examples_run(tmp_path):
    """Every Python block of what is read first, copied one after the other as a reader would, in a
    fresh process."""
    files = [
        path
        for path in DOCUMENTS
        if path.name in FAST and examples.blocks(path.read_text(encoding="utf-8"))
    ]
    assert {path.name for path in files} == FAST
    said = run_examples(tmp_path, files, [])
    assert "tax, vote, law" in said and (tmp_path / "lda.npz").exists()  # by the README's examples


@pytest.mark.slow
def test_examples_run(tmp_path):
    """The same of all documents, and the examples in docstrings."""
    files = [path for path in DOCUMENTS if examples.blocks(path.read_text(encoding="utf-8"))]
    sources = [
        path
        for package in ("pp_models", "inference")
        for path in sorted((ROOT / package).rglob("*.py"))
    ]
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources
        if ">>>" in path.read_text(encoding="utf-8")
    ]
    assert {"README.md", "quickstart.md", "references.md"} <= {path.name for path in files} and len(
        modules
    ) >= 8
    said = run_examples(tmp_path, files, modules)
    assert "Stream lda by streaming: 55 rows, 11 steps" in said and (tmp_path / "stream").is_dir()


def commands(text):
    """Lines of unnamed or shell blocks that call the command line, continuation lines joined and
    comments dropped."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in (
            block.replace("\\\n", " ").splitlines()
            if language in ("", "sh", "bash", "console")
            else ()
        ):
            if line.startswith(("pp-models ", "python -m pp_models ")):
                yield shlex.split(line.removeprefix("python -m ").partition(" ")[2], comments=True)


@pytest.mark.parametrize(
    "path",
    [path for path in DOCUMENTS if list(commands(path.read_text(encoding="utf-8")))],
    ids=lambda path: path.name,
)
def test_commands_are_understood(path, capsys):
    """Every command of a shell block is one that the argument parser takes, and the models and
    engines it names are there."""
    for words in commands(path.read_text(encoding="utf-8")):
        try:
            chosen = _parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"{path.name}: pp-models {shlex.join(words)}: {capsys.readouterr().err}")
        named = [
            *(getattr(chosen, "engines", None) or "").split(","),
            getattr(chosen, "engine", ""),
            getattr(chosen, "reference", ""),
        ]
        assert {name for name in named if name} <= {*registry.compared_names(), "none"}
        model = getattr(chosen, "model", MODELS[0])
        assert model in MODELS or model.endswith(".py")  # `check` takes a file


# Pages ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def build():
    return loaded(ROOT / "docs" / "build.py")


@pytest.fixture(scope="module")
def sources(build, tmp_path_factory):
    """The site's pages in Markdown."""
    folder = tmp_path_factory.mktemp("docs") / "pages"
    build.gather(folder)
    return folder


def links(text):
    """Targets of links and images, code aside."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", prose)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    """Every relative link of a document leads to a file or folder of the repository."""
    for link in links(path.read_text(encoding="utf-8")):
        target = link.partition("#")[0]
        if target and "://" not in target:
            assert (path.parent / target).exists(), link


def test_links_of_pages_lead_to_pages(sources):
    """In the site, links to files of the repository lead to the pages made of them."""
    for path in sorted(sources.rglob("*.md")):
        for link in links(path.read_text(encoding="utf-8")):
            target = link.partition("#")[0]
            if target and "://" not in target:
                assert (path.parent / target).resolve().is_relative_to(sources.resolve()), link
                assert (path.parent / target).is_file(), f"{path.name}: {link}"
    quickstart = (sources / "quickstart.md").read_text(encoding="utf-8")
    assert "(models/lda.md)" in quickstart and "(engines/cavi.md)" in quickstart


def test_every_model_and_engine_has_a_page(sources):
    """With its equations as mathematics, each hyper-parameter and option with what its docstring
    says of it, and a place in the table."""
    grid = (sources / "models-and-engines.md").read_text(encoding="utf-8")
    assert grid.count("<tr>") == 1 + len(MODELS) and grid.count("<td class=") == len(MODELS) * len(
        registry.engines()
    )
    for name in MODELS:
        text, model = (
            (sources / "models" / f"{name}.md").read_text(encoding="utf-8"),
            pp_models.load(name),
        )
        told = markup.named_papers(importlib.import_module(f"pp_models.models.{name}").__doc__)
        story = markup.split(told)
        assert story.process in text and story.rest in text
        assert all(f"| `{field}`" in text for field in model.Hyper._fields)
        assert all(
            f"[`{engine}`](../engines/{engine}.md)" in text for engine in registry.engines()
        )  # as one that applies, or with the reason why not
    for name in registry.engines():
        text = (sources / "engines" / f"{name}.md").read_text(encoding="utf-8")
        assert all(f"| `{field}`" in text for field in registry.load_engine(name).Options._fields)
        assert all(f"[`{model}`](../models/{model}.md)" in text for model in MODELS)


def test_fields_are_read_from_docstrings(build):
    """`name: meaning` and `name, name: meaning`; no hyper-parameter of a model and no option of an
    engine is left out, and an option that engines share is described alike."""
    Point = collections.namedtuple("Point", "x y label")
    Point.__doc__ = "x, y: where it is. label: its name."
    assert build.pages.fields(Point) == {
        "x": "where it is.",
        "y": "where it is.",
        "label": "its name.",
    }
    found = {
        name: build.pages.fields(registry.load_engine(name).Options) for name in registry.engines()
    }
    assert found["trust_region"]["num_inner"] == found["streaming"]["num_inner"] != ""
    assert all(all(options.values()) for options in found.values())
    assert all(all(build.pages.fields(pp_models.load(name).Hyper).values()) for name in MODELS)


def test_papers_have_authors_on_pages(sources, capsys):
    """Readers do not know the letters by which the code cites papers: "C17" and "P 11.1" are
    nowhere but on the page that says what they stand for (users.md 21)."""
    letters = re.compile(r"\bC1[78]\b|\b[PTXH] ?\(\d|\b[PTX] \d|\| [PTXH] \||\([PTXH]\)")
    for folder in ("models", "engines"):
        for path in (sources / folder).glob("*.md"):
            assert not letters.search(path.read_text(encoding="utf-8")), path
    main(["list"])
    assert not letters.search(capsys.readouterr().out)


def test_the_table_is_what_fit_decides(build):
    """A model and an engine are said to go together where `inference.fit` does not refuse them."""
    from inference.run import checks

    for name in MODELS:
        model = pp_models.load(name)
        problem = functools.partial(type("Problem", (), {}))()
        problem.model, problem.hyper, problem.learn = model, model.Hyper(), ()
        for engine in map(registry.load_engine, registry.engines()):
            try:
                checks.check_suits(engine, problem)
                refused = False
            except pp_models.InputError:
                refused = True
            assert bool(build.pages.refusal(model, engine)) == refused


def test_every_public_name_is_in_the_reference(build, sources):
    """Functions by themselves, modules by what is in them; each under the name that is imported."""
    import inference

    text = "".join(
        path.read_text(encoding="utf-8") for path in (sources / "reference").glob("*.md")
    )
    for package in (pp_models, inference):
        for name in package.__all__:
            assert re.search(rf"heading: (.*, )?{package.__name__}\.{name}\b", text)
    assert "Others" not in build.reference.groups()  # every name has been given a purpose


def test_docstrings_are_markdown():
    """Doctests are code, and lines `name: meaning` a definition list. Sentences stay sentences."""
    to_markdown = loaded(ROOT / "docs" / "docstrings.py").to_markdown
    text = to_markdown(
        """Title.

        a:   first
             line
        b, c: second

        $$ x_d $$

        >>> 1 + 1
        2

        parameters need no base
        measure: they are
        """
    )
    assert text == (
        "Title.\n\n`a`\n:   first line\n\n`b, c`\n:   second\n\n$$ x_d $$\n\n"
        "```pycon\n>>> 1 + 1\n2\n```\n\nparameters need no base\nmeasure: they are"
    )


def test_lessons_are_listed(build, tmp_path):
    """By the first heading and paragraph of their files."""
    path = tmp_path / "01_em.py"
    path.write_text(
        "# ---\n# jupyter: x\n# ---\n\n# %% [markdown]\n# # From EM to SVI\n#\n"
        "# One idea\n# at a time.\n#\n# More.\n\n# %%\nx = 1\n"
    )
    assert build.pages.lesson(path) == ("From EM to SVI", "One idea\nat a time.")
    assert build.pages.notebooks().count("\n## ") == len(list((ROOT / "notebooks").glob("0*.py")))


def test_citation():
    """The version is the package's, and every reference has authors, a title and a year."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {pp_models.__version__}\n" in text and "\nlicense: Apache-2.0\n" in text
    papers = text.partition("\nreferences:\n")[2].split("  - type: ")[1:]
    assert len(papers) > 20 and all(
        "title:" in paper and "year:" in paper and "family-names:" in paper for paper in papers
    )


# The site -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built strictly, by the command that `make docs` runs. Nothing may be said on the way."""
    need(
        ""
        if importlib.util.find_spec("mkdocs") and importlib.util.find_spec("material")
        else "MkDocs or its theme is not installed"
    )
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        ROOT / "docs" / "build.py",
        "--sources",
        folder / "pages",
        "--site",
        folder / "site",
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0 and "WARNING" not in result.stderr, result.stderr[-3000:]
    return folder / "site"


class Page(html.parser.HTMLParser):
    """What a page is linked to by, and what it links to."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.targets = {""}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.targets += [given[name] for name in ("href", "src") if given.get(name)]


@pytest.mark.slow
def test_links_inside_the_site(site):
    """Every link, picture, style and script is a file of the site, and what follows # is there.
    Nothing leads to another host."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 2 * len(MODELS) + len(registry.engines())
    for path, page in pages.items():
        for target in page.targets:
            address, _, anchor = urllib.parse.unquote(target).partition("#")
            assert "://" not in address and not address.startswith("//"), (path, target)
            if address.startswith(("data:", "mailto:", "javascript:")) or path.name == "404.html":
                continue
            file = path if not address else (path.parent / address).resolve()
            file = file / "index.html" if file.is_dir() else file
            assert file.exists(), (path, target)
            if file in pages:
                assert anchor in pages[file].anchors or anchor.startswith("__"), (path, target)


@pytest.fixture(scope="module")
def browser():
    need("" if CHROMIUM else "there is no Chromium on this machine")
    need(
        ""
        if importlib.util.find_spec("playwright")
        else "the Python package playwright is not installed"
    )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.mark.slow
def test_every_page_opens_quietly(site, browser):
    """From its file, on a phone and in the dark: nothing on the console, nothing asked of a
    network, nothing wider than the screen."""
    complaints, width = [], 390
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme="dark")
    page = context.new_page()
    page.on("console", lambda message: complaints.append((page.url, message.text)))
    page.on("pageerror", lambda error: complaints.append((page.url, str(error))))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(("file:", "data:", "blob:"))
            else complaints.append((page.url, request.url))
        ),
    )
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":  # made for a server's root
            continue
        page.goto(path.as_uri())
        assert page.locator("h1").count() >= 1, path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert (
            page.evaluate(
                "getComputedStyle(document.body).getPropertyValue('--md-default-bg-color').length"
            )
            > 0
        )
    context.close()
    assert complaints == []


@pytest.mark.slow
def test_search_finds_from_disk(site, browser):
    """A model's name typed into the search box leads to its card, without a server."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.locator("input.md-search__input").press_sequentially("hierarchical Poisson")
    found = page.locator("a.md-search-result__link")
    found.first.wait_for(timeout=20_000)
    assert any("models/hpf.html" in link.get_attribute("href") for link in found.all())
    page.close()


@pytest.mark.slow
def test_equations_are_drawn(site, browser):
    """MathML that has a size, in every card; the table of models and engines has its heads above
    their columns."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    for name in MODELS:
        page.goto((site / "models" / f"{name}.html").as_uri())
        sizes = page.eval_on_selector_all(
            ".equations math",
            "all => all.map(one => one.getBoundingClientRect())"
            ".map(one => [one.width, one.height])",
        )
        assert (
            sizes
            and min(width for width, _ in sizes) > 4
            and max(height for _, height in sizes) > 12
        )
    page.goto((site / "models-and-engines.html").as_uri())
    lefts = "all => all.map(one => Math.round(one.getBoundingClientRect().left))"
    heads, cells = (
        page.eval_on_selector_all(f".matrix {part}", lefts)
        for part in ("thead th", "tbody tr:first-child td")
    )
    assert heads == cells
    page.close()
