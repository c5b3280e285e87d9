"""The README's tables name what there is. Its examples are run by `test_docs`, with those of the other documents."""

from pathlib import Path

import pp_models
from inference.registry import engines

ROOT = Path(__file__).parent.parent


def test_readme_names_what_there_is():
    """Every model and engine stands in the README's tables, and both commands."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    own = [name for name in pp_models.available() if (ROOT / "pp_models" / f"{name}.py").exists()]
    assert all(f"| `{name}` |" in text for name in (*own, *engines()))
    assert "make compare" in text and "make test" in text
