"""A model in words, for `repr`."""

import re
import textwrap
from typing import Any

from pp_models.model.derived import sites_of

FAMILIES = {"dirichlet": "Dirichlet", "wishart": "Wishart"}  # named after people
WIDTH = 100


def described(model: Any) -> str:
    """Name, title, data, sites with their families, and hyper-parameters with their defaults."""
    defaults = model.Hyper()._asdict()
    given = ", ".join(f"{name}={value!r}" for name, value in defaults.items())
    if None in defaults.values():
        given += " (None: from the data, or unknown)"
    facts = {
        "data": f"{model.kind} (pp_models.data.{model.kind})",
        "sites": ", ".join(_site(model, site) for site in model.families),
        "observed": ", ".join(name for name, site in sites_of(model).items() if site.observed),
        "hyper": given,
    }
    lines = [
        textwrap.fill(f"  {name:<9} {words}", WIDTH, subsequent_indent=" " * 12)
        for name, words in facts.items()
    ]
    return "\n".join([f"Model {model.name}: {model.title}", *lines])


def family_words(name: str) -> str:
    """The name of a family as it is written in a sentence."""
    words = name.replace("_tied", ", tied").replace("_", "-")
    return re.sub("|".join(FAMILIES), lambda found: FAMILIES[found[0]], words)


def _site(model: Any, site: str) -> str:
    rows = ", one per row" if site in model.local else ""
    return f"{site} ({family_words(model.families[site].name)}{rows})"
