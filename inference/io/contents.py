"""Whether the contents of a stored fit are what they say: names, types, shapes and domains.

A file that is whole may still hold something else than a fit. It is refused when it is read, not
when the fit is used.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from numpyro.distributions.distribution import validation_enabled

from inference.core.posteriors import _factor_moments
from inference.core.registry import engines
from inference.io.archives import Damaged
from pp_models.data.types import KINDS, Data
from pp_models.errors import InputError
from pp_models.families import Family, Pair
from pp_models.model import Model

POSTERIORS = ("variational", "point", "draws", "mixture")
HEADER = {"model": str, "engine": str, "kind": str, "hyper": dict, "options": dict, "data": dict}

Arrays = dict[str, np.ndarray]
Shape = tuple[int | None, ...]  # None: an axis whose length is not stored


@contextlib.contextmanager
def usable(path: Path, what: str) -> Iterator[None]:
    """Turn any error that the contents of a file cause into one sentence."""
    try:
        yield
    except InputError as error:
        named = str(path) in str(error) or str(error).startswith(f"{path.parent} ")
        raise error if named else InputError(f"{path}: {error}") from error
    except Exception as error:  # NumPy, JAX and models raise a dozen unrelated types
        reason = str(error).splitlines()[0] if str(error) else ""
        reason = reason if isinstance(error, Damaged) else f"{type(error).__name__}: {reason}"
        raise InputError(
            f"{path} holds no {what} that can be used ({reason[:200]}): the file is corrupt or "
            "from another version; fit again."
        ) from error


def require(good: Any, problem: str) -> None:
    if not good:
        raise Damaged(problem)


def is_whole(value: Any, least: int = 0) -> bool:
    """Whether a number of a header is an integer that can be the size of something."""
    return type(value) is int and least <= value < 2**48


def is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def check_header(header: dict[str, Any]) -> dict[str, Any]:
    """Check the types of everything in a header; returns its part about the data."""
    for name, kind in HEADER.items():
        require(isinstance(header.get(name), kind), f"its header has no {name}")
    require(header["engine"] in engines(), f"there is no engine {header['engine']!r:.40}")
    known = header["kind"] in POSTERIORS
    require(known, f"there are no posteriors of kind {header['kind']!r:.40}")
    require(is_time(header.get("seconds")), "its seconds are no number")
    about = header["data"]
    sized = is_whole(about.get("rows"), 1) and is_whole(about.get("columns"))
    named = isinstance(about.get("hash"), str) and isinstance(about.get("vocabulary"), str | None)
    known = about.get("kind") in KINDS
    require(known and sized and named, "it does not say what data it was fitted to")
    require(about["columns"] > 0 or about["kind"] == "text_and_votes", "its data have no columns")
    return about


def check_sizes(hyper: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse numbers of factors or columns above the numbers stored, before using them as sizes."""
    most = max(sum(x.size for x in arrays.values()), 64)
    for name, value in hyper.items():
        small = not isinstance(value, int) or abs(value) <= most
        require(small, f"{name} is {value}, but {most} numbers are stored")


def groups_of(arrays: Arrays, known: list[str]) -> dict[str, Arrays]:
    """group -> name -> array, from "group/name" -> array."""
    groups: dict[str, Arrays] = {name: {} for name in known}
    for name, x in arrays.items():
        group, _, rest = name.partition("/")
        require(group in groups and rest, f"nothing is known of an array {name!r:.40}")
        groups[group][rest] = x
    return groups


def check_history(history: Arrays) -> None:
    columns = list(history.values())
    complete = {"step", "seconds", "bound"} <= history.keys() and all(x.ndim == 1 for x in columns)
    require(complete, "its history is not complete")
    require(len({len(x) for x in columns}) == 1, "the columns of its history differ in length")


# Shapes ---------------------------------------------------------------------------------------


def expected_shapes(model: Model, hyper: Any, about: Mapping[str, Any]) -> dict[str, Shape]:
    """The shape of every site's value; None for an axis of voting members.

    Two tiny data sets are traced, without computing anything. An axis that is as long as each has
    rows is as long as the data have rows.
    """
    sizes = ((3, 5), (7, 11))  # rows and members
    few, more = (
        _shapes(model, hyper, _stand_in(about["kind"], rows, about["columns"], members))
        for rows, members in sizes
    )
    long = dict(zip(zip(*sizes, strict=True), (about["rows"], None), strict=True))
    pairs = {site: zip(few[site], more[site], strict=True) for site in model.families}
    return {site: tuple(long.get(pair, pair[0]) for pair in both) for site, both in pairs.items()}


def _shapes(model: Model, hyper: Any, data: Data) -> dict[str, tuple[int, ...]]:
    def values(key: jax.Array, batch: Any) -> dict[str, Any]:
        natural = model.init(key, hyper, batch)
        families = model.families.items()
        return {site: family.value(family.mean(natural[site])) for site, family in families}

    traced = jax.eval_shape(values, jax.random.key(0), data.pack())
    return {site: value.shape for site, value in traced.items()}


def _stand_in(kind: str, rows: int, columns: int, members: int) -> Data:
    """A tiny data set with one entry in each row."""
    if kind == "dense":
        return Data(kind, values=np.zeros((rows, columns), np.float32))
    ones = np.ones(rows, np.float32), np.zeros(rows, np.int32), np.arange(rows + 1)
    empty = scipy.sparse.csr_array((rows, 0), dtype=np.float32)
    matrix = scipy.sparse.csr_array(ones, shape=(rows, columns)) if columns else empty
    if kind != "text_and_votes":
        return Data(kind, matrix=matrix)
    return Data(kind, matrix=matrix, votes=scipy.sparse.csr_array(ones, shape=(rows, members)))


def _agrees(shape: tuple[int, ...], expected: Shape) -> bool:
    pairs = zip(shape, expected, strict=False)
    same = all(size == known or (known is None and size > 0) for size, known in pairs)
    return len(shape) == len(expected) and same


def _value_shape(family: Any, kind: str, parts: list[np.ndarray], grid: Arrays) -> tuple[int, ...]:
    """The shape of a site's value, from the numbers stored of it."""
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


# Sites ----------------------------------------------------------------------------------------


def check_leaves(
    model: Model,
    header: dict[str, Any],
    leaves: dict[str, list[np.ndarray]],
    grid: Arrays,
    expected: dict[str, Shape],
) -> None:
    """Check that the right sites are there, with numbers of their families' types and shapes."""
    kind = header["kind"]
    absent = {site for site, parts in leaves.items() if not parts}
    if kind == "mixture":
        good = absent <= set(model.marginal.gridded)
    else:
        good = not absent or (absent == model.local and kind != "draws")
    require(good and len(absent) < len(leaves), f"it lacks {', '.join(sorted(absent))}")
    if kind == "point" and absent:
        named = isinstance(header["options"].get("basis"), str)
        require(named, "its options do not say how rows are found")
    if kind == "mixture":
        _check_grid(grid, len(absent))
    if kind == "draws":
        chains = {parts[0].shape[:2] for parts in leaves.values()}
        same = len(chains) == 1 and all(len(shape) == 2 and min(shape) > 0 for shape in chains)
        require(same, "its sites have different numbers of draws")
    for site, parts in leaves.items():
        if site not in absent:
            _check_site(site, model.families[site], kind, parts, grid, expected[site])


def _check_site(
    site: str, family: Family, kind: str, parts: list[np.ndarray], grid: Arrays, expected: Shape
) -> None:
    leaves = {"variational": jax.tree.structure(family.base).num_leaves, "mixture": 2}
    real = all(x.dtype.kind == "f" and x.dtype.itemsize >= 4 for x in parts)
    require(len(parts) == leaves.get(kind, 1) and real, f"{site} is of the wrong type")
    finite = kind == "draws" or all(np.all(np.isfinite(x)) for x in parts)
    require(finite, f"{site} holds numbers that are not finite")
    shape = _value_shape(family, kind, parts, grid)
    require(_agrees(shape, expected), f"{site} is of the wrong shape")
    if kind == "variational":
        _check_domain(site, family, parts)
    if kind == "point":
        stats = jax.tree.leaves(family.stats(jnp.asarray(parts[0])))
        require(not any(jnp.isnan(x).any() for x in stats), f"{site} has impossible values")


def _check_domain(site: str, family: Family, parts: list[np.ndarray]) -> None:
    """Let NumPyro validate the natural parameters."""
    structure = jax.tree.structure(family.base)
    try:
        with validation_enabled():
            family.distribution(jax.tree.unflatten(structure, [jnp.asarray(x) for x in parts]))
    except ValueError as error:
        raise Damaged(f"the parameters of {site} belong to no distribution: {error}") from error


def check_shared(model: Model, hyper: Any, shared: Any, data: Any) -> None:
    """Check natural parameters of all global sites, for data of this kind and size."""
    require(isinstance(shared, dict) and shared.keys() == set(model.shared), "it lacks some sites")
    about = {"kind": data.kind, "rows": data.num_rows, "columns": data.num_columns}
    expected = expected_shapes(model, hyper, about)
    for site, natural in shared.items():
        parts = [np.asarray(x) for x in jax.tree.leaves(natural)]
        _check_site(site, model.families[site], "variational", parts, {}, expected[site])


def _check_grid(grid: Arrays, num_names: int) -> None:
    complete = grid.keys() == {"theta", "weights", "log_evidence"}
    require(complete and all(x.dtype.kind == "f" for x in grid.values()), "its grid is incomplete")
    theta, weights = grid["theta"], grid["weights"]
    shapes = weights.ndim == 1 and theta.shape == (len(weights), num_names)
    require(shapes and weights.size and not grid["log_evidence"].shape, "its grid is odd")
    sums = np.all(weights >= 0) and abs(weights.sum() - 1) < 1e-3
    require(np.all(np.isfinite(theta)) and sums, "its grid's weights do not add up")
