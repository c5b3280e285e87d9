"""Finds models: files that declare `MODEL`, in this package or in a folder of PP_MODELS_PATH."""

import functools
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pp_models.errors import InputError, unknown

if TYPE_CHECKING:
    from pp_models.model import Model

PACKAGE = Path(__file__).parent / "models"
_DECLARES = re.compile(r"^MODEL\s*=", re.MULTILINE)


def _files() -> dict[str, Path]:
    """Model name -> file. The package's own models come first; a folder cannot replace them."""
    extra = os.environ.get("PP_MODELS_PATH", "").split(os.pathsep)
    found: dict[str, Path] = {}
    for folder in (PACKAGE, *(Path(folder) for folder in extra if folder)):
        if not folder.is_dir():
            raise InputError(f"PP_MODELS_PATH names {folder}, which is not a folder.")
        for file in sorted(folder.glob("*.py")):
            if not file.stem.startswith("_") and _DECLARES.search(file.read_text(encoding="utf-8")):
                found.setdefault(file.stem, file)
    return found


def available() -> list[str]:
    """Names of all models, sorted. Reads the files, imports nothing."""
    return sorted(_files())


def load(name: str) -> "Model":
    """The model of that name."""
    files = _files()
    if name not in files:
        raise unknown("model", name, files)
    return _load_file(name, files[name])


@functools.cache
def _load_file(name: str, file: Path) -> "Model":
    if file.parent == PACKAGE:
        return importlib.import_module(f"pp_models.models.{name}").MODEL
    spec = importlib.util.spec_from_file_location(f"pp_models_path.{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    model = module.MODEL
    if model.name != name:
        told = f"{file} declares a model named {model.name!r}"
        raise InputError(f"{told}: name it {name!r}, as its file.")
    return model
