"""The result of `choose`: a table, what it says in sentences, and a figure."""

import math
from typing import Any, NamedTuple

import numpy as np

from inference.core.optional import load_matplotlib

NAN = float("nan")


class Row(NamedTuple):
    """One candidate.

    settings:    those in which candidates differ
    score:       on the held-out data, with its standard error over rows; larger is better
    difference:  the score minus the best one's, with the standard error of the paired difference
    tied:        whether the difference is within one standard error; of the best, True
    coherence:   mean NPMI of the topics' top words, with its standard error over topics
    diversity:   share of distinct words among the topics' top words
    effective:   exp of the entropy of the topics' prevalence: how many there are, were all of one
                 size
    seconds:     of fitting, compiling included
    failed:      why there is no fit, or nothing
    """

    settings: dict[str, Any]
    score: float = NAN
    error: float = NAN
    difference: float = NAN
    difference_error: float = NAN
    tied: bool = False
    coherence: float = NAN
    coherence_error: float = NAN
    diversity: float = NAN
    effective: float = NAN
    seconds: float = NAN
    failed: str = ""


# The columns of a printed table: field -> format. Columns without numbers are left out.
PRINTED = {
    "score": "{:.4f}",
    "error": "{:.4f}",
    "difference": "{:.4f}",
    "difference_error": "{:.4f}",
    "coherence": "{:.3f}",
    "diversity": "{:.3f}",
    "effective": "{:.1f}",
    "seconds": "{:.1f}",
}
HEADS = {
    "error": "±",
    "difference": "minus best",
    "difference_error": "±",
    "effective": "effective topics",
}


def label(settings: dict[str, Any]) -> str:
    """Settings on a line."""
    return ", ".join(f"{name}={_plain(x)}" for name, x in settings.items())


def _plain(value: Any) -> str:
    numbers = np.asarray(value)
    return str(value) if numbers.ndim == 0 else str(numbers.tolist())


class Choice(NamedTuple):
    """Candidates compared by `choose`, in the order in which they were given.

    units: of the scores. num_rows: held-out rows. fits: one for each row if they were kept, None
    for a fit that failed.
    """

    model: str
    units: str
    num_rows: int
    rows: tuple[Row, ...]
    fits: tuple[Any, ...] = ()

    @property
    def _place(self) -> int:
        return int(np.nanargmax([row.score for row in self.rows]))

    @property
    def best(self) -> dict[str, Any]:
        """The settings with the highest score."""
        return self.rows[self._place].settings

    @property
    def fit(self) -> Any:
        """The fit with the highest score; None unless fits were kept."""
        return self.fits[self._place] if self.fits else None

    @property
    def tied(self) -> list[dict[str, Any]]:
        """The settings that these data cannot tell from the best, the best among them."""
        return [row.settings for row in self.rows if row.tied]

    def records(self) -> list[dict[str, Any]]:
        """A dictionary for each candidate: its settings, then its measures."""
        names = self._settings()
        measures = [name for name in Row._fields if name != "settings"]
        return [
            {**{name: row.settings.get(name) for name in names}}
            | {name: getattr(row, name) for name in measures}
            for row in self.rows
        ]

    def table(self) -> Any:
        """A pandas DataFrame of `records`, or the records where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            return self.records()
        return pandas.DataFrame(self.records())

    def _settings(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.settings))

    def _cells(self) -> list[list[str]]:
        names = self._settings()
        shown = [n for n in PRINTED if any(not math.isnan(getattr(r, n)) for r in self.rows)]
        cells = [["", *names, *(HEADS.get(name, name) for name in shown)]]
        for place, row in enumerate(self.rows):
            mark = "best" if place == self._place else "tied" if row.tied else ""
            values = (getattr(row, name) for name in shown)
            printed = [
                "" if math.isnan(x) else PRINTED[name].format(x)
                for name, x in zip(shown, values, strict=True)
            ]
            own = [_plain(row.settings[name]) if name in row.settings else "" for name in names]
            cells.append([mark, *own, *printed])
        return cells

    @property
    def sentences(self) -> list[str]:
        """What the table says."""
        return _sentences(self)

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for row in cells:
            first, *rest = (
                x.ljust(w) if i == 0 else x.rjust(w)
                for i, (x, w) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  ".join([first, *rest]).rstrip())
        return "\n".join([*lines, "", *self.sentences])

    def __repr__(self) -> str:
        return str(self)

    def figure(self) -> Any:
        """Scores with their errors, and below them coherence, against the first varied setting.

        A bar is the standard error of the difference to the best; it tells candidates apart, which
        the larger error of the score itself does not.
        """
        return _figure(self)


# Sentences ----------------------------------------------------------------------------------------


def _sentences(found: Choice) -> list[str]:
    best = found.rows[found._place]
    single = len(found._settings()) == 1

    def name(row: Row) -> str:
        return _plain(next(iter(row.settings.values()))) if single else label(row.settings)

    told = f"{label(best.settings)} scores highest: {best.score:.4f}"
    if not math.isnan(best.error):
        told += f" ± {best.error:.4f}"
    lines = [f"{told} {found.units}."]
    others = [row for row in found.rows if row is not best and not row.failed]
    tied = [row for row in others if row.tied]
    if tied and math.isnan(best.error):
        lines.append("One held-out row cannot tell candidates apart: hold out more.")
    elif tied:
        names = [name(best), *(name(row) for row in tied)]
        gaps = ", ".join(f"{_gap(row)}" for row in tied)
        lines.append(
            f"{_listed(names)} cannot be told apart on these data: the difference to the best is "
            f"{gaps}, within one standard error."
        )
    for row in others:
        if not row.tied:
            size = -row.difference / row.difference_error if row.difference_error else math.inf
            sure = "" if size >= 2 else ", less than two standard errors"
            lines.append(f"{name(row)} scores lower by {_gap(row)}{sure}.")
    lines += [f"{name(row)} failed: {row.failed}" for row in found.rows if row.failed]
    return [*lines, *_edges(found, best)]


def _gap(row: Row) -> str:
    return f"{abs(row.difference):.4f} ± {row.difference_error:.4f}"


def _edges(found: Choice, best: Row) -> list[str]:
    """Where the best value is the largest or the smallest of three or more."""
    lines = []
    for name, value in best.settings.items():
        tried = [row.settings[name] for row in found.rows if name in row.settings]
        if any(isinstance(x, bool | str) or np.ndim(x) for x in tried) or len(set(tried)) < 3:
            continue
        for word, edge, more in (("largest", max, "larger"), ("smallest", min, "smaller")):
            if value == edge(tried):
                lines.append(f"{value} is the {word} {name} tried: a {more} one may score higher.")
    return lines


def _listed(names: list[str]) -> str:
    *rest, last = names
    return f"{', '.join(rest)} and {last}"


# Figure -------------------------------------------------------------------------------------------


def _places(found: Choice) -> tuple[np.ndarray, list[str] | None]:
    """Where the candidates are drawn: at their values, or side by side with their names."""
    names = found._settings()
    values = [row.settings.get(names[0]) for row in found.rows]
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)
    if len(names) == 1 and numbers:
        return np.asarray(values, float), None
    texts = [label(row.settings).replace(", ", "\n") for row in found.rows]
    if len(names) == 1:
        texts = [_plain(x) for x in values]
    return np.arange(len(found.rows)), texts


def _figure(found: Choice) -> Any:
    matplotlib = load_matplotlib()
    places, texts = _places(found)
    columns = {name: np.array([getattr(r, name) for r in found.rows]) for name in PRINTED}
    panels = [("score", f"held-out score\n({found.units})", columns["difference_error"])]
    if not np.isnan(columns["coherence"]).all():
        errors = np.array([row.coherence_error for row in found.rows])
        panels.append(("coherence", "coherence (NPMI)", errors))
    width = 5 if texts is None else max(5, 1 + 0.9 * len(texts))
    size = (width, 1 + 2.1 * len(panels))
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    drawn = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    order, style = np.argsort(places, kind="stable"), "-" if texts is None else ""
    for axes, (name, words, errors) in zip(drawn, panels, strict=True):
        bars = np.nan_to_num(errors[order])
        axes.errorbar(places[order], columns[name][order], bars, fmt=f"o{style}", capsize=3)
        axes.set_ylabel(words)
        axes.grid(alpha=0.3)
    best = found._place
    drawn[0].plot(places[best], columns["score"][best], "o", markersize=11, fillstyle="none")
    told = "bars of scores: standard errors of the difference to the best"
    drawn[0].set_title(f"{found.model}; {told}", fontsize=8)
    if texts is None:
        drawn[-1].set_xlabel(found._settings()[0])
        drawn[-1].set_xticks(sorted(set(places)))
    else:
        drawn[-1].set_xticks(places, texts)
    return figure
