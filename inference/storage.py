"""Fits on disk: one .npz file of plain arrays with a JSON header. Never pickle.

header            JSON as bytes: format version, model, engine, hyper-parameters, options, seconds, data hash and size
history/NAME      the history's columns
SITE/LEAF         natural parameters (variational), values (point), draws (draws) or the rows' factors at each grid point (mixture); none of a site
                  with too many rows to solve only for this, which is solved again from the data when asked for
grid/NAME         log hyper-parameters, weights and log evidence of a mixture
sample_stats/NAME of a sampler
"""

import dataclasses
import json
import math
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference import objective as obj
from inference.fitting import Fit
from inference.map import summary_of
from inference.posterior import Draws, Mixture, Point, Variational, solve_rows
from pp_models import discovery
from pp_models.base import declare, split_hyper, value_shapes
from pp_models.data import Data
from pp_models.errors import InputError
from pp_models.families import Pair
from pp_models.files import write_whole

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class _Shape:
    """What is known of the data when only the fit was stored."""

    kind: str
    num_rows: int
    num_columns: int


MOST_SOLVED = 20_000_000  # numbers of rows that are solved only to be stored


def stored_sites(fit: Fit) -> list[str]:
    """All sites, or, where rows that the engine left behind would be too many to solve only for this, those at hand.

    They can be had from the data again.
    """
    posterior = fit.posterior
    if not isinstance(posterior, Variational | Point):
        return posterior.sites
    if fit.data is None:
        return posterior.at_hand
    shapes = value_shapes(fit.model, fit.hyper, fit.data)
    missing = [site for site in posterior.sites if site not in posterior.at_hand]
    return posterior.sites if sum(math.prod(shapes[site]) for site in missing) <= MOST_SOLVED else posterior.at_hand


def save(fit: Fit, path: str | Path) -> Path:
    """Write a fit; the file appears whole or not at all. Rows that are not at hand and too many are left out (`stored_sites`)."""
    path = Path(path)
    if path.suffix != ".npz":
        path = path.with_name(path.name + ".npz")
    posterior = fit.posterior
    grid: dict[str, np.ndarray] = {}
    if isinstance(posterior, Variational):
        sites = {site: posterior.natural(site) for site in stored_sites(fit)}
    elif isinstance(posterior, Point):
        sites = {site: posterior.mean(site) for site in stored_sites(fit)}
    elif isinstance(posterior, Mixture):
        sites = jax.tree.map(lambda *parts: np.stack(parts), *posterior.natural)
        grid = {"theta": posterior.theta, "weights": posterior.weights, "log_evidence": np.asarray(posterior.log_evidence)}
    else:
        sites = posterior.draws  # type: ignore[attr-defined]
    arrays = {f"{site}/{i}": np.asarray(leaf) for site, tree in sites.items() for i, leaf in enumerate(jax.tree.leaves(tree))}
    arrays |= {f"grid/{name}": x for name, x in grid.items()}
    arrays |= {f"history/{name}": column for name, column in fit.history.items()}
    arrays |= {f"sample_stats/{name}": x for name, x in getattr(posterior, "sample_stats", {}).items()}
    header = {
        "format": FORMAT,
        "model": fit.model.name,
        "engine": fit.engine,
        "kind": posterior.kind,
        "hyper": {name: np.asarray(x).tolist() if hasattr(x, "shape") else x for name, x in fit.hyper._asdict().items()},
        "options": fit.options,
        "seconds": fit.seconds,
        "data": fit.provenance,
    }
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    return write_whole(path, partial(write_arrays, arrays))


def write_arrays(arrays: dict[str, np.ndarray], path: Path) -> None:
    """One .npz file of plain arrays."""
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load(path: str | Path, data: Data | None = None) -> Fit:
    """Read a fit. With `data`, which must be the data it was fitted to, everything works as before saving."""
    path = Path(path)
    if not path.exists() and path.with_name(path.name + ".npz").exists():
        path = path.with_name(path.name + ".npz")
    header, arrays = read_arrays(path, "fit", FORMAT)
    model = discovery.load(header["model"])
    if data is not None and data.hash != header["data"]["hash"]:
        raise InputError(f"{path} was fitted to other data than these (their hashes differ): pass the original data or none.")
    known = data or _Shape(header["data"]["kind"], header["data"]["rows"], header["data"]["columns"])
    model, hyper = declare(model, header["hyper"], known)  # type: ignore[arg-type]
    structure, values = split_hyper(hyper)
    problem = obj.Problem(model, tuple(sorted(structure.items())), values, data, tuple(jax.local_devices()))
    leaves = {site: [arrays[f"{site}/{i}"] for i in range(sum(n.startswith(f"{site}/") for n in arrays))] for site in model.families}
    posterior = _posterior(problem, header, leaves, arrays)
    history = {name.split("/", 1)[1]: x for name, x in arrays.items() if name.startswith("history/")}
    return Fit(problem, header["engine"], header["options"], posterior, history, header["seconds"], header["data"])


def _posterior(problem: obj.Problem, header: dict[str, Any], leaves: dict[str, list[np.ndarray]], arrays: dict[str, np.ndarray]) -> Any:
    model, kind = problem.model, header["kind"]
    if kind == "draws":
        stats = {name.split("/", 1)[1]: x for name, x in arrays.items() if name.startswith("sample_stats/")}
        return Draws(problem, {site: parts[0] for site, parts in leaves.items()}, stats)
    if kind == "point":
        known = {site: parts[0] for site, parts in leaves.items() if parts}
        if len(known) == len(leaves):
            point = Point(problem, {})
            point.values = known
            return point
        stats = {site: model.families[site].stats(jnp.asarray(known[site])) for site in model.shared}
        return Point(problem, stats, solve=lambda: solve_rows(problem, stats, summary_of(problem, header["options"]["basis"])))
    if kind == "mixture":
        weights = arrays["grid/weights"]
        natural = [{site: Pair(*(part[m] for part in parts)) for site, parts in leaves.items() if parts} for m in range(len(weights))]
        names = tuple(site for site, parts in leaves.items() if not parts)
        return Mixture(problem, names, arrays["grid/theta"], natural, weights, float(arrays["grid/log_evidence"]))
    trees = {site: jax.tree.unflatten(jax.tree.structure(model.families[site].base), parts) for site, parts in leaves.items() if parts}
    rows = {s: trees[s] for s in model.local} if model.local <= trees.keys() else ()
    return Variational(problem, {s: trees[s] for s in model.shared}, rows)


def read_arrays(path: Path, what: str, version: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a file of `write_arrays`; a missing, truncated or foreign file is refused."""
    if not path.is_file():
        raise InputError(f"There is no {what} at {path}: give the file that was saved.")
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(bytes(arrays.pop("header")).decode())
        if header["format"] != version:
            raise InputError(f"{path} has format {header['format']}, but this version reads format {version}: fit again or upgrade.")
        return header, arrays
    except InputError:
        raise
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not a complete {what} file ({error}): it may be truncated; remove it and fit again.") from error
