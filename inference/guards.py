"""What stops a run that has gone wrong: numbers that are not finite, and a bound that falls where it cannot.

The error names the step, the block and the likely cause, and carries the last good state as a fit (`Diverged.fit`).
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_models.errors import Diverged

FALL = {"float32": 1e-4, "float64": 1e-8}  # of the bound's size: rounding is a hundredth of it
SMALL, LARGE = 1e-5, 1e6  # hyper-parameters beyond which they are likely to blame
MANY = 1e6  # tokens of a row
UNSEEN = ("kept", "last")  # parts of states that hold draws, of which the log joint density tells


def bad_sites(model: Any, state: Any) -> list[str]:
    """The sites, or else hyper-parameters, of which the state holds numbers that are not finite."""
    return list(dict.fromkeys(_bad(set(model.families) | {"values"}, state, "")))


def _bad(names: set[str], tree: Any, site: str, sampled: bool = False) -> Iterable[str]:
    """sampled: of statistics of draws, where a logarithm of minus infinity is that of a number too small to tell from zero."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        parts = [(name, part) for name, part in zip(tree._fields, tree, strict=True) if name not in UNSEEN]
    elif isinstance(tree, dict):
        parts = list(tree.items())
    elif isinstance(tree, tuple | list):
        parts = [("", part) for part in tree]
    else:
        inexact = hasattr(tree, "dtype") and jnp.issubdtype(tree.dtype, jnp.inexact)
        if site and inexact and not np.all(np.isfinite(x := np.asarray(tree)) | np.isneginf(x) & sampled):
            yield site
        return
    for name, part in parts:
        yield from _bad(names, part, site or (name if name in names else ""), sampled or name == "chains")


def check_row(step: int, known: dict[str, float], highest: float | None) -> None:
    """Refuse a step whose numbers are not finite or, where there is a highest bound so far, whose bound is below it by more than rounding."""
    for name, value in known.items():
        if not np.isfinite(value):
            raise Diverged(f"{name} became {value} at step {step}")
    if highest is None or "bound" not in known or not np.isfinite(highest):
        return
    if known["bound"] < highest - FALL[str(jnp.result_type(float))] * max(1.0, abs(highest)):
        raise Diverged(f"the bound, which cannot fall, fell from {highest:.9g} to {known['bound']:.9g} at step {step}")


def most_changed(model: Any, before: Any, after: Any) -> list[str]:
    """The global site that a step changed most, relative to its size."""
    moved = {}
    for site in model.shared:
        old, new = (np.concatenate([np.ravel(np.asarray(x, float)) for x in jax.tree.leaves(state.shared[site])]) for state in (before, after))
        moved[site] = float(np.linalg.norm(new - old) / (np.linalg.norm(old) or 1.0))
    return [max(moved, key=moved.__getitem__)] if moved else []


def likely_cause(problem: Any) -> str:
    """What to look at first, in a few words."""
    single, data = jnp.result_type(float) == jnp.float32, problem.data
    found = []
    for name, value in problem.hyper._asdict().items():
        numbers = np.abs(np.asarray(value, float).ravel()) if not isinstance(value, bool | str | type(None)) else np.zeros(0)
        extreme = numbers[(numbers > 0) & ((numbers < SMALL) | (numbers > LARGE))]
        if extreme.size:
            found.append(f"{name} = {extreme[0]:g} is extreme")
    if single and data.kind in ("counts", "text_and_votes") and data.totals.max(initial=0) >= MANY:
        found.append(f"a row's counts add up to {data.totals.max():.3g}, of which single precision holds seven digits")
    if data.kind in ("dense", "ratings"):
        numbers = np.abs(data.values if data.values is not None else data.matrix.data)
        if numbers.max(initial=0) > 1e4:
            found.append(f"the data reach {numbers.max():.3g}: rescale them")
    if not found:
        found.append("hyper-parameters or the scale of the data do not suit the model")
    return "; ".join(found) + (", and single precision may not hold it: try jax.config.update('jax_enable_x64', True)" if single else "")
