"""The loop of a comparison: fit one engine after the other, and measure each.

The samplers that may be the reference come first. The best of them (`measure.quality`) becomes the
reference; then the others are measured as they finish.
"""

import signal
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.comparison import correction, measure, verdicts
from inference.comparison.follow import Follow
from inference.comparison.measure import Measured, Sample, Yardstick
from inference.comparison.modes import judge_within as within
from inference.comparison.record import Evidence, Row, Within
from inference.comparison.results import Finished, Folder
from inference.core.modes import listed
from inference.core.provenance import plain
from inference.core.registry import corrects, load_compared
from inference.run import checkpoint as checkpoints
from inference.run.fit import fit
from inference.run.polish import polish
from pp_models.data.types import Data
from pp_models.errors import InputError, TooLarge
from pp_models.model import Model

MIN_ROWS = 10  # with fewer rows none are held out
FITTING = 0.75  # part of the budget for fits; the rest judges them within their modes
LEAST_SHARE = 0.2  # of its share of the whole budget that an engine gets in any case
MOST_SWEEPING = 20.0  # seconds to find out whether a fit has converged


class Task(NamedTuple):
    """The same for every engine: rows to fit and to hold out, and settings.

    options: by engine
    quick:   no held-out scores during fits, and no evidence
    """

    model: Model
    hyper: Any
    training: Data
    heldout: Data | None
    key: jax.Array
    options: Mapping[str, Mapping[str, Any]]
    progress: Any
    num_draws: int
    quick: bool
    folder: Folder | None

    @property
    def seed(self) -> np.ndarray:
        """The seed for picking the compared quantities."""
        return np.asarray(jax.random.key_data(self.key_for("quantities"))).ravel()

    def key_for(self, *names: str) -> jax.Array:
        """A key that depends on the seed and these names, not on the other engines."""
        return jax.random.fold_in(self.key, zlib.crc32("/".join(names).encode()) & 0x7FFFFFFF)

    def stored(self, engine: str, seconds: float | None) -> Finished | None:
        """The engine's fit from the folder, unless it was cut short and there is more time now."""
        if self.folder is None:
            return None
        return self.folder.load(engine, self._plain_options(engine), self.training, seconds)

    def _plain_options(self, engine: str) -> dict[str, Any]:
        return plain(dict(self.options.get(engine, {})))

    def fit(self, engine: str, place: str, max_seconds: float | None) -> Finished:
        """Fit an engine and record its warnings. An interrupted fit goes on."""
        follow = Follow(engine, None if self.quick else self.heldout)
        checkpoint = None if self.folder is None else self.folder.checkpoint(engine)
        run = partial(
            fit,
            self.model.name,
            self.training,
            engine=engine,
            hyper=self.hyper,
            key=self.key_for(engine),
            progress=place if self.progress is None else self.progress,
            max_seconds=max_seconds,
            watch=follow,
            checkpoint=checkpoint,
            **self.options.get(engine, {}),
        )
        with warnings.catch_warnings(record=True) as follow.caught:
            warnings.simplefilter("always", UserWarning)
            warnings.simplefilter("always", RuntimeWarning)
            warnings.filterwarnings(
                "ignore", "Error (reading|writing) persistent compilation cache"
            )
            try:
                found = run()
            except checkpoints.Foreign as error:  # of another comparison, or damaged
                checkpoints.remove(checkpoint)  # type: ignore[arg-type]
                warnings.warn(f"The engine was begun anew: {error}", stacklevel=2)
                found = run()
        notes = [*follow.notes, found.stopped] if found.stopped else follow.notes
        done = Finished(found, notes, follow.curve)
        if self.folder is not None and checkpoint is not None:
            cut_after = max_seconds if found.stopped else None
            self.folder.save(engine, self._plain_options(engine), done, cut_after)
            checkpoints.remove(checkpoint)
        return done


class Budget:
    """Deal out seconds: an engine gets its share of what is left, or a part of its full share."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self.begin = seconds, time.perf_counter()

    def left(self, part: float = 1.0) -> float | None:
        """Seconds left of this part of the whole; None without a limit."""
        return self.seconds and part * self.seconds - (time.perf_counter() - self.begin)

    def share(self, weights: list[float], place: int, part: float = 1.0) -> float | None:
        """Seconds for the engine at this place among the weights of all; None without a limit."""
        left = self.left(part)
        if self.seconds is None or left is None:
            return None
        least = LEAST_SHARE * part * self.seconds / sum(weights)
        return weights[place] * max(left / sum(weights[place:]), least)


def climb(
    found: Any, elbo: float | None, error: float | None, key: jax.Array, num_draws: int
) -> float | None:
    """Nats by which sweeps of coordinate ascent raise the bound of a variational fit.

    elbo: with auxiliaries summed out, which is what some engines maximise, and its standard error.
          If it rises by less than the bound does, the rise that is sure is returned.
    """
    better = polish(found, max_seconds=MOST_SWEEPING) if found.posterior.has_density else None
    if better is None:
        return None
    rise = max(better.bound - found.bound, 0.0)
    if elbo is None or rise < verdicts.LEAST_CLIMB:
        return rise
    ratios = measure.log_ratios(better, better.posterior.sample(key, num_draws))
    noise = np.hypot(error or 0.0, np.std(ratios) / np.sqrt(len(ratios)))
    return float(np.clip(np.mean(ratios) - elbo - verdicts.SURE * noise, 0.0, rise))


class Run:
    """The fits and measures of a comparison as they come.

    candidates: the samplers that may be the reference
    report:     called with an engine's name and its row as soon as it is judged
    begin:      called with an engine's name and its place, before it is fitted
    """

    def __init__(
        self,
        task: Task,
        candidates: list[str],
        report: Callable[[str, dict[str, Any]], None],
        begin: Callable[[str, str], None],
    ) -> None:
        self.task, self.candidates, self.report, self.begin = task, candidates, report, begin
        self.reference: str | None = None
        self.converged: bool | None = None
        self.partial: str | None = None
        self.evidence: Evidence | None = None
        self.stick: Yardstick | None = None
        self.fits: dict[str, Any] = {}
        self.measured: dict[str, Measured] = {}
        self.rows: dict[str, Row] = {}
        self._waiting: dict[str, tuple[Finished, Sample]] = {}
        self._unjudged: list[str] = []  # engines that are still to be judged within their modes

    def all(self, names: list[str], budget: Budget) -> None:
        """Fit and measure the engines until all are done or Ctrl-C."""
        weights = [load_compared(name).budget for name in names]
        last = self.candidates[-1] if self.candidates else None
        try:
            for place, engine in enumerate(names):
                left = budget.left()
                told = f"{place + 1}/{len(names)}"
                told += "" if left is None else f", {max(left, 0):.0f} s left"
                self.begin(engine, told)
                self._one(engine, told, budget.share(weights, place, FITTING))
                if engine == last:
                    self._choose()
            self._look_within(budget)
        except KeyboardInterrupt as stopped:
            terminated = getattr(stopped, "signal", signal.SIGINT) != signal.SIGINT
            if terminated or not (self.fits or self._waiting):
                raise
            self._choose()
            advice = "Run the same command again to go on."
            if missing := [name for name in names if name not in self.rows]:
                were = f"{listed(missing)} {'was' if len(missing) == 1 else 'were'}"
                self.partial = f"Interrupted: {were} not run. {advice}"
            elif missing := self._unjudged:
                were = f"{listed(missing)} {'was' if len(missing) == 1 else 'were'}"
                self.partial = f"Interrupted: {were} not judged within the mode found. {advice}"

    def _one(self, engine: str, place: str, seconds: float | None) -> None:
        """Fit one engine, and measure it unless it may be the reference."""
        task = self.task
        try:
            key = task.key_for(engine, "draws")
            if base := corrects(engine):
                done = correction.finished(task, engine, self.fits.get(base), key, seconds)
            else:
                done = task.stored(engine, seconds) or task.fit(engine, place, seconds)
            sample = measure.draw(done.fit, key, task.num_draws, task.seed)
            if engine in self.candidates:
                self._waiting[engine] = done, sample
            else:
                self._measure(engine, done, sample)
        except Exception as error:  # stops no other engine
            self._fail(engine, error)

    def _choose(self) -> None:
        """Make the best sampler that can be measured the reference, and measure the others."""
        ranks: dict[str, tuple[bool, float]] = {}
        for name, (done, sample) in self._waiting.items() if len(self._waiting) > 1 else ():
            try:
                ranks[name] = measure.quality(done.fit, sample)
            except Exception:  # measuring it reports the error
                ranks[name] = False, -1.0
        for engine in sorted(
            self._waiting, key=lambda name: ranks.get(name, (True, 0.0)), reverse=True
        ):
            self.reference = self.reference or engine
            try:
                self._measure(engine, *self._waiting[engine])
            except Exception as error:
                self._fail(engine, error)
            del self._waiting[engine]

    def _measure(self, engine: str, done: Finished, sample: Sample) -> None:
        task, is_reference = self.task, engine == self.reference
        stick = self.stick or measure.make_yardstick(done.fit, sample, task.seed, is_reference)
        notes = list(done.notes)
        one = measure.measure(done.fit, sample, stick, notes, task.heldout, self.evidence)
        row = one.row
        if not task.quick:
            given = done.fit, row.elbo, row.elbo_se, task.key_for(engine, "climb"), task.num_draws
            row.climb = measure.attempt(notes, "further sweeps", partial(climb, *given))
        row.heldout_curve = done.curve  # type: ignore[assignment]
        if is_reference:
            self.converged = row.converged = self._judge_reference(row, done.fit)
            row.verdict, row.rule = verdicts.of_reference(self.converged)
        else:
            judged = self.reference is not None
            row.verdict, row.rule = verdicts.of_engine(row, self.converged, judged)
        if corrects(engine):
            correction.complete(row, done.fit, stick.pivot, self.converged)
        self.stick = stick
        self.fits[engine], self.measured[engine], self.rows[engine] = done.fit, one, row
        if is_reference and self.converged and not task.quick:
            self.evidence = measure.log_evidence(done.fit, stick, task.key_for("evidence"), notes)
        self._doubt(row)
        self.report(engine, plain(asdict(row)))

    def _doubt(self, row: Row) -> None:
        """Demote a reference whose log evidence is below a lower bound, and judge nobody by it."""
        if self.evidence is None or self.reference is None or not self.converged:
            return
        own = self.rows[self.reference]
        own.missed = verdicts.missed_mode(row, self.evidence)
        if own.missed is None:
            return
        self.converged = own.converged = False
        self.evidence = None  # disproved: `missed` says by how much
        for other in self.rows.values():
            other.kl = other.kl_se = None
        own.verdict, own.rule = verdicts.of_reference(False)
        own.notes.append(verdicts.advice(self.reference, verdicts.trouble(own)))
        for engine, other in self.rows.items():
            if engine != self.reference and not other.error:
                other.verdict, other.rule = verdicts.of_engine(other, False)

    def _look_within(self, budget: Budget) -> None:
        """Judge engines within their own modes where the reference does not judge them."""
        task = self.task
        verdicts.beside_the_best({e: row for e, row in self.rows.items() if not row.error})
        waiting = [e for e, row in self.rows.items() if self._is_elsewhere(row)]
        self._unjudged = list(waiting)
        told = verdicts.of_other_mode if self.converged else verdicts.in_parts
        for place, engine in enumerate(waiting):
            row, found = self.rows[engine], self.fits[engine]
            drawn = task.key_for(engine, "draws"), task.num_draws, task.seed
            sample = measure.draw(found, *drawn)  # again: kept, the draws of all engines add up
            seconds = budget.share([1.0] * len(waiting), place)
            self.begin(engine, f"{place + 1}/{len(waiting)} within its mode")
            key = task.key_for(engine, "within")
            given = found, sample, key, task.seed, seconds, self.stick if self.converged else None
            try:
                row.within = within(*given)
            except Exception as error:  # costs no other verdict
                row.within = Within(verdict=f"not judged: {error}", rule="chains that failed")
            row.verdict = told(row)
            row.rule = f"{row.rule}; within its mode: {row.within.rule}"
            self._unjudged.remove(engine)
            self.report(engine, plain(asdict(row)))
        if self.converged:
            return
        for row in self.rows.values():  # bounds and scores are said all the same
            if not row.error and row.kind != "draws" and row.within is None:
                row.verdict = verdicts.in_parts(row)

    def _is_elsewhere(self, row: Row) -> bool:
        """Whether an engine has an answer that the reference's chains say nothing about."""
        if row.error or row.kind == "draws" or not self.candidates or self.task.quick:
            return False
        if not self.converged:
            return True
        far = (row.mean_error_sd or 0.0) >= 1 and not verdicts.is_unsettled(row)
        return far and row.kind != "point"  # a mode need not be near the mean

    def _judge_reference(self, row: Row, fit: Any) -> bool:
        """Whether the reference has converged. Reasons or cautions are noted."""
        reasons, options = verdicts.trouble(row), fit.options
        if not reasons:
            row.notes.extend(filter(None, [verdicts.caution(row)]))
            return True
        asked = options.get("num_samples", 0) * options.get("num_chains", 0)
        cut_short = (row.draws or 0) < asked
        advice = verdicts.advice(row.engine, reasons, cut_short)
        row.notes.append(advice + (self._fewer_rows() if cut_short else ""))
        return False

    def _fail(self, engine: str, error: Exception) -> None:
        if engine == self.reference:
            self.reference = None
        text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        if (engine in self.candidates or corrects(engine)) and isinstance(error, TooLarge):
            text += self._fewer_rows()
        self.rows[engine] = Row(engine=engine, error=text)
        self.report(engine, plain(asdict(self.rows[engine])))

    def _fewer_rows(self) -> str:
        """Advice to compare on fewer rows, if there are many."""
        rows = self.task.training.num_rows
        if rows <= 2 * MIN_ROWS:
            return ""
        fewer = max(MIN_ROWS, rows // 10)
        return f" To compare on a random part of the rows, add --rows {fewer} (rows= in Python)."
