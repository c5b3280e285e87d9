"""A progress bar with bound, rate and time left. Quiet when the output is not a terminal, or when asked to be."""

from typing import Any

from tqdm import tqdm

SHOWN = {"bound": "{:.6g}", "log_joint": "{:.6g}", "rate": "{:.3g}", "divergences": "{:.0f}"}


class Progress:
    """`with Progress(title, steps) as bar: bar.update({"bound": ...})`."""

    def __init__(self, title: str, num_steps: int, show: bool | None = None) -> None:
        self._bar = tqdm(total=num_steps, desc=title, disable=None if show is None else not show, unit="step", leave=False, dynamic_ncols=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def update(self, row: dict[str, Any]) -> None:
        """One step done; `row` holds its numbers."""
        if not self._bar.disable:
            shown = {name: form.format(row[name]) for name, form in SHOWN.items() if name in row and row[name] == row[name]}
            self._bar.set_postfix(shown, refresh=False)
        self._bar.update()
