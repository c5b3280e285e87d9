"""Files of reference posteriors: NumPy archives without pickle, for any tool that reads them.

Arrays: header (JSON as bytes), data/..., draws/SITE (chains, draws, ...) in single precision,
log_joint, pivot/SITE, first/NAME and second/NAME (one number per quantity of header["labels"], of
the samplers' whole runs), invariant (whether no relabelling changes a quantity).
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inference.calibration.reference import Reference, check, find_recipe
from inference.calibration.runs import SUMMARY
from inference.io import archives
from pp_models import models as discovery
from pp_models.data import types as data_
from pp_models.data.files import write_whole
from pp_models.data.types import Data
from pp_models.errors import InputError, unknown
from pp_models.model import value_shapes

FORMAT = 1
MOST_BYTES = 500_000  # of a file
WHAT = "reference posterior"


def save(reference: Reference, path: str | Path) -> Path:
    """Write a reference; the file appears whole or not at all."""
    model = discovery.load(reference.model)
    header = {
        "format": FORMAT,
        "what": WHAT,
        "model": reference.model,
        "title": model.title,
        "equations": (sys.modules[model.log_local.__module__].__doc__ or "").strip(),
        "kind": reference.data.kind,
        "hyper": reference.hyper,
        "labels": reference.labels,
        "recipe": reference.recipe,
        "criteria": [one._asdict() for one in check(reference)],
    }
    arrays: dict[str, Any] = {"log_joint": reference.log_joint, "invariant": reference.invariant}
    for group, values in (
        ("data", _data_arrays(reference.data)),
        ("draws", reference.draws),
        ("pivot", reference.pivot),
        ("first", {name: np.float32(reference.first[name]) for name in SUMMARY}),
        ("second", {name: np.float32(reference.second[name]) for name in SUMMARY}),
    ):
        arrays |= {f"{group}/{name}": x for name, x in values.items()}
    return write_whole(Path(path), lambda file: archives.write(file, header, arrays))


def load(path: str | Path) -> Reference:
    """Read a reference."""
    path = Path(path)
    header, arrays = archives.read(path, WHAT, FORMAT)
    with archives.usable(path, WHAT):
        archives.require(header.get("what") == WHAT, f"its header does not name a {WHAT}")
        archives.check_sizes(header["hyper"], arrays)
        names = ("data", "draws", "pivot", "first", "second")
        groups: dict[str, Any] = {name: archives.group(arrays, name) for name in names}
        data = _make_data(header["kind"], groups.pop("data"))
        if data.hash != header["recipe"]["data_hash"]:
            raise InputError(
                f"{path} holds other data than its recipe says (their hashes differ): the file is "
                "corrupt; make it again."
            )
        groups |= {name: header[name] for name in ("model", "hyper", "labels", "recipe")}
        groups |= {name: arrays[name] for name in ("log_joint", "invariant")}
        found = Reference(data=data, **groups)
        archives.require(_fits_together(found), "its parts do not fit together")
        return found


def _fits_together(found: Reference) -> bool:
    problem, size = found.problem, (len(found.labels),)
    shapes = value_shapes(problem.model, problem.hyper, found.data)
    draws = {site: (*found.log_joint.shape, *shape) for site, shape in shapes.items()}
    summaries = [x[name] for x in (found.first, found.second) for name in SUMMARY]
    return (
        {site: x.shape for site, x in found.draws.items()} == draws
        and {site: x.shape for site, x in found.pivot.items()} == shapes
        and all(x.shape == size for x in (found.invariant, *summaries))
    )


def stored(model_name: str, folder: str | Path) -> Reference:
    """The reference of a model in a folder of them."""
    path = Path(folder) / f"{model_name}.npz"
    if not path.is_file():
        find_recipe(model_name)
        raise unknown(WHAT, model_name, [file.stem for file in Path(folder).glob("*.npz")])
    return load(path)


def _data_arrays(data: Data) -> dict[str, np.ndarray]:
    if data.kind == "ratings":
        users, items = data.matrix.nonzero()
        shape = np.array(data.matrix.shape)
        return {"users": users, "items": items, "values": data.matrix.data, "shape": shape}
    if data.kind == "dense":
        return {"values": np.asarray(data.values)}
    out = {"counts": data.matrix.toarray().astype(np.int32)}
    if data.kind == "text_and_votes":  # 1, 0, and nan where there was no vote
        out["votes"] = np.full(data.votes.shape, np.nan, np.float32)
        rows = np.repeat(np.arange(data.votes.shape[0]), np.diff(data.votes.indptr))
        out["votes"][rows, data.votes.indices] = data.votes.data
    return out


def _make_data(kind: str, arrays: Mapping[str, np.ndarray]) -> Data:
    if kind == "ratings":
        rows, columns = (int(x) for x in arrays["shape"])
        most = 10_000_000 + 10 * len(arrays["values"])
        archives.require(max(rows, columns) <= most, "its data have too many rows or columns")
        triples = arrays["users"], arrays["items"], arrays["values"]
        return data_.ratings(*triples, shape=(rows, columns))
    names = {"dense": ["values"], "counts": ["counts"], "text_and_votes": ["counts", "votes"]}
    return getattr(data_, kind)(*(arrays[name] for name in names[kind]))
