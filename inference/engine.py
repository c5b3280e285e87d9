"""What an engine is: a name, its options, and three functions. None knows any model."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Stage(NamedTuple):
    """How far a sampler has come. phase: its name. share: of the whole run, from 0 to 1. usable: whether there are draws of the posterior yet."""

    phase: str
    share: float
    usable: bool


class Algorithm(NamedTuple):
    """An engine bound to a problem.

    init:      (key, start) -> state; `start` holds values for some sites, or is empty
    step:      (key, state, batches) -> (state, info); one batch per device, info a NamedTuple of scalars; the run ends where its `finished` is true
    posterior: (state) -> Posterior; of a sampler that is still warming up, the chains' present values as one draw each
    stage:     (state) -> Stage, of samplers; None where every step leaves an answer
    """

    init: Callable[..., Any]
    step: Callable[..., tuple[Any, Any]]
    posterior: Callable[..., Any]
    stage: Callable[..., Stage] | None = None


class Engine(NamedTuple):
    """An inference method.

    Options:   NamedTuple of options with defaults
    build:     (problem, options) -> Algorithm
    kind:      what it returns: variational, point, draws, or mixture (a grid of hyper-parameters)
    rows:      what a step is given: "all" rows, a random "batch" of them, the batches of one fixed "partition" in turn, rows of a growing "stream",
               or "none" (the engine packs its own)
    sharded:   whether its rows are dealt out to all devices
    check:     (options) raises InputError for values that cannot be
    init:      what `fit(init=...)` may hold: "natural" parameters of global sites, "values" of any site, or "none"
    settle:    (options, data) -> options with what depends on the data's size filled in
    stream:    (problem, options, key, state, batches, present, arrived) -> (state, info): a step on a batch of a database of `present` rows, of which
               `arrived` came since learning began; None where the engine needs all the data at once
    State:     the NamedTuple type of its state, for engines that can follow a stream
    order:     which rows such a step is given: "random" ones of those present, or the "next" ones not seen yet
    learns:    whether it can learn hyper-parameters (`inference.empirical_bayes`)
    suits:     (model) -> why it cannot fit this model, in a sentence; empty where it can
    ascends:   whether its bound rises with every step: where it falls by more than rounding, something is wrong and the run is stopped
    num_steps: (options, problem) -> steps of a run; engines on batches run `num_epochs` passes instead
    """

    name: str
    Options: Any
    build: Callable[..., Algorithm]
    kind: str
    rows: str = "all"
    sharded: bool = True
    check: Callable[[Any], None] = lambda options: None
    init: str = "none"
    settle: Callable[..., Any] = lambda options, data: options
    stream: Callable[..., tuple[Any, Any]] | None = None
    State: Any = None
    order: str = "random"
    learns: bool = False
    suits: Callable[[Any], str] = lambda model: ""
    ascends: bool = False
    num_steps: Callable[..., int] = lambda options, problem: options.num_epochs
