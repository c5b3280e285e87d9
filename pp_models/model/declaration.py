"""What a model declares: nine fields, and what it may offer beyond them.

MODEL_CONTRACT.md says what each field must satisfy; `derived` computes what follows from them.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
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
from pp_models.model.hyper import check_fields, read_hyper, register_hyper, values_of

Sites = dict[str, Any]  # site name -> value, statistics or natural parameter

SYMMETRIES = ("permutation", "signed_permutation", "rotation", "scale", "none")


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A generative process, declared once.

    The nine fields:

    Hyper:      NamedTuple of hyper-parameters with the paper's defaults (`model.hyper`)
    generate:   (hyper, batch): the NumPyro model, readable as the paper's generative process
    families:   site -> family of q; the order is the update order
    log_global: (hyper, stats) -> F's part without the data, relative to the base measures
    log_local:  (hyper, stats, batch, key=None) -> F's part of the rows of a batch
    init:       (key, hyper, data) -> natural parameters of every site; a `Data` or a `Batch`
    predict:    (hyper, values) -> (rows, columns) expected observations
    symmetry:   what the posterior is invariant to, one of `SYMMETRIES`
    example:    (key) -> (hyper, data): the tiny problem of the shared tests

    Optional:

    guide:       (hyper, batch): a hand-written NumPyro mean-field guide; else one is derived
    resolve:     (hyper, data) -> hyper with data-dependent defaults filled in
    check_rows:  (data) raises InputError for rows that the model cannot explain
    proper:      (hyper) -> whether the prior can be sampled from
    variant:     (hyper, kind of data) -> the declaration to use, where they decide on families
    solve_local: the fixed point of the local sites in one fused function (`core.objective`)
    moves:       (hyper, key, values, batch) -> values: a transition that keeps the posterior
    curved:      sites in which F is not linear only because auxiliaries were eliminated by other
                 means than `allocate` and `choose`: utilities of probit links, shares of NMF
    tokens, topics, ratings, votes, marginal, rotation, learning: see `model.capabilities`
    """

    Hyper: Any = None
    generate: Callable[..., None] = None  # type: ignore[assignment]
    families: Mapping[str, Family] = None  # type: ignore[assignment]
    log_global: Callable[..., jax.Array] = None  # type: ignore[assignment]
    log_local: Callable[..., jax.Array] = None  # type: ignore[assignment]
    init: Callable[..., Sites] = None  # type: ignore[assignment]
    predict: Callable[..., jax.Array] = None  # type: ignore[assignment]
    symmetry: str = None  # type: ignore[assignment]
    example: Callable[..., tuple[Any, Data]] = None  # type: ignore[assignment]
    guide: Callable[..., None] | None = None
    resolve: Callable[..., Any] = lambda hyper, data: hyper
    check_rows: Callable[[Any], None] = lambda data: None
    proper: Callable[[Any], bool] = lambda hyper: True
    variant: "Callable[[Any, str], Model] | None" = None
    solve_local: Callable[..., Any] | None = None
    moves: Callable[..., Sites] | None = None
    curved: frozenset[str] = frozenset()
    tokens: Tokens | None = None
    topics: Topics | None = None
    ratings: Ratings | None = None
    votes: Votes | None = None
    marginal: Marginal = dataclasses.field(default_factory=Marginal)
    rotation: Rotation = dataclasses.field(default_factory=Rotation)
    learning: Learning = dataclasses.field(default_factory=Learning)

    def __post_init__(self) -> None:
        for field in CORE:
            if getattr(self, field) is None:
                raise InputError(f"A model must declare {field}: see MODEL_CONTRACT.md.")
        if self.symmetry not in SYMMETRIES:
            raise unknown("symmetry", self.symmetry, SYMMETRIES)
        register_hyper(self.Hyper)

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.generate.__module__.rpartition(".")[2]

    @property
    def title(self) -> str:
        """The first line of its file's docstring."""
        text = sys.modules[self.generate.__module__].__doc__ or self.name
        return text.strip().splitlines()[0].rstrip(".")

    @cached_property
    def kind(self) -> str:
        """The data it explains: counts, ratings, text_and_votes or dense."""
        return derived.example_of(self)[1].kind

    @cached_property
    def local(self) -> frozenset[str]:
        """The sites that belong to data rows."""
        return derived.local_sites(self)

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """The global sites, in update order."""
        return tuple(site for site in self.families if site not in self.local)

    @cached_property
    def observed(self) -> str:
        """The observed site."""
        return derived.observed_site(self)

    @cached_property
    def damped(self) -> frozenset[str]:
        """The sites in whose statistics F is not linear even given the auxiliaries.

        Their target is a Newton step, which engines shorten (`families.newton_step`) and, where
        the bound must not fall, backtrack. They have no complete conditional to sample.
        """
        return derived.damped_sites(self)

    @cached_property
    def coupled(self) -> str:
        """Where global sites meet in F given the auxiliaries and the local sites: "" nowhere,
        "prior" in log_global alone, "rows" in log_local too."""
        return derived.coupling(self)


CORE = tuple(field.name for field in dataclasses.fields(Model))[:9]


def otherwise(example: Callable[..., tuple[Any, Data]], **changes: Any) -> Callable[..., Any]:
    """The example with other hyper-parameters: for a variant that they lead to."""

    def changed(key: jax.Array) -> tuple[Any, Data]:
        hyper, data = example(key)
        return hyper._replace(**changes), data

    return changed


def make_hyper(model: Model, given: Any, data: Data) -> Any:
    """Hyper-parameters from a dict, a `Hyper` or None: checked, with defaults filled in."""
    return declare(model, given, data)[1]


def declare(model: Model, given: Any, data: Data) -> tuple[Model, Any]:
    """The model's variant for these hyper-parameters and data, and the checked hyper-parameters."""
    hyper = read_hyper(model.Hyper, model.name, given)
    model = choose_variant(model, hyper, data.kind)
    if data.kind != model.kind:
        raise InputError(
            f"Model {model.name!r} explains {model.kind} data, but these are {data.kind}: make them with pp_models.data.{model.kind}."
        )
    model.check_rows(data)
    return model, check_fields(model.resolve(hyper, data))


def choose_variant(model: Model, hyper: Any, kind: str) -> Model:
    """The declaration to use for these hyper-parameters and this kind of data."""
    return model if model.variant is None else model.variant(hyper, kind)


def learnable(model: Model, hyper: Any) -> dict[str, Any]:
    """The hyper-parameters that may be learned, and the value each starts from."""
    if model.learning.start is not None:
        return dict(model.learning.start(hyper))
    return {name: x for name, x in values_of(hyper).items() if np.all(np.asarray(x) > 0)}
