"""What a model declares, and the few things every model can do with its declaration."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers

from pp_models import families as fam
from pp_models.batches import Batch
from pp_models.data import Data
from pp_models.errors import InputError, unknown
from pp_models.passes import Solved

Sites = dict[str, Any]  # site name -> value, statistics or natural parameter


def _as_given(hyper: Any, data: Any) -> Any:
    return hyper


def _without_allocations(hyper: Any, stats: Sites, batch: Batch) -> Batch:
    """The same rows with nothing left to allocate: the bound of allocations is a function of statistics alone."""
    known = Solved(jnp.zeros((), batch.mask.dtype), None, None)
    return batch if batch.entries is None else batch.replace(entries=dataclasses.replace(batch.entries, solved=known))


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A generative process, declared once. MODEL_CONTRACT.md says what each field must satisfy.

    name:       as the user types it, and the name of the file
    kind:       the data it explains: counts, ratings, text_and_votes or dense
    Hyper:      NamedTuple of hyper-parameters with defaults; ints, bools and strings are structure, floats and arrays values
    generate:   (hyper, batch) the NumPyro model, readable as the paper's generative process
    guide:      (hyper, batch) the hand-written NumPyro mean-field guide
    families:   site -> family of q; the order is the update order
    local:      the sites that belong to data rows
    log_global: (hyper, stats) -> F's part without the data, relative to the families' base measures
    log_local:  (hyper, stats, batch, key=None) -> F's part for the rows of a batch
    init:       (key, hyper, data) -> natural parameters of every site; `data` is a `Data` or a `Batch`
    predict:    (hyper, values) -> (rows, columns) expected observations given site values
    symmetry:   what the posterior is invariant to: permutation, signed_permutation, rotation, scale (and permutation) or none; see `inference.align`
    example:    (key) -> (hyper, data): the tiny problem of the shared tests
    observed:   name of the observed site
    resolve:    (hyper, data) -> hyper with the paper's data-dependent defaults filled in, checked
    solve_local: optional fused fixed point of the local sites (see `inference.objective`)
    odds:       (hyper, stats, batch, summary="collapsed") -> `rows.Odds` by which tokens choose a factor when the rows' weights, the first of
                `families`, are integrated out: where they have Dirichlet or gamma priors
    proper:     (hyper) -> whether the prior can be sampled from
    check_rows: (data) raises InputError for rows that the model cannot explain
    coupled:    where global sites meet in F even when the auxiliaries and the local sites are given: "" nowhere, "prior" in log_global alone (one
                pass over the rows still updates them all, one after the other), "rows" in log_local too
    noise:      (hyper, values) -> variance of an observation about `predict`, for models of ratings
    fix_rows:   (hyper, stats, batch) -> the batch with what hyper-parameters do not change worked out; by default its allocations' value left out
    weights, topics: (hyper, values) -> (rows, K) weights of the rows on topics and (K, columns) topics, where no sites theta and beta hold them
    variant:    (hyper, kind of data) -> the declaration to use, of the same name and Hyper, where they decide on sites' families
    damped:     the sites in whose statistics F is not linear even when the auxiliaries are given: their target is a Newton step, which engines cut
                (`families.newton_step`) and, where the bound must not fall, backtrack. They have no complete conditional to sample
    rotated:    the sites of a space known up to a common rotation, for symmetry "rotation" or beside a permutation, or, for symmetry
                "signed_permutation", up to the signs of its axes; the first, a global one, decides which
    moves:      (hyper, key, values, batch) -> values: a transition that leaves the posterior as it is, for what Gibbs blocks move slowly
    gridded:    the hyper-parameters, fields of Hyper and sites where they are not given, that may be put on a grid (`inference.inla`)
    balance:    (hyper) -> two dicts site -> prior precision: factors of a product, the first times c is as likely as the second divided by c
    curved:     the sites in whose first statistic F is not linear, because auxiliaries were eliminated: their curvature is more than dF/dt says
    bent:       (model, hyper, stats, batch) -> the part of F that is not linear in those sites' first statistics; by default F
    begin:      (hyper, data, topics) -> natural parameters of global sites that begin at these (K, columns) distributions over columns
    learn:      (hyper) -> name -> value at which empirical Bayes starts, for the positive hyper-parameters it may learn; by default all values
    """

    name: str
    kind: str
    Hyper: Any
    generate: Callable[..., None]
    guide: Callable[..., None]
    families: Mapping[str, fam.Family]
    local: frozenset[str]
    log_global: Callable[..., jax.Array]
    log_local: Callable[..., jax.Array]
    init: Callable[..., Sites]
    predict: Callable[..., jax.Array]
    symmetry: str
    example: Callable[..., tuple[Any, Data]]
    observed: str = "counts"
    resolve: Callable[..., Any] = _as_given
    solve_local: Callable[..., Any] | None = None
    odds: Callable[..., Any] | None = None
    proper: Callable[[Any], bool] = lambda hyper: True
    check_rows: Callable[[Any], None] = lambda data: None
    coupled: str = ""
    learn: Callable[[Any], Mapping[str, Any]] | None = None
    fix_rows: Callable[..., Batch] = _without_allocations
    noise: Callable[..., jax.Array] | None = None
    weights: Callable[..., jax.Array] | None = None
    topics: Callable[..., jax.Array] | None = None
    variant: "Callable[[Any, str], Model] | None" = None
    damped: frozenset[str] = frozenset()
    rotated: tuple[str, ...] = ()
    moves: Callable[..., Sites] | None = None
    gridded: tuple[str, ...] = ()
    balance: "Callable[[Any], tuple[Mapping[str, Any], Mapping[str, Any]]] | None" = None
    curved: frozenset[str] = frozenset()
    bent: Callable[..., jax.Array] | None = None
    begin: Callable[..., Sites] | None = None

    @property
    def shared(self) -> tuple[str, ...]:
        """The global sites, in update order."""
        return tuple(site for site in self.families if site not in self.local)

    @property
    def title(self) -> str:
        """The first line of the model file's docstring."""
        import sys

        text = sys.modules[self.log_local.__module__].__doc__ or self.name
        return text.strip().splitlines()[0].rstrip(".")


def make_hyper(model: Model, given: Any, data: Data) -> Any:
    """Hyper-parameters from a dict, a `Hyper` or None: names checked, numbers converted, defaults filled in."""
    return declare(model, given, data)[1]


def declare(model: Model, given: Any, data: Data) -> tuple[Model, Any]:
    """The model's variant for these hyper-parameters and data, and the hyper-parameters as `make_hyper` gives them."""
    if isinstance(given, model.Hyper):
        given = given._asdict()
    given = dict(given or {})
    for name in given:
        if name not in model.Hyper._fields:
            raise unknown(f"hyper-parameter of {model.name}", name, model.Hyper._fields)
    numbers = {name: _number(name, value) for name, value in given.items()}
    structure = {name for name, default in model.Hyper()._asdict().items() if isinstance(default, bool | int | str)}
    hyper = model.Hyper(**{n: float(x) if type(x) is int and n not in structure else x for n, x in numbers.items()})
    model = choose_variant(model, hyper, data.kind)
    if data.kind != model.kind:
        raise InputError(f"Model {model.name!r} explains {model.kind} data, but these are {data.kind}: make them with pp_models.data.{model.kind}.")
    model.check_rows(data)
    return model, model.resolve(hyper, data)


def choose_variant(model: Model, hyper: Any, kind: str) -> Model:
    """The declaration to use for these hyper-parameters and this kind of data."""
    return model if model.variant is None else model.variant(hyper, kind)


def split_learned(model: Model, given: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Hyper-parameters without the marks "learn" and ("learn", start), and the names so marked (None: all that can be learned)."""
    if isinstance(given, str):
        if given != "learn":
            raise InputError(f'hyper must be a dict of hyper-parameters or "learn", not {given!r}.')
        return {}, None
    if given is None:
        return None, ()
    given = given._asdict() if isinstance(given, model.Hyper) else given
    if not isinstance(given, Mapping):
        raise InputError(f'hyper must be a dict of hyper-parameters or "learn", not {given!r}.')
    plain, learned = dict(given), []
    everything = plain.pop("learn", None)
    if everything not in (None, "all"):
        raise InputError(f'hyper-parameter "learn" must be "all", not {everything!r}: to learn one, give it the value "learn".')
    for name, value in given.items():
        marked = isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], str)
        if isinstance(value, str) and value == "learn" and name != "learn":
            del plain[name]
            learned.append(name)
        elif marked and value[0] == "learn":
            plain[name] = value[1]
            learned.append(name)
    return plain, None if everything else tuple(learned)


def learnable(model: Model, hyper: Any) -> dict[str, Any]:
    """The hyper-parameters that may be learned, and the value each starts from."""
    if model.learn is not None:
        return dict(model.learn(hyper))
    return {name: value for name, value in split_hyper(hyper)[1].items() if np.all(np.asarray(value) > 0)}


def _number(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.number):
        raise InputError(f"Hyper-parameter {name} must be a number or a list of numbers, not {value!r}.")
    return float(array) if array.ndim == 0 else tuple(float(x) for x in array.ravel())


def check_count(name: str, value: Any) -> None:
    """A number of factors must be a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, not {value!r}.")


def check_positive(name: str, value: Any) -> None:
    """Priors' parameters must be positive and finite."""
    if isinstance(value, str | bool):
        raise InputError(f"{name} must be a positive number, not {value!r}.")
    numbers, limits = np.atleast_1d(np.asarray(value, float)), jnp.finfo(jnp.result_type(float))
    if not np.all(np.isfinite(numbers)) or np.any(numbers <= 0):
        raise InputError(f"{name} must be positive and finite, as a shape, rate, variance or concentration is, not {value!r}.")
    if np.any((numbers < limits.tiny) | (numbers > limits.max)):
        raise InputError(
            f"{name} must be from {limits.tiny:.0e} to {limits.max:.0e}, which {limits.bits}-bit numbers can hold, not {value!r}: "
            "nothing is known of a model beyond, or use double precision (jax_enable_x64)."
        )


def positive_number(name: str, value: Any) -> float:
    """The value as a number, if it is one positive finite number."""
    check_positive(name, value)
    if np.ndim(value):
        raise InputError(f"{name} must be one number, not {value!r}.")
    return float(value)


def check_finite(name: str, value: Any) -> None:
    """A location must be one finite number."""
    if isinstance(value, str | bool) or np.ndim(value) or not np.isfinite(value):
        raise InputError(f"{name} must be one finite number, not {value!r}.")


def split_hyper(hyper: Any) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """Structure (static) and values (traced): what a compiled step depends on, and what may change without recompiling."""
    fields = hyper._asdict()
    structure = {name: value for name, value in fields.items() if value is None or isinstance(value, bool | int | str)}
    return structure, {name: jnp.asarray(value, float) for name, value in fields.items() if name not in structure}


def joint(model: Model, hyper: Any, stats: Sites, batch: Batch) -> jax.Array:
    """F: the log joint density of the sufficient statistics, relative to the families' base measures."""
    return model.log_global(hyper, {site: stats[site] for site in model.shared}) + model.log_local(hyper, stats, batch)


def log_joint(model: Model, hyper: Any, values: Sites, batch: Batch) -> jax.Array:
    """The log joint density of site values: F(t(x)) with respect to the Lebesgue measure, as NumPyro reports it."""
    stats = {site: family.stats(values[site]) for site, family in model.families.items()}
    base = {site: fam.log_base(family, stats[site]) for site, family in model.families.items()}
    rows = sum(batch.sum(base[site]) if site in model.local else jnp.sum(base[site]) for site in base)
    return joint(model, hyper, stats, batch) + rows


def simulate(model: Model, hyper: Any, batch: Batch, key: jax.Array, given: Sites | None = None) -> Sites:
    """Draw every site, the observations included, from the generative process (with the `given` sites fixed)."""
    program = handlers.uncondition(model.generate)
    if given:
        program = handlers.substitute(program, data=given)
    trace = handlers.trace(handlers.seed(program, key)).get_trace(hyper, batch)
    return {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}


def value_shapes(model: Model, hyper: Any, data: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every site's value, computed without drawing any."""

    def values(key: jax.Array) -> Sites:
        natural = model.init(key, hyper, data)
        return {site: family.value(family.mean(natural[site])) for site, family in model.families.items()}

    return {site: value.shape for site, value in jax.eval_shape(values, jax.random.key(0)).items()}


FACTORS = ("num_topics", "rank", "num_components")  # what the number of factors may be called


def number_of_factors(model: Model) -> str:
    """The hyper-parameter that says how many factors there are."""
    found = [name for name in FACTORS if name in model.Hyper._fields]
    if not found:
        raise InputError(f"Model {model.name!r} must call its number of factors {', '.join(FACTORS[:-1])} or {FACTORS[-1]}.")
    return found[0]


@functools.cache
def factor_axes(model: Model) -> dict[str, tuple[int, ...]]:
    """Site -> the axes of its value, counted from the end, that are indexed by factors.

    They are those that grow when the model's example is given a factor more: sizes that happen to be equal are not mistaken for each other.
    """
    hyper, data = model.example(jax.random.key(0))
    name = number_of_factors(model)
    before, after = (value_shapes(model, model.resolve(hyper._replace(**{name: getattr(hyper, name) + more}), data), data) for more in (0, 1))
    return {site: tuple(axis - len(shape) for axis in range(len(shape)) if shape[axis] != after[site][axis]) for site, shape in before.items()}


def documents(batch: Batch) -> numpyro.plate:
    """The plate of data rows: all of them, or a batch whose log density is scaled up to all."""
    return numpyro.plate("documents", batch.num_data_rows, subsample_size=batch.num_rows)
