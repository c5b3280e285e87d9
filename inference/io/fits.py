"""`Fit`, the result of a run, and how it is stored: one .npz file with a JSON header. Never pickle.

header            JSON as bytes: format version, model, engine, hyper-parameters, options, seconds,
                  data hash and size
history/NAME      the history's columns
SITE/LEAF         natural parameters (variational), values (point), draws (draws) or the rows'
                  factors at each grid point (mixture). Of a structured posterior, natural
                  parameters of the global sites, and means and widths of the others. A site with
                  too many rows to solve only for this is left out and solved again from the data
                  when asked for
grid/NAME         log hyper-parameters, weights, log evidence and axes of a mixture
sample_stats/NAME of a sampler
more/NAME         widths and draws of a correction by linear response
names/AXIS        names of columns and rows, a JSON list as bytes
data/totals       the sum of each row's entries, of models with topics
"""

import functools
import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.core import objective as obj
from inference.core.blocks import over_draws
from inference.core.completion import has_topics
from inference.core.corrected import Corrected, corrected
from inference.core.posterior import Posterior, Stored
from inference.core.posteriors import KINDS, Variational
from inference.core.provenance import hash_of_names
from inference.core.topics import Parts, declared_topics, parts_of, topics_of_posterior
from inference.core.transform import transform, word_of
from inference.io import archives, exchange, tables
from pp_models import models as discovery
from pp_models.data.coerce import as_data
from pp_models.data.files import write_whole
from pp_models.data.match import Fitted, match
from pp_models.errors import InputError
from pp_models.model import as_arrays, declare, log_joint, value_shapes

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
        bound: float | None = None,
        names: Mapping[str, tuple[str, ...]] | None = None,
        totals: np.ndarray | None = None,
    ) -> None:
        self.problem = problem
        self._bound = bound
        self._names = dict(names or {})
        self._totals = totals
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
    def column_names(self) -> tuple[str, ...] | None:
        """Names of the words, items or columns, also of a fit that was loaded without its data."""
        return self._names.get("columns") if self.data is None else self.data.column_names

    @property
    def row_names(self) -> tuple[str, ...] | None:
        """Names of the documents, users or rows."""
        return self._names.get("rows") if self.data is None else self.data.row_names

    @property
    def row_totals(self) -> np.ndarray | None:
        """The sum of each row's entries: a document's tokens. None if they were not stored."""
        return self._totals if self.data is None else self.data.totals

    @property
    def bound(self) -> float:
        """The lower bound of the log evidence on all rows, computed when first asked for.

        Of a structured posterior it is an estimate by draws, with the standard error
        `posterior.bound_error()`. Of a point estimate or a grid, the objective of the last step,
        which is that of a batch scaled up if the engine works on batches. nan for samplers, and for
        distributions that were loaded without data and stored before the bound was asked for.
        `history["bound"]` has the bound of each step.
        """
        if self._bound is None:
            self._bound = self._last_bound()
        return self._bound

    @property
    def known_bound(self) -> float | None:
        """The bound if it has been computed and is finite."""
        return self._bound if self._bound is not None and math.isfinite(self._bound) else None

    def _last_bound(self) -> float:
        if self.posterior.has_bound:
            return float("nan") if self.data is None else self.posterior.bound()
        values = np.asarray(self.history.get("bound", ()), float)
        finite = values[np.isfinite(values)]
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
        batch, problem = self._known_data().pack(), self.problem
        stacked = {site: draws[site] for site in self.model.families}

        def joints(block: Any) -> jax.Array:
            return _log_joints(self.model, problem.hyper, block, batch)

        return np.asarray(over_draws(joints, stacked), np.float64)

    def transform(self, new: Any, sd: bool = False) -> Any:
        """Posterior means of the weights of new rows: a row each, and a column for each topic.

        Words and items are matched by their names; a warning counts what was not fitted. The
        columns are topics, of ratings the factors of users, of mixtures the probabilities of
        components. The result is a DataFrame where pandas is installed, else an array. The fit may
        have been loaded without its data. `inference.core.transform` says what the means are.

        new: data of the fit's kind, or what can be made into it (`pp_models.data.coerce`): counts,
             texts, tables, ratings of known items, dense rows
        sd:  return (means, standard deviations); those of a row given the global sites
        """
        known = self.column_names
        matched = match(new, Fitted(*self._shape, known, self._num_members))
        if matched.note:
            warnings.warn(f"transform: {matched.note}", stacklevel=2)
        data = matched.data
        found = transform(self.problem, self.posterior, self.options, data, sd)
        columns = tables.numbered(word_of(self.model), found[0].shape[1])
        means, sds = (x if x is None else tables.frame(x, data.row_names, columns) for x in found)
        return (means, sds) if sd else means

    @property
    def _shape(self) -> tuple[str, int]:
        return self.model.kind, self.provenance["columns"]

    @property
    def _num_members(self) -> int:
        votes = self.model.votes
        return 0 if votes is None else len(self.posterior.mean(votes.members))

    def parts(self) -> Parts:
        """The topics or, of a mixture, the components, with their shares of tokens or rows."""
        return parts_of(self.problem, self.posterior, self.row_totals)

    def topics(
        self,
        num_words: int = 10,
        rank: str = "probability",
        relevance: float = 0.6,
        as_: str | None = None,
    ) -> Any:
        """A table of the topics or components, the largest first: topic, share, words.

        A DataFrame where pandas is installed, else a list of plain rows. Shares are nan if the fit
        was loaded without data and the rows were too many to be stored.

        rank:      "probability", "relevance" or "lift", which put words that only this topic uses
                   further to the front
        relevance: the weight of the probability against the lift
        as_:       "octis" or "topicwizard": what these tools take, in place of a table
        """
        if as_ is not None:
            return exchange.layout_of(as_)(self, num_words)
        parts = self.parts()
        rows = tables.topic_rows(parts, self.column_names, num_words, rank, relevance)
        return tables.topic_table(rows, parts.word)

    def documents(self) -> Any:
        """The documents' proportions of the topics (rows sum to one), as a DataFrame or an array.

        Of a mixture, the rows' probabilities of the components, which need the data.
        """
        if self.model.local:
            declared_topics(self.model)
            values = topics_of_posterior(self.problem, self.posterior, self._known_totals())
            found = values.proportions
        else:
            found, _ = transform(
                self.problem, self.posterior, self.options, self._known_data(), False
            )
        columns = tables.numbered(word_of(self.model), found.shape[1])
        return tables.frame(found, self.row_names, columns)

    def _known_data(self) -> Any:
        if self.data is None:
            raise InputError("This fit was loaded without data: pass data= to pp_models.load_fit.")
        return self.data

    def _known_totals(self) -> np.ndarray:
        return self._known_data().totals if self.row_totals is None else self.row_totals

    def corrected(self, settled: float = 0.01) -> Any:
        """The posterior of a variational fit with the widths of linear response.

        It is moved to the maximum of its bound first, until no mean is further than `settled` of
        its sd from that at the maximum. It answers `mean`, `sd` and `sample` as
        others do, and `interval`, `covariance` and `sensitivity`; `notes` says why its widths may
        be wrong. It needs the data, and memory for a few copies of the parameters in double
        precision.
        """
        if not isinstance(self.posterior, Variational):
            raise InputError(
                f"Linear response corrects variational fits, and {self.engine} gives a posterior "
                f"of kind {self.posterior.kind!r}: fit by a variational engine."
            )
        return corrected(self.posterior, settled)

    def to_arviz(
        self,
        num_draws: int | None = None,
        *,
        by_row: bool = False,
        pivot: Mapping[str, Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Any:
        """ArviZ InferenceData (DataTree with ArviZ 1).

        Groups: posterior, sample_stats, observed_data, log_likelihood, posterior_predictive. Draws
        have common labels, signs and axes.

        num_draws:  of a distribution. The default is 1000, or fewer where the result would hold
                    more than 20 million numbers; then log likelihoods, and at last sites with a row
                    for each row of the data, are left out. The posterior's attribute `note` says so
        by_row:     log likelihoods of whole rows, in place of entries
        pivot:      site -> value, to whose labels the draws are aligned
        attributes: of the posterior, beside model, engine, hyper-parameters and versions
        """
        from inference.io import arviz  # ArviZ takes seconds to import

        return arviz.convert(self, num_draws, by_row, pivot, attributes)

    def save(self, path: str | Path) -> Path:
        """Write everything but the data to one file (NumPy arrays and JSON, no pickle)."""
        return save(self, path)

    def __repr__(self) -> str:
        known = self.known_bound  # computing it may take a pass
        bound = "" if known is None else f", bound {known:.6g}"
        steps = len(self.history["step"])
        return (
            f"<Fit {self.model.name} by {self.engine}: {steps} steps, {self.seconds:.1f} s{bound}>"
        )


@functools.partial(jax.jit, static_argnames=("model",))
def _log_joints(model, hyper, draws, batch):
    return jax.lax.map(lambda x: log_joint(model, hyper, x, batch), draws)


# Writing --------------------------------------------------------------------------------------


def stored_sites(fit: Fit) -> list[str]:
    """All sites, or only those at hand where the other rows are too many to solve."""
    posterior = fit.posterior
    missing = set(posterior.sites) - set(posterior.at_hand)
    if missing and fit.data is not None:
        shapes = value_shapes(fit.model, fit.hyper, fit.data)
        if sum(math.prod(shapes[site]) for site in missing) <= MOST_SOLVED:
            return posterior.sites
    return posterior.at_hand


def save(fit: Fit, path: str | Path) -> Path:
    """Write a fit; the file appears whole or not at all."""
    path = Path(path)
    if path.suffix != ".npz":
        path = path.with_name(path.name + ".npz")
    stored = fit.posterior.stored(stored_sites(fit), fit.options)
    arrays: dict[str, Any] = {
        f"{site}/{i}": x for site, leaves in stored.leaves.items() for i, x in enumerate(leaves)
    }
    groups = {"grid": stored.grid, "history": fit.history, "sample_stats": stored.sample_stats}
    groups["more"] = dict(stored.more)
    groups["names"] = {
        axis: np.frombuffer(json.dumps(names).encode(), np.uint8)
        for axis, names in (("columns", fit.column_names), ("rows", fit.row_names))
        if names is not None
    }
    if has_topics(fit.model) and fit.row_totals is not None:
        groups["data"] = {"totals": fit.row_totals}
    arrays |= {f"{name}/{x}": y for name, columns in groups.items() for x, y in columns.items()}
    hyper = fit.hyper._asdict().items()
    header = {
        "format": FORMAT,
        "model": fit.model.name,
        "engine": fit.engine,
        "kind": fit.posterior.kind,
        "hyper": {name: np.asarray(x).tolist() if hasattr(x, "shape") else x for name, x in hyper},
        "options": fit.options,
        "seconds": fit.seconds,
        "bound": fit.known_bound,
        "data": fit.provenance,
    }
    return write_whole(path, lambda file: archives.write(file, header, arrays))


# Reading --------------------------------------------------------------------------------------


class _Shape(NamedTuple):
    """The size of the data of a fit that is loaded without them."""

    kind: str
    num_rows: int
    num_columns: int


def load(path: str | Path, data: Any = None) -> Fit:
    """Read a fit. With `data`, which must be those fitted, everything works as before saving.

    data: in any form that `fit` takes; texts are counted by the fitted words
    """
    path = Path(path)
    if not path.exists() and path.with_name(path.name + ".npz").exists():
        path = path.with_name(path.name + ".npz")
    header, arrays = archives.read(path, "fit", FORMAT)
    with archives.usable(path, "fit"):
        about = header["data"]
        model = discovery.load(header["model"])
        names = _names(archives.group(arrays, "names"), about)
        data = None if data is None else as_data(data, about["kind"], names.get("columns"))
        if data is not None and data.hash != about["hash"]:
            raise InputError(
                f"{path} was fitted to other data than these (their hashes differ): pass the "
                "original data or none."
            )
        archives.check_sizes(header["hyper"] | {"columns": about["columns"]}, arrays)
        shape = _Shape(about["kind"], about["rows"], about["columns"])
        known: Any = shape if data is None else data
        model, hyper = declare(model, header["hyper"], known)
        problem = obj.Problem(model, as_arrays(hyper), data, tuple(jax.local_devices()))
        leaves = {site: list(archives.group(arrays, site).values()) for site in model.families}
        grid, stats = (archives.group(arrays, name) for name in ("grid", "sample_stats"))
        more = archives.group(arrays, "more")
        totals = archives.group(arrays, "data").get("totals")
        matches = totals is None or totals.shape == (about["rows"],)
        archives.require(matches, "it does not hold a total for each of its rows")
        kinds: dict[str, type[Posterior]] = {**KINDS, Corrected.kind: Corrected}
        posterior = kinds[header["kind"]].restored(
            problem, Stored(leaves, grid, stats, header["options"], more)
        )
        history, seconds = archives.group(arrays, "history"), float(header["seconds"])
        bound = None if header.get("bound") is None else float(header["bound"])
        told = header["engine"], header["options"], posterior, history, seconds, about, None, bound
        return Fit(problem, *told, names, totals)


def _names(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> dict[str, Any]:
    names = {axis: tuple(json.loads(x.tobytes())) for axis, x in arrays.items()}
    for axis, found in names.items():
        archives.require(len(found) == about[axis], f"it does not name each of its {axis}")
    return names
