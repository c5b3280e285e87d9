"""The command line: `python -m pp_models`, also installed as `pp-models`.

`arguments` declares the commands. The module of a command is imported when it is run, so that
`list` and `--help` do not wait for JAX.
"""

import importlib
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from inference.cli.arguments import parser as _parser
from inference.core.interruption import terminable
from pp_models.errors import Diverged, InputError

__all__ = ["_parser", "main"]


_usual_format = warnings.formatwarning


def _as_sentence(message: Any, category: Any, *where: Any, **more: Any) -> str:
    """Warnings for users without the place in the code."""
    if issubclass(category, UserWarning):
        return f"pp-models: {message}\n"
    return _usual_format(message, category, *where, **more)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: success. 1: it went wrong. 2: bad input. 130: interrupted. 143: terminated.
    """
    warnings.formatwarning = _as_sentence
    chosen = _parser().parse_args(arguments)
    chosen.arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not 0 <= getattr(chosen, "seed", 0) < 2**32:  # JAX forgets the higher bits
            raise InputError(
                f"--seed must be a whole number from 0 to {2**32 - 1}, not {chosen.seed}."
            )
        with terminable():
            module, function = chosen.run.split(":")
            return getattr(importlib.import_module(f"inference.cli.{module}"), function)(chosen)
    except InputError as error:
        print(f"pp-models: {error}", file=sys.stderr)
        return 2
    except Diverged as error:
        print(f"pp-models: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        print(f"pp-models: {stopped if str(stopped) else 'interrupted.'}", file=sys.stderr)
        return 128 + getattr(stopped, "signal", signal.SIGINT)
