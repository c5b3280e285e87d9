"""The shape of the tree: who imports whom, who is named where, how long files and functions are.

The order of the rooms, the parts of the code, is the diagram in CONTRIBUTING.md, which stays true.
Imports are read with `ast`, those inside functions included.
"""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

import pp_models
from inference.core.registry import engines

ROOT = Path(__file__).parents[1]
PACKAGES = ("pp_models", "inference")
MOST_ENTRIES, MOST_LINES, MOST_OF_A_FUNCTION = 12, 400, 60
# Doors: modules that only hand on names of several rooms, and the command that users run.
DOORS = {
    "pp_models",  # loads what it names when it is first asked for
    "pp_models.__main__",  # python -m pp_models is the command line of `inference`
    "pp_models.base",  # what model files of users import
    "pp_models.eliminate",
    "pp_models.sklearn",  # names of inference.estimators
    "inference",
}


def assert_none(wrong):
    """One line for each."""
    found = [str(one) for one in wrong]
    assert not found, "\n".join(found)


class Import(NamedTuple):
    importer: str
    module: str

    def __str__(self) -> str:
        return f"{self.importer} imports {self.module}"


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of the packages."""
    found = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def imports() -> tuple[Import, ...]:
    """Imports of the packages' own modules, wherever they stand.

    Left out are those for type checkers alone, which are not run, and files loaded because they
    were found (`importlib`): `pp_models.models` names no model.
    """
    found = {}
    for name, file in modules().items():
        skipped = {id(x) for block in _typing_only(parsed(file)) for x in ast.walk(block)}
        for node in ast.walk(parsed(file)):
            if id(node) in skipped:
                continue
            for module in _imported(node):
                if module.split(".")[0] in PACKAGES:
                    found[Import(name, module)] = None
    return tuple(found)


def _typing_only(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from node.body


def _imported(node):
    """Modules that a statement imports. `from a import b` is a.b where that is a module, else a."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole in modules() else node.module


@functools.cache
def order() -> dict[str, int]:
    """Room -> its place in the diagram of CONTRIBUTING.md. `inference` follows `pp_models`."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (diagram,) = (
        block for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL) if "<-" in block
    )
    rooms = []
    for line in diagram.strip().splitlines():
        package, _, chain = line.partition(":")
        rooms += [f"{package.strip()}.{room}" for room in re.split(r"\s*<-\s*", chain.strip())]
    return {room: place for place, room in enumerate(rooms)}


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_the_diagram_names_every_room():
    """Every folder and module at the top of the packages is a room of the diagram, or a door."""
    there = {room_of(name) for name in modules()} - DOORS
    assert there == set(order())


def test_imports_go_one_way():
    """A room imports itself and rooms to its left."""
    places = order()
    wrong = [
        one
        for one in imports()
        if room_of(one.importer) in places
        and room_of(one.module) in places
        and places[room_of(one.module)] > places[room_of(one.importer)]
    ]
    assert_none(wrong)


def test_nobody_inside_imports_a_door():
    """Doors hand on names of later rooms, so a room that imports one depends on all of them."""
    wrong = [one for one in imports() if one.module in DOORS and one.importer not in DOORS]
    assert_none(wrong)


def test_no_engine_imports_an_engine():
    """What engines share is in modules whose names begin with an underscore."""
    wrong = [one for one in imports() if _is_declaration(one.module, "inference.engines")]
    assert_none(wrong)


def test_only_models_import_models():
    """Other rooms load models by name, and know them by their declarations."""
    wrong = [
        one
        for one in imports()
        if _is_declaration(one.module, "pp_models.models")
        and room_of(one.importer) != "pp_models.models"
    ]
    assert_none(wrong)


def _is_declaration(module, folder):
    return module.startswith(f"{folder}.") and not module.split(".")[2].startswith("_")


# Where a model or an engine may be named all the same.
NAMED = {
    "inference/calibration/recipes.py": "how each stored reference posterior was made",
    "inference/run/fit.py": "the default engine",
    "inference/run/stream.py": "the default engine of streams",
    "inference/calibration/engine_laws.py": "a law says that a step of one is a sweep of the other",
    "inference/report/figures/latent.py": "a kind of figure is called map",
    "pp_models/data/packaged.py": "lda is also a package of others, whose corpus is read",
}


def test_no_model_or_engine_is_named_outside_its_room():
    """Rooms ask for traits and capabilities: a name in a string is a table to keep in step.

    Docstrings may name them, and models and engines each other, in what they advise.
    """
    names = {*pp_models.available(), *engines()}
    wrong = []
    for name, file in modules().items():
        if room_of(name) in ("pp_models.models", "inference.engines"):
            continue
        place = str(file.relative_to(ROOT))
        prose = {id(x.value) for x in ast.walk(parsed(file)) if isinstance(x, ast.Expr)}
        wrong += [
            f"{place} names {x.value!r} (line {x.lineno})"
            for x in ast.walk(parsed(file))
            if isinstance(x, ast.Constant)
            and x.value in names
            and id(x) not in prose
            and place not in NAMED
        ]
    assert_none(wrong)


def test_folders_have_few_entries():
    """At most 12 entries at the top of the packages and of the tests."""
    for folder in (*PACKAGES, "tests"):
        names = {x.name for x in (ROOT / folder).iterdir() if not x.name.startswith(("__py", "."))}
        assert len(names) <= MOST_ENTRIES, (folder, sorted(names))


def test_files_are_short():
    """No file of the packages has more than 400 lines."""
    wrong = []
    for file in modules().values():
        size = len(file.read_text(encoding="utf-8").splitlines())
        if size > MOST_LINES:
            wrong.append(f"{file.relative_to(ROOT)} is long ({size} lines)")
    assert_none(wrong)


def test_functions_are_short():
    """No function has more than 60 lines, its docstring included."""
    wrong = [
        f"{file.relative_to(ROOT)}: {x.name} is long ({x.end_lineno - x.lineno + 1} lines)"
        for file in modules().values()
        for x in ast.walk(parsed(file))
        if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)
        and x.end_lineno - x.lineno + 1 > MOST_OF_A_FUNCTION
    ]
    assert_none(wrong)
