"""What stops a run that has gone wrong: numbers that are not finite, and a bound that falls.

The error names the step, the block and the likely cause, and carries the last good state as a fit
(`Diverged.fit`).
"""

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import devices
from inference.core.posteriors import Point, Variational
from inference.core.problem import likely_cause
from inference.run.loop import Callback, Run
from pp_models.errors import Diverged
from pp_models.model import joint

__all__ = ["Guard", "bad_sites", "check_row", "explained", "likely_cause"]

FALL = {"float32": 1e-4, "float64": 1e-8}  # of the bound, or of its number of terms if larger
# Each term of a bound is rounded about eight times: in its statistic, its gradient, their product
# and the sums. Two bounds are compared. Falls of pmf in single precision are 0 to 4.4 epsilon.
ROUNDINGS = 16  # epsilon of the sum of the terms' absolute values
UNSEEN = {"kept", "last"}  # parts of states that hold draws; their log joint density is checked
NAMED = {"hyper": "hyper-parameters", "parameters": "the guide's parameters"}  # no site's fields


class Guard(Callback):
    """Stop a run whose numbers are not finite, or whose bound falls where it cannot."""

    def __init__(self, size: float, ascends: bool) -> None:
        """size: the number of terms of the bound. ascends: whether the bound cannot fall."""
        self._size, self._ascends = size, ascends
        self._highest: float | None = None
        self._rounding = 0.0  # nats that rounding explains, as far as known

    def settled(self, run: Run, numbers: dict[str, float]) -> None:
        if self._ascends and self._highest is None:  # a run that goes on has a history
            bounds = [row["bound"] for row in run.history[:-1]]
            self._highest = max((x for x in bounds if np.isfinite(x)), default=-np.inf)
        try:
            rounding = functools.partial(self._explain, run)
            check_row(run.history[-1]["step"], numbers, self._highest, self._size, rounding)
        except Diverged as error:
            _stop(run, str(error))
        if self._highest is not None:
            self._highest = max(self._highest, numbers.get("bound", -np.inf))

    def _explain(self, run: Run, fall: float) -> bool:
        """Whether rounding explains a fall. The terms are added up only for a larger one."""
        if fall > self._rounding:
            with run.clock.standing():
                size = size_of_terms(run.algorithm.posterior(run.earlier[-1]))
            first, epsilon = not self._rounding, jnp.finfo(jnp.result_type(float)).eps
            self._rounding = max(self._rounding, ROUNDINGS * float(epsilon) * size)
            if first and fall <= self._rounding:
                warnings.warn(
                    f"The terms of the bound of {run.problem.model.name} add up to {size:.3g} nats "
                    f"and nearly cancel, so that rounding moves the bound by {fall:.2g} nats or "
                    "more: jax.config.update('jax_enable_x64', True) computes it more precisely.",
                    stacklevel=2,
                )
        return fall <= self._rounding

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
    step: int,
    numbers: dict[str, float],
    highest: float | None = None,
    size: float = 0.0,
    is_rounding: Callable[[float], bool] = lambda fall: False,
) -> None:
    """Refuse numbers that are not finite, and a bound below the highest by more than rounding.

    size:        the number of terms of the bound
    is_rounding: whether rounding explains a fall. It is asked about falls that are large next to
                 the bound: terms may cancel while their rounding does not
    """
    for name, value in numbers.items():
        if not np.isfinite(value):
            raise Diverged(f"{name} became {value} at step {step}")
    if highest is None or "bound" not in numbers or not np.isfinite(highest):
        return
    fall = highest - numbers["bound"]
    usual = FALL[str(jnp.result_type(float))] * max(1.0, size, abs(highest))
    if fall > usual and not is_rounding(fall):
        raise Diverged(
            f"the bound, which cannot fall, fell from {highest:.9g} to {numbers['bound']:.9g} "
            f"at step {step}"
        )


def size_of_terms(posterior: Variational | Point) -> float:
    r"""The sum of the absolute values of the bound's terms that depend on the global sites.

    $F$ is linear in the statistics $\mu_s$ of a site once the auxiliaries are eliminated, so that
    its terms are the products of $\mu_s$ with $\partial F / \partial \mu_s$.
    """
    problem = posterior.problem
    stats = {site: posterior.statistics(site) for site in posterior.sites}
    shared = {site: stats.pop(site) for site in problem.model.shared}
    sizes = _absolute_terms(problem.model, problem.hyper, shared, stats, problem.data.pack())
    return devices.total(sizes)


@functools.partial(jax.jit, static_argnames=("model",))
def _absolute_terms(model, hyper, shared, local, batch):
    gradient = jax.grad(lambda t: joint(model, hyper, {**t, **local}, batch))(shared)
    return jax.tree.map(lambda x, slope: jnp.sum(jnp.abs(x * slope)), shared, gradient)


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
