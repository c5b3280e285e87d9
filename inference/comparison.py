"""Did variational inference work here, where does it lie, and by how much: every engine against a reference posterior.

All engines fit the same nine tenths of the rows; the rest scores them. Posteriors are compared twice: site by site after alignment (`align`),
and on what no relabelling can change, the expected observations `model.predict`. Every difference is in units of the reference's posterior sd:

    mean_error_sd    mean over quantities of |mean - reference mean|
    sd_ratio         median over quantities of sd / reference sd; mean-field posteriors lie below 1
    coverage90       share of the reference's draws inside the engine's central 90% interval; 0.9 is right
    wasserstein_sd   mean over quantities of the 1-Wasserstein distance (for a point estimate: of the point mass)
    khat             Pareto k of the importance ratios p(x, data) / q(x); above 0.7 q cannot be corrected by weighting

The pivot of the alignment is the mean of the reference's own draws, first aligned to its draw of highest log joint density. A reference
is a Markov chain; its R-hat is the worst over invariant functionals, and above 1.05 it is called not converged and judges nobody.
"""

import platform
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any, NamedTuple

import jax
import numpy as np

import inference
import pp_models
from inference import align, arviz_bridge, evaluate
from inference.registry import default_reference, load_engine, make_options
from pp_models.base import Model, declare, make_hyper
from pp_models.data import Data
from pp_models.errors import InputError, unknown

ENGINES = ("cavi", "svi", "trust_region", "numpyro_svi", "map", "nuts")
MIN_ROWS = 10  # with fewer, none are held out
MAX_RHAT = 1.05  # above this the reference has not converged
MAX_RATES = 1000  # entries of the rate matrix that are compared
MAX_FUNCTIONALS = 200  # of which R-hat and effective sample sizes are computed
LEVELS = (np.arange(100) + 0.5) / 100  # where quantile functions are compared
INTERVAL = (0.05, 0.95)
FIGURES = (  # of a row of the summary; the last line is for Markov chains
    *("kind", "error", "seconds", "bound", "log_joint", "mean_error_sd", "sd_ratio", "coverage90", "wasserstein_sd", "khat", "heldout"),
    *("rhat", "ess_bulk", "ess_tail", "divergences"),
)

Draws = dict[str, np.ndarray]  # site -> (chains, draws, *site shape)


class Comparison(NamedTuple):
    """Every engine's fit and how it agrees with the reference.

    data:     all rows, the held-out ones included
    fits:     engine -> Fit, the reference first; engines that failed are missing
    draws:    engine -> site -> (n, ...) aligned draws, one of them for a point estimate
    summary:  what `summary.json` holds
    truth:    the values that synthetic data were drawn with, aligned, local sites of the fitted rows only; or None
    """

    model: Model
    hyper: Any
    data: Data
    reference: str
    fits: dict[str, Any]
    draws: dict[str, Draws]
    summary: dict[str, Any]
    truth: Draws | None = None


class Task(NamedTuple):
    """What every engine is given: the same rows, draws and held-out rows, and a key of its own derived from its name."""

    model: Model
    hyper: Any
    training: Data
    heldout: Data | None
    key: jax.Array
    options: Mapping[str, Mapping[str, Any]]
    progress: Any
    num_draws: int

    def key_for(self, *names: str) -> jax.Array:
        """A key that depends on the seed and these names only, not on which other engines run."""
        return jax.random.fold_in(self.key, zlib.crc32("/".join(names).encode()) & 0x7FFFFFFF)

    def fit(self, engine: str) -> tuple[Any, list[str]]:
        """The engine's fit, and what it warned of: that belongs into the report, where it is read next to the figures."""
        arguments = {"hyper": self.hyper, "key": self.key_for(engine), "progress": self.progress, **self.options.get(engine, {})}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            warnings.simplefilter("always", RuntimeWarning)
            warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")  # compiled again, nothing lost
            fit = inference.fit(self.model.name, self.training, engine=engine, **arguments)
        return fit, list(dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, UserWarning | RuntimeWarning)))


class Quantities(NamedTuple):
    """Draws (n, quantities) with their means, sds and quantiles at `LEVELS` and at the ends of `INTERVAL`."""

    draws: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    quantiles: np.ndarray
    interval: np.ndarray


class Yardstick(NamedTuple):
    """The reference, ready to be compared with: the pivot of the alignment, and its quantities per site and of the rates at `entries`."""

    pivot: Draws
    entries: np.ndarray
    sites: dict[str, Quantities]
    rates: Quantities


def compare(
    model_name: str,
    data: Data | None = None,
    reference: str | None = None,
    engines: Iterable[str] = ENGINES,
    hyper: Any = None,
    key: jax.Array | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Any = None,
    num_draws: int = 1000,
    on_result: Callable[[str, dict[str, Any]], None] | None = None,
    truth: Mapping[str, Any] | None = None,
) -> Comparison:
    """Fit the model by the reference and by each engine, and measure how far they are apart.

    data:      default: data drawn from the model's own prior
    reference: the sampler to judge by (default: gibbs, or nuts where gibbs does not apply)
    options:   engine -> options of `inference.fit`
    num_draws: draws of a variational posterior, and at most so many of each Markov chain
    on_result: called with an engine's name and its row of the summary as soon as it is judged
    truth:     site -> the value that the data were drawn with, where it is known

    An engine that fails has its error in its row and stops nobody. If the reference fails there is nothing to compare, and its error is raised.
    """
    model, key = pp_models.load(model_name), jax.random.key(0) if key is None else key
    reference = default_reference(model) if reference is None else reference
    engines = _check_engines(reference, engines, options or {})
    given, stated = data is not None, hyper
    model, hyper, data, truth = _problem(model, data, hyper, key, truth)
    seed = np.asarray(jax.random.key_data(key)).ravel()
    enough = data.num_rows >= MIN_ROWS
    training, heldout, kept = evaluate.hold_out(data, seed=seed) if enough else (data, None, np.arange(data.num_rows))
    if given:
        hyper = make_hyper(model, stated, training)  # defaults must not see what is held out
    task = Task(model, hyper, training, heldout, key, options or {}, progress, num_draws)
    report = on_result or (lambda engine, row: None)

    fit, notes = task.fit(reference)
    yardstick, aligned, row = measure_reference(task, fit, notes)
    fits, draws, rows = {reference: fit}, {reference: aligned}, {reference: row}
    report(reference, row)
    for engine in engines:
        try:
            fit, notes = task.fit(engine)
            draws[engine], rows[engine] = judge(task, fit, notes, yardstick, row["converged"])
            fits[engine] = fit
        except Exception as error:  # one engine's failure is a result, not the end of the others
            rows[engine] = {"engine": engine, **dict.fromkeys(FIGURES), "error": f"{type(error).__name__}: {error}", "verdict": "failed"}
        report(engine, _plain(rows[engine]))

    truth = _align_truth(model, truth, kept, yardstick)
    return Comparison(model, hyper, data, reference, fits, draws, _summarise(task, data, reference, rows), truth)


def _check_engines(reference: str, engines: Iterable[str], options: Mapping[str, Any]) -> list[str]:
    """The engines to judge, the reference and repetitions left out. All names and options are checked before anything is compiled."""
    names = list(dict.fromkeys([engines] if isinstance(engines, str) else engines))
    chosen = {name: load_engine(name) for name in (reference, *names)}
    for name in options:
        if name not in chosen:
            raise unknown("engine in options", name, chosen)
    for name, engine in chosen.items():
        make_options(engine, dict(options.get(name, {})))
    if chosen[reference].kind != "draws":
        raise InputError(f"Engine {reference!r} is no sampler, and only a Markov chain is exact enough to judge by: take gibbs or nuts.")
    names = [name for name in names if name != reference]
    if not names:
        raise InputError(f"There is nothing to compare with {reference!r}: name at least one other engine.")
    return names


def _problem(model: Model, data: Data | None, hyper: Any, key: jax.Array, truth: Any) -> tuple[Model, Any, Data, Mapping[str, Any] | None]:
    """The model's variant, hyper-parameters, data, and the latent values behind them where they are known."""
    if data is not None:
        if not isinstance(data, Data):
            raise InputError(f"data must be made with pp_models.data.{model.kind}(...), not a {type(data).__name__}.")
        return *declare(model, hyper, data), data, truth
    drawn, data, truth = pp_models.datasets.synthetic(model, key, hyper=hyper)
    return *declare(model, drawn, data), data, truth


# Measuring --------------------------------------------------------------------------------------------------------------------


def chains_of(posterior: Any, key: jax.Array, num_draws: int) -> Draws:
    """Draws (chains, draws, ...) of any posterior: a chain's own, thinned evenly; new ones of a distribution; a point once."""
    if posterior.kind == "point":
        return {site: np.asarray(posterior.mean(site))[None, None] for site in posterior.sites}
    if posterior.kind in ("variational", "mixture"):
        return {site: np.asarray(value)[None] for site, value in posterior.sample(key, num_draws).items()}
    length = np.shape(posterior.draws[posterior.sites[0]])[1]
    pick = np.linspace(0, length - 1, min(length, num_draws)).round().astype(int)
    return nonzero({site: np.asarray(posterior.draws[site])[:, pick] for site in posterior.sites})


def flatten(draws: Draws) -> Draws:
    """Chains one after the other: (n, ...)."""
    return {site: value.reshape(-1, *value.shape[2:]) for site, value in draws.items()}


def rates(model: Model, hyper: Any, draws: Draws, entries: np.ndarray) -> np.ndarray:
    """The expected observations of each draw at some entries of the matrix: (n, entries), never all of it for all draws."""
    return np.asarray(jax.jit(lambda d: jax.lax.map(lambda x: model.predict(hyper, x).reshape(-1)[entries], d))(draws))


def quantities(draws: np.ndarray) -> Quantities:
    """The summaries of draws (n, ...), every entry a quantity of its own."""
    draws = draws.reshape(len(draws), -1)
    mean = draws.mean(0, dtype=np.float64)
    sd = draws.std(0, dtype=np.float64, ddof=1) if len(draws) > 1 else np.full(mean.shape, np.nan)
    levels = np.quantile(draws, [*LEVELS, *INTERVAL], axis=0)
    return Quantities(draws, mean, sd, levels[:-2], levels[-2:])


def join(parts: Iterable[Quantities]) -> Quantities:
    """Quantities side by side."""
    return Quantities(*(np.concatenate(field, axis=-1) for field in zip(*parts, strict=True)))


def agreement(reference: Quantities, other: Quantities) -> dict[str, Any]:
    """How far two sets of draws of the same quantities are apart. What the reference knows exactly has no scale and is left out."""
    scale = np.maximum(np.abs(reference.mean), np.finfo(np.float32).tiny)
    moves = reference.sd > 1e-6 * scale
    reference, other = (Quantities(*(field[..., moves] for field in one)) for one in (reference, other))
    if not moves.any():
        return {"mean_error_sd": None, "sd_ratio": None, "coverage90": None, "wasserstein_sd": None, "quantities": 0}
    is_point = len(other.draws) == 1
    inside = (reference.draws >= other.interval[0]) & (reference.draws <= other.interval[1])
    return {
        "mean_error_sd": np.mean(np.abs(other.mean - reference.mean) / reference.sd),
        "sd_ratio": None if is_point else np.median(other.sd / reference.sd),
        "coverage90": None if is_point else inside.mean(),
        "wasserstein_sd": np.mean(np.abs(other.quantiles - reference.quantiles).mean(0) / reference.sd),
        "quantities": int(moves.sum()),
    }


def measure_reference(task: Task, fit: Any, notes: list[str]) -> tuple[Yardstick, Draws, dict[str, Any]]:
    """The reference as a yardstick, its aligned draws and its row of the summary."""
    model, chains = task.model, chains_of(fit.posterior, task.key_for(fit.engine, "draws"), task.num_draws)
    flat = flatten(chains)
    log_joint = np.asarray(fit.log_joint(flat), np.float64)
    best = int(np.nanargmax(log_joint))
    aligned, pivot = align.common_labels(model, flat, {site: value[best] for site, value in flat.items()})

    size = jax.eval_shape(lambda x: model.predict(fit.hyper, x), {site: value[0] for site, value in flat.items()}).size
    rng = np.random.default_rng(np.asarray(jax.random.key_data(task.key_for("rates"))).ravel())
    entries = rng.choice(size, min(size, MAX_RATES), replace=False)
    expected = rates(model, fit.hyper, flat, entries)
    sites = {site: quantities(value) for site, value in aligned.items()}
    row = _row(task, fit, notes, chains, log_joint, expected)
    row["converged"] = None if row["rhat"] is None else bool(row["rhat"] <= MAX_RHAT)
    return (
        Yardstick(pivot, entries, sites, quantities(expected)),
        aligned,
        _plain(row | {"verdict": verdict(row, row["converged"], is_reference=True)}),
    )


def judge(task: Task, fit: Any, notes: list[str], yardstick: Yardstick, converged: bool | None) -> tuple[Draws, dict[str, Any]]:
    """An engine's aligned draws and its row of the summary."""
    chains = chains_of(fit.posterior, task.key_for(fit.engine, "draws"), task.num_draws)
    flat = flatten(chains)
    log_joint = np.asarray(fit.log_joint(flat), np.float64)
    expected = rates(task.model, fit.hyper, flat, yardstick.entries)
    aligned = align.align_draws(task.model, flat, yardstick.pivot)
    sites = {site: quantities(value) for site, value in aligned.items()}
    shared = [site for site in task.model.shared if site in sites]
    row = _row(task, fit, notes, chains, log_joint, expected)
    row |= agreement(join(yardstick.sites[site] for site in shared), join(sites[site] for site in shared))
    row["sites"] = {site: agreement(yardstick.sites[site], sites[site]) for site in sites}
    row["invariant"] = agreement(yardstick.rates, quantities(expected))
    return aligned, row | {"verdict": verdict(row, converged)}


def _row(task: Task, fit: Any, notes: list[str], chains: Draws, log_joint: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    """What an engine's row says without a reference: time, bound, importance ratios, held-out score, diagnostics of chains."""
    kind = fit.posterior.kind
    bounds = np.asarray(fit.history.get("bound", []), np.float64)
    finite = bounds[np.isfinite(bounds)]
    row = {"engine": fit.engine, **dict.fromkeys(FIGURES), "kind": kind, "seconds": float(fit.seconds), "log_joint": np.mean(log_joint)}
    row["bound"] = finite[-1] if kind == "variational" and finite.size else None
    row["heldout"] = _attempt(notes, "held-out score", lambda: heldout_score(fit, task.heldout))
    if kind == "variational":
        points = [site for site, family in fit.model.families.items() if not family.has_density]
        if points:
            notes.append(f"No k-hat: q holds {' and '.join(points)} as a point, which no weighting can spread.")
        log_q = fit.posterior.log_density(flatten(chains))
        row["khat"] = None if points else _attempt(notes, "k-hat", lambda: arviz_bridge.pareto_khat(log_joint - np.asarray(log_q, np.float64)))
    if kind == "draws":
        shape = next(iter(chains.values())).shape[:2]
        functionals = np.concatenate([expected[:, :MAX_FUNCTIONALS], log_joint[:, None]], axis=1).reshape(*shape, -1)
        row |= _attempt(notes, "diagnostics", lambda: arviz_bridge.chain_diagnostics(functionals)) or {}
        row["divergences"] = int(np.sum(fit.posterior.sample_stats["diverging"])) if "diverging" in fit.posterior.sample_stats else None
    return row | {"notes": notes}


def nonzero(draws: Draws) -> Draws:
    """Draws whose exact zeros, underflown from positive values, are the smallest positive number, so that their logarithm is finite."""
    return {site: np.where(value == 0, np.finfo(value.dtype).tiny, value) for site, value in draws.items()}


def heldout_score(fit: Any, heldout: Data | None) -> float | None:
    """Log probability per held-out word in nats, by document completion, or per held-out rating; None for other data or too few rows."""
    if heldout is not None and heldout.kind == "ratings":
        return float(inference.score_ratings(fit, heldout).log_density)
    if heldout is None or heldout.kind != "counts" or heldout.total == 0:
        return None
    return float(inference.document_completion(fit, heldout, folds=3).value)


def _attempt(notes: list[str], what: str, function: Callable[[], Any]) -> Any:
    """The function's result, or None with a note: a diagnostic that cannot be computed must not cost the fit."""
    try:
        return function()
    except Exception as error:
        notes.append(f"{what}: {type(error).__name__}: {error}")
        return None


# Words and records ------------------------------------------------------------------------------------------------------------


def verdict(row: Mapping[str, Any], converged: bool | None, is_reference: bool = False) -> str:
    """A row in plain words. The limits are round numbers: 0.2 sd is about what two good Markov chains differ by."""
    if is_reference:
        return {True: "the reference", None: "the reference, without diagnostics"}.get(converged, "the reference, but it has not converged")
    if converged is False:
        return "not judged: the reference has not converged"
    error, ratio = row["mean_error_sd"], row["sd_ratio"]
    if error is None or not np.isfinite(error):
        return "not judged: no finite quantities to compare"
    means = _words(error, ((0.2, "means agree"), (0.5, "means slightly off"), (1, "means off")), "a different answer: another mode, or not converged")
    if row["kind"] == "point":  # a mode need not be near the mean, however well it was found
        return f"{means if error < 0.2 else f'{error:.1f} sd from the means'}; a point, silent about uncertainty"
    invariant = (row.get("invariant") or {}).get("mean_error_sd")
    if error >= 1 and invariant is not None and invariant < 0.5:
        means = "other factors, nearly the same predictions"
    widths = (0.5, "far too narrow"), (0.8, "too narrow"), (0.95, "slightly too narrow"), (1.05, "right width"), (1.25, "slightly too wide")
    return f"{means}; {_words(ratio, widths, 'too wide')}"


def _words(number: float, limits: Iterable[tuple[float, str]], otherwise: str) -> str:
    return next((words for limit, words in limits if number < limit), otherwise)


def ranking(rows: Mapping[str, Mapping[str, Any]], reference: str) -> list[str]:
    """The reference, then engines by Wasserstein distance to it (location and spread in one number), then those without one."""

    def place(engine: str) -> tuple[int, float]:
        distance = rows[engine].get("wasserstein_sd")
        if engine == reference:
            return 0, 0.0
        return (1, distance) if distance is not None else (3 if rows[engine].get("error") else 2, 0.0)

    return sorted(rows, key=place)


def versions() -> dict[str, str]:
    """Of everything that the numbers depend on."""
    packages = ("jax", "numpyro", "arviz", "numpy", "scipy")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}, "pp_models": pp_models.__version__}


def seed_of(key: jax.Array) -> int:
    """The number that `jax.random.key` made the key of."""
    high, low = (int(word) for word in np.asarray(jax.random.key_data(key)).ravel()[-2:])
    return (high << 32) | low


def _summarise(task: Task, data: Data, reference: str, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    about = {"kind": data.kind, "rows": data.num_rows, "columns": data.num_columns, "entries": data.num_entries, "total": data.total}
    about |= {"rows_fitted": task.training.num_rows, "rows_heldout": data.num_rows - task.training.num_rows}
    about["entries_heldout"] = 0 if task.heldout is None else task.heldout.num_entries
    rows = _plain(rows)
    return {
        "model": task.model.name,
        "title": task.model.title,
        "hyper": _plain(task.hyper._asdict()),
        "reference": reference,
        "converged": rows[reference]["converged"],
        "engines": {engine: rows[engine] for engine in ranking(rows, reference)},
        "options": _plain({engine: dict(given) for engine, given in task.options.items()}),
        "num_draws": task.num_draws,
        "data": _plain(about),
        "data_hash": data.hash,
        "seed": seed_of(task.key),
        "versions": versions(),
    }


def _align_truth(model: Model, truth: Mapping[str, Any] | None, kept: np.ndarray, yardstick: Yardstick) -> Draws | None:
    if truth is None or not all(site in truth for site in model.families):
        return None
    values = {site: np.asarray(truth[site])[kept] if site in model.local else np.asarray(truth[site]) for site in model.families}
    return align.align_draws(model, values, yardstick.pivot)


def _plain(value: Any) -> Any:
    """JSON's types only; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray | jax.Array):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
