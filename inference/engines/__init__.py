"""The engines, one file each. Files named with an underscore hold machinery that they share."""

import sys
import types

from inference.core.registry import engines


class _Engines(types.ModuleType):
    """`inference.engines` names this folder, and has always listed the engines when called."""

    def __call__(self) -> list[str]:
        return engines()


sys.modules[__name__].__class__ = _Engines
