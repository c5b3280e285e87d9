"""What mkdocstrings reads docstrings through: `prose`, as the other pages do."""

from typing import Any

import griffe
import prose


class Docstrings(griffe.Extension):
    """Every docstring as Markdown."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = prose.markdown(obj.docstring.value)
