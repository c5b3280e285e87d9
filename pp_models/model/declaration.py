"""What a model declares: nine fields, and what it may offer beyond them.

MODEL_CONTRACT.md says what each field must satisfy; `derived` computes what follows from them.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from pp_models.data.types import Data
from pp_models.errors import InputError, unknown
from pp_models.families import Family
from pp_models.model import derived
from pp_models.model.capabilities import (
    Learning,
    Marginal,
    Ratings,
    Rotation,
    Tokens,
    Topics,
    Votes,
)
from pp_models.model.description import described
from pp_models.model.hyper import (
    as_arrays,
    check_fields,
    read_hyper,
    read_learned,
    register_hyper,
    values_of,
)
from pp_models.model.program import program

Sites = dict[str, Any]  # site name -> value, statistics or natural parameter

SYMMETRIES = ("permutation", "signed_permutation", "rotation", "scale", "none")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A generative process, declared once: nine fields, and optional ones."""

    Hyper: Any = None  # NamedTuple of hyper-parameters with the paper's defaults (`model.hyper`)
    # (hyper, batch): the NumPyro model, readable as the generative process; see `model.program`
    generate: Any = None
    families: Mapping[str, Family] = None  # type: ignore[assignment]  # site -> q, in update order
    log_global: Any = None  # (hyper, stats) -> F without the data, relative to the base measures
    log_local: Any = None  # (hyper, stats, batch, key=None) -> F of the batch's rows
    init: Any = None  # (key, hyper, Data or Batch) -> natural parameters of every site
    predict: Any = None  # (hyper, values) -> (rows, columns) expected observations
    symmetry: str = ""  # of the posterior, one of SYMMETRIES
    example: Any = None  # (key) -> (hyper, data): the tiny problem of the shared tests

    guide: Any = None  # (hyper, batch): a hand-written mean-field guide; else one is derived
    resolve: Any = lambda hyper, data: hyper  # fills in data-dependent defaults
    check_rows: Any = lambda data: None  # raises InputError for rows that the model cannot explain
    proper: Any = lambda hyper: True  # whether the prior can be sampled from
    variant: Any = None  # (hyper, kind of data) -> the Model to use, if they decide on families
    solve_local: Any = None  # the fixed point of the local sites, fused (`core.objective`)
    moves: Any = None  # (hyper, key, values, batch) -> values: a transition of the posterior
    # Sites in which F is not linear only because auxiliaries were eliminated by other means than
    # `allocate` and `choose`: utilities of probit links, shares of NMF.
    curved: frozenset[str] = frozenset()
    tokens: Tokens | None = None  # these records: `model.capabilities`
    topics: Topics | None = None
    ratings: Ratings | None = None
    votes: Votes | None = None
    marginal: Marginal = dataclasses.field(default_factory=Marginal)
    rotation: Rotation = dataclasses.field(default_factory=Rotation)
    learning: Learning = dataclasses.field(default_factory=Learning)

    def __post_init__(self) -> None:
        for field in CORE:
            if getattr(self, field) in (None, ""):
                raise InputError(f"A model must declare {field}: see MODEL_CONTRACT.md.")
        if self.symmetry not in SYMMETRIES:
            raise unknown("symmetry", self.symmetry, SYMMETRIES)
        register_hyper(self.Hyper)
        for field in ("generate", "guide"):
            if (function := getattr(self, field)) is not None:
                object.__setattr__(self, field, program(self, function))

    def __repr__(self) -> str:
        return described(self)

    @classmethod
    def of(cls, namespace: Mapping[str, Any], **fields: Any) -> "Model":
        """The model whose functions are in a module's `globals()`, named like the fields."""
        return cls(**{name: namespace[name] for name in FUNCTIONS if name in namespace} | fields)

    @functools.cached_property
    def name(self) -> str:
        """The name of its file."""
        return self.generate.__module__.rpartition(".")[2]

    @property
    def title(self) -> str:
        """The first line of its file's docstring."""
        text = sys.modules[self.generate.__module__].__doc__ or self.name
        return text.strip().splitlines()[0].rstrip(".")

    def make_hyper(self, given: Any, data: Data) -> Any:
        """Hyper-parameters for these data from a dict, a `Hyper` or None, as `fit` makes them."""
        return make_hyper(self, given, data)

    @functools.cached_property
    def kind(self) -> str:
        """The data it explains: counts, ratings, text_and_votes or dense."""
        return derived.example_of(self)[1].kind

    @functools.cached_property
    def local(self) -> frozenset[str]:
        """The sites that belong to data rows."""
        return derived.local_sites(self)

    @functools.cached_property
    def shared(self) -> tuple[str, ...]:
        """The global sites, in update order."""
        return tuple(site for site in self.families if site not in self.local)

    @functools.cached_property
    def observed(self) -> str:
        """The observed site."""
        return derived.observed_site(self)

    @functools.cached_property
    def damped(self) -> frozenset[str]:
        """The sites in whose statistics F is not linear even given the auxiliaries.

        Their target is a Newton step, which engines shorten (`families.newton_step`) and backtrack
        if the bound must not fall. They have no complete conditional to sample.
        """
        return derived.damped_sites(self)

    @functools.cached_property
    def coupled(self) -> str:
        """Which global sites are coupled given the auxiliaries and the local sites: "" for none,
        "prior" for some in log_global alone, "rows" for some in log_local too."""
        return derived.coupling(self)


CORE = tuple(field.name for field in dataclasses.fields(Model))[:9]
FUNCTIONS = (  # the fields that `Model.of` finds by their names
    *("Hyper", "generate", "log_global", "log_local", "init", "predict", "example", "guide"),
    *("resolve", "check_rows", "proper", "variant", "solve_local", "moves"),
)


def with_hyper(example: Callable[..., tuple[Any, Data]], **changes: Any) -> Callable[..., Any]:
    """The example with other hyper-parameters, for the variant of the model that they choose."""

    def changed(key: jax.Array) -> tuple[Any, Data]:
        hyper, data = example(key)
        return hyper._replace(**changes), data

    return changed


def make_hyper(model: Model, given: Any, data: Data) -> Any:
    """Hyper-parameters from a dict, a `Hyper` or None: checked, with defaults filled in."""
    return declare(model, given, data)[1]


def declare(model: Model, given: Any, data: Data) -> tuple[Model, Any]:
    """The model's variant for these hyper-parameters and data, and the checked hyper-parameters."""
    return _fill(model, read_hyper(model.Hyper, model.name, given), data)


def _fill(model: Model, hyper: Any, data: Data) -> tuple[Model, Any]:
    """`declare`, of hyper-parameters that have been read."""
    model = choose_variant(model, hyper, data.kind)
    if data.kind != model.kind:
        raise InputError(
            f"Model {model.name!r} explains {model.kind} data, but these are {data.kind}: "
            f"make them with pp_models.data.{model.kind}."
        )
    model.check_rows(data)
    return model, check_fields(model.resolve(hyper, data))


def declare_learned(model: Model, given: Any, data: Data) -> tuple[Model, Any, tuple[str, ...]]:
    """The same with marks "learn" allowed: the variant, its hyper-parameters as arrays, and the
    names of those to be learned."""
    hyper, learn = read_learned(model, given)
    model, hyper = _fill(model, hyper, data)
    if learn != ():
        starts = learnable(model, hyper)
        learn = tuple(sorted(starts)) if learn is None else tuple(sorted(learn))
        for name in learn:
            if name not in starts:
                raise unknown(f"hyper-parameter that can be learned for {model.name}", name, starts)
        hyper = hyper._replace(**{name: starts[name] for name in learn})
    return model, as_arrays(hyper), learn


def choose_variant(model: Model, hyper: Any, kind: str) -> Model:
    """The declaration for these hyper-parameters and this kind of data. A site is left out if
    hyper-parameters give its value (`alpha1` of the latent Gaussian models)."""
    model = model if model.variant is None else model.variant(hyper, kind)
    given = tuple(site for site in model.families if getattr(hyper, site, None) is not None)
    return _with_given(model, given) if given else model


@functools.cache
def _with_given(model: Model, given: tuple[str, ...]) -> Model:
    families = {site: family for site, family in model.families.items() if site not in given}
    example = with_hyper(model.example, **dict.fromkeys(given, 1.0))
    return dataclasses.replace(model, families=families, example=example)


def learnable(model: Model, hyper: Any) -> dict[str, Any]:
    """The hyper-parameters that may be learned, and the value each starts from."""
    start, values = model.learning.start, values_of(hyper)
    if callable(start):
        return dict(start(hyper))
    if start is not None:
        return {name: values[name] for name in start if name in values}
    return {name: x for name, x in values.items() if np.all(np.asarray(x) > 0)}
