"""The folder of a comparison: fits that are done, so that an interrupted comparison goes on where it stopped.

    DIR/recipe.json          model, hyper-parameters, data, seed: what all fits in the folder share
    DIR/fits/<engine>.npz    a finished fit (`storage`); <engine>.json beside it: its options, warnings, and held-out scores on the way
    DIR/fits/<engine>.checkpoint  of a fit that is under way (`checkpoints`)

The .json is written last: a fit without it is not there. The report and its files are written by `report`.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import inference
from inference.core.registry import engines
from pp_models.data.files import explained, write_whole
from pp_models.data.types import Data
from pp_models.errors import InputError

FORMAT = 1


class Finished(NamedTuple):
    """A fit, what it warned of, and [seconds, held-out score] on the way."""

    fit: Any
    notes: list[str]
    curve: list[list[float]]


class Folder(NamedTuple):
    """Where finished fits are kept that share a recipe."""

    path: Path

    def load(
        self, engine: str, options: dict[str, Any], data: Data, seconds: float | None = None
    ) -> Finished | None:
        """The finished fit of an engine with these options; None where there is none, or one that cannot be read.

        seconds: there are for fitting anew (None: any number), which is done where the fit was cut short after fewer.
        """
        try:
            about = json.loads((self.path / "fits" / f"{engine}.json").read_text(encoding="utf-8"))
            if about["format"] != FORMAT or about["options"] != options:
                return None
            if about["cut_after"] is not None and (seconds is None or seconds > about["cut_after"]):
                return None
            notes, curve = (
                list(about["notes"]),
                [[float(x) for x in pair] for pair in about["curve"]],
            )
            if not all(isinstance(note, str) for note in notes) or any(
                len(pair) != 2 for pair in curve
            ):
                return None
            return Finished(
                inference.load(self.path / "fits" / f"{engine}.npz", data), notes, curve
            )
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
            InputError,
        ):  # not there, or damaged: fitted again
            return None

    def save(
        self, engine: str, options: dict[str, Any], done: Finished, cut_after: float | None = None
    ) -> None:
        """Keep a finished fit. cut_after: the seconds that it was given, where they did not suffice."""
        about_fit = {
            "format": FORMAT,
            "options": options,
            "notes": done.notes,
            "curve": done.curve,
            "cut_after": cut_after,
        }
        text = json.dumps(about_fit, indent=1) + "\n"
        with explained(self.path):
            about = self.path / "fits" / f"{engine}.json"
            about.unlink(
                missing_ok=True
            )  # first: a new fit must not be taken for one with the old options
            done.fit.save(self.path / "fits" / f"{engine}.npz")
            write_whole(about, lambda path: path.write_text(text, encoding="utf-8"))

    def checkpoint(self, engine: str) -> Path:
        """Where the state of an engine that is under way is kept."""
        return self.path / "fits" / f"{engine}.checkpoint"


def open_folder(path: str | Path, recipe: dict[str, Any]) -> Folder:
    """The folder, made where it is missing. One with results of another recipe is refused: nothing already there is lost."""
    path = Path(path)
    file = path / "recipe.json"
    recipe = {"format": FORMAT, **json.loads(json.dumps(recipe))}
    if file.exists():
        try:
            before = dict(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"{file} cannot be read ({error}): choose another folder, or overwrite it (--overwrite)."
            ) from error
        differs = [name for name in recipe if before.get(name) != recipe[name]]
        if differs:
            raise InputError(
                f"{path} holds a comparison with another {' and '.join(differs)}: choose another folder, or overwrite it (--overwrite)."
            )
        return Folder(path)
    with explained(path):
        write_whole(
            file,
            lambda temporary: temporary.write_text(
                json.dumps(recipe, indent=1) + "\n", encoding="utf-8"
            ),
        )
    return Folder(path)


def clear(path: Path) -> None:
    """Forget the comparison that a folder holds: what comparisons write is removed, other files stay."""
    with explained(path):
        for name in ("recipe.json", "report.html", "summary.json", "agreement.csv"):
            (path / name).unlink(missing_ok=True)
        for engine in engines():
            fits = (
                path / "fits" / f"{engine}.{suffix}" for suffix in ("npz", "json", "checkpoint")
            )
            for file in (path / f"{engine}.nc", *fits):
                file.unlink(missing_ok=True)


def tidy(path: Path, compared: Iterable[str]) -> None:
    """Remove posteriors of engines that are not in the comparison that was just written."""
    with explained(path):
        for engine in set(engines()) - set(compared):
            (path / f"{engine}.nc").unlink(missing_ok=True)
