"""Tables of calibrations in Markdown, and the command that makes them."""

import argparse
import itertools
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from inference.calibration.sbc import Calibration, applies, calibrate
from inference.core.registry import engines, load_engine
from pp_models.data.files import write_whole
from pp_models.errors import InputError
from pp_models.models import available

GROUPS = ("expected data", "log joint", "sites", "hyper-parameters")
LEVEL = 0.01  # of the verdict, over all functionals of a row
POINT = 1e6  # intervals that should be wider by more than this factor are points


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _about(one: Calibration) -> list[str]:
    failed = f" ({one.failed} more failed)" if one.failed else ""
    size = f"{one.num_rows} x {one.num_columns}"
    return [one.model, one.engine, size, f"{len(one.ranks)}{failed}"]


ABOUT = ("model", "engine", "size", "data sets")


def sampler_table(found: Sequence[Calibration]) -> str:
    """Simulation-based calibration: p-values of uniform ranks."""
    figures = ("smallest p (ECDF)", "all (ECDF)", "all (chi-square)", "verdict")
    rows = [
        [
            *_about(one),
            f"{len(one.names)}",
            f"{one.effective.min():.0f} of {one.num_draws}",
            f"{one.uniform.min():.4f} ({one.names[int(one.uniform.argmin())]})",
            f"{one.p_value:.3f}",
            f"{min(1.0, len(one.names) * one.chi_square.min()):.3f}",
            "uniform" if one.p_value > LEVEL else "**not uniform**",
        ]
        for one in found
    ]
    return _table([*ABOUT, "functionals", "effective draws", *figures], rows)


def _by_group(one: Calibration, values: np.ndarray, form: str, middle: Any = np.mean) -> list[str]:
    groups = np.array(one.groups)
    return [
        form.format(middle(values[groups == group])) if np.any(groups == group) else ""
        for group in GROUPS
    ]


def coverage_table(found: Sequence[Calibration]) -> str:
    """Shares of true values inside central intervals, and the factor to widen them by."""
    rows = []
    for one in found:
        half, most = (_by_group(one, 100 * x, "{:.0f}") for x in (one.coverage50, one.coverage90))
        widen = _by_group(one, one.widen, "{:.2f}", np.median)
        cells = [
            "" if not a else "a point" if float(c) > POINT else f"{a}, {b}, {c}"
            for a, b, c in zip(half, most, widen, strict=True)
        ]
        rows.append([*_about(one), *cells])
    return _table([*ABOUT, *(f"{group}: 50 %, 90 %, widen by" for group in GROUPS)], rows)


def symmetry_table(found: Sequence[Calibration]) -> str:
    """VSBC: the functional with the smallest p-value of symmetry, and the mean shifts by group."""
    rows = []
    for one in found:
        worst = int(one.symmetric.argmin())
        p = min(1.0, len(one.names) * one.symmetric[worst])
        shifts = _by_group(one, one.shift, "{:+.2f}")
        rows.append([*_about(one)[:3], f"{p:.3f}", one.names[worst], *shifts])
    figures = ("smallest p, times functionals", "of")
    return _table([*ABOUT[:3], *figures, *(f"{group}: mean p - 1/2" for group in GROUPS)], rows)


def document(found: Sequence[Calibration], command: str) -> str:
    """All tables that there are figures for."""
    chains = [one for one in found if one.is_chain]
    others = [one for one in found if not one.is_chain]
    parts = [f"`{command}`"]
    if chains:
        parts += ["## Simulation-based calibration", sampler_table(chains)]
    if others:
        parts += ["## Coverage of approximate posteriors", coverage_table(others)]
        parts += ["## VSBC", symmetry_table(others)]
    return "\n\n".join(parts) + "\n"


def default_engines() -> list[str]:
    """All samplers, and the other engines with a posterior that a comparison takes."""
    every = [load_engine(name) for name in engines()]
    chosen = [x for x in every if x.kind == "draws" or (x.compared and x.kind != "point")]
    return [one.name for one in sorted(chosen, key=lambda one: one.kind != "draws")]


def whole_numbers(text: str) -> list[int]:
    """Numbers with commas between."""
    return [int(part) for part in text.split(",")]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = "Are posteriors right on data drawn from the prior?"
    parser = argparse.ArgumentParser("python -m inference.calibration", description=about)
    parser.add_argument("--models", default="all", help="names with commas between, or all")
    every = ",".join(default_engines())
    parser.add_argument("--engines", default=every, help="names with commas between")
    parser.add_argument("--datasets", type=int, default=100)
    text = "rows of every data set; several sizes with commas between"
    parser.add_argument("--rows", type=whole_numbers, default=[20], help=text)
    parser.add_argument("--seed", type=int, default=0)
    text = "a Markdown file, written anew after each pair of model and engine"
    parser.add_argument("--out", type=Path, help=text)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of `python -m inference.calibration`."""
    given = _parse(arguments)
    words = shlex.join(sys.argv[1:] if arguments is None else arguments)
    command = f"python -m inference.calibration {words}"
    names = available() if given.models == "all" else given.models.split(",")
    wanted = itertools.product(names, given.engines.split(","), given.rows)
    runs = [(name, engine, rows) for name, engine, rows in wanted if applies(name, engine)]
    if not runs:
        raise InputError(
            f"None of the engines {given.engines} has a posterior of {given.models} to calibrate."
        )
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
    found: list[Calibration] = []
    for name, engine, rows in runs:
        key = jax.random.key(given.seed)
        one = calibrate(name, engine, given.datasets, key, num_rows=rows)
        found.append(one)
        figures = f"{one.seconds:.0f} s, smallest p {one.p_value:.3f}"
        print(f"{name} by {engine}, {rows} rows: {figures}", flush=True)
        if given.out:
            write_whole(given.out, lambda path: path.write_text(document(found, command)))
    if not given.out:
        print(document(found, command))
