"""Coordinate ascent from the answer of a variational fit: is it a fixed point, and what is near?"""

from typing import Any

from inference.core.engine import Engine
from inference.core.registry import engines, load_engine
from inference.run.end_checks import quiet
from inference.run.fit import Fit, fit

SWEEPS = 20
ROWS = 100  # iterations of the rows, which begin anew: too few would lower the bound first


def ascent_engine(model: Any) -> Engine | None:
    """The engine that sweeps over all rows and whose bound never falls, if it suits the model."""
    for engine in map(load_engine, engines()):
        ascends = engine.ascends and engine.rows == "all" and engine.kind == "variational"
        if ascends and not engine.suits(model):
            return engine
    return None


def polish(found: Fit, sweeps: int = SWEEPS, max_seconds: float | None = None) -> Fit | None:
    """The fit after some sweeps of coordinate ascent; None where the model or q allows none."""
    engine = ascent_engine(found.model)
    if engine is None or not found.posterior.has_density:
        return None
    posterior: Any = found.posterior
    start = {site: posterior.natural(site) for site in found.model.shared}
    with quiet():
        return fit(
            found.model.name,
            found.data,
            engine.name,
            found.hyper,
            init=start,
            progress=False,
            max_seconds=max_seconds,
            num_epochs=sweeps,
            num_local=ROWS,
            tolerance=0.0,
        )
