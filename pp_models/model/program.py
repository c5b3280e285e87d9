"""`generate` and a guide as NumPyro programs that a user may call.

A model file writes them for checked hyper-parameters and a packed batch. The declared model takes
`Data` as well, with hyper-parameters as `fit` takes them; and a batch made with
`data.pack(observed=False)`, whose observations are sampled.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from numpyro import handlers

from pp_models.data.batches import Batch
from pp_models.data.types import Data
from pp_models.errors import InputError


def program(model: Any, function: Callable[..., Any]) -> Any:
    """The function as a program for users."""
    # A model made from another by `dataclasses.replace` starts from the file's own function.
    own = getattr(function, "declared", function)

    @functools.wraps(own)
    def run(hyper: Any, data: Any) -> Any:
        if isinstance(data, Data):
            hyper, data = _settled(model, hyper, data), data.pack()
        elif isinstance(data, Batch) and (hyper is None or isinstance(hyper, dict)):
            raise InputError(
                f"With a packed batch {model.name} needs all its hyper-parameters: give it "
                "model.make_hyper(hyper, data), or the data unpacked."
            )
        if getattr(data, "observed", True):
            return own(hyper, data)
        return handlers.uncondition(own)(hyper, data)

    run.declared = own  # type: ignore[attr-defined]
    return run


def _settled(model: Any, hyper: Any, data: Data) -> Any:
    """Hyper-parameters checked and filled in; as they are while JAX traces them."""
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(hyper)):
        return hyper
    return model.make_hyper(hyper, data)
