"""A griffe extension for mkdocstrings: docstrings as Markdown.

Docstrings are Markdown already, except for doctests and lists of `name: meaning` lines.
"""

import inspect
import re
from typing import Any

import griffe

TERM = re.compile(r"(`?[a-z_]\w*`?(?:, `?[a-z_]\w*`?)*):\s+(?=\S)")


class Docstrings(griffe.Extension):
    """Convert every docstring."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """Fence doctests, and turn lines `name: meaning` into definition lists."""
    return "\n\n".join(map(_block, re.split(r"\n[ \t]*\n", inspect.cleandoc(text))))


def _block(block: str) -> str:
    if block.startswith(">>>"):
        return f"```pycon\n{block}\n```"
    if block.startswith(("    ", "$$", "|", "- ")):
        return block
    said: list[str] = []
    terms: list[list[str]] = []
    for line in block.splitlines():
        match = TERM.match(line)
        if match and (terms or not said or said[-1].endswith((".", ":", ";"))):
            terms.append([f"`{match[1].replace('`', '')}`\n:  ", line[match.end() :]])
        else:
            (terms[-1] if terms else said).append(line.strip())
    return "\n\n".join(["\n".join(said), *map(" ".join, terms)]).strip("\n")
