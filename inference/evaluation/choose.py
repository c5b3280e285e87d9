"""`choose`: fits that differ in a few settings, scored on the same held-out rows.

    found = choose("lda", data, num_topics=[10, 20, 40])
    print(found)                      # a table, and what it says
    found.best                        # {"num_topics": 40}

Every candidate is fitted to the same rows by the same key and scored on the same held-out ones.
Each number of factors has programs of its own: surplus factors that pad all to one size would take
part in the rows' even starts, from which most engines begin, and so change the answer. Programs
are kept on disk, so that only the first run of a machine compiles.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.core.compilation import keep_programs
from inference.core.completion import has_topics
from inference.core.engine import Engine
from inference.core.problem import make_problem
from inference.core.registry import engines, load_engine, load_with_options
from inference.evaluation.choice import Choice, Row, label
from inference.evaluation.coherence import coherence, diversity
from inference.evaluation.heldout import UNITS, RowScores, row_scores
from inference.evaluation.ratings import warn_of_unknown
from inference.evaluation.scores import Measure, ratio
from inference.evaluation.splits import hold_out
from inference.evaluation.topics import topics
from inference.run.checks import check_suits
from inference.run.fit import default_engine, fit
from pp_models.data.coerce import as_data
from pp_models.data.rated import match_ratings
from pp_models.data.types import Data
from pp_models.errors import Diverged, InputError, TooLarge, unknown
from pp_models.models import load


class Candidate(NamedTuple):
    """varied: the settings in which candidates differ, the engine among them if there are several.
    engine, hyper, options: what is fitted."""

    varied: dict[str, Any]
    engine: str
    hyper: dict[str, Any]
    options: dict[str, Any]


def choose(
    model: str,
    data: Any,
    engine: str | list[str] | None = None,
    *,
    heldout: Any = None,
    share: float = 0.2,
    seed: int = 0,
    key: jax.Array | None = None,
    reference: Any = None,
    num_words: int = 10,
    max_seconds: float | None = None,
    keep_fits: bool = False,
    progress: bool | None = None,
    watch: Callable[[Row], Any] | None = None,
    **settings: Any,
) -> Choice:
    """Compare values of hyper-parameters, options or engines by scores on held-out data.

    settings:  hyper-parameters and engine options by name; those given as a list are varied, and so
               is `engine`. Several lists make a grid. A tuple or an array is one value
    heldout:   rows to score, or ratings of the same users and items; by default a random `share` of
               the data, which `seed` decides, is left out of the fits
    key, max_seconds: of every fit, as for `inference.fit`
    reference, num_words: documents by which coherence is measured (default: the held-out ones),
               and top words of a topic for coherence and diversity
    keep_fits: keep every fit in `.fits`, the best one being `.fit`
    progress, watch: True or False to force the bars; called with each `Row` when it is scored

    The best candidate has the highest score. Scores are compared row by row: `difference` is a
    score minus the best one, with the standard error of that, smaller than those of the scores.
    Candidates within one such error are `tied`: these data cannot tell them from the best. Errors
    are over held-out rows; another start of a fit may change more.

    >>> import inference, pp_models
    >>> X = [[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 6, 2], [0, 1, 3, 4], [5, 2, 0, 0], [0, 0, 4, 3]]
    >>> found = inference.choose("lda", pp_models.data.counts(X), num_topics=[1, 2], num_words=2)
    >>> found.best
    {'num_topics': 2}
    """
    declared = load(model)
    candidates = list(_candidates(declared, engine or default_engine(declared.name), settings))
    given = data, heldout, reference
    training, heldout, reference = _split(declared.kind, given, share, seed)
    _check(model, training, (heldout, reference), candidates)
    keep_programs()
    wishes = {"max_seconds": max_seconds, "progress": progress, "key": key}
    rows, scores, fits = [], [], []
    for place, candidate in enumerate(candidates):
        told = f"{place + 1} of {len(candidates)}, {label(candidate.varied)}"
        asked = {**wishes, "progress": told if progress is None else progress}
        fitted = _fitted(model, training, candidate, asked)
        row, found = _judged(candidate, fitted, heldout, reference, num_words)
        rows.append(row)
        scores.append(found)
        fits += [None if isinstance(fitted, str) else fitted] if keep_fits else []
        if watch is not None:
            watch(row)
    units = UNITS[declared.kind]
    return Choice(model, units, heldout.num_rows, _compared(rows, scores), tuple(fits))


def _split(kind: str, given: tuple[Any, Any, Any], share: float, seed: int) -> list[Any]:
    """The rows to fit, those to score, and the documents for coherence or None."""
    data = as_data(given[0], kind)
    heldout, reference = (
        None if x is None else as_data(x, of, data.column_names)
        for x, of in zip(given[1:], (kind, "counts"), strict=True)
    )
    if heldout is None:
        if not 0 < share < 1:
            raise InputError(f"share must be between 0 and 1, not {share!r}.")
        split = hold_out(data, share, seed)
        data, heldout = split.training, split.heldout
    elif data.kind == heldout.kind == "ratings":
        all_of_them, shape = heldout, (data.num_rows, data.num_columns)
        heldout, dropped = match_ratings(all_of_them, data.row_names, data.column_names, shape)
        warn_of_unknown(dropped, all_of_them)
    return [data, heldout, heldout if reference is None and kind == "counts" else reference]


# What is compared ---------------------------------------------------------------------------------


def _candidates(model: Any, engine: Any, settings: Mapping[str, Any]) -> Iterator[Candidate]:
    """All combinations of the listed values, each once."""
    names = engine if isinstance(engine, list) else [engine]
    found = {name: load_engine(name) for name in dict.fromkeys(names)}
    _check_settings(model, found, settings)
    lists = {name: x for name, x in {"engine": engine, **settings}.items() if isinstance(x, list)}
    for name, values in lists.items():
        if not values:
            raise InputError(f"{name} is an empty list: give the values to compare.")
    if not lists:
        raise InputError(
            "There is nothing to choose from: give a list of values, such as "
            f"{next(iter(model.Hyper._fields))}=[...], or of engines."
        )
    fixed = {name: x for name, x in {"engine": engine, **settings}.items() if name not in lists}
    seen = set()
    for combination in itertools.product(*lists.values()):
        varied = dict(zip(lists, combination, strict=True))
        given = fixed | varied
        chosen = given.pop("engine")
        fields = found[chosen].Options._fields
        hyper = {name: x for name, x in given.items() if name in model.Hyper._fields}
        options = {name: x for name, x in given.items() if name in fields and name not in hyper}
        known = {"engine", *hyper, *options}  # an option of another engine makes no difference
        varied = {name: x for name, x in varied.items() if name in known}
        if label(varied) not in seen:
            seen.add(label(varied))
            yield Candidate(varied, chosen, hyper, options)


def _check_settings(model: Any, found: Mapping[str, Engine], settings: Mapping[str, Any]) -> None:
    """Refuse what is neither a hyper-parameter nor an option of one of the engines."""
    known = {*model.Hyper._fields, *(name for x in found.values() for name in x.Options._fields)}
    for name in settings:
        if name in known:
            continue
        owners = [x for x in engines() if name in load_engine(x).Options._fields]
        if owners:
            raise InputError(
                f"{name} is an option of {', '.join(owners)}, not of {', '.join(found)}: choose "
                "one of these engines, or leave it out."
            )
        raise unknown("hyper-parameter or option", name, known)


def _check(
    model: str, training: Data, others: tuple[Data, Data | None], candidates: list[Candidate]
) -> None:
    """Refuse every candidate that cannot be fitted, before the first one is.

    others: the held-out data and the documents of the reference
    """
    heldout, reference = others
    if heldout.kind != training.kind or heldout.num_columns != training.num_columns:
        raise InputError(
            f"The held-out data are {heldout.kind} with {heldout.num_columns} columns, those to "
            f"fit {training.kind} with {training.num_columns}: use one kind and vocabulary."
        )
    _check_names(training, {"held-out data": heldout, "documents of the reference": reference})
    for candidate in candidates:
        engine, _ = load_with_options(candidate.engine, candidate.options)
        problem = make_problem(model, training, candidate.hyper)
        check_suits(engine, problem)
        if training.kind == "dense" and problem.model.local:
            raise InputError(
                f"There is no held-out score of {model}: its rows have sites of their own, and "
                "dense rows are scored by global sites alone."
            )


def _check_names(training: Data, others: Mapping[str, Data | None]) -> None:
    """Refuse data whose columns are others than those to fit, or in another order."""
    names = training.column_names
    for what, data in others.items():
        if data is None or None in (names, data.column_names) or data.column_names == names:
            continue
        raise InputError(
            f"The columns of the {what} have other names than those to fit, or another order: "
            "count texts by the same words (vocabulary=data.column_names), else reorder them."
        )


# One candidate ------------------------------------------------------------------------------------


def _fitted(model: str, training: Data, candidate: Candidate, asked: Mapping[str, Any]) -> Any:
    """The fit, or why there is none."""
    hyper, options = candidate.hyper, candidate.options
    try:
        return fit(model, training, candidate.engine, hyper, **asked, **options)
    except (Diverged, TooLarge) as error:
        return str(error)


def _judged(
    candidate: Candidate, fitted: Any, heldout: Data, reference: Data | None, num_words: int
) -> tuple[Row, RowScores | None]:
    """The measures of a fit; of one that failed, a row that says so."""
    if isinstance(fitted, str):
        return Row(candidate.varied, failed=fitted), None
    scores = row_scores(fitted, heldout)
    if scores is None:
        raise InputError("There is nothing to score: the held-out data are empty.")
    value, error = ratio(scores.sums, scores.sizes)
    about = _of_topics(fitted, reference, num_words) if has_topics(fitted.model) else {}
    return Row(candidate.varied, value, error, seconds=fitted.seconds, **about), scores


def _of_topics(found: Any, reference: Data | None, num_words: int) -> dict[str, Any]:
    """Coherence with its error over topics, diversity, and the effective number of topics: the
    exponential of the entropy of their prevalence."""
    share = topics(found).prevalence
    entropy = -np.sum(share * np.log(np.where(share > 0, share, 1)))
    size = min(num_words, found.data.num_columns)
    measured: dict[str, Any] = {
        "diversity": diversity(found, size).value,
        "effective": float(np.exp(entropy)),
    }
    if reference is not None and size > 1:
        together: Measure = coherence(found, reference, num_words=size)
        measured |= {"coherence": together.value, "coherence_error": together.standard_error}
    return measured


def _compared(rows: list[Row], scores: list[RowScores | None]) -> tuple[Row, ...]:
    """The rows with their differences to the best one."""
    values = np.array([row.score for row in rows])
    if np.isnan(values).all():
        raise Diverged(f"Every fit failed. The first: {rows[0].failed}")
    best = scores[int(np.nanargmax(values))]
    found = []
    for row, own in zip(rows, scores, strict=True):
        if own is None or best is None:
            found.append(row)
            continue
        difference, error = own.minus(best)
        tied = not -difference > error  # an unknown error, of a single row, tells nothing apart
        found.append(row._replace(difference=difference, difference_error=error, tied=tied))
    return tuple(found)
