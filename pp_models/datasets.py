"""Data sets by name or path, and data drawn from a model.

load("synthetic", "lda")    draws from the model's own prior
load("reuters")             a data set in a package, or in $PP_MODELS_DATA: see `packaged`
load("speeches.csv", text_column="speech")      texts in a column of a table: see `text`
load("corpus.ldac")         a file: see `readers` and `text`
load("wiki.h5ad")           a corpus on disk, which is read a batch at a time: see `corpus`
"""

import os
from typing import Any

import jax
import numpy as np

from pp_models import models as discovery
from pp_models.data import packaged
from pp_models.data.types import Data, counts, ratings
from pp_models.errors import InputError
from pp_models.model import Model, check_count, check_positive, declare, make_hyper, simulate

ATTEMPTS = 20  # draws of an empty corpus before giving up


def load(
    name_or_path: str | os.PathLike[str],
    model: Model | str | None = None,
    key: jax.Array | None = None,
    *,
    kind: str | None = None,
    **options: Any,
) -> Data:
    """A data set by name, or the data at a path. A file named like a data set is ./name.

    model:   its kind of data is loaded; by default, counts
    kind:    of data, in place of a model: counts, ratings, dense or text_and_votes
    options: of raw text, how words are counted (`text.Options`); of a csv, tsv, Parquet or Arrow
             table, text_column and id_column: which texts are counted, and what names the rows

    >>> data = load("synthetic", "bernoulli_mixture")
    >>> data.kind
    'dense'
    """
    name = os.fspath(name_or_path)
    model = discovery.load(model) if isinstance(model, str) else model
    kind = kind if model is None else model.kind
    if name == "synthetic" and model is not None:
        return synthetic(model, jax.random.key(0) if key is None else key)[1]
    read = packaged.read if packaged.is_path(name) else packaged.load
    return read(name, kind, **options)


def synthetic(
    model: Model,
    key: jax.Array,
    num_rows: int = 100,
    num_columns: int = 25,
    hyper: Any = None,
    row_length: float = 60.0,
) -> tuple[Any, Data, dict[str, np.ndarray]]:
    """Hyper-parameters, data drawn from the model's prior, and the latent values behind them.

    Hyper-parameters default to those of the model's example. Models of dense data or votes, and
    models with an improper prior, return their `example`, whose latent values are unknown. Models
    that treat counts as real numbers (Gaussian noise) draw real numbers: these are rounded to whole
    ones, and negative ones become zero, so that the data are not exactly draws from the prior.

    row_length: mean number of tokens of a row, for models that condition on the rows' totals
    """
    check_count("num_rows", num_rows)
    check_count("num_columns", num_columns)
    check_positive("row_length", row_length)
    own, example = model.example(key)
    given = hyper._asdict() if hasattr(hyper, "_asdict") else dict(hyper or {})
    hyper = {**own._asdict(), **given}
    if model.kind not in ("counts", "ratings") or not model.proper(own):
        return make_hyper(model, hyper, example), example, {}

    lengths, draw = jax.random.split(key)
    template = _template(model.kind, lengths, num_rows, num_columns, row_length)
    model, hyper = declare(model, hyper, template)
    if not model.proper(hyper):
        told = f"The prior of {model.name} with these hyper-parameters cannot be drawn from"
        raise InputError(f"{told}: choose a proper one or give data.")
    batch = template.pack()
    for attempt in range(ATTEMPTS):
        drawn_sites = simulate(model, hyper, batch, jax.random.fold_in(draw, attempt))
        sites = {site: np.asarray(value) for site, value in drawn_sites.items()}
        drawn = sites.pop(model.observed)
        if model.kind == "ratings":
            users, items = template.matrix.nonzero()
            return hyper, ratings(users, items, drawn[users, items], shape=drawn.shape), sites
        if not np.issubdtype(drawn.dtype, np.integer):
            drawn = np.maximum(np.round(drawn), 0)  # models that treat counts as real numbers
        if drawn.any():
            return hyper, counts(drawn), sites
    told = f"{ATTEMPTS} draws from the prior of {model.name} were all empty"
    raise InputError(f"{told}: choose hyper-parameters that give more counts, or more rows.")


def _template(kind: str, key: jax.Array, num_rows: int, num_columns: int, length: float) -> Data:
    """Data of the shape to draw: rows with their totals, or half of all pairs rated."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    if kind == "ratings":
        users, items = np.nonzero(rng.random((num_rows, num_columns)) < 0.5)
        return ratings(users, items, np.ones(len(users)), shape=(num_rows, num_columns))
    matrix = np.zeros((num_rows, num_columns))
    matrix[:, 0] = np.maximum(rng.poisson(length, num_rows), 1)
    return counts(matrix)
