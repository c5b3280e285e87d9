r"""Docstrings as HTML: Markdown in which `$...$` and `$$...$$` hold LaTeX, rendered as MathML.

The documentation site lists this module as a Markdown extension (`mkdocs.yml`), so that the site
and the report show the same formulas. A formula that cannot be converted is shown as its source.
"""

import html
import inspect
import re
from typing import Any, NamedTuple
from xml.etree import ElementTree

import markdown
from latex2mathml.converter import convert_to_element
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markupsafe import Markup

FORMULA = r"(?<!\\)\$\$(.+?)\$\$|(?<![\\\w$])\$(?=[^\s$])([^$]*)(?<=\S)\$(?![\w$])"
LETTERS = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau "
    "upsilon phi chi psi omega ell Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
OPERATORS = {"~": "∼", r"\arg": "arg", r"\langle": "⟨", r"\rangle": "⟩"}  # not converted right
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_INVALID = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """Replace characters that HTML may not contain."""
    return _INVALID.sub("\ufffd", text)


def formula(latex: str, display: bool = False) -> Markup:
    """Convert a formula to a `<math>` element; bad LaTeX becomes escaped source text."""
    source = latex.replace("{aligned}", "{align*}")  # the name that latex2mathml knows
    try:
        tree = convert_to_element(source, display="block" if display else "inline")
    except Exception:  # latex2mathml also fails with IndexError, KeyError and the like
        return Markup("<code>{}</code>").format(latex)
    tree.attrib.pop("xmlns", None)  # implied in HTML
    for node in tree.iter():
        text = html.unescape(node.text or "").replace(r"\_", "_")
        node.text = OPERATORS.get(text, text)
        if len(text) > 1 and text.isalpha() and node.tag in ("mi", "mo"):  # log, Dirichlet
            node.attrib |= {"form": "prefix", "lspace": "0.17em", "rspace": "0.17em"}
            node.tag = "mo"
        node.tag = "mo" if text in OPERATORS else node.tag
    return Markup(ElementTree.tostring(tree, encoding="unicode", short_empty_elements=False))


class _Formulas(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> Any:
        found = str(formula(m[1] or m[2], display=m[1] is not None))
        found = found if m[1] is None else f'<div class="equations">{found}</div>'
        return self.md.htmlStash.store(found), m.start(0), m.end(0)


class Formulas(Extension):
    """Markdown extension for formulas. They are found after code and before escapes."""

    def extendMarkdown(self, md: markdown.Markdown) -> None:
        md.inlinePatterns.register(_Formulas(FORMULA, md), "formula", 185)


def makeExtension(**options: Any) -> Formulas:
    """Entry point for `markdown_extensions` in mkdocs.yml."""
    return Formulas(**options)


PAPERS = {
    "P": "Paisley et al.",
    "T": "Theis and Hoffman",
    "X": "Fox's slide",
    "H": "Hu et al.",
    "C": "Columbia lecture",
}


def named_papers(text: str) -> str:
    """Replace the letters by which docstrings cite papers, as in P(11.25), by authors."""
    text = re.sub(r"(Jordan|Hoffman|slides)(, | \()[PTX] (?=\d)", r"\1\2", text)  # named already
    text = re.sub(r"(et al\.), H\b(?! ?\(?\d)", r"\1", text).replace("Columbia lectures, C", "C")

    def name(found: re.Match[str]) -> str:
        return f"{PAPERS[found[1]]} {found[2]}"

    text = re.sub(r"\b([PTXH]|C(?=1[78]\b)) ?(\(?\d+(?:\.\d+)?\)?)", name, text)
    heads = r"(?<=\| )([PTXH])(?= \|)"
    return re.sub(heads, lambda found: PAPERS[found[1]].removesuffix("'s slide"), text)


def to_html(text: str) -> Markup:
    """Convert Markdown with formulas to HTML. Tags in the text are escaped."""
    extensions = [Formulas(), "tables", "fenced_code"]
    converter = markdown.Markdown(extensions=extensions, output_format="xhtml")
    converter.preprocessors.deregister("html_block")
    for pattern in ("html", "entity"):
        converter.inlinePatterns.deregister(pattern)
    return Markup(converter.convert(text))


class Story(NamedTuple):
    """Parts of a docstring. process: from the title to the end of the first formulas."""

    title: str
    process: str
    rest: str


def split(docstring: str) -> Story:
    """Separate a model's title and generative process from the rest of its docstring.

    The process ends with the first display formulas, or with the first indented block.
    """
    title, *blocks = re.split(r"\n[ \t]*\n", inspect.cleandoc(docstring))
    found = [block.startswith(("$$", "    ")) for block in blocks]
    start = found.index(True) if True in found else 0
    end = found.index(False, start) if False in found[start:] else len(blocks)
    return Story(" ".join(title.split()), *map("\n\n".join, (blocks[:end], blocks[end:])))


def _name(name: str) -> tuple[str, str, str] | None:
    """LaTeX letter, digits and prime of a site or hyper-parameter; None for a word."""
    match = re.fullmatch(r"([A-Za-z]+)(\d*)(_prime)?", name)
    letter = {"lam": "lambda"}.get(match[1], match[1]) if match else ""
    if match is None or (len(letter) > 1 and letter not in LETTERS.split()):
        return None
    return (f"\\{letter}" if len(letter) > 1 else letter), match[2], "'" if match[3] else ""


def symbol(name: str) -> Markup:
    """Render the name of a site or hyper-parameter: a letter as mathematics, a word as code."""
    if (parts := _name(name)) is None:
        return Markup("<code>{}</code>").format(name)
    letter, digits, prime = parts
    script = "^2" if (letter, digits) == (r"\sigma", "2") else f"_{{{digits}}}" if digits else ""
    return formula(letter + prime + script)


def plain(name: str) -> str:
    """The same in plain text."""
    if (parts := _name(name)) is None:
        return name
    letter, digits, prime = parts
    digits = "²" if (letter, digits) == (r"\sigma", "2") else digits.translate(SUBSCRIPTS)
    shown = "".join(ElementTree.fromstring(formula(letter)).itertext())
    return shown + digits + ("′" if prime else "")
