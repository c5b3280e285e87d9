"""The models, one file each; files named with an underscore hold what several models share.

A model is found, not registered: `available` lists every file that ends in `MODEL = Model(...)`, in
this folder or in one named in PP_MODELS_PATH, and `load` imports it. Engines are found by the same
rule (`inference.core.registry`).
"""

import functools
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pp_models.errors import InputError, unknown

if TYPE_CHECKING:
    from pp_models.model import Model

VERSION = "0.1.0"  # of this package, as in pyproject.toml
PACKAGE = Path(__file__).parent


def declared(package: Path, name: str) -> dict[str, Path]:
    """Stem -> file of those that assign `name`, in the package's folder and in PP_MODELS_PATH.

    The package's own come first; a folder cannot replace them.
    """
    assigns = re.compile(rf"^{name}\s*=", re.MULTILINE)
    extra = [Path(x) for x in os.environ.get("PP_MODELS_PATH", "").split(os.pathsep) if x]
    found: dict[str, Path] = {}
    for folder in (package, *extra):
        if not folder.is_dir():
            raise InputError(f"PP_MODELS_PATH names {folder}, which is not a folder.")
        for file in sorted(folder.glob("[!_]*.py")):
            if assigns.search(file.read_text(encoding="utf-8")):
                found.setdefault(file.stem, file)
    return found


@functools.cache
def load_file(file: Path) -> ModuleType:
    """The module of a file outside the packages."""
    spec = importlib.util.spec_from_file_location(f"pp_models_path.{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def available() -> list[str]:
    """Names of all models, sorted. Reads the files, imports nothing."""
    return sorted(declared(PACKAGE, "MODEL"))


def load(name: "str | Model") -> "Model":
    """The model of that name. A model itself is returned as it is."""
    if not isinstance(name, str):
        if hasattr(name, "log_local"):
            return name
        raise InputError(f"A model is given by its name, such as 'lda', not by {name!r}.")
    files = declared(PACKAGE, "MODEL")
    if name not in files:
        raise unknown("model", name, files)
    file = files[name]
    if file.parent == PACKAGE:
        return importlib.import_module(f"pp_models.models.{name}").MODEL
    model = load_file(file).MODEL
    if model.name != name:
        raise InputError(
            f"{file} declares a model named {model.name!r}: name it {name!r}, as its file."
        )
    importlib.import_module("pp_models.model").check_declaration(model)
    return model
