"""Fits on disk: one .npz file of plain arrays with a JSON header. Never pickle.

header            JSON as bytes: format version, model, engine, hyper-parameters, options, seconds, data hash and size
history/NAME      the history's columns
SITE/LEAF         natural parameters (variational), values (point), draws (draws) or the rows' factors at each grid point (mixture); none of a site
                  with too many rows to solve only for this, which is solved again from the data when asked for
grid/NAME         log hyper-parameters, weights and log evidence of a mixture
sample_stats/NAME of a sampler
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from numpyro.distributions.distribution import validation_enabled

from inference import objective as obj
from inference.fitting import Fit
from inference.map import summary_of
from inference.posterior import Draws, Mixture, Point, Variational, _factor_moments, solve_rows
from inference.registry import engines
from pp_models import archives, discovery
from pp_models.archives import Damaged
from pp_models.base import Model, declare, split_hyper, value_shapes
from pp_models.data import KINDS, Data
from pp_models.errors import InputError
from pp_models.families import Family, Pair
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
    return write_whole(path, lambda file: archives.write(file, header, arrays))


def load(path: str | Path, data: Data | None = None) -> Fit:
    """Read a fit. With `data`, which must be the data it was fitted to, everything works as before saving.

    A file that is whole but holds no fit, or another than it says, is refused here, not when the fit is used.
    """
    path = Path(path)
    if not path.exists() and path.with_name(path.name + ".npz").exists():
        path = path.with_name(path.name + ".npz")
    header, arrays = archives.read(path, "fit", FORMAT)
    with usable(path, "fit"):
        about = _check_header(header)
        model = discovery.load(header["model"])
        if data is not None and data.hash != about["hash"]:
            raise InputError(f"{path} was fitted to other data than these (their hashes differ): pass the original data or none.")
        check_sizes(header["hyper"] | {"columns": about["columns"]}, arrays)
        known = data or _Shape(about["kind"], about["rows"], about["columns"])
        model, hyper = declare(model, header["hyper"], known)  # type: ignore[arg-type]
        structure, values = split_hyper(hyper)
        problem = obj.Problem(model, tuple(sorted(structure.items())), values, data, tuple(jax.local_devices()))
        groups = _groups(arrays, [*model.families, "history", "sample_stats", "grid"])
        leaves = {site: [groups[site][str(i)] for i in range(len(groups[site]))] for site in model.families}
        _check_leaves(model, header, leaves, groups["grid"], expected_shapes(model, hyper, about))
        check_history(groups["history"])
        posterior = _posterior(problem, header, leaves, groups)
        return Fit(problem, header["engine"], header["options"], posterior, groups["history"], float(header["seconds"]), about)


def _posterior(problem: obj.Problem, header: dict[str, Any], leaves: dict[str, list[np.ndarray]], groups: dict[str, dict[str, np.ndarray]]) -> Any:
    model, kind = problem.model, header["kind"]
    if kind == "draws":
        return Draws(problem, {site: parts[0] for site, parts in leaves.items()}, groups["sample_stats"])
    if kind == "point":
        known = {site: parts[0] for site, parts in leaves.items() if parts}
        if len(known) == len(leaves):
            point = Point(problem, {})
            point.values = known
            return point
        stats = {site: model.families[site].stats(jnp.asarray(known[site])) for site in model.shared}
        return Point(problem, stats, solve=lambda: solve_rows(problem, stats, summary_of(problem, header["options"]["basis"])))
    if kind == "mixture":
        weights = groups["grid"]["weights"]
        natural = [{site: Pair(*(part[m] for part in parts)) for site, parts in leaves.items() if parts} for m in range(len(weights))]
        names = tuple(site for site, parts in leaves.items() if not parts)
        return Mixture(problem, names, groups["grid"]["theta"], natural, weights, float(groups["grid"]["log_evidence"]))
    trees = {site: jax.tree.unflatten(jax.tree.structure(model.families[site].base), parts) for site, parts in leaves.items() if parts}
    rows = {s: trees[s] for s in model.local} if model.local <= trees.keys() else ()
    return Variational(problem, {s: trees[s] for s in model.shared}, rows)


# Files that are whole but lie ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def usable(path: Path, what: str) -> Iterator[None]:
    """Whatever is wrong with the contents of a file, in one sentence."""
    try:
        yield
    except InputError as error:
        named = str(path) in str(error) or str(error).startswith(f"{path.parent} ")
        raise error if named else InputError(f"{path}: {error}") from error
    except Exception as error:  # contents that nobody has thought of make NumPy, JAX and models raise a dozen unrelated types
        reason = str(error) if isinstance(error, Damaged) else f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise InputError(f"{path} holds no {what} that can be used ({reason[:200]}): it was altered, or written otherwise; make it anew.") from error


def require(good: Any, problem: str) -> None:
    if not good:
        raise Damaged(problem)


def is_whole(value: Any, least: int = 0) -> bool:
    """Whether a number of a header is a whole one that can be the size of something."""
    return type(value) is int and least <= value < 2**48


def is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _check_header(header: dict[str, Any]) -> dict[str, Any]:
    """Types of all that a header says; what it says of the data."""
    for name, kind in {"model": str, "engine": str, "kind": str, "hyper": dict, "options": dict, "data": dict}.items():
        require(isinstance(header.get(name), kind), f"its header has no {name}")
    require(header["engine"] in engines(), f"there is no engine {header['engine']!r:.40}")
    require(header["kind"] in ("variational", "point", "draws", "mixture"), f"there are no posteriors of kind {header['kind']!r:.40}")
    require(is_time(header.get("seconds")), "its seconds are no number")
    about = header["data"]
    good = about.get("kind") in KINDS and is_whole(about.get("rows"), 1) and is_whole(about.get("columns")) and isinstance(about.get("hash"), str)
    require(good and isinstance(about.get("vocabulary"), str | None), "it does not say what data it was fitted to")
    require(about["columns"] > 0 or about["kind"] == "text_and_votes", "its data have no columns")
    return about


def check_sizes(hyper: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Whole numbers among the hyper-parameters are of factors, each of which is stored, as each column is: before anything of that size is made."""
    most = max(sum(x.size for x in arrays.values()), 64)
    for name, value in hyper.items():
        require(not isinstance(value, int) or abs(value) <= most, f"{name} is {value}, but {most} numbers are stored")


def _groups(arrays: dict[str, np.ndarray], known: list[str]) -> dict[str, dict[str, np.ndarray]]:
    groups: dict[str, dict[str, np.ndarray]] = {name: {} for name in known}
    for name, x in arrays.items():
        group, _, rest = name.partition("/")
        require(group in groups and rest, f"nothing is known of an array {name!r:.40}")
        groups[group][rest] = x
    return groups


def expected_shapes(model: Model, hyper: Any, about: Mapping[str, Any]) -> dict[str, tuple[int | None, ...]]:
    """The shape of every site's value; None of an axis as long as there are members who vote, whose number is not stored.

    Found without computing anything, from two tiny sets of data: what is as long as they have rows is as long as the data have rows.
    """
    sizes = ((3, 5), (7, 11))  # rows and members
    few, more = (_shapes(model, hyper, _stand_in(about["kind"], rows, about["columns"], members)) for rows, members in sizes)
    long = dict(zip(zip(*sizes, strict=True), (about["rows"], None), strict=True))
    return {site: tuple(long.get(pair, pair[0]) for pair in zip(few[site], more[site], strict=True)) for site in model.families}


def _shapes(model: Model, hyper: Any, data: Data) -> dict[str, tuple[int, ...]]:
    def values(key: jax.Array, batch: Any) -> dict[str, Any]:
        natural = model.init(key, hyper, batch)
        return {site: family.value(family.mean(natural[site])) for site, family in model.families.items()}

    return {site: value.shape for site, value in jax.eval_shape(values, jax.random.key(0), data.pack()).items()}


def _stand_in(kind: str, rows: int, columns: int, members: int) -> Data:
    if kind == "dense":
        return Data(kind, values=np.zeros((rows, columns), np.float32))
    ones, first = np.ones(rows, np.float32), np.zeros(rows, np.int32)
    matrix = scipy.sparse.csr_array((ones, first, np.arange(rows + 1)) if columns else (rows, 0), shape=(rows, columns), dtype=np.float32)
    votes = scipy.sparse.csr_array((ones, first, np.arange(rows + 1)), shape=(rows, members)) if kind == "text_and_votes" else None
    return Data(kind, matrix=matrix, votes=votes)


def fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return len(shape) == len(expected) and all(size == known or (known is None and size > 0) for size, known in zip(shape, expected, strict=True))


def _check_leaves(
    model: Model,
    header: dict[str, Any],
    leaves: dict[str, list[np.ndarray]],
    grid: dict[str, np.ndarray],
    expected: dict[str, tuple[int | None, ...]],
) -> None:
    """Every site that must be there is, in numbers of the type and shape that its family has there, and finite where it is no draw."""
    kind = header["kind"]
    absent = {site for site, parts in leaves.items() if not parts}
    good = absent <= set(model.gridded) if kind == "mixture" else not absent or (absent == model.local and kind != "draws")
    require(good and len(absent) < len(leaves), f"it lacks {', '.join(sorted(absent))}")
    if kind == "point" and absent:
        require(isinstance(header["options"].get("basis"), str), "its options do not say how rows are found")
    if kind == "mixture":
        _check_grid(grid, len(absent))
    counts = {site: {"variational": jax.tree.structure(family.base).num_leaves, "mixture": 2}.get(kind, 1) for site, family in model.families.items()}
    chains = {parts[0].shape[:2] for parts in leaves.values() if parts} if kind == "draws" else set()
    require(len(chains) < 2 and all(len(shape) == 2 and min(shape) > 0 for shape in chains), "its sites have different numbers of draws")
    for site, parts in leaves.items():
        if site in absent:
            continue
        require(len(parts) == counts[site] and all(x.dtype.kind == "f" and x.dtype.itemsize >= 4 for x in parts), f"{site} is of the wrong type")
        require(kind == "draws" or all(np.all(np.isfinite(x)) for x in parts), f"{site} holds numbers that are not finite")
        require(fits(_value_shape(model.families[site], kind, parts, grid), expected[site]), f"{site} is of the wrong shape")
        if kind == "variational":
            _check_domain(site, model.families[site], parts)
        if kind == "point":
            impossible = any(bool(jnp.isnan(x).any()) for x in jax.tree.leaves(model.families[site].stats(jnp.asarray(parts[0]))))
            require(not impossible, f"{site} has values that it cannot take")


def _check_domain(site: str, family: Family, parts: list[np.ndarray]) -> None:
    """Natural parameters belong to a distribution: NumPyro looks at what it is given."""
    try:
        with validation_enabled():
            family.distribution(jax.tree.unflatten(jax.tree.structure(family.base), [jnp.asarray(x) for x in parts]))
    except ValueError as error:
        raise Damaged(f"the parameters of {site} belong to no distribution: {error}") from error


def check_shared(model: Model, hyper: Any, shared: Any, data: Any) -> None:
    """Natural parameters of all global sites, for data like these."""
    require(isinstance(shared, dict) and shared.keys() == set(model.shared), "it lacks some sites")
    expected = expected_shapes(model, hyper, {"kind": data.kind, "rows": data.num_rows, "columns": data.num_columns})
    for site, natural in shared.items():
        parts = [np.asarray(x) for x in jax.tree.leaves(natural)]
        require(all(x.dtype.kind == "f" and np.all(np.isfinite(x)) for x in parts), f"{site} holds numbers that are not finite")
        require(fits(_value_shape(model.families[site], "variational", parts, {}), expected[site]), f"{site} is of the wrong shape")
        _check_domain(site, model.families[site], parts)


def _check_grid(grid: dict[str, np.ndarray], num_names: int) -> None:
    require(grid.keys() == {"theta", "weights", "log_evidence"} and all(x.dtype.kind == "f" for x in grid.values()), "its grid is not complete")
    theta, weights = grid["theta"], grid["weights"]
    require(
        weights.ndim == 1 and len(weights) > 0 and theta.shape == (len(weights), num_names) and grid["log_evidence"].shape == (), "its grid is odd"
    )
    require(np.all(np.isfinite(theta)) and np.all(weights >= 0) and abs(weights.sum() - 1) < 1e-3, "its grid's weights do not add up")


def _value_shape(family: Any, kind: str, parts: list[np.ndarray], grid: dict[str, np.ndarray]) -> tuple[int, ...]:
    """The shape of a site's value that stored numbers stand for."""
    if kind == "point":
        return parts[0].shape
    if kind == "draws":
        return parts[0].shape[2:]
    if kind == "variational":
        natural = jax.tree.unflatten(jax.tree.structure(family.base), parts)
        return jax.eval_shape(lambda n: family.value(family.mean(n)), natural).shape
    require(all(x.shape[:1] == grid["weights"].shape for x in parts), "its grid is odd")
    natural = Pair(*(jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in parts))
    return jax.eval_shape(lambda n: _factor_moments(family.settles, n)[0], natural).shape


def check_history(history: dict[str, np.ndarray]) -> None:
    columns = list(history.values())
    require({"step", "seconds", "bound"} <= history.keys() and all(x.ndim == 1 for x in columns), "its history is not complete")
    require(len({len(x) for x in columns}) == 1, "the columns of its history differ in length")
