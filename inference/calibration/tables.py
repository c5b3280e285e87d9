"""Tables of calibrations in Markdown, and the command that makes them."""

import argparse
import itertools
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import numpy as np

import pp_models
from inference.calibration.sbc import Calibration, applies, calibrate
from pp_models.data.files import write_whole
from pp_models.errors import InputError

SAMPLERS = ("gibbs", "collapsed_gibbs", "nuts")
APPROXIMATE = ("cavi", "svi", "trust_region", "numpyro_svi", "laplace", "inla")
GROUPS = ("expected data", "log joint", "sites", "hyper-parameters")
LEVEL = 0.01  # of the verdict, over all functionals of a row


def _size(one: Calibration) -> str:
    return f"{one.num_rows} x {one.num_columns}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([_row(head), _row("---" for _ in head), *(_row(cells) for cells in rows)])


def _data_sets(one: Calibration) -> str:
    return f"{len(one.ranks)}" + (f" ({one.failed} more failed)" if one.failed else "")


def sampler_table(found: Sequence[Calibration]) -> str:
    """Simulation-based calibration: p-values of uniform ranks."""
    head = (
        "model",
        "engine",
        "size",
        "data sets",
        "functionals",
        "effective draws",
        "smallest p (ECDF)",
        "all (ECDF)",
        "all (chi-square)",
        "verdict",
    )
    rows = []
    for one in found:
        worst = one.names[int(one.uniform.argmin())]
        verdict = "uniform" if one.p_value > LEVEL else "**not uniform**"
        effective = f"{one.effective.min():.0f} of {one.num_draws}"
        numbers = (
            f"{one.uniform.min():.4f} ({worst})",
            f"{one.p_value:.3f}",
            f"{min(1.0, len(one.names) * one.chi_square.min()):.3f}",
        )
        rows.append(
            (
                one.model,
                one.engine,
                _size(one),
                _data_sets(one),
                str(len(one.names)),
                effective,
                *numbers,
                verdict,
            )
        )
    return _table(head, rows)


def _by_group(one: Calibration, values: np.ndarray, form: str, middle=np.mean) -> list[str]:
    groups = np.array(one.groups)
    return [
        form.format(middle(values[groups == group])) if np.any(groups == group) else ""
        for group in GROUPS
    ]


POINT = 1e6  # the factor by which only what has no width would have to be widened


def coverage_table(found: Sequence[Calibration]) -> str:
    """Shares of true values inside central intervals, and by how much these are too narrow."""
    head = (
        "model",
        "engine",
        "size",
        "data sets",
        *(f"{group}: 50 %, 90 %, widen by" for group in GROUPS),
    )
    rows = []
    for one in found:
        parts = [_by_group(one, 100 * x, "{:.0f}") for x in (one.coverage50, one.coverage90)] + [
            _by_group(one, one.widen, "{:.2f}", np.median)
        ]
        cells = [
            "" if not a else "a point" if float(c) > POINT else f"{a}, {b}, {c}"
            for a, b, c in zip(*parts, strict=True)
        ]
        rows.append((one.model, one.engine, _size(one), _data_sets(one), *cells))
    return _table(head, rows)


def symmetry_table(found: Sequence[Calibration]) -> str:
    """VSBC: the functional with the smallest p-value of symmetry, and the mean shifts by group."""
    head = (
        "model",
        "engine",
        "size",
        "smallest p, times functionals",
        "of",
        *(f"{group}: mean p - 1/2" for group in GROUPS),
    )
    rows = []
    for one in found:
        worst = int(one.symmetric.argmin())
        p = min(1.0, len(one.names) * one.symmetric[worst])
        rows.append(
            (
                one.model,
                one.engine,
                _size(one),
                f"{p:.3f}",
                one.names[worst],
                *_by_group(one, one.shift, "{:+.2f}"),
            )
        )
    return _table(head, rows)


def document(found: Sequence[Calibration], command: str) -> str:
    """All tables that there are figures for."""
    chains = [one for one in found if one.engine in SAMPLERS]
    others = [one for one in found if one.engine not in SAMPLERS]
    parts = [f"`{command}`"]
    if chains:
        parts += ["## Simulation-based calibration", sampler_table(chains)]
    if others:
        parts += [
            "## Coverage of approximate posteriors",
            coverage_table(others),
            "## VSBC",
            symmetry_table(others),
        ]
    return "\n\n".join(parts) + "\n"


def whole_numbers(text: str) -> list[int]:
    """Of several with commas between."""
    return [int(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of `python -m inference.calibration`."""
    parser = argparse.ArgumentParser(
        prog="python -m inference.calibration",
        description="Are posteriors right on data drawn from the prior?",
    )
    parser.add_argument("--models", default="all", help="names with commas between, or all")
    parser.add_argument(
        "--engines", default=",".join(SAMPLERS + APPROXIMATE), help="names with commas between"
    )
    parser.add_argument("--datasets", type=int, default=100)
    parser.add_argument(
        "--rows",
        type=whole_numbers,
        default=[20],
        help="rows of every data set; several sizes with commas between",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, help="a Markdown file, written anew after each pair of model and engine"
    )
    given = parser.parse_args(arguments)
    command = "python -m inference.calibration " + shlex.join(
        sys.argv[1:] if arguments is None else arguments
    )
    names = pp_models.available() if given.models == "all" else given.models.split(",")
    wanted = itertools.product(names, given.engines.split(","), given.rows)
    pairs = [(name, engine, rows) for name, engine, rows in wanted if applies(name, engine)]
    if not pairs:
        raise InputError(
            f"None of the engines {given.engines} has a posterior of {given.models} to calibrate."
        )
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
    found: list[Calibration] = []
    for name, engine, rows in pairs:
        found.append(
            calibrate(name, engine, given.datasets, jax.random.key(given.seed), num_rows=rows)
        )
        print(
            f"{name} by {engine}, {rows} rows: {found[-1].seconds:.0f} s, smallest p {found[-1].p_value:.3f}",
            flush=True,
        )
        if given.out:
            write_whole(given.out, lambda path: path.write_text(document(found, command)))
    if not given.out:
        print(document(found, command))
