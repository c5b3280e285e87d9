"""A progress bar with bound, rate and time left, shown on a terminal only unless it is forced."""

from typing import Any

from tqdm import tqdm

SHOWN = {"bound": "{:.6g}", "log_joint": "{:.6g}", "rate": "{:.3g}", "divergences": "{:.0f}"}


class Progress:
    """`with Progress(title, steps) as bar: bar.update({"bound": ...})`.

    show:  True or False to force it; None, or text to put before the title, shows it on a terminal
    first: steps that were made before
    """

    def __init__(
        self, title: str, num_steps: int, show: bool | str | None = None, first: int = 0
    ) -> None:
        self._title = f"{show}: {title}" if isinstance(show, str) and show else title
        hidden = not show if isinstance(show, bool) else None
        self._bar = tqdm(
            total=num_steps,
            initial=first,
            desc=self._title,
            disable=hidden,
            unit="step",
            leave=False,
            dynamic_ncols=True,
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def enter(self, phase: str) -> None:
        """Name the phase that the run is in, where it has any."""
        title = f"{self._title}, {phase}" if phase else self._title
        if not self._bar.disable and self._bar.desc != f"{title}: ":
            self._bar.set_description(title)

    def update(self, row: dict[str, Any]) -> None:
        """One step done; `row` holds its numbers."""
        if not self._bar.disable:
            shown = {
                name: form.format(row[name])
                for name, form in SHOWN.items()
                if name in row and row[name] == row[name]
            }
            self._bar.set_postfix(shown, refresh=False)
        self._bar.update()
