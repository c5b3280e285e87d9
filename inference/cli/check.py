"""`pp-models check`: a model held to the shared laws, first of all its F to `generate`."""

import argparse
import sys
from typing import Any

import jax

from inference.calibration import testing
from inference.cli.settings import parse_setting, use_devices
from pp_models import datasets
from pp_models.errors import InputError
from pp_models.model import Model, compare_joint, declare
from pp_models.model.check import PIECES, ROUNDING


def run_check(chosen: argparse.Namespace) -> int:
    """Print what was compared, then a line for each law; 1 if one does not hold."""
    use_devices(None)
    declaration, model = testing.declaration(chosen.model)
    if model is None:
        print(declaration)
        return _failed([declaration])
    given = dict(parse_setting(text) for text in chosen.set)
    hyper, data = _problem(model, chosen.data, given)
    variant, filled = declare(model, hyper, data)
    try:
        _tell(variant, compare_joint(variant, filled, data))
    except InputError as error:
        print(f"pp-models: {error}", file=sys.stderr)
        return 1
    if chosen.quick:
        return 0
    # Of a small problem, most of the time is compiling.
    jax.config.update("jax_disable_most_optimizations", True)
    print("The other laws, on the model's example:", declaration, sep="\n", flush=True)
    with jax.enable_x64(True):
        problem = testing.example_problem(model)
    results = []
    for result in testing.other_laws(problem):
        results.append(result)
        print(result, flush=True)
    return _failed(results)


def _tell(model: Model, found: Any) -> None:
    """What was compared."""
    differences = found.differences
    print(f"{model.name}: F is the log density of `generate`.")
    where = f"{found.num_draws} draws of q at its start, on {found.num_rows} x {found.num_columns}"
    print(f"  at         {where} data, in double precision")
    for piece, sites in zip(PIECES, _sites(model), strict=True):
        print(f"  {piece:<10} differs by {differences[piece]:.1e} nats; sites: {sites}")
    print(f"  tolerance  {found.tolerance:.1e} nats: {ROUNDING:g} of the sum of the terms' sizes,")
    print("             a million times what rounding leaves of it", flush=True)


def _failed(results: list[testing.Result]) -> int:
    """The last line, and the exit status."""
    broken = sum(one.holds is False for one in results)
    tried = sum(one.holds is not None for one in results)
    if broken:
        print(f"{broken} of {tried} laws {'does' if broken == 1 else 'do'} not hold.")
        return 1
    print(f"All {tried} laws that apply hold.")
    return 0


def _problem(model: Model, name: str | None, given: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Hyper-parameters and data: of the example, unless they are given."""
    own, example = model.example(jax.random.key(0))
    if name is None:
        return {**own._asdict(), **given}, example
    return given, datasets.load(name, model)


def _sites(model: Model) -> tuple[str, str]:
    """The sites of `generate` whose densities each piece of F states."""
    local = [site for site in model.families if site in model.local]
    return ", ".join(model.shared) or "none", ", ".join([*local, model.observed])
