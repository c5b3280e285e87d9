"""F as a density: the log joint of statistics or values, and draws from the generative process."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro import handlers

from pp_models import families as fam
from pp_models.data.batches import Batch
from pp_models.errors import InputError
from pp_models.model.declaration import Model, Sites
from pp_models.model.derived import ROWS, example_of, value_shapes

FACTORS = ("num_topics", "rank", "num_components")  # names of the number of factors


def joint(model: Model, hyper: Any, stats: Sites, batch: Batch) -> jax.Array:
    """F: the log joint density of sufficient statistics, relative to the base measures."""
    shared = {site: stats[site] for site in model.shared}
    return model.log_global(hyper, shared) + model.log_local(hyper, stats, batch)


def log_joint(model: Model, hyper: Any, values: Sites, batch: Batch) -> jax.Array:
    """The log joint density of site values, as NumPyro reports it: F(t(x)) with respect to the
    Lebesgue measure."""
    stats = {site: family.stats(values[site]) for site, family in model.families.items()}
    total = joint(model, hyper, stats, batch)
    for site, family in model.families.items():
        base = fam.log_base(family, stats[site])
        total += batch.sum(base) if site in model.local else jnp.sum(base)
    return total


def simulate(
    model: Model, hyper: Any, batch: Batch, key: jax.Array, given: Sites | None = None
) -> Sites:
    """Every site, the observations included, drawn from the generative process; `given` fixed."""
    program = handlers.substitute(model.generate, data=given) if given else model.generate
    unobserved = batch.replace(observed=False)
    trace = handlers.trace(handlers.seed(program, key)).get_trace(hyper, unobserved)
    return {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}


def number_of_factors(model: Model) -> str:
    """The hyper-parameter that says how many factors there are."""
    found = [name for name in FACTORS if name in model.Hyper._fields]
    if not found:
        names = f"{', '.join(FACTORS[:-1])} or {FACTORS[-1]}"
        raise InputError(f"Model {model.name!r} must call its number of factors {names}.")
    return found[0]


@functools.cache
def factor_axes(model: Model) -> dict[str, tuple[int, ...]]:
    """Site -> the axes of its value, counted from the end, that are indexed by factors.

    They are those that grow when the example is given one factor more, so that equal sizes are
    not mistaken for each other.
    """
    hyper, data, _ = example_of(model)
    name = number_of_factors(model)
    more = model.resolve(hyper._replace(**{name: getattr(hyper, name) + 1}), data)
    before, after = value_shapes(model, hyper, data), value_shapes(model, more, data)
    return {
        site: tuple(i - len(shape) for i in range(len(shape)) if shape[i] != after[site][i])
        for site, shape in before.items()
    }


def documents(batch: Batch) -> numpyro.plate:
    """The plate of data rows: all of them, or a batch whose log density is scaled up to all."""
    return numpyro.plate(ROWS, batch.num_data_rows, subsample_size=batch.num_rows)
