"""The folders `NAME.store` that held corpora before .h5ad files did: read only to convert them."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from pp_models.data.formats.opening import fail, parsed
from pp_models.data.formats.readers import read_names

SUFFIX = ".store"
_ROW = np.dtype([("length", "<i4"), ("total", "<f8"), ("log_factorials", "<f8")])


def is_store(path: Path) -> bool:
    return path.is_dir() and (path.suffix == SUFFIX or (path / "manifest.json").is_file())


def refuse(path: Path) -> None:
    """Say how to go on, where a path names such a folder."""
    if is_store(path):
        command = f"pp-models data convert {path} {path.with_suffix('.h5ad')}"
        fail(path, f"stores are .h5ad files now: {command}")


def blocks(path: Path) -> tuple[Iterator[Any], Any, Any]:
    """The rows of a store, shard by shard, and its names."""
    file = path / "manifest.json"
    if not file.is_file():
        fail(path, "not a complete store: write the corpus again")
    with parsed(path, "not a complete store ({}): restore it from a copy"):
        manifest = json.loads(file.read_bytes())
        for entry in manifest["files"]:
            raw = (path / Path(entry["name"]).name).read_bytes()
            if zlib.crc32(raw) != entry["crc32"]:
                raise ValueError(f"{entry['name']} does not match its checksum")
        stem = f"{path / manifest['mark']}."
        files = (Path(f"{stem}{axis}_names") for axis in ("column", "row"))
        columns, rows = (read_names(file) if file.is_file() else None for file in files)
        return _shards(path, manifest), columns, rows


def _shards(path: Path, manifest: dict[str, Any]) -> Iterator[Any]:
    lengths, first = np.fromfile(path / f"{manifest['mark']}.rows", _ROW)["length"], 0
    for number, (end, *kinds) in enumerate(manifest["shards"]):
        stem = path / f"{manifest['mark']}-{number:05d}"
        columns, counts = (
            np.fromfile(f"{stem}.columns", kinds[0]),
            np.fromfile(f"{stem}.counts", kinds[1]),
        )
        indptr = np.concatenate([[0], np.cumsum(lengths[first:end])])
        shape = end - first, manifest["num_columns"]
        yield scipy.sparse.csr_array((counts, columns.astype(np.int32), indptr), shape=shape)
        first = end
