"""What a user passes by name to `fit` and `stream`: hyper-parameters, the engine's options, a key.

A name that is both a hyper-parameter and an option of the engine is the option.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from inference.core.registry import engines, load_engine
from pp_models import models as discovery
from pp_models.errors import InputError, unknown_among

LARGEST_SEED = 2**32 - 1  # JAX forgets the higher bits


class Settings(NamedTuple):
    """hyper: as for `fit`, those given by name included. options: the engine's own."""

    hyper: Any
    options: dict[str, Any]


def sort_settings(
    model: Any, engine: str, hyper: Any, given: Mapping[str, Any], arguments: Iterable[str] = ()
) -> Settings:
    """Hyper-parameters and options told apart by their names.

    arguments: of the function that was called, for the suggestion where a name is unknown
    """
    declared, chosen = discovery.load(model), load_engine(engine)
    fields, known = declared.Hyper._fields, chosen.Options._fields
    _check_hyper(hyper, declared, chosen)
    options = {name: value for name, value in given.items() if name in known}
    named = {n: x for n, x in given.items() if n not in known and (n in fields or n == "learn")}
    for name in given:
        if name not in options and name not in named:
            raise _unknown(name, declared, chosen, arguments)
    return Settings(_merged(declared, hyper, named), options)


def names_of(function: Callable[..., Any]) -> list[str]:
    """The arguments of a function that are passed by name alone, or may be."""
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD][1:]


def _merged(model: Any, hyper: Any, named: dict[str, Any]) -> Any:
    """Both, where a hyper-parameter is given once."""
    if not named:
        return hyper
    if isinstance(hyper, model.Hyper):
        return {**hyper._asdict(), **named}
    if isinstance(hyper, str) and hyper == "learn":
        return {"learn": "all", **named}
    if hyper is not None and not isinstance(hyper, Mapping):
        return hyper  # refused for what it is
    given = dict(hyper or {})
    for name in given:
        if name in named:
            told = f"{name} is given twice, as {named[name]!r} and in hyper as {given[name]!r}"
            raise InputError(f"{told}: leave one of them out.")
    return given | named


def _check_hyper(hyper: Any, model: Any, engine: Any) -> None:
    """Refuse options among the hyper-parameters."""
    for name in hyper if isinstance(hyper, Mapping) else ():
        if name not in model.Hyper._fields and name in engine.Options._fields:
            told = (
                f"{name} is an option of engine {engine.name}, no hyper-parameter of {model.name}"
            )
            raise InputError(f"{told}: pass it beside hyper, as {name}={hyper[name]!r}.")


def _unknown(name: str, model: Any, engine: Any, arguments: Iterable[str]) -> InputError:
    able = [one for one in engines() if name in load_engine(one).Options._fields]
    if able:
        told = f"{name} is an option of {', '.join(able)}, not of {engine.name}"
        return InputError(f"{told}: choose one of these engines, or leave {name} out.")
    groups = {
        f"hyper-parameter of {model.name}": model.Hyper._fields,
        f"option of engine {engine.name}": engine.Options._fields,
        "argument": sorted(arguments),
    }
    return unknown_among(name, groups)


def read_key(key: Any = None, seed: Any = None) -> jax.Array:
    """A JAX random key from a key, or from a whole number as key or seed (default: 0)."""
    if key is not None and seed is not None:
        raise InputError("key and seed mean the same: give one of them.")
    given = seed if key is None else key
    if given is None:
        return jax.random.key(0)
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if not 0 <= given <= LARGEST_SEED:
            raise InputError(f"seed must be from 0 to {LARGEST_SEED}, not {given}.")
        return jax.random.key(int(given))
    is_key = isinstance(given, jax.Array) and seed is None
    if is_key and jax.dtypes.issubdtype(given.dtype, jax.dtypes.prng_key) and given.ndim == 0:
        return given
    if is_key and given.dtype == np.uint32 and given.shape == (2,):  # jax.random.PRNGKey
        return jax.random.wrap_key_data(given)
    what = "seed must be a whole number" if key is None else "key must be a JAX random key"
    raise InputError(f"{what}, such as {0 if key is None else 'jax.random.key(0)'}, not {given!r}.")
