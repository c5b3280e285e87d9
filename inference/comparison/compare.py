"""`compare`: fit a model by several engines and judge them against a reference posterior.

All engines fit the same nine tenths of the rows; the rest scores them. Each posterior is measured
in units of the reference's posterior sd (`measure`, `agreement`) and judged in words (`verdicts`).
The reference is a Markov chain that has converged. Where there is none, engines are compared by
bounds and held-out scores, and judged within the modes that they found (`modes`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray

from inference.comparison import results, summary
from inference.comparison.loop import MIN_ROWS, Budget, Run, Task
from inference.comparison.measure import Chains, Draws
from inference.comparison.record import Summary
from inference.core import align, registry
from inference.core.provenance import plain, versions
from inference.core.registry import default_reference, load_compared, load_engine, make_options
from inference.core.settings import read_key
from inference.evaluation import splits
from pp_models import datasets
from pp_models import models as discovery
from pp_models.data.coerce import as_data
from pp_models.data.types import Data
from pp_models.errors import InputError, unknown
from pp_models.model import Model, check_count, check_joint, declare, make_hyper

BUDGET = 600.0  # seconds
NUM_DRAWS = {True: 1000, False: 2000}  # of each posterior, if the comparison is quick or not
QUICK_SIZE = {"num_rows": 40, "num_columns": 15}  # of data drawn for a quick comparison


class Comparison(NamedTuple):
    """Every engine's fit and its agreement with the reference.

    data:       all rows, the held-out ones included
    reference:  the engine judged by, or None
    fits:       engine -> Fit, the reference first; engines that failed are missing
    draws:      engine -> site -> (n, ...) aligned draws, one of them for a point estimate
    summary:    the contents of `summary.json`
    quantities: every compared number, by engine; `.to_dataframe()` is the tidy table
    chains:     engine -> functionals of its Markov chains
    truth:      the values that synthetic data were drawn with, aligned, local sites of the fitted
                rows only; or None
    pivot:      what draws were aligned to
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
    pivot: Draws | None = None


def compare(
    model_name: str,
    data: Any = None,
    reference: str | None = None,
    engines: Iterable[str] | None = None,
    hyper: Any = None,
    key: Any = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Any = None,
    num_draws: int | None = None,
    on_result: Callable[[str, dict[str, Any]], None] | None = None,
    truth: Mapping[str, Any] | None = None,
    *,
    quick: bool = False,
    budget: float | None = BUDGET,
    rows: int | None = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
    command: str | None = None,
    on_begin: Callable[[str, str], None] | None = None,
) -> Comparison:
    """Fit the model by the reference and by each engine, and measure how far they are apart.

    data:      as for `fit`; default: drawn from the model's prior (`datasets.synthetic`)
    reference: the sampler to judge by (default: of the model's first sampler and those among the
               engines, the best); "none" to judge nobody
    engines:   default: those that suit the model. "cavi+lr": the fit of cavi, with the widths of
               linear response. options: by engine, of `fit`
    num_draws: of each posterior, all chains together (default: 2000, quick 1000)
    on_result: called with an engine's name and its row of the summary as soon as it is judged
    truth:     site -> the value that the data were drawn with, where it is known
    quick:     shorter fits and chains, and less data where they are drawn here
    budget:    seconds; three quarters are for fits, of which samplers get three shares of what is
               left, other engines one, and each at least a fifth of its share of the whole. The
               rest judges engines within their modes. Compiling is not cut short. None: no limit
    rows:      compare on so many random rows
    folder:    keeps finished fits; the same call goes on there. overwrite: begin anew
    command:   how to repeat this, for the report
    on_begin:  called with an engine's name and its place, before it is fitted

    An engine that fails has its error in its row. Ctrl-C ends it (`summary["partial"]`).

    >>> import inference
    >>> short = {"gibbs": {"num_samples": 400, "num_warmup": 100}}
    >>> result = inference.compare("bernoulli_mixture", engines=["map"], quick=True, options=short)
    >>> result.summary["engines"]["map"]["kind"]
    'point'
    """
    key = read_key(key)
    names = None if engines is None else _named(engines)
    every = _check(reference, names, options or {}, budget, quick)
    size = check_count("num_draws", NUM_DRAWS[quick] if num_draws is None else num_draws)
    problem = _problem(discovery.load(model_name), data, hyper, key, truth, quick, rows)
    candidates, others = _choose(problem.model, problem.hyper, reference, names, quick)
    check_joint(problem.model, problem.hyper, problem.training)
    place = None if folder is None else _open(Path(folder), overwrite, problem, key)
    task = Task(*problem[:4], key, every, progress, size, quick, place)
    run = Run(task, candidates, on_result or _say_nothing, on_begin or _say_nothing)
    run.all([*candidates, *others], Budget(budget))
    return _finish(run, problem, budget, command)


def _say_nothing(engine: str, what: Any) -> None:
    pass


class Problem(NamedTuple):
    """Everything that is compared on. fitted: the fitted rows' places in the data as given."""

    model: Model
    hyper: Any
    training: Data
    heldout: Data | None
    data: Data
    truth: Mapping[str, Any] | None
    fitted: np.ndarray


def _finish(run: Run, problem: Problem, budget: float | None, command: str | None) -> Comparison:
    """Put the results together."""
    model, hyper, training, heldout, data = problem[:5]
    if run.stick is None:
        errors = " ".join(f"{engine}: {row.error}" for engine, row in run.rows.items())
        raise InputError(f"No engine could be fitted. {errors}")
    ranked = summary.ranking(run.rows, run.reference, run.converged)
    told = Summary(
        model=model.name,
        title=model.title,
        kind=model.kind,
        symmetry=model.symmetry,
        hyper=hyper._asdict(),
        reference=run.reference,
        converged=run.converged,
        partial=run.partial,
        quick=run.task.quick,
        budget=budget,
        pivot=align.pivot_in_words(model),
        evidence=run.evidence,
        engines={engine: run.rows[engine] for engine in ranked},
        options={name: dict(one) for name, one in run.task.options.items()},
        num_draws=run.task.num_draws,
        data=summary.data_size(data, training, heldout),
        data_hash=data.hash,
        seed=summary.seed_of(run.task.key),
        versions=versions(),
        command=command,
    )
    measured = {engine: run.measured[engine] for engine in ranked if engine in run.measured}
    first = [run.reference] if run.reference else []
    return Comparison(
        model,
        hyper,
        data,
        run.reference,
        {engine: run.fits[engine] for engine in (*first, *run.fits)},
        {engine: one.draws for engine, one in measured.items()},
        plain(asdict(told)),
        summary.quantity_table(model, training, run.stick, measured),
        {engine: one.chains for engine, one in measured.items() if one.chains is not None},
        _align_truth(problem, run.stick.pivot),
        run.stick.pivot,
    )


def _align_truth(problem: Problem, pivot: Draws) -> Draws | None:
    model, truth = problem.model, problem.truth
    if truth is None or not all(site in truth for site in model.families):
        return None
    values = {site: np.asarray(truth[site]) for site in model.families}
    values |= {site: values[site][problem.fitted] for site in model.local}
    return align.align_draws(model, values, pivot)


# Checks and choices -------------------------------------------------------------------------------


def _named(engines: Iterable[str]) -> list[str]:
    return registry.with_corrected([engines] if isinstance(engines, str) else engines)


def _check(
    reference: Any, engines: list[str] | None, options: Mapping[str, Any], budget: Any, quick: bool
) -> dict[str, dict[str, Any]]:
    """Check all names, options and numbers; return the options by engine."""
    number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if budget is not None and not (number and 0 < budget < float("inf")):
        raise InputError(f"budget must be a positive number of seconds, not {budget!r}.")
    if engines is not None and not engines:
        raise InputError("There are no engines to compare: name at least one.")
    judges = [] if reference in (None, "none") else [reference]
    chosen = {name: load_compared(name) for name in (*judges, *(engines or []))}
    for name in options:
        if engines is not None and name not in chosen and load_compared(name).kind != "draws":
            raise unknown("engine in options", name, chosen)
        chosen.setdefault(name, load_compared(name))
    for name, engine in chosen.items():
        make_options(engine, dict(options.get(name, {})))
    if judges and chosen[reference].kind != "draws":
        raise InputError(
            f"Engine {reference!r} is no sampler, and engines are judged by a Markov chain: take "
            "gibbs or nuts."
        )
    if not quick:
        return {name: dict(one) for name, one in options.items()}
    return {
        name: {**load_engine(name).quick, **options.get(name, {})} for name in registry.engines()
    }


def _choose(
    model: Model, hyper: Any, reference: str | None, engines: list[str] | None, quick: bool
) -> tuple[list[str], list[str]]:
    """The samplers that may be the reference, and the other engines."""
    chosen = registry.default_rows(model, hyper, quick) if engines is None else engines
    if reference is not None:
        candidates = [] if reference == "none" else [reference]
    else:
        first = default_reference(model, hyper, quick and engines is None)
        samplers = [name for name in chosen if _samples(name, model)]
        candidates = list(dict.fromkeys([first, *samplers])) if first else []
    others = [name for name in chosen if name not in candidates]
    if len(candidates) + len(others) < 2:
        alone = (candidates or others)[0]
        raise InputError(
            f"There is nothing to compare with {alone!r}: name at least one other engine."
        )
    return candidates, others


def _samples(name: str, model: Model) -> bool:
    return load_compared(name).kind == "draws" and not load_compared(name).suits(model)


def _problem(
    model: Model,
    data: Any,
    hyper: Any,
    key: jax.Array,
    truth: Mapping[str, Any] | None,
    quick: bool,
    rows: int | None,
) -> Problem:
    """Draw data where none are given, take some of their rows, and hold a tenth out."""
    stated, drawn = hyper, data is None
    if data is None:
        hyper, data, truth = draw_data(model, key, hyper, quick)
    data = as_data(data, model.kind)
    model, hyper = declare(model, hyper, data)
    seed = np.asarray(jax.random.key_data(key)).ravel()
    taken = np.arange(data.num_rows)
    if rows is not None:
        check_count("rows", rows)
        if rows < data.num_rows:
            taken = np.sort(np.random.default_rng(seed).choice(data.num_rows, rows, replace=False))
            data = data.select(taken)
    if data.num_rows < MIN_ROWS:
        hyper = hyper if drawn else make_hyper(model, stated, data)
        return Problem(model, hyper, data, None, data, truth, taken)
    training, heldout, kept = splits.hold_out(data, seed=seed)
    if not drawn:
        hyper = make_hyper(model, stated, training)  # defaults must not see what is held out
    return Problem(model, hyper, training, heldout, data, truth, taken[kept])


def draw_data(
    model: Model, key: jax.Array, hyper: Any, quick: bool
) -> tuple[Any, Data, dict[str, np.ndarray]]:
    """Hyper-parameters, data drawn from the model's prior, and the values behind them."""
    return datasets.synthetic(model, key, hyper=hyper, **(QUICK_SIZE if quick else {}))


def _open(path: Path, overwrite: bool, problem: Problem, key: jax.Array) -> results.Folder:
    recipe = {
        "model": problem.model.name,
        "hyper": plain(problem.hyper._asdict()),
        "data": problem.data.hash,
        "seed": summary.seed_of(key),
    }
    if overwrite:
        results.clear(path)
    return results.open_folder(path, recipe)
