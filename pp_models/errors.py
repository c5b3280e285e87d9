"""The exceptions of both packages, and the suggestion of the nearest known name."""

import difflib
from collections.abc import Iterable, Mapping
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
    nearest = _nearest(name, known)
    hint = f" Did you mean {nearest!r}?" if nearest else ""
    return InputError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(known)}.")


def unknown_among(name: str, groups: Mapping[str, Iterable[str]]) -> InputError:
    """The same where a name may be of several groups; it says which the nearest one is of.

    groups: what the names of a group are, such as "hyper-parameter of lda" -> the names
    """
    found = {kind: sorted(names) for kind, names in groups.items()}
    nearest = _nearest(name, [one for names in found.values() for one in names])
    kind = next((kind for kind, names in found.items() if nearest in names), "")
    hint = (
        f" Did you mean {nearest!r}, {'an' if kind[0] in 'aeiou' else 'a'} {kind}?" if kind else ""
    )
    known = "; ".join(f"as {kind}: {', '.join(names)}" for kind, names in found.items() if names)
    return InputError(f"Unknown name {name!r}.{hint} Known {known}.")


def _nearest(name: Any, known: Iterable[str]) -> str | None:
    """The known name that differs least, whatever its case and marks."""
    plain = {_plain(one): one for one in known}
    found = difflib.get_close_matches(_plain(str(name)), plain, n=1)
    return plain[found[0]] if found else None


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")
