r"""The estimator of a model, which follows scikit-learn's rules.

`fit` runs an engine of `inference.fit` (by default coordinate ascent), `transform` gives posterior
means of the rows' weights, `partial_fit` appends rows to a stream and learns from them. The fitted
posterior is `fit_`, with widths, draws and exports.

X is rows x columns: counts of words, a dense or sparse matrix; ratings of users x items, NaN or
not stored where missing; dense observations; for text and votes, counts as X and votes as y. Counts
may be fractional, as scikit-learn's own LDA allows: each token then has a weight, and $F$ is a
weighted log likelihood. Samplers, `score` and `partial_fit` refuse fractions.

A pickled estimator holds the fit without its data: `transform` works, `partial_fit` and
`fit_.corrected()` do not.
"""

import copy
import dataclasses
import functools
import inspect
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from inference.core.registry import load_engine
from inference.core.topics import parts_of
from inference.estimators import class_name, scores
from inference.io import fits
from inference.run.fit import default_engine, fit
from inference.run.stream import stream
from pp_models.data import rows as rows_
from pp_models.data import types as data_
from pp_models.data.coerce import as_data
from pp_models.errors import InputError
from pp_models.model import Model, number_of_factors
from pp_models.models import load

OWN = {
    "engine": None,
    "max_iter": None,
    "engine_options": None,
    "random_state": 0,
    "verbose": False,
}
FOLLOWING = inspect.signature(stream).parameters["engine"].default  # the engine of a stream


def _can_stream(self: Any) -> bool:
    model = load(self._model_name)
    return not load_engine(FOLLOWING).suits(model) and model.kind == "counts"


class Estimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """The base of all estimators."""

    _model_name = ""
    _fit: Any = None
    _stream: Any = None

    @property
    def _model(self) -> Model:
        return load(self._model_name)

    def __sklearn_tags__(self) -> Any:
        tags, model = super().__sklearn_tags__(), self._model
        kind = model.kind
        tags.input_tags.sparse = kind in ("counts", "ratings")
        tags.input_tags.positive_only = kind == "counts" or not model.proper(model.Hyper())
        tags.input_tags.allow_nan = kind == "ratings"
        tags.transformer_tags.preserves_dtype = []
        return tags

    # Fitting --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> "Estimator":
        """Fit the model to X. y: the votes of a model of text and votes; others ignore it."""
        data = self._data(X, y, reset=True)
        engine = load_engine(self.engine or default_engine(self._model_name))
        if engine.kind == "draws" and not _is_whole(data):
            raise InputError(
                f"Engine {engine.name!r} counts tokens, and X holds fractions: pass whole counts, "
                "or leave engine out."
            )
        options = dict(self.engine_options or {})
        if self.max_iter is not None:
            options[_iterations(engine)] = self.max_iter
        given = self._hyper(), self._key(), options
        made = _fitted(self._model_name, data, engine.name, *given, bool(self.verbose))
        return self._learned(made, None)

    @available_if(_can_stream)
    def partial_fit(self, X: Any, y: Any = None) -> "Estimator":
        """Append rows to those seen so far, all of which are kept, and learn from the new ones.

        After `fit` the stream begins with the rows that were fitted, and learns anew. The engine
        must be one that follows streams; `max_iter` has no meaning here.
        """
        first = not self.__sklearn_is_fitted__()
        data = self._data(X, y, reset=first)
        following = self._stream or self._begin(None if first else self.fit_.data, data, first)
        if not _is_whole(data):
            raise InputError("partial_fit keeps whole counts, and X holds fractions: use fit.")
        following.partial_fit(data.matrix)
        return self._learned(None, following)

    def _begin(self, before: Any, data: Any, first: bool) -> Any:
        """A stream of the rows fitted before."""
        if before is None and not first:
            raise InputError(
                "partial_fit goes on with the rows that were fitted, and this estimator was loaded "
                "without them: use a new one."
            )
        if before is not None and not _is_whole(before):
            raise InputError(
                "partial_fit keeps whole counts, and this estimator was fitted to fractions: use a "
                "new one."
            )
        named = {} if self.engine is None else {"engine": self.engine}
        given = {"hyper": self._hyper(), "key": self._key(), "column_names": data.column_names}
        given |= named | dict(self.engine_options or {})
        started = stream(self._model_name, data.num_columns, **given)
        if before is not None:
            started.append(before.matrix)
        return started

    def _learned(self, made: Any, following: Any) -> "Estimator":
        self._fit, self._stream, self._n_features_out = made, following, self.n_components
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return self._fit is not None or self._stream is not None

    @property
    def fit_(self) -> Any:
        """The `Fit`. Of a stream it is made when it is asked for."""
        if self._fit is None and self._stream is not None:
            self._fit = self._stream.fit()
        if self._fit is None:
            raise AttributeError(f"This {type(self).__name__} is not fitted yet.")
        return self._fit

    @property
    def n_iter_(self) -> int:
        """The number of steps."""
        return len(self.fit_.history["step"])

    def _key(self) -> jax.Array:
        """A JAX key from an int, a RandomState, or None, which differs from call to call."""
        return jax.random.key(int(check_random_state(self.random_state).randint(2**31 - 1)))

    def _hyper(self) -> dict[str, Any]:
        names = self._model.Hyper._fields
        given = {n: getattr(self, n) for n in self.get_params(deep=False) if n in names}
        given = {n: x for n, x in given.items() if x is not None}
        return {number_of_factors(self._model): self.n_components, **given}

    def _data(self, X: Any, y: Any = None, reset: bool = False) -> Any:
        """X, checked by scikit-learn's rules, as the model's kind of data."""
        kind = self._model.kind
        sparse = "csr" if kind in ("counts", "ratings", "text_and_votes") else False
        finite = "allow-nan" if kind == "ratings" else True
        checks: dict[str, Any] = {"accept_sparse": sparse, "ensure_all_finite": finite}
        X = validate_data(self, X, reset=reset, **checks)
        names = getattr(self, "feature_names_in_", None)
        names = None if names is None else tuple(map(str, names))
        if kind == "text_and_votes" and (reset or y is not None):
            if y is None:
                raise ValueError(f"{type(self).__name__} requires y: the votes, rows x members.")
            return data_.text_and_votes(X, y, names)
        if kind in ("counts", "text_and_votes"):  # rows to transform need no votes
            return _counts(X, names)
        if kind == "ratings":
            return dataclasses.replace(as_data(X, kind), column_names=names)
        return data_.dense(X, names)

    # What was fitted ------------------------------------------------------------------------------

    @property
    def components_(self) -> np.ndarray:
        """(n_components, n_features): topics as distributions over the columns, expected rows of a
        mixture's components, or the items' locations.
        """
        check_is_fitted(self)
        if self.fit_.model.ratings is not None:
            return scores.item_means(self.fit_).T
        return np.asarray(parts_of(self.fit_.problem, self.fit_.posterior, None).columns)

    def transform(self, X: Any) -> np.ndarray:
        """(rows, n_components) posterior means of the rows' weights."""
        check_is_fitted(self)
        return np.asarray(self.fit_.transform(self._data(X)))

    def score(self, X: Any, y: Any = None) -> float:
        """How well held-out parts of the rows of X are predicted from their other parts; higher is
        better: `estimators.scores` says by what measure."""
        check_is_fitted(self)
        return scores.score(self.fit_, self._data(X, y))

    def predict_ratings(self, users: Any, items: Any, probability: float = 0.9) -> Any:
        """Mean, sd, lower and upper end of the interval of these users' ratings of these items."""
        check_is_fitted(self)
        from inference.evaluation.ratings import predict_ratings

        return predict_ratings(self.fit_, users, items, probability)

    # Copies share the fit and its data. Pickles hold the file of `Fit.save` without the data -----

    def __deepcopy__(self, memo: dict[int, Any]) -> "Estimator":
        shared = {"_fit": self.fit_ if self.__sklearn_is_fitted__() else None, "_stream": None}
        made = type(self).__new__(type(self))
        own = {name: x for name, x in vars(self).items() if name not in shared}
        made.__dict__ = copy.deepcopy(own, memo) | shared
        return made

    def __getstate__(self) -> dict[str, Any]:
        state = {**super().__getstate__(), "_stream": None}
        if self.__sklearn_is_fitted__():
            with tempfile.TemporaryDirectory() as folder:
                state["_fit"] = self.fit_.save(Path(folder) / "fit.npz").read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if isinstance(stored := state.get("_fit"), bytes):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "fit.npz"
                path.write_bytes(stored)
                state["_fit"] = fits.load(path)
        super().__setstate__(state)


def _fitted(model, data, engine, hyper, key, options, progress) -> Any:
    return fit(model, data, engine, hyper, key, progress=progress, **options)


def _iterations(engine: Any) -> str:
    """The option that `max_iter` sets."""
    return "num_epochs" if "num_epochs" in engine.Options._fields else "num_samples"


def _is_whole(data: Any) -> bool:
    return data.kind != "counts" or bool(np.all(data.matrix.data == np.floor(data.matrix.data)))


def _counts(X: Any, names: Any) -> Any:
    """Counts, or nonnegative weights of words where they are fractions."""
    matrix = scipy.sparse.csr_array(X)
    if np.any(matrix.data < 0):
        raise ValueError("Negative values in data passed to an estimator of counts.")
    if np.all(matrix.data == np.floor(matrix.data)) and matrix.data.any():
        return data_.counts(matrix, names)
    parts = matrix.data.astype(np.float32), matrix.indices.astype(np.int32), matrix.indptr
    weights = scipy.sparse.csr_array(parts, shape=matrix.shape)
    weights.eliminate_zeros()
    return rows_.Data("counts", matrix=weights, column_names=names)


# Making the classes -------------------------------------------------------------------------------


def _signature(model: Model) -> inspect.Signature:
    """n_components, the model's other hyper-parameters, and what all estimators have."""
    factors, Hyper = number_of_factors(model), model.Hyper
    defaults = {"n_components": Hyper._field_defaults[factors]}
    defaults |= {n: Hyper._field_defaults.get(n) for n in Hyper._fields if n != factors} | OWN
    kinds = inspect.Parameter
    first = kinds("self", kinds.POSITIONAL_OR_KEYWORD)
    rest = [
        kinds(
            name,
            kinds.POSITIONAL_OR_KEYWORD if name == "n_components" else kinds.KEYWORD_ONLY,
            default=value,
        )
        for name, value in defaults.items()
    ]
    return inspect.Signature([first, *rest])


@functools.cache
def estimator(model_name: str) -> type[Estimator]:
    """The estimator of a model."""
    model = load(model_name)
    signature = _signature(model)

    def __init__(self: Any, *arguments: Any, **given: Any) -> None:
        bound = signature.bind(self, *arguments, **given)
        bound.apply_defaults()
        for name, value in list(bound.arguments.items())[1:]:
            setattr(self, name, value)

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    about = {
        "__init__": __init__,
        "__doc__": _describe(model),
        "__module__": "inference.estimators",
        "_model_name": model_name,
    }
    return type(class_name(model_name), (Estimator,), about)


def _describe(model: Model) -> str:
    told = " ".join((model.Hyper.__doc__ or "").split())
    factors = number_of_factors(model)
    return f"""{model.title}.

Parameters
----------
n_components : the number of factors ({factors}).
{told}
engine : an engine of `inference.engines()` (default: {default_engine(model.name)}).
max_iter : passes of the engine over the data, of a sampler its draws (default: the engine's).
engine_options : dict of the engine's other options.
random_state : int, RandomState or None.
verbose : whether to show progress.

Attributes
----------
fit_ : the `Fit`, with posterior, history, bound, exports and `corrected()`.
components_ : (n_components, n_features) factors of the columns, at the posterior means.
n_iter_ : number of steps.
"""
