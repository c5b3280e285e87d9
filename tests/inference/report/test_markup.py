"""Formulas: those of every model and engine convert, and no text breaks a page."""

import ast
import re
from pathlib import Path
from xml.etree import ElementTree

import hypothesis
import hypothesis.strategies as st
import pytest

import inference
import pp_models
from inference.core import registry
from inference.report import markup

PACKAGES = [Path(package.__file__).parent for package in (pp_models, inference)]
SOURCES = [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]


def well_formed(text):
    return ElementTree.fromstring(f"<p>{markup.clean(text)}</p>")


def said(text):
    """The text of some markup."""
    return "".join(well_formed(text).itertext())


def docstrings(path):
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    found = (ast.get_docstring(node) for node in nodes if isinstance(node, documented))
    return [text for text in found if text]


def formulas(text):
    """(LaTeX, whether it is displayed) of every formula outside code."""
    prose = re.sub(r"```.*?```|`[^`\n]*`|(?m:^    .*$)", "", text, flags=re.DOTALL)
    found = list(re.finditer(markup.FORMULA, prose, re.DOTALL))
    assert "$$" not in re.sub(markup.FORMULA, "", prose, flags=re.DOTALL)
    return [(one[1] or one[2], one[1] is not None) for one in found]


def test_every_formula_of_a_docstring_converts():
    """Into MathML, in which no LaTeX command and no column separator is left."""
    every = ((path, text) for path in SOURCES for text in docstrings(path))
    for path, text in every:
        for latex, display in formulas(text):
            found = markup.formula(latex, display)
            assert found.startswith("<math"), (path.name, latex)
            assert not re.search(r"\\|&amp;|linebreak", found), (path.name, latex)


def test_every_model_has_a_title_and_a_process():
    for name in pp_models.available():
        story = markup.split(pp_models.load(name).log_local.__globals__["__doc__"])
        assert story.title and re.search(r"\$\$|    ", story.process), name
        well_formed(markup.to_html(story.process) + markup.to_html(story.rest))
    for name in registry.engines():
        module = registry.load_engine(name).build.__globals__
        well_formed(markup.to_html(module["__doc__"]))


def test_aligned_equations_are_a_table():
    found = markup.formula(r"\begin{aligned} a &\sim b \\ c &< d \end{aligned}", display=True)
    rows = well_formed(found).findall(".//mtr")
    assert ["".join(row.itertext()) for row in rows] == ["a∼b", "c<d"]


def test_markdown_with_formulas():
    """Formulas, tables, lists and code; formulas in code and prices stay as they are."""
    text = markup.to_html(
        "Costs $5 and $6, `$x$`, $\\beta_k$.\n\n$$ x \\\\ y $$\n\n| a | b |\n|---|---|\n"
        "| $x$ | `y` |\n\n- one\n- two\n\nText <b>bold</b> a <- b:\n\n    z ~ N(0, 1) <i>"
    )
    page = well_formed(text)
    assert said(text).startswith("Costs $5 and $6, $x$, βk.")
    assert len(page.findall(".//math")) == 3 and len(page.findall(".//code")) == 3
    assert page.find("div[@class='equations']/math") is not None
    assert page.find("table/tbody/tr") is not None and len(page.findall("ul/li")) == 2
    assert page.find("pre/code").text == "z ~ N(0, 1) <i>\n" and page.find(".//b") is None


@pytest.mark.parametrize("latex", ["x_", "{", r"\begin{matrix} a", "x^<b>_"])
def test_bad_latex_is_shown_as_its_source(latex):
    assert markup.formula(latex) == f"<code>{markup.html.escape(latex)}</code>"


def test_names():
    assert said(markup.symbol("alpha1")) == "α1"
    assert said(markup.symbol("a_prime")) == "a′"
    assert markup.symbol("num_topics") == "<code>num_topics</code>"
    names = ("alpha1", "sigma2", "beta", "v", "num_topics", "a_prime", "lam", "ell", "d2")
    shown = ["α₁", "σ²", "β", "v", "num_topics", "a′", "λ", "ℓ", "d₂"]
    assert [markup.plain(name) for name in names] == shown


def test_process_and_rest_are_told_apart():
    story = markup.split("Title.\n\nSays:\n\n$$ x $$\n\n$$ y $$\n\nThen.\n\n$$ z $$")
    assert story == ("Title.", "Says:\n\n$$ x $$\n\n$$ y $$", "Then.\n\n$$ z $$")
    assert markup.split("") == ("", "", "")
    assert markup.split("Title.\n\nWords.").rest == "Words."


PIECES = st.sampled_from(
    [
        *"abx_^'(){}[]+-*/|<>=~.,;! \"`$\\#\n",
        *(r"\alpha", r"\frac", r"\begin{aligned}", r"\\", r"\text{", r"\left(", "$$", "\n\n"),
        *("    ", "\x00", "é", "<b>", "```", "|--|"),
    ]
)


@hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
@hypothesis.given(st.lists(PIECES, max_size=30).map("".join))
def test_any_text_gives_well_formed_markup(text):
    well_formed(markup.formula(text))
    well_formed(markup.symbol(text))
    well_formed(markup.to_html(text))
    assert markup.plain(text) is not None and len(markup.split(text)) == 3
