"""What stops a run that has gone wrong: numbers that are not finite, and a bound that falls where it cannot.

The error names the step, the block and the likely cause, and carries the last good state as a fit (`Diverged.fit`).
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pp_models.errors import Diverged

FALL = {"float32": 1e-4, "float64": 1e-8}  # of the size of what the bound is a sum of: far above rounding
SMALL, LARGE = 1e-5, 1e6  # hyper-parameters beyond which they are likely to blame
MANY = 1e6  # tokens of a row
UNSEEN = ("kept", "last")  # parts of states that hold draws, of which the log joint density tells


NAMED = {"values": "hyper-parameters", "parameters": "the guide's parameters"}  # fields of states that belong to no site


def bad_sites(model: Any, state: Any) -> list[str]:
    """The sites, or what else can be named, of which the state holds numbers that are not finite, as far as this process holds them."""
    found = dict.fromkeys(_bad(set(model.families) | set(NAMED), state, ""))
    return [NAMED.get(name, name) for name in found]


def _bad(names: set[str], tree: Any, site: str) -> Iterable[str]:
    """A logarithm of minus infinity is that of a zero, or of a draw too small to tell from it: only what is nan or infinitely large is bad."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        parts = [(name, part) for name, part in zip(tree._fields, tree, strict=True) if name not in UNSEEN]
    elif isinstance(tree, dict):
        parts = list(tree.items())
    elif isinstance(tree, tuple | list):
        parts = [("", part) for part in tree]
    else:
        if site and hasattr(tree, "dtype") and jnp.issubdtype(tree.dtype, jnp.inexact):
            parts = [shard.data for shard in tree.addressable_shards] if isinstance(tree, jax.Array) else [tree]
            if not all(np.all(np.isfinite(x) | np.isneginf(x)) for x in map(np.asarray, parts)):
                yield site
        return
    for name, part in parts:
        yield from _bad(names, part, site or (name if name in names else ""))


def check_row(step: int, known: dict[str, float], highest: float | None, size: float) -> None:
    """Refuse a step whose numbers are not finite or, where there is a highest bound so far, whose bound is below it by more than rounding.

    size: of what the bound is a sum of, such as the number of entries: terms cancel, and their rounding does not.
    """
    for name, value in known.items():
        if not np.isfinite(value):
            raise Diverged(f"{name} became {value} at step {step}")
    if highest is None or "bound" not in known or not np.isfinite(highest):
        return
    if known["bound"] < highest - FALL[str(jnp.result_type(float))] * max(1.0, size, abs(highest)):
        raise Diverged(f"the bound, which cannot fall, fell from {highest:.9g} to {known['bound']:.9g} at step {step}")


def explained(title: str, problem: Any, states: list[Any], what: str) -> tuple[Diverged, Any]:
    """The error, with the block and the likely cause, and the newest of the states, in their order, that is good (None: none is)."""
    model = problem.model
    bad = next((found for state in states if (found := bad_sites(model, state))), [])
    good = next((state for state in reversed(states) if not bad_sites(model, state)), None)
    if not bad and len(states) > 2:
        bad = most_changed(model, states[-3], states[-2])
    block = f" in {' and '.join(bad)}" if bad else ""
    return Diverged(f"{title} went wrong{block}: {what}. Likely cause: {likely_cause(problem)}."), good


def most_changed(model: Any, before: Any, after: Any) -> list[str]:
    """The global site that a step changed most, relative to its size."""
    if not isinstance(getattr(before, "shared", None), dict):
        return []
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
