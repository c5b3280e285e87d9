"""What stops a run that has gone wrong: numbers that are not finite, and a bound that falls.

The error names the step, the block and the likely cause, and carries the last good state as a fit
(`Diverged.fit`).
"""

import contextlib
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import devices
from inference.core.problem import likely_cause
from inference.run.loop import Callback, Run
from pp_models.errors import Diverged

__all__ = ["Guard", "bad_sites", "check_row", "explained", "likely_cause"]

FALL = {"float32": 1e-4, "float64": 1e-8}  # of the size of the bound's terms: far above rounding
UNSEEN = {"kept", "last"}  # parts of states that hold draws; their log joint density is checked
NAMED = {"hyper": "hyper-parameters", "parameters": "the guide's parameters"}  # no site's fields


class Guard(Callback):
    """Stop a run whose numbers are not finite, or whose bound falls where it cannot."""

    def __init__(self, size: float, ascends: bool) -> None:
        """size: the number of terms of the bound. ascends: whether the bound cannot fall."""
        self._size, self._ascends = size, ascends
        self._highest: float | None = None

    def settled(self, run: Run, numbers: dict[str, float]) -> None:
        if self._ascends and self._highest is None:  # a run that goes on has a history
            bounds = [row["bound"] for row in run.history[:-1]]
            self._highest = max((x for x in bounds if np.isfinite(x)), default=-np.inf)
        try:
            check_row(run.history[-1]["step"], numbers, self._highest, self._size)
        except Diverged as error:
            _stop(run, str(error))
        if self._highest is not None:
            self._highest = max(self._highest, numbers.get("bound", -np.inf))

    def end(self, run: Run) -> None:
        if not run.was_over:
            check_state(run)


def check_state(run: Run) -> None:
    """Stop the run, in all processes, where the state holds numbers that are not finite."""
    found = len(bad_sites(run.problem.model, run.state))
    if devices.added(run.problem.devices, [found]).sum():
        _stop(run, f"numbers are not finite after step {len(run.history) - 1}")


def _stop(run: Run, what: str) -> NoReturn:
    error, good = explained(run.title, run.problem, [*run.earlier, run.state], what)
    with contextlib.suppress(Exception):  # a sampler may have no draw yet
        if good is not None:
            error.fit = run.as_fit(good, "numbers went wrong after this")
    raise error from None


def bad_sites(model: Any, state: Any) -> list[str]:
    """Sites, or other named parts, whose numbers in the state of this process are not finite."""
    names, found = set(model.families) | set(NAMED), {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        keys = [getattr(key, "name", getattr(key, "key", None)) for key in path]
        site = next((key for key in keys if key in names), None)
        if site is not None and not UNSEEN & set(keys) and not _is_finite(leaf):
            found[NAMED.get(site, site)] = True
    return list(found)


def _is_finite(x: Any) -> bool:
    """Minus infinity is good: the logarithm of a zero, or of a draw too small to hold."""
    if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.inexact):
        return True
    here = isinstance(x, jax.Array)
    arrays = [shard.data for shard in x.addressable_shards] if here else [x]
    return all(np.all(np.isfinite(part) | np.isneginf(part)) for part in map(np.asarray, arrays))


def check_row(
    step: int, numbers: dict[str, float], highest: float | None = None, size: float = 0.0
) -> None:
    """Refuse numbers that are not finite, and a bound below the highest by more than rounding.

    size: the number of terms of the bound. Terms may cancel while their rounding does not.
    """
    for name, value in numbers.items():
        if not np.isfinite(value):
            raise Diverged(f"{name} became {value} at step {step}")
    if highest is None or "bound" not in numbers or not np.isfinite(highest):
        return
    least = highest - FALL[str(jnp.result_type(float))] * max(1.0, size, abs(highest))
    if numbers["bound"] < least:
        raise Diverged(
            f"the bound, which cannot fall, fell from {highest:.9g} to {numbers['bound']:.9g} "
            f"at step {step}"
        )


def explained(title: str, problem: Any, states: list[Any], what: str) -> tuple[Diverged, Any]:
    """The error, with the block and the likely cause, and the newest good one of the states."""
    bad = [bad_sites(problem.model, state) for state in states]
    newest = zip(reversed(states), reversed(bad), strict=True)
    good = next((state for state, sites in newest if not sites), None)
    blamed = next((sites for sites in bad if sites), [])
    if not blamed and len(states) > 2:
        blamed = most_changed(problem.model, states[-3], states[-2])
    block = f" in {' and '.join(blamed)}" if blamed else ""
    cause = likely_cause(problem)
    return Diverged(f"{title} went wrong{block}: {what}. Likely cause: {cause}."), good


def most_changed(model: Any, before: Any, after: Any) -> list[str]:
    """The global site that a step changed most, relative to its size."""
    if not isinstance(getattr(before, "shared", None), dict):
        return []

    def change(site: str) -> float:
        trees = [jax.tree.leaves(state.shared[site]) for state in (before, after)]
        old, new = (np.concatenate([np.ravel(np.asarray(x, float)) for x in t]) for t in trees)
        return float(np.linalg.norm(new - old) / (np.linalg.norm(old) or 1.0))

    return [max(model.shared, key=change)] if model.shared else []
