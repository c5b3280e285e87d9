"""What follows from a model's declaration: computed once, from its example, without compiling.

    local    sites inside the plate of data rows in `generate`
    observed observed sites of `generate`
    damped   sites in whose statistics F is not linear even when the auxiliaries are given
    coupled  whether global sites meet in F given the auxiliaries: "" nowhere, "prior" in
             log_global alone, "rows" in log_local too
    guide    the mean-field guide, from `families` and `init`

`damped` and `coupled` are read off the program that computes dF/dmu: with auxiliaries spread
evenly (`UNIFORM`) a conditionally conjugate F is linear in each block, so its gradient with respect
to a site uses that site's statistics only where F is not.
"""

import functools
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

ROWS = "documents"  # the plate of data rows
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")  # of inner programs


class Site(NamedTuple):
    """A sample site of `generate`: whether it is observed, whether it is in the rows' plate."""

    observed: bool
    in_rows: bool
    shape: tuple[int, ...]
    event_dim: int


def example_of(model: Any) -> tuple[Any, Any, Any]:
    """The model's example: hyper-parameters checked and filled in, data, and the data as a batch.

    Numbers are concrete even where a program is being traced, and of the precision in use.
    """
    return _example(model, jnp.result_type(float))


@functools.cache
def _example(model: Any, dtype: Any) -> tuple[Any, Any, Any]:
    with jax.ensure_compile_time_eval():
        hyper, data = model.example(jax.random.key(0))
        return model.resolve(check_fields(hyper), data), data, data.pack()


def value_shapes(model: Any, hyper: Any, data: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every site's value at the model's starting point, computed without drawing."""
    found = jax.eval_shape(lambda key: _values(model, model.init(key, hyper, data)), _key())
    return {site: value.shape for site, value in found.items()}


@functools.cache
def sites_of(model: Any, drawn: bool = False) -> dict[str, Site]:
    """The sample sites of `generate` on the example, in their order.

    Latent sites have the values of `init`, which is faster than drawing them and works for an
    improper prior; or they are drawn.
    """
    hyper, _, batch = example_of(model)
    found: dict[str, Site] = {}

    def run(key: jax.Array) -> int:
        given = {} if drawn else _values(model, model.init(key, hyper, batch))
        program = handlers.substitute(handlers.seed(model.generate, key), data=given)
        with handlers.block():  # this may be asked for while another program is traced
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
    stats = jax.eval_shape(
        lambda key: {
            site: family.mean(natural)
            for (site, family), natural in zip(
                model.families.items(), _ordered(model, model.init(key, hyper, batch)), strict=True
            )
        },
        _key(),
    )
    rows = _dependencies(lambda t: model.log_local(hyper, t, batch, UNIFORM), stats)
    shared = {site: stats[site] for site in model.shared}
    return rows, _dependencies(lambda t: model.log_global(hyper, t), shared)


def damped_sites(model: Any) -> frozenset[str]:
    """Without those that only eliminated auxiliaries bend (`Model.curved`)."""
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
    used = _reach(closed.jaxpr, [{site} for site in owners])
    table: dict[str, set[str]] = {site: set() for site in stats}
    for site, names in zip(owners, used, strict=True):
        table[site] |= names
    return table


def _reach(jaxpr: Any, inputs: list[set[str]]) -> list[set[str]]:
    """What each output of a program depends on. Loops depend on all that they are given.

    A comparison depends on nothing: what is linear in pieces counts as linear.
    """
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


def _ordered(model: Any, natural: dict[str, Any]) -> list[Any]:
    return [natural[site] for site in model.families]


def _values(model: Any, natural: dict[str, Any]) -> dict[str, Any]:
    return {s: family.value(family.mean(natural[s])) for s, family in model.families.items()}


def _key() -> jax.Array:
    return jax.random.key(0)


# The guide ------------------------------------------------------------------------------------

DERIVED = (  # matrices that follow from a Cholesky factor
    "covariance_matrix",
    "precision_matrix",
    "rate_matrix",
    "scale_matrix",
)


def guide_of(model: Any) -> Any:
    """The model's own guide, or the one that follows from its families and its start."""
    return model.guide or functools.partial(_guide, model)


def _guide(model: Any, hyper: Any, batch: Any) -> None:
    """A distribution of the declared family at every site, its parameters free within their
    constraints, started at `init`; rows' parameters are kept for all data rows."""
    key = numpyro.prng_key()
    start = model.init(_key() if key is None else key, hyper, batch)
    for site, family in model.families.items():
        if site not in model.local:
            found = _parametrised(site, family.distribution(start[site]), lambda x: x)
            numpyro.sample(site, _as_in_model(model, site, found))
    with numpyro.plate(ROWS, batch.num_data_rows, subsample_size=batch.num_rows):
        for site, family in model.families.items():
            if site in model.local:
                everyone = functools.partial(_for_all_rows, batch)
                found = _parametrised(site, family.distribution(start[site]), everyone)
                numpyro.sample(site, _as_in_model(model, site, _select(found, batch)))


def _as_in_model(model: Any, site: str, distribution: Any) -> Any:
    """The distribution with the event dimensions of the model's site, which NumPyro's SVI asks for."""
    missing = sites_of(model)[site].event_dim - distribution.event_dim
    return distribution.to_event(max(missing, 0))


def _parametrised(site: str, distribution: Any, spread: Any) -> Any:
    """The same distribution with a NumPyro parameter for each of its arguments."""
    inner = distribution
    while isinstance(inner, dist.Independent):
        inner = inner.base_dist
    if isinstance(inner, dist.Delta):
        value = numpyro.param(f"{site}_at", spread(inner.v), constraint=constraints.real)
        return dist.Delta(value, event_dim=len(inner.event_shape))
    arguments = {}
    for name in _arguments(inner):
        constraint = inner.arg_constraints[name]
        if name in ("df", "concentration") and len(inner.event_shape) == 2:  # of a Wishart
            constraint = constraints.greater_than(inner.event_shape[-1] - 1.0)
        start = spread(getattr(inner, name))
        arguments[name] = numpyro.param(f"{site}_{name}", start, constraint=constraint)
    return type(inner)(**arguments)


def _for_all_rows(batch: Any, x: jax.Array) -> jax.Array:
    """Rows' parameters for all data rows: those of the batch in their places, their mean elsewhere.

    A parameter that rows have in common stays as it is.
    """
    if x.shape[0] != batch.num_rows:
        return x
    rest = jnp.broadcast_to(jnp.mean(x, 0), (batch.num_data_rows, *x.shape[1:]))
    return rest.at[batch.positions].set(x, mode="drop")


def _select(distribution: Any, batch: Any) -> Any:
    """The distribution of the batch's rows, from that of all data rows."""

    def pick(x: jax.Array) -> jax.Array:
        return x[batch.positions] if x.shape[0] == batch.num_data_rows else x

    if isinstance(distribution, dist.Delta):
        return dist.Delta(pick(distribution.v), event_dim=len(distribution.event_shape))
    names = _arguments(distribution)
    return type(distribution)(**{name: pick(getattr(distribution, name)) for name in names})


def _arguments(distribution: Any) -> list[str]:
    """The arguments to build a distribution from, each known once."""
    return [name for name in distribution.arg_constraints if name not in DERIVED]


# A declaration checked ------------------------------------------------------------------------


def check_declaration(model: Any) -> None:
    """One sentence that names the field for what would fail later in an obscure place."""
    hyper, data, _ = example_of(model)
    latent = {n: s for n, s in sites_of(model, model.proper(hyper)).items() if not s.observed}
    for site in model.families:
        if site not in latent:
            raise InputError(f"families names {site!r}, which `generate` of {model.name} lacks.")
    for name in latent:
        if name not in model.families:
            raise InputError(
                f"`generate` of {model.name} samples {name!r}, which families does not name: give its family of q."
            )
    shapes = value_shapes(model, hyper, data)
    for name, site in latent.items():
        if shapes[name] != site.shape:
            raise InputError(
                f"init of {model.name} gives {name!r} the shape {shapes[name]}, but `generate` samples it with shape {site.shape}."
            )
