"""The summary of a comparison, and the table of every compared quantity."""

from collections.abc import Mapping

import jax
import numpy as np
import xarray

from inference.comparison.agreement import ENDS, Quantities, distances
from inference.comparison.labels import labels
from inference.comparison.measure import Measured, Yardstick
from inference.comparison.record import DataSize, Row
from pp_models.data.types import Data
from pp_models.model import Model

QUANTILES = {"q05": ENDS.index(0.05), "q50": ENDS.index(0.5), "q95": ENDS.index(0.95)}


def seed_of(key: jax.Array) -> int:
    """The seed that `jax.random.key` made the key of."""
    high, low = (int(word) for word in np.asarray(jax.random.key_data(key)).ravel()[-2:])
    return (high << 32) | low


def ranking(rows: Mapping[str, Row], reference: str | None, converged: bool | None) -> list[str]:
    """The order of the engines.

    The reference, then engines by Wasserstein distance, then by held-out score where there is no
    distance or the reference has not converged, then those without either, then failed ones.
    """

    def place(engine: str) -> tuple[int, float]:
        row = rows[engine]
        if row.error:
            return 4, 0.0
        if engine == reference:
            return 0, 0.0
        if converged and row.wasserstein_sd is not None and np.isfinite(row.wasserstein_sd):
            return 1, row.wasserstein_sd
        return (2, -row.heldout) if row.heldout is not None and np.isfinite(row.heldout) else (3, 0)

    return sorted(rows, key=place)


def data_size(data: Data, training: Data, heldout: Data | None) -> DataSize:
    """The sizes of all data, of the fitted and of the held-out part."""
    by_rows = data.kind != "ratings"
    return DataSize(
        kind=data.kind,
        rows=data.num_rows,
        columns=data.num_columns,
        entries=data.num_entries,
        total=data.total,
        rows_fitted=training.num_rows,
        rows_heldout=data.num_rows - training.num_rows if by_rows else 0,
        entries_heldout=0 if heldout is None else heldout.num_entries,
    )


def quantity_table(
    model: Model, training: Data, yardstick: Yardstick, measured: Mapping[str, Measured]
) -> xarray.Dataset:
    """Mean, sd, quantiles and distances of every compared quantity, by engine."""
    picked = yardstick.picked
    names = {
        site: labels(model, site, yardstick.pivot[site].shape, places, training)
        for site, places in picked.items()
    }
    coords = {
        "engine": list(measured),
        "label": ("quantity", [label for site in picked for label in names[site]]),
        "site": ("quantity", [site for site in picked for _ in names[site]]),
    }
    engines = [
        [_columns(one.quantities[site], yardstick.sites.get(site)) for site in picked]
        for one in measured.values()
    ]
    table = {
        name: np.stack([np.concatenate([part[name] for part in parts]) for parts in engines])
        for name in engines[0][0]
    }
    variables = {name: (("engine", "quantity"), array) for name, array in table.items()}
    return xarray.Dataset(variables, coords)


def _columns(own: Quantities, reference: Quantities | None) -> dict[str, np.ndarray]:
    found = {"mean": own.mean, "sd": own.sd}
    found |= {name: own.ends[place] for name, place in QUANTILES.items()}
    return found if reference is None else found | distances(reference, own)._asdict()
