"""Did variational inference work here, where does it lie, and by how much: every engine against a reference posterior.

All engines fit the same nine tenths of the rows; the rest scores them. Each posterior is then measured (`yardstick`, `agreement`) in units of the
reference's posterior sd, and judged in words (`verdicts`). The reference is a Markov chain; one that has not converged judges nobody. Where no
sampler applies, or the reference fails, engines are compared by bounds and held-out scores alone, and the verdicts say so.
"""

import signal
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray

import inference
import pp_models
from inference.comparison import measure, results, summary, verdicts
from inference.comparison.measure import Chains, Draws, Measured, Sample, Yardstick
from inference.comparison.results import Finished, Folder
from inference.core import registry
from inference.core.modes import listed
from inference.core.registry import default_engines, default_reference, load_engine, make_options
from inference.evaluation import splits
from inference.evaluation.heldout import heldout_score
from inference.run import checkpoint as checkpoints
from inference.run.checkpoint import Foreign
from inference.run.fit import Fit
from pp_models.data.types import Data
from pp_models.errors import InputError, TooLarge, unknown
from pp_models.model import Model, check_count, declare, make_hyper

MIN_ROWS = 10  # with fewer, none are held out
QUICK_ROWS, QUICK_COLUMNS = 40, 15  # of data drawn for a quick comparison
LEAST_SHARE = (
    0.2  # of an engine's share of the whole, which it has even where others took longer than theirs
)
SLOW_SCORE = 0.5  # seconds for a held-out score above which no more are taken on the way
SLOWEST_SCORE = 20.0  # of the first two, which compile


class Comparison(NamedTuple):
    """Every engine's fit and how it agrees with the reference.

    data:       all rows, the held-out ones included
    reference:  the engine judged by, or None
    fits:       engine -> Fit, the reference first; engines that failed are missing
    draws:      engine -> site -> (n, ...) aligned draws, one of them for a point estimate
    summary:    what `summary.json` holds
    quantities: every number that was compared, by engine; `.to_dataframe()` is the tidy table
    chains:     engine -> functionals of its Markov chains
    truth:      the values that synthetic data were drawn with, aligned, local sites of the fitted rows only; or None
    """

    model: Model
    hyper: Any
    data: Data
    reference: str | None
    fits: dict[str, Any]
    draws: dict[str, Draws]
    summary: dict[str, Any]
    quantities: xarray.Dataset
    chains: dict[str, Chains]
    truth: Draws | None = None


class Task(NamedTuple):
    """What every engine is given: the same rows and held-out rows, and a key of its own derived from its name."""

    model: Model
    hyper: Any
    training: Data
    heldout: Data | None
    key: jax.Array
    options: Mapping[str, Mapping[str, Any]]
    progress: Any
    num_draws: int
    quick: bool  # no held-out scores on the way, and no evidence
    folder: Folder | None

    @property
    def seed(self) -> np.ndarray:
        """Of what is compared."""
        return np.asarray(jax.random.key_data(self.key_for("quantities"))).ravel()

    def key_for(self, *names: str) -> jax.Array:
        """A key that depends on the seed and these names only, not on which other engines run."""
        return jax.random.fold_in(self.key, zlib.crc32("/".join(names).encode()) & 0x7FFFFFFF)

    def stored(self, engine: str, seconds: float | None) -> Finished | None:
        """The engine's fit from the folder, unless it was cut short and there are more seconds now."""
        options = summary.plain(dict(self.options.get(engine, {})))
        return (
            None
            if self.folder is None
            else self.folder.load(engine, options, self.training, seconds)
        )

    def fit(self, engine: str, place: str, max_seconds: float | None) -> Finished:
        """The engine's fit, with what it warned of: that belongs into the report, next to the figures. One that was interrupted goes on."""
        options = dict(self.options.get(engine, {}))
        progress = self.progress if self.progress is not None else place
        follow = Follow(engine, None if self.quick else self.heldout)
        arguments = {
            "hyper": self.hyper,
            "key": self.key_for(engine),
            "progress": progress,
            "max_seconds": max_seconds,
            "watch": follow,
            **options,
        }
        checkpoint = None if self.folder is None else self.folder.checkpoint(engine)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            warnings.simplefilter("always", RuntimeWarning)
            warnings.filterwarnings(
                "ignore", "Error (reading|writing) persistent compilation cache"
            )  # compiled again, nothing lost
            follow.caught = caught
            try:
                fit = inference.fit(
                    self.model.name,
                    self.training,
                    engine=engine,
                    checkpoint=checkpoint,
                    **arguments,
                )
            except Foreign as error:  # of another comparison, or damaged
                checkpoints.remove(checkpoint)  # type: ignore[arg-type]
                warnings.warn(f"The engine was begun anew: {error}", stacklevel=2)
                fit = inference.fit(
                    self.model.name,
                    self.training,
                    engine=engine,
                    checkpoint=checkpoint,
                    **arguments,
                )
        notes = follow.notes
        if fit.stopped:
            notes.append(fit.stopped)
        done = Finished(fit, notes, follow.curve)
        if checkpoint is not None and self.folder is not None:
            self.folder.save(
                engine, summary.plain(options), done, max_seconds if fit.stopped else None
            )
            checkpoints.remove(checkpoint)
        return done


class Follow:
    """Scores held-out data after 1, 2, 4, 8, ... steps of an engine, into `curve`: [seconds, score]. `memory` goes into the fit's checkpoints."""

    def __init__(self, engine: str, heldout: Data | None) -> None:
        self._engine, self._heldout = engine, heldout
        self.curve: list[list[float]] = []
        self._next: float | None = (
            None if heldout is None else 1.0
        )  # step to score after; None: no more
        self._scores = 0  # in this process
        self._before: list[str] = []
        self.caught: list[Any] = []

    @property
    def notes(self) -> list[str]:
        """What was warned of, once each, also before the fit was interrupted."""
        new = [
            str(one.message)
            for one in self.caught
            if issubclass(one.category, UserWarning | RuntimeWarning)
        ]
        return list(dict.fromkeys([*self._before, *new]))

    @property
    def memory(self) -> dict[str, Any]:
        return {"curve": self.curve, "next": self._next, "notes": self.notes}

    @memory.setter
    def memory(self, before: dict[str, Any]) -> None:
        self.curve, self._next, self._before = (
            list(before["curve"]),
            before["next"],
            list(before["notes"]),
        )

    def __call__(self, step: int, seconds: float, posterior: Callable[[], Any]) -> None:
        if self._next is None or step + 1 < self._next:
            return
        begin = time.perf_counter()
        try:
            now = posterior()
            score, _ = heldout_score(
                Fit(now.problem, self._engine, {}, now, {}, seconds), self._heldout
            )
        except Exception:  # the score at the end says what is wrong; a curve must not cost the fit
            score = None
        if score is None or not np.isfinite(score):
            self._next = None
            return
        self.curve.append([float(seconds), float(score)])
        self._scores += 1
        cost = time.perf_counter() - begin
        slow = (
            cost > SLOW_SCORE if self._scores > 2 else cost > SLOWEST_SCORE
        )  # the first ones compile
        self._next = None if slow else 2 * (step + 1)


class Budget:
    """Seconds dealt out: each engine gets its share of what is left, or a small part of its share of the whole where less is left."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self.begin = seconds, time.perf_counter()

    def share(self, weights: list[float], place: int) -> float | None:
        """Seconds for the engine at this place among the weights of all; None without a limit."""
        if self.seconds is None:
            return None
        left = self.seconds - (time.perf_counter() - self.begin)
        return weights[place] * max(
            left / sum(weights[place:]), LEAST_SHARE * self.seconds / sum(weights)
        )


def compare(
    model_name: str,
    data: Data | None = None,
    reference: str | None = None,
    engines: Iterable[str] | None = None,
    hyper: Any = None,
    key: jax.Array | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Any = None,
    num_draws: int | None = None,
    on_result: Callable[[str, dict[str, Any]], None] | None = None,
    truth: Mapping[str, Any] | None = None,
    *,
    quick: bool = False,
    budget: float | None = None,
    rows: int | None = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
    command: str | None = None,
) -> Comparison:
    """Fit the model by the reference and by each engine, and measure how far they are apart.

    data:      default: data drawn from the model's own prior
    reference: the sampler to judge by (default: of gibbs, where it applies, and the samplers among the engines, that with most effective draws,
               those first that converged); "none" to judge nobody
    engines:   default: those that apply to the model
    options:   engine -> options of `inference.fit`
    num_draws: of each posterior, all chains together (default: 2000, quick 1000)
    on_result: called with an engine's name and its row of the summary as soon as it is judged
    truth:     site -> the value that the data were drawn with, where it is known
    quick:     shorter fits and chains, and of data drawn here less
    budget:    seconds to fit in: samplers that may be the reference get three shares, every other engine one, of what is left when it starts.
               Compiling an engine is not cut short, nor are a step, scores and the page. What they take is not there for the engines after it, but
               each has at least a fifth of its share of the whole: a sampler that is too slow must not keep the others from being compared
    rows:      a random part of so many rows is compared on
    folder:    where finished fits are kept; a second call with the same folder goes on with the engines that are missing
    overwrite: forget the comparison that the folder holds, once everything has been checked
    command:   how to repeat this, for the report

    An engine that fails has its error in its row and stops nobody. Ctrl-C ends the comparison with what is finished, which `summary["partial"]` says.

    >>> import inference
    >>> short = {"gibbs": {"num_samples": 400, "num_warmup": 100}}
    >>> result = inference.compare("bernoulli_mixture", engines=["cavi", "map"], quick=True, options=short)
    >>> result.reference, result.summary["engines"]["map"]["kind"]
    ('gibbs', 'point')
    """
    model, key = pp_models.load(model_name), jax.random.key(0) if key is None else key
    engines = (
        None
        if engines is None
        else list(dict.fromkeys([engines] if isinstance(engines, str) else engines))
    )
    options = _check_names(reference, engines, options or {}, budget, quick)
    num_draws = (1000 if quick else 2000) if num_draws is None else num_draws
    check_count("num_draws", num_draws)
    given, stated = data is not None, hyper
    model, hyper, data, truth = _problem(model, data, hyper, key, truth, quick)
    seed = np.asarray(jax.random.key_data(key)).ravel()
    data, taken = _some_rows(data, rows, seed)
    training, heldout, kept = (
        splits.hold_out(data, seed=seed)
        if data.num_rows >= MIN_ROWS
        else (data, None, np.arange(data.num_rows))
    )
    if given:
        hyper = make_hyper(model, stated, training)  # defaults must not see what is held out
    candidates, names = _choose(model, hyper, reference, engines, quick)
    recipe = {
        "model": model.name,
        "hyper": summary.plain(hyper._asdict()),
        "data": data.hash,
        "seed": summary.seed_of(key),
    }
    if folder is not None and overwrite:
        results.clear(Path(folder))
    place = None if folder is None else results.open_folder(folder, recipe)
    task = Task(model, hyper, training, heldout, key, options, progress, num_draws, quick, place)
    found = Run(task, candidates, on_result or (lambda engine, row: None))
    found.all([*candidates, *names], Budget(budget))
    if found.stick is None:
        raise InputError(
            "No engine could be fitted. "
            + " ".join(f"{engine}: {row['error']}" for engine, row in found.rows.items())
        )

    about = {
        "model": model.name,
        "title": model.title,
        "kind": model.kind,
        "symmetry": model.symmetry,
        "hyper": hyper._asdict(),
    }
    told: dict[str, Any] = {
        "reference": found.reference,
        "converged": found.converged,
        "partial": found.partial,
        "quick": quick,
        "budget": budget,
    }
    told |= {"pivot": measure.align.pivot_in_words(model), "evidence": found.evidence}
    ranked = summary.ranking(found.rows, found.reference, found.converged)
    told |= {
        "engines": {engine: found.rows[engine] for engine in ranked},
        "options": {name: dict(one) for name, one in options.items()},
    }
    told |= {
        "num_draws": num_draws,
        "data": summary.data_summary(data, training, heldout),
        "data_hash": data.hash,
        "seed": summary.seed_of(key),
    }
    told |= {"versions": summary.versions(), "command": command}
    measured = {engine: found.measured[engine] for engine in ranked if engine in found.measured}
    return Comparison(
        model,
        hyper,
        data,
        found.reference,
        {
            engine: found.fits[engine]
            for engine in (*([found.reference] if found.reference else []), *found.fits)
        },
        {engine: one.draws for engine, one in measured.items()},
        summary.plain({"format": summary.FORMAT, **about, **told}),
        summary.quantity_table(model, training, found.stick, measured),
        {engine: one.chains for engine, one in measured.items() if one.chains is not None},
        _align_truth(model, truth, taken[kept], found.stick),
    )


# The loop ---------------------------------------------------------------------------------------------------------------------


class Run:
    """The engines' fits and measures as they come. Samplers that may be the reference come first; of several the best is (`yardstick.quality`)."""

    def __init__(
        self, task: Task, candidates: list[str], report: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self.task, self.candidates, self.report = task, candidates, report
        self.reference: str | None = None
        self.converged: bool | None = None
        self.partial: str | None = None
        self.evidence: dict[str, Any] | None = None
        self.stick: Yardstick | None = None
        self.fits: dict[str, Any] = {}
        self.measured: dict[str, Measured] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self._waiting: dict[str, tuple[Finished, Sample]] = {}

    def all(self, names: list[str], budget: Budget) -> None:
        """Fit and measure each until all are done or Ctrl-C."""
        weights = [load_engine(name).budget for name in names]
        last = self.candidates[-1] if self.candidates else None
        try:
            for place, engine in enumerate(names):
                self._one(engine, f"{place + 1}/{len(names)}", budget.share(weights, place))
                if engine == last:
                    self._choose()
        except KeyboardInterrupt as stopped:
            terminated = (
                getattr(stopped, "signal", signal.SIGINT) != signal.SIGINT
            )  # who sends SIGTERM does not wait for a report
            if terminated or not (self.fits or self._waiting):
                raise
            self._choose()
            missing = [name for name in names if name not in self.rows]
            verb = "was" if len(missing) == 1 else "were"
            self.partial = (
                f"Interrupted: {listed(missing)} {verb} not run. Run the same command again to go on."
                if missing
                else None
            )

    def _one(self, engine: str, place: str, seconds: float | None) -> None:
        """Fit one engine; measure it unless it waits to be the reference. Its failure is a result, not the end of the others."""
        try:
            done = self.task.stored(engine, seconds) or self.task.fit(engine, place, seconds)
            sample = measure.draw(
                done.fit, self.task.key_for(engine, "draws"), self.task.num_draws, self.task.seed
            )
            if engine in self.candidates:
                self._waiting[engine] = done, sample
            else:
                self._measure(engine, done, sample)
        except Exception as error:
            self._fail(engine, error)

    def _choose(self) -> None:
        """Make the best sampler that can be measured the reference, and measure the others that waited."""
        found: dict[str, tuple[bool, float]] = {}
        for name, (done, sample) in self._waiting.items():
            try:
                found[name] = (
                    measure.quality(done.fit, sample) if len(self._waiting) > 1 else (True, 0.0)
                )
            except Exception:  # which measuring it will say again
                found[name] = False, -1.0
        for engine in sorted(self._waiting, key=found.__getitem__, reverse=True):
            if self.reference is None:
                self.reference = engine
            try:
                self._measure(engine, *self._waiting[engine])
            except Exception as error:
                self._fail(engine, error)
            del self._waiting[engine]

    def _measure(self, engine: str, done: Finished, sample: Sample) -> None:
        notes, known = (
            list(done.notes),
            None if self.evidence is None else self.evidence["log_evidence"],
        )
        as_reference = engine == self.reference
        stick = self.stick or measure.make_yardstick(done.fit, sample, self.task.seed, as_reference)
        one = measure.measure(done.fit, sample, stick, notes, self.task.heldout, known)
        row = one.row | {"heldout_curve": done.curve}
        if as_reference:
            self.converged = _judge_reference(row, done.fit, self.task)
            words = verdicts.of_reference(self.converged)
        else:
            words = verdicts.of_engine(row, self.converged, self.reference is not None)
        row |= dict(zip(("verdict", "rule"), words, strict=True))
        self.stick = stick
        self.fits[engine], self.measured[engine], self.rows[engine] = done.fit, one, row
        if as_reference and self.converged and not self.task.quick:
            self.evidence = measure.log_evidence(
                done.fit, stick, self.task.key_for("evidence"), notes
            )
        self.report(engine, summary.plain(row))

    def _fail(self, engine: str, error: Exception) -> None:
        if engine == self.reference:
            self.reference = None
        self.rows[engine] = _failed(engine, error, engine in self.candidates, self.task)
        self.report(engine, summary.plain(self.rows[engine]))


def _judge_reference(row: dict[str, Any], fit: Any, task: Task) -> bool:
    """Whether the reference has converged, with its reasons or cautions noted. One that was cut short needs more time or fewer rows."""
    drawn = row["draws"] or 0
    reasons = verdicts.trouble(row, drawn)
    cut_short = drawn < fit.options.get("num_samples", 0) * fit.options.get("num_chains", 0)
    row["converged"] = not reasons
    if reasons:
        row["notes"].append(
            verdicts.advice(row["engine"], reasons, cut_short)
            + (_fewer_rows(task) if cut_short else "")
        )
    elif said := verdicts.caution(row):
        row["notes"].append(said)
    return row["converged"]


def _failed(engine: str, error: Exception, is_reference: bool, task: Task) -> dict[str, Any]:
    text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    if is_reference and isinstance(error, TooLarge):
        text += _fewer_rows(task)
    return {
        "engine": engine,
        **dict.fromkeys(measure.FIGURES),
        "error": text,
        "verdict": "failed",
        "rule": "the engine raised an error",
        "heldout_curve": [],
        "notes": [],
    }


def _fewer_rows(task: Task) -> str:
    """The offer of a random part of the rows, where that would be less."""
    rows = task.training.num_rows
    return (
        f" To compare on a random part of the rows, add --rows {max(MIN_ROWS, rows // 10)} (rows= in Python)."
        if rows > 2 * MIN_ROWS
        else ""
    )


# What is compared -------------------------------------------------------------------------------------------------------------


def _check_names(
    reference: Any, engines: list[str] | None, options: Mapping[str, Any], budget: Any, quick: bool
) -> dict[str, dict[str, Any]]:
    """The options of every engine. All names, options and numbers are checked before anything is compiled."""
    if budget is not None and not (
        isinstance(budget, int | float)
        and not isinstance(budget, bool)
        and 0 < budget < float("inf")
    ):
        raise InputError(f"budget must be a positive number of seconds, not {budget!r}.")
    names = engines or []
    chosen = {
        name: load_engine(name)
        for name in (*([] if reference in (None, "none") else [reference]), *names)
    }
    if engines is not None and not names:
        raise InputError("There are no engines to compare: name at least one.")
    for name in options:
        if engines is not None and name not in chosen and load_engine(name).kind != "draws":
            raise unknown("engine in options", name, chosen)
        chosen.setdefault(name, load_engine(name))
    for name, engine in chosen.items():
        make_options(engine, dict(options.get(name, {})))
    if reference not in (None, "none") and chosen[reference].kind != "draws":
        raise InputError(
            f"Engine {reference!r} is no sampler, and only a Markov chain is exact enough to judge by: take gibbs or nuts."
        )
    if not quick:
        return {name: dict(one) for name, one in options.items()}
    every = {name: load_engine(name).quick for name in registry.engines()}
    return {
        name: {**quick_options, **options.get(name, {})} for name, quick_options in every.items()
    }


def _choose(
    model: Model, hyper: Any, reference: str | None, engines: list[str] | None, quick: bool
) -> tuple[list[str], list[str]]:
    """The samplers of which the best is to judge by, and the other engines to judge."""
    chosen = default_engines(model, hyper, quick) if engines is None else engines
    if reference == "none":
        candidates = []
    elif reference is not None:
        candidates = [reference]
    else:
        first = default_reference(model, hyper, quick and engines is None)
        candidates = (
            [
                first,
                *(
                    name
                    for name in chosen
                    if load_engine(name).kind == "draws" and not load_engine(name).suits(model)
                ),
            ]
            if first
            else []
        )
    candidates = list(dict.fromkeys(candidates))
    names = [name for name in chosen if name not in candidates]
    if len(candidates) + len(names) < 2:
        raise InputError(
            f"There is nothing to compare with {(candidates or names)[0]!r}: name at least one other engine."
        )
    return candidates, names


def _problem(
    model: Model, data: Data | None, hyper: Any, key: jax.Array, truth: Any, quick: bool
) -> tuple[Model, Any, Data, Mapping[str, Any] | None]:
    """The model's variant, hyper-parameters, data, and the latent values behind them where they are known."""
    if data is not None:
        if not isinstance(data, Data):
            raise InputError(
                f"data must be made with pp_models.data.{model.kind}(...), not a {type(data).__name__}."
            )
        return *declare(model, hyper, data), data, truth
    drawn, data, truth = draw_data(model, key, hyper, quick)
    return *declare(model, drawn, data), data, truth


def draw_data(
    model: Model, key: jax.Array, hyper: Any, quick: bool
) -> tuple[Any, Data, dict[str, np.ndarray]]:
    """Hyper-parameters, data drawn from the model's own prior, and the values behind them."""
    size = {"num_rows": QUICK_ROWS, "num_columns": QUICK_COLUMNS} if quick else {}
    return pp_models.datasets.synthetic(model, key, hyper=hyper, **size)


def _some_rows(data: Data, rows: int | None, seed: Any) -> tuple[Data, np.ndarray]:
    """A random part of the rows, in their order, and which they are."""
    everything = np.arange(data.num_rows)
    if rows is None:
        return data, everything
    check_count("rows", rows)
    if rows >= data.num_rows:
        return data, everything
    taken = np.sort(np.random.default_rng(seed).choice(data.num_rows, rows, replace=False))
    return data.select(taken), taken


def _align_truth(
    model: Model, truth: Mapping[str, Any] | None, kept: np.ndarray, stick: Yardstick
) -> Draws | None:
    if truth is None or not all(site in truth for site in model.families):
        return None
    values = {
        site: np.asarray(truth[site])[kept] if site in model.local else np.asarray(truth[site])
        for site in model.families
    }
    return measure.align.align_draws(model, values, stick.pivot)
