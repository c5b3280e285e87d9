"""`pp-models list`: names, and the first sentence of each file. No model or engine is imported."""

import argparse
import ast
import re
from pathlib import Path

from inference.core import registry
from pp_models import models as discovery


def run_list(chosen: argparse.Namespace) -> int:
    """Print the models and engines there are, a line each."""
    models = discovery.declared(discovery.PACKAGE, "MODEL")
    engines = discovery.declared(registry.PACKAGE, "ENGINE")
    width = max(map(len, [*models, *engines]))
    for heading, files in (("models", models), ("engines", engines)):
        print(f"{heading}:")
        for name in sorted(files):
            print(f"  {name:{width}}  {_first_sentence(files[name])}".rstrip())
    return 0


def _first_sentence(file: Path) -> str:
    """Of the file's docstring; empty without one."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"\.(?=\s+[A-Z]|$)", paragraph)[0]
