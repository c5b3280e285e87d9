"""The README's table names every model and engine. `test_docs` runs its examples.

After a change, `python tests/docs/test_readme.py` writes the table.
"""

from pathlib import Path

import jax

import pp_models
from inference.core import registry
from inference.core.problem import make_problem
from inference.run.checks import check_suits
from pp_models import InputError

ROOT = next(folder for folder in Path(__file__).parents if (folder / "README.md").exists())
MARKS = "<!-- models x engines -->\n", "<!-- end -->"


def models_by_engines():
    """A row for each model, a column for each group of engines that fit the same models."""
    columns: dict[tuple[bool, ...], list[str]] = {}
    problems = {
        name: make_problem(name, *reversed(pp_models.load(name).example(jax.random.key(0))))
        for name in pp_models.available()
        if (ROOT / "pp_models" / "models" / f"{name}.py").exists()
    }
    for engine in registry.engines():
        able = tuple(_suits(registry.load_engine(engine), one) for one in problems.values())
        columns.setdefault(able, []).append(engine)
    groups = sorted(columns.items(), key=lambda group: (-sum(group[0]), group[1]))
    header = ["model", "", *(", ".join(f"`{name}`" for name in names) for _, names in groups)]
    rows = [
        [f"`{name}`", problems[name].model.title, *("●" if able[i] else "" for able, _ in groups)]
        for i, name in enumerate(problems)
    ]
    lines = [header, ["---", "---", *[":-:"] * len(groups)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _suits(engine, problem):
    try:
        check_suits(engine, problem)
    except InputError:
        return False
    return True


def test_readme_names_what_there_is():
    """Every model and engine is in the README, and so are both commands."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = models_by_engines()
    assert text.split(MARKS[0])[1].split(MARKS[1])[0] == table
    assert all(f"`{name}`" in table for name in (*pp_models.available(), *registry.engines()))
    assert "make compare" in text and "make test" in text


def test_readme_is_short():
    """One screen per section: at most 120 lines."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


if __name__ == "__main__":
    path = ROOT / "README.md"
    before, rest = path.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1], 1)[1]
    path.write_text(before + MARKS[0] + models_by_engines() + MARKS[1] + after, encoding="utf-8")
