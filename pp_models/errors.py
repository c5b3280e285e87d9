"""One exception for everything a user can put right, and the nearest-name suggestion that goes into it."""

import difflib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Bad input: one sentence that names the problem and the fix. The command line prints it and exits with 2."""


class TooLarge(InputError):
    """The problem is too large for the time or memory there is: fewer rows would do."""


class Diverged(ArithmeticError):
    """A fit went wrong: numbers are not finite, or a bound fell that cannot. The command line prints it and exits with 1.

    fit: what there was before, or None.
    """

    fit: Any = None


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not among the known ones, suggesting the nearest."""
    known = sorted(known)
    nearest = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return InputError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(known)}.")
