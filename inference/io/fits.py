"""`Fit`, the result of a run, and how it is stored: one .npz file with a JSON header. Never pickle.

header            JSON as bytes: format version, model, engine, hyper-parameters, options, seconds,
                  data hash and size
history/NAME      the history's columns
SITE/LEAF         natural parameters (variational), values (point), draws (draws) or the rows'
                  factors at each grid point (mixture). A site with too many rows to solve only for
                  this is left out and solved again from the data when asked for
grid/NAME         log hyper-parameters, weights and log evidence of a mixture
sample_stats/NAME of a sampler
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from inference.core import objective as obj
from inference.core.blocks import over_draws
from inference.core.posteriors import Draws, Mixture, Point, Posterior, Variational, solve_rows
from inference.core.provenance import hash_of_names
from inference.core.summaries import summary_of
from inference.io import archives
from inference.io.contents import (
    check_header,
    check_history,
    check_leaves,
    check_shared,
    check_sizes,
    expected_shapes,
    groups_of,
    is_time,
    is_whole,
    require,
    usable,
)
from pp_models import discovery
from pp_models.data.files import write_whole
from pp_models.data.types import Data
from pp_models.errors import InputError
from pp_models.families import Pair
from pp_models.model import as_arrays, declare, log_joint, value_shapes

__all__ = [
    "Fit",
    "check_history",
    "check_shared",
    "check_sizes",
    "is_time",
    "is_whole",
    "load",
    "require",
    "save",
    "stored_sites",
    "usable",
]

FORMAT = 1
MOST_SOLVED = 20_000_000  # numbers of rows that are solved only to be stored


class Fit:
    """A fitted model: its posterior, and what is needed to use, store and compare it."""

    def __init__(
        self,
        problem: obj.Problem,
        engine: str,
        options: dict[str, Any],
        posterior: Posterior,
        history: dict[str, np.ndarray],
        seconds: float,
        provenance: dict[str, Any] | None = None,
        stopped: str | None = None,
    ) -> None:
        self.problem = problem
        self._provenance = provenance
        self.engine = engine
        self.options = options
        self.posterior = posterior
        self.history = history
        self.seconds = seconds
        self.stopped = stopped  # None, or a sentence where `max_seconds` ended the run early

    @property
    def model(self) -> Any:
        return self.problem.model

    @property
    def hyper(self) -> Any:
        return self.problem.hyper

    @property
    def data(self) -> Any:
        return self.problem.data

    @property
    def bound(self) -> float:
        """The last bound evaluated (nan for samplers)."""
        finite = self.history["bound"][np.isfinite(self.history["bound"])]
        return float(finite[-1]) if len(finite) else float("nan")

    @property
    def provenance(self) -> dict[str, Any]:
        """Kind, size, and hashes of the contents and column names of the data fitted."""
        if self._provenance is None:
            data = self.data
            self._provenance = {
                "kind": data.kind,
                "rows": data.num_rows,
                "columns": data.num_columns,
                "hash": data.hash,
                "vocabulary": hash_of_names(data.column_names),
            }
        return self._provenance

    def log_joint(self, draws: Mapping[str, Any]) -> np.ndarray:
        """log p(data, values) of each draw, site -> (draws, ...)."""
        if self.data is None:
            raise InputError("This fit was loaded without its data: pass data= to inference.load.")
        batch, problem = self.data.pack(), self.problem
        stacked = {site: draws[site] for site in self.model.families}

        def joints(block: Any) -> jax.Array:
            return _log_joints(self.model, problem.hyper, block, batch)

        return np.asarray(over_draws(joints, stacked), np.float64)

    def to_arviz(self, num_draws: int | None = None) -> Any:
        """ArviZ InferenceData (DataTree with ArviZ 1).

        Groups: posterior, log_likelihood, observed_data, sample_stats.
        num_draws: of a distribution. The default is 1000, or as many as hold 20 million numbers;
        where that would be too few, sites with a row for each row of the data are left out.
        """
        from inference.io import arviz  # ArviZ takes seconds to import

        return arviz.convert(self, num_draws)

    def save(self, path: str | Path) -> Path:
        """Write everything but the data to one file (NumPy arrays and JSON, no pickle)."""
        return save(self, path)

    def __repr__(self) -> str:
        bound = "" if np.isnan(self.bound) else f", bound {self.bound:.6g}"
        steps = len(self.history["step"])
        return (
            f"<Fit {self.model.name} by {self.engine}: {steps} steps, {self.seconds:.1f} s{bound}>"
        )


@functools.partial(jax.jit, static_argnames=("model",))
def _log_joints(model, hyper, draws, batch):
    return jax.lax.map(lambda x: log_joint(model, hyper, x, batch), draws)


# Writing --------------------------------------------------------------------------------------


def stored_sites(fit: Fit) -> list[str]:
    """All sites, or only those at hand where the rows left would be too many to solve."""
    posterior = fit.posterior
    if not isinstance(posterior, Variational | Point):
        return posterior.sites
    if fit.data is None:
        return posterior.at_hand
    shapes = value_shapes(fit.model, fit.hyper, fit.data)
    missing = [site for site in posterior.sites if site not in posterior.at_hand]
    few = sum(math.prod(shapes[site]) for site in missing) <= MOST_SOLVED
    return posterior.sites if few else posterior.at_hand


def save(fit: Fit, path: str | Path) -> Path:
    """Write a fit; the file appears whole or not at all."""
    path = Path(path)
    if path.suffix != ".npz":
        path = path.with_name(path.name + ".npz")
    sites, grid = _contents(fit)
    arrays = {
        f"{site}/{i}": np.asarray(leaf)
        for site, tree in sites.items()
        for i, leaf in enumerate(jax.tree.leaves(tree))
    }
    arrays |= {f"grid/{name}": x for name, x in grid.items()}
    arrays |= {f"history/{name}": column for name, column in fit.history.items()}
    stats = getattr(fit.posterior, "sample_stats", {})
    arrays |= {f"sample_stats/{name}": x for name, x in stats.items()}
    hyper = fit.hyper._asdict().items()
    header = {
        "format": FORMAT,
        "model": fit.model.name,
        "engine": fit.engine,
        "kind": fit.posterior.kind,
        "hyper": {name: np.asarray(x).tolist() if hasattr(x, "shape") else x for name, x in hyper},
        "options": fit.options,
        "seconds": fit.seconds,
        "data": fit.provenance,
    }
    return write_whole(path, lambda file: archives.write(file, header, arrays))


def _contents(fit: Fit) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What is stored of a posterior: trees of arrays by site, and the grid of a mixture."""
    posterior = fit.posterior
    if isinstance(posterior, Variational):
        return {site: posterior.natural(site) for site in stored_sites(fit)}, {}
    if isinstance(posterior, Point):
        return {site: posterior.mean(site) for site in stored_sites(fit)}, {}
    if isinstance(posterior, Mixture):
        log_evidence = np.asarray(posterior.log_evidence)
        grid = {"theta": posterior.theta, "weights": posterior.weights}
        stacked = jax.tree.map(lambda *parts: np.stack(parts), *posterior.natural)
        return stacked, {**grid, "log_evidence": log_evidence}
    return posterior.draws, {}  # type: ignore[attr-defined]


# Reading --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Shape:
    """The size of the data of a fit that is loaded without them."""

    kind: str
    num_rows: int
    num_columns: int


def load(path: str | Path, data: Data | None = None) -> Fit:
    """Read a fit. With `data`, which must be those fitted, everything works as before saving."""
    path = Path(path)
    if not path.exists() and path.with_name(path.name + ".npz").exists():
        path = path.with_name(path.name + ".npz")
    header, arrays = archives.read(path, "fit", FORMAT)
    with usable(path, "fit"):
        about = check_header(header)
        model = discovery.load(header["model"])
        if data is not None and data.hash != about["hash"]:
            raise InputError(
                f"{path} was fitted to other data than these (their hashes differ): pass the "
                "original data or none."
            )
        check_sizes(header["hyper"] | {"columns": about["columns"]}, arrays)
        known: Any = data or _Shape(about["kind"], about["rows"], about["columns"])
        model, hyper = declare(model, header["hyper"], known)
        problem = obj.Problem(model, as_arrays(hyper), data, tuple(jax.local_devices()))
        groups = groups_of(arrays, [*model.families, "history", "sample_stats", "grid"])
        leaves = {
            site: [groups[site][str(i)] for i in range(len(groups[site]))]
            for site in model.families
        }
        check_leaves(model, header, leaves, groups["grid"], expected_shapes(model, hyper, about))
        history = groups["history"]
        check_history(history)
        posterior, seconds = _posterior(problem, header, leaves, groups), float(header["seconds"])
        return Fit(problem, header["engine"], header["options"], posterior, history, seconds, about)


def _posterior(
    problem: obj.Problem,
    header: dict[str, Any],
    leaves: dict[str, list[np.ndarray]],
    groups: dict[str, dict[str, np.ndarray]],
) -> Any:
    model, kind = problem.model, header["kind"]
    if kind == "draws":
        draws = {site: parts[0] for site, parts in leaves.items()}
        return Draws(problem, draws, groups["sample_stats"])
    if kind == "point":
        return _point(problem, header["options"], leaves)
    if kind == "mixture":
        grid = groups["grid"]
        natural = [
            {site: Pair(*(part[m] for part in parts)) for site, parts in leaves.items() if parts}
            for m in range(len(grid["weights"]))
        ]
        names = tuple(site for site, parts in leaves.items() if not parts)
        evidence = float(grid["log_evidence"])
        return Mixture(problem, names, grid["theta"], natural, grid["weights"], evidence)
    structures = {site: jax.tree.structure(family.base) for site, family in model.families.items()}
    trees = {s: jax.tree.unflatten(structures[s], parts) for s, parts in leaves.items() if parts}
    rows = {s: trees[s] for s in model.local} if model.local <= trees.keys() else ()
    return Variational(problem, {s: trees[s] for s in model.shared}, rows)


def _point(
    problem: obj.Problem, options: dict[str, Any], leaves: dict[str, list[np.ndarray]]
) -> Point:
    """A point; rows that were not stored are solved when asked for."""
    known = {site: parts[0] for site, parts in leaves.items() if parts}
    if len(known) == len(leaves):
        point = Point(problem, {})
        point.values = known
        return point
    model = problem.model
    stats = {site: model.families[site].stats(jnp.asarray(known[site])) for site in model.shared}

    def solve() -> Any:
        return solve_rows(problem, stats, summary_of(problem, options["basis"]))

    return Point(problem, stats, solve=solve)
