"""The README's Python examples run as printed."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_readme_examples(tmp_path):
    """Copied into one file, one after the other, they run in a fresh process and leave what they save."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "example.py").write_text("".join(blocks), encoding="utf-8")
    result = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Fit lda by svi" in result.stdout and (tmp_path / "lda.npz").exists()
    assert "Stream lda by streaming: 55 rows, 11 steps" in result.stdout and (tmp_path / "stream").is_dir()


def test_readme_names_what_there_is():
    """Every model and engine stands in the README's tables, and both commands."""
    import pp_models
    from inference.registry import engines

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    own = [name for name in pp_models.available() if (ROOT / "pp_models" / f"{name}.py").exists()]
    assert all(f"| `{name}` |" in text for name in (*own, *engines()))
    assert "make compare" in text and "make test" in text
