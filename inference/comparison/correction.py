"""The row of a correction: the fit of an engine with the widths of linear response (`cavi+lr`).

It is made from the engine's finished fit and measured as every other row. Its draws are kept with
it in the folder of the comparison.
"""

import time
import zlib
from functools import partial
from typing import Any, cast

import jax
import numpy as np

from inference.comparison import sensitivity
from inference.comparison.measure import Draws, attempt
from inference.comparison.record import Row
from inference.comparison.results import Finished
from inference.core.corrected import corrected
from inference.core.posteriors import Variational
from inference.core.registry import corrects
from inference.io.fits import Fit
from pp_models.errors import InputError, TooLarge

MOST_NUMBERS = 2**18  # parameters of q: with more, draws fill the memory
FAR = 1.0  # reference sd by which means may be off


def finished(
    task: Any, name: str, found: Fit | None, key: jax.Array, seconds: float | None
) -> Finished:
    """The correction of a fit: the one in the folder, or a new one within so many seconds."""
    if found is None:
        raise InputError(f"{corrects(name)} has no result that could be corrected.")
    recipe = {"corrects": _fingerprint(found), "num_draws": task.num_draws}
    before = task.folder and task.folder.load(name, recipe, task.training)
    if before:
        return before
    made = correct(found, name, task.num_draws, key, seconds)
    posterior: Any = made.posterior
    notes = [*posterior.notes, *([found.stopped] if found.stopped else [])]
    done = Finished(made, notes, [])
    if task.folder is not None:
        task.folder.save(name, recipe, done)
    return done


def correct(
    found: Fit, name: str, num_draws: int, key: jax.Array, max_seconds: float | None = None
) -> Fit:
    """A fit with the corrected posterior, its widths and draws. Its time contains the fit's."""
    begin, own = time.perf_counter(), cast(Variational, found.posterior)
    if (size := _size(found)) > MOST_NUMBERS:
        raise TooLarge(
            f"q has {size:,} parameters, and a comparison draws from corrected posteriors with up "
            f"to {MOST_NUMBERS:,}: fit.corrected() gives the widths of single numbers."
        )
    try:
        posterior = corrected(own, max_seconds=max_seconds)
        for site in posterior.sites:
            posterior.widths(site)
        posterior.chains(key, num_draws)
    except TooLarge as error:
        raise TooLarge(f"{error} With a larger budget there is more.") from error
    posterior.until = float("inf")
    seconds = found.seconds + time.perf_counter() - begin
    nothing = {"step": np.arange(0), "seconds": np.zeros(0)}
    return Fit(found.problem, name, {}, posterior, nothing, seconds)


def complete(row: Row, found: Fit, pivot: Draws, converged: bool | None) -> None:
    """Add what only a correction has, and what the reference says against it."""
    table = partial(sensitivity.table, found, pivot)
    row.sensitivity = attempt(row.notes, "sensitivity to the prior", table)
    error = row.mean_error_sd
    if converged and error is not None and error >= FAR:
        row.notes.append(
            f"Its means are {error:.1f} reference sd off. Linear response keeps the means of mean "
            "field: the widths are those at another place, and are not to be trusted."
        )


def _size(found: Fit) -> int:
    posterior: Any = found.posterior
    return sum(x.size for site in posterior.sites for x in jax.tree.leaves(posterior.natural(site)))


def _fingerprint(found: Fit) -> int:
    """Of the fit's parameters, so that a correction of another fit is not used."""
    posterior: Any = found.posterior
    leaves = jax.tree.leaves({site: posterior.natural(site) for site in posterior.sites})
    code = 0
    for x in leaves:
        code = zlib.crc32(np.ascontiguousarray(x).tobytes(), code)
    return code
