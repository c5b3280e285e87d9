"""Data sets by name or path.

load("synthetic", "lda")    draws from the model's own prior
load("reuters")             a data set in a package, or in the folder named in PP_MODELS_DATA: see `packaged`
load("corpus.ldac")         a file: see `readers`, `tables` and `text`
load("wiki.h5ad")           a corpus on disk, which is read a batch at a time: see `corpus`
"""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pp_models import discovery
from pp_models.data import corpus, packaged, text
from pp_models.data.formats import old_store, readers
from pp_models.data.types import Data, counts, ratings
from pp_models.errors import InputError
from pp_models.model import Model, check_count, check_positive, declare, make_hyper, simulate

ATTEMPTS = 20  # draws of an empty corpus before giving up


def load(
    name_or_path: str | os.PathLike[str],
    model: Model | str | None = None,
    key: jax.Array | None = None,
) -> Data:
    """A data set by name, or what a path holds: the kind of data that the model explains, or counts. A file named like a data set is ./name.

    >>> data = load("synthetic", "bernoulli_mixture")
    >>> data.kind
    'dense'
    """
    name = os.fspath(name_or_path)
    model = discovery.load(model) if isinstance(model, str) else model
    if name == "synthetic":
        if model is None:
            raise InputError(
                "Synthetic data are drawn from a model: say which one, as in load('synthetic', 'lda')."
            )
        return synthetic(model, jax.random.key(0) if key is None else key)[1]
    if is_path(name):
        return packaged.read(name, None if model is None else model.kind)
    return packaged.load(name, None if model is None else model.kind)


def is_path(name: str) -> bool:
    """Whether a name is meant as a path: it holds a separator, ends like a file of data, or is there and no data set is called so."""
    separators = [mark for mark in (os.sep, os.altsep) if mark]
    suffixes = (*readers.KNOWN_SUFFIXES, corpus.SUFFIX, old_store.SUFFIX, text.SUFFIX)
    if any(mark in name for mark in separators) or name.lower().removesuffix(".gz").endswith(
        suffixes
    ):
        return True
    if name in packaged.PACKAGED or name in packaged.BENCHMARKS:
        return False
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):  # too long, or with a null byte: no file's name
        return False


def synthetic(
    model: Model,
    key: jax.Array,
    num_rows: int = 100,
    num_columns: int = 25,
    hyper: Any = None,
    row_length: float = 60.0,
) -> tuple[Any, Data, dict[str, np.ndarray]]:
    """Hyper-parameters, data drawn from the model's own prior, and the values of the latent sites that made them.

    The hyper-parameters are those of the model's example where none are given. `row_length` is the mean number of tokens of a row, for
    models that take the rows' totals as given. Of ratings, half are observed. Models of other data, and models without a prior to draw from, answer
    with their `example`, whose latent values are not known.
    """
    check_count("num_rows", num_rows)
    check_count("num_columns", num_columns)
    check_positive("row_length", row_length)
    own, example = model.example(key)
    hyper = {**own._asdict(), **_as_dict(hyper)}
    if model.kind not in ("counts", "ratings") or not model.proper(own):
        return make_hyper(model, hyper, example), example, {}

    lengths, draw = jax.random.split(key)
    template = (
        _template(lengths, num_rows, num_columns, row_length)
        if model.kind == "counts"
        else _some_ratings(lengths, num_rows, num_columns)
    )
    model, hyper = declare(model, hyper, template)
    if not model.proper(hyper):
        raise InputError(
            f"The prior of {model.name} with these hyper-parameters cannot be drawn from: choose a proper one or give data."
        )
    batch = template.pack()
    for attempt in range(ATTEMPTS):
        sites = {
            site: np.asarray(value)
            for site, value in simulate(
                model, hyper, batch, jax.random.fold_in(draw, attempt)
            ).items()
        }
        drawn = sites.pop(model.observed)
        if model.kind == "counts" and not np.issubdtype(drawn.dtype, np.integer):
            drawn = np.maximum(np.round(drawn), 0)  # of models to which counts are real numbers
        if model.kind == "ratings":
            users, items = template.matrix.nonzero()
            return hyper, ratings(users, items, drawn[users, items], shape=drawn.shape), sites
        if drawn.any():
            return hyper, counts(drawn), sites
    raise InputError(
        f"{ATTEMPTS} draws from the prior of {model.name} were all empty: choose hyper-parameters that give more counts, or more rows."
    )


def _as_dict(hyper: Any) -> dict[str, Any]:
    return hyper._asdict() if hasattr(hyper, "_asdict") else dict(hyper or {})


def _some_ratings(key: jax.Array, num_rows: int, num_columns: int) -> Data:
    """Half of all pairs, rated alike: the draw replaces the values."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    users, items = np.nonzero(rng.random((num_rows, num_columns)) < 0.5)
    return ratings(users, items, np.ones(len(users)), shape=(num_rows, num_columns))


def _template(key: jax.Array, num_rows: int, num_columns: int, row_length: float) -> Data:
    """Rows with the totals that the draws will have. Where the tokens are does not matter: the draw replaces them."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    matrix = np.zeros((num_rows, num_columns))
    matrix[:, 0] = np.maximum(rng.poisson(row_length, num_rows), 1)
    return counts(matrix)
