"""The mutants of `make mutants` fit the code as it is."""

import re
import subprocess
import sys
from pathlib import Path


def test_every_mutant_changes_one_place_and_names_tests_that_are_there():
    """Mutants are found by their text: one that is gone, or there twice, is said at once and not
    after the next hour of mutation.
    """
    done = subprocess.run(
        [sys.executable, Path(__file__).parents[1] / "mutants.py", "--list"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) >= 50
    costly = (Path(__file__).parents[1] / "laws" / "costly.txt").read_text().splitlines()[1:]
    left_out = [line.split()[1].replace("::", ".py::") for line in costly if "::" in line]
    for line in lines:
        files = re.findall(r"tests/[\w/]+\.py", line)
        assert files and all((Path(__file__).parents[2] / file).is_file() for file in files), line
        assert not any(name in line for name in left_out), f"{line}: make test leaves this law out"
