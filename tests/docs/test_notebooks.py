"""The lessons: what each must have, and that what they claim still holds."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9][0-9]_*.py"))


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("notebooks_build", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(path):
    """(marker line, text) of each cell of a percent file, the header left out."""
    parts = re.split(r"^# %%(.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def test_there_are_eight():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{i:02d}" for i in range(1, 9)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_has_what_lessons_have(path):
    """Text with equations, code that compiles, eight checks with an assertion in each, exercises
    with solutions; no path of a machine.
    """
    found = cells(path)
    text = [body for marker, body in found if "[markdown]" in marker]
    code = [(marker, body) for marker, body in found if "[markdown]" not in marker]
    for _, body in code:
        ast.parse(body)
    assert text[0].lstrip().startswith("# # ") and any("$" in body for body in text)
    checks = [body for marker, body in code if '"check"' in marker]
    assert len(checks) >= 8 and all(
        any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(body))) for body in checks
    )
    exercises = next(i for i, body in enumerate(text) if "## Exercises" in body)
    asked = sum(
        len(
            re.findall(
                r"^# (?:\*\*(?:Exercise )?\d|### (?:Exercise )?\d|\d+\. )", body, flags=re.MULTILINE
            )
        )
        for body in text[exercises:]
    )
    solved = sum('"solution"' in marker for marker, _ in code)
    assert solved >= 3 and solved >= asked > 0
    assert not re.search(
        r"(?<![\w.])/(?:home|root|tmp|work|usr)/", path.read_text(encoding="utf-8")
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_lesson_claims_holds(build, path):
    """Every cell runs, the checks among them; figures are there; checks are not in what readers
    see.
    """
    pytest.importorskip("jupytext")
    notebook, _ = build.execute(path)
    images = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(images) >= 4
    assert not any(build.tagged(cell, "check") for cell in notebook.cells)


def test_a_claim_that_does_not_hold_fails(build, tmp_path):
    """The law behind all of them: an assertion in a check stops the build, and says which one."""
    pytest.importorskip("jupytext")
    pytest.importorskip("nbclient")
    wrong = tmp_path / "09_wrong.py"
    wrong.write_text('# %%\nx = 1\n\n# %% tags=["check"]\nassert x == 2, "x is two"\n')
    assert "x is two" in build.build(wrong, tmp_path)
    right = tmp_path / "10_right.py"
    right.write_text('# %%\nx = 1\nprint("x is", x)\n\n# %% tags=["check"]\nassert x == 1\n')
    assert build.build(right, tmp_path) == ""
    shown = (tmp_path / "10_right.ipynb").read_text()
    assert "x is 1" in shown and "assert" not in shown
    told = tmp_path / "11_told.py"
    told.write_text(f'# %%\nprint({str(FOLDER.parent)!r} + "/data")\n')
    assert "prints a path" in build.build(told, tmp_path)
