"""What follows from a model's declaration: computed once, from its example, without compiling.

    local    the sites inside the plate of data rows in `generate`
    observed the observed site of `generate`
    damped   the sites in whose statistics F is not linear even given the auxiliaries
    coupled  where global sites meet in F given the auxiliaries
    guide    the mean-field guide, from `families` and `init`

`damped` and `coupled` are read off the program that computes dF/dmu. With auxiliaries spread evenly
(`UNIFORM`) a conditionally conjugate F is linear in each block, so that its gradient with respect
to a site depends on the site's own statistics only if F is not.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.extend.core import Literal
from numpyro import handlers
from numpyro.distributions import constraints

from pp_models.elimination.primitive import UNIFORM
from pp_models.errors import InputError
from pp_models.model.hyper import check_fields
from pp_models.model.program import program

ROWS = "documents"  # the plate of data rows
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")  # of inner programs


class Site(NamedTuple):
    """A sample site of `generate`."""

    observed: bool
    in_rows: bool  # whether it is in the plate of data rows
    shape: tuple[int, ...]
    event_dim: int


def example_of(model: Any) -> tuple[Any, Any, Any]:
    """The model's example: hyper-parameters checked and filled in, data, and the data as a batch.
    Numbers are concrete even while a program is traced, and of the precision in use."""
    return _example(model, jnp.result_type(float))


@functools.cache
def _example(model: Any, dtype: Any) -> tuple[Any, Any, Any]:
    with jax.ensure_compile_time_eval():
        hyper, data = model.example(jax.random.key(0))
        return model.resolve(check_fields(hyper), data), data, data.pack()


def _start(model: Any, hyper: Any, data: Any) -> Callable[[jax.Array], dict[str, Any]]:
    """(key) -> the expected statistics of every site at `init`."""

    def start(key: jax.Array) -> dict[str, Any]:
        natural = model.init(key, hyper, data)
        return {site: family.mean(natural[site]) for site, family in model.families.items()}

    return start


def _values(model: Any, stats: dict[str, Any]) -> dict[str, Any]:
    return {site: family.value(stats[site]) for site, family in model.families.items()}


def value_shapes(model: Any, hyper: Any, data: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every site's value at the model's starting point, computed without drawing."""
    start = _start(model, hyper, data)
    found = jax.eval_shape(lambda key: _values(model, start(key)), _key())
    return {site: value.shape for site, value in found.items()}


@functools.cache
def sites_of(model: Any, drawn: bool = False) -> dict[str, Site]:
    """The sample sites of `generate` on the example, in their order. Latent sites have the values
    of `init`, which is faster than to draw them and works for an improper prior, or are drawn."""
    hyper, _, batch = example_of(model)
    found: dict[str, Site] = {}

    def run(key: jax.Array) -> int:
        given = {} if drawn else _values(model, _start(model, hyper, batch)(key))
        program = handlers.substitute(handlers.seed(model.generate, key), data=given)
        with handlers.block():  # this may be called while another program is traced
            trace = handlers.trace(program).get_trace(hyper, batch)
        for name, site in trace.items():
            if site["type"] == "sample":
                inside = any(frame.name == ROWS for frame in site["cond_indep_stack"])
                shape = tuple(site["fn"].batch_shape + site["fn"].event_shape)
                found[name] = Site(site["is_observed"], inside, shape, site["fn"].event_dim)
        return 0

    jax.eval_shape(run, _key())
    return found


def local_sites(model: Any) -> frozenset[str]:
    sites = sites_of(model)
    return frozenset(name for name in model.families if name in sites and sites[name].in_rows)


def observed_site(model: Any) -> str:
    """The observed site; of several, the last."""
    return [name for name, site in sites_of(model).items() if site.observed][-1]


@functools.cache
def _meetings(model: Any) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Site -> the sites on which d log_local / dmu, and d log_global / dmu, of it depend."""
    hyper, _, batch = example_of(model)
    stats = jax.eval_shape(_start(model, hyper, batch), _key())
    rows = _dependencies(lambda t: model.log_local(hyper, t, batch, UNIFORM), stats)
    shared = {site: stats[site] for site in model.shared}
    return rows, _dependencies(lambda t: model.log_global(hyper, t), shared)


def damped_sites(model: Any) -> frozenset[str]:
    """Without the sites that only eliminated auxiliaries bend (`Model.curved`)."""
    rows, prior = _meetings(model)
    bent = frozenset(s for s in model.families if s in rows[s] or s in prior.get(s, ()))
    return bent - model.curved


def coupling(model: Any) -> str:
    def meet(table: dict[str, set[str]]) -> bool:
        return any(table[site] & set(model.shared) - {site} for site in model.shared)

    rows, prior = _meetings(model)
    return "rows" if meet(rows) else "prior" if meet(prior) else ""


def _dependencies(function: Any, stats: dict[str, Any]) -> dict[str, set[str]]:
    """Site -> the sites whose statistics the gradient of the function with respect to it uses."""
    owners = [site for site in sorted(stats) for _ in jax.tree.leaves(stats[site])]
    closed = jax.make_jaxpr(jax.grad(function))(stats)
    table: dict[str, set[str]] = {site: set() for site in stats}
    for site, names in zip(owners, _reach(closed.jaxpr, [{s} for s in owners]), strict=True):
        table[site] |= names
    return table


def _reach(jaxpr: Any, inputs: list[set[str]]) -> list[set[str]]:
    """The inputs that each output of a program depends on. Loops depend on everything that enters
    them. A comparison depends on nothing: piecewise linear counts as linear."""
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(variables: Any) -> list[set[str]]:
        return [set() if isinstance(x, Literal) else known.get(x, set()) for x in variables]

    for equation in jaxpr.eqns:
        given = read(equation.invars)
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if equation.primitive.name in CALLS and inner is not None:
            found = _reach(getattr(inner, "jaxpr", inner), given)
        else:
            used: set[str] = set().union(*given)
            found = [set() if x.aval.dtype == bool else used for x in equation.outvars]
        known |= dict(zip(equation.outvars, found, strict=True))
    return read(jaxpr.outvars)


def _key() -> jax.Array:
    return jax.random.key(0)


# The guide ------------------------------------------------------------------------------------

# Arguments of distributions that follow from a Cholesky factor.
REDUNDANT = ("covariance_matrix", "precision_matrix", "rate_matrix", "scale_matrix")


def guide_of(model: Any) -> Any:
    """The model's own guide, or the one that follows from its families and its start."""
    return model.guide or program(model, functools.partial(_guide, model))


def _guide(model: Any, hyper: Any, batch: Any) -> None:
    """A distribution of the declared family at every site, its parameters free within their
    constraints and started at `init`."""
    key = numpyro.prng_key()
    start = model.init(_key() if key is None else key, hyper, batch)

    def sample(site: str, rows: Any) -> None:
        found = _parametrised(site, model.families[site].distribution(start[site]), rows)
        # NumPyro's SVI asks for the event dimensions of the model's site.
        missing = sites_of(model)[site].event_dim - found.event_dim
        numpyro.sample(site, found.to_event(max(missing, 0)))

    for site in model.shared:
        sample(site, None)
    with numpyro.plate(ROWS, batch.num_data_rows, subsample_size=batch.num_rows):
        for site in model.families:
            if site in model.local:
                sample(site, batch)


def _parametrised(site: str, distribution: Any, batch: Any) -> Any:
    """The same distribution with a NumPyro parameter for each of its arguments.

    Parameters of a batch's rows are kept for all data rows, at first with the mean of the batch for
    rows outside it.
    """

    def parameter(name: str, start: jax.Array, constraint: Any) -> jax.Array:
        if batch is None or start.shape[0] != batch.num_rows:
            return numpyro.param(f"{site}_{name}", start, constraint=constraint)
        rest = jnp.broadcast_to(jnp.mean(start, 0), (batch.num_data_rows, *start.shape[1:]))
        start = rest.at[batch.positions].set(start, mode="drop")
        return numpyro.param(f"{site}_{name}", start, constraint=constraint)[batch.positions]

    inner = distribution
    while isinstance(inner, dist.Independent):
        inner = inner.base_dist
    size = len(inner.event_shape)
    if isinstance(inner, dist.Delta):
        return dist.Delta(parameter("at", inner.v, constraints.real), event_dim=size)
    arguments = {name: x for name, x in inner.arg_constraints.items() if name not in REDUNDANT}
    for name in {"df", "concentration"} & set(arguments) if size == 2 else ():  # of a Wishart
        arguments[name] = constraints.greater_than(inner.event_shape[-1] - 1.0)
    found = {name: parameter(name, getattr(inner, name), x) for name, x in arguments.items()}
    return type(inner)(**found)


# A declaration checked ------------------------------------------------------------------------


@functools.cache
def check_declaration(model: Any) -> None:
    """Raise one sentence that names the field for what would fail later in an obscure place."""
    hyper, data, _ = example_of(model)
    natural = jax.eval_shape(lambda key: model.init(key, hyper, data), _key())
    for site in model.families:
        if site not in natural:
            raise InputError(f"init of {model.name} gives no natural parameter of {site!r}.")
    latent = {n: s for n, s in sites_of(model, model.proper(hyper)).items() if not s.observed}
    for site in model.families:
        if site not in latent:
            raise InputError(f"families names {site!r}, which `generate` of {model.name} lacks.")
    shapes = value_shapes(model, hyper, data)
    for name, site in latent.items():
        if name not in model.families:
            raise InputError(
                f"`generate` of {model.name} samples {name!r}, which families does not name: "
                "give its family of q."
            )
        if shapes[name] != site.shape:
            raise InputError(
                f"init of {model.name} gives {name!r} the shape {shapes[name]}, "
                f"but `generate` samples it with shape {site.shape}."
            )
