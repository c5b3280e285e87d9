"""Simulation-based calibration: ranks of true values among draws of the posterior.

Draw values from the prior, data given the values, and a posterior given the data. The rank of a
true value among independent draws of an exact posterior is uniform (Talts et al. 2018). Ranked are
functionals that no relabelling or rotation of factors changes: some entries of the expected data
`model.predict` and the root mean square of all, the log joint density, and the root mean square of
every site. Constant functionals are left out. The ranks are read in three ways:

| | of | question |
|---|---|---|
| SBC | samplers | Are ranks uniform, by the envelope of their ECDF and by chi-square? |
| coverage | approximations | How often do central intervals hold the true value? |
| VSBC (Yao et al. 2018) | approximations | Is p = Q(x < true value) symmetric, or q biased? |

All data sets have one shape, so that programs are compiled once:

    python -m inference.calibration --models lda,pmf --engines gibbs --datasets 200 --out tables.md
"""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.stats
from tqdm import tqdm

from inference.calibration.recipes import COLUMNS, PRIORS
from inference.core.registry import corrects, engines, load_compared, load_engine
from inference.io import arviz
from inference.run.fit import fit
from pp_models import models as discovery
from pp_models.data.types import Data
from pp_models.errors import Diverged, InputError
from pp_models.model import Model, as_arrays, check_count, declare, log_joint, simulate

# data, hyper-parameters, key -> draws (n, ...) of every site
Draw = Callable[[Data, Any, jax.Array], Mapping[str, Any]]

ENTRIES = 8  # of the expected data
BINS = 10  # of the chi-square test
SIMULATIONS = 4000  # of uniform ranks, for the envelope
CHAIN_DRAWS, OTHER_DRAWS = 49, 199  # that true values are ranked among
ROW_LENGTH = 30  # tokens of a document, for models that take them as given


class Calibration(NamedTuple):
    """Results of `calibrate`. Arrays have one number per functional unless said otherwise.

    is_chain:      whether the draws are those of a Markov chain
    names, groups: of the functionals; groups are those of `tables.GROUPS`
    ranks, scores: (data sets, functionals) draws below the true value, of `num_draws`, and
                   (true value - posterior mean) / posterior sd
    coverage50, coverage90: share of data sets whose central interval holds the true value
    widen:         factor by which 90 % intervals, mean +- 1.645 sd, hold 90 %
    uniform, chi_square: p-values of uniform ranks, by the envelope and by chi-square
    symmetric:     p-values of VSBC
    shift:         mean p minus 1/2, positive where q lies too low
    effective:     median effective sample size of the ranked draws
    failed:        data sets on which the engine diverged; they are left out
    """

    model: str
    engine: str
    is_chain: bool
    num_rows: int
    num_columns: int
    num_draws: int
    names: tuple[str, ...]
    groups: tuple[str, ...]
    ranks: np.ndarray
    scores: np.ndarray
    coverage50: np.ndarray
    coverage90: np.ndarray
    widen: np.ndarray
    uniform: np.ndarray
    chi_square: np.ndarray
    symmetric: np.ndarray
    shift: np.ndarray
    effective: np.ndarray
    failed: int
    seconds: float

    @property
    def p_value(self) -> float:
        """The smallest p-value of the envelope, times the number of functionals (Bonferroni)."""
        return float(min(1.0, len(self.uniform) * self.uniform.min()))


def calibrate(
    model_name: str,
    engine: str,
    num_datasets: int = 100,
    key: jax.Array | None = None,
    *,
    num_rows: int = 20,
    num_columns: int | None = None,
    hyper: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    num_draws: int = 0,
    draw: Draw | None = None,
    progress: bool | None = None,
) -> Calibration:
    """Fit data sets drawn from the prior by an engine, and rank the true values.

    engine:    its name, with `+lr` for its fits with the widths of linear response
    num_rows, num_columns: of every data set (default: 20 x 10, or as the model needs)
    hyper:     of the prior; the rest are those of `PRIORS` and of the model's example
    options:   of the engine; the rest are its `calibrated`
    num_draws: of each posterior (0: 49 of chains, 199 of others)
    draw:      replaces the engine, to see the figures of a broken one
    progress:  True or False to force the progress bar
    """
    is_chain = engine in engines() and load_engine(engine).kind == "draws"
    num_draws = num_draws or (CHAIN_DRAWS if is_chain else OTHER_DRAWS)
    for name, number in (("num_datasets", num_datasets), ("num_rows", num_rows)):
        check_count(name, number)
    check_count("num_draws", num_draws)
    prior = make_prior(model_name, num_rows, num_columns, hyper)
    draw = draw or _engine_draw(prior.model, engine, options or {}, num_draws)
    key = jax.random.key(0) if key is None else key
    begin, ranks, scores, sizes = time.perf_counter(), [], [], []
    title, hidden = f"{model_name} by {engine}", None if progress is None else not progress
    for i in tqdm(range(num_datasets), title, disable=hidden, leave=False):
        data_key, fit_key = jax.random.split(jax.random.fold_in(key, i))
        data, truth = prior.simulate(data_key)
        try:
            found = prior.functionals(draw(data, prior.hyper, fit_key), data)
        except Diverged:
            continue
        true = prior.functionals({site: np.asarray(x)[None] for site, x in truth.items()}, data)[0]
        ranks.append((found < true).sum(0))
        scores.append((true - found.mean(0)) / np.maximum(found.std(0), 1e-30))
        sizes.append(effective_sizes(found) if is_chain else np.full(len(true), len(found)))
    if not ranks:
        raise InputError(
            f"{engine} failed on all {num_datasets} data sets drawn from the prior of "
            f"{model_name}: choose other hyper-parameters."
        )
    size = num_rows, prior.template.num_columns, len(found)
    return Calibration(
        *(model_name, engine, is_chain, *size, prior.names, prior.groups),
        *(np.array(ranks), np.array(scores)),
        **read(np.array(ranks), np.array(scores), len(found), key),
        effective=np.median(sizes, axis=0),
        failed=num_datasets - len(ranks),
        seconds=time.perf_counter() - begin,
    )


def _engine_draw(model: Model, engine: str, options: Mapping[str, Any], num_draws: int) -> Draw:
    if load_compared(engine).kind == "point":
        raise InputError(
            f"Engine {engine!r} finds a point, which has no intervals to calibrate: use one with a "
            "posterior."
        )
    every = {**load_engine(corrects(engine) or engine).calibrated, **options}
    return functools.partial(draw_by, model, engine, every, num_draws)


def draw_by(
    model: Model,
    engine: str,
    options: Mapping[str, Any],
    num_draws: int,
    data: Data,
    hyper: Any,
    key: jax.Array,
) -> Mapping[str, Any]:
    """Draws of an engine's posterior or of its correction; those of a chain evenly spaced."""
    fit_key, sample_key = jax.random.split(key)
    one, own = jax.local_devices()[:1], corrects(engine) or engine
    found = fit(model.name, data, own, hyper, fit_key, progress=False, devices=one, **options)
    posterior = found.corrected() if corrects(engine) else found.posterior
    chains = posterior.chains(sample_key, num_draws)
    return {site: np.asarray(x).reshape(-1, *x.shape[2:]) for site, x in chains.items()}


def applies(model_name: str, engine: str) -> bool:
    """Whether an engine, or its correction, has a posterior of this model to calibrate."""
    model, chosen = discovery.load(model_name), load_compared(engine)
    proper = model.proper(model.example(jax.random.key(0))[0])
    return proper and chosen.kind != "point" and not chosen.suits(model)


# Data from the prior ------------------------------------------------------------------------------


class OneShape(Data):
    """Data in which every cell of a template is an entry: all batches have one layout."""

    @property
    def _largest_total(self) -> int:
        return ROW_LENGTH


class Prior(NamedTuple):
    """A model with fixed hyper-parameters, from which data sets of one shape are drawn.

    names, groups: of the functionals
    varying:       places of those that are not constant
    """

    model: Model
    hyper: Any
    template: Data
    totals: np.ndarray
    names: tuple[str, ...]
    groups: tuple[str, ...]
    varying: np.ndarray

    def simulate(self, key: jax.Array) -> tuple[Data, dict[str, Any]]:
        """Data, and the values of the latent sites behind them."""
        batch = self.template.pack().replace(totals=jnp.asarray(self.totals, float))
        drawn = _simulate(self.model, as_arrays(self.hyper), key, batch)
        truth = {site: drawn.pop(site) for site in self.model.families}
        return holding(self.template, drawn, self.model.observed), truth

    def functionals(self, draws: Mapping[str, Any], data: Data) -> np.ndarray:
        """(n, functionals) of draws (n, ...)."""
        stacked = {site: jnp.asarray(draws[site], float) for site in self.model.families}
        found = _functionals(self.model, as_arrays(self.hyper), stacked, data.pack())
        return np.asarray(found, np.float64)[:, self.varying]


@functools.partial(jax.jit, static_argnames=("model",))
def _simulate(model, hyper, key, batch):
    return simulate(model, hyper, batch, key)


@functools.partial(jax.jit, static_argnames=("model",))
def _functionals(model, hyper, draws, batch):

    def one(x):
        rates = model.predict(hyper, x).ravel()
        sites = [jnp.sqrt(jnp.mean(x[site] ** 2)) for site in model.families]
        size, density = jnp.sqrt(jnp.mean(rates**2)), log_joint(model, hyper, x, batch)
        return jnp.concatenate([rates[_entries(rates.size)], jnp.stack([size, density, *sites])])

    return jax.lax.map(one, draws)


def _entries(size: int) -> np.ndarray:
    return np.unique(np.linspace(0, size - 1, min(ENTRIES, size)).astype(int))


def make_prior(
    model_name: str,
    num_rows: int = 20,
    num_columns: int | None = None,
    hyper: Mapping[str, Any] | None = None,
) -> Prior:
    """The model's prior over data sets of this size."""
    model = discovery.load(model_name)
    num_columns = COLUMNS.get(model_name, 10) if num_columns is None else num_columns
    check_count("num_columns", num_columns)
    template = make_template(model.kind, num_rows, num_columns)
    own = model.example(jax.random.key(0))[0]._asdict()
    stated = {**own, **PRIORS.get(model_name, {}), **(hyper or {})}
    model, resolved = declare(model, stated, template)
    if not model.proper(resolved):
        raise InputError(
            f"The prior of {model_name} with these hyper-parameters cannot be drawn from: choose a "
            "proper one."
        )
    has_tokens = model.kind in ("counts", "text_and_votes")
    totals = np.full(num_rows, float(ROW_LENGTH if has_tokens else 0))
    draw = functools.partial(simulate, model, resolved, template.pack())
    shapes = jax.eval_shape(draw, jax.random.key(0))
    sites = {site: shapes[site] for site in model.families}
    rates = jax.eval_shape(lambda x: model.predict(resolved, x), sites)
    places = _entries(int(np.prod(rates.shape)))
    entries = [f"expected {divmod(int(i), rates.shape[-1])}" for i in places]
    kinds = ["hyper-parameters" if x.size == 1 else "sites" for x in sites.values()]
    names = (*entries, "expected, root mean square", "log joint", *sites)
    groups = (*["expected data"] * (len(entries) + 1), "log joint", *kinds)
    every = Prior(model, resolved, template, totals, names, groups, np.arange(len(names)))
    return _without_constants(every)


def _without_constants(prior: Prior) -> Prior:
    """Leave functionals out that are equal for several draws: a rank among ties is no rank."""
    drawn = [prior.simulate(jax.random.key(seed)) for seed in range(4)]
    truths = {site: np.stack([truth[site] for _, truth in drawn]) for site in prior.model.families}
    found = prior.functionals(truths, drawn[0][0])
    varying = np.flatnonzero(found.std(0) > 1e-5 * np.abs(found).max(0))
    names, groups = (tuple(x[i] for i in varying) for x in (prior.names, prior.groups))
    return prior._replace(names=names, groups=groups, varying=varying)


def make_template(kind: str, num_rows: int, num_columns: int) -> Data:
    """Data of ones in all cells; of ratings and of votes of ten members in seven of ten cells."""
    rng = np.random.default_rng(0)  # the same cells for every key: nothing is compiled again

    def cells(size: int, share: float) -> Any:
        return scipy.sparse.csr_array((rng.random((num_rows, size)) < share).astype(np.float32))

    if kind == "dense":
        return OneShape(kind, values=np.ones((num_rows, num_columns), np.float32))
    votes = cells(10, 0.7) if kind == "text_and_votes" else None
    matrix = cells(num_columns, 0.7 if kind == "ratings" else 1.0)
    return OneShape(kind, matrix=matrix, votes=votes)


def holding(template: Data, drawn: Mapping[str, Any], observed: str) -> Data:
    """The data set with these observations in the template's cells, zeros included."""
    if template.kind == "dense":
        return replace(template, values=np.asarray(drawn[observed], np.float32))
    main = drawn["counts"] if template.kind == "text_and_votes" else drawn[observed]
    votes = None if template.votes is None else _filled(template.votes, drawn["votes"])
    return replace(template, matrix=_filled(template.matrix, main), votes=votes)


def _filled(cells: Any, values: Any) -> Any:
    rows = np.repeat(np.arange(cells.shape[0]), np.diff(cells.indptr))
    entries = np.asarray(values, np.float32)[rows, cells.indices]
    return scipy.sparse.csr_array((entries, cells.indices, cells.indptr), shape=cells.shape)


# Reading ranks ------------------------------------------------------------------------------------


def read(ranks: np.ndarray, scores: np.ndarray, num_draws: int, key: jax.Array) -> dict[str, Any]:
    """The figures of each functional, as `Calibration` has them."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    probabilities = (ranks + 0.5) / (num_draws + 1)
    envelope = Envelope(len(ranks), num_draws, rng)
    return {
        "coverage50": coverage(ranks, num_draws, 0.5),
        "coverage90": coverage(ranks, num_draws, 0.9),
        "widen": np.quantile(np.abs(scores), 0.9, axis=0) / scipy.stats.norm.isf(0.05),
        "uniform": np.array([envelope.p_value(column) for column in ranks.T]),
        "chi_square": chi_square(ranks, num_draws),
        "symmetric": symmetry(probabilities, rng),
        "shift": probabilities.mean(0) - 0.5,
    }


def coverage(ranks: np.ndarray, num_draws: int, level: float) -> np.ndarray:
    """The share of ranks inside the central interval.

    A rank r of L draws stands for the interval (r, r + 1) / (L + 1) and counts by the part of it
    that is inside: the share of uniform ranks is the level for any L.
    """
    low, high = (num_draws + 1) * (1 - level) / 2, (num_draws + 1) * (1 + level) / 2
    return np.mean(np.clip(np.minimum(ranks + 1, high) - np.maximum(ranks, low), 0, 1), axis=0)


class Envelope:
    """The simultaneous test of Sailynoja et al. (2022) that ranks 0..L are uniform.

    The number of ranks up to i is binomial and has a two-sided p-value. The statistic is the
    smallest of them; its distribution is simulated.
    """

    def __init__(self, num_datasets: int, num_draws: int, rng: np.random.Generator) -> None:
        self.num_draws = num_draws
        binomial = scipy.stats.binom(num_datasets, np.arange(1, num_draws + 1) / (num_draws + 1))
        counts = np.arange(num_datasets + 1)[:, None]
        tails = np.minimum(binomial.cdf(counts), binomial.sf(counts - 1))
        self.table = np.minimum(1.0, 2 * tails)  # (count, i)
        simulated = rng.integers(0, num_draws + 1, (SIMULATIONS, num_datasets))
        self.null = np.sort([self.statistic(one) for one in simulated])

    def statistic(self, ranks: np.ndarray) -> float:
        up_to = np.cumsum(np.bincount(ranks, minlength=self.num_draws + 1))[:-1]
        return float(self.table[up_to, np.arange(self.num_draws)].min())

    def p_value(self, ranks: np.ndarray) -> float:
        smaller = np.searchsorted(self.null, self.statistic(ranks), side="right")
        return float((smaller + 1) / (SIMULATIONS + 1))


def chi_square(ranks: np.ndarray, num_draws: int) -> np.ndarray:
    """p-values of uniform ranks, in bins as even as the number of ranks allows."""
    edges = np.linspace(0, num_draws + 1, min(BINS, num_draws + 1) + 1).astype(int)
    counts = np.stack([np.histogram(column, edges - 0.5)[0] for column in ranks.T], 1)
    expected = len(ranks) * np.diff(edges)[:, None] / (num_draws + 1)
    return scipy.stats.chisquare(counts, np.broadcast_to(expected, counts.shape)).pvalue


def symmetry(
    probabilities: np.ndarray, rng: np.random.Generator, num_flips: int = 2000
) -> np.ndarray:
    """p-values of VSBC: Kolmogorov-Smirnov distance of p and 1 - p, against random flips of p."""
    grid, number = np.linspace(0, 1, 101)[1:-1, None, None], len(probabilities)
    high = (probabilities > grid).astype(float) - (1 - probabilities > grid)
    signs = np.concatenate([np.ones((1, number)), rng.choice([-1.0, 1.0], (num_flips, number))])
    distance = np.abs(np.einsum("fd,gdq->fgq", signs, high, optimize=True)).max(1)
    return np.mean(distance >= distance[0] - 1e-9, axis=0)


def effective_sizes(values: np.ndarray) -> np.ndarray:
    """Effective sample sizes of the draws (n, functionals) of one chain, at most n."""
    return np.array([min(len(values), arviz.effective_size(x[None])) for x in values.T])
