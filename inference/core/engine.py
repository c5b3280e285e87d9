"""What an engine is: a name, its options, three functions, and traits. None knows any model.

Whatever other rooms must know of an engine is a trait here: `compare`, the report, calibration and
the tables ask for traits and name no engine.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Stage(NamedTuple):
    """How far a sampler has come.

    phase: its name. share: of the whole run, from 0 to 1. usable: whether there are draws of the
    posterior yet.
    """

    phase: str
    share: float
    usable: bool


class Algorithm(NamedTuple):
    """An engine bound to a problem.

    init:      (key, start) -> state; `start` holds values for some sites, or is empty
    step:      (key, state, batches) -> (state, info); one batch per device, info a NamedTuple of
               scalars; the run ends where its `finished` is true
    posterior: (state) -> Posterior; of a sampler that is still warming up, the chains' present
               values as one draw each
    stage:     (state) -> Stage, of samplers; None where every step leaves an answer
    """

    init: Callable[..., Any]
    step: Callable[..., tuple[Any, Any]]
    posterior: Callable[..., Any]
    stage: Callable[..., Stage] | None = None


SOLID, DASHED, DOTTED, MIXED, LONG = "none", "6 3", "1.5 3", "7 3 1.5 3", "11 4"


class Look(NamedTuple):
    """How an engine is drawn in every figure and table.

    hue: one of `palette.SHADES`. dash: of lines, as SVG has it. marker: as in `markers.html.j2`.
    is_open: whether the marker is an outline.
    """

    hue: str
    dash: str
    marker: str
    is_open: bool = False


CORRECTED_DASHES = {
    SOLID: "9 2.5 2 2.5",
    DASHED: "5 2 2 2",
    DOTTED: "1.5 5",
    MIXED: "7 2 1.5 2 1.5 2",
    LONG: "11 3 2 3",
}


def corrected_look(own: Look) -> Look:
    """How a fit with corrected widths is drawn: in its engine's colour, with another marker."""
    dash = CORRECTED_DASHES.get(own.dash, CORRECTED_DASHES[SOLID])
    return own._replace(dash=dash, is_open=not own.is_open)


class Engine(NamedTuple):
    """An inference method.

    Options:   NamedTuple of options with defaults (`core.options`)
    build:     (problem, options) -> Algorithm
    kind:      what it returns: variational, conditional (rows given draws of global sites), point,
               draws, or mixture (a grid of hyper-parameters)
    rows:      what a step is given: "all" rows, a random "batch" of them, the batches of one fixed
               "partition" in turn, rows of a growing "stream", or "none" (it packs its own)
    sharded:   whether its rows are dealt out to all devices
    check:     (options) raises InputError for values that cannot be
    init:      what `fit(init=...)` may hold: "natural" parameters of global sites, "values" of any
               site, or "none"
    settle:    (options, data) -> options with what depends on the data's size filled in
    stream:    (problem, options, key, state, batches, present, arrived) -> (state, info): a step on
               a batch of a database of `present` rows, of which `arrived` came since learning
               began; None where the engine needs all the data at once
    State:     the NamedTuple type of its state, for engines that can follow a stream
    order:     which rows such a step is given: "random" ones of those present, or the "next" ones
    learns:    whether it can learn hyper-parameters (`_empirical_bayes`)
    suits:     (model) -> why it cannot fit this model, in a sentence; empty where it can
    ascends:   whether its bound rises with every step: where it falls by more than rounding,
               something is wrong and the run is stopped
    sums_out:  whether the bound of its steps has auxiliaries such as allocations summed out
    num_steps: (options, problem) -> steps of a run; engines on batches run `num_epochs` passes
    compared:  whether a comparison takes it where none are named
    corrected: whether such a comparison, unless it is quick, also shows its fit with the widths of
               linear response (`registry.corrects`)
    quick:     options of a quick comparison
    is_quick:  whether a quick comparison takes it where none are named
    calibrated: options on the small data sets of a calibration, with nearly independent draws
    tiny:      options with which it takes seconds on a model's example, for the shared tests
    budget:    its share of a comparison's time, that of most engines being 1
    look:      how it is drawn; None for one of the spare looks
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
    sums_out: bool = False
    num_steps: Callable[..., int] = lambda options, problem: options.num_epochs
    compared: bool = False
    corrected: bool = False
    quick: Mapping[str, Any] = {}
    is_quick: bool = False
    calibrated: Mapping[str, Any] = {}
    tiny: Mapping[str, Any] = {}
    budget: float = 1.0
    look: Look | None = None
