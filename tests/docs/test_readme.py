"""The README's tables name what there is. Its examples are run by `test_docs`, with those of the other documents."""

from pathlib import Path

import pp_models
from inference.core.registry import engines

ROOT = Path(__file__).parents[2]


def test_readme_names_what_there_is():
    """Every model and engine stands in the README's tables, and both commands."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    own = [
        name
        for name in pp_models.available()
        if (ROOT / "pp_models" / "models" / f"{name}.py").exists()
    ]
    assert all(f"| `{name}` |" in text for name in (*own, *engines()))
    assert "make compare" in text and "make test" in text


MARKS = "<!-- models x engines -->\n", "<!-- end -->"


def models_by_engines():
    """A line for each model: which engines fit its example, as `inference.fit` decides."""
    import jax

    import pp_models
    from inference.core import registry
    from inference.run import fit
    from pp_models import InputError

    def able(problem, engine):
        try:
            fit.check_suits(registry.load_engine(engine), problem)
        except InputError:
            return False
        return True

    names = registry.engines()
    lines = [f"| | {' | '.join(f'`{name}`' for name in names)} |", f"|---|{':-:|' * len(names)}"]
    for name in pp_models.available():
        if (ROOT / "pp_models" / "models" / f"{name}.py").exists():
            hyper, data = pp_models.load(name).example(jax.random.key(0))
            problem = fit.make_problem(name, data, hyper._asdict())
            lines.append(
                f"| `{name}` | {' | '.join('●' if able(problem, engine) else '' for engine in names)} |"
            )
    return "\n".join(lines) + "\n"


def test_readme_says_which_engine_fits_which_model():
    """The table is what is discovered. After a change: python tests/docs/test_readme.py writes it anew."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.split(MARKS[0])[1].split(MARKS[1])[0] == models_by_engines()


if __name__ == "__main__":
    path = ROOT / "README.md"
    before, rest = path.read_text(encoding="utf-8").split(MARKS[0])
    path.write_text(
        before + MARKS[0] + models_by_engines() + MARKS[1] + rest.split(MARKS[1], 1)[1],
        encoding="utf-8",
    )
