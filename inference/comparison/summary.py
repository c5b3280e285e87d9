"""What a comparison writes down: the summary, which `summary_schema.json` describes, and a table of every quantity."""

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import jax
import numpy as np
import xarray

from inference.comparison.agreement import Quantities, distances
from inference.comparison.measure import Measured, Yardstick, labels
from inference.core.provenance import plain as plain
from inference.core.provenance import versions as versions
from pp_models.data.types import Data
from pp_models.model import Model

FORMAT = 1
PER_QUANTITY = ("mean", "sd", "q05", "q50", "q95")


def schema() -> dict[str, Any]:
    """The JSON schema of `summary.json`."""
    return json.loads(
        resources.files("inference.comparison")
        .joinpath("summary_schema.json")
        .read_text(encoding="utf-8")
    )


def seed_of(key: jax.Array) -> int:
    """The number that `jax.random.key` made the key of."""
    high, low = (int(word) for word in np.asarray(jax.random.key_data(key)).ravel()[-2:])
    return (high << 32) | low


def ranking(
    rows: Mapping[str, Mapping[str, Any]], reference: str | None, converged: bool | None = True
) -> list[str]:
    """The reference, then engines by Wasserstein distance to it (location and spread in one number), or by held-out score where there is no such
    distance or the reference has not converged, then those without either, then those that failed."""

    def place(engine: str) -> tuple[int, float]:
        row = rows[engine]
        if row.get("error"):
            return 4, 0.0
        if engine == reference:
            return 0, 0.0
        distance, score = row.get("wasserstein_sd"), row.get("heldout")
        if converged and distance is not None and np.isfinite(distance):
            return 1, distance
        return (2, -score) if score is not None and np.isfinite(score) else (3, 0.0)

    return sorted(rows, key=place)


def data_summary(data: Data, training: Data, heldout: Data | None) -> dict[str, Any]:
    about = {
        "kind": data.kind,
        "rows": data.num_rows,
        "columns": data.num_columns,
        "entries": data.num_entries,
        "total": data.total,
    }
    by_rows = data.kind != "ratings"
    return about | {
        "rows_fitted": training.num_rows,
        "rows_heldout": data.num_rows - training.num_rows if by_rows else 0,
        "entries_heldout": 0 if heldout is None else heldout.num_entries,
    }


def quantity_table(
    model: Model, training: Data, yardstick: Yardstick, measured: Mapping[str, Measured]
) -> xarray.Dataset:
    """Every number that was compared, by engine: its mean, sd, quantiles, and its distances from the reference's.

    `.to_dataframe()` is the tidy table.
    """
    sites = list(yardstick.picked)
    shapes = {site: yardstick.pivot[site].shape for site in sites}
    columns = {
        site: labels(model, site, shapes[site], yardstick.picked[site], training) for site in sites
    }
    coords = {
        "engine": list(measured),
        "label": ("quantity", [label for site in sites for label in columns[site]]),
        "site": ("quantity", [site for site in sites for _ in columns[site]]),
    }
    values = {
        engine: [
            _quantity_columns(one.quantities[site], yardstick.sites.get(site)) for site in sites
        ]
        for engine, one in measured.items()
    }
    names = list(next(iter(values.values()))[0]) if values and sites else []
    table = {
        name: np.stack(
            [np.concatenate([part[name] for part in parts]) for parts in values.values()]
        )
        for name in names
    }
    return xarray.Dataset(
        {name: (("engine", "quantity"), array) for name, array in table.items()}, coords
    )


def _quantity_columns(own: Quantities, reference: Quantities | None) -> dict[str, np.ndarray]:
    found = dict(
        zip(PER_QUANTITY, (own.mean, own.sd, own.ends[0], own.ends[2], own.ends[4]), strict=True)
    )
    return found if reference is None else {**found, **distances(reference, own)._asdict()}
