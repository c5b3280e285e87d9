"""Run in a process of its own by `test_docs`: the Python blocks of Markdown files, each file as one
program, and then docstrings' examples.

    python examples.py FILE.md ... --modules MODULE ...

One process for all, for starting JAX and compiling cost more than the examples do. It prints a line
with its seconds for each, and ends with 1 where one fails; the traceback names the line of the
Markdown file.
"""

import argparse
import doctest
import importlib
import re
import sys
import time
import traceback
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str]]:
    """The Python blocks of a Markdown text, each with the number of lines before it."""
    return [(text[: match.start(1)].count("\n"), match[1]) for match in BLOCK.finditer(text)]


def run_file(path: Path) -> bool:
    """All blocks of a file, one after the other in one namespace, as a reader would copy them."""
    names = {"__name__": "__main__"}
    try:
        for before, code in blocks(path.read_text(encoding="utf-8")):
            exec(compile("\n" * before + code, str(path), "exec"), names)
    except Exception:
        traceback.print_exc()
        return False
    return True


def run_module(name: str) -> bool:
    found = doctest.testmod(importlib.import_module(name))
    print(f"{name}: {found.attempted} examples")
    return found.failed == 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--modules", nargs="*", default=[])
    chosen = parser.parse_args()
    good = True
    for run, what in [
        *((run_file, path) for path in chosen.files),
        *((run_module, name) for name in chosen.modules),
    ]:
        begin = time.process_time()
        good &= run(what)  # type: ignore[operator]
        print(f"== {what}: {time.process_time() - begin:.1f} s", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
