"""Options of engines: each described once, those that engines share in groups.

    Options = compose(epochs(500), rows(num_local=10, local_tolerance=1e-4), stop(1e-6))

makes a NamedTuple of options with defaults. What users read of an option, and what it may be, is
its `Option`.
"""

import collections
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pp_models.errors import InputError, unknown


class Option(NamedTuple):
    """default: its value unless given, whose type it has. about: what it does.

    least: the smallest number it may be (default: 0 for a float or where the default is 0, else 1)
    choices: the words it may be
    """

    default: Any
    about: str
    least: float | None = None
    choices: tuple[str, ...] = ()


Group = Mapping[str, Option]


def compose(*groups: Group, **own: Option) -> Any:
    """A NamedTuple type of the groups' options and an engine's own, in this order."""
    described = dict(collections.ChainMap(own, *reversed(groups)))
    make: Any = collections.namedtuple  # mypy wants its fields spelled out
    kind = make("Options", described, defaults=[x.default for x in described.values()])
    kind.described = described
    kind.__doc__ = "\n\n".join(f"{name}: {option.about}." for name, option in described.items())
    return kind


def read_options(Options: Any, engine: str, given: Mapping[str, Any]) -> Any:
    """The options with the given ones checked: names, types, words and least numbers."""
    described = Options.described
    for name, value in given.items():
        if name not in described:
            raise unknown(f"option of engine {engine}", name, described)
        _check(engine, name, described[name], value)
    return Options(**{name: type(described[name].default)(x) for name, x in given.items()})


def _check(engine: str, name: str, option: Option, value: Any) -> None:
    least = option.least
    if least is None:
        least = 0 if option.default == 0 or isinstance(option.default, float) else 1
    if option.choices and isinstance(value, str) and value not in option.choices:
        raise unknown(name, value, option.choices)
    if isinstance(option.default, str):
        good, kind = isinstance(value, str), "text"
    elif isinstance(option.default, int):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        good, kind = whole and int(value) >= least, f"a whole number of at least {least}"
    else:
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        good = number and least <= float(value) < float("inf")
        kind = f"a number of at least {least}"
    if not good:
        raise InputError(f"Option {name} of engine {engine} must be {kind}, not {value!r}.")


# Groups that engines share --------------------------------------------------------------------


def epochs(most: int) -> Group:
    return {"num_epochs": Option(most, "sweeps at most")}


def batches(num_updates: int) -> Group:
    passes = f"passes over the data (0: three, or as many as make {num_updates} steps)"
    return {
        "num_epochs": Option(0, passes),
        "batch_size": Option(0, "rows per step (0: an eighth of them, at most 256)"),
    }


def rows(num_local: int, local_tolerance: float) -> Group:
    return {
        "num_local": Option(num_local, "iterations of the rows' fixed point (M) at most"),
        "local_tolerance": Option(local_tolerance, "change at which a row's iterations stop"),
    }


def rate(tau: float, kappa: float) -> Group:
    return {
        "tau": Option(tau, "delay of the learning rate (tau + t)^-kappa"),
        "kappa": Option(
            kappa,
            "decay of the learning rate, at most 1; the classical conditions ask for more than 0.5",
        ),
    }


def rate_of_size(tau: float, most: float) -> Group:
    """The same, with an open decay (`_minibatch.fill_rate`)."""
    about = f"(-1: the more steps in a pass the faster, log(steps) / 8 between 0.3 and {most:g})"
    decay = Option(-1.0, f"decay of the learning rate, from 0 to 1 {about}", least=-1.0)
    return {**rate(tau, 0.0), "kappa": decay}


WEIGHTS = Option(
    "geometric",
    'what stands for global sites while rows are solved: "geometric" means, with which a step is '
    'one on the bound, or (Dirichlet, gamma, beta) "mean"',
    choices=("geometric", "mean"),
)
BASIS = Option(
    "auto",
    'the density that is maximised: of x ("identity"), of log x ("log"), or of x where that has '
    'a mode ("auto")',
    choices=("auto", "identity", "log"),
)


def bound(every: int) -> Group:
    return {
        "bound_every": Option(every, "steps between estimates of the bound (0: never)", least=0),
    }


def stop(tolerance: float, what: str = "an epoch's mean bound improves") -> Group:
    about = f"stop when {what} by less than this, relatively (0: never)"
    return {"tolerance": Option(tolerance, about)}


def trust(num_inner: int) -> Group:
    return {
        "num_inner": Option(num_inner, "inner steps (m) on each batch"),
        "inner_tolerance": Option(
            0.0, "stop them when the inner objective rises by less than this, relatively (0: all m)"
        ),
        "start": Option(
            "uniform",
            'where inner steps begin: beliefs spread evenly ("uniform", phi = 1/K) or the '
            '"current" parameters',
            choices=("uniform", "current"),
        ),
    }


def chains(num_samples: int, num_warmup: int, num_chains: int = 2) -> Group:
    return {
        "num_samples": Option(num_samples, "draws kept per chain"),
        "num_warmup": Option(num_warmup, "draws dropped first", least=0),
        "num_chains": Option(num_chains, "independent chains"),
    }


def marginal(choices: tuple[str, ...]) -> Group:
    """Of the Laplace engines."""
    return {
        "num_epochs": Option(60, "steps at most, each of which tries a few values of theta"),
        "method": Option("log", "of the Laplace approximation: see the page", choices=choices),
        "num_sweeps": Option(2000, "of coordinate ascent at each value of theta, at most"),
        "sweep_tolerance": Option(1e-4, "nats gained by three sweeps at which it rests"),
    }
