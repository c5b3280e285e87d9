"""The folder of a comparison, from which an interrupted comparison goes on.

    DIR/recipe.json               model, hyper-parameters, data and seed that all fits share
    DIR/fits/ENGINE.npz           a finished fit (`io.fits`)
    DIR/fits/ENGINE.json          its options, warnings and held-out scores; written last
    DIR/fits/ENGINE.checkpoint    the state of a fit that is under way (`run.checkpoint`)

`report.page` writes the report and its files.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from inference.core.registry import compared_names
from inference.io.fits import load
from pp_models.data.files import explained, write_whole
from pp_models.data.types import Data
from pp_models.errors import InputError

FORMAT = 1
WRITTEN = ("recipe.json", "report.html", "summary.json", "agreement.csv")


class Finished(NamedTuple):
    """A fit, its warnings, and [seconds, held-out score] during the fit."""

    fit: Any
    notes: list[str]
    curve: list[list[float]]


WORTH = 1.2  # times the seconds that a fit was cut short after: with less it is not fitted again


class Folder(NamedTuple):
    """Where finished fits that share a recipe are kept."""

    path: Path

    def _file(self, engine: str, suffix: str) -> Path:
        return self.path / "fits" / f"{engine}.{suffix}"

    def load(
        self, engine: str, options: dict[str, Any], data: Data, seconds: float | None = None
    ) -> Finished | None:
        """The finished fit of an engine with these options; None to fit it (again).

        seconds: time for a new fit (None: no limit). A fit that was cut short after much less is
        not used.
        """
        try:
            about = json.loads(self._file(engine, "json").read_text(encoding="utf-8"))
            if about["format"] != FORMAT or about["options"] != options:
                return None
            given = about["cut_after"]
            if given is not None and (seconds is None or seconds > WORTH * given):
                return None
            notes = [str(note) for note in about["notes"]]
            curve = [[float(second), float(score)] for second, score in about["curve"]]
            return Finished(load(self._file(engine, "npz"), data), notes, curve)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, InputError):
            return None  # missing or damaged

    def save(
        self, engine: str, options: dict[str, Any], done: Finished, cut_after: float | None = None
    ) -> None:
        """Keep a fit. cut_after: the seconds that it was given, where they did not suffice."""
        about = {"format": FORMAT, "options": options, "notes": done.notes, "curve": done.curve}
        file = self._file(engine, "json")
        with explained(self.path):
            file.unlink(missing_ok=True)  # first: the new fit may have other options
            done.fit.save(self._file(engine, "npz"))
            _write(file, about | {"cut_after": cut_after})

    def checkpoint(self, engine: str) -> Path:
        """The checkpoint of an engine's fit."""
        return self._file(engine, "checkpoint")


def _write(file: Path, value: Any) -> None:
    text = json.dumps(value, indent=1) + "\n"
    write_whole(file, lambda path: path.write_text(text, encoding="utf-8"))


def open_folder(path: str | Path, recipe: dict[str, Any]) -> Folder:
    """Open or make the folder. One with results of another recipe is refused."""
    file = Path(path) / "recipe.json"
    recipe = {"format": FORMAT, **json.loads(json.dumps(recipe))}
    advice = "choose another folder (--out), or replace what is there (--overwrite)"
    if file.exists():
        try:
            before = dict(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{file} cannot be read ({error}): {advice}.") from error
        if differs := _differences(before, recipe):
            told = f"{path} holds a comparison made with {', '.join(differs)}"
            raise InputError(f"{told}: give what it was made with to continue it, {advice}.")
    else:
        with explained(Path(path)):
            _write(file, recipe)
    return Folder(Path(path))


WORDS = {
    "format": "another version of pp-models",
    "data": "other data (another file, or other rows of it)",
}


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What two recipes do not share, in words; of two models, only their names."""
    before, now = _flat(before), _flat(now)
    names = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    names = ["model"] if "model" in names else names
    return [WORDS.get(x, f"{x} {before.get(x)} (now {now.get(x)})") for x in names]


def _flat(recipe: dict[str, Any]) -> dict[str, Any]:
    hyper = recipe.get("hyper")
    return recipe | {"hyper": None} | hyper if isinstance(hyper, dict) else recipe


def clear(path: Path) -> None:
    """Remove the files of a comparison from a folder; other files stay."""
    names = compared_names()
    fits = [f"fits/{name}.{end}" for name in names for end in ("npz", "json", "checkpoint")]
    with explained(path):
        for name in (*WRITTEN, *(f"{name}.nc" for name in names), *fits):
            (path / name).unlink(missing_ok=True)


def tidy(path: Path, compared: Iterable[str]) -> None:
    """Remove posteriors of engines that the comparison just written does not contain."""
    with explained(path):
        for engine in set(compared_names()) - set(compared):
            (path / f"{engine}.nc").unlink(missing_ok=True)
