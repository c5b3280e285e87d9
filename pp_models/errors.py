"""Exceptions that the command line prints without a traceback."""

import difflib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Bad input: one sentence that names the problem and the fix. The exit code is 2."""


class TooLarge(InputError):
    """The problem is too large for the time or memory there is; fewer rows may fit."""


class Diverged(ArithmeticError):
    """Numbers are not finite, or a bound fell that cannot. The exit code is 1.

    fit: the last good fit, or None
    """

    fit: Any = None


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for an unknown name, with the nearest known one."""
    known = sorted(known)
    nearest = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return InputError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(known)}.")
