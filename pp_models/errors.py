"""The exceptions of both packages, and the suggestion of the nearest known name."""

import difflib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Bad input: one sentence that names the problem and the fix. The command line exits with 2."""


class TooLarge(InputError):
    """The problem is too large for the time or memory there is: fewer rows would do."""


class Diverged(ArithmeticError):
    """A fit diverged: its numbers are not finite, or its bound fell. The command line exits with 1.

    fit: the fit before that, or None.
    """

    fit: Any = None


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not among the known ones, suggesting the nearest."""
    known = sorted(known)
    nearest = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return InputError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(known)}.")
