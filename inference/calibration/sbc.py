"""Calibration: over data sets drawn from the prior, where does the true value lie in the posterior an engine finds?

Draw values from the prior, data given them, and a posterior given the data. If the posterior is exact, the rank of a true value among its independent
draws is uniform (Talts et al. 2018), whatever is ranked; the data may take part. What is ranked here no relabelling or rotation of factors
changes: some entries of the expected data `model.predict` and the root mean square of all, the log joint density, and the root mean square of
every site, which of a hyper-parameter is the hyper-parameter. What never varies, like a total of probabilities, is left out.
The same numbers are read three ways:

    simulation-based calibration   of samplers: are ranks uniform? The ECDF of the ranks stays in an envelope (Sailynoja et al. 2022), and chi-square.
    coverage                       of approximations: how often does a central interval hold the true value, and by which factor must it be widened?
    VSBC (Yao et al. 2018)         of approximations: are the probabilities p = Q(x < true value) symmetric about 1/2? If not, q is biased.

Data sets have one shape, so everything is compiled for the first of them only:

    python -m inference.calibration --models lda,pmf --engines gibbs --datasets 200 --out tables.md
"""

import functools
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.stats
from tqdm import tqdm

import inference
import pp_models
from inference.core.registry import load_engine
from pp_models.data.types import Data
from pp_models.errors import Diverged, InputError
from pp_models.model import Model, as_arrays, check_count, declare, log_joint, simulate

Draw = Callable[
    [Data, Any, jax.Array], Mapping[str, Any]
]  # data, hyper-parameters, key -> draws (n, ...) of every site

ENTRIES = 8  # of the expected data
BINS = 10  # of the chi-square test
SIMULATIONS = 4000  # of ranks that are uniform, for the ECDF's envelope
NUM_DRAWS = {
    "gibbs": 49,
    "collapsed_gibbs": 49,
    "nuts": 49,
}  # of each posterior that true values are ranked among; of engines that draw independently 199

# What each engine runs with on data sets this small. A chain's draws must be nearly independent: its effective size is in the table.
OPTIONS: dict[str, dict[str, Any]] = {
    "gibbs": {"num_samples": 49, "num_warmup": 400, "num_chains": 1, "thin": 40},
    "collapsed_gibbs": {"num_samples": 49, "num_warmup": 400, "num_chains": 1, "thin": 40},
    "nuts": {"num_samples": 294, "num_warmup": 300, "num_chains": 1, "target_accept": 0.9},
    "numpyro_svi": {"num_epochs": 1500},
    "inla": {"weights": "laplace"},
}
# Priors from which data are drawn that are neither empty nor huge. The rest is the model's example's.
PRIORS: dict[str, dict[str, Any]] = {
    "pmf": {"center": False, "offset": 0.0},
    "bayesian_pmf": {"center": False, "offset": 0.0, "nu": 12.0, "scale": 12.0},
    "gaussian_mixture": {"mean": 0.0, "scale": 2.0, "nu": 16.0},
    "lda": {"alpha": 0.8, "eta": 0.8},
}
COLUMNS = {"gaussian_mixture": 3}
ROW_LENGTH = 30  # tokens of a document, for models that take them as given


class Calibration(NamedTuple):
    """What `calibrate` found.

    names, groups: of the functionals: what each is, and "expected data", "log joint", "sites" or "hyper-parameters"
    ranks:         (data sets, functionals) draws below the true value, of `num_draws`
    scores:        (data sets, functionals) (true value - posterior mean) / posterior sd
    coverage50, coverage90: (functionals,) share of data sets whose central interval holds the true value
    widen:         (functionals,) the factor by which the sd is to be multiplied for 90 % intervals, mean +- 1.645 sd, to hold 90 %
    uniform, chi_square: (functionals,) p-values of uniform ranks, by the ECDF's envelope and by chi-square
    symmetric:     (functionals,) p-values of VSBC: as many ranks are far up as far down. shift: their mean minus 1/2, positive where q lies too low
    effective:     (functionals,) median effective sample size of the draws that were ranked; as many as there are for engines that are no chains
    failed:        data sets on which the engine left the finite numbers: they are not in the rows above
    """

    model: str
    engine: str
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
        """The smallest p-value of the ECDF's test, times how many functionals there are (Bonferroni)."""
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
    """Fit data sets drawn from the prior by an engine, and rank the true values in what it finds.

    num_rows, num_columns: of every data set (default: 20 x 10, where the model leaves the number of columns free)
    hyper:    hyper-parameters of the prior; the rest are those of `PRIORS` and of the model's example
    options:  the engine's; the rest are those of `OPTIONS`
    num_draws: of each posterior that true values are ranked among (0: 49 of chains, 199 of others)
    draw:     (data, hyper, key) -> draws, instead of the engine: to find out what a broken one looks like
    progress: True or False to force the progress bar
    """
    check_count("num_datasets", num_datasets)
    check_count("num_rows", num_rows)
    num_draws = num_draws or NUM_DRAWS.get(engine, 199)
    check_count("num_draws", num_draws)
    key = jax.random.key(0) if key is None else key
    if draw is None and load_engine(engine).kind == "point":
        raise InputError(
            f"Engine {engine!r} finds a point, which has no intervals to calibrate: use one with a posterior."
        )
    prior = make_prior(model_name, num_rows, num_columns, hyper)
    draw = (
        functools.partial(
            draw_by, prior.model, engine, {**OPTIONS.get(engine, {}), **(options or {})}, num_draws
        )
        if draw is None
        else draw
    )
    chains = engine in NUM_DRAWS
    begin, failed = time.perf_counter(), 0
    ranks, scores, sizes = [], [], []
    for i in tqdm(
        range(num_datasets),
        f"{model_name} by {engine}",
        disable=None if progress is None else not progress,
        leave=False,
    ):
        data_key, fit_key = jax.random.split(jax.random.fold_in(key, i))
        data, truth = prior.simulate(data_key)
        try:
            draws = draw(data, prior.hyper, fit_key)
        except Diverged:
            failed += 1
            continue
        found = prior.functionals(draws, data)
        true = prior.functionals({site: np.asarray(x)[None] for site, x in truth.items()}, data)[0]
        ranks.append((found < true).sum(0))
        scores.append((true - found.mean(0)) / np.maximum(found.std(0), 1e-30))
        sizes.append(effective_sizes(found) if chains else np.full(len(true), len(found)))
    if not ranks:
        raise InputError(
            f"{engine} failed on all {num_datasets} data sets drawn from the prior of {model_name}: choose other hyper-parameters."
        )
    columns = prior.template.num_columns
    figures = read(np.array(ranks), np.array(scores), len(found), key)
    figures |= {
        "effective": np.median(sizes, axis=0),
        "failed": failed,
        "seconds": time.perf_counter() - begin,
    }
    return Calibration(
        model_name,
        engine,
        num_rows,
        columns,
        len(found),
        prior.names,
        prior.groups,
        np.array(ranks),
        np.array(scores),
        **figures,
    )


def draw_by(
    model: Model,
    engine: str,
    options: Mapping[str, Any],
    num_draws: int,
    data: Data,
    hyper: Any,
    key: jax.Array,
) -> Mapping[str, Any]:
    """Draws of an engine's posterior: of a chain evenly spaced ones, of a distribution independent ones."""
    fit_key, sample_key = jax.random.split(key)
    fit = inference.fit(
        model.name,
        data,
        engine,
        hyper,
        fit_key,
        progress=False,
        devices=jax.local_devices()[:1],
        **options,
    )
    if fit.posterior.kind != "draws":
        return fit.posterior.sample(sample_key, num_draws)
    flat = {site: x.reshape(-1, *x.shape[2:]) for site, x in fit.posterior.draws.items()}
    size = len(next(iter(flat.values())))
    keep = np.linspace(0, size - 1, min(num_draws, size)).astype(int)
    return {site: x[keep] for site, x in flat.items()}


# Data from the prior -----------------------------------------------------------------------------------------------------------


class OneShape(Data):
    """Data whose every cell is an entry, and whose batches therefore have one layout, whatever was drawn."""

    @property
    def _largest_total(self) -> int:
        return self.__dict__["most"]


class Prior(NamedTuple):
    """A model with fixed hyper-parameters, from which data sets of one shape are drawn. names, groups: of what `functionals` computes."""

    model: Model
    hyper: Any
    template: Data
    totals: np.ndarray
    names: tuple[str, ...]
    groups: tuple[str, ...]
    varying: tuple[int, ...]  # which of them all draws do not agree on, the others being left out

    def simulate(self, key: jax.Array) -> tuple[Data, dict[str, Any]]:
        """Data, and the values of the latent sites that made them."""
        batch = self.template.pack().replace(totals=jnp.asarray(self.totals, float))
        drawn = _simulate(self.model, as_arrays(self.hyper), key, batch)
        truth = {site: drawn[site] for site in self.model.families}
        return holding(
            self.template,
            {name: np.asarray(x) for name, x in drawn.items() if name not in truth},
            self.model.observed,
        ), truth

    def functionals(self, draws: Mapping[str, Any], data: Data) -> np.ndarray:
        """(n, functionals) of draws (n, ...)."""
        stacked = {site: jnp.asarray(draws[site], float) for site in self.model.families}
        found = _functionals(self.model, as_arrays(self.hyper), stacked, data.pack())
        return np.asarray(found, np.float64)[:, list(self.varying)]


@functools.partial(jax.jit, static_argnames=("model",))
def _simulate(model, hyper, key, batch):
    return simulate(model, hyper, batch, key)


@functools.partial(jax.jit, static_argnames=("model",))
def _functionals(model, hyper, draws, batch):

    def one(x):
        rates = model.predict(hyper, x).ravel()
        sites = [jnp.sqrt(jnp.mean(x[site] ** 2)) for site in model.families]
        return jnp.concatenate(
            [
                rates[_entries(rates.size)],
                jnp.stack(
                    [jnp.sqrt(jnp.mean(rates**2)), log_joint(model, hyper, x, batch), *sites]
                ),
            ]
        )

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
    model = pp_models.load(model_name)
    num_columns = COLUMNS.get(model_name, 10) if num_columns is None else num_columns
    check_count("num_columns", num_columns)
    rng = np.random.default_rng(
        0
    )  # of which cells of ratings there are: the same for every key, so that nothing is compiled again
    totals = (
        np.full(num_rows, float(ROW_LENGTH))
        if model.kind in ("counts", "text_and_votes")
        else np.zeros(num_rows)
    )
    template = make_template(model.kind, num_rows, num_columns, rng)
    own = model.example(jax.random.key(0))[0]._asdict()
    model, resolved = declare(
        model, {**own, **PRIORS.get(model_name, {}), **(hyper or {})}, template
    )
    if not model.proper(resolved):
        raise InputError(
            f"The prior of {model_name} with these hyper-parameters cannot be drawn from: choose a proper one."
        )
    shapes = jax.eval_shape(
        lambda k: simulate(model, resolved, template.pack(), k), jax.random.key(0)
    )
    rates = jax.eval_shape(
        lambda x: model.predict(resolved, x), {site: shapes[site] for site in model.families}
    )
    entries = [
        f"expected {divmod(int(i), rates.shape[-1])}" for i in _entries(int(np.prod(rates.shape)))
    ]
    single = {site for site in model.families if np.prod(shapes[site].shape) == 1}
    sites = ("hyper-parameters" if site in single else "sites" for site in model.families)
    names = (*entries, "expected, root mean square", "log joint", *model.families)
    groups = (*("expected data" for _ in entries), "expected data", "log joint", *sites)
    return _without_constants(
        Prior(model, resolved, template, totals, names, groups, tuple(range(len(names))))
    )


def _without_constants(prior: Prior) -> Prior:
    """Without the functionals that are the same, to rounding, for all values of a few draws from the prior: a rank among ties is none."""
    drawn = [prior.simulate(jax.random.key(seed)) for seed in range(4)]
    found = np.concatenate(
        [
            prior.functionals({site: np.asarray(x)[None] for site, x in truth.items()}, drawn[0][0])
            for _, truth in drawn
        ]
    )
    varying = np.flatnonzero(found.std(0) > 1e-5 * np.abs(found).max(0))
    return prior._replace(
        names=tuple(prior.names[i] for i in varying),
        groups=tuple(prior.groups[i] for i in varying),
        varying=tuple(int(i) for i in varying),
    )


def make_template(kind: str, num_rows: int, num_columns: int, rng: np.random.Generator) -> Data:
    """A data set of ones, whose values the draws replace: all cells are entries; of ratings, and of votes of ten members, seven in ten."""

    def cells(size: int, share: float) -> Any:
        rows, columns = np.nonzero(rng.random((num_rows, size)) < share)
        return scipy.sparse.csr_array(
            (np.ones(len(rows), np.float32), (rows, columns)), shape=(num_rows, size)
        )

    if kind == "dense":
        return _one_shape(OneShape(kind, values=np.ones((num_rows, num_columns), np.float32)))
    votes = cells(10, 0.7) if kind == "text_and_votes" else None
    return _one_shape(
        OneShape(kind, matrix=cells(num_columns, 0.7 if kind == "ratings" else 1.0), votes=votes)
    )


def _one_shape(data: OneShape) -> OneShape:
    data.__dict__["most"] = (
        ROW_LENGTH  # the largest total of a row, which only models that are given it read
    )
    return data


def holding(template: Data, drawn: Mapping[str, np.ndarray], observed: str) -> Data:
    """The data set with these observations in the template's cells, zeros included."""
    if template.kind == "dense":
        return _one_shape(OneShape("dense", values=drawn[observed].astype(np.float32)))
    main = drawn["counts"] if template.kind == "text_and_votes" else drawn[observed]
    votes = None if template.votes is None else _filled(template.votes, drawn["votes"])
    return _one_shape(OneShape(template.kind, matrix=_filled(template.matrix, main), votes=votes))


def _filled(cells: Any, values: np.ndarray) -> Any:
    rows = np.repeat(np.arange(cells.shape[0]), np.diff(cells.indptr))
    return scipy.sparse.csr_array(
        (values[rows, cells.indices].astype(np.float32), cells.indices, cells.indptr),
        shape=cells.shape,
    )


# Reading ranks -----------------------------------------------------------------------------------------------------------------


def read(ranks: np.ndarray, scores: np.ndarray, num_draws: int, key: jax.Array) -> dict[str, Any]:
    """coverage50, coverage90, widen, uniform, chi_square, symmetric and shift of each functional, as `Calibration` has them."""
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
    """The share of ranks inside the central interval. A rank r of L draws stands for all of (r, r + 1) / (L + 1), and counts by how much of that is
    inside, so that the share of uniform ranks is the level, whatever L."""
    low, high = (num_draws + 1) * (1 - level) / 2, (num_draws + 1) * (1 + level) / 2
    return np.mean(np.clip(np.minimum(ranks + 1, high) - np.maximum(ranks, low), 0, 1), axis=0)


class Envelope:
    """The simultaneous test of Sailynoja et al. (2022) that ranks 0..L are uniform.

    At each i the number of ranks up to i is binomial, and has a two-sided p-value; the statistic is the least of them, and its distribution
    is found by simulating uniform ranks, which are ranks of draws in any case: ties and the finite number of ranks are accounted for.
    """

    def __init__(self, num_datasets: int, num_draws: int, rng: np.random.Generator) -> None:
        self.num_draws = num_draws
        share = np.arange(1, num_draws + 1) / (num_draws + 1)  # of ranks up to 0, 1, .., L - 1
        counts = np.arange(num_datasets + 1)[:, None]
        below, above = (
            scipy.stats.binom.cdf(counts, num_datasets, share),
            scipy.stats.binom.sf(counts - 1, num_datasets, share),
        )
        self.table = np.minimum(1.0, 2 * np.minimum(below, above))  # (count, i)
        simulated = rng.integers(0, num_draws + 1, (SIMULATIONS, num_datasets))
        self.null = np.sort([self.statistic(one) for one in simulated])

    def statistic(self, ranks: np.ndarray) -> float:
        up_to = np.cumsum(np.bincount(ranks, minlength=self.num_draws + 1))[:-1]
        return float(self.table[up_to, np.arange(self.num_draws)].min())

    def p_value(self, ranks: np.ndarray) -> float:
        smaller = np.searchsorted(self.null, self.statistic(ranks), side="right")
        return float((smaller + 1) / (SIMULATIONS + 1))


def chi_square(ranks: np.ndarray, num_draws: int, bins: int = BINS) -> np.ndarray:
    """p-values of uniform ranks, in bins as many and as even as the number of possible ranks allows."""
    bins = min(bins, num_draws + 1)
    edges = np.linspace(0, num_draws + 1, bins + 1).astype(int)
    counts = np.stack(
        [np.sum((ranks >= low) & (ranks < high), axis=0) for low, high in itertools.pairwise(edges)]
    )
    expected = len(ranks) * np.diff(edges)[:, None] / (num_draws + 1)
    return scipy.stats.chi2.sf(np.sum((counts - expected) ** 2 / expected, axis=0), bins - 1)


def symmetry(
    probabilities: np.ndarray, rng: np.random.Generator, num_flips: int = 2000
) -> np.ndarray:
    """p-values of VSBC: the Kolmogorov-Smirnov distance between p and 1 - p, against that of data sets whose p are turned around at random."""
    grid = np.linspace(0, 1, 101)[1:-1]
    high = (probabilities[None] > grid[:, None, None]).astype(float) - (
        1 - probabilities[None] > grid[:, None, None]
    )  # antisymmetric
    signs = np.concatenate(
        [np.ones((1, len(probabilities))), rng.choice([-1.0, 1.0], (num_flips, len(probabilities)))]
    )
    distance = np.abs(np.einsum("fd,gdq->fgq", signs, high, optimize=True)).max(1)
    return np.mean(distance >= distance[0] - 1e-9, axis=0)


def effective_sizes(values: np.ndarray) -> np.ndarray:
    """Effective sample sizes of the draws (n, functionals) of one chain, by the sum of the pairs of autocorrelations that are positive (Geyer)."""
    n = len(values)
    centred = values - values.mean(0)
    spectrum = np.abs(np.fft.rfft(centred, 2 * n, axis=0)) ** 2
    covariance = np.fft.irfft(spectrum, axis=0)[:n].real
    correlation = covariance / np.maximum(covariance[0], 1e-300)
    pairs = correlation[: n // 2 * 2].reshape(n // 2, 2, -1).sum(1)
    positive = np.cumprod(pairs > 0, axis=0)
    return np.minimum(n, n / np.maximum(2 * np.sum(pairs * positive, axis=0) - 1, 1e-3))


def applies(model_name: str, engine: str) -> bool:
    """Whether an engine has a posterior of this model to calibrate."""
    model, chosen = pp_models.load(model_name), load_engine(engine)
    proper = model.proper(model.example(jax.random.key(0))[0])
    return proper and chosen.kind != "point" and not chosen.suits(model)
