"""Run the notebooks: each `NN_name.py` becomes `NN_name.ipynb` beside it, with its figures, or the run ends with what went wrong in which cell.

    python notebooks/build.py [NAME ...] [--out FOLDER] [--jobs 2]

The sources are jupytext's percent format. Cells tagged `check` assert what the text says: they are run, and are not in the result. Cells tagged
`solution` are folded. No output may name a path of this machine.
"""

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
SECONDS = 900  # for one cell: a safeguard, not a target


def sources(names: list[str] | None = None) -> list[Path]:
    """All notebooks in order, or those whose file names begin with one of the names."""
    found = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
    for name in names or []:
        if not any(path.stem.startswith(name) for path in found):
            sys.exit(
                f"There is no notebook {name}: choose from {', '.join(path.stem for path in found)}."
            )
    return [
        path for path in found if not names or any(path.stem.startswith(name) for name in names)
    ]


def tagged(cell: Any, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def outputs_of(notebook: Any) -> list[str]:
    """Everything that is printed or shown as text."""
    shown = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    return [
        "".join(output.get("text", "")) + "".join(str(output.get("data", {}).get("text/plain", "")))
        for output in shown
    ]


def execute(path: Path) -> tuple[Any, float]:
    """The notebook with its outputs, checks taken out, and the seconds it took. Raises nbclient's error of the first cell that fails."""
    import jupytext
    import nbclient

    notebook = jupytext.read(path)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        environment = {
            name: value for name, value in os.environ.items() if name != "MPLBACKEND"
        }  # which would leave the notebook without figures
        client = nbclient.NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        client.execute(env=environment)
        seconds = time.perf_counter() - began
        told = [
            text
            for text in outputs_of(notebook)
            if any(
                place in text for place in (str(FOLDER.parent), str(Path.home()) + os.sep, folder)
            )
        ]
    if told:
        raise RuntimeError(f"{path.name} prints a path of this machine: {told[0][:200]}")
    notebook.cells = [cell for cell in notebook.cells if not tagged(cell, "check")]
    for cell in notebook.cells:
        if tagged(cell, "solution"):
            cell.metadata["jupyter"] = {"source_hidden": True, "outputs_hidden": True}
        cell.metadata.pop(
            "execution", None
        )  # when each cell ran: of no use to a reader, and different every time
    return notebook, seconds


def build(path: Path, out: Path) -> str:
    """Write the notebook; the reason if it failed, or nothing."""
    import nbformat

    try:
        notebook, seconds = execute(path)
    except Exception as error:
        return f"{path.name} failed: {error}"
    nbformat.write(notebook, out / f"{path.stem}.ipynb")
    print(f"{path.stem}.ipynb  {seconds:.0f} s", flush=True)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="what file names begin with; by default all")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--jobs", type=int, default=1, help="notebooks at a time")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        failures = [
            text
            for text in pool.map(lambda path: build(path, arguments.out), sources(arguments.names))
            if text
        ]
    print(f"{time.perf_counter() - began:.0f} s in all")
    if failures:
        sys.exit("\n\n".join(failures))


if __name__ == "__main__":
    main()
